// One tier's grid: canvas, selection, hover, keys. Drawing is the Painter's, places the layout's.

import { MOVING } from "./decode.js";
import { CellPaint, groupsBySequence } from "./cells.js";
import { attrs, h } from "./dom.js";
import { layoutByAddress, layoutBySequence, pixelMap } from "./layout.js";
import { Painter } from "./painter.js";
import { cellOfPlace, placeOfCell, Squares } from "./squares.js";
import { css } from "./theme.js";

const calm = matchMedia("(prefers-reduced-motion: reduce)");

export class GridView {
  // `context`: {store, words, theme(), select(tier, cell), hover(text, x, y)}.
  constructor(tierName, context) {
    this.name = tierName;
    this.context = context;
    this.paint = new CellPaint();
    this.squares = new Squares();
    this.scene = { key: "", width: 0, height: 0, dpr: 1, layout: { rects: new Int32Array(0), size: 0 } };
    this.hovered = -1;
    this.build();
    this.painter = new Painter(this.base);
  }

  build() {
    this.base = attrs(h("canvas", "grid-base"), { "aria-hidden": "true" });
    this.over = h("canvas", "grid-over");
    attrs(this.over, { tabindex: "0", role: "application", "data-tier": this.name });
    this.node = h("div", `grid grid-${this.name}`, this.base, this.over);
    this.over.addEventListener("pointermove", (e) => this.onMove(e));
    this.over.addEventListener("pointerleave", () => this.setHover(-1));
    this.over.addEventListener("click", (e) => this.onClick(e));
    this.over.addEventListener("keydown", (e) => this.onKey(e));
    this.over.addEventListener("focus", () => this.drawOver());
    this.over.addEventListener("blur", () => this.drawOver());
    this.sizes = new ResizeObserver(() => { this.measure(); this.draw(); });
    this.sizes.observe(this.node);
  }

  destroy() {
    this.sizes.disconnect();
    cancelAnimationFrame(this.ticking);
  }

  measure() {
    const dpr = window.devicePixelRatio || 1;
    const width = Math.max(1, Math.round(this.node.clientWidth * dpr));
    const height = Math.max(1, Math.round(this.node.clientHeight * dpr));
    const { scene } = this;
    if (scene.width === width && scene.height === height && scene.dpr === dpr) return;
    for (const canvas of [this.base, this.over]) { canvas.width = width; canvas.height = height; }
    Object.assign(scene, { width, height, dpr, key: "" });
  }

  // What is drawn: the tier's pages, or its token blocks where each has several.
  tier() {
    const { shown, view } = this.context.store, tier = shown?.tiers.get(this.name) ?? null;
    const whole = tier && shown.blocks && this.name === "G1" && view.group !== "page";
    return whole ? this.squares.update(shown, tier) : tier;
  }

  // The page that a click on a drawn cell chooses, and the drawn cell of a page.
  pageAt(cell) {
    const tier = this.tier();
    return cell >= 0 && tier?.blockAt ? cellOfPlace(this.context.store.shown, tier, cell) : cell;
  }

  drawnAt(page) {
    const tier = this.tier();
    return tier?.blockAt ? placeOfCell(this.context.store.shown, tier, page) : page;
  }

  // Lays out again if the slabs, the size or (grouped by sequence) the tables changed.
  arrange(frame, tier) {
    const { scene, context } = this;
    if (!scene.width) this.measure();
    const grouped = context.store.view.group === "sequence" && this.name === "G1";
    const classes = frame.snap.classes;
    const sizes = classes.map((c) => c.page_bytes).join();
    let key = `${grouped}|${tier.num_cells}|${tier.slabs.join(";")}|${sizes}|${scene.width}x${scene.height}`;
    if (grouped) key += `|${hash(frame.tables)}|${hash(tier.state)}|${tier.blockAt ? hash(tier.blockAt) : ""}`;
    if (key === scene.key) return;
    scene.key = key;
    const { width, height, dpr } = scene;
    scene.layout = grouped
      ? layoutBySequence(groupsBySequence(frame, tier, context.words), tier.num_cells, width, height, dpr)
      : layoutByAddress(tier, classes, width, height, dpr, this.keptColumns(tier));
    if (!grouped) this.kept = { key: this.slabKey(tier), columns: scene.layout.columns };
    scene.map = pixelMap(scene.layout.rects, width, height);
    this.painter.reset();
  }

  slabKey(tier) { return `${tier.slabs.length}|${this.scene.width}x${this.scene.height}`; }

  keptColumns(tier) {
    const assigned = tier.slabs.some((slab) => slab[1] > 0);
    return this.kept && assigned && this.kept.key === this.slabKey(tier) ? this.kept.columns : 0;
  }

  draw() {
    const { store } = this.context;
    const frame = store.shown, tier = this.tier();
    this.node.style.visibility = tier && tier.num_cells ? "" : "hidden";
    if (!frame || !tier || this.node.clientWidth === 0) return;
    const theme = this.context.theme();
    this.arrange(frame, tier);
    if (this.theme !== theme) { this.theme = theme; this.painter.reset(); }
    this.paint.update(frame, tier, store.view, theme);
    const now = performance.now();
    const fading = this.painter.paint(this.scene, this.paint, tier, theme, now, calm.matches);
    this.moving = this.scene.layout.size / this.scene.dpr >= 12 && this.hasMoving();
    this.drawOver();
    if ((fading || (this.moving && !calm.matches)) && !this.ticking) this.tick();
  }

  hasMoving() {
    const { marks } = this.paint;
    for (let i = 0; i < marks.length; i++) if (marks[i] & MOVING) return true;
    return false;
  }

  // Between frames, only while something fades or moves, at most 20 times a second.
  tick() {
    this.ticking = setTimeout(() => {
      this.ticking = requestAnimationFrame(() => { this.ticking = 0; this.draw(); });
    }, 50);
  }

  drawOver() {
    const ctx = this.over.getContext("2d"), { scene } = this;
    ctx.clearRect(0, 0, scene.width, scene.height);
    const theme = this.theme;
    if (!theme) return;
    if (this.moving) this.drawMoving(ctx, theme);
    if (this.hovered >= 0) this.ring(ctx, this.hovered, css(theme.text, 0.7), 1);
    const { selected } = this.context.store.view;
    if (selected && selected.tier === this.name) {
      const cell = this.drawnAt(selected.cell);
      this.ring(ctx, cell, css(theme.bg), 4);
      this.ring(ctx, cell, css(theme.accent), 2);
    }
  }

  drawMoving(ctx, theme) {
    const { dpr, layout } = this.scene;
    ctx.setLineDash([3 * dpr, 3 * dpr]);
    ctx.lineDashOffset = calm.matches ? 0 : -(performance.now() / 40) * dpr;
    ctx.strokeStyle = css(theme.accent);
    ctx.lineWidth = 2 * dpr;
    for (let i = 0; i < this.paint.marks.length; i++) {
      if (!(this.paint.marks[i] & MOVING)) continue;
      const [x, y, w, hgt] = layout.rects.subarray(i * 4, i * 4 + 4);
      ctx.strokeRect(x + dpr, y + dpr, w - 2 * dpr, hgt - 2 * dpr);
    }
    ctx.setLineDash([]);
  }

  ring(ctx, cell, style, width) {
    const { rects } = this.scene.layout, { dpr } = this.scene, at = cell * 4;
    if (at < 0 || at + 3 >= rects.length) return;
    const grow = width === 1 ? 0 : dpr * 1.5, { width: right, height: bottom } = this.scene;
    // At the grid's edge the ring lies on the block, since nothing is drawn outside the canvas.
    const x0 = Math.max(dpr, rects[at] - grow), x1 = Math.min(right - dpr, rects[at] + rects[at + 2] + grow);
    const y0 = Math.max(dpr, rects[at + 1] - grow), y1 = Math.min(bottom - dpr, rects[at + 1] + rects[at + 3] + grow);
    ctx.strokeStyle = style;
    ctx.lineWidth = width * dpr;
    ctx.strokeRect(x0, y0, x1 - x0, y1 - y0);
  }

  // Cell under a point in CSS pixels, or -1; near misses count, since gaps belong to nobody.
  cellAt(x, y) {
    const { map, width, height, dpr } = this.scene;
    if (!map) return -1;
    const px = Math.floor(x * dpr), py = Math.floor(y * dpr);
    for (const [dx, dy] of [[0, 0], [-2, 0], [2, 0], [0, -2], [0, 2], [-2, -2]]) {
      const cx = px + dx, cy = py + dy;
      if (cx < 0 || cy < 0 || cx >= width || cy >= height) continue;
      if (map[cy * width + cx] >= 0) return map[cy * width + cx];
    }
    return -1;
  }

  // Rectangle of a cell in CSS pixels of the page, or null.
  cellRect(cell) {
    const { rects } = this.scene.layout, { dpr } = this.scene, at = cell * 4;
    if (cell < 0 || at + 3 >= rects.length) return null;
    const box = this.over.getBoundingClientRect();
    return {
      x: box.x + rects[at] / dpr, y: box.y + rects[at + 1] / dpr,
      width: rects[at + 2] / dpr, height: rects[at + 3] / dpr,
    };
  }

  onMove(event) {
    const box = this.over.getBoundingClientRect();
    this.setHover(this.cellAt(event.clientX - box.x, event.clientY - box.y), event);
  }

  setHover(cell, event) {
    if (cell !== this.hovered) { this.hovered = cell; this.drawOver(); }
    this.context.hover(this.name, this.pageAt(cell), event);
  }

  onClick(event) {
    const box = this.over.getBoundingClientRect();
    const cell = this.cellAt(event.clientX - box.x, event.clientY - box.y);
    this.choose(cell, true);
  }

  choose(cell, open) {
    const page = this.pageAt(cell);
    if (page < 0) return;
    if (open && this.tier().blockAt) this.context.store.setView({ opened: true });
    this.context.select(this.name, page);
  }

  // Opens the pages of the chosen token block and goes there.
  enter(event) {
    const { store } = this.context;
    if (!this.tier()?.blockAt || store.view.selected?.tier !== this.name) return;
    event.preventDefault();
    store.setView({ opened: true });
    store.emit("pages");
  }

  onKey(event) {
    if (event.key === "Enter") return this.enter(event);
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    this.setHover(-1);
    const { selected } = this.context.store.view;
    const tier = this.tier();
    if (!tier || !tier.num_cells) return;
    const here = selected && selected.tier === this.name ? this.drawnAt(selected.cell) : -1;
    this.choose(here < 0 ? 0 : this.neighbour(here, step, tier.num_cells), false);
  }

  // The next cell in a direction, by place; at a row's end, by number.
  neighbour(cell, [dx, dy], count) {
    const { map, width, height, layout } = this.scene;
    const [x, y, w, hgt] = layout.rects.subarray(cell * 4, cell * 4 + 4);
    let px = x + (w >> 1), py = y + (hgt >> 1);
    while (px >= 0 && py >= 0 && px < width && py < height) {
      const found = map[py * width + px];
      if (found >= 0 && found !== cell) return found;
      px += dx; py += dy;
    }
    return dx ? Math.max(0, Math.min(count - 1, cell + dx)) : cell;
  }
}

// A short fingerprint of an array, to see whether it changed.
function hash(array) {
  let value = array.length;
  for (let i = 0; i < array.length; i++) value = (Math.imul(value, 31) + array[i]) | 0;
  return value;
}
