// What is served and where it comes from, what is rejected, and the history with the way back.

import { rejected_of } from "../api.js";
import { badge } from "../chart.js";
import { address, h, put } from "../dom.js";
import { ago, count, date_time, plural, span } from "../format.js";
import { history_list } from "../history_view.js";
import { card, facts, fill, notice, page_head, read_only_notice } from "../parts.js";

export const title = () => "Status";

const SERVING = {
  previous: "its previous version is served",
  503: "its requests are answered 503",
  nothing: "nothing is served in its place",
};

export async function show({ root, app, signal }) {
  const state = h("div", { class: "stack" });
  const changes = h("div");
  put(
    root,
    page_head("Status", {}),
    state,
    h("div", { class: "after-panes" }, card("History and audit", changes, { note: "every change and who made it" })),
  );
  history_list(changes, app, signal);
  await fill(
    state,
    "Loading the status",
    () => app.refresh(),
    (status) => {
      const { config = {}, connections = {}, requests = {}, tunnels = {}, streams = {} } = status;
      const { kind, path, revision } = app.source;
      const rejected = rejected_of(status);
      return [
        read_only_notice(app),
        status.draining &&
          notice("warn", "The gateway is shutting down", "Open requests are finished; new connections are not accepted."),
        config.last_error &&
          notice(
            "bad",
            "The last configuration was refused; the previous one is served",
            h("p", {}, date_time(config.last_error.at)),
            h(
              "ul",
              {},
              config.last_error.errors.slice(0, 20).map((error) => h("li", { class: "mono" }, error)),
            ),
          ),
        status.pending_restart?.length > 0 &&
          notice(
            "warn",
            "Changed, takes effect at the next start",
            h(
              "p",
              {},
              status.pending_restart.map((key, i) => [i > 0 && ", ", h("code", {}, key)]),
            ),
          ),
        rejected.length > 0
          ? card(
              "Rejected resources",
              h(
                "ul",
                { class: "rejected" },
                rejected.map((one) => rejected_row(one, app)),
              ),
              { note: `${count(rejected.length)} not served as written` },
            )
          : null,
        h(
          "div",
          { class: "grid" },
          card(
            "Configuration",
            facts([
              [
                "Source",
                [
                  h("strong", {}, kind),
                  path && h("div", { class: "quiet" }, path),
                ],
              ],
              revision !== null && [
                "Revision",
                [h("strong", {}, revision), kind === "etcd" && h("div", {}, h("a", { href: "#/fleet" }, "Other nodes"))],
              ],
              ["Generation", config.generation !== undefined ? `${count(config.generation)} since the start` : null],
              [
                "Served since",
                config.loaded_at ? [h("time", { title: date_time(config.loaded_at) }, ago(config.loaded_at))] : null,
              ],
              ["Rejected", rejected.length ? badge("bad", count(rejected.length)) : badge("good", "none")],
              config.digest && [
                "Digest",
                h("span", { class: "mono", title: config.digest }, config.digest.slice(0, 12)),
              ],
            ]),
          ),
          card(
            "Process",
            facts([
              ["Version", status.version],
              ["Workers", count(status.workers)],
              ["Up for", span(status.uptime_seconds ?? 0)],
              [
                "Requests",
                [
                  h("strong", {}, count(requests.total)),
                  h("div", { class: "quiet" }, `${count(requests.in_flight)} in flight`),
                ],
              ],
              [
                "Connections",
                [
                  h("strong", {}, count(connections.open)),
                  h("div", { class: "quiet" }, `${count(connections.total)} since the start`),
                ],
              ],
              [
                "Tunnels",
                [
                  h("strong", {}, count(tunnels.open)),
                  h("div", { class: "quiet" }, `${count(tunnels.total)} since the start`),
                ],
              ],
              [
                "Streams",
                [
                  h("strong", {}, count(streams.open)),
                  h("div", { class: "quiet" }, plural(streams.udp_open ?? 0, "UDP session")),
                ],
              ],
              trouble("Refused connections", connections.refused),
              trouble("Failed accepts", connections.accept_errors),
              trouble("Failed TLS handshakes", connections.tls_handshake_errors),
              trouble("Lost log lines", status.access_log?.dropped_lines),
              trouble("Dropped datagrams", streams.datagrams_dropped),
            ]),
          ),
        ),
      ];
    },
  );
}

/** The segments of a rejected resource's key. */
export const resource_segments = (kind, id) =>
  kind === "credentials" || String(id).startsWith(`${kind}/`) ? String(id).split("/") : [kind, id];

const trouble = (name, value) => (value ? [name, badge("warn", count(value))] : null);

function rejected_row({ kind, id, reason, origin, serving }, app) {
  return h(
    "li",
    {},
    h(
      "div",
      { class: "rejected-head" },
      badge(serving === "previous" ? "warn" : "bad", SERVING[serving] ?? serving),
      h("strong", {}, `${kind}/${id}`),
      h("span", { class: "quiet" }, origin),
    ),
    h("p", {}, reason),
    app.can_write && h("p", {}, h("a", { href: address(["edit", ...resource_segments(kind, id)]) }, "Edit")),
  );
}
