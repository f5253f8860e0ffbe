//! Tables that a screen reader can walk: a caption, headings with scope, a heading for each row.
//!
//! On a narrow screen a table of many columns shows each row as a list, one cell with its heading per line; the roles
//! still mark it as a table. A table wider than the page scrolls within a region of its own, which takes the focus so
//! that the keyboard can scroll it, too. It does not depend on the contents of the cells.

use super::markup::{Text, write};

/// The content of a cell.
#[derive(Clone)]
pub(crate) enum Cell {
    /// Words; escaped.
    Words(String),
    /// A figure, set to the right; escaped.
    Figure(String),
    /// A figure with an interval in brackets, which may go on the next line.
    Interval(String),
    /// Markup made by this program.
    Markup(String),
}

/// Tables of more columns are lists on a narrow screen.
const NARROW_COLUMNS_MAX: usize = 5;

/// A heading of a column.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    name: &'static str,
    figures: bool,
}

/// A heading over words.
pub(crate) const fn words(name: &'static str) -> Head {
    Head { name, figures: false }
}

/// A heading over figures.
pub(crate) const fn figures(name: &'static str) -> Head {
    Head { name, figures: true }
}

/// The first cell of each row is its heading.
pub(crate) fn draw(id: &str, caption: &str, heads: &[Head], rows: &[Vec<Cell>]) -> String {
    let wide = heads.len() > NARROW_COLUMNS_MAX;
    // A list on a narrow screen is still a table to a screen reader.
    let role = |role: &str| if wide { format!(" role=\"{role}\"") } else { String::new() };
    let mut out = scrolled(id, caption);
    if wide {
        out = out.replacen("<table", "<table class=\"wide\" role=\"table\"", 1);
    }
    write(&mut out, format_args!("<thead{}><tr{}>", role("rowgroup"), role("row")));
    for head in heads {
        let class = if head.figures { " class=\"n\"" } else { "" };
        write(&mut out, format_args!("<th scope=\"col\"{}{class}>{}</th>", role("columnheader"), Text(head.name)));
    }
    write(&mut out, format_args!("</tr></thead><tbody{}>", role("rowgroup")));
    for row in rows {
        write(&mut out, format_args!("<tr{}>", role("row")));
        for (at, cell) in row.iter().enumerate() {
            let (open, close) = match (at, heads.get(at)) {
                (0, _) => (format!("th scope=\"row\"{}", role("rowheader")), "th"),
                (_, Some(head)) if wide => (format!("td{} data-head=\"{}\"", role("cell"), Text(head.name)), "td"),
                _ => ("td".to_owned(), "td"),
            };
            write_cell(&mut out, cell, (&open, close));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

fn write_cell(out: &mut String, cell: &Cell, (open, close): (&str, &str)) {
    match cell {
        Cell::Words(text) => write(out, format_args!("<{open}>{}</{close}>", Text(text))),
        Cell::Figure(text) => write(out, format_args!("<{open} class=\"n\">{}</{close}>", Text(text))),
        Cell::Interval(text) => {
            let (value, range) = text.split_at(text.find(" (").unwrap_or(text.len()));
            let (value, range) = (Text(value), Text(range));
            write(out, format_args!("<{open} class=\"n\">{value}<span class=\"range\">{range}</span></{close}>"));
        }
        Cell::Markup(markup) => write(out, format_args!("<{open}>{markup}</{close}>")),
    }
}

/// Names and their values; those without a value are left out.
pub(crate) fn facts(id: &str, caption: &str, rows: Vec<(&'static str, Option<String>)>) -> String {
    let mut out = scrolled(id, caption).replacen("<table", "<table class=\"facts\"", 1);
    out.push_str("<tbody>");
    for (name, value) in rows {
        if let Some(value) = value {
            write(&mut out, format_args!("<tr><th scope=\"row\">{name}</th><td>{}</td></tr>", Text(&value)));
        }
    }
    out.push_str("</tbody></table></div>\n");
    out
}

fn scrolled(id: &str, caption: &str) -> String {
    format!(
        "<div class=\"scrolled\" role=\"group\" aria-labelledby=\"{id}\" tabindex=\"0\">\
         <table><caption id=\"{id}\">{}</caption>",
        Text(caption)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_escaped_and_headed() {
        let rows = [vec![Cell::Words("<i>".to_owned()), Cell::Figure("1,234".to_owned())]];
        let drawn = draw("t", "A & B", &[words("name"), figures("count")], &rows);
        assert!(drawn.contains("<caption id=\"t\">A &amp; B</caption>"), "{drawn}");
        assert!(drawn.contains("<th scope=\"row\">&lt;i&gt;</th><td class=\"n\">1,234</td>"), "{drawn}");
        let wide = draw("t", "c", &[figures("a"); 6], &[vec![Cell::Interval("+1 s (0 to 2 s)".to_owned()); 6]]);
        assert!(wide.contains("<table class=\"wide\" role=\"table\">"), "{wide}");
        let cell = "<td role=\"cell\" data-head=\"a\" class=\"n\">+1 s<span class=\"range\"> (0 to 2 s)</span></td>";
        assert!(wide.contains(cell), "{wide}");
        let drawn = facts("t", "c", vec![("CPU", Some("x<y".to_owned())), ("turbo", None)]);
        assert!(drawn.contains("x&lt;y") && !drawn.contains("turbo"), "{drawn}");
    }
}
