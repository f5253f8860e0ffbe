//! Cost of a request for its plugins, in nanoseconds and in instructions: `cargo bench -p stillgate-plugins --bench
//! requests`.
//!
//! All phases of a chain are called as the gateway calls them, without IO and without a gateway around them. The timed
//! sections are short: a few requests, which are in the CPU's cache as if they had just been received. Each is timed in
//! several runs, of which the best counts, so that the load of the machine matters little; times are nevertheless an
//! indication, not a gate. Instructions are callgrind's, if valgrind is installed: the program runs itself with two
//! counts of requests and divides the difference.

#![allow(clippy::unwrap_used, reason = "a bench may stop at the first surprise")]

use cases::{Case, Kind};
use std::cell::OnceCell;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use stillgate_limits::Limits;
use stillgate_plugin_api::outbox::{Chunk, Outbox, OutboxCounters, Post};
use stillgate_plugin_api::record::{NodeTries, Record};
use stillgate_plugin_api::table::identity;
use stillgate_plugin_api::{
    BodyChanges, Chain, Consumer, Consumers, Credential, Facts, Flow, LogValues, MetadataItem, MetadataTable,
    NoSecrets, NoUpstreams, Phase, PluginLevel, PluginOrigin, Request, RequestState, Response, ServingProcess, Worker,
};
use stillgate_plugins::TABLE;
use stillgate_route::path::normalise;
use stillgate_schema::text::tree;
use stillgate_schema::{Node, Path, Sink, Value};
use stillgate_wire::{Edits, Fields, HeadLimits, RequestEdits, RequestHead, ResponseEdits};

mod cases;

const RUNS: usize = 15;
/// Requests of one run.
const REQUESTS: usize = 40_000;
/// Requests that are timed together.
const BATCH: usize = 32;
/// Number of requests that callgrind sees; the second run sees twice as many.
const COUNTED: usize = 2_000;
const NOW_MS: u64 = 1_795_220_833_000;
const LIMITS_BYTES: usize = 1024 * 1024;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if let [case, count] = &words[..] {
        let case = cases::all().into_iter().find(|one| one.name == *case).unwrap();
        return Bench::of(case).run(count.parse().unwrap());
    }
    let wanted = words.first().map(String::as_str).unwrap_or_default();
    println!("{:44} {:>8} {:>13} {:>9}", "case", "ns", "instructions", "mark, ns");
    for case in cases::all().into_iter().filter(|case| case.name.contains(wanted)) {
        let (name, mark) = (case.name, case.mark_ns);
        let mut bench = Bench::of(case);
        let mut best = vec![Duration::MAX; REQUESTS / BATCH];
        for _ in 0..RUNS {
            for best in &mut best {
                bench.receive(BATCH);
                let begin = Instant::now();
                bench.run(BATCH);
                *best = begin.elapsed().min(*best);
            }
        }
        let best = best.iter().sum::<Duration>().as_nanos() as f64 / REQUESTS as f64;
        let instructions = counted(name).map_or("-".to_owned(), |count| format!("{count:.0}"));
        let mark = mark.map_or(String::new(), |mark| mark.to_string());
        println!("{name:44} {best:>8.0} {instructions:>13} {mark:>9}");
    }
}

/// Instructions of one request; `None`: valgrind is not installed.
fn counted(name: &str) -> Option<f64> {
    let all = |count: usize| {
        let mut command = Command::new("valgrind");
        command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*Bench::run*"]);
        let output = command.arg(std::env::current_exe().ok()?).args([name, &count.to_string()]).output().ok()?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        let (_, total) = log.lines().find_map(|line| line.split_once("Collected : "))?;
        total.trim().parse::<f64>().ok()
    };
    Some((all(2 * COUNTED)? - all(COUNTED)?) / COUNTED as f64)
}

/// Accepts every chunk, and sends nothing.
#[derive(Default)]
struct Nowhere(Option<Chunk>);

impl Post for Nowhere {
    fn post(&mut self, mut chunk: Chunk) -> Result<(), Chunk> {
        chunk.clear();
        self.0 = Some(chunk);
        Ok(())
    }

    fn empty(&mut self) -> Option<Chunk> {
        self.0.take()
    }
}

/// A chain with its state, and the requests that it gets in turn.
struct Bench {
    chain: Chain,
    consumers: Consumers,
    metadata: MetadataTable,
    worker: Worker,
    asked: Vec<BenchRequest>,
    next: usize,
    kept: ConnectionState,
}

/// A request.
struct BenchRequest {
    head: Vec<u8>,
    request: RequestHead,
    target: String,
    client: IpAddr,
}

/// State that a connection reuses from request to request.
#[derive(Default)]
struct ConnectionState {
    edits: RequestEdits,
    early: Edits,
    response: ResponseEdits,
    body: BodyChanges,
    settled: RequestState,
    tries: NodeTries,
    process: ServingProcess,
}

fn parsed(text: &str) -> Node {
    tree::parse(0, text, None, &mut Sink::default()).unwrap().root
}

fn worker() -> Worker {
    let limits = OnceLock::new();
    limits.get_or_init(|| Arc::new(Limits::create(LIMITS_BYTES).unwrap()));
    let outbox = Outbox::new(Box::new(Nowhere::default()), Arc::new(OutboxCounters::new(["opentelemetry"])));
    let worker = Worker::new(Arc::new(limits)).with_outbox(outbox, Arc::default(), [1, 2]);
    worker.set_now_ms(NOW_MS);
    worker
}

impl Bench {
    fn of(case: Case) -> Bench {
        let mut sink = Sink::default();
        let origin = PluginOrigin { level: PluginLevel::Route, id: "r".into() };
        let entries =
            TABLE.compile(&parsed(&case.plugins), &origin, (&NoSecrets, &NoUpstreams), &Path::Root, &mut sink);
        let mut metadata = MetadataTable::default();
        if let Some((plugin, text)) = case.metadata {
            let (node, part) = (parsed(text), TABLE.find(plugin).unwrap().1.metadata.unwrap());
            let identity = identity(plugin, &origin, &node, &Path::Root, &mut sink);
            let value = (part.read)(&node, &Path::Root, &mut sink).unwrap();
            metadata.insert(MetadataItem { plugin, identity, value, written: Arc::default() });
        }
        let mut consumers = Consumers::default();
        for (number, credential) in case.credentials.iter().enumerate() {
            let Value::Map(written) = parsed(credential).value else { panic!("a map") };
            let plugin = TABLE.find(&written[0].key).unwrap().1;
            let (lookup, verifier) =
                (plugin.credential.unwrap().read)(&written[0].value, &Path::Root, &mut sink).unwrap();
            let (labels, plugins, credentials) = Default::default();
            let consumer = Consumer { name: format!("c{number}").into(), group: None, labels, plugins, credentials };
            consumers
                .insert(consumer, vec![Credential { plugin: plugin.name, lookup, place: None, verifier }])
                .unwrap();
        }
        let each = case.fields.len().max(case.targets.len()).max(case.clients.len());
        let asked = (0..each).map(|number| {
            let fields = &case.fields[number % case.fields.len()];
            let target = case.targets[number % case.targets.len()].clone();
            let client = case.clients[number % case.clients.len()];
            let head =
                format!("GET {target} HTTP/1.1\r\nHost: h\r\nUser-Agent: bench/1.0\r\n{fields}\r\n").into_bytes();
            let mut request = RequestHead::default();
            request.advance(&head, &HeadLimits::default()).unwrap();
            BenchRequest { head, request, target, client }
        });
        let chain = Chain::merge([&entries[..]]).unwrap();
        assert_eq!(chain.is_empty(), case.kind == Kind::Nothing);
        let (asked, next, kept) = (asked.collect(), 0, ConnectionState::default());
        Bench { chain, consumers, metadata, worker: worker(), asked, next, kept }
    }

    /// Reads the next requests, like a gateway that has just parsed them.
    fn receive(&self, count: usize) {
        for ahead in 1..=count {
            let BenchRequest { head, request, target, .. } = &self.asked[(self.next + ahead) % self.asked.len()];
            let fields = request.fields.iter().map(|field| field.value.of(head).len()).sum::<usize>();
            let bytes = head.iter().chain(target.as_bytes()).fold(0, |sum, byte| sum ^ byte);
            black_box((fields, bytes, request.path_and_query));
        }
    }

    /// The only part that callgrind counts.
    #[inline(never)]
    fn run(&mut self, count: usize) {
        for _ in 0..count {
            self.next = (self.next + 1) % self.asked.len();
            self.request();
        }
    }

    fn request(&mut self) {
        let Bench { chain, consumers, metadata, worker, asked, next, kept } = self;
        let BenchRequest { head, request, target, client } = &asked[*next];
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 40000));
        let mut scratch = Vec::new();
        let facts = Facts {
            head,
            request,
            host: b"h",
            path: normalise(target.as_bytes(), &mut scratch).ok(),
            client: *client,
            client_port: peer.port(),
            peer,
            trusted_proxies: &[],
            https_port: None,
            local: peer,
            protocol: "HTTP/1.1",
            scheme: "http",
            tls: None,
            route: None,
        };
        let ConnectionState { edits, early, response, body, settled, tries, process } = kept;
        edits.clear();
        early.clear();
        response.clear();
        body.clear();
        settled.clear();
        let mut consumer = None;
        let mut request = Request {
            facts,
            edits,
            body,
            received: None,
            settled,
            response: early,
            consumer: &mut consumer,
            consumers,
            id: &stillgate_plugin_api::record::RequestId::default(),
            worker,
            metadata,
        };
        for phase in [Phase::Rewrite, Phase::Access, Phase::BeforeProxy] {
            for (_, entry) in chain.of(phase) {
                let flow = match phase {
                    Phase::Rewrite => entry.plugin.rewrite(&mut request),
                    Phase::Access => entry.plugin.access(&mut request),
                    _ => entry.plugin.before_proxy(&mut request),
                };
                let flow = match flow {
                    Flow::Offload(offload) => (offload.then)(Ok((offload.work)()), &mut request),
                    flow => flow,
                };
                assert!(matches!(flow, Flow::Continue), "{}", entry.name);
            }
        }
        respond(chain, request, response, tries, process);
    }
}

/// Runs the response's phases.
fn respond(
    chain: &Chain,
    request: Request<'_>,
    edits: &mut ResponseEdits,
    tries: &NodeTries,
    process: &ServingProcess,
) {
    let Request { facts, edits: asked, body, settled, consumer, consumers, worker, metadata, .. } = request;
    let fields = Fields::default();
    let mut response = Response {
        facts,
        request_edits: &asked.fields,
        came_with: 200,
        is_of_node: true,
        node_status: Some(200),
        fields: &fields,
        head: b"",
        length: Some(100),
        edits,
        body,
        consumer: *consumer,
        consumers,
        settled,
        ended: None,
        recorded: &facts,
        worker,
        metadata,
    };
    chain.of(Phase::HeaderFilter).for_each(|(_, entry)| entry.plugin.header_filter(&mut response));
    chain.of(Phase::BodyFilter).for_each(|(_, entry)| entry.plugin.code_content(&mut response));
    let id = OnceCell::new();
    let record = Record {
        end_unix_ms: NOW_MS,
        method: b"GET",
        target: facts.path_and_query(),
        version: "HTTP/1.1",
        status: 200,
        bytes_sent: 300,
        body_bytes_sent: 100,
        bytes_received: 200,
        request_time_us: 150,
        upstream_time_us: Some(100),
        asked_us: Some(20),
        node_time_us: Some(100),
        tries,
        route_id: Some("r"),
        service_id: None,
        client: facts.client,
        vars: &facts,
        trace: response.settled.trace,
        id: &id,
        given_id: b"",
        process,
    };
    let ended = LogValues { record, request_body: None, response_body: None, request_is_whole: true };
    response.ended = Some(&ended);
    chain.of(Phase::Log).for_each(|(_, entry)| entry.plugin.log(&mut response));
}
