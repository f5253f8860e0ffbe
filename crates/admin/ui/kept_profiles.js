// The CPU profiles that the gateway keeps of each minute: a bar over their time, and two ranges of it to show or to compare.

import { get, path_of } from "./api.js";
import { fresh_id, h, put, s, set } from "./dom.js";
import { bytes, count, date, date_time, plural, short, span } from "./format.js";
import { author_words, no_history } from "./history_view.js";
import { generation_marks, live, watch } from "./live.js";
import { card, choice, failure_view, loading } from "./parts.js";

const POLL_MS = 30_000;
const HEIGHT = 96;
/** Space for the times below, and for the marks above. */
const FOOT = 20;
const HEAD = 16;
const WINDOWS = [
  [3600, "1 hour"],
  [6 * 3600, "6 hours"],
  [0, "All"],
];
const LENGTHS = [1, 2, 5, 15, 60];
const LENGTH_DEFAULT = 2;
const TICKS_S = [300, 600, 1800, 3600, 4 * 3600, 12 * 3600, 86400];
const CHANGES_SHOWN = 4;
const CHANGES_ASKED = 100;

const minute_name = (unix_s) =>
  new Date(unix_s * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
/** A day that is not today. */
const day_name = (unix_s) => {
  const day = date(unix_s);
  return day === date(Date.now()) ? "" : `${day}, `;
};
const range_name = ({ from, to }) => `${day_name(from)}${minute_name(from)}–${minute_name(to)}`;

/** What is shown where no profile is kept. */
const switched_off = () =>
  h(
    "p",
    { class: "quiet" },
    "To see later what changed, let the gateway keep a CPU profile of each minute: set ",
    h("code", {}, "gateway.debug.profiles: {cpu: 19 Hz, keep: 24h, bytes: 64MiB}"),
    ". It takes effect on reload.",
  );

/** The part of the page for them; `on_taken(B, A or null)` shows profiles. With `at`, compares what was before and after that second. */
export async function kept_profiles({ app, signal, at, on_taken }) {
  const found = await get("/debug/profiles", signal).catch((failure) =>
    failure.status === 404 ? { enabled: false } : Promise.reject(failure),
  );
  if (!found.enabled) return switched_off();
  const bar = time_bar(found, { app, signal, on_taken });
  bar.draw();
  if (at && found.to_unix_s) bar.compare_around(at);
  return bar.element;
}

function time_bar(kept, { app, signal, on_taken }) {
  const step = kept.step_s;
  const known = { changes: [] };
  const view = { length: WINDOWS[0][0], to: null };
  const ranges = { A: { from: null }, B: { from: null } };
  let minutes = LENGTH_DEFAULT;
  let active = "B";
  let width = 0;
  let is_loading = false;

  const svg = s("svg", { class: "kept-plot", "aria-hidden": "true", height: HEIGHT });
  const handles = Object.fromEntries(Object.keys(ranges).map((name) => [name, handle_of(name)]));
  const help = fresh_id();
  const stage = h("div", { class: "kept-stage" }, svg, Object.values(handles));
  const progress = h("div", { "aria-live": "polite" });
  const changes = h("div", {});
  const words = h("span", {});
  const move = (text, label, by) =>
    h(
      "button",
      { type: "button", "aria-label": label, onclick: () => look(view_to() + (by * view_length()) / 2) },
      text,
    );
  const [earlier, later] = [move("‹", "Earlier", -1), move("›", "Later", 1)];
  const compare = h(
    "button",
    { type: "button", class: "is-primary", onclick: () => load(["B", "A"]) },
    "Compare B with A",
  );
  const show = ["A", "B"].map((name) => h("button", { type: "button", onclick: () => load([name]) }, `Show ${name}`));

  const tools = h(
    "div",
    { class: "toolbar" },
    choice("Part of the time", WINDOWS, view.length, "is-small", (value) => {
      view.length = Number(value);
      look(ranges[active].from + view_length() / 2);
    }),
    earlier,
    later,
    choice(
      "Length of A and B",
      LENGTHS.map((number) => [number, plural(number, "minute")]),
      minutes,
      "is-small",
      (value) => {
        minutes = Number(value);
        draw();
      },
    ),
    compare,
    show,
  );
  const peak = h("span", {});
  const explained = h(
    "p",
    { class: "kept-help quiet", id: help },
    peak,
    "Drag A and B, or move them with the arrow keys by a minute.",
  );

  const first = () => kept.from_unix_s ?? 0;
  const last = () => kept.to_unix_s ?? 0;
  const view_length = () => Math.min(view.length || Infinity, Math.max(last() - first(), 10 * step));
  const view_to = () => view.to ?? last();
  const length = () => minutes * step;
  const limited = (from) => Math.max(first(), Math.min(last() - step, Math.floor(from / step) * step));
  const end_of = (name) => Math.min(last(), ranges[name].from + length());
  const part = (t) => (t - (view_to() - view_length())) / view_length();
  const time_at = (event) => {
    const box = stage.getBoundingClientRect();
    return view_to() - view_length() + ((event.clientX - box.left) / box.width) * view_length();
  };

  function look(to) {
    view.to = to >= last() ? null : Math.max(to, first() + view_length());
    draw();
  }

  function place(name, from) {
    ranges[name].from = limited(from);
    const { from: begin } = ranges[name];
    if (part(begin) < 0 || part(end_of(name)) > 1) look(begin + view_length() / 2);
    else draw();
  }

  function handle_of(name) {
    const element = h(
      "div",
      { class: ["kept-range", `is-${name}`], role: "slider", tabindex: "0", "aria-label": `Range ${name}` },
      h("b", { "aria-hidden": "true" }, name),
    );
    element.addEventListener("focus", () => {
      active = name;
      place(name, ranges[name].from);
    });
    element.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 }[event.key];
      const to = { Home: first(), End: last() - length() }[event.key] ?? (by && ranges[name].from + by * step);
      if (to === undefined) return;
      event.preventDefault();
      place(name, to);
    });
    return element;
  }

  // Drags a range, or brings the one that was used last to where there is none.
  stage.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !kept.to_unix_s) return;
    event.preventDefault();
    const name = Object.keys(handles).find((one) => handles[one].contains(event.target)) ?? active;
    handles[name].focus({ preventScroll: true });
    const offset = handles[name].contains(event.target) ? time_at(event) - ranges[name].from : length() / 2;
    const drag = (moved) => ((ranges[name].from = limited(time_at(moved) - offset)), draw());
    drag(event);
    stage.setPointerCapture(event.pointerId);
    stage.onpointermove = drag;
    stage.onpointerup = stage.onpointercancel = () => (stage.onpointermove = null);
  });

  function draw() {
    const is_empty = !kept.to_unix_s;
    for (const part of [tools, stage, explained]) part.hidden = is_empty;
    put(
      words,
      is_empty
        ? "No minute is kept yet; the first follows within two minutes."
        : [
            `${kept.hz} Hz, ${span(last() - first())} of ${span(kept.keep_s)}, ${bytes(kept.bytes)} of ${bytes(kept.bytes_max)}`,
            kept.samples_lost > 0 && `, ${plural(kept.samples_lost, "sample")} lost`,
          ],
    );
    if (is_empty) return;
    ranges.B.from = limited(ranges.B.from ?? last() - length());
    ranges.A.from = limited(ranges.A.from ?? ranges.B.from - length());
    for (const [name, element] of Object.entries(handles)) {
      const [from, to] = [ranges[name].from, end_of(name)];
      const edge = (value) => Math.max(0, Math.min(1, value));
      set(element, "vars", { from: edge(part(from)), to: edge(part(to)) });
      element.classList.toggle("is-out", part(to) <= 0 || part(from) >= 1);
      set(element, "aria-valuemin", first());
      set(element, "aria-valuemax", last());
      set(element, "aria-valuenow", from);
      set(element, "aria-valuetext", range_name({ from, to }));
    }
    for (const button of [compare, ...show]) button.disabled = is_loading;
    compare.disabled ||= ranges.A.from === ranges.B.from;
    earlier.disabled = view_to() - view_length() <= first();
    later.disabled = view.to === null;
    draw_plot();
  }

  function draw_plot() {
    if (!width) return;
    const bottom = HEIGHT - FOOT;
    const x_of = (t) => part(t) * width;
    const from = view_to() - view_length();
    set(svg, "viewBox", `0 0 ${width} ${HEIGHT}`);
    const is_seen = ({ t }) => t >= from && t <= view_to();
    const seconds = live.seconds.filter(is_seen);
    // Means of the seconds that share two pixels.
    const every = Math.max(1, Math.round((2 * view_length()) / width));
    const points = [];
    for (let i = 0; i < seconds.length; i += every) {
      const some = seconds.slice(i, i + every);
      points.push({
        t: some[0].t,
        requests: some.reduce((sum, { requests }) => sum + (requests ?? 0), 0) / some.length,
      });
    }
    const most = Math.max(...points.map(({ requests }) => requests), 1e-9);
    const line = points.map(
      ({ t, requests }) => `${x_of(t).toFixed(1)} ${(bottom - (requests / most) * (bottom - HEAD)).toFixed(1)}`,
    );
    const tick = TICKS_S.find((one) => (view_length() / one) * 64 < width) ?? TICKS_S.at(-1);
    const zone = new Date(from * 1000).getTimezoneOffset() * 60;
    const ticks = [];
    for (let t = Math.ceil((from - zone) / tick) * tick + zone; t < view_to(); t += tick) ticks.push(t);
    svg.replaceChildren(
      s("rect", {
        class: "kept-time",
        x: x_of(first()),
        y: HEAD,
        width: Math.max(0, x_of(last()) - x_of(first())),
        height: bottom - HEAD,
      }),
      ...(line.length > 1
        ? [
            s("path", {
              class: ["chart-area", "tone-traffic"],
              d: `M${x_of(points[0].t).toFixed(1)} ${bottom}L${line.join("L")}L${x_of(points.at(-1).t).toFixed(1)} ${bottom}Z`,
            }),
            s("path", { class: ["chart-line", "tone-traffic"], d: `M${line.join("L")}` }),
          ]
        : []),
      ...ticks.map((t) =>
        s("g", { class: "chart-words" }, [
          s("line", { class: "kept-tick", x1: x_of(t), x2: x_of(t), y1: bottom, y2: bottom + 4 }),
          s(
            "text",
            {
              x: x_of(t),
              y: HEIGHT - 3,
              "text-anchor": x_of(t) < 20 ? "start" : x_of(t) > width - 20 ? "end" : "middle",
            },
            minute_name(t),
          ),
        ]),
      ),
      ...known.changes
        .filter(is_seen)
        .map(({ t, title }) =>
          s("g", { class: "chart-mark" }, [
            s("title", {}, `${date_time(t)}\n${title}`),
            s("line", { x1: x_of(t), x2: x_of(t), y1: HEAD - 4, y2: bottom }),
            s("path", { d: `M${x_of(t)} ${HEAD - 12}l5 5l-5 5l-5 -5Z` }),
          ]),
        ),
    );
    set(peak, "hidden", !seconds.length);
    put(peak, `Line: requests of the last 15 minutes, up to ${short(most)}/s. `);
  }
  async function load(names) {
    if (is_loading) return;
    const wanted = names.map((name) => ({ from: ranges[name].from, to: end_of(name) }));
    is_loading = true;
    draw();
    put(progress, loading("Loading profiles"));
    try {
      const taken = [];
      // One after the other: the gateway reads one at a time.
      for (const { from, to } of wanted) {
        const profile = await get(path_of("/debug/profiles/cpu", [], { from, to, format: "json" }), signal);
        taken.push({ name: `CPU time, ${range_name({ from, to })}`, path: "profile", profile });
      }
      put(progress);
      on_taken(taken[0], taken[1] ?? null);
    } catch (failure) {
      put(progress, failure_view(failure, "Loading profiles"));
    } finally {
      is_loading = false;
      draw();
    }
  }

  /** The minute of a change is in neither range. */
  const around = (t) => {
    const minute = Math.floor(t / step) * step;
    return { A: minute - length(), B: minute + step };
  };
  function compare_around(t) {
    const { A, B } = around(t);
    ranges.A.from = limited(A);
    place("B", B);
    load(["B", "A"]);
  }

  function draw_changes() {
    const by_minute = new Map();
    for (const change of known.changes) {
      const minute = Math.floor(change.t / step) * step;
      by_minute.set(minute, [...(by_minute.get(minute) ?? []), change]);
    }
    const lines = [...by_minute]
      .filter(([minute]) => minute > first() && minute + step < last())
      .slice(0, CHANGES_SHOWN);
    put(
      changes,
      lines.length > 0 && [
        h("h3", {}, "Configuration changes"),
        h(
          "ul",
          { class: "kept-changes" },
          lines.map(([minute, list]) =>
            h(
              "li",
              {},
              h("i", { class: "diamond", "aria-hidden": "true" }),
              h("time", {}, day_name(minute), minute_name(minute)),
              h(
                "span",
                { class: "kept-what" },
                list.length > 1 ? `${count(list.length)} changes, the last: ${list[0].title}` : list[0].title,
              ),
              h(
                "button",
                {
                  type: "button",
                  "aria-label": `Compare before and after ${minute_name(minute)}`,
                  onclick: () => compare_around(minute),
                },
                "Before and after",
              ),
            ),
          ),
        ),
      ],
    );
  }

  async function load_changes() {
    const found = (await no_history(app))
      ? null
      : await get(path_of("/v1/history", [], { count: CHANGES_ASKED }), signal).catch(() => null);
    known.changes = found
      ? found.changes.map(({ unix_ms, keys, keys_total, author }) => ({
          t: unix_ms / 1000,
          title: `${keys.slice(0, 3).join(", ")}${keys_total > 3 ? ` and ${count(keys_total - 3)} more` : ""} ${author_words(author, { from: false })}`,
        }))
      : generation_marks(live.seconds).reverse();
    draw();
    draw_changes();
  }

  const poll = async () => {
    if (document.hidden) return;
    const found = await get("/debug/profiles", signal).catch(() => null);
    if (found?.enabled) Object.assign(kept, found);
    draw();
    draw_changes();
  };
  const timer = setInterval(poll, POLL_MS);
  let generation = null;
  const end = watch(() => {
    const now = live.last?.generation ?? null;
    if (now !== generation) load_changes();
    else draw_plot();
    generation = now;
  });
  signal.addEventListener("abort", () => (clearInterval(timer), end()));
  if (!live.last) load_changes();
  const sizes = new ResizeObserver(([entry]) => {
    width = Math.round(entry.contentRect.width);
    draw();
  });
  sizes.observe(stage);

  const element = card("What changed", [tools, stage, explained, changes, progress], { note: words });
  for (const handle of Object.values(handles)) set(handle, "aria-describedby", help);
  return { element, draw, compare_around };
}
