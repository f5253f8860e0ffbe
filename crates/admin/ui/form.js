// A form for any document, made from its JSON Schema. It shows a value, and reports edits as a path and a new value.
//
// It keeps no document: the text is the document. After an edit of one field only what it changed is drawn again.

import { icon } from "./chart.js";
import { fresh_id, h, put } from "./dom.js";
import { pretty } from "./json.js";
import { loading } from "./parts.js";
import { blank, describe, is_unbuilt, resolve } from "./schema.js";

/** Shown at the top level even where they are absent, since most documents have them. */
const USUAL = {
  routes: ["name", "uri", "hosts", "methods", "upstream_id", "plugins", "priority", "status"],
  services: ["name", "hosts", "upstream_id", "plugins"],
  upstreams: ["name", "type", "nodes", "scheme"],
  consumers: ["username", "desc", "plugins"],
  credentials: ["name", "plugins"],
  ssls: ["snis", "cert", "key"],
  global_rules: ["plugins"],
  plugin_configs: ["desc", "plugins"],
  consumer_groups: ["desc", "plugins"],
};
const LONG = /^(cert|certs|keys|desc|content|body|private_key|public_key|filter_func|expression)$/;
// The id is the address of a resource, and times are written by the server.
const NEVER = new Set(["create_time", "update_time", "id"]);

/** `{element, show(value, faults), mark(faults)}`. `edit(path, value)`: undefined removes. */
export function make_form({ schema, kind, edit, plugins, on_focus }) {
  const element = h("form", { class: "schema-form", "aria-label": "Fields", onsubmit: (event) => event.preventDefault() });
  const open = new Set();
  let value = {};
  let fields = new Map();
  let wanted_focus = null;

  const id_of = (path) => JSON.stringify(path);
  const form = {
    schema, kind, plugins, open,
    change(path, next) {
      wanted_focus = null;
      edit(path, next, { redraw: false });
    },
    restructure(path, next, focus = path) {
      wanted_focus = id_of(focus);
      edit(path, next, { redraw: true });
    },
    register(path, control, fault) {
      fields.set(id_of(path), { control, fault });
      control?.addEventListener("focus", () => on_focus?.(path));
    },
  };

  return {
    element,
    show(next, faults = []) {
      const active = [...fields].find(([, { control }]) => control && control === document.activeElement);
      const focus = wanted_focus ?? active?.[0];
      const selection = active?.[1].control.selectionStart;
      value = next;
      fields = new Map();
      put(element, object_body(form, [], describe(schema, schema, value), value ?? {}, kind));
      this.mark(faults);
      const found = focus && fields.get(focus)?.control;
      if (found) {
        found.focus({ preventScroll: wanted_focus === null });
        if (wanted_focus === null && selection !== undefined && selection !== null && found.setSelectionRange) found.setSelectionRange(selection, selection);
      }
      wanted_focus = null;
    },
    mark(faults) {
      for (const { control, fault } of fields.values()) {
        fault.textContent = "";
        control?.removeAttribute("aria-invalid");
      }
      for (const { path, message } of faults) {
        for (let at = path; ; at = at.slice(0, -1)) {
          const field = fields.get(id_of(at));
          if (field) {
            const rest = path.slice(at.length).join(".");
            field.fault.textContent += `${field.fault.textContent && "; "}${rest && `${rest}: `}${message}`;
            field.control?.setAttribute("aria-invalid", "true");
            break;
          }
          if (!at.length) break;
        }
      }
    },
    focus(path) {
      for (let at = path; ; at = at.slice(0, -1)) {
        const field = fields.get(id_of(at));
        if (field?.control) {
          for (let up = field.control.closest("details"); up; up = up.parentElement.closest("details")) up.open = true;
          field.control.focus();
          return;
        }
        if (!at.length) return;
      }
    },
  };
}

function object_body(form, path, about, value, kind) {
  const { properties, required } = about;
  const usual = path.length ? [] : (USUAL[kind] ?? []);
  const has = (key) => value && Object.hasOwn(value, key);
  const is_offered = (key) => !NEVER.has(key) && !is_unbuilt(resolve(properties[key], form.schema));
  const known = Object.keys(properties);
  // The target of a route is one of three: once one is written, the usual one makes room.
  const has_target = ["upstream", "service_id", "upstream_id"].some(has);
  const has_path = ["uri", "uris", "expression"].some(has);
  const is_usual = (key) => usual.includes(key) && !(key === "upstream_id" && has_target) && !(key === "uri" && has_path);
  const shown = known.filter((key) => has(key) || required.includes(key) || (is_usual(key) && is_offered(key)));
  shown.sort((a, b) => rank(usual, a) - rank(usual, b));
  const unknown = Object.keys(value ?? {}).filter((key) => !Object.hasOwn(properties, key) && !NEVER.has(key));
  const rest = known.filter((key) => !shown.includes(key) && is_offered(key));
  return [
    shown.filter((key) => !NEVER.has(key)).map((key) => field(form, [...path, key], properties[key], value?.[key], { label: key, is_required: required.includes(key), is_present: has(key) })),
    unknown.map((key) => field(form, [...path, key], {}, value[key], { label: key, is_present: true })),
    rest.length > 0 && adder(rest.map((key) => [key, resolve(properties[key], form.schema).description]), "Add a field", (key) => form.restructure([...path, key], blank(properties[key], form.schema))),
  ];
}

const rank = (usual, key) => (usual.includes(key) ? usual.indexOf(key) : usual.length);

function field(form, path, schema, value, { label, is_required = false, is_present, removable = true }) {
  const about = describe(schema, form.schema, value);
  if (label === "plugins" && (about.kind === "object" || about.kind === "map" || about.kind === "any")) return plugins_field(form, path, about, value);
  const id = fresh_id();
  const fault = h("p", { class: "fault", id: `${id}f` });
  const hint = about.description && h("p", { class: "hint", id: `${id}h` }, about.description);
  const parts = control_of(form, path, about, value, { id, described: `${hint ? `${id}h ` : ""}${id}f`, key: label });
  form.register(path, parts.focus ?? null, fault);
  const remove = is_present && removable && !is_required && h("button", { type: "button", class: "icon-button", title: `Remove ${label}`, "aria-label": `Remove ${label}`, onclick: () => form.restructure(path, undefined, path.slice(0, -1)) }, icon("bad"));
  const head = h("div", { class: "field-head" },
    parts.is_group ? h("span", { class: "field-name", id: `${id}l` }, label) : h("label", { class: "field-name", for: id }, label),
    is_required && h("span", { class: "chip" }, "required"),
    about.title && h("span", { class: "quiet" }, about.title), remove);
  const attributes = parts.is_group ? { role: "group", "aria-labelledby": `${id}l` } : {};
  return h("div", { class: ["field", !is_present && "is-absent", parts.is_group && "is-group"], ...attributes }, head, hint, parts.body, fault);
}

function control_of(form, path, about, value, { id, described, key }) {
  const common = { id, "aria-describedby": described };
  switch (about.kind) {
    case "boolean":
    case "enum": {
      if (about.takes_environment && typeof value === "string" && value.includes("${")) return text_control(form, path, about, value, common, key);
      const words = about.kind === "boolean" ? [true, false] : about.words;
      const unset = about.default === undefined ? "not set" : `not set (${JSON.stringify(about.default)})`;
      const at = words.findIndex((word) => word === value);
      const select = h("select", { ...common, onchange: () => form.change(path, select.value === "" ? undefined : words[Number(select.value)]) },
        h("option", { value: "" }, value !== undefined && at < 0 ? `${JSON.stringify(value)} (not allowed)` : unset),
        words.map((word, i) => h("option", { value: i }, word_of(key, word))));
      select.value = at < 0 ? "" : String(at);
      return { body: select, focus: select };
    }
    case "string":
    case "integer":
    case "number":
      return text_control(form, path, about, value, common, key);
    case "list":
      return list_control(form, path, about, value, common);
    case "map":
      return map_control(form, path, about, value, common);
    case "object": {
      if (value === undefined || value === null) return { is_group: true, body: h("p", {}, h("button", { type: "button", onclick: () => form.restructure(path, blank(about.schema, form.schema)) }, icon("plus"), "Set")) };
      return { is_group: true, body: h("div", { class: "nested" }, object_body(form, path, about, value)) };
    }
    case "choice":
      return choice_control(form, path, about, value, common, key);
    default:
      return json_control(form, path, value, common);
  }
}

const word_of = (key, word) => (word === true ? "yes" : word === false ? "no" : key === "status" && word === 1 ? "1: enabled" : key === "status" && word === 0 ? "0: disabled" : String(word));

function text_control(form, path, about, value, common, key) {
  const is_number = about.kind === "integer" || about.kind === "number";
  const is_long = !is_number && (LONG.test(key) || (key === "key" && form.kind === "ssls") || String(value ?? "").includes("\n") || String(value ?? "").length > 80);
  const read = () => {
    const text = input.value;
    if (text === "") return form.change(path, undefined);
    const is_numeral = /^-?(0|[1-9]\d*)(\.\d+)?$/.test(text.trim()) && Number.isSafeInteger(Math.trunc(Number(text)));
    form.change(path, is_numeral && (is_number || (about.takes_numbers && typeof value === "number")) ? Number(text) : text);
  };
  const placeholder = about.default === undefined ? "" : String(about.default);
  const shared = { ...common, value: value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value), placeholder, spellcheck: "false", autocomplete: "off", oninput: read };
  const input = is_long ? h("textarea", { ...shared, rows: Math.min(8, String(value ?? "").split("\n").length + 1) }) : h("input", { type: "text", inputmode: is_number ? "decimal" : null, ...shared });
  return { body: input, focus: input };
}

function list_control(form, path, about, value, common) {
  const item = describe(about.items, form.schema);
  const list = Array.isArray(value) ? value : [];
  const is_plain = (item.kind === "string" || item.kind === "enum") && list.every((one) => typeof one === "string");
  if (is_plain) {
    const area = h("textarea", { ...common, rows: Math.min(8, Math.max(1, list.length)), spellcheck: "false", autocapitalize: "off", placeholder: "one per line", value: list.join("\n"),
      oninput: () => {
        const lines = area.value.split("\n").map((line) => line.trim()).filter(Boolean);
        form.change(path, lines.length ? lines : undefined);
      } });
    return { body: area, focus: area };
  }
  if (item.kind === "any" || item.kind === "list") return json_control(form, path, value, common);
  const rows = list.map((one, i) => field(form, [...path, i], about.items, one, { label: String(i + 1), is_present: true }));
  const add = h("button", { type: "button", ...common, onclick: () => form.restructure([...path, list.length], blank(about.items, form.schema)) }, icon("plus"), "Add an entry");
  return { is_group: true, body: h("div", { class: "nested" }, rows, add), focus: add };
}

function map_control(form, path, about, value, common) {
  const keys = value && typeof value === "object" ? Object.keys(value) : [];
  const rows = keys.map((key) => {
    const here = [...path, key];
    const inner = control_of(form, here, describe(about.values, form.schema, value[key]), value[key], { id: fresh_id(), described: common["aria-describedby"], key });
    const fault = h("p", { class: "fault" });
    form.register(here, inner.focus ?? null, fault);
    inner.focus?.setAttribute("aria-label", `Value of ${key}`);
    const name = h("input", { type: "text", value: key, "aria-label": "Name", spellcheck: "false", onchange: () => {
      const renamed = Object.fromEntries(keys.map((one) => [one === key ? name.value : one, value[one]]));
      form.restructure(path, renamed, [...path, name.value]);
    } });
    return h("div", { class: "map-row" }, name, inner.body, h("button", { type: "button", class: "icon-button", "aria-label": `Remove ${key}`, title: `Remove ${key}`, onclick: () => form.restructure(here, undefined, path) }, icon("bad")), fault);
  });
  const name = h("input", { type: "text", ...common, placeholder: path.at(-1) === "nodes" ? "host:port" : "name", spellcheck: "false" });
  const add = () => name.value && form.restructure([...path, name.value], path.at(-1) === "nodes" ? 1 : blank(about.values, form.schema));
  name.addEventListener("keydown", (event) => event.key === "Enter" && (event.preventDefault(), add()));
  return { body: h("div", { class: "nested" }, rows, h("div", { class: "map-row is-adding" }, name, h("button", { type: "button", onclick: add }, icon("plus"), "Add"))), focus: name };
}

function choice_control(form, path, about, value, common, key) {
  const words = about.choices.map((choice) => {
    const { kind, title, items } = describe(choice, form.schema);
    return title || { list: `a list of ${items && describe(items, form.schema).kind === "object" ? "objects" : "values"}`, map: "names with values", object: "an object", string: "a text", boolean: "yes or no", integer: "a number", number: "a number" }[kind] || "JSON";
  });
  const at = about.chosen ? about.choices.indexOf(about.chosen) : -1;
  const select = h("select", { class: "is-small", "aria-label": `How ${key} is written`, onchange: () => {
    const next = about.choices[Number(select.value)];
    form.restructure(path, converted(value, next, form.schema));
  } }, at < 0 && h("option", { value: "" }, "written as …"), words.map((word, i) => h("option", { value: i }, word)));
  if (at >= 0) select.value = String(at);
  if (at < 0 && value !== undefined) return { is_group: true, body: [select, json_control(form, path, value, common).body], focus: select };
  if (at < 0) return { is_group: true, body: select, focus: select };
  const inner = control_of(form, path, describe(about.chosen, form.schema, value), value, { id: common.id, described: common["aria-describedby"], key });
  return { is_group: true, body: [select, inner.body], focus: inner.focus ?? select };
}

// Nodes are a map of "host:port" to weight, or a list of objects; the one can be turned into the other.
function converted(value, schema, root) {
  const { kind } = describe(schema, root);
  if (kind === "list" && value && !Array.isArray(value) && typeof value === "object") {
    return Object.entries(value).map(([node, weight]) => {
      const colon = node.lastIndexOf(":");
      return { host: colon > 0 ? node.slice(0, colon) : node, port: colon > 0 ? Number(node.slice(colon + 1)) : 80, weight };
    });
  }
  if (kind === "map" && Array.isArray(value) && value.every((one) => one?.host)) return Object.fromEntries(value.map(({ host, port, weight }) => [port ? `${host}:${port}` : host, weight ?? 1]));
  return blank(schema, root);
}

function json_control(form, path, value, common) {
  const fault = h("p", { class: "fault", "aria-live": "polite" });
  const area = h("textarea", { ...common, class: "is-code", rows: Math.min(10, value === undefined ? 2 : pretty(value).split("\n").length + 1), placeholder: "JSON", spellcheck: "false", value: value === undefined ? "" : pretty(value),
    oninput: () => {
      try {
        form.change(path, area.value.trim() === "" ? undefined : JSON.parse(area.value));
        fault.textContent = "";
      } catch (error) {
        fault.textContent = `Not JSON yet: ${error.message}`;
      }
    } });
  return { body: [area, fault], focus: area };
}

function plugins_field(form, path, about, value) {
  const names = Object.keys(value ?? {});
  const id = fresh_id();
  const fault = h("p", { class: "fault" });
  const list = names.map((name) => plugin_part(form, [...path, name], name, value[name], about.properties?.[name]));
  const offered = form.plugins.names.filter((name) => !names.includes(name)).map((name) => [name, ""]);
  const add = adder(offered, "Add a plugin", (name) => {
    form.open.add(JSON.stringify([...path, name]));
    form.restructure([...path, name], {}, [...path, name]);
  });
  form.register(path, add.querySelector("select, input"), fault);
  return h("div", { class: "field is-group", role: "group", "aria-labelledby": id },
    h("div", { class: "field-head" }, h("span", { class: "field-name", id }, "plugins"), h("span", { class: "quiet" }, names.length ? "" : "none")),
    h("div", { class: "plugins" }, list), add, fault);
}

function plugin_part(form, path, name, value, known) {
  const key = JSON.stringify(path);
  const body = h("div", { class: "nested" });
  const fault = h("p", { class: "fault" });
  const summary = h("summary", {}, h("span", { class: "field-name" }, name), h("span", { class: "quiet" }, preview(value)));
  const part = h("details", { class: "plugin", open: form.open.has(key) }, summary,
    h("button", { type: "button", class: "icon-button", "aria-label": `Remove ${name}`, title: `Remove ${name}`, onclick: () => form.restructure(path, undefined, path.slice(0, -1)) }, icon("bad")), body, fault);
  form.register(path, summary, fault);
  let is_drawn = false;
  const draw = async () => {
    if (is_drawn) return;
    is_drawn = true;
    let schema = known;
    if (!schema?.properties && !schema?.$ref) {
      put(body, loading(name));
      schema = await form.plugins.schema(name).catch(() => null);
    }
    const about = describe(schema ?? {}, form.schema, value);
    if (about.kind === "object") put(body, about.description && h("p", { class: "hint" }, about.description), object_body({ ...form, schema: schema.$defs ? schema : form.schema }, path, about, value ?? {}));
    else put(body, json_control(form, path, value, { id: fresh_id(), "aria-label": `Configuration of ${name}` }).body);
  };
  part.addEventListener("toggle", () => {
    if (part.open) form.open.add(key), draw();
    else form.open.delete(key);
  });
  if (part.open) draw();
  return part;
}

function preview(value) {
  const text = JSON.stringify(value ?? {});
  return text === "{}" ? "" : text.length > 60 ? `${text.slice(0, 60)}…` : text;
}

function adder(options, label, add) {
  const id = fresh_id();
  const select = h("select", { id }, options.map(([name, text]) => h("option", { value: name }, text ? `${name}: ${text.length > 70 ? `${text.slice(0, 70)}…` : text}` : name)));
  return h("div", { class: "adder" }, h("label", { for: id, class: "visually-hidden" }, label), select,
    h("button", { type: "button", disabled: !options.length, onclick: () => select.value && add(select.value) }, icon("plus"), label));
}
