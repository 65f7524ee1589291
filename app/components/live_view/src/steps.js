// The last step: prefill and decode tokens of its batch, and its milliseconds by part.

import { attrs, h, setAttr, setClass, setSpan, setText } from "./dom.js";
import { significant } from "./format.js";

export const STEP_PARTS = ["attention", "linears", "gather", "dequant", "scheduler", "other"];

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
    const times = STEP_PARTS.map((part) => step[`${part}_ms`]);
    const total = Math.max(1e-6, times.reduce((a, b) => a + b, 0));
    const spoken = [];
    let before = 0;
    times.forEach((ms, i) => {
      setSpan(this.parts[i], before / total, (before + ms) / total);
      before += ms;
      const text = this.words(`step.${STEP_PARTS[i]}`, { ms: significant(ms) });
      setText(this.labels[i].lastChild, text);
      setAttr(this.parts[i], "title", text);
      spoken.push(text);
    });
    setAttr(this.bar, "aria-label", spoken.join(", "));
  }
}
