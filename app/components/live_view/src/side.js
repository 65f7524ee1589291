// The right column: the selected block, the sequences, shadow, memory, events, tables.

import { attrs, h, paced, setClass } from "./dom.js";
import { Events } from "./events.js";
import { Inspector } from "./inspector.js";
import { AllNumbers, Ledger, Shadow } from "./ledger.js";
import { Sequences } from "./sequences.js";
import { Tables } from "./tables.js";

export class Side {
  constructor(context) {
    this.context = context;
    this.inspector = new Inspector(context);
    this.sequences = new Sequences(context);
    this.shadow = new Shadow(context);
    this.ledger = new Ledger(context);
    this.numbers = new AllNumbers(context);
    this.events = new Events(context);
    this.tables = new Tables(context);
    this.node = attrs(h("section", "side", this.inspector.node, this.sequences.node, this.events.node,
      this.shadow.node, this.numbers.node, this.ledger.node, this.tables.node),
      { "aria-label": context.words("side.label") });
    setClass(this.node, "waiting", true);
    this.draw = paced(() => this.update(), 200);
    this.draw();
  }

  on(what) {
    if (what === "pages") { this.draw.now(); return this.inspector.pages.focus(); }
    if (what === "view") this.draw.now(); else this.draw();
  }

  themeChanged() { this.draw(); }

  update() {
    const frame = this.context.store.shown;
    if (!frame || document.hidden) return;
    setClass(this.node, "waiting", false);
    this.inspector.update(frame);
    this.sequences.update(frame);
    this.shadow.update(frame.snap);
    if (this.ledger.node.open) this.ledger.update(frame.snap);
    if (this.numbers.node.open) this.numbers.update(frame.snap);
    this.events.update(frame);
    this.tables.update(frame);
  }

  destroy() {}
}
