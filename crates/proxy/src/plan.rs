//! The immutable snapshot that workers serve from, and the one pointer through which they get the next one.
//!
//! A Plan is built by the control thread from a validated configuration and the present addresses of its names. Parts
//! that did not change are shared with the Plan before, so that a worker can tell by pointer what it may keep.

use crate::metrics::MetricsPlan;
use arc_swap::ArcSwap;
use ipnet::IpNet;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stillgate_config::{Config, Gateway, Upstream, UpstreamTimeouts};
use stillgate_route::{CompileError, Matcher, RouteSpec};
use stillgate_upstream::{Endpoint, expand};
use stillgate_wire::HeadLimits;

/// Everything a worker needs to know to serve.
#[derive(Debug)]
pub struct Plan {
    /// Which configuration this is: counts the published ones.
    pub generation: u64,
    /// SHA-256 of the configuration file.
    pub digest: String,
    matcher: Arc<Matcher>,
    pub(crate) routes: Vec<PlanRoute>,
    /// The same list as in the Plan before where nothing in it changed.
    pub(crate) upstreams: Arc<[Arc<PlanUpstream>]>,
    pub(crate) settings: Settings,
    metrics: Option<Arc<MetricsPlan>>,
}

/// What a matched route says about the exchange.
#[derive(Debug)]
pub(crate) struct PlanRoute {
    pub(crate) id: Box<str>,
    /// Its service's id, or empty.
    pub(crate) service: Box<str>,
    /// Of all combinations of a path and a host of each route, the number of its first, and how many it has for a path.
    pub(crate) first_match: u64,
    pub(crate) hosts: usize,
    /// Index in [`Plan::upstreams`].
    pub(crate) upstream: usize,
    pub(crate) timeouts: TimeoutsMs,
}

/// An upstream with the addresses its nodes stand for.
#[derive(Debug, PartialEq)]
pub(crate) struct PlanUpstream {
    pub(crate) definition: Upstream,
    pub(crate) endpoints: Vec<Endpoint>,
}

/// `timeout` of a route or its upstream, in the clock's unit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeoutsMs {
    pub(crate) connect: u64,
    pub(crate) send: u64,
    pub(crate) read: u64,
}

/// What of the `gateway:` section can change without a restart.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) trusted_proxies: Vec<IpNet>,
    pub(crate) server_header: bool,
    pub(crate) request_limits: HeadLimits,
    pub(crate) head_ms: u64,
    pub(crate) body_ms: u64,
    pub(crate) send_ms: u64,
    pub(crate) keepalive_ms: u64,
    pub(crate) connections_max: usize,
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
    /// Compiles a configuration. `addresses` are what its DNS names stand for now; a name that is missing there has no
    /// node to offer yet. What equals its counterpart in `previous` is shared with it. `metrics`: what is recorded, if anything.
    pub fn build(
        generation: u64,
        config: &Config,
        addresses: &HashMap<String, Vec<IpAddr>>,
        previous: Option<&Plan>,
        metrics: Option<Arc<MetricsPlan>>,
    ) -> Result<Plan, PlanError> {
        let resolve = |name: &str| addresses.get(name).map_or(&[][..], Vec::as_slice);
        let old: HashMap<&str, &Arc<PlanUpstream>> = previous
            .iter()
            .flat_map(|plan| plan.upstreams.iter())
            .map(|upstream| (upstream.definition.key.as_str(), upstream))
            .collect();
        let upstreams: Arc<[Arc<PlanUpstream>]> = config
            .upstreams
            .iter()
            .map(|definition| {
                let endpoints = expand(definition, resolve);
                let same = |old: &&&Arc<PlanUpstream>| old.definition == *definition && old.endpoints == endpoints;
                match old.get(definition.key.as_str()).filter(same) {
                    Some(old) => Arc::clone(old),
                    None => Arc::new(PlanUpstream { definition: definition.clone(), endpoints }),
                }
            })
            .collect();
        let unchanged = |old: &&Plan| {
            old.upstreams.len() == upstreams.len()
                && old.upstreams.iter().zip(upstreams.iter()).all(|(old, new)| Arc::ptr_eq(old, new))
        };
        let upstreams = previous.filter(unchanged).map_or(upstreams.clone(), |old| old.upstreams.clone());
        let mut matches = 0;
        let routes = config
            .routes
            .iter()
            .map(|route| {
                let (paths, hosts) = route.spec.uri().map_or((1, 1), |uri| (uri.paths.len(), uri.hosts.len().max(1)));
                let first_match = matches;
                matches += (paths * hosts) as u64;
                PlanRoute {
                    id: route.spec.id.as_str().into(),
                    service: route.service_id.as_deref().unwrap_or_default().into(),
                    first_match,
                    hosts,
                    upstream: route.upstream,
                    timeouts: route.timeout.unwrap_or(config.upstreams[route.upstream].timeout).into(),
                }
            })
            .collect();
        Ok(Plan {
            generation,
            digest: config.digest.clone(),
            matcher: matcher(config, previous)?,
            routes,
            upstreams,
            settings: (&config.gateway).into(),
            metrics,
        })
    }

    /// The compiled routes.
    pub fn matcher(&self) -> &Matcher {
        &self.matcher
    }

    /// What is recorded of requests; `None`: nothing.
    pub fn metrics(&self) -> Option<&MetricsPlan> {
        self.metrics.as_deref()
    }
}

fn matcher(config: &Config, previous: Option<&Plan>) -> Result<Arc<Matcher>, PlanError> {
    if let Some(previous) = previous {
        let old = previous.matcher.specs();
        if old.len() == config.routes.len() && old.iter().zip(&config.routes).all(|(old, new)| *old == new.spec) {
            return Ok(previous.matcher.clone());
        }
    }
    let specs: Vec<Arc<RouteSpec>> = config.routes.iter().map(|route| route.spec.clone()).collect();
    Ok(Arc::new(Matcher::compile(specs).map_err(PlanError)?))
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4)
}

impl From<UpstreamTimeouts> for TimeoutsMs {
    fn from(timeouts: UpstreamTimeouts) -> Self {
        TimeoutsMs { connect: millis(timeouts.connect), send: millis(timeouts.send), read: millis(timeouts.read) }
    }
}

impl From<&Gateway> for Settings {
    fn from(gateway: &Gateway) -> Self {
        Settings {
            trusted_proxies: gateway.trusted_proxies.clone(),
            server_header: gateway.server_header,
            request_limits: HeadLimits {
                head_bytes_max: gateway.limits.head_bytes,
                target_bytes_max: gateway.limits.target_bytes,
                headers_max: gateway.limits.headers,
            },
            head_ms: millis(gateway.timeouts.head),
            body_ms: millis(gateway.timeouts.body),
            send_ms: millis(gateway.timeouts.send),
            keepalive_ms: millis(gateway.timeouts.keepalive),
            connections_max: gateway.limits.connections_per_worker,
        }
    }
}

/// Where workers find the present Plan. They look at `version`, a plain load, and touch the pointer only when it moved.
#[derive(Debug)]
pub struct PlanCell {
    plan: ArcSwap<Plan>,
    version: AtomicU64,
}

impl PlanCell {
    /// Holds its first Plan.
    pub fn new(plan: Arc<Plan>) -> PlanCell {
        PlanCell { plan: ArcSwap::new(plan), version: AtomicU64::new(1) }
    }

    /// The present Plan.
    pub fn load(&self) -> Arc<Plan> {
        self.plan.load_full()
    }

    /// Replaces the Plan and returns the old one, which the caller keeps until nobody else does: freeing a large Plan
    /// must not fall to a worker.
    pub fn publish(&self, plan: Arc<Plan>) -> Arc<Plan> {
        let old = self.plan.swap(plan);
        self.version.fetch_add(1, Ordering::Release);
        old
    }

    /// Changes whenever the Plan does.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }
}
