//! Addresses that the file assigns to several of its parts.
//!
//! All parts have been read by then. Whether an address can be bound is found out when it is bound.

use crate::keys::gateway::Gateway;
use crate::model::{ListenPlace, Listener, NodeProtocol, Transport, Upstream, listed};
use crate::values::Host;
use std::net::SocketAddr;
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink};

/// Our own addresses that conflict with each other.
pub(crate) fn check_own_addresses(listeners: &[Listener], gateway: &Gateway, sink: &mut Sink) {
    check_listeners(listeners, sink);
    let root = Path::Root.key("gateway");
    let overlapping = |address: SocketAddr| {
        let place = ListenPlace::tcp(address);
        listeners.iter().find(|listener| listener.place().overlaps(place)).map(|listener| listener.address)
    };
    if let Some(admin) = &gateway.admin
        && let Some(listener) = overlapping(admin.address)
    {
        let message = format!("{} overlaps the listener {listener}", admin.address);
        let fault = Fault::new(message).hint("write another port");
        sink.error(Position::NOWHERE, &root.key("admin").key("address"), fault);
    }
    if let Some(address) = gateway.metrics.as_ref().and_then(|metrics| metrics.address) {
        let admin = gateway.admin.as_ref().map(|admin| admin.address);
        let admin = admin.filter(|admin| ListenPlace::tcp(*admin).overlaps(ListenPlace::tcp(address)));
        let other = overlapping(address).map(|other| ("listener", other));
        if let Some((what, other)) = other.or(admin.map(|other| ("admin address", other))) {
            let fault = Fault::new(format!("{address} overlaps the {what} {other}")).hint("write another port");
            sink.error(Position::NOWHERE, &root.key("metrics").key("address"), fault);
        }
    }
}

/// Reports listeners that conflict with others. Two of one list on one address have already been reported at their position.
fn check_listeners(listeners: &[Listener], sink: &mut Sink) {
    for (at, (list, index, listener)) in listed(listeners).enumerate() {
        let is_known = |first: &Listener| first.kind.list() == list && first.address == listener.address;
        let mut before = listeners[..at].iter().filter(|first| !is_known(first));
        if let Some(first) = before.find(|first| first.place().overlaps(listener.place())) {
            let message = format!("{} overlaps the listener {}", listener.address, first.address);
            let fault = Fault::new(message).hint("remove one");
            let mut report = |path: &Path<'_>| sink.error(Position::NOWHERE, path, fault.clone());
            at_listener(&Path::Root, list, index, &mut report);
        }
    }
}

/// Calls `report` with the path of a listener.
pub(super) fn at_listener(path: &Path<'_>, list: &[&str], index: usize, report: &mut dyn FnMut(&Path<'_>)) {
    match list {
        [] => report(&path.index(index)),
        [key, rest @ ..] => at_listener(&path.key(key), rest, index, report),
    }
}

/// Reports nodes that are the gateway itself.
pub(crate) fn check_nodes(listeners: &[Listener], upstream: &Upstream, sink: &mut Sink) {
    let transport = match upstream.protocol {
        NodeProtocol::Udp => Transport::Udp,
        NodeProtocol::Http | NodeProtocol::Plain | NodeProtocol::Tcp => Transport::Tcp,
    };
    for node in &upstream.nodes {
        let Host::Ip(ip) = node.host else { continue };
        let is_self = |listener: &&Listener| {
            let address = listener.address;
            listener.kind.transport() == transport
                && address.port() == node.port
                && (address.ip() == ip || (address.ip().is_unspecified() && ip.is_loopback()))
        };
        if let Some(listener) = listeners.iter().find(is_self) {
            let message = format!(
                "upstream \"{}\": the node {ip}:{} is this gateway's own listener {}; a request sent there comes back \
                 until no descriptor is left",
                upstream.key, node.port, listener.address
            );
            sink.warning(Position::NOWHERE, &Path::Root.key("upstreams"), message);
        }
    }
}
