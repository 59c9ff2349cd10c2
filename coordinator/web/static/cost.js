// What was spent: by session, agent, model, day, task, purpose.

import { h, line, mark, put } from "./dom.js";
import { get } from "./api.js";
import { money, tokens } from "./format.js";

const BY = ["session", "day", "model", "agent", "task", "purpose"];
const ROWS = 300, PAUSE = 5_000; // ms between two readings while the page is open

export function cost({ store, args }) {
  let by = BY.includes(args[0]) ? args[0] : "session", read = 0, timer = null;
  const choice = h("div", { class: "choice", role: "group", "aria-label": "Sum by" }, BY.map((name) => h("a", { class: "button", href: `#/cost/${name}` }, name)));
  const box = h("div", {}, h("p", { class: "empty" }, "…"));
  const element = h("div", {}, h("div", { class: "section-head" }, h("h1", {}, "Cost"), choice), box);

  async function load() {
    const round = ++read;
    try {
      const rows = await get(`/api/cost?by=${by}`);
      if (round === read) put(box, ...show(rows));
    } catch (error) {
      if (round === read) put(box, h("p", { class: "bad" }, error.message));
    }
  }

  function show(rows) {
    for (const each of choice.children) mark(each, "aria-current", each.textContent === by ? "true" : null);
    if (!rows.length) return [h("p", { class: "empty" }, "nothing was spent yet")];
    const most = Math.max(...rows.map((row) => row.cost_usd ?? 0), 1e-9);
    const sum = (name) => rows.reduce((total, row) => total + (row[name] ?? 0), 0);
    const unknown = rows.some((row) => row.cost_usd === null);
    const columns = [by[0].toUpperCase() + by.slice(1), "Calls", "Input", "Cache write", "Cache read", "Output", "Cost"];
    const body = rows.slice(0, ROWS).map((row) => {
      const bar = h("span", { class: "bar", "aria-hidden": "true" });
      bar.style.width = `${((row.cost_usd ?? 0) / most) * 100}%`;
      return h("tr", {}, h("th", { scope: "row" }, label(row)), h("td", { class: "number" }, row.calls), h("td", { class: "number wide" }, tokens(row.input_tokens)), h("td", { class: "number wide" }, tokens(row.cache_write_tokens)),
        h("td", { class: "number wide" }, tokens(row.cache_read_tokens)), h("td", { class: "number" }, tokens(row.output_tokens)), h("td", { class: "number barred" }, bar, h("span", {}, money(row.cost_usd))));
    });
    const total = h("tr", { class: "total" }, h("th", { scope: "row" }, "all"), h("td", { class: "number" }, sum("calls")), ...["input_tokens", "cache_write_tokens", "cache_read_tokens"].map((name) => h("td", { class: "number wide" }, tokens(sum(name)))),
      h("td", { class: "number" }, tokens(sum("output_tokens"))), h("td", { class: "number" }, `${unknown ? "at least " : ""}${money(sum("cost_usd"))}`));
    return [h("table", { class: "costs" }, h("caption", { class: "hidden" }, `Cost by ${by}`), h("thead", {}, h("tr", {}, columns.map((name, n) => h("th", { scope: "col", class: [n && "number", n > 1 && n < 5 && "wide"].filter(Boolean).join(" ") || null }, name)))),
      h("tbody", {}, body), h("tfoot", {}, total)), rows.length > ROWS ? h("p", { class: "muted" }, `the ${ROWS} newest of ${rows.length}`) : null];
  }

  function label(row) {
    const id = row[by];
    if (by === "session") {
      const known = store.sessions.get(id);
      return h("a", { href: `#/session/${id}` }, line(known?.title || known?.goal || id, 90));
    }
    if (by === "task" && id) return h("a", { href: `#/task/${id}` }, line(store.tasks.get(id)?.description ?? id, 90));
    return line(id ?? "–", 60);
  }

  load();
  return {
    element,
    update: () => {
      if (!timer) timer = setTimeout(() => { timer = null; load(); }, read > 1 ? PAUSE : 0);
    },
    follow: ([name]) => {
      by = BY.includes(name) ? name : "session";
      load();
    },
    close: () => {
      read++;
      clearTimeout(timer);
    },
    title: () => "Cost",
  };
}
