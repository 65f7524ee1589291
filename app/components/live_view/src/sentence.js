// One sentence that says what just happened, in plain words.

import { attrs, h, setAttr, setClass, setText } from "./dom.js";
import { eventSentence, faultName, stateDetail } from "./describe.js";

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
    const note = this.noteOf(snap);
    setText(this.note, note ?? (snap.stands_in ? this.words("stands_in") : ""));
    setAttr(this.note, "title", note);
    setClass(this.note, "warn", !!note && snap.state !== "paused");
    setText(this.text, snap.sentence ? eventSentence(snap.sentence, snap, this.words) : this.words("sentence.none"));
  }

  // What the engine's state needs said: a tier that failed, what relieves pressure, a pause.
  noteOf(snap) {
    const failed = snap.tiers.find((t) => t.failed);
    if (failed) {
      return this.words("note.tier_failed", { tier: failed.name, reason: faultName(failed.failed, this.words), times: failed.num_failed });
    }
    if (snap.state === "paused") return this.words("note.paused");
    return ["thrashing", "saturated"].includes(snap.state) ? stateDetail(snap, this.words) : null;
  }
}
