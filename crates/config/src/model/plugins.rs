//! What plugins come to: those of every request, who may ask, and what plugins have in common.

use std::sync::Arc;
use stillgate_plugin::{Chain, Consumers, MetadataTable, OwnPlugins};

/// What of plugins belongs to no route.
#[derive(Debug, Clone, Default)]
pub struct Shared {
    /// Those of `global_rules`, merged.
    pub global: Arc<Chain>,
    /// Who may ask.
    pub consumers: Arc<Consumers>,
    /// `plugin_metadata`
    pub metadata: Arc<MetadataTable>,
    /// Those of the operator's files.
    pub own: OwnPlugins,
}

/// By pointer first, since the consumers may be many.
impl PartialEq for Shared {
    fn eq(&self, other: &Shared) -> bool {
        self.global == other.global
            && (Arc::ptr_eq(&self.consumers, &other.consumers) || self.consumers == other.consumers)
            && self.metadata == other.metadata
            && self.own == other.own
    }
}
