//! The keys of `stream_routes`, and what they mean: which connections go where, and whether any listener brings such.

use crate::diagnostic::{Fault, Path, Position, Sink};
use crate::gateway::Gateway;
use crate::kind::{At, Labels, Located, TEXT, Text, int, text};
use crate::matching::NETWORK;
use crate::model::{OnChange, Protocol, StreamRoute};
use crate::nodes::parse_authority;
use crate::object::{map, object};
use crate::quantity::{Span, span};
use crate::resolve::{Identified, Place, Shared, dangling, insert};
use crate::resources::{ID, ON_CHANGE, Resource, STATUS, Scheme, UNIX_TIME, UpstreamKeys};
use ipnet::IpNet;
use serde::Serialize;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use stillgate_route::HostPattern;

const DAY: Duration = Duration::from_secs(24 * 3600);
const BOUND: Span = span(Duration::from_millis(1), DAY);
const IDLE: Span = span(Duration::from_millis(1), Duration::from_secs(365 * 24 * 3600));

object! {
    /// Which connections of `gateway.stream_proxy` a stream route takes, and where they go. Among routes that take the same
    /// connection one with an exact `sni` comes first, then the longest `*.` one, then those without; then the order of the file.
    pub(crate) struct StreamRouteKeys {
        /// Unique among stream routes; the position in the list, from 1, where it is absent.
        id: At<String> = Located(ID) => optional;
        /// For the reader.
        name: String = TEXT => optional;
        /// For the reader.
        desc: String = TEXT => optional;
        /// For the reader: names and texts.
        labels: () = Labels => optional;
        /// For the reader: seconds since 1970.
        create_time: i64 = UNIX_TIME => optional;
        /// For the reader: seconds since 1970.
        update_time: i64 = UNIX_TIME => optional;
        /// Address or network that the client must have.
        remote_addr: IpNet = NETWORK => optional;
        /// Address or network of ours that the connection must have come to; what a PROXY header says of that does not count.
        server_addr: IpNet = NETWORK => optional;
        /// Port of ours that it must have come to.
        server_port: u16 = int(1, 65535) => optional;
        /// The name that the client must ask for in its TLS handshake: `example.com`, or `*.example.com` for all below. Of listeners with `tls` or `tls_passthrough`.
        sni: At<HostPattern> = Located(SERVER_NAME) => optional;
        /// 1: enabled; 0: the route does not exist.
        status: bool = STATUS => default(true);
        /// Where connections go, written here; its `scheme` is `tcp` where it is absent. This, `upstream_id` or `service_id`.
        upstream: At<UpstreamKeys> = Located(map::<UpstreamKeys>()) => optional;
        /// Where connections go, by the id of one of `upstreams` whose `scheme` is `tcp`, `tls` or `udp`.
        upstream_id: At<String> = Located(ID) => optional;
        /// The service whose upstream holds where the route has none.
        service_id: At<String> = Located(ID) => optional;
        /// Overrides what the upstream and `gateway.stream_proxy` say. Not in APISIX.
        timeout: StreamTimeouts = map::<StreamTimeouts>() => nested;
        /// What becomes of the route's open connections and sessions when it is changed or removed, as for tunnels of routes: `keep`, `drain` or `close`. A UDP session whose node is in no upstream of stream routes any more ends with the client's next datagram in any case. Not in APISIX.
        on_change: OnChange = ON_CHANGE => default(OnChange::Keep);
        any_of {
            "nothing says where connections go": upstream | upstream_id | service_id;
        }
        unbuilt {
            plugins: "plugins are";
            protocol: "protocols of xRPC are";
        }
    }
}

object! {
    /// Bounds on a connection or session of a stream route.
    pub struct StreamTimeouts: Copy, Eq, Serialize {
        /// TCP connect, with the TLS handshake of `scheme: tls`; the upstream's where it is absent.
        connect: Duration = BOUND => optional;
        /// While bytes wait for the node, the node must read at least one of them within this time (there is no least amount as for HTTP requests); the upstream's where it is absent.
        send: Duration = BOUND => optional;
        /// Nothing moves in either direction; `tcp_idle` or `udp_idle` of `gateway.stream_proxy` where it is absent.
        idle: Duration = IDLE => optional;
    }
}

const SERVER_NAME: Text<HostPattern> = text("a server name", |text| {
    let is_address = |host: &str| host.parse::<std::net::IpAddr>().is_ok();
    if text.starts_with('[') || is_address(text) {
        let fault = Fault::new(format!("{:?} is an address, and clients ask for names only", text));
        return Err(fault.hint("use server_addr, or remove the key"));
    }
    let pattern = HostPattern::parse(text).map_err(|error| Fault::new(error.to_string()))?;
    parse_authority(text.strip_prefix("*.").unwrap_or(text)).map(|_| pattern)
});

impl Shared {
    /// All enabled stream routes, in the order of the file.
    pub(crate) fn stream_routes(
        &mut self,
        entries: Vec<Resource<StreamRouteKeys>>,
        gateway: &Gateway,
        sink: &mut Sink,
    ) -> Vec<Arc<StreamRoute>> {
        let list = Path::Root.key("stream_routes");
        let (mut ids, mut routes) = (HashMap::with_capacity(entries.len()), Vec::with_capacity(entries.len()));
        for Resource { index, at, keys } in entries {
            let path = list.index(index);
            let id = keys.id.clone().unwrap_or_else(|| At { at, value: (index + 1).to_string() });
            insert(&mut ids, id.clone(), Identified { line: at.line, value: () }, &path, sink);
            let (is_enabled, sni_at) = (keys.status, keys.sni.as_ref().map(|sni| sni.at));
            let Some(route) = self.stream_route(keys, id.value, at, &path, sink) else { continue };
            let protocol = self.upstreams[route.upstream].protocol;
            match sni_at {
                Some(sni_at) if protocol == Protocol::Udp => {
                    let fault =
                        Fault::new("UDP has no server name").hint("remove the key, or use `scheme: tcp` or `tls`");
                    sink.error(sni_at, &path.key("sni"), fault);
                }
                _ if is_enabled => check_reach(&route, protocol, gateway, at, &path, sink),
                _ => {}
            }
            if is_enabled {
                routes.push(Arc::new(route));
            }
        }
        routes
    }

    fn stream_route(
        &mut self,
        mut keys: StreamRouteKeys,
        id: String,
        at: Position,
        path: &Path<'_>,
        sink: &mut Sink,
    ) -> Option<StreamRoute> {
        if let Some(inline) = &mut keys.upstream
            && inline.value.scheme.at == Position::NOWHERE
        {
            inline.value.scheme.value = Scheme::Tcp;
        }
        let place_at = match (&keys.upstream, &keys.upstream_id, &keys.service_id) {
            (Some(inline), ..) => (inline.at, "upstream"),
            (None, Some(id), _) => (id.at, "upstream_id"),
            (None, None, Some(id)) => (id.at, "service_id"),
            (None, None, None) => (at, "upstream"),
        };
        let key = format!("stream_routes/{id}");
        let mut place = self.upstream_of(keys.upstream.take(), keys.upstream_id.take(), key, path, sink);
        if let Some(id) = &keys.service_id {
            match self.services.get(&id.value) {
                None => {
                    dangling(id, "service", &self.services, &path.key("service_id"), sink);
                    return None;
                }
                Some(service) if matches!(place, Place::Absent) => place = service.value.upstream.clone(),
                Some(_) => {}
            }
            if matches!(place, Place::Absent) {
                let fault = Fault::new("neither the stream route nor its service has an upstream");
                sink.error(at, path, fault.hint("add upstream or upstream_id to one of them"));
            }
        }
        let upstream = match place {
            // A switched-off route's too: it is in nobody's way.
            Place::Own(own) => self.add(own),
            Place::Index(index) => index,
            Place::Absent | Place::Wrong => return None,
        };
        if self.upstreams[upstream].protocol == Protocol::Http {
            let fault = Fault::new("the nodes of this upstream are spoken to in HTTP, which is for `routes`");
            let fault = fault.hint("write `scheme: tcp`, `tls` or `udp` in the upstream");
            sink.error(place_at.0, &path.key(place_at.1), fault);
            return None;
        }
        let StreamRouteKeys { remote_addr, server_addr, server_port, sni, timeout, on_change, service_id, .. } = keys;
        let (sni, service_id) = (sni.map(|sni| sni.value), service_id.map(|id| id.value));
        Some(StreamRoute { id, sni, remote_addr, server_addr, server_port, upstream, service_id, timeout, on_change })
    }
}

/// Warns of a route that no listener can bring a connection to.
fn check_reach(
    route: &StreamRoute,
    protocol: Protocol,
    gateway: &Gateway,
    at: Position,
    path: &Path<'_>,
    sink: &mut Sink,
) {
    let holds = |address: SocketAddr| {
        route.server_port.is_none_or(|port| port == address.port() || address.port() == 0)
            && route.server_addr.is_none_or(|net| address.ip().is_unspecified() || net.contains(&address.ip()))
    };
    // Of a datagram to all addresses it is not known which of them it was sent to.
    let is_told = |address: SocketAddr| route.server_addr.is_none_or(|net| net.contains(&address.ip()));
    let (what, is_there, has_names) = match protocol {
        Protocol::Udp => {
            let mut all = gateway.stream_proxy.udp.iter().map(|listener| listener.address);
            ("udp", all.any(|address| holds(address) && is_told(address)), true)
        }
        Protocol::Http | Protocol::Tcp => {
            // What a PROXY header says of our own address does not count.
            let listeners = || gateway.stream_proxy.tcp.iter().filter(|listener| holds(listener.address));
            let has_names = listeners().any(|listener| listener.tls || listener.tls_passthrough);
            ("tcp", listeners().next().is_some(), has_names)
        }
    };
    if !is_there {
        let which = match (route.server_addr, route.server_port) {
            (None, None) => "",
            _ => " of its server_addr and server_port",
        };
        let fault = Fault::new(format!("it takes no connection: no listener{which} is in gateway.stream_proxy.{what}"));
        let is_wide = protocol == Protocol::Udp
            && gateway.stream_proxy.udp.iter().any(|listener| holds(listener.address) && !is_told(listener.address));
        let hint = match is_wide {
            true => {
                "a UDP listener on all addresses does not know which one a datagram was sent to; give it the address itself"
            }
            false => "add one there, or `status: 0` here",
        };
        sink.warning(at, path, fault.hint(hint));
    } else if route.sni.is_some() && !has_names {
        let fault = Fault::new("it takes no connection: no listener learns the name that clients ask for");
        sink.warning(
            at,
            &path.key("sni"),
            fault.hint("write `tls` or `tls_passthrough` in one of gateway.stream_proxy.tcp"),
        );
    }
}
