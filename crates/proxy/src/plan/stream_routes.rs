//! The stream routes of a Plan: which of them takes a connection, and what its connections hold of it.
//!
//! They are searched one after the other, in the order in which they match: a connection is looked up once, and there are few.

use super::PlanUpstreams;
use super::routes::Lease;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use stillgate_config::{NodeProtocol, StreamRoute};

/// All stream routes.
#[derive(Debug, Default)]
pub(crate) struct StreamRoutes {
    /// The routes as configured.
    configured: Vec<Arc<StreamRoute>>,
    /// Routes that take TCP, and UDP, in the order of the search. A route whose upstream names neither takes both.
    tcp: Vec<PlanStreamRoute>,
    udp: Vec<PlanStreamRoute>,
}

/// A stream route.
#[derive(Debug, Clone)]
pub(crate) struct PlanStreamRoute {
    pub(crate) route: Arc<StreamRoute>,
    /// The slot of its upstream.
    upstream: u32,
    /// The protocol of its upstream; `None`: it is unavailable.
    protocol: Option<NodeProtocol>,
    /// What its connections hold of it; `None`: they do not care what becomes of it.
    pub(crate) lease: Option<Arc<Lease>>,
}

/// Properties of a connection that a route may match.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamProperties<'a> {
    pub(crate) client: IpAddr,
    /// The address that it connected to.
    pub(crate) local: SocketAddr,
    /// In lower case.
    pub(crate) server_name: Option<&'a str>,
}

impl StreamRoutes {
    /// Compiles the stream routes of a configuration; also returns the leases of those that are gone or have changed. `upstreams`
    /// are those of the same Plan.
    pub(super) fn new(
        configured: &[Arc<StreamRoute>],
        upstreams: &PlanUpstreams,
        previous: Option<&Arc<StreamRoutes>>,
    ) -> (Arc<StreamRoutes>, Vec<Arc<Lease>>) {
        let nothing = Arc::<StreamRoutes>::default();
        let previous = previous.unwrap_or(&nothing);
        let is_same = |(a, b): (&Arc<StreamRoute>, &Arc<StreamRoute>)| Arc::ptr_eq(a, b);
        let protocol_of = |slot: usize| upstreams.get(slot).map(|upstream| upstream.definition.protocol);
        if previous.configured.len() == configured.len()
            && previous.configured.iter().zip(configured).all(is_same)
            // A shared upstream may have changed without its routes.
            && previous.iter().all(|of| of.protocol == protocol_of(of.upstream()))
        {
            return (previous.clone(), Vec::new());
        }
        let before: HashMap<&str, &PlanStreamRoute> =
            previous.iter().map(|before| (before.route.id.as_str(), before)).collect();
        let mut routes = StreamRoutes { configured: configured.to_vec(), ..StreamRoutes::default() };
        for route in configured {
            let before = before.get(route.id.as_str());
            let is_same = || before.is_some_and(|before| before.route == *route);
            let lease = Lease::of(route.on_change, before.and_then(|before| before.lease.as_ref()), is_same);
            let upstream = upstreams.slot_of(&route.target);
            let protocol = protocol_of(upstream as usize);
            let planned = PlanStreamRoute { route: route.clone(), upstream, protocol, lease };
            match protocol {
                Some(NodeProtocol::Udp) => routes.udp.push(planned),
                Some(NodeProtocol::Tcp) => routes.tcp.push(planned),
                // If it is unavailable, matching sessions must not go to the next route.
                Some(NodeProtocol::Http | NodeProtocol::Plain) | None => {
                    routes.udp.push(planned.clone());
                    routes.tcp.push(planned);
                }
            }
        }
        // The sort is stable: equals stay in the order of the file.
        let rank = |route: &StreamRoute| (route.is_sni_unread, route.sni.as_ref().map(|sni| sni.precedence()));
        routes.tcp.sort_by_key(|of| std::cmp::Reverse(rank(&of.route)));
        // Datagrams first go to routes whose upstream names UDP, so that a route for all TCP takes none of them away.
        routes.udp.sort_by_key(|of| matches!(of.protocol, Some(NodeProtocol::Http | NodeProtocol::Plain)));
        let kept: HashSet<*const Lease> = routes.iter().filter_map(|of| of.lease.as_ref()).map(Arc::as_ptr).collect();
        let leases = previous.iter().filter_map(|of| of.lease.as_ref());
        let revoked = leases.filter(|lease| !kept.contains(&Arc::as_ptr(lease))).cloned().collect();
        (Arc::new(routes), revoked)
    }

    /// Finds the route that takes a connection, or datagrams.
    pub(crate) fn find(&self, protocol: NodeProtocol, asked: &StreamProperties<'_>) -> Option<&PlanStreamRoute> {
        let routes = if protocol == NodeProtocol::Udp { &self.udp } else { &self.tcp };
        routes.iter().find(|of| takes(&of.route, asked))
    }

    /// Iterates over each route once.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &PlanStreamRoute> {
        self.tcp.iter().chain(self.udp.iter().filter(|of| of.protocol == Some(NodeProtocol::Udp)))
    }
}

impl PlanStreamRoute {
    /// The slot of its upstream; if the route is unavailable, a slot that no Plan has.
    pub(crate) fn upstream(&self) -> usize {
        self.upstream as usize
    }
}

fn takes(route: &StreamRoute, asked: &StreamProperties<'_>) -> bool {
    let local = asked.local.ip().to_canonical();
    route.server_port.is_none_or(|port| port == asked.local.port())
        && route.remote_addr.is_none_or(|net| net.contains(&asked.client.to_canonical()))
        && route.server_addr.is_none_or(|net| net.contains(&local))
        && route.sni.as_ref().is_none_or(|sni| asked.server_name.is_some_and(|name| sni.matches(name.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_config::Config;

    fn config(routes: &str) -> Config {
        let text = format!(
            "gateway: {{stream_proxy: {{tcp: [{{address: \"0.0.0.0:1\", tls_passthrough: true}}]}}}}\n\
             upstreams:\n- {{id: u, scheme: tcp, nodes: {{\"10.0.0.1:81\": 1}}}}\n\
             - {{id: v, scheme: tcp, nodes: {{\"10.0.0.1:82\": 1}}}}\n\
             - {{id: d, scheme: udp, nodes: {{\"10.0.0.1:53\": 1}}}}\nstream_routes: [{routes}]\n"
        );
        stillgate_config::load(text, &|_| None).unwrap_or_else(|errors| panic!("{errors}")).config
    }

    fn routes(text: &str) -> Arc<StreamRoutes> {
        build(&config(text), None).0
    }

    fn build(config: &Config, previous: Option<&Arc<StreamRoutes>>) -> (Arc<StreamRoutes>, Vec<Arc<Lease>>) {
        let upstreams = PlanUpstreams::new(config, &HashMap::new(), None, None);
        StreamRoutes::new(&config.stream_routes, &upstreams, previous)
    }

    #[test]
    fn the_most_exact_name_comes_first_then_the_order_of_the_file() {
        let routes = routes(
            "{id: any, upstream_id: u}, {id: wide, sni: '*.test', upstream_id: u}, \
             {id: near, sni: '*.a.test', upstream_id: u}, {id: exact, sni: b.a.test, server_port: 1, upstream_id: u}, \
             {id: again, sni: b.a.test, upstream_id: u}, {id: udp, upstream_id: d}",
        );
        let check = |name: Option<&str>, port: u16, expected: &str| {
            let local = SocketAddr::from(([10, 0, 0, 9], port));
            let asked = StreamProperties { client: [10, 0, 0, 1].into(), local, server_name: name };
            let found = routes.find(NodeProtocol::Tcp, &asked).map(|found| found.route.id.as_str());
            assert_eq!(found, Some(expected), "{name:?} {port}");
            assert_eq!(routes.find(NodeProtocol::Udp, &asked).unwrap().route.id, "udp");
        };
        check(Some("b.a.test"), 1, "exact");
        check(Some("b.a.test"), 2, "again");
        check(Some("c.a.test"), 1, "near");
        check(Some("d.c.a.test"), 1, "near");
        check(Some("a.test"), 1, "wide");
        check(Some("test"), 1, "any");
        check(Some("other"), 1, "any");
        check(None, 1, "any");
    }

    #[test]
    fn a_refusal_whose_name_could_not_be_read_comes_first() {
        let mut config = config(
            "{id: exact, sni: b.a.test, upstream_id: u}, {id: refused, server_port: 1, upstream_id: u}, \
             {id: any, upstream_id: u}",
        );
        let refused = Arc::make_mut(&mut config.stream_routes[1]);
        refused.is_sni_unread = true;
        refused.target = stillgate_config::Target::Unavailable("it cannot be read".into());
        let (routes, _) = build(&config, None);
        for (port, name, expected) in
            [(1, Some("b.a.test"), "refused"), (1, None, "refused"), (2, Some("b.a.test"), "exact"), (2, None, "any")]
        {
            let local = SocketAddr::from(([10, 0, 0, 9], port));
            let asked = StreamProperties { client: [10, 0, 0, 1].into(), local, server_name: name };
            let found = routes.find(NodeProtocol::Tcp, &asked).map(|found| found.route.id.as_str());
            assert_eq!(found, Some(expected), "{port} {name:?}");
        }
    }

    #[test]
    fn addresses_and_ports_must_hold() {
        let routes = routes(
            "{id: port, server_port: 1, upstream_id: u}, {id: address, server_addr: 10.0.0.0/24, upstream_id: u}, \
             {id: client, remote_addr: '10.1.0.0/16', upstream_id: u}, {id: six, remote_addr: '::1', upstream_id: u}",
        );
        let check = |client: &str, local: &str, expected: Option<&str>| {
            let asked =
                StreamProperties { client: client.parse().unwrap(), local: local.parse().unwrap(), server_name: None };
            let found = routes.find(NodeProtocol::Tcp, &asked).map(|found| found.route.id.as_str());
            assert_eq!(found, expected, "{client} {local}");
            assert!(routes.find(NodeProtocol::Udp, &asked).is_none());
        };
        check("192.0.2.1", "192.0.2.2:1", Some("port"));
        check("192.0.2.1", "10.0.0.7:2", Some("address"));
        check("192.0.2.1", "[::ffff:10.0.0.7]:2", Some("address"));
        check("10.1.2.3", "192.0.2.2:2", Some("client"));
        check("::ffff:10.1.2.3", "192.0.2.2:2", Some("client"));
        check("::1", "[::1]:2", Some("six"));
        check("10.2.0.1", "10.0.1.7:2", None);
    }

    #[test]
    fn a_route_that_names_neither_takes_both_after_those_that_name_udp() {
        let text = |scheme: &str| {
            format!(
                "gateway: {{stream_proxy: {{tcp: [{{address: \"0.0.0.0:1\"}}], udp: [{{address: \"0.0.0.0:1\"}}]}}}}\n\
                 upstreams:\n- {{id: u, scheme: tcp, nodes: {{\"10.0.0.1:81\": 1}}}}\n- {{id: p, {scheme} nodes: {{\"10.0.0.1:82\": 1}}}}\n\
                 - {{id: d, scheme: udp, nodes: {{\"10.0.0.1:53\": 1}}}}\n\
                 stream_routes: [{{id: any, upstream_id: p}}, {{id: tcp, upstream_id: u}}, \
                 {{id: udp, server_port: 1, upstream_id: d}}]\n"
            )
        };
        let load = |scheme| stillgate_config::load(text(scheme), &|_| None).unwrap_or_else(|errors| panic!("{errors}"));
        let found = |routes: &StreamRoutes, protocol, port| {
            let local = SocketAddr::from(([10, 0, 0, 9], port));
            let asked = StreamProperties { client: [10, 0, 0, 1].into(), local, server_name: None };
            routes.find(protocol, &asked).map(|found| found.route.id.clone())
        };
        let plain = load("").config;
        let (routes, _) = build(&plain, None);
        assert_eq!(found(&routes, NodeProtocol::Tcp, 1).as_deref(), Some("any"));
        assert_eq!(found(&routes, NodeProtocol::Udp, 1).as_deref(), Some("udp"));
        assert_eq!(found(&routes, NodeProtocol::Udp, 2).as_deref(), Some("any"));
        let ids: Vec<&str> = routes.iter().map(|of| of.route.id.as_str()).collect();
        assert_eq!(ids, ["any", "tcp", "udp"], "each of them once");
        // The upstream changes, and its route does not.
        let mut named = load("scheme: udp,").config;
        named.stream_routes.clone_from(&plain.stream_routes);
        let (routes, _) = build(&named, Some(&routes));
        assert_eq!(found(&routes, NodeProtocol::Tcp, 1).as_deref(), Some("tcp"));
        assert_eq!(found(&routes, NodeProtocol::Udp, 1).as_deref(), Some("any"));
    }

    #[test]
    fn a_lease_is_revoked_by_a_change_of_its_route_alone() {
        const R: &str = "{id: r, upstream_id: u, on_change: close}";
        const OWN: &str = "{id: r, on_change: drain, upstream: {nodes: {'10.0.0.1:81': 1}}}";
        const OTHER: &str = "{id: o, upstream: {nodes: {'10.0.0.1:90': 1}}}, ";
        let check = |old: &str, new: &str, expected: bool| {
            let (first, _) = build(&config(old), None);
            let (_, revoked) = build(&config(new), Some(&first));
            assert_eq!(revoked.len(), usize::from(expected), "{old}\n{new}");
        };
        check(R, R, false);
        check(R, &format!("{OTHER}{R}"), false);
        check(&format!("{OTHER}{R}"), R, false);
        check(OWN, &format!("{OTHER}{OWN}"), false);
        check(R, "", true);
        check(R, &R.replace("id: u", "id: v"), true);
        check(R, &R.replace("close", "keep"), true);
        check(R, &R.replace("on_change", "server_port: 1, on_change"), true);
        check(R, &R.replace("on_change", "timeout: {idle: 1s}, on_change"), true);
        check(OWN, &OWN.replace("81", "83"), true);
        check(&R.replace("close", "keep"), "", false);
        let same = config(R);
        let (first, _) = build(&same, None);
        assert!(Arc::ptr_eq(&first, &build(&same, Some(&first)).0));
    }
}
