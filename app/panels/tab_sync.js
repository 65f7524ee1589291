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
  const version = snap?.config_version ?? 0;
  const rest = `${link.driver} ${state === "idle" ? "running" : state}`;
  return { version, rest, text: `${version} ${rest}` };
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
    let timer = 0;
    // A little later: by then the run that made the change has told its version.
    const compare = () => {
      timer = 0;
      const now = face(store), told = entry.told;
      entry.told = now;
      if (told === null || now.text === told.text) return;
      if (now.rest !== told.rest || now.version !== entry.data.version) entry.send("sync");
    };
    const unsubscribe = store.subscribe(() => {
      if (!timer && face(store).text !== entry.told?.text) timer = setTimeout(compare, 250);
    });
    entry.stop = () => { clearTimeout(timer); unsubscribe(); known.delete(parentElement); };
    return true;
  };
  if (!watch()) {
    const timer = setInterval(() => { if (watch()) clearInterval(timer); }, 200);
    entry.stop = () => { clearInterval(timer); known.delete(parentElement); };
  }
  return () => entry.stop();
}
