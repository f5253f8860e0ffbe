//! Functions that finally decide whether a route takes a request: APISIX's `filter_func`.
//!
//! The crate knows no language: a function is a closure over the request's variables, with its source text. It is
//! called where everything else of a route holds, at most once a search. Its decision is not kept in route caches.
//! A route whose function fails takes the request, as otherwise a client could make it fail to get to the next route;
//! [`crate::Matcher::has_failed_function`] says that the request cannot be served.

use crate::Lookup;
use crate::RouteSpec;
use std::fmt;
use std::sync::Arc;

/// Decides about the request of these variables, and adds messages. The function itself must bound the number of its
/// messages.
pub type Decide = dyn Fn(&dyn Lookup, &mut Vec<FunctionMessage>) -> FunctionDecision + Send + Sync;

/// What a function says about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FunctionDecision {
    /// Its route takes the request.
    Takes,
    /// The next route may take the request.
    Leaves,
    /// The function has failed or was stopped: no route may serve the request.
    Failed,
}

/// A function of a route.
#[derive(Clone)]
pub struct FilterFunction {
    /// Its source. Functions of the same text are equal.
    pub text: Arc<str>,
    /// The closure.
    pub decide: Arc<Decide>,
}

/// A message of a function, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionMessage {
    /// Its severity.
    pub level: MessageLevel,
    /// Its text.
    pub text: String,
}

/// The severity of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageLevel {
    /// The function has failed.
    Failed,
    /// Something does not work.
    Error,
    /// Something may not work soon.
    Warn,
    /// Worth knowing.
    Info,
    /// Helps to find a fault.
    Debug,
}

impl PartialEq for FilterFunction {
    fn eq(&self, other: &FilterFunction) -> bool {
        self.text == other.text
    }
}

impl fmt::Debug for FilterFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FilterFunction({:?})", self.text)
    }
}

impl fmt::Display for FilterFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Decisions of functions in one search.
#[derive(Debug, Default)]
pub(crate) struct FunctionDecisions {
    /// Decisions by the address of the route, since a search goes through two layers.
    answers: Vec<(usize, FunctionDecision)>,
    /// Kept until they are taken.
    pub(crate) messages: Vec<FunctionMessage>,
}

impl FunctionDecisions {
    /// Forgets the request before.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.answers.clear();
    }

    /// Whether no function was called.
    pub(crate) fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// Whether the function of a route, where it has one, lets it take the request, or has failed.
    pub(crate) fn passes_filter(&mut self, spec: &RouteSpec, vars: &dyn Lookup) -> bool {
        let Some(function) = spec.uri().and_then(|uri| uri.function.as_ref()) else { return true };
        let address = std::ptr::from_ref(spec).addr();
        if let Some((_, answer)) = self.answers.iter().find(|(of, _)| *of == address) {
            return *answer != FunctionDecision::Leaves;
        }
        let answer = match vars.runs_functions() {
            true => (function.decide)(vars, &mut self.messages),
            false => FunctionDecision::Leaves,
        };
        self.answers.push((address, answer));
        answer != FunctionDecision::Leaves
    }

    /// Whether the function of a route was called, and has failed.
    #[inline]
    pub(crate) fn has_failed(&self, spec: &RouteSpec) -> bool {
        let address = std::ptr::from_ref(spec).addr();
        self.answers.contains(&(address, FunctionDecision::Failed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lint::lint;
    use crate::path::normalise;
    use crate::{
        InvalidParts, Match, MatchRequest, Matcher, Method, MethodSet, PathPattern, RouteCache, RouteMatch, Scratch,
        UriRoute, Variable, vars,
    };
    use std::sync::atomic::{AtomicU32, Ordering};

    /// The argument `v`.
    struct Query(&'static str);

    impl Lookup for Query {
        fn value<'a>(&'a self, variable: &Variable, _: &'a mut Vec<u8>) -> Option<&'a [u8]> {
            (variable.to_string() == "arg_v").then_some(self.0.as_bytes())
        }

        fn each_header(&self, _: &mut dyn FnMut(&[u8], &[u8])) {}
    }

    /// A route whose function takes requests with `v=yes`, fails with `v=fail`, and counts how often it is asked.
    fn route(id: &str, path: &str, vars: Option<&str>, asked: Option<&Arc<AtomicU32>>) -> Arc<RouteSpec> {
        let function = asked.cloned().map(|asked| FilterFunction {
            text: "function(vars) end".into(),
            decide: Arc::new(move |vars, messages| {
                asked.fetch_add(1, Ordering::Relaxed);
                messages.push(FunctionMessage { level: MessageLevel::Warn, text: "asked".to_owned() });
                match vars.value(&Variable::Arg("v".into()), &mut Vec::new()) {
                    Some(b"yes") => FunctionDecision::Takes,
                    Some(b"fail") => FunctionDecision::Failed,
                    _ => FunctionDecision::Leaves,
                }
            }),
        });
        let uri = UriRoute {
            hosts: Vec::new(),
            paths: path.split(' ').map(|path| PathPattern::parse(path).unwrap()).collect(),
            methods: MethodSet::default(),
            remote_addrs: Vec::new(),
            vars: vars.map(|vars| vars::Expr::parse(&serde_json::from_str(vars).unwrap()).unwrap()),
            function,
            invalid: InvalidParts::default(),
        };
        Arc::new(RouteSpec { id: id.to_owned(), priority: 0, takes: RouteMatch::Uri(uri) })
    }

    fn with_request<R>(path: &str, vars: &dyn Lookup, then: impl FnOnce(&MatchRequest<'_>) -> R) -> R {
        let mut buffer = Vec::new();
        let path = normalise(path.as_bytes(), &mut buffer).unwrap();
        then(&MatchRequest { method: Method::Get, host: b"", path, client: [127, 0, 0, 1].into(), vars })
    }

    #[test]
    fn a_function_is_asked_last_and_once() {
        let asked = Arc::new(AtomicU32::new(0));
        let one_or_two = Some(r#"[["arg_v", "in", ["yes", "no"]]]"#);
        let routes = vec![
            route("a", "/a /:any", one_or_two, Some(&asked)),
            route("b", "/a", None, None),
            route("c", "/*", None, None),
        ];
        let matcher = Matcher::compile(routes).unwrap();
        let mut scratch = Scratch::default();
        let mut check = |path: &str, value: &'static str, route: usize, times: u32| {
            let before = asked.load(Ordering::Relaxed);
            let found = with_request(path, &Query(value), |request| matcher.find(request, &mut scratch)).unwrap();
            assert_eq!(found.map(|found| found.route), Some(route), "{path} {value}");
            assert_eq!(asked.load(Ordering::Relaxed) - before, times, "{path} {value}");
            assert_eq!((scratch.has_messages(), scratch.take_messages().len()), (times > 0, times as usize));
        };
        check("/a", "yes", 0, 1);
        check("/a", "no", 1, 1);
        check("/a", "other", 1, 0);
        check("/b", "yes", 0, 1);
        check("/b/c", "yes", 2, 0);
        // Samples are made without calling functions.
        for sample in matcher.samples(3) {
            let path = String::from_utf8(sample.path.clone()).unwrap();
            with_request(&path, &sample, |request| matcher.find(request, &mut Scratch::default())).unwrap();
        }
        assert_eq!(asked.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn what_it_decides_is_not_cached_and_all_else_is() {
        let asked = Arc::new(AtomicU32::new(0));
        let routes =
            vec![route("a", "/a", None, Some(&asked)), route("b", "/a", None, None), route("c", "/c", None, None)];
        let matcher = Matcher::compile(routes).unwrap();
        let (mut scratch, mut cache) = (Scratch::default(), RouteCache::new(64, 1 << 16, 7));
        let mut find = |path: &str, value: &'static str| {
            let found =
                with_request(path, &Query(value), |request| matcher.find_cached(request, &mut scratch, &mut cache));
            (found.unwrap().map(|Match { route, .. }| route), cache.hits())
        };
        assert_eq!(find("/a", "no"), (Some(1), 0));
        assert_eq!(find("/a", "yes"), (Some(0), 0));
        assert_eq!(find("/c", ""), (Some(2), 0));
        assert_eq!(find("/c", ""), (Some(2), 1));
        assert_eq!(find("/a", "no"), (Some(1), 1));
    }

    #[test]
    fn no_other_route_takes_the_place_of_one_whose_function_fails() {
        let asked = Arc::new(AtomicU32::new(0));
        let routes = vec![
            route("open", "/*", None, None),
            route("guard", "/a/*", None, Some(&asked)),
            route("better", "/a/b", None, None),
            route("later", "/*", None, Some(&asked)),
        ];
        let matcher = Matcher::compile(routes).unwrap();
        let (mut scratch, mut cache) = (Scratch::default(), RouteCache::new(64, 1 << 16, 7));
        let mut find = |path: &str, value: &'static str| {
            let found =
                with_request(path, &Query(value), |request| matcher.find_cached(request, &mut scratch, &mut cache));
            let found = found.unwrap().expect("one takes it");
            (found.route, matcher.has_failed_function(found, &scratch))
        };
        for (path, value, expected) in [
            ("/a/c", "yes", (1, false)),
            ("/a/c", "fail", (1, true)),
            ("/a/c%2Fd", "fail", (1, true)),
            ("/a/c", "no", (0, false)),
            // Routes that come before it don't depend on it.
            ("/a/b", "fail", (2, false)),
            ("/c", "fail", (0, false)),
            ("/a/c", "fail", (1, true)),
        ] {
            assert_eq!(find(path, value), expected, "{path} {value}");
        }
    }

    #[test]
    fn it_is_explained_and_shadows_nothing() {
        let asked = Arc::new(AtomicU32::new(0));
        let routes = vec![route("a", "/a", None, Some(&asked)), route("b", "/a", None, None)];
        assert_eq!(lint(&routes).findings, []);
        let matcher = Matcher::compile(routes).unwrap();
        let explained =
            |value| with_request("/a", &Query(value), |request| matcher.explain(request, Some("b"))).unwrap();
        let text = explained("no").to_string();
        assert!(text.contains("route \"b\" (any host, /a) takes the request"), "{text}");
        assert!(text.contains("\"a\" (any host, /a): filter_func does not let it take the request"), "{text}");
        let text = explained("yes").to_string();
        assert!(
            text.contains("route \"a\" (any host, /a) takes the request") && text.contains("comes later"),
            "{text}"
        );
        assert_eq!(asked.load(Ordering::Relaxed), 2, "once for each explanation");
        let text = explained("fail").to_string();
        assert!(text.starts_with("route \"a\" (any host, /a) takes the request, but its filter_func fails"), "{text}");
    }
}
