// Functions in Lua beside what LuaJIT has made of them: a mark at each line, and why it is not compiled.

import { get } from "../api.js";
import { h, put } from "../dom.js";
import { bytes, clock, count, percent, plural } from "../format.js";
import { card, empty, facts, fill, page_head } from "../parts.js";

/** By state: its tone, and what it means. */
const STATES = {
  compiled: ["good", "runs as machine code"],
  stitched: ["warn", "leaves machine code for a call that is not compiled"],
  interpreted: ["away", "runs in the interpreter: not run often enough to be compiled, or compiling has failed so far"],
  blacklisted: ["bad", "LuaJIT has given up on it; it stays in the interpreter"],
};

/** Aborts that are listed of one text. */
const ABORTS_MAX = 50;

export const title = () => "Lua";

export async function show({ root, signal }) {
  const body = h("div", { class: "stack" });
  const again = h("button", { type: "button", onclick: () => load() }, "Refresh");
  put(
    root,
    page_head("Lua", {
      lead: "Which Lua lines LuaJIT compiled, and why the others were not.",
      actions: h("div", { class: "actions" }, again),
    }),
    body,
  );
  const load = () => fill(body, "Asking LuaJIT", () => get("/v1/lua/jit", signal), view);
  await load();
}

function view({ workers, sources, aborts, aborts_total, traces_total, flushes_total, last_profile }) {
  if (!sources.length) {
    return empty("No function in Lua has run", "Functions are shown once a worker has run them.");
  }
  const code = workers.reduce((sum, { machine_code_bytes }) => sum + machine_code_bytes, 0);
  const of_all = (text) => workers.map((worker) => text(worker)).join(", ");
  return [
    card(null, [
      facts([
        ["Workers", count(workers.length)],
        ["Pieces of machine code", count(traces_total)],
        ["Size", bytes(code)],
        ["Memory by worker", `${of_all(({ memory_bytes }) => bytes(memory_bytes))}, of ${bytes(workers[0].memory_bytes_max)}`],
        ["VMs replaced", count(workers.reduce((sum, { generation }) => sum + generation - 1, 0))],
        ["Compiler", workers.every(({ is_compiling }) => is_compiling) ? "on" : `on: ${of_all(({ is_compiling }) => is_compiling)}`],
        ["Aborted recordings", count(aborts_total)],
        ["All machine code discarded", plural(flushes_total, "time")],
        ["CPU time, in the last profile", last_profile ? shares(last_profile) : "no profile of functions in Lua yet"],
      ]),
      h(
        "ul",
        { class: "lua-key" },
        Object.entries(STATES).map(([state, [, meaning]]) => h("li", {}, mark(state), ` ${state}: ${meaning}`)),
      ),
    ]),
    sources.map((source) => source_view(source, aborts.filter((abort) => abort.source === source.source))),
    elsewhere(aborts.filter(({ source }) => !sources.some((known) => known.source === source))),
  ];
}

/** What LuaJIT did with CPU time, the most first. */
const shares = ({ ended_unix_ms, samples, shares: by_doing }) => {
  const list = Object.entries(by_doing).sort(([, a], [, b]) => b - a);
  const text = list.map(([doing, share]) => `${doing} ${percent(share, 1)}`).join(", ");
  return `${text} (${plural(samples, "sample")}, ${clock(ended_unix_ms / 1000)})`;
};

const mark = (state) => h("span", { class: ["lua-mark", `tone-${STATES[state][0]}`], role: "img", "aria-label": state });

function source_view({ source, text, functions, lines }, aborts) {
  const marks = new Map(lines.map((line) => [line.line, line]));
  const reasons = new Map();
  // What is usual explains a line only where nothing else does.
  for (const { line, text, is_usual } of aborts) {
    if (is_usual && aborts.some((other) => other.line === line && !other.is_usual)) continue;
    const list = reasons.get(line) ?? [];
    if (!list.includes(text)) list.push(text);
    reasons.set(line, list);
  }
  // A function that is given up is so at its first line, which may have no reason of its own.
  const by_first = new Map(functions.filter(({ first_line }) => first_line > 0).map((found) => [found.first_line, found]));
  const row = (code, i) => {
    const line = marks.get(i + 1);
    const found = by_first.get(i + 1);
    const around = functions.findLast(({ first_line, last_line }) => first_line > 0 && first_line <= i && i < last_line);
    // A function that is made here may be compiled where the one around it, which makes it, is not.
    const is_made_in_vain = found && reasons.has(i + 1) && around && !["compiled", "stitched"].includes(around.state);
    const state = found?.state === "blacklisted" ? "blacklisted" : is_made_in_vain ? around.state : line?.state;
    const why = [
      ...(line?.calls ?? []).map((called) => `${called} is not compiled`),
      ...(state && state !== "compiled" ? (reasons.get(i + 1) ?? []) : []),
    ];
    return h(
      "li",
      { "data-state": state ?? "none", "data-line": i + 1 },
      state ? mark(state) : h("span", { class: "lua-mark" }),
      h("span", { class: "lua-number" }, i + 1),
      h("code", {}, code || " "),
      why.length > 0 && h("span", { class: "lua-why" }, why.join("; ")),
    );
  };
  const own = functions.filter(({ first_line }) => first_line > 0);
  const tally = Object.keys(STATES)
    .map((state) => [state, own.filter((found) => found.state === state).length])
    .filter(([, number]) => number > 0);
  return card(
    source,
    [
      text
        ? h("ol", { class: "lua-source", tabindex: "0", "aria-label": `Text of ${source}` }, text.replace(/\n$/, "").split("\n").map(row))
        : empty("The text is not shown", "Viewers see no functions, and of more than 4 MiB not all are kept."),
      aborts.length > 0 &&
        h(
          "details",
          {},
          h("summary", {}, `Aborted recordings (${plural(aborts.length, "kind")})`),
          abort_list(aborts),
        ),
    ],
    { wide: true, note: tally.map(([state, number]) => `${number} ${state}`).join(", ") },
  );
}

const abort_list = (aborts) =>
  h(
    "ul",
    { class: "lua-aborts" },
    aborts
      .slice(0, ABORTS_MAX)
      .map(({ line, text, within, began, count: times }) =>
        h("li", {}, `line ${line}: ${text} (${plural(times, "time")}; began at ${began}${within && `; within ${within}`})`),
      ),
  );

/** Of the gateway's own functions, which a user's may have called. */
const elsewhere = (aborts) =>
  aborts.length > 0 &&
  card("In functions of the gateway", [
    h("p", { class: "quiet" }, "Some of these are usual."),
    h("details", {}, h("summary", {}, plural(aborts.length, "kind")), abort_list(aborts)),
  ]);
