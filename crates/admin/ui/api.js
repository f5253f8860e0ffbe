// Asks the gateway. The only module that sends requests, besides the event stream of live.js.
//
// Every failure is a `Failure` with a sentence for the reader: what was asked, what came back, what to do.

/** A request that was not answered as hoped. */
export class Failure extends Error {
  constructor(status, message, advice) {
    super(message);
    this.status = status;
    this.advice = advice;
  }
}

let csrf = "";
let on_signed_out = () => {};

/** Called when the session is over. */
export const when_signed_out = (call) => (on_signed_out = call);

const ADVICE = {
  0: "Check that the gateway is running and that this page was loaded from its admin address, then try again.",
  400: "Correct the input and try again.",
  403: "Reload the page and sign in again, from an address in gateway.admin.allow.",
  404: "It may have been deleted, or this gateway is an older version.",
  412: "Somebody has changed it since it was loaded. Compare both versions.",
  501: "The source of this gateway's configuration does not support this.",
  503: "The gateway cannot do this at the moment. Try again shortly.",
};

/** Sends a request; answers `{body, headers, status}` or throws a `Failure`. `is_text`: the body may be anything. */
export async function ask(method, path, { body, headers = {}, signal, is_text } = {}) {
  const sent = { Accept: "application/json", ...headers };
  if (body !== undefined) sent["Content-Type"] = "application/json";
  if (method !== "GET" && csrf) sent["X-CSRF-Token"] = csrf;
  let answer;
  try {
    const text = body === undefined || typeof body === "string" ? body : JSON.stringify(body);
    answer = await fetch(path, { method, headers: sent, body: text, signal, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(0, "The gateway does not respond.", ADVICE[0]);
  }
  const text = await answer.text();
  let parsed = null;
  try {
    parsed = text === "" ? null : JSON.parse(text);
  } catch {
    if (answer.ok && !is_text) throw new Failure(answer.status, `${method} ${path}: the answer is not JSON.`, ADVICE[404]);
  }
  if (answer.ok) return { body: is_text ? text : parsed, headers: answer.headers, status: answer.status };
  const said = parsed?.error_msg ?? parsed?.message ?? text.slice(0, 500);
  if (answer.status === 401 && !path.startsWith("/v1/session")) on_signed_out();
  throw new Failure(
    answer.status,
    said || `${answer.status} ${answer.statusText}`,
    parsed?.description ?? ADVICE[answer.status] ?? "See the gateway's log.",
  );
}

/** The body of a GET. */
export const get = async (path, signal) => (await ask("GET", path, { signal })).body;

/** A path from segments, each encoded. */
export const path_of = (base, segments = [], parameters = {}) => {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = new URLSearchParams(given).toString();
  const path = [base, ...segments.map((segment) => encodeURIComponent(segment))].join("/");
  return query ? `${path}?${query}` : path;
};

/** The path of a resource by its key, such as `consumers/jack/credentials/1`. */
export const admin_path = (segments, parameters) => path_of("/apisix/admin", segments, parameters);

/** The segments below the prefix of a key as the Admin API gives it: `/apisix/routes/1` or `routes/1`. */
export const segments_of = (key) =>
  String(key)
    .replace(/^\/apisix\//, "")
    .split("/");

/** The session there is, or null. */
export async function session() {
  try {
    return keep((await ask("GET", "/v1/session")).body);
  } catch (failure) {
    if (failure.status === 401) return null;
    throw failure;
  }
}

/** Signs in with a key or with the one-use token of an address. */
export const sign_in = async (proof) => keep((await ask("POST", "/v1/session", { body: proof })).body);

/** Ends the session. */
export async function sign_out() {
  await ask("DELETE", "/v1/session");
  csrf = "";
}

function keep(found) {
  csrf = found?.csrf ?? "";
  return found;
}

/** Where the configuration comes from, of `/v1/status`: `{kind, path, revision, writable, trouble}`. */
export function source_of(status) {
  const kind = status?.source ?? "file";
  return {
    kind,
    path: status?.source_path ?? null,
    revision: status?.revision ?? null,
    writable: kind !== "file",
    trouble: status?.source_error ?? null,
  };
}

/** Resources that are not served as they were written. */
export const rejected_of = (status) => status?.rejected ?? [];
