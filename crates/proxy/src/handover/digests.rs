//! Whether a route is the same in two processes, told by a number.
//!
//! What a reload decides by comparing two routes in memory (see `plan::lease`) is decided here by the digests of their text forms.
//! The same configuration makes the same digests in the same version; another version may see a route as changed that is not, so
//! who has the very same file need not ask.

use crate::plan::Plan;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write};
use stillgate_config::{Route, StreamRoute};

/// A route that may have tunnels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteDigest {
    /// `routes/` or `stream_routes/`, and its id.
    pub key: String,
    /// What it says.
    pub digest: u64,
}

/// What a route of HTTP is called between processes, and one of streams.
pub(crate) const ROUTES: &str = "routes/";
pub(crate) const STREAM_ROUTES: &str = "stream_routes/";

/// FNV-1a, 64 bits: the same in every build, as the hashers of the standard library need not be.
struct Fnv(u64);

impl Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
        Ok(())
    }
}

/// The digest of a thing's text form.
pub fn digest(thing: &dyn fmt::Debug) -> u64 {
    let mut hash = Fnv(0xCBF2_9CE4_8422_2325);
    write!(hash, "{thing:?}").expect("hashing does not fail");
    hash.0
}

impl Plan {
    /// The routes that may have tunnels.
    pub fn tunnel_routes(&self) -> Vec<RouteDigest> {
        // One that is written in the route is part of it.
        let own = |key: &str, upstream: usize| {
            let upstream = &self.upstreams[upstream].definition;
            (upstream.key.clone(), (upstream.key == key).then(|| upstream.clone()))
        };
        let routes = self.routes.iter().filter(|route| route.route.upgrades);
        let routes = routes.map(|route| {
            let Route { spec, upstream: _, service_id, timeout, upgrades, on_change } = &*route.route;
            let key = format!("{ROUTES}{}", spec.id);
            let upstream = own(&key, route.upstream());
            RouteDigest { key, digest: digest(&(spec, service_id, timeout, upgrades, on_change, upstream)) }
        });
        let streams = self.stream_routes.iter().map(|route| {
            let key = format!("{STREAM_ROUTES}{}", route.route.id);
            let upstream = own(&key, route.route.upstream);
            // Its place in the list means nothing.
            let route = StreamRoute { upstream: 0, ..(*route.route).clone() };
            RouteDigest { key, digest: digest(&(route, upstream)) }
        });
        routes.chain(streams).collect()
    }
}
