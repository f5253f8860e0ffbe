// The form and the text of one document, side by side and always the same; with undo, and hints of what is wrong.
//
// The text is the document. An edit in the form changes the characters of one value; the form is drawn from the text.

import { icon } from "../chart.js";
import { debounced, fresh_id, h, put, set } from "../dom.js";
import { plural } from "../format.js";
import { failure_view } from "../parts.js";
import { steps } from "./document_history.js";
import { editor } from "./editor.js";
import { make_form } from "./form.js";
import { edit, line_of, node_at, parse, plain } from "./json.js";
import { about } from "./kinds.js";
import { REFERENCES } from "./loading.js";
import { resolve, unknown_name, validate } from "./schema.js";

const LINES_MARKED_MAX = 200;
const REDRAW_MS = 120;
const PHONE_PX = 860;

/** A form and a text; `bar` says what is wrong, above both. */
export class Panes {
  /** The parsed text; null while it is not JSON. */
  tree = null;
  #faulty_lines = new Map();
  #said = "";
  #asked_plugins = new Set();

  constructor({ text, schema, kind, plugins, ids, noun, writable, id_field, on_change, signal }) {
    Object.assign(this, { schema, plugins, ids, on_change });
    this.history = steps(text);
    const faults_id = fresh_id();
    this.faults = h("div", { class: "faults", id: faults_id, role: "status" });
    this.editor = editor({
      label: `The ${noun} as JSON`,
      text,
      describedby: faults_id,
      read_only: !writable,
      on_input: (typed) => {
        this.history.add(typed, "text");
        this.#follow_text();
      },
    });
    const on_focus = (path) => this.#show_place(path);
    this.form =
      schema && writable
        ? make_form({ schema, kind, plugins, ids, on_focus, edit: (...change) => this.#follow_form(...change) })
        : null;
    this.#draw_form = debounced(REDRAW_MS, () => {
      if (this.tree && this.form && !signal.aborted) this.form.show(plain(this.tree), this.check());
    });
    this.undo = h("button", { type: "button", onclick: () => this.step("undo") }, "Undo");
    this.redo = h("button", { type: "button", onclick: () => this.step("redo") }, "Redo");
    this.element = this.#layout(writable, id_field);
    this.read();
    if (this.tree && this.form) this.form.show(plain(this.tree), this.check());
    else this.check();
  }

  #draw_form;

  text() {
    return this.editor.text();
  }

  /** Puts another text in, as one step that can be undone. */
  replace(text) {
    this.editor.set(text);
    this.history.add(text);
    this.#follow_text();
  }

  /** `undo` or `redo`. */
  step(way) {
    const text = this.history[way]();
    if (text === null) return;
    this.editor.set(text);
    this.#follow_text();
  }

  /** Reads the text; says where it is not JSON. */
  read() {
    try {
      this.tree = parse(this.text());
    } catch (fault) {
      this.tree = null;
      const said = ` Line ${fault.line}, column ${fault.column}: ${fault.message}`;
      const select = () => this.editor.select(fault.at, fault.at + 1);
      this.#say([h("button", { type: "button", onclick: select }, icon("bad"), said)]);
      this.editor.mark(new Map([[fault.line, "is-fault"]]));
    }
    this.form?.element.classList.toggle("is-stale", !this.tree);
    this.form?.element.toggleAttribute("inert", !this.tree);
    this.undo.disabled = !this.history.can_undo;
    this.redo.disabled = !this.history.can_redo;
    this.on_change(this);
  }

  /** Marks and lists what the schemas find wrong. */
  check() {
    if (!this.tree) return [];
    const faults = this.#validate(plain(this.tree));
    const text = this.text();
    this.#faulty_lines = new Map(faults.map(({ path }) => [line_of(text, this.#place_of(path).start), "is-fault"]));
    this.editor.mark(this.#faulty_lines);
    const fine = h("span", { class: "is-fine" }, icon("good"), this.schema ? " Matches the schema." : " Valid JSON.");
    const head = h("strong", { class: "is-bad" }, plural(faults.length, "error"));
    const rows = faults.map((fault) => h("li", {}, this.#fault_row(fault)));
    this.#say(faults.length ? [head, h("ul", {}, rows)] : [fine]);
    return faults;
  }

  // Replaces what is said only if it is something else: a screen reader would read it again at every key.
  #say(parts) {
    const said = parts.map((part) => part?.textContent ?? "").join("\n");
    if (said === this.#said) return;
    this.#said = said;
    put(this.faults, parts);
  }

  #validate(value) {
    const faults = this.schema ? validate(value, this.schema, this.schema) : [];
    const plugins = value?.plugins;
    const covered = resolve(this.schema?.properties?.plugins, this.schema).properties ?? {};
    for (const name of Object.keys(plugins ?? {}).filter((name) => !Object.hasOwn(covered, name))) {
      const schema = this.plugins.known.get(name);
      if (schema) validate(plugins[name], schema, schema, ["plugins", name], faults);
      else if (this.plugins.names.includes(name)) this.#ask_schema(name);
    }
    for (const [field, kind] of Object.entries(REFERENCES)) {
      const { total, list } = this.ids[kind] ?? {};
      const id = String(value?.[field] ?? "");
      if (!id || !list || total > list.length || list.some((one) => one.id === id)) continue;
      const ids = list.map((one) => one.id);
      faults.push({ path: [field], message: unknown_name(about([kind]).noun, id, ids) });
    }
    return faults;
  }

  // The schema of a plugin comes later than the document: what it finds is added then.
  async #ask_schema(name) {
    if (this.#asked_plugins.has(name)) return;
    this.#asked_plugins.add(name);
    await this.plugins.schema(name).catch(() => {});
    const faults = this.check();
    this.form?.mark(faults);
  }

  #fault_row({ path, message }) {
    const show = () => {
      if (this.form && !(this.columns.dataset.shown === "text" && innerWidth < PHONE_PX)) return this.form.focus(path);
      const place = this.#place_of(path);
      this.editor.select(place.start, place.end);
      this.editor.reveal(line_of(this.text(), place.start));
    };
    const where = path.length ? `${path.join(".")}: ` : "";
    return h("button", { type: "button", onclick: show }, icon("bad"), ` ${where}${message}`);
  }

  #follow_form(path, value, { redraw }) {
    let text;
    try {
      text = edit(this.text(), path, value);
    } catch (fault) {
      this.#said = "";
      put(this.faults, failure_view(fault, "Changing the text"));
      return;
    }
    this.editor.set(text);
    this.history.add(text, redraw ? null : path.join("\n"));
    this.read();
    if (redraw) this.form.show(plain(this.tree), this.check());
    else this.form.mark(this.check());
    this.#show_place(path);
  }

  #follow_text() {
    this.read();
    if (this.tree) this.#draw_form();
    this.check();
  }

  // The node at a path, or the nearest above it that is there.
  #place_of(path) {
    for (let at = path; at.length; at = at.slice(0, -1)) {
      const node = node_at(this.tree, at);
      if (node) return node;
    }
    return { start: this.tree.start, end: this.tree.start + 1 };
  }

  #show_place(path) {
    const node = this.tree && node_at(this.tree, path);
    if (!node) return;
    const [first, last] = [node.start, node.end].map((at) => line_of(this.text(), at));
    const length = Math.min(LINES_MARKED_MAX, last - first + 1);
    const here = Array.from({ length }, (_, i) => [first + i, "is-here"]);
    this.editor.mark(new Map([...here, ...this.#faulty_lines]));
    this.editor.reveal(first);
  }

  #layout(writable, id_field) {
    const head = (title, actions) => h("div", { class: "edit-pane-head" }, h("h2", {}, title), actions);
    const id_card = id_field && h("div", { class: "card id-field" }, id_field);
    const form_pane = this.form && h("div", { class: "edit-pane is-form" }, head("Form"), id_card, this.form.element);
    const actions = writable && h("div", { class: "actions" }, this.undo, this.redo);
    const text_pane = h("div", { class: "edit-pane is-text" }, head("Text", actions), this.editor.element);
    this.columns = h("div", { class: form_pane ? "edit-panes" : "", "data-shown": "form" }, form_pane, text_pane);
    return [form_pane ? this.#tabs() : id_card, this.columns];
  }

  // On a phone, one of both is shown.
  #tabs() {
    const tab = (name, word) => {
      const show = (event) => {
        this.columns.dataset.shown = name;
        for (const one of event.currentTarget.parentElement.children) {
          set(one, "aria-pressed", String(one === event.currentTarget));
        }
      };
      return h("button", { type: "button", "aria-pressed": String(name === "form"), onclick: show }, word);
    };
    const tabs = [tab("form", "Form"), tab("text", "Text")];
    return h("div", { class: "edit-tabs", role: "group", "aria-label": "What is shown" }, tabs);
  }
}
