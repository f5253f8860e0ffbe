//! Plots of what was measured: effects with their intervals, the ratio of each pair, and latency by percentile.
//!
//! None of them decides anything, and nothing is smoothed.

use super::axis::{Axis, AxisEnd, nines, without_outliers};
use super::markup::{self, Key, LegendSymbol, Plot, Probe, ShortText, Text, percent, write};
use super::number;
use super::tables::{self, Cell, figures, words};
use crate::result::compare::{BuildPair, Side};
use crate::result::histogram::quantiles_us;
use hdrhistogram::Histogram;

// Effects with their intervals, one a row, in a table: a forest plot whose figures can be read without the picture.
//
// The strips of all rows of a group share an axis and its zero line. A shaded band shows the effects that would have
// been missed; an effect or an interval that reaches beyond the axis ends in an arrow. Whether an effect counts is not
// decided here.

/// One measure.
pub(crate) struct EffectRow {
    pub(crate) name: String,
    /// Cells before the strip.
    pub(crate) before: Vec<String>,
    pub(crate) value: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// An effect within this range would have been missed.
    pub(crate) missed: (f64, f64),
    /// Style of the marker.
    pub(crate) style: usize,
    /// Cells after the strip.
    pub(crate) after: Vec<String>,
}

/// Rows with one axis.
pub(crate) struct EffectGroup {
    pub(crate) axis: Axis,
    /// Vertical lines, for example a margin.
    pub(crate) lines: Vec<f64>,
    pub(crate) rows: Vec<EffectRow>,
}

impl EffectGroup {
    /// Rows whose effect or interval reaches beyond the axis.
    pub(crate) fn clipped(&self) -> usize {
        let is_beyond =
            |row: &&EffectRow| [row.value, row.low, row.high].iter().any(|at| self.axis.beyond(*at).is_some());
        self.rows.iter().filter(is_beyond).count()
    }
}

/// The whole plot.
pub(crate) struct Forest<'a> {
    pub(crate) id: &'a str,
    pub(crate) caption: String,
    /// Heads of the columns before, of the strip, and after.
    pub(crate) before: &'a [&'a str],
    pub(crate) strip: &'a str,
    pub(crate) after: &'a [&'a str],
    pub(crate) groups: Vec<EffectGroup>,
    /// The note below.
    pub(crate) note: String,
}

impl Forest<'_> {
    pub(crate) fn draw(&self) -> String {
        let Forest { id, .. } = self;
        let mut out = format!(
            "<div class=\"forest\"><table role=\"table\"><caption id=\"{id}\">{}</caption>\
             <thead role=\"rowgroup\"><tr role=\"row\"><th scope=\"col\" role=\"columnheader\">measure</th>",
            Text(&self.caption)
        );
        let head = |out: &mut String, class: &str, name: &str| {
            write(out, format_args!("<th scope=\"col\" role=\"columnheader\" class=\"{class}\">{}</th>", Text(name)));
        };
        self.before.iter().for_each(|name| head(&mut out, "n before", name));
        head(&mut out, "strip", self.strip);
        self.after.iter().for_each(|name| head(&mut out, "n", name));
        out.push_str("</tr></thead>");
        for group in &self.groups {
            out.push_str("<tbody role=\"rowgroup\">");
            group.rows.iter().for_each(|row| self.row(&mut out, group, row));
            self.scale(&mut out, &group.axis);
            out.push_str("</tbody>");
        }
        let note = Text(&self.note);
        write(&mut out, format_args!("</table><p class=\"note\">{note}</p></div>\n"));
        out
    }

    fn row(&self, out: &mut String, group: &EffectGroup, row: &EffectRow) {
        write(out, format_args!("<tr role=\"row\"><th scope=\"row\" role=\"rowheader\">{}</th>", ShortText(&row.name)));
        for (text, head) in row.before.iter().zip(self.before) {
            let (text, head) = (ShortText(text), Text(head));
            write(out, format_args!("<td role=\"cell\" class=\"n before\" data-head=\"{head}\">{text}</td>"));
        }
        write(out, format_args!("<td role=\"cell\" class=\"strip\">{}</td>", strip(group, row)));
        for (text, head) in row.after.iter().zip(self.after) {
            let (value, range) = text.split_at(text.find(" (").unwrap_or(text.len()));
            let (value, range, head) = (ShortText(value), ShortText(range), Text(head));
            let range =
                if text.contains(" (") { format!("<span class=\"range\">{range}</span>") } else { String::new() };
            write(out, format_args!("<td role=\"cell\" class=\"n\" data-head=\"{head}\">{value}{range}</td>"));
        }
        out.push_str("</tr>");
    }

    fn scale(&self, out: &mut String, axis: &Axis) {
        let row = "<tr class=\"scale\" role=\"row\" aria-hidden=\"true\"><td role=\"cell\"></td>";
        out.push_str(row);
        self.before.iter().for_each(|_| out.push_str("<td role=\"cell\" class=\"before\"></td>"));
        out.push_str("<td role=\"cell\" class=\"strip\"><svg class=\"picture\" aria-hidden=\"true\">");
        for tick in &axis.ticks {
            let (x, label) = (percent(tick.place), Text(&tick.label));
            write(out, format_args!("<line class=\"tick\" x1=\"{x}\" x2=\"{x}\" y1=\"0\" y2=\"5\"/>"));
            write(out, format_args!("<text class=\"mid\" x=\"{x}\" y=\"19\">{label}</text>"));
        }
        out.push_str("</svg></td>");
        self.after.iter().for_each(|_| out.push_str("<td role=\"cell\"></td>"));
        out.push_str("</tr>");
    }
}

/// The picture of one row.
fn strip(group: &EffectGroup, row: &EffectRow) -> String {
    let axis = &group.axis;
    let place = |value: f64| axis.place(value);
    let mut out = format!(
        "<svg class=\"picture\" role=\"img\" aria-label=\"{}\"><title>{}</title><g class=\"grid\">",
        Text(&effect_description(row)),
        Text(&effect_description(row))
    );
    for tick in &axis.ticks {
        let x = percent(tick.place);
        write(&mut out, format_args!("<line x1=\"{x}\" x2=\"{x}\" y1=\"0\" y2=\"100%\"/>"));
    }
    out.push_str("</g>");
    let (from, to) = (place(row.missed.0), place(row.missed.1));
    if to > from {
        let width = percent(to - from);
        let x = percent(from);
        write(&mut out, format_args!("<rect class=\"missed\" x=\"{x}\" y=\"20%\" width=\"{width}\" height=\"60%\"/>"));
    }
    for at in &group.lines {
        out.push_str(&markup::straight_line("margin", (place(*at), 0.0), (place(*at), 1.0)));
    }
    out.push_str(&markup::straight_line("zero", (place(0.0), 0.0), (place(0.0), 1.0)));
    let class = format!("whisker s{}", row.style % markup::STYLES);
    out.push_str(&markup::straight_line(&class, (place(row.low), 0.5), (place(row.high), 0.5)));
    for end in [row.low, row.high] {
        if let Some(beyond) = axis.beyond(end) {
            let class = format!("mid arrow s{}", row.style % markup::STYLES);
            let arrow = if beyond == AxisEnd::High { "\u{25b8}" } else { "\u{25c2}" };
            out.push_str(&markup::text(&class, (place(end), 0.5), (0, 5), arrow));
        } else {
            out.push_str(&markup::straight_line(&class, (place(end), 0.36), (place(end), 0.64)));
        }
    }
    // The arrow at the end stands for an effect beyond it.
    if axis.beyond(row.value).is_none() {
        out.push_str(&markup::marker(row.style, place(row.value), 0.5));
    }
    out.push_str("</svg>");
    out
}

fn effect_description(row: &EffectRow) -> String {
    format!("{}: {}", row.name, row.after.join(", "))
}

// The ratio of each pair in the order the pairs were run: drift, outliers and the effect of the order within pairs
// show here. The axis is that of the usual pairs: an outlier is an arrow at its end, so that the change stays visible.
//
// It takes no part in the decision.

/// Styles by which of the two went first.
const A_FIRST: usize = 0;
const B_FIRST: usize = 1;

/// Pairs with a read-out each.
const PAIR_PROBES_MAX: usize = 64;

/// One pair.
pub(crate) struct PairDot {
    pub(crate) first: Side,
    /// B to A, less one.
    pub(crate) ratio: f64,
    /// Left out of the analysis.
    pub(crate) void: bool,
}

/// One measure.
pub(crate) struct PairsPlot<'a> {
    pub(crate) id: &'a str,
    pub(crate) between: BuildPair,
    pub(crate) name: String,
    pub(crate) dots: &'a [PairDot],
    /// The estimate of all pairs together; `None` if there is none.
    pub(crate) estimate: Option<RatioEstimate>,
    /// Numbers of pairs at which a look was taken.
    pub(crate) looks: &'a [usize],
}

/// An estimate with its interval.
#[derive(Clone, Copy)]
pub(crate) struct RatioEstimate {
    pub(crate) effect: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl PairsPlot<'_> {
    pub(crate) fn draw(&self) -> String {
        let x = Axis::ordinal(self.dots.len());
        let at = |pair: usize| x.place((pair + 1) as f64);
        let ratios: Vec<f64> = self.dots.iter().filter(|dot| !dot.void).map(|dot| dot.ratio).collect();
        let y = Axis::ratio(without_outliers(&ratios).into_iter().chain(self.estimate.map(|of| of.effect)));
        let beyond = |end| self.dots.iter().filter(|dot| y.beyond(dot.ratio) == Some(end)).count();
        let (above, below) = (beyond(AxisEnd::High), beyond(AxisEnd::Low));
        let mut curves = markup::line("zero", &[(0.0, y.place(0.0)), (1.0, y.place(0.0))]);
        if let Some(RatioEstimate { effect, low, high }) = self.estimate {
            curves.insert_str(0, &markup::horizontal_band("interval", y.place(low), y.place(high)));
            curves.push_str(&markup::line("estimate", &[(0.0, y.place(effect)), (1.0, y.place(effect))]));
        }
        let mut marks = String::new();
        for look in self.looks.iter().filter(|look| **look < self.dots.len()) {
            let between = x.place(*look as f64 + 0.5);
            marks.push_str(&markup::straight_line("few", (between, 0.0), (between, 1.0)));
        }
        for (pair, dot) in self.dots.iter().enumerate() {
            let (left, height) = (at(pair), y.place(dot.ratio));
            marks.push_str(&match y.beyond(dot.ratio) {
                _ if dot.void => markup::text("mid void", (left, height), (0, 5), "✕"),
                Some(end) => markup::clipped_marker(self.style(dot), left, end),
                None => markup::marker(self.style(dot), left, height),
            });
        }
        Plot {
            id: self.id,
            kind: "ratios",
            title: format!("{}{}", self.name, beyond_in_words(above + below, "pair")),
            description: self.description(),
            x: &x,
            x_name: "pair",
            y: &y,
            y_name: &format!("difference of {:?}", self.between.other),
            legend: Vec::new(),
            curves,
            marks,
            probes: self.probes(at, &y),
        }
        .draw()
    }

    fn description(&self) -> String {
        let said = self.dots.iter().enumerate().map(|(pair, dot)| {
            format!("{} {}{}", pair + 1, number::percent_difference(dot.ratio), if dot.void { " void" } else { "" })
        });
        format!("Pairs: {}.", said.collect::<Vec<_>>().join(", "))
    }

    fn probes(&self, at: impl Fn(usize) -> f64, y: &Axis) -> Vec<Probe> {
        let half = 0.5 / self.dots.len().max(1) as f64;
        let all = self.dots.iter().enumerate().take(PAIR_PROBES_MAX).map(|(pair, dot)| {
            let style = self.style(dot);
            let first = format!("{:?} went first", dot.first);
            let mut lines = vec![(Some(style), number::percent_difference(dot.ratio)), (None, first)];
            if dot.void {
                lines.push((None, "void, left out".to_owned()));
            }
            let left = at(pair);
            Probe {
                at: left,
                from: left - half,
                to: left + half,
                head: format!("pair {}", pair + 1),
                lines,
                dots: if y.beyond(dot.ratio).is_none() { vec![(style, y.place(dot.ratio))] } else { Vec::new() },
            }
        });
        all.collect()
    }

    fn style(&self, dot: &PairDot) -> usize {
        if dot.first == self.between.one { A_FIRST } else { B_FIRST }
    }
}

/// Added to the title of a picture whose axis does not reach all values; nothing if it does.
pub(crate) fn beyond_in_words(count: usize, what: &str) -> String {
    match count {
        0 => String::new(),
        1 => format!(" (1 {what} beyond the axis)"),
        some => format!(" ({some} {what}s beyond the axis)"),
    }
}

/// For all measures' pictures.
pub(crate) fn pairs_legend(between: BuildPair, estimated: bool, looks: bool, void: bool) -> String {
    let mut keys = vec![
        Key { name: format!("{:?} went first", between.one), look: LegendSymbol::Marker(A_FIRST) },
        Key { name: format!("{:?} went first", between.other), look: LegendSymbol::Marker(B_FIRST) },
    ];
    if estimated {
        keys.push(Key { name: "estimate".to_owned(), look: LegendSymbol::Line("estimate") });
        keys.push(Key { name: "its interval".to_owned(), look: LegendSymbol::Area("interval") });
    }
    if looks {
        keys.push(Key { name: "a look".to_owned(), look: LegendSymbol::Line("few") });
    }
    if void {
        keys.push(Key { name: "void, left out".to_owned(), look: LegendSymbol::Word("void", "✕") });
    }
    markup::legend(&keys)
}

// Latency by percentile, on an axis that gives each nine the same room.
//
// On an axis of shares the tail would be the last pixel, and the tail is the laboratory's subject. Values are those of
// the histograms; nothing is smoothed.

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
pub(crate) fn percentile_table(id: &str, caption: &str, all: &[(&'static str, &Histogram<u64>)]) -> String {
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
pub(crate) fn draw_percentiles(id: &str, title: String, curves: &[Curve<'_>]) -> String {
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
        drawn.push_str(&markup::area_between("gap", &place(first), &place(second)));
    }
    for (curve, line) in curves.iter().zip(&lines) {
        drawn.push_str(&markup::line(&format!("s{}", curve.style), &place(line)));
        if let Some((nines, us)) = line.last() {
            marks.push_str(&markup::marker(curve.style, x.place(*nines), y.place(*us)));
        }
    }
    let few = x.place((most as f64 / FEW_REQUESTS).log10());
    if few > 0.1 && few < 0.97 {
        marks.push_str(&markup::straight_line("few", (few, 0.0), (few, 1.0)));
        marks.push_str(&markup::text("few end", (few, 0.0), (-6, -8), "10 slowest \u{2192}"));
    }
    let legend =
        curves.iter().map(|curve| Key { name: curve.name.to_owned(), look: LegendSymbol::Series(curve.style) });
    let described: Vec<String> = curves.iter().map(|curve| curve_description(curve)).collect();
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
        probes: percentile_probes(&curves, &x, &y),
    }
    .draw()
}

fn curve_description(curve: &Curve<'_>) -> String {
    let named = PERCENTILES.iter().zip(curve.read_out());
    let said: Vec<String> = named.map(|((_, name), us)| format!("{name} {}", number::time(us))).collect();
    format!("{}: {}.", curve.name, said.join(", "))
}

/// One at each percentile that the run was long enough for, and one at the slowest.
fn percentile_probes(curves: &[&Curve<'_>], x: &Axis, y: &Axis) -> Vec<Probe> {
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
        let drawn = draw_percentiles("p", "Latency".to_owned(), &curves);
        assert!(drawn.contains("without: 50% 5.00 ms, 75% 7.50 ms"), "{drawn}");
        assert!(drawn.contains("aria-label=\"99%: without: 9.90 ms; with &lt;b&gt;: 29.7 ms\""), "{drawn}");
        assert!(!drawn.contains("<b>:"), "{drawn}");
        assert!(!drawn.contains("99.999%\" class"), "as many nines as requests");
    }

    #[test]
    fn empty_and_single_values_are_drawn_too() {
        let (none, one) = (histogram(0..0), histogram(5..6));
        assert!(draw_percentiles("p", String::new(), &[]).contains("No request"));
        assert!(
            draw_percentiles("p", String::new(), &[Curve { name: "a", style: 0, histogram: &none }])
                .contains("No request")
        );
        let drawn = draw_percentiles("p", String::new(), &[Curve { name: "a", style: 0, histogram: &one }]);
        assert!(drawn.contains("slowest: a: 5.0"), "{drawn}");
    }
}
