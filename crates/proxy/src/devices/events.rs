//! Events of a device on their way to the upstream: one request each, in the order in which they happened.
//!
//! A device's queue ([`EventQueues`]) has one task while it is not empty. Events that the upstream does not accept are retried with
//! growing pauses, for as long as the route says, counted from when the event was taken; then they are dropped and counted, as are
//! events without room in the queue. The queue outlives its connections, whose ends are their last events.

use crate::basics::clock::Timer;
use crate::calls;
use crate::connection::stream::Stream;
use crate::exchange::target::host_of;
use crate::node::{self, Destination, health};
use crate::plan::snapshot::WorkerUpstream;
use crate::worker::Worker;
use crate::worker::event_queues::{DeviceEvent, EventQueue, EventQueues, EventSource, PushOutcome};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use stillgate_devices::Generation;
use stillgate_devices::protocol::Body;
use stillgate_plugin_api::{Call, CallError, DeviceSettings, EventReceiverSettings, Url};
use stillgate_tls::rustls::pki_types::ServerName;
use stillgate_upstream::{ConnMeta, Failure, TriedEndpoints, TryReport};
use stillgate_wire::{FieldName, FieldValue};
use tokio::sync::Semaphore;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

/// Pauses between retries: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The events of one connection.
pub(super) struct Events(Rc<EventSource>);

impl Events {
    pub(super) fn new(
        device: &Arc<str>,
        generation: Generation,
        settings: &Arc<DeviceSettings>,
        route: Arc<str>,
        seq: u64,
    ) -> Events {
        let (device, settings) = (device.clone(), settings.clone());
        Events(Rc::new(EventSource { device, generation, settings, route, seq: seq.into() }))
    }

    /// Whether the upstream has received all events of the device, those of its earlier connections included.
    pub(super) fn is_idle(&self, queues: &EventQueues) -> bool {
        !queues.has(&self.0.device)
    }

    /// The number of the last event.
    pub(super) fn seq(&self) -> u64 {
        self.0.seq.get()
    }

    /// The device has connected.
    pub(super) fn push_connect(&self, worker: &Rc<Worker>) {
        self.push(worker, "connect", Body::Json("{}".into()));
    }

    /// The connection has ended.
    pub(super) fn push_disconnect(&self, worker: &Rc<Worker>, reason: &str) {
        self.push(worker, "disconnect", Body::Json(format!("{{\"reason\":\"{reason}\"}}").into()));
    }

    /// The device has sent an event.
    pub(super) fn push_message(&self, worker: &Rc<Worker>, body: Body<'static>) {
        self.push(worker, "message", body);
    }

    /// Whether further messages of the device wait for the upstream.
    pub(super) fn holds_back(&self, queues: &EventQueues) -> bool {
        let is_acknowledged = self.0.settings.events.as_ref().is_some_and(|events| events.is_acknowledged);
        is_acknowledged && !self.is_idle(queues)
    }

    /// Ready when the next messages of the device may be processed.
    pub(super) fn poll_ready(&self, queues: &EventQueues, cx: &Context<'_>) -> Poll<()> {
        if !self.holds_back(queues) {
            return Poll::Ready(());
        }
        queues.wake_when_done(&self.0.device, cx.waker());
        Poll::Pending
    }

    fn push(&self, worker: &Rc<Worker>, kind: &'static str, body: Body<'static>) {
        let (Some(settings), Some(devices)) = (&self.0.settings.events, &worker.devices) else { return };
        let seq = self.0.seq.get() + 1;
        self.0.seq.set(seq);
        let taken_ms = worker.clock.now_ms();
        let event = DeviceEvent { source: self.0.clone(), kind, seq, taken_ms, body };
        match devices.events.push(event, settings.queue_bytes_max) {
            PushOutcome::First(queue) => drop(spawn_local(send(worker.clone(), queue))),
            PushOutcome::Behind => {}
            PushOutcome::NoRoom => worker.report_device_event_dropped(&self.0.route),
        }
    }
}

/// Sends the events of a queue until it is empty.
async fn send(worker: Rc<Worker>, queue: Rc<EventQueue>) {
    let Some(devices) = &worker.devices else { return };
    let mut has_failed = false;
    while let Some(event) = queue.front() {
        let result = deliver(&worker, &devices.events, &event, has_failed).await;
        has_failed = result == EventResult::Failed;
        if result != EventResult::Accepted {
            worker.report_device_event_dropped(&event.source.route);
        }
        devices.events.finish_front(&queue);
    }
    devices.events.remove(&queue);
}

/// Sends an event, as often as its time allows. After an event that failed, those behind it whose time is over are not tried:
/// each of them would take a timeout, and a full queue hours.
async fn deliver(worker: &Rc<Worker>, queues: &EventQueues, event: &DeviceEvent, has_failed: bool) -> EventResult {
    let Some(settings) = &event.source.settings.events else { return EventResult::Refused };
    let [retry_ms, timeout_ms] = [settings.retry, settings.timeout].map(|time| time.as_millis() as u64);
    let posts = queues.posts(&settings.upstream);
    let begins_ms = if has_failed { event.taken_ms } else { worker.clock.now_ms() };
    let mut start_until_ms = begins_ms.saturating_add(retry_ms).saturating_add(timeout_ms);
    let mut pause = PAUSE_MIN;
    loop {
        let left_ms = start_until_ms.saturating_sub(worker.clock.now_ms());
        // Boxed, so that a queue that waits for its turn has a small task.
        match post_in_turn(&posts, left_ms, || Box::pin(post(worker, settings, event))).await {
            EventResult::Failed => {}
            result => return result,
        }
        // Devices that reconnect at the same time must not retry at the same time.
        let pause_ms = pause.as_millis() as u64;
        let jittered_ms = pause_ms / 2 + worker.random() % pause_ms.max(1);
        let until_ms = event.taken_ms.saturating_add(retry_ms);
        if worker.clock.now_ms() + jittered_ms >= until_ms {
            return EventResult::Failed;
        }
        sleep(Duration::from_millis(jittered_ms)).await;
        pause = (pause * 2).min(PAUSE_MAX);
        start_until_ms = until_ms.saturating_add(timeout_ms);
    }
}

/// Posts when the upstream has a place for it: in the order of requests, so that each device has its turn.
async fn post_in_turn<F: Future<Output = EventResult>>(
    posts: &Semaphore,
    left_ms: u64,
    post: impl FnOnce() -> F,
) -> EventResult {
    if left_ms == 0 {
        return EventResult::Failed;
    }
    match timeout(Duration::from_millis(left_ms), posts.acquire()).await {
        Ok(_place) => post().await,
        Err(_) => EventResult::Failed,
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

/// Result of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventResult {
    /// 2xx.
    Accepted,
    /// Another status that will not change.
    Refused,
    /// Trying again may help.
    Failed,
}

/// Sends the event to one node.
async fn post(worker: &Rc<Worker>, settings: &EventReceiverSettings, event: &DeviceEvent) -> EventResult {
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
fn call(
    settings: &EventReceiverSettings,
    event: &DeviceEvent,
    upstream: &WorkerUpstream,
    index: usize,
) -> Option<Call> {
    let state = upstream.state.borrow();
    let endpoint = state.endpoint(index);
    let url = Url::parse(&format!("http://{}/", endpoint.address), false).ok()?;
    let mut call = Call::new(&url.origin, b"POST", settings.uri.as_bytes());
    (call.timeout, call.reply_bytes_max) = (settings.timeout, REPLY_BYTES_MAX);
    let host = host_of(None, b"", &upstream.planned.definition.pass_host, &endpoint.host);
    call.set_host(FieldValue::new(host).ok()?);
    let (seq, generation) = (event.seq.to_string(), event.source.generation.to_string());
    let text =
        |name, text: &str, call: &mut Call| FieldValue::new(text.as_bytes()).map(|value| call.header(name, value)).ok();
    text(CONTENT_TYPE, event.body.content_type(), &mut call)?;
    text(DEVICE_ID, &event.source.device, &mut call)?;
    text(DEVICE_EVENT, event.kind, &mut call)?;
    text(DEVICE_SEQ, &seq, &mut call)?;
    text(DEVICE_CONNECTION, &generation, &mut call)?;
    call.set_body(event.body.bytes().to_vec());
    Some(call)
}
