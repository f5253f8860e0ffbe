//! The keys of resources with plugins, except routes: plugin configs, global rules, consumers and their groups, metadata.

use crate::keys::resource_list::{Resource, resources};
use crate::keys::shared::{ID, resource};
use std::collections::BTreeMap;
use stillgate_schema::description::Definitions;
use stillgate_schema::kind::{At, Kind, LocatedKind, TEXT, Text, expected, read, text};
use stillgate_schema::text::diagnostic::{Fault, Path, Sink, shortened};
use stillgate_schema::text::tree::{Node, Value};
use stillgate_schema::{Json, Json as JsonValue};

/// The `plugins` of a resource as they are written. The table of plugins compiles them.
pub(crate) struct Plugins;

/// The name of their schema.
pub(crate) const PLUGINS_SCHEMA: &str = "Plugins";
/// The name of the schema of `plugin_metadata`.
pub(crate) const METADATA_SCHEMA: &str = "PluginMetadata";

impl Kind for Plugins {
    type Out = Node;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Node> {
        if matches!(node.value, Value::Map(_)) || node.is_null() {
            return Some(node.clone());
        }
        expected("a map of plugins such as {cors: {}}", node, path, sink);
        None
    }

    fn schema(&self, _: &mut Definitions) -> JsonValue {
        serde_json::json!({"$ref": format!("#/$defs/{PLUGINS_SCHEMA}")})
    }
}

/// A consumer's name, by APISIX's rule.
const USERNAME: Text<String> = text("a user name", |text| {
    let bytes_ok = text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    if bytes_ok && (1..=USERNAME_BYTES_MAX).contains(&text.len()) {
        return Ok(text.to_owned());
    }
    let fault = Fault::new(format!("{:?} is not a user name", shortened(text)));
    Err(fault.hint(format!("use 1 to {USERNAME_BYTES_MAX} letters, digits, \"-\" and \"_\"")))
})
.pattern("^[A-Za-z0-9_-]{1,100}$")
.or_number();

/// The longest name of a consumer.
const USERNAME_BYTES_MAX: usize = 100;

/// Labels of which some mean something.
pub(crate) struct LabelMap;

impl Kind for LabelMap {
    type Out = BTreeMap<String, String>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<BTreeMap<String, String>> {
        let Value::Map(entries) = &node.value else {
            expected("a map of names and texts", node, path, sink);
            return None;
        };
        let labels = entries.iter().filter_map(|entry| {
            let text = read(&TEXT, &entry.value, &path.key(&entry.key), sink)?;
            Some((entry.key.to_string(), text))
        });
        Some(labels.collect())
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        serde_json::json!({"type": "object", "additionalProperties": {"type": "string"}})
    }
}

resource! {
    /// Plugins that routes share by `plugin_config_id`.
    pub(crate) struct PluginConfigKeys {
        /// Unique among plugin configs.
        id: At<String> = LocatedKind(ID) => optional;
    }
    shared name, desc, labels, times;
    {
        /// The plugins. They take the place of the service's, and the route's take theirs.
        plugins: Node = Plugins => required;
    }
}

resource! {
    /// Plugins that run for every request, before those of its route.
    pub(crate) struct GlobalRuleKeys {
        /// Unique among global rules.
        id: At<String> = LocatedKind(ID) => optional;
    }
    shared times;
    {
        /// The plugins. Each can be in one global rule.
        plugins: Node = Plugins => required;
    }
}

resource! {
    /// Plugins that consumers share by `group_id`.
    pub(crate) struct ConsumerGroupKeys {
        /// Unique among consumer groups.
        id: At<String> = LocatedKind(ID) => optional;
    }
    shared name, desc, labels, times;
    {
        /// The plugins. They take the place of the route's, and the consumer's take theirs.
        plugins: Node = Plugins => required;
    }
}

resource! {
    /// The clients that may send requests, with their credentials.
    pub(crate) struct ConsumerKeys {
        /// Unique among consumers.
        username: At<String> = LocatedKind(USERNAME) => required;
        /// The group whose plugins run where the consumer has none of that name.
        group_id: At<String> = LocatedKind(ID) => optional;
    }
    shared desc, times;
    {
        /// Names and texts. The upstream gets `custom_id` as `X-Consumer-Custom-ID`.
        labels: BTreeMap<String, String> = LabelMap => default(BTreeMap::new());
        /// Authentication plugins with the consumer's credentials, and other plugins, which take the place of the route's.
        plugins: Node = Plugins => optional;
        /// Further credentials. In APISIX they are resources of their own, `consumers/USERNAME/credentials/ID`.
        credentials: Vec<Resource<CredentialKeys>> = resources::<CredentialKeys>(true) => default(Vec::new());
    }
}

resource! {
    /// A credential of a consumer.
    pub(crate) struct CredentialKeys {
        /// Unique among the consumer's credentials.
        id: At<String> = LocatedKind(ID) => optional;
    }
    shared name, desc, labels, times;
    {
        /// One auth plugin with its credential.
        plugins: Node = Plugins => required;
    }
}

/// One item of `plugin_metadata`: `id` names the plugin, and the other keys are the plugin's own.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MetadataKeys {
    pub(crate) id: Option<At<String>>,
    /// Without the id.
    pub(crate) own: Node,
}

/// The list of them.
pub(crate) struct PluginMetadata;

impl MetadataKeys {
    /// `None`: it is not a map, which has been reported.
    pub(crate) fn read(node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<MetadataKeys> {
        let Value::Map(entries) = &node.value else {
            sink.error(node.at, path, Fault::new("expected a map with the key \"id\""));
            return None;
        };
        let (id, own): (Vec<_>, Vec<_>) = entries.iter().cloned().partition(|entry| &*entry.key == "id");
        let id = id.first().and_then(|id| match &id.value.value {
            Value::Scalar(scalar) => Some(At { at: id.value.at, value: scalar.text.to_string() }),
            _ => None,
        });
        Some(MetadataKeys { id, own: Node { at: node.at, value: Value::Map(own.into()) } })
    }
}

impl Kind for PluginMetadata {
    type Out = Vec<Resource<MetadataKeys>>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Vec<Resource<MetadataKeys>>> {
        let items = match &node.value {
            Value::List(items) => items,
            _ if node.is_null() => return Some(Vec::new()),
            _ => {
                expected("a list", node, path, sink);
                return None;
            }
        };
        let item = |(index, item): (usize, &Node)| {
            let path = path.index(index);
            let keys = MetadataKeys::read(item, &path, sink)?;
            if keys.id.is_none() {
                let fault = Fault::new("the key \"id\" is missing").hint("write the plugin's name there");
                sink.error(item.at, &path, fault);
            }
            Some(Resource { index, at: item.at, node: item.clone(), keys })
        };
        Some(items.iter().enumerate().filter_map(item).collect())
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        serde_json::json!({"type": ["array", "null"], "items": {"$ref": format!("#/$defs/{METADATA_SCHEMA}")}})
    }
}
