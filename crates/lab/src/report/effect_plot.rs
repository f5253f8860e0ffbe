//! Effects with their intervals, one a row, in a table: a forest plot whose figures can be read without the picture.
//!
//! The strips of all rows of a group share an axis and its zero line. A shaded band shows the effects that would have
//! been missed; an interval that reaches beyond the axis ends in an arrow. Whether an effect counts is not decided
//! here.

use super::axis::Axis;
use super::markup::{self, ShortText, Text, percent, write};

/// One measure.
pub(crate) struct Row {
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
pub(crate) struct Group {
    pub(crate) axis: Axis,
    /// Vertical lines, for example a margin.
    pub(crate) lines: Vec<f64>,
    pub(crate) rows: Vec<Row>,
}

/// The whole plot.
pub(crate) struct Forest<'a> {
    pub(crate) id: &'a str,
    pub(crate) caption: String,
    /// Heads of the columns before, of the strip, and after.
    pub(crate) before: &'a [&'a str],
    pub(crate) strip: &'a str,
    pub(crate) after: &'a [&'a str],
    pub(crate) groups: Vec<Group>,
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

    fn row(&self, out: &mut String, group: &Group, row: &Row) {
        write(out, format_args!("<tr role=\"row\"><th scope=\"row\" role=\"rowheader\">{}</th>", ShortText(&row.name)));
        for (text, head) in row.before.iter().zip(self.before) {
            let (text, head) = (ShortText(text), Text(head));
            write(out, format_args!("<td role=\"cell\" class=\"n before\" data-head=\"{head}\">{text}</td>"));
        }
        write(out, format_args!("<td role=\"cell\" class=\"strip\">{}</td>", strip(group, row)));
        for (text, head) in row.after.iter().zip(self.after) {
            let (text, head) = (ShortText(text), Text(head));
            write(out, format_args!("<td role=\"cell\" class=\"n\" data-head=\"{head}\">{text}</td>"));
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
fn strip(group: &Group, row: &Row) -> String {
    let axis = &group.axis;
    let place = |value: f64| axis.place(value);
    let mut out = format!(
        "<svg class=\"picture\" role=\"img\" aria-label=\"{}\"><title>{}</title><g class=\"grid\">",
        Text(&description(row)),
        Text(&description(row))
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
        out.push_str(&markup::straight("margin", (place(*at), 0.0), (place(*at), 1.0)));
    }
    out.push_str(&markup::straight("zero", (place(0.0), 0.0), (place(0.0), 1.0)));
    let class = format!("whisker s{}", row.style % markup::STYLES);
    out.push_str(&markup::straight(&class, (place(row.low), 0.5), (place(row.high), 0.5)));
    for (end, arrow) in [(row.low, "\u{25c2}"), (row.high, "\u{25b8}")] {
        if end.is_finite() {
            out.push_str(&markup::straight(&class, (place(end), 0.36), (place(end), 0.64)));
        } else {
            let class = format!("mid arrow s{}", row.style % markup::STYLES);
            out.push_str(&markup::text(&class, (place(end), 0.5), (0, 5), arrow));
        }
    }
    out.push_str(&markup::marker(row.style, place(row.value), 0.5));
    out.push_str("</svg>");
    out
}

fn description(row: &Row) -> String {
    format!("{}: {}", row.name, row.after.join(", "))
}
