//! Latency over the measured time, with every scrape at its time.
//!
//! Blocks follow each other in the order they were run, without the pauses between them; those with scrapes are tinted,
//! and a scrape is a darker span with a mark on top. Neighbouring points are merged if there are more than can be seen,
//! and the worst of them is shown: a picture of a tail must not smooth it away.

use super::axis::Axis;
use super::markup::{self, Key, LegendSymbol, Plot, Probe};
use super::number;
use super::tables::{self, Cell, figures, words};
use crate::result::load::WatchSample;
use crate::result::tail::{Point, Scrape};

/// Points of a line, over the whole width.
const POINTS_MAX: usize = 320;

/// Bands that can be focused.
const PROBES_MAX: usize = 24;

/// Styles of the lines.
const MEDIAN: usize = 0;
const P99: usize = 1;
const P99_9: usize = 3;
const SLOWEST: usize = 2;

/// A part without a gap.
pub(crate) struct PlotSegment<'a> {
    /// The beginning of the read-out.
    pub(crate) name: String,
    pub(crate) length_s: f64,
    /// Whether it is tinted.
    pub(crate) scraped: bool,
    /// Remarks besides its latencies.
    pub(crate) remarks: Vec<String>,
    pub(crate) scrapes: &'a [Scrape],
    pub(crate) points: &'a [Point],
}

/// Parts one after the other.
pub(crate) fn draw(id: &str, title: String, segments: &[PlotSegment<'_>]) -> String {
    let points: usize = segments.iter().map(|segment| segment.points.len()).sum();
    if points == 0 {
        return String::new();
    }
    let together = points.div_ceil(POINTS_MAX);
    let merged: Vec<Vec<Point>> = segments.iter().map(|segment| merge_neighbours(segment.points, together)).collect();
    let total_s: f64 = segments.iter().map(|segment| length(segment)).sum();
    let x = Axis::elapsed(total_s);
    let seen = merged.iter().flatten().flat_map(|point| [point.p50_us, point.max_us]);
    let y = Axis::latency(seen);
    let (mut areas, mut curves, mut marks, mut probes) = (String::new(), String::new(), String::new(), Vec::new());
    let mut begun_s = 0.0;
    for (segment, points) in segments.iter().zip(&merged) {
        let end_s = begun_s + length(segment);
        if segment.scraped {
            areas.push_str(&markup::vertical_band("scraped", x.place(begun_s), x.place(end_s)));
        }
        for scrape in segment.scrapes {
            let from = x.place(begun_s + scrape.at_s);
            areas.push_str(&markup::vertical_band("scrape", from, x.place(begun_s + scrape.at_s + scrape.took_s)));
            marks.push_str(&markup::text(
                "scrape mid",
                (from, 1.0),
                (0, -2),
                if scrape.error.is_none() { "▾" } else { "✕" },
            ));
        }
        let line = |value: fn(&Point) -> f64| -> Vec<(f64, f64)> {
            let middle = |point: &Point| begun_s + point.at_s + point.length_s / 2.0;
            points.iter().map(|point| (x.place(middle(point)), y.place(value(point)))).collect()
        };
        curves.push_str(&markup::line(&format!("s{MEDIAN} thin"), &line(|point| point.p50_us)));
        curves.push_str(&markup::line(&format!("s{P99} thin"), &line(|point| point.p99_us)));
        if has_p99_9(points) {
            let value = |point: &Point| point.p99_9_us.unwrap_or_default();
            curves.push_str(&markup::line(&format!("s{P99_9} thin"), &line(value)));
        }
        curves.push_str(&markup::line(&format!("s{SLOWEST}"), &line(|point| point.max_us)));
        for point in points.iter().filter(|point| point.errors > 0) {
            let middle = x.place(begun_s + point.at_s + point.length_s / 2.0);
            marks.push_str(&markup::text("failed mid", (middle, 0.0), (0, -4), "✕"));
        }
        probes.extend(probes_of(segment, points, (begun_s, end_s), &x, segments.len()));
        begun_s = end_s;
    }
    let title = if together > 1 { format!("{title} (the worst of each {together} points)") } else { title };
    Plot {
        id,
        kind: "series",
        title,
        description: description(segments),
        x: &x,
        x_name: "measured time",
        y: &y,
        y_name: if y.note == "logarithmic" { "latency, logarithmic" } else { "latency" },
        legend: keys(segments),
        curves: areas + &curves,
        marks,
        probes,
    }
    .draw()
}

/// By its points if they reach further than its nominal length.
fn length(segment: &PlotSegment<'_>) -> f64 {
    let reached = segment.points.iter().map(|point| point.at_s + point.length_s).fold(0.0, f64::max);
    segment.length_s.max(reached)
}

fn merge_neighbours(points: &[Point], together: usize) -> Vec<Point> {
    let worst = |some: &[Point], value: fn(&Point) -> f64| some.iter().map(value).fold(0.0, f64::max);
    let all = points.chunks(together.max(1)).map(|some| Point {
        at_s: some[0].at_s,
        length_s: some.iter().map(|point| point.length_s).sum(),
        requests: some.iter().map(|point| point.requests).sum(),
        errors: some.iter().map(|point| point.errors).sum(),
        p50_us: worst(some, |point| point.p50_us),
        p99_us: worst(some, |point| point.p99_us),
        p99_9_us: has_p99_9(some).then(|| worst(some, |point| point.p99_9_us.unwrap_or_default())),
        max_us: worst(some, |point| point.max_us),
    });
    all.collect()
}

fn has_p99_9(points: &[Point]) -> bool {
    points.iter().all(|point| point.p99_9_us.is_some())
}

/// One per part if there are several, otherwise for pieces of it.
fn probes_of(
    segment: &PlotSegment<'_>,
    points: &[Point],
    (from_s, to_s): (f64, f64),
    x: &Axis,
    segments: usize,
) -> Vec<Probe> {
    let parts = if segments > 1 { 1 } else { PROBES_MAX };
    let some = points.chunks(points.len().div_ceil(parts).max(1));
    let all = some.filter(|_| segments <= PROBES_MAX * 4).map(|part| {
        let (first, last) = (&part[0], &part[part.len() - 1]);
        let (from, to) = (from_s + first.at_s, (from_s + last.at_s + last.length_s).min(to_s));
        let worst = |value: fn(&Point) -> f64| part.iter().map(value).fold(0.0, f64::max);
        let head = if parts == 1 {
            segment.name.clone()
        } else {
            format!("{} to {}", number::seconds(round(from)), number::seconds(round(to)))
        };
        let mut lines = vec![
            (Some(SLOWEST), format!("slowest {}", number::time(worst(|point| point.max_us)))),
            (Some(P99), format!("worst 99% {}", number::time(worst(|point| point.p99_us)))),
            (Some(MEDIAN), format!("worst median {}", number::time(worst(|point| point.p50_us)))),
        ];
        lines.extend(segment.remarks.iter().map(|remark| (None, remark.clone())));
        let errors: u64 = part.iter().map(|point| point.errors).sum();
        if errors > 0 {
            lines.push((None, format!("{} failed", number::count(errors))));
        }
        Probe {
            at: x.place(f64::midpoint(from, to)),
            from: x.place(from),
            to: x.place(to),
            head,
            lines,
            dots: Vec::new(),
        }
    });
    all.collect()
}

fn round(seconds: f64) -> f64 {
    (seconds * 10.0).round() / 10.0
}

fn keys(segments: &[PlotSegment<'_>]) -> Vec<Key> {
    let mut keys = vec![
        Key { name: "slowest".to_owned(), look: LegendSymbol::Line("s2") },
        Key { name: "99%".to_owned(), look: LegendSymbol::Line("s1 thin") },
        Key { name: "median".to_owned(), look: LegendSymbol::Line("s0 thin") },
    ];
    if segments.iter().all(|segment| has_p99_9(segment.points)) {
        keys.insert(1, Key { name: "99.9%".to_owned(), look: LegendSymbol::Line("s3 thin") });
    }
    if segments.iter().flat_map(|segment| segment.points).any(|point| point.errors > 0) {
        keys.push(Key { name: "requests failed".to_owned(), look: LegendSymbol::Word("failed", "✕") });
    }
    if segments.iter().any(|segment| segment.scraped) {
        keys.push(Key { name: "block with scrapes".to_owned(), look: LegendSymbol::Area("scraped") });
        keys.push(Key { name: "a scrape".to_owned(), look: LegendSymbol::Area("scrape") });
    }
    keys
}

fn description(segments: &[PlotSegment<'_>]) -> String {
    let said = segments.iter().map(|segment| {
        let slowest = segment.points.iter().map(|point| point.max_us).fold(0.0, f64::max);
        let scrapes = match segment.scrapes.len() {
            0 => String::new(),
            1 => ", one scrape".to_owned(),
            some => format!(", {some} scrapes"),
        };
        format!("{}: slowest {}{scrapes}.", segment.name, number::time(slowest))
    });
    said.collect::<Vec<_>>().join(" ")
}

// The process that a load was watched with: its memory, descriptors and CPU over the run.

const KIB: f64 = 1024.0;

/// A measured quantity of a process.
struct Quantity {
    name: &'static str,
    value: fn(&WatchSample) -> f64,
    shown: fn(f64) -> String,
}

const MEMORY: [Quantity; 2] = [
    Quantity { name: "resident memory", value: |sample| sample.rss_kib as f64 * KIB, shown: number::bytes },
    Quantity {
        name: "without pages of files",
        value: |sample| sample.anonymous_kib as f64 * KIB,
        shown: number::bytes,
    },
];
const DESCRIPTORS: [Quantity; 1] =
    [Quantity { name: "descriptors", value: |sample| sample.descriptors as f64, shown: number::plain }];
const CPU: [Quantity; 1] = [Quantity { name: "CPUs in use", value: |sample| sample.cpu_cores, shown: number::plain }];

/// Plots and a table; empty without samples.
pub(crate) fn watched(prefix: &str, samples: &[WatchSample]) -> String {
    if samples.is_empty() {
        return String::new();
    }
    let plots = [("m", "Memory", &MEMORY[..]), ("o", "Open descriptors", &DESCRIPTORS), ("u", "CPU", &CPU)];
    let mut out: String = plots
        .iter()
        .map(|(id, title, quantities)| draw_watched(&format!("{prefix}-{id}"), title, quantities, samples))
        .collect();
    out.push_str(&watched_table(&format!("{prefix}-w"), samples));
    out
}

fn draw_watched(id: &str, title: &str, quantities: &[Quantity], samples: &[WatchSample]) -> String {
    let together = samples.len().div_ceil(POINTS_MAX);
    let end_s = samples.last().map_or(0.0, |sample| sample.at_s);
    let most = |value: fn(&WatchSample) -> f64, some: &[WatchSample]| some.iter().map(value).fold(0.0, f64::max);
    let high = quantities.iter().map(|quantity| most(quantity.value, samples)).fold(0.0, f64::max);
    let (x, y) = (Axis::elapsed(end_s), Axis::linear(high, quantities[0].shown));
    let (mut curves, mut legend) = (String::new(), Vec::new());
    for (style, quantity) in quantities.iter().enumerate() {
        let points = samples
            .chunks(together)
            .map(|some| (x.place(some[some.len() - 1].at_s), y.place(most(quantity.value, some))));
        curves.push_str(&markup::line(&format!("s{style}"), &points.collect::<Vec<_>>()));
        let look = LegendSymbol::Line(["s0", "s1"][style]);
        legend.push(Key { name: quantity.name.to_owned(), look });
    }
    let said = quantities.iter().map(|Quantity { name, value, shown }| {
        format!(
            "{name}: {} at the beginning, {} at the end, at most {}.",
            shown(value(&samples[0])),
            shown(value(&samples[samples.len() - 1])),
            shown(most(*value, samples))
        )
    });
    Plot {
        id,
        kind: "series",
        title: title.to_owned(),
        description: said.collect::<Vec<_>>().join(" "),
        x: &x,
        x_name: "measured time",
        y: &y,
        y_name: quantities[0].name,
        legend,
        curves,
        marks: String::new(),
        probes: Vec::new(),
    }
    .draw()
}

/// Medians of the first and the last tenth: what grows without an end shows as a difference between them.
fn watched_table(id: &str, samples: &[WatchSample]) -> String {
    let heads = [words("of the process"), figures("first tenth"), figures("last tenth"), figures("most")];
    let tenth = samples.len().div_ceil(10);
    let rows = MEMORY.iter().chain(&DESCRIPTORS).chain(&CPU).map(|Quantity { name, value, shown }| {
        let all: Vec<f64> = samples.iter().map(value).collect();
        let figures =
            [median(&all[..tenth]), median(&all[all.len() - tenth..]), all.iter().copied().fold(0.0, f64::max)];
        std::iter::once(Cell::Words((*name).to_owned()))
            .chain(figures.map(|figure| Cell::Figure(shown(figure))))
            .collect()
    });
    tables::draw(id, "Medians over the first and the last tenth of the run", &heads, &rows.collect::<Vec<Vec<Cell>>>())
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(count: usize) -> Vec<Point> {
        let point = |at: usize| Point {
            at_s: at as f64 * 0.1,
            length_s: 0.1,
            requests: 100,
            errors: 0,
            p50_us: 100.0,
            p99_us: 200.0,
            p99_9_us: Some(300.0),
            max_us: if at == 77 { 50_000.0 } else { 300.0 },
        };
        (0..count).map(point).collect()
    }

    #[test]
    fn the_worst_survives_putting_together() {
        let merged = merge_neighbours(&points(5_000), 16);
        assert_eq!(merged.len(), 313);
        assert_eq!(merged.iter().filter(|point| point.max_us > 1_000.0).count(), 1);
        assert_eq!(merged.iter().map(|point| point.requests).sum::<u64>(), 500_000);
    }

    #[test]
    fn scrapes_are_marked_where_they_were() {
        let points = points(100);
        let scrape = |at_s, error: Option<&str>| Scrape {
            at_s,
            took_s: 0.5,
            bytes: 10,
            error: error.map(str::to_owned),
            broke_off: false,
        };
        let scrapes = [scrape(2.5, None), scrape(7.5, Some("refused"))];
        let segment = |scrapes| PlotSegment {
            name: "pair 1".to_owned(),
            length_s: 10.0,
            scraped: true,
            remarks: Vec::new(),
            scrapes,
            points: &points,
        };
        let drawn = draw("s", "t".to_owned(), &[segment(&scrapes), segment(&[])]);
        assert!(drawn.contains("<rect class=\"scrape\" x=\"125\" y=\"0\" width=\"25\""), "{drawn}");
        assert_eq!((drawn.matches('▾').count(), drawn.matches('✕').count()), (1, 1));
        assert!(drawn.contains("slowest 50.0 ms, 2 scrapes."), "{drawn}");
    }

    fn sample(at_s: f64, rss_kib: u64) -> WatchSample {
        WatchSample { at_s, rss_kib, anonymous_kib: rss_kib / 2, descriptors: 20, cpu_cores: 0.25 }
    }

    #[test]
    fn growth_is_seen_in_the_table_and_the_description() {
        let samples: Vec<WatchSample> = (1..=1000).map(|at| sample(f64::from(at as u32), 10_240 + at * 10)).collect();
        let part = watched("x", &samples);
        for words in
            ["resident memory: 10.0 MiB at the beginning, 19.8 MiB at the end", "CPUs in use: 0.25", "first tenth"]
        {
            assert!(part.contains(words), "{words}");
        }
        assert_eq!(watched("x", &[]), "");
    }
}
