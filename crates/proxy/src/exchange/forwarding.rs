//! Header fields on their way through: which ones end here, which ones describe the client to the node, and which ones describe us
//! to the client.

use super::body_pipe::BrokenBody;
use super::sender::BodyDelimiting;
use super::target::host_for;
use super::{Exchange, RequestContext, chain};
use crate::connection::client::ClientConnection;
use crate::plan::Settings;
use crate::plan::snapshot::WorkerUpstream;
use crate::worker::Worker;
use ipnet::IpNet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use stillgate_config::PassHost;
use stillgate_plugin_api::body::UNDONE_CODINGS;
use stillgate_plugin_api::facts::{append_address, forwarded_port};
use stillgate_plugin_api::record::NodeTries;
use stillgate_wire::{
    Edits, FieldName, FieldValue, Framing, Method, Name, RequestHead, TargetForm, Version, remove_lines,
    upgrade_protocols, write_request, write_upgrade_lines,
};

/// Another protocol is required (RFC 9110 section 15.5.22).
const STATUS_UPGRADE_REQUIRED: u16 = 426;

const HOST: FieldName<'_> = FieldName::constant("Host");
const ACCEPT_ENCODING: FieldName<'_> = FieldName::constant("Accept-Encoding");
/// Fields that ask for a part of a body: the standard's, that of Apache where there is no `Range`, and Azure's, which goes before it.
const PARTS: [FieldName<'_>; 4] = [
    FieldName::constant("Range"),
    FieldName::constant("If-Range"),
    FieldName::constant("Request-Range"),
    FieldName::constant("x-ms-range"),
];
const TE: FieldName<'_> = FieldName::constant("TE");
const CONNECTION: FieldName<'_> = FieldName::constant("Connection");
const UPGRADE: FieldName<'_> = FieldName::constant("Upgrade");
const SERVER: FieldName<'_> = FieldName::constant("Server");
const DATE: FieldName<'_> = FieldName::constant("Date");
/// APISIX's field, which tells a node's error from the gateway's.
const X_APISIX_UPSTREAM_STATUS: FieldName<'_> = FieldName::constant("X-APISIX-Upstream-Status");
const X_REAL_IP: FieldName<'_> = FieldName::constant("X-Real-IP");
const X_FORWARDED_FOR: FieldName<'_> = FieldName::constant("X-Forwarded-For");
const X_FORWARDED_HOST: FieldName<'_> = FieldName::constant("X-Forwarded-Host");
const X_FORWARDED_PORT: FieldName<'_> = FieldName::constant("X-Forwarded-Port");
const X_FORWARDED_PROTO: FieldName<'_> = FieldName::constant("X-Forwarded-Proto");
/// Fields by which the gateway describes the client to a node, where plugins may set them.
const TOLD_OF_CLIENT: [FieldName<'_>; 5] =
    [X_REAL_IP, X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PORT, X_FORWARDED_PROTO];
/// Has no version, which would help an attacker to choose an exploit.
const SERVER_LINE: &str = "Server: stillgate\r\n";

/// The lines added to every request of a client that is not a trusted proxy, except those that depend on the requested host.
pub(crate) fn untrusted_lines(peer: SocketAddr, proto: &str) -> Box<[u8]> {
    let ip = peer.ip().to_canonical();
    format!("X-Real-IP: {ip}\r\nX-Forwarded-For: {ip}\r\nX-Forwarded-Proto: {proto}\r\n").into_bytes().into()
}

/// Whether the connection's peer may forward for others.
fn is_trusted(ip: IpAddr, trusted: &[IpNet]) -> bool {
    !trusted.is_empty() && trusted.iter().any(|range| range.contains(&ip))
}

/// Address of the client: the peer, or the address that a trusted peer forwards for. The right-most address of `X-Forwarded-For`
/// that is not itself a trusted proxy counts, as everything left of it may be made up. `X-Real-IP` counts where that field is
/// absent: if both are present, it may be the client's own, passed on by a proxy that only knows the other.
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

/// An address as proxies write it: alone, with a port, or IPv6 in brackets.
fn address_of(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text.trim_ascii()).ok()?;
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    let in_brackets = || text.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    text.parse().ok().or_else(with_port).or_else(in_brackets)
}

/// Makes the edits of a request that apply to every node it may be sent to, after those of plugins.
#[inline]
pub(super) fn edit_request(serving: &mut RequestContext<'_>, pass_host: &PassHost) {
    let exchange = &mut *serving.exchange;
    exchange.method_sent = exchange.request.method;
    exchange.framing_sent = exchange.request.framing;
    exchange.needs_whole = false;
    let has_plugins = exchange.chains.is_on();
    if has_plugins {
        read_plugin_edits(serving);
        if chain::filters_responses(serving) {
            serving.exchange.needs_whole = true;
            ask_for_whole_body(serving.exchange);
        }
    }
    edit_fields(serving, pass_host);
    if has_plugins {
        agree_with_plugins(serving);
    }
    let exchange = &mut *serving.exchange;
    if exchange.framing_sent == Framing::Chunked {
        exchange.request_edits.fields.appended.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
}

fn edit_fields(serving: &mut RequestContext<'_>, pass_host: &PassHost) {
    let settings = serving.settings();
    let RequestContext { client, exchange, .. } = serving;
    let head = exchange.from_client.head();
    let has_own_host = exchange.request_edits.host().is_some();
    let has_body = !matches!(exchange.request.framing, Framing::None | Framing::Length(0));
    let drops_trailers = exchange.drops_trailers();
    let edits = &mut exchange.request_edits.fields;
    edits.removed = edits.removed.with(exchange.request.hop_by_hop);
    let trusted = is_trusted(client.peer.ip().to_canonical(), &settings.trusted_proxies);
    let replaces_host = has_own_host || *pass_host != PassHost::Pass || exchange.request.form == TargetForm::Absolute;
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
            // The client's address has been determined, and every node gets the same.
            Name::XRealIp => edits.removed.insert(index),
            Name::XForwardedProto | Name::XForwardedHost | Name::XForwardedPort | Name::Forwarded if !trusted => {
                edits.removed.insert(index);
            }
            // RFC 9110 section 10.1.1: from HTTP/1.0 it has no meaning, and a request without a body must not have it.
            Name::Expect if exchange.request.version == Version::Http10 || !has_body => edits.removed.insert(index),
            Name::Trailer if drops_trailers => edits.removed.insert(index),
            _ => {}
        }
    }
    edits.filter_trailer_names(&exchange.request.fields, head, exchange.request.drops_underscores);
    exchange.sets_host = replaces_host || !has_host;
    if trusted {
        trusted_lines(edits, head, &exchange.request, client, client.address);
    } else if client.is_named {
        named_lines(edits, client);
        add_forwarded_port(edits, head, &exchange.request, client);
        add_forwarded_host(edits, head, &exchange.request);
    } else {
        edits.appended.extend_from_slice(&client.forwarded);
        add_forwarded_port(edits, head, &exchange.request, client);
        add_forwarded_host(edits, head, &exchange.request);
    }
    if exchange.passes_upgrade {
        write_upgrade_lines(&mut edits.appended, upgrade_protocols(&exchange.request.fields, head));
    }
}

/// Chooses method, framing and `Host` according to what plugins have changed.
fn read_plugin_edits(serving: &mut RequestContext<'_>) {
    let Exchange { request, request_edits, request_body, method_sent, framing_sent, value, chains, .. } =
        &mut *serving.exchange;
    chains.note_request(&request_edits.fields);
    request_body.start_capture(|| serving.worker.plugins.held.begin(serving.client.address));
    if let Some(method) = request_edits.method() {
        *method_sent = Method::from_bytes(method);
    }
    if !request_body.is_empty() {
        let length = request_body.changes.length();
        if length.is_none() && request.framing == Framing::None {
            // There is nothing to change.
            request_body.clear();
        } else {
            *framing_sent = length.map_or(Framing::Chunked, Framing::Length);
            request_body.start(true, serving.worker.plugins.held.begin(serving.client.address));
            for (index, field) in request.fields.iter().enumerate() {
                if field.id == Name::ContentLength {
                    request_edits.fields.removed.insert(index);
                }
            }
        }
    }
    // By name, `Host` is set as by its own function: there is one line. A value that is not a host stays out, and nothing of it is
    // sent.
    if request_edits.fields.may_have_added(&[HOST]) && take_last(&mut request_edits.fields, HOST, value) {
        let _ = request_edits.set_host(value);
    }
}

/// A plugin needs the response's whole body, as what it looks for may cross the boundaries of a range, and in a coding that it can
/// decode.
#[cold]
fn ask_for_whole_body(exchange: &mut Exchange) {
    let Exchange { request, request_edits, from_client, value, .. } = exchange;
    let (fields, head, edits) = (&request.fields, from_client.head(), &mut request_edits.fields);
    PARTS.into_iter().for_each(|name| edits.remove(fields, head, name));
    let mut leaves_out = false;
    value.clear();
    for item in edits.values(fields, head, ACCEPT_ENCODING).flat_map(|value| value.split(|byte| *byte == b',')) {
        let item = item.trim_ascii();
        let coding = item.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let is_known = |known: &&str| coding.eq_ignore_ascii_case(known.as_bytes());
        if UNDONE_CODINGS.iter().chain(&["identity"]).any(is_known) {
            if !value.is_empty() {
                value.extend_from_slice(b", ");
            }
            value.extend_from_slice(item);
        } else {
            leaves_out = true;
        }
    }
    if leaves_out {
        let accepted = if value.is_empty() { b"identity" } else { &value[..] };
        edits.set(fields, head, ACCEPT_ENCODING, FieldValue::of_head(accepted));
    }
}

/// Takes the lines of a name out of those that plugins have added; the value of the last one is left in `value`. `false`: there is
/// none.
fn take_last(edits: &mut Edits, name: FieldName<'_>, value: &mut Vec<u8>) -> bool {
    let Some(last) = edits.added(name).last() else { return false };
    value.clear();
    value.extend_from_slice(last);
    edits.remove_added(name);
    true
}

/// Brings our lines and those of plugins together. Plugins may set what describes the client, except its address: the peer is
/// appended to `X-Forwarded-For` in any case.
fn agree_with_plugins(serving: &mut RequestContext<'_>) {
    let Exchange { request_edits, request_body, framing_sent, sets_host, value, .. } = &mut *serving.exchange;
    if let Some(host) = request_edits.host() {
        // The value is the same for every node.
        value.clear();
        value.extend_from_slice(host);
        request_edits.fields.add_gateway_line(HOST, FieldValue::of_head(value));
        *sets_host = false;
    }
    let edits = &mut request_edits.fields;
    if edits.may_have_changed(&TOLD_OF_CLIENT) {
        for name in [X_FORWARDED_PROTO, X_FORWARDED_HOST, X_FORWARDED_PORT] {
            // A plugin has set another value, or removed the field.
            if edits.is_withdrawn(name) || edits.added(name).next().is_some() {
                remove_lines(&mut edits.appended, name);
            }
        }
        edits.remove_added(X_REAL_IP);
        if take_last(edits, X_FORWARDED_FOR, value) {
            remove_lines(&mut edits.appended, X_FORWARDED_FOR);
            edits.add_gateway_line(X_FORWARDED_FOR, FieldValue::of_head(value));
            edits.appended.truncate(edits.appended.len() - b"\r\n".len());
            edits.appended.extend_from_slice(b", ");
            write_address_line_end(&mut edits.appended, speaker(serving.client));
        }
    }
    if let Framing::Length(length) = *framing_sent
        && !request_body.is_empty()
    {
        edits.appended.extend_from_slice(b"Content-Length: ");
        write_line_end(&mut edits.appended, length);
    }
}

/// Serialises the request for this node, with what has arrived of its body.
pub(super) fn stage_request(
    serving: &mut RequestContext<'_>,
    upstream: &WorkerUpstream,
    index: usize,
) -> Result<(), BrokenBody> {
    let RequestContext { worker, exchange, .. } = serving;
    let buffers = &worker.buffers;
    exchange.to_node.reset(buffers);
    exchange.from_node.release(buffers);
    exchange.from_node.begin();
    exchange.response.reset();
    exchange.bad_response = None;
    exchange.request_pipe().rewind();
    if exchange.framing_sent == Framing::Chunked {
        exchange.to_node.coding = BodyDelimiting::Chunked;
    }
    let definition = &upstream.planned.definition;
    let appended = exchange.request_edits.fields.appended.len();
    if exchange.sets_host {
        let state = upstream.state.borrow();
        // Taken out while the exchange lends its head.
        let mut edits = std::mem::take(&mut exchange.request_edits);
        let host = host_for(exchange, &definition.pass_host, &state.endpoint(index).host);
        edits.fields.add_gateway_line(HOST, FieldValue::of_head(host));
        exchange.request_edits = edits;
    }
    // A node of HTTP/2 may get it; one of HTTP/1.1 would need it in `Connection`, too.
    let te = exchange.request.fields.get(exchange.from_client.head(), Name::Te);
    if definition.http2 && te.is_some_and(|te| te.eq_ignore_ascii_case(b"trailers")) {
        exchange.request_edits.fields.add_gateway_line(TE, FieldValue::constant("trailers"));
    }
    let out = exchange.to_node.head(buffers);
    write_request(out, exchange.from_client.head(), &exchange.request, &exchange.request_edits);
    exchange.request_edits.fields.appended.truncate(appended);
    exchange.request_pipe().stage(worker)
}

/// What a trusted proxy said is kept, its own address is appended, and what it left out is filled in; `X-Real-IP` is the address
/// that it forwarded for.
fn trusted_lines(edits: &mut Edits, head: &[u8], request: &RequestHead, client: &ClientConnection, client_ip: IpAddr) {
    let missing = |id: Name| request.fields.get(head, id).is_none();
    edits.appended.extend_from_slice(b"X-Forwarded-For: ");
    let is_kept = !edits.is_withdrawn(X_FORWARDED_FOR);
    for field in request.fields.iter().filter(|field| is_kept && field.id == Name::XForwardedFor) {
        edits.appended.extend_from_slice(field.value.of(head));
        edits.appended.extend_from_slice(b", ");
    }
    write_address_line_end(&mut edits.appended, speaker(client));
    edits.appended.extend_from_slice(b"X-Real-IP: ");
    write_address_line_end(&mut edits.appended, client_ip);
    if missing(Name::XForwardedProto) {
        edits.add_gateway_line(X_FORWARDED_PROTO, FieldValue::of_head(client.scheme().as_bytes()));
    }
    if missing(Name::XForwardedPort) {
        add_forwarded_port(edits, head, request, client);
    }
    if missing(Name::XForwardedHost) {
        add_forwarded_host(edits, head, request);
    }
}

/// Address appended to `X-Forwarded-For`: the peer's, or the one that a plugin set.
fn speaker(client: &ClientConnection) -> IpAddr {
    if client.is_named { client.address } else { client.peer.ip().to_canonical() }
}

/// [`untrusted_lines`] for a client that a plugin names.
#[cold]
fn named_lines(edits: &mut Edits, client: &ClientConnection) {
    for name in ["X-Real-IP: ", "X-Forwarded-For: "] {
        edits.appended.extend_from_slice(name.as_bytes());
        write_address_line_end(&mut edits.appended, client.address);
    }
    edits.add_gateway_line(X_FORWARDED_PROTO, FieldValue::of_head(client.scheme().as_bytes()));
}

fn write_line_end(out: &mut Vec<u8>, value: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn write_address_line_end(out: &mut Vec<u8>, address: IpAddr) {
    append_address(out, address);
    out.extend_from_slice(b"\r\n");
}

fn add_forwarded_port(edits: &mut Edits, head: &[u8], request: &RequestHead, client: &ClientConnection) {
    edits.appended.extend_from_slice(b"X-Forwarded-Port: ");
    write_line_end(&mut edits.appended, forwarded_port(request.authority.of(head), client.local.port()));
}

fn add_forwarded_host(edits: &mut Edits, head: &[u8], request: &RequestHead) {
    let authority = request.authority.of(head);
    if !authority.is_empty() {
        edits.add_gateway_line(X_FORWARDED_HOST, FieldValue::of_head(authority));
    }
}

/// Makes the edits of an interim response.
pub(crate) fn edit_interim(exchange: &mut Exchange, settings: &Settings) {
    edit_response(exchange, settings);
    for (index, field) in exchange.response.fields.iter().enumerate() {
        if field.id == Name::ContentLength {
            exchange.response_edits.fields.removed.insert(index);
        }
    }
}

/// Begins the edits of a response.
#[inline]
pub(crate) fn edit_response(exchange: &mut Exchange, settings: &Settings) {
    exchange.response_edits.clear();
    let edits = &mut exchange.response_edits.fields;
    edits.removed = exchange.response.hop_by_hop;
    let forbids_length = exchange.response.status == 204;
    for (index, field) in exchange.response.fields.iter().enumerate() {
        match field.id {
            Name::Server if settings.server_header => edits.removed.insert(index),
            Name::ContentLength if forbids_length => edits.removed.insert(index),
            _ => {}
        }
    }
    if exchange.response.status >= 500 {
        show_node_statuses(exchange);
    }
}

#[cold]
fn show_node_statuses(exchange: &mut Exchange) {
    let Exchange { tries, response, response_edits, from_node, .. } = exchange;
    let statuses = node_statuses(tries, response.status);
    if let Ok(value) = FieldValue::new(statuses.as_bytes()) {
        response_edits.fields.set(&response.fields, from_node.head(), X_APISIX_UPSTREAM_STATUS, value);
    }
}

/// Begins the edits of an answer of the gateway's own. It shows the statuses of attempts if the last one failed.
pub(super) fn edit_answer(exchange: &mut Exchange) {
    exchange.response_edits.clear();
    let Some(last) = exchange.tries.last().map(|tried| tried.status).filter(|status| *status >= 500) else { return };
    let statuses = node_statuses(&exchange.tries, last);
    if let Ok(value) = FieldValue::new(statuses.as_bytes()) {
        exchange.response_edits.fields.add(X_APISIX_UPSTREAM_STATUS, value);
    }
}

/// The statuses of all attempts, with nginx's separators; `last` is that of the last one.
fn node_statuses(tries: &NodeTries, last: u16) -> String {
    let mut statuses = String::new();
    for tried in tries.shown().iter().rev().skip(1).rev() {
        statuses += &match tried.status {
            0 => "-, ".to_owned(),
            status => format!("{status}, "),
        };
    }
    statuses + &last.to_string()
}

/// Completes the edits of a response, after those of plugins; `keep_alive` and `chunked` are what the client's connection will do.
#[inline]
pub(super) fn end_response_edits(
    worker: &Worker,
    exchange: &mut Exchange,
    settings: &Settings,
    keep_alive: bool,
    chunked: bool,
) {
    let edits = &mut exchange.response_edits.fields;
    let mut lines =
        CommonLines::new(settings.server_header, !exchange.response.has_date, exchange.request.version, keep_alive);
    if exchange.chains.is_on() {
        lines = lines.without(edits);
    }
    if chunked {
        edits.appended.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    if exchange.response.status == STATUS_UPGRADE_REQUIRED && exchange.request.version == Version::Http11 {
        name_protocols(exchange);
    }
    lines.push(worker, &mut exchange.response_edits.fields.appended);
}

/// A 426 names the protocols to use (RFC 9110 section 15.5.22). A client of HTTP/2 does not get these lines.
#[cold]
fn name_protocols(exchange: &mut Exchange) {
    let Exchange { response, response_edits, from_node, .. } = exchange;
    let mut protocols = response.fields.iter().filter(|field| field.id == Name::Upgrade).peekable();
    if protocols.peek().is_some() {
        response_edits.fields.add_gateway_line(CONNECTION, FieldValue::constant("Upgrade"));
    }
    for protocol in protocols {
        response_edits.fields.add_gateway_line(UPGRADE, FieldValue::of_head(protocol.value.of(from_node.head())));
    }
}

/// `Server`, `Date` and `Connection` as required.
pub(super) struct CommonLines {
    server: bool,
    date: bool,
    client_version: Version,
    keep_alive: bool,
}

impl CommonLines {
    #[inline]
    pub(super) fn new(server: bool, date: bool, client_version: Version, keep_alive: bool) -> CommonLines {
        CommonLines { server, date, client_version, keep_alive }
    }

    /// Leaves out those that plugins have set or removed.
    pub(super) fn without(self, edits: &Edits) -> CommonLines {
        let is_set = |name| edits.added(name).next().is_some();
        // A message needs a date (RFC 9110 section 6.6.1); the server's name may be left out.
        let has_server = is_set(SERVER) || edits.is_withdrawn(SERVER);
        CommonLines { server: self.server && !has_server, date: self.date && !is_set(DATE), ..self }
    }

    #[inline]
    pub(super) fn push(&self, worker: &Worker, out: &mut Vec<u8>) {
        if self.server {
            out.extend_from_slice(SERVER_LINE.as_bytes());
        }
        if self.date {
            worker.clock.push_date_line(out);
        }
        match (self.client_version, self.keep_alive) {
            (Version::Http11, true) => {}
            (Version::Http10, true) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
            (_, false) => out.extend_from_slice(b"Connection: close\r\n"),
        }
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
