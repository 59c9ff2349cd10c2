// The log: lines of messages, oldest first, however many there are. Only those in sight are elements, and only some thousands are
// kept: what lies farther away is asked for again. So a page may stay open for days.

import { h, line, mark, put, say } from "./dom.js";
import { get } from "./api.js";
import { clock, tokens } from "./format.js";
import { ask } from "./actions.js";

const ROW = 24; // px
const KEPT = 3_000; // parts
const PAGE = 200; // messages
const AROUND = 8; // rows beyond what is in sight
const WHOLE = 200_000; // characters shown at once of a part
const FAMILIES = {
  all: () => true,
  said: (kind) => !["tool", "result", "thinking", "error"].includes(kind),
  tools: (kind) => kind === "tool" || kind === "result",
  errors: (kind) => kind === "error",
};
const WORDS = { all: "Everything", said: "What was said", tools: "Tools", errors: "Errors" };

/** The log of a session, or of one task of it. `who` names the one who spoke. */
export class Log {
  constructor({ session, task = null, who, label }) {
    Object.assign(this, { session, task, who, items: [], shown: [], atBegin: false, atEnd: false, family: "all", until: null, at: -1, busy: false, round: 0 });
    this.rows = h("div", { class: "log-rows", role: "presentation" });
    this.box = h("div", { class: "log", role: "listbox", tabindex: 0, "aria-label": label, on: { scroll: () => this.scrolled(), keydown: (event) => this.key(event) } }, this.rows);
    this.newer = h("button", { type: "button", class: "newer", hidden: true, on: { click: () => this.toEnd() } }, "↓ newest");
    this.choice = h("select", { "aria-label": "Which lines", on: { change: () => this.setFamily(this.choice.value) } },
      Object.keys(FAMILIES).map((name) => h("option", { value: name }, WORDS[name])));
    this.element = h("div", { class: "log-frame" }, this.box, this.newer);
    this.empty = h("p", { class: "empty" }, "nothing yet");
    this.pool = new Map();
    this.sized = new ResizeObserver(() => this.draw());
    this.sized.observe(this.box);
  }

  close() {
    this.sized.disconnect();
    this.round++;
  }

  get follows() {
    return this.until === null && this.atEnd && this.box.scrollTop + this.box.clientHeight >= this.shown.length * ROW - ROW * 2;
  }

  /** The newest lines, from the server; what was there goes. */
  async load() {
    const round = ++this.round;
    const rows = await this.ask(this.until === null ? "" : `&before=${this.until}`);
    if (round !== this.round) return;
    this.items = rows.flatMap(parts);
    Object.assign(this, { atBegin: rows.length < PAGE, atEnd: true, at: -1 });
    this.refilter();
    this.toEnd();
    this.fillUp();
  }

  ask(place) {
    const task = this.task ? `&task=${encodeURIComponent(this.task)}` : "";
    return get(`/api/sessions/${this.session}/log?limit=${PAGE}${task}${place}`);
  }

  setTask(task) {
    this.task = task;
    return this.load();
  }

  setUntil(seconds) {
    this.until = seconds;
    return this.load();
  }

  setFamily(name) {
    this.family = name;
    this.refilter();
    this.toEnd();
    this.fillUp();
  }

  /** Lines that were stored just now. */
  add(rows, leftOut) {
    if (leftOut) return this.load();
    if (this.until !== null || !this.atEnd) return mark(this.newer, "hidden", null);
    const follows = this.follows;
    const wanted = rows.filter((row) => this.task === null || row.task_id === this.task || (this.task === this.session && row.agent_id === this.session));
    const known = new Set(this.items.slice(-400).map((item) => item.key));
    this.items.push(...wanted.flatMap(parts).filter((item) => !known.has(item.key)));
    if (follows) this.trim();
    this.refilter();
    if (follows) this.toEnd();
    else if (wanted.length) mark(this.newer, "hidden", null);
  }

  trim() {
    if (this.items.length > KEPT) {
      this.items.splice(0, this.items.length - KEPT + 500);
      this.atBegin = false;
    }
  }

  refilter() {
    const fits = FAMILIES[this.family];
    this.shown = this.items.filter((item) => fits(item.kind));
    this.draw();
  }

  toEnd() {
    if (!this.atEnd) return void this.load();
    mark(this.newer, "hidden", "");
    this.box.scrollTop = this.shown.length * ROW;
    this.draw();
  }

  scrolled() {
    if (this.follows) mark(this.newer, "hidden", "");
    this.draw();
    if (this.box.scrollTop < ROW * 20) this.older();
    else if (!this.atEnd && this.box.scrollTop + this.box.clientHeight > this.shown.length * ROW - ROW * 20) this.later();
  }

  /** Few lines fit the choice: older ones are asked for until the box is full. */
  async fillUp() {
    for (let page = 0; page < 10 && !this.atBegin && this.shown.length * ROW < this.box.clientHeight * 2; page++) await this.older();
  }

  async older() {
    const first = this.items[0];
    if (this.busy || this.atBegin || !first) return;
    const round = this.round;
    this.busy = true;
    const rows = await this.ask(`&before=${place(first)}`).finally(() => { this.busy = false; });
    if (round !== this.round) return;
    const before = this.shown.length;
    this.items.unshift(...rows.flatMap(parts));
    this.atBegin = rows.length < PAGE;
    const top = this.box.scrollTop;
    if (this.items.length > KEPT) {
      this.items.length = KEPT;
      this.atEnd = false;
    }
    const fits = FAMILIES[this.family];
    const added = rows.flatMap(parts).filter((item) => fits(item.kind)).length;
    if (this.at >= 0) this.at += added;
    this.refilter();
    if (before) this.box.scrollTop = top + added * ROW;
  }

  async later() {
    const last = this.items.at(-1);
    if (this.busy || !last) return;
    const round = this.round;
    this.busy = true;
    const rows = await this.ask(`&after=${place(last)}`).finally(() => { this.busy = false; });
    if (round !== this.round) return;
    const before = this.shown.length;
    this.items.push(...rows.flatMap(parts));
    this.atEnd = rows.length < PAGE;
    const fits = FAMILIES[this.family];
    const gone = Math.max(0, this.items.length - KEPT);
    const hidden = this.items.slice(0, gone).filter((item) => fits(item.kind)).length;
    const top = this.box.scrollTop;
    if (gone) {
      this.items.splice(0, gone);
      this.atBegin = false;
    }
    this.refilter();
    if (before) this.box.scrollTop = top - hidden * ROW;
  }

  /** The same lines anew: names have become known. */
  redraw() {
    for (const row of this.pool.values()) row.remove();
    this.pool.clear();
    this.draw();
  }

  /** Elements for what is in sight. */
  draw() {
    const height = Math.max(this.shown.length, 1) * ROW;
    this.rows.style.height = `${height}px`;
    if (!this.shown.length) {
      this.pool.clear();
      put(this.rows, this.empty);
      return;
    }
    const from = Math.max(0, Math.floor(this.box.scrollTop / ROW) - AROUND);
    const to = Math.min(this.shown.length, Math.ceil((this.box.scrollTop + this.box.clientHeight) / ROW) + AROUND);
    const wanted = new Map();
    for (let i = from; i < to; i++) wanted.set(this.shown[i].key, i);
    for (const [key, row] of this.pool) {
      if (!wanted.has(key)) {
        row.remove();
        this.pool.delete(key);
      }
    }
    if (this.empty.isConnected) this.empty.remove();
    for (const [key, i] of wanted) {
      let row = this.pool.get(key);
      if (!row) {
        row = this.row(this.shown[i]);
        this.pool.set(key, row);
        this.rows.append(row);
      }
      row.style.transform = `translateY(${i * ROW}px)`;
      mark(row, "aria-selected", i === this.at ? "true" : "false");
    }
    const active = this.at >= 0 && this.shown[this.at] ? this.pool.get(this.shown[this.at].key) : null;
    mark(this.box, "aria-activedescendant", active?.id ?? null);
  }

  row(item) {
    return h("div", { class: `row kind-${FAMILY_OF[item.kind] ?? "text"}`, role: "option", id: `line-${item.key}`, "aria-selected": "false", on: { click: () => this.open(item) } },
      h("time", {}, clock(item.at)), h("span", { class: "who" }, line(this.who(item), 40)), h("span", { class: "kind" }, item.kind.replaceAll("_", " ")),
      h("span", { class: "what" }, line(item.text, 300)), item.length ? h("span", { class: "more" }, `${tokens(item.length)} chars`) : null);
  }

  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15 }[event.key];
    const last = this.shown.length - 1;
    if (step) this.at = Math.min(last, Math.max(0, (this.at < 0 ? Math.ceil(this.box.scrollTop / ROW) - 1 : this.at) + step));
    else if (event.key === "Home") this.at = 0;
    else if (event.key === "End") this.at = last;
    else if (event.key === "Enter" && this.shown[this.at]) return void this.open(this.shown[this.at]);
    else return;
    event.preventDefault();
    const top = this.at * ROW;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top + ROW > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = top + ROW - this.box.clientHeight;
    this.draw();
  }

  /** The message in full, structured or as it is stored. */
  async open(item) {
    const body = h("div", { class: "message" }, h("p", { class: "empty" }, "…"));
    const raw = h("input", { type: "checkbox", on: { change: () => show() } });
    let message = null;
    const show = () => message && put(body, ...(raw.checked ? [block(JSON.stringify({ ...message, parts: undefined }, null, 2))] : message.parts.flatMap((part) => [h("h3", {}, part.kind.replaceAll("_", " ")), block(part.text)])));
    get(`/api/agents/${item.agent_id}/messages/${item.seq}`).then((found) => {
      message = found;
      show();
    }, (error) => put(body, h("p", { class: "bad" }, error.message)));
    await ask({ title: `${line(this.who(item), 40)}, ${clock(item.at)}`, body: [h("label", { class: "check" }, raw, "As it is stored"), body], cancel: "Close" });
  }
}

const FAMILY_OF = { tool: "tool", result: "result", thinking: "thinking", error: "error", prompt: "prompt" };

const place = (item) => encodeURIComponent(`${item.at}:${item.agent_id}:${item.seq}`);

function parts(message) {
  const { agent_id, task_id, seq, at, kind } = message;
  return message.parts.map((part, n) => ({ agent_id, task_id, seq, at, message: kind, key: `${agent_id}-${seq}-${n}`, kind: part.kind, text: part.text, length: part.length ?? 0 }));
}

/** A text in full; a very long one in steps, so that showing it holds nobody up. */
function block(text) {
  const pre = h("pre", { tabindex: 0 }, text.slice(0, WHOLE));
  if (text.length <= WHOLE) return pre;
  const more = h("button", { type: "button", on: { click: () => { put(pre, text); more.remove(); } } }, `Show all ${text.length.toLocaleString("en")} characters`);
  return h("div", {}, pre, more);
}
