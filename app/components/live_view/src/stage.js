// The middle of the page: numbers, tiers and their grids, legend, text, step, sentence, rewind.

import { attrs, h, paced, setAttr, setClass, setText, show } from "./dom.js";
import { blockLine } from "./describe.js";
import { Faces } from "./faces.js";
import { GridView } from "./gridview.js";
import { Legend } from "./legend.js";
import { Numbers } from "./numbers.js";
import { Present } from "./present.js";
import { PromptText } from "./prompt.js";
import { saveReplay } from "./replay.js";
import { Scrubber } from "./scrubber.js";
import { Sentence } from "./sentence.js";
import { StepStrip } from "./steps.js";
import { contiguousWaste, TierBar } from "./tiers.js";

const TIERS = ["G1", "G2", "G3", "G3.5", "G4"];
const ALWAYS = 3; // G3.5 and G4 have a row only while they are on

export class Stage {
  constructor(context) {
    this.context = context;
    const { store, words } = context;
    const grid = {
      ...context, hover: (tier, cell, event) => this.hover(tier, cell, event),
      select: (tier, cell) => context.select(tier, cell),
    };
    this.numbers = new Numbers(context);
    this.bars = TIERS.map((name) => new TierBar(name, context, name !== "G1"));
    this.grids = TIERS.map((name) => new GridView(name, grid));
    this.legend = new Legend(context);
    this.text = new PromptText(context);
    this.step = new StepStrip(context);
    this.sentence = new Sentence(context);
    this.scrubber = new Scrubber(context, store.playback ? null : () => saveReplay(context));
    this.faces = new Faces(context);
    this.present = new Present(context);
    this.spoken = attrs(h("div", "sr-only"), { "aria-live": "polite" });
    this.node = this.assemble();
    this.slow = paced(() => this.drawSlow(), 200);
    this.fast = paced(() => this.drawFast());
    this.themeChanged();
  }

  assemble() {
    const rows = this.bars.map((bar, i) => (i ? h("div", "lower-tier", bar.node, this.grids[i].node) : bar.node));
    const canvas = h("div", "canvas-wrap", this.grids[0].node, this.faces.node);
    this.extraRows = rows.slice(ALWAYS);
    for (const row of this.extraRows) show(row, false);
    return attrs(h("section", "stage", this.present.node, this.numbers.node, rows[0], canvas, this.legend.node,
      h("div", "lower-tiers", ...rows.slice(1)),
      this.text.node, this.step.node, this.sentence.node, this.scrubber.node, this.spoken),
      { "aria-label": this.context.words("stage.label") });
  }

  on(what) {
    if (what === "frame") {
      this.fast();
      if (this.faces.node.hidden) this.slow(); else this.slow.now();
    }
    if (what === "view") { this.fast(); this.slow.now(); }
    if (what === "link") this.slow();
    if (what === "grid") this.grids[0].over.focus();
  }

  themeChanged() { this.fast(); this.slow(); }

  drawFast() {
    const { store } = this.context;
    if (!store.shown || document.hidden) return;
    for (const grid of this.grids) grid.draw();
    if (this.hovered) this.hover(...this.hovered);
  }

  drawSlow() {
    const { store, theme } = this.context, frame = store.shown;
    this.faces.update(frame);
    this.present.update();
    setClass(this.node, "waiting", !frame);
    setClass(this.node, "beside-chat", document.body.dataset.tab === "chat");
    if (!frame || document.hidden) return;
    setClass(this.node, "is-dead", !!store.link.dead);
    this.numbers.update(store, theme());
    this.extraRows.forEach((row, i) => show(row, frame.tiers.has(TIERS[ALWAYS + i])));
    const { snap } = frame, waste = contiguousWaste(snap);
    this.bars.forEach((bar, i) => bar.update(snap.tiers.find((t) => t.name === TIERS[i]), i ? null : waste));
    const { scene } = this.grids[0], several = this.severalPages();
    for (const { over, name } of this.grids) {
      const key = several && name === "G1" ? "grid.squares" : "grid.label";
      setAttr(over, "aria-label", this.context.words(key, { tier: name, of: several }));
    }
    this.legend.update(frame, scene.layout.size ? scene.layout.size / scene.dpr : 12, several);
    this.text.update(frame);
    this.step.update(frame.snap.last_step);
    this.sentence.update(frame);
    this.scrubber.update();
    this.speak(frame);
  }

  // How many pages a square of the grid stands for; 0 where each page has a square.
  severalPages() {
    const { shown, view } = this.context.store;
    return shown?.blocks && view.group !== "page" ? shown.blocks.numGroups : 0;
  }

  // The selected block, spoken when the selection changes.
  speak(frame) {
    const { selected } = this.context.store.view;
    const key = selected ? `${selected.tier}:${selected.cell}` : "";
    if (key === this.spokenKey) return;
    this.spokenKey = key;
    setText(this.spoken, selected ? blockLine(frame, selected.tier, selected.cell, this.context.words, this.severalPages()) : "");
  }

  hover(tier, cell, event) {
    const { store, tips, words } = this.context;
    if (cell < 0 || !event || !store.shown) {
      if (this.hovered) tips.hide();
      this.hovered = null;
      return;
    }
    this.hovered = [tier, cell, event];
    tips.line(blockLine(store.shown, tier, cell, words, this.severalPages()), event.clientX, event.clientY);
  }

  destroy() { for (const grid of this.grids) grid.destroy(); }
}
