//! The keys of `stream_routes`, which say which connections go where.

use crate::keys::nodes::parse_authority;
use crate::keys::resources::UpstreamKeys;
use crate::keys::shared::{ID, ON_CHANGE, STATUS, resource};
use crate::values::OnChange;
use ipnet::IpNet;
use serde::Serialize;
use std::time::Duration;
use stillgate_route::HostPattern;
use stillgate_schema::kind::{At, LocatedKind, Text, int, text};
use stillgate_schema::matching::NETWORK;
use stillgate_schema::object;
use stillgate_schema::object::map;
use stillgate_schema::quantity::{DurationRange, span};
use stillgate_schema::text::diagnostic::Fault;

const DAY: Duration = Duration::from_secs(24 * 3600);
const BOUND: DurationRange = span(Duration::from_millis(1), DAY);
const IDLE: DurationRange = span(Duration::from_millis(1), Duration::from_secs(365 * 24 * 3600));

resource! {
    /// Which connections of `gateway.stream_proxy` a stream route matches, and where they go. If several match, an
    /// exact `sni` comes first, then the longest `*.`, then routes without `sni`; then the order in the file.
    pub(crate) struct StreamRouteKeys {
        /// Unique among stream routes. Default: the 1-based position in the list.
        id: At<String> = LocatedKind(ID) => optional;
    }
    shared name, desc, labels, times;
    {
        /// Client address or network to match.
        remote_addr: IpNet = NETWORK => optional;
        /// Local address or network to match; the destination address in a PROXY protocol header is ignored.
        server_addr: IpNet = NETWORK => optional;
        /// Local port to match.
        server_port: u16 = int(1, 65535) => optional;
        /// TLS server name (SNI) to match: `example.com`, or `*.example.com` for all subdomains. For listeners with
        /// `tls` or `tls_passthrough`.
        sni: At<HostPattern> = LocatedKind(SERVER_NAME) => optional;
        /// 1: enabled; 0: disabled, as if absent.
        status: bool = STATUS => default(true);
        /// Inline upstream; without `scheme`, it takes both TCP and UDP. Set this, `upstream_id` or `service_id`.
        upstream: At<UpstreamKeys> = LocatedKind(map::<UpstreamKeys>()) => optional;
        /// The id of an entry in `upstreams` whose `scheme` is `tcp`, `tls`, `udp` or `http`, which takes both TCP and
        /// UDP.
        upstream_id: At<String> = LocatedKind(ID) => optional;
        /// The service whose upstream applies if the route has none.
        service_id: At<String> = LocatedKind(ID) => optional;
        /// Overrides those of the upstream and `gateway.stream_proxy`. Not in APISIX.
        timeout: StreamTimeouts = map::<StreamTimeouts>() => nested;
        /// What happens to open connections and sessions when the route is changed or removed, as for tunnels of
        /// routes: `keep`, `drain` or `close`. A UDP session whose node is no longer in any upstream of stream routes
        /// always ends with the client's next datagram. Not in APISIX.
        on_change: OnChange = ON_CHANGE => default(OnChange::Keep);
        any_of {
            "nothing says where connections go": upstream | upstream_id | service_id;
        }
        unbuilt {
            plugins: "plugins (for ip-restriction write `remote_addr`) are";
            protocol: "protocols of xRPC are";
        }
    }
}

object! {
    /// Connection and session timeouts of a stream route.
    pub struct StreamTimeouts: Copy, Eq, Serialize {
        /// TCP connect, including the TLS handshake of `scheme: tls`. Default: the upstream's.
        connect: Duration = BOUND => optional;
        /// While data is pending, the node must read at least one byte within this time (there is no higher minimum as
        /// for HTTP requests). Default: the upstream's.
        send: Duration = BOUND => optional;
        /// Time without data in either direction. Default: `tcp_idle` or `udp_idle` of `gateway.stream_proxy`.
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
    if pattern.is_any() {
        return Ok(pattern);
    }
    parse_authority(text.strip_prefix("*.").unwrap_or(text)).map(|_| pattern)
});
