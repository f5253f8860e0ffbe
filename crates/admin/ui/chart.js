// Charts over the last 15 minutes, drawn as SVG paths; and small pictures of numbers: sparklines, bars, rings.
//
// One second is one point. A chart is redrawn once a second with a handful of attributes, never rebuilt.

import { fresh_id, h, s, set } from "./dom.js";
import { clock, date_time } from "./format.js";

const WINDOW_S = 900;
/** The shortest time that the axis spans. */
const WINDOW_MIN_S = 60;
const GAP_S = 3;
/** On the left, room for the axis: "100 ms". */
const PAD = { top: 14, right: 4, bottom: 20, left: 46 };

/**
 * A chart of several series over time.
 *
 * `series`: `{key, name, tone, area, thin}`; `band`: keys of a lower line and of upper ones, of which each second has one, with a
 * surface between them; `format`: of a value; `scale`: `linear` or `log`. The axis begins with the first second. Answers
 * `{element, update}`; `update(seconds, marks)` draws, `marks` being `{t, title, href}`.
 */
export function time_chart({ title, series, band, format, scale = "linear", height = 190, floor = 0, note }) {
  const svg = s("svg", { class: "chart-plot", "aria-hidden": "true", height });
  const grid = s("g", { class: "chart-grid" });
  const words = s("g", { class: "chart-words" });
  const changes = s("g", { class: "chart-marks" });
  const drawn = series.map((one) => ({
    ...one,
    area_path: one.area && s("path", { class: ["chart-area", `tone-${one.tone}`] }),
    path: s("path", { class: ["chart-line", `tone-${one.tone}`, one.thin && "is-thin"] }),
    dot: s("circle", { class: ["chart-dot", `tone-${one.tone}`], r: 3.5 }),
  }));
  const band_path = band && s("path", { class: "chart-band tone-p99" });
  const cross = s("line", { class: "chart-cross", y1: PAD.top - 6 });
  const moment = s("text", { class: "chart-moment", "text-anchor": "middle" });
  svg.append(
    ...[grid, band_path].filter(Boolean),
    ...drawn.flatMap((one) => [one.area_path, one.path].filter(Boolean)),
    changes,
    words,
    cross,
    ...drawn.map((one) => one.dot),
    moment,
  );
  const values = series.map((one) => h("span", { class: "figure" }, "–"));
  const legend = h(
    "ul",
    { class: "legend" },
    series.map((one, i) =>
      h("li", {}, h("i", { class: ["swatch", `tone-${one.tone}`] }), h("span", {}, one.name), values[i]),
    ),
  );
  const spoken = h("p", { class: "visually-hidden", "aria-live": "polite" });
  const help = fresh_id();
  const stage = h(
    "div",
    { class: "chart-stage", tabindex: "0", role: "group", "aria-label": title, "aria-describedby": help },
    svg,
  );
  const element = h(
    "figure",
    { class: ["chart", height > 140 && "is-tall"] },
    h("figcaption", {}, h("h2", {}, title), note && h("span", { class: "quiet" }, note), legend),
    stage,
    spoken,
    h(
      "p",
      { class: "visually-hidden", id: help },
      "Arrow keys read single seconds; Home and End jump to the oldest and the newest.",
    ),
  );

  let width = 0;
  let data = [];
  let marks = [];
  let pointed = null;
  let end = 0;
  let span_s = WINDOW_S;

  const x_of = (t) => PAD.left + ((t - (end - span_s)) / span_s) * (width - PAD.left - PAD.right);
  let y_of = () => 0;

  function draw() {
    if (!width) return;
    end = data.at(-1)?.t ?? Date.now() / 1000;
    span_s = Math.min(WINDOW_S, Math.max(WINDOW_MIN_S, end - (data[0]?.t ?? end) + 1));
    const bottom = height - PAD.bottom;
    const axis = axis_of(scale, drawn, data, floor);
    y_of = (value) => bottom - axis.part(value) * (bottom - PAD.top);
    set(svg, "viewBox", `0 0 ${width} ${height}`);
    draw_grid(grid, words, axis, y_of, x_of, { width, bottom, end, span_s, format });
    const every = Math.max(1, Math.floor(data.length / width));
    if (band) set(band_path, "d", band_of(data, band, x_of, y_of, every));
    for (const { key, path, area_path } of drawn) {
      const line = line_of(data, key, x_of, y_of, every);
      set(path, "d", line.d);
      if (area_path) set(area_path, "d", line.area(bottom));
    }
    changes.replaceChildren(
      ...marks.filter(({ t }) => t > end - span_s && t <= end + 1).map((mark) => mark_of(mark, x_of(mark.t), bottom)),
    );
    point();
  }

  function point() {
    const second = pointed === null ? data.at(-1) : nearest(data, pointed);
    const is_pointed = pointed !== null && second;
    cross.classList.toggle("is-on", Boolean(is_pointed));
    moment.classList.toggle("is-on", Boolean(is_pointed));
    if (is_pointed) {
      const x = x_of(second.t);
      (set(cross, "x1", x), set(cross, "x2", x), set(cross, "y2", height - PAD.bottom));
      (set(moment, "x", Math.min(width - 30, Math.max(30, x))), set(moment, "y", height - 5));
      moment.textContent = clock(second.t);
    }
    drawn.forEach(({ key, dot }, i) => {
      const value = second?.[key];
      const is_known = Number.isFinite(value);
      values[i].textContent = is_known ? format(value) : "–";
      dot.classList.toggle("is-on", is_known);
      if (is_known && width) (set(dot, "cx", x_of(second.t)), set(dot, "cy", y_of(Math.max(value, floor))));
    });
    return second;
  }

  stage.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const part = (event.clientX - box.left - PAD.left) / (box.width - PAD.left - PAD.right);
    pointed = end - span_s + part * span_s;
    point();
  });
  stage.addEventListener("pointerleave", () => ((pointed = null), point()));
  stage.addEventListener("blur", () => ((pointed = null), point()));
  stage.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -60, PageDown: 60, Home: -WINDOW_S, End: WINDOW_S };
    const step = steps[event.key];
    if (!step || !data.length) return;
    event.preventDefault();
    pointed = Math.min(data.at(-1).t, Math.max(data[0].t, (pointed ?? end) + step));
    const second = point();
    spoken.textContent = `${clock(second.t)}: ${series.map((one) => `${one.name} ${format(second[one.key])}`).join(", ")}`;
  });
  new ResizeObserver(([entry]) => {
    width = Math.round(entry.contentRect.width);
    draw();
  }).observe(stage);

  const update = (seconds, with_marks = []) => {
    data = seconds;
    marks = with_marks;
    draw();
  };
  return { element, update };
}

function axis_of(scale, drawn, data, floor) {
  let low = Infinity;
  let high = 0;
  for (const second of data) {
    for (const { key } of drawn) {
      const value = second[key];
      if (!Number.isFinite(value)) continue;
      if (value > high) high = value;
      if (value > 0 && value < low) low = value;
    }
  }
  if (scale === "log") {
    const from = Math.floor(Math.log10(Math.max(floor, low === Infinity ? 1e-3 : low)) * 2) / 2;
    const to = Math.max(from + 1, Math.ceil(Math.log10(Math.max(high, 1e-3)) * 4) / 4 + 0.05);
    const ticks = [];
    for (let power = Math.ceil(from); power <= to; power++) ticks.push(10 ** power);
    return { ticks, part: (value) => (Math.log10(Math.max(value, 10 ** from)) - from) / (to - from) };
  }
  const step = nice((high || 1) / 3);
  const top = Math.max(step * 2, Math.ceil((high * 1.05) / step) * step);
  const ticks = [];
  for (let tick = step; tick <= top * 1.001; tick += step) ticks.push(tick);
  return { ticks, part: (value) => Math.max(0, value) / top };
}

function nice(step) {
  const power = 10 ** Math.floor(Math.log10(step));
  const digit = step / power;
  return Math.max(digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10, 0) * power;
}

function draw_grid(grid, words, axis, y_of, x_of, { width, bottom, end, span_s, format }) {
  const parts = [s("line", { class: "chart-base", x1: PAD.left, x2: width, y1: bottom, y2: bottom })];
  const texts = [];
  for (const tick of axis.ticks) {
    const y = y_of(tick);
    if (y < 6) continue;
    parts.push(s("line", { x1: PAD.left, x2: width, y1: y, y2: y }));
    texts.push(s("text", { x: 0, y: y + 4 }, format(tick)));
  }
  for (const { x, text, anchor } of time_ticks(x_of, width, end, span_s))
    texts.push(s("text", { x, y: bottom + 15, "text-anchor": anchor }, text));
  texts.push(s("text", { x: width, y: bottom + 15, "text-anchor": "end" }, "now"));
  grid.replaceChildren(...parts);
  words.replaceChildren(...texts);
}

/** The words below the axis: minutes, or seconds where it spans less than three minutes; the first one says which. */
function time_ticks(x_of, width, end, span_s) {
  const [unit_s, name] = span_s < 180 ? [1, "s ago"] : [60, "min ago"];
  const first = (ago) => `${Math.round(ago / unit_s)} ${name}`;
  if (width < 300) return [{ x: PAD.left, text: first(span_s), anchor: "start" }];
  const most = width < 420 ? 3 : 5;
  const step = [30, 60, 120, 180, 300].find((one) => span_s / one <= most) ?? 300;
  const ticks = [];
  for (let ago = Math.floor(span_s / step) * step; ago > 0; ago -= step) {
    const x = x_of(end - ago);
    if (width - x < 50) break;
    const is_first = !ticks.length;
    ticks.push({ x, text: is_first ? first(ago) : ago / unit_s, anchor: is_first && x - PAD.left < 30 ? "start" : "middle" });
  }
  return ticks;
}

/** The surface between the lower line and whichever upper one a second has; gaps split it. */
function band_of(data, [low, ...high], x_of, y_of, every) {
  let d = "";
  let upper = [];
  let lower = [];
  let last = null;
  const finish = () => {
    if (upper.length > 1) d += `M${upper.join("L")}L${lower.reverse().join("L")}Z`;
    upper = [];
    lower = [];
  };
  for (let at = 0; at < data.length; at += every) {
    const here = data.slice(at, at + every);
    const from = Math.min(...here.map((second) => second[low]).filter(Number.isFinite));
    const to = Math.max(...here.flatMap((second) => high.map((key) => second[key])).filter(Number.isFinite));
    if (!Number.isFinite(from) || !Number.isFinite(to)) continue;
    const { t } = data[at];
    if (last !== null && t - last > GAP_S + every) finish();
    const x = x_of(t).toFixed(1);
    upper.push(`${x} ${y_of(to).toFixed(1)}`);
    lower.push(`${x} ${y_of(from).toFixed(1)}`);
    last = t;
  }
  finish();
  return d;
}

function line_of(data, key, x_of, y_of, every) {
  let d = "";
  let last = null;
  const runs = [];
  for (let at = 0; at < data.length; at += every) {
    // Of the seconds that share a pixel, the highest is drawn: a peak must not vanish.
    let value = data[at][key];
    for (let next = at + 1; next < Math.min(at + every, data.length); next++) {
      if (data[next][key] > value || !Number.isFinite(value)) value = data[next][key];
    }
    if (!Number.isFinite(value)) continue;
    const { t } = data[at];
    const point = `${x_of(t).toFixed(1)} ${y_of(value).toFixed(1)}`;
    if (last === null || t - last > GAP_S + every) runs.push({ from: x_of(t), points: [] });
    const run = runs.at(-1);
    run.points.push(point);
    run.to = x_of(t);
    last = t;
  }
  for (const run of runs) d += `M${run.points.join("L")}`;
  const area = (bottom) =>
    runs
      .map((run) => `M${run.from.toFixed(1)} ${bottom}L${run.points.join("L")}L${run.to.toFixed(1)} ${bottom}Z`)
      .join("");
  return { d, area };
}

function mark_of({ t, title }, x, bottom) {
  const y = 7;
  return s(
    "g",
    { class: "chart-mark" },
    s("title", {}, `${date_time(t)}\n${title}`),
    s("line", { x1: x, x2: x, y1: y, y2: bottom }),
    s("path", { d: `M${x} ${y - 5}l5 5l-5 5l-5 -5Z` }),
  );
}

function nearest(data, t) {
  let best = null;
  for (const second of data) {
    if (!best || Math.abs(second.t - t) < Math.abs(best.t - t)) best = second;
    else break;
  }
  return best;
}

/** A line without axes. Nulls are gaps. `update(values)` draws. */
export function sparkline({ tone = "traffic", label }) {
  const path = s("path", { class: ["chart-line", `tone-${tone}`], "vector-effect": "non-scaling-stroke" });
  const area = s("path", { class: ["chart-area", `tone-${tone}`] });
  const element = s(
    "svg",
    {
      class: "spark",
      viewBox: "0 0 100 24",
      preserveAspectRatio: "none",
      ...(label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" }),
    },
    area,
    path,
  );
  const update = (values, most = Math.max(...values.filter(Number.isFinite), 0)) => {
    const seconds = values.map((value, t) => ({ t, value })).filter(({ value }) => Number.isFinite(value));
    const last = values.length - 1 || 1;
    const line = line_of(
      seconds,
      "value",
      (t) => (t / last) * 100,
      (value) => 23 - (most ? value / most : 0) * 21,
      Math.max(1, Math.floor(values.length / 150)),
    );
    set(path, "d", line.d);
    set(area, "d", line.area(24));
  };
  return { element, update };
}

/** A bar of parts: `{value, tone, label}`, as wide as `value` is of `all`. */
export const bar = (parts, all, label) =>
  h(
    "span",
    { class: "bar", ...(label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" }) },
    parts
      .filter(({ value }) => value > 0)
      .map(({ value, tone }) => h("i", { class: `tone-${tone}`, vars: { part: Math.min(1, value / (all || 1)) } })),
  );

const ICONS = {
  overview: "M3 12h4l2.5-7 5 14 2.5-7h4",
  routes: "M5 5v6a4 4 0 0 0 4 4h10M15 11l4 4-4 4M5 5h.01",
  slow: "M7 3h10M7 21h10M8 3v4l4 5 4-5V3M8 21v-4l4-5 4 5v4",
  explain: "M9.5 9.2a2.6 2.6 0 1 1 3.6 2.4c-.8.4-1.1.9-1.1 1.9M12 17h.01M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18Z",
  upstreams: "M4 5h16v5H4ZM4 14h16v5H4ZM8 7.5h.01M8 16.5h.01",
  devices: "M7 3h10v18H7ZM11 18h2M3 9v6M21 9v6",
  consumers: "M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8ZM4.5 20c.8-3.4 3.8-5 7.5-5s6.700 1.600 7.500 5",
  certificates: "M12 3l7 3v5c0 5-3 8-7 10-4-2-7-5-7-10V6ZM9 12l2.200 2.200L15.500 10",
  fleet: "M9 4h6v5H9ZM3 15h6v5H3ZM15 15h6v5h-6ZM12 9v3M6 15v-3h12v3",
  cardinality: "M4 20V10M9.300 20V4M14.600 20v-7M20 20V8",
  profiles: "M12 3c1 4 6 6 6 11a6 6 0 0 1-12 0c0-2 1-3.500 2-4.500 0 2 1 3 2 3.500 0-4 1-7 2-10Z",
  lua: "M11 20a8 8 0 1 0 0-16 8 8 0 0 0 0 16ZM13.500 12a2.500 2.500 0 1 0 0-5 2.500 2.500 0 0 0 0 5ZM20 5.500a1.500 1.500 0 1 0 0-3 1.500 1.500 0 0 0 0 3Z",
  status: "M12 7v5l3.500 2M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18Z",
  resources: "M4 7l8-4 8 4-8 4ZM4 12l8 4 8-4M4 17l8 4 8-4",
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  good: "M5 12.500l4.500 4.500L19 7.500",
  warn: "M12 4L2.500 20h19ZM12 10v4M12 17h.01",
  bad: "M6 6l12 12M18 6L6 18",
  away: "M6 12h12",
  info: "M12 11v6M12 7.500h.01M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18Z",
  search: "M10.500 17a6.500 6.500 0 1 0 0-13 6.500 6.500 0 0 0 0 13ZM15.500 15.500L20 20",
  lock: "M6 11h12v9H6ZM8.500 11V8a3.500 3.500 0 0 1 7 0v3",
  out: "M14 4h6v16h-6M10 8l-4 4 4 4M6 12h9",
};

/** A line drawing of 24 × 24. */
export const icon = (name) =>
  s("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, s("path", { d: ICONS[name] }));

/** A word with a shape and a colour: `good`, `warn`, `bad` or `away`. */
export const badge = (tone, word) => h("span", { class: ["badge", `is-${tone}`] }, icon(tone), word);
