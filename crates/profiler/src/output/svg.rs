//! A flame graph as one SVG, without scripts, to be embedded anywhere. The page (`html`) is the one to work with.
//!
//! Callers are below the functions they call. Width is value; the colour only distinguishes neighbours, and a function
//! always has the same colour. Hovering shows name, value and share.

use super::tree::Tree;
use crate::profile::Profile;
use std::fmt::Write;

const WIDTH: f64 = 1200.0;
const ROW_HEIGHT: f64 = 17.0;
const MARGIN: f64 = 10.0;
const HEAD_HEIGHT: f64 = 44.0;

/// The width of a character in the font below.
const CHARACTER_WIDTH: f64 = 6.6;

/// Narrower functions are left out: they would be invisible, and there can be very many.
const WIDTH_MIN: f64 = 0.3;

/// Draws one of the values.
pub fn write(profile: &Profile, value: usize) -> String {
    let tree = Tree::new(profile, value);
    let height = HEAD_HEIGHT + MARGIN + ROW_HEIGHT * (tree.depth() as f64 + 1.0);
    let mut svg = format!(
        concat!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" ",
            "font-family=\"ui-monospace, monospace\" font-size=\"11\">\n",
            "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
            "<text x=\"{m}\" y=\"18\" font-size=\"14\">{title}</text>\n",
            "<text x=\"{m}\" y=\"34\" fill=\"#555\">{notes}</text>\n",
        ),
        w = WIDTH,
        h = height,
        m = MARGIN,
        title = escape(&title(profile, value)),
        notes = escape(&cut(&profile.notes.join("; "), ((WIDTH - 2.0 * MARGIN) / CHARACTER_WIDTH) as usize)),
    );
    draw(&mut svg, profile, value, &tree, height);
    svg.push_str("</svg>\n");
    svg
}

fn draw(svg: &mut String, profile: &Profile, value: usize, tree: &Tree, height: f64) {
    let all = tree.nodes[0].total.max(1) as f64;
    let scale = (WIDTH - 2.0 * MARGIN) / all;
    let unit = profile.values.get(value).map_or("", |of| of.unit.as_str());
    // Node, place, depth.
    let mut left = vec![(0, MARGIN, 0_u32)];
    while let Some((node, x, depth)) = left.pop() {
        let of = &tree.nodes[node];
        let width = of.total as f64 * scale;
        if width < WIDTH_MIN {
            continue;
        }
        let name = of.function.map_or("all", |function| profile.functions[function].name.as_str());
        let y = height - MARGIN - ROW_HEIGHT * (f64::from(depth) + 1.0);
        let (amount, share) = (amount(of.total, unit), 100.0 * of.total as f64 / all);
        let shown = cut(name, ((width - 6.0) / CHARACTER_WIDTH).max(0.0) as usize);
        writeln!(
            svg,
            "<g><title>{name}: {amount}, {share:.2}%</title><rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{drawn:.2}\" height=\"{row}\" fill=\"{colour}\"/><text x=\"{text:.2}\" y=\"{base:.1}\">{shown}</text></g>",
            name = escape(name),
            drawn = (width - 0.4).max(WIDTH_MIN),
            row = ROW_HEIGHT - 1.0,
            colour = colour(name),
            text = x + 3.0,
            base = y + 12.0,
            shown = escape(&shown),
        )
        .expect("writing to a String does not fail");
        let mut at = x;
        for child in &of.children {
            left.push((*child, at, depth + 1));
            at += tree.nodes[*child].total as f64 * scale;
        }
    }
}

/// The kind of profile, and its total.
pub(super) fn title(profile: &Profile, value: usize) -> String {
    let Some(of) = profile.values.get(value) else { return String::new() };
    let seconds = profile.duration_ns as f64 / 1e9;
    let total = amount(profile.total(value), &of.unit);
    match profile.duration_ns {
        0 => format!("{}: {total}", of.kind),
        _ => format!("{}: {total} in {seconds:.1} s", of.kind),
    }
}

/// A value with its unit.
pub(super) fn amount(value: i64, unit: &str) -> String {
    let number = value as f64;
    match unit {
        "nanoseconds" if value >= 1_000_000_000 => format!("{:.2} s", number / 1e9),
        "nanoseconds" => format!("{:.2} ms", number / 1e6),
        "bytes" if value >= 1 << 20 => format!("{:.1} MiB", number / 1_048_576.0),
        "bytes" => format!("{:.1} KiB", number / 1024.0),
        _ => value.to_string(),
    }
}

/// Shortens a text to a number of characters.
fn cut(text: &str, characters: usize) -> String {
    match (text.chars().count() <= characters, characters) {
        (true, _) => text.to_owned(),
        (false, 0..=2) => String::new(),
        (false, _) => text.chars().take(characters - 1).chain(['…']).collect(),
    }
}

/// A warm colour, by name.
fn colour(name: &str) -> String {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let (red, green, blue) = (225 + hash % 30, 130 + (hash >> 8) % 90, 60 + (hash >> 16) % 60);
    format!("#{red:02x}{green:02x}{blue:02x}")
}

pub(super) fn escape(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut escaped, character| {
        match character {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            // Control characters are not allowed in XML.
            control if control.is_control() => escaped.push(' '),
            other => escaped.push(other),
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::tree::example;

    #[test]
    fn every_function_is_drawn_and_none_is_markup() {
        let svg = write(&example(), 1);
        assert!(svg.contains("<title>all: 70.00 ms, 100.00%</title>"), "{svg}");
        assert!(svg.contains("<title>route: 40.00 ms, 57.14%</title>"), "{svg}");
        assert!(svg.contains("&lt;&amp;str as Matches&gt;::find"), "{svg}");
        assert!(svg.contains("&lt;/script&gt;&lt;b&gt;&quot;é"), "{svg}");
        assert!(!svg.contains("<script") && !svg.contains("</script"), "{svg}");
        assert_eq!(svg.matches("<g>").count(), 6);
    }

    #[test]
    fn texts_fit() {
        assert_eq!(
            (cut("memchr", 6), cut("memchr", 5), cut("memchr", 2)),
            ("memchr".into(), "memc…".into(), String::new())
        );
        assert_eq!(amount(1_500_000_000, "nanoseconds"), "1.50 s");
        assert_eq!(amount(3 << 20, "bytes"), "3.0 MiB");
        assert_eq!(amount(12, "count"), "12");
    }
}
