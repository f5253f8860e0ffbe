// The controls for each kind of value: texts and numbers, choices, lists, maps, alternatives, and JSON for the rest.

import { icon } from "../chart.js";
import { debounced, fresh_id, h, put, shown } from "../dom.js";
import { field, object_body } from "./fields.js";
import { pretty } from "./json.js";
import { ids_of, REFERENCES } from "./loading.js";
import { blank, describe } from "./schema.js";

const SEARCH_MS = 200;
const LONG = /^(cert|certs|keys|desc|content|body|private_key|public_key|filter_func|expression)$/;
/** `{body, focus, is_group}`: what is shown, what takes the focus, and whether it has fields of its own. */
export function control_of(form, path, about, value, { id, described, key }) {
  const common = { id, "aria-describedby": described };
  switch (about.kind) {
    case "boolean":
    case "enum": {
      if (about.takes_environment && typeof value === "string" && value.includes("${"))
        return text_control(form, path, about, value, common, key);
      const words = about.kind === "boolean" ? [true, false] : about.words;
      const unset = about.default === undefined ? "not set" : `not set (${JSON.stringify(about.default)})`;
      const at = words.findIndex((word) => word === value);
      const select = h(
        "select",
        { ...common, onchange: () => form.change(path, select.value === "" ? undefined : words[Number(select.value)]) },
        h("option", { value: "" }, value !== undefined && at < 0 ? `${JSON.stringify(value)} (not allowed)` : unset),
        words.map((word, i) => h("option", { value: i }, word_of(key, word))),
      );
      select.value = at < 0 ? "" : String(at);
      return { body: select, focus: select };
    }
    case "string":
      if (form.ids[REFERENCES[key]]) return id_control(form, path, value, common, REFERENCES[key]);
      return text_control(form, path, about, value, common, key);
    case "integer":
    case "number":
      return text_control(form, path, about, value, common, key);
    case "list":
      return list_control(form, path, about, value, common);
    case "map":
      return map_control(form, path, about, value, common);
    case "object": {
      if (value === undefined || value === null)
        return {
          is_group: true,
          body: h(
            "p",
            {},
            h(
              "button",
              { type: "button", onclick: () => form.restructure(path, blank(about.schema, form.schema)) },
              icon("plus"),
              "Set",
            ),
          ),
        };
      return { is_group: true, body: h("div", { class: "nested" }, object_body(form, path, about, value)) };
    }
    case "choice":
      return choice_control(form, path, about, value, common, key);
    default:
      return json_control(form, path, value, common);
  }
}

const word_of = (key, word) =>
  word === true
    ? "yes"
    : word === false
      ? "no"
      : key === "status" && word === 1
        ? "1: enabled"
        : key === "status" && word === 0
          ? "0: disabled"
          : String(word);

function text_control(form, path, about, value, common, key) {
  const is_number = about.kind === "integer" || about.kind === "number";
  const is_long =
    !is_number &&
    (LONG.test(key) ||
      (key === "key" && form.kind === "ssls") ||
      String(value ?? "").includes("\n") ||
      String(value ?? "").length > 80);
  const read = () => {
    const text = input.value;
    if (text === "") return form.change(path, undefined);
    const is_numeral = /^-?(0|[1-9]\d*)(\.\d+)?$/.test(text.trim()) && Number.isSafeInteger(Math.trunc(Number(text)));
    form.change(
      path,
      is_numeral && (is_number || (about.takes_numbers && typeof value === "number")) ? Number(text) : text,
    );
  };
  const placeholder = about.default === undefined ? "" : String(about.default);
  const shared = {
    ...common,
    value: value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value),
    placeholder,
    spellcheck: "false",
    autocomplete: "off",
    oninput: read,
  };
  const input = is_long
    ? h("textarea", { ...shared, rows: Math.min(8, String(value ?? "").split("\n").length + 1) })
    : h("input", { type: "text", inputmode: is_number ? "decimal" : null, ...shared });
  return { body: input, focus: input };
}

// The id of another resource: a choice of all, or with many a field that suggests those that match.
function id_control(form, path, value, common, kind) {
  const { total, list } = form.ids[kind];
  const words = ({ id, name }) => (name && name !== id ? `${id}: ${shown(name)}` : id);
  const given = value === undefined ? "" : String(value);
  const options = (found) => found.map((one) => h("option", { value: one.id }, words(one)));
  const change = () => form.change(path, control.value === "" ? undefined : control.value);
  let control;
  if (total <= list.length) {
    control = h(
      "select",
      { ...common, onchange: change },
      h("option", { value: "" }, "not set"),
      given && !list.some(({ id }) => id === given) && h("option", { value: given }, `${given} (does not exist)`),
      options(list),
    );
    control.value = given;
    return { body: control, focus: control };
  }
  const matches = h("datalist", { id: fresh_id() }, options(list));
  const look = debounced(SEARCH_MS, async () => {
    const found = await ids_of(kind, control.value).catch(() => null);
    if (found) put(matches, options(found.list));
  });
  control = h("input", {
    ...common,
    type: "text",
    list: matches.id,
    value: given,
    spellcheck: "false",
    autocomplete: "off",
    oninput: () => (change(), look()),
  });
  return { body: [control, matches], focus: control };
}

function list_control(form, path, about, value, common) {
  const item = describe(about.items, form.schema);
  const list = Array.isArray(value) ? value : [];
  const is_plain = (item.kind === "string" || item.kind === "enum") && list.every((one) => typeof one === "string");
  if (is_plain) {
    const area = h("textarea", {
      ...common,
      rows: Math.min(8, Math.max(1, list.length)),
      spellcheck: "false",
      autocapitalize: "off",
      placeholder: "one per line",
      value: list.join("\n"),
      oninput: () => {
        const lines = area.value
          .split("\n")
          .map((line) => line.trim())
          .filter(Boolean);
        form.change(path, lines.length ? lines : undefined);
      },
    });
    return { body: area, focus: area };
  }
  if (item.kind === "any" || item.kind === "list") return json_control(form, path, value, common);
  const rows = list.map((one, i) =>
    field(form, [...path, i], about.items, one, { label: String(i + 1), is_present: true }),
  );
  const add = h(
    "button",
    {
      type: "button",
      ...common,
      onclick: () => form.restructure([...path, list.length], blank(about.items, form.schema)),
    },
    icon("plus"),
    "Add an entry",
  );
  return { is_group: true, body: h("div", { class: "nested" }, rows, add), focus: add };
}

function map_control(form, path, about, value, common) {
  const keys = value && typeof value === "object" ? Object.keys(value) : [];
  const rows = keys.map((key) => {
    const here = [...path, key];
    const inner = control_of(form, here, describe(about.values, form.schema, value[key]), value[key], {
      id: fresh_id(),
      described: common["aria-describedby"],
      key,
    });
    const fault = h("p", { class: "fault" });
    form.register(here, inner.focus ?? null, fault);
    inner.focus?.setAttribute("aria-label", `Value of ${key}`);
    const name = h("input", {
      type: "text",
      value: key,
      "aria-label": "Name",
      spellcheck: "false",
      onchange: () => {
        const renamed = Object.fromEntries(keys.map((one) => [one === key ? name.value : one, value[one]]));
        form.restructure(path, renamed, [...path, name.value]);
      },
    });
    return h(
      "div",
      { class: "map-row" },
      name,
      inner.body,
      h(
        "button",
        {
          type: "button",
          class: "icon-button",
          "aria-label": `Remove ${key}`,
          title: `Remove ${key}`,
          onclick: () => form.restructure(here, undefined, path),
        },
        icon("bad"),
      ),
      fault,
    );
  });
  const name = h("input", {
    type: "text",
    ...common,
    "aria-label": `Add to ${path.at(-1)}`,
    placeholder: path.at(-1) === "nodes" ? "host:port" : "name",
    spellcheck: "false",
  });
  const add = () =>
    name.value &&
    form.restructure([...path, name.value], path.at(-1) === "nodes" ? 1 : blank(about.values, form.schema));
  name.addEventListener("keydown", (event) => event.key === "Enter" && (event.preventDefault(), add()));
  return {
    body: h(
      "div",
      { class: "nested" },
      rows,
      h(
        "div",
        { class: "map-row is-adding" },
        name,
        h("button", { type: "button", onclick: add }, icon("plus"), "Add"),
      ),
    ),
    focus: name,
  };
}

function choice_control(form, path, about, value, common, key) {
  const words = about.choices.map((choice) => {
    const { kind, title, items } = describe(choice, form.schema);
    return (
      title ||
      {
        list: `a list of ${items && describe(items, form.schema).kind === "object" ? "objects" : "values"}`,
        map: "names with values",
        object: "an object",
        string: "text",
        boolean: "yes or no",
        integer: "a number",
        number: "a number",
      }[kind] ||
      "JSON"
    );
  });
  const at = about.chosen ? about.choices.indexOf(about.chosen) : -1;
  const select = h(
    "select",
    {
      class: "is-small",
      "aria-label": `Form of ${key}`,
      onchange: () => {
        const next = about.choices[Number(select.value)];
        form.restructure(path, converted(value, next, form.schema));
      },
    },
    at < 0 && h("option", { value: "" }, "choose a form …"),
    words.map((word, i) => h("option", { value: i }, word)),
  );
  if (at >= 0) select.value = String(at);
  if (at < 0 && value !== undefined)
    return { is_group: true, body: [select, json_control(form, path, value, common).body], focus: select };
  if (at < 0) return { is_group: true, body: select, focus: select };
  const inner = control_of(form, path, describe(about.chosen, form.schema, value), value, {
    id: common.id,
    described: common["aria-describedby"],
    key,
  });
  return { is_group: true, body: [select, inner.body], focus: inner.focus ?? select };
}

// Nodes are a map of "host:port" to weight, or a list of objects; the one can be turned into the other.
function converted(value, schema, root) {
  const { kind } = describe(schema, root);
  if (kind === "list" && value && !Array.isArray(value) && typeof value === "object") {
    return Object.entries(value).map(([node, weight]) => {
      const colon = node.lastIndexOf(":");
      return {
        host: colon > 0 ? node.slice(0, colon) : node,
        port: colon > 0 ? Number(node.slice(colon + 1)) : 80,
        weight,
      };
    });
  }
  if (kind === "map" && Array.isArray(value) && value.every((one) => one?.host))
    return Object.fromEntries(value.map(({ host, port, weight }) => [port ? `${host}:${port}` : host, weight ?? 1]));
  return blank(schema, root);
}

/** A value as JSON text. */
export function json_control(form, path, value, common) {
  const fault = h("p", { class: "fault", "aria-live": "polite" });
  const area = h("textarea", {
    ...common,
    class: "is-code",
    rows: Math.min(10, value === undefined ? 2 : pretty(value).split("\n").length + 1),
    placeholder: "JSON",
    spellcheck: "false",
    value: value === undefined ? "" : pretty(value),
    oninput: () => {
      try {
        form.change(path, area.value.trim() === "" ? undefined : JSON.parse(area.value));
        fault.textContent = "";
      } catch (error) {
        fault.textContent = `Not valid JSON: ${error.message}`;
      }
    },
  });
  return { body: [area, fault], focus: area };
}
