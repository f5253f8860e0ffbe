//! Counts the outcomes of requests in two configurations, with examples.
//!
//! Routes with the same id are the same.

use crate::explain::request_head::RequestHead;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;
use stillgate_config::{Config, Route};
use stillgate_plugin_api::{Chain, ChainEntry};

/// The most pairs of an old and a new route that are counted separately.
const GROUPS_MAX: usize = 16_384;
/// Number of example requests shown per pair.
const EXAMPLES_MAX: usize = 3;
/// Number of unreadable lines shown.
const UNREADABLE_SHOWN_MAX: usize = 5;
/// Longest host, target and reason, as shown.
const SHOWN_CHARS_MAX: usize = 200;

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ReplayOutcome {
    /// A route takes it, by its position.
    Route(usize),
    /// No route takes it; it is answered with 404.
    NoRoute,
    /// Its path is ambiguous; it is answered with 400.
    Refused,
}

/// Counts.
pub(super) struct Tally<'a> {
    old: &'a Config,
    new: &'a Config,
    /// The position of the new route with the same id, by the position of the old one.
    new_of_old: Vec<Option<usize>>,
    /// Requests that keep their route but pass other plugins.
    pub(super) other_plugins: u64,
    /// Their changes, by route.
    pub(super) plugins: HashMap<ReplayOutcome, PluginChange>,
    pub(super) same: u64,
    pub(super) changed: u64,
    pub(super) now_without: u64,
    pub(super) newly_routed: u64,
    pub(super) groups: HashMap<(ReplayOutcome, ReplayOutcome), OutcomeGroup>,
    /// Requests of pairs beyond [`GROUPS_MAX`].
    pub(super) ungrouped: u64,
    /// Requests for which the log records another route than the old configuration gives.
    pub(super) recorded_otherwise: u64,
    pub(super) unreadable: u64,
    pub(super) unreadable_shown: Vec<(u64, String)>,
}

/// The requests of one old and one new outcome.
#[derive(Debug, Default)]
pub(super) struct OutcomeGroup {
    pub(super) count: u64,
    pub(super) examples: Vec<Example>,
}

/// Requests that keep their route but pass other plugins than before.
pub(super) struct PluginChange {
    pub(super) difference: PluginDifference,
    pub(super) group: OutcomeGroup,
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

impl<'a> Tally<'a> {
    pub(super) fn new(old: &'a Config, new: &'a Config) -> Tally<'a> {
        let positions: HashMap<&str, usize> =
            new.routes.iter().enumerate().map(|(position, route)| (route.spec.id.as_str(), position)).collect();
        Tally {
            old,
            new,
            new_of_old: old.routes.iter().map(|route| positions.get(route.spec.id.as_str()).copied()).collect(),
            other_plugins: 0,
            plugins: HashMap::new(),
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

    /// Counts a request by its outcome in the old and the new configuration.
    pub(super) fn count(&mut self, outcomes: (ReplayOutcome, ReplayOutcome), line: u64, head: &RequestHead) {
        let is_same = match outcomes {
            (ReplayOutcome::Route(old), ReplayOutcome::Route(new)) => self.new_of_old[old] == Some(new),
            (old, new) => old == new,
        };
        if is_same {
            self.same += 1;
            self.count_plugins(outcomes, line, head);
            return;
        }
        match outcomes {
            (ReplayOutcome::Route(_), ReplayOutcome::NoRoute | ReplayOutcome::Refused) => self.now_without += 1,
            (ReplayOutcome::NoRoute | ReplayOutcome::Refused, ReplayOutcome::Route(_)) => self.newly_routed += 1,
            _ => self.changed += 1,
        }
        if self.groups.len() >= GROUPS_MAX && !self.groups.contains_key(&outcomes) {
            self.ungrouped += 1;
            return;
        }
        let group = self.groups.entry(outcomes).or_default();
        group.count += 1;
        if group.examples.len() < EXAMPLES_MAX {
            group.examples.push(Example::new(line, head));
        }
    }

    /// Counts a request that keeps its route by the changes of its plugins.
    fn count_plugins(&mut self, (old, new): (ReplayOutcome, ReplayOutcome), line: u64, head: &RequestHead) {
        if old == ReplayOutcome::Refused {
            return;
        }
        // Each route is compared once.
        if self.plugins.len() >= GROUPS_MAX && !self.plugins.contains_key(&old) {
            return;
        }
        let change = self.plugins.entry(old).or_insert_with(|| {
            let difference = PluginDifference::of((self.old, route(self.old, old)), (self.new, route(self.new, new)));
            PluginChange { difference, group: OutcomeGroup::default() }
        });
        if change.difference.is_empty() {
            return;
        }
        self.other_plugins += 1;
        change.group.count += 1;
        if change.group.examples.len() < EXAMPLES_MAX {
            change.group.examples.push(Example::new(line, head));
        }
    }

    /// Counts a line without a request.
    pub(super) fn unreadable(&mut self, line: u64, reason: String) {
        self.unreadable += 1;
        if self.unreadable_shown.len() < UNREADABLE_SHOWN_MAX {
            self.unreadable_shown.push((line, shortened(&reason)));
        }
    }

    /// All counted requests.
    pub(super) fn requests(&self) -> u64 {
        self.same + self.changed + self.now_without + self.newly_routed
    }

    /// The first unreadable line, if no line contains a request.
    pub(super) fn nothing_but_unreadable(&self) -> Option<(u64, String)> {
        if self.requests() > 0 { None } else { self.unreadable_shown.first().cloned() }
    }
}

impl Example {
    fn new(line: u64, head: &RequestHead) -> Example {
        Example {
            line,
            method: shortened(&head.method),
            scheme: shortened(&head.scheme),
            host: shortened(&head.authority),
            target: shortened(&head.target),
        }
    }
}

fn route(config: &Config, outcome: ReplayOutcome) -> Option<&Route> {
    match outcome {
        ReplayOutcome::Route(position) => Some(&config.routes[position]),
        ReplayOutcome::NoRoute | ReplayOutcome::Refused => None,
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

// The difference between the plugins of two routes with the same id, or of requests that no route takes.

/// Names of plugins, each list sorted and without duplicates.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct PluginDifference {
    added: Vec<&'static str>,
    removed: Vec<&'static str>,
    /// Plugins with another configuration.
    changed: Vec<&'static str>,
}

impl PluginDifference {
    /// Compares the plugins that run for every consumer: the global rules and the route's chain.
    pub(super) fn of(old: (&Config, Option<&Route>), new: (&Config, Option<&Route>)) -> PluginDifference {
        let mut difference = PluginDifference::default();
        let (old, new) = (chains(old), chains(new));
        for (old, new) in old.into_iter().zip(new) {
            difference.add(old.map_or(&[], Chain::entries), new.map_or(&[], Chain::entries));
        }
        for list in [&mut difference.added, &mut difference.removed, &mut difference.changed] {
            list.sort_unstable();
            list.dedup();
        }
        difference
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == PluginDifference::default()
    }

    /// `adds cors; removes key-auth`.
    pub(super) fn text(&self) -> String {
        let lists = [("adds", &self.added), ("removes", &self.removed), ("changes", &self.changed)];
        let told: Vec<String> = lists
            .iter()
            .filter(|(_, names)| !names.is_empty())
            .map(|(what, names)| format!("{what} {}", names.join(", ")))
            .collect();
        told.join("; ")
    }

    fn add(&mut self, old: &[Arc<ChainEntry>], new: &[Arc<ChainEntry>]) {
        let has = |list: &[Arc<ChainEntry>], name| list.iter().any(|entry| entry.name == name);
        // Several global rules may have the same plugin.
        for entry in old.iter().filter(|entry| !new.contains(entry)) {
            if has(new, entry.name) { self.changed.push(entry.name) } else { self.removed.push(entry.name) }
        }
        for entry in new.iter().filter(|entry| !old.contains(entry)) {
            if has(old, entry.name) { self.changed.push(entry.name) } else { self.added.push(entry.name) }
        }
    }
}

/// The global rules, which come first, and the route's plugins.
fn chains<'a>((config, route): (&'a Config, Option<&'a Route>)) -> [Option<&'a Chain>; 2] {
    [Some(&*config.plugins.global), route.and_then(|route| route.chain.as_deref())]
}
