//! The results of two configurations for recorded requests, in the JSON format for programs. Only this file knows the format.

use super::needs::UnloggedField;
use super::tally::PluginDifference;
use super::tally::{self, OutcomeGroup, PluginChange, ReplayOutcome, Tally};
use serde::Serialize;
use std::cmp::Ordering;
use std::collections::HashMap;
use stillgate_config::Config;

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
        |tally::Example { line, method, scheme, host, target }| Example { line, method, scheme, host, uri: target };
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
