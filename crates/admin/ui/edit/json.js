// JSON text with places: reads it, says where it is wrong, and changes one value without touching the rest.
//
// The editor's document is its text. The form changes only the characters of the value it shows, so the author's
// order, spacing and large numbers stay as they were typed.

/** A text that is not JSON; `at` is an offset. */
export class SyntaxFault extends Error {
  constructor(message, text, at) {
    super(message);
    this.at = at;
    const before = text.slice(0, at).split("\n");
    this.line = before.length;
    this.column = before.at(-1).length + 1;
  }
}

const DEPTH_MAX = 100;

/** A tree of `{kind, value, start, end, entries | items}`; an entry is `{key, start, node}`. */
export function parse(text) {
  let at = 0;
  const fault = (message, where = at) => new SyntaxFault(message, text, where);
  const skip = () => {
    while (at < text.length && " \t\n\r".includes(text[at])) at++;
  };

  function read(depth) {
    skip();
    if (depth > DEPTH_MAX) throw fault(`nested more than ${DEPTH_MAX} deep`);
    const start = at;
    const c = text[at];
    if (c === "{") return object(start, depth);
    if (c === "[") return array(start, depth);
    if (c === '"') return { kind: "string", value: string(), start, end: at };
    const word = /^(?:-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null)(?![\w.])/.exec(
      text.slice(at, at + 400),
    )?.[0];
    if (word === undefined)
      throw fault(c === undefined ? "the text ends here; a value is missing" : unexpected(text, at));
    at += word.length;
    const value = JSON.parse(word);
    return { kind: value === null ? "null" : typeof value, value, start, end: at };
  }

  function string() {
    const start = at++;
    for (;;) {
      const c = text[at];
      if (c === undefined || c === "\n") throw fault('this string has no closing "', start);
      if (c === "\\") at++;
      else if (c === '"') break;
      at++;
    }
    at++;
    try {
      return JSON.parse(text.slice(start, at));
    } catch {
      throw fault("this string has a tab, a control character or a bad escape; write \\t, \\n or \\u0000", start);
    }
  }

  function object(start, depth) {
    const entries = [];
    const keys = new Set();
    at++;
    skip();
    while (text[at] !== "}") {
      if (entries.length) comma("}");
      skip();
      if (text[at] === "}") throw fault('remove the comma before "}"');
      if (text[at] !== '"')
        throw fault(text[at] === undefined ? '"}" is missing' : 'a key in double quotes is expected, such as "uri"');
      const key_start = at;
      const key = string();
      if (keys.has(key)) throw fault(`the key "${key}" appears twice`, key_start);
      keys.add(key);
      skip();
      if (text[at] !== ":") throw fault(`":" is missing after "${key}"`);
      at++;
      entries.push({ key, start: key_start, node: read(depth + 1) });
      skip();
    }
    at++;
    return {
      kind: "object",
      start,
      end: at,
      entries,
      get value() {
        return plain(this);
      },
    };
  }

  function array(start, depth) {
    const items = [];
    at++;
    skip();
    while (text[at] !== "]") {
      if (items.length) comma("]");
      skip();
      if (text[at] === "]") throw fault('remove the comma before "]"');
      items.push(read(depth + 1));
      skip();
    }
    at++;
    return {
      kind: "array",
      start,
      end: at,
      items,
      get value() {
        return plain(this);
      },
    };
  }

  function comma(close) {
    if (text[at] !== ",")
      throw fault(text[at] === undefined ? `"${close}" is missing` : `"," or "${close}" is expected here`);
    at++;
  }

  const root = read(0);
  skip();
  if (at < text.length) throw fault("the document ends before this; remove what follows");
  return root;
}

function unexpected(text, at) {
  if (text[at] === "'") return "strings are written in double quotes";
  if (text[at] === "/") return "JSON has no comments; remove it";
  return "a value is expected here: a string in double quotes, a number, true, false, null, [ or {";
}

/** The value of a node, as JSON.parse gives it; keys are always own properties. */
export function plain(node) {
  if (node.kind === "array") return node.items.map(plain);
  if (node.kind !== "object") return node.value;
  const made = Object.create(null);
  for (const { key, node: child } of node.entries) made[key] = plain(child);
  return made;
}

/** The node at a path of keys and indices, or undefined. */
export function node_at(root, path) {
  let node = root;
  for (const step of path) {
    node = node?.kind === "array" ? node.items[step] : node?.entries?.find(({ key }) => key === step)?.node;
    if (!node) return undefined;
  }
  return node;
}

/** The text with the value at `path` set; missing parents are made. `undefined` removes the value. */
export function edit(text, path, value) {
  const root = parse(text);
  const parent_path = path.slice(0, -1);
  const last = path.at(-1);
  if (!path.length) return value === undefined ? "{}" : pretty(value, 0);
  const parent = node_at(root, parent_path);
  if (!parent || (parent.kind !== "object" && parent.kind !== "array")) {
    if (value === undefined) return text;
    return edit(text, parent_path, typeof last === "number" ? [value] : { [last]: value });
  }
  const child = node_at(parent, [last]);
  if (value === undefined) return child ? without(text, parent, last) : text;
  const indent = parent_path.length + 1;
  const written = pretty(value, indent);
  if (child) return text.slice(0, child.start) + written + text.slice(child.end);
  const added = parent.kind === "object" ? `${JSON.stringify(last)}: ${written}` : written;
  const many = parent.kind === "object" ? parent.entries : parent.items;
  const pad = "  ".repeat(indent);
  if (!many.length)
    return `${text.slice(0, parent.start)}${parent.kind === "object" ? "{" : "["}\n${pad}${added}\n${pad.slice(2)}${text.slice(parent.end - 1)}`;
  const before = (many.at(-1).node ?? many.at(-1)).end;
  return `${text.slice(0, before)},\n${pad}${added}${text.slice(before)}`;
}

function without(text, parent, last) {
  const many = (parent.entries ?? parent.items).map((one) => ({
    key: one.key,
    start: one.start,
    end: (one.node ?? one).end,
  }));
  const at = parent.entries ? many.findIndex(({ key }) => key === last) : last;
  if (many.length === 1) return text.slice(0, parent.start + 1) + text.slice(parent.end - 1);
  return at > 0
    ? text.slice(0, many[at - 1].end) + text.slice(many[at].end)
    : text.slice(0, many[0].start) + text.slice(many[1].start);
}

/** A value as the editor writes it: two spaces a level, short lists of plain values on one line. */
export function pretty(value, level = 0) {
  const pad = "  ".repeat(level + 1);
  const end = "  ".repeat(level);
  if (Array.isArray(value)) {
    const flat = value.every((one) => one === null || typeof one !== "object") && JSON.stringify(value);
    if (flat && flat.length <= 60)
      return value.length ? `[${value.map((one) => JSON.stringify(one)).join(", ")}]` : "[]";
    return `[\n${value.map((one) => pad + pretty(one, level + 1)).join(",\n")}\n${end}]`;
  }
  if (value !== null && typeof value === "object") {
    const keys = Object.keys(value).filter((key) => value[key] !== undefined);
    if (!keys.length) return "{}";
    return `{\n${keys.map((key) => `${pad}${JSON.stringify(key)}: ${pretty(value[key], level + 1)}`).join(",\n")}\n${end}}`;
  }
  return JSON.stringify(value);
}

/** Line (from 1) of an offset. */
export const line_of = (text, at) => text.slice(0, at).split("\n").length;
