//! What a route asks of a request, before it is compiled.

use crate::{Expression, FilterFunction, HostPattern, MethodSet, PathPattern, vars};
use ipnet::IpNet;

/// One route. Its position in the list handed to the compiler breaks ties.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteSpec {
    /// The route's id, unique.
    pub id: String,
    /// Higher first: among all expression routes, or among URI routes of the same host and path.
    pub priority: i64,
    /// Which requests it takes.
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

/// What a URI route asks for; everything must hold.
#[derive(Debug, Clone, PartialEq)]
pub struct UriRoute {
    /// Empty: any host.
    pub hosts: Vec<HostPattern>,
    /// Never empty: a route without a path takes no request.
    pub paths: Vec<PathPattern>,
    /// Which methods; empty: any.
    pub methods: MethodSet,
    /// Client addresses; empty: any.
    pub remote_addrs: Vec<IpNet>,
    /// A condition on the request's variables.
    pub vars: Option<vars::Expr>,
    /// A function that is asked last.
    pub function: Option<FilterFunction>,
    /// What could not be read of it, where it is a refusal.
    pub unread: Unread,
}

/// What could not be read of a URI route that refuses all that it takes. It takes any in that place, and comes before every route
/// that it could have come before: whichever host or path it was, it may have been the most specific.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unread {
    /// Its hosts, and so it has none.
    pub host: bool,
    /// Its paths, and so its one path is any.
    pub path: bool,
}

impl RouteSpec {
    /// What a URI route asks for; `None` for an expression.
    pub fn uri(&self) -> Option<&UriRoute> {
        match &self.takes {
            RouteMatch::Uri(uri) => Some(uri),
            RouteMatch::Expression(_) => None,
        }
    }
}
