// The last step: prefill and decode tokens of its batch, and its milliseconds by part.

import { attrs, h, setAttr, setClass, setSpan, setText, show } from "./dom.js";
import { significant } from "./format.js";

export const STEP_PARTS = ["attention", "linears", "gather", "dequant", "scheduler", "other"];

// Each part in words. What a GPU does inside the attention kernel has no time: one label says so.
export function partLabels(step, words) {
  if (step.gather_ms !== null) return STEP_PARTS.map((part) => ({ text: words(`step.${part}`, { ms: significant(step[`${part}_ms`]) }) }));
  return STEP_PARTS.map((part) => {
    if (part === "gather") return { text: words("step.fused"), title: words("step.fused.title") };
    return { text: part === "dequant" ? "" : words(`step.${part}`, { ms: significant(step[`${part}_ms`]) }) };
  });
}

export class StepStrip {
  constructor({ words, tips }) {
    this.words = words;
    this.title = tips.term(h("span", "step-title"), "step");
    this.bar = attrs(h("span", "bar step-bar"), { role: "img" });
    this.parts = STEP_PARTS.map((part, i) => h("i", `step-part p${i}`));
    this.bar.append(...this.parts);
    this.labels = STEP_PARTS.map((part, i) => h("span", "step-label", h("i", `swatch p${i}`), h("span", "")));
    this.node = h("div", "step", this.title, this.bar, h("span", "step-labels", ...this.labels));
  }

  update(step) {
    setClass(this.node, "no-step", !step);
    if (!step) return setText(this.title, this.words("step.none"));
    setText(this.title, this.words("step.title", {
      step: step.step, prefill: step.num_prefill_tokens, decode: step.num_decode_tokens,
      wall: significant(step.wall_ms), cpu: significant(step.cpu_ms),
    }));
    const labels = partLabels(step, this.words);
    const times = STEP_PARTS.map((part) => step[`${part}_ms`] ?? 0);
    const total = Math.max(1e-6, times.reduce((a, b) => a + b, 0));
    let before = 0;
    times.forEach((ms, i) => {
      setSpan(this.parts[i], before / total, (before + ms) / total);
      before += ms;
      setText(this.labels[i].lastChild, labels[i].text);
      setAttr(this.labels[i], "title", labels[i].title);
      setAttr(this.parts[i], "title", labels[i].text);
      show(this.labels[i], labels[i].text);
    });
    setAttr(this.bar, "aria-label", labels.map((label) => label.title ?? label.text).filter(Boolean).join(", "));
  }
}
