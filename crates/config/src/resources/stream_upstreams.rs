//! Checks the combination of an upstream's keys if its nodes do not speak HTTP.

use crate::keys::resources::{Scheme, UpstreamKeys};
use crate::model::{Balance, NodeProtocol};
use crate::values::{CheckType, ProxyProtocol};
use stillgate_plugin::TemplatePart;
use stillgate_route::Variable;
use stillgate_schema::kind::At;
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink};

impl Scheme {
    pub(crate) fn protocol(self) -> NodeProtocol {
        match self {
            Scheme::Http | Scheme::Https | Scheme::Grpc | Scheme::Grpcs => NodeProtocol::Http,
            Scheme::Tcp | Scheme::Tls => NodeProtocol::Tcp,
            Scheme::Udp => NodeProtocol::Udp,
            Scheme::Plain => NodeProtocol::Plain,
        }
    }
}

/// Reports keys that cannot be combined with the scheme.
pub(crate) fn check_stream_keys(keys: &mut UpstreamKeys, balance: &Balance, path: &Path<'_>, sink: &mut Sink) {
    let protocol = keys.scheme.value.protocol();
    check_proxy_protocol(keys.proxy_protocol.as_ref(), protocol, path, sink);
    if protocol == NodeProtocol::Http {
        return;
    }
    if keys.http2.value {
        let fault = Fault::new("HTTP/2 is not spoken with `scheme: tcp`, `tls` or `udp`").hint("remove the key");
        sink.error(keys.http2.at, &path.key("http2"), fault);
    }
    let host = keys.upstream_host.as_ref().map(|host| host.at);
    let pass_host = Some(keys.pass_host.at).filter(|at| *at != Position::NOWHERE);
    for (key, at) in [("pass_host", pass_host), ("upstream_host", host)] {
        if let Some(at) = at {
            let fault = Fault::new("has no effect where no HTTP is spoken").hint("remove it");
            sink.warning(at, &path.key(key), fault);
        }
    }
    if keys.limits.value.queue > 0 {
        let limits = path.key("limits");
        let fault = Fault::new("has no effect where no HTTP is spoken: no request waits").hint("remove it");
        sink.warning(keys.limits.at, &limits.key("queue"), fault);
    }
    if let Balance::ConsistentHash(hashed) = balance
        && !hashed.parts().iter().filter_map(TemplatePart::variable).all(is_of_connection)
        && let Some(key) = &keys.key
    {
        let fault = Fault::new("is known of requests only");
        let fault = fault.hint("hash remote_addr, remote_port, server_addr, server_port or ssl_server_name");
        sink.error(key.at, &path.key("key"), fault);
    }
    check_checks(keys, protocol, path, sink);
    // Its value does not matter, since a stream has no status that could be counted; its default is for HTTP.
    if let Some(passive) = keys.checks.as_mut().and_then(|checks| checks.value.passive.as_mut()) {
        passive.r#type = CheckType::Tcp;
    }
}

fn check_proxy_protocol(
    written: Option<&At<Option<ProxyProtocol>>>,
    protocol: NodeProtocol,
    path: &Path<'_>,
    sink: &mut Sink,
) {
    let Some(At { at, value: Some(_) }) = written else { return };
    let fault = match protocol {
        // Datagrams do not use it.
        NodeProtocol::Tcp | NodeProtocol::Plain => return,
        NodeProtocol::Http => Fault::new(
            "a connection kept to a node of HTTP carries requests of many clients, and a header at its beginning names one",
        )
        .hint("remove the key: such nodes learn the client's address from X-Forwarded-For"),
        NodeProtocol::Udp => Fault::new("the header is for TCP; it is not written to UDP nodes").hint("remove the key"),
    };
    sink.error(*at, &path.key("proxy_protocol"), fault);
}

/// Active checks over HTTP, and those of UDP nodes, need a port that answers them.
fn check_checks(keys: &UpstreamKeys, protocol: NodeProtocol, path: &Path<'_>, sink: &mut Sink) {
    let Some(At { at, value: checks }) = &keys.checks else { return };
    let Some(active) = checks.active.as_ref().filter(|active| active.port.is_none()) else { return };
    let path = path.key("checks");
    let path = path.key("active");
    if protocol == NodeProtocol::Udp {
        let fault = Fault::new("UDP nodes are checked over TCP, at a port of their own");
        sink.error(*at, &path.key("port"), fault.hint("name the port that answers checks"));
    } else if active.r#type != CheckType::Tcp {
        let fault = Fault::new("checks speak HTTP, and this upstream's nodes something else");
        sink.error(*at, &path.key("type"), fault.hint("write `type: tcp`, or name the `port` that speaks HTTP"));
    }
}

/// Whether a connection without a request has the variable.
fn is_of_connection(variable: &Variable) -> bool {
    matches!(
        variable,
        Variable::RemoteAddr
            | Variable::RemotePort
            | Variable::PeerAddr
            | Variable::ServerAddr
            | Variable::ServerPort
            | Variable::ServerProtocol
            | Variable::SslServerName
            | Variable::Ssl(_)
    )
}
