// The cardinality explorer: which families and labels the series and their memory come from, and what was collapsed.

import { get } from "../api.js";
import { bar } from "../chart.js";
import { h, put } from "../dom.js";
import { bytes, count, percent, plural, short } from "../format.js";
import { card, chips, empty, fill, metrics_off, notice, page_head, search_field } from "../parts.js";

const STRIP_SHOWN = 24;

export const title = () => "Metrics";

export async function show({ root, signal }) {
  const body = h("div", { class: "stack" });
  put(root, page_head("Metrics"), body);
  await fill(body, "Counting series", load, view);

  // 404 says that nothing is measured; a gateway of another version has the page, too.
  async function load() {
    try {
      return await get("/v1/metrics/cardinality", signal);
    } catch (failure) {
      if (failure.status === 404) return null;
      throw failure;
    }
  }

  function view(found) {
    if (!found) return metrics_off("So there are no series.");
    const { families } = found;
    if (!families.length) return empty("No series yet", "They appear with the first request.");
    const series = families.reduce((sum, family) => sum + family.series, 0);
    const memory = families.reduce((sum, family) => sum + family.bytes, 0);
    const collapsed = families.flatMap((family) =>
      family.labels.filter((label) => label.collapsed).map((label) => ({ family, label })),
    );
    let by = "series";
    const strip = h("div", { class: "strip" });
    const list = h("div", {});
    const words = h(
      "p",
      { class: "lead verdict-words" },
      h("strong", {}, count(series)),
      " series in ",
      h("strong", {}, plural(families.length, "family", "families")),
      ", ",
      h("strong", {}, bytes(memory)),
      " of memory. ",
      collapsed.length ? h("strong", {}, `${plural(collapsed.length, "label")} collapsed.`) : "No label is collapsed.",
    );
    let search = "";
    const parts = new Map();
    const draw = () => {
      const most = Math.max(...families.map((family) => family[by]));
      const all = families.reduce((sum, family) => sum + family[by], 0);
      const sorted = [...families].sort((a, b) => b[by] - a[by]);
      put(
        strip,
        sorted.slice(0, STRIP_SHOWN).map((family, i) => {
          const is_collapsed = family.labels.some((label) => label.collapsed);
          const shown = `${family.name}: ${by === "series" ? plural(family.series, "series", "series") : bytes(family.bytes)}, ${percent(family[by], all)}${is_collapsed ? ", collapsed" : ""}`;
          return h(
            "button",
            {
              type: "button",
              class: is_collapsed && "is-collapsed",
              title: shown,
              "aria-label": shown,
              vars: { part: family[by] / all, shade: `${Math.max(14, 46 - i * 5)}%` },
              onclick: () => {
                const part = parts.get(family);
                if (!part) return;
                part.open = true;
                part.querySelector("summary").focus();
                part.scrollIntoView({ block: "nearest" });
              },
            },
            family[by] / all > 0.07 ? family.name.replace(/^stillgate_/, "") : "",
          );
        }),
      );
      parts.clear();
      const fitting = sorted.filter(
        ({ name, labels }) =>
          !search ||
          name.toLowerCase().includes(search) ||
          labels.some(
            (label) =>
              label.name.toLowerCase().includes(search) ||
              label.samples.some((sample) => sample.toLowerCase().includes(search)),
          ),
      );
      put(
        list,
        fitting.map((family) => {
          const part = family_part(family, by, most);
          parts.set(family, part);
          return part;
        }),
        !fitting.length && empty("No family matches", "The search covers families, labels and sample values."),
      );
    };
    const toggle = (key, text) =>
      h(
        "button",
        {
          type: "button",
          "aria-pressed": String(by === key),
          class: by === key && "is-primary",
          onclick: (event) => {
            by = key;
            for (const one of event.currentTarget.parentElement.children) {
              const is_on = one === event.currentTarget;
              one.setAttribute("aria-pressed", String(is_on));
              one.classList.toggle("is-primary", is_on);
            }
            draw();
          },
        },
        text,
      );
    const controls = h(
      "div",
      { class: "actions", role: "group", "aria-label": "Size by" },
      toggle("series", "By series"),
      toggle("bytes", "By memory"),
    );
    draw();
    return [
      words,
      collapsed.length > 0 &&
        notice(
          "warn",
          "New values are counted as __other__",
          h(
            "ul",
            {},
            collapsed
              .slice(0, 8)
              .map(({ family, label }) =>
                h(
                  "li",
                  {},
                  h("code", {}, label.name),
                  " of ",
                  h("code", {}, family.name),
                  `: about ${count(label.distinct)} values`,
                ),
              ),
          ),
          h(
            "p",
            {},
            "Totals stay correct. To see single values again, remove the label from gateway.metrics or group its values.",
          ),
        ),
      card(
        "Where the series come from",
        [strip, h("p", { class: "quiet" }, "Each block is a family. Select one to open it below.")],
        { aside: controls },
      ),
      h(
        "div",
        { class: "toolbar" },
        search_field({
          label: "Search families, labels and values",
          placeholder: "Family, label or value …",
          on_search: (text) => ((search = text.toLowerCase()), draw()),
        }),
      ),
      card(null, list),
    ];
  }
}

function family_part({ name, series, bytes: memory, labels }, by, most) {
  const is_collapsed = labels.some((label) => label.collapsed);
  const distinct = Math.max(...labels.map((label) => label.distinct), 1);
  const scale = Math.log10(distinct + 1);
  const sorted = [...labels].sort((a, b) => b.distinct - a.distinct);
  return h(
    "details",
    { class: "family" },
    h(
      "summary",
      {},
      h("span", { class: "family-name" }, name, is_collapsed && h("span", { class: "chip" }, "collapsed")),
      bar([{ value: by === "series" ? series : memory, tone: is_collapsed ? "warn" : "traffic" }], most),
      h("span", { class: "figure" }, `${short(series)} series`),
      h("span", { class: "quiet" }, bytes(memory)),
    ),
    h(
      "div",
      { class: "labels" },
      labels.length
        ? h(
            "p",
            { class: "quiet" },
            `${plural(labels.length, "label")}, by distinct values (logarithmic). ${plural(Math.round(memory / Math.max(series, 1)), "byte")} per series.`,
          )
        : h("p", { class: "quiet" }, "No labels: one series."),
      sorted.map((label) =>
        h(
          "div",
          { class: "label-row" },
          h("strong", { class: "mono" }, label.name),
          bar([{ value: Math.log10(label.distinct + 1), tone: label.collapsed ? "warn" : "traffic" }], scale),
          h("span", { class: "figure" }, `≈ ${plural(label.distinct, "value")}`),
          label.collapsed && h("p", { class: "label-note" }, "Collapsed: further values are counted as __other__."),
          chips(label.samples, {
            most: 12,
            class: "is-mono",
            show: (sample) => (sample === "" ? "(empty)" : sample.slice(0, 120)),
          }),
        ),
      ),
    ),
  );
}
