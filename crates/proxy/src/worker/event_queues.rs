//! Events of a worker's devices that wait for their upstreams: one queue for each device.
//!
//! A queue belongs to its device and not to a connection, so a device that reconnects adds to the queue that its earlier connections
//! have left. Bytes are bounded for each device and for all devices of the worker. A queue exists while it is not empty. The number
//! of requests to one upstream at once is bounded, too.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use stillgate_devices::Generation;
use stillgate_devices::protocol::Body;
use stillgate_plugin_api::DeviceSettings;
use tokio::sync::Semaphore;

/// What an event counts in addition to its bytes.
const EVENT_OVERHEAD_BYTES: usize = 128;
/// What a queue counts for the worker: itself and its task.
const QUEUE_OVERHEAD_BYTES: usize = 1024;
/// Room for connects and disconnects of a device beyond its `queue_bytes`: about twelve of each.
const LIFECYCLE_BYTES_MAX: usize = 4 * 1024;
/// Requests with events that one worker has under way to one upstream. Documented in `docs/plugins/device-gateway.md`.
const POSTS_AT_ONCE_MAX: usize = 64;

/// The queues of a worker.
pub(crate) struct EventQueues {
    /// Bound of `bytes`.
    bytes_max: usize,
    /// Bytes of all queues.
    bytes: Cell<usize>,
    /// None of them is empty.
    queues: RefCell<HashMap<Arc<str>, Rc<EventQueue>>>,
    /// Places for requests, by the id of their upstream; only those in use are kept.
    posts: RefCell<HashMap<Box<str>, Rc<Semaphore>>>,
}

/// The events of one device.
pub(crate) struct EventQueue {
    device: Arc<str>,
    waiting: RefCell<VecDeque<Rc<DeviceEvent>>>,
    bytes: Cell<usize>,
    /// Connections of the device that wait for the upstream; usually one.
    wakers: RefCell<Vec<Waker>>,
}

/// One event.
pub(crate) struct DeviceEvent {
    pub(crate) source: Rc<EventSource>,
    /// `connect`, `disconnect` or `message`.
    pub(crate) kind: &'static str,
    /// Its number in its connection.
    pub(crate) seq: u64,
    /// When the event happened, in milliseconds of the worker's clock.
    pub(crate) taken_ms: u64,
    pub(crate) body: Body<'static>,
}

/// The connection that events come from.
pub(crate) struct EventSource {
    pub(crate) device: Arc<str>,
    pub(crate) generation: Generation,
    pub(crate) settings: Arc<DeviceSettings>,
    /// The id of its route, for counters.
    pub(crate) route: Arc<str>,
    /// The number of its last event.
    pub(crate) seq: Cell<u64>,
}

/// What has become of a new event.
pub(crate) enum PushOutcome {
    /// It is the first of this queue, which is to be sent.
    First(Rc<EventQueue>),
    /// Others of its device are before it.
    Behind,
    /// Neither the device nor the worker may have more; the event is dropped.
    NoRoom,
}

impl EventQueues {
    pub(crate) fn new(bytes_max: usize) -> EventQueues {
        EventQueues { bytes_max, bytes: Cell::new(0), queues: RefCell::default(), posts: RefCell::default() }
    }

    /// Whether events of this device wait.
    pub(crate) fn has(&self, device: &str) -> bool {
        self.queues.borrow().contains_key(device)
    }

    /// Adds an event. `queue_bytes_max` bounds the events of its device.
    pub(crate) fn push(&self, event: DeviceEvent, queue_bytes_max: usize) -> PushOutcome {
        let device = &event.source.device;
        let known = self.queues.borrow().get(device).cloned();
        let bytes = event.bytes();
        let lifecycle_bytes = if event.kind == "message" { 0 } else { LIFECYCLE_BYTES_MAX };
        let of_device = known.as_ref().map_or(0, |queue| queue.bytes.get()) + bytes;
        let of_worker = self.bytes.get() + bytes + if known.is_some() { 0 } else { QUEUE_OVERHEAD_BYTES };
        if of_device > queue_bytes_max + lifecycle_bytes || of_worker > self.bytes_max {
            return PushOutcome::NoRoom;
        }
        self.bytes.set(of_worker);
        let queue = known.clone().unwrap_or_else(|| {
            let device = device.clone();
            Rc::new(EventQueue { device, waiting: RefCell::default(), bytes: Cell::new(0), wakers: RefCell::default() })
        });
        queue.bytes.set(of_device);
        queue.waiting.borrow_mut().push_back(Rc::new(event));
        if known.is_some() {
            return PushOutcome::Behind;
        }
        self.queues.borrow_mut().insert(queue.device.clone(), queue.clone());
        PushOutcome::First(queue)
    }

    /// Wakes this task when the next event of the device is done.
    pub(crate) fn wake_when_done(&self, device: &str, waker: &Waker) {
        let queues = self.queues.borrow();
        let Some(queue) = queues.get(device) else { return waker.wake_by_ref() };
        let mut wakers = queue.wakers.borrow_mut();
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }

    /// The first event of a queue is done: accepted or given up.
    pub(crate) fn finish_front(&self, queue: &EventQueue) {
        if let Some(event) = queue.waiting.borrow_mut().pop_front() {
            queue.bytes.set(queue.bytes.get() - event.bytes());
            self.bytes.set(self.bytes.get() - event.bytes());
        }
        queue.wake_all();
    }

    /// Removes a queue that is empty.
    pub(crate) fn remove(&self, queue: &EventQueue) {
        if self.queues.borrow_mut().remove(&queue.device).is_some() {
            self.bytes.set(self.bytes.get() - QUEUE_OVERHEAD_BYTES);
        }
        // Connections that were woken before may have been polled before the queue was gone.
        queue.wake_all();
    }

    /// Places for requests to an upstream. They are given in the order of the waiting, and each device waits for one at most.
    pub(crate) fn posts(&self, upstream: &str) -> Rc<Semaphore> {
        let mut posts = self.posts.borrow_mut();
        if let Some(known) = posts.get(upstream) {
            return known.clone();
        }
        posts.retain(|_, places| Rc::strong_count(places) > 1);
        posts.entry(upstream.into()).or_insert_with(|| Rc::new(Semaphore::new(POSTS_AT_ONCE_MAX))).clone()
    }
}

impl EventQueue {
    /// The next event to send; it stays in the queue until it is done.
    pub(crate) fn front(&self) -> Option<Rc<DeviceEvent>> {
        self.waiting.borrow().front().cloned()
    }

    fn wake_all(&self) {
        self.wakers.take().into_iter().for_each(Waker::wake);
    }
}

impl DeviceEvent {
    fn bytes(&self) -> usize {
        EVENT_OVERHEAD_BYTES + self.body.bytes().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_devices::directory::Duplicate;
    use stillgate_devices::session::{PulseLimits, QueuePolicy};
    use stillgate_plugin_api::Identity;

    const QUEUE_BYTES_MAX: usize = 10_000;

    fn source(device: &str, generation: u64) -> Rc<EventSource> {
        let settings = DeviceSettings {
            identity: Identity(0),
            id_variables: [].into(),
            duplicate: Duplicate::Replace,
            policy: QueuePolicy::Refuse,
            resume_ms: 0,
            pulse: PulseLimits { ping_interval_ms: 1, ping_timeout_ms: 1 },
            connects_per_second: None,
            events: None,
        };
        let (device, generation, route) = (device.into(), Generation(generation), "devices".into());
        Rc::new(EventSource { device, generation, settings: Arc::new(settings), route, seq: Cell::new(0) })
    }

    fn push(queues: &EventQueues, source: &Rc<EventSource>, kind: &'static str, bytes: usize) -> PushOutcome {
        let (source, body) = (source.clone(), Body::Text("x".repeat(bytes).into()));
        queues.push(DeviceEvent { source, kind, seq: 1, taken_ms: 0, body }, QUEUE_BYTES_MAX)
    }

    fn has_room(pushed: &PushOutcome) -> bool {
        !matches!(pushed, PushOutcome::NoRoom)
    }

    #[test]
    fn connections_of_a_device_share_its_queue() {
        let queues = EventQueues::new(1_000_000);
        let PushOutcome::First(queue) = push(&queues, &source("d", 1), "connect", 2) else { panic!("it was empty") };
        let mut taken = 0;
        for generation in 1..=100 {
            let source = source("d", generation);
            taken += (0..100).filter(|_| has_room(&push(&queues, &source, "message", 500))).count();
            push(&queues, &source, "disconnect", 20);
        }
        assert_eq!(taken, QUEUE_BYTES_MAX / (500 + EVENT_OVERHEAD_BYTES), "whatever the number of connections");
        assert!(queue.bytes.get() <= QUEUE_BYTES_MAX + LIFECYCLE_BYTES_MAX, "{}", queue.bytes.get());
        assert_eq!(queues.bytes.get(), queue.bytes.get() + QUEUE_OVERHEAD_BYTES);
        // In the order in which they happened.
        let mut last = 0;
        while let Some(event) = queue.front() {
            assert!(event.source.generation.0 >= last);
            last = event.source.generation.0;
            queues.finish_front(&queue);
        }
        queues.remove(&queue);
        assert_eq!(queues.bytes.get(), 0);
        assert!(!queues.has("d"));
        assert!(matches!(push(&queues, &source("d", 101), "connect", 2), PushOutcome::First(_)));
    }

    #[test]
    fn all_devices_of_a_worker_have_a_bound() {
        let queues = EventQueues::new(100_000);
        let taken = (0..1_000).filter(|device| {
            let source = source(&format!("d{device}"), 1);
            has_room(&push(&queues, &source, "message", 5_000))
        });
        assert_eq!(taken.count(), 100_000 / (5_000 + EVENT_OVERHEAD_BYTES + QUEUE_OVERHEAD_BYTES));
        assert!(!has_room(&push(&queues, &source("one more", 1), "disconnect", 5_000)));
        assert!(queues.bytes.get() <= 100_000);
    }

    #[test]
    fn posts_to_an_upstream_are_bounded_and_have_turns() {
        let queues = EventQueues::new(0);
        let posts = queues.posts("a");
        let places: Vec<_> = (0..POSTS_AT_ONCE_MAX).map_while(|_| posts.try_acquire().ok()).collect();
        assert_eq!(places.len(), POSTS_AT_ONCE_MAX);
        assert!(queues.posts("a").try_acquire().is_err());
        assert!(queues.posts("b").try_acquire().is_ok());
        drop(queues.posts("c"));
        assert_eq!(queues.posts.borrow().len(), 2, "only those in use are kept");
    }
}
