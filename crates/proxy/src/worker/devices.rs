//! A worker's devices: which connections there are, which commands they get, and what is reported about them.
//!
//! A connection is a task with a mailbox. Commands arrive over the worker's queue, all that have come at once, and are put into the
//! mailboxes; an idle mailbox owns no memory. Reports go out in the order they were made, as fast as the other side takes them:
//! there is at most one of each kind for a connection that comes, goes or resumes, and there are no more notices than messages.

use super::Worker;
use super::event_queues::EventQueues;
use crate::basics::clock::Clock;
use crate::device_link::{
    Admission, DeviceCommand, DeviceFacts, DeviceReport, FormerConnection, HandoverHoldWitness, connection_number,
    process_ms,
};
use crate::telemetry::metrics::DeviceLabels;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use stillgate_config::{DeviceLimits, Measure};
use stillgate_devices::protocol::DeviceProtocol;
use stillgate_devices::session::{MessageRefusal, Notice, Session};
use stillgate_plugin_api::{Consumers, DeviceSettings, Identity};
use stillgate_tls::ServerTls;
use tokio::sync::{Notify, mpsc, oneshot};

/// Commands that are taken from the queue at a time.
const COMMANDS_AT_ONCE: usize = 256;
/// Devices of one worker that may wait for admission; further ones are refused.
const ARRIVALS_MAX: usize = 4096;
/// Devices that are reported as the busiest.
const TOP_MAX: usize = 20;

/// What a worker has of its devices.
pub(crate) struct Devices {
    worker: usize,
    pub(crate) limits: DeviceLimits,
    /// Whether connections must not go to another process yet.
    pub(crate) held: HandoverHoldWitness,
    /// Bytes of messages that may wait for all devices of this worker.
    pub(crate) queued_bytes_max: usize,
    pub(crate) queued_bytes: Cell<usize>,
    /// Bytes that devices have sent in messages that are incomplete, or that wait for the upstream.
    pub(crate) input_bytes: Cell<usize>,
    pub(crate) events: EventQueues,
    /// Number of connections that have begun.
    count: Cell<u64>,
    mailboxes: RefCell<HashMap<u64, Rc<Mailbox>>>,
    arriving: Cell<usize>,
    reports: RefCell<VecDeque<DeviceReport>>,
    notices: RefCell<Vec<Notice>>,
    /// Wakes the sender of reports.
    news: Notify,
    /// Connections that began in this second, by route.
    rates: RefCell<HashMap<Identity, Rate>>,
    workers: usize,
    /// Id of the route that had a device last: there are few routes, and one text for all their devices.
    route: RefCell<Arc<str>>,
    /// Header lines to a node for clients that are devices: empty, as no node is called for them.
    pub(crate) no_lines: Rc<[u8]>,
    /// Offset from the worker's clock to that of sessions.
    session_offset_ms: u64,
    /// The consumers that were looked at last, and how many versions there have been: devices' credentials are looked up again in a
    /// new one.
    consumers: RefCell<Option<Arc<Consumers>>>,
    pub(crate) consumers_seen: Cell<u64>,
    /// The certificates that were looked at last: a new version counts as one of the consumers.
    tls: RefCell<Option<Arc<ServerTls>>>,
}

/// The worker's ends of the queues.
pub(crate) struct DeviceLink {
    pub(crate) limits: DeviceLimits,
    pub(crate) workers: usize,
    pub(crate) commands: mpsc::Receiver<DeviceCommand>,
    pub(crate) reports: mpsc::Sender<DeviceReport>,
    pub(crate) held: HandoverHoldWitness,
}

/// Where a connection finds its commands.
#[derive(Default)]
pub(crate) struct Mailbox {
    commands: RefCell<Vec<DeviceCommand>>,
    waker: RefCell<Option<Waker>>,
    /// Bytes from the device, and to it; for queries for the busiest.
    pub(crate) moved_bytes: Cell<u64>,
    device: RefCell<Option<Arc<str>>>,
}

#[derive(Clone, Copy, Default)]
struct Rate {
    second: u64,
    begun: u64,
}

/// A connection's place among the worker's; when it is dropped, the connection has ended.
pub(crate) struct DeviceRegistration {
    worker: Rc<Worker>,
    pub(crate) connection: u64,
    pub(crate) mailbox: Rc<Mailbox>,
    is_told: bool,
}

/// Why a device is turned away before admission is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceRefusal {
    /// Too many connections begin; the client should wait for so many seconds.
    TooFast {
        /// Time in seconds.
        after_s: u64,
    },
    /// Too many devices already wait.
    Busy,
}

impl Devices {
    pub(crate) fn new(worker: usize, link: &DeviceLink, clock: &Clock) -> Devices {
        Devices {
            worker,
            limits: link.limits,
            held: link.held.clone(),
            queued_bytes_max: link.limits.node_bytes.div_ceil(link.workers),
            queued_bytes: Cell::new(0),
            input_bytes: Cell::new(0),
            // Events may have as much again as messages.
            events: EventQueues::new(link.limits.node_bytes.div_ceil(link.workers)),
            // Starts anywhere, so that no other process of this node has used these numbers.
            count: Cell::new(RandomState::new().build_hasher().finish() >> 1),
            mailboxes: RefCell::default(),
            arriving: Cell::new(0),
            reports: RefCell::default(),
            notices: RefCell::default(),
            news: Notify::new(),
            rates: RefCell::default(),
            workers: link.workers,
            route: RefCell::new(Arc::from("")),
            no_lines: Rc::new([]),
            session_offset_ms: process_ms().wrapping_sub(clock.now_ms()),
            consumers: RefCell::default(),
            consumers_seen: Cell::new(1),
            tls: RefCell::default(),
        }
    }

    /// The id of a route, shared by devices.
    pub(crate) fn route(&self, id: &str) -> Arc<str> {
        let mut route = self.route.borrow_mut();
        if **route != *id {
            *route = Arc::from(id);
        }
        route.clone()
    }

    /// The current time by the clock of sessions.
    pub(crate) fn session_ms(&self, clock: &Clock) -> u64 {
        clock.now_ms().wrapping_add(self.session_offset_ms)
    }

    /// A session time, by the worker's clock.
    pub(crate) fn worker_ms(&self, session_ms: u64) -> u64 {
        session_ms.wrapping_sub(self.session_offset_ms)
    }

    /// Distributes commands until the other side is gone.
    pub(crate) async fn take_commands(&self, commands: &mut mpsc::Receiver<DeviceCommand>) {
        let mut batch = Vec::with_capacity(COMMANDS_AT_ONCE);
        while commands.recv_many(&mut batch, COMMANDS_AT_ONCE).await > 0 {
            batch.drain(..).for_each(|command| self.hand_out(command));
        }
    }

    fn hand_out(&self, command: DeviceCommand) {
        if let Some(connection) = command.connection() {
            let mailbox = self.mailboxes.borrow().get(&connection).cloned();
            match mailbox {
                Some(mailbox) => mailbox.put(command),
                None => self.return_to_sender(command),
            }
            return;
        }
        match command {
            DeviceCommand::Broadcast { connections, id, encoded, timeout_ms, hold } => {
                let mailboxes = self.mailboxes.borrow();
                for connection in connections.iter() {
                    let (connections, encoded, hold) = (Arc::default(), encoded.clone(), hold.clone());
                    let one = || DeviceCommand::Broadcast { connections, id, encoded, timeout_ms, hold };
                    match mailboxes.get(connection) {
                        Some(mailbox) => mailbox.put(one()),
                        None => self.report(DeviceReport::Refused { id, why: MessageRefusal::Offline }),
                    }
                }
            }
            DeviceCommand::Top { answer } => {
                // The caller may be gone.
                let _ = answer.send(self.top());
            }
            _ => {}
        }
    }

    /// Returns a command whose connection has ended meanwhile.
    fn return_to_sender(&self, command: DeviceCommand) {
        match command {
            DeviceCommand::Deliver { message, .. } => {
                let why = MessageRefusal::Offline;
                self.report(DeviceReport::Refused { id: message.id, why });
            }
            DeviceCommand::Resume { session: Some(before), .. } => self.report(DeviceReport::Returned(before)),
            _ => {}
        }
    }

    fn top(&self) -> Vec<(Arc<str>, u64)> {
        let mailboxes = self.mailboxes.borrow();
        let mut all: Vec<_> = mailboxes.values().collect();
        let count = all.len().min(TOP_MAX);
        if count == 0 {
            return Vec::new();
        }
        all.select_nth_unstable_by_key(count - 1, |mailbox| std::cmp::Reverse(mailbox.moved_bytes.get()));
        all.truncate(count);
        all.sort_unstable_by_key(|mailbox| std::cmp::Reverse(mailbox.moved_bytes.get()));
        let named = |mailbox: &&Rc<Mailbox>| Some((mailbox.device.borrow().clone()?, mailbox.moved_bytes.get()));
        all.iter().filter_map(named).collect()
    }

    /// Sends a report to the thread of devices.
    pub(crate) fn report(&self, report: DeviceReport) {
        self.report_notices();
        self.reports.borrow_mut().push_back(report);
        self.news.notify_one();
    }

    /// Notices for senders; sent together at the end of the turn, before the next report.
    pub(crate) fn with_notices<R>(&self, then: impl FnOnce(&mut Vec<Notice>) -> R) -> R {
        let mut notices = self.notices.borrow_mut();
        let had_none = notices.is_empty();
        let result = then(&mut notices);
        if had_none && !notices.is_empty() {
            self.news.notify_one();
        }
        result
    }

    fn report_notices(&self) {
        let mut notices = self.notices.borrow_mut();
        if !notices.is_empty() {
            self.reports.borrow_mut().push_back(DeviceReport::Notices(std::mem::take(&mut notices)));
        }
    }

    /// Sends reports until the other side is gone.
    pub(crate) async fn send_reports(&self, sender: mpsc::Sender<DeviceReport>) {
        loop {
            self.news.notified().await;
            self.report_notices();
            while let Some(report) = self.next_report() {
                if sender.send(report).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Sends the remaining reports after the event loop has ended. The other side takes them as long as it exists.
    pub(crate) fn send_last(&self, sender: &mpsc::Sender<DeviceReport>) {
        self.report_notices();
        while let Some(report) = self.next_report() {
            if sender.blocking_send(report).is_err() {
                return;
            }
        }
    }

    fn next_report(&self) -> Option<DeviceReport> {
        self.reports.borrow_mut().pop_front()
    }

    /// Whether one more connection may begin now. `random` spreads reconnecting devices.
    pub(crate) fn check_may_begin(
        &self,
        settings: &DeviceSettings,
        now_ms: u64,
        random: u64,
    ) -> Result<(), DeviceRefusal> {
        if self.arriving.get() >= ARRIVALS_MAX {
            return Err(DeviceRefusal::Busy);
        }
        let Some(bound) = settings.connects_per_second else { return Ok(()) };
        let bound = u64::from(bound.get()).div_ceil(self.workers as u64);
        let mut rates = self.rates.borrow_mut();
        let second = now_ms / 1000;
        // Entries of routes that are gone are not kept for long.
        rates.retain(|identity, rate| *identity == settings.identity || rate.second == second);
        let rate = rates.entry(settings.identity).or_default();
        if rate.second != second {
            *rate = Rate { second, begun: 0 };
        }
        rate.begun += 1;
        if rate.begun <= bound {
            return Ok(());
        }
        // The more devices there are, the wider they are spread.
        let waves = rate.begun / bound;
        Err(DeviceRefusal::TooFast { after_s: 1 + random % (2 * waves).clamp(2, 60) })
    }

    fn add(&self, connection: u64, mailbox: &Rc<Mailbox>) {
        self.mailboxes.borrow_mut().insert(connection, mailbox.clone());
    }

    fn remove(&self, connection: u64) {
        self.mailboxes.borrow_mut().remove(&connection);
    }

    /// After a Plan with other consumers or certificates, each device checks that its credential still exists.
    pub(crate) fn look_at(&self, consumers: &Arc<Consumers>, tls: Option<&Arc<ServerTls>>) {
        let before = self.consumers.replace(Some(consumers.clone()));
        let is_same = before.is_some_and(|before| Arc::ptr_eq(&before, consumers));
        let tls_before = self.tls.replace(tls.cloned());
        if is_same && tls_before.as_ref().map(Arc::as_ptr) == tls.map(Arc::as_ptr) {
            return;
        }
        self.consumers_seen.set(self.consumers_seen.get() + 1);
        self.wake_all();
    }

    /// Makes all connections check their state.
    pub(crate) fn wake_all(&self) {
        self.mailboxes.borrow().values().for_each(|mailbox| mailbox.wake());
    }
}

impl Mailbox {
    fn put(&self, command: DeviceCommand) {
        self.commands.borrow_mut().push(command);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Takes the commands that have arrived; further ones wake the task.
    pub(crate) fn take(&self, cx: &Context<'_>) -> Vec<DeviceCommand> {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        self.commands.take()
    }
}

impl DeviceRegistration {
    /// A place for a connection that is about to begin.
    pub(crate) fn new(worker: &Rc<Worker>, devices: &Devices) -> DeviceRegistration {
        let count = devices.count.get();
        devices.count.set(count + 1);
        let connection = connection_number(devices.worker, count);
        let mailbox = Rc::new(Mailbox::default());
        devices.add(connection, &mailbox);
        DeviceRegistration { worker: worker.clone(), connection, mailbox, is_told: true }
    }

    /// Requests admission for the device; from here on the thread of devices knows of the connection.
    pub(crate) fn ask(&mut self, facts: DeviceFacts, former: Option<FormerConnection>) -> PendingAdmission {
        let (answer, answered) = oneshot::channel();
        self.mailbox.device.replace(Some(facts.device.clone()));
        if let Some(devices) = &self.worker.devices {
            self.is_told = false;
            let connection = self.connection;
            devices.report(DeviceReport::Arrived { connection, facts: Box::new(facts), former, answer });
            devices.arriving.set(devices.arriving.get() + 1);
        }
        PendingAdmission { worker: self.worker.clone(), answered }
    }

    /// The connection has ended, or ends. Reported once; what comes for it later is returned to its sender.
    pub(crate) fn leave(&mut self, session: Option<Session>, reason: &'static str, is_given: bool) {
        let Some(devices) = &self.worker.devices else { return };
        devices.remove(self.connection);
        if !std::mem::replace(&mut self.is_told, true) {
            let session = session.map(Box::new);
            devices.report(DeviceReport::Left { connection: self.connection, session, reason, is_given });
        }
        for command in self.mailbox.commands.take() {
            match command {
                DeviceCommand::Broadcast { id, .. } => {
                    devices.report(DeviceReport::Refused { id, why: MessageRefusal::Offline });
                }
                command => devices.return_to_sender(command),
            }
        }
    }
}

impl Drop for DeviceRegistration {
    fn drop(&mut self) {
        self.leave(None, "gone", false);
        // The waker keeps the task's memory.
        self.mailbox.waker.take();
    }
}

/// A device that waits for admission.
pub(crate) struct PendingAdmission {
    worker: Rc<Worker>,
    answered: oneshot::Receiver<Admission>,
}

impl PendingAdmission {
    /// The answer; `None`: it will not come.
    pub(crate) async fn answer(&mut self) -> Option<Admission> {
        (&mut self.answered).await.ok()
    }
}

impl Drop for PendingAdmission {
    fn drop(&mut self) {
        if let Some(devices) = &self.worker.devices {
            devices.arriving.set(devices.arriving.get().saturating_sub(1));
        }
    }
}

impl Worker {
    /// Counts an event of devices.
    pub(crate) fn report_devices(&self, measure: Measure, labels: DeviceLabels<'_>, amount: u64) {
        if amount > 0 {
            self.report_plugin(|recorder, metrics| recorder.count_devices(metrics, measure, labels, amount));
        }
    }

    /// Counts an event of a device that its upstream will not get.
    pub(crate) fn report_device_event_dropped(&self, route: &str) {
        let labels = DeviceLabels { route, protocol: DeviceProtocol::Json, reason: "", direction: "" };
        self.report_devices(Measure::DeviceEventsDropped, labels, 1);
    }
}
