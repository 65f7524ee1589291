// Pages of groups `layer` and `head` by token block: one square for all of them until it is opened.

import { classRuns, EVICTED, FREE, HASHED, membersOf, MOVING, OWNED, PINNED, SHARED, STATE_MASK } from "./decode.js";

const FLAGS = SHARED | PINNED | HASHED | EVICTED | MOVING;

// Gives each token block a place in the grid that it keeps from frame to frame.
export class Squares {
  constructor() {
    this.placeOf = new Int32Array(0); // of each page, in the frame before
    this.key = "";
    this.frame = null;
  }

  // A tier as the grid draws it, whose cells are token blocks; `missing` is 0 (whole) to 127.
  update(frame, tier) {
    if (frame === this.frame) return this.tier;
    const { blocks } = frame, count = blocks.numbers.length;
    const key = `${tier.num_cells}|${blocks.numGroups}`;
    if (key !== this.key) { this.key = key; this.placeOf = new Int32Array(tier.num_cells).fill(-1); }
    const base = Math.ceil(tier.num_cells / blocks.numGroups);
    let places = base; // half-kept token blocks may be more than there is room for whole ones
    while (places < count) places += Math.max(1, Math.ceil(base / 8));
    const { blockAt, placeOfBlock } = this.place(frame, places);
    this.frame = frame;
    this.tier = gather(frame, tier, places, blockAt, placeOfBlock);
    return this.tier;
  }

  place(frame, places) {
    const { start, cells } = membersOf(frame), { numGroups } = frame.blocks, count = start.length - 1;
    const blockAt = new Int32Array(places).fill(-1), placeOfBlock = new Int32Array(count).fill(-1);
    const take = (block, place) => { blockAt[place] = block; placeOfBlock[block] = place; };
    for (let block = 0; block < count; block++) {
      for (let i = start[block]; i < start[block + 1]; i++) {
        const old = this.placeOf[cells[i]];
        if (old >= 0 && old < places && blockAt[old] < 0) { take(block, old); break; }
      }
    }
    let next = 0;
    for (let block = 0; block < count; block++) {
      if (placeOfBlock[block] >= 0) continue;
      const wish = Math.floor(cells[start[block]] / numGroups);
      if (wish < places && blockAt[wish] < 0) { take(block, wish); continue; }
      while (blockAt[next] >= 0) next++;
      take(block, next);
    }
    this.placeOf.fill(-1);
    for (let block = 0; block < count; block++) {
      for (let i = start[block]; i < start[block + 1]; i++) this.placeOf[cells[i]] = placeOfBlock[block];
    }
    return { blockAt, placeOfBlock };
  }
}

// What all pages of a token block are together: in use if one is, shared if one is, the oldest read.
function gather(frame, tier, places, blockAt, placeOfBlock) {
  const { start, cells } = membersOf(frame), { numGroups } = frame.blocks, formats = formatPlane(tier);
  const plane = () => new Uint8Array(places);
  const out = {
    name: tier.name, num_cells: places, slab_bytes: 0, slabs: [[-2, places]], state: plane(), owner: plane().fill(255),
    refs: plane(), mass: plane(), age: plane(), missing: plane(), format: plane(), blockAt, placeOfBlock,
    pages: tier, free: freeCells(tier),
  };
  for (let place = 0; place < places; place++) {
    const block = blockAt[place];
    if (block < 0) continue;
    let kind = FREE, flags = 0, age = 255;
    for (let i = start[block]; i < start[block + 1]; i++) {
      const cell = cells[i], state = tier.state[cell];
      kind = Math.max(kind, state & STATE_MASK);
      flags |= state & FLAGS;
      out.refs[place] = Math.max(out.refs[place], tier.refs[cell]);
      out.mass[place] = Math.max(out.mass[place], tier.mass[cell]);
      age = Math.min(age, tier.age[cell]);
      if (tier.owner[cell] !== 255) out.owner[place] = tier.owner[cell];
    }
    out.state[place] = Math.min(kind, OWNED) | flags;
    out.age[place] = age;
    out.format[place] = formats[cells[start[block]]];
    const kept = start[block + 1] - start[block];
    out.missing[place] = kept < numGroups ? Math.max(1, Math.round(127 * (1 - kept / numGroups))) : 0;
  }
  return out;
}

function freeCells(tier) {
  const found = [];
  for (let i = 0; i < tier.num_cells; i++) if ((tier.state[i] & STATE_MASK) === FREE) found.push(i);
  return found;
}

// The format (index of the page class) of each cell, from the slabs.
export function formatPlane(tier) {
  if (tier.format) return tier.format;
  const plane = new Uint8Array(tier.num_cells);
  let first = 0;
  for (const [index, count] of classRuns(tier)) {
    plane.fill(Math.max(0, index), first, first + count);
    first += count;
  }
  return plane;
}

// The page that stands for a place: the first of its token block; for a free place some free page.
export function cellOfPlace(frame, tier, place) {
  const block = tier.blockAt[place] ?? -1;
  if (block >= 0) return membersOf(frame).cells[membersOf(frame).start[block]];
  const nth = freeRank(tier, place) * frame.blocks.numGroups;
  return tier.free.length ? tier.free[Math.min(nth, tier.free.length - 1)] : -1;
}

// Where a page lies in the grid of token blocks, -1 if nowhere.
export function placeOfCell(frame, tier, cell) {
  const block = Math.floor(frame.blocks.parts[cell] / frame.blocks.numGroups);
  if (frame.blocks.parts[cell] >= 0) return tier.placeOfBlock[block];
  const rank = Math.floor(tier.free.indexOf(cell) / frame.blocks.numGroups);
  let seen = -1;
  return tier.blockAt.findIndex((at) => at < 0 && ++seen === rank);
}

function freeRank(tier, place) {
  let rank = 0;
  for (let i = 0; i < place; i++) rank += tier.blockAt[i] < 0 ? 1 : 0;
  return rank;
}
