// The timeline: a lane for each agent, drawn as SVG. What is shorter than a pixel is merged, lanes out of sight are not drawn, and
// while a session runs the scale stays as it is until the line of now reaches its end: only what lives grows.

import { h, line, mark, put, say, svg } from "./dom.js";
import { clock, money, SIGNS, span, tokens } from "./format.js";

const ROW = 26, BAR = 12, TALL = 18; // px
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800];
export const KINDS = { model: "model", tool: "tools", waiting: "waits for you", queued: "in the queue", idle: "idle" };

export class Timeline {
  /** `pick(lane, segment)` is called with the lane a person chose, or null; `href(lane)` leads to its page. */
  constructor({ pick, href }) {
    Object.assign(this, { pick, href, lanes: [], tasks: new Map(), until: null, live: false, offset: 0, begin: 0, end: 1, width: 0, chosen: null });
    this.axis = svg("svg", { class: "axis", "aria-hidden": "true", height: 22 });
    this.body = h("ul", { class: "lanes", "aria-label": "Agents" });
    this.now = h("div", { class: "now", "aria-hidden": "true" });
    this.scroll = h("div", { class: "lanes-frame", on: { scroll: () => this.draw() } }, this.body);
    const legend = Object.entries(KINDS).map(([kind, word]) => h("span", { class: `key ${kind}` }, word));
    this.legend = h("div", { class: "legend" }, legend);
    this.element = h("div", { class: "timeline" }, h("div", { class: "axis-row" }, this.axis), this.scroll);
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
    const begin = Math.min(...this.lanes.map((lane) => lane.start));
    const last = this.live ? Date.now() / 1000 + this.offset : Math.max(...this.lanes.map((lane) => lane.end));
    const fits = begin === this.begin && last <= this.end && (this.live ? (last - begin) * 3 > this.end - begin : last === this.end);
    if (!fits) {
      this.begin = begin;
      this.end = this.live ? last + Math.max(5, (last - begin) * 0.12) : Math.max(last, begin + 0.001);
    }
  }

  x(at) {
    return ((at - this.begin) / (this.end - this.begin)) * this.width;
  }

  draw() {
    this.scaleFor();
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
    const choose = h("button", { type: "button", class: "lane-name", on: { click: () => this.chose(lane.id, null) } }, sign, h("span", {}, line(lane.name, 40)), word);
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
    say(row.figures, task && this.until === null ? `${tokens(task.total_tokens)}  ${money(task.cost_usd)}` : "");
    this.bars(row, lane, state);
  }

  stateOf(lane, task) {
    if (this.until !== null) return this.states?.get(lane.id) ?? (lane.parent_id === null ? "running" : "unborn");
    return task ? (task.needs_approval && task.status === "running" ? "waiting" : task.status) : lane.status;
  }

  bars(row, lane, state) {
    const lives = this.live && this.until === null && ["running", "waiting", "pending"].includes(state);
    const found = merged(this.segments(lane, lives), (at) => this.x(at));
    mark(row.bars, "width", Math.round(this.width));
    mark(row.bars, "aria-label", `${lane.name}: ${summed(this.segments(lane, lives))}`);
    while (row.rects.length > found.length) row.rects.pop().remove();
    found.forEach((segment, n) => {
      let rect = row.rects[n];
      if (!rect) {
        rect = svg("rect", {}, svg("title"));
        row.rects.push(rect);
        row.bars.append(rect);
      }
      const tall = segment.kind === "waiting" ? TALL : segment.kind === "idle" || segment.kind === "queued" ? 2 : BAR;
      mark(rect, "class", segment.kind);
      mark(rect, "x", segment.x.toFixed(1));
      mark(rect, "width", Math.max(0.8, segment.w).toFixed(1));
      mark(rect, "y", (ROW - tall) / 2);
      mark(rect, "height", tall);
      rect.segment = segment;
      rect.lane = lane.id;
      say(rect.firstChild, `${KINDS[segment.kind]}${segment.label ? `: ${line(segment.label, 80)}` : ""}, ${span((segment.end - segment.start) * 1000)} from ${clock(segment.start)}`);
    });
  }

  segments(lane, lives) {
    const last = lane.segments.length - 1;
    const all = lane.segments.map((segment, n) => (lives && n === last ? { ...segment, end: Math.max(segment.end, this.time) } : segment));
    if (this.until === null) return all;
    return all.filter((segment) => segment.start < this.until).map((segment) => ({ ...segment, end: Math.min(segment.end, this.until) }));
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
    const length = this.end - this.begin;
    const step = STEPS.find((each) => each * Math.max(2, this.width / 90) >= length) ?? STEPS.at(-1);
    const marks = [svg("text", { x: 0, y: 14 }, clock(this.begin))];
    for (let at = step; at < length; at += step) {
      const x = this.x(this.begin + at);
      if (x < 62 || x > this.width - 24) continue;
      marks.push(svg("line", { x1: x, x2: x, y1: 18, y2: 22 }), svg("text", { x, y: 14, "text-anchor": "middle" }, `+${span(at * 1000)}`));
    }
    const print = `${this.begin} ${this.end} ${this.width}`;
    if (print === this.axisPrint) return;
    this.axisPrint = print;
    mark(this.axis, "width", Math.round(this.width));
    put(this.axis, ...marks);
  }

  drawNow() {
    const shows = (this.live || this.until !== null) && this.lanes.length > 0;
    if (!shows) return this.now.remove();
    if (!this.now.isConnected) this.element.append(this.now);
    this.now.style.transform = `translateX(${(this.label + Math.min(this.width, this.x(this.time))).toFixed(1)}px)`;
    mark(this.now, "data-word", this.until === null ? "now" : clock(this.until));
  }
}

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
