// Present mode: larger text and three acts: sharing, pressure, relief.

import { button, h, setClass, setText, show } from "./dom.js";

export const ACTS = ["sharing", "pressure", "relief"];
const LENS = { sharing: "owner", pressure: "age", relief: "tier" };

export class Present {
  constructor({ store, words, send, data }) {
    Object.assign(this, { store, words, send, data });
    this.act = 0;
    this.count = h("span", "act-count");
    this.title = h("span", "act-title");
    this.text = h("span", "act-text");
    this.back = button("small", words("present.back"), () => this.go(this.act - 1));
    this.next = button("primary", words("present.next"), () => this.go(this.act + 1));
    this.end = button("small", words("present.end"), () => send("present", { on: false }));
    this.node = h("div", "present", this.count, this.title, this.text, this.back, this.next, this.end);
    show(this.node, false);
  }

  // Each act sets its lens here and tells Python, which runs the act's change.
  go(act) {
    this.act = Math.max(0, Math.min(ACTS.length - 1, act));
    const name = ACTS[this.act];
    const filter = name === "sharing" ? { kind: "state", value: "shared" } : null;
    this.store.setView({ lens: LENS[name], filter });
    this.send("present", { on: true, act: name });
    this.update();
  }

  update() {
    const on = !!this.data().present;
    show(this.node, on);
    const root = this.node.getRootNode().host ?? document.body;
    setClass(root, "presenting", on);
    if (!on) { this.act = 0; return; }
    if (ACTS.includes(this.data().act)) this.act = ACTS.indexOf(this.data().act);
    const name = ACTS[this.act];
    setText(this.count, `${this.act + 1} / ${ACTS.length}`);
    setText(this.title, this.words(`present.${name}`));
    setText(this.text, this.words(`present.${name}.text`));
    this.back.disabled = this.act === 0;
    this.next.disabled = this.act === ACTS.length - 1;
  }
}
