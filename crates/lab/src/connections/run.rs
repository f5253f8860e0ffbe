//! Runs the rounds: the same steps for every target.

use super::addressed::{AddressedServer, NamedClients, ServerAddress};
use super::fleet::Fleet;
use super::kernel::KernelMemory;
use super::{Clients, MessagePace};
use crate::compare::side::{generator_cpus, upstream_placement};
use crate::display::Progress;
use crate::error::Result;
use crate::result::figures::{FiguresResult, Sample};
use crate::result::run::Placement;
use crate::target::{Spec, Started, Upstream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use stillgate_rig::proc::Memory;
use stillgate_rig::{Running, cpus};

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

    fn clients(&self, target: &mut Started) -> Result<Box<dyn Clients>> {
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
