//! Explains the decision of [`Matcher::find`]: which route takes a request, and why others do not.
//!
//! It walks all routes in the order they are tried, evaluates their conditions as they were written, without an index,
//! and puts the result into words (`reason`). It is slow and allocates. An assertion checks that it agrees with the
//! search.

mod reason;

use crate::condition::{Field, Predicate};
use crate::fields::variable_of;
use crate::layer::{PlaceId, order, places_of};
use crate::params::UnindexedEvaluator;
use crate::{Match, MatchRequest, Matcher, PathError, RouteMatch, RouteSpec, Scratch, UriRoute};
use reason::{Distance, ReasonCollector, shortened};
pub use reason::{PredicateValue, Reason};
use std::cmp::{Ordering, Reverse};
use std::collections::HashSet;
use std::fmt;

/// Most better-placed routes that are reported; if there are more, those that failed by least.
pub const RULED_OUT_MAX: usize = 100;

/// The routing decision for a request, and the reasons for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The route that takes it.
    pub chosen: Option<Candidate>,
    /// Whether its function fails for the request, which is answered 500.
    pub has_failed_function: bool,
    /// Parameters that the chosen route captured: `:name` and `*name` of its path, or the named groups of its regexes.
    pub params: Vec<(String, String)>,
    /// Routes that come before the chosen one, each with its reason; in the order they are tried. URI routes are only
    /// listed if their host and path match.
    pub ruled_out: Vec<(Candidate, Reason)>,
    /// The number of others, beyond [`RULED_OUT_MAX`].
    pub omitted: usize,
    /// Where no route takes it: URI routes of the path whose hosts it misses, the nearest first, at most
    /// [`MISSED_MAX`].
    pub missed: Vec<(Candidate, Reason)>,
    /// The number of others, beyond [`MISSED_MAX`].
    pub missed_omitted: usize,
    /// The verdict on the route that was asked about.
    pub asked: Option<(String, RouteVerdict)>,
}

/// Why the route that was asked about takes the request or does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteVerdict {
    /// No route has that id.
    Unknown,
    /// It takes the request.
    Chosen,
    /// The request's host is not one of its hosts.
    Host(String),
    /// The request's path is not one of its paths.
    Path(String),
    /// A condition does not hold; for a URI route one other than host and path.
    RuledOut(Reason),
    /// It would take the request, but the chosen route comes first.
    Later(String),
}

impl Matcher {
    /// Explains which route takes a request, and why no other does; `asked` is the id of a route to report in any case.
    ///
    /// Fails where [`Matcher::find`] does.
    pub fn explain(&self, request: &MatchRequest<'_>, asked: Option<&str>) -> Result<Explanation, PathError> {
        let mut scratch = Scratch::default();
        let found = self.find(request, &mut scratch)?;
        let has_failed_function = found.is_some_and(|found| self.has_failed_function(found, &scratch));
        let predicates = UnindexedEvaluator::with_decisions(request, std::mem::take(&mut scratch.values.decided));
        let mut evaluator = PlaceEvaluator { matcher: self, request, predicates };
        let chosen = found.and_then(|found| evaluator.place_of(found));
        debug_assert_eq!(found.is_some(), chosen.is_some(), "what was found is at one of its route's places");
        debug_assert!(chosen.is_none_or(|chosen| evaluator.distance(chosen).is_none()), "what was found holds");
        let (kept, omitted) = evaluator.earlier_failing_places(chosen);
        let ruled_out = kept
            .into_iter()
            .filter_map(|place| Some((evaluator.candidate(place), evaluator.failing_reason(place)?)))
            .collect();
        let params = found.map_or_else(Vec::new, |found| {
            let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
            self.params(found, request).into_iter().map(|(name, value)| (name, text(&value))).collect()
        });
        let asked = asked.map(|id| (id.to_owned(), evaluator.verdict(id, chosen)));
        let (missed, missed_omitted) = if chosen.is_none() { evaluator.host_misses() } else { (Vec::new(), 0) };
        let chosen = chosen.map(|chosen| evaluator.candidate(chosen));
        Ok(Explanation { chosen, has_failed_function, params, ruled_out, omitted, missed, missed_omitted, asked })
    }
}

/// A place of a route, by the route's position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RoutePlace {
    route: usize,
    id: PlaceId,
}

/// Evaluates places of one request.
struct PlaceEvaluator<'m, 'p, 'r> {
    matcher: &'m Matcher,
    request: &'p MatchRequest<'r>,
    predicates: UnindexedEvaluator<'p, 'r>,
}

impl<'m> PlaceEvaluator<'m, '_, '_> {
    fn spec(&self, place: RoutePlace) -> &'m RouteSpec {
        &self.matcher.specs[place.route]
    }

    fn order(&self, a: RoutePlace, b: RoutePlace) -> Ordering {
        order((self.spec(a), a.route, a.id), (self.spec(b), b.route, b.id))
    }

    fn places(&self, route: usize) -> impl Iterator<Item = RoutePlace> + use<'m> {
        places_of(&self.matcher.specs[route]).map(move |id| RoutePlace { route, id })
    }

    /// The place at which a route was found, with `%2F` as a part of its segment: with the other reading it may be another one.
    fn place_of(&mut self, found: Match) -> Option<RoutePlace> {
        let mut places: Vec<_> = self.places(found.route).filter(|place| self.is_at(*place)).collect();
        places.sort_by(|a, b| self.order(*a, *b));
        places.into_iter().find(|place| self.distance(*place).is_none())
    }

    /// Whether the place has the request's host and path. An expression has neither.
    fn is_at(&self, place: RoutePlace) -> bool {
        match &self.spec(place).takes {
            RouteMatch::Expression(_) => true,
            RouteMatch::Uri(uri) => {
                let host = uri.hosts.get(place.id.host as usize);
                host.is_none_or(|host| host.matches(self.request.host))
                    && uri.paths[place.id.path as usize].matches(self.request.path.bytes())
            }
        }
    }

    /// How far the conditions of a place other than host and path are from holding; `None` where they hold.
    fn distance(&mut self, place: RoutePlace) -> Option<Distance> {
        ReasonCollector::new(&mut self.predicates, self.request)
            .distance(&self.matcher.specs[place.route], place.id.path)
    }

    fn failing_reason(&mut self, place: RoutePlace) -> Option<Reason> {
        ReasonCollector::new(&mut self.predicates, self.request)
            .failing_reason(&self.matcher.specs[place.route], place.id.path)
    }

    /// The places before the chosen one that don't hold, in their order, and how many are left out.
    fn earlier_failing_places(&mut self, chosen: Option<RoutePlace>) -> (Vec<RoutePlace>, usize) {
        let mut failing: Vec<(RoutePlace, Distance)> = Vec::new();
        for route in 0..self.matcher.specs.len() {
            for place in self.places(route) {
                if chosen.is_some_and(|chosen| self.order(place, chosen).is_ge()) || !self.is_at(place) {
                    continue;
                }
                let distance = self.distance(place);
                debug_assert!(distance.is_some(), "route {route} holds and was not found");
                failing.extend(distance.map(|distance| (place, distance)));
            }
        }
        failing.sort_by(|(a, _), (b, _)| self.order(*a, *b));
        // A route with several hosts or paths is met again, mostly with nothing new to report.
        let mut reported = HashSet::new();
        failing.retain(|(place, _)| {
            let is_alone = self.places(place.route).nth(1).is_none();
            is_alone || self.failing_reason(*place).is_some_and(|reason| reported.insert((place.route, reason.text)))
        });
        let omitted = failing.len().saturating_sub(RULED_OUT_MAX);
        if omitted > 0 {
            failing.sort_by_key(|(_, distance)| *distance);
            failing.truncate(RULED_OUT_MAX);
            failing.sort_by(|(a, _), (b, _)| self.order(*a, *b));
        }
        (failing.into_iter().map(|(place, _)| place).collect(), omitted)
    }

    fn candidate(&self, place: RoutePlace) -> Candidate {
        Candidate::new(place.route, self.spec(place), place.id)
    }

    fn verdict(&mut self, id: &str, chosen: Option<RoutePlace>) -> RouteVerdict {
        let Some(route) = self.matcher.specs.iter().position(|spec| spec.id == id) else {
            return RouteVerdict::Unknown;
        };
        if chosen.is_some_and(|chosen| chosen.route == route) {
            return RouteVerdict::Chosen;
        }
        let mut places: Vec<RoutePlace> = self.places(route).filter(|place| self.is_at(*place)).collect();
        places.sort_by(|a, b| self.order(*a, *b));
        let Some(first) = places.first().copied() else {
            return self.elsewhere(self.matcher.specs[route].uri());
        };
        match (places.into_iter().find(|place| self.distance(*place).is_none()), chosen) {
            (Some(place), Some(chosen)) => RouteVerdict::Later(self.why_later(place, chosen)),
            // It holds, so some route was chosen; the chosen one is handled above.
            (Some(_), None) => RouteVerdict::Chosen,
            (None, _) => self.failing_reason(first).map_or(RouteVerdict::Chosen, RouteVerdict::RuledOut),
        }
    }

    /// The verdict on a URI route with no place at the request's host and path.
    fn elsewhere(&self, uri: Option<&UriRoute>) -> RouteVerdict {
        let (hosts, paths) = uri.map_or((&[][..], &[][..]), |uri| (&uri.hosts, &uri.paths));
        if !hosts.is_empty() && !hosts.iter().any(|pattern| pattern.matches(self.request.host)) {
            let host = String::from_utf8_lossy(self.request.host);
            return RouteVerdict::Host(format!("hosts are {}; the request's is {host:?}", list(hosts)));
        }
        let path = String::from_utf8_lossy(self.request.path.bytes());
        RouteVerdict::Path(format!("paths are {}; the request's is {path:?}", list(paths)))
    }

    /// The rule by which a place comes after the chosen one.
    fn why_later(&self, place: RoutePlace, chosen: RoutePlace) -> String {
        let (spec, first) = (self.spec(place), self.spec(chosen));
        let same = match (&spec.takes, &first.takes) {
            (RouteMatch::Uri(_), RouteMatch::Expression(_)) => {
                return "expression routes come before URI routes".to_owned();
            }
            (RouteMatch::Uri(uri), RouteMatch::Uri(uri_first)) => {
                if uri.invalid.host != uri_first.invalid.host {
                    return "its hosts could not be read, so it comes before all others".to_owned();
                }
                let host = |uri: &UriRoute, place: RoutePlace| {
                    uri.hosts.get(place.id.host as usize).map_or_else(|| "any host".to_owned(), ToString::to_string)
                };
                let (here, there) = (host(uri, place), host(uri_first, chosen));
                if here != there {
                    return format!("host {there} is more specific than {here}");
                }
                if uri.invalid.path != uri_first.invalid.path {
                    return "its paths could not be read, so it comes before all others of this host".to_owned();
                }
                let (here, there) = (&uri.paths[place.id.path as usize], &uri_first.paths[chosen.id.path as usize]);
                // Parameters' names don't count, so the keys are compared and not the texts.
                if here.key() != there.key() {
                    return format!("path {there} is more specific than {here}");
                }
                if spec.priority == first.priority && here.tail().len() != there.tail().len() {
                    return format!("path {there} is longer than {here}");
                }
                "of the same host, path and priority"
            }
            (RouteMatch::Expression(_), _) => "of the same priority",
        };
        if spec.priority != first.priority {
            return format!("priority {} is above {}", first.priority, spec.priority);
        }
        format!("{same}, \"{}\" comes first", first.id)
    }
}

fn list<T: fmt::Display>(items: &[T]) -> String {
    const SHOWN_MAX: usize = 8;
    let shown: Vec<String> = items.iter().take(SHOWN_MAX).map(T::to_string).collect();
    let more = items.len().saturating_sub(SHOWN_MAX);
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.chosen {
            Some(chosen) if self.has_failed_function => {
                writeln!(f, "route {chosen} takes the request, but its filter_func fails: the answer is 500")?;
            }
            Some(chosen) => writeln!(f, "route {chosen} takes the request")?,
            None => writeln!(f, "no route takes the request")?,
        }
        for (name, value) in &self.params {
            writeln!(f, "  {name} is {value:?}")?;
        }
        if !self.ruled_out.is_empty() {
            writeln!(f, "better placed, but ruled out:")?;
        }
        for (candidate, reason) in &self.ruled_out {
            writeln!(f, "  {candidate}: {reason}")?;
        }
        if self.omitted > 0 {
            writeln!(f, "  and {} more, which failed by more", self.omitted)?;
        }
        if !self.missed.is_empty() {
            writeln!(f, "same path, other hosts:")?;
        }
        for (candidate, reason) in &self.missed {
            writeln!(f, "  {candidate}: {reason}")?;
        }
        if self.missed_omitted > 0 {
            writeln!(f, "  and {} more", self.missed_omitted)?;
        }
        let Some((id, verdict)) = &self.asked else {
            return Ok(());
        };
        match verdict {
            RouteVerdict::Unknown => writeln!(f, "there is no route \"{id}\""),
            RouteVerdict::Chosen => writeln!(f, "route \"{id}\" takes the request"),
            RouteVerdict::Host(why) | RouteVerdict::Path(why) => writeln!(f, "route \"{id}\" cannot take it: {why}"),
            RouteVerdict::RuledOut(why) => writeln!(f, "route \"{id}\" cannot take it: {why}"),
            RouteVerdict::Later(why) => writeln!(f, "route \"{id}\" could take it, but comes later: {why}"),
        }
    }
}

// A route at one of its places, as it is shown to people.

/// A route at the place that is reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Its position in the list that was compiled.
    pub route: usize,
    /// Its id.
    pub id: String,
    /// Its host and path, or its expression.
    pub part: RoutePart,
}

/// The part of a route that was examined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RoutePart {
    /// An expression route has one place.
    Expression {
        /// The text as written.
        text: String,
    },
    /// One of a URI route's hosts with one of its paths.
    Uri {
        /// The host pattern; `None` for any host.
        host: Option<String>,
        /// The index of the path among the route's paths.
        path_index: usize,
        /// The path pattern.
        path: String,
    },
}

impl Candidate {
    fn new(route: usize, spec: &RouteSpec, place: PlaceId) -> Candidate {
        let part = match &spec.takes {
            RouteMatch::Expression(expression) => RoutePart::Expression { text: expression.text().to_owned() },
            RouteMatch::Uri(uri) => RoutePart::Uri {
                host: uri.hosts.get(place.host as usize).map(ToString::to_string),
                path_index: place.path as usize,
                path: uri.paths[place.path as usize].to_string(),
            },
        };
        Candidate { route, id: spec.id.clone(), part }
    }
}

/// Host and path, or the beginning of the expression on one line.
impl fmt::Display for RoutePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN_CHARS_MAX: usize = 80;
        match self {
            RoutePart::Expression { text } => {
                // No more words than can be shown: an expression may be long.
                let words: Vec<&str> = text.split_whitespace().take(SHOWN_CHARS_MAX).collect();
                f.write_str(&shortened(&words.join(" "), SHOWN_CHARS_MAX))
            }
            RoutePart::Uri { host, path, .. } => write!(f, "{}, {path}", host.as_deref().unwrap_or("any host")),
        }
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" ({})", self.id, self.part)
    }
}

// Routes that match a request but for its host: what a person looks for first where no route takes a request.

/// Most routes of other hosts that are reported.
pub const MISSED_MAX: usize = 10;

/// How far a route is from taking the request; less is nearer.
type Miss = (Distance, Reverse<usize>);

impl PlaceEvaluator<'_, '_, '_> {
    /// URI routes of the request's path whose hosts all differ from the request's: first those that nothing else keeps
    /// from taking it, and among these first those whose hosts end most like the request's. And how many are left out.
    fn host_misses(&mut self) -> (Vec<(Candidate, Reason)>, usize) {
        let mut missed: Vec<(Miss, usize, RoutePlace)> = Vec::new();
        for (route, spec) in self.matcher.specs.iter().enumerate() {
            let RouteMatch::Uri(uri) = &spec.takes else { continue };
            if uri.hosts.is_empty() || uri.hosts.iter().any(|host| host.matches(self.request.host)) {
                continue;
            }
            let path = self.request.path.bytes();
            let nearest = self
                .places(route)
                .filter(|place| uri.paths[place.id.path as usize].matches(path))
                .min_by_key(|place| Reverse(self.likeness(uri, *place)));
            if let Some(place) = nearest {
                let distance = self.distance(place).unwrap_or(0);
                missed.push(((distance, Reverse(self.likeness(uri, place))), route, place));
            }
        }
        missed.sort_by_key(|(miss, route, _)| (*miss, *route));
        let omitted = missed.len().saturating_sub(MISSED_MAX);
        missed.truncate(MISSED_MAX);
        let candidate = |(_, _, place)| (self.candidate(place), self.other_hosts(place));
        (missed.into_iter().map(candidate).collect(), omitted)
    }

    /// The number of bytes that a place's host and the request's have in common at their ends.
    fn likeness(&self, uri: &UriRoute, place: RoutePlace) -> usize {
        let host = uri.hosts[place.id.host as usize].to_string();
        host.bytes().rev().zip(self.request.host.iter().rev()).take_while(|(a, b)| a == *b).count()
    }

    fn other_hosts(&mut self, place: RoutePlace) -> Reason {
        let hosts = self.spec(place).uri().map_or(&[][..], |uri| &uri.hosts);
        let predicate = format!("hosts are {}", list(hosts));
        let (fact, values) = match self.request.host {
            [] => ("it has none".to_owned(), Vec::new()),
            host => {
                let host = String::from_utf8_lossy(host).into_owned();
                (format!("the request's is {host:?}"), vec![host])
            }
        };
        let field = Field::Host.to_string();
        let report = PredicateValue {
            predicate: predicate.clone(),
            at: None,
            field,
            values,
            is_known: true,
            omitted: 0,
            holds: false,
        };
        let mut reason = Reason { text: format!("{predicate}; {fact}"), predicates: vec![report] };
        if let Some(more) = self.failing_reason(place) {
            reason.text.push_str(&format!("; also {}", more.text));
            reason.predicates.extend(more.predicates);
        }
        reason
    }
}

// Evaluates the `vars` of a route for a request whose parts are not all known, for example its response or its
// consumer.
//
// The search treats unknown values as absent. Here they are kept apart: `vars` hold, do not hold, or are undecided
// yet.

/// The value of a route's `vars`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VarsVerdict {
    /// `None` if it depends on unknown values.
    pub holds: Option<bool>,
    /// Predicates that decide it, no more than a few: those that do not hold, or those that read unknown values.
    pub predicates: Vec<PredicateValue>,
}

impl Matcher {
    /// The value of the `vars` of the route at this position; a route without `vars` holds.
    pub fn explain_vars(&self, route: usize, request: &MatchRequest<'_>) -> VarsVerdict {
        let spec = &self.specs[route];
        let Some(uri) = spec.uri() else { return VarsVerdict { holds: Some(true), predicates: Vec::new() } };
        let Some(vars) = &uri.vars else { return VarsVerdict { holds: Some(true), predicates: Vec::new() } };
        let pattern = uri.paths.first();
        let mut evaluator = UnindexedEvaluator::new(request);
        let is_known = |predicate: &Predicate| {
            variable_of(&predicate.field).is_none_or(|variable| request.vars.is_known(variable))
        };
        let holds = vars
            .condition()
            .evaluate_known(&mut |predicate| is_known(predicate).then(|| evaluator.holds(predicate, pattern)));
        let predicates = match holds {
            Some(true) => Vec::new(),
            Some(false) => {
                let reason = ReasonCollector::new(&mut evaluator, request).failing_reason(spec, 0);
                let predicates = reason.map_or_else(Vec::new, |reason| reason.predicates);
                predicates.into_iter().filter(|predicates| predicates.is_known).collect()
            }
            None => {
                let mut why = ReasonCollector::new(&mut evaluator, request);
                vars.condition().each_predicate(&mut |predicate| {
                    if !is_known(predicate) && why.predicates.len() < reason::PREDICATES_SHOWN_MAX {
                        why.explain_predicate(predicate, false, pattern);
                    }
                });
                why.predicates
            }
        };
        VarsVerdict { holds, predicates }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vars::Expr;
    use crate::{
        InvalidParts, Lookup, Method, MethodSet, NormalisedPath, PathPattern, RouteMatch, RouteSpec, UriRoute, Variable,
    };
    use std::sync::Arc;

    /// `http_a` is `1`, the status is unknown, and all else is absent.
    struct Vars;

    impl Lookup for Vars {
        fn value<'a>(&'a self, variable: &Variable, _: &'a mut Vec<u8>) -> Option<&'a [u8]> {
            (*variable == Variable::parse("http_a").unwrap()).then_some(b"1")
        }

        fn is_known(&self, variable: &Variable) -> bool {
            *variable != Variable::Status
        }

        fn each_header(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
            visit(b"a", b"1");
        }
    }

    #[test]
    fn what_is_not_known_decides_only_where_nothing_else_does() {
        let check = |vars: &str, expected: Option<bool>, predicates: &[&str]| {
            let vars = Some(Expr::parse_late(&serde_json::from_str(vars).unwrap()).unwrap());
            let uri = UriRoute {
                hosts: Vec::new(),
                paths: vec![PathPattern::parse("/*").unwrap()],
                methods: MethodSet::default(),
                remote_addrs: Vec::new(),
                vars,
                function: None,
                invalid: InvalidParts::default(),
            };
            let spec = RouteSpec { id: "r".into(), priority: 0, takes: RouteMatch::Uri(uri) };
            let matcher = Matcher::compile(vec![Arc::new(spec)]).unwrap();
            let path = NormalisedPath::ROOT;
            let client = [127, 0, 0, 1].into();
            let request = MatchRequest { method: Method::Get, host: b"", path, client, vars: &Vars };
            let known = matcher.explain_vars(0, &request);
            let fields: Vec<&str> = known.predicates.iter().map(|predicates| predicates.field.as_str()).collect();
            assert_eq!((known.holds, &fields[..]), (expected, predicates));
        };
        check(r#"[["http_a", "==", "1"]]"#, Some(true), &[]);
        check(r#"[["http_a", "==", "2"]]"#, Some(false), &["http_a"]);
        check(r#"[["status", "==", "200"]]"#, None, &["status"]);
        check(r#"[["status", "~=", "200"]]"#, None, &["status"]);
        check(r#"[["http_a", "==", "1"], ["status", "==", "200"]]"#, None, &["status"]);
        check(r#"[["status", "==", "200"], ["http_a", "==", "2"]]"#, Some(false), &[]);
        check(r#"["OR", ["status", "==", "200"], ["http_a", "==", "1"]]"#, Some(true), &[]);
        check(r#"["OR", ["status", "==", "200"], ["http_a", "==", "2"]]"#, None, &["status"]);
    }
}
