"""Text on a page that is too faint to be read, by WCAG 2.2's measure of contrast."""

import time
from typing import Any

from playwright.sync_api import Page

# [ratio, text, class] of all text on the screen whose contrast to what lies behind it is under 4.5,
# or 3 for large text. Left out: what is off, what is faded on purpose, and signs of an icon font.
FAINT_TEXT = """() => {
  const skipped = ':disabled, [aria-disabled=true], .sr-only, .evicted, .unseen, option,'
    + '[data-testid=stIconMaterial], :has(> input:disabled), :has(> textarea:disabled)';
  const pen = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
  const kept = (make, known = new Map()) => (key) => { // each is asked for by many texts
    if (!known.has(key)) known.set(key, make(key));
    return known.get(key);
  };
  const rgba = kept((css) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = css;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  });
  const ground = kept((at) => {
    const style = getComputedStyle(at), { left, right, top, bottom } = at.getBoundingClientRect();
    const colour = rgba(style.backgroundColor), opacity = Number(style.opacity);
    return { colour, opacity, left, right, top, bottom, skipped: at.matches(skipped) };
  });
  const over = (top, under, share) => under.map((v, i) => v + (top[i] - v) * top[3] * share);
  const parent = (at) => at.assignedSlot ?? at.parentElement ?? at.getRootNode().host ?? null;
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) =>
    0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const ratio = (a, b) => {
    const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const found = [];
  let checked = 0;
  const check = (node, text) => {
    const chain = [];
    for (let at = node; at; at = parent(at)) chain.unshift(at);
    if (chain.some((at) => ground(at).skipped)) return;
    if (!node.checkVisibility({ opacityProperty: true, visibilityProperty: true })) return;
    const box = node.getBoundingClientRect();
    const x = box.x + box.width / 2, y = box.y + box.height / 2;
    if (x < 0 || x > innerWidth || y < 0 || y > innerHeight) return;
    checked++;
    let under = [255, 255, 255], share = 1;
    for (const at of chain) { // a label beside its parent's box has not its colour behind it
      const { colour, opacity, left, right, top, bottom } = ground(at);
      share *= opacity;
      if (left <= x && x <= right && top <= y && y <= bottom) under = over(colour, under, share);
    }
    const style = getComputedStyle(node), size = parseFloat(style.fontSize);
    const least = size >= 24 || (size >= 18.66 && style.fontWeight >= 600) ? 3 : 4.5;
    const got = ratio(over(rgba(style.color), under, share), under);
    if (got < least) found.push([got.toFixed(2), text, node.className]);
  };
  const walk = (root) => {
    for (const node of root.querySelectorAll('*')) {
      const own = [...node.childNodes].filter((child) => child.nodeType === 3);
      const text = own.map((child) => child.data.trim()).join('');
      if (text) check(node, text);
      if (node.shadowRoot) walk(node.shadowRoot);
    }
  };
  walk(document);
  return { checked, found };
}"""


def faint_text(page: Page) -> list[Any]:
    """[ratio, text, class] of each; raises AssertionError if the page shows hardly any text."""
    told = page.evaluate(FAINT_TEXT)
    end_s = time.monotonic() + 20  # a page that was just opened is drawn bit by bit
    while told["checked"] <= 20 and time.monotonic() < end_s:
        time.sleep(0.2)
        told = page.evaluate(FAINT_TEXT)
    assert told["checked"] > 20
    found: list[Any] = told["found"]
    return found
