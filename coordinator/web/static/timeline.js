// The timeline: a lane for each agent, drawn as SVG. What is shorter than a pixel is merged, what is out of sight is not drawn, and
// while a session runs the scale stays as it is until the line of now reaches its end: only what lives grows.
//
// Zoomed in, a part of the time is in sight: `from` to `to`. It is moved by a scroll bar of the browser's own, and goes along with
// now as long as its end is in sight. Keys on a lane: left and right step through what the agent did, Enter shows the log there, up
// and down go to the next lane, + and - zoom, 0 shows all.

import { announce, h, line, mark, put, say, svg } from "./dom.js";
import { clock, money, SIGNS, span, tokens } from "./format.js";

const ROW = 26, BAR = 12, TALL = 18; // px
const CLOSEST = 2; // seconds in sight at least
const IN = 2; // times closer by one step
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800];
export const KINDS = { model: "model", tool: "tools", waiting: "waits for you", queued: "in the queue", idle: "idle" };

export class Timeline {
  /** `pick(lane, segment)` is called with the lane a person chose, or null; `href(lane)` leads to its page. */
  constructor({ pick, href }) {
    Object.assign(this, { pick, href, lanes: [], tasks: new Map(), until: null, live: false, offset: 0, begin: 0, end: 1, from: 0, zoom: 1, width: 0, chosen: null, cursor: null, followed: true });
    this.axis = svg("svg", { class: "axis", "aria-hidden": "true", height: 22, on: { pointerdown: (event) => this.dragged(event) } });
    this.body = h("ul", { class: "lanes", "aria-label": "Agents" });
    this.now = h("div", { class: "now", "aria-hidden": "true" });
    this.scroll = h("div", { class: "lanes-frame", on: { scroll: () => this.draw() } }, this.body);
    const legend = Object.entries(KINDS).map(([kind, word]) => h("span", { class: `key ${kind}` }, word));
    const button = (word, name, act) => h("button", { type: "button", class: "plain", "aria-label": name, title: name, on: { click: act } }, word);
    this.whole = button("all", "Show all of the time", () => this.zoomTo(1));
    this.nearer = button("+", "Zoom in", () => this.zoomTo(this.zoom * IN));
    this.wider = button("−", "Zoom out", () => this.zoomTo(this.zoom / IN));
    this.legend = h("div", { class: "legend" }, legend, h("div", { class: "zoom", role: "group", "aria-label": "Zoom" }, this.wider, this.nearer, this.whole));
    this.long = h("div");
    this.pan = h("div", { class: "pan", tabindex: 0, role: "region", "aria-label": "Time in sight", hidden: true, on: { scroll: () => this.panned() } }, this.long);
    this.marquee = h("div", { class: "marquee", hidden: true });
    this.help = h("span", { id: "timeline-keys", class: "hidden" }, "Left and right step through what it did, plus and minus zoom");
    const dots = svg("pattern", { id: "queued-dots", width: 5, height: ROW, patternUnits: "userSpaceOnUse" }, svg("rect", { class: "dot", width: 2, height: ROW }));
    this.element = h("div", { class: "timeline", on: { keydown: (event) => this.key(event) } }, svg("svg", { class: "hidden", "aria-hidden": "true" }, dots), this.help,
      h("div", { class: "axis-row" }, this.axis, this.marquee), this.scroll, this.pan);
    this.element.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.known = new Map();
    this.sized = new ResizeObserver(() => this.measure());
    this.sized.observe(this.element);
    this.timer = setInterval(() => this.live && this.until === null && this.draw(), 1000);
  }

  close() {
    clearInterval(this.timer);
    this.sized.disconnect();
  }

  get time() {
    return this.until ?? Date.now() / 1000 + this.offset;
  }

  /** `tasks` by id, as the feed has them; `offset` is how far the server's clock is ahead, in seconds. */
  show(lanes, tasks, live, offset) {
    Object.assign(this, { lanes, tasks, live, offset });
    this.measure();
  }

  setUntil(seconds) {
    this.until = seconds;
    this.draw();
  }

  choose(id) {
    this.chosen = id;
    this.draw();
  }

  measure() {
    const style = getComputedStyle(this.element);
    this.label = parseFloat(style.getPropertyValue("--label"));
    this.figures = parseFloat(style.getPropertyValue("--figures"));
    this.width = Math.max(60, this.scroll.clientWidth - this.label - this.figures);
    this.scaleFor();
    this.draw();
  }

  /** From the first beginning to the last end, or beyond now where it goes on: a tenth more, so that now has room. */
  scaleFor() {
    if (!this.lanes.length) return;
    const { sight } = this;
    const begin = Math.min(...this.lanes.map((lane) => lane.start));
    const last = this.live ? Date.now() / 1000 + this.offset : Math.max(...this.lanes.map((lane) => lane.end));
    const fits = begin === this.begin && last <= this.end && (this.live ? (last - begin) * 3 > this.end - begin : last === this.end);
    if (!fits) {
      this.begin = begin;
      this.end = this.live ? last + Math.max(5, (last - begin) * 0.12) : Math.max(last, begin + 0.001);
      if (this.zoom > 1) this.zoom = Math.max(1, (this.end - this.begin) / sight); // what is in sight stays as long
    }
    if (this.followed && !this.follows) this.from = this.time - this.sight * 0.9;
    this.followed = this.follows;
  }

  // ── the part of the time that is in sight ──

  get sight() {
    return (this.end - this.begin) / this.zoom;
  }

  get to() {
    return this.from + this.sight;
  }

  x(at) {
    return ((at - this.from) / this.sight) * this.width;
  }

  /** The time at `clientX` of the window. */
  at(clientX) {
    const left = this.axis.getBoundingClientRect().left;
    return this.from + (Math.min(this.width, Math.max(0, clientX - left)) / this.width) * this.sight;
  }

  /** Whether the line of now, or of the moment that is replayed, is in sight: then it stays there. */
  get follows() {
    return (this.live || this.until !== null) && this.time >= this.from && this.time <= this.to;
  }

  /** A person chose what is in sight. */
  look(from, zoom = this.zoom) {
    this.zoom = Math.min(Math.max(1, zoom), Math.max(1, (this.end - this.begin) / CLOSEST));
    this.from = from;
    this.settle();
    this.followed = this.follows;
    this.draw();
  }

  /** What stays where it is when one zooms: what a person stepped to, else now, else the middle. */
  get middle() {
    const stepped = this.cursor && this.lanes.find((one) => one.id === this.cursor.lane)?.segments[this.cursor.n];
    if (stepped && stepped.end >= this.from && stepped.start <= this.to) return (stepped.start + stepped.end) / 2;
    return this.follows ? this.time : this.from + this.sight / 2;
  }

  /** Closer or wider by `zoom`, a multiple of what shows all; `fixed` is the time that stays where it is. */
  zoomTo(zoom, fixed = this.middle) {
    const share = (fixed - this.from) / this.sight;
    const least = (this.end - this.begin) / Math.min(Math.max(1, zoom), Math.max(1, (this.end - this.begin) / CLOSEST));
    this.look(fixed - share * least, zoom);
    announce(this.zoom === 1 ? "all of the time" : `${span(this.sight * 1000)} in sight, from ${clock(this.from)}`);
  }

  /** Within what there is; the scroll bar stands where `from` is. */
  settle() {
    this.from = Math.max(this.begin, Math.min(this.from, this.end - this.sight));
    mark(this.pan, "hidden", this.zoom > 1 ? null : "");
    mark(this.wider, "disabled", this.zoom === 1);
    mark(this.whole, "disabled", this.zoom === 1);
    mark(this.nearer, "disabled", this.sight <= CLOSEST * 1.001);
    this.long.style.width = `${this.width * this.zoom}px`;
    const left = Math.round(((this.from - this.begin) / (this.end - this.begin)) * this.width * this.zoom);
    if (Math.abs(this.pan.scrollLeft - left) > 1) this.pan.scrollLeft = left;
  }

  panned() {
    const from = this.begin + (this.pan.scrollLeft / (this.width * this.zoom)) * (this.end - this.begin);
    if (Math.abs(this.x(from)) > 1.5) this.look(from);
  }

  wheel(event) {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoomTo(this.zoom * 2 ** (-event.deltaY / 200), this.at(event.clientX));
    } else if (this.zoom > 1 && (event.deltaX || event.shiftKey)) {
      event.preventDefault();
      this.pan.scrollLeft += event.deltaX || event.deltaY;
    }
  }

  /** A part of the axis that is drawn over is what one then sees. */
  dragged(event) {
    const begun = event.clientX;
    this.axis.setPointerCapture(event.pointerId);
    const over = (move) => {
      const [left, right] = [Math.min(begun, move.clientX), Math.max(begun, move.clientX)];
      mark(this.marquee, "hidden", right - left < 4 ? "" : null);
      this.marquee.style.left = `${this.label + Math.max(0, left - this.axis.getBoundingClientRect().left)}px`;
      this.marquee.style.width = `${right - left}px`;
    };
    const done = (up) => {
      this.axis.removeEventListener("pointermove", over);
      mark(this.marquee, "hidden", "");
      const [from, to] = [this.at(Math.min(begun, up.clientX)), this.at(Math.max(begun, up.clientX))];
      if (up.type !== "pointerup" || Math.abs(up.clientX - begun) < 4) return;
      this.look(from, (this.end - this.begin) / (to - from));
    };
    this.axis.addEventListener("pointermove", over);
    this.axis.addEventListener("pointerup", done, { once: true });
    this.axis.addEventListener("pointercancel", done, { once: true });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const zoom = { "+": this.zoom * IN, "=": this.zoom * IN, "-": this.zoom / IN, 0: 1 }[event.key];
    const lane = this.lanes.findIndex((one) => one.id === event.target.closest("[data-id]")?.dataset.id);
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key], row = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (zoom) this.zoomTo(zoom);
    else if (lane < 0) return;
    else if (step) this.step(this.lanes[lane], step);
    else if (row) this.focus(lane + row);
    else if (event.key === "Escape" && this.cursor) this.cursor = null;
    else return;
    event.preventDefault();
    this.draw();
  }

  /** The next of what an agent did, told and in sight. */
  step(lane, by) {
    const before = this.cursor?.lane === lane.id ? this.cursor.n : by > 0 ? -1 : lane.segments.length;
    const n = Math.min(lane.segments.length - 1, Math.max(0, before + by));
    const segment = lane.segments[n];
    if (!segment) return;
    this.cursor = { lane: lane.id, n };
    if (segment.end < this.from || segment.start > this.to) this.look(segment.start - this.sight / 4);
    announce(told(segment));
  }

  focus(number) {
    const lane = this.lanes[number];
    if (!lane) return;
    const { scrollTop, clientHeight } = this.scroll;
    if (number * ROW < scrollTop) this.scroll.scrollTop = number * ROW;
    else if ((number + 1) * ROW > scrollTop + clientHeight) this.scroll.scrollTop = (number + 1) * ROW - clientHeight;
    this.draw();
    this.known.get(lane.id)?.choose.focus({ preventScroll: true });
  }

  // ── drawing ──

  draw() {
    this.scaleFor();
    this.settle();
    this.drawAxis();
    this.body.style.height = `${this.lanes.length * ROW}px`;
    const from = Math.max(0, Math.floor(this.scroll.scrollTop / ROW) - 5);
    const to = Math.min(this.lanes.length, Math.ceil((this.scroll.scrollTop + this.scroll.clientHeight) / ROW) + 5);
    const wanted = new Set();
    this.lanes.forEach((lane, i) => {
      const focused = this.known.get(lane.id)?.element.contains(document.activeElement);
      if ((i < from || i >= to) && !focused) return;
      wanted.add(lane.id);
      let row = this.known.get(lane.id);
      if (!row) {
        row = this.row(lane);
        this.known.set(lane.id, row);
        this.body.append(row.element);
      }
      this.update(row, lane, i);
    });
    for (const [id, row] of this.known) {
      if (!wanted.has(id)) {
        row.element.remove();
        this.known.delete(id);
      }
    }
    this.drawNow();
  }

  row(lane) {
    const sign = h("span", { class: "sign", "aria-hidden": "true" });
    const word = h("span", { class: "hidden" });
    const choose = h("button", { type: "button", class: "lane-name", "aria-describedby": this.help.id, on: { click: () => this.chose(lane.id, this.pointed(lane)) } }, sign, h("span", {}, line(lane.name, 40)), word);
    const link = h("a", { class: "open", href: this.href(lane), "aria-label": `Open ${line(lane.name, 40)}` }, "↗");
    const bars = svg("svg", { class: "bars", height: ROW, role: "img", on: { click: (event) => this.clicked(event) } });
    const figures = h("span", { class: "figures" });
    return { element: h("li", { class: "lane" }, h("span", { class: "lane-label" }, choose, link), bars, figures), sign, word, choose, bars, figures, rects: [] };
  }

  update(row, lane, i) {
    const task = this.tasks.get(lane.id);
    const state = this.stateOf(lane, task);
    row.element.style.transform = `translateY(${i * ROW}px)`;
    row.element.style.setProperty("--depth", lane.depth);
    mark(row.element, "data-id", lane.id);
    say(row.sign, SIGNS[state] ?? { ended: "✔", unborn: "" }[state] ?? "●");
    mark(row.sign, "class", `sign ${state}`);
    say(row.word, `, ${state === "unborn" ? "not asked for yet" : state}`);
    mark(row.choose, "aria-pressed", this.chosen === lane.id ? "true" : "false");
    mark(row.choose, "title", line(`${lane.name}: ${lane.description}`, 300));
    mark(row.element, "class", state === "unborn" ? "lane unborn" : this.chosen !== null && this.chosen !== lane.id ? "lane dim" : "lane");
    say(row.figures, task && this.until === null && task.total_tokens ? `${tokens(task.total_tokens)}  ${money(task.cost_usd)}` : "");
    this.bars(row, lane, state);
  }

  stateOf(lane, task) {
    if (this.until !== null) return this.states?.get(lane.id) ?? (lane.parent_id === null ? "running" : "unborn");
    return task ? (task.needs_approval && task.status === "running" ? "waiting" : task.status) : lane.status;
  }

  bars(row, lane, state) {
    const lives = this.live && this.until === null && ["running", "waiting", "pending"].includes(state);
    const segments = this.segments(lane, lives);
    const found = merged(segments.filter((one) => one.end >= this.from && one.start <= this.to), (at) => this.x(at));
    const pointed = this.pointed(lane);
    mark(row.bars, "width", Math.round(this.width));
    mark(row.bars, "aria-label", `${lane.name}: ${summed(segments)}`);
    while (row.rects.length > found.length) row.rects.pop().remove();
    found.forEach((segment, n) => {
      let rect = row.rects[n];
      if (!rect) {
        rect = svg("rect", {}, svg("title"));
        row.rects.push(rect);
        row.bars.append(rect);
      }
      const tall = segment.kind === "waiting" ? TALL : segment.kind === "idle" || segment.kind === "queued" ? 2 : BAR;
      const here = pointed && segment.start <= pointed.start && segment.end >= pointed.end;
      mark(rect, "class", here ? `${segment.kind} here` : segment.kind);
      mark(rect, "fill", segment.kind === "queued" ? "url(#queued-dots)" : null);
      mark(rect, "x", segment.x.toFixed(1));
      mark(rect, "width", Math.max(0.8, segment.w).toFixed(1));
      mark(rect, "y", (ROW - tall) / 2);
      mark(rect, "height", tall);
      rect.segment = segment;
      rect.lane = lane.id;
      say(rect.firstChild, told(segment));
    });
  }

  segments(lane, lives) {
    const last = lane.segments.length - 1;
    const all = lane.segments.map((segment, n) => (lives && n === last ? { ...segment, end: Math.max(segment.end, this.time) } : segment));
    if (this.until === null) return all;
    return all.filter((segment) => segment.start < this.until).map((segment) => ({ ...segment, end: Math.min(segment.end, this.until) }));
  }

  /** The segment of a lane that a person stepped to, or null. */
  pointed(lane) {
    return this.cursor?.lane === lane.id ? (lane.segments[this.cursor.n] ?? null) : null;
  }

  clicked(event) {
    const rect = event.target.closest("rect");
    if (rect?.segment) this.chose(rect.lane, rect.segment);
  }

  chose(id, segment) {
    this.chosen = this.chosen === id && segment === null ? null : id;
    this.pick(this.chosen, segment);
    this.draw();
  }

  drawAxis() {
    const step = STEPS.find((each) => each * Math.max(2, this.width / 90) >= this.sight) ?? STEPS.at(-1);
    const marks = [svg("rect", { class: "grab", width: this.width, height: 22 }), svg("text", { x: 0, y: 14 }, clock(this.from))];
    for (let at = Math.max(1, Math.ceil((this.from - this.begin) / step)) * step; at < this.to - this.begin; at += step) {
      const x = this.x(this.begin + at);
      if (x < 62 || x > this.width - 24) continue;
      marks.push(svg("line", { x1: x, x2: x, y1: 18, y2: 22 }), svg("text", { x, y: 14, "text-anchor": "middle" }, `+${span(at * 1000)}`));
    }
    const print = `${this.from} ${this.to} ${this.width}`;
    if (print === this.axisPrint) return;
    this.axisPrint = print;
    mark(this.axis, "width", Math.round(this.width));
    put(this.axis, ...marks);
  }

  drawNow() {
    const shows = (this.live || this.until !== null) && this.lanes.length > 0 && this.time >= this.from && this.time <= this.to + this.sight * 0.01;
    if (!shows) return this.now.remove();
    if (!this.now.isConnected) this.element.append(this.now);
    this.now.style.transform = `translateX(${(this.label + Math.min(this.width, this.x(this.time))).toFixed(1)}px)`;
    mark(this.now, "data-word", this.until === null ? "now" : clock(this.until));
  }
}

/** What a segment was, in words. */
const told = (segment) => `${KINDS[segment.kind]}${segment.label ? `: ${line(segment.label, 80)}` : ""}, ${span((segment.end - segment.start) * 1000)} from ${clock(segment.start)}`;

/** What is nearer than a pixel to the same kind is one. */
function merged(segments, x) {
  const found = [];
  for (const segment of segments) {
    const [from, to] = [x(segment.start), x(segment.end)];
    const last = found.at(-1);
    if (last && to - last.x - last.w < 0.5 && to - from < 0.5 && last.w > 0.5 && segment.kind !== "waiting") continue;
    if (last && last.kind === segment.kind && from - (last.x + last.w) < 0.5) {
      last.w = to - last.x;
      last.end = segment.end;
    } else found.push({ ...segment, x: from, w: to - from });
  }
  return found;
}

function summed(segments) {
  const sums = new Map();
  for (const one of segments) sums.set(one.kind, (sums.get(one.kind) ?? 0) + one.end - one.start);
  return [...sums].map(([kind, time]) => `${KINDS[kind]} ${span(time * 1000)}`).join(", ") || "nothing yet";
}
