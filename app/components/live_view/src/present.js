// Present mode: larger text and three acts: sharing, pressure, relief.

import { button, h, setClass, setText, show } from "./dom.js";

export const ACTS = ["sharing", "pressure", "relief"];
const LENS = { sharing: "owner", pressure: "age", relief: "tier" };

export class Present {
  constructor({ store, words, send, data }) {
    Object.assign(this, { store, words, send, data });
    this.act = 0;
    this.told = null; // the act that Python plays, as it was told last
    this.count = h("span", "act-count");
    this.title = h("span", "act-title");
    this.text = h("span", "act-text");
    this.back = button("small", words("present.back"), () => this.go(this.act - 1));
    this.next = button("primary", words("present.next"), () => this.go(this.act + 1));
    this.end = button("small", words("present.end"), () => send("present", { on: false }));
    this.node = h("div", "present", this.count, this.title, this.text, this.back, this.next, this.end);
    show(this.node, false);
  }

  // Python runs the act's change.
  go(act) {
    this.look(Math.max(0, Math.min(ACTS.length - 1, act)));
    this.send("present", { on: true, act: ACTS[this.act] });
    this.update();
  }

  // Each act has its way to look at the grid; the user's own comes back at the end.
  look(act) {
    const { lens, filter } = this.store.view, name = ACTS[(this.act = act)];
    this.store.beforeActs ??= { lens, filter };
    this.store.setView({ lens: LENS[name], filter: name === "sharing" ? { kind: "state", value: "shared" } : null });
  }

  leave() {
    const { beforeActs } = this.store;
    this.told = this.store.beforeActs = null;
    if (beforeActs) this.store.setView(beforeActs);
  }

  update() {
    const { present: on, act = "" } = this.data();
    show(this.node, !!on);
    const root = this.node.getRootNode().host ?? document.body;
    setClass(root, "presenting", !!on);
    if (!on) return this.leave();
    if (act !== this.told) { // news from Python, not the act it was told of before the last press
      this.told = act;
      this.look(Math.max(0, ACTS.indexOf(act)));
    }
    const name = ACTS[this.act];
    setText(this.count, `${this.act + 1} / ${ACTS.length}`);
    setText(this.title, this.words(`present.${name}`));
    setText(this.text, this.words(`present.${name}.text`));
    this.back.disabled = this.act === 0;
    this.next.disabled = this.act === ACTS.length - 1;
  }
}
