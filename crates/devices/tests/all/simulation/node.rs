//! A node's side of the directory: heartbeats, registrations, and the effects of the answers.

use super::directory::members;
use super::message::PendingSend;
use super::{Answer, DirectoryCall, Mail, TICK_MS, World};
use std::collections::{BTreeMap, HashMap};
use stillgate_devices::directory::{
    ConnectOutcome, Era, HEARTBEAT_MS, LEASE_MS, Location, Lookups, Member, Members, NodeRegistrations,
    RegistrationEffect, RegistrationRequest,
};
use stillgate_devices::protocol::MessageId;
use stillgate_devices::session::Session;

const REREGISTER_MS: u64 = 4_000;
const ANSWER_TIMEOUT_MS: u64 = 1_000;

pub(super) struct Node {
    pub(super) number: usize,
    pub(super) name: Box<str>,
    /// Grows with each start.
    pub(super) process: u64,
    pub(super) registrations: NodeRegistrations,
    /// Killed or stopped until then, or without the directory.
    pub(super) dead_until_ms: u64,
    pub(super) stopped_until_ms: u64,
    pub(super) cut_off_until_ms: u64,
    held_until_ms: u64,
    /// When its lease was last held again after it had ended.
    pub(super) lapsed_ms: u64,
    /// Since when the directory has answered each request.
    contact_since_ms: Option<u64>,
    /// Its predecessor, and the era in which that had registered everything.
    pub(super) former: Option<(usize, Option<Era>)>,
    /// Its successor.
    pub(super) successor: Option<usize>,
    /// It has ended in order.
    pub(super) is_over: bool,
    /// Messages waiting for a device which the former process is about to hand over.
    pub(super) parked: Vec<(super::Process, MessageId)>,
    next_heartbeat_ms: u64,
    next_reregistration_ms: u64,
    /// Requests without an answer yet, and when they were sent.
    pub(super) waiting: HashMap<u64, (u64, DirectoryCall)>,
    /// Connections whose device has vanished, and when that is noticed.
    pub(super) silent: Vec<(u64, Box<str>, u64)>,
    pub(super) sessions: BTreeMap<usize, AttachedSession>,
    pub(super) lookups: Lookups,
    pub(super) members: Members,
    /// Messages that this node has to answer.
    pub(super) sending: BTreeMap<MessageId, PendingSend>,
    /// Messages in sessions here, and their senders.
    pub(super) taken: BTreeMap<MessageId, super::Process>,
}

/// A device's session, and the connection that it is attached to.
pub(super) struct AttachedSession {
    pub(super) session: Session,
    pub(super) connection: Option<u64>,
}

impl Node {
    pub(super) fn new(index: usize, process: u64, epoch: u64, last_place: u64) -> Node {
        let name: Box<str> = format!("node-{index}").into();
        Node {
            number: index,
            registrations: NodeRegistrations::new(name.clone(), epoch, last_place),
            name,
            former: None,
            successor: None,
            is_over: false,
            parked: Vec::new(),
            process,
            dead_until_ms: 0,
            stopped_until_ms: 0,
            cut_off_until_ms: 0,
            held_until_ms: 0,
            lapsed_ms: 0,
            contact_since_ms: None,
            next_heartbeat_ms: 0,
            next_reregistration_ms: 0,
            waiting: HashMap::new(),
            silent: Vec::new(),
            sessions: BTreeMap::new(),
            // Room for some only, so that others are looked up again.
            lookups: Lookups::new(500),
            members: Members::default(),
            sending: BTreeMap::new(),
            taken: BTreeMap::new(),
        }
    }
}

impl World {
    pub(super) fn ask(&mut self, node: usize, asked: DirectoryCall) {
        let number = self.number();
        self.nodes[node].waiting.insert(number, (self.now_ms, asked.clone()));
        self.send(Mail::ToDirectory { from: self.process(node), number, asked });
    }

    /// All processes of a node end at once.
    pub(super) fn kill(&mut self, number: usize, until_ms: u64) {
        for it in self.slots(number).filter(|it| it.successor.is_some() && !it.is_over) {
            (it.is_over, it.process) = (true, it.process + 1);
        }
        let node = self.current[number];
        let killed = &self.nodes[node];
        let (process, cut_off_until_ms) = (killed.process + 1, killed.cut_off_until_ms);
        let fresh = Node::new(number, process, self.random.next(), 0);
        self.nodes[node] = Node { dead_until_ms: until_ms, cut_off_until_ms, ..fresh };
    }

    pub(super) fn directory_answered(&mut self, node: usize, number: u64, answer: Answer) {
        let Some((sent_ms, asked)) = self.nodes[node].waiting.remove(&number) else { return };
        let registrations = &mut self.nodes[node].registrations;
        match (asked, answer) {
            (DirectoryCall::Heartbeat { epoch, .. }, Answer::Read { era, members, now_ms }) => {
                if epoch == registrations.epoch() {
                    self.nodes[node].held_until_ms = sent_ms + LEASE_MS;
                }
                self.read(node, era, members, now_ms);
            }
            (DirectoryCall::BeginEra { .. }, Answer::Read { era, members, now_ms }) => {
                self.read(node, era, members, now_ms)
            }
            (DirectoryCall::Members { message }, Answer::Read { era, members, now_ms }) => {
                self.read(node, era, members, now_ms);
                self.members_were_read(node, message, Ok(()));
            }
            (DirectoryCall::LookUp { message, .. }, Answer::Entry(entry)) => {
                self.was_looked_up(node, message, Ok(entry))
            }
            (
                DirectoryCall::Registration { request, .. },
                Answer::Connected(ConnectOutcome::Occupied { generation, .. }, true),
            ) => {
                self.ask(node, DirectoryCall::Registration { request, dead: Some(generation) });
            }
            (
                DirectoryCall::Registration { request: RegistrationRequest::Connect { device, place, .. }, .. },
                Answer::Connected(answer, _),
            ) => {
                let effect = registrations.on_connect_answer(&device, &place, answer);
                self.apply(node, &device, effect);
            }
            (
                DirectoryCall::Registration {
                    request: RegistrationRequest::Register { device, place, generation, .. },
                    ..
                },
                Answer::Registered(answer),
            ) => {
                let effect = registrations.on_register_answer(&device, &place, generation, answer);
                self.apply(node, &device, effect);
            }
            (DirectoryCall::Disconnect { .. }, Answer::Done) => {}
            (asked, answer) => panic!("{asked:?} was answered by {answer:?}"),
        }
    }

    fn read(&mut self, node: usize, era: Option<Era>, read: Vec<(Box<str>, Member)>, now_ms: u64) {
        let since_ms = *self.nodes[node].contact_since_ms.get_or_insert(self.now_ms);
        self.nodes[node].members = members(era, read, now_ms, self.now_ms - since_ms);
        let now_s = (self.now_ms / 1000) as u32;
        if let Some(new) = self.nodes[node].registrations.observe_era(era, now_s) {
            self.ask(node, DirectoryCall::BeginEra { found: era, era: new });
        }
    }

    pub(super) fn close(&mut self, node: usize, device: &str, place: &Location) {
        let registrations = &mut self.nodes[node].registrations;
        if registrations.epoch() == place.epoch {
            let effect = registrations.close_if_current(device, place);
            self.apply(node, device, effect);
        }
    }

    pub(super) fn apply(&mut self, node: usize, device: &str, effect: RegistrationEffect) {
        match effect {
            RegistrationEffect::None => {}
            RegistrationEffect::Close { connection } => self.close_connection(node, connection),
            RegistrationEffect::CloseThere { place } => self.send(Mail::Close { device: device.into(), place }),
            RegistrationEffect::Disconnect(ended) => {
                self.ask(node, DirectoryCall::Disconnect { device: device.into(), ended })
            }
        }
    }

    pub(super) fn step_node(&mut self, node: usize) {
        let now_ms = self.now_ms;
        if now_ms >= self.nodes[node].next_heartbeat_ms {
            self.heartbeat(node);
        }
        let late = |(number, (sent_ms, _)): (&u64, &(u64, DirectoryCall))| {
            (now_ms >= sent_ms + ANSWER_TIMEOUT_MS).then_some(*number)
        };
        let mut late: Vec<u64> = self.nodes[node].waiting.iter().filter_map(late).collect();
        late.sort_unstable();
        for number in late {
            self.unanswered(node, number);
        }
        let (noticed, silent) =
            std::mem::take(&mut self.nodes[node].silent).into_iter().partition(|(at_ms, ..)| *at_ms <= now_ms);
        self.nodes[node].silent = silent;
        let noticed: Vec<(u64, Box<str>, u64)> = noticed;
        for (_, device, connection) in noticed {
            self.detach(node, connection);
            let effect = self.nodes[node].registrations.remove_connection(&device, connection);
            self.apply(node, &device, effect);
        }
        if self.nodes[node].successor.is_some() {
            self.give_devices(node);
        } else if now_ms >= self.nodes[node].next_reregistration_ms {
            self.nodes[node].next_reregistration_ms = now_ms + REREGISTER_MS;
            for device in &self.devices {
                self.nodes[node].registrations.reregister(&device.name);
            }
        }
        // At a limited pace.
        if let Some(request) = self.nodes[node].registrations.next_request() {
            self.ask(node, DirectoryCall::Registration { request, dead: None });
        }
        self.step_sessions(node);
        self.step_parked(node);
        self.step_sending(node);
    }

    fn heartbeat(&mut self, node: usize) {
        let (now_ms, epoch) = (self.now_ms, self.random.next());
        let it = &mut self.nodes[node];
        it.next_heartbeat_ms = now_ms + HEARTBEAT_MS;
        let holds = it.successor.is_none();
        if holds && it.held_until_ms > 0 && now_ms >= it.held_until_ms {
            it.registrations.begin_epoch(epoch);
            it.held_until_ms = 0;
        }
        let epoch = it.registrations.epoch();
        let filled = self.filled(node);
        self.ask(node, DirectoryCall::Heartbeat { epoch, filled, holds });
    }

    fn unanswered(&mut self, node: usize, number: u64) {
        let (_, asked) = self.nodes[node].waiting.remove(&number).unwrap();
        self.nodes[node].contact_since_ms = None;
        self.nodes[node].members = std::mem::take(&mut self.nodes[node].members).after_contact(0);
        match asked {
            DirectoryCall::Registration { request: RegistrationRequest::Connect { device, place, .. }, .. }
            | DirectoryCall::Registration { request: RegistrationRequest::Register { device, place, .. }, .. } => {
                let effect = self.nodes[node].registrations.on_missing_answer(&device, &place);
                self.apply(node, &device, effect);
            }
            DirectoryCall::Disconnect { .. } => self.ask(node, asked),
            DirectoryCall::LookUp { message, .. } => self.was_looked_up(node, message, Err(super::message::AWAY)),
            DirectoryCall::Members { message } => self.members_were_read(node, message, Err(super::message::AWAY)),
            // The next heartbeat does it.
            DirectoryCall::Heartbeat { .. } | DirectoryCall::BeginEra { .. } => {}
        }
    }

    /// A node closes a connection, and its device notices.
    pub(super) fn close_connection(&mut self, node: usize, connection: u64) {
        self.detach(node, connection);
        let process = self.nodes[node].process;
        let next_try_ms = self.now_ms + TICK_MS + self.random.below(2_000);
        let is_it = |it: &&mut super::Device| it.connection == Some((node, process, connection));
        if let Some(closed) = self.devices.iter_mut().find(is_it) {
            (closed.connection, closed.next_try_ms) = (None, next_try_ms);
        }
    }
}
