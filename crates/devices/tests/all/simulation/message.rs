//! Messages of back-ends: sent to any node, forwarded to the one that has the device, answered once.

use super::device::{Device, ENCODED, LIMITS};
use super::node::Node;
use super::{AckLevel, DEVICES, DirectoryCall, FAULTS_END_MS, Mail, NODES, Process, SETTLED_MS, TICK_MS, World};
use std::sync::Arc;
use stillgate_devices::directory::{
    DeliveryError, DeliveryStep, DirectoryEntry, DirectoryUnavailable, MessageRoute, Rejection, View,
};
use stillgate_devices::protocol::MessageId;
use stillgate_devices::session::{Message, MessageOutcome, MessageRefusal, Notice};

const TIMEOUT_MS: u64 = 2_000;
/// Extra time that the sender's node waits, beyond the node of the device.
const GRACE_MS: u64 = 500;
const PEERS_ASKED_MS: u64 = 500;
/// After a fault: a lease, and some requests that are lost.
const WELL_MS: u64 = 8_000;

pub(super) const AWAY: DirectoryUnavailable = DirectoryUnavailable;

/// A message and its history.
pub(super) struct MessageRecord {
    /// [`DEVICES`] is a device that never connects.
    pub(super) device: usize,
    pub(super) from: Process,
    pub(super) level: AckLevel,
    pub(super) sent_ms: u64,
    pub(super) told: Option<SenderAnswer>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum SenderAnswer {
    Outcome(MessageOutcome),
    Refused(MessageRefusal),
    Unsent(DeliveryError),
    NotTaken(Rejection),
    /// No answer in time: it may have been received.
    Lost,
}

/// A message that its sender's node has not answered yet.
pub(super) struct PendingSend {
    sending: MessageRoute,
    sent_to: Option<usize>,
    asked_peers_until_ms: Option<u64>,
}

impl SenderAnswer {
    /// Whether it means that the device will never receive it.
    pub(super) fn is_undelivered(&self) -> bool {
        match self {
            SenderAnswer::Unsent(_) | SenderAnswer::Refused(_) | SenderAnswer::Outcome(MessageOutcome::Superseded) => {
                true
            }
            SenderAnswer::Outcome(
                MessageOutcome::TimedOut { was_written }
                | MessageOutcome::Dropped { was_written }
                | MessageOutcome::Ended { was_written },
            ) => !was_written,
            SenderAnswer::Outcome(_) | SenderAnswer::NotTaken(_) | SenderAnswer::Lost => false,
        }
    }

    pub(super) fn is_acknowledged(&self) -> bool {
        matches!(self, SenderAnswer::Outcome(MessageOutcome::Acknowledged | MessageOutcome::Replied(_)))
    }
}

impl World {
    pub(super) fn step_senders(&mut self) {
        if self.has_faults() && self.random.one_in(6) {
            let (node, device) =
                (self.random.below(NODES as u64) as usize, self.random.below(DEVICES as u64 + 1) as usize);
            let level = [AckLevel::Written, AckLevel::Acknowledged, AckLevel::Replied][self.random.below(3) as usize];
            let node = self.current[node];
            if self.is_up(node) {
                self.post(node, device, level);
            }
        }
        if self.now_ms == SETTLED_MS {
            for (node, device) in (0..NODES).flat_map(|node| (0..=DEVICES).map(move |device| (node, device))) {
                let level = if self.random.one_in(2) { AckLevel::Acknowledged } else { AckLevel::Replied };
                self.post(self.current[node], device, level);
            }
        }
    }

    fn post(&mut self, node: usize, device: usize, level: AckLevel) {
        let id = MessageId(self.messages.len() as u128);
        let from = self.process(node);
        self.messages.push(MessageRecord { device, from, level, sent_ms: self.now_ms, told: None });
        if self.is_attached(node, device) {
            return self.take(node, from, id);
        }
        let name = format!("device-{device}");
        let (sending, step) = MessageRoute::begin(&name, self.view(node));
        self.nodes[node].sending.insert(id, PendingSend { sending, sent_to: None, asked_peers_until_ms: None });
        self.follow(node, id, step);
    }

    fn view(&mut self, node: usize) -> View<'_> {
        let node = &mut self.nodes[node];
        View { lookups: &mut node.lookups, members: &node.members, now_ms: self.now_ms }
    }

    pub(super) fn is_attached(&self, node: usize, device: usize) -> bool {
        self.nodes[node].sessions.get(&device).is_some_and(|held| held.connection.is_some())
    }

    fn follow(&mut self, node: usize, id: MessageId, step: DeliveryStep) {
        match step {
            DeliveryStep::LookUp => {
                let device = format!("device-{}", self.messages[id.0 as usize].device).into();
                self.ask(node, DirectoryCall::LookUp { message: id, device });
            }
            DeliveryStep::ReadMembers => self.ask(node, DirectoryCall::Members { message: id }),
            DeliveryStep::AskPeers => {
                let living = self.nodes[node].members.iter().map(|(name, _)| self.index(name));
                let number = self.nodes[node].number;
                let others: Vec<usize> = living.filter(|other| self.nodes[*other].number != number).collect();
                for to in others {
                    self.send(Mail::HaveYou { to, from: self.process(node), message: id });
                }
                let until_ms = self.now_ms + PEERS_ASKED_MS;
                self.waiting(node, id).asked_peers_until_ms = Some(until_ms);
            }
            DeliveryStep::Send { node: to } => self.forward(node, self.index(&to), id),
            DeliveryStep::Answer(unsent) => self.record_answer(node, id, SenderAnswer::Unsent(unsent)),
        }
    }

    fn forward(&mut self, node: usize, to: usize, id: MessageId) {
        // A process looks up the devices of its node itself.
        let to = if self.nodes[to].number == self.nodes[node].number { node } else { to };
        self.waiting(node, id).sent_to = Some(to);
        let me = self.process(node);
        if to == node {
            // The directory has not been notified yet that it has gone, or it has come just now.
            return self.take(node, me, id);
        }
        let is_dead = self.now_ms < self.nodes[to].dead_until_ms;
        if is_dead || (self.is_parted(node, to) && self.random.one_in(2)) {
            let told = SenderAnswer::NotTaken(Rejection::Unreachable);
            let at_ms = self.now_ms + 1 + self.random.below(300);
            self.mail.push((at_ms, Mail::Forwarded { to: me, by: to, message: id, told }));
            return;
        }
        self.send(Mail::Forward { to, from: me, message: id });
    }

    /// A message has arrived at the node that should have its device.
    pub(super) fn take(&mut self, node: usize, from: Process, id: MessageId) {
        let MessageRecord { device, level, .. } = self.messages[id.0 as usize];
        let deadline_ms = self.deadline_ms(id);
        if self.is_filling(node) && !self.is_attached(node, device) && self.now_ms < deadline_ms {
            return self.nodes[node].parked.push((from, id));
        }
        let message = Message { id, encoded: ENCODED.clone(), key: None, level, deadline_ms };
        let mut notices = Vec::new();
        let pushed = match self.nodes[node].sessions.get_mut(&device) {
            Some(held) => held.session.push(message, &LIMITS, &mut notices),
            None => Err(MessageRefusal::Offline),
        };
        match pushed {
            Ok(()) => {
                self.nodes[node].taken.insert(id, from);
            }
            Err(MessageRefusal::Offline) => {
                let is_between = self.is_filling(node) || self.nodes[node].successor.is_some();
                let why = if is_between { Rejection::Unreachable } else { Rejection::Moved };
                self.answer_sender(node, from, id, SenderAnswer::NotTaken(why));
            }
            Err(refused) => self.answer_sender(node, from, id, SenderAnswer::Refused(refused)),
        }
        self.notify(node, notices);
    }

    pub(super) fn deadline_ms(&self, id: MessageId) -> u64 {
        self.messages[id.0 as usize].sent_ms + TIMEOUT_MS
    }

    pub(super) fn notify(&mut self, node: usize, notices: Vec<Notice>) {
        for Notice { id, outcome } in notices {
            let from = self.nodes[node].taken.remove(&id).unwrap();
            self.answer_sender(node, from, id, SenderAnswer::Outcome(outcome));
        }
    }

    pub(super) fn answer_sender(&mut self, node: usize, from: Process, id: MessageId, told: SenderAnswer) {
        if from != self.process(node) {
            return self.send(Mail::Forwarded { to: from, by: node, message: id, told });
        }
        match told {
            SenderAnswer::NotTaken(_) => self.forwarded(node, node, id, told),
            told => self.record_answer(node, id, told),
        }
    }

    /// A node has answered for a message that was sent to it.
    pub(super) fn forwarded(&mut self, node: usize, by: usize, id: MessageId, told: SenderAnswer) {
        let Some(waiting) = self.nodes[node].sending.get_mut(&id) else { return };
        let SenderAnswer::NotTaken(why) = told else { return self.record_answer(node, id, told) };
        if waiting.sent_to.take() != Some(by) {
            return self.is_wrong(format!("{id} was not sent to node {by}"));
        }
        if why == Rejection::Moved {
            self.moved += 1;
        }
        let name: Arc<str> = (&*self.nodes[by].name).into();
        let step = self.step_of(node, id, |sending, view| sending.on_rejection(why, name, view));
        self.follow(node, id, step);
    }

    fn record_answer(&mut self, node: usize, id: MessageId, told: SenderAnswer) {
        self.nodes[node].sending.remove(&id);
        let (now_ms, stopped_ms) = (self.now_ms, self.nodes[node].stopped_until_ms);
        let MessageRecord { device, sent_ms, told: before, .. } = &mut self.messages[id.0 as usize];
        if let Some(before) = before {
            let twice = format!("{id} was answered {before:?}, then {told:?}");
            return self.is_wrong(twice);
        }
        let (device, sent_ms, latest_ms) = (*device, *sent_ms, *sent_ms + TIMEOUT_MS + GRACE_MS + TICK_MS);
        let is_received = self.devices.get(device).is_some_and(|device| device.received.contains_key(&id));
        *before = Some(told.clone());
        if told.is_acknowledged() && !is_received {
            self.is_wrong(format!("{id} was answered {told:?}, and device {device} has not received it"));
        }
        if matches!(told, SenderAnswer::Unsent(DeliveryError::NeverSeen | DeliveryError::Offline { .. }))
            && self.is_well(device, sent_ms)
        {
            self.is_wrong(format!("{id} was answered {told:?}, and device {device} is connected"));
        }
        if now_ms > latest_ms && now_ms > stopped_ms + TICK_MS {
            self.is_wrong(format!("{id} was answered {told:?}, and late"));
        }
    }

    /// Whether a device's connection and its node had no fault since long before a message was sent.
    fn is_well(&self, device: usize, sent_ms: u64) -> bool {
        let Some(Device { connection: Some((node, process, _)), since_ms, .. }) = self.devices.get(device) else {
            return false;
        };
        let Node { name, process: now, lapsed_ms, dead_until_ms, stopped_until_ms, cut_off_until_ms, .. } =
            &self.nodes[*node];
        let lease = self.directory.members.get(name).map(|member| member.lease);
        // Some heartbeats in a row may be lost.
        let is_alive = lease.is_some_and(|lease| self.now_ms < lease.until_ms);
        let lost_ms = self.directory.lost_ms;
        let faults_ms = [*since_ms, *lapsed_ms, *dead_until_ms, *stopped_until_ms, *cut_off_until_ms, lost_ms];
        is_alive && process == now && faults_ms.iter().all(|fault_ms| fault_ms + WELL_MS < sent_ms)
    }

    pub(super) fn was_looked_up(
        &mut self,
        node: usize,
        id: MessageId,
        entry: Result<Option<DirectoryEntry>, DirectoryUnavailable>,
    ) {
        if self.nodes[node].sending.contains_key(&id) {
            let step = self.step_of(node, id, |sending, view| sending.on_entry(entry, view));
            self.follow(node, id, step);
        }
    }

    pub(super) fn members_were_read(&mut self, node: usize, id: MessageId, read: Result<(), DirectoryUnavailable>) {
        if self.nodes[node].sending.contains_key(&id) {
            let step = self.step_of(node, id, |sending, view| sending.members_read(read, view));
            self.follow(node, id, step);
        }
    }

    /// Handles the question to a node whether it has a message's device.
    pub(super) fn handle_lookup(&mut self, node: usize, from: Process, id: MessageId) {
        if self.is_attached(node, self.messages[id.0 as usize].device) {
            self.send(Mail::IHave { to: from, by: node, message: id });
        } else if self.is_filling(node) {
            // The question is repeated.
            self.mail.push((self.now_ms + TICK_MS, Mail::HaveYou { to: node, from, message: id }));
        }
    }

    pub(super) fn peer_has(&mut self, node: usize, by: usize, id: MessageId) {
        let Some(waiting) = self.nodes[node].sending.get_mut(&id) else { return };
        if waiting.asked_peers_until_ms.take().is_some() {
            let name: Arc<str> = (&*self.nodes[by].name).into();
            let step = self.step_of(node, id, |sending, view| sending.peers_asked(Some(name), view));
            self.follow(node, id, step);
        }
    }

    /// Gives up on requests that have waited too long.
    pub(super) fn step_sending(&mut self, node: usize) {
        let ids: Vec<MessageId> = self.nodes[node].sending.keys().copied().collect();
        for id in ids {
            let (now_ms, sent_ms) = (self.now_ms, self.messages[id.0 as usize].sent_ms);
            let waiting = self.waiting(node, id);
            if now_ms >= sent_ms + TIMEOUT_MS + GRACE_MS {
                let told = if waiting.sent_to.is_some() {
                    SenderAnswer::Lost
                } else {
                    SenderAnswer::Unsent(DeliveryError::Unknown)
                };
                self.record_answer(node, id, told);
            } else if waiting.asked_peers_until_ms.is_some_and(|until_ms| now_ms >= until_ms) {
                waiting.asked_peers_until_ms = None;
                let step = self.step_of(node, id, |sending, view| sending.peers_asked(None, view));
                self.follow(node, id, step);
            }
        }
    }

    fn step_of(
        &mut self,
        node: usize,
        id: MessageId,
        step: impl FnOnce(&mut MessageRoute, View<'_>) -> DeliveryStep,
    ) -> DeliveryStep {
        let now_ms = self.now_ms;
        let node = &mut self.nodes[node];
        let view = View { lookups: &mut node.lookups, members: &node.members, now_ms };
        step(&mut node.sending.get_mut(&id).unwrap().sending, view)
    }

    fn waiting(&mut self, node: usize, id: MessageId) -> &mut PendingSend {
        self.nodes[node].sending.get_mut(&id).unwrap()
    }

    pub(super) fn index(&self, name: &str) -> usize {
        self.current.into_iter().find(|slot| &*self.nodes[*slot].name == name).unwrap()
    }

    pub(super) fn wants_reply(&self, id: MessageId) -> bool {
        self.messages[id.0 as usize].level == AckLevel::Replied
    }
}

const _: () = assert!(SETTLED_MS > FAULTS_END_MS && SETTLED_MS.is_multiple_of(TICK_MS));
