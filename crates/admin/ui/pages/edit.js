// Edits one resource: a form and its text side by side, always the same document; nothing is saved before it was checked.

import { admin_path, ask, get, path_of } from "../api.js";
import { icon } from "../chart.js";
import { diff_size, diff_view } from "../diff.js";
import { steps, versions, without_times } from "../document_history.js";
import { debounced, fresh_id, h, put, set } from "../dom.js";
import { editor } from "../editor.js";
import { make_form } from "../form.js";
import { count, plural } from "../format.js";
import { edit, line_of, node_at, parse, plain, pretty } from "../json.js";
import { about, beginning, key_of } from "../kinds.js";
import { card, checked_view, failure_view, fill, loading, notice, page_head, read_only_notice } from "../parts.js";
import { validate } from "../schema.js";

export const title = ([verb, ...segments]) => `${verb === "new" ? "New" : "Edit"} ${segments.join("/")}`;

export async function show({ root, params: [verb, ...segments], query, app, signal }) {
  const subject = about(segments);
  const is_new = verb === "new" || subject.id === undefined;
  await fill(root, `Loading ${segments.join("/")}`, async () => {
    const [found, schema, names] = await Promise.all([
      is_new ? restored(query, signal) : ask("GET", admin_path(segments), { signal }).then(stored, (failure) => (failure.status === 404 ? absent(failure) : Promise.reject(failure))),
      schema_of(subject, signal).catch(() => null),
      get("/apisix/admin/plugins/list", signal).catch(() => []),
      app.status ?? app.refresh().catch(() => null),
    ]);
    return { found, schema, names: names.filter((name) => typeof name === "string").sort() };
  }, (loaded) => edit_page({ ...loaded, subject, segments, is_new, app, signal }));
}

const stored = ({ body, headers }) => ({ text: pretty(without_times(body.value)), etag: headers.get("ETag") ?? (body.modifiedIndex ? `"${body.modifiedIndex}"` : null), revision: body.modifiedIndex });
const absent = (failure) => { throw Object.assign(failure, { advice: "It may have been deleted. Its earlier versions are in the history on the status page." }); };

async function restored(query, signal) {
  const [revision, key] = [query.get("from"), query.get("key")];
  if (!revision || !key) return { text: null, etag: null };
  const { changes } = await get(path_of("/v1/history", [revision]), signal);
  const value = changes.find((change) => change.key === key)?.before;
  return { text: value ? pretty(without_times(value)) : null, etag: null, id: key.split("/").at(-1) };
}

async function schema_of({ kind, id }, signal) {
  if (kind === "plugin_metadata") return id ? get(`${path_of("/apisix/admin/schema/plugins", [id])}?schema_type=metadata`, signal) : null;
  return get(path_of("/apisix/admin/schema", [kind]), signal);
}

function plugin_source({ kind }, names, signal) {
  const asked = new Map();
  const known = new Map();
  const type = kind === "consumers" || kind === "credentials" ? "?schema_type=consumer" : "";
  const schema = (name) => {
    if (!asked.has(name)) asked.set(name, get(path_of("/apisix/admin/schema/plugins", [name]) + type, signal).then((found) => (known.set(name, found), found)));
    return asked.get(name);
  };
  return { names, schema, known };
}

function edit_page({ found, schema, names, subject, segments, is_new, app, signal }) {
  const { kind, noun } = subject;
  const writable = app.can_write;
  let base = { text: is_new ? "" : found.text, etag: found.etag };
  let id = subject.id ?? found.id ?? "";
  let tree = null;
  let faulty_lines = new Map();
  const history = steps(found.text ?? pretty(beginning(kind, schema)));
  const plugins = plugin_source(subject, names, signal);
  const faults_id = fresh_id();
  const faults_view = h("div", { class: "faults", id: faults_id, "aria-live": "polite" });
  const text_pane = editor({ label: `The ${noun} as JSON`, text: found.text ?? pretty(beginning(kind, schema)), describedby: faults_id, read_only: !writable, on_input: (text) => (history.add(text, "text"), from_text()) });
  const conflict = h("div");
  const undo = h("button", { type: "button", onclick: () => step("undo") }, "Undo");
  const redo = h("button", { type: "button", onclick: () => step("redo") }, "Redo");
  const save = h("button", { type: "button", class: "is-primary", onclick: review }, is_new ? "Review and create" : "Review and save");
  const form = schema && writable ? make_form({ schema, kind, plugins, edit: from_form, on_focus: show_place }) : null;
  const id_field = is_new && kind !== "consumers" && writable && h("div", { class: "field" }, h("div", { class: "field-head" }, h("label", { class: "field-name", for: "new-id" }, kind === "plugin_metadata" ? "plugin" : "id")),
    h("p", { class: "hint", id: "new-id-hint" }, kind === "plugin_metadata" ? "The plugin's name." : kind === "secrets" ? "manager/name, such as vault/1." : "Letters, digits, -, _ and dots. Left empty, the gateway gives one."),
    h("input", { id: "new-id", value: id, "aria-describedby": "new-id-hint", spellcheck: "false", autocapitalize: "off", oninput: (event) => (id = event.target.value.trim()) }));

  // One document: the text. The form follows it, and changes it in place.
  function from_form(path, value, { redraw }) {
    let text;
    try {
      text = edit(text_pane.text(), path, value);
    } catch (fault) {
      return void put(faults_view, failure_view(fault, "Changing the text"));
    }
    text_pane.set(text);
    history.add(text, redraw ? null : path.join("\n"));
    read(text);
    if (redraw) form.show(plain(tree), check());
    else form.mark(check());
    show_place(path);
  }
  const draw_form = debounced(120, () => {
    if (tree && form && !signal.aborted) form.show(plain(tree), check());
  });
  function from_text() {
    read(text_pane.text());
    if (tree) draw_form();
    check();
  }
  function step(way) {
    const text = history[way]();
    if (text === null) return;
    text_pane.set(text);
    from_text();
  }

  function read(text) {
    try {
      tree = parse(text);
    } catch (fault) {
      tree = null;
      put(faults_view, h("button", { type: "button", onclick: () => text_pane.select(fault.at, fault.at + 1) }, icon("bad"), ` Line ${fault.line}, column ${fault.column}: ${fault.message}`));
      text_pane.mark(new Map([[fault.line, "is-fault"]]));
    }
    form?.element.classList.toggle("is-stale", !tree);
    form?.element.toggleAttribute("inert", !tree);
    undo.disabled = !history.can_undo;
    redo.disabled = !history.can_redo;
    save.disabled = !tree || (!is_new && text === base.text);
    app.guard = text === (is_new ? found.text ?? pretty(beginning(kind, schema)) : base.text) ? null : leave;
  }
  function check() {
    if (!tree) return [];
    const value = plain(tree);
    const faults = schema ? validate(value, schema, schema) : [];
    for (const [name, known] of plugins.known) {
      if (value?.plugins && Object.hasOwn(value.plugins, name) && known && !schema?.properties?.plugins?.properties?.[name]) validate(value.plugins[name], known, known, ["plugins", name], faults);
    }
    const text = text_pane.text();
    const lines = new Map();
    for (const { path } of faults) lines.set(line_of(text, place_of(path).start), "is-fault");
    faulty_lines = lines;
    text_pane.mark(lines);
    put(faults_view, faults.length ? faults.slice(0, 8).map(({ path, message }) => h("button", { type: "button", onclick: () => {
      const place = place_of(path);
      if (panes.dataset.shown === "form" && form && innerWidth < 860) form.focus(path);
      else text_pane.select(place.start, place.end), text_pane.reveal(line_of(text, place.start));
    } }, icon("bad"), ` ${path.length ? `${path.join(".")}: ` : ""}${message}`)) : h("span", { class: "is-fine" }, icon("good"), schema ? " Fits the schema." : " Valid JSON."),
      faults.length > 8 && h("span", { class: "quiet" }, `and ${count(faults.length - 8)} more`));
    return faults;
  }
  function place_of(path) {
    for (let at = path; at.length; at = at.slice(0, -1)) {
      const node = node_at(tree, at);
      if (node) return node;
    }
    return { start: tree?.start ?? 0, end: (tree?.start ?? 0) + 1 };
  }
  function show_place(path) {
    const node = tree && node_at(tree, path);
    if (!node) return;
    const [first, last] = [line_of(text_pane.text(), node.start), line_of(text_pane.text(), node.end)];
    const here = Array.from({ length: Math.min(200, last - first + 1) }, (_, i) => [first + i, "is-here"]);
    text_pane.mark(new Map([...here, ...faulty_lines]));
    text_pane.reveal(first);
  }

  async function review() {
    if (!tree || save.disabled) return;
    const text = text_pane.text();
    const target = kind === "consumers" && is_new ? plain(tree).username : id;
    const path = target ? admin_path(is_new ? key_of(subject, target) : segments) : admin_path(subject.collection);
    let against = base;
    let is_conflict = false;
    const place = h("div", { class: "dialog-body" }, loading("Checking"));
    const headers = () => (against.etag ? { "If-Match": against.etag } : {});
    const ready = (async () => {
      try {
        if (is_new && target) {
          against = await ask("GET", path).then(stored, (failure) => (failure.status === 404 ? base : Promise.reject(failure)));
        }
        const { body } = await ask(target ? "PUT" : "POST", `${path}?dry_run=true`, { body: text, headers: headers() });
        const { added, removed } = diff_size(against.text, text);
        put(place, is_new && against !== base && notice("warn", `There is already a ${noun} with this id`, "Saving replaces it. Choose another id to keep both."),
          h("h3", {}, `${plural(added, "line")} added, ${removed} removed`), diff_view(against.text, text), checked_view(body ?? {}));
        return true;
      } catch (failure) {
        if (failure.status === 412) is_conflict = true;
        put(place, failure_view(failure, "The dry run"), against.text && diff_view(against.text, text));
        return failure.status === 412;
      }
    })();
    const is_saved = await app.confirm({ title: is_new ? `Create this ${noun}?` : `Save ${segments.join("/")}?`, action: is_new ? "Create" : "Save", body: place, ready, async run() {
      if (is_conflict) return;
      try {
        const { headers: answered, body } = await ask(target ? "PUT" : "POST", path, { body: text, headers: headers() });
        base = { text, etag: answered.get("ETag") ?? (body?.modifiedIndex ? `"${body.modifiedIndex}"` : null) };
        base.key = body?.key ?? null;
        base.is_served = answered.has("X-Stillgate-Generation");
      } catch (failure) {
        if (failure.status !== 412) throw failure;
        is_conflict = true;
      }
    } });
    if (is_conflict) return show_conflict();
    if (!is_saved) return;
    app.guard = null;
    app.tell(`${is_new ? "Created" : "Saved"}.${base.is_served ? " Every worker serves it." : ""}`);
    const key = is_new ? String(base.key ?? `${subject.collection.join("/")}/${target ?? ""}`).replace(/^\/apisix\//, "").split("/") : segments;
    if (is_new) return app.go(key[0] === "routes" ? ["routes", key[1]] : key[0] === "consumers" ? ["consumers", key[1]] : ["edit", ...key]);
    read(text);
    load_versions();
  }

  async function show_conflict() {
    const theirs = await ask("GET", admin_path(segments)).then(stored, () => null);
    const mine = text_pane.text();
    const decide = (text) => {
      base = { text: theirs?.text ?? "", etag: theirs?.etag ?? null };
      put(conflict);
      text_pane.set(text);
      history.add(text);
      from_text();
      save.focus();
    };
    put(conflict, notice("warn", "Somebody changed it since it was loaded", theirs ? "Nothing is overwritten yet. This is how theirs differs from yours:" : "It was deleted. Saving creates it again.",
      theirs && diff_view(theirs.text, mine),
      h("div", { class: "actions" }, h("button", { type: "button", onclick: () => decide(mine) }, "Keep mine, and review against theirs"), theirs && h("button", { type: "button", onclick: () => decide(theirs.text) }, "Take theirs"))));
    conflict.scrollIntoView({ block: "nearest" });
  }
  const leave = () => app.confirm({ title: "Leave without saving?", body: h("p", {}, "The changes to this document are lost."), action: "Leave", tone: "danger" });

  async function remove() {
    const path = admin_path(segments);
    const checked = await ask("DELETE", `${path}?dry_run=true`).then(({ body }) => body, (failure) => ({ warnings: [failure.message] }));
    const is_done = await app.confirm({ title: `Delete ${segments.join("/")}?`, action: "Delete", tone: "danger", body: checked_view(checked ?? {}), run: () => ask("DELETE", path, { headers: base.etag ? { "If-Match": base.etag } : {} }) });
    if (!is_done) return;
    app.guard = null;
    app.tell(`Deleted ${segments.join("/")}.`);
    app.go(kind === "credentials" ? ["consumers", subject.parent] : ["routes", "upstreams", "consumers"].includes(kind) ? [kind] : kind === "ssls" ? ["certificates"] : ["resources", kind]);
  }

  const earlier = h("div");
  const load_versions = () => versions(earlier, { key: segments.join("/"), current: () => text_pane.text(), signal, use(text, revision) {
    text_pane.set(text);
    history.add(text);
    from_text();
    app.tell(`Revision ${revision} is in the editor. Review and save it to bring it back.`);
    scrollTo(0, 0);
  } });
  if (!is_new && writable) load_versions();

  const tabs = h("div", { class: "edit-tabs", role: "group", "aria-label": "What is shown" }, ["form", "text"].map((one) => h("button", { type: "button", "aria-pressed": String(one === "form"), onclick: (event) => {
    panes.dataset.shown = one;
    for (const tab of tabs.children) set(tab, "aria-pressed", String(tab === event.currentTarget));
  } }, one === "form" ? "Form" : "Text")));
  const panes = h("div", { class: form ? "edit-panes" : "", "data-shown": "form" },
    form && h("div", { class: "edit-pane is-form" }, h("div", { class: "edit-pane-head" }, h("h2", {}, "Form")), id_field && h("div", { class: "card id-field" }, id_field), form.element),
    h("div", { class: "edit-pane is-text" }, h("div", { class: "edit-pane-head" }, h("h2", {}, "Text"), writable && h("div", { class: "actions" }, undo, redo)), text_pane.element, faults_view));

  read(text_pane.text());
  if (tree) form ? form.show(plain(tree), check()) : check();
  const keys = (event) => {
    const is_command = event.ctrlKey || event.metaKey;
    if (!is_command || event.altKey || !root_is_shown() || document.querySelector("dialog[open]")) return;
    const key = event.key.toLowerCase();
    if (key === "s") event.preventDefault(), review();
    else if (key === "z") event.preventDefault(), step(event.shiftKey ? "redo" : "undo");
    else if (key === "y") event.preventDefault(), step("redo");
  };
  const root_is_shown = () => text_pane.element.isConnected;
  if (writable) document.addEventListener("keydown", keys, { signal });
  signal.addEventListener("abort", () => (app.guard = null));

  const crumbs = kind === "credentials" ? [["Consumers", ["consumers"]], [subject.parent, ["consumers", subject.parent]]] : kind === "routes" ? [["Routes", ["routes"]]] : kind === "upstreams" ? [["Upstreams", ["upstreams"]]] : kind === "ssls" ? [["Certificates", ["certificates"]]] : kind === "consumers" ? [["Consumers", ["consumers"]]] : [["All resources", ["resources", kind]]];
  return [
    page_head(is_new ? `New ${noun}` : `${writable ? "Edit" : "The"} ${noun} ${subject.id}`, {
      crumbs, lead: found.revision ? `Last changed by revision ${found.revision}.` : null,
      actions: writable && [!is_new && h("button", { type: "button", class: "is-danger", onclick: remove }, "Delete"), save],
    }),
    read_only_notice(app),
    writable && !schema && notice("note", "There is no form for this", "The gateway has no schema for it. The text is checked by the server before it is saved."),
    conflict, form && tabs, !form && id_field, panes,
    !is_new && writable && h("div", { class: "after-panes" }, card("Earlier versions", earlier, { note: "kept by the store" })),
  ];
}

