// Explanations one hover, focus or key away, and the hover line over the grid.

import { attrs, h, setText, show } from "./dom.js";

export class Tips {
  constructor(root, words) {
    this.words = words;
    this.text = h("span", "tip-text");
    this.link = attrs(h("a", "tip-link"), { target: "_blank", rel: "noopener" });
    this.node = attrs(h("div", "tip", this.text, this.link), { role: "tooltip", id: "kv-tip" });
    show(this.node, false);
    this.node.addEventListener("pointerenter", () => clearTimeout(this.timer));
    this.node.addEventListener("pointerleave", () => this.hide());
    root.append(this.node);
  }

  // Makes `node` explain the term `name` (two sentences, and a link where there is one).
  term(node, name) {
    if (!this.words.has(`term.${name}`)) return node;
    node.classList.add("term");
    attrs(node, { tabindex: node.tabIndex < 0 ? "0" : null, "aria-describedby": "kv-tip" });
    const link = `term.${name}.link`;
    return this.tell(node, () => this.words(`term.${name}`), this.words.has(link) ? this.words(link) : "");
  }

  // Makes `node` tell what `text()` returns, at a hover or with focus.
  tell(node, text, link = "") {
    const open = () => this.open(node, text(), link);
    node.addEventListener("pointerenter", open);
    node.addEventListener("focus", open);
    node.addEventListener("pointerleave", () => { this.timer = setTimeout(() => this.hide(), 150); });
    node.addEventListener("blur", () => this.hide());
    return node;
  }

  open(anchor, text, link) {
    clearTimeout(this.timer);
    setText(this.text, text);
    show(this.link, link);
    if (link) {
      this.link.href = /^(https?:\/\/|\/|\?)/.test(link) ? link : "#";
      setText(this.link, this.words("term.more"));
    }
    const box = anchor.getBoundingClientRect();
    this.place(box.left, box.bottom + 6);
  }

  // A plain line at a point of the page.
  line(text, x, y) {
    clearTimeout(this.timer);
    setText(this.text, text);
    show(this.link, false);
    this.place(x + 14, y + 16);
  }

  place(x, y) {
    show(this.node, true);
    const { offsetWidth: w, offsetHeight: hgt } = this.node;
    const left = Math.max(8, Math.min(x, innerWidth - w - 8));
    const top = y + hgt > innerHeight - 8 ? Math.max(8, y - hgt - 34) : y;
    this.node.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }

  hide() { show(this.node, false); }
}
