//! So many routes that the index separates them, where one alone would just be evaluated: filed routes must mean the
//! same as single ones.

use rustix::time::{ClockId, clock_gettime};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;
use stillgate_route::path::normalise;
use stillgate_route::vars::Expr;
use stillgate_route::{
    Expression, HostPattern, InvalidParts, Lookup, MatchRequest, Matcher, Method, MethodSet, PathPattern, RouteMatch,
    RouteSpec, Scratch, UriRoute, Variable,
};

/// The parts of a request besides its path.
#[derive(Default)]
struct Wire {
    server: &'static str,
    host: String,
    query: String,
    headers: Vec<(String, String)>,
}

impl Lookup for Wire {
    fn value<'a>(&'a self, variable: &Variable, _: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        match variable {
            Variable::ServerAddr => Some(self.server.as_bytes()),
            Variable::Args => Some(self.query.as_bytes()),
            _ => None,
        }
    }

    fn each_header(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        self.headers.iter().for_each(|(name, value)| visit(name.as_bytes(), value.as_bytes()));
    }
}

/// CPU time of this thread so far: other threads that use the core do not affect it.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

fn route(id: usize, takes: RouteMatch) -> Arc<RouteSpec> {
    Arc::new(RouteSpec { id: id.to_string(), priority: 0, takes })
}

fn expressions(texts: impl IntoIterator<Item = String>) -> Matcher {
    let parse = |(id, text): (usize, String)| route(id, RouteMatch::Expression(Expression::parse(&text).unwrap()));
    Matcher::compile(texts.into_iter().enumerate().map(parse).collect()).unwrap()
}

fn uri(paths: &[&str], vars: Option<serde_json::Value>) -> UriRoute {
    UriRoute {
        hosts: Vec::new(),
        paths: paths.iter().map(|path| PathPattern::parse(path).unwrap()).collect(),
        methods: MethodSet::default(),
        remote_addrs: Vec::new(),
        vars: vars.map(|vars| Expr::parse(&vars).unwrap()),
        function: None,
        invalid: InvalidParts::default(),
    }
}

fn find(matcher: &Matcher, scratch: &mut Scratch, path: &str, wire: &Wire) -> Option<usize> {
    let mut buffer = Vec::new();
    let path = normalise(path.as_bytes(), &mut buffer).unwrap();
    let client = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let request = MatchRequest { method: Method::Get, host: wire.host.as_bytes(), path, client, vars: wire };
    matcher.find(&request, scratch).unwrap().map(|found| found.route)
}

#[test]
fn addresses_are_compared_as_addresses() {
    let wire = Wire { server: "::ffff:10.0.0.7", ..Wire::default() };
    for routes in [8, 100] {
        let matcher = expressions((0..routes).map(|n| format!("net.dst.ip == 10.0.0.{n}")));
        assert_eq!(find(&matcher, &mut Scratch::default(), "/", &wire), Some(7), "{routes} routes");
    }
}

#[test]
fn long_alternatives_are_distinguished() {
    let of = |hosts: usize| {
        let any = |n: usize| {
            let hosts = (0..hosts).map(|host| format!(r#"http.host == "h{host}.of-{n}.example""#));
            hosts.collect::<Vec<_>>().join(" || ")
        };
        expressions((0..300).map(any))
    };
    let cost = |matcher: &Matcher, host: &str, expected: Option<usize>| {
        let mut scratch = Scratch::default();
        let wire = Wire { host: host.to_owned(), ..Wire::default() };
        let once = |_| {
            let start = cpu_time();
            assert_eq!(find(matcher, &mut scratch, "/", &wire), expected);
            (cpu_time() - start).as_secs_f64()
        };
        (0..50).map(once).fold(f64::INFINITY, f64::min)
    };
    let (short, long) = (of(10), of(200));
    cost(&long, "h199.of-299.example", Some(299));
    // Compared one by one, both would take thousands of comparisons, and the long ones twenty times as many.
    let [few, many] = [&short, &long].map(|matcher| cost(matcher, "h1.of-300.example", None));
    assert!(many < few * 10.0, "{many} s against {few} s");
}

#[test]
fn names_of_headers_are_bounded_when_they_are_read() {
    let name = |len: usize| format!("http.headers.{} == \"1\"", "x".repeat(len));
    let matcher = expressions([name(256)]);
    let wire = Wire { headers: vec![("X".repeat(256), "1".to_owned())], ..Wire::default() };
    assert_eq!(find(&matcher, &mut Scratch::default(), "/", &wire), Some(0));
    assert!(Expression::parse(&name(257)).is_err());
}

#[test]
fn regexes_nested_as_deep_as_can_be_compile() {
    for (depth, leaf) in [(81, r"\d"), (82, r"\d"), (83, "a"), (84, "a"), (120, "a")] {
        let regex = format!("(?i)^/11{}{leaf}{}", "(?:".repeat(depth), ")+z".repeat(depth));
        if let Ok(expression) = Expression::parse(&format!("http.path ~ r#\"{regex}\"#")) {
            Matcher::compile(vec![route(0, RouteMatch::Expression(expression))]).unwrap();
        }
    }
}

#[test]
fn places_times_alternatives_are_bounded() {
    let hosts: Vec<HostPattern> = (0..60).map(|n| HostPattern::parse(&format!("h{n}.example")).unwrap()).collect();
    let paths: Vec<String> = (0..60).map(|n| format!("/p{n}/*")).collect();
    let either = |name: &str| serde_json::json!(["OR", [name, "==", "1"], [name, "==", "2"]]);
    let vars = ["arg_a", "arg_b", "arg_c", "arg_d", "arg_e", "arg_f"].map(either);
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let many = UriRoute { hosts, ..uri(&paths, Some(serde_json::json!(vars))) };
    let matcher = Matcher::compile(vec![route(0, RouteMatch::Uri(many))]).unwrap();
    assert!(matcher.index_bytes() < 3_600 * 200, "{}", matcher.index_bytes());
}

#[test]
fn many_fields_with_few_routes_each_compile_in_time() {
    let compile = |routes: usize| {
        let start = cpu_time();
        expressions((0..routes).map(|n| format!(r#"http.headers.h{} ^= "p{}""#, n / 3, n % 3)));
        (cpu_time() - start).as_secs_f64()
    };
    compile(100);
    let (few, many) = (compile(500), compile(8_000));
    assert!(many < few * 16.0 * 8.0, "{many} s against {few} s");
}

#[test]
fn regexes_over_parameters_allocate_nothing() {
    let guarded = uri(&["/p/:id"], Some(serde_json::json!([["uri_param_id", "~~", "^[0-9]+$"]])));
    let matcher = Matcher::compile(vec![route(0, RouteMatch::Uri(guarded))]).unwrap();
    let mut scratch = Scratch::default();
    let wire = Wire::default();
    assert_eq!(find(&matcher, &mut scratch, "/p/17", &wire), Some(0));
    assert_eq!(find(&matcher, &mut scratch, "/p/x", &wire), None);
    let counted = allocation_counter::measure(|| assert_eq!(find(&matcher, &mut scratch, "/p/4711", &wire), Some(0)));
    assert_eq!(counted.count_total, 0);
    assert_eq!(find(&matcher, &mut scratch, "/p/%20", &wire), None);
}

/// Parameters have the text of the path, not its encoded form, in conditions and when they are read.
#[test]
fn parameters_are_decoded() {
    let guard = |name: &str, value: &str| Some(serde_json::json!([[name, "==", value]]));
    let routes = [
        uri(&["/f/:name"], guard("uri_param_name", "top secret")),
        uri(&["/g/*rest"], Some(serde_json::json!([["uri_param_rest", "~~", "^J\u{fc}r"]]))),
        uri(&["/p/:a/*rest", "/p/:a"], None),
    ];
    let specs = routes.into_iter().enumerate().map(|(id, takes)| route(id, RouteMatch::Uri(takes)));
    let expression = Expression::parse(r##"http.path ~ "^/e/(?<name>[^/]+)$""##).unwrap();
    let matcher = Matcher::compile(specs.chain([route(3, RouteMatch::Expression(expression))]).collect()).unwrap();
    let wire = Wire::default();
    let check = |raw: &str, expected: Option<usize>, values: &[(&str, &[u8])]| {
        let mut normal = Vec::new();
        let path = normalise(raw.as_bytes(), &mut normal).unwrap();
        let client = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let request = MatchRequest { method: Method::Get, host: b"", path, client, vars: &wire };
        let found = matcher.find(&request, &mut Scratch::default()).unwrap();
        assert_eq!(found.map(|found| found.route), expected, "{raw}");
        for (name, value) in values {
            assert_eq!(matcher.param(found.unwrap(), &request, name, &mut Vec::new()), Some(*value), "{raw} {name}");
        }
    };
    check("/f/top%20secret", Some(0), &[("name", b"top secret")]);
    check("/f/top%2520secret", None, &[]);
    check("/g/J%C3%BCrgen/x", Some(1), &[("rest", "J\u{fc}rgen/x".as_bytes())]);
    check("/p/100%25", Some(2), &[("a", b"100%")]);
    check("/p/%250d", Some(2), &[("a", b"%0d")]);
    check("/p/%0d%ff", Some(2), &[("a", b"\r\xff")]);
    // As nodes read them: an encoded slash ends a segment.
    check("/p/a%2Fb/c", Some(2), &[("a", b"a"), ("rest", b"b/c")]);
    check("/p/a%2F..%2Fb", Some(2), &[("a", b"b")]);
    check("/p/a/b%2Fc", Some(2), &[("a", b"a"), ("rest", b"b/c")]);
    check("/e/a%20b", Some(3), &[("name", b"a b")]);
}

/// Captures are read by request after request: no regex may be compiled for it each time.
#[test]
fn captures_compile_their_regex_once() {
    let matcher = expressions([r##"http.path ~ r#"^/users/(?<user>\d+)/"# && http.path ~ "/orders$""##.to_owned()]);
    let (wire, mut normal, mut buffer) = (Wire::default(), Vec::new(), Vec::new());
    let path = normalise(b"/users/17/orders", &mut normal).unwrap();
    let client = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let request = MatchRequest { method: Method::Get, host: b"", path, client, vars: &wire };
    let found = matcher.find(&request, &mut Scratch::default()).unwrap().unwrap();
    assert_eq!(matcher.param(found, &request, "user", &mut buffer), Some(&b"17"[..]));
    let counted = allocation_counter::measure(|| {
        assert_eq!(matcher.param(found, &request, "user", &mut buffer), Some(&b"17"[..]));
    });
    // A few small pieces; a compiled regex takes tens of thousands of bytes.
    assert!(counted.bytes_total < 4_096, "{} bytes", counted.bytes_total);
}

/// A predicate that many routes share is evaluated once, however many values its field has.
#[test]
fn shared_predicates_on_repeated_fields_are_asked_once() {
    let of = |routes: usize| {
        let condition = |n: usize| format!(r#"http.headers.x != "1" && http.path contains "part-{n}-""#);
        expressions((0..routes).map(condition))
    };
    let headers = (0..1_000).map(|_| ("x".to_owned(), "0".to_owned())).collect();
    let wire = Wire { headers, ..Wire::default() };
    let cost = |matcher: &Matcher| {
        let mut scratch = Scratch::default();
        let once = |_| {
            let start = cpu_time();
            assert_eq!(find(matcher, &mut scratch, "/none", &wire), None);
            (cpu_time() - start).as_secs_f64()
        };
        (0..20).map(once).fold(f64::INFINITY, f64::min)
    };
    let (few, many) = (cost(&of(10)), cost(&of(1_000)));
    assert!(many < few * 50.0, "{many} s against {few} s");
}

/// Among regexes that wait for their next part till the end of the path, any subset may be waiting. The cost of a new
/// path grows with the number of regexes, not with that of the subsets.
#[test]
fn regexes_that_wait_do_not_multiply() {
    let of = |routes: usize| {
        let regexes = expressions((0..routes).map(|n| format!(r##"http.path ~ r#"(.*a){{3}}.*{n}q"#"##)));
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let mut scratch = Scratch::default();
        let once = |_| {
            let text: String = (0..2_000).map(|_| b"abxyz0123456789"[(random() % 15) as usize] as char).collect();
            let start = cpu_time();
            assert_eq!(find(&regexes, &mut scratch, &format!("/{text}"), &Wire::default()), None);
            (cpu_time() - start).as_secs_f64()
        };
        (0..10).map(once).fold(f64::INFINITY, f64::min)
    };
    let (few, many) = (of(100), of(1_000));
    assert!(many < few * 100.0, "{many} s against {few} s");
}
