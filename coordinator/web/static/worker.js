// One worker: what it was asked, said, did, changed, and what that cost.

import { h, Keyed, line, mark, put, say } from "./dom.js";
import { get } from "./api.js";
import { money, named, seconds, SIGNS, state, tokens } from "./format.js";
import { copy, diffLines, kill, send, waitingCall } from "./actions.js";
import { facts } from "./session.js";
import { Log } from "./log.js";

const LOOK = 1_000; // ms: a command's output grows without a word in the database
const CUT = 200_000; // characters of a text in a tab
const ENDS = ["completed", "failed", "killed"];

export function worker({ store, args }) {
  const id = args[0];
  let log = null, task = null, timer = null, closed = false;
  const crumb = h("a", { href: "#/" });
  const title = h("h1", { class: "goal" });
  const status = h("span", { class: "nowrap" });
  const shown = facts(["State", "Agent", "Model", "Time", "Tools", "Tokens", "Cost", "Attempt", "Branch"]);
  put(shown.values.State, status);
  const time = h("time");
  put(shown.values.Time, time);
  const problem = h("p", { class: "problem", hidden: true });
  const message = h("button", { type: "button", hidden: true, on: { click: () => send("tasks", id, named(task)) } }, "Message…");
  const end = h("button", { type: "button", class: "quiet-danger", hidden: true, on: { click: () => kill("tasks", id, named(task)) } }, "Kill…");
  const resume = h("button", { type: "button", hidden: true, on: { click: () => copy(`coordinator resume ${task.session_id}`) } }, "Copy resume");
  const inbox = h("section", { class: "asks", "aria-label": "Waiting for you", hidden: true });
  const calls = new Keyed(inbox, (call) => waitingCall(call, ""), () => {});
  const children = h("p", { class: "children", hidden: true });
  const tabs = h("div", { role: "tablist", class: "tabs", "aria-label": "About the worker", on: { keydown: arrows } });
  const panel = h("div", { role: "tabpanel", id: "panel", tabindex: 0 });
  const element = h("div", {}, h("nav", { "aria-label": "Where", class: "crumb" }, crumb),
    h("div", { class: "page-head" }, title, h("p", { class: "buttons head-buttons" }, message, resume, end)), shown.element, problem, inbox, children, tabs, panel);

  const PANELS = {
    Transcript: () => [h("div", { class: "section-head" }, log.choice), log.element],
    Output: () => output(),
    Prompt: () => text(store.task?.prompt, "it was given no prompt"),
    Result: () => text(store.task?.result, ENDS.includes(task.status) ? "it gave no result" : "it has not ended"),
    Files: () => later(`/api/tasks/${id}/files`, fileTable),
    Diff: () => later(`/api/tasks/${id}/diff`, (found) => (found.diff ? [h("pre", { class: "diff", tabindex: 0 }, diffLines(found.diff.slice(0, CUT))), found.missing.length ? h("p", { class: "muted" }, `without ${line(found.missing.join(", "), 300)}`) : null] : [h("p", { class: "empty" }, "nothing was changed")])),
    Usage: () => later(`/api/tasks/${id}/usage`, usageTable),
  };
  let chosen = null;

  function build() {
    const names = Object.keys(PANELS).filter((name) => (task.type === "local_bash" ? !["Transcript", "Diff", "Files", "Usage"].includes(name) : name !== "Output"));
    put(tabs, names.map((name) => h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "panel", on: { click: () => choose(name) } }, name)));
    if (task.type !== "local_bash") {
      log = new Log({ session: task.session_id, task: id, label: "Transcript", who: (item) => (item.kind === "prompt" ? "prompt" : named(task)) });
      log.load().catch(() => {});
    }
    const wanted = names.find((name) => name.toLowerCase() === args[1]);
    choose(wanted ?? names[0], true);
  }

  function choose(name, first = false) {
    chosen = name;
    for (const tab of tabs.children) {
      mark(tab, "aria-selected", tab.textContent === name ? "true" : "false");
      mark(tab, "tabindex", tab.textContent === name ? 0 : -1);
    }
    mark(panel, "aria-labelledby", `tab-${name}`);
    mark(panel, "tabindex", name === "Transcript" ? null : 0);
    put(panel, ...PANELS[name]());
    if (name === "Transcript") log.toEnd();
    if (!first) history.replaceState(null, "", `#/task/${encodeURIComponent(id)}/${name.toLowerCase()}`);
  }

  function arrows(event) {
    const all = [...tabs.children];
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const at = all.indexOf(document.activeElement);
    const next = step ? all[(at + step + all.length) % all.length] : event.key === "Home" ? all[0] : event.key === "End" ? all.at(-1) : null;
    if (!next) return;
    event.preventDefault();
    choose(next.textContent);
    next.focus();
  }

  function text(words, without) {
    if (!words) return [h("p", { class: "empty" }, without)];
    return [h("pre", { class: "prose", tabindex: 0 }, words.slice(0, CUT)), words.length > CUT ? h("p", { class: "muted" }, `${words.length.toLocaleString("en")} characters in all; coordinator show ${id} prints them`) : null];
  }

  function later(path, make) {
    const box = h("div", {}, h("p", { class: "empty" }, "…"));
    get(path).then((found) => put(box, ...make(found)), (error) => put(box, h("p", { class: "empty" }, error.message)));
    return [box];
  }

  function output() {
    const pre = h("pre", { class: "prose", tabindex: 0, "aria-label": "Output" });
    const note = h("p", { class: "muted" });
    const read = async () => {
      const found = await get(`/api/tasks/${id}/output`).catch(() => null);
      if (closed || !pre.isConnected || !found) return;
      const atEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 30;
      say(pre, found.text || "nothing yet");
      say(note, found.size > found.text.length + 3 ? `the end of ${found.size.toLocaleString("en")} bytes` : "");
      if (atEnd) pre.scrollTop = pre.scrollHeight;
    };
    clearInterval(timer);
    timer = setInterval(() => !ENDS.includes(task.status) && chosen === "Output" && !document.hidden && read(), LOOK);
    queueMicrotask(read);
    return [pre, note];
  }

  function update(change) {
    const found = store.tasks.get(id);
    if (!found) return void (store.ready && say(title, `no worker ${id}`));
    const ended = task && task.status !== found.status;
    const first = task === null;
    task = found;
    const session = store.sessions.get(task.session_id);
    mark(crumb, "href", `#/session/${task.session_id}`);
    say(crumb, `← ${line(session?.title || session?.goal || task.session_id, 70)}`);
    put(title, line(named(task), 40), h("span", { class: "muted" }, ` ${line(task.description, 160)}`));
    const now = state(task);
    if (status.dataset.state !== now) {
      status.dataset.state = now;
      put(status, h("span", { class: `sign ${now}`, "aria-hidden": "true" }, SIGNS[now]), ` ${now === "waiting" ? "waits for you" : now}`);
    }
    say(shown.values.Agent, line(task.agent, 40) || task.type);
    say(shown.values.Model, line(task.model, 40) || "?");
    mark(time, "data-from", task.started_at);
    mark(time, "data-to", task.ended_at);
    say(shown.values.Tools, task.tool_uses);
    say(shown.values.Tokens, `${tokens(task.input_tokens)} in, ${tokens(task.output_tokens)} out`);
    say(shown.values.Cost, money(task.cost_usd));
    say(shown.values.Attempt, task.attempt);
    say(shown.values.Branch, line(store.task?.branch, 60) || "–");
    mark(shown.values.Branch, "title", line(store.task?.worktree, 300) || null);
    const why = task.error || (now === "killed" ? task.end_reason : null);
    mark(problem, "hidden", why ? null : "");
    say(problem, line(why, 600));
    mark(message, "hidden", task.type === "local_bash" || now === "killed" ? "" : null);
    mark(resume, "hidden", null);
    mark(end, "hidden", ENDS.includes(task.status) ? "" : null);
    const waiting = store.inbox.filter((call) => call.task_id === id);
    mark(inbox, "hidden", waiting.length ? null : "");
    calls.show(waiting);
    const below = [...store.tasks.values()].filter((each) => each.parent_id === id);
    mark(children, "hidden", below.length ? null : "");
    if (children.childElementCount !== below.length) put(children, "Began ", ...below.flatMap((each, n) => [n ? ", " : "", h("a", { href: `#/task/${each.id}` }, line(named(each), 40))]));
    if (first) build();
    else if (ended && chosen === "Result") choose("Result", true);
    if (log && (change.log.length || change.left_out)) log.add(change.log, change.left_out);
  }

  return {
    element, update,
    close: () => {
      closed = true;
      clearInterval(timer);
      log?.close();
    },
    title: () => (task ? line(named(task), 60) : id),
  };
}

function fileTable(files) {
  if (!files.length) return [h("p", { class: "empty" }, "it named no file")];
  return [h("table", {}, h("caption", { class: "hidden" }, "Files that its calls named"),
    h("thead", {}, h("tr", {}, ["File", "Edits", "Reads"].map((name, n) => h("th", { scope: "col", class: n ? "number" : null }, name)))),
    h("tbody", {}, files.slice(0, 1_000).map((file) => h("tr", {}, h("th", { scope: "row", class: file.edits ? "path edited" : "path" }, line(file.path, 300)), h("td", { class: "number" }, file.edits || ""), h("td", { class: "number" }, file.reads || "")))))];
}

function usageTable(rows) {
  if (!rows.length) return [h("p", { class: "empty" }, "no model was called")];
  const columns = [["Model", (row) => row.model], ["Calls", (row) => row.calls], ["Input", (row) => tokens(row.input_tokens)], ["Cache write", (row) => tokens(row.cache_write_tokens)], ["Cache read", (row) => tokens(row.cache_read_tokens)], ["Output", (row) => tokens(row.output_tokens)], ["Cost", (row) => money(row.cost_usd)]];
  return [h("table", {}, h("caption", { class: "hidden" }, "Usage by model"), h("thead", {}, h("tr", {}, columns.map(([name], n) => h("th", { scope: "col", class: n ? "number" : null }, name)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, columns.map(([, value], n) => h(n ? "td" : "th", { class: n ? "number" : null, scope: n ? null : "row" }, value(row)))))))];
}
