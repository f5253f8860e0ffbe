//! A flame graph as one SVG, without scripts, to be embedded anywhere. The page (`html`) is the one to work with.
//!
//! Callers are below the functions they call. Width is value; the colour only distinguishes neighbours, and a function
//! always has the same colour. Hovering shows name, value and share.
//!
//! It is drawn from a [`Tree`]: functions below their callers, with the value spent in each.

use crate::profile::Profile;
use std::collections::HashMap;
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

/// A function below its callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallNode {
    /// Index in [`Profile::functions`]; `None` for the root.
    pub function: Option<usize>,
    /// The value of the function and its callees.
    pub total: i64,
    /// The value of the function itself.
    pub own: i64,
    /// Its callees, as indices in [`Tree::nodes`], by name.
    pub children: Vec<usize>,
}

/// A whole profile, by one of its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// The first is the root, which represents everything.
    pub nodes: Vec<CallNode>,
}

impl Tree {
    /// Adds up a profile by one of its values.
    pub fn new(profile: &Profile, value: usize) -> Tree {
        let mut nodes = vec![CallNode { function: None, total: 0, own: 0, children: Vec::new() }];
        let mut known: HashMap<(usize, usize), usize> = HashMap::new();
        for sample in &profile.samples {
            let Some(amount) = sample.values.get(value).copied().filter(|amount| *amount != 0) else { continue };
            let mut at = 0;
            nodes[at].total += amount;
            for line in profile.functions_of(sample) {
                let next = nodes.len();
                let below = *known.entry((at, line.function)).or_insert(next);
                if below == next {
                    nodes.push(CallNode { function: Some(line.function), total: 0, own: 0, children: Vec::new() });
                    nodes[at].children.push(below);
                }
                at = below;
                nodes[at].total += amount;
            }
            nodes[at].own += amount;
        }
        let name = |nodes: &[CallNode], node: usize| {
            nodes[node].function.map_or("", |function| profile.functions[function].name.as_str())
        };
        for node in 0..nodes.len() {
            let mut children = std::mem::take(&mut nodes[node].children);
            children.sort_by(|a, b| name(&nodes, *a).cmp(name(&nodes, *b)));
            nodes[node].children = children;
        }
        Tree { nodes }
    }

    /// The greatest number of functions above each other.
    pub fn depth(&self) -> usize {
        let mut depths = vec![0; self.nodes.len()];
        // A child comes after its parent.
        for (node, of) in self.nodes.iter().enumerate() {
            for child in &of.children {
                depths[*child] = depths[node] + 1;
            }
        }
        depths.into_iter().max().unwrap_or(0)
    }
}

/// A small profile for tests of all forms.
#[cfg(test)]
pub(crate) fn example() -> Profile {
    use crate::profile::{CodeMapping, Function, Label, Line, Location, Sample, THREAD, TIME, ValueType};
    let function = |name: &str| Function { name: name.to_owned(), file: "src/main.rs".to_owned() };
    let location = |address, lines: &[(usize, i64)]| Location {
        address,
        mapping: Some(0),
        lines: lines.iter().map(|(function, line)| Line { function: *function, line: *line }).collect(),
    };
    let sample = |thread: &str, time, stack: &[usize], count: i64| Sample {
        stack: stack.to_vec(),
        values: vec![count, count * 10_000_000],
        labels: vec![
            (THREAD.to_owned(), Label::Text(thread.to_owned())),
            (TIME.to_owned(), Label::Number(time, "nanoseconds".to_owned())),
        ],
    };
    Profile {
        values: vec![ValueType::new("samples", "count"), ValueType::new("cpu", "nanoseconds")],
        main: 1,
        period: (ValueType::new("cpu", "nanoseconds"), 10_000_000),
        time_ns: 1_795_000_000_000_000_000,
        duration_ns: 1_000_000_000,
        notes: vec!["an example".to_owned()],
        mappings: vec![CodeMapping { start: 0x1000, end: 0x9000, offset: 0, path: "/bin/example".to_owned() }],
        functions: ["main", "route", "<&str as Matches>::find", "memchr", "</script><b>\"é"].map(function).to_vec(),
        locations: vec![
            location(0x1010, &[(0, 7)]),
            // `find` was inlined into `route`.
            location(0x1020, &[(2, 40), (1, 12)]),
            location(0x1030, &[(3, 0)]),
            location(0x1040, &[(4, 1)]),
        ],
        samples: vec![
            sample("worker-0", 1_000_000, &[2, 1, 0], 3),
            sample("worker-0", 11_000_000, &[1, 0], 1),
            sample("worker-1", 5_000_000, &[3, 0], 2),
            sample("worker-1", 15_000_000, &[0], 1),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn totals_hold_what_is_below_and_inlined_functions_count() {
        let profile = example();
        let tree = Tree::new(&profile, 0);
        let told: Vec<(&str, i64, i64)> = tree
            .nodes
            .iter()
            .map(|node| (node.function.map_or("all", |f| &profile.functions[f].name), node.total, node.own))
            .collect();
        assert_eq!(
            told,
            [
                ("all", 7, 0),
                ("main", 7, 1),
                ("route", 4, 0),
                ("<&str as Matches>::find", 4, 1),
                ("memchr", 3, 3),
                ("</script><b>\"é", 2, 2),
            ]
        );
        assert_eq!(tree.depth(), 4);
        assert_eq!(tree.nodes.iter().map(|node| node.own).sum::<i64>(), profile.total(0));
    }
}
