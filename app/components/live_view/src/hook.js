// Read-only counters for browser tests and `workbench bench ui`, as `window.__kvw`.

import { membersOf, PLANES } from "./decode.js";
import { deepFocus } from "./keyboard.js";

export function installHook(store, stage) {
  const grid = (tier) => stage.grids?.find((g) => g.name === tier);
  window.__kvw = {
    owner: stage,
    get frames() { return store.numFrames; },
    get lastSeq() { return store.shown ? store.shown.snap.seq : -1; },
    get badFrame() { return store.badFrame; },
    get selected() { return store.view.selected; },
    get view() { return { ...store.view }; },
    focused: deepFocus,
    get link() { return { ...store.link }; },
    get ring() { return { length: store.ring.length, bytes: store.ring.bytes, spanMs: store.ring.spanMs }; },
    get snapshot() { return store.shown ? store.shown.snap : null; },
    readCells(tier) {
      const cells = store.shown?.tiers.get(tier);
      return cells ? Object.fromEntries(PLANES.map((p) => [p, Array.from(cells[p])])) : null;
    },
    readTables() { return store.shown ? Array.from(store.shown.tables) : []; },
    cellRect(tier, cell) { return grid(tier)?.cellRect(cell) ?? null; },
    cellSize(tier) { const s = grid(tier).scene; return s.layout.size / s.dpr; },
    squares() {
      const tier = grid("G1")?.tier(), frame = store.shown;
      if (!tier?.blockAt) return null;
      return Array.from(tier.blockAt, (block, place) => block < 0 ? null
        : { place, block, ...spanOf(frame, block), missing: tier.missing[place] });
    },
    painted(tier) { return Array.from(grid(tier).paint.colours); },
  };
}

// The pages of one token block.
function spanOf(frame, block) {
  const { start, cells } = membersOf(frame);
  return { cells: Array.from(cells.subarray(start[block], start[block + 1])) };
}

export function unhook(stage) {
  if (window.__kvw && window.__kvw.owner === stage) delete window.__kvw;
}
