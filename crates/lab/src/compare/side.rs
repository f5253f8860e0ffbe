//! One start of one program, measured: warm-up, closed loop, open loop, memory.
//!
//! A start serves one record only. Where the loader and the allocator happen to put things differs from start to start and
//! moves a program's speed by per cents; pairs that shared a start would share that luck and show it as a difference.

use crate::error::{Error, Result};
use crate::result::compare::{CompareDesign, SideRecord};
use crate::result::run::{RunRecord, Subject};
use crate::target::{Spec, Started, Upstream, schedule};
use std::net::SocketAddr;
use std::time::Duration;
use stillgate_load::engine::Control;
use stillgate_load::{Arrivals, Bounds, Load, Mix, Outcome, Pace, Schedule, Target};

/// Before the open loop's measured time: its connections are opened in it.
const LEAD_IN: Duration = Duration::from_millis(50);

/// A request that takes longer is given up.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The observer has nothing to do; this only bounds how often it is asked.
const INTERVAL: Duration = Duration::from_millis(100);

/// Starts the program, measures it and stops it. `seed` is the load's.
pub(super) fn measure(
    spec: &Spec,
    upstream: &Upstream,
    design: &CompareDesign,
    seed: u64,
) -> Result<(Subject, SideRecord)> {
    let mut started = spec.start(upstream.address, &design.placement)?;
    let mut load = Asking::of(started.address, design.connections, design, seed)?;
    let warm_up = load.run(Pace::Closed, Duration::ZERO, seconds(design.warm_up_s));
    checked(&mut started, warm_up)?;
    let before_us = started.cpu_time_us()?;
    let saturation = load.run(Pace::Closed, Duration::ZERO, seconds(design.saturation_s));
    let saturation = checked(&mut started, saturation)?;
    let cpu_us = started.cpu_time_us()? - before_us;
    // Only now: a closed loop never sleeps, and would starve all else.
    let first = schedule::first(&design.placement, &upstream.pids())?;
    load.realtime = first.realtime;
    let rated = load.run(constant(design.rate), LEAD_IN, seconds(design.rate_s));
    drop(first);
    let rated = checked(&mut started, rated)?;
    let record = SideRecord {
        cpu_us_per_request: cpu_us / saturation.requests.max(1) as f64,
        saturation: RunRecord::of(&saturation)?,
        rated: RunRecord::of(&rated)?,
        rss_kib: started.rss_kib()?,
    };
    let subject = started.subject.clone();
    started.stop();
    Ok((subject, record))
}

/// Requests a second that the program answers at most, and what it is. Also finds out, before anything long begins, whether it
/// starts and answers.
pub(super) fn pilot(spec: &Spec, upstream: &Upstream, design: &CompareDesign) -> Result<(Subject, f64)> {
    let mut started = spec.start(upstream.address, &design.placement)?;
    let load = Asking::of(started.address, design.connections, design, design.seed)?;
    let warm_up = load.run(Pace::Closed, Duration::ZERO, seconds(design.warm_up_s));
    checked(&mut started, warm_up)?;
    let outcome = load.run(Pace::Closed, Duration::ZERO, seconds(design.saturation_s));
    let outcome = checked(&mut started, outcome)?;
    let answered = outcome.requests.saturating_sub(outcome.errors.total());
    if answered == 0 {
        let example = outcome.errors.examples.first().map_or("no request was answered", String::as_str);
        let name = &spec.name;
        return Err(Error::new(format!(
            "{name}: not one of its requests went well, such as: {example}; try it by hand, then compare"
        )));
    }
    let subject = started.subject.clone();
    started.stop();
    Ok((subject, outcome.rate_achieved))
}

/// What all loads on one start share.
pub(super) struct Asking<'a> {
    target: Target,
    mix: Mix,
    connections: usize,
    cpus: &'a [usize],
    late: Duration,
    /// See [`Load::realtime`].
    realtime: bool,
    seed: u64,
}

impl<'a> Asking<'a> {
    pub(super) fn of(
        address: SocketAddr,
        connections: usize,
        design: &'a CompareDesign,
        seed: u64,
    ) -> Result<Asking<'a>> {
        let target = Target::parse(&format!("http://{address}/")).map_err(|error| Error::new(error.to_string()))?;
        let mix = Mix::single("GET", "/", &target.host, &[], Vec::new());
        let mix = mix.map_err(|error| Error::new(error.to_string()))?;
        Ok(Asking {
            target,
            mix,
            connections,
            cpus: &design.placement.load_cpus,
            late: seconds(design.late_s),
            realtime: false,
            seed,
        })
    }

    pub(super) fn run(&self, pace: Pace, warm_up: Duration, duration: Duration) -> Result<Outcome> {
        let threads = self.cpus.len().clamp(1, self.connections);
        let load = Load {
            target: self.target.clone(),
            mix: self.mix.clone(),
            pace,
            warm_up,
            duration,
            connections: self.connections,
            threads,
            cpus: self.cpus.to_vec(),
            realtime: self.realtime,
            sources: Vec::new(),
            timeout: TIMEOUT,
            interval: INTERVAL,
            bounds: Bounds { late: self.late, ..Bounds::default() },
            seed: self.seed,
        };
        stillgate_load::run(&load, &mut |_| Control::Continue).map_err(|error| Error::new(error.to_string()))
    }
}

/// A target that has ended says more than the load that could not reach it.
fn checked(started: &mut Started, outcome: Result<Outcome>) -> Result<Outcome> {
    started.alive()?;
    outcome
}

fn constant(rate: f64) -> Pace {
    Pace::Open(Schedule { rate, rate_end: rate, arrivals: Arrivals::Uniform })
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}
