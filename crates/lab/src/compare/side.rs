//! A round: all programs freshly started, then measured in turn; closed loop in slices, open loop, memory.
//!
//! A start serves one record only. The placement of memory by loader and allocator differs between starts and changes a
//! program's speed by a few per cent; pairs sharing a start would share that luck and show it as a difference.

use crate::error::{Error, Result};
use crate::result::compare::{CompareDesign, SideRecord};
use crate::result::run::{Placement, RunRecord, Subject};
use crate::target::{RunningTarget, Spec, Traffic, Upstream, placement};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use stillgate_load::mix::Composer;
use stillgate_load::outcome::ERROR_EXAMPLES_MAX;
use stillgate_load::plan::DURATION_UNBOUNDED;
use stillgate_load::{Arrivals, Bounds, Interval, Load, Mix, Pace, Protocol, RunSummary, Schedule, Target, Tls};

/// Load before the open loop's measured time, in which its connections are opened.
const LEAD_IN: Duration = Duration::from_millis(50);

/// A request that takes longer has timed out.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How often an observer is called during the load. Most do nothing.
const INTERVAL: Duration = Duration::from_millis(100);

/// Slices of the closed loop. A machine's speed wanders over tenths of seconds and longer, so shorter slices let both
/// sides share more of that; on a busy virtual machine, pairs of 400 ms differed by 10 to 18% in slices of 160 ms and
/// by 3% in those of 20 to 40 ms. Shorter ones are mostly the opening of connections.
const SLICE_S: f64 = 0.025;

/// Shortest length of a slice, in consecutive answers: with slow answers, shorter slices would consist mostly of their
/// borders.
const SLICE_ANSWERS: f64 = 4.0;

/// Load before the measured time of a slice, in answers. By then requests are in every stage, as they are at the
/// slice's end: each counts with the share of its time that lies in between.
const RAMP_ANSWERS: f64 = 2.0;

/// A closed loop with fewer answers per connection is not measured.
const ANSWERS_MIN: f64 = 2.0;

/// The results of all sides of a round, or of one in the pilot.
pub(crate) enum RoundOutcome<T> {
    Measured(T),
    /// The program at this index ended under load: its exit status, and the end of its output.
    Ended(usize, String),
}

/// Starts the programs, measures them in turn and stops them. `seed` is the load's.
pub(crate) fn measure(
    specs: &[&Spec],
    upstream: &Upstream,
    design: &CompareDesign,
    seed: u64,
) -> Result<RoundOutcome<Vec<SideRecord>>> {
    let start = |spec: &&Spec| MeasuredProgram::start(spec, upstream, design, seed);
    let mut sides = specs.iter().map(start).collect::<Result<Vec<_>>>()?;
    let rated = in_turn(&mut sides, upstream, design);
    for (place, side) in sides.iter_mut().enumerate() {
        // An end under load is not a failure to measure: it is the result.
        if let Err(end) = side.started.alive() {
            return Ok(RoundOutcome::Ended(place, end.to_string()));
        }
    }
    let rated = rated?;
    let rated = rated.iter().map(Some).chain(std::iter::repeat(None));
    let records = sides.into_iter().zip(rated).map(|(side, rated)| side.finish(rated)).collect::<Result<Vec<_>>>()?;
    Ok(RoundOutcome::Measured(records))
}

/// All loads; the outcomes are those of the open loop, and there are none without a rate.
fn in_turn(sides: &mut [MeasuredProgram<'_>], upstream: &Upstream, design: &CompareDesign) -> Result<Vec<RunSummary>> {
    for side in &mut *sides {
        side.warm_up(design)?;
    }
    // The same for all sides.
    let slices = Slices::of(design, sides.iter().map(|side| side.answer_s).fold(0.0, f64::max));
    for turn in 0..slices.count {
        // A B B A, and A B C C B A: a drift is equal for all.
        match turn.is_multiple_of(2) {
            true => sides.iter_mut().try_for_each(|side| side.saturate(&slices))?,
            false => sides.iter_mut().rev().try_for_each(|side| side.saturate(&slices))?,
        }
    }
    if design.rate <= 0.0 {
        return Ok(Vec::new());
    }
    // Only now: a closed loop never sleeps, and would starve everything else.
    let first = placement::prioritize_load(&design.placement, &upstream.pids())?;
    sides.iter_mut().map(|side| side.run_at_rate(design, first.realtime(), &mut |_| {})).collect()
}

/// The closed loop of each side, cut into slices.
#[derive(Debug, PartialEq)]
struct Slices {
    count: usize,
    /// Load before the measured time of each.
    ramp: Duration,
    /// The measured time of each.
    length: Duration,
}

impl Slices {
    /// Slices for a program that takes this long for an answer.
    fn of(design: &CompareDesign, answer_s: f64) -> Slices {
        let shortest_s = design.slice_s.unwrap_or(SLICE_S).max(SLICE_ANSWERS * answer_s);
        // The number of slices of the usual length that comes closest to the total time.
        let count = (design.saturation_s / shortest_s).round().max(1.0);
        Slices {
            count: count as usize,
            ramp: seconds((RAMP_ANSWERS * answer_s).min(TIMEOUT.as_secs_f64())),
            length: seconds(design.saturation_s / count),
        }
    }

    /// Everything as a single slice.
    fn whole(self) -> Slices {
        Slices { count: 1, length: self.length * self.count as u32, ..self }
    }
}

/// A started program, and its measurements.
pub(super) struct MeasuredProgram<'a> {
    pub(super) started: RunningTarget,
    load: LoadSettings<'a>,
    slices: Vec<RunSummary>,
    cpu_us: f64,
    /// Average time of an answer in the warm-up; 0 if there was none.
    answer_s: f64,
}

impl<'a> MeasuredProgram<'a> {
    pub(super) fn start(
        spec: &Spec,
        upstream: &Upstream,
        design: &'a CompareDesign,
        seed: u64,
    ) -> Result<MeasuredProgram<'a>> {
        let started = spec.start(upstream.address, &design.placement)?;
        let load = LoadSettings { seed, ..LoadSettings::of_spec(&started, spec, design)? };
        Ok(MeasuredProgram { started, load, slices: Vec::new(), cpu_us: 0.0, answer_s: 0.0 })
    }

    pub(super) fn warm_up(&mut self, design: &CompareDesign) -> Result {
        let outcome = self.load.run(Pace::Closed, Duration::ZERO, seconds(design.warm_up_s));
        let outcome = checked(&mut self.started, outcome)?;
        self.answer_s = outcome.latencies.uncorrected.mean() / 1e9;
        Ok(())
    }

    /// A slice of the closed loop.
    fn saturate(&mut self, slices: &Slices) -> Result {
        let before_us = self.started.cpu_time_us()?;
        let outcome = self.load.run(Pace::Closed, slices.ramp, slices.length);
        self.slices.push(checked(&mut self.started, outcome)?);
        self.cpu_us += self.started.cpu_time_us()? - before_us;
        Ok(())
    }

    /// The closed loop if there is no other side. At the beginning of each of its parts, `begin` is called with the
    /// loop's result so far.
    pub(super) fn run_closed_loop(
        &mut self,
        design: &CompareDesign,
        parts: usize,
        mut begin: impl FnMut(&str),
    ) -> Result {
        let slices = Slices::of(design, self.answer_s);
        for number in 0..slices.count {
            if number * parts % slices.count < parts {
                begin(&self.so_far());
            }
            self.saturate(&slices)?;
        }
        Ok(())
    }

    /// Fails if the closed loop is too short for the rate of the program's answers.
    pub(super) fn check_measurable(&self, design: &CompareDesign) -> Result {
        let needed_s = ANSWERS_MIN * self.answer_s;
        if needed_s <= design.saturation_s {
            return Ok(());
        }
        Err(Error::new(format!(
            "with {} connections an answer takes {:.2} s, too long for a closed loop of {} s; measure it for {:.1} s at least \
             (`compare --saturation`, `measure --time`)",
            design.connections,
            self.answer_s,
            design.saturation_s,
            (needed_s * 10.0).ceil() / 10.0
        )))
    }

    /// The open loop if there is no other side. During the loop, `observe` is called every tenth of a second.
    pub(super) fn run_at_rate_alone(
        &mut self,
        design: &CompareDesign,
        upstream: &Upstream,
        observe: &mut dyn FnMut(&Interval<'_>),
    ) -> Result<RunSummary> {
        let first = placement::prioritize_load(&design.placement, &upstream.pids())?;
        self.run_at_rate(design, first.realtime(), observe)
    }

    /// The open loop.
    fn run_at_rate(
        &mut self,
        design: &CompareDesign,
        realtime: bool,
        observe: &mut dyn FnMut(&Interval<'_>),
    ) -> Result<RunSummary> {
        self.load.realtime = realtime;
        let unending = AtomicBool::new(false);
        let outcome = self.load.observed(constant(design.rate), LEAD_IN, seconds(design.rate_s), &unending, observe);
        checked(&mut self.started, outcome)
    }

    /// The closed loop's result so far, as the end of a sentence; empty before its first slice.
    pub(super) fn so_far(&self) -> String {
        let Some(all) = join_slices(&self.slices).filter(|all| all.sent > 0) else { return String::new() };
        let rate = all.rate_achieved;
        format!("; {rate:.0} requests/s so far, {:.1} us of CPU for each", self.cpu_us / all.sent as f64)
    }

    /// A closed loop that is neither timed nor kept; the number of its requests.
    pub(super) fn run_untimed(&self, design: &CompareDesign) -> Result<u64> {
        let outcome = self.load.run(Pace::Closed, Duration::ZERO, seconds(design.saturation_s))?;
        Ok(outcome.sent)
    }

    /// Requests of the closed loop so far, including those before the measured time of its slices.
    pub(super) fn sent(&self) -> u64 {
        self.slices.iter().map(|slice| slice.sent).sum()
    }

    fn finish(self, rated: Option<&RunSummary>) -> Result<SideRecord> {
        let record = self.record(rated)?;
        self.started.stop();
        Ok(record)
    }

    /// The measurements so far.
    pub(super) fn record(&self, rated: Option<&RunSummary>) -> Result<SideRecord> {
        let saturation = join_slices(&self.slices).ok_or("no slice of the closed loop was run")?;
        Ok(SideRecord {
            // All requests that it worked for: the CPU time includes those before the measured time of a slice.
            cpu_us_per_request: self.cpu_us / saturation.sent.max(1) as f64,
            saturation: RunRecord::of(&saturation)?,
            rated: rated.map_or_else(|| Ok(RunRecord::default()), RunRecord::of)?,
            rss_kib: self.started.rss_kib()?,
        })
    }
}

/// Slices of a closed loop as one run: counts and histograms are added, and it is void if one of them is.
fn join_slices(slices: &[RunSummary]) -> Option<RunSummary> {
    let (first, others) = slices.split_first()?;
    let mut sum = first.clone();
    for slice in others {
        // Weighted by time, as a rate is.
        let answered = |outcome: &RunSummary| outcome.rate_achieved * outcome.elapsed.as_secs_f64();
        let elapsed = sum.elapsed + slice.elapsed;
        sum.rate_achieved = (answered(&sum) + answered(slice)) / elapsed.as_secs_f64();
        let share = |sum: f64, slice_value: f64| {
            sum + (slice_value - sum) * slice.elapsed.as_secs_f64() / elapsed.as_secs_f64()
        };
        sum.self_watch.cpu_cores = share(sum.self_watch.cpu_cores, slice.self_watch.cpu_cores);
        sum.self_watch.cpu_share_max = share(sum.self_watch.cpu_share_max, slice.self_watch.cpu_share_max);
        let waits = sum.self_watch.cpu_wait_share_max.zip(slice.self_watch.cpu_wait_share_max);
        sum.self_watch.cpu_wait_share_max = waits.map(|(sum, slice)| share(sum, slice));
        sum.elapsed = elapsed;
        sum.requests += slice.requests;
        sum.answered_in_time += slice.answered_in_time;
        sum.good += slice.good;
        sum.good_in_time += slice.good_in_time;
        sum.drain += slice.drain;
        sum.cut_off += slice.cut_off;
        sum.sent += slice.sent;
        sum.bytes_received += slice.bytes_received;
        for (sum, count) in sum.errors.counts.iter_mut().zip(slice.errors.counts) {
            *sum += count;
        }
        let room = ERROR_EXAMPLES_MAX.saturating_sub(sum.errors.examples.len());
        sum.errors.examples.extend(slice.errors.examples.iter().take(room).cloned());
        for (sum, slice) in [
            (&mut sum.latencies.corrected, &slice.latencies.corrected),
            (&mut sum.latencies.uncorrected, &slice.latencies.uncorrected),
            (&mut sum.refused, &slice.refused),
            (&mut sum.self_watch.lateness, &slice.self_watch.lateness),
        ] {
            sum.add(slice).expect("all histograms of the generator have the same bounds");
        }
        sum.void.extend(slice.void.iter().cloned());
    }
    Some(sum)
}

/// The program's properties, and its maximum of requests per second. Also checks, before anything long begins, that it
/// starts and answers.
pub(super) fn pilot(spec: &Spec, upstream: &Upstream, design: &CompareDesign) -> Result<(Subject, RoundOutcome<f64>)> {
    let mut side = MeasuredProgram::start(spec, upstream, design, design.seed)?;
    let subject = side.started.subject.clone();
    let tried = side.warm_up(design).and_then(|()| side.check_measurable(design)).and_then(|()| {
        let slices = Slices::of(design, side.answer_s).whole();
        side.saturate(&slices)
    });
    if let Err(end) = side.started.alive() {
        return Ok((subject, RoundOutcome::Ended(0, end.to_string())));
    }
    tried?;
    let outcome = &side.slices[0];
    if outcome.rate_achieved <= 0.0 {
        let example = outcome.errors.examples.first().map_or("no request was answered", String::as_str);
        let name = &spec.name;
        return Err(Error::new(format!(
            "{name}: all its requests failed, for example: {example}; try it by hand, then compare"
        )));
    }
    let rate = outcome.rate_achieved;
    side.started.stop();
    Ok((subject, RoundOutcome::Measured(rate)))
}

/// The load's CPUs except the last, which is the upstream's; if there is only one, that one. Two busy processes on one
/// CPU would each measure the other.
pub(crate) fn generator_cpus(placement: &Placement) -> &[usize] {
    match placement.load_cpus.as_slice() {
        [generator @ .., _] if !generator.is_empty() => generator,
        all => all,
    }
}

/// The CPU of the upstream.
pub(crate) fn upstream_placement(placement: &Placement) -> Placement {
    let load_cpus = placement.load_cpus.last().map_or_else(Vec::new, |last| vec![*last]);
    Placement { load_cpus, ..placement.clone() }
}

/// Settings shared by all loads on one start.
pub(crate) struct LoadSettings<'a> {
    target: Target,
    mix: Mix,
    connections: usize,
    cpus: &'a [usize],
    late: Duration,
    /// See [`Load::realtime`].
    realtime: bool,
    protocol: Protocol,
    tls: Option<Tls>,
    seed: u64,
}

impl<'a> LoadSettings<'a> {
    pub(crate) fn of(
        address: SocketAddr,
        connections: usize,
        placement: &'a Placement,
        late: Duration,
        mix: Option<&Path>,
        seed: u64,
    ) -> Result<LoadSettings<'a>> {
        let target = Target::parse(&format!("http://{address}/")).map_err(|error| Error::new(error.to_string()))?;
        let mix = match mix {
            None => Mix::single("GET", "/", &target.host, &[], Vec::new()),
            Some(file) => Mix::from_file(file, &target),
        };
        let mix = mix.map_err(|errors| Error::new(errors.to_string()))?;
        let (protocol, cpus) = (Protocol::Http1, generator_cpus(placement));
        Ok(LoadSettings { target, mix, connections, cpus, late, realtime: false, protocol, tls: None, seed })
    }

    /// Settings of a design for one target.
    pub(crate) fn of_spec(started: &RunningTarget, spec: &Spec, design: &'a CompareDesign) -> Result<LoadSettings<'a>> {
        let CompareDesign { connections, placement, mix, seed, .. } = design;
        LoadSettings::of(started.address, *connections, placement, seconds(design.late_s), mix.as_deref(), *seed)?
            .speaking(&spec.traffic)
    }

    /// A request as it is sent.
    pub(crate) fn example(&self) -> Vec<u8> {
        Composer::new(&self.mix, self.seed, 0, 1).compose().bytes.to_vec()
    }

    /// As one target is spoken to.
    pub(crate) fn speaking(mut self, traffic: &Traffic) -> Result<LoadSettings<'a>> {
        if traffic.is_secure {
            let url = format!("https://{}/", self.target.host);
            self.target = Target::parse(&url).map_err(|error| Error::new(error.to_string()))?;
            let tls = Tls::fixed(&self.target.name, traffic.streams.is_some());
            self.tls = Some(tls.map_err(|error| Error::new(error.to_string()))?);
        }
        self.protocol = traffic.streams.map_or(Protocol::Http1, |streams| Protocol::Http2 { streams });
        self.connections = traffic.connections.unwrap_or(self.connections);
        if let Some(file) = &traffic.mix {
            self.mix = Mix::from_file(file, &self.target).map_err(|errors| Error::new(errors.to_string()))?;
        }
        Ok(self)
    }

    /// One after the other on one connection, and then no more.
    pub(crate) fn counted(&self, requests: u64) -> Result<RunSummary> {
        let load = self.load(Pace::Closed, Duration::ZERO, DURATION_UNBOUNDED);
        let load = Load { requests: Some(requests), connections: 1, threads: 1, ..load };
        let outcome = stillgate_load::run(&load, &AtomicBool::new(false), &mut |_| {});
        outcome.map_err(|error| Error::new(error.to_string()))
    }

    /// With or without priority; see [`Load::realtime`].
    pub(crate) fn prioritized(self, realtime: bool) -> LoadSettings<'a> {
        LoadSettings { realtime, ..self }
    }

    pub(crate) fn run(&self, pace: Pace, warm_up: Duration, duration: Duration) -> Result<RunSummary> {
        self.run_until(pace, warm_up, duration, &AtomicBool::new(false))
    }

    /// Ends when `enough` is set.
    pub(crate) fn run_until(
        &self,
        pace: Pace,
        warm_up: Duration,
        duration: Duration,
        enough: &AtomicBool,
    ) -> Result<RunSummary> {
        self.observed(pace, warm_up, duration, enough, &mut |_| {})
    }

    fn observed(
        &self,
        pace: Pace,
        warm_up: Duration,
        duration: Duration,
        enough: &AtomicBool,
        observe: &mut dyn FnMut(&Interval<'_>),
    ) -> Result<RunSummary> {
        let load = self.load(pace, warm_up, duration);
        stillgate_load::run(&load, enough, observe).map_err(|error| Error::new(error.to_string()))
    }

    fn load(&self, pace: Pace, warm_up: Duration, duration: Duration) -> Load {
        let threads = self.cpus.len().clamp(1, self.connections);
        Load {
            target: self.target.clone(),
            mix: self.mix.clone(),
            pace,
            warm_up,
            duration,
            requests: None,
            protocol: self.protocol,
            tls: self.tls.clone(),
            connections: self.connections,
            threads,
            cpus: self.cpus.to_vec(),
            realtime: self.realtime,
            sources: Vec::new(),
            timeout: TIMEOUT,
            interval: INTERVAL,
            bounds: Bounds { late: self.late, ..Bounds::default() },
            seed: self.seed,
        }
    }
}

/// A target that has ended explains more than the load that could not reach it.
fn checked(started: &mut RunningTarget, outcome: Result<RunSummary>) -> Result<RunSummary> {
    started.alive()?;
    outcome
}

/// An open loop of this many requests per second.
pub(crate) fn constant(rate: f64) -> Pace {
    Pace::Open(Schedule { rate, rate_end: rate, arrivals: Arrivals::Uniform })
}

pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::false_alarms;

    #[test]
    fn slices_are_no_shorter_than_some_answers() {
        let design = CompareDesign { saturation_s: 1.0, ..false_alarms::design(1, &[]) };
        let check = |answer_ms: f64, count: usize, ramp_ms: u64, length_ms: u64| {
            let slices = Slices::of(&design, answer_ms / 1e3);
            let [ramp, length] = [ramp_ms, length_ms].map(Duration::from_millis);
            assert_eq!(slices, Slices { count, ramp, length }, "{answer_ms} ms");
            assert_eq!(slices.whole(), Slices { count: 1, ramp, length: Duration::from_secs(1) }, "{answer_ms} ms");
        };
        check(0.0, 40, 0, 25);
        check(0.5, 40, 1, 25);
        check(6.0, 40, 12, 25);
        check(50.0, 5, 100, 200);
        check(250.0, 1, 500, 1000);
        check(500.0, 1, 1000, 1000);
        // Waits for a program that never answers only as long as for one of its requests.
        check(60_000.0, 1, 5000, 1000);
    }

    #[test]
    fn the_upstream_has_a_cpu_of_its_own_where_there_are_several() {
        let check = |load: &[usize], generator: &[usize], upstream: &[usize]| {
            let placement = Placement { target_cpus: vec![0], load_cpus: load.to_vec(), target_apart: false };
            assert_eq!(generator_cpus(&placement), generator, "{load:?}");
            assert_eq!(upstream_placement(&placement).load_cpus, upstream, "{load:?}");
        };
        check(&[], &[], &[]);
        check(&[1], &[1], &[1]);
        check(&[4, 5, 6], &[4, 5], &[6]);
    }
}
