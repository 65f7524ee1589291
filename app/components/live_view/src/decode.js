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
  const left = (buffer.byteLength - at) >> 2, { groups, requests } = snap;
  const entries = groups ? requests.reduce((sum, r) => sum + r.num_pages, 0) : left;
  const tables = new Int32Array(buffer, at, entries);
  const blocks = groups ? blocksOf(snap, buffer, at + 4 * entries) : null;
  return { snap, tiers, tables, blocks, pageStart: pageStarts(requests), buffer };
}

// Which pages of G1 are one token block, where layers or heads have pages of their own.
function blocksOf({ groups, grid, requests }, buffer, at) {
  const array = (count) => {
    const found = new Int32Array(buffer, at, count);
    at += 4 * count;
    return found;
  };
  const parts = array(grid[0].num_cells), numbers = array(groups.num_token_blocks);
  const of = new Map(requests.map((r, i) => [r.request_id, array(groups.counts[i])]));
  const columns = groups.num_columns;
  return { rows: groups.rows, columns, numGroups: groups.rows.length * columns, parts, numbers, of };
}

// Pages of each token block in the order of groups: those of `b` are cells[start[b]] on; once a frame.
export function membersOf(frame) {
  const { blocks } = frame, { parts, numGroups } = blocks;
  if (blocks.members) return blocks.members;
  const start = new Int32Array(blocks.numbers.length + 1);
  const used = Array.from(parts.keys()).filter((cell) => parts[cell] >= 0).sort((a, b) => parts[a] - parts[b]);
  for (const cell of used) start[Math.floor(parts[cell] / numGroups) + 1]++;
  for (let i = 1; i < start.length; i++) start[i] += start[i - 1];
  return (blocks.members = { start, cells: Int32Array.from(used) });
}

// The token block of a page of G1: its number in its request, how many pages it has, which one this is.
export function tokenBlockOf(frame, tierName, cell) {
  const { blocks } = frame, part = blocks && tierName === "G1" ? blocks.parts[cell] : -1;
  if (part === undefined || part < 0) return null;
  const block = Math.floor(part / blocks.numGroups), { start, cells } = membersOf(frame);
  const pages = new Map();
  for (let i = start[block]; i < start[block + 1]; i++) pages.set(blocks.parts[cells[i]] % blocks.numGroups, cells[i]);
  return { block, number: blocks.numbers[block], pages, group: part % blocks.numGroups, kept: pages.size, of: blocks.numGroups };
}

// [page class, number of cells] in order: a lower tier keeps entries of several classes side by side.
export function classRuns(tier) { return tier.cell_classes?.length ? tier.cell_classes : tier.slabs; }

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

// All pages of one request in G1, of every group.
export function pagesOf(frame, request) {
  const { blocks } = frame;
  if (!blocks) return tableOf(frame, request);
  const { start, cells } = membersOf(frame), found = [];
  for (const block of blocks.of.get(request.request_id) ?? []) found.push(...cells.subarray(start[block], start[block + 1]));
  return found;
}

// The block table of one request: i32 cell indices into tier G1, in logical order.
export function tableOf(frame, request) {
  const at = frame.pageStart.get(request.request_id) ?? 0;
  return frame.tables.subarray(at, at + request.num_pages);
}

// Requests whose tables hold `cell` of G1: [{request, page}], in the order of the list.
export function holdersOf(frame, cell) {
  const found = [], { blocks } = frame;
  const block = blocks ? Math.floor(blocks.parts[cell] / blocks.numGroups) : -1;
  for (const request of frame.snap.requests) {
    if (blocks) {
      const held = block >= 0 && blocks.of.get(request.request_id)?.includes(block);
      if (held) found.push({ request, page: blocks.numbers[block] });
      continue;
    }
    const page = tableOf(frame, request).indexOf(cell);
    if (page >= 0) found.push({ request, page });
  }
  return found;
}

// The page class of one cell, or null.
export function classOf(frame, tierName, cell) {
  const tier = frame.tiers.get(tierName);
  let first = 0;
  for (const [index, count] of tier ? classRuns(tier) : []) {
    if (cell < first + count) return frame.snap.classes[index] ?? null;
    first += count;
  }
  return null;
}
