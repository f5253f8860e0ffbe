//! Compiles consumers, and the credentials by which they are found.

use super::catalog::Catalog;
use super::catalog_item::{CatalogItem, find};
use super::plugins::{PluginList, SharedPlugins};
use crate::keys::plugins::{ConsumerKeys, CredentialKeys, OwnCredential};
use crate::keys::resource_list::Resource;
use crate::model::ResourceKind;
use std::collections::HashMap;
use stillgate_plugin_api::secrets::{each_text, substitute};
use stillgate_plugin_api::{Consumer, Credential, PluginLevel};
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink};
use stillgate_schema::text::tree::{Node, Value};

/// The plugins of each group.
#[derive(Debug, Default)]
pub(crate) struct Groups(pub(super) HashMap<String, CatalogItem<PluginList>>);

/// Compiles one consumer with its credentials. Whether those are taken is not checked.
pub(super) fn consumer(
    keys: ConsumerKeys,
    among: &Catalog,
    path: &Path<'_>,
    sink: &mut Sink,
) -> (Consumer, Vec<Credential>) {
    let Catalog { groups, plugins, .. } = among;
    let name = keys.username.value;
    if let Some(id) = keys.id.filter(|id| id.value != name) {
        let fault = Fault::new("the id of a consumer is its username").hint("write the same, or leave the id out");
        sink.error(id.at, &path.key("id"), fault);
    }
    let group = keys.group_id.as_ref();
    let group = group.and_then(|id| find(id, ResourceKind::ConsumerGroups, &groups.0, &path.key("group_id"), sink));
    let custom_id = keys.labels.get("custom_id");
    if custom_id.is_some_and(|id| id.contains(|c: char| c.is_ascii_control())) {
        let fault = Fault::new("nodes get this in a header field, which cannot hold control characters");
        sink.error(keys.username.at, &path.key("labels").key("custom_id"), fault.hint("leave line breaks out"));
    }
    let mut credentials = Vec::new();
    let own_path = path.key("plugins");
    let others = keys.plugins.map(|node| read_credentials(&node, None, plugins, &own_path, &mut credentials, sink));
    let own = among.compile(others.as_ref(), PluginLevel::Consumer, &name, path, sink);
    let ids = further(keys.credentials, plugins, path, &mut credentials, sink);
    let consumer = Consumer {
        name: name.into(),
        labels: keys.labels.iter().map(|(name, text)| (name.as_str().into(), text.as_str().into())).collect(),
        plugins: merge_with_group(own, group.map(|group| &group.value)),
        group: keys.group_id.map(|id| id.value.into()),
        credentials: ids.into(),
    };
    (consumer, credentials)
}

/// Merges the consumer's own plugins with those of its group; its own take precedence.
fn merge_with_group(own: PluginList, group: Option<&PluginList>) -> PluginList {
    match group {
        None => own,
        Some(group) if own.is_empty() => group.clone(),
        Some(group) => {
            let is_replaced = |name: &str| own.iter().any(|own| own.name == name);
            let others = group.iter().filter(|entry| !is_replaced(entry.name));
            let mut all: Vec<_> = others.chain(own.iter()).cloned().collect();
            all.sort_unstable_by_key(|entry| entry.name);
            all.into()
        }
    }
}

/// Reads the key `credentials`; returns their ids.
fn further(
    written: Vec<OwnCredential>,
    plugins: &SharedPlugins,
    path: &Path<'_>,
    out: &mut Vec<Credential>,
    sink: &mut Sink,
) -> Vec<Box<str>> {
    let mut ids = Vec::with_capacity(written.len());
    let mut lines = HashMap::new();
    let list = path.key("credentials");
    let consumers = Path::Root.key(ResourceKind::Consumers.name());
    for (place, OwnCredential { is_item, resource }) in written.into_iter().enumerate() {
        let Resource { index, at, keys, .. } = resource;
        let path = if is_item { consumers.index(index) } else { list.index(index) };
        read_credential(&keys.plugins, (u16::try_from(place).ok(), at), plugins, &path, out, sink);
        ids.push(keys.id.as_ref().map_or("", |id| &id.value).into());
        if let Some(id) = keys.id {
            super::take_id(&mut lines, &id, at.line, &path, sink);
        }
    }
    ids
}

/// Compiles a credential that is a separate resource. Its consumer, and its position there, are not checked.
pub(super) fn credential(
    keys: CredentialKeys,
    plugins: &SharedPlugins,
    at: Position,
    path: &Path<'_>,
    sink: &mut Sink,
) -> Option<Credential> {
    let mut out = Vec::new();
    read_credential(&keys.plugins, (None, at), plugins, path, &mut out, sink);
    out.pop()
}

/// Reads the single plugin of a credential.
fn read_credential(
    node: &Node,
    (place, at): (Option<u16>, Position),
    plugins: &SharedPlugins,
    path: &Path<'_>,
    out: &mut Vec<Credential>,
    sink: &mut Sink,
) {
    let before = out.len();
    let others = read_credentials(node, place, plugins, &path.key("plugins"), out, sink);
    if out.len() != before + 1 || !is_empty(&others) {
        let fault = Fault::new("a credential has one plugin, which authenticates");
        sink.error(at, &path.key("plugins"), fault.hint("write it like {key-auth: {key: …}}"));
    }
}

fn is_empty(node: &Node) -> bool {
    matches!(&node.value, Value::Map(entries) if entries.is_empty())
}

/// Removes plugins that authenticate; returns the others.
fn read_credentials(
    node: &Node,
    place: Option<u16>,
    plugins: &SharedPlugins,
    path: &Path<'_>,
    out: &mut Vec<Credential>,
    sink: &mut Sink,
) -> Node {
    let Value::Map(entries) = &node.value else { return node.clone() };
    let mut others = Vec::new();
    for entry in entries.iter() {
        let found = plugins.set.table.find(&entry.key).and_then(|(_, plugin)| Some((plugin.name, plugin.credential?)));
        let Some((plugin, credential)) = found else {
            others.push(entry.clone());
            continue;
        };
        let path = path.key(&entry.key);
        // A message quotes the refused value, and here any part of the credential may be a secret.
        sink.with_hidden_scope(|sink| {
            each_text(&entry.value, &mut |text| sink.hide(text));
            let before = sink.errors();
            let resolved = substitute(&entry.value, &*plugins.set.secrets, &path, sink);
            let read = sink.allowing_unknown(|sink| (credential.read)(&resolved, &path, sink));
            // A reference that cannot be resolved is not a credential.
            if let Some((lookup, verifier)) = read.filter(|_| sink.errors() == before) {
                out.push(Credential { plugin, lookup, place, verifier });
            }
        });
    }
    Node { at: node.at, value: Value::Map(others.into()) }
}
