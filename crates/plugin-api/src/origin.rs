//! The resources that contain configurations of plugins.

use std::fmt;

/// The resource that contains a plugin's configuration.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PluginOrigin {
    /// The type of the resource.
    pub level: PluginLevel,
    /// The resource's id.
    pub id: Box<str>,
}

/// The types of resources that have plugins. Later ones override earlier ones, plugin by plugin; global rules are
/// separate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PluginLevel {
    /// `global_rules`
    GlobalRule,
    /// `services`
    Service,
    /// `plugin_configs`
    PluginConfig,
    /// `routes`
    Route,
    /// `consumer_groups`
    ConsumerGroup,
    /// `consumers`
    Consumer,
    /// `plugin_metadata`
    Metadata,
}

impl PluginLevel {
    /// Its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            PluginLevel::GlobalRule => "global rule",
            PluginLevel::Service => "service",
            PluginLevel::PluginConfig => "plugin config",
            PluginLevel::Route => "route",
            PluginLevel::ConsumerGroup => "consumer group",
            PluginLevel::Consumer => "consumer",
            PluginLevel::Metadata => "plugin metadata",
        }
    }
}

impl fmt::Display for PluginOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.level.name(), self.id)
    }
}
