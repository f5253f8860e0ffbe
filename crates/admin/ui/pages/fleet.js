// The nodes that share one configuration: whether all serve the same revision, and which do not.

import { get } from "../api.js";
import { badge } from "../chart.js";
import { address, h, put } from "../dom.js";
import { ago, count, date_time, plural, span } from "../format.js";
import { failure_view, loading, page_head, table } from "../parts.js";
import { resource_segments } from "./status.js";

const REFRESH_MS = 5000;
const SENTENCES_SHOWN = 4;
const RANK = { behind: 0, silent: 1, unknown: 2, ok: 3 };
const ALONE = {
  store: "The configuration is in this gateway's own store. Gateways share one with gateway.config.source: etcd.",
  file: "The configuration is in a file on this machine. Gateways share one with gateway.config.source: etcd.",
  etcd: "No other gateway has reported to this etcd.",
};

export const title = () => "Fleet";

export async function show({ root, signal }) {
  const verdict = h("div", { class: "verdict", role: "status" });
  const body = h("div", {}, loading("Loading the nodes"));
  put(root, page_head("Fleet", { lead: "The nodes that serve this configuration." }), verdict, body);
  let said = "";
  let drawn = false;
  const load = async () => {
    try {
      const fleet = await get("/v1/fleet", signal);
      const sentences = sentences_of(fleet);
      const text = JSON.stringify(sentences);
      if (said !== text) put(verdict, sentences_view(sentences));
      said = text;
      if (!body.contains(document.activeElement)) put(body, nodes_view(fleet));
      drawn = true;
    } catch (failure) {
      if (failure.name === "AbortError") return;
      said = "";
      if (drawn) put(verdict, badge("warn", `Not up to date: ${failure.message}`));
      else if (!body.querySelector(".notice")) put(body, failure_view(failure, "Loading the nodes", load));
    }
  };
  await load();
  if (signal.aborted) return;
  const timer = setInterval(() => !document.hidden && load(), REFRESH_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
}

const cut = (text, most = 60) => (text.length > most ? `${text.slice(0, most)}…` : text);
const name_of = ({ hostname, id }) => cut(hostname || id);
const has = (number, one, many) => (number === 1 ? one : many);
const silent_for = ({ reported_unix_s: at }) =>
  span(Math.max(1, Date.now() / 1000 - at))
    .split(" ")
    .slice(0, 2)
    .join(" ");

/** Tones and sentences: whether all nodes serve one revision, and which ones do not. */
function sentences_of({ revision: newest, nodes }) {
  const own = nodes.filter(({ product }) => product === "stillgate");
  const foreign = nodes.length - own.length;
  const known = own.filter((node) => node.revision !== null);
  const revision = newest ?? known.reduce((most, node) => Math.max(most, node.revision), 0);
  const in_state = (state) => own.filter((node) => node.state === state);
  const [behind, silent] = [in_state("behind"), in_state("silent")];
  const equal = known.filter((node) => node.revision === revision && node.state !== "silent");
  const late = known.filter((node) => node.revision !== revision && node.state === "ok");
  const unknown = own.filter((node) => node.revision === null && node.state !== "silent");
  const sentences = [];
  const say = (tone, words) => sentences.push([tone, words]);

  if (nodes.length === 1)
    say("good", known.length ? `This is the only node. It serves revision ${revision}.` : "This is the only node.");
  else if (own.length && equal.length === own.length)
    say("good", `All ${count(own.length)} nodes serve revision ${revision}.`);
  else if (own.length)
    say(
      behind.length ? "bad" : "warn",
      `${count(equal.length)} of ${plural(own.length, "node")} ${has(equal.length, "serves", "serve")} revision ${revision}.`,
    );
  for (const node of behind)
    say("bad", `${name_of(node)} serves revision ${node.revision}, ${count(revision - node.revision)} behind.`);
  for (const node of silent)
    say(
      "warn",
      `${name_of(node)} has not reported for ${silent_for(node)}${node.revision === null ? "" : `; it served revision ${node.revision} then`}.`,
    );
  if (late.length)
    say(
      "away",
      `${has(late.length, name_of(late[0]), plural(late.length, "node"))} ${has(late.length, "is", "are")} about to serve revision ${revision}.`,
    );
  if (unknown.length && nodes.length > 1)
    say(
      "away",
      `The revision of ${has(unknown.length, name_of(unknown[0]), plural(unknown.length, "node"))} is not known.`,
    );
  for (const node of own.filter((node) => node.rejected_total > 0))
    say("warn", `${name_of(node)} rejects ${plural(node.rejected_total, "resource")}.`);
  if (foreign)
    say(
      "away",
      `${plural(foreign, "APISIX node")} on the same etcd ${has(foreign, "does not report its", "do not report their")} revision.`,
    );
  return sentences;
}

const sentences_view = (sentences) => [
  sentences.slice(0, SENTENCES_SHOWN).map(([tone, words]) => badge(tone, h("span", {}, words))),
  sentences.length > SENTENCES_SHOWN &&
    h("p", { class: "quiet" }, `and ${count(sentences.length - SENTENCES_SHOWN)} more, listed below`),
];

function nodes_view({ source, revision, nodes }) {
  const sorted = [...nodes].sort((a, b) => RANK[a.state] - RANK[b.state] || b.rejected_total - a.rejected_total);
  const columns = [
    {
      title: "Node",
      show: (node) => [
        h("span", { class: "row-title clamped", title: node.hostname || node.id }, node.hostname || node.id),
        h(
          "span",
          { class: "chips" },
          h("span", { class: "quiet clamped", title: node.id }, node.id),
          node.is_self && h("span", { class: "chip" }, "this node"),
          node.product !== "stillgate" && h("span", { class: "chip" }, "APISIX"),
        ),
      ],
    },
    { title: "State", show: (node) => state_badge(node, revision) },
    { title: "Revision", class: "is-number", show: (node) => node.revision },
    { title: "Version", show: ({ version }) => version },
    { title: "Rejected", class: "c-rejected", show: rejected_view },
    {
      title: "Last report",
      show: ({ reported_unix_s: at }) => at && h("time", { title: date_time(at) }, ago(at)),
    },
    {
      title: "Started",
      show: ({ started_unix_s: at }) => at && h("time", { title: date_time(at) }, ago(at)),
    },
  ];
  return [
    h("section", { class: "card is-flush" }, table("Nodes", columns, sorted)),
    nodes.length === 1 && h("p", { class: "quiet fleet-alone" }, ALONE[source]),
  ];
}

function state_badge({ state, product, revision, is_self }, newest) {
  // Without a shared configuration there is no revision to be behind.
  if (is_self && newest === null) return badge("good", "serves it");
  if (state === "behind") return badge("bad", `${count(newest - revision)} behind`);
  if (state === "silent") return badge("warn", "silent");
  if (state === "ok") return badge("good", revision !== null && revision < newest ? "updating" : "up to date");
  return badge("away", product === "apisix" ? "not reported" : "not known");
}

function rejected_view({ rejected, rejected_total: all }) {
  if (!all) return h("span", { class: "quiet" }, all === 0 ? "none" : "");
  return h(
    "ul",
    { class: "fleet-rejected" },
    rejected.map(({ kind, id, reason }) =>
      h(
        "li",
        {},
        h("a", { href: address(["edit", ...resource_segments(kind, id)]) }, `${kind}/${cut(id)}`),
        h("div", { class: "quiet" }, reason),
      ),
    ),
    all > rejected.length && h("li", { class: "quiet" }, `and ${count(all - rejected.length)} more`),
  );
}
