//! The keys of resources with plugins, except routes: plugin configs, global rules, consumers and their groups, metadata.

use crate::keys::resource_list::{Resource, Resources, resources};
use crate::keys::shared::{ID, resource};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use stillgate_schema::description::Definitions;
use stillgate_schema::kind::{At, Kind, LocatedKind, TEXT, Text, read, report_expected, text};
use stillgate_schema::text::diagnostic::{Fault, Path, Sink, shortened};
use stillgate_schema::text::scalar::{Scalar, ScalarLayout};
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
        // A template that leaves the value empty must not open a route: APISIX refuses null, too.
        if node.entries().is_some() {
            return Some(node.clone());
        }
        report_expected("a map of plugins such as {cors: {}}", node, path, sink);
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
        let Some(entries) = node.entries() else {
            report_expected("a map of names and texts", node, path, sink);
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
    /// Plugins shared by routes via `plugin_config_id`.
    pub(crate) struct PluginConfigKeys {
        /// Unique among plugin configs.
        id: At<String> = LocatedKind(ID) => optional;
    }
    shared name, desc, labels, times;
    {
        /// The plugins. They override the service's; the route's override them.
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
        /// Plugins, each in at most one global rule.
        plugins: Node = Plugins => required;
    }
}

resource! {
    /// Plugins shared by consumers via `group_id`.
    pub(crate) struct ConsumerGroupKeys {
        /// Unique among consumer groups.
        id: At<String> = LocatedKind(ID) => optional;
    }
    shared name, desc, labels, times;
    {
        /// The plugins. They override the route's; the consumer's override them.
        plugins: Node = Plugins => required;
    }
}

resource! {
    /// A client that may send requests, with its credentials.
    pub(crate) struct ConsumerKeys {
        /// Same as `username`, as in APISIX's `apisix.yaml`.
        id: At<String> = LocatedKind(ID) => optional;
        /// Unique among consumers.
        username: At<String> = LocatedKind(USERNAME) => required;
        /// The consumer group. The consumer's own plugins override the group's.
        group_id: At<String> = LocatedKind(ID) => optional;
    }
    shared desc, times;
    {
        /// Key-value pairs. Nodes get `custom_id` as `X-Consumer-Custom-ID`.
        labels: BTreeMap<String, String> = LabelMap => default(BTreeMap::new());
        /// Authentication plugins with the consumer's credentials, and other plugins, which override the route's.
        plugins: Node = Plugins => optional;
        /// Further credentials. They may also be items of `consumers`, as in APISIX's `apisix.yaml`, with the `id` `USERNAME/credentials/ID`.
        credentials: Vec<OwnCredential> = OwnCredentials => default(Vec::new());
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

/// A credential of a consumer in a file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OwnCredential {
    /// It is an item of the list of consumers, not of the consumer's own list.
    pub(crate) is_item: bool,
    pub(crate) resource: Resource<CredentialKeys>,
}

/// The list `credentials` of a consumer.
struct OwnCredentials;

impl Kind for OwnCredentials {
    type Out = Vec<OwnCredential>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Vec<OwnCredential>> {
        let own = |resource| OwnCredential { is_item: false, resource };
        Some(read(&CREDENTIALS, node, path, sink)?.into_iter().map(own).collect())
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        CREDENTIALS.schema(definitions)
    }
}

const CREDENTIALS: Resources<CredentialKeys> = resources(true);

/// The list of consumers. As in APISIX's `apisix.yaml` an item may be a credential, too: its `id` is `USERNAME/credentials/ID`.
pub(crate) struct ConsumerItems;

const CONSUMERS: Resources<ConsumerKeys> = resources(false);

impl Kind for ConsumerItems {
    type Out = Vec<Resource<ConsumerKeys>>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Vec<Resource<ConsumerKeys>>> {
        let Value::List(items) = &node.value else { return read(&CONSUMERS, node, path, sink) };
        let (mut consumers, mut credentials) = (Vec::with_capacity(items.len()), Vec::new());
        for (index, item) in items.iter().enumerate() {
            match credential_of(item) {
                Some((username, item)) => credentials.push((index, username, item)),
                None => consumers.extend(CONSUMERS.read_item(index, item, &path.index(index), sink)),
            }
        }
        if credentials.is_empty() {
            return Some(consumers);
        }
        let names: Vec<&str> = items.iter().filter_map(|item| key_of(item, "username")).collect();
        let places =
            consumers.iter().enumerate().map(|(place, consumer)| (consumer.keys.username.value.clone(), place));
        let places: HashMap<String, usize> = places.collect();
        for (index, username, item) in credentials {
            let path = path.index(index);
            let Some(resource) = CREDENTIALS.read_item(index, &item, &path, sink) else { continue };
            match places.get(&*username) {
                Some(place) => {
                    consumers[*place].keys.credentials.push(OwnCredential { is_item: true, resource });
                }
                // It has errors, which have been reported.
                None if names.contains(&&*username) => {}
                None => {
                    let fault = Fault::new(format!("there is no consumer {:?}", shortened(&username)));
                    sink.error(item.at, &path.key("id"), fault.hint("add it to `consumers`"));
                }
            }
        }
        Some(consumers)
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        let mut list = CONSUMERS.schema(definitions);
        let id = serde_json::json!({"type": "string", "pattern": "^[A-Za-z0-9_-]+/credentials/[A-Za-z0-9._-]+$"});
        let credential = serde_json::json!({
            "type": "object", "required": ["id", "plugins"], "properties": {"id": id},
        });
        list["items"] = serde_json::json!({"anyOf": [list["items"], credential]});
        list
    }
}

/// The user name of a credential that is an item of `consumers`, and the item with the id that it has among those of its consumer.
pub(crate) fn credential_of(item: &Node) -> Option<(Rc<str>, Node)> {
    let (username, id) = key_of(item, "id")?.split_once("/credentials/")?;
    let Value::Map(entries) = &item.value else { return None };
    let mut entries = entries.to_vec();
    for entry in entries.iter_mut().filter(|entry| &*entry.key == "id") {
        if let Value::Scalar(scalar) = &mut entry.value.value {
            *scalar = Scalar { text: id.into(), layout: ScalarLayout::Unknown, ..scalar.clone() };
        }
    }
    Some((username.into(), Node { at: item.at, value: Value::Map(entries.into()) }))
}

/// The text of a key.
fn key_of<'a>(item: &'a Node, key: &str) -> Option<&'a str> {
    let Value::Map(entries) = &item.value else { return None };
    match &entries.iter().find(|entry| &*entry.key == key)?.value.value {
        Value::Scalar(scalar) => Some(&scalar.text),
        _ => None,
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
                report_expected("a list", node, path, sink);
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
