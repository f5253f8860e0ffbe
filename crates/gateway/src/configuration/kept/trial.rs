//! Finds out the result of a transaction before it is made.

use super::addresses::{key_of, resource_of};
use super::keeper::Keeper;
use crate::configuration::tls_material;
use std::collections::HashSet;
use std::sync::Arc;
use stillgate_config::{Attempt, Change, Config, Origin, RejectedResource, Replacement, ResourceKind, chain_lint};
use stillgate_datastore::{Documents as _, Key, Transaction, Write};
use stillgate_route::lint::{Finding, FindingKind, lint};
use stillgate_route::{PLACES_MAX, fits};
use stillgate_tls::{Material, Problem, TlsProblems};

/// The result that a transaction would have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Trial {
    /// Why one of its documents cannot be used.
    pub(crate) refusals: Vec<String>,
    /// Warnings for the writer.
    pub(crate) warnings: Vec<String>,
    /// Effects on other resources.
    pub(crate) effects: Vec<(Key, String)>,
}

impl Trial {
    /// Several checks may find the same.
    fn say_once(&mut self) {
        let (mut warnings, mut effects) = (HashSet::new(), HashSet::new());
        self.warnings.retain(|warning| warnings.insert(warning.clone()));
        self.effects.retain(|effect| effects.insert(effect.clone()));
    }
}

impl Keeper {
    /// Finds out what result a transaction would have.
    pub(super) fn try_out(&self, transaction: &Transaction) -> Trial {
        self.look(transaction, None)
    }

    /// Like `try_out`, with the findings of the lint and the configuration that would be served.
    pub(super) fn look_over(&self, transaction: &Transaction) -> (Trial, Option<Config>) {
        let mut next = None;
        let trial = self.look(transaction, Some(&mut next));
        (trial, next)
    }

    /// `next`: to be set to what would be served, which is looked over then.
    fn look(&self, transaction: &Transaction, next: Option<&mut Option<Config>>) -> Trial {
        let revision = self.revision() + 1;
        let origin = || Origin::named(transaction.author.action.as_str());
        let mut changed = HashSet::new();
        let (mut changes, mut misread) = (Vec::with_capacity(transaction.writes.len()), Vec::new());
        for write in &transaction.writes {
            let Some((kind, id)) = resource_of(write.key()) else { continue };
            changed.insert((kind, id.clone()));
            changes.push(match write {
                Write::Delete { .. } => Change::Delete { kind, id },
                Write::Put { key, value, .. } => {
                    misread.extend(self.encryption.misreading_reason(key, value).map(|why| format!("{key}: {why}")));
                    let created = self.get(key).map_or(revision, |document| document.created);
                    Change::Put { kind, id, document: value.as_str().into(), created, origin: origin() }
                }
            });
        }
        let has_tls = changes.iter().any(is_about_tls);
        let may_add_pairs = changes.iter().any(may_add_pairs);
        let (mut problems, mut linted, mut too_many_pairs) = (Vec::new(), LintResult::default(), None);
        self.checker().fetch(changes.iter().filter_map(Change::document));
        let attempt = self.meaning().store.attempt(changes, |store| {
            let checks_tls = has_tls && store.uses_tls();
            if !checks_tls && !may_add_pairs && next.is_none() {
                return;
            }
            let config = store.load("").config;
            if checks_tls {
                problems = self.tls_problems(&config);
            }
            if may_add_pairs && !fits(config.routes.iter().map(|route| &*route.spec)) {
                too_many_pairs = Some(pairs(&config));
            }
            if let Some(next) = next {
                linted = lint_changed(&config, &changed);
                *next = Some(config);
            }
        });
        let mut trial = sort_messages(attempt, &changed);
        trial.refusals.extend(misread);
        // A change for the better is made, even if it is not enough.
        if too_many_pairs.is_some_and(|count| count > pairs(&self.meaning().store.load("").config)) {
            trial.refusals.push(format!(
                "all routes together would have more than {PLACES_MAX} pairs of a host and a path; use fewer hosts or paths"
            ));
        }
        trial.warnings.extend(linted.warnings);
        trial.effects.extend(linted.effects);
        for (kind, id, reason) in problems {
            if changed.contains(&(kind, id.clone())) {
                trial.refusals.push(reason_with_resource(kind, &id, reason, &changed));
            } else {
                trial.effects.push((key_of(kind, &id), reason));
            }
        }
        trial.say_once();
        trial
    }

    /// The resources whose certificates cannot be used as their files are now, with the reasons.
    fn tls_problems(&self, config: &Config) -> Vec<(ResourceKind, String, String)> {
        let known = self.tls().clone();
        self.take_tls(tls_material::load(config, known.as_deref()).map(|(material, _)| material))
    }

    /// The resources whose certificates cannot be used, with the reasons. An unchanged one keeps those that it has.
    pub(super) fn unusable_tls(&self, config: &Config) -> Vec<(ResourceKind, String, String)> {
        let known = self.tls().clone();
        self.take_tls(tls_material::load_keeping_unchanged(config, known.as_deref()).map(|(material, _)| material))
    }

    fn take_tls(&self, loaded: Result<Arc<Material>, TlsProblems>) -> Vec<(ResourceKind, String, String)> {
        match loaded {
            Ok(material) => {
                *self.tls() = Some(material);
                Vec::new()
            }
            Err(refused) => refused.errors.iter().filter_map(resource_with).collect(),
        }
    }
}

/// Separates the messages of an attempt into those about the changed resources, and those about others.
fn sort_messages(attempt: Attempt, changed: &HashSet<(ResourceKind, String)>) -> Trial {
    // The prefix is not needed where warnings are shown.
    let bare = |warning: String| warning.strip_prefix("warning: ").map(str::to_owned).unwrap_or(warning);
    let warnings = attempt.warnings.iter().map(|warning| bare(warning.to_string())).collect();
    let mut trial = Trial { warnings, ..Trial::default() };
    for RejectedResource { kind, id, reason, serving, .. } in attempt.rejected {
        if changed.contains(&(kind, id.clone())) {
            trial.refusals.push(reason_with_resource(kind, &id, reason, changed));
            continue;
        }
        let what = match serving {
            Replacement::Previous => format!("its last valid version is served: {reason}"),
            Replacement::Unavailable => format!("answers 503: {reason}"),
            Replacement::Nothing => format!("is not served: {reason}"),
        };
        trial.effects.push((key_of(kind, &id), what));
    }
    trial
}

/// The reason, with the resource where it is one of several.
fn reason_with_resource(
    kind: ResourceKind,
    id: &str,
    reason: String,
    changed: &HashSet<(ResourceKind, String)>,
) -> String {
    match changed.len() {
        0 | 1 => reason,
        _ => format!("{}: {reason}", key_of(kind, id)),
    }
}

/// Whether it can add pairs of a host and a path: a service gives its hosts to its routes.
fn may_add_pairs(change: &Change) -> bool {
    matches!(change, Change::Put { kind: ResourceKind::Routes | ResourceKind::Services, .. })
}

/// The pairs of a host and a path that all routes have.
fn pairs(config: &Config) -> usize {
    config.routes.iter().filter_map(|route| route.spec.uri()).map(|uri| uri.places()).sum()
}

/// Whether certificates have to be checked.
fn is_about_tls(change: &Change) -> bool {
    match change {
        Change::Put { kind: ResourceKind::Ssls, .. } => true,
        Change::Put {
            kind: ResourceKind::Upstreams | ResourceKind::Services | ResourceKind::Routes | ResourceKind::StreamRoutes,
            document,
            ..
        } => document.contains("\"tls\"") || document.contains("\"https\""),
        _ => false,
    }
}

/// The resource that a problem is in: `ssls["1"].cert`, `upstreams["routes/7"].tls`.
fn resource_with(problem: &Problem) -> Option<(ResourceKind, String, String)> {
    let (list, rest) = problem.path.split_once("[\"")?;
    let (id, _) = rest.split_once("\"]")?;
    let (kind, id) = match list {
        "ssls" => (ResourceKind::Ssls, id),
        // Upstreams are known by the resource that they are written in, and behind it the place in a plugin.
        "upstreams" => match id.split_once('/') {
            None => (ResourceKind::Upstreams, id),
            Some((kind, rest)) => (ResourceKind::from_name(kind)?, rest.split_once('/').map_or(rest, |(id, _)| id)),
        },
        _ => return None,
    };
    Some((kind, id.to_owned(), problem.to_string()))
}

// The findings of `stillgate check` about the routes that a transaction changes, before it is made.

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
pub(super) fn lint_changed(config: &Config, changed: &HashSet<(ResourceKind, String)>) -> LintResult {
    let mut linted = LintResult::default();
    let is_changed = |id: &str| changed.contains(&(ResourceKind::Routes, id.to_owned()));
    if !changed.iter().any(|(kind, _)| *kind == ResourceKind::Routes) {
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
            linted.warnings.push(finding_text(&finding, changed));
        } else if stands_behind(&finding, is_changed) {
            linted.effects.push((key_of(ResourceKind::Routes, &finding.id), finding.to_string()));
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
fn finding_text(finding: &Finding, changed: &HashSet<(ResourceKind, String)>) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::kept::store;
    use crate::configuration::source::plugins;
    use serde_json::json;
    use stillgate_config::load;
    use stillgate_datastore::Author;

    /// What one transaction may add is bounded by what all routes have.
    #[test]
    fn routes_have_a_bound_of_pairs_together() {
        let gateway = load("gateway: {}\nroutes: []\n", &|_| None).unwrap().config.gateway;
        let keeper = Keeper::new(&store::KIND.traits, &gateway, plugins());
        let all = |prefix: &str| (0..256).map(|at| format!("{prefix}{at}")).collect::<Vec<_>>();
        let route = json!({"uris": all("/p"), "hosts": all("h"), "upstream": {"nodes": {"127.0.0.1:9": 1}}});
        let refusals = |count: usize| {
            let put = |at: usize| {
                let key = Key::from_etcd_path(&format!("routes/{at}"));
                Write::Put { key, value: route.to_string(), ttl_seconds: None }
            };
            let author = Author { name: String::new(), address: String::new(), action: String::new() };
            let writes = (0..count).map(put).collect();
            keeper.try_out(&Transaction { conditions: Vec::new(), unreferenced: Vec::new(), writes, author }).refusals
        };
        assert_eq!(refusals(64), [""; 0]);
        let refused = refusals(65);
        assert!(
            refused.len() == 1 && refused[0].contains("more than 4194304 pairs of a host and a path"),
            "{refused:?}"
        );
    }
}
