// What an editor begins with: the document, its schema, and the schemas of plugins, each asked for once it is needed.

import { admin_path, ask, get, path_of } from "../api.js";
import { without_times } from "./document_history.js";
import { pretty } from "./json.js";

/** A document as it is stored: `{text, etag, revision, line}`; one of a file has a line in place of a revision. */
export async function stored(path, signal) {
  const { body, headers } = await ask("GET", path, { signal });
  const { value, modifiedIndex: revision, line } = body;
  return { text: pretty(without_times(value)), etag: etag_of(headers, body), revision, line };
}

/** The same, or null where there is none. */
export const stored_or_null = (path) =>
  stored(path).catch((failure) => (failure.status === 404 ? null : Promise.reject(failure)));

/** The tag of the version that an answer is about. */
export const etag_of = (headers, body) =>
  headers.get("ETag") ?? (body?.modifiedIndex ? `"${body.modifiedIndex}"` : null);

/** Fields that name another resource: the kind of it. */
export const REFERENCES = {
  upstream_id: "upstreams",
  service_id: "services",
  plugin_config_id: "plugin_configs",
  group_id: "consumer_groups",
};
const IDS_ASKED = 100;

/** The first resources of a kind that have a text: `{total, list: [{id, name}]}`. */
export async function ids_of(kind, search, signal) {
  const answer = await get(admin_path([kind], { page: 1, page_size: IDS_ASKED, search }), signal);
  const list = (answer.list ?? []).map(({ key, value }) => ({ id: key.split("/").at(-1), name: value.name ?? value.desc ?? "" }));
  return { total: answer.total, list };
}

// Of each kind that fields of the schema refer to; plugins may refer to upstreams.
async function known_ids({ properties = {} }, signal) {
  const has = (field) => field in properties || (field === "upstream_id" && "plugins" in properties);
  const kinds = Object.entries(REFERENCES).filter(([field]) => has(field));
  const asked = kinds.map(async ([, kind]) => [kind, await ids_of(kind, "", signal).catch(() => null)]);
  return Object.fromEntries(await Promise.all(asked));
}

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
    ids: await known_ids(schema ?? {}, signal),
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
