//! A configuration file of many routes, one of which changes again and again, with negligible cost of writing.
//!
//! Writing megabytes fifty times a second would be a load of its own. So copies of the file are kept in memory; each change is
//! applied to the oldest copy, a few bytes in place, and a link to that copy is renamed over the file, as an editor does. By the
//! time a copy is changed again, its readers have long read it.
//!
//! ```text
//!  copies/0 … copies/15     stillgate.yaml ──▶ copies/k     the same inode, until the next change
//!              k = number of the change, modulo copies
//! ```
//!
//! Some of the routes change their condition so that they take other requests; this shows when a change is served. Every so often a
//! node's weight changes instead.

use super::route_sets::entry;
use crate::Result;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// At 50 changes a second, a copy is changed again after a third of a second.
const COPIES: u64 = 16;

/// Two of this many routes change: one with a URI, one that may have an expression.
const CHANGING_OF: usize = 10;
/// One of this many routes has an upstream of its own, whose node's weight changes.
const WEIGHTED_OF: usize = 500;
/// One change in this many is of a weight.
const WEIGHT_EVERY: u64 = 10;
/// Weights start here, so that they have four digits.
const WEIGHT_MIN: u64 = 1000;
const WEIGHTS: u64 = 9000;

/// A step through the changing routes that visits all of them: it is prime, and so coprime to most numbers.
const STRIDE: u64 = 7_919;

/// The text of the file and the positions of changes.
pub(super) struct Template {
    text: String,
    /// The number of each route that changes its condition, and the position of the eight digits.
    conditions: Vec<(usize, usize)>,
    /// The position of the four digits of each weight.
    weights: Vec<usize>,
    /// Paths that routes take whatever changes, one of each other route.
    pub(super) fixed_paths: Vec<String>,
}

/// Bytes that a change writes into the text.
struct Patch {
    at: usize,
    digits: String,
}

impl Template {
    /// Makes `routes` routes after `head`; every second one has an expression if `expressions` is set.
    pub(super) fn new(head: String, upstream: SocketAddr, routes: usize, expressions: bool) -> Self {
        let mut template = Self { text: head, conditions: Vec::new(), weights: Vec::new(), fixed_paths: Vec::new() };
        for n in 0..routes {
            template.push(n, upstream, expressions && n % 2 == 1);
        }
        template
    }

    fn push(&mut self, n: usize, upstream: SocketAddr, is_expression: bool) {
        let condition = |prefix: &str| match is_expression {
            true => format!(r#"expression: 'http.path ^= "{prefix}/" && http.method == "GET"'"#),
            false => format!("uri: {prefix}/*"),
        };
        let begin = self.text.len();
        let find = |text: &str, mark: &str| text[begin..].find(mark).map(|at| begin + at + mark.len());
        if n % CHANGING_OF >= CHANGING_OF - 2 {
            self.text.push_str(&entry(n, &condition(&changing_prefix(n, 0))));
            self.conditions.extend(find(&self.text, "/v").map(|at| (n, at)));
            return;
        }
        let prefix = format!("/service-{n}/v1");
        self.fixed_paths.push(format!("{prefix}/x"));
        if n % WEIGHTED_OF != WEIGHTED_OF / 2 {
            self.text.push_str(&entry(n, &condition(&prefix)));
            return;
        }
        // Writing to a `String` cannot fail.
        let _ = write!(
            self.text,
            "  - id: r{n}\n    {}\n    upstream: {{type: roundrobin, nodes: {{\"{upstream}\": {WEIGHT_MIN}}}}}\n",
            condition(&prefix)
        );
        self.weights.extend(find(&self.text, "\": "));
    }

    /// The length of the file in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.text.len()
    }

    /// The route that takes other requests after a change; `None`: it is another kind of change.
    fn changed_condition(&self, number: u64) -> Option<(usize, usize)> {
        if number.is_multiple_of(WEIGHT_EVERY) && !self.weights.is_empty() {
            return None;
        }
        let index = number.wrapping_mul(STRIDE) % self.conditions.len().max(1) as u64;
        self.conditions.get(index as usize).copied()
    }

    /// A path that a route takes since this change, and not before.
    pub(super) fn path_of(&self, number: u64) -> Option<String> {
        self.changed_condition(number).map(|(route, _)| format!("{}/x", changing_prefix(route, number)))
    }

    fn patch(&self, number: u64) -> Option<Patch> {
        if let Some((_, at)) = self.changed_condition(number) {
            return Some(Patch { at, digits: format!("{number:08}") });
        }
        let turn = number / WEIGHT_EVERY;
        let at = *self.weights.get(turn as usize % self.weights.len().max(1))?;
        Some(Patch { at, digits: (WEIGHT_MIN + turn % WEIGHTS).to_string() })
    }
}

fn changing_prefix(route: usize, number: u64) -> String {
    format!("/changing-{route}/v{number:08}")
}

/// A file made from a template, and its copies.
pub(super) struct ChangingFile<'t> {
    template: &'t Template,
    file: PathBuf,
    link: PathBuf,
    copies: Vec<(PathBuf, File)>,
    /// Number of changes so far; the first one is 1.
    written: u64,
    /// The last changes, which the oldest copy lacks.
    last: VecDeque<Patch>,
}

impl<'t> ChangingFile<'t> {
    /// Creates `dir`, and writes the original file and its copies into it.
    pub(super) fn create(template: &'t Template, dir: &Path) -> Result<Self> {
        let beside = dir.join("copies");
        fs::create_dir_all(&beside)?;
        let file = dir.join("stillgate.yaml");
        fs::write(&file, &template.text)?;
        let copy = |number| {
            let path = beside.join(format!("{number}"));
            fs::write(&path, &template.text)?;
            let file = File::options().write(true).open(&path)?;
            Ok((path, file))
        };
        let copies = (0..COPIES).map(copy).collect::<Result<Vec<_>>>()?;
        Ok(Self { template, file, link: beside.join("link"), copies, written: 0, last: VecDeque::new() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.file
    }

    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Replaces the file by one with the next change; returns the change's number.
    pub(super) fn change(&mut self) -> Result<u64> {
        self.written += 1;
        self.last.extend(self.template.patch(self.written));
        while self.last.len() as u64 > COPIES {
            self.last.pop_front();
        }
        let (path, copy) = &self.copies[(self.written % COPIES) as usize];
        for patch in &self.last {
            copy.write_all_at(patch.digits.as_bytes(), patch.at as u64)?;
        }
        fs::hard_link(path, &self.link)?;
        fs::rename(&self.link, &self.file)?;
        Ok(self.written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_holds_every_change() {
        let upstream = SocketAddr::from(([127, 0, 0, 1], 80));
        let template = Template::new("routes:\n".to_owned(), upstream, 1000, true);
        assert_eq!((template.conditions.len(), template.weights.len(), template.fixed_paths.len()), (200, 2, 800));
        let dir = tempfile::tempdir().unwrap();
        let mut file = ChangingFile::create(&template, dir.path()).unwrap();
        let mut expected = template.text.clone();
        for number in 1..=100 {
            let before = expected.clone();
            let patch = template.patch(number).unwrap();
            expected.replace_range(patch.at..patch.at + patch.digits.len(), &patch.digits);
            assert_ne!(expected, before, "change {number}");
            assert_eq!(file.change().unwrap(), number);
            assert!(fs::read_to_string(file.path()).unwrap() == expected, "change {number}");
            let path = template.path_of(number);
            assert_eq!(path.is_none(), number % WEIGHT_EVERY == 0);
            assert!(path.is_none_or(|path| expected.contains(path.trim_end_matches("x"))), "change {number}");
        }
    }

    #[test]
    fn changes_are_of_both_kinds_of_route() {
        let upstream = SocketAddr::from(([127, 0, 0, 1], 80));
        let template = Template::new(String::new(), upstream, 50, true);
        let line = |n: usize| template.text.lines().nth(3 * n + 1).unwrap();
        assert_eq!(line(0).trim(), "uri: /service-0/v1/*");
        assert_eq!(line(1).trim(), r#"expression: 'http.path ^= "/service-1/v1/" && http.method == "GET"'"#);
        assert_eq!(line(8).trim(), "uri: /changing-8/v00000000/*");
        assert_eq!(line(9).trim(), r#"expression: 'http.path ^= "/changing-9/v00000000/" && http.method == "GET"'"#);
    }
}
