// Small DOM helpers: text only ever enters through textContent, nodes are reused, never replaced.

export function h(tag, cls, ...children) {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  for (const child of children) if (child !== null && child !== undefined) node.append(child);
  return node;
}

export function attrs(node, values) {
  for (const [name, value] of Object.entries(values)) setAttr(node, name, value);
  return node;
}

export function setAttr(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else {
    const text = value === true ? "" : String(value);
    if (node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
}

export function setText(node, text) {
  const value = String(text);
  const first = node.firstChild;
  if (first && first.nodeType === 3 && !first.nextSibling) {
    if (first.data !== value) first.data = value;
  } else if (first || value) node.textContent = value;
}

export function setClass(node, name, on) {
  if (node.classList.contains(name) !== !!on) node.classList.toggle(name, !!on);
}

// Shows of a box only what lies between two shares of its width: no box moves or changes size.
export function setSpan(node, from, to) {
  const clip = `inset(0 ${(100 * (1 - to)).toFixed(2)}% 0 ${(100 * from).toFixed(2)}%)`;
  if (node.kvwClip !== clip) node.style.clipPath = node.kvwClip = clip;
}

export function show(node, on) { if (node.hidden === !!on) node.hidden = !on; }

const SVG = "http://www.w3.org/2000/svg";

// A 16 x 16 drawing from one path; it takes the text's colour.
export function icon(path) {
  const node = document.createElementNS(SVG, "svg"), line = document.createElementNS(SVG, "path");
  attrs(node, { viewBox: "0 0 16 16", width: "16", height: "16", "aria-hidden": "true", class: "sign" });
  attrs(line, { d: path });
  node.append(line);
  return node;
}

export function button(cls, label, onClick) {
  const node = h("button", cls);
  node.type = "button";
  if (label) setText(node, label);
  node.addEventListener("click", onClick);
  return node;
}

// Keeps one child a key: makes missing ones, drops stale ones, moves only what is out of order.
export function keyed(parent, items, keyOf, make, update) {
  const known = (parent.kvwKeys ??= new Map());
  const seen = new Set();
  let before = null;
  for (const item of items) {
    const key = keyOf(item);
    seen.add(key);
    let node = known.get(key);
    if (!node) known.set(key, (node = make(item)));
    const place = before ? before.nextSibling : parent.firstChild;
    if (place !== node) parent.insertBefore(node, place);
    update(node, item);
    before = node;
  }
  for (const [key, node] of known) {
    if (!seen.has(key)) { node.remove(); known.delete(key); }
  }
}

// At most one call of `fn` a display frame, and at most one each `gapMs`.
export function paced(fn, gapMs = 0) {
  let last = -1e9, waiting = 0;
  const run = () => { waiting = 0; last = performance.now(); fn(); };
  const call = () => {
    if (waiting) return;
    const wait = last + gapMs - performance.now();
    waiting = wait > 8 ? setTimeout(() => { waiting = requestAnimationFrame(run); }, wait)
      : requestAnimationFrame(run);
  };
  call.now = run;
  return call;
}
