// A growing text in lines that never move: each has its place from when it begins, and the oldest
// are taken away without the others moving up.

import { h } from "./dom.js";

const LINE_PX = 20, WORD_END_PX = 44, KEPT_TOKENS = 600, SPARE_TOKENS = 200;

export class TextLines {
  // `refill` is called when another width has emptied the lines.
  constructor(node, refill) {
    this.node = node;
    this.pen = document.createElement("canvas").getContext("2d");
    this.widths = new Map();
    this.clear();
    new ResizeObserver(() => {
      if (node.clientWidth === this.width) return;
      this.clear();
      refill();
    }).observe(node);
  }

  clear() {
    this.node.replaceChildren();
    this.width = this.node.clientWidth;
    this.tokens = new Map(); // position -> its spans, in order
    this.end = -1; // position of the next token
    this.count = 0; // lines begun so far
    this.line = null;
    this.used = 0; // px of the line
  }

  // Whether `text` goes on where these lines end; if not, `clear` comes first.
  continues(text) {
    const end = text.start + text.pieces.length;
    return this.end < 0 || (text.start <= this.end && end >= this.end);
  }

  // Appends what is new.
  take(text) {
    if (!this.width) this.width = this.node.clientWidth;
    if (!this.width) return; // not on screen yet
    const end = text.start + text.pieces.length;
    if (this.end < 0) this.end = Math.max(text.start, end - KEPT_TOKENS);
    if (!this.widths.size) this.pen.font = getComputedStyle(this.node).font;
    for (; this.end < end; this.end++) this.append(this.end, text.pieces[this.end - text.start]);
    if (this.tokens.size > KEPT_TOKENS + SPARE_TOKENS) this.forget();
  }

  append(at, piece) {
    const spans = [];
    this.tokens.set(at, spans);
    piece.split("\n").forEach((part, i) => {
      if (i) this.begin();
      for (const [text, breaks] of this.fitting(part)) {
        if (breaks) this.begin();
        if (!this.line) this.begin();
        if (!text) continue;
        const span = h("span", "tok");
        span.textContent = text;
        this.line.append(span);
        this.used += this.measure(text);
        spans.push(span);
      }
    });
    if (!this.line) this.begin();
    this.line.kvwLast = at;
  }

  // [text, whether it begins a line]: a word that does not fit goes to the next line and leaves its
  // space behind; one that fits no line is cut. A line's last part is for the ends of words, which
  // come as tokens of their own.
  fitting(part) {
    const word = part.trimStart(), space = part.slice(0, part.length - word.length);
    const room = this.width - this.used - (space && this.used ? WORD_END_PX : 0);
    if (this.measure(part) <= room) return [[part, false]];
    if (this.measure(word) <= this.width) return [[space, false], [word, true]];
    const pieces = [[space, false]];
    for (let rest = [...word]; rest.length;) {
      let n = rest.length;
      while (n > 1 && this.measure(rest.slice(0, n).join("")) > this.width) n--;
      pieces.push([rest.slice(0, n).join(""), true]);
      rest = rest.slice(n);
    }
    return pieces;
  }

  begin() {
    this.line = h("div", "text-line");
    this.line.style.top = `${LINE_PX * this.count++}px`;
    this.used = 0;
    this.node.append(this.line);
  }

  measure(text) {
    let width = this.widths.get(text);
    if (width === undefined) {
      width = this.pen.measureText(text.replace(/\t/g, "    ")).width;
      if (this.widths.size > 5000) this.widths.clear();
      this.widths.set(text, width);
    }
    return width;
  }

  // Takes the oldest lines away, whole; a mark stands where they were.
  forget() {
    this.gone?.remove();
    let top = 0;
    while (this.tokens.size > KEPT_TOKENS) {
      const line = this.node.firstChild;
      for (const at of this.tokens.keys()) if (at <= (line.kvwLast ?? -1)) this.tokens.delete(at); else break;
      top = line.style.top;
      line.remove();
    }
    this.gone = h("div", "text-line", "\u22ef");
    this.gone.style.top = top;
    this.node.prepend(this.gone);
  }
}
