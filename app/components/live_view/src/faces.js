// What covers the grid when there is nothing to draw: loading, no requests, a dead engine, no link.

import { stateDetail } from "./describe.js";
import { attrs, button, h, setAttr, setText, show } from "./dom.js";

export class Faces {
  constructor({ store, words, send, data }) {
    Object.assign(this, { store, words, send, data });
    this.title = h("div", "face-title");
    this.detail = h("div", "face-detail");
    this.bar = attrs(h("progress", "face-bar"), { max: "1" });
    this.act = button("primary", "", () => this.action?.());
    this.node = attrs(h("div", "face", this.title, this.detail, this.bar, this.act), { role: "status" });
  }

  update(frame) {
    const face = this.choose(frame);
    show(this.node, !!face);
    if (!face) return;
    this.node.dataset.kind = face.kind;
    setText(this.title, face.title);
    setText(this.detail, face.detail ?? "");
    show(this.bar, face.progress !== undefined);
    if (face.progress !== undefined) setAttr(this.bar, "value", face.progress.toFixed(3));
    show(this.act, !!face.act);
    if (face.act) setText(this.act, face.act);
    this.action = face.action;
  }

  choose(frame) {
    const { store, words, send } = this;
    const { dead } = store.link, snap = frame?.snap;
    if (dead || snap?.state === "dead") {
      return {
        kind: "dead", title: words("face.dead"), detail: dead || snap.state_detail,
        act: words("face.restart"), action: () => send("restart"),
      };
    }
    if (!frame) return { kind: "loading", title: words(`face.link.${store.link.status}`) };
    if (snap.state === "loading") {
      const detail = stateDetail(snap, words);
      return { kind: "loading", title: words("face.loading"), detail, progress: snap.progress };
    }
    if (snap.state === "idle" && store.live && !store.playback && snap.requests.every(isOver)) {
      return {
        kind: "empty", title: words("face.empty"), detail: words("face.empty.detail"),
        act: words("face.start"),
        action: () => send("start_workload", { workload: this.data().workload ?? "shared_chat" }),
      };
    }
    return null;
  }
}

function isOver(request) { return request.status.startsWith("finished"); }
