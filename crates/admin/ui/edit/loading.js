// What an editor begins with: the document, its schema, and the schemas of plugins, each asked for once it is needed.

import { admin_path, ask, get, path_of } from "../api.js";
import { without_times } from "./document_history.js";
import { pretty } from "./json.js";

/** A document as it is stored: `{text, etag, revision}`. */
export async function stored(path, signal) {
  const { body, headers } = await ask("GET", path, { signal });
  return { text: pretty(without_times(body.value)), etag: etag_of(headers, body), revision: body.modifiedIndex };
}

/** The same, or null where there is none. */
export const stored_or_null = (path) =>
  stored(path).catch((failure) => (failure.status === 404 ? null : Promise.reject(failure)));

/** The tag of the version that an answer is about. */
export const etag_of = (headers, body) =>
  headers.get("ETag") ?? (body?.modifiedIndex ? `"${body.modifiedIndex}"` : null);

/** All that the editor of a resource needs; `restored`: `{from, key}` of a deleted one that is to be made again. */
export async function load(subject, segments, is_new, restored, signal) {
  const [found, schema, names] = await Promise.all([
    is_new ? deleted(restored, signal) : existing(segments, signal),
    schema_of(subject, signal).catch(() => null),
    get("/apisix/admin/plugins/list", signal).catch(() => []),
  ]);
  return {
    found,
    schema,
    plugins: plugin_source(subject, names.filter((name) => typeof name === "string").sort(), signal),
  };
}

async function existing(segments, signal) {
  try {
    return await stored(admin_path(segments), signal);
  } catch (failure) {
    if (failure.status === 404)
      failure.advice = "It may have been deleted. Its versions are in the history on the status page.";
    throw failure;
  }
}

async function deleted({ from, key }, signal) {
  if (!from || !key) return { text: null, etag: null };
  const { edits } = await get(path_of("/v1/history", [from]), signal);
  const value = edits.find((change) => change.key === key)?.before;
  return { text: value ? pretty(without_times(value)) : null, etag: null, id: key.split("/").at(-1) };
}

async function schema_of({ kind, id }, signal) {
  if (kind !== "plugin_metadata") return get(path_of("/apisix/admin/schema", [kind]), signal);
  return id ? get(path_of("/apisix/admin/schema/plugins", [id], { schema_type: "metadata" }), signal) : null;
}

// `names` of all plugins, `schema(name)` of one, and those already `known`.
function plugin_source({ kind }, names, signal) {
  const asked = new Map();
  const known = new Map();
  const schema_type = kind === "consumers" || kind === "credentials" ? "consumer" : null;
  const ask_for = async (name) => {
    const schema = await get(path_of("/apisix/admin/schema/plugins", [name], { schema_type }), signal);
    known.set(name, schema);
    return schema;
  };
  const schema = (name) => {
    if (!asked.has(name)) asked.set(name, ask_for(name));
    return asked.get(name);
  };
  return { names, schema, known };
}
