// The text of one request, tinted by attention mass; evicted tokens faded and struck.

import { attrs, h, setClass, setText, show } from "./dom.js";
import { percent } from "./format.js";

const MAX_PIECES = 600;

export class PromptText {
  constructor({ store, words, tips }) {
    Object.assign(this, { store, words });
    this.title = h("span", "text-title");
    this.kept = tips.term(h("span", "text-kept"), "kept_mass");
    this.body = attrs(h("div", "text-body"), { tabindex: "0", role: "region", "aria-label": words("text.label") });
    this.empty = h("div", "text-empty");
    this.node = h("div", "text", h("div", "text-head", this.title, this.kept), this.body, this.empty);
    this.spans = [];
  }

  // The chosen request, the selected block's, or the first one that runs.
  choose(frame) {
    const { view } = this.store, { requests } = frame.snap;
    const withText = requests.filter((r) => r.text);
    return withText.find((r) => r.request_id === view.request) ?? withText.find((r) => r.status === "running")
      ?? withText[0] ?? null;
  }

  update(frame) {
    const { words } = this;
    const request = this.choose(frame);
    show(this.empty, !request);
    show(this.body, !!request);
    if (!request) {
      setText(this.title, words("text.none.title"));
      setText(this.kept, "");
      setText(this.empty, words("text.none"));
      return;
    }
    setText(this.title, words("text.title", { request: request.label || request.request_id }));
    setText(this.kept, request.kept_mass === null ? words("text.kept.na")
      : words("text.kept", { kept: percent(request.kept_mass), evicted: request.num_evicted_tokens }));
    this.fill(request);
  }

  fill(request) {
    const { text } = request, { body } = this;
    const from = Math.max(0, text.pieces.length - MAX_PIECES);
    const follow = body.scrollHeight - body.scrollTop - body.clientHeight < 24 || this.last !== request.request_id;
    this.last = request.request_id;
    const n = text.pieces.length - from;
    while (this.spans.length < n) {
      const span = h("span", "tok", "");
      this.spans.push(span);
      body.append(span);
    }
    for (let i = 0; i < this.spans.length; i++) this.piece(this.spans[i], text, from + i, i < n);
    if (follow) body.scrollTop = body.scrollHeight;
  }

  piece(span, text, at, used) {
    show(span, used);
    if (!used) return;
    setText(span, text.pieces[at]);
    const mass = text.evicted[at] ? 0 : Math.round(text.mass[at] / 16);
    if (span.kvwMass !== mass) {
      span.kvwMass = mass;
      span.style.setProperty("--mass", `${Math.round(mass * 4.2)}%`);
    }
    setClass(span, "evicted", text.evicted[at]);
    setClass(span, "prompt", text.start + at < text.num_prompt_tokens);
  }
}
