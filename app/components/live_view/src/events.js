// What happened, newest first, by kind.

import { attrs, button, h, keyed, setAttr, setClass, setText } from "./dom.js";
import { eventSentence } from "./describe.js";

const KINDS = [
  ["share", ["share", "admit"]], ["evict", ["evict", "retain"]], ["store", ["store"]], ["load", ["load", "resume"]],
  ["preempt", ["preempt", "thrash"]], ["fault", ["fail", "refuse", "tier_fault", "abort"]],
  ["other", ["apply", "finish", "engine"]],
];
const MAX_EVENTS = 60;

export class Events {
  constructor({ store, words }) {
    Object.assign(this, { store, words, off: new Set() });
    this.chips = KINDS.map(([name]) => {
      const node = button("chip on", words(`events.${name}`), () => this.toggle(name, node));
      return attrs(node, { "aria-pressed": "true" });
    });
    this.list = attrs(h("ol", "event-list"), { "aria-label": words("events.label"), tabindex: "0" });
    this.node = h("section", "events", h("h3", "panel-title", words("events.label")),
      h("div", "event-chips", ...this.chips), this.list);
  }

  toggle(name, node) {
    if (!this.off.delete(name)) this.off.add(name);
    setClass(node, "on", !this.off.has(name));
    setAttr(node, "aria-pressed", String(!this.off.has(name)));
    if (this.store.shown) this.update(this.store.shown);
  }

  update(frame) {
    const wanted = new Set(KINDS.filter(([name]) => !this.off.has(name)).flatMap(([, kinds]) => kinds));
    const { snap } = frame;
    const last = snap.events.length ? Math.max(...snap.events.map((e) => e.seq)) : -1;
    const rows = [...this.store.events.values()]
      .filter((e) => wanted.has(e.kind) && e.seq <= last).sort((a, b) => b.seq - a.seq).slice(0, MAX_EVENTS);
    keyed(this.list, rows, (e) => e.seq, (e) => {
      const step = h("span", "event-step"), text = h("span", "event-text");
      const node = attrs(h("li", "event", step, text), { "data-kind": e.kind });
      setText(step, e.step);
      setText(text, eventSentence(e, snap, this.words));
      return node;
    }, () => {});
  }
}
