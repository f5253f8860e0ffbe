//! Explains the decision of [`Matcher::find`]: which route takes a request, and why others do not.
//!
//! It walks all routes in the order they are tried, evaluates their conditions as they were written, without an index,
//! and puts the result into words (`reason`). It is slow and allocates. An assertion checks that it agrees with the
//! search.

mod candidate;
mod missed;
mod reason;
mod vars;

pub use candidate::{Candidate, RoutePart};
pub use missed::MISSED_MAX;
pub use reason::{PredicateValue, Reason};
pub use vars::VarsVerdict;

use crate::layer::{PlaceId, order, places_of};
use crate::plain::Plain;
use crate::{Match, MatchRequest, Matcher, PathError, RouteMatch, RouteSpec, Scratch, UriRoute};
use reason::{Distance, Why};
use std::cmp::Ordering;
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
        let plain = Plain::after(request, std::mem::take(&mut scratch.values.decided));
        let mut evaluator = PlaceEvaluator { matcher: self, request, plain };
        let chosen = found.and_then(|found| evaluator.place_of(found));
        debug_assert_eq!(found.is_some(), chosen.is_some(), "what was found is at one of its route's places");
        debug_assert!(chosen.is_none_or(|chosen| evaluator.distance(chosen).is_none()), "what was found holds");
        let (kept, omitted) = evaluator.ruled_out(chosen);
        let ruled_out = kept
            .into_iter()
            .filter_map(|place| Some((evaluator.candidate(place), evaluator.why_not(place)?)))
            .collect();
        let params = found.map_or_else(Vec::new, |found| {
            let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
            self.params(found, request).into_iter().map(|(name, value)| (name, text(&value))).collect()
        });
        let asked = asked.map(|id| (id.to_owned(), evaluator.verdict(id, chosen)));
        let (missed, missed_omitted) = if chosen.is_none() { evaluator.missed() } else { (Vec::new(), 0) };
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
    plain: Plain<'p, 'r>,
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

    /// The place at which a route was found.
    fn place_of(&self, found: Match) -> Option<RoutePlace> {
        let places = self.places(found.route).filter(|place| place.id.path as usize == found.path);
        places.filter(|place| self.is_at(*place)).min_by(|a, b| self.order(*a, *b))
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
        Why::new(&mut self.plain, self.request).distance(&self.matcher.specs[place.route], place.id.path)
    }

    fn why_not(&mut self, place: RoutePlace) -> Option<Reason> {
        Why::new(&mut self.plain, self.request).why_not(&self.matcher.specs[place.route], place.id.path)
    }

    /// The places before the chosen one that don't hold, in their order, and how many are left out.
    fn ruled_out(&mut self, chosen: Option<RoutePlace>) -> (Vec<RoutePlace>, usize) {
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
            is_alone || self.why_not(*place).is_some_and(|reason| reported.insert((place.route, reason.text)))
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
            (None, _) => self.why_not(first).map_or(RouteVerdict::Chosen, RouteVerdict::RuledOut),
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
                if uri.unread.host != uri_first.unread.host {
                    return "its hosts could not be read, so it comes before all others".to_owned();
                }
                let host = |uri: &UriRoute, place: RoutePlace| {
                    uri.hosts.get(place.id.host as usize).map_or_else(|| "any host".to_owned(), ToString::to_string)
                };
                let (here, there) = (host(uri, place), host(uri_first, chosen));
                if here != there {
                    return format!("host {there} is more specific than {here}");
                }
                if uri.unread.path != uri_first.unread.path {
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
