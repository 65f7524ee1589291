// The same picture as tables, for those who cannot use it; blocks come in pages of 25.

import { attrs, button, h, setText, show } from "./dom.js";
import { blockFacts } from "./describe.js";
import { membersOf, tokenBlockOf } from "./decode.js";
import { bytes, count, rate } from "./format.js";

const PAGE = 25;

export class Tables {
  constructor({ store, words }) {
    Object.assign(this, { store, words, first: 0 });
    this.tiers = table(words("tables.tiers"), ["tier", "used", "cached", "free", "in", "out"].map((c) => words(`tables.${c}`)));
    this.sequences = table(words("tables.sequences"),
      ["request", "status", "tokens", "pages", "shared", "evicted"].map((c) => words(`tables.${c}`)));
    this.blocks = table(words("tables.blocks"), ["block", "state", "requests", "refs", "mass", "format"].map((c) => words(`tables.${c}`)));
    this.where = h("span", "hint");
    const back = button("small", words("tables.back"), () => this.turn(-PAGE));
    const next = button("small", words("tables.next"), () => this.turn(PAGE));
    this.node = h("details", "tables", h("summary", "panel-title", words("tables.label")), this.tiers.node,
      this.sequences.node, this.blocks.node, h("div", "panel-head", back, this.where, next));
    this.node.addEventListener("toggle", () => this.store.shown && this.update(this.store.shown));
  }

  turn(by) {
    const cells = this.store.shown ? cellsToList(this.store.shown, this.store.view).length : 0;
    this.first = Math.max(0, Math.min(this.first + by, Math.floor(Math.max(0, cells - 1) / PAGE) * PAGE));
    if (this.store.shown) this.update(this.store.shown);
  }

  update(frame) {
    if (!this.node.open) return;
    const { snap } = frame, { words } = this;
    this.tiers.fill(snap.tiers.map((t) => [t.name, bytes(t.used_bytes), bytes(t.cached_bytes), bytes(t.free_bytes),
      rate(t.in_bytes_per_s), rate(t.out_bytes_per_s)]));
    this.sequences.fill(snap.requests.map((r) => [r.label || r.request_id, words(`status.${r.status}`),
      count(r.num_tokens), r.num_pages, r.num_shared_pages, r.num_evicted_tokens]));
    const cells = cellsToList(frame, this.store.view), rows = [];
    for (const cell of cells.slice(this.first, this.first + PAGE)) {
      const facts = blockFacts(frame, "G1", cell), whole = tokenBlockOf(frame, "G1", cell);
      const several = whole && this.store.view.group !== "page";
      rows.push([several ? words("tables.square", { cell, kept: whole.kept, of: whole.of }) : cell, words(`state.${facts.name}`),
        facts.holders.map((x) => x.request.label || x.request.request_id).join(", "),
        facts.refs, Math.round(facts.mass / 2.55), facts.pageClass ? facts.pageClass.label : ""]);
    }
    this.blocks.fill(rows);
    setText(this.where, words("tables.where", { first: this.first, last: this.first + rows.length - 1, of: cells.length }));
  }
}

// Pages of G1 in address order; of token blocks with several pages the first one.
function cellsToList(frame, view) {
  const count = frame.tiers.get("G1")?.num_cells ?? 0;
  if (!frame.blocks || view.group === "page") return Array.from({ length: count }, (_, cell) => cell);
  const { start, cells } = membersOf(frame);
  return Array.from(start.subarray(0, -1), (at) => cells[at]);
}

// A table whose rows and cells are reused.
function table(caption, columns) {
  const head = h("tr", "", ...columns.map((c) => attrs(h("th", "", c), { scope: "col" })));
  const body = h("tbody", "");
  const node = h("table", "", h("caption", "", caption), h("thead", "", head), body);
  const fill = (rows) => {
    while (body.children.length < rows.length) body.append(h("tr", "", ...columns.map(() => h("td", ""))));
    [...body.children].forEach((row, i) => {
      show(row, i < rows.length);
      if (i < rows.length) rows[i].forEach((value, j) => setText(row.children[j], value));
    });
  };
  return { node, fill };
}
