// One line under the grid: what the colours mean, and the filter at the same time.

import { attrs, button, h, keyed, setAttr, setClass, setText, show } from "./dom.js";
import { lensColour, LENSES, tierColour } from "./cells.js";
import { detailOf } from "./painter.js";
import { css, ownerName } from "./theme.js";

// States whose own mark cannot be drawn at a level of detail.
const HIDDEN = { full: [], edges: ["pinned"], colour: ["shared", "pinned"] };

export class Legend {
  constructor({ store, words, theme, tips }) {
    Object.assign(this, { store, words, theme });
    this.lens = select(words("lens.label"), LENSES, (v) => words(`lens.${v}`), (lens) => {
      store.setView({ lens, filter: null });
    });
    this.group = select(words("group.label"), ["address", "sequence", "page"], (v) => words(`group.${v}`),
      (group) => store.setView({ group }));
    this.states = h("span", "legend-items");
    this.values = h("span", "legend-items legend-values");
    this.hint = h("span", "legend-hint");
    this.node = attrs(h("div", "legend", this.lens, this.group, this.states, this.values, this.hint),
      { role: "group", "aria-label": words("legend.label") });
    tips.term(this.lens, "lens");
  }

  // `several`: how many pages a square stands for, 0 where each has its own.
  update(frame, size, several) {
    show(this.group.lastChild, !!frame.blocks);
    const detail = detailOf(size);
    const { view } = this.store;
    setValue(this.lens, view.lens);
    setValue(this.group, view.group);
    keyed(this.states, ["owned", "cached", "free", "shared", "pinned"], (x) => x,
      (state) => this.chip({ kind: "state", value: state }, `swatch state-${state}`, this.words(`legend.${state}`)),
      (node, state) => {
        this.mark(node, { kind: "state", value: state });
        setClass(node, "unseen", HIDDEN[detail].includes(state));
      });
    const items = this.items(frame, view.lens);
    keyed(this.values, items, (x) => x.key,
      (item) => item.filter ? this.chip(item.filter, "swatch", item.label) : plain(item.label),
      (node, item) => this.paintItem(node, item));
    const hints = [several ? this.words("legend.squares", { of: several }) : "",
      detail === "full" ? "" : this.words(`detail.${detail}`)].filter(Boolean);
    setText(this.hint, hints.join(" · "));
    setAttr(this.hint, "title", several ? this.words("legend.squares_help", { of: several }) : null);
  }

  // The values of the present lens: owners, formats, or the two ends of a ramp.
  items(frame, lens) {
    const theme = this.theme();
    if (lens === "owner") return this.ownerItems(frame, theme);
    if (lens === "format") {
      return frame.snap.classes.map((c, i) => ({
        key: `f${i}${c.label}`, label: c.label, colour: lensColour(theme, lens, i),
        filter: { kind: "format", value: i },
      }));
    }
    if (lens === "tier") {
      return frame.snap.tiers.filter((t) => t.enabled).map((t) => ({
        key: t.name, label: t.name, colour: tierColour(theme, t.name),
      }));
    }
    const ends = lens === "refs" ? [1, 3, 6] : [24, 128, 255];
    return ends.map((value, i) => ({
      key: `${lens}${i}`, colour: lensColour(theme, lens, value),
      label: i === 1 ? "" : this.words(`ramp.${lens}.${i === 0 ? "low" : "high"}`),
    }));
  }

  ownerItems(frame, theme) {
    return frame.snap.requests.filter((r) => r.num_pages && r.owner !== 255).slice(0, 10).map((r) => ({
      key: `r${r.request_id}`, label: ownerName(r),
      colour: lensColour(theme, "owner", r.owner),
      filter: { kind: "request", value: r.request_id },
    }));
  }

  paintItem(node, item) {
    const swatch = node.firstChild;
    const colour = css(item.colour);
    if (swatch.dataset.colour !== colour) {
      swatch.dataset.colour = colour;
      swatch.style.background = colour;
    }
    setText(node.lastChild, item.label);
    if (item.filter) this.mark(node, item.filter);
  }

  chip(filter, swatch, label) {
    const node = button("chip", "", () => {
      const same = sameFilter(this.store.view.filter, filter);
      this.store.setView({ filter: same ? null : filter });
    });
    node.append(h("i", swatch), h("span", "", label));
    node.dataset.filter = `${filter.kind}:${filter.value}`;
    return node;
  }

  mark(node, filter) {
    const on = sameFilter(this.store.view.filter, filter);
    setClass(node, "on", on);
    setAttr(node, "aria-pressed", String(on));
  }
}

function sameFilter(a, b) { return !!a && a.kind === b.kind && a.value === b.value; }

function plain(label) { return h("span", "chip plain", h("i", "swatch"), h("span", "", label)); }

function setValue(node, value) { if (node.value !== value) node.value = value; }

// A labelled native select.
export function select(label, values, name, onChange) {
  const node = h("select", "pick");
  for (const value of values) {
    const option = h("option", "", name(value));
    option.value = value;
    node.append(option);
  }
  node.setAttribute("aria-label", label);
  node.addEventListener("change", () => onChange(node.value));
  node.title = label;
  return node;
}
