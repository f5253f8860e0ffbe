//! `stillgate-lab connections`: what an idle connection costs, and a message over it, beside others in the same run.
//!
//! ```text
//!  tunnels    fleet ── WebSocket ──▶ target ── WebSocket ──▶ upstream (`respond`)      a message is a ping and its pong
//!  addressed  back-ends ── HTTP or MQTT ──▶ target ── WebSocket or MQTT ──▶ clients    a message has a receiver's name
//! ```
//!
//! Each round starts each target again on its CPU; everything else shares the others. All targets are measured by the same steps
//! ([`run()`]), through [`Clients`]: what opens connections and sends messages. A target whose clients address each other is a row of
//! [`addressed::SERVERS`]; any other is a gateway that tunnels pass, as the built-in targets are configured for.

pub(crate) mod addressed;
pub(crate) mod fleet;

use crate::compare::side::{generator_cpus, upstream_placement};
use crate::display::Progress;
use crate::error::Result;
use crate::result::run::Placement;
use crate::result::{FiguresResult, Sample};
use crate::target::{RunningTarget, Spec, Upstream};
use addressed::{AddressedServer, NamedClients, ServerAddress};
use fleet::Fleet;
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use stillgate_rig::proc::{Memory, machine};
use stillgate_rig::{Running, cpus, descriptors, ports};

/// When messages are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum MessagePace {
    /// This many per second, to the connections in turn.
    Clock(f64),
    /// This many are under way; the answer to one triggers the next, to the next connection.
    Answers(usize),
}

/// What opens connections to a target, and sends messages over them.
pub(crate) trait Clients {
    /// Opens further connections.
    fn open(&mut self, count: usize) -> Result;
    /// Closes all of them.
    fn close(&mut self);
    /// Sends messages for this long.
    fn run(&mut self, pace: MessagePace, duration: Duration) -> Result<MessageTotals>;
}

/// The messages of a run.
#[derive(Debug, Clone)]
pub(crate) struct MessageTotals {
    pub(crate) sent: u64,
    pub(crate) answered: u64,
    /// Messages that were never answered, or passed over by a later answer.
    pub(crate) lost: u64,
    /// Messages that were answered again.
    pub(crate) doubled: u64,
    /// Number of connections that ended.
    pub(crate) broken: u64,
    /// Why the first of them ended.
    pub(crate) ends: Vec<String>,
    /// From a message to its answer, in microseconds.
    pub(crate) answer_us: Histogram<u64>,
    /// The longest time of each connection.
    pub(crate) worst_us: Histogram<u64>,
    /// How late messages were sent.
    pub(crate) late_us: Histogram<u64>,
    /// The longest time without an answer on any connection.
    pub(crate) silence_us: u64,
}

impl MessageTotals {
    pub(crate) fn new() -> MessageTotals {
        let empty = || Histogram::new(3).expect("three digits are valid");
        MessageTotals {
            sent: 0,
            answered: 0,
            lost: 0,
            doubled: 0,
            broken: 0,
            ends: Vec::new(),
            answer_us: empty(),
            worst_us: empty(),
            late_us: empty(),
            silence_us: 0,
        }
    }

    /// The errors in a sentence; `None`: there were none.
    pub(crate) fn wrong(&self) -> Option<String> {
        let MessageTotals { lost, doubled, broken, ends, .. } = self;
        (lost + doubled + broken > 0).then(|| {
            format!("{broken} connections ended, {lost} messages were lost and {doubled} doubled; {}", ends.join("; "))
        })
    }
}

// How many tunnels are possible on this machine.

/// Descriptors that a gateway needs besides its tunnels' two each.
const OTHER_FILES: u64 = 512;
/// Ports of loopback left for other uses.
const OTHER_PORTS: u64 = 2_000;

/// The requested number of tunnels, or the possible one with the reason why it is lower. This process, and what it starts, may then
/// open as many files as the system allows.
pub(crate) fn tunnels(wanted: usize) -> (usize, Option<String>) {
    descriptors::raise_to(descriptors::limit().hard);
    let files = descriptors::limit().current;
    let range = ports::of_connections();
    let by_files = files.saturating_sub(OTHER_FILES) / 2;
    let by_ports = (range.len() as u64).saturating_sub(OTHER_PORTS);
    let most = usize::try_from(by_files.min(by_ports)).unwrap_or(usize::MAX);
    if most >= wanted {
        return (wanted, None);
    }
    let why = if by_files <= by_ports {
        format!("a process may open {files} files (ulimit -Hn), and a gateway needs two for each tunnel")
    } else {
        format!("there are {} ports for connections to one address (ip_local_port_range)", range.len())
    };
    (most, Some(format!("{most} tunnels and not {wanted}: {why}.")))
}

/// Connections that are opened and closed first, so that one-time allocations are not charged to the others.
const WARM_UP: usize = 100;
/// Messages per second for a nearly idle target.
const SLOW_PER_SECOND: f64 = 100.0;
/// Size of the upstream's answers.
const BODY_BYTES: usize = 100;

/// The plan of an experiment.
#[derive(Debug)]
pub(crate) struct ConnectionsPlan {
    pub(crate) subjects: Vec<Subject>,
    pub(crate) count: usize,
    pub(crate) rounds: usize,
    /// The time of each kind of load.
    pub(crate) phase: Duration,
    /// Messages under way for a busy target.
    pub(crate) at_once: usize,
    pub(crate) placement: Placement,
    pub(crate) folder: PathBuf,
}

/// A target.
#[derive(Debug)]
pub(crate) enum Subject {
    /// A gateway that tunnels pass.
    Gateway(Box<Spec>),
    /// A server whose clients have names.
    Addressed(&'static AddressedServer),
}

/// The lines of the table; the order is that of [`ConnectionsPlan::measure`].
const LINES: [(&str, &str); 15] = [
    ("memory before", "MiB"),
    ("memory of a connection", "bytes"),
    ("the same as RSS", "bytes"),
    ("the same after messages", "bytes"),
    ("left of it after closing", "bytes"),
    ("the kernel's memory of it", "bytes"),
    ("connects per second", "1/s"),
    ("CPU of a connect", "us"),
    ("CPU while idle", "us/s"),
    ("CPU of a message, 100 per second", "us"),
    ("CPU of a message, one by one", "us"),
    ("messages per second, one by one", "1/s"),
    ("CPU of a message, many at once", "us"),
    ("messages per second, many at once", "1/s"),
    ("messages per CPU second, many at once", "1/s"),
];

impl Subject {
    pub(crate) fn name(&self) -> &str {
        match self {
            Subject::Gateway(spec) => &spec.name,
            Subject::Addressed(server) => server.name,
        }
    }

    fn spec(&self, plan: &ConnectionsPlan) -> Result<Spec> {
        let count = plan.count + WARM_UP;
        match self {
            Subject::Gateway(spec) => Ok(Spec { tunnels: Some(count), ..Spec::clone(spec) }),
            Subject::Addressed(server) => server.spec(&plan.folder, count),
        }
    }

    fn clients(&self, target: &mut RunningTarget) -> Result<Box<dyn Clients>> {
        let Subject::Addressed(server) = self else { return Ok(Box::new(Fleet::new(target.address)?)) };
        let clients = target.address;
        if let Some(admin) = target.admin {
            target.process()?.wait_for(admin, Running::START_TIMEOUT).map_err(|failed| failed.error)?;
        }
        let back_ends = target.admin.unwrap_or(clients);
        Ok(Box::new(NamedClients::new(ServerAddress { dialect: server.dialect, clients, back_ends })))
    }
}

/// Runs the rounds until it is asked to stop. A target that fails is left out from then on.
pub(crate) fn run(plan: &ConnectionsPlan, stop: &AtomicBool, progress: &mut Progress) -> Result<FiguresResult> {
    let columns: Vec<String> = plan.subjects.iter().map(|subject| subject.name().to_owned()).collect();
    let title = format!("{} connections to {}", plan.count, columns.join(", "));
    let mut result = FiguresResult::new("connections", title, columns, &LINES, plan.rounds);
    result.set("connections", plan.count);
    result.set("many at once", plan.at_once);
    result.set("time of each load", format!("{} s", plan.phase.as_secs_f64()));
    result.set("CPUs of the targets", cpus::list(&plan.placement.target_cpus));
    result.set("CPUs of everything else", cpus::list(&plan.placement.load_cpus));
    let upstream = Upstream::start(&upstream_placement(&plan.placement), BODY_BYTES, None)?;
    cpus::pin(generator_cpus(&plan.placement))?;
    let mut has_failed = vec![false; plan.subjects.len()];
    for round in 1..=plan.rounds {
        let mut samples = Vec::new();
        for (subject, has_failed) in plan.subjects.iter().zip(&mut has_failed) {
            if stop.load(Ordering::Relaxed) {
                return Ok(result);
            }
            progress.step(&format!("round {round} of {}: {}", plan.rounds, subject.name()));
            let measured = (!*has_failed).then(|| plan.measure(subject, &upstream, &mut result));
            samples.push(match measured {
                Some(Ok(values)) => Some(Sample { values: values.map(Some).to_vec(), void: Vec::new() }),
                Some(Err(error)) => {
                    result.faults.push(format!("{} failed in round {round}: {error}", subject.name()));
                    *has_failed = true;
                    None
                }
                None => None,
            });
        }
        result.rounds.push(samples);
    }
    Ok(result)
}

/// The number of calls of `progress.step`.
pub(crate) fn steps(plan: &ConnectionsPlan) -> u64 {
    (plan.rounds * plan.subjects.len()) as u64
}

impl ConnectionsPlan {
    /// Runs one target from start to end.
    fn measure(
        &self,
        subject: &Subject,
        upstream: &Upstream,
        result: &mut FiguresResult,
    ) -> Result<[f64; LINES.len()]> {
        let mut target = subject.spec(self)?.start(upstream.address, &self.placement)?;
        if !result.subjects.iter().any(|known| known.name == target.subject.name) {
            result.subjects.push(target.subject.clone());
        }
        let mut clients = subject.clients(&mut target)?;
        let process = target.process()?;
        clients.open(WARM_UP)?;
        clients.close();
        let (before, kernel_before) = (settled(process)?, KernelMemory::now()?);
        let (cpu, begin) = (process.thread_times()?, Instant::now());
        clients.open(self.count)?;
        let opened_s = begin.elapsed().as_secs_f64();
        let connect_us = process.thread_times()?.since(&cpu);
        let with = settled(process)?;
        let kernel = KernelMemory::now()?.since(&kernel_before).bytes();
        let idle_us = self.idle(process)?;
        let (slow_us, _) = self.messages(&mut *clients, process, MessagePace::Clock(SLOW_PER_SECOND))?;
        let (single_us, single_per_second) = self.messages(&mut *clients, process, MessagePace::Answers(1))?;
        let (busy_us, busy_per_second) = self.messages(&mut *clients, process, MessagePace::Answers(self.at_once))?;
        let used = settled(process)?;
        clients.close();
        let after = settled(process)?;
        process.alive()?;
        let each = |kib: u64, before: u64| (kib as f64 - before as f64) * 1024.0 / self.count as f64;
        let count = self.count as f64;
        Ok([
            before.pss_kib as f64 / 1024.0,
            each(with.pss_kib, before.pss_kib),
            each(with.rss_kib, before.rss_kib),
            each(used.pss_kib, before.pss_kib),
            each(after.pss_kib, before.pss_kib),
            kernel / 2.0 / count,
            count / opened_s,
            connect_us / count,
            idle_us,
            slow_us,
            single_us,
            single_per_second,
            busy_us,
            busy_per_second,
            1e6 / busy_us,
        ])
    }

    /// CPU µs per second while nothing is sent.
    fn idle(&self, process: &Running) -> Result<f64> {
        let before = process.thread_times()?;
        sleep(self.phase);
        Ok(process.thread_times()?.since(&before) / self.phase.as_secs_f64())
    }

    /// The CPU µs per message, and messages per second.
    fn messages(&self, clients: &mut dyn Clients, process: &Running, pace: MessagePace) -> Result<(f64, f64)> {
        let before = process.thread_times()?;
        let totals = clients.run(pace, self.phase)?;
        let used_us = process.thread_times()?.since(&before);
        if let Some(wrong) = totals.wrong() {
            return Err(wrong.into());
        }
        let answered = totals.answered as f64;
        Ok((used_us / answered, answered / self.phase.as_secs_f64()))
    }
}

fn settled(process: &mut Running) -> Result<Memory> {
    Ok(process.settled_memory()?.0)
}

// The kernel's memory for connections, which is charged to no process: sockets, their files and epoll's entries, of the whole machine
// before and after.
//
// Both ends of loopback sockets are on this machine. Of a tunnel's four, two are the target's, and client and upstream have one
// each; of an addressed connection's two, one is. So half of the result is the target's part, as it would be on a machine of its own.

/// The kinds of objects that sockets consist of. Other objects may be counted with them if the kernel has merged kinds.
const KINDS: &[&str] =
    &["TCP", "sock_inode_cache", "filp", "eventpoll_epi", "eventpoll_pwq", "lsm_inode_cache", "lsm_file_cache"];
/// Each socket has one as well. It is assumed and not counted: other programs have by far more open files, and their number varies.
const DENTRY: &str = "dentry";
const SOCKET: &str = "TCP";

/// A measurement of the kernel's memory.
struct KernelMemory {
    slab_kib: u64,
    /// Buffers of TCP sockets.
    tcp_pages: u64,
    /// Number and bytes of the objects of each kind; empty if only root may read them.
    objects: BTreeMap<String, (u64, u64)>,
}

/// The difference between two measurements.
struct MemoryGrowth {
    /// All slabs, whatever uses them.
    slab_bytes: f64,
    buffer_bytes: f64,
    /// Number of objects of each kind, and the bytes of one.
    kinds: Vec<(&'static str, f64, u64)>,
}

impl KernelMemory {
    fn now() -> Result<Self> {
        let sockets = machine::text("net/sockstat").and_then(|text| machine::field(&text, "TCP"));
        let pages = sockets.and_then(|sockets| number_after(&sockets, "mem"));
        Ok(Self {
            slab_kib: machine::memory_kib("Slab").ok_or("/proc/meminfo has no Slab")?,
            tcp_pages: pages.ok_or("/proc/net/sockstat has no TCP mem")?,
            objects: machine::text("slabinfo").map(|text| objects(&text)).unwrap_or_default(),
        })
    }

    fn since(&self, before: &KernelMemory) -> MemoryGrowth {
        let grown = |kind: &'static str| {
            let (number, bytes) = self.objects.get(kind)?;
            let (former, _) = before.objects.get(kind)?;
            Some((kind, *number as f64 - *former as f64, *bytes))
        };
        let mut kinds: Vec<_> =
            KINDS.iter().filter_map(|kind| grown(kind)).filter(|(_, number, _)| *number > 0.0).collect();
        if let Some(((_, sockets, _), (_, _, bytes))) = grown(SOCKET).zip(grown(DENTRY)) {
            kinds.push((DENTRY, sockets.max(0.0), bytes));
        }
        MemoryGrowth {
            slab_bytes: (self.slab_kib as f64 - before.slab_kib as f64) * 1024.0,
            buffer_bytes: (self.tcp_pages as f64 - before.tcp_pages as f64) * rustix::param::page_size() as f64,
            kinds,
        }
    }
}

impl MemoryGrowth {
    /// The slabs of sockets, or all slabs if the kinds are unknown.
    fn bytes(&self) -> f64 {
        let kinds: f64 = self.kinds.iter().map(|(_, number, bytes)| number * *bytes as f64).sum();
        self.buffer_bytes + if self.kinds.is_empty() { self.slab_bytes } else { kinds }
    }
}

/// The number after `name`.
fn number_after(text: &str, name: &str) -> Option<u64> {
    let mut words = text.split_whitespace();
    words.find(|word| *word == name)?;
    words.next()?.parse().ok()
}

/// `name, active objects, objects, bytes of one, …` after two header lines.
fn objects(slabinfo: &str) -> BTreeMap<String, (u64, u64)> {
    let lines = slabinfo.lines().skip(2).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some((fields.first()?.to_string(), (number(1)?, number(3)?)))
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLABINFO: &str = "slabinfo - version: 2.1\n# name            <active_objs> <num_objs> <objsize>\n\
        TCP                   65    117   2496   13    8 : tunables    0    0    0 : slabdata      9      9      0\n\
        filp                 100    128    256   16    1 : tunables    0    0    0 : slabdata      8      8      0\n";

    #[test]
    fn what_the_kernel_says_is_read() {
        assert_eq!(number_after("inuse 1 orphan 0 tw 0 alloc 1 mem 7", "mem"), Some(7));
        assert_eq!(number_after("inuse 1", "mem"), None);
        let read = objects(SLABINFO);
        assert_eq!(read["TCP"], (65, 2496));
        assert_eq!(read.len(), 2);
    }

    #[test]
    fn what_was_added() {
        let look = |slab_kib, tcp, dentry| KernelMemory {
            slab_kib,
            tcp_pages: 3,
            objects: BTreeMap::from(
                [("TCP", (tcp, 2496)), ("dentry", (dentry, 192)), ("other", (tcp, 1))]
                    .map(|(name, of)| (name.to_owned(), of)),
            ),
        };
        // Other programs opened files meanwhile.
        let grown = look(110, 50, 900).since(&look(100, 10, 5));
        assert_eq!(grown.bytes(), 40.0 * (2496.0 + 192.0));
        let untold = |slab_kib| KernelMemory { slab_kib, tcp_pages: 3, objects: BTreeMap::new() };
        assert_eq!(untold(110).since(&untold(100)).bytes(), 10.0 * 1024.0);
    }
}
