// One device: its state and session, sending a message and showing the answer, closing its connection.

import { ask, get, path_of } from "../api.js";
import { badge } from "../chart.js";
import { fresh_id, h, put } from "../dom.js";
import { ago, bytes, date_time } from "../format.js";
import { card, chips, facts, failure_view, fill, notice, page_head } from "../parts.js";

const REFRESH_MS = 3000;

/** What to wait for, and what an answer then proves. */
const LEVELS = [
  ["written", "written: sent to the socket"],
  ["device", "device: the device has acknowledged it"],
  ["reply", "reply: the device has replied"],
];

export const title = ([, id]) => `Device ${id}`;

export async function show({ root, params: [, id], app, signal }) {
  const state = h("div", {});
  const load = () => fill(state, `Loading device ${id}`, () => get(path_of("/v1/devices", [id]), signal), facts_view);
  // A session with a key for everything; a viewer is refused anyway, and is informed here.
  const may_write = app.session.role === "admin" && Boolean(app.session.csrf);
  put(
    root,
    page_head(id, {
      crumbs: [["Devices", ["devices"]]],
      actions: may_write && h("button", { type: "button", class: "is-danger", onclick: close }, "Close connection"),
    }),
    h(
      "div",
      { class: "stack" },
      card("State", state),
      may_write
        ? card("Send a message", message_form(id, signal))
        : notice("note", "This session is read-only", "Sending messages and closing connections need an admin key."),
    ),
  );
  await load();
  const timer = setInterval(async () => {
    if (document.hidden || state.contains(document.activeElement)) return;
    const found = await get(path_of("/v1/devices", [id]), signal).catch(() => null);
    if (found) put(state, facts_view(found));
  }, REFRESH_MS);
  signal.addEventListener("abort", () => clearInterval(timer));

  async function close() {
    const done = await app.confirm({
      title: `Close the connection of ${id}?`,
      body: "Devices usually reconnect. Messages that it has not acknowledged may be delivered again.",
      action: "Close connection",
      tone: "danger",
      run: () => ask("DELETE", path_of("/v1/devices", [id, "connection"]), { signal }),
    });
    if (!done) return;
    app.tell("The connection is being closed.");
    await load();
  }
}

function facts_view(found) {
  const labels = Object.entries(found.labels ?? {}).map(([name, value]) => `${name}=${value}`);
  if (!found.online) return facts([["State", badge("away", "not connected")], ["Last seen", when(found.last_seen)]]);
  return facts([
    ["State", badge("good", "connected")],
    ["Since", when(found.since)],
    ["Node", found.node],
    ["Address", found.address],
    ["Route", found.route],
    ["Protocol", found.protocol],
    ["Connection", found.connection],
    ["Labels", chips(labels, { none: "none" })],
    ["Last activity", found.last_seen && when(found.last_seen)],
    ["Queued for it", bytes(found.queue_bytes)],
    ["Received from it", bytes(found.bytes_received)],
    ["Sent to it", bytes(found.bytes_sent)],
  ]);
}

const when = (time) => `${ago(time)} (${date_time(time)})`;

function message_form(id, signal) {
  const [body_id, level_id] = [fresh_id(), fresh_id()];
  const body = h("textarea", { id: body_id, rows: 4, spellcheck: "false", value: '{"on":true}' });
  const level = h(
    "select",
    { id: level_id },
    LEVELS.map(([value, words]) => h("option", { value }, words)),
  );
  level.value = "reply";
  const answer = h("div", { role: "status", class: "device-answer" });
  const send = h("button", { type: "submit", class: "is-primary" }, "Send");
  const form = h(
    "form",
    { class: "device-form" },
    h("label", { for: body_id }, "Message, as JSON"),
    body,
    h("label", { for: level_id }, "Wait for"),
    level,
    h("div", { class: "actions" }, send),
    answer,
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      JSON.parse(body.value);
    } catch (error) {
      put(answer, notice("warn", "This is not JSON", error.message));
      return;
    }
    send.disabled = true;
    const began = performance.now();
    try {
      const path = path_of("/v1/devices", [id, "messages"], { ack: level.value, timeout: "5s" });
      const { body: said, status } = await ask("POST", path, { body: body.value, is_text: true, signal });
      const took = `${Math.round(performance.now() - began)} ms`;
      put(answer, notice("good", `${status} after ${took}`, h("pre", {}, said.trim() || "(empty)")));
    } catch (failure) {
      put(answer, failure_view(failure, "Sending the message"));
    } finally {
      send.disabled = false;
    }
  });
  return form;
}
