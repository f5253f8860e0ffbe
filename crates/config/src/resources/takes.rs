//! Compiles the keys of a route that determine which requests it takes.

use crate::keys::resources::RouteKeys;
use stillgate_plugin::Scripts;
use stillgate_route::{HostPattern, PathPattern, RouteMatch, Unread, UriRoute, Variable, condition::Field, vars::Expr};
use stillgate_schema::kind::At;
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink};

/// The requests that a route takes. `hosts`: its service's.
pub(crate) fn takes(
    mut keys: RouteKeys,
    (id, scripts): (&str, Scripts),
    hosts: &[HostPattern],
    path: &Path<'_>,
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
        unread: Unread::default(),
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
    takes(keys, (id, scripts), hosts, &Path::Root, &mut Sink::alone())
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
