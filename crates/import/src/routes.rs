//! Routes for requests: their conditions, their order, and the plugins that they need themselves.

use crate::expression::{Conditions, Path, RoutePart};
use crate::kong_file::{KongFile, Route, is_stream_protocol};
use crate::names::Ids;
use crate::object::{Field, Object};
use crate::path_rewrite::path_rewrite;
use crate::placement::{Effective, Placement, refusal};
use crate::plugins::{IDENTITY_FIELDS, without_variables};
use crate::upstreams::Service;
use serde_json::{Map, Value as Json, json};
use stillgate_route::Expression;

/// Distance of two ranks, so that routes can be put in between.
const RANK_STEP: usize = 10;

/// What is read of a route before plugins are looked at.
pub(crate) struct ReadRoute {
    /// Its number in the file.
    pub(crate) index: usize,
    pub(crate) service: Option<usize>,
    pub(crate) protocols: Vec<String>,
    pub(crate) conditions: Conditions,
    parts: Vec<RoutePart>,
    /// The id of each part here.
    pub(crate) ids: Vec<String>,
    kong_id: Option<String>,
    document: Map<String, Json>,
    strips_path: bool,
    preserves_host: bool,
    redirect_status: i64,
    /// Whether requests have to be refused, because a part of the conditions could not be read.
    pub(crate) is_closed: bool,
    object: Object,
}

impl ReadRoute {
    pub(crate) fn is_stream(&self) -> bool {
        self.protocols.first().is_some_and(|first| is_stream_protocol(first))
    }

    pub(crate) fn object(&self) -> &Object {
        &self.object
    }

    pub(crate) fn document(&self) -> &Map<String, Json> {
        &self.document
    }

    /// Whether requests over HTTP are answered by the gateway.
    fn needs_https(&self) -> bool {
        let has = |name: &str| self.protocols.iter().any(|protocol| protocol == name);
        (has("https") || has("grpcs") || has("wss")) && !has("http") && !has("grpc") && !has("ws")
    }
}

/// Reads all routes.
pub(crate) fn read(file: &KongFile, services: &[Service]) -> Vec<ReadRoute> {
    let mut ids = Ids::default();
    file.routes.iter().enumerate().map(|(index, route)| read_one(index, route, file, services, &mut ids)).collect()
}

fn read_one(index: usize, route: &Route, file: &KongFile, services: &[Service], ids: &mut Ids) -> ReadRoute {
    let object = route.entity.object.clone();
    object.skip(&["request_buffering", "response_buffering", "service", "plugins", "id", "name"]);
    let (read, is_incomplete) =
        object.losses().watch(|| (protocols(&object), Conditions::read(&object, file.is_old_format)));
    let (protocols, conditions) = read;
    let is_grpc = protocols.iter().any(|protocol| protocol.starts_with("grpc"));
    if is_grpc {
        object.changed("requests that are not gRPC are not refused on this route; Kong answers 415");
    }
    if protocols.iter().any(|protocol| protocol == "ws" || protocol == "wss") {
        object.lost("protocols", "ordinary requests are not refused on a route for WebSocket");
    }
    let had_paths = object.has("paths");
    let strips_path = object.flag("strip_path").unwrap_or(!is_grpc);
    report_paths(
        &object,
        &conditions,
        strips_path,
        route.service.and_then(|service| services[service].path.as_deref()),
    );
    let label = route.entity.label().map(str::to_owned).unwrap_or_else(|| match route.service {
        Some(service) => format!("{}-route-{}", services[service].id, index + 1),
        None => format!("route-{}", index + 1),
    });
    let mut parts = conditions.parts(had_paths);
    let is_stream = protocols.first().is_some_and(|first| is_stream_protocol(first));
    if !is_stream {
        parts.retain(|part| is_valid(&object, part));
    }
    if parts.is_empty() {
        object.losses().closed(
            object.path(),
            object.at(),
            "nothing of the route can be used here, so it is left out, and other routes may take its requests",
        );
    }
    if is_incomplete && !is_stream && !parts.is_empty() {
        report_incomplete(&object);
    }
    let part_ids = match parts.len() {
        1 => vec![ids.id(&label)],
        count => (1..=count).map(|number| ids.id(&format!("{label}-{number}"))).collect(),
    };
    let mut document = Map::new();
    if let Some(name) = &route.entity.name {
        document.insert("name".to_owned(), name.clone().into());
    }
    object.stamp(&mut document);
    let read = ReadRoute {
        index,
        service: route.service,
        protocols,
        conditions,
        parts,
        ids: part_ids,
        kong_id: route.entity.id.clone(),
        document,
        strips_path,
        preserves_host: object.flag("preserve_host").unwrap_or(false),
        redirect_status: object.whole("https_redirect_status_code").unwrap_or(426),
        is_closed: is_incomplete,
        object: object.clone(),
    };
    object.finish();
    read
}

/// Reports where paths for the node are put together in another way. `base`: that of the service.
fn report_paths(object: &Object, conditions: &Conditions, strips_path: bool, base: Option<&str>) {
    if strips_path && conditions.hides_prefix() {
        object.changed("`strip_path` takes off the prefixes of `http.path ^= …` only; Kong takes off what any predicate on the path matches");
    }
    if object.text("path_handling").as_deref() == Some("v1") && base.is_some_and(|base| base != "/") {
        object.lost("path_handling", "paths are put together as in v0, with one slash in between; v1 puts none there");
    }
}

fn report_incomplete(object: &Object) {
    object.losses().closed(
        object.path(),
        object.at(),
        "not all conditions of the route can be read, and without them it would take more requests; it answers 503 until you complete its `expression` and remove its plugin `fault-injection`",
    );
}

/// The protocols of a route.
fn protocols(object: &Object) -> Vec<String> {
    let known = |field: &Field| {
        let name = field.text()?;
        match is_stream_protocol(&name) || REQUEST_PROTOCOLS.contains(&&*name) {
            true => Some(name),
            false => field.wrong("a protocol that the importer knows"),
        }
    };
    let protocols: Vec<String> = object.items("protocols").iter().filter_map(known).collect();
    if protocols.is_empty() { vec!["http".to_owned(), "https".to_owned()] } else { protocols }
}

const REQUEST_PROTOCOLS: [&str; 6] = ["http", "https", "grpc", "grpcs", "ws", "wss"];

/// Whether an expression can be read here; a loss says why not. Streams have none.
fn is_valid(object: &Object, part: &RoutePart) -> bool {
    let errors = Expression::parse(&part.expression).err().unwrap_or_default();
    let Some(error) = errors.first() else { return true };
    let message = format!("the conditions of the route cannot be read here ({})", error.kind);
    object.losses().closed(object.path(), object.at(), message);
    false
}

/// The list `routes`, in the order in which Kong tries them.
pub(crate) fn documents(routes: &[ReadRoute], services: &[Service], placement: &Placement<'_>) -> Vec<Json> {
    let mut ordered: Vec<(&ReadRoute, usize)> = routes
        .iter()
        .filter(|route| !route.is_stream())
        .flat_map(|route| (0..route.parts.len()).map(move |part| (route, part)))
        .collect();
    ordered.sort_by_key(|(route, part)| std::cmp::Reverse(route.parts[*part].priority));
    let priority = |(route, part): &(&ReadRoute, usize)| route.parts[*part].priority;
    // Kong breaks ties by id, the largest first. Without ids in the file it makes them up, so the file's order is as good.
    for ties in ordered.chunk_by_mut(|a, b| priority(a) == priority(b)) {
        if ties.iter().all(|(route, _)| route.kong_id.is_some()) {
            ties.sort_by(|(a, _), (b, _)| b.kong_id.cmp(&a.kong_id));
        }
    }
    let mut rank = ordered.chunk_by(|a, b| priority(a) == priority(b)).count() * RANK_STEP;
    let mut documents = Vec::with_capacity(ordered.len());
    for ties in ordered.chunk_by(|a, b| priority(a) == priority(b)) {
        documents.extend(ties.iter().map(|(route, part)| document(route, *part, rank, services, placement)));
        rank -= RANK_STEP;
    }
    documents
}

fn document(route: &ReadRoute, part: usize, rank: usize, services: &[Service], placement: &Placement<'_>) -> Json {
    let service = route.service.map(|index| (index, &services[index]));
    let service = service.filter(|(_, service)| !service.is_stream);
    let effective = placement.effective(route.index, route.service);
    let mut document = Map::new();
    document.insert("id".to_owned(), route.ids[part].clone().into());
    document.extend(route.document.clone());
    document.insert("expression".to_owned(), route.parts[part].expression.clone().into());
    document.insert("priority".to_owned(), rank.into());
    if let Some((_, service)) = service {
        document.insert("service_id".to_owned(), service.id.clone().into());
        if !service.is_enabled {
            document.insert("status".to_owned(), 0.into());
        }
    }
    if let Some(config) = placement.config_of(route.index, route.service) {
        document.insert("plugin_config_id".to_owned(), config.into());
    }
    let mut plugins = placement.of_route(route.index, service.map(|(index, service)| (index, &*service.id)));
    let base = service.and_then(|(_, service)| service.path.as_deref());
    if let Some(rewrite) = rewrite(route, &route.parts[part].paths, base, &effective) {
        plugins.insert("proxy-rewrite".to_owned(), rewrite);
    }
    if effective.is_closed() || route.is_closed || service.is_some_and(|(_, service)| service.is_closed) {
        plugins.insert("fault-injection".to_owned(), refusal());
    } else if route.needs_https() {
        plugins.insert("fault-injection".to_owned(), https_only(route.redirect_status));
    }
    if service.is_none() && !plugins.contains_key("mocking") && !effective.has("request-termination") {
        // What Kong answers behind all plugins.
        const PRIORITY: i64 = 1;
        let keys = json!({
            "response_status": 503,
            "content_type": "application/json; charset=utf-8",
            "response_example": r#"{"message":"no Service found with those values"}"#,
            "with_mock_header": false,
            "_meta": {"priority": PRIORITY},
        });
        plugins.insert("mocking".to_owned(), keys);
    }
    if !plugins.is_empty() {
        document.insert("plugins".to_owned(), plugins.into());
    }
    document.into()
}

/// What Kong answers to a request without TLS, as the proxies that it trusts see it.
fn https_only(status: i64) -> Json {
    let vars = json!([[["http_x_forwarded_proto", "~=", "https"]]]);
    if matches!(status, 301 | 302 | 307 | 308) {
        let headers = json!({"Location": "https://$host$request_uri"});
        return json!({"abort": {"http_status": status, "body": "", "headers": headers, "vars": vars}});
    }
    let headers = json!({"Content-Type": "application/json; charset=utf-8"});
    let body = r#"{"message":"Please use HTTPS protocol"}"#;
    json!({"abort": {"http_status": 426, "body": body, "headers": headers, "vars": vars}})
}

/// The plugin `proxy-rewrite` of a route: the path, the host and the changes of `request-transformer`.
fn rewrite(route: &ReadRoute, paths: &[Path], base: Option<&str>, effective: &Effective<'_, '_>) -> Option<Json> {
    let transformer = effective.rewrite();
    let mut keys = Map::new();
    let is_authenticated = effective.is_authenticated();
    let derived = transformer.map(|rewrite| rewrite.node_request(is_authenticated));
    let mut headers = derived.and_then(|derived| derived.headers.clone()).unwrap_or_else(|| json!({}));
    match derived.and_then(|derived| derived.uri.as_ref()) {
        Some(uri) => drop(keys.insert("uri".to_owned(), uri.clone().into())),
        None => {
            if let Some(rewrite) = path_rewrite(paths, route.strips_path, base) {
                if let Some(difference) = rewrite.difference {
                    route.object.changed(difference);
                }
                let pairs: Vec<String> = rewrite.pairs.into_iter().flat_map(|(a, b)| [a, b]).collect();
                keys.insert("regex_uri".to_owned(), pairs.into());
            }
        }
    }
    if let Some(method) = transformer.and_then(|rewrite| rewrite.method.as_ref()) {
        keys.insert("method".to_owned(), method.clone().into());
    }
    if let ([Path::Prefix { text, .. }], true) = (paths, route.strips_path)
        && text != "/"
    {
        set_unless_there(&mut headers, "X-Forwarded-Prefix", &without_variables(text));
    }
    if route.preserves_host {
        set_unless_there(&mut headers, "Host", "$http_host");
    }
    if is_authenticated {
        remove_unless_set(&mut headers, &IDENTITY_FIELDS);
    }
    if headers.as_object().is_some_and(|edits| !edits.is_empty()) {
        keys.insert("headers".to_owned(), headers);
    }
    (!keys.is_empty()).then(|| keys.into())
}

/// Sets a field, unless the changes of the file do.
fn set_unless_there(headers: &mut Json, name: &str, value: &str) {
    if !is_set(headers, name) {
        headers["set"][name] = value.into();
    }
}

/// Removes fields, unless the changes of the file set them.
fn remove_unless_set(headers: &mut Json, names: &[&str]) {
    let mut removed = headers.get("remove").and_then(Json::as_array).cloned().unwrap_or_default();
    let is_removed = |name: &str, removed: &[Json]| {
        removed.iter().filter_map(Json::as_str).any(|known| known.eq_ignore_ascii_case(name))
    };
    for name in names {
        if !is_set(headers, name) && !is_removed(name, &removed) {
            removed.push((*name).into());
        }
    }
    if !removed.is_empty() {
        headers["remove"] = removed.into();
    }
}

fn is_set(headers: &Json, name: &str) -> bool {
    let set = headers.get("set").and_then(Json::as_object);
    set.is_some_and(|set| set.keys().any(|known| known.eq_ignore_ascii_case(name)))
}
