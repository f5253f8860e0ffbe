//! What was written, to what it means: references to what they name, services folded into routes, dependent defaults filled
//! in.
//!
//! Checks that need more than one value are here and nowhere else. An error in one resource does not hide those of
//! others. All look-ups are by hash, so that 100,000 routes stay linear.

mod addresses;
mod checks;
mod consumers;
pub(crate) mod plugins;
mod secrets;
mod shared;
mod ssls;
mod stream_routes;
mod stream_upstreams;
mod takes;
pub(crate) mod upstream;

use crate::keys::resources::{File, Resource, RouteKeys};
use crate::model::{Config, listeners_of};
pub(crate) use addresses::check_nodes;
use addresses::check_own_addresses;
pub use plugins::PluginSet;
use plugins::SharedPlugins;
use shared::insert;
pub(crate) use shared::{Identified, Placed, Resolved, Service, Shared};
pub(crate) use ssls::Ssls;
use std::collections::HashMap;
use stillgate_schema::kind::At;
use stillgate_schema::text::diagnostic::{Path, Position, Sink};

/// The configuration, and what its routes refer to; of use only if the sink has no errors afterwards.
pub(crate) fn resolve(file: File, digest: String, set: PluginSet, sink: &mut Sink) -> (Config, Shared) {
    let listeners = listeners_of(&file.gateway);
    let ssls = Ssls::new(file.ssls, file.gateway.acme.as_ref(), sink);
    ssls.check_listeners(&listeners, file.gateway.acme.as_ref(), sink);
    let set = secrets::with_managers(set, file.secrets, sink);
    let plugins = SharedPlugins::new(set, file.plugin_configs, sink);
    let mut shared = Shared::new(file.upstreams, file.services, ssls, plugins, sink);
    let stream_routes = shared.stream_routes(file.stream_routes, &listeners, sink);
    let mut placed = Placed { upstreams: shared.upstreams.clone(), ..Placed::default() };
    let list = Path::Root.key("routes");
    let mut ids = HashMap::with_capacity(file.routes.len());
    for Resource { index, at, keys } in file.routes {
        let path = list.index(index);
        let id = route_id(&keys, index, at);
        insert(&mut ids, id.clone(), Identified { line: at.line, value: () }, &path, sink);
        let enabled = keys.status;
        let route = shared.route(keys, id.value, at, &path, sink);
        if enabled {
            placed.push(route, at.line);
        }
    }
    let Placed { routes, route_lines, upstreams } = placed;
    let written =
        plugins::Written { global_rules: file.global_rules, consumers: file.consumers, metadata: file.plugin_metadata };
    shared.groups = consumers::Groups::new(file.consumer_groups, &shared.plugins, sink);
    let plugins = plugins::shared(written, &shared.groups, &shared.plugins, sink);
    check_own_addresses(&listeners, &file.gateway, sink);
    upstreams.iter().for_each(|upstream| check_nodes(&listeners, upstream, sink));
    let (ssls, gateway) = (shared.ssls.enabled.clone(), file.gateway);
    (Config { gateway, listeners, upstreams, routes, route_lines, stream_routes, ssls, plugins, digest }, shared)
}

/// The id that a route has: its own, or its position in the list.
pub(crate) fn route_id(keys: &RouteKeys, index: usize, at: Position) -> At<String> {
    keys.id.clone().unwrap_or_else(|| At { at, value: (index + 1).to_string() })
}
