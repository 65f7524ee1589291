// One sentence that says what just happened, in plain words.

import { attrs, h, setText } from "./dom.js";
import { eventSentence } from "./describe.js";

export class Sentence {
  constructor({ store, words }) {
    Object.assign(this, { store, words });
    this.text = attrs(h("span", "sentence-text"), { role: "status", "aria-live": "polite" });
    this.note = h("div", "standin");
    const line = h("div", "sentence-line", h("span", "sentence-label", words("sentence.label")), this.text);
    this.node = h("div", "sentence", this.note, line);
  }

  update(frame) {
    const { snap } = frame;
    setText(this.note, snap.stands_in ? this.words("stands_in") : "");
    if (snap.state === "thrashing" || snap.state === "saturated") {
      const detail = snap.state_detail || (snap.sentence ? eventSentence(snap.sentence, snap, this.words) : "");
      return setText(this.text, `${this.words(`engine.${snap.state}`)}: ${detail}`);
    }
    setText(this.text, snap.sentence ? eventSentence(snap.sentence, snap, this.words) : this.words("sentence.none"));
  }
}
