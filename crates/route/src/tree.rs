//! Radix trees over pattern keys: finds the patterns that match a path, best first.
//!
//! ```text
//!   "/a/" ─┬─ "b/" ─ star            /a/b/*
//!          ├─ "bc" ─ leaf            (exact paths live in a table, not here)
//!          ├─ param ─┬─ leaf         /a/:x
//!          │         └─ "/c" ─ leaf  /a/:x/c
//!          └─ star                   /a/*
//! ```
//!
//! All trees share one arena; siblings are contiguous, and so are their first bytes. The search goes depth first:
//! patterns that end here, then the static child, then the parameter, then the star; that is the order of the keys. It
//! needs no stack, since every node knows its parent, and the bytes consumed by a step can be given back.
//!
//! Bound: a node is reached in one way only, so a search enters each node at most once. Its cost is at most the nodes
//! whose way agrees with the path so far, whatever the path; routes that share their literal segments share those
//! nodes.

use crate::pattern::{PARAM, PARAMS_MAX, STAR};
use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};

/// No node, no leaf.
const NONE: u32 = u32::MAX;

#[derive(Debug, Default)]
pub(crate) struct Forest {
    nodes: Vec<UriNode>,
    /// First byte of each node's label, at the node's index.
    firsts: Vec<u8>,
    labels: Vec<u8>,
}

/// A root of a tree in a [`Forest`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Root(u32);

#[derive(Debug, Clone, Copy)]
struct UriNode {
    /// The text that leads into the node, as a range of [`Forest::labels`]. For a parameter: the text behind it.
    label: u32,
    label_len: u32,
    parent: u32,
    /// First of the static children; the others follow it.
    children: u32,
    /// Value of the pattern that ends here.
    leaf: u32,
    /// Value of the pattern that has its star here.
    star: u32,
    /// Child that is entered by one whole segment.
    param: u32,
    child_count: u8,
    is_param: bool,
}

/// Beginnings of the parameters on the way to a node.
struct Starts {
    len: usize,
    positions: [u32; PARAMS_MAX],
}

impl Starts {
    fn push(&mut self, position: usize) {
        self.positions[self.len] = position as u32;
        self.len += 1;
    }

    fn pop(&mut self) -> usize {
        self.len -= 1;
        self.positions[self.len] as usize
    }
}

/// The progress of the search at a node.
enum SearchStep {
    Enter,
    Param,
    Star,
    Leave,
}

impl Forest {
    /// Calls `visit` with the value of every pattern that matches `path`, best first, until it breaks.
    #[inline]
    pub(crate) fn search(&self, root: Root, path: &[u8], mut visit: impl FnMut(u32) -> ControlFlow<()>) {
        let mut starts = Starts { len: 0, positions: [0; PARAMS_MAX] };
        let mut index = root.0;
        let Some(mut at) = self.skip_label(&self.nodes[index as usize], path, 0) else { return };
        let mut step = SearchStep::Enter;
        loop {
            let node = &self.nodes[index as usize];
            step = match step {
                SearchStep::Enter if at == path.len() => {
                    if node.leaf != NONE && visit(node.leaf).is_break() {
                        return;
                    }
                    SearchStep::Star
                }
                SearchStep::Enter => match self.static_child(node, path, at) {
                    Some((child, after)) => {
                        (index, at) = (child, after);
                        SearchStep::Enter
                    }
                    None => SearchStep::Param,
                },
                SearchStep::Param => match self.skip_param(node, path, at) {
                    Some(after) => {
                        starts.push(at);
                        (index, at) = (node.param, after);
                        SearchStep::Enter
                    }
                    None => SearchStep::Star,
                },
                SearchStep::Star => {
                    if node.star != NONE && visit(node.star).is_break() {
                        return;
                    }
                    SearchStep::Leave
                }
                SearchStep::Leave if index == root.0 => return,
                SearchStep::Leave => {
                    index = node.parent;
                    if node.is_param {
                        at = starts.pop();
                        SearchStep::Star
                    } else {
                        at -= node.label_len as usize;
                        SearchStep::Param
                    }
                }
            }
        }
    }

    /// The static child that continues as `path` does at `at`, and the position behind its label.
    #[inline]
    fn static_child(&self, node: &UriNode, path: &[u8], at: usize) -> Option<(u32, usize)> {
        let first = node.children as usize;
        let firsts = &self.firsts[first..first + node.child_count as usize];
        let child = first + firsts.iter().position(|byte| *byte == path[at])?;
        Some((child as u32, self.skip_label(&self.nodes[child], path, at)?))
    }

    /// The position behind the segment at `at` and the label of the parameter's node.
    #[inline]
    fn skip_param(&self, node: &UriNode, path: &[u8], at: usize) -> Option<usize> {
        if node.param == NONE {
            return None;
        }
        let end = memchr::memchr(b'/', &path[at..]).map_or(path.len(), |len| at + len);
        if end == at {
            return None;
        }
        self.skip_label(&self.nodes[node.param as usize], path, end)
    }

    #[inline]
    fn skip_label(&self, node: &UriNode, path: &[u8], at: usize) -> Option<usize> {
        let label = &self.labels[node.label as usize..][..node.label_len as usize];
        path[at..].starts_with(label).then_some(at + label.len())
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<UriNode>() + self.firsts.capacity() + self.labels.capacity()
    }
}

/// A subtree still to be built: `patterns` share the `consumed` bytes of their keys that lead to `node`.
struct Task {
    node: u32,
    patterns: Range<usize>,
    consumed: usize,
}

impl Forest {
    /// Adds a tree for patterns, given as keys with a value each: sorted by key, no key twice, at least one. Keys and
    /// nodes of the whole forest together must stay below 4 GiB and 2^32.
    pub(crate) fn plant(&mut self, patterns: &[(&[u8], u32)]) -> Root {
        let root = self.push_node(NONE, false, 0);
        let mut tasks = VecDeque::from([Task { node: root, patterns: 0..patterns.len(), consumed: 0 }]);
        while let Some(task) = tasks.pop_front() {
            self.grow(patterns, task, &mut tasks);
        }
        Root(root)
    }

    pub(crate) fn shrink_to_fit(&mut self) {
        self.nodes.shrink_to_fit();
        self.firsts.shrink_to_fit();
        self.labels.shrink_to_fit();
    }

    /// Fills in a node and queues its children.
    fn grow(&mut self, patterns: &[(&[u8], u32)], task: Task, tasks: &mut VecDeque<Task>) {
        let mine = &patterns[task.patterns.clone()];
        let label = common_literal(mine, task.consumed);
        let end = task.consumed + label.len();
        let index = task.node as usize;
        self.nodes[index].label = self.labels.len() as u32;
        self.nodes[index].label_len = label.len() as u32;
        self.labels.extend_from_slice(label);
        self.nodes[index].children = self.nodes.len() as u32;

        let mut from = 0;
        while let Some((key, value)) = mine.get(from) {
            let next = key.get(end).copied();
            let count = mine[from..].partition_point(|(key, _)| key.get(end).copied() == next);
            match next {
                None => self.nodes[index].leaf = *value,
                Some(STAR) => self.nodes[index].star = *value,
                Some(byte) => {
                    let is_param = byte == PARAM;
                    let child = self.push_node(task.node, is_param, byte);
                    if is_param {
                        self.nodes[index].param = child;
                    } else {
                        self.nodes[index].child_count += 1;
                    }
                    let patterns = task.patterns.start + from..task.patterns.start + from + count;
                    tasks.push_back(Task { node: child, patterns, consumed: end + usize::from(is_param) });
                }
            }
            from += count;
        }
    }

    fn push_node(&mut self, parent: u32, is_param: bool, first: u8) -> u32 {
        let index = self.nodes.len() as u32;
        self.firsts.push(first);
        self.nodes.push(UriNode {
            label: 0,
            label_len: 0,
            parent,
            children: 0,
            leaf: NONE,
            star: NONE,
            param: NONE,
            child_count: 0,
            is_param,
        });
        index
    }
}

/// The literal bytes that all keys have in common from `from` on. Since they are sorted, the first and the last decide.
fn common_literal<'a>(patterns: &[(&'a [u8], u32)], from: usize) -> &'a [u8] {
    let (Some((first, _)), Some((last, _))) = (patterns.first(), patterns.last()) else {
        return &[];
    };
    let pairs = first[from..].iter().zip(&last[from..]);
    let len = pairs.take_while(|(a, b)| a == b && **a < PARAM).count();
    &first[from..from + len]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PathPattern;

    /// The patterns that match, best first, each with its captures.
    fn search(patterns: &[&str], path: &str) -> Vec<String> {
        let parsed: Vec<PathPattern> = patterns.iter().map(|text| PathPattern::parse(text).unwrap()).collect();
        let mut keys: Vec<(&[u8], u32)> = parsed.iter().map(PathPattern::key).zip(0..).collect();
        keys.sort();
        let mut forest = Forest::default();
        let root = forest.plant(&keys);
        let mut found = Vec::new();
        forest.search(root, path.as_bytes(), |value| {
            let mut captured = Vec::new();
            assert!(parsed[value as usize].captures(path.as_bytes(), &mut |range| captured.push(&path[range])));
            found.push(format!("{} [{}]", patterns[value as usize], captured.join(",")));
            ControlFlow::Continue(())
        });
        found
    }

    #[test]
    fn matches_come_best_first_with_what_they_captured() {
        let check = |patterns: &[&str], path: &str, expected: &[&str]| {
            assert_eq!(search(patterns, path), expected, "{path}");
        };
        let routes =
            ["/a/b", "/a/b/*", "/a/b*", "/a/*", "/a*", "/*", "/a/:x", "/:x/b", "/:x/:y", "/:x/*rest", "/a/:x/c"];
        check(
            &routes,
            "/a/b",
            &[
                "/a/b []",
                "/a/b* []",
                "/a/:x [b]",
                "/a/* [b]",
                "/a* [/b]",
                "/:x/b [a]",
                "/:x/:y [a,b]",
                "/:x/*rest [a,b]",
                "/* [a/b]",
            ],
        );
        check(
            &routes,
            "/a/b/c",
            &["/a/b/* [c]", "/a/b* [/c]", "/a/:x/c [b]", "/a/* [b/c]", "/a* [/b/c]", "/:x/*rest [a,b/c]", "/* [a/b/c]"],
        );
        check(&routes, "/a", &["/a* []", "/* [a]"]);
        check(&routes, "/a/", &["/a/* []", "/a* [/]", "/:x/*rest [a,]", "/* [a/]"]);
        check(&routes, "/", &["/* []"]);
        check(&["/a/:x/c"], "/a//c", &[]);
        check(&["/a/:x"], "/a/b/", &[]);
        check(&["/a"], "/b", &[]);
    }

    /// `/a/a/…` against every combination of `a` and `:p` in each place, with an end that no path has: the search sees
    /// each node once.
    #[test]
    fn backtracking_is_bounded_by_the_tree() {
        const DEPTH: usize = 12;
        let patterns: Vec<String> = (0..1u32 << DEPTH)
            .map(|bits| {
                let segment =
                    |place: usize| if bits >> place & 1 == 1 { format!("/:p{place}") } else { "/a".to_owned() };
                (0..DEPTH).map(segment).collect::<String>() + "/end"
            })
            .collect();
        let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
        assert_eq!(search(&patterns, &("/a".repeat(DEPTH) + "/end")).len(), 1 << DEPTH);
        assert_eq!(search(&patterns, &("/a".repeat(DEPTH) + "/miss")).len(), 0);
        assert_eq!(search(&patterns, &"/a".repeat(100_000)).len(), 0);
    }
}
