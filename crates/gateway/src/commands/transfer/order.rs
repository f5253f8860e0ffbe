//! The order of changes that do not fit into one batch, as with etcd: between two batches no route is without a plugin that it had
//! before and has in the file.
//!
//! What adds a guard comes first, what removes one last. [`gaps`] then follows the plugins of each route from batch to batch: it
//! finds what no order of these phases can keep. It knows which plugins a route has, not their configuration, nor which requests it
//! takes; for those there is only the order: guarded routes are made before open ones and deleted after them.

use super::plan::{StepKind, TransferStep, rank};
use super::resources::{Name, Resource, Resources, path_of};
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};
use stillgate_config::ResourceKind;

/// Plugins whose configuration in a consumer is a credential, which guards nothing.
const CREDENTIALS: [&str; 7] =
    ["basic-auth", "hmac-auth", "jwe-decrypt", "jwt-auth", "key-auth", "ldap-auth", "wolf-rbac"];

/// The keys that say which requests or connections a route takes.
const MATCHES: [&str; 16] = [
    "uri",
    "uris",
    "host",
    "hosts",
    "methods",
    "remote_addr",
    "remote_addrs",
    "vars",
    "filter_func",
    "expression",
    "priority",
    "status",
    "server_addr",
    "server_port",
    "sni",
    "service_id",
];

/// When a change is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TransferPhase {
    /// What others refer to, as far as it loses no plugin.
    Referred,
    ConsumersGone,
    Consumers,
    /// Global rules, if they lose no plugin together.
    Rules,
    /// Routes that take the same requests as before, or have plugins.
    GuardedRoutes,
    /// Routes that take other requests than before.
    MovedRoutes,
    /// Routes that lose a plugin.
    WeakerRoutes,
    OpenRoutes,
    OpenRoutesGone,
    GuardedRoutesGone,
    /// What others refer to, if it loses a plugin.
    Weaker,
    /// Global rules that lose a plugin.
    WeakerRules,
    ReferredGone,
}

/// The names of plugins that are not disabled.
type PluginNames<'a> = BTreeSet<&'a str>;

/// What can be found by a kind and an id.
type Find<'a, 'f> = &'f dyn Fn(ResourceKind, &str) -> Option<&'a Json>;

/// Brings the changes into their order, and marks those that must share a batch.
pub(super) fn put_in_order(steps: &mut [TransferStep], file: &Resources, there: &Resources) {
    let (loses_any, loses_all) = losses_of_rules(steps, file, there);
    let phase = |step: &TransferStep| match step.name.0 {
        ResourceKind::GlobalRules if loses_all => TransferPhase::WeakerRules,
        ResourceKind::GlobalRules => TransferPhase::Rules,
        _ => phase_of(step, file, there),
    };
    let place = |name: &Name| file.get(name).map_or(0, |resource| resource.created);
    steps.sort_by_cached_key(|step| {
        let is_put = step.kind != StepKind::Delete;
        (phase(step), is_put, rank(step), place(&step.name), step.name.clone())
    });
    if loses_any {
        let rules = steps.iter_mut().filter(|step| step.name.0 == ResourceKind::GlobalRules);
        rules.for_each(|step| step.is_joined = true);
    }
}

/// Whether one of the changed global rules loses a plugin, and whether all of them together do.
fn losses_of_rules(steps: &[TransferStep], file: &Resources, there: &Resources) -> (bool, bool) {
    let changed = || steps.iter().filter(|step| step.name.0 == ResourceKind::GlobalRules);
    let names = |all: &Resources, name: &Name| {
        all.get(name)
            .map_or(BTreeSet::new(), |rule| own_plugins(&rule.document).into_iter().map(str::to_owned).collect())
    };
    let is_kept = |step: &TransferStep| step.kind != StepKind::Delete;
    let after: BTreeSet<String> =
        changed().filter(|step| is_kept(step)).flat_map(|step| names(file, &step.name)).collect();
    let before: BTreeSet<String> = changed().flat_map(|step| names(there, &step.name)).collect();
    let loses = |step: &TransferStep| {
        let new = if is_kept(step) { names(file, &step.name) } else { BTreeSet::new() };
        !names(there, &step.name).is_subset(&new)
    };
    (changed().any(loses), !before.is_subset(&after))
}

fn phase_of(step: &TransferStep, file: &Resources, there: &Resources) -> TransferPhase {
    let (kind, name) = (step.name.0, &step.name);
    let (new, old) = (file.get(name).map(|new| &new.document), there.get(name).map(|old| &old.document));
    let is_route = matches!(kind, ResourceKind::Routes | ResourceKind::StreamRoutes);
    let old_plugins = || old.map_or(BTreeSet::new(), |old| plugins_of(kind, old, &|kind, id| found(there, kind, id)));
    match (&step.kind, new) {
        (StepKind::Delete, _) if matches!(kind, ResourceKind::Consumers | ResourceKind::Credentials) => {
            TransferPhase::ConsumersGone
        }
        (StepKind::Delete, _) if is_route && old_plugins().is_empty() => TransferPhase::OpenRoutesGone,
        (StepKind::Delete, _) if is_route => TransferPhase::GuardedRoutesGone,
        (StepKind::Delete, _) | (_, None) => TransferPhase::ReferredGone,
        (_, Some(new)) if is_route => {
            let in_file = |kind, id: &str| found(file, kind, id).or_else(|| found(there, kind, id));
            route_phase(new, old, &plugins_of(kind, new, &in_file), &old_plugins())
        }
        (_, Some(new)) => {
            let is_consumer = kind == ResourceKind::Consumers;
            let counts = |name: &&str| !is_consumer || !CREDENTIALS.contains(name);
            let lost = old
                .map_or(BTreeSet::new(), own_plugins)
                .difference(&own_plugins(new))
                .filter(|name| counts(name))
                .count();
            match lost {
                0 if is_consumer || kind == ResourceKind::Credentials => TransferPhase::Consumers,
                0 => TransferPhase::Referred,
                _ => TransferPhase::Weaker,
            }
        }
    }
}

fn route_phase(
    new: &Json,
    old: Option<&Json>,
    plugins: &PluginNames<'_>,
    old_plugins: &PluginNames<'_>,
) -> TransferPhase {
    let is_same_match = old.is_some_and(|old| MATCHES.iter().all(|key| new.get(*key) == old.get(*key)));
    let is_weaker = !old_plugins.is_subset(plugins);
    match (is_same_match, is_weaker) {
        (true, false) => TransferPhase::GuardedRoutes,
        (true, true) => TransferPhase::WeakerRoutes,
        (false, _) if plugins.is_empty() => TransferPhase::OpenRoutes,
        (false, true) => TransferPhase::OpenRoutes,
        (false, false) if old.is_none() => TransferPhase::GuardedRoutes,
        (false, false) => TransferPhase::MovedRoutes,
    }
}

fn found<'a>(all: &'a Resources, kind: ResourceKind, id: &str) -> Option<&'a Json> {
    all.get(&(kind, id.to_owned())).map(|resource| &resource.document)
}

/// The plugins that are written in a resource.
fn own_plugins(document: &Json) -> PluginNames<'_> {
    let mut plugins = BTreeMap::new();
    add_plugins(document, &mut plugins);
    active(plugins)
}

/// The plugins of a route, with those of its plugin config and its service.
fn plugins_of<'a>(kind: ResourceKind, route: &'a Json, find: Find<'a, '_>) -> PluginNames<'a> {
    let mut plugins = BTreeMap::new();
    let references = [("service_id", ResourceKind::Services), ("plugin_config_id", ResourceKind::PluginConfigs)];
    for (key, referred) in
        references.into_iter().filter(|(key, _)| kind == ResourceKind::Routes || *key == "service_id")
    {
        let id = route.get(key).map(|id| id.as_str().map_or_else(|| id.to_string(), str::to_owned));
        if let Some(document) = id.and_then(|id| find(referred, &id)) {
            add_plugins(document, &mut plugins);
        }
    }
    add_plugins(route, &mut plugins);
    active(plugins)
}

/// Later ones take the place of earlier ones.
fn add_plugins<'a>(document: &'a Json, plugins: &mut BTreeMap<&'a str, bool>) {
    for (name, configuration) in document.get("plugins").and_then(Json::as_object).into_iter().flatten() {
        plugins.insert(name, configuration.pointer("/_meta/disable") != Some(&Json::Bool(true)));
    }
}

fn active(plugins: BTreeMap<&str, bool>) -> PluginNames<'_> {
    plugins.into_iter().filter_map(|(name, is_active)| is_active.then_some(name)).collect()
}

/// The resources at a moment.
struct TransferState<'a>(BTreeMap<&'a Name, &'a Json>);

impl<'a> TransferState<'a> {
    fn of(all: &'a Resources) -> TransferState<'a> {
        TransferState(all.iter().map(|(name, resource)| (name, &resource.document)).collect())
    }

    fn make(&mut self, step: &'a TransferStep, file: &'a Resources) {
        match file.get(&step.name).filter(|_| step.kind != StepKind::Delete) {
            Some(Resource { document, .. }) => drop(self.0.insert(&step.name, document)),
            None => drop(self.0.remove(&step.name)),
        }
    }

    fn rules(&self) -> PluginNames<'a> {
        let rules = self.0.iter().filter(|(name, _)| name.0 == ResourceKind::GlobalRules);
        rules.flat_map(|(_, document)| own_plugins(document)).collect()
    }

    /// The plugins of a route; `None`: there is no such route.
    fn plugins(&self, route: &Name, rules: &PluginNames<'a>) -> Option<PluginNames<'a>> {
        let find = |kind, id: &str| self.0.get(&(kind, id.to_owned())).copied();
        let own = plugins_of(route.0, self.0.get(route)?, &find);
        Some(own.union(rules).copied().collect())
    }
}

/// The routes that would be without a plugin between two of these batches: those that have it before and after all changes, new ones
/// that have it after them, and deleted ones that had it.
pub(super) fn gaps(batches: &[&[TransferStep]], file: &Resources, there: &Resources) -> Vec<String> {
    let (before, mut now) = (TransferState::of(there), TransferState::of(there));
    let mut after = TransferState::of(there);
    batches.iter().copied().flatten().for_each(|step| after.make(step, file));
    let (rules_before, rules_after) = (before.rules(), after.rules());
    let needed = |route: &Name| match (before.plugins(route, &rules_before), after.plugins(route, &rules_after)) {
        (Some(before), Some(after)) => before.intersection(&after).copied().collect(),
        (before, after) => before.or(after).unwrap_or_default(),
    };
    let is_route = |name: &Name| matches!(name.0, ResourceKind::Routes | ResourceKind::StreamRoutes);
    let is_shared = |name: &Name| {
        matches!(name.0, ResourceKind::GlobalRules | ResourceKind::Services | ResourceKind::PluginConfigs)
    };
    let mut found = BTreeSet::new();
    for batch in batches.split_last().map_or(&[][..], |(_, others)| others) {
        batch.iter().for_each(|step| now.make(step, file));
        let rules = now.rules();
        let affected: Vec<&Name> = match batch.iter().any(|step| is_shared(&step.name)) {
            true => now.0.keys().copied().filter(|name| is_route(name)).collect(),
            false => batch.iter().map(|step| &step.name).filter(|name| is_route(name)).collect(),
        };
        for route in affected {
            let Some(has) = now.plugins(route, &rules) else { continue };
            found.extend(needed(route).difference(&has).map(|plugin| format!("{} without {plugin}", path_of(route))));
        }
    }
    found.into_iter().collect()
}

/// At most this many pairs are listed.
const REORDERED_MAX: usize = 100;

/// Pairs of routes in the file with the same path, host and priority that the gateway will try in the opposite order, if the one it
/// tries first lacks a plugin that the other has. The gateway tries the older route first; if both are new, the lesser id.
pub(super) fn reordered(file: &Resources, there: &Resources) -> Vec<String> {
    let find = |kind, id: &str| found(file, kind, id).or_else(|| found(there, kind, id));
    let texts = |route: &Resource, one: &str, many: &str| -> Vec<String> {
        let several = route.document.get(many).and_then(Json::as_array).into_iter().flatten();
        several.chain(route.document.get(one)).filter_map(Json::as_str).map(str::to_owned).collect()
    };
    let mut groups = BTreeMap::<_, Vec<(&Name, &Resource)>>::new();
    for (name, route) in file.iter().filter(|(name, _)| name.0 == ResourceKind::Routes) {
        let priority = route.document["priority"].as_i64().unwrap_or_default();
        let mut hosts = texts(route, "host", "hosts");
        if hosts.is_empty() {
            hosts.push(String::new());
        }
        for path in texts(route, "uri", "uris") {
            for host in &hosts {
                groups.entry((path.clone(), host.clone(), priority)).or_default().push((name, route));
            }
        }
    }
    // New routes are younger than all others, and equally old.
    let age = |name: &Name| (there.get(name).map_or(u64::MAX, |route| route.created), name.1.clone());
    let methods = |route: &Resource| texts(route, "methods", "methods");
    let mut pairs = BTreeSet::new();
    for mut group in groups.into_values().filter(|group| group.len() > 1) {
        group.sort_by_key(|(_, route)| route.created);
        let group: Vec<_> = group
            .into_iter()
            .map(|(name, route)| {
                (name, age(name), methods(route), plugins_of(ResourceKind::Routes, &route.document, &find))
            })
            .collect();
        for (place, (first, first_age, first_methods, plugins)) in group.iter().enumerate() {
            for (second, second_age, second_methods, other) in &group[place + 1..] {
                let meet = first_methods.is_empty()
                    || second_methods.is_empty()
                    || first_methods.iter().any(|method| second_methods.contains(method));
                if pairs.len() < REORDERED_MAX && first_age > second_age && meet && !plugins.is_subset(other) {
                    pairs.insert(format!("{} before {}", path_of(second), path_of(first)));
                }
            }
        }
    }
    pairs.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::super::plan::{BatchBounds, plan};
    use super::*;
    use serde_json::json;

    fn resources(lists: &Json) -> Resources {
        let mut all = Resources::new();
        for (list, documents) in lists.as_object().unwrap() {
            for document in documents.as_array().unwrap() {
                let name = (ResourceKind::from_name(list).unwrap(), document["id"].as_str().unwrap().to_owned());
                all.insert(name, Resource { document: document.clone(), created: all.len() as u64, at: None });
            }
        }
        all
    }

    fn routes(more: &Json) -> Vec<Json> {
        let route = |number: usize| {
            let mut route = json!({"id": format!("r{number:03}"), "uri": format!("/{number}/*")});
            route.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            route
        };
        (0..200).map(route).collect()
    }

    /// All changes, by path, in their order.
    fn planned(there: &Json, file: &Json) -> (Vec<String>, Vec<String>, Vec<usize>) {
        let plan = plan(&resources(file), &resources(there), true, BatchBounds::SMALL).unwrap();
        let paths = plan.steps.iter().map(|step| {
            let sign = if step.kind == StepKind::Delete { "-" } else { "" };
            format!("{sign}{}", path_of(&step.name))
        });
        let sizes = plan.batches().iter().map(|batch| batch.len()).collect();
        (paths.collect(), plan.gaps, sizes)
    }

    #[track_caller]
    fn check(there: Json, file: Json, order: &[&str]) {
        let (paths, gaps, _) = planned(&there, &file);
        assert_eq!(gaps, [""; 0]);
        let places: Vec<_> = order.iter().map(|path| paths.iter().position(|of| of == path).expect(path)).collect();
        assert!(places.is_sorted(), "{order:?} {places:?}");
    }

    const GUARD: fn() -> Json = || json!({"key-auth": {}});

    #[test]
    fn guards_are_added_before_they_are_removed() {
        let rule = |id: &str| json!([{"id": id, "plugins": GUARD()}]);
        let guarded = || routes(&json!({"plugins": GUARD()}));
        check(
            json!({"global_rules": rule("1"), "routes": routes(&json!({}))}),
            json!({"routes": guarded()}),
            &["routes/r000", "routes/r199", "-global_rules/1"],
        );
        check(
            json!({"routes": guarded()}),
            json!({"global_rules": rule("1"), "routes": routes(&json!({}))}),
            &["global_rules/1", "routes/r000"],
        );
        let config = |plugins: Json| json!([{"id": "p", "plugins": plugins}]);
        check(
            json!({"plugin_configs": config(GUARD()), "routes": routes(&json!({"plugin_config_id": "p"}))}),
            json!({"plugin_configs": config(json!({"cors": {}})), "routes": routes(&json!({"plugin_config_id": "p", "plugins": GUARD()}))}),
            &["routes/r199", "plugin_configs/p"],
        );
        let service = |plugins: Json| json!([{"id": "s", "plugins": plugins}]);
        let disabled = json!({"key-auth": {"_meta": {"disable": true}}});
        for without in [json!({}), disabled] {
            check(
                json!({"services": service(GUARD()), "routes": routes(&json!({"service_id": "s"}))}),
                json!({"services": service(without), "routes": routes(&json!({"service_id": "s", "plugins": GUARD()}))}),
                &["routes/r199", "services/s"],
            );
        }
        check(
            json!({"services": service(json!({})), "routes": routes(&json!({"service_id": "s", "plugins": GUARD()}))}),
            json!({"services": service(GUARD()), "routes": routes(&json!({"service_id": "s"}))}),
            &["services/s", "routes/r000"],
        );
    }

    #[test]
    fn open_routes_are_made_last_and_deleted_first() {
        let mut all = vec![json!({"id": "all", "uri": "/*"})];
        all.extend(routes(&json!({})));
        all.push(json!({"id": "admin", "uri": "/admin/*", "plugins": GUARD()}));
        let lists = json!({ "routes": all });
        check(json!({}), lists.clone(), &["routes/admin", "routes/all", "routes/r199"]);
        check(lists, json!({"routes": []}), &["-routes/all", "-routes/r199", "-routes/admin"]);
    }

    #[test]
    fn a_rule_with_another_id_shares_a_batch_with_the_old_one() {
        let rule = |id: &str| json!([{"id": id, "plugins": GUARD()}]);
        let consumers: Vec<Json> =
            (0..127).map(|id| json!({"id": format!("c{id}"), "username": format!("c{id}")})).collect();
        let there = json!({"global_rules": rule("1"), "routes": [{"id": "r", "uri": "/*"}]});
        let mut new = routes(&json!({}));
        new.push(there["routes"][0].clone());
        let file = json!({"global_rules": rule("auth"), "consumers": consumers, "routes": new});
        let (paths, gaps, sizes) = planned(&there, &file);
        assert_eq!(
            (&paths[127..129], gaps.len()),
            (&["-global_rules/1".to_owned(), "global_rules/auth".to_owned()][..], 0)
        );
        assert_eq!(sizes, [127, 128, 74]);
    }

    #[test]
    fn what_no_order_keeps_is_named() {
        let service = |plugin: &str| json!([{"id": "s", "plugins": {plugin: {}}}]);
        let with = |plugin: &str| routes(&json!({"service_id": "s", "plugins": {plugin: {}}}));
        let (_, gaps, _) = planned(
            &json!({"services": service("key-auth"), "routes": with("ip-restriction")}),
            &json!({"services": service("ip-restriction"), "routes": with("key-auth")}),
        );
        assert_eq!((gaps.len(), gaps[0].as_str()), (128, "routes/r000 without ip-restriction"));
        let few = |plugin: &str| with(plugin)[..3].to_vec();
        let (_, gaps, _) = planned(
            &json!({"services": service("key-auth"), "routes": few("ip-restriction")}),
            &json!({"services": service("ip-restriction"), "routes": few("key-auth")}),
        );
        assert_eq!(gaps, [""; 0], "all of it is one batch");
    }

    #[test]
    fn routes_that_the_gateway_tries_in_another_order_are_listed() {
        let route = |id: &str, more: Json| {
            let mut route = json!({"id": id, "uri": "/x"});
            route.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            route
        };
        let guarded = |id: &str| route(id, json!({"plugins": GUARD()}));
        let check = |there: &[Json], file: &[Json], expected: &[&str]| {
            let (there, file) = (json!({ "routes": there }), json!({ "routes": file }));
            assert_eq!(reordered(&resources(&file), &resources(&there)), expected);
        };
        let open = |id: &str| route(id, json!({}));
        check(&[], &[guarded("z"), open("a")], &["routes/a before routes/z"]);
        check(&[], &[guarded("a"), open("z")], &[]);
        check(&[open("z")], &[guarded("a"), open("z")], &["routes/z before routes/a"]);
        // Nothing is lost where the other has the same plugins, another path, host or priority.
        check(&[], &[open("z"), guarded("a")], &[]);
        check(&[], &[guarded("z"), guarded("a")], &[]);
        check(&[], &[guarded("z"), route("a", json!({"host": "h"}))], &[]);
        check(&[], &[guarded("z"), route("a", json!({"priority": -1}))], &[]);
        let only = |id: &str, method: &str, more: Json| {
            let mut route = route(id, more);
            route["methods"] = json!([method]);
            route
        };
        check(&[], &[only("z", "GET", json!({"plugins": GUARD()})), only("a", "POST", json!({}))], &[]);
        check(&[], &[only("z", "GET", json!({"plugins": GUARD()})), open("a")], &["routes/a before routes/z"]);
        check(&[], &[guarded("z"), json!({"id": "a", "uris": ["/y", "/x"]})], &["routes/a before routes/z"]);
    }
}
