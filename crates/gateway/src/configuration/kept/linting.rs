//! The findings of `stillgate check` about the routes that a transaction changes, before it is made.

use super::addresses::key_of;
use crate::configuration::chain_lint::chain_lint;
use std::collections::HashSet;
use std::sync::Arc;
use stillgate_config::{Config, Kind};
use stillgate_datastore::Key;
use stillgate_route::lint::{Finding, FindingKind, lint};

/// Maximum number of routes that are compared: writes wait meanwhile. `stillgate check` takes any number.
const ROUTES_MAX: usize = 10_000;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct LintResult {
    /// About the changed routes.
    pub(super) warnings: Vec<String>,
    /// About other routes, which the changed ones precede.
    pub(super) effects: Vec<(Key, String)>,
}

/// Looks at the routes among these resources, as they would be served.
pub(super) fn lint_changed(config: &Config, changed: &HashSet<(Kind, String)>) -> LintResult {
    let mut linted = LintResult::default();
    let is_changed = |id: &str| changed.contains(&(Kind::Routes, id.to_owned()));
    if !changed.iter().any(|(kind, _)| *kind == Kind::Routes) {
        return linted;
    }
    if config.routes.len() > ROUTES_MAX {
        linted.warnings.push(format!(
            "not looked for routes that take each other's requests: there are {} routes, and more than {ROUTES_MAX} take too \
             long; `stillgate export` and `stillgate check` do it",
            config.routes.len()
        ));
        return linted;
    }
    let specs: Vec<Arc<_>> = config.routes.iter().map(|route| route.spec.clone()).collect();
    for finding in lint(&specs).findings {
        if is_changed(&finding.id) {
            linted.warnings.push(about(&finding, changed));
        } else if stands_behind(&finding, is_changed) {
            linted.effects.push((key_of(Kind::Routes, &finding.id), finding.to_string()));
        }
    }
    for finding in chain_lint(config).findings {
        let route = finding.route.and_then(|route| config.routes.iter().nth(route));
        if let Some(route) = route.filter(|route| is_changed(&route.spec.id)) {
            let warning = format!("{}: {}", finding.message, finding.hint);
            linted.warnings.push(match changed.len() {
                1 => warning,
                _ => format!("routes/{}: {warning}", route.spec.id),
            });
        }
    }
    linted
}

/// The finding, with its route where several resources are changed.
fn about(finding: &Finding, changed: &HashSet<(Kind, String)>) -> String {
    match changed.len() {
        1 => finding.to_string(),
        _ => format!("routes/{}: {finding}", finding.id),
    }
}

/// Whether a changed route is among those that take a route's requests.
fn stands_behind(finding: &Finding, is_changed: impl Fn(&str) -> bool) -> bool {
    match &finding.kind {
        FindingKind::Shadowed { by, .. } => by.iter().any(|(_, id)| is_changed(id)),
        FindingKind::SameButOrder { by: (_, id), .. } => is_changed(id),
        _ => false,
    }
}
