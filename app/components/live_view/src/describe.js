// Blocks and events in plain words.

import { CACHED, classOf, holdersOf, OWNED, PINNED, STATE_MASK } from "./decode.js";
import { bytes, significant } from "./format.js";

export function stateName(state) {
  const kind = state & STATE_MASK;
  return kind === OWNED ? "owned" : kind === CACHED ? "cached" : "free";
}

export function requestName(snap, id) {
  const request = snap.requests.find((r) => r.request_id === id);
  return request ? request.label || request.request_id : id;
}

// Facts of one cell that the frame itself carries, or null.
export function blockFacts(frame, tierName, cell) {
  const tier = frame.tiers.get(tierName);
  if (!tier || cell >= tier.num_cells) return null;
  const holders = tierName === "G1" ? holdersOf(frame, cell) : [];
  const pageClass = classOf(frame, tierName, cell);
  const size = frame.snap.block_size;
  const page = holders.length ? holders[0].page : -1;
  const last = holders.length ? Math.min((page + 1) * size, holders[0].request.num_tokens) - 1 : -1;
  return {
    state: tier.state[cell], name: stateName(tier.state[cell]), refs: tier.refs[cell],
    mass: tier.mass[cell], age: tier.age[cell], owner: tier.owner[cell],
    pinned: (tier.state[cell] & PINNED) !== 0, holders, page, pageClass,
    first: page * size, last,
  };
}

// One spoken line for a block, for the hover line and for screen readers.
export function blockLine(frame, tierName, cell, words) {
  const facts = blockFacts(frame, tierName, cell);
  if (!facts) return "";
  const parts = [words("block.line", { tier: tierName, cell, state: words(`state.${facts.name}`) })];
  if (facts.holders.length) {
    const names = facts.holders.map((x) => x.request.label || x.request.request_id);
    parts.push(words("block.line.tokens", { first: facts.first, last: facts.last }));
    parts.push(words.plural("block.line.requests", names.length, { names: names.slice(0, 4).join(", ") }));
  }
  if (facts.pageClass) parts.push(`${facts.pageClass.label}, ${bytes(facts.pageClass.page_bytes)}`);
  return parts.join(" · ");
}

// The sentence of an event: template `event.<kind>`, or `event.<kind>.<variant>` where one exists.
export function eventSentence(event, snap, words) {
  const values = { request: requestName(snap, event.request_id), step: event.step };
  for (const [name, value] of Object.entries(event.data ?? {})) values[name] = readable(name, value, snap);
  for (const variant of variants(event)) {
    const key = `event.${event.kind}.${variant}`;
    if (words.has(key)) return words(key, values);
  }
  const key = `event.${event.kind}`;
  return words.has(key) ? words(key, values) : words("event.other", { ...values, kind: event.kind });
}

// Which special wording fits, most telling first.
function variants(event) {
  const data = event.data ?? {}, found = [];
  if (event.kind === "evict") found.push(data.to_tier ? "to_tier" : "dropped", ...(data.for_request_id ? [] : ["quiet"]));
  if (event.kind === "evict" && data.to_tier && !data.for_request_id) found.unshift("to_tier_quiet");
  if (event.kind === "preempt") found.push(String(data.how ?? ""));
  if (event.kind === "admit") found.push(data.num_cached ? "hit" : "miss");
  if (event.kind === "engine") found.push(String(data.what ?? ""));
  if (Number(data.num_blocks) === 1) found.unshift("one");
  return found;
}

function readable(name, value, snap) {
  if (name.endsWith("request_id")) return requestName(snap, value);
  if (name.endsWith("_bytes")) return bytes(value);
  if (name === "changes" && value && typeof value === "object") {
    return Object.entries(value).map(([path, v]) => `${path} = ${v}`).join(", ");
  }
  return typeof value === "number" ? significant(value) : value === null ? "" : String(value);
}
