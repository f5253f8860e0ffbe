//! One node: its connected devices, and the senders that wait for outcomes.

use super::clock::session_ms;
use super::jobs::{Broadcasts, JobKnowledge as KnownJob};
use super::peers;
use super::presence::{Presence, PresenceChange};
use super::registry::{NotConnected, PeerSilence, Registry};
use crate::envelope::{Post, PostVerdict};
use crate::reports::Commands;
use bytes::Bytes;
use rand::random;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use stillgate_config::DeviceLimits;
use stillgate_devices::Generation;
use stillgate_devices::protocol::{Body, MessageId};
use stillgate_devices::session::{
    Idempotency, IdempotencyError, IdempotencyLimits, Message, MessageOutcome, MessageRefusal, Notice, RepeatOutcome,
    ResumeToken, Session, SessionLimits,
};
use stillgate_proxy::device_link::{CloseWhy, DeviceCommand, DeviceFacts, DeviceState, HandoverHold};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

/// How long idempotency keys are known.
const KEYS_KEPT_MS: u64 = 10 * 60 * 1000;
/// Maximum size of all of them, with the replies that are kept, in bytes.
const KEYS_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How much longer than its message's time a sender waits for its outcome, which the worker reports.
const WORD_LATE: Duration = Duration::from_secs(1);
/// Maximum number of messages whose senders wait.
const WAITING_MAX: usize = 1_000_000;

/// Maximum number of attempts: one more for a device that has reconnected by then.
const SENDS_MAX: usize = 2;

/// Another process gives what it has without such a pause.
const FILLING_MS: u64 = 5_000;
/// A time that is never reached.
const FAR_MS: u64 = u64::MAX / 2;
/// Interval of checks whether a device has come.
const FILLING_LOOK: Duration = Duration::from_millis(10);

const KEYS: IdempotencyLimits = IdempotencyLimits { keep_ms: KEYS_KEPT_MS, bytes_max: KEYS_BYTES_MAX };

/// A node.
#[derive(Debug)]
pub(crate) struct DeviceNode {
    pub(super) name: String,
    pub(super) limits: DeviceLimits,
    pub(super) registry: Registry,
    pub(super) presence: Presence,
    /// When another process last gave something, by the clock of sessions; 0: no process gives, [`FAR_MS`]: it has not begun.
    filled_ms: AtomicU64,
    /// The process that this one follows lives, and may have devices that are not free to move yet.
    former_lives: AtomicBool,
    /// Another process serves alongside this one, and may take over.
    has_company: Arc<AtomicBool>,
    /// Another process has taken over.
    has_left: AtomicBool,
    /// The address of its device API then; empty over TLS.
    pub(super) successor_api: OnceLock<SocketAddr>,
    state: Mutex<State>,
}

/// The state that changes.
#[derive(Debug)]
pub(super) struct State {
    pub(super) commands: Commands,
    /// Devices connected here, in order, so that a prefix can be listed.
    pub(super) devices: BTreeMap<Arc<str>, Local>,
    /// Connections, including those that are ending and whose sessions are on their way here.
    pub(super) connections: HashMap<u64, Arc<str>>,
    /// How many connections of a device are ending because another has replaced them.
    pub(super) ending: HashMap<Arc<str>, usize>,
    /// Connections that wait for admission.
    pub(super) arriving: HashSet<u64>,
    /// Devices that wait for a session which is not here yet.
    pub(super) resuming: HashMap<Arc<str>, (u64, ResumeToken)>,
    pub(super) away: DetachedSessions,
    waiting: HashMap<MessageId, WaitingSender>,
    idempotency: Idempotency,
    pub(super) jobs: Broadcasts,
    /// `None`: another process has taken over, and gets the devices as soon as no job sends any more.
    pub(super) hold: Option<HandoverHold>,
}

/// A device that is connected here.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) connection: u64,
    pub(super) generation: Generation,
    /// Milliseconds since 1970.
    pub(super) since_ms: u64,
    pub(super) facts: Box<DeviceFacts>,
}

/// A sender that waits for the outcome of a message.
#[derive(Debug)]
struct WaitingSender {
    device: Arc<str>,
    key: Option<Box<str>>,
    senders: Vec<oneshot::Sender<PostVerdict>>,
}

/// The state of a device that is connected here.
#[derive(Debug)]
pub(super) struct Online {
    pub(super) generation: Generation,
    pub(super) since_ms: u64,
    pub(super) facts: Box<DeviceFacts>,
    /// `None`: its worker has not reported it.
    pub(super) state: Option<DeviceState>,
}

impl DeviceNode {
    pub(super) fn new(
        name: String,
        limits: DeviceLimits,
        registry: Registry,
        (commands, hold): (Commands, HandoverHold),
        follows: bool,
    ) -> DeviceNode {
        let state = State {
            commands,
            devices: BTreeMap::new(),
            connections: HashMap::new(),
            ending: HashMap::new(),
            arriving: HashSet::new(),
            resuming: HashMap::new(),
            away: DetachedSessions::new(limits.node_bytes),
            waiting: HashMap::new(),
            idempotency: Idempotency::new((random(), random())),
            jobs: Broadcasts::default(),
            hold: Some(hold),
        };
        let filled_ms = AtomicU64::new(if follows { FAR_MS } else { 0 });
        DeviceNode {
            name,
            limits,
            registry,
            presence: Presence::default(),
            filled_ms,
            former_lives: AtomicBool::new(follows),
            has_company: Arc::default(),
            has_left: AtomicBool::new(false),
            successor_api: OnceLock::new(),
            state: Mutex::new(state),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message to its device, wherever that is. If the request repeats an earlier one, the post gets the id that was sent.
    pub(crate) async fn send(&self, post: &mut Post) -> PostVerdict {
        if post.body.bytes().len() > self.limits.message_bytes {
            return PostVerdict::TooLong { bytes_max: self.limits.message_bytes };
        }
        let Some(shared) = self.registry.shared() else { return self.send_here(post).await };
        let (is_here, known) = {
            let mut state = self.state();
            let is_here = state.devices.contains_key(&post.device);
            // A key is kept where the device is; if the device has moved since, its outcome is still known here.
            (is_here, if is_here { None } else { state.recall(post) })
        };
        if let Some(known) = known {
            return self.word(known, post).await;
        }
        let verdict = if is_here { self.receive(post).await } else { None };
        match verdict {
            Some(verdict) => verdict,
            None => peers::send(shared, post).await,
        }
    }

    /// Sends where this is the only node.
    async fn send_here(&self, post: &mut Post) -> PostVerdict {
        for _ in 0..SENDS_MAX {
            if let Some(verdict) = self.receive(post).await {
                return verdict;
            }
            // The device is moving here, or to the process that has taken over.
            if self.may_have_devices_elsewhere() {
                return PostVerdict::Away;
            }
            let gone = self.not_connected_reason(&post.device);
            if gone != NotConnected::Away {
                return gone.into();
            }
        }
        PostVerdict::Away
    }

    /// Why a device that is not here is not connected, where this is the only node.
    fn not_connected_reason(&self, device: &str) -> NotConnected {
        match &self.registry {
            Registry::Memory(memory) => memory.locate(device).into(),
            Registry::Shared(_) => NotConnected::Away,
        }
    }

    /// Sends a request to the node of a device that is not here.
    pub(super) async fn ask_elsewhere(&self, device: &str, kind: &str) -> Result<Bytes, NotConnected> {
        let Some(shared) = self.registry.shared() else {
            // The device is moving here, or to the process that has taken over.
            return Err(if self.may_have_devices_elsewhere() {
                NotConnected::Away
            } else {
                self.not_connected_reason(device)
            });
        };
        let asked = shared.ask(device, kind, Bytes::copy_from_slice(device.as_bytes()), peers::PATIENCE).await;
        asked.map_err(|why| match why {
            PeerSilence::Gone(gone) => gone,
            PeerSilence::Lost | PeerSilence::Busy => NotConnected::Away,
        })
    }

    /// Another process has taken over: requests that arrive here from now on are to go there.
    pub(super) fn leave(&self) {
        self.has_left.store(true, Relaxed);
        self.state().hold = None;
        self.registry.leave();
    }

    /// Whether another process has taken over.
    pub(super) fn has_left(&self) -> bool {
        self.has_left.load(Relaxed)
    }

    /// Set while another process serves alongside this one.
    pub(super) fn company(&self) -> Arc<AtomicBool> {
        self.has_company.clone()
    }

    /// Whether another process serves alongside this one, and it is undecided which of them goes on.
    pub(super) fn has_company(&self) -> bool {
        let is_new = self.follows() && self.filled_ms.load(Relaxed) == FAR_MS;
        !self.has_left() && (is_new || self.has_company.load(Relaxed))
    }

    /// Waits until it is known which of them goes on.
    pub(super) async fn wait_until_decided(&self) {
        while self.has_company() {
            sleep(FILLING_LOOK).await;
        }
    }

    /// Whether the process that this one follows lives.
    pub(super) fn follows(&self) -> bool {
        self.former_lives.load(Relaxed)
    }

    /// Whether a device that is not here may be in another process of this node.
    pub(super) fn may_have_devices_elsewhere(&self) -> bool {
        self.follows() || self.has_company() || self.has_left()
    }

    /// What is known of a job. If another process may know it, it is waited for so long.
    pub(super) async fn job(&self, message: MessageId, patience: Duration) -> Option<KnownJob> {
        let until_ms = session_ms() + patience.as_millis() as u64;
        loop {
            let known = self.state().jobs.knowledge(message);
            let may_come = self.is_filling() || self.has_company();
            if known.is_some() || !may_come || session_ms() >= until_ms {
                return known;
            }
            sleep(FILLING_LOOK).await;
        }
    }

    /// Whether another process may still give devices that it has.
    fn is_filling(&self) -> bool {
        let filled_ms = self.filled_ms.load(Relaxed);
        self.former_lives.load(Relaxed) && !self.has_left() && filled_ms > 0 && session_ms() < filled_ms + FILLING_MS
    }

    /// Another process gives what it has from now on.
    pub(super) fn begin_filling(&self) {
        self.filled_ms.store(session_ms(), Relaxed);
    }

    /// The process that this one follows has ended, and has given all that it had.
    pub(super) fn on_former_ended(&self) {
        self.former_lives.store(false, Relaxed);
        self.state().jobs.on_former_ended();
        self.registry.mark_filled();
    }

    /// Waits until another process has given what it can give now.
    pub(super) async fn all_given(&self) {
        while self.is_filling() {
            sleep(FILLING_LOOK).await;
        }
    }

    /// Waits for a device that another process is about to give, as long as its sender would wait.
    async fn wait_until_filled(&self, post: &Post) {
        let until_ms = session_ms() + post.timeout_ms;
        while self.is_filling() && !self.state().devices.contains_key(&post.device) && session_ms() < until_ms {
            sleep(FILLING_LOOK).await;
        }
    }

    /// Sends a message to a device that is connected here; `None`: it is not.
    pub(super) async fn receive(&self, post: &mut Post) -> Option<PostVerdict> {
        // This comes before its key is remembered: the sender may go meanwhile.
        self.wait_until_filled(post).await;
        let known = self.state().earlier_result(post);
        if let Some(known) = known {
            return Some(self.word(known, post).await);
        }
        let begun = self.state().begin(post);
        let verdict = match begun {
            Ok(word) => self.word(EarlierResult::Pending(word), post).await,
            Err(verdict) => {
                self.state().forget_key(post);
                verdict?
            }
        };
        // The device disconnected before its worker had the message.
        (verdict != PostVerdict::Refused(MessageRefusal::Offline)).then_some(verdict)
    }

    /// Answers all senders that still wait. The workers have ended, so nothing more will be known of their messages.
    pub(super) fn end_waiting(&self) {
        let waiting = std::mem::take(&mut self.state().waiting);
        waiting.into_values().for_each(|waiting| waiting.tell(&PostVerdict::Lost));
    }

    /// Waits for the outcome of a message.
    async fn word(&self, known: EarlierResult, post: &Post) -> PostVerdict {
        match known {
            EarlierResult::Verdict(verdict) => verdict,
            EarlierResult::Pending(word) => {
                let within = Duration::from_millis(post.timeout_ms) + WORD_LATE;
                // If the sender is dropped, the worker is gone, and the outcome is not known.
                let verdict = timeout(within, word).await.ok().and_then(Result::ok);
                verdict.unwrap_or_else(|| {
                    self.state().give_up(post.id);
                    PostVerdict::Lost
                })
            }
        }
    }

    /// The state of a device; `None`: it is not connected here.
    pub(super) async fn inspect(&self, device: &str) -> Option<Online> {
        let (generation, since_ms, facts, answered) = {
            let mut state = self.state();
            state
                .devices
                .get(device)
                .map(|local| (local.connection, local.generation, local.since_ms, local.facts.clone()))
                .map(|(connection, generation, since_ms, facts)| {
                    let (answer, answered) = oneshot::channel();
                    // If the queue is full, the rest is still reported.
                    let _ = state.commands.try_send(connection, DeviceCommand::Inspect { connection, answer });
                    (generation, since_ms, facts, answered)
                })?
        };
        let state = timeout(WORD_LATE, answered).await.ok().and_then(Result::ok);
        Some(Online { generation, since_ms, facts, state })
    }

    /// Closes the connection of a device; false: it is not connected here.
    pub(super) fn close(&self, device: &str) -> bool {
        let connection = self.state().devices.get(device).map(|local| local.connection);
        if let Some(connection) = connection {
            self.close_connection(connection, CloseWhy::Asked);
        }
        connection.is_some()
    }

    /// Closes a connection, if it is still open.
    pub(super) fn close_connection(&self, connection: u64, why: CloseWhy) {
        self.state().commands.send(connection, DeviceCommand::Close { connection, why });
    }

    /// Runs everything that is due; called a few times a second.
    pub(super) fn tick(&self) {
        let mut state = self.state();
        state.commands.flush();
        let mut notices = Vec::new();
        state.away.tick(session_ms(), &mut notices);
        state.tell(notices);
    }
}

/// The earlier result for a request.
enum EarlierResult {
    Verdict(PostVerdict),
    Pending(oneshot::Receiver<PostVerdict>),
}

impl State {
    /// The outcome of an earlier request with the same key; the post gets its id. `None`: this is the first one, and the key is now
    /// taken.
    fn earlier_result(&mut self, post: &mut Post) -> Option<EarlierResult> {
        let key = post.idempotency.as_deref()?;
        let again = self.idempotency.begin((&post.device, key), &fingerprint(post), post.id, session_ms(), KEYS);
        if let Ok(Some((sent, _))) = &again {
            post.id = *sent;
        }
        match again.map(|again| again.map(|(_, again)| again)) {
            Ok(None) => None,
            Ok(Some(RepeatOutcome::Pending)) => match self.waiting.get_mut(&post.id) {
                Some(waiting) => {
                    let (sender, word) = oneshot::channel();
                    waiting.senders.push(sender);
                    Some(EarlierResult::Pending(word))
                }
                None => Some(EarlierResult::Verdict(PostVerdict::Lost)),
            },
            Ok(Some(RepeatOutcome::Done(outcome))) => Some(EarlierResult::Verdict(PostVerdict::Outcome(outcome))),
            Ok(Some(RepeatOutcome::RepliedBefore)) => Some(EarlierResult::Verdict(PostVerdict::RepliedBefore)),
            Err(IdempotencyError::OtherBody) => Some(EarlierResult::Verdict(PostVerdict::OtherBody)),
            Err(IdempotencyError::Full) => Some(EarlierResult::Verdict(PostVerdict::KeysFull)),
        }
    }

    /// Looks a message up, without taking its key.
    fn recall(&mut self, post: &mut Post) -> Option<EarlierResult> {
        let known = self.earlier_result(post);
        if known.is_none() {
            self.forget_key(post);
        }
        known
    }

    fn forget_key(&mut self, post: &Post) {
        if let Some(key) = &post.idempotency {
            self.idempotency.cancel((&post.device, key));
        }
    }

    /// Hands a message to the worker that has its device. `None` as the verdict: the device is not here.
    fn begin(&mut self, post: &Post) -> Result<oneshot::Receiver<PostVerdict>, Option<PostVerdict>> {
        let local = self.devices.get(&post.device).ok_or(None)?;
        if self.waiting.len() >= WAITING_MAX {
            return Err(Some(PostVerdict::Busy));
        }
        let encoded = local.facts.protocol.encode(&post.body).map_err(|why| Some(PostVerdict::Body(why)))?;
        let (id, connection) = (post.id, local.connection);
        let message =
            Box::new(Message { id, encoded, key: post.key.clone(), level: post.level, deadline_ms: post.timeout_ms });
        let (sender, word) = oneshot::channel();
        let waiting =
            WaitingSender { device: post.device.clone(), key: post.idempotency.clone(), senders: vec![sender] };
        self.waiting.insert(id, waiting);
        if self.commands.try_send(connection, DeviceCommand::Deliver { connection, message }).is_err() {
            self.waiting.remove(&id);
            return Err(Some(PostVerdict::Busy));
        }
        Ok(word)
    }

    /// A sender no longer waits for a message.
    fn give_up(&mut self, id: MessageId) {
        if let Some(waiting) = self.waiting.get_mut(&id) {
            waiting.senders.retain(|sender| !sender.is_closed());
            if waiting.senders.is_empty() {
                self.waiting.remove(&id);
            }
        }
    }

    /// Notifies senders of the outcome of their messages.
    pub(super) fn tell(&mut self, notices: Vec<Notice>) {
        for Notice { id, outcome } in notices {
            self.jobs.note(id, Ok(&outcome));
            if let Some(waiting) = self.waiting.remove(&id) {
                if let Some(key) = &waiting.key {
                    self.idempotency.finish((&waiting.device, key), &outcome, KEYS);
                }
                waiting.tell(&PostVerdict::Outcome(outcome));
            }
        }
    }

    /// Notifies the sender of a message that it was not accepted.
    pub(super) fn report_refused(&mut self, id: MessageId, why: MessageRefusal) {
        self.jobs.note(id, Err(why));
        if let Some(waiting) = self.waiting.remove(&id) {
            if let Some(key) = &waiting.key {
                self.idempotency.cancel((&waiting.device, key));
            }
            waiting.tell(&PostVerdict::Refused(why));
        }
    }
}

impl WaitingSender {
    fn tell(self, verdict: &PostVerdict) {
        for sender in self.senders {
            // A sender that has gone needs no answer.
            let _ = sender.send(verdict.clone());
        }
    }
}

/// The part that must be the same in a request that is repeated.
fn fingerprint(post: &Post) -> Vec<u8> {
    let kind = match post.body {
        Body::Json(_) => b'j',
        Body::Text(_) => b't',
        Body::Bytes(_) => b'b',
    };
    let mut bytes = Vec::with_capacity(post.body.bytes().len() + 1);
    bytes.push(kind);
    bytes.extend_from_slice(post.body.bytes());
    bytes
}

/// Whether a message may have reached its device, for the counters.
pub(super) fn was_written(outcome: &MessageOutcome) -> bool {
    match outcome {
        MessageOutcome::Written | MessageOutcome::Acknowledged | MessageOutcome::Replied(_) => true,
        MessageOutcome::Superseded => false,
        MessageOutcome::TimedOut { was_written }
        | MessageOutcome::Dropped { was_written }
        | MessageOutcome::Ended { was_written } => *was_written,
    }
}

/// A change that listeners are notified of.
pub(super) fn change(local: &Local, device: &Arc<str>, is_connected: bool, reason: &'static str) -> PresenceChange {
    PresenceChange {
        device: device.clone(),
        is_connected,
        generation: local.generation,
        route: local.facts.route.clone(),
        reason,
        at_ms: super::clock::unix_ms(),
    }
}

// Sessions of devices that are away: each is kept for its device for as long as its route says, with unacknowledged messages.
//
// Bounded in bytes; beyond that the sessions that would end first end early.

/// What a session counts in addition to its messages.
const SESSION_BYTES: usize = 256;

/// The sessions of one node.
#[derive(Debug)]
pub(super) struct DetachedSessions {
    bytes_max: usize,
    bytes: usize,
    sessions: HashMap<Arc<str>, DetachedSession>,
    /// When each session is to be checked next.
    due: BTreeSet<(u64, Arc<str>)>,
}

#[derive(Debug)]
struct DetachedSession {
    session: Session,
    limits: SessionLimits,
    due_ms: u64,
    bytes: usize,
}

impl DetachedSessions {
    pub(super) fn new(bytes_max: usize) -> DetachedSessions {
        DetachedSessions { bytes_max, bytes: 0, sessions: HashMap::new(), due: BTreeSet::new() }
    }

    /// Keeps a session. A session that the device had before ends.
    pub(super) fn keep(
        &mut self,
        device: &Arc<str>,
        mut session: Session,
        limits: SessionLimits,
        now_ms: u64,
        notices: &mut Vec<Notice>,
    ) {
        self.end(device, notices);
        let due_ms = session.tick(now_ms, &limits, notices);
        let (Some(due_ms), false) = (due_ms, session.is_over()) else { return };
        let bytes = SESSION_BYTES + session.queued_bytes();
        self.bytes += bytes;
        self.due.insert((due_ms, device.clone()));
        self.sessions.insert(device.clone(), DetachedSession { session, limits, due_ms, bytes });
        while self.bytes > self.bytes_max
            && let Some((_, first)) = self.due.first().cloned()
        {
            self.end(&first, notices);
        }
    }

    /// The session that a device comes back to, if it is here.
    pub(super) fn take(&mut self, device: &str, token: ResumeToken) -> Option<(Session, SessionLimits)> {
        let is_it = self.sessions.get(device).is_some_and(|kept| kept.session.token() == token);
        if is_it { self.remove(device).map(|kept| (kept.session, kept.limits)) } else { None }
    }

    /// The device does not resume it.
    pub(super) fn end(&mut self, device: &str, notices: &mut Vec<Notice>) {
        if let Some(mut kept) = self.remove(device) {
            kept.session.end(notices);
        }
    }

    fn remove(&mut self, device: &str) -> Option<DetachedSession> {
        let (device, kept) = self.sessions.remove_entry(device)?;
        self.due.remove(&(kept.due_ms, device));
        self.bytes -= kept.bytes;
        Some(kept)
    }

    /// Runs the work that is due.
    pub(super) fn tick(&mut self, now_ms: u64, notices: &mut Vec<Notice>) {
        while let Some((due_ms, device)) = self.due.first().cloned()
            && due_ms <= now_ms
        {
            let Some(mut kept) = self.remove(&device) else { return };
            match kept.session.tick(now_ms, &kept.limits, notices) {
                Some(next_ms) if !kept.session.is_over() => {
                    kept.due_ms = next_ms.max(now_ms + 1);
                    kept.bytes = SESSION_BYTES + kept.session.queued_bytes();
                    self.bytes += kept.bytes;
                    self.due.insert((kept.due_ms, device.clone()));
                    self.sessions.insert(device, kept);
                }
                _ => {}
            }
        }
    }
}
