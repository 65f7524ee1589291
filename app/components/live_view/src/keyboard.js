// Keys of the page. None acts while somebody types; space only when no control has focus.

import { attrs, button, h, show } from "./dom.js";

const CHAT_WAIT_MS = 10000, CHAT_LOOK_MS = 100;

const CONTROLS = "button, a, input, select, summary, [role=slider], [role=tab], [role=application], [role=option], [contenteditable]";

// The element that has focus, through shadow roots.
export function deepFocus() {
  let node = document.activeElement;
  while (node && node.shadowRoot && node.shadowRoot.activeElement) node = node.shadowRoot.activeElement;
  return node;
}

export function isTyping(node) {
  if (!node || !node.matches) return false;
  if (node.isContentEditable || node.matches("textarea, select")) return true;
  return node.matches("input") && !/^(range|checkbox|radio|button|submit|color|file)$/.test(node.type);
}

// What a key does here, or "": play_pause, step, chat, help, escape.
export function actionOf(event, node) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented) return "";
  if (event.key === "Escape") return "escape";
  if (isTyping(node)) return "";
  if (event.key === " ") return node && node.matches && node.matches(CONTROLS) ? "" : "play_pause";
  return { ".": "step", "/": "chat", "?": "help" }[event.key] ?? "";
}

// Listens on the window; returns the function that stops.
export function listenKeys(context, help) {
  const onKey = (event) => {
    const action = actionOf(event, deepFocus());
    if (!action) return;
    if (action !== "escape") event.preventDefault();
    act(action, context, help);
  };
  addEventListener("keydown", onKey);
  return () => removeEventListener("keydown", onKey);
}

function act(action, context, help) {
  const { store, send } = context;
  if (action === "help") return help.toggle();
  if (action === "escape") return escape(context, help);
  if (action === "chat") return store.playback ? undefined : focusChat(context);
  if (!context.isDriver()) return;
  if (action === "step") return send("step");
  const paused = store.playback ? !store.playback.playing : store.shown?.snap.state === "paused";
  send(paused ? "play" : "pause");
}

// Closes what is open, else goes live, else leaves Present, else clears the selection.
function escape(context, help) {
  const { store, tips } = context;
  tips.hide();
  if (!help.node.hidden) return help.toggle(false);
  if (!store.live && !store.playback) return store.goLive();
  if (context.data().present) return context.isDriver() && context.send("present", { on: false });
  if (store.view.filter) return store.setView({ filter: null });
  if (store.view.opened) return store.setView({ opened: false });
  if (store.view.selected) context.select(null);
}

// Puts the cursor into the chat box, which is on the page Live: goes there, and waits until it has come.
function focusChat({ store, data, send }) {
  document.body.dataset.tab = "chat";
  if (focusBox() || store.chatTimer) return;
  if ((data().view ?? "live") !== "live") send("go_page", { page: "live" });
  const until = performance.now() + CHAT_WAIT_MS;
  store.chatTimer = setInterval(() => {
    if (!isTyping(deepFocus()) && !focusBox() && performance.now() < until) return;
    clearInterval(store.chatTimer);
    store.chatTimer = 0;
  }, CHAT_LOOK_MS);
}

function focusBox() {
  const box = document.querySelector('[data-testid="stChatInputTextArea"], [data-testid="stChatInput"] textarea');
  if (box) box.focus();
  return !!box;
}

const KEYS = [["space", "space"], [".", "step"], ["← ↑ → ↓", "arrows"], ["Enter", "enter"], ["/", "chat"], ["?", "help"], ["Esc", "escape"]];

// The list of keys that do something here, shown over the page.
export class KeyHelp {
  constructor({ words, store, data }) {
    this.works = (name) => {
      if (name === "chat") return !store.playback;
      return !["arrows", "enter"].includes(name) || (data().view ?? "live") === "live"; // there is the grid
    };
    this.rows = KEYS.map(([key, name]) => ({ name, nodes: [
      h("dt", "", h("kbd", "", key === "space" ? words("keys.space.name") : key)), h("dd", "", words(`keys.${name}`))] }));
    this.node = attrs(h("div", "keys", h("strong", "", words("keys.label")), h("dl", "facts", ...this.rows.flatMap((r) => r.nodes)),
      button("small", words("keys.close"), () => this.toggle(false))), { role: "dialog", "aria-label": words("keys.label") });
    show(this.node, false);
  }

  toggle(on = this.node.hidden) {
    for (const { name, nodes } of this.rows) for (const node of nodes) show(node, this.works(name));
    show(this.node, on);
    if (on) this.node.querySelector("button").focus();
  }
}
