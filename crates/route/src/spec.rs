//! What a route asks of a request, before it is compiled.

use ipnet::IpNet;

/// One URI route. Its position in the list handed to the compiler breaks ties.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteSpec {
    /// The route's id, unique.
    pub id: String,
    /// Empty: any host.
    pub hosts: Vec<HostPattern>,
    /// Never empty. `/a` exact, `/a/*` prefix, `/a/:name/b` parameters; validated by [`crate::PathPattern::parse`].
    pub paths: Vec<String>,
    /// Which methods; empty: any.
    pub methods: MethodSet,
    /// Client addresses; empty: any.
    pub remote_addrs: Vec<IpNet>,
    /// Higher first, among routes of the same path.
    pub priority: i32,
}

/// `example.com` or `*.example.com`, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostPattern {
    /// The whole name.
    Exact(String),
    /// Any name that ends in this suffix, which begins with a dot.
    Suffix(String),
}

/// A set of registered methods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MethodSet(pub u16);

/// A named value of a request, as nginx and APISIX call them.
#[derive(Debug, Clone, PartialEq)]
pub struct Variable(pub String);
