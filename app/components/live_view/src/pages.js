// The pages of an opened token block: layers across, KV heads down, each one a button.

import { attrs, button, h, keyed, setAttr, setClass, setText, show } from "./dom.js";
import { lensColour } from "./cells.js";
import { CACHED, SHARED, STATE_MASK, tokenBlockOf } from "./decode.js";
import { stateName } from "./describe.js";
import { formatPlane } from "./squares.js";
import { css } from "./theme.js";

const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export class Pages {
  constructor(context) {
    Object.assign(this, { context, words: context.words, shape: "" });
    this.summary = h("span", "pages-kept");
    this.toggle = button("small", "", () => context.store.setView({ opened: !context.store.view.opened }));
    this.body = h("div", "pages-rows");
    this.body.addEventListener("keydown", (event) => this.onKey(event));
    this.axis = attrs(h("div", "pages-axis", h("span", ""), h("span", "")), { "aria-hidden": "true" });
    this.matrix = attrs(h("div", "pages-matrix", this.body, this.axis), { role: "group" });
    this.node = h("div", "token-block", h("div", "panel-head", this.summary, this.toggle), this.matrix);
  }

  // Shows the token block of the selected page; nothing where a token block is one page.
  update(frame, selected) {
    const found = selected ? tokenBlockOf(frame, selected.tier, selected.cell) : null;
    const { opened } = this.context.store.view, { words } = this;
    show(this.node, !!found);
    if (!found) return;
    this.found = found;
    setText(this.summary, words("pages.kept", { kept: found.kept, of: found.of }));
    setText(this.toggle, words(opened ? "pages.close" : "pages.open"));
    setAttr(this.toggle, "aria-expanded", String(!!opened));
    show(this.matrix, !!opened);
    if (opened) this.draw(frame, found);
  }

  draw(frame, found) {
    const { rows, columns } = frame.blocks, { words } = this;
    const layers = Array.from(rows.keys()), heads = Array.from({ length: columns }, (_, i) => i);
    setAttr(this.matrix, "aria-label", words("pages.label", { kept: found.kept, of: found.of }));
    setText(this.axis.firstChild, words("pages.layer", { layer: rows[0] }));
    setText(this.axis.lastChild, rows.length > 1 ? words("pages.layer", { layer: rows[rows.length - 1] }) : "");
    const tier = frame.tiers.get("G1"), theme = this.context.theme(), { lens } = this.context.store.view;
    const plane = lens === "format" ? formatPlane(tier) : tier[lens];
    keyed(this.body, heads, (head) => head, () => h("div", "pages-row"), (row, head) => {
      keyed(row, layers, (layer) => layer, (layer) => this.page(layer * columns + head), (node, layer) => {
        const cell = found.pages.get(layer * columns + head);
        this.paint(node, { frame, tier, theme, cell, layer: rows[layer], head, lens, value: plane ? plane[cell] : 0 });
      });
    });
  }

  page(group) {
    const node = button("page-cell", "", () => this.pick(group));
    node.dataset.group = group;
    return node;
  }

  paint(node, { frame, tier, theme, cell, layer, head, lens, value }) {
    const kept = cell !== undefined, state = kept ? tier.state[cell] : 0, { selected } = this.context.store.view;
    const chosen = kept && selected?.cell === cell;
    const colour = kept ? css(lensColour(theme, lens, value, "G1")) : "";
    if (node.dataset.colour !== colour) node.style.setProperty("--page", (node.dataset.colour = colour) || "transparent");
    setClass(node, "gone", !kept);
    setClass(node, "is-cached", kept && (state & STATE_MASK) === CACHED);
    setClass(node, "is-shared", (state & SHARED) !== 0);
    setAttr(node, "aria-pressed", String(chosen));
    setAttr(node, "tabindex", chosen ? "0" : "-1");
    const named = frame.blocks.columns > 1 ? "pages.head" : "pages.one";
    const text = this.words(named, { layer, head, state: this.words(kept ? `state.${stateName(state)}` : "pages.gone") });
    setAttr(node, "aria-label", text);
    setAttr(node, "title", text);
    setAttr(node, "aria-disabled", kept ? null : "true");
  }

  pick(group) {
    const cell = this.found?.pages.get(group);
    if (cell !== undefined) this.context.select("G1", cell);
  }

  // Puts the focus on the chosen page; from the grid, with Enter.
  focus() { this.body.querySelector('[tabindex="0"]')?.focus(); }

  onKey(event) {
    const { store } = this.context;
    if (event.key === "Escape") {
      event.preventDefault();
      store.setView({ opened: false });
      return store.emit("grid");
    }
    const move = MOVES[event.key];
    if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const node = event.target.closest(".page-cell"), rows = [...this.body.children];
    const row = rows.indexOf(node.parentNode), column = [...node.parentNode.children].indexOf(node);
    const next = this.keptOne(rows, row, column, move);
    if (!next) return;
    this.pick(Number(next.dataset.group));
    next.focus();
  }

  // The next page in a direction that is still there.
  keptOne(rows, row, column, [dx, dy]) {
    for (;;) {
      row += dy; column += dx;
      const node = rows[row]?.children[column];
      if (!node || !node.classList.contains("gone")) return node;
    }
  }
}
