//! The result of replaying a log, as text and as JSON.

use super::comparison::{Comparison, Example, MissingField, OtherPlugins, RefusedLine, ReplaySide, RouteChange};
use crate::explain::explanation::counted;
use serde::Serialize;
use std::path::Path;

/// The most changes that are listed for people, the largest first.
const CHANGES_SHOWN_MAX: usize = 50;

/// The result.
#[derive(Debug, Serialize)]
pub struct ReplayReport {
    /// The log.
    file: String,
    /// The current configuration.
    against: String,
    #[serde(flatten)]
    found: Comparison,
}

impl ReplayReport {
    pub(super) fn new(log: &Path, old_file: &Path, found: Comparison) -> ReplayReport {
        ReplayReport { file: log.display().to_string(), against: old_file.display().to_string(), found }
    }

    /// Whether every request takes the same route as before.
    pub fn changes_nothing(&self) -> bool {
        self.found.same == self.found.requests
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let (file, against) = (&self.file, &self.against);
        let requests = many(self.found.requests, "request");
        match self.changes_nothing() {
            true => out.push_str(&format!("{file}: {requests}, each takes the route it takes with {against}\n")),
            false => out.push_str(&format!(
                "{file}: of {requests}, {} other than with {against}: {}\n",
                self.found.requests - self.found.same,
                self.kinds()
            )),
        }
        for change in self.found.changes.iter().take(CHANGES_SHOWN_MAX) {
            change.write(&mut out);
        }
        let more = self.found.changes.iter().skip(CHANGES_SHOWN_MAX);
        let more_requests = self.found.omitted.requests + more.clone().map(|change| change.requests).sum::<u64>();
        if more_requests > 0 {
            let changes = many((self.found.omitted.changes + more.len()) as u64, "further change");
            let at_least = if self.found.omitted.ungrouped > 0 { "more than " } else { "" };
            out.push_str(&format!("  and {at_least}{changes} of {}\n", many(more_requests, "request")));
        }
        self.write_plugin_changes(&mut out);
        if self.found.unreadable.lines > 0 {
            out.push_str(&format!("{file}: {} cannot be read\n", many(self.found.unreadable.lines, "line")));
            for RefusedLine { line, reason } in &self.found.unreadable.first {
                out.push_str(&format!("  line {line}: {reason}\n"));
            }
        }
        if self.found.recorded_otherwise > 0 {
            out.push_str(&format!(
                "{file}: warning: it names another route than {against} for {}; was it written with another \
                 configuration?\n",
                many(self.found.recorded_otherwise, "request")
            ));
        }
        for MissingField { field, name, routes, lines } in &self.found.missing_fields {
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

    fn write_plugin_changes(&self, out: &mut String) {
        let Comparison { other_plugins, plugin_changes, .. } = &self.found;
        if *other_plugins == 0 {
            return;
        }
        let requests = many(*other_plugins, "request");
        let (go, keep) = if *other_plugins == 1 { ("goes", "keeps its") } else { ("go", "keep their") };
        out.push_str(&format!("{}: {requests} {keep} route and {go} through other plugins\n", self.file));
        for OtherPlugins { route, difference, requests, .. } in plugin_changes.iter().take(CHANGES_SHOWN_MAX) {
            let route = route.as_ref().map_or("no route (404)".to_owned(), |route| format!("{route:?}"));
            out.push_str(&format!("  {route}: {}: {}\n", difference.text(), many(*requests, "request")));
        }
        if plugin_changes.len() > CHANGES_SHOWN_MAX {
            let more = plugin_changes.len() - CHANGES_SHOWN_MAX;
            out.push_str(&format!("  and {} more\n", many(more as u64, "route")));
        }
    }

    /// The changes by kind.
    fn kinds(&self) -> String {
        let kinds = [
            (self.found.changed, "changed"),
            (self.found.without_route, "now without route"),
            (self.found.newly_routed, "newly routed"),
        ];
        let told: Vec<String> =
            kinds.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
        told.join(", ")
    }
}

impl RouteChange {
    fn write(&self, out: &mut String) {
        out.push_str(&format!("  {} -> {}: {}\n", self.old.text(), self.new.text(), many(self.requests, "request")));
        for Example { line, method, scheme, host, uri } in &self.examples {
            let url = match host.is_empty() {
                true => uri.clone(),
                false => format!("{scheme}://{host}{uri}"),
            };
            // Text from clients must not move the terminal's cursor.
            out.push_str(&format!("    line {line}: {} {}\n", method.escape_debug(), url.escape_debug()));
        }
    }
}

impl ReplaySide {
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
