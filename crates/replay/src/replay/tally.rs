//! Counts the outcomes of requests in two configurations, with examples, and puts them into the JSON format for programs. Only
//! this file knows the format. Routes with the same id are the same.

use super::recorded::UnloggedField;
use crate::explain::request_head::RequestHead;
use serde::Serialize;
use std::cmp::Ordering;
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
    now_without: u64,
    pub(super) newly_routed: u64,
    groups: HashMap<(ReplayOutcome, ReplayOutcome), OutcomeGroup>,
    /// Requests of pairs beyond [`GROUPS_MAX`].
    pub(super) ungrouped: u64,
    /// Requests for which the log records another route than the old configuration gives.
    pub(super) recorded_otherwise: u64,
    pub(super) unreadable: u64,
    unreadable_shown: Vec<(u64, String)>,
}

/// The requests of one old and one new outcome.
#[derive(Debug, Default)]
pub(super) struct OutcomeGroup {
    pub(super) count: u64,
    pub(super) examples: Vec<ExampleRequest>,
}

/// Requests that keep their route but pass other plugins than before.
pub(super) struct PluginChange {
    pub(super) difference: PluginDifference,
    pub(super) group: OutcomeGroup,
}

/// A recorded request.
#[derive(Debug)]
pub(super) struct ExampleRequest {
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
            group.examples.push(ExampleRequest::new(line, head));
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
            change.group.examples.push(ExampleRequest::new(line, head));
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

impl ExampleRequest {
    fn new(line: u64, head: &RequestHead) -> ExampleRequest {
        ExampleRequest {
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

/// The most changes that are listed, the largest first.
const CHANGES_MAX: usize = 1000;

/// The result of a comparison.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// All requests that were read.
    pub(super) requests: u64,
    /// Requests that take the same route, or none in both.
    pub(super) same: u64,
    /// Requests that take another route, or are refused for another reason than before.
    pub(super) changed: u64,
    /// Requests that had a route and have none any more.
    pub(super) without_route: u64,
    /// Requests that had no route and have one now.
    pub(super) newly_routed: u64,
    /// The largest first.
    pub(super) changes: Vec<RouteChange>,
    /// Requests that take the same route but pass other plugins.
    pub(super) other_plugins: u64,
    /// The largest first.
    pub(super) plugin_changes: Vec<OtherPlugins>,
    /// The part of `changes` that is not listed.
    pub(super) omitted: OmittedCounts,
    pub(super) unreadable: Unreadable,
    /// Requests for which the log records another route, or none, than the current configuration gives: the log was written with
    /// another configuration, or lacks fields that routes read.
    pub(super) recorded_otherwise: u64,
    /// Fields that routes read and lines lack: the results for those lines may be wrong.
    pub(super) missing_fields: Vec<MissingField>,
}

/// Requests that keep their route.
#[derive(Debug, Serialize)]
pub(super) struct OtherPlugins {
    /// The route's id; null: no route takes them, and global rules differ.
    pub(super) route: Option<String>,
    #[serde(flatten)]
    pub(super) difference: PluginDifference,
    pub(super) requests: u64,
    pub(super) examples: Vec<Example>,
}

#[derive(Debug, Serialize)]
pub(super) struct RouteChange {
    pub(super) old: ReplaySide,
    pub(super) new: ReplaySide,
    pub(super) requests: u64,
    pub(super) examples: Vec<Example>,
}

/// The outcome of requests in one of the configurations.
#[derive(Debug, Serialize)]
pub(super) struct ReplaySide {
    /// The route's id; null: no route takes them.
    pub(super) route: Option<String>,
    /// The line in which the route begins.
    pub(super) line: Option<u32>,
    /// The status of the response if no route takes them.
    pub(super) status: Option<u16>,
}

#[derive(Debug, Serialize)]
pub(super) struct Example {
    pub(super) line: u64,
    pub(super) method: String,
    pub(super) scheme: String,
    pub(super) host: String,
    pub(super) uri: String,
}

#[derive(Debug, Serialize)]
pub(super) struct OmittedCounts {
    pub(super) changes: usize,
    /// Requests of these changes, and of those below.
    pub(super) requests: u64,
    /// Requests of changes beyond the number that is counted separately.
    pub(super) ungrouped: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct Unreadable {
    pub(super) lines: u64,
    pub(super) first: Vec<RefusedLine>,
}

#[derive(Debug, Serialize)]
pub(super) struct RefusedLine {
    pub(super) line: u64,
    pub(super) reason: String,
}

#[derive(Debug, Serialize)]
pub(super) struct MissingField {
    /// The name in routes.
    pub(super) field: String,
    /// The name in the access log.
    pub(super) name: String,
    /// Number of routes that read it.
    pub(super) routes: usize,
    /// Number of lines that lack it.
    pub(super) lines: u64,
}

impl Comparison {
    /// Removes queries, which may contain keys that the receiver of an answer must not see.
    pub fn without_queries(mut self) -> Comparison {
        let of_changes = self.changes.iter_mut().flat_map(|change| &mut change.examples);
        let of_plugins = self.plugin_changes.iter_mut().flat_map(|change| &mut change.examples);
        for Example { uri, .. } in of_changes.chain(of_plugins) {
            if let Some(path) = uri.find('?') {
                uri.truncate(path + 1);
                uri.push('…');
            }
        }
        self
    }

    pub(super) fn new(old: &Config, new: &Config, tally: Tally<'_>, missing: Vec<UnloggedField>) -> Comparison {
        let requests = tally.requests();
        let plugin_changes = plugin_changes(old, tally.plugins);
        let mut groups: Vec<((ReplayOutcome, ReplayOutcome), OutcomeGroup)> = tally.groups.into_iter().collect();
        groups.sort_by(|(_, a), (_, b)| by_size(a, b));
        let left_out = groups.split_off(groups.len().min(CHANGES_MAX));
        let omitted = OmittedCounts {
            changes: left_out.len(),
            ungrouped: tally.ungrouped,
            requests: tally.ungrouped + left_out.iter().map(|(_, group)| group.count).sum::<u64>(),
        };
        let change = |((from, to), group): ((ReplayOutcome, ReplayOutcome), OutcomeGroup)| RouteChange {
            old: ReplaySide::new(from, old),
            new: ReplaySide::new(to, new),
            requests: group.count,
            examples: examples(group),
        };
        let first = tally.unreadable_shown.into_iter().map(|(line, reason)| RefusedLine { line, reason }).collect();
        let missing_field = |UnloggedField { field, key, routes, lines }: UnloggedField| MissingField {
            field,
            name: key,
            routes,
            lines,
        };
        Comparison {
            requests,
            same: tally.same,
            changed: tally.changed,
            without_route: tally.now_without,
            newly_routed: tally.newly_routed,
            changes: groups.into_iter().map(change).collect(),
            other_plugins: tally.other_plugins,
            plugin_changes,
            omitted,
            recorded_otherwise: tally.recorded_otherwise,
            unreadable: Unreadable { lines: tally.unreadable, first },
            missing_fields: missing.into_iter().map(missing_field).collect(),
        }
    }
}

fn plugin_changes(old: &Config, changes: HashMap<ReplayOutcome, PluginChange>) -> Vec<OtherPlugins> {
    let mut changes: Vec<(ReplayOutcome, PluginChange)> =
        changes.into_iter().filter(|(_, change)| change.group.count > 0).collect();
    changes.sort_by(|(_, a), (_, b)| by_size(&a.group, &b.group));
    changes.truncate(CHANGES_MAX);
    let told = |(outcome, PluginChange { difference, group }): (ReplayOutcome, PluginChange)| OtherPlugins {
        route: ReplaySide::new(outcome, old).route,
        difference,
        requests: group.count,
        examples: examples(group),
    };
    changes.into_iter().map(told).collect()
}

/// Orders by descending size, then by first occurrence.
fn by_size(a: &OutcomeGroup, b: &OutcomeGroup) -> Ordering {
    let first_line = |group: &OutcomeGroup| group.examples.first().map(|example| example.line);
    b.count.cmp(&a.count).then_with(|| first_line(a).cmp(&first_line(b)))
}

fn examples(group: OutcomeGroup) -> Vec<Example> {
    let example =
        |ExampleRequest { line, method, scheme, host, target }| Example { line, method, scheme, host, uri: target };
    group.examples.into_iter().map(example).collect()
}

impl ReplaySide {
    fn new(outcome: ReplayOutcome, config: &Config) -> ReplaySide {
        let without = |status| ReplaySide { route: None, line: None, status: Some(status) };
        match outcome {
            ReplayOutcome::Route(position) => ReplaySide {
                route: Some(config.routes[position].spec.id.clone()),
                line: Some(config.route_lines[position]),
                status: None,
            },
            ReplayOutcome::NoRoute => without(404),
            ReplayOutcome::Refused => without(400),
        }
    }
}
