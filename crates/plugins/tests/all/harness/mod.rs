//! Runs configured plugins over the heads of a request and a response, and prints the results.

#![allow(dead_code, reason = "each test executable uses a part of it")]
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use stillgate_plugin_api::NoUpstreams;
use stillgate_plugin_api::body::BodyChange;
use stillgate_plugin_api::flow::Offload;
use stillgate_plugin_api::metadata::{MetadataItem, MetadataTable};
use stillgate_plugin_api::outbox::{Chunk, Outbox, OutboxCounters, Post};
use stillgate_plugin_api::record::{NodeTries, Record, RequestId};
use stillgate_plugin_api::response::LogValues;
use stillgate_plugin_api::secrets::NoSecrets;
use stillgate_plugin_api::{
    AnswerBody, BodyChanges, BodyError, BodyFilter, Call, CallError, Chain, ChainEntry, Consumers, Device, Facts, Flow,
    Identity, Io, LocalFuture, LogLevel, Phase, PluginLevel, PluginOrigin, Reply, Request, RequestState, Response,
    Worker,
};
use stillgate_plugins::TABLE;
use stillgate_route::path::{normalise, target_path};
use stillgate_schema::text::tree;
use stillgate_schema::{Node, Path, Sink};
use stillgate_wire::{
    Edits, Fields, Framing, HeadLimits, HeadProgress, Method, RequestEdits, RequestHead, ResponseEdits, ResponseHead,
    Version,
};

/// Configured plugins.
pub(crate) struct Plugins {
    chain: Chain,
    metadata: MetadataTable,
    client: IpAddr,
    /// For its time and its table of limits.
    pub(crate) worker: Worker,
    trusted: Vec<ipnet::IpNet>,
    /// The changes of a body whose filter the caller runs.
    begun: RefCell<Option<BodyChanges>>,
    /// The body that the node of the last request gets instead of the client's, or its answer.
    sent: RefCell<String>,
    consumers: Consumers,
    /// Whether the phase `log` runs.
    logs: bool,
    /// Whether it gets a record, so that loggers write entries.
    records: bool,
}

/// A node's response.
pub(crate) const OK: &str = "HTTP/1.1 200 OK\nContent-Type: text/plain\n\nhello world\n";

/// Compiles the `plugins` of a route; the error is the message for a file.
pub(crate) fn plugins(yaml: &str) -> Result<Plugins, String> {
    let mut sink = Sink::default();
    let entries = compiled(yaml, &mut sink);
    match (sink.has_errors(), entries) {
        (false, Some(entries)) => {
            let chain = Chain::merge([&entries[..]]).expect("a short chain");
            let client = Ipv4Addr::new(192, 0, 2, 7).into();
            let (metadata, worker, consumers) = Default::default();
            let (begun, sent) = Default::default();
            Ok(Plugins {
                chain,
                metadata,
                client,
                worker,
                trusted: Vec::new(),
                begun,
                sent,
                consumers,
                logs: false,
                records: false,
            })
        }
        _ => Err(sink.into_errors().to_string()),
    }
}

/// The errors of a configuration.
pub(crate) fn refusal(yaml: &str) -> String {
    plugins(yaml).err().unwrap_or_else(|| "accepted".to_owned()) + "\n"
}

/// The messages about a configuration in a store that others write to, too.
pub(crate) fn said_of_store(yaml: &str) -> String {
    let mut sink = Sink::default().passing_unknown();
    compiled(yaml, &mut sink);
    match sink.has_errors() {
        true => sink.into_errors().to_string() + "\n",
        false => sink.into_warnings().iter().map(|warning| format!("{warning}\n")).collect(),
    }
}

fn compiled(yaml: &str, sink: &mut Sink) -> Option<Vec<Arc<ChainEntry>>> {
    let origin = PluginOrigin { level: PluginLevel::Route, id: "r".into() };
    let node = read_yaml(yaml, sink)?;
    Some(TABLE.compile(&node, &origin, (&NoSecrets, &NoUpstreams), &Path::Root, sink))
}

fn read_yaml(yaml: &str, sink: &mut Sink) -> Option<Node> {
    tree::parse(0, yaml, Some(&|_| None), sink).map(|tree| tree.root)
}

/// The text of a head with the line ends of HTTP; the body after it is unchanged.
pub(crate) fn head_and_body(text: &str) -> (Vec<u8>, Vec<u8>) {
    let (head, body) = text.split_once("\n\n").unwrap_or((text.trim_end(), ""));
    (format!("{}\r\n\r\n", head.replace('\n', "\r\n")).into_bytes(), body.as_bytes().to_vec())
}

impl Plugins {
    /// Adds `plugin_metadata` of a plugin.
    pub(crate) fn with_metadata(mut self, plugin: &'static str, yaml: &str) -> Result<Plugins, String> {
        let mut sink = Sink::default();
        let part = TABLE.find(plugin).expect("a plugin").1.metadata.expect("a plugin with metadata");
        let metadata = read_yaml(yaml, &mut sink).and_then(|node| (part.read)(&node, &Path::Root, &mut sink));
        match metadata.filter(|_| !sink.has_errors()) {
            Some(value) => {
                let (identity, written) = (Identity(0), Arc::default());
                self.metadata.insert(MetadataItem { plugin, identity, value, written });
                Ok(self)
            }
            None => Err(sink.into_errors().to_string()),
        }
    }

    /// Sets the client of the requests.
    pub(crate) fn asked_by(mut self, client: &str) -> Plugins {
        self.client = client.parse().expect("an address");
        self
    }

    /// Trusts the client as a proxy.
    pub(crate) fn trusting(mut self) -> Plugins {
        self.trusted = vec!["127.0.0.0/8".parse().unwrap()];
        self
    }

    /// The resulting head of a response, and the changes of its body, which are not run.
    pub(crate) fn begin(&self, request: &str, response: &str) -> (String, BodyChanges) {
        self.begun.replace(Some(BodyChanges::default()));
        let transcript = self.run(request, response);
        (transcript, self.begun.take().expect("set above"))
    }

    /// The node's body of a request, or status and body of an answer.
    pub(crate) fn body_of_request(&self, request: &str) -> String {
        self.run(request, OK);
        self.sent.take()
    }

    /// Adds consumers.
    pub(crate) fn with_consumers(self, consumers: Consumers) -> Plugins {
        Plugins { consumers, ..self }
    }

    /// Runs the phase `log`, without times and sizes.
    pub(crate) fn logging(mut self) -> Plugins {
        self.logs = true;
        self
    }

    /// Runs the phase `log` with a record whose times and sizes are zero, and keeps what loggers write.
    pub(crate) fn recording(mut self) -> (Plugins, SentEntries) {
        (self.logs, self.records) = (true, true);
        let sent = SentEntries::default();
        let outbox = Outbox::new(Box::new(sent.clone()), Arc::new(OutboxCounters::new([])));
        self.worker = std::mem::take(&mut self.worker).with_outbox(outbox, Arc::default(), [1, 2]);
        (self, sent)
    }

    /// Sets the time of requests, in milliseconds since 1970.
    pub(crate) fn set_now_ms(&self, now_ms: u64) {
        self.worker.set_now_ms(now_ms);
    }

    /// Adds a server with these replies, one after the other, which records its requests.
    pub(crate) fn answered_by(mut self, replies: &[Result<&str, CallError>]) -> (Plugins, Rc<Server>) {
        let replies = replies.iter().map(|reply| reply.map(str::to_owned)).collect();
        let server = Rc::new(Server { replies: RefCell::new(replies), ..Server::default() });
        self.worker = std::mem::take(&mut self.worker).with_io(server.clone());
        (self, server)
    }

    /// Runs a request and the response of a node.
    pub(crate) fn run(&self, request: &str, response: &str) -> String {
        let (head, body) = head_and_body(response);
        self.exchange(request, &head, &[&body])
    }

    /// Like [`Plugins::run`], with the response's body in pieces.
    pub(crate) fn exchange(&self, request: &str, response: &[u8], pieces: &[&[u8]]) -> String {
        self.with_facts(request, |facts, body| {
            let mut out = String::new();
            let (mut early, mut settled) = (Edits::default(), RequestState::default());
            let mut edits = RequestEdits::default();
            let answer = self.request(facts, body, (&mut edits, &mut early, &mut settled), &mut out);
            self.response(facts, (&edits.fields, &early, &mut settled), answer, response, pieces, &mut out);
            out
        })
    }

    /// Calls the first plugin in `rewrite`. The caller completes what it waits for, with other requests in between.
    pub(crate) fn begun(&self, request: &str) -> Flow {
        self.with_request(request, |request| {
            let (_, entry) = self.chain.of(Phase::Rewrite).next().expect("a plugin");
            entry.plugin.rewrite(request)
        })
    }

    /// Continues a request that has waited, and returns what it does then, with its consumer.
    pub(crate) fn resumed(&self, request: &str, then: impl FnOnce(&mut Request<'_>) -> Flow) -> (Flow, Option<String>) {
        self.with_request(request, |request| {
            let flow = then(request);
            (flow, request.consumer.map(|found| self.consumers.of(found).name.to_string()))
        })
    }

    fn with_request<R>(&self, text: &str, then: impl FnOnce(&mut Request<'_>) -> R) -> R {
        self.with_facts(text, |facts, received| {
            let (mut edits, mut response, mut body) =
                (RequestEdits::default(), Edits::default(), BodyChanges::default());
            let (mut settled, mut consumer) = (RequestState::default(), None);
            then(&mut Request {
                facts,
                edits: &mut edits,
                body: &mut body,
                received: Some(received),
                settled: &mut settled,
                response: &mut response,
                consumer: &mut consumer,
                consumers: &self.consumers,
                id: &RequestId::default(),
                worker: &self.worker,
                metadata: &self.metadata,
            })
        })
    }

    /// Parses a request with its body.
    fn with_facts<R>(&self, request: &str, then: impl FnOnce(Facts<'_>, &[u8]) -> R) -> R {
        let (head, body) = head_and_body(request);
        let mut parsed = RequestHead::default();
        // The maximum: the plugins' own limits are tested here.
        let most = u16::MAX as usize;
        let limits = HeadLimits { head_bytes_max: most, target_bytes_max: most, ..HeadLimits::default() };
        let progress = parsed.advance(&head, &limits);
        assert_eq!(progress, Ok(HeadProgress::Complete(head.len())), "{request}");
        let mut scratch = Vec::new();
        let path = normalise(target_path(parsed.path_and_query.of(&head)).0, &mut scratch).expect("a path");
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 40000));
        let facts = Facts {
            head: &head,
            request: &parsed,
            host: b"h.example",
            path: Some(path),
            client: self.client,
            client_port: 40000,
            peer,
            local: peer,
            protocol: if parsed.version == Version::Http10 { "HTTP/1.0" } else { "HTTP/1.1" },
            scheme: "http",
            trusted_proxies: &self.trusted,
            https_port: None,
            tls: None,
            route: None,
        };
        then(facts, &body)
    }

    /// The phases before the request is forwarded; the answer of a plugin, if one answers.
    fn request(
        &self,
        facts: Facts<'_>,
        received: &[u8],
        (edits, early, settled): (&mut RequestEdits, &mut Edits, &mut RequestState),
        out: &mut String,
    ) -> Option<(u16, Vec<u8>)> {
        let mut body = BodyChanges::default();
        let mut consumer = None;
        let mut request = Request {
            facts,
            edits,
            body: &mut body,
            received: Some(received),
            settled,
            response: early,
            consumer: &mut consumer,
            consumers: &self.consumers,
            id: &stillgate_plugin_api::record::RequestId::default(),
            worker: &self.worker,
            metadata: &self.metadata,
        };
        for phase in [Phase::Rewrite, Phase::Access, Phase::BeforeProxy] {
            for (_, entry) in self.chain.of(phase) {
                if let Flow::Answer(answer) = called(entry, phase, &mut request) {
                    let body = match &answer.body {
                        AnswerBody::Metrics => b"(the metrics)".to_vec(),
                        AnswerBody::Device(device) => shown(device).into_bytes(),
                        body => body.bytes().to_vec(),
                    };
                    self.sent.replace(format!("{} {}", answer.status, String::from_utf8_lossy(&body)));
                    writeln!(out, "> {} answers", entry.name).unwrap();
                    return Some((answer.status, body));
                }
            }
        }
        self.sent.replace(String::from_utf8_lossy(body.replaced().unwrap_or_default()).into_owned());
        let method = edits.method().unwrap_or_else(|| facts.method());
        let target = edits.target().unwrap_or_else(|| facts.path_and_query());
        writeln!(out, "> {} {}", String::from_utf8_lossy(method), String::from_utf8_lossy(target)).unwrap();
        if let Some(host) = edits.host() {
            writeln!(out, "> host of the node: {}", String::from_utf8_lossy(host)).unwrap();
        }
        print_fields("> ", &edits.fields, &facts.request.fields, facts.head, out);
        None
    }

    fn response(
        &self,
        facts: Facts<'_>,
        (request_edits, early, settled): (&Edits, &Edits, &mut RequestState),
        answer: Option<(u16, Vec<u8>)>,
        head: &[u8],
        pieces: &[&[u8]],
        out: &mut String,
    ) {
        let mut parsed = ResponseHead::default();
        parsed.advance(head, Method::Get, &HeadLimits::default()).expect("a response");
        let none = Fields::default();
        let (came_with, fields, pieces) = match &answer {
            Some((status, body)) => (*status, &none, &[&body[..]][..]),
            None => (parsed.status, &parsed.fields, pieces),
        };
        let (mut edits, mut body) = (ResponseEdits::default(), BodyChanges::default());
        edits.fields.overlay(fields, head, early);
        let mut response = Response {
            facts,
            request_edits,
            came_with,
            is_of_node: answer.is_none(),
            node_status: answer.is_none().then_some(came_with),
            fields,
            head,
            length: answer.as_ref().map(|(_, body)| body.len() as u64).or(length_of(&parsed)),
            edits: &mut edits,
            body: &mut body,
            consumer: None,
            consumers: &self.consumers,
            settled,
            ended: None,
            recorded: &facts,
            worker: &self.worker,
            metadata: &self.metadata,
        };
        for (_, entry) in self.chain.of(Phase::HeaderFilter) {
            entry.plugin.header_filter(&mut response);
        }
        for (_, entry) in self.chain.of(Phase::BodyFilter) {
            entry.plugin.code_content(&mut response);
        }
        if self.logs {
            self.log(&mut response);
        }
        let status = response.status();
        if let Some(begun) = &mut *self.begun.borrow_mut() {
            std::mem::swap(begun, &mut body);
        }
        match changed(&mut body, pieces) {
            Err(error) => writeln!(out, "< 502, since {error}").unwrap(),
            Ok(body) => {
                writeln!(out, "< {status}").unwrap();
                print_fields("< ", &edits.fields, fields, head, out);
                writeln!(out, "< {:?}", String::from_utf8_lossy(&body)).unwrap();
            }
        }
    }
}

impl Plugins {
    /// The phase `log`.
    fn log(&self, response: &mut Response<'_>) {
        let (facts, tries, id) = (response.facts, NodeTries::default(), RequestId::default());
        let record = Record {
            end_unix_ms: self.worker.now_ms(),
            method: facts.method(),
            target: facts.request.target.of(facts.head),
            version: facts.protocol,
            status: response.status(),
            bytes_sent: 0,
            body_bytes_sent: 0,
            bytes_received: 0,
            request_time_us: 0,
            upstream_time_us: None,
            asked_us: None,
            node_time_us: None,
            tries: &tries,
            route_id: None,
            service_id: None,
            client: facts.client,
            vars: &facts,
            trace: response.settled.trace,
            id: &id,
            given_id: b"",
            process: self.worker.process(),
        };
        let ended = LogValues { record, request_body: None, request_is_whole: true, response_body: None };
        // It must not outlive the record.
        let mut response = Response {
            body: &mut *response.body,
            edits: &mut *response.edits,
            settled: &mut *response.settled,
            ended: self.records.then_some(&ended),
            ..*response
        };
        self.chain.of(Phase::Log).for_each(|(_, entry)| entry.plugin.log(&mut response));
        self.worker.flush();
    }
}

/// What loggers have written.
#[derive(Default, Clone)]
pub(crate) struct SentEntries(Arc<Mutex<Vec<String>>>);

impl SentEntries {
    /// The entries so far.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Post for SentEntries {
    fn post(&mut self, mut chunk: Chunk) -> Result<(), Chunk> {
        let entries = chunk.iter().map(|(_, entry)| String::from_utf8_lossy(entry).into_owned());
        self.0.lock().unwrap().extend(entries);
        chunk.clear();
        Ok(())
    }

    fn empty(&mut self) -> Option<Chunk> {
        None
    }
}

/// A server that plugins call, and a clock that does not wait.
#[derive(Default)]
pub(crate) struct Server {
    replies: RefCell<VecDeque<Result<String, CallError>>>,
    /// Its requests.
    pub(crate) asked: RefCell<Vec<String>>,
    /// Warnings of plugins.
    pub(crate) warned: RefCell<Vec<String>>,
    /// Sleeps of plugins.
    pub(crate) slept: RefCell<Vec<Duration>>,
}

impl Server {
    fn note(&self, call: &Call) {
        let agent = concat!("User-Agent: stillgate/", env!("CARGO_PKG_VERSION"), "\r\n");
        let text = String::from_utf8_lossy(&call.clone().take_message()).replace(agent, "").replace('\r', "");
        self.asked.borrow_mut().push(text);
    }
}

impl Io for Server {
    fn sleep(&self, time: Duration) -> LocalFuture<()> {
        self.slept.borrow_mut().push(time);
        Box::pin(std::future::ready(()))
    }

    fn call(&self, call: Call) -> LocalFuture<Result<Reply, CallError>> {
        self.note(&call);
        let reply = self.replies.borrow_mut().pop_front().unwrap_or(Err(CallError::Connect));
        Box::pin(std::future::ready(reply.map(|text| Reply::parse_for_test(&text))))
    }

    fn send(&self, _: &'static str, call: Call) {
        self.note(&call);
    }

    /// It completes at once, as everything that it waits for is ready.
    fn spawn(&self, mut task: LocalFuture<()>) {
        assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }

    fn warn(&self, plugin: &'static str, what: &str) {
        self.warned.borrow_mut().push(format!("{plugin}: {what}"));
    }

    fn is_logged(&self, level: LogLevel) -> bool {
        level <= LogLevel::Warn
    }

    fn log(&self, plugin: &'static str, level: LogLevel, text: &str) {
        self.warned.borrow_mut().push(format!("{plugin}: {level:?} {text}"));
    }

    fn fail(&self, plugin: &'static str, why: &str) {
        self.warned.borrow_mut().push(format!("{plugin} failed: {why}"));
    }

    fn drop_send(&self, plugin: &'static str) {
        self.asked.borrow_mut().push(format!("dropped by {plugin}"));
    }
}

/// Runs a phase of a plugin, after the arguments that it waits for. Its filter is evaluated in each.
fn called(entry: &ChainEntry, phase: Phase, request: &mut Request<'_>) -> Flow {
    let can_wait = phase != Phase::BeforeProxy;
    if can_wait && let Some(flow) = entry.before_filter(request) {
        match settled_flow(flow, request) {
            Flow::Continue => {}
            answer => return answer,
        }
    }
    if entry.meta.filter.as_ref().is_some_and(|filter| !filter.holds(&request.facts, request)) {
        return Flow::Continue;
    }
    let waits = if can_wait { entry.before_call(request) } else { None };
    match waits.map_or(Flow::Continue, |flow| settled_flow(flow, request)) {
        Flow::Continue => {}
        answer => return answer,
    }
    let flow = match phase {
        Phase::Rewrite => entry.plugin.rewrite(request),
        Phase::Access => entry.plugin.access(request),
        _ => entry.plugin.before_proxy(request),
    };
    settled_flow(flow, request)
}

/// Completes a plugin's wait at once; time passes at once.
pub(crate) fn settled_flow(mut flow: Flow, request: &mut Request<'_>) -> Flow {
    loop {
        flow = match flow {
            Flow::Wait(mut future) => {
                let mut cx = Context::from_waker(Waker::noop());
                loop {
                    if let Poll::Ready(then) = future.as_mut().poll(&mut cx) {
                        break then(request);
                    }
                }
            }
            Flow::Offload(Offload { work, then }) => then(Ok(work()), request),
            Flow::Body(body) if request.whole_body().is_some_and(|whole| whole.len() > body.bytes_max) => {
                return Flow::Answer(body.too_large);
            }
            Flow::Body(body) => (body.then)(request),
            done => return done,
        };
    }
}

fn length_of(head: &ResponseHead) -> Option<u64> {
    match head.framing {
        Framing::Length(length) => Some(length),
        _ => None,
    }
}

fn print_fields(mark: &str, edits: &Edits, fields: &Fields, head: &[u8], out: &mut String) {
    edits.each(fields, head, &mut |name, value| {
        writeln!(out, "{mark}{}: {}", name.escape_ascii(), String::from_utf8_lossy(value)).unwrap();
    });
}

/// Runs the work of a filter.
pub(crate) fn work(filter: &mut dyn BodyFilter, out: &mut Vec<u8>) -> Result<(), BodyError> {
    while let Some(work) = filter.work() {
        filter.on_work_done(work(), out)?;
    }
    Ok(())
}

/// The result of the changes of a body.
pub(crate) fn changed(changes: &mut BodyChanges, pieces: &[&[u8]]) -> Result<Vec<u8>, BodyError> {
    let mut pieces: Vec<Vec<u8>> = pieces.iter().map(|piece| piece.to_vec()).collect();
    for change in changes.iter_mut() {
        pieces = match change {
            BodyChange::Replace(body) => vec![body.clone()],
            BodyChange::Filter(filter) => {
                let mut out = Vec::new();
                for piece in &pieces {
                    filter.piece(piece, &mut out)?;
                    work(&mut **filter, &mut out)?;
                }
                filter.end(&mut out)?;
                work(&mut **filter, &mut out)?;
                vec![out]
            }
        };
    }
    Ok(pieces.concat())
}

/// Formats an admitted device.
fn shown(device: &Device) -> String {
    let Device { id, labels, protocol, subprotocol, accept, .. } = device;
    let accept = String::from_utf8_lossy(accept);
    format!("(the device {id:?} with {labels:?} in {protocol:?} as {subprotocol:?}, {accept})")
}
