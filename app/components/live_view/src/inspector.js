// Everything about the selected block: live facts from the frame, the rest from Python.

import { tokenBlockOf } from "./decode.js";
import { attrs, button, h, keyed, setText, show } from "./dom.js";
import { blockFacts } from "./describe.js";
import { bytes, percent, significant } from "./format.js";
import { Pages } from "./pages.js";

const ROWS = [
  "state", "owners", "part", "position", "refs", "hash", "parent", "tier", "format", "bytes", "mass", "last_used", "evict",
];
const TERM_OF = { refs: "refs", hash: "hash", mass: "mass", tier: "tier", format: "format", evict: "evict_rank" };

export class Inspector {
  constructor(context) {
    const { words, tips, select } = context;
    Object.assign(this, { context, words });
    this.title = h("h3", "panel-title");
    this.clear = button("small quiet", words("block.clear"), () => select(null));
    this.rows = new Map(ROWS.map((name) => {
      const term = tips.term(h("dt", "", words(`block.${name}`)), TERM_OF[name] ?? name);
      return [name, { term, value: h("dd", "") }];
    }));
    this.pages = new Pages(context);
    this.list = h("dl", "facts");
    for (const { term, value } of this.rows.values()) this.list.append(term, value);
    this.owners = h("span", "owner-links");
    this.nobody = h("span", "", "–");
    this.rows.get("owners").value.append(this.owners, this.nobody);
    this.text = h("blockquote", "block-text");
    this.hint = h("p", "hint", words("block.none"));
    this.node = attrs(h("section", "inspector", h("div", "panel-head", this.title, this.clear), this.hint, this.pages.node, this.list, this.text),
      { "aria-label": words("block.label") });
  }

  update(frame) {
    const { store, data } = this.context, { selected } = store.view;
    const facts = selected ? blockFacts(frame, selected.tier, selected.cell) : null;
    show(this.hint, !facts);
    show(this.clear, !!facts);
    setText(this.title, facts ? this.words("block.title", selected) : this.words("block.label"));
    this.pages.update(frame, selected);
    for (const part of Object.values(this.rows.get("part"))) show(part, !!frame.blocks);
    if (!facts) return this.blank();
    const block = data().block;
    const extra = block && block.tier === selected.tier && block.cell === selected.cell ? block : null;
    this.fill(frame, selected, facts, extra);
  }

  blank() {
    show(this.text, false);
    for (const [name, { value }] of this.rows) if (name !== "owners") setText(value, "–");
    this.setOwners({ holders: [] });
  }

  fill(frame, selected, facts, block) {
    const { words } = this, none = words("value.none"), wait = words("value.wait");
    const detail = (value) => (block ? value || none : wait);
    const set = (name, text) => setText(this.rows.get(name).value, text);
    const pinned = facts.pinned ? ` · ${words("legend.pinned")}` : "";
    set("state", words(`state.${facts.name}`) + pinned + (block && words.has(`why.${block.why}`) ? ` · ${words(`why.${block.why}`)}` : ""));
    this.setOwners(facts);
    set("part", this.part(frame, selected) || none);
    set("position", this.position(frame, facts, block) || none);
    set("refs", facts.refs);
    set("hash", detail(block && short(block.key)));
    set("parent", detail(block && short(block.parent_key)));
    set("tier", mediumOf(frame, selected.tier));
    set("format", facts.pageClass ? facts.pageClass.label : detail(block && block.label));
    set("bytes", facts.pageClass ? bytes(facts.pageClass.page_bytes) : detail(block && bytes(block.num_bytes)));
    set("mass", block && block.mass !== null ? percent(block.mass)
      : words("block.mass.relative", { share: Math.round(facts.mass / 2.55) }));
    set("last_used", block ? words("block.step", { step: significant(block.last_used_step),
      ago: Math.max(0, frame.snap.step - block.last_used_step) }) : wait);
    set("evict", block ? this.rank(block) : wait);
    show(this.text, !!(block && block.text));
    if (block) setText(this.text, block.text);
  }

  // The layer and KV head whose page it is, where each has its own.
  part(frame, { tier, cell }) {
    const found = tokenBlockOf(frame, tier, cell);
    if (!found) return "";
    const { rows, columns } = frame.blocks, layer = rows[Math.floor(found.group / columns)];
    return columns > 1 ? this.words("block.part.head", { layer, head: found.group % columns }) : layer;
  }

  // A head may keep other tokens than its token block's: then Python knows which.
  position(frame, facts, block) {
    const { words } = this;
    if (frame.blocks && block && block.page_index >= 0) {
      return words("block.tokens", { page: block.page_index, first: block.first_token, last: block.last_token });
    }
    return facts.page >= 0 ? words("block.tokens", { page: facts.page, first: facts.first, last: facts.last }) : "";
  }

  rank(block) {
    return block.evict_rank ? this.words("block.rank", { rank: block.evict_rank, of: block.num_evictable })
      : this.words("block.not_evictable");
  }

  setOwners(facts) {
    const { context } = this;
    show(this.nobody, !facts.holders.length);
    keyed(this.owners, facts.holders, (x) => x.request.request_id,
      (x) => button("link", "", () => context.selectRequest(x.request.request_id)),
      (node, x) => setText(node, `${x.request.label || x.request.request_id} [${x.page}]`));
  }
}

function short(key) { return key ? (key.length > 16 ? `${key.slice(0, 12)}…` : key) : ""; }

function mediumOf(frame, name) {
  const tier = frame.snap.tiers.find((t) => t.name === name);
  return tier ? `${name} · ${tier.medium}` : name;
}
