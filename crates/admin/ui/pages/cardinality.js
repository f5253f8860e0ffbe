// The cardinality explorer: which label explodes and what to write against it, and where series and their memory come from.

import { get } from "../api.js";
import { badge, bar } from "../chart.js";
import { h, put } from "../dom.js";
import { bytes, count, percent, plural, short } from "../format.js";
import { card, chips, empty, fill, metrics_off, notice, page_head, search_field } from "../parts.js";

const STRIP_SHOWN = 24;
const EXPLODING_SHOWN = 5;
const VALUE_CHARS = 120;

export const title = () => "Cardinality";

export async function show({ root, signal }) {
  const body = h("div", { class: "stack" });
  put(
    root,
    page_head("Cardinality", { lead: "How many series the metrics have, and which labels they come from." }),
    body,
  );
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
    const all_labels = families
      .flatMap((family) => family.labels.map((label) => ({ family, label })))
      .sort((a, b) => b.label.distinct - a.label.distinct);
    const exploding = all_labels.filter(({ label }) => explodes(label));
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
      " of memory.",
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
          const is_exploding = family.labels.some(explodes);
          const shown = `${family.name}: ${by === "series" ? plural(family.series, "series", "series") : bytes(family.bytes)}, ${percent(family[by], all)}${is_exploding ? ", a label explodes" : ""}`;
          return h(
            "button",
            {
              type: "button",
              class: is_exploding && "is-collapsed",
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
      exploding.length
        ? exploding.slice(0, EXPLODING_SHOWN).map(explosion)
        : badge("good", h("span", {}, calm_words(all_labels[0]))),
      exploding.length > EXPLODING_SHOWN &&
        h("p", { class: "quiet" }, `and ${count(exploding.length - EXPLODING_SHOWN)} more, marked below`),
      words,
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

const explodes = ({ exploding, collapsed }) => exploding || collapsed;

const calm_words = (first) =>
  first
    ? [
        "No label explodes. The first would be ",
        label_words(first),
        `: about ${plural(first.label.distinct, "value")}.`,
      ]
    : "No label explodes.";

const label_words = ({ family, label }) => [h("code", {}, label.name), " of ", h("code", {}, family.name)];

/** One label that explodes: where, by which values, and what to write against it. */
function explosion({ family, label }) {
  const examples = family.examples ?? [];
  return notice(
    "warn",
    [label_words({ family, label }), ` explodes: about ${plural(label.distinct, "value")}`],
    label.collapsed && h("p", {}, "New values are counted as __other__. Totals stay correct."),
    examples.length > 0 && h("p", {}, "Its newest series:"),
    examples_list(examples, label.name),
    label.key
      ? h("p", {}, "To stop it, change this line of the configuration:")
      : h("p", {}, "To stop it, leave the label out with ", h("code", {}, "gateway.metrics.disable.labels"), "."),
    label.key && copyable(label.key),
  );
}

/** Label sets as Prometheus writes them, with one label marked. */
const examples_list = (examples, marked) =>
  examples.length > 0 &&
  h(
    "ul",
    { class: "examples" },
    examples.map((labels) =>
      h(
        "li",
        {},
        "{",
        Object.entries(labels).map(([name, value], i) => [
          i > 0 && ", ",
          h(name === marked ? "strong" : "span", {}, `${name}="${cut(value)}"`),
        ]),
        "}",
      ),
    ),
  );

const cut = (text) => (text.length > VALUE_CHARS ? `${text.slice(0, VALUE_CHARS)}…` : text);

/** A text and a button that copies it; without access to the clipboard, the button selects the text. */
function copyable(text) {
  const code = h("code", {}, text);
  const button = h(
    "button",
    {
      type: "button",
      onclick: async () => {
        try {
          await navigator.clipboard.writeText(text);
          button.textContent = "Copied";
        } catch {
          getSelection().selectAllChildren(code);
          button.textContent = "Selected";
        }
      },
    },
    "Copy",
  );
  return h("div", { class: "copyable" }, code, button);
}

function family_part({ name, series, bytes: memory, labels, examples = [] }, by, most) {
  const is_exploding = labels.some(explodes);
  const distinct = Math.max(...labels.map((label) => label.distinct), 1);
  const scale = Math.log10(distinct + 1);
  const sorted = [...labels].sort((a, b) => b.distinct - a.distinct);
  return h(
    "details",
    { class: "family" },
    h(
      "summary",
      {},
      h("span", { class: "family-name" }, name, is_exploding && h("span", { class: "chip" }, "explodes")),
      bar([{ value: by === "series" ? series : memory, tone: is_exploding ? "warn" : "traffic" }], most),
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
          bar([{ value: Math.log10(label.distinct + 1), tone: explodes(label) ? "warn" : "traffic" }], scale),
          h("span", { class: "figure" }, `≈ ${plural(label.distinct, "value")}`),
          label.collapsed && h("p", { class: "label-note" }, "Collapsed: new values are counted as __other__."),
          chips(label.samples, {
            most: 12,
            class: "is-mono",
            show: (sample) => (sample === "" ? "(empty)" : sample.slice(0, 120)),
          }),
        ),
      ),
      labels.length > 0 && examples.length > 0 && h("div", {}, h("h3", {}, "Newest series"), examples_list(examples)),
    ),
  );
}
