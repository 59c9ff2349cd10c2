// One session: what it is for, what it costs, who did what when, what was said. The same with a slider: how it stood then.

import { announce, h, Keyed, line, mark, put, say } from "./dom.js";
import { get } from "./api.js";
import { clock, counted, money, named, percent, seconds, span, state, tokens } from "./format.js";
import { copy, kill, send, toast, waitingCall } from "./actions.js";
import { sessionState } from "./fleet.js";
import { Log } from "./log.js";
import { Timeline } from "./timeline.js";

const LEAST = 1_000; // ms between two readings of the timeline; five times as long as one takes, where that is more
const GOAL = 240; // characters of a goal before it is cut
const MOST_EVENTS = 20_000; // that a replay goes over
const AFTER = { task_created: "pending", task_running: "running", task_completed: "completed", task_failed: "failed", task_killed: "killed" };
const TOLD = {
  session_created: "the session begins", session_ended: "the session ends", session_reopened: "the session goes on", session_forked: "forked",
  task_created: "is asked for", task_running: "begins", task_completed: "is done", task_failed: "failed", task_killed: "was killed",
  task_stop_requested: "is to end", task_unwound: "is unwound", approval_asked: "waits for a person", approval_answered: "has its answer",
};

/** A line of facts: terms with values that change. */
export function facts(names) {
  const values = Object.fromEntries(names.map((name) => [name, h("dd")]));
  return { element: h("dl", { class: "facts" }, names.map((name) => h("div", {}, h("dt", {}, name), values[name]))), values };
}

export function session({ store, args }) {
  const id = args[0];
  let reading = false, again = false, closed = false, lanes = [], names = "";

  const goal = h("h1", { class: "goal" });
  const wholeGoal = h("details", { class: "goal-whole", hidden: true }, h("summary", {}, "The whole goal"), h("pre", { tabindex: 0 }));
  const status = h("span", { class: "nowrap" });
  const shown = facts(["State", "Spent", "Cache", "Workers", "Time", "Left", "Model", "Directory"]);
  const bar = h("span", { class: "meter", "aria-hidden": "true", hidden: true }, h("span"));
  const spent = h("span");
  put(shown.values.Spent, spent, bar);
  put(shown.values.State, status);
  const time = h("time");
  put(shown.values.Time, time);
  const left = h("span"), leftOf = h("span", { class: "muted" }), leftWords = h("span", { class: "hidden" });
  put(shown.values.Left, left, leftOf, leftWords);
  const end = h("button", { type: "button", class: "quiet-danger", on: { click: () => kill("sessions", id, id) } }, "End session…");
  const replayButton = h("a", { class: "button", href: `#/session/${encodeURIComponent(id)}/replay` }, "Replay");
  const against = h("a", { class: "button", href: `#/compare/${encodeURIComponent(id)}` }, "Compare");
  const buttons = h("p", { class: "buttons head-buttons" },
    h("button", { type: "button", on: { click: () => send("sessions", id, "the session's coordinator") } }, "Message…"), replayButton, against,
    h("button", { type: "button", on: { click: () => copy(`coordinator resume ${id}`) } }, "Copy resume"), end);

  const inbox = h("section", { class: "asks", "aria-label": "Waiting for you" });
  const calls = new Keyed(inbox, (call) => waitingCall(call, h("span", {}, line(call.agent, 40))), () => {});

  const timeline = new Timeline({
    pick: (lane, segment) => pick(lane, segment),
    href: (lane) => (lane.parent_id === null ? `#/session/${lane.id}` : `#/task/${lane.id}`),
  });
  const whole = h("button", { type: "button", class: "plain", hidden: true, on: { click: () => pick(null, null) } });
  const log = new Log({ session: id, label: "Log of the session", who: (item) => (item.task_id ? nameOf(item.task_id) : item.agent_id === id ? "coordinator" : nameOf(item.agent_id)) });
  log.load().catch(() => {});

  const replay = replaying();
  const element = h("div", {},
    h("div", { class: "page-head" }, h("div", {}, goal, wholeGoal), buttons), shown.element, inbox,
    h("section", { "aria-labelledby": "timeline-title" }, h("div", { class: "section-head" }, h("h2", { id: "timeline-title" }, "Timeline"), timeline.legend), replay.element, timeline.element),
    h("section", { "aria-labelledby": "log-title" }, h("div", { class: "section-head" }, h("h2", { id: "log-title" }, "Log"), whole, log.choice), log.element));

  function nameOf(taskId) {
    const task = store.tasks.get(taskId);
    return task ? named(task) : taskId;
  }

  function pick(lane, segment) {
    if (timeline.chosen !== lane) timeline.choose(lane);
    mark(whole, "hidden", lane === null ? "" : null);
    say(whole, lane === null ? "" : `only ${lane === id ? "coordinator" : line(nameOf(lane), 30)} ✕`);
    mark(whole, "aria-label", lane === null ? null : "Show the log of all agents");
    log.task = lane;
    const at = segment ? segment.end + 0.001 : null;
    if (replay.on || segment) log.setUntil(segment && (!timeline.live || segment.end < timeline.time - 1) ? at : replay.on ? replay.at : null);
    else log.load();
    announce(lane === null ? "the log of all agents" : `the log of ${nameOf(lane)}`);
  }

  async function readLanes() {
    if (reading) return void (again = true);
    reading = true;
    const begun = performance.now();
    try {
      lanes = await get(`/api/sessions/${encodeURIComponent(id)}/timeline`);
    } catch (error) {
      if (error.status) toast(error.message, true);
    }
    if (closed) return;
    draw();
    setTimeout(() => {
      reading = false;
      if (again && !closed) {
        again = false;
        readLanes();
      }
    }, Math.max(LEAST, 5 * (performance.now() - begun)));
  }

  function draw() {
    const own = store.sessions.get(id);
    timeline.show(lanes, store.tasks, Boolean(own?.driven && own.status === "open"), store.ahead);
  }

  function update(change) {
    const own = store.sessions.get(id);
    if (!own) return void (store.ready && say(goal, `no session ${id}`));
    say(goal, line(own.title || own.goal, GOAL));
    mark(wholeGoal, "hidden", own.goal.length > GOAL || own.goal.includes("\n") ? null : "");
    say(wholeGoal.lastChild, own.goal);
    if (status.dataset.state !== own.state) {
      status.dataset.state = own.state;
      put(status, ...sessionState(own));
    }
    const cash = store.money;
    if (cash) {
      say(spent, cash.budget_usd ? `${money(cash.cost_usd)} of ${money(cash.budget_usd)}` : money(cash.cost_usd));
      const share = cash.budget_usd ? Math.min(1, (cash.known_cost_usd ?? 0) / cash.budget_usd) : 0;
      mark(bar, "hidden", cash.budget_usd ? null : "");
      bar.firstChild.style.width = `${share * 100}%`;
      mark(bar, "data-full", share > 0.9 ? "" : null);
      say(shown.values.Cache, percent(cash.cache_share));
      mark(shown.values.Cache.parentElement, "title", `${tokens(cash.cache_read_tokens)} read, ${tokens(cash.cache_write_tokens)} written, ${tokens(cash.input_tokens)} beside the cache; ${tokens(cash.output_tokens)} out`);
    }
    const tasks = [...store.tasks.values()];
    const live = tasks.filter((task) => ["running", "pending"].includes(task.status)).length;
    say(shown.values.Workers, live ? `${live} live of ${tasks.length}` : tasks.length);
    mark(time, "data-from", own.created_at);
    mark(time, "data-to", own.ended_at ?? (own.driven ? null : own.updated_at));
    say(shown.values.Model, line(own.model, 40) || "?");
    say(shown.values.Directory, line(own.cwd, 80));
    mark(shown.values.Directory, "title", line(own.cwd, 400));
    mark(end, "hidden", own.status === "open" ? null : "");
    mark(against, "href", own.parent_id ? `#/compare/${encodeURIComponent(own.parent_id)}/${encodeURIComponent(id)}` : `#/compare/${encodeURIComponent(id)}`);
    const waiting = store.inbox.filter((call) => call.session_id === id);
    mark(inbox, "hidden", waiting.length ? null : "");
    calls.show(waiting);
    const known = tasks.map(named).join();
    if (known !== names) {
      names = known;
      log.redraw();
    }
    if (change.log.length || change.left_out) log.add(change.log, change.left_out);
    readLanes();
  }

  /** How much longer and for how much more, as the workers that are done say it; not there where they say nothing. */
  function forecast(now) {
    const told = store.forecast;
    const [soon, late] = told?.ends_at?.map((at) => Math.max(0, seconds(at) - now)) ?? [0, 0];
    const time = late > 0 ? (span(soon * 1000) === span(late * 1000) || soon < 1 ? `up to ${span(late * 1000)}` : `${span(soon * 1000)}–${span(late * 1000)}`) : "";
    const cash = told?.cost_usd ? `${money(told.cost_usd[0])}–${money(told.cost_usd[1])}` : "";
    mark(shown.values.Left.parentElement, "hidden", time || cash ? null : "");
    say(left, [time, cash].filter(Boolean).join(", "));
    say(leftOf, told ? ` by ${told.done} that are done` : "");
    const answer = told?.waiting ? ` The time until you answer ${counted(told.waiting, "worker")} is not in it.` : "";
    const words = told ? `For ${counted(told.workers, "worker")}, if they take what the quicker and the slower of those that are done took. What the coordinator does itself and asks for next comes on top.${answer}` : "";
    mark(shown.values.Left, "title", words || null);
    say(leftWords, words);
  }

  /** The slider over what is stored: events are its steps. */
  function replaying() {
    let events = [], timer = null, sliding = null;
    const own = { on: false, at: null };
    const slider = h("input", { type: "range", min: 0, value: 0, step: 1, "aria-label": "Moment of the replay", on: { input: () => slide() } });
    const told = h("output", { class: "moment" });
    const play = h("button", { type: "button", on: { click: () => toggle() } }, "Play");
    const close = h("a", { class: "button", href: `#/session/${encodeURIComponent(id)}` }, "Back to now");
    own.element = h("div", { class: "replay", hidden: true, role: "group", "aria-label": "Replay" }, play, slider, told, close);

    own.set = async (on) => {
      if (on === own.on) return;
      own.on = on;
      mark(own.element, "hidden", on ? null : "");
      mark(replayButton, "hidden", on ? "" : null);
      if (!on) {
        stop();
        own.at = null;
        timeline.setUntil(null);
        log.setUntil(null);
        return;
      }
      events = [];
      for (let after = 0; events.length < MOST_EVENTS;) {
        const page = await get(`/api/sessions/${encodeURIComponent(id)}/events?after=${after}`);
        events.push(...page);
        if (page.length < 1000) break;
        after = page.at(-1).id;
      }
      slider.max = Math.max(0, events.length - 1);
      slider.value = slider.max;
      slide();
      slider.focus();
    };

    function slide() {
      const event = events[slider.value];
      if (!event || !own.on) return;
      own.at = event.at;
      timeline.states = statesAt(events, Number(slider.value));
      timeline.setUntil(event.at);
      const who = event.task_id ? nameOf(event.task_id) : "";
      const words = `${clock(event.at)} · ${line(`${who} ${TOLD[event.kind] ?? event.kind}`, 80)}`;
      say(told, `${Number(slider.value) + 1}/${events.length} · ${words}`);
      mark(slider, "aria-valuetext", words);
      clearTimeout(sliding);
      sliding = setTimeout(() => log.setUntil(event.at + 0.001), 150);
    }

    function toggle() {
      if (timer) return stop();
      if (slider.value === slider.max) slider.value = 0;
      say(play, "Pause");
      timer = setInterval(() => {
        if (Number(slider.value) >= Number(slider.max)) return stop();
        slider.value = Number(slider.value) + 1;
        slide();
      }, Math.max(60, Math.min(600, 20_000 / Math.max(1, events.length))));
    }

    function stop() {
      clearInterval(timer);
      timer = null;
      say(play, "Play");
    }

    own.stop = stop;
    return own;
  }

  const follow = ([, mode]) => replay.set(mode === "replay").catch((error) => toast(error.message, true));
  queueMicrotask(() => follow(args));
  return {
    element, update, follow,
    tick: forecast,
    close: () => {
      closed = true;
      replay.stop();
      timeline.close();
      log.close();
    },
    title: () => line(store.sessions.get(id)?.title || store.sessions.get(id)?.goal || id, 60),
  };
}

/** How each task stood after the event with this number. */
export function statesAt(events, number) {
  const states = new Map(), asks = new Map();
  for (const event of events.slice(0, number + 1)) {
    if (event.task_id && AFTER[event.kind]) states.set(event.task_id, AFTER[event.kind]);
    if (event.kind === "session_ended") states.set(event.session_id, "completed");
    if (event.kind === "session_reopened") states.delete(event.session_id);
    if (event.kind === "approval_asked" && event.task_id) asks.set(event.data.id, event.task_id);
    if (event.kind === "approval_answered") asks.delete(event.data.id);
  }
  for (const task of asks.values()) if (states.get(task) === "running") states.set(task, "waiting");
  return states;
}
