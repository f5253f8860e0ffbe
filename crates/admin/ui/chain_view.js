// The picture of a request's way: what takes it, which plugins it meets in which phase, and where it goes.

import { h, set } from "./dom.js";

const PHASES = ["rewrite", "access", "before_proxy", "balancer", "header_filter", "body_filter", "log"];

/** Steps with arrows: `{title, body, tone}`. */
export function flow(steps) {
  const parts = steps
    .filter(Boolean)
    .flatMap(({ title, body, tone }, i) => [
      i > 0 && h("span", { class: "flow-arrow", "aria-hidden": "true" }),
      h("li", { class: ["flow-step", tone && `is-${tone}`] }, h("h3", {}, title), body),
    ]);
  return h("ol", { class: "flow", role: "list" }, parts);
}

const ORIGIN_WORDS = { plugin_config: "plugin config", global_rule: "global rule", consumer_group: "consumer group" };

/** Where a plugin comes from. `{kind, id, line}`, or a text such as `service "s"`. */
export function origin_of(origin, { lines = true } = {}) {
  if (!origin) return { kind: "", text: "" };
  if (typeof origin === "string") {
    const kind = Object.keys(ORIGIN_WORDS)
      .concat("route", "service", "consumer", "credential")
      .find((one) => origin.startsWith(ORIGIN_WORDS[one] ?? one) || origin.startsWith(one));
    return { kind: kind ?? "", text: origin };
  }
  const { kind, id, line } = origin;
  return {
    kind: kind ?? "",
    text: `${ORIGIN_WORDS[kind] ?? kind}${id === undefined || id === null ? "" : ` ${id}`}${line && lines ? `, line ${line}` : ""}`,
  };
}

/** A table of plugins by phases; a dot where one runs. `{plugin|name, priority, origin, phases, runs, filter}`. */
export function chain_view(chain, { empty: none = "No plugins run.", lines = true } = {}) {
  if (!chain?.length) return h("p", { class: "quiet" }, none);
  const used = new Set(chain.flatMap(({ phases }) => phases ?? []));
  const phases = [
    ...PHASES.filter((phase) => used.has(phase)),
    ...[...used].filter((phase) => !PHASES.includes(phase)),
  ];
  const row = (kind, cells, role, extra) => {
    const made = h(
      "div",
      { class: ["chain-row", extra], role: "row" },
      cells.map((cell) => h("div", { role }, cell)),
    );
    set(made, "vars", { phases: phases.length });
    return made;
  };
  const view = h(
    "div",
    { class: "chain", role: "table", "aria-label": "Plugins by phase, in the order they run", tabindex: "0" },
    row(
      "head",
      ["Plugin", "Priority", "Configured in", ...phases.map((phase) => phase.replace("_", " "))],
      "columnheader",
      "is-head",
    ),
    chain.map((entry) => {
      const origin = origin_of(entry.origin, { lines });
      const state =
        entry.runs === false
          ? " skipped: its filter does not match"
          : entry.runs === null || entry.is_conditional
            ? entry.is_conditional ? " runs if its filter matches" : " may run: its filter reads a value that is not known"
            : "";
      const made = row(
        "",
        [
          [
            h("strong", {}, entry.plugin ?? entry.name),
            state && h("div", { class: "quiet" }, state, facts_of(entry.filter)),
          ],
          entry.priority,
          h("span", { class: ["origin", `origin-${origin.kind}`] }, origin.text),
          ...phases.map((phase) =>
            entry.phases?.includes(phase)
              ? h("span", { class: "visually-hidden" }, "runs")
              : h("span", { class: "visually-hidden" }, "–"),
          ),
        ],
        "cell",
        [`origin-${origin.kind}`, entry.runs === false && "is-skipped"],
      );
      [...made.children].slice(3).forEach((cell, i) => {
        set(cell, "class", ["chain-cell", entry.phases?.includes(phases[i]) && "is-on"]);
        set(cell, "data-phase", phases[i].replace("_", " "));
      });
      return made;
    }),
  );
  return view;
}

const facts_of = (filter) =>
  filter?.length
    ? ` (${filter.map(({ predicate, field, values }) => predicate ?? `${field} is ${(values ?? []).join(", ") || "absent"}`).join("; ")})`
    : "";
