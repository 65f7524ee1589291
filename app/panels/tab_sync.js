// Tells Python which tab this is, and when what it drew natively is no longer so.
const STORES = Symbol.for("kvw.stores");
const SETTLE_MS = 250; // by then the run that made the change has told its version
const AGAIN_MS = 2000;
const known = new WeakMap(); // parentElement -> {data, send, stop}

function tabId() {
  try {
    let id = sessionStorage.getItem("kvw-tab");
    if (!id) sessionStorage.setItem("kvw-tab", (id = crypto.randomUUID()));
    return id;
  } catch {
    return "";
  }
}

// What the native controls depend on, as the socket tells it: settings, who drives, the engine.
function face(store) {
  const snap = store.latest?.snap, { dead, driver } = store.link;
  const state = dead ? "dead" : !snap || snap.state === "loading" ? "loading" : snap.state === "dead" ? "dead" : "running";
  return { version: snap?.config_version ?? 0, state, drives: !driver || driver === store.tab };
}

// Whether Python drew something else; before the first frame only a death is news.
function isOld(data, now, store) {
  if (now.drives !== data.drives) return true;
  if (!store.latest && now.state !== "dead") return false;
  if (now.state === "loading" && data.state === "running") return false; // other weights: the same process
  return now.state !== data.state || (now.state === "running" && now.version > data.version);
}

function watch(entry) {
  const store = globalThis[STORES]?.get(entry.data.live_url);
  if (!store) return false;
  let timer = 0, sentAt = -AGAIN_MS, sentFor = "";
  const compare = () => {
    timer = 0;
    const now = face(store);
    if (!isOld(entry.data, now, store)) return;
    const wanted = JSON.stringify(now), at = performance.now();
    if (wanted === sentFor && at - sentAt < AGAIN_MS) return;
    sentAt = at;
    sentFor = wanted;
    entry.send("sync");
  };
  const unsubscribe = store.subscribe(() => {
    if (!timer && isOld(entry.data, face(store), store)) timer = setTimeout(compare, SETTLE_MS);
  });
  entry.stop = () => { clearTimeout(timer); unsubscribe(); };
  return true;
}

export default function ({ parentElement, data, setTriggerValue }) {
  const send = (name) => setTriggerValue("command", { name, tab: tabId(), nonce: `${Date.now()}` });
  let entry = known.get(parentElement);
  if (entry) Object.assign(entry, { data, send });
  else {
    known.set(parentElement, (entry = { data, send, stop: () => {} }));
    if (data.tab !== tabId()) send("hello");
    if (!watch(entry)) {
      const timer = setInterval(() => { if (watch(entry)) clearInterval(timer); }, 200);
      entry.stop = () => clearInterval(timer);
    }
  }
  return () => { entry.stop(); known.delete(parentElement); };
}
