//! Routes for TCP, TLS and UDP, and the addresses that they listen on.
//!
//! Here a stream route has one network, one port and one name, so a route of Kong becomes one for each combination.
//! No plugins run for streams: a route whose connections Kong restricts is left out, and they are closed.

use crate::expression::NetworkAddress;
use crate::kong_file::Plugin;
use crate::placement::Placement;
use crate::plugins::{Translation, is_guard, is_known};
use crate::routes::ReadRoute;
use crate::upstreams::Service;
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;

/// Stream routes, and the listeners for them: address to keys, of TCP and UDP.
#[derive(Default)]
pub(crate) struct Streams {
    pub(crate) routes: Vec<Json>,
    tcp: BTreeMap<i64, Listener>,
    udp: BTreeMap<i64, Listener>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listener {
    Plain,
    Tls,
    Passthrough,
}

/// Most routes that one of Kong's becomes.
const COMBINATIONS_MAX: usize = 1000;

impl Streams {
    pub(crate) fn of(routes: &[ReadRoute], services: &[Service], placement: &Placement<'_>) -> Streams {
        let mut streams = Streams::default();
        for route in routes.iter().filter(|route| route.is_stream()) {
            streams.add(route, services, placement);
        }
        streams
    }

    /// The section `gateway.stream_proxy`, if there are stream routes.
    pub(crate) fn listeners(&self) -> Option<Json> {
        if self.routes.is_empty() {
            return None;
        }
        let mut keys = Map::new();
        for (name, ports) in [("tcp", &self.tcp), ("udp", &self.udp)] {
            let listener = |(port, kind): (&i64, &Listener)| {
                let mut listener = json!({"address": format!("0.0.0.0:{port}")});
                match kind {
                    Listener::Plain => {}
                    Listener::Tls => listener["tls"] = true.into(),
                    Listener::Passthrough => listener["tls_passthrough"] = true.into(),
                }
                listener
            };
            if !ports.is_empty() {
                keys.insert(name.to_owned(), ports.iter().map(listener).collect::<Vec<_>>().into());
            }
        }
        Some(keys.into())
    }

    fn add(&mut self, route: &ReadRoute, services: &[Service], placement: &Placement<'_>) {
        let object = route.object();
        let left_out = |why: &str| {
            object.losses().closed(
                object.path(),
                object.at(),
                format!("{why}, so the route is left out and its connections are closed"),
            )
        };
        if route.conditions.expression.is_some() {
            return left_out(
                "expressions are for requests only here; write `sni`, `remote_addr` and `server_port` of a stream route",
            );
        }
        if route.is_closed {
            return left_out(
                "not all conditions of the route can be read, and without them it would take more connections",
            );
        }
        let Some(service) = route.service.map(|index| &services[index]).filter(|service| service.is_stream) else {
            return left_out("a route for TCP, TLS or UDP needs a service with one of these protocols");
        };
        if service.is_closed {
            return left_out("the service is closed");
        }
        if let Some(plugin) = placement.for_streams(route.index, route.service).find(|plugin| is_guard(&plugin.name)) {
            return left_out(&format!("`{}` does not run for streams here", plugin.name));
        }
        let effective = placement.effective(route.index, route.service);
        for (is_own, placed) in effective.plugins() {
            let name = &placed.plugin.name;
            let is_closed = matches!(placed.translated, Translation::Closed);
            let is_restricted =
                name == "ip-restriction" || (is_closed && (is_own || may_run_for_streams(placed.plugin)));
            if is_restricted {
                return left_out(&format!("`{name}` does not run for streams here"));
            }
            if is_own {
                object.changed(format!("`{name}` does not run for streams here"));
            }
        }
        let mut addresses = Vec::new();
        for source in or_any(&route.conditions.sources) {
            if source.as_ref().is_some_and(|source| source.port.is_some()) {
                object.lost("sources", "ports of clients are not compared here; sources with a port are left out, and their connections are closed");
                continue;
            }
            for destination in or_any(&route.conditions.destinations) {
                for sni in or_any(&route.conditions.snis) {
                    addresses.push((source.clone(), destination.clone(), sni));
                }
            }
        }
        if addresses.len() > COMBINATIONS_MAX {
            return left_out("the route has more than 1000 combinations of sources, destinations and names");
        }
        let Some(base) = route.ids.first() else { return };
        let single = addresses.len() == 1;
        for (number, (source, destination, sni)) in addresses.into_iter().enumerate() {
            let Some(conditions) = self.conditions(route, source, destination.as_ref(), sni) else { continue };
            let mut document = Map::new();
            let id = if single { base.clone() } else { format!("{base}-{}", number + 1) };
            document.insert("id".to_owned(), id.into());
            document.extend(route.document().clone());
            document.extend(conditions);
            if !service.is_enabled {
                document.insert("status".to_owned(), 0.into());
            }
            document.insert("upstream".to_owned(), service.upstream.clone().into());
            self.routes.push(document.into());
        }
    }

    fn conditions(
        &mut self,
        route: &ReadRoute,
        source: Option<NetworkAddress>,
        destination: Option<&NetworkAddress>,
        sni: Option<String>,
    ) -> Option<Map<String, Json>> {
        let object = route.object();
        let Some(port) = destination.and_then(|destination| destination.port) else {
            object.losses().closed(
                object.path(),
                object.at(),
                "nothing says which port the connections come to, so the route is left out and they are closed; write a stream route with `server_port`, and the port in `gateway.stream_proxy`",
            );
            return None;
        };
        let has = |name: &str| route.protocols.iter().any(|protocol| protocol == name);
        let kind = match (has("tls_passthrough"), has("tls"), has("tcp")) {
            (true, _, _) => Some(Listener::Passthrough),
            (_, true, _) => Some(Listener::Tls),
            (_, _, true) => Some(Listener::Plain),
            _ => None,
        };
        if let Some(kind) = kind
            && *self.tcp.entry(port).or_insert(kind) != kind
        {
            object.changed("another route wants the port with another kind of TLS; its listener has that of the first");
        }
        if has("udp") {
            self.udp.insert(port, Listener::Plain);
        }
        let mut keys = Map::new();
        keys.insert("server_port".to_owned(), port.into());
        for (name, address) in [("remote_addr", source.as_ref()), ("server_addr", destination)] {
            keys.extend(
                address.and_then(|address| address.network.clone()).map(|network| (name.to_owned(), network.into())),
            );
        }
        if let Some(sni) = sni {
            if sni.ends_with('*') || (sni.contains('*') && !sni.starts_with("*.")) {
                object.lost(
                    "snis",
                    "names that end in `*` do not exist here; they are left out, and their connections are closed",
                );
                return None;
            }
            keys.insert("sni".to_owned(), sni.into());
        }
        Some(keys)
    }
}

/// Whether a plugin of Kong sees connections of TCP, TLS and UDP. Those that the importer knows do not, unless the
/// file says so; of others it cannot know.
fn may_run_for_streams(plugin: &Plugin) -> bool {
    plugin.runs_for_streams.unwrap_or_else(|| !is_known(&plugin.name))
}

/// Each of a list, or one time nothing.
fn or_any<T: Clone>(list: &[T]) -> Vec<Option<T>> {
    match list {
        [] => vec![None],
        list => list.iter().cloned().map(Some).collect(),
    }
}
