// The fields of objects: which are shown, their heads and hints, what can be added; and plugins, whose schemas come later.
//
// Fields hold controls, and controls of nested values hold fields: this module and controls.js call each other.

import { icon } from "../chart.js";
import { fresh_id, h, put } from "../dom.js";
import { loading } from "../parts.js";
import { control_of, json_control } from "./controls.js";
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
// The id is the address of a resource, and times are written by the server.
const NEVER = new Set(["create_time", "update_time", "id"]);

/** The fields of an object, and what can be added to it. */
export function object_body(form, path, about, value, kind) {
  const { properties, required } = about;
  const usual = path.length ? [] : (USUAL[kind] ?? []);
  const has = (key) => value && Object.hasOwn(value, key);
  const is_offered = (key) => !NEVER.has(key) && !is_unbuilt(resolve(properties[key], form.schema));
  const known = Object.keys(properties);
  // The target of a route is one of three: once one is written, the usual one makes room.
  const has_target = ["upstream", "service_id", "upstream_id"].some(has);
  const has_path = ["uri", "uris", "expression"].some(has);
  const is_usual = (key) =>
    usual.includes(key) && !(key === "upstream_id" && has_target) && !(key === "uri" && has_path);
  const shown = known.filter((key) => has(key) || required.includes(key) || (is_usual(key) && is_offered(key)));
  shown.sort((a, b) => rank(usual, a) - rank(usual, b));
  const unknown = Object.keys(value ?? {}).filter((key) => !Object.hasOwn(properties, key) && !NEVER.has(key));
  const rest = known.filter((key) => !shown.includes(key) && is_offered(key));
  return [
    shown
      .filter((key) => !NEVER.has(key))
      .map((key) =>
        field(form, [...path, key], properties[key], value?.[key], {
          label: key,
          is_required: required.includes(key),
          is_present: has(key),
        }),
      ),
    unknown.map((key) => field(form, [...path, key], {}, value[key], { label: key, is_present: true })),
    rest.length > 0 &&
      adder(
        rest.map((key) => [key, resolve(properties[key], form.schema).description]),
        "Add a field",
        (key) => form.restructure([...path, key], blank(properties[key], form.schema)),
      ),
  ];
}

const rank = (usual, key) => (usual.includes(key) ? usual.indexOf(key) : usual.length);

/** One field: head, hint, control and what is wrong with it. */
export function field(form, path, schema, value, { label, is_required = false, is_present, removable = true }) {
  const about = describe(schema, form.schema, value);
  if (label === "plugins" && (about.kind === "object" || about.kind === "map" || about.kind === "any"))
    return plugins_field(form, path, about, value);
  const id = fresh_id();
  const fault = h("p", { class: "fault", id: `${id}f` });
  const hint = about.description && h("p", { class: "hint", id: `${id}h` }, about.description);
  const parts = control_of(form, path, about, value, { id, described: `${hint ? `${id}h ` : ""}${id}f`, key: label });
  form.register(path, parts.focus ?? null, fault);
  const remove =
    is_present &&
    removable &&
    !is_required &&
    h(
      "button",
      {
        type: "button",
        class: "icon-button",
        title: `Remove ${label}`,
        "aria-label": `Remove ${label}`,
        onclick: () => form.restructure(path, undefined, path.slice(0, -1)),
      },
      icon("bad"),
    );
  const head = h(
    "div",
    { class: "field-head" },
    parts.is_group
      ? h("span", { class: "field-name", id: `${id}l` }, label)
      : h("label", { class: "field-name", for: id }, label),
    is_required && h("span", { class: "chip" }, "required"),
    about.title && h("span", { class: "quiet" }, about.title),
    remove,
  );
  const attributes = parts.is_group ? { role: "group", "aria-labelledby": `${id}l` } : {};
  return h(
    "div",
    { class: ["field", !is_present && "is-absent", parts.is_group && "is-group"], ...attributes },
    head,
    hint,
    parts.body,
    fault,
  );
}

function plugins_field(form, path, about, value) {
  const names = Object.keys(value ?? {});
  const id = fresh_id();
  const fault = h("p", { class: "fault" });
  const list = names.map((name) => plugin_part(form, [...path, name], name, value[name], about.properties?.[name]));
  const known = form.plugins.names.length ? form.plugins.names : Object.keys(about.properties ?? {});
  const offered = known.filter((name) => !names.includes(name)).map((name) => [name, ""]);
  const add = adder(offered, "Add a plugin", (name) => {
    form.open.add(JSON.stringify([...path, name]));
    form.restructure([...path, name], {}, [...path, name]);
  });
  form.register(path, add.querySelector("select, input"), fault);
  return h(
    "div",
    { class: "field is-group", role: "group", "aria-labelledby": id },
    h(
      "div",
      { class: "field-head" },
      h("span", { class: "field-name", id }, "plugins"),
      h("span", { class: "quiet" }, names.length ? "" : "none"),
    ),
    h("div", { class: "plugins" }, list),
    add,
    fault,
  );
}

function plugin_part(form, path, name, value, known) {
  const key = JSON.stringify(path);
  const body = h("div", { class: "nested" });
  const fault = h("p", { class: "fault" });
  const tally = h("span", { class: "fault" });
  const summary = h(
    "summary",
    {},
    h("span", { class: "field-name" }, name),
    h("span", { class: "quiet" }, preview(value)),
    tally,
  );
  const part = h(
    "details",
    { class: "plugin", open: form.open.has(key) },
    summary,
    h(
      "button",
      {
        type: "button",
        class: "icon-button",
        "aria-label": `Remove ${name}`,
        title: `Remove ${name}`,
        onclick: () => form.restructure(path, undefined, path.slice(0, -1)),
      },
      icon("bad"),
    ),
    body,
    fault,
  );
  const unfold = () => {
    part.open = true;
    return (drawing ??= draw());
  };
  form.register(path, summary, fault, { tally, unfold });
  let drawing = null;
  const draw = async () => {
    let schema = known;
    if (!schema?.properties && !schema?.$ref) {
      put(body, loading(name));
      schema = await form.plugins.schema(name).catch(() => null);
    }
    const about = describe(schema ?? {}, form.schema, value);
    if (about.kind === "object")
      put(
        body,
        about.description && h("p", { class: "hint" }, about.description),
        object_body({ ...form, schema: schema.$defs ? schema : form.schema }, path, about, value ?? {}),
      );
    else put(body, json_control(form, path, value, { id: fresh_id(), "aria-label": `Configuration of ${name}` }).body);
    form.drawn();
  };
  part.addEventListener("toggle", () => {
    if (part.open) (form.open.add(key), unfold());
    else form.open.delete(key);
  });
  if (part.open) unfold();
  return part;
}

function preview(value) {
  const text = JSON.stringify(value ?? {});
  return text === "{}" ? "" : text.length > 60 ? `${text.slice(0, 60)}…` : text;
}

function adder(options, label, add) {
  const id = fresh_id();
  const select = h(
    "select",
    { id },
    options.map(([name, text]) =>
      h("option", { value: name }, text ? `${name}: ${text.length > 70 ? `${text.slice(0, 70)}…` : text}` : name),
    ),
  );
  return h(
    "div",
    { class: "adder" },
    h("label", { for: id, class: "visually-hidden" }, label),
    select,
    h(
      "button",
      { type: "button", disabled: !options.length, onclick: () => select.value && add(select.value) },
      icon("plus"),
      label,
    ),
  );
}
