// One store a tab and socket: frames in, shown frame and shared view state out.

import { decodeFrame } from "./decode.js";
import { Ring } from "./ring.js";
import { Series } from "./series.js";

// The tab's identity survives a reload (sessionStorage), so that a reload keeps driving.
export function tabId() {
  try {
    let id = sessionStorage.getItem("kvw-tab");
    if (!id) sessionStorage.setItem("kvw-tab", (id = crypto.randomUUID()));
    return id;
  } catch {
    return "tab-" + Math.random().toString(36).slice(2);
  }
}

export class Store {
  constructor({ ring } = {}) {
    this.ring = ring ?? new Ring();
    this.series = new Series();
    this.events = new Map(); // seq -> event, bounded
    this.tab = tabId();
    this.latest = null;
    this.shown = null;
    this.live = true;
    this.numFrames = 0;
    this.badFrame = "";
    this.link = { status: "off", dead: "", viewers: 0, driver: undefined };
    this.view = { lens: "owner", group: "address", filter: null, selected: null, request: null, opened: false };
    this.listeners = new Set();
  }

  // fn(what): "frame" | "view" | "link", or who is to have the focus: "grid" | "pages". Returns the function that unsubscribes.
  subscribe(fn) {
    this.listeners.add(fn);
    if (this.listeners.size === 1) this.open();
    return () => {
      if (this.listeners.delete(fn) && !this.listeners.size) this.close();
    };
  }

  open() {}
  close() {}

  emit(what) { for (const fn of [...this.listeners]) fn(what); }

  // Takes one frame's bytes; a broken one is named and skipped.
  push(buffer, at = performance.now()) {
    let frame;
    try {
      frame = decodeFrame(buffer);
    } catch (error) {
      this.badFrame = String(error.message ?? error);
      return;
    }
    this.numFrames++;
    this.latest = frame;
    this.ring.push(at, buffer);
    this.series.add(frame.snap);
    this.keepEvents(frame.snap.events);
    if (this.link.dead) this.setLink({ dead: "" });
    if (this.live) {
      this.shown = frame;
      this.emit("frame");
    }
  }

  keepEvents(events) {
    for (const event of events) this.events.set(event.seq, event);
    while (this.events.size > 400) this.events.delete(this.events.keys().next().value);
  }

  setLink(change) {
    Object.assign(this.link, change);
    this.emit("link");
  }

  setView(change) {
    Object.assign(this.view, change);
    this.emit("view");
  }

  // Shows the ring's frame at `index`; the last one means live again.
  seek(index) {
    const item = this.ring.items[Math.max(0, Math.min(index, this.ring.length - 1))];
    if (!item) return;
    this.live = false;
    this.shown = decodeFrame(item.buffer);
    this.emit("frame");
  }

  goLive() {
    this.live = true;
    this.shown = this.latest;
    this.emit("frame");
  }
}

// A store fed by the `/live` WebSocket; open while somebody listens.
export class LiveStore extends Store {
  constructor(url) {
    super();
    this.url = url;
    this.socket = null;
    this.retry = 0;
    this.timer = 0;
  }

  open() {
    const url = new URL(this.url, location.href);
    url.protocol = url.protocol.replace("http", "ws");
    this.setLink({ status: "connecting" });
    const socket = (this.socket = new WebSocket(url));
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      this.retry = 0;
      socket.send(JSON.stringify({ tab: this.tab }));
      this.setLink({ status: "open" });
    };
    socket.onmessage = (message) => {
      if (typeof message.data === "string") this.note(message.data);
      else this.push(message.data);
    };
    socket.onclose = () => { if (this.socket === socket) this.reopen(); };
  }

  // A text message: {"dead": reason} or {"viewers": n, "driver": tab or null}.
  note(text) {
    let note;
    try { note = JSON.parse(text); } catch { return; } // of a newer server: frames tell the rest
    const change = {};
    if ("dead" in note) change.dead = String(note.dead || "unknown");
    if ("viewers" in note) change.viewers = Number(note.viewers) || 0;
    if ("driver" in note) change.driver = note.driver;
    this.setLink(change);
  }

  reopen() {
    this.socket = null;
    this.setLink({ status: "closed" });
    if (!this.listeners.size) return;
    const wait = Math.min(5000, 250 * 2 ** this.retry++);
    this.timer = setTimeout(() => this.listeners.size && !this.socket && this.open(), wait);
  }

  close() {
    clearTimeout(this.timer);
    const socket = this.socket;
    this.socket = null;
    if (socket) socket.close(1000);
    this.setLink({ status: "off" });
  }
}

const STORES = Symbol.for("kvw.stores");

// The tab's store for one address, shared by all parts (and by reloaded copies of this module).
export function sharedStore(url) {
  const stores = (globalThis[STORES] ??= new Map());
  if (!stores.has(url)) stores.set(url, new LiveStore(url));
  return stores.get(url);
}
