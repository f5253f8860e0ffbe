//! The resources of a file as documents in the form of the Admin API, each with its position in the file.
//!
//! For moving resources from a file to a store. The file is checked like any other, with four exceptions: its `gateway:` section
//! need not belong to the gateway of the store, so without one the listeners are unknown; plugins may have unknown keys, as in a
//! store, which warns of them; masks may replace private keys, which the gateway may already have; and resources have ids of their
//! own, since a position in the file can be the id of a resource of the store.

use super::masks::{self, Masks};
use super::{tree_of, whole};
use crate::keys::plugins::credential_of;
use crate::keys::resources::File;
use crate::model::ResourceKind;
use crate::resources::{PluginSet, with_custom_plugins};
use crate::store::Store;
use crate::values::SourceKind;
use serde_json::{Map, Number, Value as Json};
use stillgate_schema::kind::read;
use stillgate_schema::object::map;
use stillgate_schema::text::diagnostic::{Errors, Fault, Path, Position, Sink};
use stillgate_schema::text::environment::Lookup;
use stillgate_schema::text::scalar::{Meaning, Scalar, Style};
use stillgate_schema::text::tree::within;
use stillgate_schema::text::tree::{Entry, Node, Value};

/// One resource of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct FileDocument {
    /// Its kind.
    pub kind: ResourceKind,
    /// Unique within its kind: `1`; `jack/1` for credentials; `vault/1` for secret managers.
    pub id: String,
    /// In the form of the Admin API: a consumer does not contain its credentials.
    pub document: Json,
    /// From 1.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
}

/// The resources of a text in order, and its errors. The resources are usable only without errors. `environment` resolves
/// `${NAME}`. `beside`: resources outside of the text that it may refer to.
pub fn documents(
    text: &[u8],
    environment: Lookup<'_>,
    plugins: PluginSet,
    beside: impl IntoIterator<Item = (ResourceKind, String)>,
) -> (Vec<FileDocument>, Errors) {
    let beside = beside.into_iter().map(|(kind, id)| (kind.name(), id));
    let mut sink = Sink::default().passing_unknown().with_references(beside);
    let found = read_all(text, environment, plugins, &mut sink).unwrap_or_default();
    (found, sink.into_errors())
}

fn read_all(bytes: &[u8], environment: Lookup<'_>, plugins: PluginSet, sink: &mut Sink) -> Option<Vec<FileDocument>> {
    let root = tree_of(bytes, Some(environment), sink)?.root;
    if masks::refuse(&root, Masks::RefusedButKeys, sink) {
        return None;
    }
    let has_gateway = entries(&root).iter().any(|entry| &*entry.key == "gateway");
    let mut file: File = read(&map::<File>(), &root, &Path::Root, sink)?;
    if !has_gateway {
        file.gateway.config.source = SourceKind::Store;
    }
    let plugins = with_custom_plugins(plugins, &file.gateway.lua, within(&root, "gateway.lua.path"), sink);
    let alone = Store::new(file.gateway.clone(), plugins.clone());
    whole::resolve(file, String::new(), plugins, &root, sink);
    Some(entries(&root).iter().flat_map(|list| of_list(list, &alone, sink)).collect())
}

/// The resources of one list; none if the key is not a list of resources.
fn of_list(list: &Entry, alone: &Store, sink: &mut Sink) -> Vec<FileDocument> {
    let Some(kind) = ResourceKind::from_name(&list.key).filter(|kind| *kind != ResourceKind::Credentials) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (index, item) in items(&list.value).iter().enumerate() {
        if let Some((of, item)) = credential_of(item).filter(|_| kind == ResourceKind::Consumers) {
            let document = written(ResourceKind::Credentials, &item, alone);
            let id = format!("{of}/{}", text(&document["id"]).unwrap_or_default());
            let Position { line, column } = item.at;
            found.push(FileDocument { kind: ResourceKind::Credentials, id, document, line, column });
            continue;
        }
        let mut document = written(kind, item, alone);
        let key = if kind == ResourceKind::Consumers { "username" } else { "id" };
        let Some(id) = text(&document[key]) else {
            // What has to have a name has been refused without one.
            if whole::is_numbered(kind) {
                refuse_numbered(kind, index, item.at, sink);
            }
            continue;
        };
        let fields = document.as_object_mut();
        let nested = fields.filter(|_| kind == ResourceKind::Consumers).and_then(|fields| {
            // It is the username, which the Admin API asks for.
            fields.shift_remove("id");
            fields.shift_remove("credentials")
        });
        let at = |item: &Node, kind, id, document| {
            let Position { line, column } = item.at;
            FileDocument { kind, id, document, line, column }
        };
        found.push(at(item, kind, id.clone(), document));
        let nodes = entries(item).iter().filter(|entry| &*entry.key == "credentials");
        for node in nodes.filter(|_| nested.is_some()).flat_map(|entry| items(&entry.value)) {
            let document = written(ResourceKind::Credentials, node, alone);
            let of = text(&document["id"]).unwrap_or_default();
            found.push(at(node, ResourceKind::Credentials, format!("{id}/{of}"), document));
        }
    }
    found
}

/// In a store, the position of a resource in its file is the id of another resource.
fn refuse_numbered(kind: ResourceKind, index: usize, at: Position, sink: &mut Sink) {
    let number = index + 1;
    let message = format!("it has no id, and its position would make it {}/{number} of the gateway", kind.name());
    let fault =
        Fault::new(message).hint("give it an `id`; `stillgate export` writes the ids of the gateway's resources");
    sink.error(at, &Path::Root.key(kind.name()).index(index), fault);
}

/// The collection and the document of the resource at a path (`routes[3]`) of a file.
pub(super) fn document_at(root: &Node, path: &str) -> Option<(&'static str, Json)> {
    let (list, index) = path.strip_suffix(']')?.split_once('[')?;
    let entry = entries(root).iter().find(|entry| &*entry.key == list)?;
    let item = items(&entry.value).get(index.parse::<usize>().ok()?)?;
    Some((ResourceKind::from_name(list)?.name(), json(item, false)))
}

/// A node as a document. The value of an environment variable can be a number or a text: the reading that makes the document valid
/// is used.
fn written(kind: ResourceKind, item: &Node, alone: &Store) -> Json {
    let first = json(item, false);
    let second = json(item, true);
    let is_right = |document: &Json| alone.checker().check(kind, &document.to_string()).is_ok();
    if first != second && !is_right(&first) && is_right(&second) { second } else { first }
}

fn json(node: &Node, are_quotes_ignored: bool) -> Json {
    match &node.value {
        Value::Scalar(scalar) => of_scalar(scalar, are_quotes_ignored),
        Value::List(items) => items.iter().map(|item| json(item, are_quotes_ignored)).collect(),
        Value::Map(entries) => {
            let pair = |entry: &Entry| (entry.key.to_string(), json(&entry.value, are_quotes_ignored));
            Json::Object(entries.iter().map(pair).collect::<Map<_, _>>())
        }
        Value::Refused => Json::Null,
    }
}

fn of_scalar(scalar: &Scalar, are_quotes_ignored: bool) -> Json {
    if scalar.style == (Style::Substituted { quoted: true }) && !are_quotes_ignored {
        return Json::from(&*scalar.text);
    }
    match scalar.meaning() {
        Meaning::Null => Json::Null,
        Meaning::Bool(value) => value.into(),
        Meaning::Int(number) => number.into(),
        Meaning::Float(number) => Number::from_f64(number).map_or(Json::Null, Json::Number),
        Meaning::HugeInt | Meaning::NotFinite | Meaning::Text(_) => Json::from(&*scalar.text),
    }
}

/// An id may be written as a number.
fn text(id: &Json) -> Option<String> {
    match id {
        Json::String(text) => Some(text.clone()),
        Json::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn entries(node: &Node) -> &[Entry] {
    if let Value::Map(entries) = &node.value { entries } else { &[] }
}

fn items(node: &Node) -> &[Node] {
    if let Value::List(items) = &node.value { items } else { &[] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(text: &str) -> (Vec<(String, Json)>, Vec<String>) {
        let environment = |name: &str| (name == "PORT").then(|| "8080".to_owned());
        let beside = [(ResourceKind::Upstreams, "beside".to_owned())];
        let (found, errors) = documents(text.as_bytes(), &environment, PluginSet::default(), beside);
        let shown =
            |found: FileDocument| (format!("{}/{} {}", found.kind.name(), found.id, found.line), found.document);
        (found.into_iter().map(shown).collect(), errors.diagnostics.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn resources_become_documents() {
        let (found, wrong) =
            of("routes:\n  - {id: a, uri: /a, upstream_id: 1, labels: {v: \"${PORT}\"}}\nupstreams:\n  \
            - {id: 1, nodes: {\"a:80\": 1}, retries: \"${PORT:-1}\"}\nprotos:\n  - {id: p, content: x}\n");
        assert!(matches!(&wrong[..], [one] if one.contains("upstreams[0].retries: ")), "{wrong:?}");
        assert_eq!(
            found[0],
            ("routes/a 2".to_owned(), json!({"id": "a", "uri": "/a", "upstream_id": 1, "labels": {"v": "8080"}}))
        );
        assert_eq!(found[2], ("protos/p 6".to_owned(), json!({"id": "p", "content": "x"})));
    }

    #[test]
    fn a_variable_is_the_number_that_is_wanted() {
        let (found, wrong) =
            of("upstreams:\n  - {id: 1, nodes: [{host: a, port: \"${PORT}\", weight: 1}]}\nroutes: []\n");
        assert_eq!(wrong, [""; 0]);
        assert_eq!(found[0].1["nodes"][0]["port"], 8080);
    }

    #[test]
    fn listeners_count_only_where_they_are_written() {
        let route = "stream_routes:\n  - {id: 1, server_port: 9, upstream: {scheme: tcp, nodes: {\"a:80\": 1}}}\n";
        assert_eq!(of(route).1, [""; 0]);
        let (_, wrong) = of(&format!("gateway: {{listeners: [{{address: \"127.0.0.1:80\"}}]}}\n{route}"));
        assert!(wrong[0].contains("it takes no connection"), "{wrong:?}");
    }

    #[test]
    fn what_is_beside_may_be_referred_to() {
        let route = |upstream: &str| format!("routes:\n  - {{id: 1, uri: /a, upstream_id: {upstream}}}\n");
        assert_eq!(of(&route("beside")).1, [""; 0]);
        assert!(of(&route("nowhere")).1[0].contains("there is no upstream with the id \"nowhere\""));
    }

    #[test]
    fn credentials_are_separate() {
        let (found, _) = of("consumers:\n  - {username: jack, credentials: [{id: 1, plugins: {}}]}\n");
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["consumers/jack 2", "credentials/jack/1 2"]);
        assert_eq!(found[0].1, json!({"username": "jack"}));
        let text = "consumers:\n  - {id: rose/credentials/a-1, name: n, plugins: {}}\n  - {id: rose, username: rose}\n";
        let (found, _) = of(text);
        let expected = [
            ("credentials/rose/a-1 2".to_owned(), json!({"id": "a-1", "name": "n", "plugins": {}})),
            ("consumers/rose 3".to_owned(), json!({"username": "rose"})),
        ];
        assert_eq!(found, expected);
    }
    #[test]
    fn a_position_is_not_an_id() {
        let numbered = [
            ("routes", "uri: /a, upstream: {nodes: {\"a:80\": 1}}"),
            ("services", "upstream: {nodes: {\"a:80\": 1}}"),
            ("upstreams", "nodes: {\"a:80\": 1}"),
            ("global_rules", "plugins: {cors: {}}"),
            ("plugin_configs", "plugins: {cors: {}}"),
            ("consumer_groups", "plugins: {cors: {}}"),
            ("protos", "content: x"),
            ("stream_routes", "server_port: 9, upstream: {scheme: tcp, nodes: {\"a:80\": 1}}"),
            ("ssls", "snis: [a.example], cert: x, key: y"),
        ];
        for (list, more) in numbered {
            let (_, wrong) = of(&format!("{list}:\n  - {{id: given, {more}}}\n  - {{{more}}}\n"));
            let expected = format!("{list}[1]: it has no id, and its position would make it {list}/2 of the gateway");
            assert!(wrong.iter().any(|wrong| wrong.contains(&expected)), "{wrong:?}");
            assert!(wrong.iter().all(|wrong| !wrong.contains(&format!("{list}[0]: it has no id"))), "{wrong:?}");
        }
        for id in ["null", "~", "!!null null"] {
            let (_, wrong) = of(&format!("upstreams:\n  - {{id: {id}, nodes: {{\"a:80\": 1}}}}\n"));
            assert!(wrong[0].contains("would make it upstreams/1 of the gateway"), "{id}: {wrong:?}");
        }
        let named = ResourceKind::all().filter(|kind| !whole::is_numbered(*kind)).map(ResourceKind::name);
        let all: Vec<&str> = named.chain(numbered.map(|(list, _)| list)).collect();
        assert!(ResourceKind::all().all(|kind| all.contains(&kind.name())), "{all:?}");
    }

    #[test]
    fn names_are_ids() {
        let text = "secrets:\n  - {uri: \"http://a\", prefix: p, token: t}\nplugin_metadata:\n  - {log_format: {}}\n\
            consumers:\n  - {plugins: {}}\n  - {username: a, credentials: [{plugins: {}}]}\n";
        let (_, wrong) = of(text);
        for place in ["secrets[0]: ", "plugin_metadata[0]: ", "consumers[0]: ", "consumers[1].credentials[0]: "] {
            assert!(wrong.iter().any(|wrong| wrong.contains(place)), "{place}: {wrong:?}");
        }
        assert!(wrong.iter().all(|wrong| !wrong.contains("it has no id")), "{wrong:?}");
    }
}
