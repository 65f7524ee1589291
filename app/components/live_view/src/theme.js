// Colours: read from the page's variables, as numbers the grid can paint with.

// Okabe and Ito's eight; the black one follows the text colour's lightness.
const OWNERS = [
  [230, 159, 0], [86, 180, 233], [0, 158, 115], [0, 114, 178],
  [213, 94, 0], [204, 121, 167], [240, 228, 66], [0, 0, 0],
];

const probe = () => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  return canvas.getContext("2d", { willReadFrequently: true });
};

// Any CSS colour -> [r, g, b]; unknown ones keep `fallback`.
function parse(ctx, text, fallback) {
  if (!text) return fallback;
  ctx.clearRect(0, 0, 1, 1);
  ctx.fillStyle = "#010203";
  ctx.fillStyle = text;
  ctx.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = ctx.getImageData(0, 0, 1, 1).data;
  return a ? [r, g, b] : fallback;
}

// Reads the theme in force at `root` (an element inside the component).
export function readTheme(root) {
  const style = getComputedStyle(root);
  const ctx = probe();
  const get = (name, fallback) => parse(ctx, style.getPropertyValue(name).trim(), fallback);
  const bg = get("--bg", [255, 255, 255]);
  const dark = luma(bg) < 128;
  const text = get("--fg", dark ? [230, 230, 235] : [30, 32, 40]);
  const accent = get("--accent", [37, 99, 200]);
  const owners = OWNERS.map((c, i) => (i === 7 ? mix(text, bg, 0.15) : c));
  return {
    dark, bg, text, accent, owners,
    surface: get("--surface", mix(bg, text, 0.04)),
    neutral: mix(bg, text, 0.42),
    line: mix(bg, text, dark ? 0.24 : 0.2),
    faint: mix(bg, text, dark ? 0.09 : 0.07),
    warn: dark ? [255, 138, 76] : [196, 73, 0],
    ramp: ramp(bg, text, accent, dark),
    font: style.getPropertyValue("--font").trim() || "sans-serif",
  };
}

// 256 steps of one hue, from just off the surface to strong.
function ramp(bg, text, accent, dark) {
  const low = mix(bg, accent, 0.12), mid = accent, high = mix(accent, text, dark ? 0.55 : 0.6);
  return Array.from({ length: 256 }, (_, i) => {
    const t = i / 255;
    return t < 0.6 ? mix(low, mid, t / 0.6) : mix(mid, high, (t - 0.6) / 0.4);
  });
}

export function luma([r, g, b]) { return 0.299 * r + 0.587 * g + 0.114 * b; }

export function mix(a, b, t) {
  return [0, 1, 2].map((i) => Math.round(a[i] + (b[i] - a[i]) * t));
}

export function css([r, g, b], alpha = 1) {
  return alpha === 1 ? `rgb(${r},${g},${b})` : `rgba(${r},${g},${b},${alpha})`;
}

// Little-endian RGBA as one u32.
export function pack([r, g, b]) { return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0; }

export function unpack(value) { return [value & 255, (value >> 8) & 255, (value >> 16) & 255]; }

export function ownerColour(theme, slot) {
  return slot === 255 ? theme.neutral : theme.owners[slot % theme.owners.length];
}

// "" for the first eight owners, then a, b, c ... so that a repeated colour stays distinct.
export function ownerLetter(slot) {
  const round = Math.floor(slot / OWNERS.length);
  return round && slot !== 255 ? String.fromCharCode(96 + ((round - 1) % 26) + 1) : "";
}

// A request's name as lists show it; the letter tells owners of one colour apart.
export function ownerName(request) {
  const letter = ownerLetter(request.owner);
  return (request.label || request.request_id) + (letter ? ` (${letter})` : "");
}

// Calls `fn` when the theme's variables change: a hidden probe's transition ends then.
export function watchTheme(root, fn) {
  const node = document.createElement("i");
  node.className = "theme-probe";
  node.setAttribute("aria-hidden", "true");
  root.append(node);
  const media = matchMedia("(prefers-color-scheme: dark)");
  node.addEventListener("transitionend", fn);
  media.addEventListener("change", fn);
  return () => { media.removeEventListener("change", fn); node.remove(); };
}
