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
    this.setOwners([]);
  }

  fill(frame, selected, facts, block) {
    const { words } = this, none = words("value.none"), wait = words("value.wait");
    const detail = (value) => (block ? value || none : wait);
    const set = (name, text) => setText(this.rows.get(name).value, text);
    const pinned = facts.pinned ? ` · ${words("legend.pinned")}` : "";
    set("state", words(`state.${facts.name}`) + pinned);
    this.setOwners(ownersOf(frame, facts, block));
    set("part", this.part(frame, selected) || none);
    set("position", this.position(frame, facts, block) || none);
    set("refs", facts.refs);
    set("hash", detail(block && short(block.key)));
    set("parent", detail(block && short(block.parent_key)));
    set("tier", mediumOf(frame, selected.tier));
    const live = selected.tier === "G1" ? facts.pageClass : null; // below, each entry has its own
    set("format", live ? live.label : detail(block && block.label));
    set("bytes", live ? bytes(live.page_bytes) : detail(block && block.num_bytes && bytes(block.num_bytes)));
    set("mass", this.mass(facts, block));
    const ago = block ? Math.max(0, frame.snap.step - block.last_used_step) : 0;
    const known = block && block.state !== "free";
    set("last_used", known ? words("block.step", { step: significant(block.last_used_step), ago }) : detail(""));
    set("evict", block ? this.rank(block, ago) : wait);
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
    if (facts.first >= 0) return words("block.tokens", { page: facts.page, first: facts.first, last: facts.last });
    if (!block) return facts.name === "free" ? "" : words("value.wait");
    return block.first_token >= 0
      ? words("block.tokens", { page: block.page_index, first: block.first_token, last: block.last_token }) : "";
  }

  // Attention belongs to a request's read of a block: what nobody reads has none.
  mass(facts, block) {
    if (block && block.mass !== null) return percent(block.mass);
    if (block && facts.name !== "owned") return this.words("block.mass.none");
    return this.words("block.mass.relative", { share: Math.round(facts.mass / 2.55) });
  }

  // Place in the order of eviction, and why: what holds the block, and when it was read last.
  rank(block, ago) {
    const { words } = this;
    const kind = words.has(`why.${block.why}`) ? words(`why.${block.why}`, { s: Math.ceil(block.held_s ?? 0) }) : block.why;
    const why = block.state === "free" ? kind : words(ago ? "why.read" : "why.read.now", { why: kind, ago });
    return block.evict_rank ? words("block.rank", { rank: block.evict_rank, of: block.num_evictable, why })
      : words("block.not_evictable", { why });
  }

  setOwners(owners) {
    const { context } = this;
    show(this.nobody, !owners.length);
    keyed(this.owners, owners, (x) => x.request.request_id,
      (x) => button("link", "", () => context.selectRequest(x.request.request_id)),
      (node, x) => setText(node, (x.request.label || x.request.request_id) + (x.page < 0 ? "" : ` [${x.page}]`)));
  }
}

// Who holds a block: as the frame tells, else as Python does, which knows the page of the first only.
export function ownersOf(frame, facts, block) {
  if (!block || (facts.holders.length && facts.page >= 0)) return facts.holders;
  const told = block.owners.map((id, i) => ({
    request: frame.snap.requests.find((r) => r.request_id === id) ?? { request_id: id }, page: i ? -1 : block.page_index,
  }));
  return told.length ? told : facts.holders;
}

function short(key) { return key ? (key.length > 16 ? `${key.slice(0, 12)}…` : key) : ""; }

function mediumOf(frame, name) {
  const tier = frame.snap.tiers.find((t) => t.name === name);
  return tier ? `${name} · ${tier.medium}` : name;
}
