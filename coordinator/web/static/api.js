// What goes over the wire: requests with the token, and one feed that comes back by itself.

const BEAT = 40_000; // ms without a word after which nobody is believed to be there
const FIRST = 300, MOST = 5_000; // ms before one comes back

let token = takeToken();
const onLocked = new Set();

/** The token stands behind the address (`#token=…`); it is taken from there at once, so that no history keeps it. Kept for this
 * tab only. */
function takeToken() {
  const found = /(?:^#|[?&])token=([^&]+)/.exec(location.hash) ?? /[?&]token=([^&]+)/.exec(location.search);
  if (found) {
    sessionStorage.setItem("token", decodeURIComponent(found[1]));
    const rest = location.hash.startsWith("#/") ? location.hash : "#/";
    history.replaceState(null, "", location.pathname + rest);
  }
  return sessionStorage.getItem("token");
}

export const hasToken = () => Boolean(token);

export function setToken(text) {
  token = text;
  if (text) sessionStorage.setItem("token", text);
  else sessionStorage.removeItem("token");
  for (const tell of onLocked) tell();
}

/** `tell` is called whenever this page came to have the token, or lost it. */
export const whenLocked = (tell) => onLocked.add(tell);

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers(more = {}) {
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

async function answer(response) {
  const value = await response.json().catch(() => ({ error: `the server answered with ${response.status}` }));
  if (response.ok) return value;
  if (response.status === 401 && token) setToken(null);
  throw new Refused(response.status, value.error);
}

export async function get(path, signal) {
  return answer(await fetch(path, { headers: headers(), signal, cache: "no-store" }));
}

export async function post(path, body = {}) {
  return answer(await fetch(path, { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body) }));
}

/** A code in the address (`#code=…`, from `serve --open`) stands for the token once: a browser is started with it, which others of
 * the machine may see. Throws what the server says of one that is used. */
export async function enter() {
  const found = /^#code=([^&]+)/.exec(location.hash);
  if (!found) return;
  history.replaceState(null, "", `${location.pathname}#/`);
  setToken((await post("/api/token", { code: decodeURIComponent(found[1]) })).token);
}

/** The page's feed. `tell` gets `(kind, data)`; `link` gets "live", "connecting", "lost" or "locked" and why. After a break
 * the server is told which event was seen last, and goes on behind it. */
export class Feed {
  constructor(query, tell, link) {
    Object.assign(this, { query, tell, link, last: null, closed: false, pause: FIRST });
    this.run();
  }

  close() {
    this.closed = true;
    this.abort?.abort();
    this.wake?.();
  }

  async run() {
    while (!this.closed) {
      try {
        await this.read();
        this.link("connecting");
      } catch (error) {
        if (this.closed) return;
        this.link(error.status === 401 ? "locked" : "lost", error.message);
      }
      await new Promise((done) => {
        this.wake = done;
        setTimeout(done, this.pause);
      });
      this.pause = Math.min(MOST, this.pause * 2);
    }
  }

  async read() {
    this.abort = new AbortController();
    const seen = this.last === null ? {} : { "Last-Event-ID": String(this.last) };
    const response = await fetch(`/api/events${this.query}`, { headers: headers(seen), signal: this.abort.signal, cache: "no-store" });
    if (!response.ok) await answer(response);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const watch = setTimeout(() => this.abort.abort(), BEAT);
      const { value, done } = await reader.read().finally(() => clearTimeout(watch));
      if (done || this.closed) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) this.take(part);
    }
  }

  take(part) {
    const fields = Object.fromEntries(part.split("\n").map((row) => [row.slice(0, row.indexOf(": ")), row.slice(row.indexOf(": ") + 2)]));
    if (!fields.data || this.closed) return;
    this.pause = FIRST;
    if (fields.event === "stale") return this.link("lost", JSON.parse(fields.data).why);
    this.link("live");
    this.tell(fields.event, JSON.parse(fields.data));
    if (fields.id) this.last = Number(fields.id);
  }
}
