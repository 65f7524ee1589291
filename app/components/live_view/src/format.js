// Numbers, bytes and times as people read them.

const STEPS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(value) {
  let size = value, step = 0;
  while (Math.abs(size) >= 1024 && step < STEPS.length - 1) { size /= 1024; step++; }
  return `${significant(size)}\u00a0${STEPS[step]}`;
}

// A size as a number in the unit that `whole` is told in: of 64 MiB, "45.4".
export function bytesIn(value, whole) {
  let step = 0;
  for (let size = whole; Math.abs(size) >= 1024 && step < STEPS.length - 1; size /= 1024) step++;
  return significant(value / 1024 ** step);
}

export function rate(bytesPerS) {
  return bytesPerS > 0 ? `${bytes(bytesPerS)}/s` : "0\u00a0B/s";
}

// Three significant digits, no exponent, thousands by a thin space.
export function significant(value) {
  if (!Number.isFinite(value)) return "?";
  const size = Math.abs(value);
  const digits = size >= 100 || size === 0 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : 2;
  return group(value.toFixed(digits));
}

function group(text) {
  const [whole, part] = text.split(".");
  const spaced = whole.replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
  return part === undefined ? spaced : `${spaced}.${part}`;
}

export function count(value) { return group(String(Math.round(value))); }

// Minutes and seconds, as a clock shows them.
export function clock(seconds) {
  const whole = Math.ceil(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

export function percent(share) {
  return share === null || share === undefined ? "n/a" : `${significant(100 * share)}\u00a0%`;
}

const SHARE_UNITS = new Set(["share", "ratio", "fraction"]);

// A `Number`'s value in its unit: {value, unit}; null values give an empty value.
export function valueAndUnit(number, value = number.value) {
  if (value === null || value === undefined) return { value: "", unit: "" };
  if (SHARE_UNITS.has(number.unit)) return { value: significant(100 * value), unit: "%" };
  if (number.unit === "bytes") {
    const [size, unit] = bytes(value).split("\u00a0");
    return { value: size, unit };
  }
  if (number.unit === "tokens/s") return { value: significant(value), unit: "tok/s" };
  return { value: significant(value), unit: number.unit };
}
