// Reads JSON Schema: what a value may be, for the form, and what is wrong with one, as a hint before the server checks.
//
// It knows what the Admin API's schemas use, and lets through what it does not know: the server decides.

const HOPS_MAX = 20;
const FAULTS_MAX = 500;

/** The schema behind references. */
export function resolve(schema, root) {
  let found = schema ?? true;
  for (let hop = 0; found?.$ref && hop < HOPS_MAX; hop++) {
    const steps = String(found.$ref).replace(/^#\/?/, "").split("/").filter(Boolean);
    const target = steps.reduce((at, step) => at?.[step.replace(/~1/g, "/").replace(/~0/g, "~")], root);
    const { $ref, ...beside } = found;
    found = target && typeof target === "object" ? { ...target, ...beside } : true;
  }
  return found === true || found === false || !found ? {} : found;
}

const is_environment = (schema) => /Environment$/.test(schema?.$ref ?? "");

/**
 * What a schema asks for: `{kind, choices, description, title, default, …}`.
 * `kind`: `boolean`, `integer`, `number`, `string`, `enum`, `list`, `map`, `object`, `choice`, `any`.
 */
export function describe(given, root, value) {
  const schema = resolve(given, root);
  const about = {
    schema,
    description: schema.description ?? "",
    title: schema.title ?? "",
    default: schema.default,
    takes_environment: false,
  };
  const options = schema.anyOf ?? schema.oneOf;
  if (options && !schema.properties) {
    const real = options.filter((option) => !is_environment(option) && option.type !== "null");
    about.takes_environment = real.length < options.length;
    if (real.length === 1)
      return {
        ...describe({ ...resolve(real[0], root), ...worded(schema) }, root, value),
        takes_environment: about.takes_environment,
      };
    const fitting =
      value === undefined
        ? null
        : (real.find((option) => !validate(value, option, root).length) ??
          real.find((option) => type_fits(value, resolve(option, root))));
    const kinds = real.map((option) => describe(option, root).kind);
    if (kinds.every((kind) => kind === "number" || kind === "integer" || kind === "string"))
      return { ...about, kind: "string", takes_numbers: true };
    return { ...about, kind: "choice", choices: real, chosen: fitting ?? null };
  }
  if (schema.enum) return { ...about, kind: "enum", words: schema.enum };
  if ("const" in schema) return { ...about, kind: "enum", words: [schema.const] };
  const types = [schema.type ?? []].flat().filter((type) => type !== "null");
  const type =
    types.length === 1 || types.every((one) => one === "string" || one === "integer" || one === "number")
      ? types[0]
      : undefined;
  if (schema.properties || (type === "object" && schema.additionalProperties === false))
    return { ...about, kind: "object", properties: schema.properties ?? {}, required: schema.required ?? [] };
  if (type === "object")
    return {
      ...about,
      kind: "map",
      values: typeof schema.additionalProperties === "object" ? schema.additionalProperties : {},
    };
  if (type === "array") return { ...about, kind: "list", items: schema.items ?? {} };
  if (type) return { ...about, kind: type, takes_numbers: types.length > 1 };
  return { ...about, kind: "any" };
}

const worded = ({ description, title, default: fallback }) =>
  Object.fromEntries(
    Object.entries({ description, title, default: fallback }).filter(([, value]) => value !== undefined),
  );

/** A key that is known but refused unless empty. */
export const is_unbuilt = (schema) =>
  Array.isArray(schema?.enum) &&
  schema.enum.length > 3 &&
  schema.enum.every((value) => !value || (typeof value === "object" && !Object.keys(value).length));

/** An empty value of a kind, for what is added. */
export function blank(given, root) {
  const about = describe(given, root);
  if (about.default !== undefined) return about.default;
  switch (about.kind) {
    case "object":
      return Object.fromEntries(about.required.map((key) => [key, blank(about.properties[key], root)]));
    case "map":
      return {};
    case "list":
      return [];
    case "boolean":
      return true;
    case "enum":
      return about.words[0];
    case "integer":
    case "number":
      return about.schema.minimum ?? 0;
    case "choice":
      return blank(about.choices[0], root);
    default:
      return "";
  }
}

const type_of = (value) => (value === null ? "null" : Array.isArray(value) ? "array" : typeof value);

function type_fits(value, schema) {
  const types = [schema.type ?? []].flat();
  if (!types.length) return !schema.enum || schema.enum.includes(value);
  const type = type_of(value);
  return (
    types.includes(type) ||
    (types.includes("integer") && Number.isInteger(value)) ||
    (types.includes("number") && type === "number")
  );
}

const WORDS = {
  string: "text",
  integer: "a whole number",
  number: "a number",
  boolean: "true or false",
  object: "an object { … }",
  array: "a list [ … ]",
  null: "null",
};
const in_words = (types) =>
  [types]
    .flat()
    .filter((type) => type !== "null")
    .map((type) => WORDS[type] ?? type)
    .join(" or ");

/** What is wrong with a value: `{path, message}`, the first 500. */
export function validate(value, given, root, path = [], faults = []) {
  const schema = resolve(given, root);
  const say = (message, at = path) => faults.length < FAULTS_MAX && faults.push({ path: at, message });
  if (!type_fits(value, { type: schema.type })) {
    say(`expected ${in_words(schema.type)}, found ${WORDS[type_of(value)]}`);
    return faults;
  }
  if (schema.enum && !schema.enum.some((word) => word === value)) {
    if (is_unbuilt(schema)) {
      if (!JSON.stringify(schema.enum).includes(JSON.stringify(value)))
        say("this gateway does not support it; remove it");
    } else say(`use one of ${schema.enum.map((word) => JSON.stringify(word)).join(", ")}`);
  }
  const options = schema.anyOf ?? schema.oneOf;
  if (options) {
    const found = options.map((option) => validate(value, option, root, path));
    if (!found.some((list) => !list.length)) {
      const real = options
        .map((option, i) => ({ option, list: found[i] }))
        .filter(({ option }) => !is_environment(option));
      const likely = real.find(({ option }) => type_fits(value, resolve(option, root))) ?? real[0];
      if (schema.title) say(`expected ${schema.title}`);
      else likely?.list.forEach(({ path: at, message }) => say(message, at));
    }
  }
  for (const part of schema.allOf ?? []) {
    const missing = part.anyOf?.every((one) => one.required?.length === 1) && part.anyOf.map((one) => one.required[0]);
    if (missing && type_of(value) === "object") {
      if (!missing.some((key) => key in value)) say(`one of ${missing.join(", ")} is required`);
    } else validate(value, part, root, path, faults);
  }
  if (typeof value === "number") {
    if (value < schema.minimum) say(`must be at least ${schema.minimum}`);
    if (value > schema.maximum) say(`must be at most ${schema.maximum}`);
  }
  if (typeof value === "string") {
    if (value.length < schema.minLength)
      say(schema.minLength === 1 ? "must not be empty" : `needs at least ${schema.minLength} characters`);
    if (value.length > schema.maxLength) say(`takes at most ${schema.maxLength} characters`);
    if (schema.pattern && !matches(schema.pattern, value))
      say(schema.title ? `expected ${schema.title}` : `does not match ${schema.pattern}`);
  }
  if (Array.isArray(value)) {
    if (value.length < schema.minItems)
      say(schema.minItems === 1 ? "needs at least one entry" : `needs at least ${schema.minItems} entries`);
    if (value.length > schema.maxItems) say(`takes at most ${schema.maxItems} entries`);
    if (schema.items) value.forEach((item, i) => validate(item, schema.items, root, [...path, i], faults));
  } else if (type_of(value) === "object") {
    for (const key of schema.required ?? []) if (!(key in value)) say(`"${key}" is missing`, [...path, key]);
    for (const key of Object.keys(value)) {
      const own = Object.hasOwn(schema.properties ?? {}, key) ? schema.properties[key] : null;
      if (own) validate(value[key], own, root, [...path, key], faults);
      else if (schema.additionalProperties === false) say(unknown_key(key, schema.properties ?? {}), [...path, key]);
      else if (typeof schema.additionalProperties === "object")
        validate(value[key], schema.additionalProperties, root, [...path, key], faults);
    }
  }
  return faults;
}

const unknown_key = (key, properties) => unknown_name("", key, Object.keys(properties));

/** What is said of a name that is none of those `known`; without a `noun` it is a key of this object. */
export function unknown_name(noun, name, known) {
  const near = known.find((one) => distance_is_small(one, name));
  const what = noun ? `${noun} "${name}"` : `"${name}"`;
  return `there is no ${what}${near ? `; did you mean "${near}"?` : noun ? "" : " here"}`;
}

function distance_is_small(a, b) {
  if (Math.abs(a.length - b.length) > 2) return false;
  let row = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++)
      next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] !== b[j - 1]));
    row = next;
  }
  return row[b.length] <= 2;
}

function matches(pattern, text) {
  // Patterns are written for other engines; one that this engine refuses is left to the server.
  try {
    return new RegExp(pattern, "u").test(text.slice(0, 2000));
  } catch {
    return true;
  }
}
