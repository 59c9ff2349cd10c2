// Elements made of values. Rules: text becomes text nodes, nothing here or elsewhere makes markup of a string (the server's
// policy forbids it, too); what models and tools wrote passes `plain` on its way, always, because it passes `h`.

const SEQUENCES = /(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|\x1b[ -/]*[0-~]?/g;
// Control characters, and those that reorder what follows them.
const CONTROL = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ufeff]/g;
const SVG = "http://www.w3.org/2000/svg";

/** `text` as a person may see it: no terminal sequence, no control character but line ends and tabs. */
export function plain(text) {
  const whole = String(text ?? "");
  return whole.replace(SEQUENCES, "").replace(/\r\n?/g, "\n").replace(CONTROL, "");
}

/** `text` on one line, at most `limit` characters. */
export function line(text, limit = 400) {
  const begin = String(text ?? "").slice(0, limit * 4);
  const flat = plain(begin).replace(/\s+/g, " ").trim();
  return flat.length > limit ? flat.slice(0, limit - 1) + "…" : flat;
}

/** An element: `props` are attributes, `on` has listeners, false and null leave one out. Children are nodes or text. */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same for SVG. */
export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(made, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (name === "on") for (const [kind, fn] of Object.entries(value)) made.addEventListener(kind, fn);
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...nodes(children));
  return made;
}

function nodes(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(plain(child))));
}

/** What `element` holds, replaced. */
export function put(element, ...children) {
  element.replaceChildren(...nodes(children));
}

/** The text of `element`, touched only where it differs. */
export function say(element, text) {
  const wanted = plain(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

/** An attribute, touched only where it differs; null takes it away. */
export function mark(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
}

/** Children of `parent` as `rows` are, each made once by its key, then brought up to date; focus stays where it is. */
export class Keyed {
  constructor(parent, make, update) {
    this.parent = parent;
    this.make = make;
    this.update = update;
    this.known = new Map();
  }

  show(rows, key = (row) => row.id) {
    const focused = document.activeElement;
    const before = this.known;
    this.known = new Map();
    let place = this.parent.firstChild;
    for (const row of rows) {
      const element = before.get(key(row)) ?? this.make(row);
      this.update(element, row);
      this.known.set(key(row), element);
      if (element === place) place = place.nextSibling;
      else this.parent.insertBefore(element, place);
    }
    for (const [id, element] of before) if (!this.known.has(id)) element.remove();
    if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
  }
}

/** Said to who cannot see it. */
export function announce(text) {
  say(document.getElementById("said"), line(text, 200));
}
