//! Resources by kind and id, and what follows for others when one changes.

use super::document::{Context, Definition, Refusal, check, define, reason};
use super::{Change, Rejected, RejectedGlobalRule, Serving};
use crate::keys::gateway::Gateway;
use crate::model::{Config, Kind, Listener, Origin, Route, Ssl, StreamRoute, Target, Upstream, listeners_of, plugins};
use crate::resolve::plugins::{List, SharedPlugins, first_of_each};
use crate::resolve::{Identified, PluginSet, Shared};
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use stillgate_plugin::Chain;
use stillgate_schema::text::diagnostic::{Diagnostic, Sink};

/// All resources of a store, and what they mean.
#[derive(Debug)]
pub struct Store {
    gateway: Gateway,
    listeners: Vec<Listener>,
    rejected_global_rule: RejectedGlobalRule,
    /// What routes refer to.
    shared: Shared,
    held: BTreeMap<Key, Held>,
    /// Those that refer to a resource, whether it is there or not.
    dependants: HashMap<Key, BTreeSet<Key>>,
    /// By [`Upstream::key`].
    upstreams: BTreeMap<String, Arc<Upstream>>,
    routes: BTreeMap<Rank, Arc<Route>>,
    stream_routes: BTreeMap<Rank, Arc<StreamRoute>>,
    ssls: BTreeMap<Rank, Arc<Ssl>>,
    global_rules: BTreeMap<Rank, List>,
    rejected: BTreeMap<Key, Rejected>,
    warnings: BTreeMap<Key, Vec<Diagnostic>>,
}

type Key = (Kind, Arc<str>);
/// When a resource was made, and its id: the first comes first.
type Rank = (u64, Arc<str>);

/// A resource as it was put.
#[derive(Debug)]
struct Held {
    created: u64,
    document: Arc<Json>,
    origin: Origin,
    refusal: Option<Refusal>,
    /// The last one that was right, where this one is not.
    previous: Option<(Arc<Json>, Origin)>,
    /// What it refers to.
    references: Vec<Key>,
}

impl Store {
    /// Without any resource.
    pub fn new(gateway: Gateway, plugins: PluginSet, rejected_global_rule: RejectedGlobalRule) -> Store {
        Store {
            listeners: listeners_of(&gateway),
            gateway,
            rejected_global_rule,
            shared: nothing(plugins),
            held: BTreeMap::new(),
            dependants: HashMap::new(),
            upstreams: BTreeMap::new(),
            routes: BTreeMap::new(),
            stream_routes: BTreeMap::new(),
            ssls: BTreeMap::new(),
            global_rules: BTreeMap::new(),
            rejected: BTreeMap::new(),
            warnings: BTreeMap::new(),
        }
    }

    /// Takes changes in, the earlier first. What is looked at is what changed, and what refers to something that means something
    /// else by it.
    pub fn apply(&mut self, changes: impl IntoIterator<Item = Change>) {
        let mut dirty = BTreeSet::new();
        for change in changes {
            dirty.insert(self.hold(change));
        }
        // What refers to a resource is of a later kind.
        while let Some(key) = dirty.pop_first() {
            if self.settle(&key) {
                dirty.extend(self.dependants.get(&key).into_iter().flatten().cloned());
            }
        }
    }

    /// Everything as changes, by which another store comes to the same.
    pub fn list(&self) -> Vec<Change> {
        let mut changes = Vec::with_capacity(self.held.len());
        for ((kind, id), held) in &self.held {
            let put = |document: &Arc<Json>, origin: &Origin| Change::Put {
                kind: *kind,
                id: id.to_string(),
                document: (**document).clone(),
                created: held.created,
                origin: origin.clone(),
            };
            changes.extend(held.previous.iter().map(|(document, origin)| put(document, origin)));
            changes.push(put(&held.document, &held.origin));
        }
        changes
    }

    /// The resources that are not served as they were put.
    pub fn rejected(&self) -> impl Iterator<Item = &Rejected> {
        self.rejected.values()
    }

    /// What the writers of resources should know, by kind and id.
    pub fn warnings(&self) -> impl Iterator<Item = (Kind, &str, &Diagnostic)> {
        self.warnings.iter().flat_map(|((kind, id), warnings)| warnings.iter().map(|warning| (*kind, &**id, warning)))
    }

    /// What is to be served. `revision` takes the place of a file's digest.
    pub fn config(&self, revision: &str) -> Config {
        let denied = self.denied();
        let route = |route: &Arc<Route>| match &denied {
            Some(reason) => {
                let target = Target::Unavailable(reason.clone());
                Arc::new(Route { target, chain: None, ..(**route).clone() })
            }
            None => route.clone(),
        };
        Config {
            gateway: self.gateway.clone(),
            listeners: self.listeners.clone(),
            upstreams: self.upstreams.values().cloned().collect(),
            routes: self.routes.values().map(route).collect(),
            route_lines: vec![0; self.routes.len()],
            stream_routes: self.stream_routes.values().cloned().collect(),
            ssls: self.ssls.values().cloned().collect(),
            plugins: plugins::Shared { global: self.global(), ..plugins::Shared::default() },
            digest: revision.to_owned(),
        }
    }

    /// Why nothing may be served: a global rule cannot be understood, which may be what keeps clients out.
    fn denied(&self) -> Option<Arc<str>> {
        let is_denying = |of: &&Rejected| of.kind == Kind::GlobalRules && of.serving == Serving::Unavailable;
        if let Some(rule) = self.rejected.values().find(is_denying) {
            return Some(format!("the global rule {:?} cannot be used", rule.id).into());
        }
        let (kept, _) = first_of_each(self.global_rules.values());
        Chain::merge([&kept[..]]).err().map(|too_long| format!("the global rules: {too_long}").into())
    }

    fn global(&self) -> Arc<Chain> {
        let (kept, _) = first_of_each(self.global_rules.values());
        // More than a chain holds is denied: see `denied`.
        Chain::merge([&kept[..]]).map(Arc::new).unwrap_or_default()
    }

    /// Takes in a document, whether it is right or not.
    fn hold(&mut self, change: Change) -> Key {
        match change {
            Change::Delete { kind, id } => {
                let key = (kind, id.into());
                self.forget(&key);
                key
            }
            Change::Put { kind, id, document, created, origin } => {
                let key = (kind, Arc::from(id));
                let shared = &nothing(self.shared.plugins.set.clone());
                let cx = Context { gateway: &self.gateway, listeners: &self.listeners, shared };
                let refusal = check(kind, &key.1, &document, &cx).err();
                let before = self.forget(&key);
                let previous = before.filter(|_| refusal.is_some()).and_then(|before| match before.refusal {
                    None => Some((before.document, before.origin)),
                    Some(_) => before.previous,
                });
                let held =
                    Held { created, document: document.into(), origin, refusal, previous, references: Vec::new() };
                self.held.insert(key.clone(), held);
                key
            }
        }
    }

    /// Takes a resource out, with its place among the others of its kind.
    fn forget(&mut self, key: &Key) -> Option<Held> {
        let held = self.held.remove(key)?;
        for reference in &held.references {
            if let Some(dependants) = self.dependants.get_mut(reference) {
                dependants.remove(key);
                if dependants.is_empty() {
                    self.dependants.remove(reference);
                }
            }
        }
        let rank = (held.created, key.1.clone());
        match key.0 {
            Kind::Routes => drop(self.routes.remove(&rank)),
            Kind::StreamRoutes => drop(self.stream_routes.remove(&rank)),
            Kind::Ssls => drop(self.ssls.remove(&rank)),
            Kind::GlobalRules => drop(self.global_rules.remove(&rank)),
            _ => {}
        }
        Some(held)
    }

    /// Finds out what a resource means now; whether it is something else to those that refer to it.
    fn settle(&mut self, key: &Key) -> bool {
        self.rejected.remove(key);
        self.warnings.remove(key);
        let Some(held) = self.held.get(key) else { return self.place(key, 0, None) };
        let (created, document) =
            (held.created, held.previous.as_ref().map_or(&held.document, |(good, _)| good).clone());
        self.shared.plugins.forget_groups();
        let mut sink = Sink::of_one();
        let cx = Context { gateway: &self.gateway, listeners: &self.listeners, shared: &self.shared };
        let definition = define(key.0, &key.1, &document, &cx, &mut sink);
        self.refer(key, sink.take_references());
        let failed = sink.has_errors().then(|| reason(&std::mem::take(&mut sink).into_errors().diagnostics));
        let warnings = sink.into_warnings();
        if !warnings.is_empty() {
            self.warnings.insert(key.clone(), warnings);
        }
        let definition = self.judge(key, definition, failed);
        self.place(key, created, definition)
    }

    /// What is served of a resource whose definition has errors or not; notes where it is not what was put.
    fn judge(&mut self, key: &Key, definition: Option<Definition>, failed: Option<String>) -> Option<Definition> {
        let held = self.held.get(key)?;
        let failed = failed.or_else(|| definition.as_ref().and_then(Definition::is_unavailable));
        let (reason, serving) = match (&held.refusal, &failed) {
            (None, None) => return definition,
            (Some(refusal), None) => (refusal.reason.clone(), Serving::Previous),
            // What it refers to is missing: it is known what it would take.
            (None, Some(failed)) => (failed.clone(), Serving::Unavailable),
            (Some(refusal), Some(_)) => {
                let is_known = held.previous.is_some() || refusal.is_match_known;
                (refusal.reason.clone(), without_previous(key.0, is_known, self.rejected_global_rule))
            }
        };
        let rejected = Rejected { kind: key.0, id: key.1.to_string(), reason, origin: held.origin.clone(), serving };
        let definition = match serving {
            Serving::Previous => definition,
            Serving::Unavailable => definition.and_then(|definition| definition.unavailable(&rejected.reason)),
            Serving::Nothing => None,
        };
        self.rejected.insert(key.clone(), rejected);
        definition
    }

    fn refer(&mut self, key: &Key, references: Vec<(&'static str, String)>) {
        let of = |(kind, id): (&str, String)| Some((Kind::named(kind)?, Arc::from(id)));
        let references: Vec<Key> = references.into_iter().filter_map(of).collect();
        let Some(held) = self.held.get_mut(key) else { return };
        for gone in std::mem::replace(&mut held.references, references.clone()) {
            if let Some(dependants) = self.dependants.get_mut(&gone) {
                dependants.remove(key);
            }
        }
        for reference in references {
            self.dependants.entry(reference).or_default().insert(key.clone());
        }
    }

    /// Puts a definition where it is found; `None`: takes it away. Whether it is another one to those that refer to it.
    fn place(&mut self, (kind, id): &Key, created: u64, definition: Option<Definition>) -> bool {
        let rank = (created, id.clone());
        match (kind, definition) {
            (Kind::Ssls, definition) => {
                let ssl = if let Some(Definition::Ssl(ssl)) = definition { ssl } else { None };
                set(&mut self.ssls, rank, ssl.clone());
                self.shared.ssls.set(id, ssl)
            }
            (Kind::PluginConfigs, definition) => {
                let list = if let Some(Definition::PluginConfig(list)) = definition { Some(list) } else { None };
                set_shared(&mut self.shared.plugins.configs, id, list)
            }
            (Kind::GlobalRules, definition) => {
                let list = if let Some(Definition::GlobalRule(list)) = definition { Some(list) } else { None };
                set(&mut self.global_rules, rank, list)
            }
            (Kind::Upstreams, definition) => {
                let upstream =
                    if let Some(Definition::Upstream(upstream)) = definition { Some(upstream) } else { None };
                let said = upstream.as_ref().map(|upstream| (Arc::from(upstream.key.as_str()), upstream.protocol));
                set(&mut self.upstreams, id.to_string(), upstream);
                set_shared(&mut self.shared.upstream_ids, id, said)
            }
            (Kind::Services, definition) => {
                let (service, own) = match definition {
                    Some(Definition::Service(service, own)) => (Some(*service), own),
                    _ => (None, None),
                };
                set(&mut self.upstreams, format!("services/{id}"), own);
                set_shared(&mut self.shared.services, id, service)
            }
            (Kind::StreamRoutes, definition) => {
                let route = if let Some(Definition::StreamRoute(route)) = definition { route } else { None };
                let own = route.as_ref().and_then(|route| route.target.own());
                set(&mut self.upstreams, format!("stream_routes/{id}"), own);
                set(&mut self.stream_routes, rank, route.map(|route| Arc::new(*route)))
            }
            (Kind::Routes, definition) => {
                let route = if let Some(Definition::Route(route)) = definition { route } else { None };
                set(&mut self.upstreams, format!("routes/{id}"), route.as_ref().and_then(|route| route.target.own()));
                set(&mut self.routes, rank, route.map(|route| Arc::new(*route)))
            }
            (Kind::PluginMetadata | Kind::ConsumerGroups | Kind::Consumers, _) => false,
        }
    }
}

/// What a resource refers to where there is nothing else.
fn nothing(plugins: PluginSet) -> Shared {
    Shared { plugins: SharedPlugins::of(plugins), ..Shared::default() }
}

/// What is served where there is no version that was right.
fn without_previous(kind: Kind, is_match_known: bool, global_rule: RejectedGlobalRule) -> Serving {
    match kind {
        Kind::Routes | Kind::StreamRoutes if is_match_known => Serving::Unavailable,
        Kind::Routes | Kind::StreamRoutes | Kind::Ssls | Kind::Consumers | Kind::PluginMetadata => Serving::Nothing,
        Kind::GlobalRules if global_rule == RejectedGlobalRule::Ignore => Serving::Nothing,
        // Those that refer to it.
        _ => Serving::Unavailable,
    }
}

/// Whether it is another one than before. The same one stays where both are equal.
fn set<K: Ord, V: PartialEq>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) -> bool {
    match value {
        Some(value) if map.get(&key) == Some(&value) => false,
        Some(value) => {
            map.insert(key, value);
            true
        }
        None => map.remove(&key).is_some(),
    }
}

/// The same of what routes refer to.
fn set_shared<V: PartialEq>(map: &mut HashMap<String, Identified<V>>, id: &str, value: Option<V>) -> bool {
    match value {
        Some(value) if map.get(id).is_some_and(|known| known.value == value) => false,
        Some(value) => {
            map.insert(id.to_owned(), Identified { line: 0, value });
            true
        }
        None => map.remove(id).is_some(),
    }
}
