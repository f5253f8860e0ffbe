//! Tables that a screen reader can walk: a caption, headings with scope, a heading for each row.
//!
//! A table wider than the page is scrolled within a region of its own, which takes the focus so that the keyboard can do it
//! too. It does not know what is in the cells.

use super::escape::Text;
use super::plot::write;

/// What is in a cell.
pub(crate) enum Cell {
    /// Words; escaped.
    Words(String),
    /// A figure, set to the right; escaped.
    Figure(String),
    /// Markup made by this program.
    Markup(String),
}

/// A heading of a column.
pub(crate) struct Head {
    name: &'static str,
    figures: bool,
}

/// Over words.
pub(crate) const fn words(name: &'static str) -> Head {
    Head { name, figures: false }
}

/// Over figures.
pub(crate) const fn figures(name: &'static str) -> Head {
    Head { name, figures: true }
}

/// The first cell of each row is its heading.
pub(crate) fn draw(id: &str, caption: &str, heads: &[Head], rows: &[Vec<Cell>]) -> String {
    let mut out = scrolled(id, caption);
    out.push_str("<thead><tr>");
    for head in heads {
        let class = if head.figures { " class=\"n\"" } else { "" };
        write(&mut out, format_args!("<th scope=\"col\"{class}>{}</th>", Text(head.name)));
    }
    out.push_str("</tr></thead><tbody>");
    for row in rows {
        out.push_str("<tr>");
        for (at, cell) in row.iter().enumerate() {
            let (open, close) = if at == 0 { ("th scope=\"row\"", "th") } else { ("td", "td") };
            match cell {
                Cell::Words(text) => write(&mut out, format_args!("<{open}>{}</{close}>", Text(text))),
                Cell::Figure(text) => write(&mut out, format_args!("<{open} class=\"n\">{}</{close}>", Text(text))),
                Cell::Markup(markup) => write(&mut out, format_args!("<{open}>{markup}</{close}>")),
            }
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

/// Names and what they stand for; those without are left out.
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
        "<div class=\"scrolled\" role=\"region\" aria-labelledby=\"{id}\" tabindex=\"0\">\
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
        let drawn = facts("t", "c", vec![("CPU", Some("x<y".to_owned())), ("turbo", None)]);
        assert!(drawn.contains("x&lt;y") && !drawn.contains("turbo"), "{drawn}");
    }
}
