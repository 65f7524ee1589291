// The ladder of tiers: how full each one is, what moves between two of them now, and what was found there.

import { attrs, h, keyed, paced, setAttr, setClass, setSpan, setText } from "./dom.js";
import { rate } from "./format.js";
import { TierBar } from "./tiers.js";

const NAMES = ["G1", "G2", "G3", "G3.5", "G4"];
const OFF = { enabled: false, in_bytes_per_s: 0, out_bytes_per_s: 0, hits: 0, misses: 0, num_entries: 0, note: "" };
const POLICIES = ["placement", "write", "admission", "codec"];
const LEAST_FULL_BYTES_PER_S = 1e6; // a trickle should not fill the whole width

// A tier's policies in a word or two each; one of a user's own goes by its name.
export function policyLine(tier, words) {
  const policies = tier.policies ?? {};
  const word = (what, value) => (words.has(`ladder.${what}.${value}`) ? words(`ladder.${what}.${value}`) : value);
  return POLICIES.filter((what) => policies[what]).map((what) => word(what, policies[what])).join(", ");
}

export class Ladder {
  constructor(context) {
    this.context = context;
    this.node = attrs(h("section", "ladder"), { "aria-label": context.words("ladder.label") });
    this.draw = paced(() => this.update(), 200);
    this.draw();
  }

  on() { this.draw(); }
  themeChanged() {}
  destroy() {}

  update() {
    const frame = this.context.store.shown;
    if (!frame || document.hidden) return;
    const tiers = NAMES.map((name) => frame.snap.tiers.find((t) => t.name === name) ?? this.missing(name));
    const most = Math.max(LEAST_FULL_BYTES_PER_S, ...tiers.flatMap((t) => [t.in_bytes_per_s, t.out_bytes_per_s]));
    keyed(this.node, tiers, (tier) => tier.name, (tier) => this.rung(tier), (node, tier) => node.kvwShow(tier, most));
  }

  // A tier that is off and has no place in the frame.
  missing(name) {
    const medium = this.context.words(`ladder.medium.${name}`);
    return { ...OFF, name, medium };
  }

  // One tier with the flow between it and the tier above.
  rung({ name }) {
    const { words, store } = this.context, first = name === "G1";
    const bar = new TierBar(name, this.context, false);
    bar.canAdd = !first && !store.playback;
    const down = this.flow("down"), up = this.flow("up");
    const medium = h("span", "ladder-medium"), facts = h("span", "ladder-facts");
    const policy = attrs(h("span", "ladder-policy"), { title: words("ladder.policy.title") });
    const between = h("div", "ladder-flows", down.node, up.node);
    const node = h("div", "rung", first ? null : between, bar.node, h("div", "ladder-line", medium, policy, facts));
    node.kvwShow = (tier, most) => {
      bar.update(tier);
      setClass(node, "off", !tier.enabled);
      down.show(tier.in_bytes_per_s, most);
      up.show(tier.out_bytes_per_s, most);
      setText(medium, tier.medium);
      setText(policy, policyLine(tier, words));
      const asked = tier.hits + tier.misses;
      const values = { hits: tier.hits, asked, percent: asked ? Math.round((100 * tier.hits) / asked) : 0, entries: tier.num_entries };
      const key = !tier.enabled ? "" : !asked ? "ladder.unasked" : first ? "ladder.tokens" : "ladder.blocks";
      setText(facts, key ? words(key, values) : "");
    };
    return node;
  }

  // A bar as wide as its share of the largest flow now, with the rate in words.
  flow(way) {
    const { words } = this.context;
    const fill = h("i", ""), text = h("span", "");
    const node = h("div", `ladder-flow ${way}`, h("span", "ladder-bar", fill), text);
    return {
      node,
      show: (bytesPerS, most) => {
        setSpan(fill, 0, bytesPerS / most);
        setText(text, words(`ladder.${way}`, { rate: rate(bytesPerS) }));
        setAttr(node, "data-moving", bytesPerS > 0);
      },
    };
  }
}
