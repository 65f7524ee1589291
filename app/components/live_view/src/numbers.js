// The few numbers that can be trusted: value, unit, what it is over, provenance, trend, change.

import { attrs, h, setAttr, setClass, setText, show } from "./dom.js";
import { valueAndUnit } from "./format.js";
import { Spark } from "./spark.js";

export const MAIN_NUMBERS = ["hit_rate", "ttft_p50", "itl_p50", "tokens_per_s", "num_preemptions", "recompute_tax"];
const SECOND = { hit_rate: "hit_rate_resumed" }; // told under the first once there was a preemption

// "p50, 30 s, n 41", leaving out what means nothing.
export function basis(number, words) {
  const parts = [];
  if (number.percentile) parts.push(number.percentile);
  if (number.window_s) parts.push(words("number.window", { seconds: Math.round(number.window_s) }));
  if (number.samples) parts.push(words("number.samples", { samples: number.samples }));
  return parts.join(", ");
}

// "n/a: why" as one text, the prefix only once.
export function notAvailable(number, words) {
  const why = number.why.replace(/^n\/a:\s*/, "");
  return words("number.na", { why: why || words("number.no_reason") });
}

class NumberView {
  constructor(name, { words, tips }) {
    this.name = name;
    this.words = words;
    this.label = tips.term(h("span", "num-label", words(`number.${name}`)), name);
    this.value = h("span", "num-value");
    this.unit = h("span", "num-unit");
    this.basis = h("span", "num-basis");
    this.why = h("span", "num-why");
    this.spark = new Spark();
    this.samples = h("span", "num-basis");
    this.chip = h("span", "num-change");
    const line = h("div", "num-line", this.value, this.unit, this.why);
    const head = h("div", "num-head", this.label);
    this.node = attrs(h("div", "num", head, line, this.spark.node, this.basis, this.samples, this.chip), { "data-number": name });
  }

  update(store, theme) {
    const { words } = this, { snap } = store.shown;
    const number = snap.numbers[this.name];
    const missing = !number || number.value === null;
    setClass(this.node, "missing", missing);
    show(this.value, !missing);
    show(this.unit, !missing);
    show(this.why, missing);
    if (missing) {
      const why = snap.state === "loading" ? "number.loading" : "number.no_reason";
      const text = number ? notAvailable(number, words) : words("number.na", { why: words(why) });
      setText(this.why, text);
      setAttr(this.why, "title", text);
    } else {
      const shown = valueAndUnit(number);
      setText(this.value, shown.value);
      setText(this.unit, shown.unit);
    }
    const change = number ? store.series.change(this.name, store.shown.snap.time_s) : null;
    this.updateBasis(number, missing, change, snap);
    this.updateChange(number, change);
    const end = store.latest.snap.time_s;
    const marks = allMarks(store).filter((m) => m.time_s > end - 60);
    this.spark.draw(store.series.window(this.name, end), marks, end,
      store.live ? null : snap.time_s, theme);
  }

  // What the figure is over, its provenance and samples in two lines; the second figure takes one.
  updateBasis(number, missing, change, snap) {
    const { words } = this, second = secondNumber(this.name, snap);
    const source = missing ? [] : [basis({ ...number, samples: 0 }, words), words(`provenance.${number.provenance}`)];
    const samples = change ? words("number.samples.change", { n1: change.samplesBefore, n2: change.samplesAfter })
      : missing ? "" : basis({ samples: number.samples }, words);
    const first = second ? (change ? [samples] : [...source, samples]) : source;
    setText(this.basis, first.filter(Boolean).join(", "));
    setClass(this.basis, "warn", !missing && number.provenance !== "measured");
    setText(this.samples, second ? secondText(second, words) : samples);
    setAttr(this.samples, "title", second ? `${words(`number.${SECOND[this.name]}`)}: ${secondTitle(second, words)}` : null);
    setClass(this.samples, "second", !!second);
  }

  // before -> after of the last applied change, "undecided" while the ranges overlap.
  updateChange(number, change) {
    setClass(this.node, "changed", !!change);
    if (!change) return setText(this.chip, "");
    const values = {
      before: valueAndUnit(number, change.before).value, after: valueAndUnit(number, change.after).value,
      unit: valueAndUnit(number, change.after).unit, n1: change.samplesBefore, n2: change.samplesAfter,
    };
    setText(this.chip, this.words(change.undecided ? "number.undecided" : "number.change", values));
    setAttr(this.chip, "title", this.words("number.change.title", { ...values, label: change.mark.label }));
    setClass(this.chip, "undecided", change.undecided);
  }
}

// The figure told under another: a hit rate for requests that came back; null before a preemption.
export function secondNumber(name, snap) {
  const found = snap.numbers[SECOND[name]];
  return found && (snap.numbers.num_preemptions?.value ?? 0) > 0 ? found : null;
}

function secondText(number, words) {
  const { value, unit } = valueAndUnit(number);
  return words("number.resumed", { value: number.value === null ? words("value.na") : `${value}\u00a0${unit}` });
}

function secondTitle(number, words) {
  if (number.value === null) return notAvailable(number, words);
  const { value, unit } = valueAndUnit(number);
  return [`${value}\u00a0${unit}`, basis(number, words), words(`provenance.${number.provenance}`)].filter(Boolean).join(", ");
}

// Marks that Python names, and those seen in the frames that it has not named yet.
function allMarks(store) {
  const named = store.marks ?? [];
  return named.concat(store.series.marks.filter((m) => !named.some((n) => Math.abs(n.time_s - m.time_s) < 1)));
}

export class Numbers {
  constructor(context) {
    this.views = MAIN_NUMBERS.map((name) => new NumberView(name, context));
    this.node = attrs(h("div", "numbers", ...this.views.map((v) => v.node)),
      { role: "group", "aria-label": context.words("numbers.label") });
  }

  update(store, theme) { for (const view of this.views) view.update(store, theme); }
}
