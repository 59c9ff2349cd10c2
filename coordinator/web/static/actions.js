// What a person does: answers, messages, ends. Each asks in a dialog where it cannot be taken back, and says what became of it.

import { announce, h, line, put } from "./dom.js";
import { hasToken, post, setToken } from "./api.js";

/** A word about what happened, for a few seconds. */
export function toast(text, bad = false) {
  const box = document.getElementById("toasts");
  const made = h("p", { class: bad ? "toast bad" : "toast" }, line(text, 300));
  box.append(made);
  while (box.childElementCount > 4) box.firstChild.remove();
  announce(text);
  setTimeout(() => made.remove(), bad ? 12_000 : 5_000);
}

/** A modal dialog; resolves with the form's values by name when it is confirmed, with null when it is left. Focus goes back to
 * where it was. */
export function ask({ title, body = [], confirm, danger = false, cancel = "Cancel" }) {
  return new Promise((done) => {
    const before = document.activeElement;
    let given = null;
    const form = h("form", { method: "dialog" },
      h("h2", { id: "ask-title" }, title), ...body,
      h("p", { class: "buttons" },
        h("button", { type: "button", on: { click: () => dialog.close() } }, cancel),
        confirm && h("button", { type: "submit", class: danger ? "danger" : "primary" }, confirm)));
    const dialog = h("dialog", { "aria-labelledby": "ask-title" }, form);
    form.addEventListener("submit", () => {
      given = Object.fromEntries(new FormData(form));
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (before?.isConnected) before.focus();
      done(given);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** The token, from who has it; whether there is one then. */
export async function unlock() {
  if (hasToken()) return true;
  const given = await ask({
    title: "This page only reads",
    body: [h("p", {}, "To act, open the address that ", h("code", {}, "coordinator serve"), " printed, or give its token here."),
      h("label", {}, "Token", h("input", { name: "token", type: "password", autocomplete: "off", required: true }))],
    confirm: "Unlock",
  });
  if (given?.token) setToken(given.token.trim());
  return hasToken();
}

/** Does what `path` names; what became of it, or null. */
export async function act(path, body, words) {
  if (!(await unlock())) return null;
  try {
    const answer = await post(path, body);
    const told = typeof words === "function" ? words(answer) : words;
    if (told) toast(told);
    return answer;
  } catch (error) {
    toast(error.message, true);
    return null;
  }
}

export const approve = (call, always) =>
  act(`/api/approvals/${call.id}/approve`, always ? { always: true } : {}, always ? `approved, and ${call.suggested_rule} from now on` : "approved");

export async function deny(call) {
  const given = await ask({
    title: `Deny ${call.tool}?`,
    body: [h("label", {}, "What the worker is told (may be empty)", h("textarea", { name: "why", rows: 3 }))],
    confirm: "Deny",
  });
  return given && act(`/api/approvals/${call.id}/deny`, { why: given.why }, "denied");
}

export async function send(kind, id, name) {
  const given = await ask({
    title: `Message to ${line(name, 60)}`,
    body: [h("label", {}, "Message", h("textarea", { name: "message", rows: 5, required: true }))],
    confirm: "Send",
  });
  const words = (answer) => answer.words + (answer.undriven ? `; nobody drives the session now, coordinator resume ${answer.undriven} goes on with it` : "");
  return given && act(`/api/${kind}/${id}/send`, { message: given.message }, words);
}

export async function kill(kind, id, name) {
  const what = kind === "tasks" ? "the worker and every process it began" : "the session, its workers and every process they began";
  const given = await ask({
    title: `End ${line(name, 60)}?`,
    body: [h("p", {}, `Ends ${what}. What it did so far stays.`)],
    confirm: kind === "tasks" ? "End worker" : "End session",
    danger: true,
  });
  const words = (answer) => {
    if (!answer.ended) return `${id}: still alive: ${answer.survivors.join(", ")}`;
    return answer.changed ? `${id} killed` : `${id} had ended`;
  };
  return given && act(`/api/${kind}/${id}/kill`, {}, words);
}

/** Lets a person copy a command; it stands there where the clipboard is not ours. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast(`copied: ${text}`);
  } catch {
    await ask({ title: "Copy", body: [h("pre", {}, text)], cancel: "Close" });
  }
}

/** A call that waits, with its buttons; one element for as long as it waits. */
export function waitingCall(call, where) {
  const shown = h("pre", { class: "call", tabindex: 0, "aria-label": "The call in full" });
  put(shown, ...diffLines(String(call.shown ?? "").slice(0, 20_000)));
  const buttons = [
    h("button", { type: "button", class: "primary", on: { click: () => approve(call, false) } }, "Approve"),
    call.suggested_rule && h("button", { type: "button", on: { click: () => approve(call, true) } }, "Always ", h("code", {}, line(call.suggested_rule, 60))),
    h("button", { type: "button", on: { click: () => deny(call) } }, "Deny…"),
  ];
  return h("article", { class: "ask", "data-id": call.id, "aria-label": `${call.agent} waits: ${call.tool}` },
    h("header", {}, h("span", { class: "sign waiting", "aria-hidden": "true" }, "▲"), h("strong", {}, call.tool), where,
      h("time", { class: "age", "data-from": call.asked_at })),
    shown, call.reason && h("p", { class: "why" }, line(call.reason, 300)), h("p", { class: "buttons" }, buttons));
}

/** The lines of a text that may be a diff: what goes and what comes is marked, by sign and by colour. */
export function diffLines(text) {
  const lines = text.split("\n");
  return lines.map((row, i) => {
    const kind = /^(\+\+\+|---|@@|diff |index )/.test(row) ? "head" : row.startsWith("+") ? "added" : row.startsWith("-") ? "removed" : null;
    const end = i < lines.length - 1 ? "\n" : "";
    return kind ? h("span", { class: kind }, row + end) : row + end;
  });
}
