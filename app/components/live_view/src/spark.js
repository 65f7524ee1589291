// A sparkline of the last 60 s with a tick at each applied change and a cursor when rewound.

import { h } from "./dom.js";
import { css } from "./theme.js";

export class Spark {
  constructor() {
    this.node = h("canvas", "spark");
    this.node.setAttribute("aria-hidden", "true");
    this.key = "";
  }

  // `points`: [[time_s, value, samples]]; `end`: right edge; `cursor`: shown time or null.
  draw(points, marks, end, cursor, theme) {
    const dpr = devicePixelRatio || 1;
    const width = Math.round(this.node.clientWidth * dpr), height = Math.round(this.node.clientHeight * dpr);
    const tail = points.length ? points[points.length - 1] : [0, 0];
    const key = `${width}x${height}|${points.length}|${tail}|${marks.length}|${end}|${cursor}|${theme.dark}`;
    if (!width || key === this.key) return;
    this.key = key;
    if (this.node.width !== width) this.node.width = width;
    if (this.node.height !== height) this.node.height = height;
    const ctx = this.node.getContext("2d");
    ctx.clearRect(0, 0, width, height);
    const x = (time) => ((time - end + 60) / 60) * (width - 2 * dpr) + dpr;
    for (const mark of marks) tick(ctx, x(mark.time_s), height, css(theme.warn), dpr);
    if (cursor !== null) tick(ctx, x(cursor), height, css(theme.text, 0.6), dpr);
    line(ctx, points, x, height, dpr, theme);
  }
}

function tick(ctx, x, height, style, dpr) {
  if (x < 0) return;
  ctx.fillStyle = style;
  ctx.fillRect(Math.round(x), 0, dpr, height);
}

function line(ctx, points, x, height, dpr, theme) {
  if (points.length < 2) return;
  let low = Infinity, high = -Infinity;
  for (const p of points) { low = Math.min(low, p[1]); high = Math.max(high, p[1]); }
  const span = high - low || Math.abs(high) || 1, pad = 2 * dpr;
  const y = (value) => height - pad - ((value - low) / span) * (height - 2 * pad) * (high > low ? 1 : 0.5);
  ctx.beginPath();
  points.forEach((p, i) => (i ? ctx.lineTo(x(p[0]), y(p[1])) : ctx.moveTo(x(p[0]), y(p[1]))));
  ctx.strokeStyle = css(theme.accent);
  ctx.lineWidth = 1.25 * dpr;
  ctx.lineJoin = "round";
  ctx.stroke();
  const tail = points[points.length - 1];
  ctx.beginPath();
  ctx.arc(x(tail[0]) - dpr, y(tail[1]), 1.75 * dpr, 0, 2 * Math.PI);
  ctx.fillStyle = css(theme.accent);
  ctx.fill();
}
