// A form for any document, made from its JSON Schema. It shows a value, and reports edits as a path and a new value.
//
// It keeps no document: the text is the document. After an edit of one field only what it changed is drawn again.

import { h, put } from "../dom.js";
import { object_body } from "./fields.js";
import { describe } from "./schema.js";

/** `{element, show(value, faults), mark(faults)}`. `edit(path, value)`: undefined removes. */
export function make_form({ schema, kind, edit, plugins, on_focus }) {
  const element = h("form", {
    class: "schema-form",
    "aria-label": "Fields",
    onsubmit: (event) => event.preventDefault(),
  });
  const open = new Set();
  let value = {};
  let fields = new Map();
  let wanted_focus = null;

  const id_of = (path) => JSON.stringify(path);
  const form = {
    schema,
    kind,
    plugins,
    open,
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
        if (wanted_focus === null && selection !== undefined && selection !== null && found.setSelectionRange)
          found.setSelectionRange(selection, selection);
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
