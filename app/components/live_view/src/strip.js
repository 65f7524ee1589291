// The engine strip: pages, what runs and where, its state, the transport, undo, link, driver.

import { attrs, button, h, icon, keyed, paced, setAttr, setClass, setText, show } from "./dom.js";
import { bytes } from "./format.js";
import { GpuItem } from "./hardware.js";
import { KeyHelp, listenKeys } from "./keyboard.js";

const SPEEDS = [1, 0.5, 0.25, 0.1];
const SIGNS = {
  play: "M4.5 2.8v10.4L13 8z", pause: "M4 3h2.8v10H4zM9.2 3H12v10H9.2z", step: "M3.5 3v10L10 8zM10.8 3H13v10h-2.2z",
  undo: "M6.5 2 2 5.8l4.5 3.8V7.1H9a2.9 2.9 0 0 1 0 5.8H5v1.6h4a4.5 4.5 0 0 0 0-9H6.5z",
  redo: "M9.5 2 14 5.8 9.5 9.6V7.1H7a2.9 2.9 0 0 0 0 5.8h4v1.6H7a4.5 4.5 0 0 1 0-9h2.5z",
};
const TABS = ["grid", "knobs", "block", "chat"];

export class Strip {
  constructor(context) {
    this.context = context;
    this.help = new KeyHelp(context);
    this.build();
    this.stopKeys = listenKeys(context, this.help);
    this.draw = paced(() => this.update(), 200);
    if (!document.body.dataset.tab) document.body.dataset.tab = "grid";
    this.draw();
  }

  build() {
    const { words, tips, send } = this.context;
    this.pages = attrs(h("nav", "pages"), { "aria-label": words("strip.pages"), id: "kvw-pages" });
    // Where there is no room for the links (390 px) they open from this button.
    this.menu = attrs(button("small page-menu", "", () => this.openMenu()),
      { "aria-expanded": "false", "aria-controls": "kvw-pages", "aria-haspopup": "true" });
    const box = h("div", "page-box", this.menu, this.pages);
    box.addEventListener("focusout", (event) => { if (!box.contains(event.relatedTarget)) this.openMenu(false); });
    box.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.pages.classList.contains("open")) return;
      event.stopPropagation();
      this.openMenu(false);
      this.menu.focus();
    });
    this.light = h("i", "light");
    this.state = attrs(h("span", "engine-state", this.light, h("span", "")), { role: "status" });
    this.mode = h("span", "mode");
    this.tiers = h("span", "tier-sum");
    this.hardware = new GpuItem(this.context);
    this.acts = {};
    const act = (name, sign) => {
      const node = button("icon", "", () => send(name));
      node.append(icon(sign));
      attrs(node, { "aria-label": words(`strip.${name}`), title: words(`strip.${name}.hint`) });
      return (this.acts[name] = node);
    };
    this.speed = attrs(h("select", "pick"), { "aria-label": words("strip.speed") });
    for (const value of SPEEDS) {
      const option = h("option", "", words("strip.speed.value", { value }));
      option.value = String(value);
      this.speed.append(option);
    }
    this.speed.addEventListener("change", () => send("speed", { value: Number(this.speed.value) }));
    this.copy = button("small copy", words("strip.link"), () => send("open_copy"));
    this.lang = button("small", "", () => this.switchLanguage());
    this.presentButton = button("small", words("strip.present"), () => send("present", { on: !this.context.data().present }));
    this.keys = attrs(button("icon", "?", () => this.help.toggle()), { "aria-label": words("keys.label"), title: words("keys.label") });
    this.viewers = h("span", "viewers");
    this.take = button("primary small take", words("strip.take_over"), () => send("take_over"));
    const transport = attrs(h("div", "transport", act("play", SIGNS.play), act("pause", SIGNS.pause), act("step", SIGNS.step), this.speed),
      { role: "group", "aria-label": words("strip.transport") });
    const edit = h("div", "edit", act("undo", SIGNS.undo), act("redo", SIGNS.redo), this.copy, this.lang, this.presentButton, this.keys);
    this.tabs = attrs(h("div", "tabs"), { role: "tablist", "aria-label": words("tabs.label") });
    for (const tab of TABS) this.tabs.append(this.tab(tab));
    this.node = attrs(h("section", "strip", h("div", "strip-main", box, this.state, this.mode, this.hardware.node, this.tiers,
      h("span", "grow"), transport, edit, this.viewers, this.take), this.tabs, this.help.node),
      { "aria-label": words("strip.label") });
    tips.term(this.mode, "stands_in");
  }

  tab(name) {
    const node = attrs(button("tab", this.context.words(`tabs.${name}`), () => {
      document.body.dataset.tab = name;
      this.update();
      dispatchEvent(new Event("resize"));
      this.context.store.setView({}); // the stage shows less beside the chat
    }), { role: "tab", "data-tab": name });
    return node;
  }

  openMenu(on = !this.pages.classList.contains("open")) {
    setClass(this.pages, "open", on);
    setAttr(this.menu, "aria-expanded", String(on));
    if (on) (this.pages.querySelector("[aria-current]") ?? this.pages.firstChild)?.focus();
  }

  on() { this.draw(); }
  themeChanged() {}

  update() {
    const { store, data, words } = this.context, snap = store.shown?.snap;
    this.updatePages(data().pages ?? []);
    show(this.tabs, (data().view ?? "live") === "live");
    for (const node of this.tabs.children) {
      setAttr(node, "aria-selected", String(node.dataset.tab === document.body.dataset.tab));
    }
    this.updateDriver();
    setClass(this.light, "idle", !snap);
    show(this.hardware.node, snap);
    if (!snap) return setText(this.state.lastChild, words(`face.link.${store.link.status}`));
    this.updateState(snap);
    this.hardware.update(snap);
    const stands = snap.stands_in ? words("strip.stands_in", { device: snap.device.toUpperCase() }) : snap.device;
    setText(this.mode, [stands, snap.model_name, snap.weight_format].filter(Boolean).join(" · "));
    const notes = (snap.weight_notes ?? []).map((note) => words(`weight_note.${note.kind}`, note.values));
    setAttr(this.mode, "title",
      [words("strip.weights", { size: bytes(snap.weight_bytes), backend: snap.backend }), ...notes].join("; "));
    setText(this.tiers, snap.tiers.map((t) => t.enabled
      ? words("strip.tier", { name: t.name, size: bytes(t.capacity_bytes), source: words(`provenance.${t.provenance}`) })
      : words("strip.tier.off", { name: t.name })).join(" · "));
  }

  // The state in words, with the integrity light in front.
  updateState(snap) {
    const { store, words } = this.context;
    const state = store.link.dead ? "dead" : snap.state;
    const ok = !snap.integrity || snap.integrity.ok;
    setClass(this.light, "bad", !ok || state === "dead");
    setClass(this.light, "idle", ok && (!snap.integrity || state === "paused"));
    const loading = state === "loading" ? ` ${Math.round(100 * snap.progress)} %` : "";
    setText(this.state.lastChild, ok ? words(`engine.${state}`) + loading : words("integrity.bad"));
    setAttr(this.state, "title", snap.integrity
      ? words(ok ? "integrity.ok" : "integrity.message", { step: snap.integrity.step, message: snap.integrity.message })
      : words("integrity.none"));
    const { playback } = store;
    const playing = playback ? playback.playing : snap.state !== "paused";
    setAttr(this.acts.play, "aria-pressed", String(playing));
    setAttr(this.acts.pause, "aria-pressed", String(!playing));
    const speed = String(playback ? playback.speed : SPEEDS.reduce((a, b) => Math.abs(b - snap.speed) < Math.abs(a - snap.speed) ? b : a));
    if (this.speed.value !== speed && this.context.focused() !== this.speed) this.speed.value = speed;
  }

  updateDriver() {
    const { store, data, words } = this.context, driver = this.context.isDriver();
    const info = data(), { playback } = store;
    for (const node of [...Object.values(this.acts), this.speed]) node.disabled = !driver;
    this.acts.undo.disabled = !driver || !info.can_undo;
    this.acts.redo.disabled = !driver || !info.can_redo;
    for (const node of [this.acts.undo, this.acts.redo, this.copy, this.presentButton]) show(node, !playback);
    setAttr(this.presentButton, "aria-pressed", String(!!info.present));
    const others = store.link.viewers || info.num_viewers || 1;
    setText(this.viewers, playback ? words("strip.replay")
      : driver ? (others > 1 ? words("strip.driver", { viewers: others }) : "") : words("strip.viewer"));
    show(this.take, !driver);
    const langs = info.langs ?? [];
    show(this.lang, langs.length > 1);
    if (langs.length > 1) setText(this.lang, String(info.lang ?? "en").toUpperCase());
  }

  switchLanguage() {
    const { langs = [], lang } = this.context.data();
    this.context.send("set_lang", { value: langs[(langs.indexOf(lang) + 1) % langs.length] });
  }

  updatePages(pages) {
    const { send, words } = this.context, active = pages.find((p) => p.active);
    show(this.menu, pages.length > 1);
    setText(this.menu, `${active ? active.title : words("strip.pages")} \u25be`);
    setAttr(this.menu, "aria-label", words("strip.pages.menu", { page: active ? active.title : "" }));
    keyed(this.pages, pages, (p) => p.url, () => h("a", "page"), (node, page) => {
      // Within the dashboard a page changes without loading anew; elsewhere the link is a link.
      node.onclick = (event) => {
        if (!page.name || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
        event.preventDefault();
        this.openMenu(false);
        if (!page.active) send("go_page", { page: page.name });
      };
      setText(node, page.title);
      if (/^(https?:\/\/|\/|\?|\.)/.test(page.url) || /^[\w-]*$/.test(page.url)) setAttr(node, "href", page.url || "/");
      setAttr(node, "target", "_self");
      setAttr(node, "aria-current", page.active ? "page" : null);
    });
  }

  destroy() { this.stopKeys(); }
}
