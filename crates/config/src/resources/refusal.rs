//! Replaces an unusable route, stream route, certificate or service by a refusal of everything that it could have taken.
//!
//! Each readable key of its match narrows the refusal. An unreadable one counts as true, and precedes everything it could have
//! preceded. Otherwise a broader route would answer requests that this one guards, perhaps without requiring a key.

use super::catalog::Catalog;
use super::claims::{Claim, ClaimedThing};
use super::compiled_resource::CompiledResource;
use crate::keys::resources::{ROUTE_PRIORITY_MAX, RouteKeys, ServiceKeys};
use crate::keys::ssls::{SslKeys, SslType};
use crate::keys::stream_routes::StreamRouteKeys;
use crate::model::{RefusedSsl, ResourceKind, Route, Ssl, SslUse, StreamRoute, Target};
use std::sync::Arc;
use stillgate_plugin_api::Scripts;
use stillgate_route::condition::Field;
use stillgate_route::vars::Expr;
use stillgate_route::{
    Expression, HostPattern, InvalidParts, PathPattern, ROUTE_PLACES_MAX, RouteMatch, RouteSpec, UriRoute, Variable,
};
use stillgate_schema::kind::At;
use stillgate_schema::object::Object;
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Severity, Sink};
use stillgate_schema::text::tree::{Entry, Node, Value};

/// A refusal, and the keys by which it is broader than the resource.
pub(crate) struct ResourceRefusal {
    pub(crate) compiled: CompiledResource,
    /// The unreadable keys, which match anything: `host`, `path`.
    pub(crate) widened: Vec<&'static str>,
}

/// The readable keys of a document, each by itself.
struct Readable<T> {
    keys: T,
    /// The names of the unreadable ones.
    invalid: Vec<Box<str>>,
    /// Whether there are unknown keys, which may be misspelt.
    has_unknown: bool,
}

impl<T: Object> Readable<T> {
    /// `None`: the document is not a map, which no program can read, or a required key of the object is missing.
    fn of(document: &Node) -> Option<Readable<T>> {
        let Value::Map(entries) = &document.value else { return None };
        let (good, bad): (Vec<Entry>, Vec<Entry>) = entries.iter().cloned().partition(is_readable::<T>);
        let keys = T::read_entries(&good, document.at, &Path::Root, &mut Sink::for_single_resource())?;
        let has_unknown = bad.iter().any(|entry| !T::has_key(&entry.key));
        Some(Readable { keys, invalid: bad.iter().map(|entry| Box::from(&*entry.key)).collect(), has_unknown })
    }

    /// Whether one of these keys may state a condition that cannot be read. `is_stated`: one of them can be read.
    fn lacks(&self, keys: &[&str], is_stated: bool) -> bool {
        self.has_invalid(keys) || self.has_unknown && !is_stated
    }

    fn has_invalid(&self, keys: &[&str]) -> bool {
        self.invalid.iter().any(|invalid| keys.contains(&&**invalid))
    }
}

/// Whether a key and its value are valid by themselves.
fn is_readable<T: Object>(entry: &Entry) -> bool {
    let mut sink = Sink::for_single_resource().passing_unknown();
    T::read_entries(std::slice::from_ref(entry), entry.key_at, &Path::Root, &mut sink);
    // An error without a path concerns missing neighbouring keys.
    let is_of_it = |severity, path: &str| severity == Severity::Error && !path.is_empty();
    let errors = sink.into_errors().diagnostics;
    !errors.iter().any(|error| is_of_it(error.severity, &error.path)) && !is_cut(&entry.value)
}

/// Whether part of a value was dropped by the parser because it is too large, or replaces bytes that are not UTF-8.
fn is_cut(node: &Node) -> bool {
    let is_replaced = |text: &str| text.contains(char::REPLACEMENT_CHARACTER);
    match &node.value {
        Value::Refused => true,
        Value::List(items) => items.iter().any(is_cut),
        Value::Map(entries) => entries.iter().any(|entry| is_replaced(&entry.key) || is_cut(&entry.value)),
        Value::Scalar(scalar) => is_replaced(&scalar.text),
    }
}

impl Readable<RouteKeys> {
    /// Whether its match is known at all. No program serves a route without a path.
    fn may_take(&self) -> bool {
        let RouteKeys { uri, uris, expression, .. } = &self.keys;
        let is_stated = uri.is_some() || uris.is_some() || expression.is_some();
        is_stated || self.lacks(&["uri", "uris", "expression"], is_stated)
    }
}

impl Catalog {
    /// The replacement of an unusable resource; `None`: it takes nothing. `document`: as it was put.
    pub(crate) fn refusal(
        &self,
        kind: ResourceKind,
        id: &str,
        document: &Node,
        reason: &str,
    ) -> Option<ResourceRefusal> {
        let target = Target::Unavailable(reason.into());
        match kind {
            ResourceKind::Routes => self.refused_route(id, document, target),
            ResourceKind::StreamRoutes => refused_stream_route(id, document, target),
            ResourceKind::Ssls => refused_ssl(id, document),
            _ => None,
        }
    }

    /// Records the readable hosts of an unusable service; `None`: it is usable, or does not exist. Returns whether that changed for
    /// its routes.
    pub(crate) fn refuse_service(&mut self, id: &str, document: Option<Option<&Node>>) -> bool {
        let Some(document) = document else { return self.refused_services.remove(id).is_some() };
        let read: Option<Readable<ServiceKeys>> = document.and_then(Readable::of);
        let hosts = read.and_then(|read| {
            let is_stated = !read.keys.hosts.is_empty();
            (!read.lacks(&["hosts"], is_stated)).then_some(read.keys.hosts)
        });
        self.refused_services.insert(id.to_owned(), hosts.clone()) != Some(hosts)
    }

    /// The hosts of a service; `None`: they cannot be read.
    fn hosts_of(&self, service: &str) -> Option<Vec<HostPattern>> {
        match self.services.get(service) {
            Some(service) => Some(service.value.hosts.clone()),
            None => self.refused_services.get(service)?.clone(),
        }
    }

    fn refused_route(&self, id: &str, document: &Node, target: Target) -> Option<ResourceRefusal> {
        let read: Readable<RouteKeys> = Readable::of(document)?;
        if !read.keys.status || !read.may_take() {
            return None;
        }
        let states_priority = read.keys.priority != 0;
        let priority = if read.lacks(&["priority"], states_priority) { ROUTE_PRIORITY_MAX } else { read.keys.priority };
        let keys = &read.keys;
        let (service_id, name, on_change) =
            (keys.service_id.as_ref().map(|id| id.value.clone()), keys.name.clone(), keys.on_change);
        let service = service_id.as_ref().and_then(|id| self.services.get(id));
        let service_name = service.and_then(|service| service.value.name.clone());
        let (takes, widened) = self.refused_match(id, read);
        let route = Route {
            spec: Arc::new(RouteSpec { id: id.to_owned(), priority, takes }),
            target,
            service_id,
            timeout: None,
            upgrades: false,
            on_change,
            // Its plugins do not answer either.
            chain: None,
            name: name.filter(|name| !name.is_empty()),
            service_name,
            documents: None,
        };
        Some(ResourceRefusal { compiled: CompiledResource::Route(Some(Arc::new(route))), widened })
    }

    fn refused_match(&self, id: &str, read: Readable<RouteKeys>) -> (RouteMatch, Vec<&'static str>) {
        let keys = &read.keys;
        let (host, path) = (keys.host.is_some() || keys.hosts.is_some(), keys.uri.is_some() || keys.uris.is_some());
        let is_uri_route = host || path || read.has_invalid(&["host", "hosts", "uri", "uris"]);
        if read.lacks(&["expression"], keys.expression.is_some() || is_uri_route) {
            return (everything(), vec!["request"]);
        }
        let is_host_invalid = read.lacks(&["host", "hosts"], host);
        // If none is stated, one is misspelt.
        let is_path_invalid = read.has_invalid(&["uri", "uris"]) || !path;
        // The hosts of an unreadable service are unreadable.
        let service_hosts = match &read.keys.service_id {
            _ if host || is_host_invalid => Some(Vec::new()),
            Some(id) => self.hosts_of(&id.value),
            None => (!read.has_invalid(&["service_id"])).then(Vec::new),
        };
        let invalid = InvalidParts { host: is_host_invalid || service_hosts.is_none(), path: is_path_invalid };
        let scripts = self.plugins.set.table.scripts;
        let takes = match narrow(self.with_paths(read.keys), (id, scripts), &service_hosts.unwrap_or_default()) {
            RouteMatch::Expression(expression) => return (RouteMatch::Expression(expression), Vec::new()),
            RouteMatch::Uri(uri) => uri,
        };
        // A route with too many pairs cannot be compiled, so it closes all paths of its hosts.
        let invalid = InvalidParts { path: invalid.path || takes.places() > ROUTE_PLACES_MAX, ..invalid };
        let hosts = if invalid.host { Vec::new() } else { takes.hosts };
        let paths = if invalid.path { any_path() } else { takes.paths };
        // A condition on an unreadable part of a path is unreadable too.
        let vars = takes.vars.filter(|vars| has_params(vars, &paths));
        let widened = [("host", invalid.host), ("path", invalid.path)];
        let widened = widened.into_iter().filter_map(|(what, is_invalid)| is_invalid.then_some(what)).collect();
        (RouteMatch::Uri(UriRoute { hosts, paths, vars, invalid, ..takes }), widened)
    }
}

/// Matches every request, before all others.
fn everything() -> RouteMatch {
    RouteMatch::Expression(Expression::parse("http.path ^= \"/\"").expect("every path begins with a slash"))
}

fn any_path() -> Vec<PathPattern> {
    vec![PathPattern::parse("/*").expect("that is any path")]
}

fn refused_stream_route(id: &str, document: &Node, target: Target) -> Option<ResourceRefusal> {
    let read: Readable<StreamRouteKeys> = Readable::of(document)?;
    if !read.keys.status {
        return None;
    }
    let is_sni_unread = read.lacks(&["sni"], read.keys.sni.is_some());
    let StreamRouteKeys { remote_addr, server_addr, server_port, sni, timeout, on_change, service_id, .. } = read.keys;
    let route = StreamRoute {
        id: id.to_owned(),
        sni: sni.map(|sni| sni.value),
        is_sni_unread,
        remote_addr,
        server_addr,
        server_port,
        target,
        service_id: service_id.map(|id| id.value),
        timeout,
        on_change,
    };
    let widened = if is_sni_unread { vec!["server name"] } else { Vec::new() };
    Some(ResourceRefusal { compiled: CompiledResource::StreamRoute(Some(Arc::new(route))), widened })
}

fn refused_ssl(id: &str, document: &Node) -> Option<ResourceRefusal> {
    let read: Readable<SslKeys> = Readable::of(document)?;
    if !read.keys.status || read.keys.r#type == SslType::Client {
        return None;
    }
    let keys = &read.keys;
    let has_names = keys.sni.is_some() || keys.snis.is_some();
    let states_default = keys.default.is_some();
    let is_default =
        keys.default.as_ref().is_some_and(|default| default.value) || read.lacks(&["default"], states_default);
    let is_name_unread = read.lacks(&["sni", "snis"], has_names);
    // Without a name, and without being the default, it would never be used.
    if !has_names && !is_name_unread && !is_default {
        return None;
    }
    let snis = keys.snis.iter().flat_map(|snis| &snis.value);
    let names: Vec<String> = keys.sni.iter().chain(snis).map(|name| name.value.clone()).collect();
    // Later entries do not get names that may belong to this one.
    let claim = |key, what| Claim::new(Position::NOWHERE, key, what);
    let mut claims: Vec<Claim> =
        names.iter().map(|name| claim("snis", ClaimedThing::ServerName(name.as_str().into()))).collect();
    if is_name_unread {
        claims.push(claim("snis", ClaimedThing::InvalidServerName));
    }
    if is_default && (states_default || read.has_invalid(&["default"])) {
        claims.push(claim("default", ClaimedThing::DefaultCertificate));
    }
    let asks = keys.client.is_some() || read.lacks(&["client"], keys.client.is_some());
    let usage = SslUse::Refused(RefusedSsl { names, is_name_unread, is_default, asks });
    let ssl = Ssl { id: id.to_owned(), usage, pairs: Vec::new(), acme: false };
    let widened = if is_name_unread { vec!["server name"] } else { Vec::new() };
    Some(ResourceRefusal { compiled: CompiledResource::Ssl(Some(Arc::new(ssl)), claims), widened })
}

// Compiles the keys of a route that determine which requests it takes.

/// The requests that a route takes. `hosts`: its service's.
pub(crate) fn takes(
    mut keys: RouteKeys,
    (id, scripts): (&str, Scripts),
    hosts: &[HostPattern],
    (at, path): (Position, &Path<'_>),
    sink: &mut Sink,
) -> RouteMatch {
    if let Some(expression) = keys.expression.take() {
        check_expression_alone(&keys, path, sink);
        if let Some(service) = keys.service_id.filter(|_| !hosts.is_empty()) {
            let fault = Fault::new("the service has hosts, which do not hold for an expression");
            let fault = fault.hint("write `http.host == \"…\"` in the expression, and use a service without hosts");
            sink.error(service.at, &path.key("service_id"), fault);
        }
        return RouteMatch::Expression(expression.value);
    }
    let mut uri = UriRoute {
        hosts: one_or_several(keys.host, keys.hosts, ("host", "hosts"), path, sink),
        paths: one_or_several(keys.uri, keys.uris, ("uri", "uris"), path, sink),
        methods: keys.methods.map_or(Vec::new(), |methods| methods.value).into_iter().collect(),
        remote_addrs: one_or_several(keys.remote_addr, keys.remote_addrs, ("remote_addr", "remote_addrs"), path, sink),
        vars: None,
        function: None,
        invalid: InvalidParts::default(),
    };
    if let Some(vars) = keys.vars {
        check_params(&vars, &uri.paths, &path.key("vars"), sink);
        uri.vars = Some(vars.value);
    }
    if let Some(text) = keys.filter_func.filter(|text| !text.value.is_empty()) {
        let wrong = |why| sink.error(text.at, &path.key("filter_func"), Fault::new(why));
        uri.function = (scripts.filter)(&text.value, id).map_err(wrong).ok();
    }
    if uri.hosts.is_empty() {
        uri.hosts = hosts.to_vec();
    }
    if uri.places() > ROUTE_PLACES_MAX {
        let (hosts, paths) = (uri.hosts.len().max(1), uri.paths.len());
        let fault = Fault::new(format!(
            "hosts: {hosts}, paths: {paths}; a route has at most {ROUTE_PLACES_MAX} pairs of a host and a path"
        ));
        sink.error(at, path, fault.hint("split the route, or use patterns such as `*.example.com` and `/api/*`"));
    }
    RouteMatch::Uri(uri)
}

/// Like the above, for keys that are each readable but conflict: anything that one of several alternatives allows.
pub(super) fn narrow(mut keys: RouteKeys, (id, scripts): (&str, Scripts), hosts: &[HostPattern]) -> RouteMatch {
    fn either<T>(one: &mut Option<At<T>>, several: &mut Option<At<Vec<T>>>) {
        if let (Some(_), Some(several)) = (&one, several) {
            several.value.extend(one.take().map(|one| one.value));
        }
    }
    either(&mut keys.host, &mut keys.hosts);
    either(&mut keys.uri, &mut keys.uris);
    either(&mut keys.remote_addr, &mut keys.remote_addrs);
    takes(keys, (id, scripts), hosts, (Position::NOWHERE, &Path::Root), &mut Sink::for_single_resource())
}

/// Whether the paths have all parameters that conditions read.
pub(super) fn has_params(vars: &Expr, paths: &[PathPattern]) -> bool {
    let mut has_all = true;
    vars.condition().each_predicate(&mut |predicate| {
        if let Field::Variable(Variable::PathParam(name)) = &predicate.field {
            has_all &= paths.iter().any(|path| path.names().contains(name));
        }
    });
    has_all
}

/// Reports the keys that an expression replaces.
fn check_expression_alone(keys: &RouteKeys, path: &Path<'_>, sink: &mut Sink) {
    fn at<T>(key: &Option<At<T>>) -> Option<Position> {
        key.as_ref().map(|key| key.at)
    }
    let others = [
        ("uri", at(&keys.uri), "http.path == \"/a\"` or `http.path ^= \"/a/\""),
        ("uris", at(&keys.uris), "(http.path == \"/a\" || http.path ^= \"/b/\")"),
        ("host", at(&keys.host), "http.host == \"example.com\""),
        ("hosts", at(&keys.hosts), "(http.host == \"example.com\" || http.host =^ \".example.com\")"),
        ("methods", at(&keys.methods), "(http.method == \"GET\" || http.method == \"POST\")"),
        ("remote_addr", at(&keys.remote_addr), "net.src.ip in 10.0.0.0/8"),
        ("remote_addrs", at(&keys.remote_addrs), "(net.src.ip in 10.0.0.0/8 || net.src.ip == 192.0.2.1)"),
        ("vars", at(&keys.vars), "http.headers.x_name == \"value\"` or `any(http.queries.name) == \"value\""),
        ("filter_func", at(&keys.filter_func), "http.headers.x_name == \"value\""),
    ];
    for (key, at, example) in others {
        let Some(at) = at else { continue };
        let fault = Fault::new("has no place beside an expression");
        sink.error(at, &path.key(key), fault.hint(format!("write it in the expression: `{example}`")));
    }
}

/// The values of a key and its plural, of which only one may be present.
fn one_or_several<T>(
    one: Option<At<T>>,
    several: Option<At<Vec<T>>>,
    keys: (&str, &str),
    path: &Path<'_>,
    sink: &mut Sink,
) -> Vec<T> {
    match (one, several) {
        (None, None) => Vec::new(),
        (Some(one), None) => vec![one.value],
        (None, Some(several)) => several.value,
        (Some(_), Some(several)) => {
            let fault = Fault::new(format!("both {} and {} are here", keys.0, keys.1));
            sink.error(several.at, &path.key(keys.1), fault.hint(format!("put all into {}", keys.1)));
            several.value
        }
    }
}

/// Conditions can read only those path parameters that a path of the route has.
fn check_params(vars: &At<Expr>, paths: &[PathPattern], path: &Path<'_>, sink: &mut Sink) {
    let mut reported: Vec<&str> = Vec::new();
    vars.value.condition().each_predicate(&mut |predicate| {
        if let Field::Variable(Variable::PathParam(name)) = &predicate.field
            && !paths.is_empty()
            && !paths.iter().any(|path| path.names().contains(name))
            && !reported.contains(&&**name)
        {
            reported.push(name);
            let fault = Fault::new(format!("no path of the route has the parameter {name:?}"));
            sink.error(vars.at, path, fault.hint(format!("write \":{name}\" in a path, or remove the condition")));
        }
    });
}
