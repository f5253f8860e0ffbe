// Makes elements. It is the only module that creates any, besides profile_view.js, which is also a page without it.
//
// Text reaches the page as text nodes and attributes alone, so a name, a label or a URI cannot become
// markup. Addresses are limited to this page's own hash, and handlers to functions.

const SVG = "http://www.w3.org/2000/svg";
const ADDRESSES = new Set(["href", "src", "action", "formaction", "xlink:href"]);

/** An HTML element. Attributes: strings, numbers, true; functions for "on…"; `class` may be a list. */
export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

/** An SVG element. */
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) set(element, name, value);
  append(element, children);
  return element;
}

/** Sets one attribute, or removes it if the value is null, undefined or false. */
export function set(element, name, value) {
  if (name.startsWith("on")) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
  } else if (value === null || value === undefined || value === false) {
    element.removeAttribute(name);
  } else if (name === "value" && "value" in element && element.tagName !== "LI") {
    element.value = value;
  } else if (name === "class") {
    element.setAttribute("class", [value].flat(9).filter(Boolean).join(" "));
  } else if (name === "vars") {
    // Custom properties, for CSS that draws with them.
    for (const [property, number] of Object.entries(value)) element.style.setProperty(`--${property}`, number);
  } else if (ADDRESSES.has(name) && !/^(#|\/ui\/|\.\/)/.test(String(value))) {
    throw new Error(`${name}: only addresses of this page, not ${value}`);
  } else {
    element.setAttribute(name, value === true ? "" : String(value));
  }
}

/** Adds children: nodes, texts, lists of them; null, undefined and false are left out. */
export function append(element, children) {
  for (const child of [children].flat(9)) {
    if (child === null || child === undefined || child === false || child === true) continue;
    element.append(child instanceof Node ? child : shown(String(child)));
  }
}

/** Replaces all children. */
export function put(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

// Characters that reorder or hide text would let one name look like another.
const DECEPTIVE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** A text with invisible and reordering characters made visible. */
export const shown = (text) => text.replace(DECEPTIVE, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** The address of a page: segments are encoded, parameters that are empty are left out. */
export function address(segments, parameters = {}) {
  const path = segments.map((segment) => encodeURIComponent(segment)).join("/");
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = new URLSearchParams(given).toString();
  return `#/${path}${query && `?${query}`}`;
}

/** A link to a page. */
export const link = (segments, text, attributes = {}) => h("a", { href: address(segments), ...attributes }, text);

/** Calls once the calls have stopped for a while. */
export function debounced(wait_ms, call) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...given), wait_ms);
  };
}

let last_id = 0;

/** An id for `for`, `aria-describedby` and so on. */
export const fresh_id = () => `x${++last_id}`;
