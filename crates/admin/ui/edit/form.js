// A form for any document, made from its JSON Schema. It shows a value, and reports edits as a path and a new value.
//
// It keeps no document: the text is the document. After an edit of one field only what it changed is drawn again.

import { h, put } from "../dom.js";
import { plural } from "../format.js";
import { object_body } from "./fields.js";
import { describe } from "./schema.js";

/** `{element, show(value, faults), mark(faults), focus(path)}`. `edit(path, value)`: undefined removes. */
export function make_form({ schema, kind, edit, plugins, ids, on_focus }) {
  const element = h("form", {
    class: "schema-form",
    "aria-label": "Fields",
    onsubmit: (event) => event.preventDefault(),
  });
  const open = new Set();
  let value = {};
  let fields = new Map();
  let wanted_focus = null;
  let marked = [];

  const id_of = (path) => JSON.stringify(path);
  const form = {
    schema,
    kind,
    plugins,
    ids,
    open,
    change(path, next) {
      wanted_focus = null;
      edit(path, next, { redraw: false });
    },
    restructure(path, next, focus = path) {
      wanted_focus = id_of(focus);
      edit(path, next, { redraw: true });
    },
    /** `folded`: `{tally, unfold()}` of fields that are drawn once they are opened. */
    register(path, control, fault, folded) {
      fields.set(id_of(path), { control, fault, folded });
      control?.addEventListener("focus", () => on_focus?.(path));
    },
    /** Fields were drawn later than the others. */
    drawn: () => mark(marked),
  };

  function mark(faults) {
    marked = faults;
    for (const { control, fault, folded } of fields.values()) {
      fault.textContent = "";
      control?.removeAttribute("aria-invalid");
      if (folded) folded.tally.textContent = "";
    }
    const tallies = new Map();
    for (const { path, message } of faults) {
      const [field, length] = nearest(path);
      if (!field) continue;
      const rest = path.slice(length).join(".");
      field.fault.textContent += `${field.fault.textContent && "; "}${rest && `${rest}: `}${message}`;
      field.control?.setAttribute("aria-invalid", "true");
      for (let at = path.length; at > 0; at--) {
        const tally = fields.get(id_of(path.slice(0, at)))?.folded?.tally;
        if (tally) tallies.set(tally, (tallies.get(tally) ?? 0) + 1);
      }
    }
    for (const [tally, number] of tallies) tally.textContent = plural(number, "error");
  }

  // The field of a path, or of the nearest above it that has one, and the length of its path.
  function nearest(path) {
    for (let length = path.length; length >= 0; length--) {
      const field = fields.get(id_of(path.slice(0, length)));
      if (field) return [field, length];
    }
    return [null, 0];
  }

  return {
    element,
    show(next, faults = []) {
      const active = [...fields].find(([, { control }]) => control && control === document.activeElement);
      const focus = wanted_focus ?? active?.[0];
      const selection = active?.[1].control.selectionStart;
      value = next;
      fields = new Map();
      put(element, object_body(form, [], describe(schema, schema, value), value ?? {}, kind));
      mark(faults);
      const found = focus && fields.get(focus)?.control;
      if (found) {
        found.focus({ preventScroll: wanted_focus === null });
        if (wanted_focus === null && selection !== undefined && selection !== null && found.setSelectionRange)
          found.setSelectionRange(selection, selection);
      }
      wanted_focus = null;
    },
    mark,
    /** Opens what a field is folded in, and moves the focus to it. */
    async focus(path) {
      for (let length = 1; length <= path.length; length++)
        await fields.get(id_of(path.slice(0, length)))?.folded?.unfold();
      const [field] = nearest(path);
      const control = field?.control ?? field?.fault.parentElement.querySelector("input, select, textarea, button");
      if (!control) return;
      control.focus({ preventScroll: true });
      control.scrollIntoView({ block: "center" });
    },
  };
}
