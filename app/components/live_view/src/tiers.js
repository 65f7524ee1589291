// Occupancy bar of one tier: used, cached, pinned, free in bytes, and the traffic both ways.

import { faultName } from "./describe.js";
import { attrs, button, h, setAttr, setClass, setSpan, setText, show } from "./dom.js";
import { bytes, bytesIn, rate, valueAndUnit } from "./format.js";

// Used, cached and free of a tier: each in the unit of its size, in bytes as people read them, in %.
export function occupancy(view) {
  const parts = { used: view.used_bytes, cached: view.cached_bytes, free: view.free_bytes };
  const told = { capacity: bytes(view.capacity_bytes) };
  for (const [name, value] of Object.entries(parts)) {
    told[name] = bytesIn(value, view.capacity_bytes);
    told[`${name}_bytes`] = name === "free" ? `${told.free}\u00a0${told.capacity.split("\u00a0")[1]}` : bytes(value);
    told[`${name}_percent`] = Math.round((100 * value) / Math.max(1, view.capacity_bytes));
  }
  return told;
}

// Waste inside and between reservations while each request reserves its longest; else null.
export function contiguousWaste(snap) {
  if (snap?.settings?.["cache.allocation"] !== "contiguous") return null;
  return { inside: snap.numbers.internal_waste, between: snap.numbers.external_waste };
}

export class TierBar {
  // `compact`: a shorter line of figures, for the tiers below the first.
  constructor(name, { words, tips, send, isDriver, store }, compact) {
    Object.assign(this, { words, isDriver, canAdd: compact && !store.playback });
    this.compact = compact;
    this.title = tips.term(h("span", "tier-name", name), name);
    this.parts = ["pinned", "used", "cached"].map((part) => h("i", `bar-${part}`));
    this.bar = attrs(h("span", "bar", ...this.parts), { role: "img" });
    this.figures = h("span", "tier-figures");
    this.flow = h("span", "tier-flow");
    this.waste = tips.term(h("span", "tier-flow tier-waste"), "waste");
    show(this.waste, false);
    this.tag = h("span", "tag");
    this.add = attrs(button("small quiet tier-add", words("tier.add"), () => send("add_tier", { tier: name })),
      { "aria-label": words("tier.add.label", { tier: name }) });
    show(this.add, false);
    this.node = h("div", "tier", this.title, this.bar, this.figures, this.add, this.flow, this.waste, this.tag);
  }

  // `waste` takes the place of the traffic: contiguous blocks go to no other tier.
  update(view, waste = null) {
    show(this.flow, !waste);
    show(this.waste, waste);
    if (waste) setText(this.waste, this.words("tier.waste", { inside: shareText(waste.inside, this.words), between: shareText(waste.between, this.words) }));
    const { words } = this;
    const off = !view || !view.enabled;
    setClass(this.node, "off", off);
    show(this.add, !!view && off && this.canAdd);
    this.add.disabled = !this.isDriver();
    if (off) return this.showOff(view);
    const size = Math.max(1, view.capacity_bytes);
    const used = Math.max(0, view.used_bytes - view.pinned_bytes);
    let before = 0;
    [view.pinned_bytes, used, view.cached_bytes].forEach((part, i) => {
      setSpan(this.parts[i], before / size, (before + part) / size);
      before += part;
    });
    const values = occupancy(view);
    setText(this.figures, words(this.compact ? "tier.figures.short" : "tier.figures", values));
    setAttr(this.bar, "aria-label", `${view.name}: ${words("tier.figures.spoken", values)}`);
    setAttr(this.figures, "title", words("tier.figures.spoken", values));
    setText(this.flow, words("tier.flow", { in: rate(view.in_bytes_per_s), out: rate(view.out_bytes_per_s) }));
    setAttr(this.flow, "title", words("tier.flow.title", {
      in: bytes(view.in_bytes_total), out: bytes(view.out_bytes_total), hits: view.hits,
      misses: view.misses, faults: view.faults,
    }));
    const source = this.compact && view.provenance === "measured" ? "" : words(`provenance.${view.provenance}`);
    setText(this.tag, view.failed ? words("tier.fails") : view.faults ? words("tier.faults", { faults: view.faults }) : source);
    setAttr(this.tag, "title", view.failed ? faultName(view.failed, words) : null);
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

function shareText(number, words) {
  if (!number || number.value === null) return words("value.na");
  const { value, unit } = valueAndUnit(number);
  return `${Math.round(Number(value))}\u00a0${unit}`;
}
