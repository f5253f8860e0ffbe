// Certificates, the first to end on top, on one scale of days.

import { admin_path, get } from "../api.js";
import { badge, bar, icon } from "../chart.js";
import { h, link, put } from "../dom.js";
import { date, date_time, instant, plural, span } from "../format.js";
import { card, chips, empty, fill, page_head, read_only_notice } from "../parts.js";

const DAY_MS = 86_400_000;
const SCALE_DAYS = 90;
const SOON_DAYS = 14;
const SHOWN = 200;

export const title = () => "Certificates";

export async function show({ root, app, signal }) {
  const body = h("div");
  const actions = h("div", { class: "actions" });
  put(
    root,
    page_head("Certificates", { lead: "Certificates for clients and upstreams, and when they expire.", actions }),
    body,
  );
  await fill(
    body,
    "Loading certificates",
    async () => {
      const [status, stored] = await Promise.all([
        app.refresh(),
        get(admin_path(["ssls"], { page: 1, page_size: 500 }), signal).catch(() => ({ list: [] })),
      ]);
      return merged(status.certificates ?? [], stored.list ?? []);
    },
    (certificates) => [
      read_only_notice(app),
      certificates.length
        ? card(null, [
            h(
              "div",
              { class: "ends-axis", "aria-hidden": "true" },
              h(
                "span",
                {},
                h("i", {}, "today"),
                h("i", {}, "30 days"),
                h("i", {}, "60 days"),
                h("i", {}, "90 and more"),
              ),
            ),
            h("ul", { class: "ends" }, certificates.slice(0, SHOWN).map(row)),
            certificates.length > SHOWN &&
              h(
                "p",
                { class: "quiet" },
                `and ${plural(certificates.length - SHOWN, "more certificate")} that expire later`,
              ),
          ])
        : empty(
            "There are no certificates",
            "TLS handshakes are refused (unrecognized_name) until there is one.",
            app.can_write && h("a", { class: "button is-primary", href: "#/new/ssls" }, "Add a certificate"),
          ),
    ],
  );
  put(
    actions,
    app.can_write && h("a", { class: "button is-primary", href: "#/new/ssls" }, icon("plus"), "New certificate"),
  );

  function row({ id, names, not_after, acme, usage }) {
    const left = not_after ? instant(not_after) - Date.now() : null;
    const days = left === null ? 0 : left / DAY_MS;
    const tone = left === null ? "away" : days < 3 ? "bad" : days < SOON_DAYS ? "warn" : "good";
    const words =
      left === null
        ? acme
          ? "ordered, not issued yet"
          : "expiry not known"
        : left < 0
          ? `expired ${span(-left / 1000)} ago`
          : `expires in ${span(left / 1000)}`;
    return h(
      "li",
      { class: "end" },
      h(
        "div",
        {},
        link(["edit", "ssls", id], id, { class: "row-title clamped", title: id }),
        h("div", {}, chips(names, { most: 3, class: "is-mono" })),
        usage === "client" && h("span", { class: "quiet" }, "client certificate for upstreams"),
        acme && acme_words(acme),
      ),
      bar([{ value: Math.max(days, 0.6), tone }], SCALE_DAYS),
      h(
        "div",
        { class: "end-when" },
        badge(tone === "good" ? "good" : tone, words),
        h("div", { class: "quiet", title: date_time(not_after) }, left === null ? "" : date(not_after)),
      ),
    );
  }
}

const acme_words = ({ failures, last_error: error, next_try: next }) =>
  failures
    ? h(
        "p",
        { class: "fault" },
        `${plural(failures, "failed attempt")}: ${error ?? "reason not known"}${next ? `. Next attempt: ${date_time(next)}` : ""}`,
      )
    : h("span", { class: "quiet" }, "renewed automatically");

/** The ends come from the status, the names from the documents. */
function merged(ends, documents) {
  const by_id = new Map(ends.map(({ id, not_after, acme }) => [id, { id, not_after, acme, names: [] }]));
  for (const { key, value } of documents) {
    const id = value.id ?? key.split("/").at(-1);
    const one = by_id.get(id) ?? { id, not_after: value.validity_end ?? null, names: [] };
    one.names = value.snis ?? (value.sni ? [value.sni] : []);
    one.usage = value.type;
    by_id.set(id, one);
  }
  return [...by_id.values()].sort(
    (a, b) => (a.not_after ? instant(a.not_after) : 0) - (b.not_after ? instant(b.not_after) : 0),
  );
}
