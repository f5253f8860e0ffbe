//! The condition of a route, before it is compiled.

use crate::{Expression, FilterFunction, HostPattern, MethodSet, PathPattern, vars};
use ipnet::IpNet;

/// One route. Its position in the list handed to the compiler breaks ties.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteSpec {
    /// The route's id, unique.
    pub id: String,
    /// Higher first: among all expression routes, or among URI routes of the same host and path.
    pub priority: i64,
    /// The requests that it takes.
    pub takes: RouteMatch,
}

/// The two kinds of route.
#[derive(Debug, Clone, PartialEq)]
pub enum RouteMatch {
    /// APISIX's: hosts, paths and further conditions.
    Uri(UriRoute),
    /// Kong's: one expression. Such routes come before all URI routes.
    Expression(Expression),
}

/// The conditions of a URI route; all must hold.
#[derive(Debug, Clone, PartialEq)]
pub struct UriRoute {
    /// Empty: any host.
    pub hosts: Vec<HostPattern>,
    /// Never empty: a route without a path takes no request.
    pub paths: Vec<PathPattern>,
    /// The methods; empty: any.
    pub methods: MethodSet,
    /// Client addresses; empty: any.
    pub remote_addrs: Vec<IpNet>,
    /// A condition on the request's variables.
    pub vars: Option<vars::Expr>,
    /// A function that is called last.
    pub function: Option<FilterFunction>,
    /// The parts that could not be read, for a route that refuses its requests.
    pub invalid: InvalidParts,
}

/// The parts that could not be read of a URI route that refuses all requests it takes. The route takes any value in
/// that place, and comes before every route that it could have come before: the invalid host or path may have been the
/// most specific.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InvalidParts {
    /// Its hosts are invalid, so it has none.
    pub host: bool,
    /// Its paths are invalid, so its one path is any.
    pub path: bool,
}

impl UriRoute {
    /// Pairs of a host and a path.
    pub fn places(&self) -> usize {
        self.hosts.len().max(1).saturating_mul(self.paths.len())
    }
}

impl RouteSpec {
    /// The conditions of a URI route; `None` for an expression.
    pub fn uri(&self) -> Option<&UriRoute> {
        match &self.takes {
            RouteMatch::Uri(uri) => Some(uri),
            RouteMatch::Expression(_) => None,
        }
    }
}
