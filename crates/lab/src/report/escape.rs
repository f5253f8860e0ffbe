//! The only way for text of a result file to get into the page.
//!
//! Result files are sent around, and a report is opened in a browser: a target named `<script>` must stay a name.
//! Besides markup, control characters and marks that turn the reading direction are replaced, since they make a page
//! show something else. It does not shorten: see [`ShortText`] for that.

use super::axis::Axis;
use super::number;
use super::plot::{self, Key, LegendSymbol, Plot, percent, write};
use std::fmt::{self, Display, Formatter, Write};

/// Replaces a character that may not be shown.
const REPLACEMENT: char = '\u{fffd}';

/// Names in tables and plots are cut here: no real name is longer.
const SHORT_CHARS_MAX: usize = 120;

/// Text that is written escaped, for element content and for attribute values in double quotes.
pub(crate) struct Text<'a>(pub(crate) &'a str);

impl Display for Text<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| escape(character, out))
    }
}

/// Escaped text on one line, cut to a length that fits a layout.
pub(crate) struct ShortText<'a>(pub(crate) &'a str);

impl Display for ShortText<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        for (at, character) in self.0.chars().enumerate() {
            if at == SHORT_CHARS_MAX {
                return out.write_char('…');
            }
            escape(if character.is_whitespace() { ' ' } else { character }, out)?;
        }
        Ok(())
    }
}

/// Text for a terminal, on as many lines as it has: the output of a measured program must not move the cursor.
pub(crate) fn plain(text: &str) -> String {
    let shown = |character| if character != '\n' && deceives(character) { REPLACEMENT } else { character };
    text.chars().map(shown).collect()
}

/// Control characters, other line ends, and marks that change the reading direction.
fn deceives(character: char) -> bool {
    matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    ) || character.is_control()
}

fn escape(character: char, out: &mut Formatter<'_>) -> fmt::Result {
    match character {
        '&' => out.write_str("&amp;"),
        '<' => out.write_str("&lt;"),
        '>' => out.write_str("&gt;"),
        '"' => out.write_str("&quot;"),
        '\'' => out.write_str("&#39;"),
        '\n' | '\t' => out.write_char(character),
        deceiving if deceives(deceiving) => out.write_char(REPLACEMENT),
        plain => out.write_char(plain),
    }
}

// All cells of a sweep at a glance: the effect by the number of series, a line for each target.
//
// It is the reference's finding as a picture, "the delay grows with the number of metrics", with intervals. Each point
// leads to its cell. Targets with the same number of series are drawn next to each other.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, escaped: &str) {
        assert_eq!(Text(text).to_string(), escaped);
    }

    #[test]
    fn markup_becomes_text() {
        check("nginx 1.22", "nginx 1.22");
        check("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;");
        check("\" onload='x' &amp;", "&quot; onload=&#39;x&#39; &amp;amp;");
    }

    #[test]
    fn what_deceives_the_eye_is_taken_out() {
        check("a\u{202e}b\0c\u{9b}d", "a\u{fffd}b\u{fffd}c\u{fffd}d");
        check("two\nlines\tkept", "two\nlines\tkept");
        check("a\u{61c}b\u{2028}c\u{2029}d", "a\u{fffd}b\u{fffd}c\u{fffd}d");
        assert_eq!(plain("two\nlines\x1b[2J\r"), "two\nlines\u{fffd}[2J\u{fffd}");
    }

    #[test]
    fn long_names_are_cut() {
        let cut = ShortText(&"<".repeat(500)).to_string();
        assert_eq!(cut, format!("{}…", "&lt;".repeat(SHORT_CHARS_MAX)));
        assert_eq!(ShortText("a\nb").to_string(), "a b");
    }
}
