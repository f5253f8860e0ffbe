//! The lookup tables of a store's compiled definitions.

use super::served::{Store, consumer_of};
use super::stored_resource::{Key, readable};
use crate::model::{Kind, Replacement, Upstream};
use crate::resources::Definition;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use stillgate_plugin::{Consumer, Credential};

impl Store {
    /// Adds a definition; `None`: removes it. Returns whether it changed for those that refer to it.
    pub(super) fn place(&mut self, (kind, id): &Key, created: u64, definition: Option<Definition>) -> bool {
        let rank = (created, id.clone());
        let mut is_other = self.catalog.put(*kind, id, 0, definition.as_ref());
        if *kind == Kind::PluginMetadata {
            let rejected = self.rejected.get(&(*kind, id.clone()));
            let is_refused = rejected.is_some_and(|rejected| rejected.serving == Replacement::Unavailable);
            is_other |= self.catalog.refuse_metadata(id, is_refused);
        }
        if *kind == Kind::Services {
            let refused = self.rejected.contains_key(&(*kind, id.clone())) && definition.is_none();
            let held = self.held.get(&(*kind, id.clone())).filter(|_| refused);
            let document = held.map(|held| readable(*kind, id, held.served()));
            is_other |= self.catalog.refuse_service(id, document.as_ref().map(Option::as_ref));
        }
        let upstreams = definition.as_ref().map_or(Vec::new(), Definition::upstreams);
        self.place_upstreams(*kind, id, upstreams);
        match (kind, definition) {
            (Kind::Ssls, Some(Definition::Ssl(ssl, _))) => set(&mut self.ssls, rank, ssl),
            (Kind::Ssls, _) => set(&mut self.ssls, rank, None),
            (Kind::PluginMetadata, Some(Definition::Metadata(of))) => set(&mut self.metadata, id.clone(), Some(of)),
            (Kind::PluginMetadata, _) => set(&mut self.metadata, id.clone(), None),
            (Kind::GlobalRules, Some(Definition::GlobalRule(list))) => set(&mut self.global_rules, rank, Some(list)),
            (Kind::GlobalRules, _) => set(&mut self.global_rules, rank, None),
            (Kind::StreamRoutes, Some(Definition::StreamRoute(route))) => set(&mut self.stream_routes, rank, route),
            (Kind::StreamRoutes, _) => set(&mut self.stream_routes, rank, None),
            (Kind::Routes, Some(Definition::Route(Some(route)))) => self.routes.put(created, route),
            (Kind::Routes, _) => self.routes.remove(created, id),
            (Kind::Credentials, definition) => {
                let credential = match definition {
                    Some(Definition::Credential(credential)) => Some(credential),
                    _ => None,
                };
                set(&mut self.credentials, id.clone(), credential);
                self.dirty.insert((Kind::Consumers, consumer_of(id).into()));
            }
            (Kind::Consumers, definition) => self.place_consumer(id, definition),
            (
                Kind::Secrets
                | Kind::PluginConfigs
                | Kind::ConsumerGroups
                | Kind::Upstreams
                | Kind::Services
                | Kind::Protos,
                _,
            ) => {}
        }
        is_other
    }

    /// Replaces the upstreams of a resource.
    fn place_upstreams(&mut self, kind: Kind, id: &str, upstreams: Vec<Arc<Upstream>>) {
        if id.is_empty() || id.contains('/') {
            // It is refused, so it has none; and `routes/1` as the id of an upstream is the key of a route's inline one.
            return;
        }
        let own = if kind == Kind::Upstreams { id.to_owned() } else { format!("{}/{id}", kind.name()) };
        let mut new: BTreeMap<String, Arc<Upstream>> =
            upstreams.into_iter().map(|upstream| (upstream.key.clone(), upstream)).collect();
        // The upstreams of its plugins. Ids contain no slash, and "0" is the next character.
        let of_plugins = self.upstreams.range(format!("{own}/")..format!("{own}0")).map(|(key, _)| key.clone());
        for key in [own].into_iter().chain(of_plugins.collect::<Vec<_>>()) {
            let upstream = new.remove(&key);
            set(&mut self.upstreams, key, upstream);
        }
        new.into_iter().for_each(|(key, upstream)| set(&mut self.upstreams, key, Some(upstream)));
    }

    /// A consumer, including the credentials that are stored separately.
    fn with_own_credentials(
        &self,
        consumer: Consumer,
        mut credentials: Vec<Credential>,
    ) -> (Consumer, Vec<Credential>) {
        let (from, to) = (format!("{}/", consumer.name), format!("{}0", consumer.name));
        let range = (Bound::Included(&*from), Bound::Excluded(&*to));
        let mut ids = consumer.credentials.into_vec();
        for (id, credential) in self.credentials.range::<str, _>(range) {
            credentials.push(Credential { place: u16::try_from(ids.len()).ok(), ..credential.clone() });
            ids.push(id[from.len()..].into());
        }
        (Consumer { credentials: ids.into(), ..consumer }, credentials)
    }

    fn place_consumer(&mut self, name: &str, definition: Option<Definition>) {
        match definition {
            Some(Definition::Consumer(consumer, credentials)) => {
                let (consumer, credentials) = self.with_own_credentials(consumer, credentials);
                // No other consumer has one of them: claims ensure that. A duplicate of its own is found by the first.
                let _ = Arc::make_mut(&mut self.consumers).replace(consumer, credentials);
            }
            _ if self.consumers.named(name).is_some() => drop(Arc::make_mut(&mut self.consumers).remove(name)),
            _ => {}
        }
    }
}

/// Adds or removes a value. An equal one is not replaced.
fn set<K: Ord, V: PartialEq>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) if map.get(&key) == Some(&value) => {}
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
}
