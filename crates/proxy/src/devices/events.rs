//! Events of a device on their way to the upstream: one request each, in the order in which they happened.
//!
//! Each connection has a queue, bounded in bytes, and one task while it is not empty. Events that the upstream does not accept are
//! retried with growing pauses, for as long as the route says; then they are dropped and counted, as are events without room in the
//! queue. The queue outlives its connection, whose end is its last event.

use crate::basics::clock::Timer;
use crate::calls;
use crate::connection::stream::Stream;
use crate::exchange::target::host_of;
use crate::node::{self, Destination, health};
use crate::plan::snapshot::WorkerUpstream;
use crate::worker::Worker;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use stillgate_devices::Generation;
use stillgate_devices::protocol::Body;
use stillgate_plugin_api::{Call, CallError, DeviceSettings, EventSettings, Url};
use stillgate_tls::rustls::pki_types::ServerName;
use stillgate_upstream::{ConnMeta, Failure, TriedEndpoints, TryReport};
use stillgate_wire::{FieldName, FieldValue};
use tokio::task::spawn_local;
use tokio::time::sleep;

/// What an event counts in addition to its bytes.
const EVENT_OVERHEAD_BYTES: usize = 64;
/// Pauses between retries: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The events of one connection.
pub(super) struct Events(Rc<Queue>);

struct Queue {
    device: Arc<str>,
    generation: Generation,
    settings: Arc<DeviceSettings>,
    /// The id of its route, for counters.
    route: Arc<str>,
    waiting: RefCell<VecDeque<DeviceEvent>>,
    bytes: Cell<usize>,
    /// The number of the last event.
    seq: Cell<u64>,
    is_sending: Cell<bool>,
    /// The connection's task, if it waits for the upstream.
    waker: RefCell<Option<Waker>>,
}

struct DeviceEvent {
    kind: &'static str,
    seq: u64,
    body: Body<'static>,
}

impl DeviceEvent {
    fn bytes(&self) -> usize {
        EVENT_OVERHEAD_BYTES + self.body.bytes().len()
    }
}

impl Events {
    pub(super) fn new(
        device: &Arc<str>,
        generation: Generation,
        settings: &Arc<DeviceSettings>,
        route: &str,
        seq: u64,
    ) -> Events {
        Events(Rc::new(Queue {
            device: device.clone(),
            generation,
            settings: settings.clone(),
            route: route.into(),
            waiting: RefCell::default(),
            bytes: Cell::new(0),
            seq: Cell::new(seq),
            is_sending: Cell::new(false),
            waker: RefCell::default(),
        }))
    }

    /// Whether the upstream has received all events.
    pub(super) fn is_idle(&self) -> bool {
        self.0.waiting.borrow().is_empty()
    }

    /// The number of the last event.
    pub(super) fn seq(&self) -> u64 {
        self.0.seq.get()
    }

    /// The device has connected.
    pub(super) fn push_connect(&self, worker: &Rc<Worker>) {
        self.push(worker, "connect", Body::Json("{}".into()), true);
    }

    /// The connection has ended.
    pub(super) fn push_disconnect(&self, worker: &Rc<Worker>, reason: &str) {
        self.push(worker, "disconnect", Body::Json(format!("{{\"reason\":\"{reason}\"}}").into()), true);
    }

    /// The device has sent an event. True: its next messages wait for the upstream.
    pub(super) fn push_message(&self, worker: &Rc<Worker>, body: Body<'static>) -> bool {
        self.push(worker, "message", body, false);
        self.waits()
    }

    fn waits(&self) -> bool {
        let is_acknowledged = self.0.settings.events.as_ref().is_some_and(|events| events.is_acknowledged);
        is_acknowledged && !self.0.waiting.borrow().is_empty()
    }

    /// Ready when the next messages of the device may be processed.
    pub(super) fn poll_ready(&self, cx: &Context<'_>) -> Poll<()> {
        if !self.waits() {
            return Poll::Ready(());
        }
        *self.0.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }

    /// `fits`: the event is small, and a connection has only two of them.
    fn push(&self, worker: &Rc<Worker>, kind: &'static str, body: Body<'static>, fits: bool) {
        let queue = &self.0;
        let Some(settings) = &queue.settings.events else { return };
        queue.seq.set(queue.seq.get() + 1);
        let event = DeviceEvent { kind, seq: queue.seq.get(), body };
        let bytes = queue.bytes.get() + event.bytes();
        if bytes > settings.queue_bytes_max && !fits {
            worker.report_device_event_dropped(&queue.route);
            return;
        }
        queue.bytes.set(bytes);
        queue.waiting.borrow_mut().push_back(event);
        if !queue.is_sending.replace(true) {
            spawn_local(send(worker.clone(), queue.clone()));
        }
    }
}

/// Sends the events of a queue until it is empty.
async fn send(worker: Rc<Worker>, queue: Rc<Queue>) {
    while let Some(request) = queue.next() {
        if !deliver(&worker, &queue, &request).await {
            worker.report_device_event_dropped(&queue.route);
        }
        queue.done();
    }
    queue.is_sending.set(false);
}

/// Sends an event; returns whether the upstream has accepted it.
async fn deliver(worker: &Rc<Worker>, queue: &Queue, request: &EventRequest) -> bool {
    let Some(settings) = &queue.settings.events else { return false };
    let until_ms = worker.clock.now_ms() + settings.retry.as_millis() as u64;
    let mut pause = PAUSE_MIN;
    loop {
        match post(worker, settings, request).await {
            EventResult::Accepted => return true,
            EventResult::Refused => return false,
            EventResult::Failed => {}
        }
        // Devices that reconnect at the same time must not retry at the same time.
        let pause_ms = pause.as_millis() as u64;
        let jittered_ms = pause_ms / 2 + worker.random() % pause_ms.max(1);
        if worker.clock.now_ms() + jittered_ms >= until_ms {
            return false;
        }
        sleep(Duration::from_millis(jittered_ms)).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

impl Queue {
    /// The next event to send; it stays in the queue until it is done.
    fn next(&self) -> Option<EventRequest> {
        let waiting = self.waiting.borrow();
        let event = waiting.front()?;
        Some(EventRequest {
            device: self.device.clone(),
            generation: self.generation,
            kind: event.kind,
            seq: event.seq,
            content_type: event.body.content_type(),
            body: event.body.bytes().to_vec(),
        })
    }

    fn done(&self) {
        if let Some(event) = self.waiting.borrow_mut().pop_front() {
            self.bytes.set(self.bytes.get() - event.bytes());
        }
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

// One request that delivers a device's event to the upstream: a node is chosen as for any request, and its connections come from
// the pool.

const CONTENT_TYPE: FieldName<'static> = FieldName::constant("Content-Type");
const DEVICE_ID: FieldName<'static> = FieldName::constant("X-Device-Id");
const DEVICE_EVENT: FieldName<'static> = FieldName::constant("X-Device-Event");
const DEVICE_SEQ: FieldName<'static> = FieldName::constant("X-Device-Seq");
const DEVICE_CONNECTION: FieldName<'static> = FieldName::constant("X-Device-Connection");
/// Bound of the upstream's response, which is discarded.
const REPLY_BYTES_MAX: usize = 64 * 1024;

/// One event.
pub(super) struct EventRequest {
    pub(super) device: Arc<str>,
    pub(super) generation: Generation,
    pub(super) kind: &'static str,
    pub(super) seq: u64,
    pub(super) content_type: &'static str,
    pub(super) body: Vec<u8>,
}

/// Result of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventResult {
    /// 2xx.
    Accepted,
    /// Another status that will not change.
    Refused,
    /// Trying again may help.
    Failed,
}

/// Sends the event to one node.
pub(super) async fn post(worker: &Rc<Worker>, settings: &EventSettings, event: &EventRequest) -> EventResult {
    let snapshot = worker.snapshot();
    let slot = snapshot.plan.upstreams.slot(&settings.upstream);
    let Some(upstream) = slot.and_then(|slot| snapshot.upstreams.get(slot)).cloned() else {
        return EventResult::Failed;
    };
    // A request does not hold its Plan while it waits.
    drop(snapshot);
    let now_ms = worker.clock.now_ms();
    let picked = upstream.state.borrow_mut().pick(None, now_ms, worker.random(), &TriedEndpoints::new());
    let Some(index) = picked else { return EventResult::Failed };
    let trying = EventGuard::begin(worker, &upstream, index);
    let Some(call) = call(settings, event, &upstream, index) else { return EventResult::Refused };
    match trying.exchange(call).await {
        Ok(status) => {
            health::report(worker, &upstream, index, TryReport::Status(status), || format!("status {status}"));
            match status {
                200..300 => EventResult::Accepted,
                408 | 425 | 429 | 500.. => EventResult::Failed,
                _ => EventResult::Refused,
            }
        }
        Err(error) => {
            if let Some(failure) = error {
                health::report_failure(worker, &upstream, index, failure, false);
            }
            EventResult::Failed
        }
    }
}

/// A try under way; its end is counted even if its task is dropped.
struct EventGuard<'a> {
    worker: &'a Rc<Worker>,
    upstream: &'a Rc<WorkerUpstream>,
    index: usize,
}

impl<'a> EventGuard<'a> {
    fn begin(worker: &'a Rc<Worker>, upstream: &'a Rc<WorkerUpstream>, index: usize) -> EventGuard<'a> {
        upstream.state.borrow_mut().on_start(index);
        EventGuard { worker, upstream, index }
    }

    /// The status of the response, or how the node has failed; `None`: the node is not at fault.
    async fn exchange(&self, mut call: Call) -> Result<u16, Option<Failure>> {
        let message = call.take_message();
        if let Some((mut stream, meta)) = self.pooled() {
            match calls::exchange(&mut stream, &call, &message).await {
                // It was closed meanwhile: the node has not processed the request.
                Err((CallError::Closed, false)) => {}
                result => return self.finish(stream, meta, result),
            }
        }
        let EventGuard { worker, upstream, index } = self;
        let name = self.server_name();
        let address = upstream.state.borrow().endpoint(*index).address;
        let tls = upstream.tls.as_ref().zip(name);
        let (http2, grpc) = (upstream.planned.link.http2, upstream.planned.link.grpc);
        let destination =
            Destination { upstream, address, tls, http2, grpc, has_large_head: false, proxy_protocol_header: &[] };
        let timeout_ms = call.timeout.as_millis() as u64;
        let connected = node::connect(worker, &Timer::new(), destination, timeout_ms).await;
        let (stream, _) = connected.map_err(|error| (!error.is_local).then_some(error.failure))?;
        health::report(worker, upstream, *index, TryReport::Connected, String::new);
        let meta = upstream.state.borrow().fresh_meta(*index);
        let now_ms = worker.clock.now_ms();
        let (mut stream, meta) = node::keep_shared(&mut upstream.state.borrow_mut(), *index, stream, meta, now_ms);
        let result = calls::exchange(&mut stream, &call, &message).await;
        self.finish(stream, meta, result)
    }

    fn pooled(&self) -> Option<(Stream, ConnMeta)> {
        let wanted = self.server_name();
        let is_name = |shown: Option<&ServerName<'static>>, _: &str| shown == wanted.as_ref();
        let mut state = self.upstream.state.borrow_mut();
        node::take_live(&mut state, self.index, is_name, (false, self.worker.clock.now_ms()))
    }

    /// The name that the node's certificate must be valid for, if its upstream uses TLS.
    fn server_name(&self) -> Option<ServerName<'static>> {
        let tls = self.upstream.planned.tls()?;
        let state = self.upstream.state.borrow();
        let node = &state.endpoint(self.index).host;
        let host = host_of(None, b"", &self.upstream.planned.definition.pass_host, node);
        Some(tls.server_name(std::str::from_utf8(host).unwrap_or_default(), node))
    }

    fn finish(
        &self,
        stream: Stream,
        meta: ConnMeta,
        result: Result<(stillgate_plugin_api::Reply, bool), (CallError, bool)>,
    ) -> Result<u16, Option<Failure>> {
        match result {
            Ok((reply, is_kept)) => {
                if is_kept && !stream.is_one_request() {
                    let now_ms = self.worker.clock.now_ms();
                    drop(self.upstream.state.borrow_mut().put(self.index, stream, meta, now_ms));
                }
                Ok(reply.status())
            }
            // A response that is too large is still a response, and is discarded.
            Err((CallError::TooLarge, _)) => Ok(200),
            Err((CallError::Timeout, _)) => {
                stream.retire();
                Err(Some(Failure::ReadTimeout))
            }
            Err((CallError::BadReply, _)) => Err(Some(Failure::BadResponse)),
            Err(_) => Err(Some(Failure::Reset)),
        }
    }
}

impl Drop for EventGuard<'_> {
    fn drop(&mut self) {
        self.upstream.state.borrow_mut().on_finish(self.index, None, self.worker.clock.now_ms());
    }
}

/// Builds the request; `None`: its content cannot be expressed in a header.
fn call(settings: &EventSettings, event: &EventRequest, upstream: &WorkerUpstream, index: usize) -> Option<Call> {
    let state = upstream.state.borrow();
    let endpoint = state.endpoint(index);
    let url = Url::parse(&format!("http://{}/", endpoint.address), false).ok()?;
    let mut call = Call::new(&url.origin, b"POST", settings.uri.as_bytes());
    (call.timeout, call.reply_bytes_max) = (settings.timeout, REPLY_BYTES_MAX);
    let host = host_of(None, b"", &upstream.planned.definition.pass_host, &endpoint.host);
    call.set_host(FieldValue::new(host).ok()?);
    let (seq, generation) = (event.seq.to_string(), event.generation.to_string());
    let text =
        |name, text: &str, call: &mut Call| FieldValue::new(text.as_bytes()).map(|value| call.header(name, value)).ok();
    text(CONTENT_TYPE, event.content_type, &mut call)?;
    text(DEVICE_ID, &event.device, &mut call)?;
    text(DEVICE_EVENT, event.kind, &mut call)?;
    text(DEVICE_SEQ, &seq, &mut call)?;
    text(DEVICE_CONNECTION, &generation, &mut call)?;
    call.set_body(event.body.clone());
    Some(call)
}
