//! A route at one of its places, as it is shown to people.

use super::reason::shortened;
use crate::layer::PlaceId;
use crate::{RouteMatch, RouteSpec};
use std::fmt;

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
    pub(super) fn new(route: usize, spec: &RouteSpec, place: PlaceId) -> Candidate {
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
