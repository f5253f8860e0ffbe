// The last 15 minutes, second by second, from `GET /v1/live`; one stream for all pages.
//
// The stream is closed while nobody looks: a hidden tab costs the gateway nothing, and browsers allow only six
// connections to one HTTP/1.1 address, which pages that were left must not keep. The first event after a reconnect
// brings the history back.

const SECONDS_KEPT = 900;
const HIDDEN_MS = 2000;
const RETRY_MS = 5000;

/** With fewer requests in a second their 99th percentile says no more than the slowest of them. */
export const PERCENTILE_REQUESTS = 100;

/** The note of a chart of latencies, and what it shows. */
export const LATENCY_NOTE = `max in seconds with fewer than ${PERCENTILE_REQUESTS} requests`;
export const LATENCY_BAND = ["p50", "p99", "max"];

const watchers = new Set();
let stream = null;
let followed = null;
/** Whether the server knows streams of one route; one that refuses the parameter does not. */
let may_follow = true;
let hidden_timer = 0;

/**
 * What is known: `seconds`, oldest first, `state`: `waiting`, `live`, `lost` or `paused`, and whether requests are measured.
 * What is not known of a second is null.
 */
export const live = { seconds: [], state: "waiting", last: null, has_metrics: true };

/** Calls on every second and every change of state; answers a function that ends it. */
export function watch(call) {
  watchers.add(call);
  if (!stream && !document.hidden) open();
  if (live.seconds.length) call(live);
  return () => watchers.delete(call);
}

/** Asks the stream for one route's own figures as well; null ends it. */
export function follow(route) {
  if (followed === route) return;
  followed = route;
  if (stream) {
    close("waiting");
    open();
  }
}

let on_refused = () => {};

/** Called when the server refuses the stream, as without a session. */
export const when_refused = (call) => (on_refused = call);

/** Ends the stream, as at signing out. */
export function stop() {
  close("waiting");
  live.seconds = [];
  live.last = null;
  watchers.clear();
}

function open() {
  const address =
    followed === null || !may_follow ? "/v1/live" : `/v1/live?${new URLSearchParams({ route: followed })}`;
  stream = new EventSource(address);
  stream.onmessage = ({ data }) => {
    let event;
    try {
      event = JSON.parse(data);
    } catch {
      return;
    }
    take(event);
  };
  stream.onerror = () => {
    // EventSource reconnects by itself unless it was refused.
    const is_over = stream?.readyState === EventSource.CLOSED;
    tell("lost");
    if (is_over) {
      stream = null;
      on_refused();
      if (followed !== null) may_follow = false;
      setTimeout(() => watchers.size && !document.hidden && !stream && open(), may_follow ? RETRY_MS : 0);
    }
  };
}

function take(event) {
  if (Array.isArray(event.history)) {
    live.seconds = event.history.slice(-SECONDS_KEPT);
    live.seconds.forEach(choose);
    live.has_metrics = event.metrics !== false;
  }
  if (Number.isFinite(event.t)) {
    if (live.last && event.t <= live.last.t) return;
    choose(event);
    live.seconds.push(event);
    if (live.seconds.length > SECONDS_KEPT) live.seconds.splice(0, live.seconds.length - SECONDS_KEPT);
  }
  live.last = live.seconds.at(-1) ?? null;
  tell("live");
}

/** Of a second's figures leaves the high percentiles or, where there were few requests, the slowest one. */
function choose(second) {
  for (const figures of [second, second.route, ...(second.routes ?? [])]) {
    if (!figures) continue;
    const is_many = figures.timed >= PERCENTILE_REQUESTS;
    for (const key of is_many ? ["max"] : ["p99", "p999"]) figures[key] = null;
  }
}

function tell(state) {
  live.state = state;
  for (const call of watchers) call(live);
}

function close(state) {
  stream?.close();
  stream = null;
  tell(state);
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(hidden_timer);
  if (document.hidden) hidden_timer = setTimeout(() => close("paused"), HIDDEN_MS);
  else if (!stream && watchers.size) open();
});

// A page that was left may be kept by the browser with all that is open, until somebody goes back to it.
addEventListener("pagehide", () => {
  clearTimeout(hidden_timer);
  if (stream) close("paused");
});
addEventListener("pageshow", ({ persisted }) => {
  if (persisted && !stream && watchers.size) open();
});

/**
 * One route's figure for each second kept, oldest first: all of them for the followed route, for others those in which it was
 * among the busiest; else null.
 */
export function of_route(id, key) {
  return live.seconds.map((second) => {
    const own = second.route?.id === id ? second.route : second.routes?.find((route) => route.id === id);
    return own?.[key] ?? null;
  });
}

/**
 * The routes listed in the last seconds, with averages per second: `{id, requests, client_errors, errors, p99, max}`. The times
 * are those of the slowest second; `p99` is null where no second had enough requests for it.
 */
export function recent_routes(over_s = 10) {
  const sums = new Map();
  const recent = live.seconds.slice(-over_s);
  for (const { routes = [] } of recent) {
    for (const { id, requests = 0, client_errors = 0, errors = 0, p99, max } of routes) {
      const sum = sums.get(id) ?? { id, requests: 0, client_errors: 0, errors: 0, p99: null, max: null };
      sum.requests += requests / recent.length;
      sum.client_errors += client_errors / recent.length;
      sum.errors += errors / recent.length;
      sum.p99 = larger(sum.p99, p99);
      sum.max = larger(sum.max, max);
      sums.set(id, sum);
    }
  }
  return [...sums.values()];
}

/** When the configuration changed: `{t, title}` of each. */
export function generation_marks(known) {
  const marks = [];
  for (let at = 1; at < known.length; at++) {
    const { t, generation } = known[at];
    if (generation !== undefined && generation !== known[at - 1].generation)
      marks.push({ t, title: `generation ${generation}` });
  }
  return marks;
}

/** How slow a route was lately, of its `traffic`: the name and the value of what says most. */
export const slowest_of = ({ timed, p99, max }) => (timed < PERCENTILE_REQUESTS ? ["max", max] : ["p99", p99]);

const larger = (a, b) => (a === null || b > a ? (b ?? a) : a);
