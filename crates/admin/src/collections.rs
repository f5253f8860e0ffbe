//! The collections of resources: one table of their names, and of the operations that APISIX allows on each.

/// An operation on a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

/// How documents of a collection are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DocumentNaming {
    /// By an id, in the path or in the document.
    Id,
    /// By the document's `username`.
    Username,
    /// By the name of a plugin, in the path.
    Plugin,
    /// By a secret manager and an id, both in the path.
    Manager,
    /// By a consumer in the path, and an id in the path or the document.
    Credential,
}

/// One collection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Collection {
    /// The name in paths and keys.
    pub(crate) name: &'static str,
    /// The name in messages.
    pub(crate) kind: &'static str,
    /// The name at `schema/{kind}`.
    pub(crate) schema: &'static str,
    pub(crate) naming: DocumentNaming,
    /// Verbs that are answered with 405.
    pub(crate) refused: &'static [Verb],
    /// Whether a list can be filtered by the references of its documents.
    pub(crate) has_reference_filter: bool,
}

const fn by_id(name: &'static str, kind: &'static str, schema: &'static str, refused: &'static [Verb]) -> Collection {
    Collection { name, kind, schema, naming: DocumentNaming::Id, refused, has_reference_filter: false }
}

pub(crate) static COLLECTIONS: [Collection; 13] = [
    Collection { has_reference_filter: true, ..by_id("routes", "route", "route", &[]) },
    by_id("services", "service", "service", &[]),
    by_id("upstreams", "upstream", "upstream", &[]),
    Collection {
        naming: DocumentNaming::Username,
        ..by_id("consumers", "consumer", "consumer", &[Verb::Post, Verb::Patch])
    },
    Collection {
        naming: DocumentNaming::Credential,
        ..by_id("credentials", "credential", "credential", &[Verb::Post, Verb::Patch])
    },
    by_id("consumer_groups", "consumer group", "consumer_group", &[Verb::Post]),
    by_id("plugin_configs", "plugin config", "plugin_config", &[Verb::Post]),
    by_id("global_rules", "global rule", "global_rule", &[Verb::Post]),
    Collection {
        naming: DocumentNaming::Plugin,
        ..by_id("plugin_metadata", "plugin_metadata", "plugin_metadata", &[Verb::Post, Verb::Patch])
    },
    by_id("ssls", "ssl", "ssl", &[]),
    Collection { has_reference_filter: true, ..by_id("stream_routes", "stream route", "stream_route", &[Verb::Patch]) },
    Collection { naming: DocumentNaming::Manager, ..by_id("secrets", "secret", "secret", &[Verb::Post]) },
    by_id("protos", "proto", "proto", &[Verb::Patch]),
];

/// The collections of `configs`, which has all resources as one document. Credentials are among the consumers.
pub(crate) fn whole_collections() -> impl Iterator<Item = &'static Collection> {
    COLLECTIONS.iter().filter(|collection| collection.naming != DocumentNaming::Credential)
}

impl Collection {
    /// The name of its version in `configs`.
    pub(crate) fn version_key(&self) -> String {
        format!("{}_conf_version", self.name)
    }

    /// The collection with this name.
    pub(crate) fn named(name: &str) -> Option<&'static Collection> {
        COLLECTIONS.iter().find(|collection| collection.name == name)
    }

    /// The collection that a key belongs to.
    pub(crate) fn of_key(key: &str) -> Option<&'static Collection> {
        let mut segments = key.split('/');
        match (segments.next(), segments.nth(1)) {
            (Some("consumers"), Some("credentials")) => Collection::named("credentials"),
            (Some(name), _) => Collection::named(name),
            (None, _) => None,
        }
    }

    /// The path of its list, in the router's syntax.
    pub(crate) fn list_path(&self) -> String {
        match self.naming {
            DocumentNaming::Credential => "/apisix/admin/consumers/{username}/credentials".to_owned(),
            _ => format!("/apisix/admin/{}", self.name),
        }
    }

    /// The path of one document.
    pub(crate) fn path(&self) -> String {
        let list = self.list_path();
        match self.naming {
            DocumentNaming::Username => format!("{list}/{{username}}"),
            DocumentNaming::Manager => format!("{list}/{{manager}}/{{id}}"),
            _ => format!("{list}/{{id}}"),
        }
    }
}

impl Verb {
    pub(crate) const ALL: [Verb; 5] = [Verb::Get, Verb::Post, Verb::Put, Verb::Patch, Verb::Delete];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Verb::Get => "GET",
            Verb::Post => "POST",
            Verb::Put => "PUT",
            Verb::Patch => "PATCH",
            Verb::Delete => "DELETE",
        }
    }

    /// The verb with a method's name, in any case.
    pub(crate) fn named(name: &str) -> Option<Verb> {
        Verb::ALL.into_iter().find(|verb| verb.name().eq_ignore_ascii_case(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_belong_to_collections() {
        let name = |key: &str| Collection::of_key(key).map(|collection| collection.name);
        assert_eq!(name("routes/1"), Some("routes"));
        assert_eq!(name("consumers/jack"), Some("consumers"));
        assert_eq!(name("consumers/jack/credentials/1"), Some("credentials"));
        assert_eq!(name("secrets/vault/1"), Some("secrets"));
        assert_eq!(name("nothing/1"), None);
    }
}
