//! The resources that contain configurations of plugins.

use std::fmt;

/// The resource that contains a plugin's configuration.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PluginOrigin {
    /// The type of the resource.
    pub level: Level,
    /// The resource's id.
    pub id: Box<str>,
}

/// The types of resources that have plugins. Later ones override earlier ones, plugin by plugin; global rules are
/// separate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
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

impl Level {
    /// Its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Level::GlobalRule => "global rule",
            Level::Service => "service",
            Level::PluginConfig => "plugin config",
            Level::Route => "route",
            Level::ConsumerGroup => "consumer group",
            Level::Consumer => "consumer",
            Level::Metadata => "plugin metadata",
        }
    }
}

impl fmt::Display for PluginOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.level.name(), self.id)
    }
}
