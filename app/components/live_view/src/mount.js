// The render core: one part of the interface into one root, fed by one store.

import { h } from "./dom.js";
import { installHook, unhook } from "./hook.js";
import { deepFocus } from "./keyboard.js";
import { Ladder } from "./ladder.js";
import { Side } from "./side.js";
import { Stage } from "./stage.js";
import { CSS_TEXT } from "./style.js";
import { Strip } from "./strip.js";
import { Tips } from "./terms.js";
import { readTheme, watchTheme } from "./theme.js";
import { makeWords } from "./words.js";

const PARTS = { strip: Strip, stage: Stage, side: Side, ladder: Ladder };
const SELECT_WAIT_MS = 150, CARRIED_MS = 5000;

// Mounts `part` into `root` (element or shadow root). `frameSource`: a Store. `data`: see the
// Python wrapper. `onCommand({name, nonce, tab, ...})` receives what the user asks for.
// Returns {update(data, onCommand), destroy()}.
export function mount(root, { part, frameSource, data, onCommand }) {
  const store = frameSource;
  const state = { data: data ?? {}, onCommand: onCommand ?? (() => {}), theme: null, seen: "", timer: 0, sent: [] };
  const words = makeWords(state.data.text ?? {});
  const host = h("div", `kvw kvw-${part}`);
  const style = h("style");
  style.textContent = CSS_TEXT;
  shadowOf(root).append(style, host);
  const context = makeContext(store, state, words, host);
  const view = new PARTS[part](context);
  host.append(view.node);
  const unwatch = watchTheme(host, () => { state.theme = null; view.themeChanged(); });
  const unsubscribe = store.subscribe((what) => view.on(what));
  const wake = () => { if (!document.hidden) view.on("frame"); };
  document.addEventListener("visibilitychange", wake);
  if (part === "stage" || part === "ladder") installHook(store, view);
  adopt(store, state);
  return {
    update(next, command) {
      if (command) state.onCommand = command;
      const told = JSON.stringify(next ?? state.data);
      if (told === state.told) return; // most runs of the page tell this part nothing new
      state.told = told;
      state.data = next ?? state.data;
      adopt(store, state);
      view.on("view");
    },
    destroy() {
      unsubscribe();
      unwatch();
      unhook(view);
      clearTimeout(state.timer);
      document.removeEventListener("visibilitychange", wake);
      view.destroy();
      host.remove();
      style.remove();
    },
  };
}

// Styles stay inside: an ordinary element gets a shadow root.
function shadowOf(root) {
  if (root instanceof ShadowRoot) return root;
  return root.shadowRoot ?? root.attachShadow({ mode: "open" });
}

function makeContext(store, state, words, host) {
  const send = (name, args = {}) => {
    store.numSent = (store.numSent ?? 0) + 1;
    const command = { name, nonce: `${store.tab}-${Date.now()}-${store.numSent}`, tab: store.tab, ...args };
    if (store.command) store.command(command);
    else state.onCommand(withEarlier(state, command));
  };
  return {
    store, words, send, host,
    tips: new Tips(host, words),
    data: () => state.data,
    theme: () => (state.theme ??= readTheme(host)),
    focused: deepFocus,
    isDriver: () => isDriver(store, state.data),
    select: (tier, cell) => selectBlock(store, state, send, tier, cell),
    selectRequest: (id) => selectRequest(store, send, id),
  };
}

// While a run of the page is under way the server keeps one command a part, the newest. So each
// carries, as `earlier`, those before it that Python has not reported in `done`.
function withEarlier(state, command) {
  const { done } = state.data, now = performance.now();
  if (!done) return command;
  state.sent = state.sent.filter((sent) => now - sent.at < CARRIED_MS && !done.includes(sent.command.nonce));
  const earlier = state.sent.map((sent) => sent.command);
  state.sent.push({ at: now, command });
  return earlier.length ? { ...command, earlier } : command;
}

function isDriver(store, data) {
  if (store.playback) return true;
  const { driver } = store.link; // undefined before the first news, null if the driver's tab is closed
  if (driver !== undefined) return driver === null || driver === "" || driver === store.tab;
  return data.is_driver !== false;
}

// At once here; to Python when the selection has rested, since each one costs a rerun.
function selectBlock(store, state, send, tier, cell) {
  const selected = tier === null ? null : { tier, cell };
  store.setView({ selected });
  clearTimeout(state.timer);
  state.timer = setTimeout(() => {
    if (selected) send("select_block", selected); else send("clear_selection");
  }, SELECT_WAIT_MS);
}

function selectRequest(store, send, id) {
  const again = store.view.request === id && store.view.filter?.value === id;
  store.setView({ request: again ? null : id, filter: again ? null : { kind: "request", value: id } });
  if (again) send("clear_selection"); else send("select_request", { request_id: id });
}

// Takes over a selection that Python changed; one it merely repeats is not newer than ours.
function adopt(store, state) {
  const { selected = null, selected_request: request = null, marks } = state.data;
  const seen = JSON.stringify([selected, request]);
  if (state.seen !== "" && seen !== state.seen) {
    const change = {};
    const [oldSelected, oldRequest] = JSON.parse(state.seen);
    if (JSON.stringify(oldSelected) !== JSON.stringify(selected)) change.selected = selected;
    if (oldRequest !== request) change.request = request;
    if (!state.timer || change.selected !== undefined) store.setView(change);
  } else if (state.seen === "" && (selected || request)) store.setView({ selected, request });
  state.seen = seen;
  if (marks) store.marks = marks;
}
