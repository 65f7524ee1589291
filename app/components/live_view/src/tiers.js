// Occupancy bar of one tier: used, cached, pinned, free in bytes, and the traffic both ways.

import { attrs, h, setAttr, setClass, setSpan, setText } from "./dom.js";
import { bytes, rate } from "./format.js";

export class TierBar {
  // `compact`: a shorter line of figures, for the tiers below the first.
  constructor(name, { words, tips }, compact) {
    this.words = words;
    this.compact = compact;
    this.title = tips.term(h("span", "tier-name", name), name);
    this.parts = ["pinned", "used", "cached"].map((part) => h("i", `bar-${part}`));
    this.bar = attrs(h("span", "bar", ...this.parts), { role: "img" });
    this.figures = h("span", "tier-figures");
    this.flow = h("span", "tier-flow");
    this.tag = h("span", "tag");
    this.node = h("div", "tier", this.title, this.bar, this.figures, this.flow, this.tag);
  }

  update(view) {
    const { words } = this;
    const off = !view || !view.enabled;
    setClass(this.node, "off", off);
    if (off) return this.showOff(view);
    const size = Math.max(1, view.capacity_bytes);
    const used = Math.max(0, view.used_bytes - view.pinned_bytes);
    let before = 0;
    [view.pinned_bytes, used, view.cached_bytes].forEach((part, i) => {
      setSpan(this.parts[i], before / size, (before + part) / size);
      before += part;
    });
    const percent = (part) => Math.round((100 * part) / size);
    const text = words(this.compact ? "tier.figures.short" : "tier.figures", {
      used: percent(view.used_bytes), cached: percent(view.cached_bytes), capacity: bytes(view.capacity_bytes),
    });
    setText(this.figures, text);
    setAttr(this.bar, "aria-label", `${view.name}: ${text}`);
    setText(this.flow, words("tier.flow", { in: rate(view.in_bytes_per_s), out: rate(view.out_bytes_per_s) }));
    setAttr(this.flow, "title", words("tier.flow.title", {
      in: bytes(view.in_bytes_total), out: bytes(view.out_bytes_total), hits: view.hits,
      misses: view.misses, faults: view.faults,
    }));
    const source = this.compact && view.provenance === "measured" ? "" : words(`provenance.${view.provenance}`);
    setText(this.tag, view.faults ? words("tier.faults", { faults: view.faults }) : source);
    setClass(this.tag, "warn", view.faults > 0);
    setAttr(this.title, "title", view.medium + (view.note ? ` · ${view.note}` : ""));
  }

  showOff(view) {
    for (const part of this.parts) setSpan(part, 0, 0);
    setText(this.figures, view ? view.note || this.words("tier.off") : "–"); // none is known while loading
    setText(this.flow, "");
    setText(this.tag, "");
    setAttr(this.bar, "aria-label", this.words("tier.off"));
  }
}
