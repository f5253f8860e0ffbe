// Takes profiles of the gateway: CPU time, stalls and heap; shows one, and compares two, also of minutes that the gateway keeps.
//
// This page keeps the profiles that it has shown until it is reloaded.

import { get, path_of } from "../api.js";
import { fresh_id, h, put } from "../dom.js";
import { clock } from "../format.js";
import { kept_profiles } from "../kept_profiles.js";
import { card, empty, failure_view, fill, loading, notice, page_head } from "../parts.js";
import { view } from "../profile_view.js";

const TAKEN_MAX = 8;

/** By kind: its path, name, which fields it has, and what else is asked. */
const KINDS = {
  cpu: { path: "profile", name: "CPU time", fields: ["seconds", "threads"] },
  lua_cpu: { path: "lua", name: "CPU time of functions in Lua", fields: ["seconds"], more: { kind: "cpu" } },
  lua_bytecode: { path: "lua", name: "Interpreted bytecode", fields: ["seconds"], more: { kind: "bytecode" } },
  stalls: { path: "stalls", name: "Stalls of event loops", fields: ["seconds", "over"] },
  heap: { path: "heap", name: "Heap in use", fields: [] },
  allocs: { path: "allocs", name: "All allocations", fields: [] },
};

/** The newest first: `{name, path, profile}`. */
const taken = [];

/** Adds a profile, in place of one of the same name. */
function keep(one) {
  const rest = taken.filter(({ name }) => name !== one.name);
  taken.splice(0, taken.length, one, ...rest.slice(0, TAKEN_MAX - 1));
  return one;
}

export const title = () => "Profiles";

/** With `?at=SECONDS`, compares the minutes before and after that time. */
export async function show({ root, query, app, signal }) {
  const body = h("div", { class: "stack" });
  put(
    root,
    page_head("Profiles", {
      lead: "Where the workers spend CPU time, what stops their event loops, and what fills the heap.",
    }),
    body,
  );
  await fill(
    body,
    "Asking for profiles",
    () => get("/debug/pprof/", signal).catch((failure) => (failure.status === 404 ? null : Promise.reject(failure))),
    (found) => parts_of(found, { app, signal, at: Number(query.get("at")) }),
  );
}

const switched_off = () =>
  notice(
    "note",
    "Taking profiles is off",
    h(
      "p",
      {},
      "Set ",
      h("code", {}, "gateway.debug.pprof: true"),
      ". It takes effect on reload and costs nothing until you take a profile.",
    ),
  );

/** Kept profiles, the form to take one unless `found` is null, and the profile that is shown. */
function parts_of(found, { app, signal, at }) {
  const kept = h("div", {});
  const result = h("div", { class: "stack" });
  const on_taken = (one, base) => {
    const kept_base = base && keep(base);
    show_taken(result, keep(one), kept_base);
    result.scrollIntoView({ block: "start" });
  };
  fill(
    kept,
    "Asking for kept profiles",
    () => kept_profiles({ app, signal, at, on_taken }),
    (shown) => shown,
  );
  if (taken.length) show_taken(result, taken[0], null);
  else if (found) put(result, empty("No profile yet", "Profiles are kept until you reload the page."));
  return [kept, found ? form(found, result, signal) : switched_off(), result];
}

function form({ heap_mean_bytes }, result, signal) {
  const progress = h("div", { "aria-live": "polite" });
  const button = h("button", { type: "submit", class: "is-primary" }, "Take profile");
  const field = (label, input) => {
    input.id = fresh_id();
    return h("label", { for: input.id }, label, input);
  };
  const options = (pairs) => pairs.map(([value, text]) => h("option", { value }, text));
  const kinds = Object.entries(KINDS).filter(([kind]) => heap_mean_bytes || !["heap", "allocs"].includes(kind));
  const inputs = {
    kind: h("select", { name: "kind" }, options(kinds.map(([kind, { name }]) => [kind, name]))),
    seconds: h("input", { name: "seconds", type: "number", min: 1, max: 240, value: 5, required: true }),
    threads: h(
      "select",
      { name: "threads" },
      options([
        ["workers", "Workers"],
        ["all", "All threads"],
      ]),
    ),
    over: h("input", { name: "over", value: "10ms", required: true, spellcheck: "false" }),
  };
  const rows = {
    kind: field("Profile", inputs.kind),
    seconds: field("Seconds", inputs.seconds),
    threads: field("Threads", inputs.threads),
    over: field("Turns longer than", inputs.over),
  };
  const show_fields = () => {
    for (const name of ["seconds", "threads", "over"]) {
      rows[name].hidden = !KINDS[inputs.kind.value].fields.includes(name);
      inputs[name].disabled = rows[name].hidden;
    }
  };
  inputs.kind.addEventListener("change", show_fields);
  show_fields();

  const run = async (event) => {
    event.preventDefault();
    const kind = KINDS[inputs.kind.value];
    const given = Object.fromEntries(kind.fields.map((name) => [name, inputs[name].value]));
    const stop = new AbortController();
    button.disabled = true;
    put(
      progress,
      loading(`Taking a profile${given.seconds ? `, for ${given.seconds} seconds` : ""}`),
      h("button", { type: "button", onclick: () => stop.abort() }, "Cancel"),
    );
    try {
      const path = path_of("/debug/pprof", [kind.path], { ...given, ...kind.more, format: "json" });
      // Where the page is left, nobody waits for it any more, and the gateway ends it.
      const profile = await get(path, AbortSignal.any([signal, stop.signal]));
      put(progress);
      show_taken(result, keep({ name: `${kind.name}, ${clock(Date.now() / 1000)}`, path: kind.path, profile }), null);
    } catch (failure) {
      put(progress, failure.name === "AbortError" ? null : failure_view(failure, "Taking a profile"));
    } finally {
      button.disabled = false;
    }
  };
  return [
    h(
      "form",
      { class: "card profile-form", onsubmit: run },
      Object.values(rows),
      h("div", { class: "actions" }, button),
    ),
    progress,
    !heap_mean_bytes &&
      h(
        "p",
        { class: "quiet" },
        "The heap is not sampled. To see it, set ",
        h("code", {}, "gateway.debug.heap: 512KiB"),
        ".",
      ),
  ];
}

/** Shows a profile, compared with `base` unless that is null, and which others there are. */
function show_taken(result, one, base) {
  const id = fresh_id();
  const base_id = fresh_id();
  const name = ({ name, profile }) => `${name}: ${profile.title}`;
  // Only those of the same kind can be compared; of functions in Lua, bytecode and CPU time, whose ratio says what is not compiled.
  const others = taken.filter((other) => other !== one && other.path === one.path);
  const select = (given, list, chosen, on_choice) => {
    const element = h(
      "select",
      { id: given },
      list.map((other, i) => h("option", { value: i, selected: other === chosen }, other ? name(other) : "nothing")),
    );
    element.addEventListener("change", () => on_choice(list[Number(element.value)]));
    return element;
  };
  const picture = h("div", { class: "profile-picture" });
  put(
    result,
    card(null, [
      h(
        "div",
        { class: "profile-form" },
        h(
          "label",
          { for: id },
          "Shown",
          select(id, taken, one, (next) => show_taken(result, next, null)),
        ),
        h(
          "label",
          { for: base_id },
          "Compared with",
          select(base_id, [null, ...others], base, (next) => show_taken(result, one, next)),
        ),
      ),
      picture,
    ]),
  );
  view(picture, { profile: one.profile, base: base?.profile ?? null });
}
