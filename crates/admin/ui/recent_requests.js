// Which of the last requests a change would send to another route, or through other plugins: part of the result of a dry run.

import { h } from "./dom.js";
import { plural } from "./format.js";

const SHOWN_MAX = 10;

const side = ({ route, status }) =>
  route === null ? `no route (${status ?? 404})` : h("code", {}, route);

const example = ([first]) =>
  first && h("span", { class: "quiet" }, ` for example ${first.method} ${first.host}${first.uri}`);

const routed = ({ old, new: to, requests, examples }) =>
  h("li", {}, side(old), " → ", side(to), `: ${plural(requests, "request")},`, example(examples));

function replaced({ route, added, removed, changed, requests, examples }) {
  const lists = Object.entries({ added, removed, changed }).filter(([, names]) => names.length > 0);
  const told = lists.map(([what, names]) => `${what}: ${names.join(", ")}`).join("; ");
  return h("li", {}, side({ route }), ` (plugins ${told}): ${plural(requests, "request")},`, example(examples));
}

/** Nothing if the answer has no `recent_requests`. */
export function recent_requests_view(recent) {
  if (!recent) return null;
  const { requests, reason, same, other_plugins: others } = recent;
  if (reason) return h("p", { class: "quiet" }, `Recent requests: ${reason}.`);
  if (requests === 0) return h("p", { class: "quiet" }, "There are no recent requests to compare yet.");
  const moved = requests - same;
  const of_last = `Of the last ${plural(requests, "request")}`;
  if (moved + others === 0) return h("p", { class: "quiet" }, `${of_last}, none takes another route or other plugins.`);
  const changes = [...recent.changes.map(routed), ...recent.plugin_changes.map(replaced)];
  return h(
    "div",
    { class: "recent-requests" },
    h("h3", {}, "Recent requests"),
    h("p", {}, `${of_last}, ${moved} would take another route, and ${others} would go through other plugins.`),
    h("ul", { class: "effects" }, changes.slice(0, SHOWN_MAX)),
    changes.length > SHOWN_MAX && h("p", { class: "quiet" }, `And ${plural(changes.length - SHOWN_MAX, "more change")}.`),
  );
}
