// Sixty seconds of rewind, and the file that keeps them.

import { attrs, button, h, setAttr, setClass, setText, show } from "./dom.js";

export class Scrubber {
  // `save`: called for the replay file; null where there is none (inside a replay).
  constructor({ store, words }, save) {
    Object.assign(this, { store, words });
    this.range = attrs(h("input", "scrub"), {
      type: "range", min: "0", max: "1000", step: "1", "aria-label": words("scrub.label"),
    });
    this.range.value = "1000";
    this.range.addEventListener("input", () => this.seek());
    this.when = h("span", "scrub-when");
    this.now = button("small", words("scrub.live"), () => store.goLive());
    this.save = button("small", words("replay.save"), async () => {
      this.save.disabled = true;
      try { await save(); } finally { this.save.disabled = false; }
    });
    show(this.save, !!save);
    show(this.now, !!save);
    this.node = h("div", "scrubber", this.when, this.range, this.now, this.save);
  }

  seek() {
    const { store } = this, { ring } = store;
    const share = Number(this.range.value) / 1000;
    if (share >= 1 && !store.playback) return store.goLive();
    const first = ring.items[0];
    if (first) store.seek(ring.indexAt(first.at + share * ring.spanMs));
  }

  update() {
    const { store, words } = this, { ring } = store;
    const behind = store.live || !ring.length ? 0 : this.behindSeconds();
    const text = store.live ? words("scrub.now", { seconds: Math.round(ring.spanMs / 1000) })
      : words("scrub.behind", { seconds: behind.toFixed(1) });
    setText(this.when, text);
    setAttr(this.range, "aria-valuetext", text);
    this.now.disabled = store.live;
    setClass(this.node, "rewound", !store.live);
    if (store.live && this.range.value !== "1000") this.range.value = "1000";
    else if (store.playback && ring.spanMs) {
      this.range.value = String(Math.round(1000 * (1 - (behind * 1000) / ring.spanMs)));
    }
  }

  behindSeconds() {
    const { ring } = this.store;
    const at = ring.items.find((item) => item.buffer === this.store.shown.buffer)?.at ?? ring.items[0].at;
    return (ring.items[ring.length - 1].at - at) / 1000;
  }
}
