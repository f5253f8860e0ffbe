//! Text and plots in the markup of the page.
//!
//! [`Text`] is the only way for text of a result file to get into the page. Result files are sent around, and a report
//! is opened in a browser: a target named `<script>` must stay a name. Besides markup, control characters and marks
//! that turn the reading direction are replaced, since they make a page show something else. It does not shorten: see
//! [`ShortText`] for that.
//!
//! [`Plot`] is the frame that all plots share: axes, grid, legend, and the read-outs under the pointer or the
//! keyboard's focus.
//!
//! A plot has no width of its own. Lines are in a view box that is stretched to the page, with strokes that are not;
//! text and markers are placed in percent. So type keeps its size from a phone to a sheet of paper, and no script is
//! needed. Values are shown by a second layer of focusable bands over the picture, since what is inside an image of
//! role `img` cannot be reached. It does not depend on what is plotted.

use super::axis::{Axis, AxisEnd};
use super::{markup, number};
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
        curves.push_str(&markup::line("zero", &[(0.0, zero), (1.0, zero)]));
        let middle = (self.targets.len() as f64 - 1.0) / 2.0;
        let mut said = Vec::new();
        for (number, target) in self.targets.iter().enumerate() {
            let aside = (number as f64 - middle) * BESIDE;
            let at = |point: &Point| (x.place(point.series as f64) + aside).clamp(0.0, 1.0);
            let line: Vec<(f64, f64)> =
                target.points.iter().map(|point| (at(point), y.place(point.difference))).collect();
            curves.push_str(&markup::line(&format!("s{}", target.style), &line));
            for (point, (left, height)) in target.points.iter().zip(&line) {
                let class = format!("whisker s{}", target.style % markup::STYLES);
                marks.push_str(&markup::straight_line(
                    &class,
                    (*left, y.place(point.low)),
                    (*left, y.place(point.high)),
                ));
                marks.push_str(&markup::marker(target.style, *left, *height));
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

/// Styles distinguished by colour, dash and shape together; further series start over.
pub(crate) const STYLES: usize = 6;

/// Units of the stretched view box.
const UNITS: f64 = 1000.0;

/// Right of this, the read-out is placed to the left of its position.
const READ_OUT_TURNS_AT: f64 = 0.42;

/// Most lines of a read-out; its box has this height.
const READ_OUT_LINES_MAX: usize = 6;

/// An entry of the legend.
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) look: LegendSymbol,
}

/// How a series is drawn.
#[derive(Clone, Copy)]
pub(crate) enum LegendSymbol {
    /// Line and marker of a style.
    Series(usize),
    /// A marker alone.
    Marker(usize),
    /// An area of a class.
    Area(&'static str),
    /// A line of a class.
    Line(&'static str),
    /// A word of a class.
    Word(&'static str, &'static str),
}

/// A band of the plot that can be pointed at, or focused.
pub(crate) struct Probe {
    /// Position of its line, 0 to 1.
    pub(crate) at: f64,
    /// Its beginning and its end.
    pub(crate) from: f64,
    pub(crate) to: f64,
    /// The first line of the read-out.
    pub(crate) head: String,
    /// Style and text of each line.
    pub(crate) lines: Vec<(Option<usize>, String)>,
    /// Style and height of the marked points.
    pub(crate) dots: Vec<(usize, f64)>,
}

/// A plot with two axes.
pub(crate) struct Plot<'a> {
    /// Unique in the page.
    pub(crate) id: &'a str,
    /// Class of the figure.
    pub(crate) kind: &'static str,
    pub(crate) title: String,
    /// A description, for readers who do not see it.
    pub(crate) description: String,
    pub(crate) x: &'a Axis,
    pub(crate) x_name: &'static str,
    pub(crate) y: &'a Axis,
    pub(crate) y_name: &'a str,
    pub(crate) legend: Vec<Key>,
    /// Markup in the stretched view box; see [`line`] and [`vertical_band`].
    pub(crate) curves: String,
    /// Markup in percent; see [`marker`] and [`text`].
    pub(crate) marks: String,
    pub(crate) probes: Vec<Probe>,
}

impl Plot<'_> {
    pub(crate) fn draw(&self) -> String {
        let Plot { id, kind, x_name, y_name, curves, marks, .. } = self;
        let (title, description) = (Text(&self.title), Text(&self.description));
        let (grid, names) = self.axes();
        let legend = legend(&self.legend);
        let probes = self.draw_tooltips();
        format!(
            "<figure class=\"plot {kind}\">\
             <figcaption>{title}</figcaption>{legend}\
             <div class=\"stage\">\
             <svg class=\"picture\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\
             <title id=\"{id}-t\">{title}</title><desc id=\"{id}-d\">{description}</desc>\
             {grid}<svg class=\"stretch\" viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\" \
             width=\"100%\" height=\"100%\">{curves}</svg>{marks}{names}\
             <text class=\"name\" x=\"0\" y=\"0\" dx=\"-6\" dy=\"-12\">{y_name}</text>\
             <text class=\"name end\" x=\"100%\" y=\"100%\" dy=\"36\">{x_name}</text></svg>{probes}</div></figure>\n"
        )
    }

    fn axes(&self) -> (String, String) {
        let (mut grid, mut names) = (String::from("<g class=\"grid\">"), String::new());
        for tick in &self.y.ticks {
            let y = percent(1.0 - tick.place);
            write(&mut grid, format_args!("<line x1=\"0\" x2=\"100%\" y1=\"{y}\" y2=\"{y}\"/>"));
            let label = Text(&tick.label);
            write(
                &mut names,
                format_args!("<text class=\"end\" x=\"0\" y=\"{y}\" dx=\"-8\" dy=\".35em\">{label}</text>"),
            );
        }
        for tick in &self.x.ticks {
            let x = percent(tick.place);
            write(&mut grid, format_args!("<line x1=\"{x}\" x2=\"{x}\" y1=\"0\" y2=\"100%\"/>"));
            let label = Text(&tick.label);
            write(&mut names, format_args!("<text class=\"mid\" x=\"{x}\" y=\"100%\" dy=\"18\">{label}</text>"));
        }
        grid.push_str("</g>");
        (grid, names)
    }

    fn draw_tooltips(&self) -> String {
        if self.probes.is_empty() {
            return String::new();
        }
        let title = Text(&self.title);
        let mut out = format!("<svg class=\"probes\" role=\"group\" aria-label=\"Values of: {title}\">");
        for probe in &self.probes {
            out.push_str(&probe.draw());
        }
        out.push_str("</svg>");
        out
    }
}

impl Probe {
    fn draw(&self) -> String {
        let said: Vec<&str> = self.lines.iter().map(|(_, line)| line.as_str()).collect();
        let said = format!("{}: {}", self.head, said.join("; "));
        let (x, from, width) = (percent(self.at), percent(self.from), percent((self.to - self.from).max(0.002)));
        let mut out = format!(
            "<g class=\"probe\" tabindex=\"0\" role=\"img\" aria-label=\"{}\">\
             <rect class=\"band\" x=\"{from}\" y=\"0\" width=\"{width}\" height=\"100%\"/>\
             <g class=\"shown\"><line x1=\"{x}\" x2=\"{x}\" y1=\"0\" y2=\"100%\"/>",
            Text(&said)
        );
        for (style, height) in &self.dots {
            out.push_str(&marker(*style, self.at, *height));
        }
        let turn = if self.at > READ_OUT_TURNS_AT { " turned" } else { "" };
        write(
            &mut out,
            format_args!(
                "<foreignObject class=\"read-out{turn}\" x=\"{x}\" y=\"0\" width=\"176\" height=\"{}\"><div><b>{}</b>",
                28 + 18 * READ_OUT_LINES_MAX,
                ShortText(&self.head)
            ),
        );
        for (style, line) in self.lines.iter().take(READ_OUT_LINES_MAX) {
            let class = style.map_or_else(|| "none".to_owned(), |style| format!("s{}", style % STYLES));
            write(&mut out, format_args!("<span class=\"{class}\">{}</span>", ShortText(line)));
        }
        out.push_str("</div></foreignObject></g></g>");
        out
    }
}

/// The markers that [`marker`] refers to; once per page.
pub(crate) fn marker_shapes() -> &'static str {
    "<svg class=\"shapes\" aria-hidden=\"true\" width=\"0\" height=\"0\"><defs>\
     <g id=\"m0\"><circle r=\"4.2\"/></g>\
     <g id=\"m1\"><path d=\"M0-5.6L5.6 0L0 5.6L-5.6 0Z\"/></g>\
     <g id=\"m2\"><rect x=\"-4\" y=\"-4\" width=\"8\" height=\"8\"/></g>\
     <g id=\"m3\"><path d=\"M0-5.4L5.2 4.2H-5.2Z\"/></g>\
     <g id=\"m4\"><path d=\"M0 5.4L5.2-4.2H-5.2Z\"/></g>\
     <g id=\"m5\"><path d=\"M-1.6-5.2H1.6V-1.6H5.2V1.6H1.6V5.2H-1.6V1.6H-5.2V-1.6H-1.6Z\"/></g>\
     </defs></svg>"
}

/// A line through positions, in the stretched view box.
pub(crate) fn line(class: &str, points: &[(f64, f64)]) -> String {
    if points.is_empty() {
        return String::new();
    }
    let mut out = format!("<path class=\"line {class}\" d=\"");
    for (at, (x, y)) in points.iter().enumerate() {
        let letter = if at == 0 { 'M' } else { 'L' };
        write(&mut out, format_args!("{letter}{} {}", units(*x), units(1.0 - y)));
    }
    out.push_str("\"/>");
    out
}

/// The area between two lines over the same positions, in the stretched view box.
pub(crate) fn area_between(class: &str, upper: &[(f64, f64)], lower: &[(f64, f64)]) -> String {
    let points: Vec<String> =
        upper.iter().chain(lower.iter().rev()).map(|(x, y)| format!("{},{}", units(*x), units(1.0 - y))).collect();
    if points.is_empty() {
        String::new()
    } else {
        format!("<polygon class=\"{class}\" points=\"{}\"/>", points.join(" "))
    }
}

/// A rectangle over the whole height, in the stretched view box.
pub(crate) fn vertical_band(class: &str, from: f64, to: f64) -> String {
    let width = units((to - from).max(0.0));
    format!("<rect class=\"{class}\" x=\"{}\" y=\"0\" width=\"{width}\" height=\"1000\"/>", units(from))
}

/// A rectangle over the whole width, in the stretched view box.
pub(crate) fn horizontal_band(class: &str, low: f64, high: f64) -> String {
    let height = units((high - low).max(0.0));
    format!("<rect class=\"{class}\" x=\"0\" y=\"{}\" width=\"1000\" height=\"{height}\"/>", units(1.0 - high))
}

/// A marker of a style.
pub(crate) fn marker(style: usize, x: f64, y: f64) -> String {
    let style = style % STYLES;
    format!("<use class=\"marker s{style}\" href=\"#m{style}\" x=\"{}\" y=\"{}\"/>", percent(x), percent(1.0 - y))
}

/// In place of the marker of a value beyond the axis: an arrow at its end, in the colour of a style.
pub(crate) fn clipped_marker(style: usize, x: f64, end: AxisEnd) -> String {
    let (shape, y) = match end {
        AxisEnd::High => ("m3", "0%"),
        AxisEnd::Low => ("m4", "100%"),
    };
    format!("<use class=\"marker s{}\" href=\"#{shape}\" x=\"{}\" y=\"{y}\"/>", style % STYLES, percent(x))
}

/// How many values are beyond an end of the axis, next to it.
pub(crate) fn clipped_count(x: f64, end: AxisEnd, count: usize) -> String {
    match (count, end) {
        (0 | 1, _) => String::new(),
        (_, AxisEnd::High) => text("beyond mid", (x, 1.0), (0, -7), &count.to_string()),
        (_, AxisEnd::Low) => text("beyond mid", (x, 0.0), (0, 14), &count.to_string()),
    }
}

/// A straight line of a class, in percent.
pub(crate) fn straight_line(class: &str, from: (f64, f64), to: (f64, f64)) -> String {
    let (x1, y1, x2, y2) = (percent(from.0), percent(1.0 - from.1), percent(to.0), percent(1.0 - to.1));
    format!("<line class=\"{class}\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>")
}

/// Text next to a position, moved by pixels.
pub(crate) fn text(class: &str, place: (f64, f64), moved: (i32, i32), text: &str) -> String {
    let (x, y, (dx, dy)) = (percent(place.0), percent(1.0 - place.1), moved);
    format!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\" dx=\"{dx}\" dy=\"{dy}\">{}</text>", ShortText(text))
}

/// A list of styles and names; nothing if it is empty.
pub(crate) fn legend(keys: &[Key]) -> String {
    if keys.is_empty() {
        return String::new();
    }
    let mut out = String::from("<ul class=\"legend\">");
    for key in keys {
        let sample = match key.look {
            LegendSymbol::Series(style) => {
                let class = format!("s{}", style % STYLES);
                format!(
                    "<line class=\"line {class}\" x1=\"0\" x2=\"30\" y1=\"7\" y2=\"7\"/>{}",
                    marker(style, 0.5, 0.5)
                )
            }
            LegendSymbol::Marker(style) => marker(style, 0.5, 0.5),
            LegendSymbol::Area(class) => {
                format!("<rect class=\"{class}\" x=\"3\" y=\"0\" width=\"24\" height=\"14\"/>")
            }
            LegendSymbol::Line(class) => format!("<line class=\"line {class}\" x1=\"0\" x2=\"30\" y1=\"7\" y2=\"7\"/>"),
            LegendSymbol::Word(class, word) => format!("<text class=\"mid {class}\" x=\"15\" y=\"11\">{word}</text>"),
        };
        let name = ShortText(&key.name);
        write(
            &mut out,
            format_args!("<li><svg aria-hidden=\"true\" width=\"30\" height=\"14\">{sample}</svg>{name}</li>"),
        );
    }
    out.push_str("</ul>");
    out
}

/// A position as a percentage of the picture.
pub(crate) fn percent(place: f64) -> String {
    let text = format!("{:.2}", place * 100.0);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

fn units(place: f64) -> String {
    let text = format!("{:.1}", place * UNITS);
    text.strip_suffix(".0").map_or_else(|| text.clone(), ToOwned::to_owned)
}

/// Appends; writing to a string cannot fail.
pub(crate) fn write(out: &mut String, what: std::fmt::Arguments<'_>) {
    out.write_fmt(what).expect("writing to a String cannot fail");
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
