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
    let own = own_addresses(gateway);
    for (index, (path, _, address)) in own.iter().enumerate() {
        let place = ListenPlace::tcp(*address);
        let listener = listeners.iter().find(|listener| listener.place().overlaps(place));
        let listener = listener.map(|listener| ("listener", listener.address));
        let mut before = own[..index].iter().filter(|(.., other)| ListenPlace::tcp(*other).overlaps(place));
        let other = listener.or_else(|| before.next().map(|(_, what, other)| (*what, *other)));
        if let Some((what, other)) = other {
            let fault = Fault::new(format!("{address} overlaps the {what} {other}")).hint("write another port");
            at_key(&Path::Root, path, &mut |path| sink.error(Position::NOWHERE, path, fault.clone()));
        }
    }
}

/// Our addresses that are not listeners: the path of each, its name, and itself.
fn own_addresses(gateway: &Gateway) -> Vec<(&'static [&'static str], &'static str, SocketAddr)> {
    let admin = gateway.admin.as_ref().map(|admin| admin.address);
    let metrics = gateway.metrics.as_ref().and_then(|metrics| metrics.address);
    let devices = gateway.devices.as_ref().map(|devices| devices.address);
    let peer = gateway.devices.as_ref().and_then(|devices| devices.peer.as_ref()).map(|peer| peer.address);
    let all: [(&'static [&'static str], _, _); 4] = [
        (&["gateway", "admin", "address"], "admin address", admin),
        (&["gateway", "metrics", "address"], "address of metrics", metrics),
        (&["gateway", "devices", "address"], "address of the device API", devices),
        (&["gateway", "devices", "peer", "address"], "address for other nodes", peer),
    ];
    all.into_iter().filter_map(|(path, what, address)| Some((path, what, address?))).collect()
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
    at_key(path, list, &mut |path| report(&path.index(index)));
}

/// Calls `report` with the path of a key below `path`.
fn at_key(path: &Path<'_>, keys: &[&str], report: &mut dyn FnMut(&Path<'_>)) {
    match keys {
        [] => report(path),
        [key, rest @ ..] => at_key(&path.key(key), rest, report),
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
