//! The compiled content of `plugin_metadata`.

use crate::identity::Identity;
use serde_json::Value as Json;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// The content of `plugin_metadata`, by plugin.
///
/// A list, as requests look into it, and few plugins have any.
#[derive(Default, Clone)]
pub struct MetadataTable(Vec<MetadataItem>);

/// The metadata of one plugin.
#[derive(Clone)]
pub struct MetadataItem {
    /// The plugin's name.
    pub plugin: &'static str,
    /// Changes with its text.
    pub identity: Identity,
    /// The compiled metadata.
    pub value: Arc<dyn Any + Send + Sync>,
    /// Its text with resolved secrets, without the id.
    pub written: Arc<Json>,
}

impl MetadataTable {
    /// Removes the metadata of a plugin.
    pub fn remove(&mut self, plugin: &str) {
        self.0.retain(|item| item.plugin != plugin);
    }

    /// Sets the metadata of a plugin.
    pub fn insert(&mut self, item: MetadataItem) {
        self.remove(item.plugin);
        self.0.push(item);
    }

    /// The compiled metadata of a plugin.
    #[inline]
    pub fn get<T: 'static>(&self, plugin: &str) -> Option<&T> {
        self.item(plugin)?.value.downcast_ref()
    }

    /// The whole entry of a plugin.
    #[inline]
    pub fn item(&self, plugin: &str) -> Option<&MetadataItem> {
        self.0.iter().find(|item| item.plugin == plugin)
    }
}

/// Compares identities: equal for the same configuration, read once or twice.
impl PartialEq for MetadataTable {
    fn eq(&self, other: &MetadataTable) -> bool {
        let is_there = |item: &MetadataItem| other.item(item.plugin).is_some_and(|of| of.identity == item.identity);
        self.0.len() == other.0.len() && self.0.iter().all(is_there)
    }
}

impl fmt::Debug for MetadataTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter().map(|item| item.plugin)).finish()
    }
}
