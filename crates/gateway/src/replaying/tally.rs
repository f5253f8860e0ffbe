//! What two configurations make of each request, counted; with examples.
//!
//! Routes are the same where their ids are.

use crate::explaining::request_head::RequestHead;
use std::collections::HashMap;
use stillgate_config::Config;

/// Most pairs of an old and a new route that are counted by themselves.
const GROUPS_MAX: usize = 16_384;
/// Requests shown of each pair.
const EXAMPLES_MAX: usize = 3;
/// Lines shown that could not be read.
const UNREADABLE_SHOWN_MAX: usize = 5;
/// Longest host, target and reason, as shown.
const SHOWN_CHARS_MAX: usize = 200;

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Outcome {
    /// A route takes it, by its position.
    Route(usize),
    /// None does; it is answered 404.
    NoRoute,
    /// Its path has no one meaning; it is answered 400.
    Refused,
}

/// Counts.
pub(super) struct Tally {
    /// By the position of an old route, that of the new one of the same id.
    new_of_old: Vec<Option<usize>>,
    pub(super) same: u64,
    pub(super) changed: u64,
    pub(super) now_without: u64,
    pub(super) newly_routed: u64,
    pub(super) groups: HashMap<(Outcome, Outcome), Group>,
    /// Requests of pairs beyond [`GROUPS_MAX`].
    pub(super) ungrouped: u64,
    /// Requests that the log says another route took than the old configuration gives.
    pub(super) recorded_otherwise: u64,
    pub(super) unreadable: u64,
    pub(super) unreadable_shown: Vec<(u64, String)>,
}

/// The requests of one old and one new outcome.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) count: u64,
    pub(super) examples: Vec<Example>,
}

/// A recorded request.
#[derive(Debug)]
pub(super) struct Example {
    pub(super) line: u64,
    pub(super) method: String,
    pub(super) scheme: String,
    pub(super) host: String,
    pub(super) target: String,
}

impl Tally {
    pub(super) fn new(old: &Config, new: &Config) -> Tally {
        let positions: HashMap<&str, usize> =
            new.routes.iter().enumerate().map(|(position, route)| (route.spec.id.as_str(), position)).collect();
        Tally {
            new_of_old: old.routes.iter().map(|route| positions.get(route.spec.id.as_str()).copied()).collect(),
            same: 0,
            changed: 0,
            now_without: 0,
            newly_routed: 0,
            groups: HashMap::new(),
            ungrouped: 0,
            recorded_otherwise: 0,
            unreadable: 0,
            unreadable_shown: Vec::new(),
        }
    }

    /// Counts a request by what it comes to in the old and the new configuration.
    pub(super) fn count(&mut self, outcomes: (Outcome, Outcome), line: u64, head: &RequestHead) {
        let is_same = match outcomes {
            (Outcome::Route(old), Outcome::Route(new)) => self.new_of_old[old] == Some(new),
            (old, new) => old == new,
        };
        if is_same {
            self.same += 1;
            return;
        }
        match outcomes {
            (Outcome::Route(_), Outcome::NoRoute | Outcome::Refused) => self.now_without += 1,
            (Outcome::NoRoute | Outcome::Refused, Outcome::Route(_)) => self.newly_routed += 1,
            _ => self.changed += 1,
        }
        if self.groups.len() >= GROUPS_MAX && !self.groups.contains_key(&outcomes) {
            self.ungrouped += 1;
            return;
        }
        let group = self.groups.entry(outcomes).or_default();
        group.count += 1;
        if group.examples.len() < EXAMPLES_MAX {
            group.examples.push(Example {
                line,
                method: shortened(&head.method),
                scheme: shortened(&head.scheme),
                host: shortened(&head.authority),
                target: shortened(&head.target),
            });
        }
    }

    /// Counts a line that holds no request.
    pub(super) fn unreadable(&mut self, line: u64, reason: String) {
        self.unreadable += 1;
        if self.unreadable_shown.len() < UNREADABLE_SHOWN_MAX {
            self.unreadable_shown.push((line, shortened(&reason)));
        }
    }

    /// All requests that were counted.
    pub(super) fn requests(&self) -> u64 {
        self.same + self.changed + self.now_without + self.newly_routed
    }

    /// The first of the lines, where none holds a request.
    pub(super) fn nothing_but_unreadable(&self) -> Option<(u64, String)> {
        if self.requests() > 0 { None } else { self.unreadable_shown.first().cloned() }
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
