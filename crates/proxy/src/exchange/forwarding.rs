//! Header fields on their way through: what ends here, what tells the node of the client, what tells the client of us.

use super::Exchange;
use crate::connection::client::Client;
use crate::plan::Settings;
use crate::worker::Worker;
use ipnet::IpNet;
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use stillgate_config::PassHost;
use stillgate_wire::{
    Edits, FieldName, FieldValue, Form, Framing, Name, RequestHead, Version, upgrade_protocols, write_upgrade_lines,
};

const X_FORWARDED_HOST: FieldName<'_> = FieldName::constant("X-Forwarded-Host");
const X_FORWARDED_PROTO: FieldName<'_> = FieldName::constant("X-Forwarded-Proto");
const SERVER_LINE: &str = concat!("Server: stillgate/", env!("CARGO_PKG_VERSION"), "\r\n");

/// The lines added to every request of a client that is no trusted proxy, but for `X-Forwarded-Host`.
pub(crate) fn untrusted_lines(peer: SocketAddr, local: SocketAddr, proto: &str) -> Box<[u8]> {
    let ip = peer.ip().to_canonical();
    format!(
        "X-Real-IP: {ip}\r\nX-Forwarded-For: {ip}\r\nX-Forwarded-Proto: {proto}\r\nX-Forwarded-Port: {}\r\n",
        local.port()
    )
    .into_bytes()
    .into()
}

/// Whether the connection's peer may speak for others.
fn is_trusted(ip: IpAddr, trusted: &[IpNet]) -> bool {
    !trusted.is_empty() && trusted.iter().any(|range| range.contains(&ip))
}

/// Who asks: the peer, or whom a trusted peer says it asks for. The right-most address of `X-Forwarded-For` that is no
/// trusted proxy itself counts, as everything left of it may be made up. `X-Real-IP` counts where that field is absent: beside
/// it, it may be the client's own, passed on by a proxy that only knows the other.
pub(crate) fn client_address(settings: &Settings, head: &[u8], request: &RequestHead, peer: IpAddr) -> IpAddr {
    let peer = peer.to_canonical();
    if !is_trusted(peer, &settings.trusted_proxies) {
        return peer;
    }
    if request.fields.get(head, Name::XForwardedFor).is_none() {
        let named = request.fields.get(head, Name::XRealIp).and_then(address_of);
        return named.map_or(peer, |ip| ip.to_canonical());
    }
    let mut client = peer;
    let values = request.fields.iter().rev().filter(|field| field.id == Name::XForwardedFor);
    for text in values.flat_map(|field| field.value.of(head).rsplit(|b| *b == b',')) {
        let Some(ip) = address_of(text) else { break };
        client = ip.to_canonical();
        if !is_trusted(client, &settings.trusted_proxies) {
            break;
        }
    }
    client
}

/// An address as proxies write it: alone, with a port, or an IPv6 one in brackets.
fn address_of(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text.trim_ascii()).ok()?;
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    let in_brackets = || text.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    text.parse().ok().or_else(with_port).or_else(in_brackets)
}

/// Prepares the edits of a request that hold for every node it may be sent to.
pub(crate) fn edit_request(client: &Client, exchange: &mut Exchange, settings: &Settings, pass_host: &PassHost) {
    let head = exchange.from_client.head();
    exchange.request_edits.clear();
    let edits = &mut exchange.request_edits.fields;
    edits.removed = exchange.request.hop_by_hop;
    let trusted = is_trusted(client.peer.ip().to_canonical(), &settings.trusted_proxies);
    let replaces_host = *pass_host != PassHost::Pass || exchange.request.form == Form::Absolute;
    let mut has_host = false;
    for (index, field) in exchange.request.fields.iter().enumerate() {
        match field.id {
            Name::Host => {
                has_host = true;
                if replaces_host {
                    edits.removed.insert(index);
                }
            }
            Name::XForwardedFor | Name::Lookalike => edits.removed.insert(index),
            // Who the client is has been found out, and every node is told the same.
            Name::XRealIp => edits.removed.insert(index),
            Name::XForwardedProto | Name::XForwardedHost | Name::XForwardedPort | Name::Forwarded if !trusted => {
                edits.removed.insert(index);
            }
            // RFC 9110 section 10.1.1: from HTTP/1.0 it means nothing.
            Name::Expect if exchange.request.version == Version::Http10 => edits.removed.insert(index),
            _ => {}
        }
    }
    exchange.sets_host = replaces_host || !has_host;
    if trusted {
        trusted_lines(edits, head, &exchange.request, client, client.address);
    } else {
        edits.added.extend_from_slice(&client.forwarded);
        add_forwarded_host(edits, head, &exchange.request);
    }
    if exchange.passes_upgrade {
        write_upgrade_lines(&mut edits.added, upgrade_protocols(&exchange.request.fields, head));
    }
    if exchange.request.framing == Framing::Chunked {
        edits.added.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
}

/// What a trusted proxy said is kept, its own address appended, and what it left out is filled in; `X-Real-IP` is whom it spoke
/// for.
fn trusted_lines(edits: &mut Edits, head: &[u8], request: &RequestHead, client: &Client, client_ip: IpAddr) {
    let missing = |id: Name| request.fields.get(head, id).is_none();
    edits.added.extend_from_slice(b"X-Forwarded-For: ");
    for field in request.fields.iter().filter(|field| field.id == Name::XForwardedFor) {
        edits.added.extend_from_slice(field.value.of(head));
        edits.added.extend_from_slice(b", ");
    }
    write_line_end(&mut edits.added, client.peer.ip().to_canonical());
    edits.added.extend_from_slice(b"X-Real-IP: ");
    write_line_end(&mut edits.added, client_ip);
    if missing(Name::XForwardedProto) {
        edits.add(X_FORWARDED_PROTO, FieldValue::of_head(client.scheme().as_bytes()));
    }
    if missing(Name::XForwardedPort) {
        edits.added.extend_from_slice(b"X-Forwarded-Port: ");
        write_line_end(&mut edits.added, client.local.port());
    }
    if missing(Name::XForwardedHost) {
        add_forwarded_host(edits, head, request);
    }
}

fn write_line_end(out: &mut Vec<u8>, value: impl std::fmt::Display) {
    write!(out, "{value}\r\n").expect("writing to a vector does not fail");
}

fn add_forwarded_host(edits: &mut Edits, head: &[u8], request: &RequestHead) {
    let authority = request.authority.of(head);
    if !authority.is_empty() {
        edits.add(X_FORWARDED_HOST, FieldValue::of_head(authority));
    }
}

/// The `Host` a node gets where it is not the client's own line.
pub(crate) fn host_for<'a>(exchange: &'a Exchange, pass_host: &'a PassHost, node_host: &'a str) -> &'a [u8] {
    let authority = exchange.request.authority.of(exchange.from_client.head());
    match pass_host {
        PassHost::Rewrite(host) => host.as_bytes(),
        PassHost::Pass if !authority.is_empty() => authority,
        // HTTP/1.0 without Host: the node's own name is the only one there is.
        PassHost::Pass | PassHost::Node => node_host.as_bytes(),
    }
}

/// Prepares the edits of a response; `keep_alive` and `chunked` are what the client's connection will do.
pub(crate) fn edit_response(
    worker: &Worker,
    exchange: &mut Exchange,
    settings: &Settings,
    keep_alive: bool,
    chunked: bool,
) {
    exchange.response_edits.clear();
    let edits = &mut exchange.response_edits.fields;
    edits.removed = exchange.response.hop_by_hop;
    let forbids_length = exchange.response.status == 204 || exchange.response.status < 200;
    for (index, field) in exchange.response.fields.iter().enumerate() {
        match field.id {
            Name::Server if settings.server_header => edits.removed.insert(index),
            Name::ContentLength if forbids_length => edits.removed.insert(index),
            _ => {}
        }
    }
    if exchange.response.status < 200 {
        return;
    }
    if chunked {
        edits.added.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    push_common_lines(
        worker,
        settings,
        &mut edits.added,
        !exchange.response.has_date,
        exchange.request.version,
        keep_alive,
    );
}

/// `Server`, `Date` and `Connection` as the situation wants them.
pub(crate) fn push_common_lines(
    worker: &Worker,
    settings: &Settings,
    out: &mut Vec<u8>,
    date: bool,
    client_version: Version,
    keep_alive: bool,
) {
    if settings.server_header {
        out.extend_from_slice(SERVER_LINE.as_bytes());
    }
    if date {
        worker.clock.push_date_line(out);
    }
    match (client_version, keep_alive) {
        (Version::Http11, true) => {}
        (Version::Http10, true) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
        (_, false) => out.extend_from_slice(b"Connection: close\r\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_as_proxies_write_them() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(address_of(text.as_bytes()).map(|ip| ip.to_string()).as_deref(), expected, "{text}");
        };
        check(" 9.9.9.9 ", Some("9.9.9.9"));
        check("9.9.9.9:1234", Some("9.9.9.9"));
        check("2001:db8::5", Some("2001:db8::5"));
        check("[2001:db8::5]", Some("2001:db8::5"));
        check("[2001:db8::5]:99", Some("2001:db8::5"));
        for none in ["", "unknown", "_hidden", "9.9.9.9:", "9.9.9.9:x", "[9.9.9.9]", "[2001:db8::5", "9.9.9"] {
            check(none, None);
        }
    }
}
