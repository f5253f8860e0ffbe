//! Which route takes a request, and why not another: the search of [`Matcher::find`], told.
//!
//! It walks the same candidates in the same order as the search does, but puts the reasons into words. It may be slow.

use crate::matcher::{ANY_HOST, NO_ADDRESSES, Place, named};
use crate::tree::Captures;
use crate::{Matcher, PathError, Request, Scratch};
use std::fmt;

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The route that takes it.
    pub chosen: Option<Candidate>,
    /// What `:name` and `*name` of the chosen route's path stand for.
    pub params: Vec<(String, String)>,
    /// Routes whose host and path match and that come before the chosen one, each with its reason; in order.
    pub ruled_out: Vec<(Candidate, String)>,
    /// About the route that was asked about.
    pub asked: Option<(String, Verdict)>,
}

/// A route at the host and path that matched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Its position in the list that was compiled.
    pub route: usize,
    /// Its id.
    pub id: String,
    /// The host pattern; `None`: any host.
    pub host: Option<String>,
    /// Which of the route's paths it is.
    pub path_index: usize,
    /// The path pattern.
    pub path: String,
}

/// What became of the route that was asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// There is no route of that id.
    Unknown,
    /// It takes the request.
    Chosen,
    /// The request's host is none of its.
    Host(String),
    /// The request's path is none of its.
    Path(String),
    /// Host and path match, but another condition does not hold.
    RuledOut(String),
    /// It would take the request, but the chosen route comes first.
    Later(String),
}

impl Matcher {
    /// Tells which route takes a request, and why no other; `asked` is the id of a route to tell about in any case.
    ///
    /// Fails where [`Matcher::find`] does.
    pub fn explain(&self, request: &Request<'_>, asked: Option<&str>) -> Result<Explanation, PathError> {
        // For the error only: what is found is found again below.
        self.find(request, &mut Scratch::default())?;

        let mut captures = Captures::new();
        let mut ruled_out: Vec<(Candidate, String)> = Vec::new();
        let chosen = self.candidates(request.host, request.path, &mut captures, |group, place, captures| {
            let candidate = self.candidate(group, place);
            match self.why_not(place, request, captures) {
                None => Some(candidate),
                Some(reason) => {
                    // A route with several hosts or paths is met again, with nothing new to say.
                    let told = |(other, why): &(Candidate, String)| other.route == candidate.route && *why == reason;
                    if !ruled_out.iter().any(told) {
                        ruled_out.push((candidate, reason));
                    }
                    None
                }
            }
        });
        let params = chosen.as_ref().map_or_else(Vec::new, |chosen| {
            let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
            let params = named(self.pattern(chosen.route, chosen.path_index), &captures, request.path);
            params.map(|(name, value)| (name.to_owned(), text(value))).collect()
        });
        let asked = asked.map(|id| (id.to_owned(), self.verdict(id, request, chosen.as_ref())));
        Ok(Explanation { chosen, params, ruled_out, asked })
    }

    fn candidate(&self, group: u32, place: &Place) -> Candidate {
        let spec = &self.specs[place.route as usize];
        Candidate {
            route: place.route as usize,
            id: spec.id.clone(),
            host: self.host_of(group),
            path_index: place.path as usize,
            path: spec.uri_parts().paths[place.path as usize].to_string(),
        }
    }

    fn host_of(&self, group: u32) -> Option<String> {
        if group == ANY_HOST {
            return None;
        }
        let key = String::from_utf8_lossy(self.hosts.text_of(group)?);
        Some(if key.starts_with('.') { format!("*{key}") } else { key.into_owned() })
    }

    /// The first condition besides host and path that does not hold; in the order in which the search asks.
    fn why_not(&self, place: &Place, request: &Request<'_>, captures: &Captures) -> Option<String> {
        let spec = &self.specs[place.route as usize];
        if !place.methods.admits(request.method) {
            return Some(format!("methods are {}; the request's is {}", spec.uri_parts().methods, request.method));
        }
        if place.addresses != NO_ADDRESSES && !self.addresses[place.addresses as usize].contains(request.client) {
            let networks = list(&spec.uri_parts().remote_addrs);
            return Some(format!("remote_addrs are {networks}; the client is {}", request.client));
        }
        let reason = spec.uri_parts().vars.as_ref()?.why_not(&self.with_params(place, request, captures))?;
        Some(format!("vars: {reason}"))
    }

    fn verdict(&self, id: &str, request: &Request<'_>, chosen: Option<&Candidate>) -> Verdict {
        let Some(route) = self.specs.iter().position(|spec| spec.id == id) else {
            return Verdict::Unknown;
        };
        if chosen.is_some_and(|chosen| chosen.route == route) {
            return Verdict::Chosen;
        }
        let spec = &self.specs[route];
        if !spec.uri_parts().hosts.is_empty() && !spec.uri_parts().hosts.iter().any(|pattern| pattern.matches(request.host)) {
            let host = String::from_utf8_lossy(request.host);
            return Verdict::Host(format!("hosts are {}; the request's is {host:?}", list(&spec.uri_parts().hosts)));
        }
        // The first place of the route that holds, or else why its first place does not.
        let mut reason = None;
        let place = self.candidates(request.host, request.path, &mut Captures::new(), |group, place, captures| {
            if place.route as usize != route {
                return None;
            }
            match self.why_not(place, request, captures) {
                None => Some(self.candidate(group, place)),
                Some(why) => {
                    reason.get_or_insert(why);
                    None
                }
            }
        });
        match (place, chosen, reason) {
            (Some(place), Some(chosen), _) => Verdict::Later(self.why_later(&place, chosen)),
            // It holds, so something was chosen; and what was chosen is looked at above.
            (Some(_), None, _) => Verdict::Chosen,
            (None, _, Some(reason)) => Verdict::RuledOut(reason),
            (None, _, None) => {
                let path = String::from_utf8_lossy(request.path.bytes());
                Verdict::Path(format!("paths are {}; the request's is {path:?}", list(&spec.uri_parts().paths)))
            }
        }
    }

    /// By which rule a place comes after the chosen one.
    fn why_later(&self, place: &Candidate, chosen: &Candidate) -> String {
        let host = |host: &Option<String>| host.as_deref().unwrap_or("any host").to_owned();
        if place.host != chosen.host {
            return format!("host {} is more specific than {}", host(&chosen.host), host(&place.host));
        }
        // Parameters' names don't count, so the keys are compared and not the texts.
        let key = |candidate: &Candidate| self.pattern(candidate.route, candidate.path_index).key();
        if key(place) != key(chosen) {
            return format!("path {} is more specific than {}", chosen.path, place.path);
        }
        let priority = |candidate: &Candidate| self.specs[candidate.route].priority;
        if priority(place) != priority(chosen) {
            return format!("priority {} is above {}", priority(chosen), priority(place));
        }
        format!("of the same host, path and priority, \"{}\" stands first", chosen.id)
    }
}

fn list<T: fmt::Display>(items: &[T]) -> String {
    const SHOWN_MAX: usize = 8;
    let shown: Vec<String> = items.iter().take(SHOWN_MAX).map(T::to_string).collect();
    let more = items.len().saturating_sub(SHOWN_MAX);
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.host.as_deref().unwrap_or("any host");
        write!(f, "\"{}\" ({host}, {})", self.id, self.path)
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.chosen {
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
        let Some((id, verdict)) = &self.asked else {
            return Ok(());
        };
        match verdict {
            Verdict::Unknown => writeln!(f, "there is no route \"{id}\""),
            Verdict::Chosen => writeln!(f, "route \"{id}\" takes the request"),
            Verdict::Host(why) | Verdict::Path(why) | Verdict::RuledOut(why) => {
                writeln!(f, "route \"{id}\" cannot take it: {why}")
            }
            Verdict::Later(why) => writeln!(f, "route \"{id}\" could take it, but comes later: {why}"),
        }
    }
}
