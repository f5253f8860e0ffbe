//! All cells of a sweep at a glance: the effect by the number of series, a line for each target.
//!
//! It is the reference's finding as a picture, "the delay grows with the number of metrics", with intervals. Each point
//! leads to its cell. Targets with the same number of series are drawn next to each other.

use super::axis::Axis;
use super::escape::{ShortText, Text};
use super::number;
use super::plot::{self, Key, LegendSymbol, Plot, percent, write};

/// Distance of the markers of two targets with the same number of series, as a share of the width.
const BESIDE: f64 = 0.016;

/// One cell.
pub(crate) struct Point {
    pub(crate) series: u64,
    /// In microseconds.
    pub(crate) difference: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// The URL fragment of the cell.
    pub(crate) cell: String,
}

/// One target.
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) style: usize,
    pub(crate) points: Vec<Point>,
}

/// One picture: a measure at one scrape interval.
pub(crate) struct Facet<'a> {
    pub(crate) id: &'a str,
    pub(crate) title: String,
    pub(crate) targets: &'a [Target],
    /// Shared by the pictures of a measure, so that they can be compared.
    pub(crate) y: &'a Axis,
    pub(crate) x: &'a Axis,
}

impl Facet<'_> {
    pub(crate) fn draw(&self) -> String {
        let (x, y) = (self.x, self.y);
        let (mut curves, mut marks, mut links) = (String::new(), String::new(), String::new());
        let zero = y.place(0.0);
        curves.push_str(&plot::line("zero", &[(0.0, zero), (1.0, zero)]));
        let middle = (self.targets.len() as f64 - 1.0) / 2.0;
        let mut said = Vec::new();
        for (number, target) in self.targets.iter().enumerate() {
            let aside = (number as f64 - middle) * BESIDE;
            let at = |point: &Point| (x.place(point.series as f64) + aside).clamp(0.0, 1.0);
            let line: Vec<(f64, f64)> =
                target.points.iter().map(|point| (at(point), y.place(point.difference))).collect();
            curves.push_str(&plot::line(&format!("s{}", target.style), &line));
            for (point, (left, height)) in target.points.iter().zip(&line) {
                let class = format!("whisker s{}", target.style % plot::STYLES);
                marks.push_str(&plot::straight(&class, (*left, y.place(point.low)), (*left, y.place(point.high))));
                marks.push_str(&plot::marker(target.style, *left, *height));
                let words = words(target, point);
                link(&mut links, point, (*left, *height), &words);
                said.push(words);
            }
        }
        let keys = self
            .targets
            .iter()
            .map(|target| Key { name: target.name.clone(), look: LegendSymbol::Series(target.style) });
        let plot = Plot {
            id: self.id,
            kind: "overview",
            title: self.title.clone(),
            description: said.join(". "),
            x,
            x_name: "series, logarithmic",
            y,
            y_name: "difference, with scrapes less without",
            legend: keys.collect(),
            curves,
            marks,
            probes: Vec::new(),
        };
        let layer = format!(
            "<svg class=\"probes\" role=\"group\" aria-label=\"Links to the cells of: {}\">{links}</svg></div></figure>",
            Text(&self.title)
        );
        plot.draw().replacen("</div></figure>", &layer, 1)
    }
}

/// As text, for the read-out and for readers who do not see the picture.
fn words(target: &Target, point: &Point) -> String {
    let series = number::short_count(point.series as f64);
    let (low, high) = (number::time_difference(point.low), number::time_difference(point.high));
    format!("{}, {series} series: {} ({low} to {high})", target.name, number::time_difference(point.difference))
}

fn link(out: &mut String, point: &Point, (left, height): (f64, f64), words: &str) {
    let (x, y) = (percent(left), percent(1.0 - height));
    let turn = if left > 0.42 { " turned" } else { "" };
    let Some((head, value)) = words.split_once(": ") else { return };
    write(
        out,
        format_args!(
            "<a class=\"probe\" href=\"#{}\" aria-label=\"{}\"><circle class=\"band\" cx=\"{x}\" cy=\"{y}\" r=\"11\"/>\
             <g class=\"shown\"><circle class=\"ring\" cx=\"{x}\" cy=\"{y}\" r=\"8\"/>\
             <foreignObject class=\"read-out{turn}\" x=\"{x}\" y=\"{y}\" width=\"176\" height=\"64\">\
             <div><b>{}</b><span>{}</span></div></foreignObject></g></a>",
            Text(&point.cell),
            Text(words),
            ShortText(head),
            ShortText(value)
        ),
    );
}
