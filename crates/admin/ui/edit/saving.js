// How a document is saved: difference and dry run first, then a write that names the version it replaces; and deleted.
//
// Nobody's change is overwritten unseen: where the version is another one meanwhile, both are shown, and one is chosen.

import { admin_path, ask, segments_of } from "../api.js";
import { h, put } from "../dom.js";
import { plural } from "../format.js";
import { checked_view, failure_view, loading, notice } from "../parts.js";
import { diff_size, diff_view } from "./diff.js";
import { plain } from "./json.js";
import { key_of } from "./kinds.js";
import { etag_of, stored, stored_or_null } from "./loading.js";

/**
 * Reviews and saves. `work`: `{subject, segments, is_new, id, base: {text, etag}, app, panes, conflict, on_saved}`.
 */
export async function review(work) {
  const { subject, segments, is_new, app, panes } = work;
  if (!panes.tree) return;
  const text = panes.text();
  const id = is_new && subject.kind === "consumers" ? plain(panes.tree).username : work.id;
  const write = { text, against: work.base, is_conflict: false, method: id ? "PUT" : "POST" };
  write.path = admin_path(!id ? subject.collection : is_new ? key_of(subject, id) : segments);
  const place = h("div", { class: "dialog-body" }, loading("Checking"));
  const is_saved = await app.confirm({
    title: is_new ? `Create this ${subject.noun}?` : `Save ${segments.join("/")}?`,
    action: is_new ? "Create" : "Save",
    body: place,
    ready: dry_run(work, write, id, place),
    run: () => save(work, write),
  });
  if (write.is_conflict) return show_conflict(work);
  if (!is_saved) return;
  app.guard = null;
  app.tell(`${is_new ? "Created" : "Saved"}.${write.is_served ? " Every worker serves it." : ""}`);
  if (!is_new) return work.on_saved();
  const key = write.key ? segments_of(write.key) : key_of(subject, id);
  const has_page = key.length === 2 && (key[0] === "routes" || key[0] === "consumers");
  app.go(has_page ? key : ["edit", ...key]);
}

// Shows the difference and what the server says; answers whether saving makes sense.
async function dry_run({ subject, is_new }, write, id, place) {
  const { path, method, text } = write;
  try {
    const present = is_new && id ? await stored_or_null(path) : null;
    if (present) write.against = present;
    const { body } = await ask(method, `${path}?dry_run=true`, { body: text, headers: condition(write) });
    const { added, removed } = diff_size(write.against.text, text);
    const taken = `There is already a ${subject.noun} with this id`;
    put(
      place,
      present && notice("warn", taken, "Saving replaces it. Choose another id to keep both."),
      h("h3", {}, `${plural(added, "line")} added, ${removed} removed`),
      diff_view(write.against.text, text),
      checked_view(body ?? {}),
    );
    return true;
  } catch (failure) {
    write.is_conflict = failure.status === 412;
    put(place, failure_view(failure, "The dry run"), write.against.text && diff_view(write.against.text, text));
    return write.is_conflict;
  }
}

const condition = ({ against }) => (against.etag ? { "If-Match": against.etag } : {});

async function save(work, write) {
  if (write.is_conflict) return;
  try {
    const { headers, body } = await ask(write.method, write.path, { body: write.text, headers: condition(write) });
    work.base = { text: write.text, etag: etag_of(headers, body) };
    write.key = body?.key ?? null;
    write.is_served = headers.has("X-Stillgate-Generation");
  } catch (failure) {
    if (failure.status !== 412) throw failure;
    write.is_conflict = true;
  }
}

async function show_conflict(work) {
  const { segments, panes, conflict } = work;
  const theirs = await stored(admin_path(segments)).catch(() => null);
  const mine = panes.text();
  const decide = (text) => {
    work.base = { text: theirs?.text ?? "", etag: theirs?.etag ?? null };
    put(conflict);
    panes.replace(text);
  };
  const keep = h("button", { type: "button", onclick: () => decide(mine) }, "Keep my version and review again");
  const take = theirs && h("button", { type: "button", onclick: () => decide(theirs.text) }, "Use their version");
  const what = theirs
    ? "Nothing has been overwritten. Their version and yours differ in these lines:"
    : "It was deleted. Saving creates it again.";
  const actions = h("div", { class: "actions" }, keep, take);
  put(
    conflict,
    notice("warn", "Somebody has changed it since you loaded it", what, theirs && diff_view(theirs.text, mine), actions),
  );
  conflict.scrollIntoView({ block: "nearest" });
  keep.focus();
}

/** Asks, with what a dry run finds, and deletes a resource; answers whether it did. `why`: what happens then. */
export async function remove(app, segments, what, { why, etag } = {}) {
  const path = admin_path(segments);
  const refused = (failure) => ({ warnings: [failure.message] });
  const checked = await ask("DELETE", `${path}?dry_run=true`).then(({ body }) => body ?? {}, refused);
  const is_done = await app.confirm({
    title: `Delete ${what}?`,
    action: "Delete",
    tone: "danger",
    body: [why && h("p", {}, why), checked_view(checked)],
    run: () => ask("DELETE", path, { headers: etag ? { "If-Match": etag } : {} }),
  });
  if (is_done) app.tell(`Deleted ${what}.`);
  return is_done;
}
