// Short histories of the numbers, for sparklines and before -> after.

const SECONDS = 60;

export class Series {
  constructor() {
    this.points = new Map(); // name -> [[time_s, value, samples], ...]
    this.marks = []; // [{time_s, label, version}]
    this.lastTime = -1;
    this.lastVersion = null;
  }

  // Takes the numbers of one snapshot; a pause adds no points, a restart clears.
  add(snap) {
    if (snap.time_s < this.lastTime) { this.points.clear(); this.marks = []; }
    if (snap.time_s !== this.lastTime) {
      for (const [name, number] of Object.entries(snap.numbers)) this.addPoint(snap, name, number);
    }
    this.lastTime = snap.time_s;
    this.addMark(snap);
  }

  // A new apply is a mark; one that was there before the first frame is not.
  addMark(snap) {
    const report = snap.last_apply;
    const version = report && !report.preview ? report.version : -1;
    if (this.lastVersion !== null && version > this.lastVersion) {
      const label = Object.keys(report.changes).join(", ");
      this.marks.push({ time_s: snap.time_s, label, version });
      if (this.marks.length > 50) this.marks.shift();
    }
    this.lastVersion = version;
  }

  addPoint(snap, name, number) {
    if (number.value === null) return;
    let list = this.points.get(name);
    if (!list) this.points.set(name, (list = []));
    list.push([snap.time_s, number.value, number.samples]);
    let stale = 0;
    while (stale < list.length && list[stale][0] < snap.time_s - 2 * SECONDS) stale++;
    if (stale > 64) list.splice(0, stale);
  }

  // Points of the 60 s up to `time`.
  window(name, time) {
    return (this.points.get(name) ?? []).filter((p) => p[0] >= time - SECONDS && p[0] <= time);
  }

  // Before and after of the last mark: ranges of 10 s either side, or null while too few points.
  change(name, now) {
    const mark = this.marks[this.marks.length - 1];
    if (!mark || now - mark.time_s > SECONDS) return null;
    const list = this.points.get(name) ?? [];
    const before = list.filter((p) => p[0] < mark.time_s && p[0] >= mark.time_s - 10);
    const after = list.filter((p) => p[0] > mark.time_s + 0.5 && p[0] <= now).slice(-100);
    if (before.length < 2 || after.length < 2) return null;
    return { ...compare(before, after), mark };
  }
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
