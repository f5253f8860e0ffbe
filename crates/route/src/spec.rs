//! What a route asks of a request, before it is compiled.

use crate::{HostPattern, MethodSet, PathPattern, vars};
use ipnet::IpNet;

/// One URI route. Its position in the list handed to the compiler breaks ties.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteSpec {
    /// The route's id, unique.
    pub id: String,
    /// Empty: any host.
    pub hosts: Vec<HostPattern>,
    /// Never empty: a route without a path takes no request.
    pub paths: Vec<PathPattern>,
    /// Which methods; empty: any.
    pub methods: MethodSet,
    /// Client addresses; empty: any.
    pub remote_addrs: Vec<IpNet>,
    /// Higher first, among routes of the same path.
    pub priority: i32,
    /// A condition on the request's variables.
    pub vars: Option<vars::Expr>,
}
