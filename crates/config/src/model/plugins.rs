//! Compiled plugins: those of every request, the consumers, and the metadata of plugins.

use std::sync::Arc;
use stillgate_plugin_api::{Chain, Consumers, CustomPlugins, MetadataTable};

/// The plugins that do not belong to a route.
#[derive(Debug, Clone, Default)]
pub struct SharedPlugins {
    /// The merged plugins of `global_rules`.
    pub global: Arc<Chain>,
    /// The consumers.
    pub consumers: Arc<Consumers>,
    /// `plugin_metadata`
    pub metadata: Arc<MetadataTable>,
    /// The plugins from the operator's files.
    pub custom: CustomPlugins,
}

/// Compares pointers first, since there may be many consumers.
impl PartialEq for SharedPlugins {
    fn eq(&self, other: &SharedPlugins) -> bool {
        self.global == other.global
            && (Arc::ptr_eq(&self.consumers, &other.consumers) || self.consumers == other.consumers)
            && self.metadata == other.metadata
            && self.custom == other.custom
    }
}
