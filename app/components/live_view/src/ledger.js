// Where the memory goes, against the process's own figure; what a setting costs in quality.

import { h, keyed, setAttr, setClass, setText, show } from "./dom.js";
import { bytes, count, percent, significant } from "./format.js";
import { basis, MAIN_NUMBERS, notAvailable } from "./numbers.js";
import { valueAndUnit } from "./format.js";

export class Ledger {
  constructor({ words, tips }) {
    this.words = words;
    this.list = h("dl", "facts ledger-list");
    this.difference = h("p", "hint ledger-difference");
    this.node = h("details", "ledger",
      h("summary", "panel-title", tips.term(h("span", "", words("ledger.label")), "ledger")), this.list, this.difference);
  }

  update(snap) {
    const { rows, difference, over } = ledgerRows(snap, this.words);
    facts(this.list, rows);
    setText(this.difference, difference);
    setClass(this.difference, "warn", over);
  }
}

// Lines of one name as one row, what they add up to beside the RSS, and the difference in words.
export function ledgerRows(snap, words) {
  const sums = { process: 0, device: 0, reserved: 0 }, rows = new Map(), details = [];
  for (const line of snap.ledger) {
    sums[line.place] += line.num_bytes;
    const name = lineName(line, words);
    if (line.place === "reserved") { details.push(`${name} ${bytes(line.num_bytes)}`); continue; }
    const row = rows.get(name) ?? { name, num_bytes: 0, detail: [] };
    row.num_bytes += line.num_bytes;
    if (line.detail) row.detail.push(line.detail);
    rows.set(name, row);
  }
  const told = [...rows.values()].map((r) => ({ name: r.name, text: bytes(r.num_bytes), detail: r.detail.join("; ") }));
  const device = snap.ledger.some((line) => line.place === "device");
  if (device) told.push({ name: words("ledger.device"), text: bytes(sums.device) });
  told.push({ name: words("ledger.total"), text: bytes(sums.process), sum: true }, { name: words("ledger.rss"), text: bytes(snap.rss_bytes) });
  const left = snap.rss_bytes - sums.process, over = left < 0;
  told.push({ name: words(over ? "ledger.over" : "ledger.unclaimed"), text: bytes(Math.abs(left)) });
  told.push({ name: words("ledger.reserved"), text: bytes(sums.reserved), detail: details.join(", ") });
  return { rows: told, difference: words(over ? "ledger.over.why" : device ? "ledger.unclaimed.device" : "ledger.unclaimed.why"), over };
}

function lineName(line, words) {
  const [head, ...rest] = line.name.replace(/^reserved:/, "").split(":");
  const key = `ledger.${head}`;
  const name = (words.has(key) ? words(key) : head) + (rest.length ? ` ${rest.join(":")}` : "");
  return line.place === "device" ? words("ledger.on_device", { name }) : name;
}

export class AllNumbers {
  constructor({ words }) {
    this.words = words;
    this.list = h("dl", "facts");
    this.node = h("details", "all-numbers", h("summary", "panel-title", words("numbers.more")), this.list);
  }

  update(snap) {
    const { words } = this;
    const rows = [];
    for (const [name, number] of [...Object.entries(snap.numbers), ...Object.entries(snap.hardware)]) {
      if (MAIN_NUMBERS.includes(name)) continue;
      const shown = valueAndUnit(number);
      const note = [basis(number, words), words(`provenance.${number.provenance}`)].filter(Boolean).join(", ");
      rows.push({
        name: words.has(`number.${name}`) ? words(`number.${name}`) : name,
        text: number.value === null ? notAvailable(number, words) : `${shown.value}\u00a0${shown.unit}`,
        detail: number.value === null ? "" : note,
      });
    }
    facts(this.list, rows);
  }
}

export class Shadow {
  constructor({ words, tips, send }) {
    this.words = words;
    this.list = h("dl", "facts");
    this.stop = h("button", "small quiet", words("shadow.stop"));
    this.stop.addEventListener("click", () => send("shadow", { request_id: null }));
    this.node = h("section", "shadow",
      h("div", "panel-head", tips.term(h("h3", "panel-title", words("shadow.label")), "shadow"), this.stop), this.list);
  }

  update(snap) {
    const { words } = this, { shadow } = snap;
    show(this.node, !!shadow);
    if (!shadow) return;
    show(this.stop, shadow.state === "running");
    const first = shadow.first_differing_token;
    facts(this.list, [
      { name: words("shadow.request"), text: `${shadow.request_id} · ${words(`shadow.${shadow.state}`)}` },
      { name: words("shadow.scored"), detail: words("shadow.scored.detail"),
        text: words(shadow.num_scored_tokens ? "shadow.scored.some" : "shadow.scored.none",
          { scored: count(shadow.num_scored_tokens), all: count(shadow.num_positions) }) },
      { name: words("shadow.kl"), text: `${shadow.kl_mean.toPrecision(2)} (${shadow.kl_last.toPrecision(2)})` },
      { name: words("shadow.agreement"), text: percent(shadow.agreement) },
      { name: words("shadow.first"), text: first < 0 ? words("shadow.same")
        : words("shadow.differs", { token: significant(first), text: shadow.differing_text }) },
    ]);
  }
}

// Rows of name and value in one <dl>, kept by name.
function facts(list, rows) {
  keyed(list, rows, (r) => r.name, (r) => h("div", "fact", h("dt", "", r.name), h("dd", "")), (node, r) => {
    setText(node.lastChild, r.text);
    setAttr(node.lastChild, "title", r.detail || null);
    setClass(node, "sum", r.sum);
  });
}
