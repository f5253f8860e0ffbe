//! `stillgate-lab churn`: what changes beside the traffic do to requests. Blocks of the same load alternate in ABBA order, every
//! second one with changes, so that drift of the machine affects both alike.
//!
//! ```text
//!  load ── open loop ──▶ target ◀── change (a thread of this program, of low priority)
//!                          │           reload       the configuration file, many times a second
//!                          ▼           write        an admin interface
//!                       upstream       upgrade      a successor takes over
//!                          ▲           watch        readers of a stream
//!  fleet ── tunnels ───────┘           new-labels   a metric's label that never repeats
//! ```
//!
//! A kind of change is one file with its [`Change`] and one line in [`KINDS`]. The load, the figures, and what follows from them
//! are the same for all: see [`run`] and [`crate::figures`].

mod labels;
mod reload;
pub(crate) mod run;
mod upgrade;
mod watch;
pub(crate) mod write;

use crate::error::Result;
use crate::result::Durations;
use crate::result::run::Placement;
use crate::target::{RoutePlan, RunningTarget, Spec, TargetKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use stillgate_rig::Signal;

/// How often a wait looks whether the load is over.
const LOOK: Duration = Duration::from_millis(20);

/// The plan of an experiment.
#[derive(Debug)]
pub(crate) struct ChurnPlan {
    pub(crate) spec: Spec,
    pub(crate) change: &'static ChangeKind,
    /// Requests per second; `None`: a closed loop.
    pub(crate) rate: Option<f64>,
    pub(crate) connections: usize,
    /// Requests in place of those that the change knows.
    pub(crate) mix: Option<PathBuf>,
    pub(crate) block: Duration,
    /// Pairs of blocks.
    pub(crate) rounds: usize,
    /// Tunnels that stay open, and how often each of them is pinged.
    pub(crate) tunnels: Option<(usize, Duration)>,
    /// The beginning of the names of threads whose CPU time is shown by itself.
    pub(crate) threads: Option<String>,
    pub(crate) placement: Placement,
    pub(crate) seed: u64,
    pub(crate) options: ChangeOptions,
}

/// What the kinds of change need; each uses some.
#[derive(Debug, Clone)]
pub(crate) struct ChangeOptions {
    pub(crate) routes: usize,
    pub(crate) expressions: bool,
    pub(crate) consumers: usize,
    /// Changes per second.
    pub(crate) per_second: u32,
    /// The signal after which a target reads its configuration again, or starts its successor.
    pub(crate) signal: Option<Signal>,
    /// From the beginning of a block until its upgrade.
    pub(crate) upgrade_after: Duration,
    /// Where stillgate has its resources.
    pub(crate) source: write::WriteSource,
    pub(crate) readers: usize,
    /// The stream of readers.
    pub(crate) stream: Option<String>,
    /// The bound of a metric.
    pub(crate) series: u64,
    /// The bound of all metrics.
    pub(crate) memory_mib: u64,
}

impl ChangeOptions {
    /// What the kind of this name uses, for the result.
    fn reported_options(&self, change: &str) -> Vec<(&'static str, String)> {
        let (routes, rate) = (("routes", self.routes.to_string()), ("changes per second", self.per_second.to_string()));
        match change {
            "reload" => vec![routes, rate, ("expressions", self.expressions.to_string())],
            "write" => vec![routes, rate, ("consumers", self.consumers.to_string())],
            "upgrade" => vec![("upgrade after", format!("{} s", self.upgrade_after.as_secs_f64()))],
            "watch" => vec![("readers", self.readers.to_string())],
            _ => vec![
                ("series of a metric", self.series.to_string()),
                ("memory of metrics", format!("{} MiB", self.memory_mib)),
            ],
        }
    }
}

/// A kind of change.
#[derive(Debug)]
pub(crate) struct ChangeKind {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// Prepares it, and the target before its start.
    make: fn(&ChangeOptions, &mut Spec) -> Result<Box<dyn Change>>,
}

/// All kinds of change.
pub(crate) const KINDS: &[ChangeKind] = &[
    ChangeKind { name: "reload", make: reload::make },
    ChangeKind { name: "upgrade", make: upgrade::make },
    ChangeKind { name: "write", make: write::make },
    ChangeKind { name: "watch", make: watch::make },
    ChangeKind { name: "new-labels", make: labels::make },
];

/// What happens in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Nothing that the target notices. Whatever costs this program time happens as well.
    Without,
    With,
    /// As with changes, and each is observed until it has its effect: that is a load of its own.
    Follow,
}

/// Changes of one kind.
pub(crate) trait Change: Send {
    /// What a load may request while it changes: paths, or a whole mix.
    fn requests(&self) -> Requests {
        Requests::Any
    }

    /// Whether each block has a target of its own, because a change stays.
    fn needs_new_target(&self) -> bool {
        false
    }

    /// Called once before the first start.
    fn prepare(&mut self, _spec: &mut Spec, _upstream: SocketAddr, _placement: &Placement) -> Result {
        Ok(())
    }

    /// Called once the target listens.
    fn begin(&mut self, target: &mut RunningTarget) -> Result;

    /// Changes until it is over; returns the number of changes.
    fn change_until_over(&mut self, target: &mut RunningTarget, mode: Mode, over: &AtomicBool) -> Result<u64>;

    /// Waits after a block until all changes have their effect.
    fn settle(&mut self, _target: &mut RunningTarget) -> Result {
        Ok(())
    }

    /// Whether changes can be followed one by one.
    fn follows(&self) -> bool {
        false
    }

    /// The durations of what it has observed.
    fn durations(&mut self) -> Vec<Durations> {
        Vec::new()
    }

    /// Further remarks, in sentences.
    fn notes(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// What it found wrong after a block with this many requests in all, in sentences.
    fn faults(&mut self, _target: &mut RunningTarget, _sent: u64) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}

/// Requests of the load.
pub(crate) enum Requests {
    /// `GET /`
    Any,
    /// One of these at random.
    Paths(Vec<String>),
    /// A mix of `stillgate-lab load`, by mode.
    Mix(fn(Mode) -> &'static str),
}

/// Calls `step` this often until it is over; returns the number of calls.
fn repeat_at_pace(per_second: u32, over: &AtomicBool, mut step: impl FnMut() -> Result) -> Result<u64> {
    let (mut next, mut count) = (Instant::now(), 0);
    while !over.load(Ordering::Relaxed) {
        step()?;
        count += 1;
        next += Duration::from_secs(1) / per_second;
        sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(count)
}

fn wait_for_end(over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        sleep(LOOK);
    }
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Refuses a kind of change that only stillgate has.
fn only_of_stillgate(spec: &Spec, change: &str) -> Result {
    match spec.kind {
        TargetKind::Stillgate => Ok(()),
        kind => Err(format!("--{change} is for stillgate, not for {}", kind.name()).into()),
    }
}

/// A configuration of stillgate with these lines under `gateway`, and one route that takes everything.
fn stillgate_with(lines: &str) -> String {
    format!("{}{lines}{PROXY_ALL}", stillgate_head())
}

fn stillgate_head() -> &'static str {
    "gateway:\n  workers: 1\n  listeners: [{address: \"{address}\"}]\n"
}

const PROXY_ALL: &str = "upstreams: [{id: upstream, type: roundrobin, nodes: {\"{upstream}\": 1}}]\n\
    routes: [{id: all, uri: /*, upstream_id: upstream}]\n";

/// Routes of a target whose configuration was not given.
fn routes(options: &ChangeOptions, spec: &mut Spec) -> Option<RoutePlan> {
    if spec.configuration.is_none() && spec.kind != TargetKind::Command {
        spec.routes = Some(RoutePlan { count: options.routes, expressions: options.expressions });
    }
    spec.routes
}
