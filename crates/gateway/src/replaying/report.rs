//! What replaying a log came to, as text and as JSON; the only owner of both shapes.

use super::needs::Missing;
use super::tally::{self, Group, Outcome, Tally};
use crate::explaining::explanation::counted;
use serde::Serialize;
use std::path::Path;
use stillgate_config::Config;

/// Changes told one by one, the largest first: to programs and to people.
const CHANGES_MAX: usize = 1000;
const CHANGES_SHOWN_MAX: usize = 50;

/// The answer.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The log.
    file: String,
    /// The configuration that is served now.
    against: String,
    /// All that were read.
    requests: u64,
    /// Take the same route, or none in both.
    same: u64,
    /// Take another route, or are refused otherwise than before.
    changed: u64,
    /// Took a route and take none any more.
    without_route: u64,
    /// Took none and take one now.
    newly_routed: u64,
    /// The largest first.
    changes: Vec<Change>,
    /// What is not told one by one.
    omitted: Omitted,
    unreadable: Unreadable,
    /// Requests of which the log says otherwise what route took them, if any, than the configuration that is served now
    /// gives: it was written with another one, or lacks what routes read.
    recorded_otherwise: u64,
    /// What routes read and lines lack: the answer may be wrong for those.
    missing_fields: Vec<MissingField>,
}

#[derive(Debug, Serialize)]
struct Change {
    old: Side,
    new: Side,
    requests: u64,
    examples: Vec<Example>,
}

/// What becomes of requests in one of the configurations.
#[derive(Debug, Serialize)]
struct Side {
    /// The route's id; null: none takes them.
    route: Option<String>,
    /// Where the route begins in its file.
    line: Option<u32>,
    /// What is answered where no route takes them.
    status: Option<u16>,
}

#[derive(Debug, Serialize)]
struct Example {
    line: u64,
    method: String,
    scheme: String,
    host: String,
    uri: String,
}

#[derive(Debug, Serialize)]
struct Omitted {
    changes: usize,
    /// Of these, and those below.
    requests: u64,
    /// Requests of changes that were too many to be told apart.
    ungrouped: u64,
}

#[derive(Debug, Serialize)]
struct Unreadable {
    lines: u64,
    first: Vec<Reason>,
}

#[derive(Debug, Serialize)]
struct Reason {
    line: u64,
    reason: String,
}

#[derive(Debug, Serialize)]
struct MissingField {
    /// As routes have it.
    field: String,
    /// How the log would name it.
    name: String,
    /// How many routes read it.
    routes: usize,
    /// How many lines lack it.
    lines: u64,
}

impl Report {
    pub(super) fn new(log: &Path, old: (&Path, &Config), new: &Config, tally: Tally, missing: Vec<Missing>) -> Report {
        let (old_file, old) = old;
        let requests = tally.requests();
        let mut groups: Vec<((Outcome, Outcome), Group)> = tally.groups.into_iter().collect();
        let first_line = |group: &Group| group.examples.first().map(|example| example.line);
        groups.sort_by(|(_, a), (_, b)| (b.count, first_line(a)).cmp(&(a.count, first_line(b))));
        let left_out = groups.split_off(groups.len().min(CHANGES_MAX));
        let omitted = Omitted {
            changes: left_out.len(),
            ungrouped: tally.ungrouped,
            requests: tally.ungrouped + left_out.iter().map(|(_, group)| group.count).sum::<u64>(),
        };
        let change = |((from, to), group): ((Outcome, Outcome), Group)| Change {
            old: Side::new(from, old),
            new: Side::new(to, new),
            requests: group.count,
            examples: group
                .examples
                .into_iter()
                .map(|tally::Example { line, method, scheme, host, target }| Example {
                    line,
                    method,
                    scheme,
                    host,
                    uri: target,
                })
                .collect(),
        };
        let first = tally.unreadable_shown.into_iter().map(|(line, reason)| Reason { line, reason }).collect();
        Report {
            file: log.display().to_string(),
            against: old_file.display().to_string(),
            requests,
            same: tally.same,
            changed: tally.changed,
            without_route: tally.now_without,
            newly_routed: tally.newly_routed,
            changes: groups.into_iter().map(change).collect(),
            omitted,
            recorded_otherwise: tally.recorded_otherwise,
            unreadable: Unreadable { lines: tally.unreadable, first },
            missing_fields: missing
                .into_iter()
                .map(|Missing { field, key, routes, lines }| MissingField { field, name: key, routes, lines })
                .collect(),
        }
    }

    /// Whether every request takes the route it took.
    pub(crate) fn changes_nothing(&self) -> bool {
        self.same == self.requests
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        let (file, against) = (&self.file, &self.against);
        let requests = many(self.requests, "request");
        match self.changes_nothing() {
            true => out.push_str(&format!("{file}: {requests}, each takes the route it takes with {against}\n")),
            false => out.push_str(&format!(
                "{file}: of {requests}, {} other than with {against}: {}\n",
                self.requests - self.same,
                self.kinds()
            )),
        }
        for change in self.changes.iter().take(CHANGES_SHOWN_MAX) {
            change.write(&mut out);
        }
        let more = self.changes.iter().skip(CHANGES_SHOWN_MAX);
        let more_requests = self.omitted.requests + more.clone().map(|change| change.requests).sum::<u64>();
        if more_requests > 0 {
            let changes = many((self.omitted.changes + more.len()) as u64, "further change");
            let at_least = if self.omitted.ungrouped > 0 { "more than " } else { "" };
            out.push_str(&format!("  and {at_least}{changes} of {}\n", many(more_requests, "request")));
        }
        if self.unreadable.lines > 0 {
            out.push_str(&format!("{file}: {} cannot be read\n", many(self.unreadable.lines, "line")));
            for Reason { line, reason } in &self.unreadable.first {
                out.push_str(&format!("  line {line}: {reason}\n"));
            }
        }
        if self.recorded_otherwise > 0 {
            out.push_str(&format!(
                "{file}: warning: it says otherwise than {against} what route takes {}; was it written with another \
                 configuration?\n",
                many(self.recorded_otherwise, "request")
            ));
        }
        for MissingField { field, name, routes, lines } in &self.missing_fields {
            let (reads, lack) =
                (if *routes == 1 { "reads" } else { "read" }, if *lines == 1 { "lacks" } else { "lack" });
            out.push_str(&format!(
                "{file}: warning: {} {reads} {field}, but {} {lack} {name}, so the answer may be wrong; log it too\n",
                many(*routes as u64, "route"),
                many(*lines, "line"),
            ));
        }
        out
    }

    /// What changes, by kind.
    fn kinds(&self) -> String {
        let kinds =
            [(self.changed, "changed"), (self.without_route, "now without route"), (self.newly_routed, "newly routed")];
        let told: Vec<String> =
            kinds.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
        told.join(", ")
    }
}

impl Change {
    fn write(&self, out: &mut String) {
        out.push_str(&format!("  {} -> {}: {}\n", self.old.text(), self.new.text(), many(self.requests, "request")));
        for Example { line, method, scheme, host, uri } in &self.examples {
            let url = match host.is_empty() {
                true => uri.clone(),
                false => format!("{scheme}://{host}{uri}"),
            };
            // What clients sent must not move the terminal's cursor.
            out.push_str(&format!("    line {line}: {} {}\n", method.escape_debug(), url.escape_debug()));
        }
    }
}

impl Side {
    fn new(outcome: Outcome, config: &Config) -> Side {
        let without = |status| Side { route: None, line: None, status: Some(status) };
        match outcome {
            Outcome::Route(position) => Side {
                route: Some(config.routes[position].spec.id.clone()),
                line: Some(config.route_lines[position]),
                status: None,
            },
            Outcome::NoRoute => without(404),
            Outcome::Refused => without(400),
        }
    }

    fn text(&self) -> String {
        match (&self.route, self.line, self.status) {
            (Some(route), Some(line), _) => format!("{route:?} (line {line})"),
            (_, _, Some(400)) => "refused (400)".to_owned(),
            _ => "no route (404)".to_owned(),
        }
    }
}

fn many(count: u64, what: &str) -> String {
    counted(usize::try_from(count).unwrap_or(usize::MAX), what).unwrap_or_else(|| format!("no {what}s"))
}
