// Where each cell lies. Area is bytes: a slab keeps its place, its squares split or join.
// All lengths are whole device pixels; rects are [x, y, w, h] a cell in one Int32Array.

// Layout by address. `tier`: {slabs, slab_bytes}; `classes`: page classes, for bytes a page.
// `columns` of slabs is kept from the layout before, so that a format change moves none (0: choose).
export function layoutByAddress(tier, classes, width, height, dpr, kept = 0) {
  const slabs = tier.slabs;
  const rects = new Int32Array(tier.num_cells * 4);
  const frames = [];
  if (!slabs.length || width < 2 || height < 2) return { rects, frames, size: 0, columns: 0 };
  const columns = kept || slabColumns(tier, classes, width, height);
  const rows = Math.ceil(slabs.length / columns);
  const tall = height / rows;
  const gap = slabs.length === 1 ? 0 : width / columns >= 24 * dpr && tall >= 8 * dpr ? 2 * dpr : 0;
  let first = 0, smallest = Infinity;
  slabs.forEach(([index, count], at) => {
    const column = at % columns, row = Math.floor(at / columns);
    const box = inset(
      Math.round((column * width) / columns), Math.round(row * tall),
      Math.round(((column + 1) * width) / columns), Math.round((row + 1) * tall), gap,
    );
    frames.push([...box, index]);
    if (count) {
      const share = shareUsed(tier, classes[index], count);
      smallest = Math.min(smallest, fillSlab(rects, first, count, box, share, dpr));
    }
    first += count;
  });
  return { rects, frames, size: Number.isFinite(smallest) ? smallest : 0, columns };
}

function inset(x0, y0, x1, y1, gap) {
  const g = Math.floor(gap);
  return [x0, y0, Math.max(1, x1 - x0 - g), Math.max(1, y1 - y0 - g)];
}

// Columns of slabs that make the cells of the first assigned slab most nearly square.
function slabColumns(tier, classes, width, height) {
  const count = tier.slabs.length;
  const [index, cells] = tier.slabs.find((slab) => slab[1] > 0) ?? [-1, 1];
  const share = shareUsed(tier, classes[index], cells);
  let best = 1, bestCost = Infinity;
  for (let columns = 1; columns <= count; columns++) {
    const rows = Math.ceil(count / columns);
    const inner = cellGrid(cells, (width / columns) * share, height / rows);
    const cost = inner.cost + 2 * ((columns * rows - count) / count);
    if (cost < bestCost) { best = columns; bestCost = cost; }
  }
  return best;
}

// Share of the slab's bytes that its pages take; the rest is slab waste and stays blank.
function shareUsed(tier, pageClass, count) {
  if (!pageClass || !tier.slab_bytes) return 1;
  return Math.min(1, (pageClass.page_bytes * count) / tier.slab_bytes);
}

// Fills one slab row by row; returns the smaller side of its cells.
function fillSlab(rects, first, count, [x, y, w, h], share, dpr) {
  const { columns, rows } = cellGrid(count, w * share, h);
  const wide = columns * rows === count ? w * share : w;
  const cellW = wide / columns, cellH = h / rows;
  const gap = Math.min(cellW, cellH) >= 6 * dpr ? Math.max(1, Math.round(dpr)) : 0;
  for (let i = 0; i < count; i++) {
    const column = i % columns, row = Math.floor(i / columns);
    const x0 = x + Math.round(column * cellW), y0 = y + Math.round(row * cellH);
    const at = (first + i) * 4;
    rects[at] = x0;
    rects[at + 1] = y0;
    rects[at + 2] = Math.max(1, x + Math.round((column + 1) * cellW) - x0 - gap);
    rects[at + 3] = Math.max(1, y + Math.round((row + 1) * cellH) - y0 - gap);
  }
  return Math.min(cellW, cellH);
}

// The most nearly square cells that leave few places empty.
function cellGrid(count, w, h) {
  const ideal = Math.sqrt((count * w) / h);
  let best = { columns: count, rows: 1, cost: Infinity };
  const low = Math.max(1, Math.floor(ideal / 2)), high = Math.min(count, Math.ceil(ideal * 2) + 1);
  for (let columns = low; columns <= high; columns++) {
    const rows = Math.ceil(count / columns);
    const shape = Math.abs(Math.log((w / columns) / (h / rows)));
    const cost = shape + 3 * ((columns * rows - count) / count);
    if (cost < best.cost) best = { columns, rows, cost };
  }
  return best;
}

export const LABEL_WIDTH = 44;

// Layout by sequence: `groups` = [{label, owner, cells}], one after the other in equal squares.
export function layoutBySequence(groups, numCells, width, height, dpr) {
  const rects = new Int32Array(numCells * 4);
  const shown = groups.filter((g) => g.cells.length);
  const gutter = Math.round(LABEL_WIDTH * dpr);
  const size = largestSquare(shown, width - gutter, height, dpr);
  const perRow = Math.max(1, Math.floor((width - gutter) / size));
  const gap = size >= 6 * dpr ? Math.max(1, Math.round(dpr)) : 0;
  const labels = [];
  let y = 0;
  for (const group of shown) {
    labels.push({ text: group.label, owner: group.owner, y: Math.round(y), h: size });
    group.cells.forEach((cell, i) => {
      const at = cell * 4;
      rects[at] = gutter + Math.round((i % perRow) * size);
      rects[at + 1] = Math.round(y + Math.floor(i / perRow) * size);
      rects[at + 2] = Math.max(1, Math.floor(size) - gap);
      rects[at + 3] = Math.max(1, Math.floor(size) - gap);
    });
    y += Math.ceil(group.cells.length / perRow) * size + spaceAfter(size, dpr);
  }
  return { rects, frames: [], size, labels };
}

function spaceAfter(size, dpr) { return size >= 4 * dpr ? 3 * dpr : 1; }

function largestSquare(groups, width, height, dpr) {
  let low = 1, high = 22 * dpr;
  const fits = (size) => {
    const perRow = Math.max(1, Math.floor(width / size));
    let y = 0;
    for (const g of groups) y += Math.ceil(g.cells.length / perRow) * size + spaceAfter(size, dpr);
    return y <= height;
  };
  for (let i = 0; i < 12; i++) {
    const mid = (low + high) / 2;
    if (fits(mid)) low = mid; else high = mid;
  }
  return low >= 4 ? Math.floor(low) : low;
}

// Which cell each pixel belongs to (-1: none); answers clicks and paints small cells.
export function pixelMap(rects, width, height) {
  const map = new Int32Array(width * height).fill(-1);
  for (let cell = 0, at = 0; at < rects.length; cell++, at += 4) {
    const x0 = rects[at], y0 = rects[at + 1];
    const x1 = Math.min(width, x0 + rects[at + 2]), y1 = Math.min(height, y0 + rects[at + 3]);
    for (let y = y0; y < y1; y++) map.fill(cell, y * width + x0, y * width + x1);
  }
  return map;
}
