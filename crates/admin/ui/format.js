// Numbers, durations and times as people read them.

const LOCALE = "en-GB";
const whole = new Intl.NumberFormat(LOCALE, { maximumFractionDigits: 0 });
const precise = new Intl.NumberFormat(LOCALE, { maximumSignificantDigits: 3 });

/** 12,345. */
export const count = (number) => (Number.isFinite(number) ? whole.format(number) : "–");

/** 12.3k, for places that are narrow. */
export function short(number) {
  if (!Number.isFinite(number)) return "–";
  const steps = [
    [1e9, "G"],
    [1e6, "M"],
    [1e4, "k"],
  ];
  const step = steps.find(([from]) => Math.abs(number) >= from);
  if (!step) return Math.abs(number) < 100 && number % 1 !== 0 ? precise.format(number) : whole.format(number);
  const unit = step[1] === "k" ? 1e3 : step[0];
  return precise.format(number / unit) + step[1];
}

/** A duration given in seconds: 850 µs, 2.1 ms, 1.4 s. */
export function seconds(value) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  if (value < 1e-3) return `${precise.format(value * 1e6)} µs`;
  if (value < 1) return `${precise.format(value * 1e3)} ms`;
  return `${precise.format(value)} s`;
}

/** A long duration in words: 3 days, 4 hours. */
export function span(value) {
  const units = [
    [86400, "day"],
    [3600, "hour"],
    [60, "minute"],
    [1, "second"],
  ];
  const at = units.findIndex(([size]) => value >= size);
  if (at < 0) return "less than a second";
  const [size, name] = units[at];
  const first = plural(Math.floor(value / size), name);
  const next = units[at + 1];
  const rest = next && Math.floor((value % size) / next[0]);
  return rest && value / size < 10 ? `${first} ${plural(rest, next[1])}` : first;
}

/** 1 route, 2 routes. */
export const plural = (number, noun, nouns = `${noun}s`) => `${count(number)} ${number === 1 ? noun : nouns}`;

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];

/** 1.2 MiB. */
export function bytes(value) {
  if (!Number.isFinite(value)) return "–";
  let at = 0;
  for (; value >= 1024 && at < SIZES.length - 1; at++) value /= 1024;
  return `${at ? precise.format(value) : whole.format(value)} ${SIZES[at]}`;
}

/** 0.31 %. */
export function percent(part, all) {
  if (!all) return "0 %";
  const value = (part / all) * 100;
  if (value > 0 && value < 0.01) return "< 0.01 %";
  return `${value.toLocaleString(LOCALE, { maximumFractionDigits: value < 1 ? 2 : 1 })} %`;
}

/** Milliseconds of a time as the server gives it: RFC 3339, seconds or milliseconds since 1970. */
export function instant(time) {
  if (typeof time === "number") return time > 1e11 ? time : time * 1000;
  return Date.parse(time);
}

/** 21 Nov 2026, 00:27:13. */
export function date_time(time) {
  const at = instant(time);
  if (!Number.isFinite(at)) return "–";
  return new Date(at).toLocaleString(LOCALE, { dateStyle: "medium", timeStyle: "medium" });
}

/** 21 Nov 2026. */
export function date(time) {
  const at = instant(time);
  return Number.isFinite(at) ? new Date(at).toLocaleDateString(LOCALE, { dateStyle: "medium" }) : "–";
}

/** 00:27:13. */
export const clock = (unix_s) => new Date(unix_s * 1000).toLocaleTimeString(LOCALE);

/** 2 minutes ago. */
export function ago(time, now = Date.now()) {
  const passed = (now - instant(time)) / 1000;
  if (!Number.isFinite(passed)) return "–";
  return passed < 5 ? "just now" : `${span(passed).split(" ").slice(0, 2).join(" ")} ago`;
}
