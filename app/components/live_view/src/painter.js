// Paints one tier's cells. Small cells go through one ImageData, large ones through paths; either
// way only what changed since the last frame is painted.

import { CACHED, FREE, MOVING, OWNED, PINNED, SHARED, STATE_MASK } from "./decode.js";
import { DIMMED, MISSING_SHIFT } from "./cells.js";
import { LABEL_WIDTH } from "./layout.js";
import { css, luma, mix, ownerColour, ownerLetter, pack, unpack } from "./theme.js";

export const FADE_MS = 400;

// Level of detail by the smaller side of a cell in CSS pixels.
export function detailOf(size) { return size >= 12 ? "full" : size >= 6 ? "edges" : "colour"; }

export class Painter {
  constructor(canvas) {
    this.canvas = canvas;
    this.ctx = canvas.getContext("2d", { alpha: false });
    this.reset();
  }

  // Forgets what is on the canvas: the next paint paints all.
  reset() {
    this.lastColours = null;
    this.lastMarks = null;
    this.image = null;
    this.fades = new Map(); // cell -> {from: u32, start: ms}
    this.hatches = new Map();
  }

  // `scene`: {layout, map, width, height, dpr}. Returns true while a fade is running.
  paint(scene, paint, tier, theme, now, still) {
    const first = !this.lastColours || this.lastColours.length !== paint.colours.length;
    if (first) this.background(scene, theme);
    else if (!still) this.startFades(paint, now);
    const detail = detailOf(scene.layout.size / scene.dpr);
    if (detail === "full") this.paintLarge(scene, paint, tier, theme, this.changedCells(paint, first), now);
    else if (first || this.fades.size || this.differs(paint)) {
      this.paintSmall(scene, paint, theme, detail, now, first);
    }
    this.remember(paint, first);
    return this.fades.size > 0;
  }

  remember(paint, first) {
    if (first) {
      this.lastColours = paint.colours.slice();
      this.lastMarks = paint.marks.slice();
    } else {
      this.lastColours.set(paint.colours);
      this.lastMarks.set(paint.marks);
    }
  }

  differs(paint) {
    const { lastColours, lastMarks } = this, { colours, marks } = paint;
    for (let i = 0; i < colours.length; i++) {
      if (colours[i] !== lastColours[i] || marks[i] !== lastMarks[i]) return true;
    }
    return false;
  }

  background(scene, theme) {
    const { ctx } = this;
    ctx.fillStyle = css(theme.bg);
    ctx.fillRect(0, 0, scene.width, scene.height);
    this.hatches.clear();
    this.drawSlabs(scene, theme);
  }

  // Outlines of slabs that no page class has claimed yet.
  drawSlabs(scene, theme) {
    const { ctx } = this;
    ctx.strokeStyle = css(theme.line);
    ctx.setLineDash([2 * scene.dpr, 3 * scene.dpr]);
    ctx.lineWidth = 1;
    for (const [x, y, w, h, index] of scene.layout.frames) {
      if (index < 0 && w > 4 && h > 4) ctx.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
    }
    ctx.setLineDash([]);
    this.drawLabels(scene, theme);
  }

  // Names of the sequences beside their rows.
  drawLabels(scene, theme) {
    const { ctx } = this;
    for (const label of scene.layout.labels ?? []) {
      ctx.font = `${Math.round(11 * scene.dpr)}px ${theme.font}`;
      ctx.fillStyle = css(theme.text, 0.75);
      ctx.textBaseline = "top";
      ctx.fillText(label.text.slice(0, 8), 0, label.y, (LABEL_WIDTH - 4) * scene.dpr);
    }
  }

  startFades(paint, now) {
    const { lastMarks: marks, lastColours: colours } = this;
    for (let i = 0; i < marks.length; i++) {
      const was = marks[i] & STATE_MASK, is = paint.marks[i] & STATE_MASK;
      if (was !== FREE && is === FREE) this.fades.set(i, { from: colours[i], start: now });
    }
  }

  // Cells to paint: those that differ, and those that fade.
  changedCells(paint, all) {
    const changed = [];
    const { colours, marks } = paint;
    for (let i = 0; i < colours.length; i++) {
      if (all || colours[i] !== this.lastColours[i] || marks[i] !== this.lastMarks[i]) changed.push(i);
    }
    for (const cell of this.fades.keys()) changed.push(cell);
    return changed;
  }

  // Colour of a fading cell at `now`; ends the fade when its time is over or the cell is in use.
  faded(cell, target, mark, now) {
    const fade = this.fades.get(cell);
    if (!fade) return target;
    const t = (now - fade.start) / FADE_MS;
    if (t >= 1 || (mark & STATE_MASK) !== FREE) { this.fades.delete(cell); return target; }
    return pack(mix(unpack(fade.from), unpack(target), t));
  }

  paintSmall(scene, paint, theme, detail, now, first) {
    const { map, width, height, layout } = scene;
    if (first || !this.image) this.image = this.ctx.getImageData(0, 0, width, height);
    const out = new Uint32Array(this.image.data.buffer);
    let colours = paint.colours;
    if (this.fades.size) {
      colours = colours.slice();
      for (const cell of [...this.fades.keys()]) {
        colours[cell] = this.faded(cell, colours[cell], paint.marks[cell], now);
      }
    }
    if (paint.marks.some((mark) => mark >> MISSING_SHIFT)) colours = lightened(colours, paint.marks, theme);
    for (let i = 0; i < map.length; i++) if (map[i] >= 0) out[i] = colours[map[i]];
    if (detail === "edges") this.sharedEdges(out, width, layout.rects, paint, theme);
    this.ctx.putImageData(this.image, 0, 0);
  }

  // One-pixel frames of shared cells of medium size.
  sharedEdges(out, width, rects, paint, theme) {
    const edge = pack(theme.text);
    for (let i = 0; i < paint.marks.length; i++) {
      if (!(paint.marks[i] & SHARED) || paint.marks[i] & DIMMED) continue;
      const at = i * 4, x0 = rects[at], y0 = rects[at + 1];
      const x1 = x0 + rects[at + 2] - 1, y1 = y0 + rects[at + 3] - 1;
      out.fill(edge, y0 * width + x0, y0 * width + x1 + 1);
      out.fill(edge, y1 * width + x0, y1 * width + x1 + 1);
      for (let y = y0; y <= y1; y++) out[y * width + x0] = out[y * width + x1] = edge;
    }
  }

  paintLarge(scene, paint, tier, theme, changed, now) {
    for (const cell of changed) {
      const mark = paint.marks[cell];
      const colour = this.faded(cell, paint.colours[cell], mark, now);
      this.drawCell(scene, theme, cell, colour, mark, tier.owner[cell]);
    }
  }

  drawCell(scene, theme, cell, packed, mark, owner) {
    const { ctx } = this;
    const { rects } = scene.layout, at = cell * 4, { dpr } = scene;
    const x = rects[at], y = rects[at + 1], w = rects[at + 2], hgt = rects[at + 3];
    const state = mark & STATE_MASK, colour = unpack(packed);
    const faint = (mark & DIMMED) !== 0;
    const empty = Math.round((hgt * (mark >> MISSING_SHIFT)) / 127); // above what is kept
    if (empty) { ctx.fillStyle = css(theme.bg); ctx.fillRect(x, y, w, empty); }
    ctx.fillStyle = css(state === FREE && !this.fades.has(cell) ? theme.bg : colour);
    ctx.fillRect(x, y + empty, w, hgt - empty);
    if (state === CACHED) this.hatch(x, y + empty, w, hgt - empty, colour, theme, dpr, faint ? 0.2 : 0.5);
    if (state === FREE || empty) this.frame(x, y, w, hgt, css(faint ? theme.faint : theme.line), 1, 0);
    if (state === OWNED && luma(colour) > 190 && !theme.dark && !faint) {
      this.frame(x, y, w, hgt, css(mix(colour, theme.text, 0.45)), 1, 0);
    }
    if (faint) return;
    if (mark & SHARED) this.doubleEdge(x, y, w, hgt, theme, dpr);
    if (mark & PINNED) this.dot(x, y, w, theme, dpr);
    const letter = state === OWNED && w >= 14 * dpr ? ownerLetter(owner) : "";
    if (letter) this.letter(x, y, w, hgt, letter, ownerColour(theme, owner), theme, dpr);
  }

  frame(x, y, w, h, style, width, inset) {
    const { ctx } = this, half = width / 2 + inset;
    ctx.strokeStyle = style;
    ctx.lineWidth = width;
    ctx.strokeRect(x + half, y + half, w - 2 * half, h - 2 * half);
  }

  // Two lines with the cell's own colour between them.
  doubleEdge(x, y, w, h, theme, dpr) {
    const line = Math.max(1, Math.round(dpr));
    this.frame(x, y, w, h, css(theme.text), line, 0);
    this.frame(x, y, w, h, css(theme.bg), line, line);
    this.frame(x, y, w, h, css(theme.text), line, 2 * line);
  }

  dot(x, y, w, theme, dpr) {
    const { ctx } = this, r = Math.max(2, Math.min(3, w / 7 / dpr)) * dpr;
    ctx.beginPath();
    ctx.arc(x + w - 1.9 * r, y + 1.9 * r, r, 0, 2 * Math.PI);
    ctx.fillStyle = css(theme.text);
    ctx.fill();
    ctx.lineWidth = dpr;
    ctx.strokeStyle = css(theme.bg);
    ctx.stroke();
  }

  letter(x, y, w, h, letter, colour, theme, dpr) {
    const { ctx } = this;
    ctx.font = `${Math.round(Math.min(11 * dpr, h * 0.7))}px ${theme.font}`;
    ctx.fillStyle = luma(colour) > 140 ? "#000" : "#fff";
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    ctx.fillText(letter, x + w / 2, y + h / 2 + 1);
    ctx.textAlign = "left";
  }

  // Diagonal lines over a lightened fill: cached, may be evicted.
  hatch(x, y, w, h, colour, theme, dpr, contrast) {
    const { ctx } = this, key = `${pack(colour)}|${contrast}`;
    let pattern = this.hatches.get(key);
    if (!pattern) {
      pattern = ctx.createPattern(hatchTile(mix(colour, theme.text, contrast), colour, dpr), "repeat");
      this.hatches.set(key, pattern);
    }
    ctx.fillStyle = pattern;
    ctx.fillRect(x, y, w, h);
  }
}

// Colours of small squares: the less of a token block is kept, the nearer to the background.
function lightened(colours, marks, theme) {
  const out = colours.slice();
  for (let i = 0; i < out.length; i++) {
    const missing = marks[i] >> MISSING_SHIFT;
    if (missing) out[i] = pack(mix(unpack(out[i]), theme.bg, (0.8 * missing) / 127));
  }
  return out;
}

function hatchTile(line, fill, dpr) {
  const size = Math.round(5 * dpr);
  const tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const ctx = tile.getContext("2d");
  ctx.fillStyle = css(fill);
  ctx.fillRect(0, 0, size, size);
  ctx.strokeStyle = css(line);
  ctx.lineWidth = Math.max(1, dpr * 0.9);
  ctx.beginPath();
  for (const shift of [-size, 0, size]) {
    ctx.moveTo(shift - 1, size + 1);
    ctx.lineTo(shift + size + 1, -1);
  }
  ctx.stroke();
  return tile;
}
