//! Expressions and requests that are large in every way they can be.

use rustix::time::{ClockId, clock_gettime};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;
use stillgate_route::path::normalise;
use stillgate_route::{
    ARGUMENTS_MAX, Expression, ExpressionErrorKind, Lookup, MatchRequest, Matcher, Method, NormalisedPath, PathError,
    RouteCache, RouteMatch, RouteSpec, Scratch, Variable,
};

/// A request's header fields and query, passed on as they are.
#[derive(Default)]
struct Wire {
    headers: Vec<(String, String)>,
    query: Vec<u8>,
}

impl Lookup for Wire {
    fn value<'a>(&'a self, variable: &Variable, _: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        match variable {
            Variable::Args => Some(&self.query),
            Variable::Scheme => Some(b"https"),
            Variable::RemotePort => Some(b"54321"),
            _ => None,
        }
    }

    fn each_header(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        self.headers.iter().for_each(|(name, value)| visit(name.as_bytes(), value.as_bytes()));
    }
}

impl Wire {
    fn headers(headers: impl IntoIterator<Item = (String, String)>) -> Wire {
        Wire { headers: headers.into_iter().collect(), ..Wire::default() }
    }

    fn query(query: impl Into<Vec<u8>>) -> Wire {
        Wire { query: query.into(), ..Wire::default() }
    }
}

fn compile<T: AsRef<str>>(expressions: impl IntoIterator<Item = T>) -> Matcher {
    let spec = |(position, text): (usize, T)| {
        let expression = Expression::parse(text.as_ref()).unwrap_or_else(|errors| panic!("{}", errors[0]));
        Arc::new(RouteSpec { id: position.to_string(), priority: 0, takes: RouteMatch::Expression(expression) })
    };
    Matcher::compile(expressions.into_iter().enumerate().map(spec).collect()).unwrap()
}

fn find(matcher: &Matcher, scratch: &mut Scratch, path: &str, wire: &Wire) -> Option<usize> {
    try_find(matcher, scratch, path, wire).unwrap()
}

fn try_find(matcher: &Matcher, scratch: &mut Scratch, path: &str, wire: &Wire) -> Result<Option<usize>, PathError> {
    let mut buffer = Vec::new();
    let request = MatchRequest {
        method: Method::Get,
        host: b"www.example.com",
        path: normalise(path.as_bytes(), &mut buffer).unwrap(),
        client: IpAddr::V4(Ipv4Addr::LOCALHOST),
        vars: wire,
    };
    Ok(matcher.find(&request, scratch)?.map(|found| found.route))
}

/// Checks that work does not grow with its square: for sixteen times the size it may take several times sixteen times
/// as long, but not 256 times.
fn grows_evenly(size: usize, mut timed: impl FnMut(usize) -> Duration) {
    const FACTOR: usize = 16;
    const RATIO_MAX: f64 = 100.0;
    const ROUNDS: usize = 5;
    let mut best = |size: usize| (0..ROUNDS).map(|_| timed(size)).min().unwrap().as_secs_f64();
    let (small, large) = (best(size), best(size * FACTOR));
    assert!(large < small * RATIO_MAX, "{large} s is {} times {small} s", large / small);
}

/// CPU time of this thread so far: other threads that use the core do not affect it.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

fn timed<R: PartialEq + std::fmt::Debug>(expected: R, work: impl FnOnce() -> R) -> Duration {
    let start = cpu_time();
    let got = work();
    let took = cpu_time() - start;
    assert_eq!(got, expected);
    took
}

#[test]
fn ten_thousand_header_fields() {
    let matcher = compile([
        r#"http.headers.x_last == "1" && any(http.headers.many) == "9999x""#,
        r#"http.headers.many ^= "v" && http.headers.x_last == "2""#,
        r#"any(lower(http.headers.many)) == "v7""#,
    ]);
    let distinct = |count: usize, last: &str| {
        let many = (0..count).map(|n| (format!("X-Name-{n}"), n.to_string()));
        Wire::headers(many.chain([("X-Last".to_owned(), last.to_owned())]))
    };
    let same = |count: usize, last: &str| {
        let many = (0..count).map(|n| ("MANY".to_owned(), format!("v{n}")));
        Wire::headers(many.chain([("x-last".to_owned(), last.to_owned())]))
    };
    let mut scratch = Scratch::default();
    assert_eq!(find(&matcher, &mut scratch, "/", &distinct(10_000, "1")), None);
    assert_eq!(find(&matcher, &mut scratch, "/", &same(10_000, "2")), Some(1));
    grows_evenly(625, |size| {
        let wire = same(size, "1");
        timed(Some(2), || find(&matcher, &mut scratch, "/", &wire))
    });
}

/// A text that was made for a regex leads its automaton to a new state with every byte.
#[test]
fn a_text_made_for_a_regex_is_refused_soon() {
    let letter = |at: usize| char::from(b'a' + (at % 8) as u8);
    let alternative = |at: usize| format!("{}(?-u:.){{0,900}}{}{}z", letter(at), letter(at + 1), letter(at + 3));
    let regex = (0..8).map(alternative).collect::<Vec<_>>().join("|");
    let other = format!("^x({regex})");
    let matcher = compile([
        r#"http.headers.plain == "1""#.to_owned(),
        format!(r#"http.headers.text ~ "{regex}""#),
        format!(r#"http.headers.text ~ "{other}""#),
    ]);
    let mut scratch = Scratch::default();
    let mut state = 5_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        letter((state >> 40) as usize)
    };
    let hostile_text: String = (0..15_500).map(|_| random()).collect();
    let text = |text: &str| Wire::headers([("text".to_owned(), text.to_owned())]);
    let (hostile, harmless) = (text(&hostile_text), text(&"the usual text. ".repeat(1_000)));
    let plain = Wire::headers([("plain".to_owned(), "1".to_owned())]);
    for _ in 0..3 {
        assert_eq!(try_find(&matcher, &mut scratch, "/", &hostile), Err(PathError::TooMuchWork));
        assert_eq!(try_find(&matcher, &mut scratch, "/", &harmless), Ok(None));
        assert_eq!(try_find(&matcher, &mut scratch, "/", &text("a and bdz")), Ok(Some(1)));
        assert_eq!(try_find(&matcher, &mut scratch, "/", &plain), Ok(Some(0)));
    }
    // Divided into many fields, it is the same text.
    let pieces = hostile_text.as_bytes().chunks(200).map(|piece| String::from_utf8_lossy(piece).into_owned());
    let divided = Wire::headers(pieces.map(|piece| ("text".to_owned(), piece)));
    assert_eq!(try_find(&matcher, &mut scratch, "/", &divided), Err(PathError::TooMuchWork));
    // Without the bound it took 2.2 s of a release build.
    let took = timed(Err(PathError::TooMuchWork), || try_find(&matcher, &mut scratch, "/", &hostile));
    assert!(took < Duration::from_millis(500), "{took:?}");
    let mut cache = RouteCache::new(100, 1 << 20, 1);
    for vars in [&hostile, &hostile] {
        let client = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let request = MatchRequest { method: Method::Get, host: b"", path: NormalisedPath::ROOT, client, vars };
        assert_eq!(matcher.find_cached(&request, &mut scratch, &mut cache).err(), Some(PathError::TooMuchWork));
    }
}

#[test]
fn many_arguments_and_long_queries() {
    let matcher = compile([
        r#"http.queries.last == "1" && any(http.queries.a) == "998""#,
        r#"http.queries.last == "2" && http.queries.a != "998""#,
        r#"http.queries.long =^ "end""#,
        r#"any(http.queries.a) ~ "^77+$""#,
    ]);
    let mut scratch = Scratch::default();
    let mut check = |query: String, expected: Result<Option<usize>, PathError>| {
        assert_eq!(try_find(&matcher, &mut scratch, "/", &Wire::query(query)), expected);
    };
    let mib = 1 << 20;
    let same = |count: usize, last: &str| (0..count).map(|n| format!("a={n}&")).collect::<String>() + last;
    check(same(ARGUMENTS_MAX - 1, "last=1"), Ok(Some(0)));
    check(same(ARGUMENTS_MAX - 1, "last=2"), Ok(Some(3)));
    check(same(ARGUMENTS_MAX - 2, "last=2"), Ok(Some(1)));
    check(same(ARGUMENTS_MAX, "last=1"), Err(PathError::TooManyArguments));
    check(same(10_000, ""), Err(PathError::TooManyArguments));
    check("a&".repeat(mib / 2), Err(PathError::TooManyArguments));
    // Arguments that no route reads do not count.
    check((0..10_000).map(|n| format!("b{n}={n}&")).collect::<String>() + "last=2&a=1", Ok(Some(1)));
    check("&".repeat(mib), Ok(None));
    check("=".repeat(mib), Ok(None));
    check("%".repeat(mib), Ok(None));
    check("a".repeat(mib), Ok(None));
    check(format!("long={}end", "%41".repeat(mib / 3)), Ok(Some(2)));
    check(format!("{}=1&last=1", "%61".repeat(mib / 3)), Ok(None));
    grows_evenly(60, |size| {
        let wire = Wire::query(same(size, "last=3"));
        timed(size > 77, || find(&matcher, &mut scratch, "/", &wire).is_some())
    });
}

#[test]
fn ten_thousand_routes_that_cannot_be_distinguished() {
    // Equal conditions; and equal except for parts that cannot be looked up.
    let same = compile((0..10_000).map(|_| r#"http.path ^= "/a" && http.method == "GET""#));
    assert_eq!(find(&same, &mut Scratch::default(), "/ab", &Wire::default()), Some(0));
    let contains = compile((0..10_000).map(|n| format!(r#"http.path ^= "/a" && http.path contains "-{n}-""#)));
    assert_eq!(find(&contains, &mut Scratch::default(), "/a-9999-", &Wire::default()), Some(9_999));
    let not = compile((0..10_000).map(|n| format!(r#"!(http.headers.x_a == "{n}") && http.headers.x_a =^ "{n}""#)));
    let wire = Wire::headers([("x-a".to_owned(), "09999".to_owned())]);
    assert_eq!(find(&not, &mut Scratch::default(), "/", &wire), Some(9));
}

#[test]
fn ten_thousand_names() {
    let matcher = compile((0..10_000).map(|n| match n % 2 {
        0 => format!(r#"http.headers.h_{n} == "1""#),
        _ => format!(r#"any(http.queries.q_{n}) ^= "1""#),
    }));
    let mut scratch = Scratch::default();
    let last = Wire::headers([("H-9998".to_owned(), "1".to_owned())]);
    assert_eq!(find(&matcher, &mut scratch, "/", &last), Some(9_998));
    assert_eq!(find(&matcher, &mut scratch, "/", &Wire::query("q_9999=0&q_9999=1&q_9999=12")), Some(9_999));
    let all = Wire::headers((0..10_000).map(|n| (format!("h-{n}"), "2".to_owned())));
    assert_eq!(find(&matcher, &mut scratch, "/", &all), None);
}

#[test]
fn wide_alternatives_of_conjunctions() {
    // Multiplied out, one of them would be 2^64 conjunctions.
    let wide = |route: usize| {
        let pair = |n: usize| format!(r#"(http.headers.a_{n} == "{route}" || http.headers.b_{n} == "{route}")"#);
        (0..64).map(pair).collect::<Vec<_>>().join(" && ")
    };
    let deep = |route: usize| {
        let pair = |n: usize| format!(r#"(http.headers.a_{n} == "{route}" && http.queries.q_{n} == "{route}")"#);
        (0..64).map(pair).collect::<Vec<_>>().join(" || ")
    };
    let matcher = compile((0..200).map(|route| if route % 2 == 0 { wide(route) } else { deep(route) }));
    let mut scratch = Scratch::default();
    let half = |value: &str| Wire::headers((0..64).map(|n| (format!("{}-{n}", ["a", "b"][n % 2]), value.to_owned())));
    assert_eq!(find(&matcher, &mut scratch, "/", &half("198")), Some(198));
    assert_eq!(find(&matcher, &mut scratch, "/", &half("199")), None);
    let both = Wire { query: b"q_62=199".to_vec(), ..half("199") };
    assert_eq!(find(&matcher, &mut scratch, "/", &both), Some(199));
}

/// Every value may lead to all further lookups; those that one value led to must not be repeated for the next.
#[test]
fn repeated_values_are_not_followed_again_and_again() {
    // Routes that differ in three arguments, and all of whose keys the request has.
    let digits = |n: usize, operator: &str| {
        let step = |name: &str, digit: usize| format!(r#"any(http.queries.{name}) {operator} "{}""#, digit % 10);
        let steps = [step("a", n), step("b", n / 10), step("c", n / 100)].join(" && ");
        format!(r#"{steps} && http.headers.x_a contains "{n}""#)
    };
    for operator in ["==", "^="] {
        let matcher = compile((0..1_000).map(|n| digits(n, operator)));
        let mut scratch = Scratch::default();
        grows_evenly(60, |size| {
            let wire = Wire::query((0..size / 3).map(|n| format!("a={0}&b={0}&c={0}&", n % 10)).collect::<String>());
            timed(None, || find(&matcher, &mut scratch, "/", &wire))
        });
    }
}

#[test]
fn regexes_that_are_slow_elsewhere() {
    let regexes =
        [r"^(a*)*b$", r"^(a|aa)+$c", r"(x+x+)+y", r"^(([a-z])+.)+[A-Z]([a-z])+$", r".*.*.*=.*;", r"(.*)+z{3}"];
    let routes = regexes.iter().flat_map(|regex| {
        [format!(r##"http.headers.x_a ~ r#"{regex}"#"##), format!(r##"any(lower(http.queries.q)) ~ r#"{regex}"#"##)]
    });
    let matcher = compile(routes);
    let mut scratch = Scratch::default();
    grows_evenly(625, |size| {
        let value = "a".repeat(size);
        let wire = Wire { query: format!("q={value}&q={value}").into(), ..Wire::headers([("X-A".to_owned(), value)]) };
        timed(None, || find(&matcher, &mut scratch, "/", &wire))
    });
    let wire = Wire::query(format!("q={}b&q=x", "A".repeat(10_000)));
    assert_eq!(find(&matcher, &mut scratch, "/", &wire), Some(1));
}

#[test]
fn regexes_that_are_too_large_are_refused() {
    let check = |regex: &str| {
        let errors = Expression::parse(&format!("http.path ~ r#\"{regex}\"#")).unwrap_err();
        assert!(matches!(errors[0].kind, ExpressionErrorKind::Regex { .. }), "{errors:?}");
    };
    check(r"((\w{100}){100}){100}");
    check(r"\pL{1000}");
    check(&"(".repeat(30_000));
    check(&format!("{}a{}", "(".repeat(20_000), ")".repeat(20_000)));
}

#[test]
fn matching_expressions_allocates_nothing() {
    let matcher = compile([
        r##"http.path ~ r#"^/users/(?<id>\d+)/(?<rest>.*)$"# && http.headers.x_none == "1""##,
        r##"any(lower(http.headers.x_many)) == "straße" && http.queries.b != "1""##,
        r##"http.headers.x_many ~ r#"^\pL+$"# || any(http.queries.a) ~ "b{2,}""##,
        r##"http.path.segments.1_2 == "b/c" && net.src.ip not in 10.0.0.0/8 && net.src.port > 0xff"##,
        r##"any(http.queries.a) == "a b" && http.path.segments.len < 3 && net.protocol == "https""##,
        r##"!(http.host =^ ".com") || http.path contains "needle""##,
    ]);
    let headers = [("Accept", "*/*"), ("X-Many", "STRASSE"), ("x-many", "Straße"), ("X-MANY", "ÄÖÜ")];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let wire = |query: &str| Wire { query: query.into(), ..Wire::headers(headers.clone()) };
    let other = |query: &str| Wire { query: query.into(), ..Wire::headers([("x-many".to_owned(), "7".to_owned())]) };
    let mut scratch = Scratch::default();
    let mut check = |path: &str, wire: &Wire, expected: Option<usize>| {
        // Memory grows with the first request of its kind, and lazily built automata with new input.
        find(&matcher, &mut scratch, path, wire);
        let mut found = None;
        let counted = allocation_counter::measure(|| found = find(&matcher, &mut scratch, path, wire));
        assert_eq!((found, counted.count_total), (expected, 0), "{path}");
    };
    check("/users/42/x", &wire("b=2"), Some(1));
    check("/users/42/x", &wire("b=1"), Some(2));
    check("/", &other("a=1&a=%62bb"), Some(2));
    check("/a/b/c", &other(""), Some(3));
    check("/a/b", &other("a=1&a=a+b&a=%C3%A4"), Some(4));
    check("/a/needle", &other("a=1"), Some(5));
    check("/a/b", &other("a=1&c=2"), None);
}
