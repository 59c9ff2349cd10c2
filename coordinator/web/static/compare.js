// Two sessions side by side: a fork and its origin, or two tries at one goal.

import { h, line, mark, put } from "./dom.js";
import { get } from "./api.js";
import { day, money, named, seconds, SIGNS, span, state, tokens } from "./format.js";
import { diffLines } from "./actions.js";

const FIELDS = [
  ["Goal", (one) => line(one.goal, 300)], ["State", (one) => one.state], ["Ended", (one) => one.end_reason ?? "–"], ["Model", (one) => one.model ?? "?"],
  ["Begun", (one) => day(seconds(one.created_at))], ["Time", (one) => span(one.duration_ms), true, (one) => one.duration_ms], ["Workers", (one) => one.tasks, true, (one) => one.tasks],
  ["Failed", (one) => one.failed, true, (one) => one.failed], ["Tools", (one) => one.tool_uses, true, (one) => one.tool_uses],
  ["Tokens", (one) => tokens(one.total_tokens), true, (one) => one.total_tokens], ["Cost", (one) => money(one.cost_usd), true, (one) => one.cost_usd],
];
const MOST = 2_000; // lines of a diff

export function compare({ store, args }) {
  let [a, b] = args, round = 0, offered = "";
  const choose = (label, which) => h("select", { "aria-label": label, on: { change: (event) => go(which, event.target.value) } });
  const [first, second] = [choose("First session", 0), choose("Second session", 1)];
  const box = h("div", {});
  const element = h("div", {}, h("h1", {}, "Compare"), h("div", { class: "pick-two" }, first, h("span", { class: "muted" }, "with"), second), box);

  function go(which, id) {
    const [one, other] = which === 0 ? [id, b] : [a, id];
    location.hash = `#/compare/${encodeURIComponent(one || "")}${other ? `/${encodeURIComponent(other)}` : ""}`;
  }

  function update() {
    const sessions = [...store.sessions.values()].sort((one, other) => (one.created_at < other.created_at ? 1 : -1));
    // A session alone is put beside the one it was forked from, or its fork, or the one before it.
    const own = store.sessions.get(a);
    const near = own && (store.sessions.get(own.parent_id) ?? sessions.find((one) => one.parent_id === a));
    const print = sessions.map((one) => one.id).join() + a + b;
    if (print === offered) return;
    offered = print;
    for (const [box, wanted] of [[first, a], [second, b]]) {
      put(box, h("option", { value: "" }, "choose a session"), sessions.map((one) => h("option", { value: one.id, selected: one.id === wanted }, `${day(seconds(one.created_at))}  ${line(one.title || one.goal, 70)}`)));
    }
    if (a && !b && near) return go(1, near.id);
    load();
  }

  async function load() {
    const mine = ++round;
    if (!a || !b) return put(box, h("p", { class: "empty" }, "choose two sessions"));
    try {
      const found = await get(`/api/compare?a=${encodeURIComponent(a)}&b=${encodeURIComponent(b)}`);
      if (mine === round) put(box, ...show(found));
    } catch (error) {
      if (mine === round) put(box, h("p", { class: "bad" }, error.message));
    }
  }

  function show({ sessions, tasks, result_diff }) {
    const [one, other] = sessions;
    const heads = sessions.map((session) => h("th", { scope: "col" }, h("a", { href: `#/session/${session.id}` }, session.id)));
    const rows = FIELDS.map(([name, value, numeric, number]) => {
      const [left, right] = [value(one), value(other)];
      const change = numeric && number(one) !== null && number(other) !== null ? difference(number(one), number(other)) : "";
      return h("tr", { class: String(left) === String(right) ? null : "differs" }, h("th", { scope: "row" }, name), h("td", {}, left), h("td", {}, right), h("td", { class: "muted wide" }, change));
    });
    const lines = result_diff.slice(0, MOST);
    return [
      h("table", { class: "compare" }, h("caption", { class: "hidden" }, "The two sessions"), h("thead", {}, h("tr", {}, h("td"), heads, h("th", { scope: "col", class: "wide" }, "Change"))), h("tbody", {}, rows)),
      h("section", { "aria-labelledby": "tasks-title" }, h("h2", { id: "tasks-title" }, "Workers"), tasks.length ? h("table", { class: "compare pairs" }, h("caption", { class: "hidden" }, "Workers of both, pairs by name"),
        h("thead", {}, h("tr", {}, ["Worker", "First", "Second"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, tasks.slice(0, 500).map(pair))) : h("p", { class: "empty" }, "neither has workers")),
      h("section", { "aria-labelledby": "results-title" }, h("h2", { id: "results-title" }, "Results"), lines.length ? h("pre", { class: "diff", tabindex: 0 }, diffLines(lines.join("\n"))) : h("p", { class: "empty" }, one.result === null && other.result === null ? "neither has a result yet" : "both say the same")),
    ];
  }

  function pair({ a: left, b: right }) {
    const any = left ?? right;
    return h("tr", {}, h("th", { scope: "row" }, line(named(any), 40), h("span", { class: "muted" }, ` ${line(any.description, 80)}`)), side(left), side(right));
  }

  function side(task) {
    if (!task) return h("td", { class: "muted" }, "–");
    return h("td", {}, h("a", { href: `#/task/${task.id}` }, h("span", { class: `sign ${state(task)}`, "aria-hidden": "true" }, SIGNS[state(task)]), ` ${state(task)}`), h("span", { class: "muted" }, `  ${span(task.duration_ms)}  ${tokens(task.total_tokens)}  ${money(task.cost_usd)}`));
  }

  load();
  return {
    element, update,
    follow: ([one, other]) => {
      [a, b] = [one, other];
      offered = "";
      update();
    },
    close: () => { round++; },
    title: () => "Compare",
  };
}

function difference(one, other) {
  if (one === other) return "same";
  if (!one) return `+${other < 1 ? other.toFixed(4) : other}`;
  const share = Math.round((other / one - 1) * 100);
  return `${share > 0 ? "+" : "−"}${Math.abs(share)} %`;
}
