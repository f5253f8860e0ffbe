//! Requests and routes made to be expensive, and the promise that matching allocates nothing.

mod expressions;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use stillgate_route::path::normalise;
use stillgate_route::{
    CompileErrorKind, HostPattern, InvalidParts, Lookup, MatchRequest, Matcher, Method, MethodSet, PathError,
    PathPattern, RouteMatch, RouteSpec, Scratch, UriRoute, Variable, vars,
};

struct Values;

impl Lookup for Values {
    fn value<'a>(&'a self, variable: &Variable, buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        match variable {
            Variable::Arg(_) => Some(b"17"),
            Variable::RemoteAddr => {
                buffer.clear();
                buffer.extend_from_slice(b"10.1.2.3");
                Some(buffer)
            }
            _ => None,
        }
    }

    fn each_header(&self, _: &mut dyn FnMut(&[u8], &[u8])) {}
}

fn spec(id: impl ToString, host: Option<&str>, path: &str) -> Arc<RouteSpec> {
    route(id, uri(host, path))
}

fn route(id: impl ToString, uri: UriRoute) -> Arc<RouteSpec> {
    Arc::new(RouteSpec { id: id.to_string(), priority: 0, takes: RouteMatch::Uri(uri) })
}

fn uri(host: Option<&str>, path: &str) -> UriRoute {
    UriRoute {
        hosts: host.iter().map(|host| HostPattern::parse(host).unwrap()).collect(),
        paths: vec![PathPattern::parse(path).unwrap()],
        methods: MethodSet::default(),
        remote_addrs: Vec::new(),
        vars: None,
        function: None,
        invalid: InvalidParts::default(),
    }
}

fn find(matcher: &Matcher, scratch: &mut Scratch, host: &str, path: &str) -> Result<Option<usize>, PathError> {
    let mut buffer = Vec::new();
    let request = MatchRequest {
        method: Method::Get,
        host: host.as_bytes(),
        path: normalise(path.as_bytes(), &mut buffer)?,
        client: IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3)),
        vars: &Values,
    };
    Ok(matcher.find(&request, scratch)?.map(|found| found.route))
}

/// If the work exploded, this would not end.
#[test]
fn huge_paths_and_hosts_cost_their_length() {
    let mut routes: Vec<_> = (0..2_000).map(|n| spec(n, Some(&format!("*.h{n}.com")), "/*")).collect();
    routes.push(spec("params", None, "/:a/:b/:c/:d/:e/:f/:g/:h/end"));
    routes.push(spec("deep", None, "/a/:b/a/:d/a/:f/a/:h/end"));
    routes.push(spec("rest", None, "/x/*"));
    let matcher = Matcher::compile(routes).unwrap();
    let mut scratch = Scratch::default();
    let mib = 1 << 20;

    let check = |host: &str, path: &str, expected: Option<usize>| {
        assert_eq!(find(&matcher, &mut Scratch::default(), host, path), Ok(expected));
    };
    check("", &format!("/{}", "a".repeat(mib)), None);
    check("", &"/a".repeat(mib / 2), None);
    check("", &format!("/x{}", "/a".repeat(mib / 2)), Some(2_002));
    check("", &format!("/x/{}", "%C3%A4".repeat(mib / 6)), Some(2_002));
    check(&".".repeat(mib), "/", None);
    check(&"a.".repeat(mib / 2), "/", None);
    check(&format!("{}h1999.com", "a.".repeat(mib / 2)), "/y", Some(1_999));
    let slashes = format!("/x/{}", "%2F".repeat(mib / 3));
    assert_eq!(find(&matcher, &mut scratch, "", &slashes), Ok(Some(2_002)));
    assert_eq!(find(&matcher, &mut scratch, "", "/x/..%2F..%2F.."), Err(PathError::AboveRoot));
}

#[test]
fn nested_prefixes_of_any_depth_compile_and_match() {
    let routes = (1..4_000).map(|n| spec(n, None, &format!("/{}*", "a".repeat(n)))).collect();
    let matcher = Matcher::compile(routes).unwrap();
    let found = find(&matcher, &mut Scratch::default(), "", &format!("/{}b", "a".repeat(3_000)));
    assert_eq!(found, Ok(Some(2_999)));
}

#[test]
fn hosts_times_paths_are_bounded() {
    let mut wide = uri(None, "/");
    wide.hosts = (0..3_000).map(|n| HostPattern::parse(&format!("h{n}.com")).unwrap()).collect();
    wide.paths = (0..3_000).map(|n| PathPattern::parse(&format!("/{n}")).unwrap()).collect();
    let errors = Matcher::compile(vec![spec("fine", None, "/"), route("wide", wide)]).unwrap_err();
    assert_eq!((errors.len(), errors[0].route, &errors[0].kind), (1, 1, &CompileErrorKind::TooMany));
}

#[test]
fn routes_that_cannot_work_are_refused() {
    let json = serde_json::json!(["OR", ["uri_param_id", "==", "1"], ["uri_param_rest", "==", "1"]]);
    let with_vars = |path: &str| UriRoute { vars: Some(vars::Expr::parse(&json).unwrap()), ..uri(None, path) };
    let routes = vec![
        route("no-path", UriRoute { paths: Vec::new(), ..uri(None, "/") }),
        route("no-param", with_vars("/:a")),
        route("fine", with_vars("/:id/*rest")),
    ];
    let errors: Vec<String> = Matcher::compile(routes).unwrap_err().iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        [
            "route \"no-path\" has no path; write \"/*\" for any",
            "route \"no-param\": vars read uri_param_id, but no path of the route has \":id\" or \"*id\"",
            "route \"no-param\": vars read uri_param_rest, but no path of the route has \":rest\" or \"*rest\"",
        ]
    );
}

#[test]
fn an_encoded_slash_is_refused_only_where_it_matters() {
    let routes =
        vec![spec("files", None, "/files/*"), spec("admin", None, "/files/admin/*"), spec("id", None, "/p/:id")];
    let matcher = Matcher::compile(routes).unwrap();
    let check = |path: &str, expected: Result<Option<usize>, PathError>| {
        assert_eq!(find(&matcher, &mut Scratch::default(), "", path), expected, "{path}");
    };
    check("/files/a%2Fb", Ok(Some(0)));
    check("/files/admin%2Fb", Err(PathError::EncodedSlash));
    check("/files/admin/a%2fb", Ok(Some(1)));
    check("/files/x/..%2Fadmin/b", Err(PathError::EncodedSlash));
    check("/files/a%2F..%2F..%2Fp/1", Err(PathError::EncodedSlash));
    check("/files/..%2F..", Err(PathError::AboveRoot));
    check("/p/a%2Fb", Err(PathError::EncodedSlash));
    check("/none%2Fb", Ok(None));
    // A `..` removes the `%2F` only for those who do not decode it first.
    check("/files/admin%2Fx/../b", Err(PathError::EncodedSlash));
    check("/files/admin%2fx/y/../../b", Err(PathError::EncodedSlash));
    check("/files/admin%2Fx/%2e%2e/b", Err(PathError::EncodedSlash));
    check("/files/a%2Fx/../b", Ok(Some(0)));
}

/// Whatever spelling: what nginx passes on as a path below the guarded prefix is not taken by the open route.
#[test]
fn no_spelling_passes_a_guard() {
    let routes = vec![spec("open", None, "/*"), spec("admin", None, "/@admin/*"), spec("batch", None, "/a:b")];
    let matcher = Matcher::compile(routes).unwrap();
    let check = |path: &str, expected: Result<Option<usize>, PathError>| {
        assert_eq!(find(&matcher, &mut Scratch::default(), "", path), expected, "{path}");
    };
    check("/%40admin/x", Ok(Some(1)));
    check("/%40%61dmin/x", Ok(Some(1)));
    check("/x/%2e%2E/%40admin/x", Ok(Some(1)));
    check("/a%3ab", Ok(Some(2)));
    check("/a%3Ab/", Ok(Some(0)));
    check("/%2540admin/x", Ok(Some(0)));
    check("/%40admin%2fx", Err(PathError::EncodedSlash));
    check("/%40admin%2Fx/../y", Err(PathError::EncodedSlash));
    check("/x/..%2F%40admin/y", Err(PathError::EncodedSlash));
}

#[test]
fn matching_allocates_nothing() {
    let mut routes: Vec<_> = (0..100).map(|n| spec(n, None, &format!("/a/{n}"))).collect();
    routes.push(spec("host", Some("*.example.com"), "/b/:x/*rest"));
    let mut guarded = uri(None, "/b/:x/c");
    let json = serde_json::json!([
        ["uri_param_x", "~~", "^[a-z]+$"],
        ["arg_v", ">", 16],
        ["arg_v", "in", ["16", 17]],
        ["remote_addr", "ipmatch", ["10.0.0.0/8"]],
        ["http_none", "!", "has", "x"],
    ]);
    guarded.vars = Some(vars::Expr::parse(&json).unwrap());
    guarded.remote_addrs = vec!["10.1.0.0/16".parse().unwrap()];
    routes.push(route("guarded", guarded));
    let matcher = Matcher::compile(routes).unwrap();
    let mut scratch = Scratch::default();
    let check = |scratch: &mut Scratch, host: &str, path: &str, expected: Option<usize>| {
        // Memory grows with the first request of its kind.
        let mut found = find(&matcher, scratch, host, path);
        let counted = allocation_counter::measure(|| found = find(&matcher, scratch, host, path));
        assert_eq!((found, counted.count_total), (Ok(expected), 0), "{host} {path}");
    };
    check(&mut scratch, "", "/a/50", Some(50));
    check(&mut scratch, "www.example.com", "/b/x/y", Some(100));
    check(&mut scratch, "", "/b/x/c", Some(101));
    check(&mut scratch, "", "/b/X/c", None);
    check(&mut scratch, "", "/none", None);
}
