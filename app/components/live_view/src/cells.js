// What each cell looks like: one u32 colour and one u32 of marks, by lens, filter and theme.

import { CACHED, EVICTED, FREE, MOVING, NO_OWNER, OWNED, pagesOf, PINNED, SHARED, STATE_MASK } from "./decode.js";
import { formatPlane } from "./squares.js";
import { mix, ownerColour, pack } from "./theme.js";

export const LENSES = ["owner", "tier", "format", "refs", "mass", "age"];

// Bits of a cell's mark: its state in the low three, then flags as in the frame, then these.
export const DIMMED = 256;
export const MISSING_SHIFT = 9; // above it: of a token block, how much is not kept, 0 to 127
const KEPT = SHARED | PINNED | EVICTED | MOVING;

// The byte each lens shows for every cell of a tier.
function lensPlane(lens, tier) {
  if (lens === "owner") return tier.owner;
  if (lens === "refs") return tier.refs;
  if (lens === "mass") return tier.mass;
  if (lens === "age") return tier.age;
  return lens === "format" ? formatPlane(tier) : new Uint8Array(tier.num_cells);
}

// Cells of a request in a tier as the grid draws it: its pages, or its token blocks.
function cellsOf(frame, tier, request) {
  if (!tier.placeOfBlock) return pagesOf(frame, request);
  return Array.from(frame.blocks.of.get(request.request_id) ?? [], (block) => tier.placeOfBlock[block]);
}

// Colour of one lens value of an owned cell.
export function lensColour(theme, lens, value, tierName) {
  if (lens === "owner") return ownerColour(theme, value);
  if (lens === "format") return theme.owners[(value + 1) % 7];
  if (lens === "tier") return tierColour(theme, tierName);
  if (lens === "refs") return theme.ramp[Math.min(255, value * 40)];
  if (lens === "age") return theme.ramp[255 - value];
  return theme.ramp[value];
}

export function tierColour(theme, name) {
  const share = { G1: 0.62, G2: 0.36, G3: 0.16, "G3.5": 0.1, G4: 0.05 }[name] ?? 0.4;
  return theme.ramp[Math.round(255 * share)];
}

// [3 states x 256 values] -> u32; a second table for what the filter dims.
function lookupTable(theme, lens, tierName) {
  const clear = new Uint32Array(768), dim = new Uint32Array(768);
  for (let value = 0; value < 256; value++) {
    const full = lensColour(theme, lens, value, tierName);
    const cached = mix(full, theme.bg, theme.dark ? 0.5 : 0.55);
    [theme.faint, cached, full].forEach((colour, state) => {
      clear[state * 256 + value] = pack(colour);
      dim[state * 256 + value] = pack(mix(colour, theme.bg, state === FREE ? 0.4 : 0.82));
    });
  }
  return { clear, dim };
}

// Cells of the sequence a filter names, as a 0/1 mask, or null.
function sequenceMask(frame, tier, filter) {
  if (!filter || filter.kind !== "request") return null;
  const request = frame.snap.requests.find((r) => r.request_id === filter.value);
  if (tier.name !== "G1") return tier.owner.map((slot) => (request && slot === request.owner && slot !== NO_OWNER ? 1 : 0));
  const mask = new Uint8Array(tier.num_cells);
  if (request) for (const cell of cellsOf(frame, tier, request)) if (cell >= 0) mask[cell] = 1;
  return mask;
}

// Whether one cell passes the legend's filter.
function passes(filter, state, owner, value) {
  if (filter.kind === "state") {
    if (filter.value === "shared") return (state & SHARED) !== 0;
    if (filter.value === "pinned") return (state & PINNED) !== 0;
    return (state & STATE_MASK) === { free: FREE, cached: CACHED, owned: OWNED }[filter.value];
  }
  if (filter.kind === "owner") return owner === filter.value;
  if (filter.kind === "format") return value === filter.value;
  return true;
}

// Paint of one tier: {colours: u32 [n], marks: u16 [n]}.
export class CellPaint {
  constructor() {
    this.colours = new Uint32Array(0);
    this.marks = new Uint16Array(0);
    this.tableKey = "";
  }

  update(frame, tier, view, theme) {
    const n = tier.num_cells;
    if (this.colours.length !== n) {
      this.colours = new Uint32Array(n);
      this.marks = new Uint16Array(n);
    }
    if (this.theme !== theme || this.lens !== view.lens) {
      this.table = lookupTable(theme, view.lens, tier.name);
      this.theme = theme;
      this.lens = view.lens;
    }
    const plane = lensPlane(view.lens, tier);
    const mask = sequenceMask(frame, tier, view.filter);
    this.fill(tier, plane, view.filter, mask);
  }

  fill(tier, plane, filter, mask) {
    const { clear, dim } = this.table;
    const { state, owner, missing } = tier;
    if (!mask && !filter) return this.fillAll(tier, plane, clear);
    for (let i = 0; i < state.length; i++) {
      const s = state[i], kind = s & STATE_MASK;
      const at = Math.min(kind, 2) * 256 + plane[i];
      const out = mask ? !mask[i] : filter ? !passes(filter, s, owner[i], plane[i]) : false;
      this.colours[i] = out ? dim[at] : clear[at];
      this.marks[i] = kind | (s & KEPT) | (out ? DIMMED : 0) | (missing ? missing[i] << MISSING_SHIFT : 0);
    }
  }

  // The common case, without a filter: one table look-up a cell.
  fillAll({ state, missing }, plane, table) {
    const { colours, marks } = this;
    for (let i = 0; i < state.length; i++) {
      const s = state[i];
      colours[i] = table[((s & STATE_MASK) << 8) | plane[i]];
      marks[i] = s & (STATE_MASK | KEPT);
      if (missing) marks[i] |= missing[i] << MISSING_SHIFT;
    }
  }
}

// Cells of G1 in order of sequences: first holder wins, then cached, then free.
export function groupsBySequence(frame, tier, words) {
  const taken = new Uint8Array(tier.num_cells);
  const groups = [];
  for (const request of frame.snap.requests) {
    if (!request.num_pages) continue;
    const cells = [];
    for (const cell of cellsOf(frame, tier, request)) {
      if (cell >= 0 && !taken[cell]) { taken[cell] = 1; cells.push(cell); }
    }
    groups.push({ label: request.label || request.request_id, owner: request.owner, cells });
  }
  const rest = { [CACHED]: [], [OWNED]: [], [FREE]: [] };
  for (let i = 0; i < taken.length; i++) if (!taken[i]) rest[tier.state[i] & STATE_MASK]?.push(i);
  groups.push({ label: words("legend.cached"), owner: 255, cells: [...rest[OWNED], ...rest[CACHED]] });
  groups.push({ label: words("legend.free"), owner: 255, cells: rest[FREE] });
  return groups;
}
