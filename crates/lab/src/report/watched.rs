//! The process that a load was watched with: its memory, descriptors and CPU over the run.

use super::axis::Axis;
use super::markup::{self, Key, LegendSymbol, Plot};
use super::number;
use super::tables::{self, Cell, figures, words};
use crate::result::load::WatchSample;

/// Points of a line, over the whole width.
const POINTS_MAX: usize = 320;

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
pub(crate) fn part(prefix: &str, samples: &[WatchSample]) -> String {
    if samples.is_empty() {
        return String::new();
    }
    let plots = [("m", "Memory", &MEMORY[..]), ("o", "Open descriptors", &DESCRIPTORS), ("u", "CPU", &CPU)];
    let mut out: String = plots
        .iter()
        .map(|(id, title, quantities)| draw(&format!("{prefix}-{id}"), title, quantities, samples))
        .collect();
    out.push_str(&table(&format!("{prefix}-w"), samples));
    out
}

fn draw(id: &str, title: &str, quantities: &[Quantity], samples: &[WatchSample]) -> String {
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
fn table(id: &str, samples: &[WatchSample]) -> String {
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

    fn sample(at_s: f64, rss_kib: u64) -> WatchSample {
        WatchSample { at_s, rss_kib, anonymous_kib: rss_kib / 2, descriptors: 20, cpu_cores: 0.25 }
    }

    #[test]
    fn growth_is_seen_in_the_table_and_the_description() {
        let samples: Vec<WatchSample> = (1..=1000).map(|at| sample(f64::from(at as u32), 10_240 + at * 10)).collect();
        let part = part("x", &samples);
        for words in
            ["resident memory: 10.0 MiB at the beginning, 19.8 MiB at the end", "CPUs in use: 0.25", "first tenth"]
        {
            assert!(part.contains(words), "{words}");
        }
        assert_eq!(super::part("x", &[]), "");
    }
}
