// Entries: Streamlit's default export, anywidget's `render`, and the replay file's opener.

import { h } from "./dom.js";
import { mount } from "./mount.js";
import { ReplayStore } from "./replay.js";
import { sharedStore, Store } from "./store.js";

const handles = new WeakMap(); // parentElement -> handle; a rerun updates, it never mounts again

// Streamlit components.v2 calls this at the first run and at each rerun.
export function renderStreamlit({ parentElement, data, setTriggerValue }) {
  const onCommand = (command) => setTriggerValue("command", command);
  let handle = handles.get(parentElement);
  if (handle) handle.update(data, onCommand);
  else {
    const frameSource = sharedStore(data.live_url ?? "/live");
    const mounted = mount(parentElement, { part: data.part, frameSource, data, onCommand });
    handle = { ...mounted, close: () => { mounted.destroy(); handles.delete(parentElement); } };
    handles.set(parentElement, handle);
  }
  return handle.close;
}

// anywidget: traits `frame` (bytes), `data` (dict), `parts` (list), `command` (dict, out).
export function renderWidget({ model, el }) {
  const store = new Store();
  const feed = () => {
    const view = model.get("frame");
    if (view && view.byteLength) store.push(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
  };
  const onCommand = (command) => { model.set("command", command); model.save_changes(); };
  const data = model.get("data");
  const mounted = model.get("parts").map((part) => {
    const root = el.appendChild(h("div"));
    return mount(root, { part, frameSource: store, data, onCommand });
  });
  const renew = () => mounted.forEach((m) => m.update(model.get("data"), onCommand));
  feed();
  model.on("change:frame", feed);
  model.on("change:data", renew);
  return () => {
    model.off("change:frame", feed);
    model.off("change:data", renew);
    mounted.forEach((m) => m.destroy());
  };
}

// The offline file: strip above, stage and side beside each other.
export async function openReplay(root, frames, text, lang) {
  const frameSource = await ReplayStore.from(frames);
  const data = { text, lang, is_driver: true, pages: [] };
  const boxes = Object.fromEntries(["strip", "stage", "side"].map((part) => [part, h("div")]));
  const row = h("div", "", boxes.stage, boxes.side);
  row.style.cssText = "display:grid;grid-template-columns:minmax(0,1fr) minmax(260px,320px);gap:16px;padding:8px 16px";
  if (innerWidth < 700) row.style.gridTemplateColumns = "minmax(0,1fr)";
  root.append(boxes.strip, row);
  for (const [part, box] of Object.entries(boxes)) mount(box, { part, frameSource, data });
  return frameSource;
}
