//! The kinds of resources, and where one of them comes from.

use std::fmt;
use std::sync::Arc;

/// A kind of resource. One refers only to kinds that stand before its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Managers of secrets.
    Secrets,
    /// Certificates.
    Ssls,
    /// Nodes.
    Upstreams,
    /// What a plugin has in common wherever it is configured.
    PluginMetadata,
    /// Plugins that routes share.
    PluginConfigs,
    /// Plugins that consumers share.
    ConsumerGroups,
    /// What several routes have in common.
    Services,
    /// Credentials of consumers, stored apart from them. (The consumer needs them; they need nothing of it.)
    Credentials,
    /// Who may ask.
    Consumers,
    /// Plugins of every request.
    GlobalRules,
    /// Which connections go where.
    StreamRoutes,
    /// Which requests go where.
    Routes,
    /// Definitions of Protocol Buffers, which are kept for other programs: no plugin reads them.
    Protos,
}

/// All kinds with their names, by which files, stores and the Admin API know them.
const NAMES: [(Kind, &str); Kind::COUNT] = [
    (Kind::Secrets, "secrets"),
    (Kind::Ssls, "ssls"),
    (Kind::Upstreams, "upstreams"),
    (Kind::PluginMetadata, "plugin_metadata"),
    (Kind::PluginConfigs, "plugin_configs"),
    (Kind::ConsumerGroups, "consumer_groups"),
    (Kind::Services, "services"),
    (Kind::Credentials, "credentials"),
    (Kind::Consumers, "consumers"),
    (Kind::GlobalRules, "global_rules"),
    (Kind::StreamRoutes, "stream_routes"),
    (Kind::Routes, "routes"),
    (Kind::Protos, "protos"),
];

impl Kind {
    /// How many there are.
    pub const COUNT: usize = 13;

    /// Every kind; each stands behind those it refers to.
    pub fn all() -> impl Iterator<Item = Kind> {
        NAMES.iter().map(|(kind, _)| *kind)
    }

    /// As `routes`.
    pub fn name(self) -> &'static str {
        NAMES[self as usize].1
    }

    /// The kind of a name.
    pub fn named(name: &str) -> Option<Kind> {
        NAMES.iter().find(|(_, of)| *of == name).map(|(kind, _)| *kind)
    }

    /// As `route`.
    pub fn singular(self) -> &'static str {
        self.name().strip_suffix('s').unwrap_or(self.name())
    }
}

/// Where a resource comes from, as messages say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A line of the configuration file, from 1.
    Line(u32),
    /// Somewhere else: `/apisix/routes/7 @ 42`, `PUT /apisix/admin/routes/7`.
    Named(Arc<String>),
    /// The datastore at this revision, under the key of the resource, which is known beside it.
    Revision(u64),
}

impl Origin {
    /// By a name of its own.
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
            assert_eq!((*kind as usize, kind.name(), Kind::named(name)), (at, *name, Some(*kind)));
        }
    }
}
