// Short histories of the numbers, for sparklines and before -> after.

const SECONDS = 60;

export class Series {
  constructor() {
    this.points = new Map(); // name -> [[time_s, value, samples], ...]
    this.after = new Map(); // the same, of samples since the last change alone
    this.marks = []; // [{time_s, label, version}]
    this.lastTime = -1;
    this.lastVersion = null;
  }

  // Takes the numbers of one snapshot; a pause adds no points, a restart clears.
  add(snap) {
    if (snap.time_s < this.lastTime) { this.points.clear(); this.after.clear(); this.marks = []; }
    this.addMark(snap);
    if (snap.time_s !== this.lastTime) {
      for (const [name, number] of Object.entries(snap.numbers)) {
        addPoint(this.points, name, snap.time_s, number.value, number.samples);
        addPoint(this.after, name, snap.time_s, number.after ?? null, number.after_samples);
      }
    }
    this.lastTime = snap.time_s;
  }

  // A new apply is a mark; one that was there before the first frame is not.
  addMark(snap) {
    const report = snap.last_apply;
    const version = report && !report.preview ? report.version : -1;
    if (this.lastVersion !== null && version > this.lastVersion) {
      const label = Object.keys(report.changes).join(", ");
      // The frame before this one is the last whose figures have no sample from after the change.
      this.marks.push({ time_s: snap.time_s, before_s: this.lastTime, label, version });
      this.after.clear();
      if (this.marks.length > 50) this.marks.shift();
    }
    this.lastVersion = version;
  }

  // Points of the 60 s up to `time`.
  window(name, time) {
    return (this.points.get(name) ?? []).filter((p) => p[0] >= time - SECONDS && p[0] <= time);
  }

  // Before and after of the last mark, ranges of 10 s each, or null while there are too few points:
  // `before` are figures from before it, `after` figures that count nothing from before it.
  change(name, now) {
    const mark = this.marks[this.marks.length - 1];
    if (!mark || now - mark.time_s > SECONDS) return null;
    const within = (list, end) => (list ?? []).filter((p) => p[0] <= end && p[0] >= end - 10);
    const before = within(this.points.get(name), mark.before_s), after = within(this.after.get(name), now);
    if (before.length < 2 || after.length < 2) return null;
    return { ...compare(before, after), mark };
  }
}

function addPoint(lists, name, time, value, samples) {
  if (value === null) return;
  let list = lists.get(name);
  if (!list) lists.set(name, (list = []));
  list.push([time, value, samples]);
  let stale = 0;
  while (stale < list.length && list[stale][0] < time - 2 * SECONDS) stale++;
  if (stale > 64) list.splice(0, stale);
}

// Medians, sample counts, and whether the ranges overlap.
function compare(before, after) {
  const a = before.map((p) => p[1]).sort((x, y) => x - y);
  const b = after.map((p) => p[1]).sort((x, y) => x - y);
  const undecided = a[0] <= b[b.length - 1] && b[0] <= a[a.length - 1];
  return {
    before: a[a.length >> 1], after: b[b.length >> 1], undecided,
    samplesBefore: before[before.length - 1][2] || before.length,
    samplesAfter: after[after.length - 1][2] || after.length,
  };
}
