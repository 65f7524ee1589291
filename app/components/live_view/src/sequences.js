// The requests: logical pages in order, shared ones marked, what waits and why, why a hit ended.

import { tableOf } from "./decode.js";
import { attrs, button, h, keyed, setAttr, setClass, setText, show } from "./dom.js";
import { clock, count } from "./format.js";
import { css, luma, mix, ownerColour, ownerName } from "./theme.js";

const MAX_ROWS = 40;

export class Sequences {
  constructor(context) {
    Object.assign(this, { context, words: context.words });
    this.title = h("h3", "panel-title");
    this.list = attrs(h("ul", "seq-list"), { "aria-label": context.words("seq.label") });
    this.more = h("p", "hint");
    this.node = h("section", "sequences", this.title, this.list, this.more);
  }

  update(frame) {
    const { snap } = frame, { words } = this;
    setText(this.title, words("seq.title", { running: snap.num_running, waiting: snap.num_waiting }));
    const rows = snap.requests.slice(0, MAX_ROWS);
    keyed(this.list, rows, (r) => r.request_id, (r) => this.row(r), (node, r) => this.fill(node, r, frame));
    const hidden = snap.requests.length - rows.length;
    show(this.more, hidden > 0);
    if (hidden > 0) setText(this.more, words("seq.more", { hidden }));
  }

  row(request) {
    const { context, words } = this, id = request.request_id;
    const node = h("li", "seq");
    const parts = {
      swatch: h("i", "swatch"), name: button("link seq-name", "", () => context.selectRequest(id)),
      bar: h("canvas", "seq-bar"), tokens: h("span", "seq-tokens"), status: h("span", "seq-status"),
      why: h("span", "seq-why"), shadow: button("small quiet", words("seq.shadow"), () => this.shadow(id)),
      abort: button("small quiet", words("seq.abort"), () => context.send("abort", { request_id: id })),
    };
    attrs(parts.bar, { role: "img" });
    parts.bar.addEventListener("click", (event) => this.pick(node, event));
    node.kvw = { parts, key: "", cells: null };
    node.append(
      h("div", "seq-top", parts.swatch, parts.name, parts.bar, parts.tokens),
      h("div", "seq-under", parts.status, parts.why, h("span", "seq-acts", parts.shadow, parts.abort)),
    );
    return node;
  }

  shadow(id) {
    const running = this.context.store.shown?.snap.shadow;
    this.context.send("shadow", { request_id: running && running.request_id === id && running.state === "running" ? null : id });
  }

  // A click on the bar selects the physical block under it.
  pick(node, event) {
    const { cells } = node.kvw;
    if (!cells || !cells.length) return;
    const box = event.currentTarget.getBoundingClientRect();
    const page = Math.min(cells.length - 1, Math.floor(((event.clientX - box.x) / box.width) * cells.length));
    if (cells[page] >= 0) this.context.select("G1", cells[page]);
  }

  fill(node, request, frame) {
    const { parts } = node.kvw, { words, context } = this;
    const theme = context.theme(), colour = css(ownerColour(theme, request.owner));
    if (parts.swatch.dataset.colour !== colour) {
      parts.swatch.dataset.colour = colour;
      parts.swatch.style.background = colour;
    }
    setText(parts.name, ownerName(request));
    setAttr(parts.name, "title", ownerName(request));
    setText(parts.tokens, words("seq.tokens", { tokens: count(request.num_tokens) }));
    setText(parts.status, this.status(request));
    const why = this.why(request);
    setText(parts.why, why);
    setAttr(parts.why, "title", why);
    setClass(node, "plain", !why);
    setClass(node, "chosen", context.store.view.request === request.request_id);
    const done = request.status.startsWith("finished"), driver = context.isDriver();
    show(parts.abort, !done);
    show(parts.shadow, request.status === "running");
    parts.abort.disabled = parts.shadow.disabled = !driver;
    const shadow = frame.snap.shadow;
    setAttr(parts.shadow, "aria-pressed", String(!!shadow && shadow.request_id === request.request_id));
    this.drawBar(node, request, frame, theme);
  }

  status(request) {
    const { words } = this;
    if (request.error) return request.error;
    if (request.needs_blocks && (request.status === "waiting" || request.status === "preempted")) {
      return words("seq.needs", { status: words(`status.${request.status}`),
        needs: request.needs_blocks, free: request.free_blocks });
    }
    return words(`status.${request.status}`);
  }

  // Where the prefix hit ended and why, and how often the request lost its blocks.
  why(request) {
    const { words } = this, parts = [];
    if (request.num_cached_tokens) parts.push(words("seq.cached", { tokens: count(request.num_cached_tokens) }));
    if (request.miss) {
      parts.push(words(`miss.${request.miss.kind}`, { token: request.miss.token_index, step: request.miss.step,
        detail: request.miss.detail }));
    }
    parts.push(...this.kept(request));
    if (request.num_preemptions) parts.push(words("seq.preempted", { times: request.num_preemptions }));
    return parts.join(" · ");
  }

  // Prompt caching: what the request read and wrote, and how long its longest prefix is kept.
  kept(request) {
    const { usage, breakpoints } = request, { words } = this;
    if (!usage) return [];
    const parts = [words("seq.usage", { read: count(usage.cache_read_input_tokens),
      written: count(usage.cache_creation_input_tokens) })];
    const living = breakpoints.filter((point) => point.left_s !== null).pop();
    if (living) parts.push(words("seq.kept", { ttl: living.ttl, left: clock(living.left_s) }));
    return parts;
  }

  drawBar(node, request, frame, theme) {
    const { parts } = node.kvw, cells = tableOf(frame, request), tier = frame.tiers.get("G1");
    const dpr = devicePixelRatio || 1, width = Math.round(parts.bar.clientWidth * dpr);
    const refs = tier ? Array.from(cells, (c) => (c >= 0 ? tier.refs[c] : 0)).join("") : "";
    const key = `${width}|${cells.join()}|${refs}|${request.owner}|${theme.dark}`;
    if (!width || key === node.kvw.key) return;
    node.kvw.key = key;
    node.kvw.cells = cells.slice();
    const height = Math.round(parts.bar.clientHeight * dpr);
    parts.bar.width = width;
    parts.bar.height = height;
    drawPages(parts.bar.getContext("2d"), cells, tier, request, width, height, dpr, theme);
    setAttr(parts.bar, "aria-label", this.words("seq.bar", { pages: request.num_pages, shared: request.num_shared_pages }));
  }
}

// One small rectangle a logical page; shared ones carry a line, missing ones stay empty.
function drawPages(ctx, cells, tier, request, width, height, dpr, theme) {
  const colour = ownerColour(theme, request.owner);
  const size = Math.min(8 * dpr, width / Math.max(1, cells.length));
  const gap = size >= 4 * dpr ? dpr : 0;
  ctx.clearRect(0, 0, width, height);
  cells.forEach((cell, page) => {
    const x = Math.round(page * size), w = Math.max(1, Math.round((page + 1) * size) - x - gap);
    if (cell < 0) {
      ctx.fillStyle = css(theme.line);
      ctx.fillRect(x, height - 2 * dpr, w, dpr);
      return;
    }
    const shared = tier && tier.refs[cell] > 1, pale = !theme.dark && luma(colour) > 190;
    ctx.fillStyle = css(shared ? mix(colour, theme.bg, 0.25) : colour);
    ctx.fillRect(x, 0, w, height);
    if (!shared && !pale) return;
    ctx.fillStyle = css(theme.text, shared ? 1 : 0.35);
    ctx.fillRect(x, 0, w, dpr);
    ctx.fillRect(x, height - dpr, w, dpr);
  });
}
