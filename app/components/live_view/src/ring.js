// The last 60 s of frames, bounded in bytes: when full, every other old frame goes first.

export class Ring {
  constructor({ seconds = 60, maxBytes = 96 * 2 ** 20 } = {}) {
    this.seconds = seconds;
    this.maxBytes = maxBytes;
    this.items = []; // {at, buffer}, `at` in ms of the page's clock
    this.bytes = 0;
  }

  push(at, buffer) {
    this.items.push({ at, buffer });
    this.bytes += buffer.byteLength;
    while (this.items.length > 1 && at - this.items[0].at > this.seconds * 1000) this.drop(0);
    if (this.bytes > this.maxBytes) this.thin();
  }

  drop(index) {
    this.bytes -= this.items[index].buffer.byteLength;
    this.items.splice(index, 1);
  }

  // Halves the frame rate of the older half, again and again, so that the span stays.
  thin() {
    while (this.bytes > this.maxBytes && this.items.length > 8) {
      const end = Math.max(4, this.items.length >> 1);
      for (let i = end - 1; i > 0; i -= 2) this.drop(i);
      if (this.bytes > this.maxBytes) this.drop(0);
    }
  }

  get length() { return this.items.length; }
  get spanMs() {
    return this.items.length ? this.items[this.items.length - 1].at - this.items[0].at : 0;
  }

  // Index of the newest frame at or before `at`.
  indexAt(at) {
    let low = 0, high = this.items.length - 1;
    while (low < high) {
      const mid = (low + high + 1) >> 1;
      if (this.items[mid].at <= at) low = mid; else high = mid - 1;
    }
    return low;
  }
}
