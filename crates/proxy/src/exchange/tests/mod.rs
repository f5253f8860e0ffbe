//! Exchanges with plugins, end to end: a worker that serves a Plan whose chains are built by hand.

mod bodies;
mod large;
mod panics;
mod phases;
mod store;
mod waiting;

use crate::fleet::Fleet;
use crate::plan::metrics::MetricsPlan;
use crate::plan::{Plan, PlanCell};
use crate::sockets::{InheritedSockets, Sockets};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use stillgate_config::Config;
use stillgate_metrics::encode::Format;
use stillgate_metrics::{Collector, CollectorOptions, Registry, RegistryOptions, SegmentProcess, Writer};
use stillgate_plugin_api::identity::Identity;
use stillgate_plugin_api::{
    BodyArguments, BodyError, BodyFilter, Chain, ChainEntry, Flow, Meta, Phase, Phases, Plugin, PluginLevel,
    PluginOrigin, Request, Response,
};
use stillgate_testkit::{Client, Upstream};

type OnRequest = Box<dyn Fn(&mut Request<'_>) -> Flow + Send + Sync>;
type OnResponse = Box<dyn Fn(&mut Response<'_>) + Send + Sync>;

/// A plugin scripted by a test.
#[derive(Default)]
struct ScriptedPlugin {
    rewrite: Option<OnRequest>,
    access: Option<OnRequest>,
    before_proxy: Option<OnRequest>,
    header_filter: Option<OnResponse>,
    log: Option<OnResponse>,
}

impl Plugin for ScriptedPlugin {
    fn rewrite(&self, request: &mut Request<'_>) -> Flow {
        self.rewrite.as_ref().map_or(Flow::Continue, |then| then(request))
    }

    fn access(&self, request: &mut Request<'_>) -> Flow {
        self.access.as_ref().map_or(Flow::Continue, |then| then(request))
    }

    fn before_proxy(&self, request: &mut Request<'_>) -> Flow {
        self.before_proxy.as_ref().map_or(Flow::Continue, |then| then(request))
    }

    fn header_filter(&self, response: &mut Response<'_>) {
        self.header_filter.iter().for_each(|then| then(response));
    }

    fn log(&self, response: &mut Response<'_>) {
        self.log.iter().for_each(|then| then(response));
    }
}

impl ScriptedPlugin {
    fn rewrite(then: impl Fn(&mut Request<'_>) -> Flow + Send + Sync + 'static) -> ScriptedPlugin {
        ScriptedPlugin { rewrite: Some(Box::new(then)), ..ScriptedPlugin::default() }
    }

    fn access(then: impl Fn(&mut Request<'_>) -> Flow + Send + Sync + 'static) -> ScriptedPlugin {
        ScriptedPlugin { access: Some(Box::new(then)), ..ScriptedPlugin::default() }
    }

    fn header_filter(then: impl Fn(&mut Response<'_>) + Send + Sync + 'static) -> ScriptedPlugin {
        ScriptedPlugin { header_filter: Some(Box::new(then)), ..ScriptedPlugin::default() }
    }

    fn phases(&self) -> Phases {
        let has = [
            (self.rewrite.is_some(), Phase::Rewrite),
            (self.access.is_some(), Phase::Access),
            (self.before_proxy.is_some(), Phase::BeforeProxy),
            (self.header_filter.is_some(), Phase::HeaderFilter),
            (self.log.is_some(), Phase::Log),
        ];
        has.iter().filter(|(has, _)| *has).fold(Phases::NONE, |all, (_, phase)| all.or(Phases::of(&[*phase])))
    }

    /// The entry as it is in a chain.
    fn entry(self, name: &'static str, meta: Meta) -> Arc<ChainEntry> {
        Arc::new(ChainEntry {
            name,
            priority: meta.priority.unwrap_or(0),
            phases: self.phases(),
            authenticates: false,
            meta,
            awaited: BodyArguments::default(),
            origin: PluginOrigin { level: PluginLevel::Route, id: "r".into() },
            at: Default::default(),
            identity: Identity::of(&[name.as_bytes()]),
            plugin: Box::new(self),
        })
    }

    fn chain(self) -> Option<Arc<Chain>> {
        chain([self.entry("scripted", Meta::default())])
    }
}

fn chain<const N: usize>(entries: [Arc<ChainEntry>; N]) -> Option<Arc<Chain>> {
    Some(Arc::new(Chain::merge([&entries[..]]).unwrap()))
}

/// What the phases have recorded, in order.
#[derive(Default, Clone)]
struct Story(Arc<Mutex<Vec<String>>>);

impl Story {
    fn tell(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    fn told(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// A worker with one route for everything below `/`, except `/none`.
struct Bench {
    fleet: Option<Fleet>,
    address: SocketAddr,
}

impl Bench {
    fn new(nodes: &[&Upstream], global: Option<Arc<Chain>>, route: Option<Arc<Chain>>) -> Bench {
        Bench::with(nodes, |plan| {
            plan.global = global;
            plan.routes.set_chain(0, route);
        })
    }

    fn with(nodes: &[&Upstream], change: impl FnOnce(&mut Plan)) -> Bench {
        Bench::started(nodes, None, Vec::new(), change)
    }

    fn started(
        nodes: &[&Upstream],
        metrics: Option<Arc<MetricsPlan>>,
        writers: Vec<Writer>,
        change: impl FnOnce(&mut Plan),
    ) -> Bench {
        let (config, mut plan) = planned_with(nodes, metrics);
        change(&mut plan);
        Bench::serving_with(&config, Arc::new(PlanCell::new(Arc::new(plan))), writers)
    }

    /// A worker that serves what `plans` holds.
    fn serving(config: &Config, plans: Arc<PlanCell>) -> Bench {
        Bench::serving_with(config, plans, Vec::new())
    }

    fn serving_with(config: &Config, plans: Arc<PlanCell>, writers: Vec<Writer>) -> Bench {
        let sockets = Sockets::open(&config.listeners, 1, &mut InheritedSockets::default()).unwrap();
        let address = sockets.addresses()[0];
        let fleet =
            Fleet::start(&config.gateway, sockets, plans, Vec::new(), (writers, None), Default::default(), || {})
                .unwrap();
        Bench { fleet: Some(fleet), address }
    }

    /// A worker with metrics, and their registry.
    fn measured(nodes: &[&Upstream], route: Option<Arc<Chain>>) -> (Bench, Arc<Registry>) {
        let registry = Registry::start(RegistryOptions::new(SegmentProcess { pid: 1, start: 1 }, 1_000, 7)).unwrap();
        let registry = Arc::new(registry);
        let text = "gateway: {metrics: {address: \"127.0.0.1:1\"}}";
        let config = stillgate_config::load(text, &|_| None).unwrap().config;
        let metrics = MetricsPlan::new(config.gateway.metrics.as_ref().unwrap(), &registry).unwrap();
        let writer = registry.writer().unwrap();
        let bench =
            Bench::started(nodes, Some(Arc::new(metrics)), vec![writer], |plan| plan.routes.set_chain(0, route));
        (bench, registry)
    }

    fn client(&self) -> Client {
        Client::connect(self.address)
    }
}

/// What a scrape would get.
fn exposition(registry: &Arc<Registry>) -> String {
    let mut collector = Collector::of_registry(registry.clone(), CollectorOptions::default()).unwrap();
    String::from_utf8(collector.exposition(Format::Text, 2_000).unwrap()).unwrap()
}

/// How many panics of a [`ScriptedPlugin`] plugin were counted.
fn panics(registry: &Arc<Registry>) -> u64 {
    let told = exposition(registry);
    let count = told.lines().find_map(|line| line.strip_prefix("stillgate_plugin_panics_total{plugin=\"scripted\"} "));
    count.map_or(0, |count| count.parse().unwrap())
}

/// The configuration of a [`Bench`], and a Plan without plugins.
fn planned(nodes: &[&Upstream]) -> (Config, Plan) {
    planned_with(nodes, None)
}

fn planned_with(nodes: &[&Upstream], metrics: Option<Arc<MetricsPlan>>) -> (Config, Plan) {
    let nodes: Vec<String> = nodes.iter().map(|node| format!("\"{}\": 1", node.addr())).collect();
    let text = format!(
        "gateway: {{workers: 1, listeners: [{{address: \"127.0.0.1:0\"}}]}}\n\
         upstreams: [{{id: u, type: roundrobin, nodes: {{{}}}}}]\n\
         routes: [{{id: r, uri: /r*, upstream_id: u, enable_websocket: true}}]\n",
        nodes.join(", ")
    );
    let config = stillgate_config::load(text, &|_| None).unwrap().config;
    let plan = Plan::build(1, &config, &HashMap::new(), None, metrics, None).unwrap();
    (config, plan)
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(fleet) = self.fleet.take() {
            fleet.commander().drain(Duration::ZERO);
            fleet.join().unwrap();
        }
    }
}

/// Makes a body louder, piece by piece; or all at once, with more than it may hold.
#[derive(Default)]
struct Loud {
    holds: Vec<u8>,
    holds_all: bool,
    bytes_max: usize,
    /// How often each byte is repeated.
    times: usize,
}

impl Loud {
    fn passing(times: usize) -> Box<Loud> {
        Box::new(Loud { times, ..Loud::default() })
    }

    fn holding(bytes_max: usize) -> Box<Loud> {
        Box::new(Loud { times: 1, holds_all: true, bytes_max, ..Loud::default() })
    }
}

impl BodyFilter for Loud {
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), BodyError> {
        assert!(piece.len() <= 16 * 1024, "pieces are small");
        if piece.contains(&b'!') {
            return Err(BodyError::Malformed);
        }
        assert!(!piece.contains(&b'?'), "asked to panic");
        if self.holds_all {
            self.holds.extend_from_slice(piece);
            return if self.holds.len() > self.bytes_max { Err(BodyError::TooLarge) } else { Ok(()) };
        }
        // The time of filters is limited.
        piece.iter().for_each(|byte| out.resize(out.len() + self.times, byte.to_ascii_uppercase()));
        Ok(())
    }

    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        out.extend(self.holds.iter().map(u8::to_ascii_uppercase));
        out.extend_from_slice(b".");
        Ok(())
    }

    fn held_bytes(&self) -> usize {
        self.holds.len()
    }
}
