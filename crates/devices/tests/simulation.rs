//! Nodes, their directory and devices in one thread, with a clock and a network of their own: whatever fails, some seconds
//! after the last fault every device has one connection, and the directory names it.
//!
//! Messages between nodes and directory are late, lost and overtake each other; nodes are killed and stopped; the directory
//! is away, and comes back empty. `STILLGATE_SIMULATION_SEEDS` says how many worlds are tried.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use stillgate_devices::Generation;
use stillgate_devices::directory::{
    self, Connect, Connected, Duplicate, Effect, Entry, Era, Lease, Place, Registered, Registrations, Request,
};

const SEEDS: u64 = 300;
const NODES: usize = 3;
const DEVICES: usize = 4;
const TICK_MS: u64 = 50;
const FAULTS_END_MS: u64 = 30_000;
/// A lease, a heartbeat, an audit, the slowest dead peer, and tries of a device in between.
const SETTLED_MS: u64 = FAULTS_END_MS + 20_000;
const LEASE_MS: u64 = 5_000;
const HEARTBEAT_MS: u64 = 1_000;
const AUDIT_MS: u64 = 4_000;
const ANSWER_TIMEOUT_MS: u64 = 1_000;
const DELAY_MS: u64 = 200;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

/// What a node asks, with what it needs to know the answer by.
#[derive(Debug, Clone)]
enum Asked {
    Heartbeat { epoch: u64 },
    BeginEra { found: Option<Era>, era: Era },
    Registration { request: Request, dead: Option<Generation> },
    Disconnect { device: Box<str>, place: Place },
}

#[derive(Debug, Clone)]
enum Answer {
    Era(Option<Era>),
    Connected(Connected, bool),
    Registered(Registered),
    Done,
}

#[derive(Debug, Clone)]
enum Mail {
    ToDirectory { node: usize, process: u64, number: u64, asked: Asked },
    ToNode { node: usize, process: u64, number: u64, answer: Answer },
    Close { device: Box<str>, place: Place },
}

struct Node {
    name: Box<str>,
    /// Grows with each start.
    process: u64,
    registrations: Registrations,
    /// Killed or stopped until then.
    dead_until_ms: u64,
    stopped_until_ms: u64,
    held_until_ms: u64,
    next_heartbeat_ms: u64,
    next_audit_ms: u64,
    /// Requests without an answer yet, and when they were sent.
    waiting: HashMap<u64, (u64, Asked)>,
    /// Connections whose device has gone without a word, and when that is noticed.
    silent: Vec<(u64, Box<str>, u64)>,
}

struct Device {
    name: Box<str>,
    /// Node, process and connection, as the device sees it.
    connection: Option<(usize, u64, u64)>,
    next_try_ms: u64,
}

struct World {
    random: Random,
    now_ms: u64,
    duplicate: Duplicate,
    entries: HashMap<Box<str>, Option<Entry>>,
    leases: HashMap<Box<str>, Option<Lease>>,
    era: Option<Era>,
    away_until_ms: u64,
    nodes: Vec<Node>,
    devices: Vec<Device>,
    mail: Vec<(u64, Mail)>,
    numbers: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let node = |index: usize, epoch: u64| Node {
            name: format!("node-{index}").into(),
            process: 0,
            registrations: Registrations::new(format!("node-{index}").into(), epoch),
            dead_until_ms: 0,
            stopped_until_ms: 0,
            held_until_ms: 0,
            next_heartbeat_ms: 0,
            next_audit_ms: 0,
            waiting: HashMap::new(),
            silent: Vec::new(),
        };
        let device = |index: usize| Device { name: format!("device-{index}").into(), connection: None, next_try_ms: 0 };
        World {
            now_ms: 0,
            duplicate: if random.one_in(2) { Duplicate::Replace } else { Duplicate::Refuse },
            entries: HashMap::new(),
            leases: HashMap::new(),
            era: None,
            away_until_ms: 0,
            nodes: (0..NODES).map(|index| node(index, random.next())).collect(),
            devices: (0..DEVICES).map(device).collect(),
            mail: Vec::new(),
            numbers: 0,
            random,
        }
    }

    fn has_faults(&self) -> bool {
        self.now_ms < FAULTS_END_MS
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn send(&mut self, mail: Mail) {
        if self.has_faults() && self.random.one_in(15) {
            return;
        }
        let delay_ms = 1 + self.random.below(DELAY_MS);
        self.mail.push((self.now_ms + delay_ms, mail));
    }

    fn ask(&mut self, node: usize, asked: Asked) {
        let number = self.number();
        let process = self.nodes[node].process;
        self.nodes[node].waiting.insert(number, (self.now_ms, asked.clone()));
        self.send(Mail::ToDirectory { node, process, number, asked });
    }

    fn is_up(&self, node: usize) -> bool {
        self.now_ms >= self.nodes[node].dead_until_ms.max(self.nodes[node].stopped_until_ms)
    }

    fn run(&mut self) {
        while self.now_ms < SETTLED_MS {
            self.now_ms += TICK_MS;
            if self.has_faults() {
                self.break_something();
            }
            let (due, later) = std::mem::take(&mut self.mail).into_iter().partition(|(at_ms, _)| *at_ms <= self.now_ms);
            self.mail = later;
            let mut due: Vec<(u64, Mail)> = due;
            due.sort_by_key(|(at_ms, _)| *at_ms);
            for (_, mail) in due {
                self.deliver(mail);
            }
            for node in 0..NODES {
                if self.is_up(node) {
                    self.step_node(node);
                }
            }
            for device in 0..DEVICES {
                self.step_device(device);
            }
        }
    }

    fn break_something(&mut self) {
        let (node, pause_ms) = (self.random.below(NODES as u64) as usize, self.random.below(8_000));
        let until_ms = (self.now_ms + pause_ms).min(FAULTS_END_MS);
        match self.random.below(600) {
            0 | 1 => self.kill(node, until_ms),
            2 | 3 => self.nodes[node].stopped_until_ms = until_ms,
            4 | 5 => self.away_until_ms = until_ms,
            6 | 7 => {
                self.away_until_ms = until_ms;
                self.entries.clear();
                self.leases.clear();
                self.era = None;
            }
            8..=40 => {
                let device = self.random.below(DEVICES as u64) as usize;
                self.cut(device);
            }
            _ => {}
        }
    }

    fn kill(&mut self, node: usize, until_ms: u64) {
        let epoch = self.random.next();
        let killed = &mut self.nodes[node];
        killed.process += 1;
        killed.registrations = Registrations::new(killed.name.clone(), epoch);
        (killed.dead_until_ms, killed.held_until_ms) = (until_ms, 0);
        killed.waiting.clear();
        killed.silent.clear();
    }

    /// A device loses its connection, and its node notices later.
    fn cut(&mut self, device: usize) {
        let notice_ms = self.now_ms + [0, 3_000, 5_000][self.random.below(3) as usize];
        let next_try_ms = self.now_ms + self.random.below(2_000);
        let Device { name, connection, next_try_ms: next } = &mut self.devices[device];
        if let Some((node, process, connection)) = connection.take() {
            *next = next_try_ms;
            if self.nodes[node].process == process {
                self.nodes[node].silent.push((notice_ms, name.clone(), connection));
            }
        }
    }

    fn deliver(&mut self, mail: Mail) {
        match mail {
            Mail::ToDirectory { node, process, number, asked } => {
                if self.now_ms >= self.away_until_ms {
                    let answer = self.directory(node, asked);
                    self.send(Mail::ToNode { node, process, number, answer });
                }
            }
            // What comes for a node that is stopped waits in its sockets.
            Mail::ToNode { node, process, .. } if self.nodes[node].process == process && !self.is_up(node) => {
                self.mail.push((self.now_ms + TICK_MS, mail));
            }
            Mail::ToNode { node, process, number, answer } => {
                if self.nodes[node].process == process
                    && let Some((sent_ms, asked)) = self.nodes[node].waiting.remove(&number)
                {
                    self.answered(node, sent_ms, asked, answer);
                }
            }
            Mail::Close { device, place } => {
                let node = self.nodes.iter().position(|node| node.name == place.node).unwrap();
                if self.is_up(node) && self.nodes[node].registrations.epoch() == place.epoch {
                    let effect = self.nodes[node].registrations.close(&device, &place);
                    self.apply(node, &device, effect);
                }
            }
        }
    }

    fn directory(&mut self, node: usize, asked: Asked) -> Answer {
        let now_ms = self.now_ms;
        match asked {
            Asked::Heartbeat { epoch } => {
                let lease = self.leases.entry(self.nodes[node].name.clone()).or_default();
                // Without the lease a node goes on, but nobody takes it for alive.
                let _is_taken = Lease::hold(lease, epoch, now_ms, LEASE_MS).is_err();
                Answer::Era(self.era)
            }
            Asked::BeginEra { found, era } => {
                if self.era == found {
                    self.era = Some(era);
                }
                Answer::Era(self.era)
            }
            Asked::Registration { request: Request::Connect { device, place, era }, dead } => {
                let entry = self.entries.entry(device).or_default();
                let request = Connect { place, era, duplicate: self.duplicate, dead, now_ms };
                let connected = directory::connect(entry, request);
                let is_dead = match &connected {
                    Connected::Occupied { place, .. } => {
                        let lease = self.leases.get(&place.node).and_then(Option::as_ref);
                        !Lease::is_alive(lease, place.epoch, now_ms)
                    }
                    Connected::Current { .. } => false,
                };
                Answer::Connected(connected, is_dead)
            }
            Asked::Registration { request: Request::Register { device, place, generation, since_ms }, .. } => {
                let entry = self.entries.entry(device).or_default();
                Answer::Registered(directory::register(entry, place, generation, since_ms))
            }
            Asked::Disconnect { device, place } => {
                directory::disconnect(self.entries.entry(device).or_default(), &place, now_ms);
                Answer::Done
            }
        }
    }

    fn answered(&mut self, node: usize, sent_ms: u64, asked: Asked, answer: Answer) {
        let now_s = (self.now_ms / 1000) as u32;
        let registrations = &mut self.nodes[node].registrations;
        match (asked, answer) {
            (Asked::Heartbeat { epoch }, Answer::Era(found)) => {
                if epoch == registrations.epoch() {
                    self.nodes[node].held_until_ms = sent_ms + LEASE_MS;
                }
                self.found_era(node, found, now_s);
            }
            (Asked::BeginEra { .. }, Answer::Era(found)) => self.found_era(node, found, now_s),
            (Asked::Registration { request, .. }, Answer::Connected(Connected::Occupied { generation, .. }, true)) => {
                self.ask(node, Asked::Registration { request, dead: Some(generation) });
            }
            (
                Asked::Registration { request: Request::Connect { device, place, .. }, .. },
                Answer::Connected(answer, _),
            ) => {
                let effect = registrations.answered(&device, &place, answer);
                self.apply(node, &device, effect);
            }
            (
                Asked::Registration { request: Request::Register { device, place, generation, .. }, .. },
                Answer::Registered(answer),
            ) => {
                let effect = registrations.registered(&device, &place, generation, answer);
                self.apply(node, &device, effect);
            }
            (Asked::Disconnect { .. }, Answer::Done) => {}
            (asked, answer) => panic!("{asked:?} was answered by {answer:?}"),
        }
    }

    fn found_era(&mut self, node: usize, found: Option<Era>, now_s: u32) {
        if let Some(era) = self.nodes[node].registrations.found_era(found, now_s) {
            self.ask(node, Asked::BeginEra { found, era });
        }
    }

    fn apply(&mut self, node: usize, device: &str, effect: Effect) {
        match effect {
            Effect::None => {}
            Effect::Close { connection } => {
                let process = self.nodes[node].process;
                let next_try_ms = self.now_ms + self.random.below(2_000);
                let closed = self.devices.iter_mut().find(|it| it.connection == Some((node, process, connection)));
                if let Some(closed) = closed {
                    (closed.connection, closed.next_try_ms) = (None, next_try_ms);
                }
            }
            Effect::CloseThere { place } => self.send(Mail::Close { device: device.into(), place }),
            Effect::Disconnect { place } => self.ask(node, Asked::Disconnect { device: device.into(), place }),
        }
    }

    fn step_node(&mut self, node: usize) {
        let now_ms = self.now_ms;
        if now_ms >= self.nodes[node].next_heartbeat_ms {
            let epoch = self.random.next();
            let it = &mut self.nodes[node];
            it.next_heartbeat_ms = now_ms + HEARTBEAT_MS;
            if it.held_until_ms > 0 && now_ms >= it.held_until_ms {
                it.registrations.begin_epoch(epoch);
                it.held_until_ms = 0;
            }
            let epoch = it.registrations.epoch();
            self.ask(node, Asked::Heartbeat { epoch });
        }
        let late =
            |(number, (sent_ms, _)): (&u64, &(u64, Asked))| (now_ms >= sent_ms + ANSWER_TIMEOUT_MS).then_some(*number);
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
            let effect = self.nodes[node].registrations.disconnected(&device, connection);
            self.apply(node, &device, effect);
        }
        if now_ms >= self.nodes[node].next_audit_ms {
            self.nodes[node].next_audit_ms = now_ms + AUDIT_MS;
            for device in &self.devices {
                self.nodes[node].registrations.audit(&device.name);
            }
        }
        // At a pace.
        if let Some(request) = self.nodes[node].registrations.next_request() {
            self.ask(node, Asked::Registration { request, dead: None });
        }
    }

    fn unanswered(&mut self, node: usize, number: u64) {
        let (_, asked) = self.nodes[node].waiting.remove(&number).unwrap();
        match asked {
            Asked::Registration { request: Request::Connect { device, place, .. }, .. }
            | Asked::Registration { request: Request::Register { device, place, .. }, .. } => {
                let effect = self.nodes[node].registrations.unanswered(&device, &place);
                self.apply(node, &device, effect);
            }
            Asked::Disconnect { .. } => self.ask(node, asked),
            // The next heartbeat does.
            Asked::Heartbeat { .. } | Asked::BeginEra { .. } => {}
        }
    }

    fn step_device(&mut self, device: usize) {
        let now_ms = self.now_ms;
        if let Some((node, process, _)) = self.devices[device].connection {
            if self.nodes[node].process != process {
                self.cut(device);
            }
            return;
        }
        let node = self.random.below(NODES as u64) as usize;
        if now_ms < self.devices[device].next_try_ms || !self.is_up(node) {
            return;
        }
        let connection = self.number();
        self.devices[device].connection = Some((node, self.nodes[node].process, connection));
        let name = self.devices[device].name.clone();
        let effect = self.nodes[node].registrations.connected(&name, connection, now_ms);
        self.apply(node, &name, effect);
    }

    /// What is wrong in the end.
    fn judge(&self) -> Result<(), String> {
        for Device { name, connection, .. } in &self.devices {
            let held: Vec<(usize, u64, Option<Generation>)> = (0..NODES)
                .filter_map(|node| {
                    let (connection, generation) = self.nodes[node].registrations.connection(name)?;
                    Some((node, connection, generation))
                })
                .collect();
            let [(node, number, generation)] = held[..] else { return Err(format!("{name} has connections {held:?}")) };
            if connection.map(|(node, _, connection)| (node, connection)) != Some((node, number)) {
                return Err(format!("{name} believes in {connection:?}, and is at {held:?}"));
            }
            let entry = self.entries.get(name).and_then(Option::as_ref);
            let Some(Entry::Online { place, generation: newest, .. }) = entry else {
                return Err(format!("{name} is at {held:?}, and the directory says {entry:?}"));
            };
            let it = &self.nodes[node];
            let is_named = place.node == it.name && place.connection == number && Some(*newest) == generation;
            let lease = self.leases.get(&place.node).and_then(Option::as_ref);
            if !is_named || !Lease::is_alive(lease, place.epoch, self.now_ms) {
                return Err(format!("{name} is at {held:?}, and the directory says {entry:?} with {lease:?}"));
            }
        }
        Ok(())
    }
}

#[test]
fn after_the_last_fault_each_device_has_one_connection() {
    let seeds = std::env::var("STILLGATE_SIMULATION_SEEDS").map_or(SEEDS, |seeds| seeds.parse().unwrap());
    for seed in 0..seeds {
        let mut world = World::new(seed);
        world.run();
        if let Err(wrong) = world.judge() {
            panic!("seed {seed}, {:?}: {wrong}", world.duplicate);
        }
    }
}
