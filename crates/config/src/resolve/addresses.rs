//! Addresses that the file gives to more than one of its parts.
//!
//! Each part has been read by then. Whether an address can be bound at all is for whoever binds it to find out.

use crate::keys::gateway::Gateway;
use crate::model::{Protocol, Upstream};
use crate::values::Host;
use std::net::SocketAddr;
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink};

/// Addresses of our own that are in each other's way.
pub(crate) fn check_own_addresses(gateway: &Gateway, sink: &mut Sink) {
    let root = Path::Root.key("gateway");
    let listeners = root.key("listeners");
    let own: Vec<SocketAddr> = gateway.listeners.iter().map(|listener| listener.address).collect();
    let streams = gateway.stream_proxy.tcp.iter().map(|listener| listener.address).collect::<Vec<_>>();
    let datagrams = gateway.stream_proxy.udp.iter().map(|listener| listener.address).collect::<Vec<_>>();
    check_streams(&own, &streams, "tcp", sink);
    // The ports of UDP are others than those of TCP.
    check_streams(&[], &datagrams, "udp", sink);
    for (index, address) in own.iter().enumerate() {
        if let Some(first) = own[..index].iter().find(|first| *first != address && overlap(**first, *address)) {
            let fault = Fault::new(format!("{address} overlaps the listener {first}")).hint("remove one");
            sink.error(Position::NOWHERE, &listeners, fault);
        }
    }
    let own: Vec<SocketAddr> = own.into_iter().chain(streams).collect();
    if let Some(admin) = &gateway.admin
        && let Some(listener) = own.iter().find(|listener| overlap(**listener, admin.address))
    {
        let message = format!("{} overlaps the listener {listener}", admin.address);
        let fault = Fault::new(message).hint("write another port");
        sink.error(Position::NOWHERE, &root.key("admin").key("address"), fault);
    }
    if let Some(address) = gateway.metrics.as_ref().and_then(|metrics| metrics.address) {
        let admin = gateway.admin.as_ref().map(|admin| ("admin address", admin.address));
        let others = own.iter().map(|listener| ("listener", *listener)).chain(admin);
        if let Some((what, other)) = { others }.find(|(_, other)| overlap(*other, address)) {
            let fault = Fault::new(format!("{address} overlaps the {what} {other}")).hint("write another port");
            sink.error(Position::NOWHERE, &root.key("metrics").key("address"), fault);
        }
    }
}

/// Listeners of `stream_proxy` that are in the way of others or each other. Of two on one address it is told where they stand.
fn check_streams(others: &[SocketAddr], own: &[SocketAddr], key: &str, sink: &mut Sink) {
    let root = Path::Root.key("gateway");
    let root = root.key("stream_proxy");
    let list = root.key(key);
    for (index, address) in own.iter().enumerate() {
        let before = own[..index].iter().filter(|first| *first != address);
        if let Some(first) = before.chain(others).find(|first| overlap(**first, *address)) {
            let fault = Fault::new(format!("{address} overlaps the listener {first}")).hint("remove one");
            sink.error(Position::NOWHERE, &list.index(index), fault);
        }
    }
}

/// Nodes that are ourselves.
pub(crate) fn check_nodes(gateway: &Gateway, upstream: &Upstream, sink: &mut Sink) {
    let own: Vec<SocketAddr> = match upstream.protocol {
        Protocol::Udp => gateway.stream_proxy.udp.iter().map(|listener| listener.address).collect(),
        Protocol::Http | Protocol::Tcp => {
            let streams = gateway.stream_proxy.tcp.iter().map(|listener| listener.address);
            gateway.listeners.iter().map(|listener| listener.address).chain(streams).collect()
        }
    };
    for node in &upstream.nodes {
        let Host::Ip(ip) = node.host else { continue };
        let is_self = |listener: &SocketAddr| {
            listener.port() == node.port
                && (listener.ip() == ip || (listener.ip().is_unspecified() && ip.is_loopback()))
        };
        if let Some(listener) = own.iter().copied().find(is_self) {
            let message = format!(
                "upstream \"{}\": the node {ip}:{} is this gateway's own listener {listener}; a request sent there \
                 comes back until no descriptor is left",
                upstream.key, node.port
            );
            sink.warning(Position::NOWHERE, &Path::Root.key("upstreams"), message);
        }
    }
}

/// Whether binding both fails: the same port of the same address, or of all addresses.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    a.port() == b.port() && a.port() != 0 && (a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified())
}
