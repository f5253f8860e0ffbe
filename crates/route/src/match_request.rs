//! What is asked of a matcher: the parts of a request that are matched.

use crate::Method;
use crate::path::NormalPath;
use crate::variable::Lookup;
use std::net::IpAddr;

/// The parts of a request that are matched.
#[derive(Clone, Copy)]
pub struct MatchRequest<'a> {
    /// Its method.
    pub method: Method,
    /// In the form of [`crate::canonical_host`]; empty where it has none.
    pub host: &'a [u8],
    /// Made by [`path::normalise`](crate::path::normalise).
    pub path: NormalPath<'a>,
    /// The client, after trusted proxies were believed.
    pub client: IpAddr,
    /// Everything else.
    pub vars: &'a dyn Lookup,
}
