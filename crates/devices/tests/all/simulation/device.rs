//! Devices and their sessions: frames in order over a connection, acknowledgements late, resumption on any node.

use super::node::AttachedSession;
use super::{DEVICES, Mail, NODES, Process, World};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use stillgate_devices::Generation;
use stillgate_devices::protocol::{Body, DeviceProtocol, EncodedBody, MessageId};
use stillgate_devices::session::{QueuePolicy, ResumeToken, Session, SessionId, SessionLimits, SessionTransfer};

pub(super) const LIMITS: SessionLimits =
    SessionLimits { queue_bytes_max: 240, resume_ms: 10_000, policy: QueuePolicy::Refuse, acknowledges: true };

/// How long a node waits for a session that moves from another.
const CARRY_MS: u64 = 500;

pub(super) static ENCODED: LazyLock<EncodedBody> =
    LazyLock::new(|| DeviceProtocol::Json.encode(&Body::Json("1".into())).unwrap());

/// A frame in flight on a connection.
pub(super) enum Frame {
    Hello(ResumeToken, Process),
    Message { id: MessageId, seq: u64 },
    Ack(u64),
    Reply(MessageId),
}

impl Frame {
    /// The connection that a greeting is being sent over has moved to this process.
    pub(super) fn is_from(&mut self, process: Process) {
        if let Frame::Hello(_, home) = self {
            *home = process;
        }
    }
}

pub(super) struct Device {
    pub(super) name: Box<str>,
    /// Node, process and connection, as seen by the device.
    pub(super) connection: Option<(usize, u64, u64)>,
    /// When it was made.
    pub(super) since_ms: u64,
    pub(super) next_try_ms: u64,
    pub(super) token: Option<(ResumeToken, Process)>,
    /// The highest number in its session.
    seq: u64,
    /// In order, in each direction: the time of arrival and the connection.
    pub(super) frames: Vec<(u64, u64, Frame)>,
    /// Received messages, with their sessions and numbers.
    pub(super) received: BTreeMap<MessageId, BTreeSet<(u128, u64)>>,
}

impl Device {
    pub(super) fn new(index: usize) -> Device {
        let name = format!("device-{index}").into();
        let (token, seq, frames, received) = (None, 0, Vec::new(), BTreeMap::new());
        Device { name, connection: None, since_ms: 0, next_try_ms: 0, token, seq, frames, received }
    }
}

impl World {
    /// A device loses its connection, and its node notices later.
    pub(super) fn cut(&mut self, device: usize) {
        let notice_ms = self.now_ms + [0, 3_000, 5_000][self.random.below(3) as usize];
        let next_try_ms = self.now_ms + self.random.below(2_000);
        let Device { name, connection, next_try_ms: next, .. } = &mut self.devices[device];
        if let Some((node, process, connection)) = connection.take() {
            *next = next_try_ms;
            if self.nodes[node].process == process {
                self.nodes[node].silent.push((notice_ms, name.clone(), connection));
            }
        }
    }

    pub(super) fn step_device(&mut self, device: usize) {
        self.deliver_frames(device);
        let now_ms = self.now_ms;
        if let Some((node, process, _)) = self.devices[device].connection {
            if self.nodes[node].process != process {
                self.cut(device);
            }
            return;
        }
        let node = self.current[self.random.below(NODES as u64) as usize];
        if now_ms < self.devices[device].next_try_ms || !self.is_up(node) {
            return;
        }
        let (connection, process) = (self.number(), self.process(node));
        self.devices[device].connection = Some((node, process.1, connection));
        self.devices[device].since_ms = now_ms;
        let name = self.devices[device].name.clone();
        let (_, effect) = self.nodes[node].registrations.add_connection(&name, connection, self.duplicate, now_ms);
        self.apply(node, &name, effect);
        match self.devices[device].token.filter(|_| !self.random.one_in(5)) {
            Some((token, home)) if home == process => {
                let generation = Generation(connection);
                let held = self.nodes[node].sessions.get_mut(&device);
                let resumed = held.map(|held| (held.session.resume(token, generation, now_ms, &LIMITS), held));
                match resumed {
                    Some((Ok(()), held)) => {
                        held.connection = Some(connection);
                        self.greet(node, device);
                    }
                    _ => self.begin_session(node, device, connection, None),
                }
            }
            // A process with a successor gets no requests for stored sessions.
            Some((_, home)) if self.nodes[home.0].successor.is_some() => {
                self.begin_session(node, device, connection, None);
            }
            Some((token, home)) => {
                self.send(Mail::Carry { to: home, from: process, device, token });
                // No answer is an answer, too.
                self.mail.push((now_ms + CARRY_MS, Mail::Carried { to: process, device, token, carried: None }));
            }
            None => self.begin_session(node, device, connection, None),
        }
    }

    pub(super) fn carry(&mut self, node: usize, from: Process, device: usize, token: ResumeToken) {
        // The successor gets the request instead.
        if self.nodes[node].successor.is_some() {
            return;
        }
        let mut notices = Vec::new();
        let held = self.nodes[node].sessions.get_mut(&device);
        let carried = held.and_then(|held| held.session.carry(token, &mut notices).ok());
        self.notify(node, notices);
        self.send(Mail::Carried { to: from, device, token, carried });
    }

    pub(super) fn carried(&mut self, node: usize, device: usize, token: ResumeToken, carried: Option<SessionTransfer>) {
        let Some((_, _, connection)) = self.devices[device].connection.filter(|it| (it.0, it.1) == self.process(node))
        else {
            return;
        };
        let is_for_it = self.devices[device].token.is_some_and(|(it, _)| it == token);
        let has_one = self.nodes[node].sessions.get(&device).is_some_and(|held| held.connection == Some(connection));
        if is_for_it && !has_one {
            self.carried += u64::from(carried.is_some());
            self.begin_session(node, device, connection, carried);
        }
    }

    fn begin_session(&mut self, node: usize, device: usize, connection: u64, carried: Option<SessionTransfer>) {
        let generation = Generation(connection);
        let session = match carried {
            Some(carried) => Session::from_carried(carried, generation, self.now_ms),
            None => Session::new(SessionId(u128::from(self.random.next())), generation),
        };
        let mut notices = Vec::new();
        if let Some(mut held) = self.nodes[node].sessions.remove(&device) {
            held.session.end(&mut notices);
        }
        self.nodes[node].sessions.insert(device, AttachedSession { session, connection: Some(connection) });
        self.notify(node, notices);
        self.greet(node, device);
    }

    fn greet(&mut self, node: usize, device: usize) {
        let held = &self.nodes[node].sessions[&device];
        let (token, connection) = (held.session.token(), held.connection.unwrap());
        self.send_frame(device, connection, Frame::Hello(token, self.process(node)));
    }

    fn send_frame(&mut self, device: usize, connection: u64, frame: Frame) {
        let delay_ms = 1 + self.random.below(100);
        let frames = &mut self.devices[device].frames;
        let last_ms = frames.iter().filter(|(_, it, _)| *it == connection).map(|(at_ms, ..)| *at_ms).max();
        frames.push(((self.now_ms + delay_ms).max(last_ms.unwrap_or(0)), connection, frame));
    }

    fn deliver_frames(&mut self, device: usize) {
        let now_ms = self.now_ms;
        let frames = std::mem::take(&mut self.devices[device].frames);
        let (due, later) = frames.into_iter().partition(|(at_ms, ..)| *at_ms <= now_ms);
        self.devices[device].frames = later;
        let due: Vec<(u64, u64, Frame)> = due;
        for (_, number, frame) in due {
            let Some((node, process, connection)) = self.devices[device].connection else { return };
            if connection != number || self.nodes[node].process != process {
                continue;
            }
            match frame {
                Frame::Hello(token, home) => {
                    let it = &mut self.devices[device];
                    if it.token.is_none_or(|(before, _)| before.session != token.session) {
                        it.seq = 0;
                    }
                    it.token = Some((token, home));
                }
                Frame::Message { id, seq } => self.receive(device, connection, id, seq),
                // A stopped node reads later.
                Frame::Ack(_) | Frame::Reply(_) if !self.is_up(node) => {
                    self.devices[device].frames.push((now_ms + 1, connection, frame));
                }
                Frame::Ack(seq) => self.acknowledged(node, device, connection, seq),
                Frame::Reply(id) => self.replied(node, device, connection, id),
            }
        }
    }

    fn receive(&mut self, device: usize, connection: u64, id: MessageId, seq: u64) {
        let it = &mut self.devices[device];
        let session = it.token.unwrap().0.session.0;
        self.twice += u64::from(!it.received.entry(id).or_default().insert((session, seq)));
        it.seq = it.seq.max(seq);
        let (highest, is_lazy) = (it.seq, self.has_faults() && self.random.one_in(4));
        if is_lazy {
            return;
        }
        if self.random.one_in(2) || self.wants_reply(id) {
            self.send_frame(device, connection, Frame::Reply(id));
        }
        self.send_frame(device, connection, Frame::Ack(highest));
    }

    fn acknowledged(&mut self, node: usize, device: usize, connection: u64, seq: u64) {
        let mut notices = Vec::new();
        if let Some(held) = self.attached(node, device, connection)
            && let Err(wrong) = held.session.acknowledge(seq, &mut notices)
        {
            self.is_wrong(format!("device {device} acknowledged what it received: {wrong}"));
        }
        self.notify(node, notices);
    }

    fn replied(&mut self, node: usize, device: usize, connection: u64, id: MessageId) {
        let mut notices = Vec::new();
        if let Some(held) = self.attached(node, device, connection) {
            held.session.reply(id, Body::Json("2".into()), &mut notices);
        }
        self.notify(node, notices);
    }

    fn attached(&mut self, node: usize, device: usize, connection: u64) -> Option<&mut AttachedSession> {
        self.nodes[node].sessions.get_mut(&device).filter(|held| held.connection == Some(connection))
    }

    /// A connection of a node has ended.
    pub(super) fn detach(&mut self, node: usize, connection: u64) {
        let (now_ms, mut notices) = (self.now_ms, Vec::new());
        for held in self.nodes[node].sessions.values_mut() {
            if held.connection == Some(connection) {
                held.connection = None;
                held.session.detach(now_ms, &LIMITS, &mut notices);
            }
        }
        self.notify(node, notices);
    }

    /// Writes everything due, and lets time pass.
    pub(super) fn step_sessions(&mut self, node: usize) {
        let (now_ms, mut notices) = (self.now_ms, Vec::new());
        for device in 0..DEVICES {
            let Some(held) = self.nodes[node].sessions.get_mut(&device) else { continue };
            held.session.tick(now_ms, &LIMITS, &mut notices);
            let mut written = Vec::new();
            while let Some(next) = held.session.next_to_write(now_ms) {
                written.push(Frame::Message { id: next.id, seq: next.seq });
            }
            held.session.on_written(&LIMITS, &mut notices);
            let (connection, is_over) = (held.connection, held.session.is_over());
            if is_over {
                self.nodes[node].sessions.remove(&device);
            }
            for frame in written {
                self.send_frame(device, connection.unwrap(), frame);
            }
        }
        self.notify(node, notices);
    }
}
