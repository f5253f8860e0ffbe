//! The difference between the plugins of two routes with the same id, or of requests that no route takes.

use serde::Serialize;
use std::sync::Arc;
use stillgate_config::{Config, Route};
use stillgate_plugin::{Chain, ChainEntry};

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
