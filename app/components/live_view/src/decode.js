// Reads one binary frame of workbench/snapshot.py ("KVF1") without copying its planes.

export const PLANES = ["state", "owner", "refs", "mass", "age"];
export const FREE = 0, CACHED = 1, OWNED = 2, STATE_MASK = 7;
export const SHARED = 8, PINNED = 16, HASHED = 32, EVICTED = 64, MOVING = 128;
export const NO_OWNER = 255;

const utf8 = new TextDecoder();

// ArrayBuffer -> {snap, tiers, tables, pageStart, bytes}; throws on anything that is not a frame.
export function decodeFrame(buffer) {
  const head = new Uint8Array(buffer, 0, Math.min(4, buffer.byteLength));
  if (utf8.decode(head) !== "KVF1") throw new Error("not a frame: the first bytes must be KVF1");
  const length = new DataView(buffer).getUint32(4, true);
  const snap = JSON.parse(utf8.decode(new Uint8Array(buffer, 8, length)));
  let at = 8 + length;
  const tiers = new Map();
  for (const grid of snap.grid) {
    const tier = { ...grid, slabs: slabsOf(grid) };
    for (const plane of PLANES) {
      tier[plane] = new Uint8Array(buffer, at, grid.num_cells);
      at += grid.num_cells;
    }
    tiers.set(grid.name, tier);
  }
  at += -at & 3;
  const tables = new Int32Array(buffer, at, (buffer.byteLength - at) >> 2);
  return { snap, tiers, tables, pageStart: pageStarts(snap.requests), buffer };
}

// A tier without slabs is one slab that holds all its cells.
function slabsOf(grid) {
  return grid.slabs.length ? grid.slabs : grid.num_cells ? [[0, grid.num_cells]] : [];
}

// Where each request's table starts in the concatenated tables.
function pageStarts(requests) {
  const starts = new Map();
  let at = 0;
  for (const request of requests) {
    starts.set(request.request_id, at);
    at += request.num_pages;
  }
  return starts;
}

// The block table of one request: i32 cell indices into tier G1, in logical order.
export function tableOf(frame, request) {
  const at = frame.pageStart.get(request.request_id) ?? 0;
  return frame.tables.subarray(at, at + request.num_pages);
}

// Requests whose tables hold `cell` of G1: [{request, page}], in the order of the list.
export function holdersOf(frame, cell) {
  const found = [];
  for (const request of frame.snap.requests) {
    const page = tableOf(frame, request).indexOf(cell);
    if (page >= 0) found.push({ request, page });
  }
  return found;
}

// The page class of one cell, or null.
export function classOf(frame, tierName, cell) {
  const tier = frame.tiers.get(tierName);
  let first = 0;
  for (const [index, count] of tier ? tier.slabs : []) {
    if (cell < first + count) return frame.snap.classes[index] ?? null;
    first += count;
  }
  return null;
}
