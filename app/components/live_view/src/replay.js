// Save replay: one offline HTML file with this module and the ring's frames; and how it plays.

import { h } from "./dom.js";
import { Ring } from "./ring.js";
import { Store } from "./store.js";

const STEP_BYTES = 32768;

// [u32 count] then for each frame [f64 at][u32 length][bytes], little endian.
export function packFrames(items) {
  const total = items.reduce((sum, item) => sum + 12 + item.buffer.byteLength, 4);
  const out = new Uint8Array(total), view = new DataView(out.buffer);
  view.setUint32(0, items.length, true);
  let at = 4;
  for (const item of items) {
    view.setFloat64(at, item.at, true);
    view.setUint32(at + 8, item.buffer.byteLength, true);
    out.set(new Uint8Array(item.buffer), at + 12);
    at += 12 + item.buffer.byteLength;
  }
  return out;
}

export function unpackFrames(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength), items = [];
  let at = 4;
  for (let i = view.getUint32(0, true); i > 0; i--) {
    const length = view.getUint32(at + 8, true);
    items.push({ at: view.getFloat64(at, true), buffer: bytes.slice(at + 12, at + 12 + length).buffer });
    at += 12 + length;
  }
  return items;
}

async function through(bytes, stream) {
  return new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());
}

function toBase64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += STEP_BYTES) {
    text += String.fromCharCode(...bytes.subarray(at, at + STEP_BYTES));
  }
  return btoa(text);
}

function fromBase64(text) { return Uint8Array.from(atob(text), (c) => c.charCodeAt(0)); }

// The whole file as text. `source` is this module's own source, which names no other file.
export async function replayHtml(items, text, lang, source) {
  const frames = toBase64(await through(packFrames(items), new CompressionStream("gzip")));
  const safe = (value) => JSON.stringify(value).replace(/</g, "\\u003c");
  const close = "<" + "/script>";
  const title = (text["replay.title"] ?? "Replay").replace(/[<>&]/g, "");
  return [
    `<!doctype html><html lang="${/^[\w-]+$/.test(lang) ? lang : "en"}"><head><meta charset="utf-8">`,
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    `<title>${title}</title><style>body{margin:0;font:14px system-ui,sans-serif}`,
    "@media(prefers-color-scheme:dark){body{background:#0f1216}}</style></head><body>",
    `<script type="application/json" id="kvw-text">${safe(text)}${close}`,
    `<script type="text/plain" id="kvw-frames">${frames}${close}`,
    `<script type="module">\n${source.replace(/<\/script/gi, "<\\/script")}`,
    `\nopenReplay(document.body, document.getElementById("kvw-frames").textContent,`,
    ` JSON.parse(document.getElementById("kvw-text").textContent), ${safe(lang)});\n${close}`,
    "</body></html>",
  ].join("\n");
}

// Builds the file from the ring and hands it to the browser's download.
export async function saveReplay({ store, data }) {
  const source = await (await fetch(import.meta.url)).text();
  const { text, lang } = data();
  const html = await replayHtml([...store.ring.items], text, lang ?? "en", source);
  const link = h("a");
  link.href = URL.createObjectURL(new Blob([html], { type: "text/html" }));
  link.download = `replay-step-${store.latest ? store.latest.snap.step : 0}.html`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// A store that plays kept frames; commands play, pause, step and speed act on the playback.
export class ReplayStore extends Store {
  constructor(items) {
    super({ ring: new Ring({ seconds: 1e9, maxBytes: Infinity }) });
    this.playback = { playing: false, index: 0, speed: 1, timer: 0 };
    for (const item of items) this.push(item.buffer, item.at);
    if (items.length) this.seek(0);
  }

  static async from(base64) {
    const raw = await through(fromBase64(base64.trim()), new DecompressionStream("gzip"));
    return new ReplayStore(unpackFrames(raw));
  }

  seek(index) {
    this.playback.index = Math.max(0, Math.min(index, this.ring.length - 1));
    super.seek(this.playback.index);
  }

  // A command of the strip; returns nothing, unknown ones do nothing.
  command({ name, value }) {
    const { playback } = this;
    if (name === "play") this.play();
    if (name === "pause") this.pause();
    if (name === "step") { this.pause(); this.seek(playback.index + 1); }
    if (name === "speed") playback.speed = value;
  }

  play() {
    if (this.playback.index >= this.ring.length - 1) this.seek(0);
    this.playback.playing = true;
    this.next();
    this.emit("link");
  }

  pause() {
    clearTimeout(this.playback.timer);
    this.playback.playing = false;
    this.emit("link");
  }

  next() {
    const { playback, ring } = this, { index } = playback;
    clearTimeout(playback.timer);
    if (!playback.playing) return;
    if (index >= ring.length - 1) return this.pause();
    const wait = (ring.items[index + 1].at - ring.items[index].at) / playback.speed;
    playback.timer = setTimeout(() => { this.seek(index + 1); this.next(); }, Math.min(2000, wait));
  }
}
