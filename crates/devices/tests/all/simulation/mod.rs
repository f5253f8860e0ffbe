//! Nodes, their directory, devices and back-ends in one thread, with a clock and a network of their own.
//!
//! Messages between nodes and directory are late, lost and overtake each other; nodes are killed, stopped and parted; the
//! directory is away, and comes back empty; devices vanish without a word and resume their sessions elsewhere. Then:
//!
//! - Some seconds after the last fault every device has one connection, the directory names it, and every node reaches it.
//!   Before that two may live, for example under a partition.
//! - A message that is called acknowledged or answered was received. One that is called undelivered never is.
//! - Every message whose sender lives on is answered once, in time. No message gets two numbers in a session, or two sessions.
//!
//! - A device that is connected to a node without faults is neither called offline nor unknown, also while one process of the
//!   node replaces another and devices go over one by one.
//!
//! `STILLGATE_SIMULATION_SEEDS` is the number of worlds, `STILLGATE_SIMULATION_FIRST` the first of them.

mod device;
mod directory;
mod judge;
mod message;
mod node;
mod upgrade;

use device::Device;
use directory::Directory;
use message::{MessageRecord, SenderAnswer};
use node::Node;
use stillgate_devices::Generation;
use stillgate_devices::directory::{
    ConnectOutcome, DirectoryEntry, Disconnect, Duplicate, Era, Location, Member, RegistrationAnswer,
    RegistrationRequest,
};
use stillgate_devices::protocol::MessageId;
use stillgate_devices::session::{AckLevel, ResumeToken, SessionTransfer};

const SEEDS: u64 = 300;
const NODES: usize = 3;
const DEVICES: usize = 4;
const TICK_MS: u64 = 50;
const FAULTS_END_MS: u64 = 30_000;
/// A lease, a heartbeat, a registration again, the slowest dead peer, and tries of a device in between.
const SETTLED_MS: u64 = FAULTS_END_MS + 20_000;
/// The last messages are answered until then.
const END_MS: u64 = SETTLED_MS + 5_000;
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

/// A node's request to the directory, with the state that is needed to handle the answer.
#[derive(Debug, Clone)]
enum DirectoryCall {
    Heartbeat {
        epoch: u64,
        filled: Option<Era>,
        /// False for a process with a successor.
        holds: bool,
    },
    BeginEra {
        found: Option<Era>,
        era: Era,
    },
    Registration {
        request: RegistrationRequest,
        dead: Option<Generation>,
    },
    Disconnect {
        device: Box<str>,
        ended: Disconnect,
    },
    /// For a message under way.
    LookUp {
        message: MessageId,
        device: Box<str>,
    },
    Members {
        message: MessageId,
    },
}

#[derive(Debug, Clone)]
enum Answer {
    Read { era: Option<Era>, members: Vec<(Box<str>, Member)>, now_ms: u64 },
    Connected(ConnectOutcome, bool),
    Registered(RegistrationAnswer),
    Entry(Option<DirectoryEntry>),
    Done,
}

/// A process of a node: its slot, and how many there were in it; a killed one gets nothing any more.
type Process = (usize, u64);

#[derive(Debug, Clone)]
enum Mail {
    ToDirectory {
        from: Process,
        number: u64,
        asked: DirectoryCall,
    },
    ToNode {
        to: Process,
        number: u64,
        answer: Answer,
    },
    Close {
        device: Box<str>,
        place: Location,
    },
    /// Accepts this message for a device.
    Forward {
        to: usize,
        from: Process,
        message: MessageId,
    },
    /// The outcome of a forwarded message.
    Forwarded {
        to: Process,
        by: usize,
        message: MessageId,
        told: SenderAnswer,
    },
    HaveYou {
        to: usize,
        from: Process,
        message: MessageId,
    },
    IHave {
        to: Process,
        by: usize,
        message: MessageId,
    },
    /// Requests the session of a device that has resumed elsewhere.
    Carry {
        to: Process,
        from: Process,
        device: usize,
        token: ResumeToken,
    },
    Carried {
        to: Process,
        device: usize,
        token: ResumeToken,
        carried: Option<SessionTransfer>,
    },
}

struct World {
    random: Random,
    now_ms: u64,
    duplicate: Duplicate,
    directory: Directory,
    /// Slots of processes: first one for each node, then one for each process that follows another.
    nodes: Vec<Node>,
    /// The slot of each node that devices and peers connect to.
    current: [usize; NODES],
    /// Nodes that cannot reach each other until then.
    parted: Vec<(usize, usize, u64)>,
    devices: Vec<Device>,
    mail: Vec<(u64, Mail)>,
    /// By the number in their id.
    messages: Vec<MessageRecord>,
    numbers: u64,
    /// How often a node answered "moved", a session was carried to another node, a message came to a device again, and
    /// a device moved to the next process of its node.
    moved: u64,
    given: u64,
    carried: u64,
    twice: u64,
    /// The first error before the end.
    wrong: Option<String>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        World {
            now_ms: 0,
            duplicate: if random.one_in(2) { Duplicate::Replace } else { Duplicate::Refuse },
            directory: Directory::default(),
            nodes: (0..NODES).map(|index| Node::new(index, 0, random.next(), 0)).collect(),
            parted: Vec::new(),
            devices: (0..DEVICES).map(Device::new).collect(),
            mail: Vec::new(),
            messages: Vec::new(),
            numbers: 0,
            moved: 0,
            given: 0,
            current: std::array::from_fn(|number| number),
            carried: 0,
            twice: 0,
            random,
            wrong: None,
        }
    }

    fn has_faults(&self) -> bool {
        self.now_ms < FAULTS_END_MS
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn is_wrong(&mut self, what: String) {
        self.wrong.get_or_insert(format!("at {} ms: {what}", self.now_ms));
    }

    /// Between nodes, and to the directory and back.
    fn send(&mut self, mail: Mail) {
        let between = match &mail {
            Mail::Forward { to, from, .. } | Mail::HaveYou { to, from, .. } => Some((from.0, *to)),
            Mail::Forwarded { to, by, .. } | Mail::IHave { to, by, .. } => Some((*by, to.0)),
            Mail::Carry { to, from, .. } => Some((from.0, to.0)),
            _ => None,
        };
        if between.is_some_and(|(one, other)| self.is_parted(one, other)) {
            return;
        }
        if self.has_faults() && self.random.one_in(15) {
            return;
        }
        let delay_ms = 1 + self.random.below(DELAY_MS);
        self.mail.push((self.now_ms + delay_ms, mail));
    }

    fn is_parted(&self, one: usize, other: usize) -> bool {
        let [one, other] = [one, other].map(|slot| self.nodes[slot].number);
        let is_it = |(a, b, until_ms): &(usize, usize, u64)| {
            self.now_ms < *until_ms && ((*a, *b) == (one, other) || (*b, *a) == (one, other))
        };
        self.parted.iter().any(is_it)
    }

    fn is_up(&self, node: usize) -> bool {
        let it = &self.nodes[node];
        !it.is_over && self.now_ms >= it.dead_until_ms.max(it.stopped_until_ms)
    }

    /// The current process of a node.
    fn process(&self, node: usize) -> Process {
        (node, self.nodes[node].process)
    }

    fn run(&mut self) {
        while self.now_ms < END_MS {
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
            for node in 0..self.nodes.len() {
                if self.is_up(node) {
                    self.step_node(node);
                }
            }
            for device in 0..DEVICES {
                self.step_device(device);
            }
            self.step_senders();
        }
    }

    /// All processes of a node.
    fn slots(&mut self, number: usize) -> impl Iterator<Item = &mut Node> {
        self.nodes.iter_mut().filter(move |it| it.number == number)
    }

    fn break_something(&mut self) {
        let (node, pause_ms) = (self.random.below(NODES as u64) as usize, self.random.below(8_000));
        let until_ms = (self.now_ms + pause_ms).min(FAULTS_END_MS);
        match self.random.below(600) {
            0 | 1 => self.kill(node, until_ms),
            2 | 3 => self.nodes[self.current[node]].stopped_until_ms = until_ms,
            4 | 5 => self.directory.away_until_ms = until_ms,
            6 | 7 => self.directory = Directory { away_until_ms: until_ms, lost_ms: until_ms, ..Directory::default() },
            8 | 9 => self.slots(node).for_each(|it| it.cut_off_until_ms = until_ms),
            10..=12 => self.parted.push((node, (node + 1) % NODES, until_ms)),
            13..=16 => self.upgrade(node),
            17..=49 => {
                let device = self.random.below(DEVICES as u64) as usize;
                self.cut(device);
            }
            _ => {}
        }
    }

    fn deliver(&mut self, mail: Mail) {
        let to = match &mail {
            Mail::ToDirectory { from, number, asked } => return self.ask_directory(*from, *number, asked.clone()),
            Mail::ToNode { to, .. }
            | Mail::Forwarded { to, .. }
            | Mail::IHave { to, .. }
            | Mail::Carry { to, .. }
            | Mail::Carried { to, .. } => *to,
            Mail::Forward { to, .. } | Mail::HaveYou { to, .. } => self.process(*to),
            Mail::Close { place, .. } => self.process(self.index(&place.node)),
        };
        let it = &self.nodes[to.0];
        if self.process(to.0) != to || it.is_over || self.now_ms < it.dead_until_ms {
            return;
        }
        // Mail for a stopped node waits in its sockets.
        if !self.is_up(to.0) {
            return self.mail.push((self.now_ms + TICK_MS, mail));
        }
        match mail {
            Mail::ToDirectory { .. } => unreachable!("it has returned above"),
            Mail::ToNode { number, answer, .. } => self.directory_answered(to.0, number, answer),
            Mail::Close { device, place } => self.close(to.0, &device, &place),
            Mail::Forward { from, message, .. } => self.take(to.0, from, message),
            Mail::Forwarded { by, message, told, .. } => self.forwarded(to.0, by, message, told),
            Mail::HaveYou { from, message, .. } => self.handle_lookup(to.0, from, message),
            Mail::IHave { by, message, .. } => self.peer_has(to.0, by, message),
            Mail::Carry { from, device, token, .. } => self.carry(to.0, from, device, token),
            Mail::Carried { device, token, carried, .. } => self.carried(to.0, device, token, carried),
        }
    }
}

#[test]
fn whatever_fails_devices_are_found_again_and_no_answer_lies() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (first, seeds) = (number("STILLGATE_SIMULATION_FIRST", 0), number("STILLGATE_SIMULATION_SEEDS", SEEDS));
    let mut answers = judge::Answers::default();
    for seed in first..first + seeds {
        let mut world = World::new(seed);
        world.run();
        if let Err(wrong) = world.judge() {
            panic!("seed {seed}, {:?}: {wrong}", world.duplicate);
        }
        answers.count(&world);
    }
    println!("{answers:?}");
    answers.check();
}
