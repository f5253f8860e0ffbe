//! Reads configurations of other gateways, and gives them as Stillgate's, with everything that is lost.
//!
//! So far that is Kong's declarative configuration, as decK and Kong itself read and write it. A text comes in, and a
//! document and a list of losses go out: nothing here reads a file, an environment or a clock.
//!
//! The rule is that nothing is lost in silence. Objects are read by [`object`], which reports each key that nothing
//! has asked for; a plugin that guards a route and has no counterpart closes the route.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod certificates;
mod consumers;
mod environment;
mod expression;
mod health_checks;
mod kong_file;
mod names;
mod object;
mod placement;
mod plugins;
mod routes;
mod stream_routes;
mod upstreams;
mod vaults;

pub use object::{Loss, Severity};

use crate::certificates::Certificates;
use crate::consumers::Usernames;
use crate::kong_file::KongFile;
use crate::object::{Losses, Object};
use crate::placement::{Placement, RouteIds};
use crate::plugins::TranslationContext;
use crate::stream_routes::Streams;
use crate::vaults::Vaults;
use serde_json::{Map, Value as Json, json};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use stillgate_yaml::diagnostic::Errors;
use stillgate_yaml::{Fault, Path, Position, Sink, tree};

/// A configuration of another gateway, as one of Stillgate.
#[derive(Debug)]
pub struct ImportResult {
    /// The sections and lists of the configuration, in order.
    pub document: Vec<(String, Json)>,
    /// What the document does not do, or does in another way. The gravest are first.
    pub losses: Vec<Loss>,
}

/// Where Kong listens if kong.conf says nothing else.
const PORT: u16 = 8000;
const TLS_PORT: u16 = 8443;

/// Imports Kong's declarative configuration, YAML or JSON.
///
/// # Errors
/// The text is not YAML, or not a configuration of Kong.
pub fn kong(text: &str) -> Result<ImportResult, Errors> {
    let mut sink = Sink::default();
    let tree =
        tree::parse(0, text, None, &mut sink).and_then(|tree| tree.unless_empty("_format_version: \"3.0\"", &mut sink));
    let Some(tree) = tree.filter(|_| !sink.has_errors()) else { return Err(sink.into_errors()) };
    let losses = Losses::default();
    let refused = |message: String, mut sink: Sink| {
        sink.error(Position { line: 1, column: 1 }, &Path::Root, Fault::new(message));
        sink.into_errors()
    };
    if tree.root.entries().is_none() {
        return Err(refused("this is not a declarative configuration of Kong: it is not a map".to_owned(), sink));
    }
    let Some(root) = Object::of(&tree.root, String::new(), &losses) else { return Err(sink.into_errors()) };
    match KongFile::read(&root) {
        Ok(file) => Ok(ImportResult { document: document(&file), losses: losses.sorted() }),
        Err(message) => Err(refused(message, sink)),
    }
}

/// Writes the variables of the environment in a text that was made of an [`ImportResult::document`].
///
/// Writers escape what looks like a variable, so the document marks variables in another way.
pub fn with_variables(text: &str) -> String {
    environment::reveal(text)
}

fn document(file: &KongFile) -> Vec<(String, Json)> {
    let vaults = Vaults::read(file);
    let certificates = Certificates::read(file, &vaults);
    let (services, upstreams) = upstreams::services(file, &certificates);
    let routes = routes::read(file, &services);
    let usernames = Usernames::read(file);
    let cx = TranslationContext {
        vaults: &vaults,
        usernames: &usernames.by_name,
        metadata: RefCell::new(BTreeMap::new()),
        base64_secrets: RefCell::new(BTreeSet::new()),
    };
    let placement = Placement::of(file, &cx);
    let service_ids: Vec<String> = services.iter().map(|service| service.id.clone()).collect();
    let route_ids: Vec<Vec<String>> = routes.iter().map(|route| route.ids.clone()).collect();
    let ids = RouteIds { routes: &route_ids, services: &service_ids };
    let service_documents =
        services.iter().enumerate().filter(|(_, service)| !service.is_stream).map(|(index, service)| {
            let mut document = service.document.clone();
            let plugins = placement.of_service(index, &service.id);
            if !plugins.is_empty() {
                document.insert("plugins".to_owned(), plugins.into());
            }
            Json::from(document)
        });
    let service_documents: Vec<Json> = service_documents.collect();
    let route_documents = routes::documents(&routes, &services, &placement);
    let streams = Streams::of(&routes, &services, &placement);
    let (consumers, groups) = consumers::documents(file, &usernames, &placement, &cx, &ids);
    let (rules, configs) = placement.shared();
    let ssls = certificates.ssls();
    let metadata = cx.metadata.borrow().iter().map(|(name, keys)| with_id(name, keys)).collect();
    let lists = [
        ("routes", route_documents),
        ("services", service_documents),
        ("upstreams", upstreams),
        ("stream_routes", streams.routes.clone()),
        ("plugin_configs", configs),
        ("global_rules", rules),
        ("consumers", consumers),
        ("consumer_groups", groups),
        ("ssls", ssls.clone()),
        ("plugin_metadata", metadata),
        ("secrets", vaults.managers.clone()),
    ];
    let mut all = vec![("gateway".to_owned(), gateway(&ssls, &streams))];
    all.extend(
        lists.into_iter().filter(|(_, list)| !list.is_empty()).map(|(name, list)| (name.to_owned(), list.into())),
    );
    all
}

fn with_id(name: &str, keys: &Map<String, Json>) -> Json {
    let mut all = Map::new();
    all.insert("id".to_owned(), name.into());
    all.extend(keys.clone());
    all.into()
}

/// The process: Kong's default ports, and what nginx does in Kong.
fn gateway(ssls: &[Json], streams: &Streams) -> Json {
    let mut listeners = vec![json!({"address": format!("0.0.0.0:{PORT}")})];
    if ssls.iter().any(|entry| entry["type"].is_null()) {
        listeners.push(json!({"address": format!("0.0.0.0:{TLS_PORT}"), "tls": true}));
    }
    let mut gateway = json!({"listeners": listeners, "underscores_in_headers": true});
    if let Some(listeners) = streams.listeners() {
        gateway["stream_proxy"] = listeners;
    }
    gateway
}
