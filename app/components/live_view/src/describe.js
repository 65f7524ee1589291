// Blocks and events in plain words.

import { CACHED, classOf, holdersOf, NO_OWNER, OWNED, PINNED, STATE_MASK, tokenBlockOf } from "./decode.js";
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
  const holders = tierName === "G1" ? holdersOf(frame, cell) : ownerOf(frame, tier.owner[cell]);
  const pageClass = classOf(frame, tierName, cell);
  const page = holders.length ? holders[0].page : -1;
  const [first, last] = page >= 0 ? tokensOf(frame, holders[0]) : [-1, -1];
  return {
    state: tier.state[cell], name: stateName(tier.state[cell]), refs: tier.refs[cell],
    mass: tier.mass[cell], age: tier.age[cell], owner: tier.owner[cell],
    pinned: (tier.state[cell] & PINNED) !== 0, holders, page, pageClass,
    first, last,
  };
}

// The request of an owner's slot, as holders are told; a tier tells no page.
function ownerOf(frame, slot) {
  const id = slot === NO_OWNER ? undefined : frame.snap.owner_labels[slot];
  const request = frame.snap.requests.find((r) => r.request_id === id);
  return request ? [{ request, page: -1 }] : [];
}

// First and last token of a holder's page; [-1, -1] where only Python knows which are left.
function tokensOf({ snap, blocks }, { request, page }) {
  const told = blocks ? undefined : request.page_tokens?.[page];
  if (told) return told;
  const packed = snap.settings["retention.level"] === "token" && snap.settings["retention.policy"] !== "none";
  if (blocks && packed) return [-1, -1];
  return [page * snap.block_size, Math.min((page + 1) * snap.block_size, request.num_tokens) - 1];
}

// One spoken line for a block, for the hover line and for screen readers; `several`: of all pages of
// its token block, where a square stands for them.
export function blockLine(frame, tierName, cell, words, several = 0) {
  const facts = blockFacts(frame, tierName, cell);
  if (!facts) return "";
  const whole = several ? tokenBlockOf(frame, tierName, cell) : null, state = words(`state.${facts.name}`);
  const parts = [whole ? words("square.line", { state, kept: whole.kept, of: whole.of })
    : words("block.line", { tier: tierName, cell, state })];
  if (facts.holders.length) {
    const names = facts.holders.map((x) => x.request.label || x.request.request_id);
    if (facts.first >= 0) parts.push(words("block.line.tokens", { first: facts.first, last: facts.last }));
    parts.push(words.plural("block.line.requests", names.length, { names: names.slice(0, 4).join(", ") }));
  }
  if (facts.pageClass) parts.push(formatLine(tierName, facts));
  return parts.filter(Boolean).join(" · ");
}

// Format and size of a cell; an entry of a lower tier is a row of all groups, whose size Python knows.
function formatLine(tierName, { name, pageClass }) {
  if (tierName === "G1") return `${pageClass.label}, ${bytes(pageClass.page_bytes)}`;
  return name === "free" ? "" : pageClass.label;
}

// The sentence of an event: the most telling of `event.<kind>.<variant>[.one]` that has a text.
export function eventSentence(event, snap, words) {
  const values = { request: requestName(snap, event.request_id), step: event.step, kind: event.kind };
  for (const [name, value] of Object.entries(event.data ?? {})) {
    values[name] = readable(name, value, snap, words);
  }
  const single = Number(event.data?.num_blocks) === 1;
  for (const variant of [...variants(event), ""]) {
    const key = `event.${event.kind}${variant ? `.${variant}` : ""}`;
    if (single && words.has(`${key}.one`)) return words(`${key}.one`, values);
    if (words.has(key)) return words(key, values);
  }
  return words("event.other", values);
}

// Which special wordings fit, most telling first.
function variants(event) {
  const data = event.data ?? {};
  if (event.kind === "evict") {
    if (data.to_tier) return data.for_request_id ? ["to_tier"] : ["to_tier_quiet"];
    return data.for_request_id ? ["dropped"] : ["quiet"];
  }
  if (event.kind === "preempt") return [String(data.how ?? "")];
  if (event.kind === "admit") return [data.num_cached ? "hit" : "miss"];
  if (event.kind === "engine") return [String(data.what ?? "")];
  return [];
}

// Values of an event as people read them: names for ids, tiers and reasons, units for bytes.
function readable(name, value, snap, words) {
  if (name.endsWith("request_id")) return requestName(snap, value);
  if (name.endsWith("_bytes")) return bytes(value);
  if (name.endsWith("tier")) return mediumName(snap, value);
  if (name === "reason" && words.has(`reason.${value}`)) return words(`reason.${value}`);
  if (name === "changes" && value && typeof value === "object") {
    return Object.entries(value).map(([path, v]) => `${path} = ${v}`).join(", ");
  }
  return typeof value === "number" ? significant(value) : value === null ? "" : String(value);
}

// What went wrong in a tier, in words.
export function faultName(reason, words) { return words.has(`reason.${reason}`) ? words(`reason.${reason}`) : reason; }

// "DRAM" for G2, "disk" for G3, "HBM" for G1 whatever stands in for it.
function mediumName(snap, name) {
  const tier = snap.tiers.find((t) => t.name === name);
  return tier ? tier.medium.replace(/\s*\(.*\)$/, "") : name;
}

// A state's detail ("fetch num_bytes=1 total_bytes=2") as a sentence; other text stays as it is.
export function stateDetail(snap, words) {
  const [kind = "", ...pairs] = (snap.state_detail ?? "").split(" ");
  if (!words.has(`state.detail.${kind}`)) return snap.state_detail ?? "";
  const values = { model: snap.model_name };
  for (const pair of pairs) {
    const [name, value] = pair.split("=");
    values[name] = name.endsWith("_bytes") ? bytes(Number(value)) : value;
  }
  return words(`state.detail.${kind}`, values);
}
