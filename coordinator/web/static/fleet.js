// What waits for a person, all sessions, all workers.

import { h, Keyed, line, mark, put, say } from "./dom.js";
import { counted, money, named, rank, seconds, SIGNS, span, state, tokens } from "./format.js";
import { waitingCall } from "./actions.js";

const SESSIONS = 8, ROWS = 200;
const COMPARES = { "<": (a, b) => a < b, ">": (a, b) => a > b };
const COLUMNS = [
  { name: "Worker", key: (task) => named(task).toLowerCase() },
  { name: "Agent", key: (task) => task.agent ?? "", wide: true },
  { name: "Doing", key: (task) => task.last_activity ?? "", wide: true },
  { name: "Session", key: (task) => task.session_id, wide: true },
  { name: "Time", key: (task) => -seconds(task.started_at ?? task.created_at), number: true },
  { name: "Idle", key: (task) => task.idle_ms ?? -1, number: true, wide: true },
  { name: "Tools", key: (task) => task.tool_uses, number: true, wide: true },
  { name: "Tokens", key: (task) => task.total_tokens, number: true },
  { name: "Cost", key: (task) => task.cost_usd ?? Infinity, number: true },
];
const WORDS = { state, agent: (task) => task.agent, session: (task) => task.session_id, model: (task) => task.model, name: (task) => task.name, type: (task) => task.type };
const NUMBERS = { cost: (task) => task.cost_usd ?? 0, tokens: (task) => task.total_tokens, tools: (task) => task.tool_uses };

/** A test for tasks out of `state:failed agent:reviewer cost>0.5 words`. Throws an Error that says what is wrong. */
export function filterOf(text) {
  const tests = text.trim().split(/\s+/).filter(Boolean).map((word) => {
    const number = /^(\w+)([<>])(.*)$/.exec(word);
    if (number && Object.hasOwn(NUMBERS, number[1])) {
      const limit = Number(number[3]);
      if (number[3] === "" || Number.isNaN(limit)) throw new Error(`${word}: a number follows ${number[2]}`);
      return (task) => COMPARES[number[2]](NUMBERS[number[1]](task), limit);
    }
    const named = /^(\w+):(.*)$/.exec(word);
    if (named && Object.hasOwn(WORDS, named[1])) return (task) => String(WORDS[named[1]](task) ?? "").toLowerCase().startsWith(named[2].toLowerCase());
    if (named) throw new Error(`${named[1]}: is not known; ${Object.keys(WORDS).join(", ")} are, and cost, tokens, tools with < or >`);
    const wanted = word.toLowerCase();
    return (task) => [task.id, task.name, task.description, task.agent, task.last_activity, task.error].some((each) => String(each ?? "").toLowerCase().includes(wanted));
  });
  return (task) => tests.every((test) => test(task));
}

/** The head of a table; `sort` is called with a column's number. */
function head(columns, sort) {
  return h("thead", {}, h("tr", {}, columns.map((column, n) => h("th", { scope: "col", class: kind(column), "data-column": n },
    sort ? h("button", { type: "button", class: "plain", on: { click: () => sort(n) } }, column.name) : column.name))));
}

const kind = (column) => [column.number && "number", column.wide && "wide"].filter(Boolean).join(" ") || null;

export function fleet({ store }) {
  let filter = () => true, order = null, up = 1, allSessions = false, rows = ROWS;
  const inbox = h("div", { class: "asks" });
  const inboxSection = h("section", { "aria-labelledby": "inbox-title", hidden: true }, h("h2", { id: "inbox-title" }, "Waiting for you"), inbox);
  const calls = new Keyed(inbox, (call) => waitingCall(call, h("a", { href: call.task_id ? `#/task/${call.task_id}` : `#/session/${call.session_id}` }, line(call.agent, 40))), () => {});

  const sessionsBody = h("tbody");
  const moreSessions = h("button", { type: "button", class: "plain more-rows", hidden: true, on: { click: () => { allSessions = !allSessions; update(); } } });
  const sessionsEmpty = h("p", { class: "empty" }, "no session yet: ", h("code", {}, "coordinator run \"your goal\""), " begins one");
  const sessionColumns = [{ name: "Session" }, { name: "State" }, { name: "Workers", number: true }, { name: "Time", number: true, wide: true }, { name: "Cost", number: true }];
  const sessionTable = h("table", {}, h("caption", { class: "hidden" }, "Sessions, newest first"), head(sessionColumns, null), sessionsBody);
  const sessionRows = new Keyed(sessionsBody, makeSession, updateSession);

  const search = h("input", { type: "search", placeholder: "state:running agent:explore cost>0.5 words", "aria-label": "Filter workers", "aria-describedby": "filter-error", autocomplete: "off", spellcheck: "false", on: { input: () => refilter() } });
  const wrong = h("p", { id: "filter-error", class: "bad", role: "alert" });
  const body = h("tbody");
  const header = head(COLUMNS, sortBy);
  const table = h("table", { class: "workers" }, h("caption", { class: "hidden" }, "Workers, those that wait for you first"), header, body);
  const more = h("button", { type: "button", class: "plain more-rows", hidden: true, on: { click: () => { rows = Infinity; update(); } } });
  const count = h("span", { class: "count" });
  const empty = h("p", { class: "empty" }, "no worker fits");
  const taskRows = new Keyed(body, makeTask, updateTask);

  function refilter() {
    try {
      filter = filterOf(search.value);
      say(wrong, "");
    } catch (error) {
      say(wrong, error.message);
    }
    rows = ROWS;
    update();
  }

  function sortBy(n) {
    if (order === n && up === -1) [order, up] = [null, 1];
    else [order, up] = order === n ? [n, -1] : [n, 1];
    header.querySelectorAll("th").forEach((th, i) => mark(th, "aria-sort", i === order ? (up === 1 ? "ascending" : "descending") : null));
    update();
  }

  function sorted(tasks) {
    const newest = tasks.sort((a, b) => rank(a) - rank(b) || (a.created_at < b.created_at ? 1 : -1));
    if (order === null) return newest;
    const key = COLUMNS[order].key;
    return newest.sort((a, b) => up * (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0));
  }

  function update() {
    if (!store.ready) return;
    mark(inboxSection, "hidden", store.inbox.length ? null : "");
    calls.show(store.inbox.slice(0, 50));

    const sessions = [...store.sessions.values()].sort((a, b) => (a.created_at < b.created_at ? 1 : -1));
    sessionRows.show(allSessions ? sessions : sessions.slice(0, SESSIONS));
    mark(moreSessions, "hidden", sessions.length > SESSIONS ? null : "");
    say(moreSessions, allSessions ? "Show fewer" : `Show all ${sessions.length}`);
    mark(sessionsEmpty, "hidden", sessions.length ? "" : null);
    mark(sessionTable, "hidden", sessions.length ? null : "");

    const all = [...store.tasks.values()];
    const found = sorted(all.filter(filter));
    taskRows.show(found.slice(0, rows));
    mark(more, "hidden", found.length > rows ? null : "");
    say(more, `Show ${found.length - rows} more`);
    say(count, found.length === all.length ? counted(all.length, "worker") : `${found.length} of ${counted(all.length, "worker")}`);
    mark(empty, "hidden", found.length || !all.length ? "" : null);
    mark(table, "hidden", found.length ? null : "");
  }

  const element = h("div", {}, h("h1", { class: "hidden" }, "Fleet"), inboxSection,
    h("section", { "aria-labelledby": "sessions-title" }, h("h2", { id: "sessions-title" }, "Sessions"), sessionsEmpty, sessionTable, moreSessions),
    h("section", { "aria-labelledby": "workers-title" }, h("div", { class: "section-head" }, h("h2", { id: "workers-title" }, "Workers"), count, search), wrong, table, empty, more));
  return { element, update, title: () => "coordinator" };
}

function makeSession(session) {
  return h("tr", {}, h("th", { scope: "row" }, h("a", { href: `#/session/${session.id}` })), h("td", { class: "nowrap" }), h("td", { class: "number" }), h("td", { class: "number wide" }, h("time")), h("td", { class: "number" }));
}

const STATE_SIGNS = { "waiting for you": "waiting", working: "running", stuck: "interrupted", done: "completed", failed: "failed" };

export function sessionState(session) {
  const kind = STATE_SIGNS[session.state] ?? "pending";
  return [h("span", { class: `sign ${kind}`, "aria-hidden": "true" }, SIGNS[kind]), ` ${session.state}`];
}

function updateSession(element, session) {
  const [title, status, workers, time, cost] = element.children;
  say(title.firstChild, line(session.title || session.goal, 140) || session.id);
  if (status.dataset.state !== session.state) {
    status.dataset.state = session.state;
    put(status, ...sessionState(session));
  }
  say(workers, session.live_tasks ? `${session.live_tasks} / ${session.tasks}` : session.tasks);
  mark(time.firstChild, "data-from", session.created_at);
  mark(time.firstChild, "data-to", session.ended_at ?? (session.driven ? null : session.updated_at));
  say(cost, money(session.cost_usd));
}

function makeTask(task) {
  const sign = h("span", { class: "sign", "aria-hidden": "true" });
  return h("tr", { "data-id": task.id },
    h("th", { scope: "row" }, sign, h("span", { class: "hidden" }), h("a", { href: `#/task/${task.id}` }, line(named(task), 40)), h("span", { class: "muted" }, ` ${line(task.description, 90)}`)),
    h("td", { class: "wide nowrap" }, line(task.agent, 30)), h("td", { class: "wide doing" }), h("td", { class: "wide" }, h("a", { class: "muted", href: `#/session/${task.session_id}` }, line(task.session_id, 14))),
    h("td", { class: "number" }, h("time")), h("td", { class: "number wide idle" }), h("td", { class: "number wide" }), h("td", { class: "number" }), h("td", { class: "number" }));
}

function updateTask(element, task) {
  const [name, , doing, , time, idle, tools, total, cost] = element.children;
  const now = state(task);
  mark(name.children[0], "class", `sign ${now}`);
  say(name.children[0], SIGNS[now]);
  say(name.children[1], `${now}: `);
  say(doing, line(now === "failed" ? task.error : task.last_activity, 120));
  mark(time.firstChild, "data-from", task.started_at);
  mark(time.firstChild, "data-to", task.ended_at);
  const sign = now === "running" && task.sign ? new Date(task.sign * 1000).toISOString() : null;
  if (sign === null) say(idle, "");
  mark(idle, "data-from", sign);
  say(tools, task.tool_uses || "");
  const begun = task.total_tokens > 0 || now !== "pending";
  say(total, begun ? tokens(task.total_tokens) : "");
  say(cost, begun ? money(task.cost_usd) : "");
}
