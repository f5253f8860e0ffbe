//! The kinds of resources, and the origin of a resource.

use std::fmt;
use std::sync::Arc;

/// A kind of resource. Resources refer only to kinds that precede their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKind {
    /// Managers of secrets.
    Secrets,
    /// Certificates.
    Ssls,
    /// Nodes.
    Upstreams,
    /// Settings of a plugin that are common to all its configurations.
    PluginMetadata,
    /// Plugins shared by routes.
    PluginConfigs,
    /// Plugins shared by consumers.
    ConsumerGroups,
    /// Settings shared by routes.
    Services,
    /// Credentials that are stored separately from their consumers. (The consumer needs them; they need nothing from it.)
    Credentials,
    /// The callers.
    Consumers,
    /// Plugins of every request.
    GlobalRules,
    /// Routes of connections.
    StreamRoutes,
    /// Routes of requests.
    Routes,
    /// Definitions of Protocol Buffers, kept for other programs: no plugin reads them.
    Protos,
}

/// All kinds with their names in files, stores and the Admin API.
const NAMES: [(ResourceKind, &str); ResourceKind::COUNT] = [
    (ResourceKind::Secrets, "secrets"),
    (ResourceKind::Ssls, "ssls"),
    (ResourceKind::Upstreams, "upstreams"),
    (ResourceKind::PluginMetadata, "plugin_metadata"),
    (ResourceKind::PluginConfigs, "plugin_configs"),
    (ResourceKind::ConsumerGroups, "consumer_groups"),
    (ResourceKind::Services, "services"),
    (ResourceKind::Credentials, "credentials"),
    (ResourceKind::Consumers, "consumers"),
    (ResourceKind::GlobalRules, "global_rules"),
    (ResourceKind::StreamRoutes, "stream_routes"),
    (ResourceKind::Routes, "routes"),
    (ResourceKind::Protos, "protos"),
];

impl ResourceKind {
    /// The number of kinds.
    pub const COUNT: usize = 13;

    /// Every kind; each follows those it refers to.
    pub fn all() -> impl Iterator<Item = ResourceKind> {
        NAMES.iter().map(|(kind, _)| *kind)
    }

    /// The plural: `routes`.
    pub fn name(self) -> &'static str {
        NAMES[self as usize].1
    }

    /// The kind with this name.
    pub fn from_name(name: &str) -> Option<ResourceKind> {
        NAMES.iter().find(|(_, of)| *of == name).map(|(kind, _)| *kind)
    }

    /// The singular: `route`.
    pub fn singular(self) -> &'static str {
        self.name().strip_suffix('s').unwrap_or(self.name())
    }
}

/// The origin of a resource in messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A line of the configuration file, from 1.
    Line(u32),
    /// Another place: `/apisix/routes/7 @ 42`, `PUT /apisix/admin/routes/7`.
    Named(Arc<String>),
    /// The datastore at this revision, under the key of the resource, which the context contains.
    Revision(u64),
}

impl Origin {
    /// Makes an origin with a name.
    pub fn named(name: impl Into<String>) -> Origin {
        Origin::Named(Arc::new(name.into()))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Line(line) => write!(f, "line {line}"),
            Origin::Named(name) => f.write_str(name),
            Origin::Revision(revision) => write!(f, "revision {revision}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_the_order_of_kinds() {
        for (at, (kind, name)) in NAMES.iter().enumerate() {
            assert_eq!((*kind as usize, kind.name(), ResourceKind::from_name(name)), (at, *name, Some(*kind)));
        }
    }
}
