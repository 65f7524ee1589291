// The text of one request, tinted by attention mass; evicted tokens faded and struck.

import { attrs, button, h, setClass, setText, show } from "./dom.js";
import { percent } from "./format.js";
import { TextLines } from "./lines.js";

export class PromptText {
  constructor({ store, words, tips }) {
    Object.assign(this, { store, words });
    this.title = h("span", "text-title");
    this.kept = tips.term(h("span", "text-kept"), "kept_mass");
    this.body = attrs(h("div", "text-body"), { tabindex: "0", role: "region", "aria-label": words("text.label") });
    this.empty = h("div", "text-empty");
    // Each running sequence has its text: these go through them, as choosing one elsewhere does.
    this.back = attrs(button("small quiet", "\u2039", () => this.turn(-1)), { "aria-label": words("text.back") });
    this.next = attrs(button("small quiet", "\u203a", () => this.turn(1)), { "aria-label": words("text.next") });
    this.place = h("span", "text-place");
    this.turner = h("span", "text-turn", this.back, this.place, this.next);
    this.node = h("div", "text", h("div", "text-head", this.title, this.turner, this.kept), this.body, this.empty);
    this.lines = new TextLines(this.body, () => this.request && this.fill(this.request));
  }

  // The chosen request, the selected block's, or the first one that runs.
  choose(frame) {
    const { view } = this.store, { requests } = frame.snap;
    const withText = requests.filter((r) => r.text);
    return withText.find((r) => r.request_id === view.request) ?? withText.find((r) => r.status === "running")
      ?? withText[0] ?? null;
  }

  // The next request that has a text, in the order of the list.
  turn(by) {
    const texts = (this.store.shown?.snap.requests ?? []).filter((r) => r.text);
    if (!texts.length) return;
    const at = texts.findIndex((r) => r.request_id === this.request?.request_id);
    this.store.setView({ request: texts[(at + by + texts.length) % texts.length].request_id });
  }

  update(frame) {
    const { words } = this;
    const request = this.choose(frame);
    const texts = frame.snap.requests.filter((r) => r.text);
    show(this.turner, texts.length > 1);
    setText(this.place, words("text.place", { at: texts.indexOf(request) + 1, of: texts.length }));
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
    const { text } = request, { body, lines } = this;
    this.request = request;
    const follow = body.scrollHeight - body.scrollTop - body.clientHeight < 24 || this.last !== request.request_id;
    if (this.last !== request.request_id || !lines.continues(text)) lines.clear();
    this.last = request.request_id;
    lines.take(text);
    for (const [at, spans] of lines.tokens) for (const span of spans) tint(span, text, at);
    if (follow) body.scrollTop = body.scrollHeight;
  }
}

// A token from before the newest ones has no known mass.
function tint(span, text, at) {
  const i = at - text.start;
  if (i < 0) return setMass(span, 0);
  setMass(span, text.evicted[i] ? 0 : Math.round(text.mass[i] / 16));
  setClass(span, "evicted", text.evicted[i]);
  setClass(span, "prompt", at < text.num_prompt_tokens);
}

// At most 40 % of the accent, so that the text on it stays readable (4.5 : 1).
function setMass(span, mass) {
  if (span.kvwMass === mass) return;
  span.kvwMass = mass;
  span.style.setProperty("--mass", `${mass * 2.5}%`);
}
