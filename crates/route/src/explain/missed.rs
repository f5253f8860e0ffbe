//! Routes that match a request but for its host: what a person looks for first where no route takes a request.

use super::reason::{Distance, PredicateValue, Reason};
use super::{Candidate, PlaceEvaluator, RoutePlace, list};
use crate::condition::Field;
use crate::{RouteMatch, UriRoute};
use std::cmp::Reverse;

/// Most routes of other hosts that are reported.
pub const MISSED_MAX: usize = 10;

/// How far a route is from taking the request; less is nearer.
type Miss = (Distance, Reverse<usize>);

impl PlaceEvaluator<'_, '_, '_> {
    /// URI routes of the request's path whose hosts all differ from the request's: first those that nothing else keeps
    /// from taking it, and among these first those whose hosts end most like the request's. And how many are left out.
    pub(super) fn missed(&mut self) -> (Vec<(Candidate, Reason)>, usize) {
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
        if let Some(more) = self.why_not(place) {
            reason.text.push_str(&format!("; also {}", more.text));
            reason.predicates.extend(more.predicates);
        }
        reason
    }
}
