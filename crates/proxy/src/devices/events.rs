//! Events of a device on their way to the upstream: one request each, in the order in which they happened.
//!
//! Each connection has a queue, bounded in bytes, and one task while it is not empty. Events that the upstream does not accept are
//! retried with growing pauses, for as long as the route says; then they are dropped and counted, as are events without room in the
//! queue. The queue outlives its connection, whose end is its last event.

use super::posting::{Post, PostResult, post};
use crate::worker::Worker;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;
use stillgate_devices::Generation;
use stillgate_devices::protocol::Body;
use stillgate_plugin::DeviceSettings;
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
    pub(super) fn connected(&self, worker: &Rc<Worker>) {
        self.add(worker, "connect", Body::Json("{}".into()), true);
    }

    /// The connection has ended.
    pub(super) fn disconnected(&self, worker: &Rc<Worker>, reason: &str) {
        self.add(worker, "disconnect", Body::Json(format!("{{\"reason\":\"{reason}\"}}").into()), true);
    }

    /// The device has sent an event. True: its next messages wait for the upstream.
    pub(super) fn said(&self, worker: &Rc<Worker>, body: Body<'static>) -> bool {
        self.add(worker, "message", body, false);
        self.waits()
    }

    fn waits(&self) -> bool {
        let is_acknowledged = self.0.settings.events.as_ref().is_some_and(|events| events.is_acknowledged);
        is_acknowledged && !self.0.waiting.borrow().is_empty()
    }

    /// Whether the next messages of the device may be processed; its task is woken when they may.
    pub(super) fn is_ready(&self, cx: &Context<'_>) -> bool {
        if !self.waits() {
            return true;
        }
        *self.0.waker.borrow_mut() = Some(cx.waker().clone());
        false
    }

    /// `fits`: the event is small, and a connection has only two of them.
    fn add(&self, worker: &Rc<Worker>, kind: &'static str, body: Body<'static>, fits: bool) {
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
async fn deliver(worker: &Rc<Worker>, queue: &Queue, request: &Post) -> bool {
    let Some(settings) = &queue.settings.events else { return false };
    let until_ms = worker.clock.now_ms() + settings.retry.as_millis() as u64;
    let mut pause = PAUSE_MIN;
    loop {
        match post(worker, settings, request).await {
            PostResult::Taken => return true,
            PostResult::Refused => return false,
            PostResult::Failed => {}
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
    fn next(&self) -> Option<Post> {
        let waiting = self.waiting.borrow();
        let event = waiting.front()?;
        Some(Post {
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
