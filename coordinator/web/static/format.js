// Values as a person reads them; the same words and signs as in the terminal.

export const SIGNS = { pending: "◌", running: "●", waiting: "▲", completed: "✔", failed: "✘", killed: "■", interrupted: "?" };
const ORDER = ["waiting", "running", "pending", "interrupted", "failed", "killed", "completed"];

/** The status of a task, or that it waits for a person. */
export const state = (task) => (task.needs_approval && task.status === "running" ? "waiting" : task.status);
export const rank = (task) => ORDER.indexOf(state(task));

export function money(usd) {
  if (usd === null || usd === undefined) return "?";
  return `$${usd.toFixed(usd !== 0 && usd < 0.1 ? 4 : 2)}`;
}

export function tokens(count) {
  if (count === null || count === undefined) return "";
  if (count < 1000) return String(count);
  return count < 999_500 ? `${(count / 1000).toFixed(count < 9_950 ? 1 : 0)}k` : `${(count / 1e6).toFixed(1)}M`;
}

/** Milliseconds as 0:42, 1:02:03, 3d 4h. */
export function span(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "";
  const seconds = Math.max(0, Math.floor(ms / 1000));
  const [d, rest, m, s] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
  if (d) return `${d}d ${rest - d * 24}h`;
  return rest ? `${rest}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}

const two = (number) => String(number).padStart(2, "0");

/** Seconds since the epoch as a time of this place. */
export function clock(seconds, withSeconds = true) {
  const at = new Date(seconds * 1000);
  return `${two(at.getHours())}:${two(at.getMinutes())}${withSeconds ? `:${two(at.getSeconds())}` : ""}`;
}

export function day(seconds) {
  const at = new Date(seconds * 1000);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(seconds, false)}`;
}

export const seconds = (iso) => (iso ? Date.parse(iso) / 1000 : null);
export const percent = (share) => (share === null || share === undefined ? "–" : `${Math.round(share * 100)} %`);
export const named = (task) => task.name || task.agent || task.type;
export const counted = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
