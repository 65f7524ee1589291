// Tells Python which tab this is, and when something it shows natively changed elsewhere.
const STORES = Symbol.for("kvw.stores");
const known = new WeakMap(); // parentElement -> {data, told, stop}

function tabId() {
  try {
    let id = sessionStorage.getItem("kvw-tab");
    if (!id) sessionStorage.setItem("kvw-tab", (id = crypto.randomUUID()));
    return id;
  } catch {
    return "";
  }
}

// What the native controls depend on: settings, who drives, and the engine's face.
function face(store) {
  const snap = store.latest?.snap, link = store.link;
  const state = link.dead ? "dead" : (snap?.state ?? "none");
  return JSON.stringify([snap?.config_version ?? 0, link.driver, state === "idle" ? "running" : state]);
}

export default function ({ parentElement, data, setTriggerValue }) {
  const send = (name) => setTriggerValue("command", { name, tab: tabId(), nonce: `${Date.now()}` });
  let entry = known.get(parentElement);
  if (entry) {
    entry.data = data;
    entry.send = send;
    return entry.stop;
  }
  entry = { data, send, told: null, stop: () => {} };
  known.set(parentElement, entry);
  if (data.tab !== tabId()) send("hello");
  const watch = () => {
    const store = globalThis[STORES]?.get(data.live_url);
    if (!store) return false;
    const unsubscribe = store.subscribe(() => {
      const now = face(store);
      if (entry.told === null || now === entry.told) { entry.told = now; return; }
      const own = JSON.parse(now)[0] === entry.data.version;
      const sameRest = now.slice(now.indexOf(",")) === entry.told.slice(entry.told.indexOf(","));
      entry.told = now;
      if (!(own && sameRest)) entry.send("sync");
    });
    entry.stop = () => { unsubscribe(); known.delete(parentElement); };
    return true;
  };
  if (!watch()) {
    const timer = setInterval(() => { if (watch()) clearInterval(timer); }, 200);
    entry.stop = () => { clearInterval(timer); known.delete(parentElement); };
  }
  return () => entry.stop();
}
