//! Compiles stream routes, and checks whether a listener receives their connections.

use super::catalog::{Catalog, UNUSABLE, UpstreamTarget};
use super::catalog_item::find;
use crate::keys::resources::Scheme;
use crate::keys::stream_routes::StreamRouteKeys;
use crate::model::{Kind, Listener, ListenerKind, NodeProtocol, StreamRoute, Target};
use std::net::SocketAddr;
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink};

impl Catalog {
    /// Compiles a stream route, and determines the protocol of its destination.
    pub(super) fn stream_route(
        &self,
        mut keys: StreamRouteKeys,
        id: String,
        at: Position,
        path: &Path<'_>,
        sink: &mut Sink,
    ) -> (StreamRoute, Option<NodeProtocol>) {
        if let Some(inline) = &mut keys.upstream
            && inline.value.scheme.value == Scheme::Http
        {
            inline.value.scheme.value = Scheme::Plain;
        }
        let place_at = match (&keys.upstream, &keys.upstream_id, &keys.service_id) {
            (Some(inline), ..) => (inline.at, "upstream"),
            (None, Some(id), _) => (id.at, "upstream_id"),
            (None, None, Some(id)) => (id.at, "service_id"),
            (None, None, None) => (at, "upstream"),
        };
        let key = format!("stream_routes/{id}");
        let mut found = self.upstream_of(keys.upstream.take(), keys.upstream_id.take(), key, path, sink);
        if let Some(id) = &keys.service_id {
            match find(id, Kind::Services, &self.services, &path.key("service_id"), sink) {
                None => found = UpstreamTarget::Wrong,
                Some(service) if found == UpstreamTarget::Absent => found = service.value.upstream.clone(),
                Some(_) => {}
            }
            if found == UpstreamTarget::Absent {
                let fault = Fault::new("neither the stream route nor its service has an upstream");
                sink.error(at, path, fault.hint("add upstream or upstream_id to one of them"));
            }
        }
        let (target, protocol) = match found {
            UpstreamTarget::Target(target, protocol) => (target, Some(protocol)),
            UpstreamTarget::Absent | UpstreamTarget::Wrong => (Target::Unavailable(UNUSABLE.into()), None),
        };
        match (protocol, &keys.sni) {
            (Some(NodeProtocol::Http), _) => {
                let fault = Fault::new("the nodes of this upstream are spoken to in HTTP, which is for `routes`");
                let fault =
                    fault.hint("write `scheme: tcp`, `tls` or `udp` in the upstream, and a port with each node");
                sink.error(place_at.0, &path.key(place_at.1), fault);
            }
            (Some(NodeProtocol::Udp), Some(sni)) => {
                let fault = Fault::new("UDP has no server name").hint("remove the key, or use `scheme: tcp` or `tls`");
                sink.error(sni.at, &path.key("sni"), fault);
            }
            _ => {}
        }
        let StreamRouteKeys { remote_addr, server_addr, server_port, sni, timeout, on_change, service_id, .. } = keys;
        let (sni, service_id) = (sni.map(|sni| sni.value), service_id.map(|id| id.value));
        let route = StreamRoute {
            id,
            sni,
            is_sni_unread: false,
            remote_addr,
            server_addr,
            server_port,
            target,
            service_id,
            timeout,
            on_change,
        };
        (route, protocol.filter(|protocol| *protocol != NodeProtocol::Http))
    }
}

/// Warns of a route whose connections no listener receives.
pub(super) fn check_reach(
    route: &StreamRoute,
    protocol: NodeProtocol,
    listeners: &[Listener],
    at: Position,
    path: &Path<'_>,
    sink: &mut Sink,
) {
    let holds = |address: SocketAddr| {
        route.server_port.is_none_or(|port| port == address.port() || address.port() == 0)
            && route.server_addr.is_none_or(|net| address.ip().is_unspecified() || net.contains(&address.ip()))
    };
    // For a datagram to a listener on all addresses, the destination address is unknown.
    let is_told = |address: SocketAddr| route.server_addr.is_none_or(|net| net.contains(&address.ip()));
    let of_udp = listeners.iter().filter(|listener| listener.kind == ListenerKind::Udp);
    let datagrams = || of_udp.clone().map(|listener| listener.address);
    let (what, is_there, has_names) = match protocol {
        NodeProtocol::Udp => {
            let mut all = datagrams();
            ("udp", all.any(|address| holds(address) && is_told(address)), true)
        }
        NodeProtocol::Plain if route.sni.is_none() && datagrams().any(|address| holds(address) && is_told(address)) => {
            ("udp", true, true)
        }
        NodeProtocol::Http | NodeProtocol::Plain | NodeProtocol::Tcp => {
            // The local address in a PROXY header does not count.
            let learns_names =
                listeners.iter().filter(|listener| holds(listener.address)).filter_map(|of| match of.kind {
                    ListenerKind::Tcp { tls, tls_passthrough, .. } => Some(tls || tls_passthrough),
                    _ => None,
                });
            let learns_names: Vec<bool> = learns_names.collect();
            ("tcp", !learns_names.is_empty(), learns_names.contains(&true))
        }
    };
    if !is_there {
        let which = match (route.server_addr, route.server_port) {
            (None, None) => "",
            _ => " of its server_addr and server_port",
        };
        let fault = Fault::new(format!("it takes no connection: no listener{which} is in gateway.stream_proxy.{what}"));
        let is_wide = protocol == NodeProtocol::Udp && datagrams().any(|address| holds(address) && !is_told(address));
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
