// The shell: which page is shown, what it knows, and whether that is still so.

import { announce, mark, put, say } from "./dom.js";
import { enter, Feed, hasToken, setToken, whenLocked } from "./api.js";
import { span } from "./format.js";
import { toast, unlock } from "./actions.js";
import { fleet } from "./fleet.js";
import { session } from "./session.js";
import { worker } from "./worker.js";
import { cost } from "./cost.js";
import { compare } from "./compare.js";

const PAGES = { "": fleet, session, task: worker, cost, compare };
const NEWS = { task_failed: "failed", task_killed: "was killed", approval_asked: "waits for you" };
const WAIT = 60; // ms: what comes in a burst is drawn once

/** What the feed told: sessions and tasks by id, calls that wait, and how far the server's clock is ahead, in seconds. */
const store = { sessions: new Map(), tasks: new Map(), inbox: [], money: null, forecast: null, task: null, ahead: 0, ready: false };
let view = null, feed = null, scope = null, pending = null;

const main = document.getElementById("main");
const link = document.getElementById("link");

function parse() {
  const [name = "", ...args] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  return Object.hasOwn(PAGES, name) ? { name, args } : { name: "", args: [] };
}

function show() {
  const { name, args } = parse();
  const wanted = { session: `?session=${encodeURIComponent(args[0])}`, task: `?task=${encodeURIComponent(args[0])}` }[name] ?? "";
  const same = view?.page === name && view.args[0] === args[0] && view.follow;
  if (same) {
    view.follow(args);
  } else {
    view?.close?.();
    if (wanted !== scope) follow(wanted);
    view = { ...PAGES[name]({ store, args }), page: name, args };
    put(main, view.element);
    document.documentElement.dataset.page = name || "fleet";
    if (store.ready) view.update({ log: [] });
    scrollTo(0, 0);
  }
  for (const each of document.querySelectorAll("[data-page]")) {
    const here = each.dataset.page === (name || "fleet");
    if (each.tagName === "A") mark(each, "aria-current", here ? "page" : null);
  }
  title();
}

/** The feed of another scope; what was known is forgotten, as the first update tells all of it. */
function follow(wanted) {
  feed?.close();
  scope = wanted;
  Object.assign(store, { sessions: new Map(), tasks: new Map(), money: null, forecast: null, task: null, ready: false });
  feed = new Feed(wanted, tell, linked);
}

function tell(kind, data) {
  if (kind === "event") return happened(data);
  if (kind !== "update") return;
  if (data.whole) Object.assign(store, { sessions: new Map(), tasks: new Map() });
  store.ahead = data.now - Date.now() / 1000;
  for (const name of ["sessions", "tasks"]) {
    for (const row of data[name]?.rows ?? []) store[name].set(row.id, Object.assign(row, { sign: row.idle_ms === null ? null : data.now - row.idle_ms / 1000 }));
    for (const id of data[name]?.gone ?? []) store[name].delete(id);
  }
  for (const name of ["inbox", "money", "forecast", "task"]) if (name in data) store[name] = data[name];
  const again = data.whole && store.ready;
  store.ready = true;
  if (!pending) {
    pending = { log: [], left_out: false };
    setTimeout(draw, WAIT);
  }
  pending.log.push(...(data.log ?? []));
  pending.left_out ||= Boolean(data.left_out) || again || pending.log.length > 1_000;
  if (pending.left_out) pending.log = [];
}

function draw() {
  const change = pending;
  pending = null;
  view?.update(change);
  const count = store.inbox.length;
  mark(document.getElementById("waiting"), "hidden", count ? null : "");
  say(document.getElementById("waiting"), `▲ ${count} waiting`);
  title();
  tick();
}

function title() {
  const count = store.inbox.length;
  const text = `${count ? `(${count}) ` : ""}${view?.title?.() ?? "coordinator"}`;
  if (document.title !== text) document.title = text;
}

function happened(event) {
  const word = NEWS[event.kind];
  if (!word) return;
  const task = store.tasks.get(event.task_id);
  announce(`${task?.name ?? task?.description ?? event.task_id ?? event.session_id} ${word}`);
}

function linked(state, why) {
  const words = { live: "live", connecting: "connecting", lost: "reconnecting", locked: "locked" };
  if (link.dataset.state !== state && state === "lost") announce("the connection is lost; what is shown is old");
  mark(link, "data-state", state);
  say(link, words[state]);
  mark(link, "title", why ? String(why).slice(0, 200) : null);
  mark(document.documentElement, "data-link", state);
  if (state === "locked") locked();
}

function locked() {
  const button = document.getElementById("lock");
  mark(button, "hidden", hasToken() ? "" : null);
}

/** Ages go on by themselves: `data-from` is a time, `data-to` where it stops, if it has. */
function tick() {
  const now = Date.now() + store.ahead * 1000;
  for (const each of document.querySelectorAll("[data-from]")) {
    const { from, to } = each.dataset;
    if (from) say(each, span((to ? Date.parse(to) : now) - Date.parse(from)));
  }
  view?.tick?.(now / 1000);
}

document.getElementById("lock").addEventListener("click", unlock);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
whenLocked(() => {
  locked();
  feed?.wake?.();
});
addEventListener("hashchange", () => {
  const token = /^#token=([^&]+)/.exec(location.hash);
  if (token) {
    setToken(decodeURIComponent(token[1]));
    history.replaceState(null, "", "#/");
  }
  show();
});
setInterval(tick, 1000);
await enter().catch((error) => toast(error.message, true));
locked();
show();
