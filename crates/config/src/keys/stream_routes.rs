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
    /// Which connections of `gateway.stream_proxy` a stream route takes, and where they go. Among routes that take the same
    /// connection one with an exact `sni` comes first, then the longest `*.` one, then those without; then the order of the file.
    pub(crate) struct StreamRouteKeys {
        /// Unique among stream routes; the position in the list, from 1, where it is absent.
        id: At<String> = LocatedKind(ID) => optional;
    }
    shared name, desc, labels, times;
    {
        /// Address or network that the client must have.
        remote_addr: IpNet = NETWORK => optional;
        /// Address or network of ours that the connection must have come to; what a PROXY header says of that does not count.
        server_addr: IpNet = NETWORK => optional;
        /// Port of ours that it must have come to.
        server_port: u16 = int(1, 65535) => optional;
        /// The name that the client must ask for in its TLS handshake: `example.com`, or `*.example.com` for all below. Of listeners with `tls` or `tls_passthrough`.
        sni: At<HostPattern> = LocatedKind(SERVER_NAME) => optional;
        /// 1: enabled; 0: the route does not exist.
        status: bool = STATUS => default(true);
        /// Where connections go, written here; without `scheme` it takes TCP and UDP as they come. This, `upstream_id` or `service_id`.
        upstream: At<UpstreamKeys> = LocatedKind(map::<UpstreamKeys>()) => optional;
        /// Where connections go, by the id of one of `upstreams` whose `scheme` is `tcp`, `tls`, `udp` or `http`, which takes TCP and UDP as they come.
        upstream_id: At<String> = LocatedKind(ID) => optional;
        /// The service whose upstream holds where the route has none.
        service_id: At<String> = LocatedKind(ID) => optional;
        /// Overrides what the upstream and `gateway.stream_proxy` say. Not in APISIX.
        timeout: StreamTimeouts = map::<StreamTimeouts>() => nested;
        /// What becomes of the route's open connections and sessions when it is changed or removed, as for tunnels of routes: `keep`, `drain` or `close`. A UDP session whose node is in no upstream of stream routes any more ends with the client's next datagram in any case. Not in APISIX.
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
    if pattern.is_any() {
        return Ok(pattern);
    }
    parse_authority(text.strip_prefix("*.").unwrap_or(text)).map(|_| pattern)
});
