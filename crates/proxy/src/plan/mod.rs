//! The immutable snapshot that workers serve from, and the one pointer through which they get the next one.
//!
//! A Plan is built by the control thread from a validated configuration and the current addresses of its names. Parts that did not
//! change are shared with the previous Plan, so that a worker can see by pointer what it may keep. Its routes are in `routes`, what
//! its metrics have to know of a change in `series_changes`.
//!
//! The process has one table of limits. It is made for the first Plan with a limit, and kept from then on.

pub(crate) mod caching;
pub(crate) mod challenges;
pub(crate) mod metrics;
mod routes;
mod series_changes;
pub(crate) mod snapshot;
mod stream_routes;
mod upstreams;

use crate::basics::slow_request::SlowRequest;
use arc_swap::ArcSwap;
use caching::{CachePolicy, MatchCost};
use challenges::Challenges;
use ipnet::IpNet;
use metrics::MetricsPlan;
use routes::Routes;
pub(crate) use routes::{Lease, PlanRoute};
use serde::{Deserialize, Serialize};
pub use series_changes::{SeriesChanges, SeriesSubject};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use std::{fmt, io};
use stillgate_config::{Balance, Config, Gateway, RouteCacheMode, Upstream, UpstreamTimeouts};
use stillgate_limits::Limits;
use stillgate_plugin_api::metadata::MetadataTable;
use stillgate_plugin_api::{Chain, Consumers, Phase};
use stillgate_route::{CompileError, Matcher, RouteSpec};
use stillgate_tls::{ClientTls, Material, ServerTls};
use stillgate_upstream::Endpoint;
use stillgate_wire::HeadLimits;
pub(crate) use stream_routes::{PlanStreamRoute, StreamProperties, StreamRoutes};
use tokio::sync::{mpsc, watch};
use tracing::debug;
pub(crate) use upstreams::{PlanUpstream, PlanUpstreams};

/// Everything that a worker needs to serve.
#[derive(Debug)]
pub struct Plan {
    /// Generation of the configuration: counts the published ones.
    pub generation: u64,
    /// SHA-256 of the configuration file.
    pub digest: String,
    matcher: Arc<Matcher>,
    /// Counts the changes of the matcher: cached answers of one are useless for the next.
    pub(crate) matching: u64,
    pub(crate) caching: CachePolicy,
    /// Whether fields of the header determine routes.
    pub(crate) matches_headers: bool,
    match_cost: Option<MeasuredCost>,
    pub(crate) routes: Routes,
    /// Shared with the previous Plan if the configuration's stream routes did not change.
    pub(crate) stream_routes: Arc<StreamRoutes>,
    /// Shared with the previous Plan if no upstream changed.
    pub(crate) upstreams: Arc<PlanUpstreams>,
    /// Upstreams that have active checks.
    checked: Arc<[Arc<PlanUpstream>]>,
    /// Whether some upstream chooses nodes by their latency.
    pub(crate) uses_latency: bool,
    pub(crate) settings: Settings,
    /// Whether all times of a request are wanted: some plugin is called when a response is out, or slow requests are reported.
    pub(crate) wants_times: bool,
    /// The plugins of global rules; `None`: there are none.
    pub(crate) global: Option<Arc<Chain>>,
    pub(crate) consumers: Arc<Consumers>,
    /// The addresses of the listeners, as configured.
    listening: Vec<SocketAddr>,
    pub(crate) plugin_metadata: Arc<MetadataTable>,
    metrics: Option<Arc<MetricsPlan>>,
    /// TLS configuration of the listeners.
    pub(crate) tls: Option<Arc<ServerTls>>,
    /// Counts the changes of what series' numbers mean: those of routes, the slots of nodes, and the places of consumers.
    pub(crate) numbering: u64,
    series_changes: SeriesChanges,
    /// Leases that are revoked as this Plan is published.
    revoked: Vec<Arc<Lease>>,
    /// Counts the Plans that revoked leases.
    pub(crate) revocations: u64,
}

/// The cost of matching, and when it was measured.
#[derive(Debug, Clone, Copy)]
struct MeasuredCost {
    cost: MatchCost,
    matching: u64,
    routes: usize,
}

/// `timeout` of a route or its upstream, in the clock's unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TimeoutsMs {
    pub(crate) connect: u64,
    pub(crate) send: u64,
    pub(crate) read: u64,
    /// In the far future if unbounded.
    pub(crate) per_try: u64,
}

/// The part of the `gateway:` section that can change without a restart.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) trusted_proxies: Vec<IpNet>,
    /// Port of the first listener with TLS, for redirects.
    pub(crate) https_port: Option<u16>,
    pub(crate) server_header: bool,
    pub(crate) drops_underscores: bool,
    pub(crate) request_limits: HeadLimits,
    pub(crate) head_ms: u64,
    pub(crate) body_ms: u64,
    pub(crate) send_ms: u64,
    pub(crate) keepalive_ms: u64,
    pub(crate) drain_ms: u64,
    /// `None`: as long as the node may be silent.
    pub(crate) tunnel_idle_ms: Option<u64>,
    /// Zero: no bound.
    pub(crate) tunnel_total_ms: u64,
    pub(crate) connections_max: usize,
    /// Idle timeout of streams whose route does not set one.
    pub(crate) tcp_idle_ms: u64,
    pub(crate) udp_idle_ms: u64,
    pub(crate) udp_sessions_max: usize,
    /// Whether slow requests are reported.
    pub(crate) slow: bool,
}

/// Why a Plan could not be built.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanError(Vec<CompileError>);

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if index == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for PlanError {}

impl Plan {
    /// Compiles a configuration. `addresses` are the current addresses of its DNS names; a name that is missing there has no node
    /// to offer yet. What equals its counterpart in `previous` is shared with it. `metrics`: what is recorded, if anything; `tls`:
    /// the certificates and keys of the configuration, if it has any.
    pub fn build(
        generation: u64,
        config: &Config,
        addresses: &HashMap<String, Vec<IpAddr>>,
        previous: Option<&Plan>,
        metrics: Option<Arc<MetricsPlan>>,
        tls: Option<&Material>,
    ) -> Result<Plan, PlanError> {
        let began = Instant::now();
        let matcher = matcher(config, previous)?;
        let matcher_ms = millis_since(began);
        let upstreams = PlanUpstreams::new(config, addresses, tls, previous.map(|previous| &previous.upstreams));
        let (routes, mut difference) = Routes::new(
            &config.routes,
            config.plugins.global.prefers_names(),
            &upstreams,
            previous.map(|previous| &previous.routes),
        );
        let is_same = |previous: &&Plan| {
            let same_metrics = match (&previous.metrics, &metrics) {
                (Some(old), Some(new)) => Arc::ptr_eq(old, new),
                (old, new) => old.is_none() && new.is_none(),
            };
            let consumers = &config.plugins.consumers;
            let same_consumers =
                Arc::ptr_eq(&previous.consumers, consumers) || !consumers.has_moved_since(&previous.consumers);
            let same_upstreams = Arc::ptr_eq(&previous.upstreams, &upstreams);
            same_metrics && same_upstreams && same_consumers && !difference.is_renumbered
        };
        let numbering = match previous {
            Some(previous) => previous.numbering + u64::from(!is_same(&previous)),
            None => 1,
        };
        let uses_latency = upstreams.iter().any(|upstream| upstream.definition.balance == Balance::Ewma);
        let checked = upstreams::actively_checked(&upstreams, previous);
        let routes_ms = millis_since(began) - matcher_ms;
        let is_same_matcher = |previous: &Plan| Arc::ptr_eq(&previous.matcher, &matcher);
        let matching = previous.map_or(1, |previous| previous.matching + u64::from(!is_same_matcher(previous)));
        let (caching, match_cost) = decide_caching(&config.gateway, &matcher, matching, previous);
        let mut revoked = std::mem::take(&mut difference.revoked);
        let (stream_routes, revoked_too) =
            StreamRoutes::new(&config.stream_routes, &upstreams, previous.map(|previous| &previous.stream_routes));
        revoked.extend(revoked_too);
        let revocations = previous.map_or(0, |previous| previous.revocations) + u64::from(!revoked.is_empty());
        let plugins = &config.plugins;
        let logs = routes.are_logged() || plugins.consumers.are_logged() || plugins.global.has(Phase::Log);
        let wants_times = logs || config.gateway.debug.slow;
        let mut plan = Plan {
            generation,
            digest: config.digest.clone(),
            matches_headers: matcher.reads_headers(),
            matcher,
            matching,
            caching,
            match_cost,
            routes,
            stream_routes,
            upstreams,
            checked,
            uses_latency,
            settings: (&config.gateway).into(),
            wants_times,
            global: Some(&config.plugins.global).filter(|chain| !chain.is_empty()).cloned(),
            consumers: config.plugins.consumers.clone(),
            listening: config.listeners.iter().map(|listener| listener.address).collect(),
            plugin_metadata: config.plugins.metadata.clone(),
            metrics,
            tls: tls.and_then(|tls| tls.server.clone()),
            numbering,
            series_changes: SeriesChanges::default(),
            revoked,
            revocations,
        };
        let measure_ms = millis_since(began) - matcher_ms - routes_ms;
        plan.series_changes = SeriesChanges::new(&plan, previous, &difference);
        let changes_ms = millis_since(began) - matcher_ms - routes_ms - measure_ms;
        debug!(matcher_ms, routes_ms, measure_ms, changes_ms, "plan compiled");
        Ok(plan)
    }

    /// Compiles the matcher of another configuration, which shares with this one what did not change.
    pub fn matcher_of(&self, config: &Config) -> Result<Arc<Matcher>, PlanError> {
        matcher(config, Some(self))
    }

    /// The compiled routes.
    pub fn matcher(&self) -> &Matcher {
        &self.matcher
    }

    /// The upstreams, with the endpoints that their nodes currently resolve to.
    pub fn upstreams(&self) -> impl Iterator<Item = (&Arc<Upstream>, &[Endpoint])> {
        self.upstreams.iter().map(|upstream| (&upstream.definition, upstream.endpoints.as_slice()))
    }

    /// The upstreams that have active checks, with what TLS towards their nodes takes.
    pub fn checked_upstreams(&self) -> impl Iterator<Item = (&Arc<Upstream>, &[Endpoint], Option<&Arc<ClientTls>>)> {
        self.checked.iter().map(|of| (&of.definition, of.endpoints.as_slice(), of.tls()))
    }

    /// What is recorded of requests; `None`: nothing.
    pub fn metrics(&self) -> Option<&MetricsPlan> {
        self.metrics.as_deref()
    }

    /// Whether workers keep route caches (under `auto`, until a worker finds that it does not pay).
    pub fn has_route_cache(&self) -> bool {
        self.caching != CachePolicy::Off
    }

    /// The measurement by which that was decided; `None`: the configuration said so, or it has no route.
    pub fn match_cost(&self) -> Option<&MatchCost> {
        self.match_cost.as_ref().map(|measured| &measured.cost)
    }

    /// Differences from the Plan that this one was built after, as far as labels show them.
    pub fn series_changes(&self) -> &SeriesChanges {
        &self.series_changes
    }

    /// The timeouts of the upstream in a slot, except those that the route overrides.
    #[inline]
    pub(crate) fn timeouts(&self, route: &PlanRoute, upstream: usize) -> TimeoutsMs {
        let upstream = &self.upstreams[upstream];
        let own = if route.has_timeout { route.route.timeout } else { None };
        own.map_or(upstream.timeouts, |own| upstream.definition.timeout.overridden_by(&own).into())
    }

    /// A stream route's own timeouts, or otherwise those of its upstream.
    pub(crate) fn stream_timeouts(&self, of: &PlanStreamRoute) -> TimeoutsMs {
        let (route, of_upstream) = (&of.route, self.upstreams[of.upstream()].timeouts);
        TimeoutsMs {
            connect: route.timeout.connect.map_or(of_upstream.connect, millis),
            send: route.timeout.send.map_or(of_upstream.send, millis),
            ..of_upstream
        }
    }
}

/// Compiles the matcher, sharing with the previous one what did not change.
fn matcher(config: &Config, previous: Option<&Plan>) -> Result<Arc<Matcher>, PlanError> {
    let Some(previous) = previous else {
        let specs = config.routes.iter().map(|route| route.spec.clone()).collect();
        return Matcher::compile(specs).map(Arc::new).map_err(PlanError);
    };
    let (old, new) = previous.routes.differing_ranges(&config.routes);
    let specs: Vec<Arc<RouteSpec>> =
        config.routes.iter().skip(new.start).take(new.len()).map(|route| route.spec.clone()).collect();
    let former = previous.matcher.specs();
    let is_same = |(old, new): (usize, &Arc<RouteSpec>)| Arc::ptr_eq(&former[old], new) || former[old] == *new;
    if old.len() == new.len() && old.clone().zip(&specs).all(is_same) {
        return Ok(previous.matcher.clone());
    }
    previous.matcher.splice(old, &specs).map(Arc::new).map_err(PlanError)
}

/// Whether there are route caches. A measurement is kept for a while: a change of a few routes changes little.
fn decide_caching(
    gateway: &Gateway,
    matcher: &Matcher,
    matching: u64,
    previous: Option<&Plan>,
) -> (CachePolicy, Option<MeasuredCost>) {
    const HOLDS_FOR_CHANGES: u64 = 256;
    const HOLDS_FOR_SHARE: usize = 8;
    let stillgate_config::RouteCache { mode, entries: entries_max, bytes: bytes_max } = gateway.route_cache;
    match mode {
        RouteCacheMode::Off => return (CachePolicy::Off, None),
        RouteCacheMode::On => return (CachePolicy::On { entries_max, bytes_max, hits_min: 0.0 }, None),
        RouteCacheMode::Auto if matcher.reads_unique_values() => return (CachePolicy::Off, None),
        RouteCacheMode::Auto => {}
    }
    let routes = matcher.specs().len();
    let holds = |old: &MeasuredCost| {
        matching - old.matching <= HOLDS_FOR_CHANGES && routes.abs_diff(old.routes) <= old.routes / HOLDS_FOR_SHARE
    };
    let measured = previous.and_then(|previous| previous.match_cost).filter(holds);
    let is_there = previous.is_some_and(Plan::has_route_cache);
    let measured = measured.or_else(|| MatchCost::of(matcher).map(|cost| MeasuredCost { cost, matching, routes }));
    let caching = measured.map_or(CachePolicy::Off, |measured| measured.cost.decide(entries_max, bytes_max, is_there));
    (caching, measured)
}

fn millis_since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}

/// Milliseconds in the clock's unit; the far future can be added to a time without overflow.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4)
}

impl From<UpstreamTimeouts> for TimeoutsMs {
    fn from(timeouts: UpstreamTimeouts) -> Self {
        TimeoutsMs {
            connect: millis(timeouts.connect),
            send: millis(timeouts.send),
            read: millis(timeouts.read),
            per_try: millis(timeouts.per_try.unwrap_or(Duration::MAX)),
        }
    }
}

impl From<&Gateway> for Settings {
    fn from(gateway: &Gateway) -> Self {
        Settings {
            trusted_proxies: gateway.trusted_proxies.clone(),
            https_port: gateway.listeners.iter().find(|of| of.tls).map(|of| of.address.port()),
            server_header: gateway.server_header,
            drops_underscores: !gateway.underscores_in_headers,
            request_limits: HeadLimits {
                head_bytes_max: gateway.limits.head_bytes,
                target_bytes_max: gateway.limits.target_bytes,
                headers_max: gateway.limits.headers,
            },
            head_ms: millis(gateway.timeouts.head),
            body_ms: millis(gateway.timeouts.body),
            send_ms: millis(gateway.timeouts.send),
            keepalive_ms: millis(gateway.timeouts.keepalive),
            drain_ms: millis(gateway.timeouts.drain),
            tunnel_idle_ms: gateway.timeouts.tunnel_idle.map(millis),
            tunnel_total_ms: millis(gateway.timeouts.tunnel_total),
            connections_max: gateway.limits.connections_per_worker,
            tcp_idle_ms: millis(gateway.stream_proxy.tcp_idle),
            udp_idle_ms: millis(gateway.stream_proxy.udp_idle),
            udp_sessions_max: gateway.stream_proxy.udp_sessions_per_worker,
            slow: gateway.debug.slow,
        }
    }
}

/// Where workers find the current Plan. They look at `version`, a plain load, and touch the pointer only when it has changed.
#[derive(Debug)]
pub struct PlanCell {
    plan: ArcSwap<Plan>,
    version: AtomicU64,
    /// Wakes workers that nothing else wakes.
    news: watch::Sender<()>,
    /// Not part of the Plan, since they come and go without it.
    pub challenges: Challenges,
    /// The table of limits that all workers share, made before the first Plan that has a limit.
    pub limits: Arc<OnceLock<Arc<Limits>>>,
    /// Where slow requests go; empty: they are not kept.
    pub slow: OnceLock<mpsc::Sender<SlowRequest>>,
}

impl PlanCell {
    /// Makes a cell with its first Plan.
    pub fn new(plan: Arc<Plan>) -> PlanCell {
        PlanCell {
            plan: ArcSwap::new(plan),
            version: AtomicU64::new(1),
            news: watch::Sender::new(()),
            challenges: Challenges::default(),
            limits: Arc::default(),
            slow: OnceLock::new(),
        }
    }

    /// The current Plan.
    pub fn load(&self) -> Arc<Plan> {
        self.plan.load_full()
    }

    /// Replaces the Plan and returns the old one, which the caller keeps until it has the last reference: freeing a large Plan must
    /// not fall to a worker.
    pub fn publish(&self, plan: Arc<Plan>) -> Arc<Plan> {
        // Before workers look: a worker that sees the new Plan sees these as well.
        plan.revoked.iter().for_each(|lease| lease.revoke());
        let old = self.plan.swap(plan);
        self.version.fetch_add(1, Ordering::Release);
        self.news.send_replace(());
        old
    }

    /// Changes whenever another Plan is published.
    pub(crate) fn news(&self) -> watch::Receiver<()> {
        self.news.subscribe()
    }

    /// Changes whenever the Plan does.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }
}

// Time limits of a tunnel, according to its route and the gateway's settings.

/// Later than any time: added to a time it does not overflow.
const NEVER_MS: u64 = u64::MAX / 4;

/// How long a tunnel may do each of these.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct TunnelBounds {
    /// Be idle.
    pub(crate) idle_ms: u64,
    /// Exist.
    pub(crate) total_ms: u64,
    /// Wait for the node to take something.
    pub(crate) node_send_ms: u64,
    /// Wait for the client to take something.
    pub(crate) client_send_ms: u64,
    /// Continue after its route was changed, if that drains it.
    pub(crate) drain_ms: u64,
}

impl TunnelBounds {
    /// Bounds of a tunnel that may be idle for so long.
    pub(crate) fn new(idle_ms: u64, timeouts: TimeoutsMs, settings: &Settings) -> TunnelBounds {
        TunnelBounds {
            idle_ms,
            total_ms: if settings.tunnel_total_ms == 0 { NEVER_MS } else { settings.tunnel_total_ms },
            node_send_ms: timeouts.send,
            client_send_ms: settings.send_ms,
            drain_ms: settings.drain_ms,
        }
    }
}

impl Plan {
    /// Whether some plugin counts in the table of limits.
    fn needs_limits(&self) -> bool {
        self.routes.need_limits()
            || self.consumers.need_limits()
            || self
                .global
                .as_ref()
                .is_some_and(|global| global.entries().iter().any(|entry| entry.plugin.needs_limits()))
    }
}

impl PlanCell {
    /// Makes the table of limits if `plan`, which is to be published next, needs one and there is none. Must not be called by a
    /// worker: it takes memory.
    ///
    /// # Errors
    ///
    /// Fails if the system does not provide the memory: then plugins work without a table.
    pub fn provide_limits(&self, plan: &Plan, bytes_max: usize) -> io::Result<()> {
        if self.limits.get().is_none() && plan.needs_limits() {
            self.inherit_limits(Limits::create(bytes_max)?);
        }
        Ok(())
    }

    /// Takes over the table of the previous process. If there is one already, that stays.
    pub fn inherit_limits(&self, table: Limits) {
        // Only the control thread sets it; if there were another, its counters would be in use.
        let _stays = self.limits.set(Arc::new(table));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(routes: &str, weight: u32, mode: &str) -> Config {
        let text = format!(
            "gateway: {{route_cache: {{mode: {mode}}}}}\n\
             upstreams: [{{id: u, type: roundrobin, nodes: {{\"10.0.0.1:81\": {weight}}}}}]\n\
             routes: [{routes}]\n"
        );
        stillgate_config::load(text, &|_| None).unwrap().config
    }

    fn next(config: &Config, previous: Option<&Plan>) -> Plan {
        Plan::build(1, config, &HashMap::new(), previous, None, None).unwrap()
    }

    #[test]
    fn what_did_not_change_is_shared_and_keeps_its_numbers() {
        let a = "{id: a, uri: /a, upstream_id: u}";
        let both = format!("{a}, {{id: b, expression: 'http.path == \"/b\"', upstream_id: u}}");
        let first = next(&config(a, 1, "auto"), None);
        let check = |plan: &Plan, routes: bool, upstreams: bool| {
            assert_eq!(Arc::ptr_eq(&plan.matcher, &first.matcher), routes);
            assert_eq!(plan.matching == first.matching, routes);
            assert_eq!(Arc::ptr_eq(&plan.upstreams, &first.upstreams), upstreams);
            assert_eq!(plan.numbering == first.numbering, upstreams);
            assert_eq!(plan.routes[0].first_series_number, first.routes[0].first_series_number);
        };
        check(&next(&config(a, 1, "auto"), Some(&first)), true, true);
        check(&next(&config(&both, 1, "auto"), Some(&first)), false, true);
        check(&next(&config(a, 2, "auto"), Some(&first)), true, false);
    }

    #[test]
    fn route_caches_are_as_configured() {
        let check = |mode: &str, route: &str, expected: &[bool]| {
            let plan = next(&config(&format!("{{id: a, {route}, upstream_id: u}}"), 1, mode), None);
            assert!(expected.contains(&plan.has_route_cache()), "{mode} {route}");
            plan.match_cost().is_some()
        };
        assert!(!check("on", "uri: /a", &[true]));
        assert!(!check("off", "uri: /a", &[false]));
        // Caching is used whatever the results.
        assert!(check("auto", "uri: /a", &[true, false]));
        // Each connection has another port.
        assert!(!check("auto", "expression: 'net.src.port == 7'", &[false]));
    }
}
