//! The tree of a flame graph: functions below their callers, with the value spent in each.

use crate::profile::Profile;
use std::collections::HashMap;

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
