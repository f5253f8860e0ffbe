//! Latency by percentile, on an axis that gives each nine the same room.
//!
//! On an axis of shares the tail would be the last pixel, and the tail is the laboratory's subject. Values are those of
//! the histograms; nothing is smoothed.

use super::axis::{Axis, nines};
use super::markup::{self, Key, LegendSymbol, Plot, Probe};
use super::number;
use super::tables::{self, Cell, figures, words};
use crate::result::histogram::quantiles_us;
use hdrhistogram::Histogram;

/// Points of a curve for each nine: fewer would show corners, more would not be seen.
const POINTS_PER_NINE: usize = 22;

/// With so few requests left, the next run may well look different.
const FEW_REQUESTS: f64 = 10.0;

/// The percentiles in read-outs and tables.
const PERCENTILES: [(f64, &str); 8] = [
    (0.5, "50%"),
    (0.75, "75%"),
    (0.9, "90%"),
    (0.99, "99%"),
    (0.999, "99.9%"),
    (0.9999, "99.99%"),
    (0.99999, "99.999%"),
    (1.0, "100%"),
];

/// One distribution of nanoseconds.
pub(crate) struct Curve<'a> {
    pub(crate) name: &'a str,
    pub(crate) style: usize,
    pub(crate) histogram: &'a Histogram<u64>,
}

impl Curve<'_> {
    /// In microseconds, for each of [`PERCENTILES`].
    fn read_out(&self) -> Vec<f64> {
        quantiles_us(self.histogram, PERCENTILES.iter().map(|(share, _)| *share))
    }

    /// Nines and microseconds, up to the slowest request.
    fn points(&self) -> Vec<(f64, f64)> {
        let end = last_nine(self.histogram);
        let steps = (end * POINTS_PER_NINE as f64).floor() as usize;
        let inner = (0..=steps).map(|step| step as f64 / POINTS_PER_NINE as f64);
        let nines: Vec<f64> = inner.chain([end]).collect();
        let shares = (0..=steps).map(|step| 1.0 - 10f64.powf(-nines[step])).chain([1.0]);
        let times = quantiles_us(self.histogram, shares);
        nines.iter().copied().zip(times).collect()
    }
}

/// Percentiles of distributions as a table, 50% to 100%; of two, with their difference.
pub(crate) fn table(id: &str, caption: &str, all: &[(&'static str, &Histogram<u64>)]) -> String {
    let mut heads = vec![words("percentile")];
    heads.extend(all.iter().map(|(name, _)| figures(name)));
    if all.len() == 2 {
        heads.push(figures("difference"));
    }
    let shares = || PERCENTILES.iter().map(|(share, _)| *share);
    let read: Vec<Vec<f64>> = all.iter().map(|(_, histogram)| quantiles_us(histogram, shares())).collect();
    let row = |(at, (_, name)): (usize, &(f64, &str))| {
        let times: Vec<f64> = read.iter().map(|times| times[at]).collect();
        let mut row = vec![Cell::Words((*name).to_owned())];
        row.extend(times.iter().map(|us| Cell::Figure(number::time(*us))));
        if let [from, to] = times[..] {
            row.push(Cell::Figure(number::time_difference(to - from)));
        }
        row
    };
    let rows: Vec<_> = PERCENTILES.iter().enumerate().map(row).collect();
    tables::draw(id, caption, &heads, &rows)
}

/// The curves over one another; the gap between two is shaded.
pub(crate) fn draw(id: &str, title: String, curves: &[Curve<'_>]) -> String {
    let curves: Vec<&Curve<'_>> = curves.iter().filter(|curve| !curve.histogram.is_empty()).collect();
    let Some(most) = curves.iter().map(|curve| curve.histogram.len()).max() else {
        return "<p class=\"absent\">No request was answered, so percentiles cannot be shown.</p>\n".to_owned();
    };
    let x = Axis::tail(most);
    let lines: Vec<Vec<(f64, f64)>> = curves.iter().map(|curve| curve.points()).collect();
    let y = Axis::latency(lines.iter().flatten().map(|point| point.1));
    let place = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
        points.iter().map(|(nines, us)| (x.place(*nines), y.place(*us))).collect()
    };
    let (mut drawn, mut marks) = (String::new(), String::new());
    if let [first, second] = &lines[..] {
        drawn.push_str(&markup::between("gap", &place(first), &place(second)));
    }
    for (curve, line) in curves.iter().zip(&lines) {
        drawn.push_str(&markup::line(&format!("s{}", curve.style), &place(line)));
        if let Some((nines, us)) = line.last() {
            marks.push_str(&markup::marker(curve.style, x.place(*nines), y.place(*us)));
        }
    }
    let few = x.place((most as f64 / FEW_REQUESTS).log10());
    if few > 0.1 && few < 0.97 {
        marks.push_str(&markup::straight("few", (few, 0.0), (few, 1.0)));
        marks.push_str(&markup::text("few end", (few, 0.0), (-6, -8), "10 slowest \u{2192}"));
    }
    let legend =
        curves.iter().map(|curve| Key { name: curve.name.to_owned(), look: LegendSymbol::Series(curve.style) });
    let described: Vec<String> = curves.iter().map(|curve| description(curve)).collect();
    Plot {
        id,
        kind: "percentile",
        title,
        description: described.join(" "),
        x: &x,
        x_name: "percentile",
        y: &y,
        y_name: if y.note == "logarithmic" { "latency, logarithmic" } else { "latency" },
        legend: legend.collect(),
        curves: drawn,
        marks,
        probes: probes(&curves, &x, &y),
    }
    .draw()
}

fn description(curve: &Curve<'_>) -> String {
    let named = PERCENTILES.iter().zip(curve.read_out());
    let said: Vec<String> = named.map(|((_, name), us)| format!("{name} {}", number::time(us))).collect();
    format!("{}: {}.", curve.name, said.join(", "))
}

/// One at each percentile that the run was long enough for, and one at the slowest.
fn probes(curves: &[&Curve<'_>], x: &Axis, y: &Axis) -> Vec<Probe> {
    let end = curves.iter().map(|curve| last_nine(curve.histogram)).fold(0.0, f64::max);
    let read: Vec<Vec<f64>> = curves.iter().map(|curve| curve.read_out()).collect();
    let inner = PERCENTILES.iter().enumerate().filter(|(_, (share, _))| *share < 1.0 && nines(*share) < end - 0.1);
    let mut stops: Vec<(usize, f64, &str)> = inner.map(|(of, (share, name))| (of, nines(*share), *name)).collect();
    stops.push((PERCENTILES.len() - 1, end, "slowest"));
    let places: Vec<f64> = stops.iter().map(|stop| x.place(stop.1)).collect();
    let middle = |a: usize, b: usize| f64::midpoint(places[a], places[b]);
    let all = stops.iter().enumerate().map(|(at, (of, _, name))| {
        let times = || curves.iter().zip(&read).map(|(curve, times)| (curve, times[*of]));
        Probe {
            at: places[at],
            from: if at == 0 { 0.0 } else { middle(at - 1, at) },
            to: if at + 1 == stops.len() { 1.0 } else { middle(at, at + 1) },
            head: (*name).to_owned(),
            lines: times()
                .map(|(curve, us)| (Some(curve.style), format!("{}: {}", curve.name, number::time(us))))
                .collect(),
            dots: times().map(|(curve, us)| (curve.style, y.place(us))).collect(),
        }
    });
    all.collect()
}

/// Nines of the slowest request: one of a thousand is at three.
fn last_nine(histogram: &Histogram<u64>) -> f64 {
    (histogram.len() as f64).log10()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(values_us: impl Iterator<Item = u64>) -> Histogram<u64> {
        let mut histogram = stillgate_load::outcome::histogram();
        values_us.for_each(|us| histogram.record(us * 1000).unwrap());
        histogram
    }

    #[test]
    fn the_tail_is_shown_in_words_and_values() {
        let (calm, slow) = (histogram(1..=10_000), histogram((1..=10_000).map(|us| us * 3)));
        let curves = [
            Curve { name: "without", style: 0, histogram: &calm },
            Curve { name: "with <b>", style: 1, histogram: &slow },
        ];
        let drawn = draw("p", "Latency".to_owned(), &curves);
        assert!(drawn.contains("without: 50% 5.00 ms, 75% 7.50 ms"), "{drawn}");
        assert!(drawn.contains("aria-label=\"99%: without: 9.90 ms; with &lt;b&gt;: 29.7 ms\""), "{drawn}");
        assert!(!drawn.contains("<b>:"), "{drawn}");
        assert!(!drawn.contains("99.999%\" class"), "as many nines as requests");
    }

    #[test]
    fn empty_and_single_values_are_drawn_too() {
        let (none, one) = (histogram(0..0), histogram(5..6));
        assert!(draw("p", String::new(), &[]).contains("No request"));
        assert!(draw("p", String::new(), &[Curve { name: "a", style: 0, histogram: &none }]).contains("No request"));
        let drawn = draw("p", String::new(), &[Curve { name: "a", style: 0, histogram: &one }]);
        assert!(drawn.contains("slowest: a: 5.0"), "{drawn}");
    }
}
