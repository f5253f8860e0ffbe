//! Cost of a response for a plugin that changes its body, in microseconds: `cargo bench -p stillgate-plugins --bench
//! bodies`.
//!
//! The phase `header_filter` and the filter are called as the gateway calls them, without IO and without a gateway
//! around them; work for another thread is done on this one. Each case is timed in several runs, of which the best
//! counts. If Python has them, the C libraries that nginx uses code the same bodies: zlib through Python's module, and
//! Google's brotli through its shared library. Their times include allocating and freeing their state, which nginx does
//! for each response as well. `-- WORDS` measures cases with these words in their names; `-- WORDS COUNT` runs them so
//! often without output, for a profiler.

#![allow(clippy::unwrap_used, reason = "a bench may stop at the first surprise")]

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use stillgate_plugin_api::body::BodyChange;
use stillgate_plugin_api::{
    BodyChanges, Chain, Consumers, Facts, MetadataTable, NoSecrets, NoUpstreams, Phase, PluginLevel, PluginOrigin,
    RequestState, Response, Worker,
};
use stillgate_plugins::TABLE;
use stillgate_schema::text::tree;
use stillgate_schema::{Path as Place, Sink};
use stillgate_wire::{Edits, HeadLimits, HeadProgress, Method, RequestHead, ResponseEdits, ResponseHead};

const RUNS: usize = 40;
/// Bodies of one run.
const BODIES: usize = 10;
/// Size of the pieces that a gateway gives filters, and the length of most bodies here.
const PIECE_BYTES: usize = 16 * 1024;
/// A prose text, JSON, and an HTML page, each with its first bytes.
const TEXTS: [(&str, &str); 3] = [
    ("text", "docs/configuration.md"),
    ("json", "crates/config/tests/data/schema.json"),
    ("html", "docs/results/tail-every-5s-haproxy.html"),
];
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip, br, zstd\r\n\r\n";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let (wanted, count) = (words.first().map_or("", String::as_str), words.get(1).map(|count| count.parse().unwrap()));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (kind, file) in TEXTS {
        let text = std::fs::read(root.join(file)).unwrap();
        for (length, words) in [(PIECE_BYTES, "16 KiB"), (8 * 1024, "8 KiB"), (4 * 1024, "4 KiB"), (100, "100 bytes")] {
            let body = &text[..length];
            for (name, plugins) in cases() {
                let name = format!("{name}, {words} of {kind}");
                if name.contains(wanted) && (length == PIECE_BYTES || kind == "text") {
                    measure(&name, &mut Bench::of(&plugins), body, count);
                }
            }
        }
        if count.is_none() && "peers".contains(wanted) {
            peers(kind, &root.join(file));
        }
    }
}

fn cases() -> Vec<(String, String)> {
    let coder = |plugin: &str, level: u32| {
        (format!("{plugin} {level}"), format!("{plugin}: {{types: [text/plain], comp_level: {level}}}"))
    };
    let mut cases: Vec<_> = [1, 2, 3, 4, 6, 9].map(|level| coder("gzip", level)).into();
    cases.extend([1, 4, 5, 6].map(|level| coder("brotli", level)));
    cases.push(coder("zstd", 3));
    cases.push(("echo".to_owned(), "echo: {before_body: '[', after_body: ']'}".to_owned()));
    cases
}

fn measure(name: &str, bench: &mut Bench, body: &[u8], count: Option<usize>) {
    if let Some(count) = count {
        return (0..count).for_each(|_| {
            black_box(bench.response(body));
        });
    }
    let (mut best, mut bytes) = (Duration::MAX, 0);
    for _ in 0..RUNS {
        let began = Instant::now();
        (0..BODIES).for_each(|_| bytes = black_box(bench.response(body)));
        best = best.min(began.elapsed());
    }
    println!("{name:36} {:>8.1} us {bytes:>6} bytes", best.as_secs_f64() * 1e6 / BODIES as f64);
}

/// Measures the peers with the same bodies.
fn peers(kind: &str, file: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers.py");
    let output = Command::new("python3").arg(script).arg(file).arg(PIECE_BYTES.to_string()).output();
    match output.map(|output| (output.status.success(), output)) {
        Ok((true, output)) => {
            String::from_utf8_lossy(&output.stdout).lines().for_each(|line| println!("{line}, 16 KiB of {kind}"));
        }
        Ok((false, output)) => println!("no peers: {}", String::from_utf8_lossy(&output.stderr)),
        Err(why) => println!("no peers: {why}"),
    }
}

/// A chain, and the inputs of its calls.
struct Bench {
    chain: Chain,
    request: RequestHead,
    consumers: Consumers,
    metadata: MetadataTable,
    worker: Worker,
    edits: ResponseEdits,
    body: BodyChanges,
    settled: RequestState,
    out: Vec<u8>,
}

impl Bench {
    fn of(plugins: &str) -> Bench {
        let mut sink = Sink::default();
        let origin = PluginOrigin { level: PluginLevel::Route, id: "r".into() };
        let written = tree::parse(0, plugins, None, &mut sink).unwrap().root;
        let entries = TABLE.compile(&written, &origin, (&NoSecrets, &NoUpstreams), &Place::Root, &mut sink);
        let mut request = RequestHead::default();
        request.advance(REQUEST, &HeadLimits::default()).unwrap();
        Bench {
            chain: Chain::merge([&entries[..]]).unwrap(),
            request,
            consumers: Consumers::default(),
            metadata: MetadataTable::default(),
            worker: Worker::default(),
            edits: ResponseEdits::default(),
            body: BodyChanges::default(),
            settled: RequestState::default(),
            out: Vec::new(),
        }
    }

    /// Processes one response; returns the length of its new body.
    fn response(&mut self, content: &[u8]) -> usize {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n", content.len());
        let mut response = ResponseHead::default();
        let read = response.advance(head.as_bytes(), Method::Get, &HeadLimits::default());
        assert!(matches!(read, Ok(HeadProgress::Complete(_))));
        let Bench { chain, request, consumers, metadata, worker, edits, body, settled, out } = self;
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 40000));
        let facts = Facts {
            head: REQUEST,
            request,
            host: b"h",
            path: None,
            client: peer.ip(),
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
        edits.clear();
        body.clear();
        settled.clear();
        out.clear();
        let asked = Edits::default();
        let mut response = Response {
            facts,
            request_edits: &asked,
            came_with: 200,
            is_of_node: true,
            node_status: Some(200),
            fields: &response.fields,
            head: head.as_bytes(),
            length: Some(content.len() as u64),
            edits,
            body,
            consumer: None,
            consumers,
            settled,
            ended: None,
            recorded: &facts,
            worker,
            metadata,
        };
        chain.of(Phase::HeaderFilter).for_each(|(_, entry)| entry.plugin.header_filter(&mut response));
        chain.of(Phase::BodyFilter).for_each(|(_, entry)| entry.plugin.code_content(&mut response));
        let Some(BodyChange::Filter(filter)) = body.iter_mut().next() else { panic!("no filter") };
        for piece in content.chunks(PIECE_BYTES.min(filter.piece_bytes_max())) {
            filter.piece(piece, out).unwrap();
        }
        filter.end(out).unwrap();
        while let Some(work) = filter.work() {
            filter.on_work_done(work(), out).unwrap();
        }
        out.len()
    }
}
