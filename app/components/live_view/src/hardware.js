// NVML's figures in the strip: utilization, memory, power, PCIe and NVLink; without a GPU one chip.

import { attrs, h, setAttr, setClass, setText, show } from "./dom.js";
import { bytes, significant, valueAndUnit } from "./format.js";
import { notAvailable } from "./numbers.js";

const BYTES_PER_MIB = 1024 ** 2;
const GPU_PARTS = ["utilization", "memory", "power", "pcie", "nvlink"];

// What the strip shows, by part, and one text of all figures; `parts` is null without any.
export function hardwareFacts(hardware, words) {
  const numbers = Object.entries(hardware ?? {}), known = numbers.filter(([, n]) => n.value !== null);
  if (!known.length) {
    const why = numbers.length ? notAvailable(numbers[0][1], words) : words("number.na", { why: words("number.no_reason") });
    return { parts: null, told: words("gpu.told", { figures: why }) };
  }
  const value = (name) => hardware[name]?.value ?? null;
  const share = (name, text) => (value(name) === null ? words("value.na") : text(value(name)));
  const parts = {
    utilization: words("gpu.utilization", { value: share("gpu_utilization", (v) => `${Math.round(v)}\u00a0%`) }),
    memory: share("gpu_memory", (v) => bytes(v * BYTES_PER_MIB)),
    power: share("gpu_power", (v) => `${Math.round(v)}\u00a0W`),
    pcie: gpuLink("pcie", value, words),
    nvlink: gpuLink("nvlink", value, words),
  };
  return { parts, told: numbers.map(([name, number]) => gpuFigure(name, number, words)).join("; ") };
}

// Both ways of a link in GB/s.
function gpuLink(name, value, words) {
  const [rx, tx] = [value(`${name}_rx`), value(`${name}_tx`)];
  if (rx === null && tx === null) return words(`gpu.${name}.na`);
  const told = (v) => (v === null ? words("value.na") : significant(v / 1000));
  return words(`gpu.${name}`, { in: told(rx), out: told(tx) });
}

function gpuFigure(name, number, words) {
  const label = words(`number.${name}`), shown = valueAndUnit(number);
  return `${label} ${number.value === null ? notAvailable(number, words) : `${shown.value}\u00a0${shown.unit}`}`;
}

export class GpuItem {
  constructor({ words, tips }) {
    this.words = words;
    this.parts = GPU_PARTS.map((part) => attrs(h("span", "gpu-part"), { "data-part": part }));
    this.none = h("span", "gpu-part", words("gpu.none"));
    this.node = attrs(h("span", "gpu", this.none, ...this.parts), { role: "img", tabindex: "0" });
    tips.tell(this.node, () => this.node.getAttribute("aria-label"));
  }

  update(snap) {
    const { parts, told } = hardwareFacts(snap.hardware, this.words);
    setClass(this.node, "missing", !parts);
    show(this.none, !parts);
    this.parts.forEach((node, i) => {
      show(node, !!parts);
      if (parts) setText(node, parts[GPU_PARTS[i]]);
    });
    setAttr(this.node, "aria-label", told);
  }
}
