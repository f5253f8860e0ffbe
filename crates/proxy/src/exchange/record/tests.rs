//! Tests the recorder with artificial requests, and reads the result back through a collector.

use super::*;
use crate::basics::buffer::Buffers;
use crate::connection::stream::Stream;
use crate::plan::metrics::MetricsPlan;
use crate::plan::{Plan, SeriesSubject};
use crate::sockets::listener::Listener;
use crate::telemetry::metrics::Recorder;
use crate::telemetry::outcome::Timing;
use allocation_counter::measure;
use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use stillgate_config::{Dialect, Label, ListenPlace, ListenerKind, Upstream};
use stillgate_metrics::encode::Format;

use stillgate_metrics::{Collector, CollectorOptions, Registry, RegistryOptions, SegmentProcess};
use stillgate_route::Match;
use stillgate_wire::{BodyDecoder, HeadLimits, HeadProgress};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

/// A recorder, and everything it needs.
struct Bench {
    registry: Arc<Registry>,
    recorder: Recorder,
    config: stillgate_config::Config,
    client: ClientConnection,
    /// The client's side of its connection.
    peer: TcpStream,
    versions: u64,
    previous: Option<Arc<Plan>>,
}

impl Bench {
    /// Makes a bench with these keys of `gateway.metrics`.
    async fn new(keys: &str) -> Bench {
        let text = format!(
            "gateway: {{metrics: {{address: \"127.0.0.1:1\", {keys}}}}}\n\
             upstreams: [{{id: u, type: roundrobin, nodes: {{\"10.0.0.1:81\": 1, \"10.0.0.2:82\": 1}}}}]\n\
             routes: [{{id: a, uris: [/a, /b], hosts: [x.test, \"*.y.test\"], upstream_id: u}}, {{id: c, uri: /c, upstream_id: u}}]\n"
        );
        let config = stillgate_config::load(text, &|_| None).unwrap().config;
        let series_per_family = config.gateway.metrics.as_ref().unwrap().series_per_family as u32;
        let options = RegistryOptions {
            series_per_family,
            ..RegistryOptions::new(SegmentProcess { pid: 1, start: 1 }, 1_000, 7)
        };
        let registry = Arc::new(Registry::start(options).unwrap());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let peer = TcpStream::connect(address).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        peer.set_nodelay(true).unwrap();
        let kind = ListenerKind::Http { tls: false, proxy_protocol: false, http2: true };
        let listener = Listener::new(stillgate_config::Listener { address, kind }, ListenPlace::tcp(address));
        let listener = Rc::new(listener);
        let client =
            ClientConnection::with_facts(Stream::Plain(stream), address, address, listener, [].into(), None, 0);
        let recorder = Recorder::new(registry.writer().unwrap(), 0);
        Bench { registry, recorder, config, client, peer, versions: 0, previous: None }
    }

    fn snapshot(&mut self) -> Snapshot {
        self.versions += 1;
        let metrics = MetricsPlan::new(self.config.gateway.metrics.as_ref().unwrap(), &self.registry).unwrap();
        let previous = self.previous.as_deref();
        let plan =
            Plan::build(self.versions, &self.config, &HashMap::new(), previous, Some(Arc::new(metrics)), None).unwrap();
        let plan = Arc::new(plan);
        self.previous = Some(plan.clone());
        Snapshot::next(None, plan, self.versions)
    }

    /// A request that was answered with `status`; `asked` is the slot of the node that was tried.
    async fn exchange(
        &mut self,
        head: &str,
        route: Option<(usize, usize)>,
        asked: Option<usize>,
        status: u16,
    ) -> Exchange {
        let mut exchange = Exchange::default();
        self.peer.write_all(head.as_bytes()).await.unwrap();
        let (stream, buffers) = (&mut self.client.stream, Buffers::default());
        poll_fn(|cx| exchange.from_client.poll_read_head(cx, stream, &buffers)).await.unwrap();
        let limits = HeadLimits { head_bytes_max: 4096, target_bytes_max: 4096, headers_max: 10 };
        assert!(matches!(
            exchange.request.advance(exchange.from_client.unparsed(), &limits),
            Ok(HeadProgress::Complete(_))
        ));
        exchange.from_client.start_body(exchange.request.len, BodyDecoder::new(exchange.request.framing)).unwrap();
        exchange.known.make(&exchange.request, exchange.from_client.head()).unwrap();
        exchange.known.make(&exchange.request, exchange.from_client.head()).unwrap();
        let started = Instant::now();
        let node = |ms: u64| asked.map(|_| started + Duration::from_millis(ms));
        exchange.outcome = RequestOutcome {
            timing: Timing { request: true, node: true, ..Timing::default() },
            started: Some(started),
            node_since: node(1),
            node_until: node(4),
            asked: asked.map(|slot| (slot, SocketAddr::from(([10, 0, 0, slot as u8 + 1], 81 + slot as u16)))),
            status,
            route: route.map(|(route, path)| Match { route, path }),
            ..RequestOutcome::default()
        };
        exchange
    }

    /// Records a request that took 5 ms, 3 of them at the node.
    fn record(&mut self, snapshot: &Snapshot, exchange: &mut Exchange) {
        let ended = exchange.outcome.started.map(|started| started + Duration::from_millis(5));
        self.recorder.record(&mut FinishedExchange { client: &self.client, exchange }, snapshot, ended);
    }

    fn exposition(&mut self) -> String {
        self.recorder.tick(2_000, None, &[], &Default::default(), false);
        let mut collector = Collector::of_registry(self.registry.clone(), CollectorOptions::default()).unwrap();
        String::from_utf8(collector.exposition(Format::Text, 2_000).unwrap()).unwrap()
    }

    #[track_caller]
    fn check(&mut self, lines: &[&str]) {
        let text = self.exposition();
        for line in lines {
            assert!(text.lines().any(|have| have == *line), "{line}\n{text}");
        }
    }
}

const HEAD: &str = "GET /a HTTP/1.1\r\nHost: q.y.test\r\nX-Tenant: blue\r\n\r\n";

#[tokio::test]
async fn the_steady_state_allocates_nothing() {
    for keys in [
        "",
        "dialect: apisix",
        "enable: {labels: [method]}",
        "labels: {http_requests_total: {t: $http_x_tenant, h: $host, ip: $remote_addr, g: $consumer_group_id}}",
        "exemplars: true",
    ] {
        let mut bench = Bench::new(keys).await;
        bench.config.plugins.consumers = consumers(&["ann", "bob"]);
        let snapshot = bench.snapshot();
        let mut requests = [
            bench.exchange(HEAD, Some((0, 1)), Some(1), 200).await,
            bench.exchange(HEAD, Some((1, 0)), Some(0), 503).await,
            bench.exchange(HEAD, None, None, 404).await,
        ];
        requests[1].chains.consumer = Some(attached(1));
        requests[1].chains.settled.trace = Some(Trace { trace_id: 1, span_id: 2, is_sampled: true, shown_by: None });
        requests.iter_mut().for_each(|exchange| bench.record(&snapshot, exchange));
        let mut turn = 0;
        let counted = measure(|| {
            for _ in 0..100 {
                bench.record(&snapshot, &mut requests[turn % 3]);
                turn += 1;
            }
        });
        assert_eq!(counted.count_total, 0, "{keys}");
        let text = bench.exposition();
        let requests = |line: &&str| line.contains("code=\"") && !line.starts_with('#');
        let sum: f64 =
            text.lines().filter(requests).map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum();
        assert_eq!(sum, 103.0, "{text}");
    }
}

#[tokio::test]
async fn labels_and_times() {
    let mut bench = Bench::new("").await;
    let snapshot = bench.snapshot();
    let mut exchange = bench.exchange(HEAD, Some((0, 1)), Some(1), 200).await;
    bench.record(&snapshot, &mut exchange);
    let mut exchange = bench.exchange(HEAD, None, None, 400).await;
    bench.record(&snapshot, &mut exchange);
    bench.check(&[
        "stillgate_http_requests_total{route=\"a\",service=\"\",node=\"10.0.0.2:82\",consumer=\"\",code=\"200\"} 1",
        "stillgate_http_requests_total{route=\"\",service=\"\",node=\"\",consumer=\"\",code=\"400\"} 1",
        "stillgate_http_request_duration_seconds_sum{route=\"a\",service=\"\"} 0.005",
        "stillgate_http_upstream_duration_seconds_sum{route=\"a\",service=\"\"} 0.003",
        "stillgate_http_gateway_duration_seconds_sum{route=\"a\",service=\"\"} 0.002",
        "stillgate_http_gateway_duration_seconds_sum{route=\"\",service=\"\"} 0.005",
    ]);
    assert!(!bench.exposition().contains("upstream_duration_seconds_count{route=\"\""), "no node, no time of it");
}

#[tokio::test]
async fn a_match_is_reported_in_the_words_of_the_route() {
    let mut bench = Bench::new("dialect: apisix").await;
    let snapshot = bench.snapshot();
    let exact = "GET /a HTTP/1.1\r\nHost: X.test:80\r\n\r\n";
    for (head, path) in [(HEAD, 1), (exact, 1), (exact, 0), (exact, 0)] {
        let mut exchange = bench.exchange(head, Some((0, path)), Some(0), 200).await;
        bench.record(&snapshot, &mut exchange);
    }
    let line = |uri: &str, host: &str, count: u32| {
        format!(
            "apisix_http_status{{code=\"200\",route=\"a\",matched_uri=\"{uri}\",matched_host=\"{host}\",service=\"\",consumer=\"\",node=\"10.0.0.1\"}} {count}"
        )
    };
    let lines = [line("/b", "*.y.test", 1), line("/b", "x.test", 1), line("/a", "x.test", 2)];
    bench.check(&[
        &lines[0],
        &lines[1],
        &lines[2],
        "apisix_http_latency_sum{type=\"upstream\",route=\"a\",service=\"\",consumer=\"\",node=\"10.0.0.1\"} 12",
    ]);
}

#[tokio::test]
async fn requests_of_an_older_configuration_are_counted_by_it() {
    let mut bench = Bench::new("").await;
    let old = bench.snapshot();
    let mut exchange = bench.exchange(HEAD, Some((0, 0)), Some(0), 200).await;
    bench.record(&old, &mut exchange);
    bench.config.routes = bench.config.routes.iter().skip(1).cloned().collect();
    let new = bench.snapshot();
    for _ in 0..2 {
        let mut exchange = bench.exchange(HEAD, Some((0, 0)), Some(0), 200).await;
        bench.record(&new, &mut exchange);
        let mut exchange = bench.exchange(HEAD, Some((0, 0)), Some(0), 200).await;
        bench.record(&old, &mut exchange);
    }
    let line = |route: &str, count: u32| {
        format!(
            "stillgate_http_requests_total{{route=\"{route}\",service=\"\",node=\"10.0.0.1:81\",consumer=\"\",code=\"200\"}} {count}"
        )
    };
    bench.check(&[&line("a", 3), &line("c", 2)]);
}

/// Consumers with these names, each in the group `staff`, in places counted from zero.
fn consumers(names: &[&str]) -> Arc<Consumers> {
    let mut all = Consumers::default();
    for name in names {
        all.insert(consumer(name), Vec::new()).unwrap();
    }
    Arc::new(all)
}

fn consumer(name: &str) -> Consumer {
    let group = Some("staff".into());
    Consumer { name: name.into(), group, labels: [].into(), plugins: [].into(), credentials: [].into() }
}

fn attached(place: u32) -> ConsumerRef {
    ConsumerRef { consumer: place, credential: None }
}

#[tokio::test]
async fn the_consumer_of_a_request_is_recorded() {
    let mut bench = Bench::new("labels: {http_requests_total: {group: $consumer_group_id}}").await;
    bench.config.plugins.consumers = consumers(&["ann", "bob"]);
    let snapshot = bench.snapshot();
    let mut exchange = bench.exchange(HEAD, Some((0, 0)), Some(0), 200).await;
    for place in [None, Some(1), Some(0), Some(1), None, Some(1)] {
        exchange.chains.consumer = place.map(attached);
        bench.record(&snapshot, &mut exchange);
    }
    let line = |consumer: &str, group: &str, count: u32| {
        format!(
            "stillgate_http_requests_total{{route=\"a\",service=\"\",node=\"10.0.0.1:81\",consumer=\"{consumer}\",code=\"200\",group=\"{group}\"}} {count}"
        )
    };
    bench.check(&[&line("", "", 2), &line("ann", "staff", 1), &line("bob", "staff", 3)]);
}

/// A place that was freed may belong to another consumer two configurations later.
#[tokio::test]
async fn a_place_that_has_changed_hands_is_not_taken_for_who_had_it() {
    let mut bench = Bench::new("").await;
    let mut all = Consumers::default();
    let mut exchange = bench.exchange(HEAD, Some((0, 0)), Some(0), 200).await;
    exchange.chains.consumer = Some(attached(0));
    for name in ["ann", "", "bob", "bob", "eve"] {
        all.remove("ann");
        match name {
            "" => {}
            "eve" => {
                all.remove("bob");
                all.insert(consumer(name), Vec::new()).unwrap();
            }
            name => all.replace(consumer(name), Vec::new()).unwrap(),
        }
        bench.config.plugins.consumers = Arc::new(all.clone());
        let snapshot = bench.snapshot();
        if !name.is_empty() {
            assert_eq!(&*snapshot.plan.consumers.of(attached(0)).name, name);
            bench.record(&snapshot, &mut exchange);
        }
    }
    let line = |consumer: &str, count: u32| {
        format!(
            "stillgate_http_requests_total{{route=\"a\",service=\"\",node=\"10.0.0.1:81\",consumer=\"{consumer}\",code=\"200\"}} {count}"
        )
    };
    bench.check(&[&line("ann", 1), &line("bob", 2), &line("eve", 1)]);
}

#[tokio::test]
async fn more_consumers_than_a_family_has_series_are_reported_as_one() {
    const CONSUMERS: u32 = 100_000;
    const SERIES_MAX: usize = 1_000;
    for keys in ["", "dialect: apisix, "] {
        let mut bench = Bench::new(&format!("{keys}series_per_family: {SERIES_MAX}")).await;
        let names: Vec<String> = (0..CONSUMERS).map(|number| format!("c{number}")).collect();
        bench.config.plugins.consumers = consumers(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let snapshot = bench.snapshot();
        let mut exchange = bench.exchange(HEAD, Some((0, 0)), Some(0), 200).await;
        for place in 0..CONSUMERS {
            exchange.chains.consumer = Some(attached(place));
            bench.record(&snapshot, &mut exchange);
        }
        let text = bench.exposition();
        let counts = |line: &&str| line.contains("code=\"200\"") && !line.starts_with('#');
        let of = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap();
        assert_eq!(text.lines().filter(counts).map(of).sum::<f64>(), f64::from(CONSUMERS), "{keys}");
        assert!(text.lines().filter(counts).count() <= SERIES_MAX, "{keys}");
        let is_one = |line: &str| line.contains("consumer=\"__other__\"") && line.contains("route=\"a\"");
        assert!(text.lines().filter(counts).any(is_one), "{keys}");
    }
}

/// It was sent to a node after the change, so it uses the new slots, although it began before.
#[tokio::test]
async fn a_slot_that_has_changed_hands_is_not_taken_for_the_node_it_was() {
    let mut bench = Bench::new("").await;
    let old = bench.snapshot();
    let mut exchange = bench.exchange(HEAD, Some((0, 0)), Some(0), 200).await;
    bench.record(&old, &mut exchange);
    let new = bench.snapshot();
    bench.recorder.renumber(new.plan.numbering);
    let mut exchange = bench.exchange(HEAD, Some((0, 0)), Some(1), 200).await;
    exchange.outcome.asked = exchange.outcome.asked.map(|(_, address)| (0, address));
    bench.record(&old, &mut exchange);
    let line = |node: &str| {
        format!(
            "stillgate_http_requests_total{{route=\"a\",service=\"\",node=\"{node}\",consumer=\"\",code=\"200\"}} 1"
        )
    };
    bench.check(&[&line("10.0.0.1:81"), &line("10.0.0.2:82")]);
}

#[tokio::test]
async fn a_change_of_another_route_makes_nothing_be_looked_up_again() {
    let mut bench = Bench::new("dialect: apisix").await;
    let metrics = MetricsPlan::new(bench.config.gateway.metrics.as_ref().unwrap(), &bench.registry).unwrap();
    let metrics = Some(Arc::new(metrics));
    let next = |bench: &mut Bench| {
        bench.versions += 1;
        let previous = bench.previous.as_deref();
        let plan =
            Plan::build(bench.versions, &bench.config, &HashMap::new(), previous, metrics.clone(), None).unwrap();
        let plan = Arc::new(plan);
        bench.previous = Some(plan.clone());
        Snapshot::next(None, plan, bench.versions)
    };
    let old = next(&mut bench);
    let mut exchange = bench.exchange(HEAD, Some((1, 0)), Some(1), 200).await;
    bench.record(&old, &mut exchange);
    let gone = bench.config.routes[0].clone();
    bench.config.routes = bench.config.routes.iter().skip(1).cloned().collect();
    let new = next(&mut bench);
    assert_eq!(values(&new.plan.series_changes().left), [["a"]]);
    // The route has another position by now.
    let mut exchange = bench.exchange(HEAD, Some((0, 0)), Some(1), 200).await;
    let counted = measure(|| bench.record(&new, &mut exchange));
    assert_eq!(counted.count_total, 0);
    bench.config.routes = bench.config.routes.iter().cloned().chain([gone]).collect();
    let newest = next(&mut bench);
    assert_eq!(values(&newest.plan.series_changes().arrived), [vec!["a"], vec!["a", ""]]);
    assert!(newest.plan.series_changes().left.is_empty());
    bench.record(&newest, &mut exchange);
    let line = "apisix_http_status{code=\"200\",route=\"c\",matched_uri=\"/c\",matched_host=\"\",service=\"\",consumer=\"\",node=\"10.0.0.2\"} 3";
    bench.check(&[line]);
}

/// The label values of what was added or removed.
fn values(subjects: &BTreeSet<SeriesSubject>) -> Vec<&[String]> {
    subjects.iter().map(|subject| subject.values.as_slice()).collect()
}

/// Requests that differ only in a label without a value share one series, and one entry of the table.
#[tokio::test]
async fn labels_without_a_value_tell_nothing_apart() {
    let mut bench = Bench::new("dialect: apisix").await;
    let settings = bench.config.gateway.metrics.as_ref().unwrap();
    let emptied = [("http_status", "node"), ("http_status", "matched_uri"), ("bandwidth", "node")];
    bench.config.gateway.metrics = Some(settings.with_emptied(emptied.into_iter()));
    let snapshot = bench.snapshot();
    for (path, node) in [(0, 0), (1, 1)] {
        let mut exchange = bench.exchange(HEAD, Some((0, path)), Some(node), 200).await;
        bench.record(&snapshot, &mut exchange);
    }
    bench.check(&[
        "apisix_http_status{code=\"200\",route=\"a\",matched_uri=\"\",matched_host=\"*.y.test\",service=\"\",consumer=\"\",node=\"\"} 2",
        "apisix_http_latency_count{type=\"request\",route=\"a\",service=\"\",consumer=\"\",node=\"10.0.0.2\"} 1",
    ]);
    let bandwidth = bench.exposition();
    assert!(bandwidth.contains("apisix_bandwidth{type=\"ingress\",route=\"a\",service=\"\",consumer=\"\",node=\"\"}"));
    // Without any label that contains the path, another path changes nothing.
    let all = [("http_status", "matched_uri"), ("http_status", "matched_host")];
    bench.config.gateway.metrics = bench.config.gateway.metrics.map(|settings| settings.with_emptied(all.into_iter()));
    let snapshot = bench.snapshot();
    let mut first = bench.exchange(HEAD, Some((0, 0)), Some(0), 200).await;
    let mut second = bench.exchange(HEAD, Some((0, 1)), Some(0), 200).await;
    bench.record(&snapshot, &mut first);
    assert_eq!(measure(|| bench.record(&snapshot, &mut second)).count_total, 0);
}

#[tokio::test]
async fn new_nodes_are_announced_in_proportion_to_change() {
    const UPSTREAMS: usize = 20_000;
    let mut bench = Bench::new("").await;
    // They lead to an upstream that is not among these.
    bench.config.routes = [].into_iter().collect();
    bench.config.upstreams = (0..UPSTREAMS)
        .map(|at| Arc::new(Upstream { key: format!("u{at}"), ..(*bench.config.upstreams[0]).clone() }))
        .collect();
    let metrics = MetricsPlan::new(bench.config.gateway.metrics.as_ref().unwrap(), &bench.registry).unwrap();
    let metrics = Arc::new(metrics);
    let build = |config: &stillgate_config::Config, previous: Option<&Plan>| {
        Plan::build(1, config, &HashMap::new(), previous, Some(metrics.clone()), None).unwrap()
    };
    let before = build(&bench.config, bench.previous.as_deref());
    // All but the first come later in the list, and one is new.
    bench
        .config
        .upstreams
        .insert(1, Arc::new(Upstream { key: "new".to_owned(), ..(*bench.config.upstreams[0]).clone() }));
    let after = build(&bench.config, Some(&before));
    // CPU time of this thread, however busy its core is otherwise.
    let cpu_seconds = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let mut writer = bench.registry.writer().unwrap();
    let began = cpu_seconds();
    metrics.report_new_nodes(&after, Some(&before), &mut writer);
    // Comparing each with each took seconds.
    assert!(cpu_seconds() - began < 1.0);
    let text = bench.exposition();
    let told: Vec<&str> = text.lines().filter(|line| line.starts_with("stillgate_upstream_healthy{")).collect();
    assert!(told.len() == 2 && told.iter().all(|line| line.contains("upstream=\"new\"")), "{told:?}");
}

/// Labels whose values leave with no Plan. Paths, hosts and ports belong to what another label names, and the control thread
/// watches certificates.
const STAYING: [Label; 20] = [
    Label::Code,
    Label::Direction,
    Label::Family,
    Label::Hostname,
    Label::Key,
    Label::Kind,
    Label::MatchedHost,
    Label::MatchedUri,
    Label::Method,
    Label::Part,
    Label::Phase,
    Label::Plugin,
    Label::Port,
    Label::Protocol,
    Label::Reason,
    Label::Ssl,
    Label::State,
    Label::Type,
    Label::Version,
    Label::Worker,
];

/// The exporter ends the series of all families that have a label with such a value, whatever their other labels say.
#[tokio::test]
async fn each_label_of_a_family_ends_with_what_it_names() {
    for (word, dialect) in Dialect::ALL {
        let mut bench = Bench::new(&format!("dialect: {word}")).await;
        let text = "gateway: {listeners: [{address: \"127.0.0.1:1\"}]}\n\
                    upstreams: [{id: u, nodes: {\"10.0.0.1:81\": 1}}]\nservices: [{id: s, upstream_id: u}]\n\
                    routes: [{id: a, uri: /a, service_id: s}]\nstream_routes: [{id: t, upstream_id: u}]\n";
        let gateway = bench.config.gateway.clone();
        bench.config = stillgate_config::load(text, &|_| None).unwrap().config;
        bench.config.gateway = gateway;
        bench.config.plugins.consumers = consumers(&["ann"]);
        bench.snapshot();
        bench.config.routes = [].into_iter().collect();
        bench.config.stream_routes.clear();
        bench.config.upstreams.clear();
        bench.config.listeners.clear();
        bench.config.plugins.consumers = consumers(&[]);
        let after = bench.snapshot();
        let ending: BTreeSet<Label> = after
            .plan
            .series_changes()
            .left
            .iter()
            .filter(|subject| subject.labels.len() == 1)
            .map(|subject| subject.labels[0])
            .collect();
        for spec in dialect.families() {
            for label in spec.labels.iter().chain(spec.optional) {
                let ends = ending.contains(label) || STAYING.contains(label);
                assert!(ends, "{}: nothing ends the series of what {:?} names", spec.name, label.name());
            }
        }
    }
}
