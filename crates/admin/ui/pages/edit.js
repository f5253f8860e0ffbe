// Edits one resource: a form and its text, always the same document; nothing is saved before it was checked.

import { versions } from "../edit/document_history.js";
import { pretty } from "../edit/json.js";
import { about, beginning } from "../edit/kinds.js";
import { load } from "../edit/loading.js";
import { Panes } from "../edit/panes.js";
import { remove, review } from "../edit/saving.js";
import { h, set } from "../dom.js";
import { card, fill, notice, page_head, read_only_notice } from "../parts.js";

export const title = ([verb, ...segments]) => `${verb === "new" ? "New" : "Edit"} ${segments.join("/")}`;

/** Where a kind has a page of its own, for the way back. */
const LISTS = {
  routes: ["Routes", ["routes"]],
  upstreams: ["Upstreams", ["upstreams"]],
  consumers: ["Consumers", ["consumers"]],
  ssls: ["Certificates", ["certificates"]],
};

export async function show({ root, params: [verb, ...segments], query, app, signal }) {
  const subject = about(segments);
  const is_new = verb === "new" || subject.id === undefined;
  const restored = { from: query.get("from"), key: query.get("key") };
  const load_all = async () => {
    const [loaded] = await Promise.all([
      load(subject, segments, is_new, restored, signal),
      app.status ?? app.refresh().catch(() => null),
    ]);
    return loaded;
  };
  await fill(root, `Loading ${segments.join("/")}`, load_all, (loaded) =>
    view({ ...loaded, subject, segments, is_new, app, signal }),
  );
}

function view({ found, schema, plugins, ids, subject, segments, is_new, app, signal }) {
  const { kind, noun } = subject;
  const writable = app.can_write;
  const first = found.text ?? pretty(beginning(kind, schema));
  const work = { subject, segments, is_new, app, id: subject.id ?? found.id ?? "", conflict: h("div") };
  work.base = { text: is_new ? "" : found.text, etag: found.etag };
  const word = is_new ? "Review and create" : "Review and save";
  const save = h("button", { type: "button", class: "is-primary", onclick: () => save.disabled || review(work) }, word);
  const leave = () => confirm_leaving(app);
  const on_change = (panes) => {
    save.disabled = !panes.tree || (!is_new && panes.text() === work.base.text);
    app.guard = panes.text() === (is_new ? first : work.base.text) ? null : leave;
  };
  const id_field = is_new && writable && kind !== "consumers" && id_part(kind, work);
  const panes = new Panes({ text: first, schema, kind, plugins, ids, noun, writable, id_field, on_change, signal });
  work.panes = panes;
  const earlier = h("div");
  const load_versions = () => show_versions(earlier, work, signal);
  work.on_saved = () => {
    panes.read();
    load_versions();
  };
  if (!is_new && writable) load_versions();
  if (writable) document.addEventListener("keydown", shortcuts(panes, save), { signal });
  signal.addEventListener("abort", () => (app.guard = null));

  const lists =
    kind === "credentials"
      ? [LISTS.consumers, [subject.parent, ["consumers", subject.parent]]]
      : [LISTS[kind] ?? ["All resources", ["resources", kind]]];
  const back = lists.at(-1)[1];
  const delete_it = async () => {
    if (!(await remove(app, segments, segments.join("/"), { etag: work.base.etag }))) return;
    app.guard = null;
    app.go(back);
  };
  const no_form =
    writable &&
    !schema &&
    notice(
      "note",
      "There is no form for this kind",
      "The gateway has no schema for it. It still checks the text before saving.",
    );
  const delete_button = !is_new && h("button", { type: "button", class: "is-danger", onclick: delete_it }, "Delete");
  const lead = found.line
    ? `Line ${found.line} of ${app.source.path ?? "the file"}.`
    : found.revision && `Last changed in revision ${found.revision}.`;
  const heading = is_new ? `New ${noun}` : `${writable ? "Edit" : "The"} ${noun} ${subject.id}`;
  return [
    page_head(heading, { crumbs: lists, lead }),
    read_only_notice(app),
    no_form,
    work.conflict,
    bar(panes, writable && h("div", { class: "actions" }, delete_button, save), signal),
    panes.element,
    !is_new &&
      writable &&
      h("div", { class: "after-panes" }, card("Earlier versions", earlier, { note: "kept by the store" })),
  ];
}

// Stays in sight: what is wrong, and saving. The text beside the form begins below it.
function bar(panes, actions, signal) {
  const element = h("div", { class: "edit-bar" }, panes.faults, actions);
  const observer = new ResizeObserver(() => set(document.documentElement, "vars", { bar: `${element.offsetHeight}px` }));
  observer.observe(element);
  signal.addEventListener("abort", () => observer.disconnect());
  return element;
}

const ID_FORM = "Letters, digits, -, _ and dots.";

const ID_HINTS = {
  plugin_metadata: "The plugin's name.",
  // These are not created without an id.
  consumer_groups: ID_FORM,
  credentials: ID_FORM,
  global_rules: ID_FORM,
  plugin_configs: ID_FORM,
  secrets: "manager/name, such as vault/1.",
};

function id_part(kind, work) {
  const hint = ID_HINTS[kind] ?? `${ID_FORM} If it is empty, the gateway chooses one.`;
  const on_input = (event) => (work.id = event.target.value.trim());
  const input = {
    id: "new-id",
    value: work.id,
    "aria-describedby": "new-id-hint",
    spellcheck: "false",
    autocapitalize: "off",
    oninput: on_input,
  };
  const label = h("label", { class: "field-name", for: "new-id" }, kind === "plugin_metadata" ? "plugin" : "id");
  return h(
    "div",
    { class: "field" },
    h("div", { class: "field-head" }, label),
    h("p", { class: "hint", id: "new-id-hint" }, hint),
    h("input", input),
  );
}

const confirm_leaving = (app) =>
  app.confirm({
    title: "Leave without saving?",
    body: h("p", {}, "Your changes to this document will be lost."),
    action: "Leave",
    tone: "danger",
  });

const show_versions = (root, { segments, panes, app }, signal) =>
  versions(root, {
    key: segments.join("/"),
    current: () => panes.text(),
    app,
    signal,
    use(text, revision) {
      panes.replace(text);
      app.tell(`Revision ${revision} is in the editor. Review and save it to restore it.`);
      scrollTo(0, 0);
    },
  });

// Undo and redo are the document's, whichever field has the focus.
const shortcuts = (panes, save) => (event) => {
  const is_command = (event.ctrlKey || event.metaKey) && !event.altKey;
  if (!is_command || document.querySelector("dialog[open]")) return;
  const key = event.key.toLowerCase();
  const act = {
    s: () => save.click(),
    z: () => panes.step(event.shiftKey ? "redo" : "undo"),
    y: () => panes.step("redo"),
  }[key];
  if (!act) return;
  event.preventDefault();
  act();
};
