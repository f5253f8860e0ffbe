//! The schedule of requests: the intended starts of one thread, in order, computed and never stored.
//!
//! Each start is computed from its position in the whole schedule, not from the start before it, so nothing drifts: the
//! number of requests between two times is the integral of the rate, whatever the number of threads. A thread takes
//! every n-th position of an even schedule; of random arrivals it has an n-th of the rate, which together is the same
//! process. Copying a [`Starts`] gives a second reader of the same starts, so a backlog of any length takes no memory.
//! No clock here: times are arguments.

use super::traffic::{NEVER_NS, nanos};
use crate::plan::{Arrivals, Schedule};
use std::time::Duration;
use stillgate_stats::Random;

const NS_PER_S: f64 = 1e9;

/// Separates the random numbers of arrivals from those that choose among a mix with the same seed.
const ARRIVALS_STREAM: u64 = 0x6172_7269_7661_6c73;

/// The intended starts of one thread: those of the warm-up, then those of the measured time.
#[derive(Debug, Clone)]
pub(super) struct Starts {
    phases: [Phase; 2],
    phase: usize,
    arrivals: Arrivals,
    thread: usize,
    threads: usize,
    random: Random,
    /// Position of the next start: the number of starts of all threads before it in its phase; fractional for random
    /// arrivals.
    position: f64,
    /// The next start; [`NEVER_NS`] after the last.
    next_ns: u64,
    passed: u64,
    /// The number of further starts of this thread in the measured time, and that of all threads.
    left: u64,
    all: u64,
    /// When the start after the last of them would have been.
    ended_ns: Option<u64>,
}

/// The measured time, among the phases.
const MEASURED: usize = 1;

/// A thread's number, and the number of threads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    pub(super) thread: usize,
    pub(super) threads: usize,
}

impl Share {
    /// This thread's share of a number of requests.
    pub(super) fn of(self, requests: u64) -> u64 {
        let (thread, threads) = (self.thread as u64, self.threads as u64);
        requests / threads + u64::from(thread < requests % threads)
    }
}

impl Starts {
    /// A schedule whose warm-up begins at `begin_ns` and whose measured time has so many requests at most, over all threads. The same
    /// seed gives the same starts.
    pub(super) fn new(
        schedule: &Schedule,
        (warm_up, duration): (Duration, Duration),
        requests: Option<u64>,
        share: Share,
        seed: u64,
        begin_ns: u64,
    ) -> Starts {
        let measured_ns = begin_ns + nanos(warm_up);
        let even = Schedule { rate_end: schedule.rate, ..*schedule };
        let mut starts = Starts {
            phases: [
                Phase { begin_ns, end_ns: measured_ns, curve: Curve::new(&even, warm_up) },
                Phase {
                    begin_ns: measured_ns,
                    end_ns: measured_ns + nanos(duration),
                    curve: Curve::new(schedule, duration),
                },
            ],
            phase: 0,
            arrivals: schedule.arrivals,
            thread: share.thread,
            threads: share.threads,
            random: Random::new((seed ^ ARRIVALS_STREAM).wrapping_add((share.thread as u64) << 32)),
            position: 0.0,
            next_ns: NEVER_NS,
            passed: 0,
            left: requests.map_or(u64::MAX, |requests| share.of(requests)),
            all: requests.unwrap_or(u64::MAX),
            ended_ns: None,
        };
        starts.position = starts.first();
        starts.find();
        starts
    }

    /// The next start, or [`NEVER_NS`].
    #[inline]
    pub(super) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// The number of starts before the next.
    #[inline]
    pub(super) fn passed(&self) -> u64 {
        self.passed
    }

    /// Goes to the start after the next.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.passed += 1;
        self.left -= u64::from(self.phase == MEASURED);
        self.position += self.gap();
        self.find();
    }

    /// When the measured time ends because all its requests were begun.
    pub(super) fn ended_ns(&self) -> Option<u64> {
        self.ended_ns
    }

    /// Ends the schedule at `end_ns` at the latest.
    pub(super) fn cut(&mut self, end_ns: u64) {
        for phase in &mut self.phases {
            phase.end_ns = phase.end_ns.min(end_ns);
        }
        if self.next_ns >= end_ns {
            self.next_ns = NEVER_NS;
            self.phase = self.phases.len();
        }
    }

    fn first(&mut self) -> f64 {
        match self.arrivals {
            Arrivals::Uniform => self.thread as f64,
            Arrivals::Poisson => self.gap(),
        }
    }

    #[inline]
    fn gap(&mut self) -> f64 {
        match self.arrivals {
            Arrivals::Uniform => self.threads as f64,
            Arrivals::Poisson => self.random.exponential(self.threads as f64),
        }
    }

    /// Computes the time of the position; if its phase ends before it, the first of the next.
    #[inline]
    fn find(&mut self) {
        while let Some(phase) = self.phases.get(self.phase) {
            if self.left == 0 && self.phase == MEASURED {
                // In an even schedule the same for all threads.
                let position = match self.arrivals {
                    Arrivals::Uniform => self.all as f64,
                    Arrivals::Poisson => self.position,
                };
                self.ended_ns = Some(phase.at(position).unwrap_or(phase.end_ns));
                self.phase = self.phases.len();
                break;
            }
            if let Some(ns) = phase.at(self.position) {
                self.next_ns = ns;
                return;
            }
            self.phase += 1;
            self.position = self.first();
        }
        self.next_ns = NEVER_NS;
    }
}

/// The number of requests of a schedule of this duration until `elapsed`.
pub(super) fn requests_due(schedule: &Schedule, duration: Duration, elapsed: Duration) -> f64 {
    let curve = Curve::new(schedule, duration);
    let seconds = elapsed.min(duration).as_secs_f64();
    curve.rate * seconds + curve.slope * seconds * seconds / 2.0
}

#[derive(Debug, Clone)]
struct Phase {
    begin_ns: u64,
    end_ns: u64,
    curve: Curve,
}

impl Phase {
    #[inline]
    fn at(&self, position: f64) -> Option<u64> {
        let offset_ns = self.curve.seconds(position)? * NS_PER_S;
        // Rounded: a start that belongs exactly to the end must not be computed before it.
        let ns = self.begin_ns.saturating_add(offset_ns.round() as u64);
        (ns < self.end_ns).then_some(ns)
    }
}

/// A rate that changes linearly.
#[derive(Debug, Clone)]
struct Curve {
    /// Requests per second at the beginning.
    rate: f64,
    /// The change of the rate per second.
    slope: f64,
}

impl Curve {
    fn new(schedule: &Schedule, duration: Duration) -> Curve {
        let seconds = duration.as_secs_f64();
        let slope = if seconds > 0.0 { (schedule.rate_end - schedule.rate) / seconds } else { 0.0 };
        Curve { rate: schedule.rate, slope }
    }

    /// When the integral of the rate reaches `position`; `None` if it never does.
    ///
    /// The root of `slope/2 t² + rate t = position`, in the form that neither cancels nor divides by a slope of zero.
    #[inline]
    fn seconds(&self, position: f64) -> Option<f64> {
        let discriminant = self.rate * self.rate + 2.0 * self.slope * position;
        (discriminant >= 0.0).then(|| 2.0 * position / (self.rate + discriminant.sqrt()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::DURATION_UNBOUNDED;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn all(schedule: Schedule, warm_up: Duration, duration: Duration, share: Share) -> Vec<u64> {
        let mut starts = Starts::new(&schedule, (warm_up, duration), None, share, 7, 0);
        let mut times = Vec::new();
        while starts.next_ns() != NEVER_NS {
            assert_eq!(starts.passed(), times.len() as u64);
            times.push(starts.next_ns());
            starts.advance();
        }
        times
    }

    fn even(rate: f64) -> Schedule {
        Schedule { rate, rate_end: rate, arrivals: Arrivals::Uniform }
    }

    const ALONE: Share = Share { thread: 0, threads: 1 };

    #[test]
    fn an_even_schedule() {
        let times = all(even(4.0), Duration::ZERO, SECOND, ALONE);
        assert_eq!(times, [0, 250_000_000, 500_000_000, 750_000_000]);
        // The measured time has its own beginning, whatever the warm-up's rate leaves over.
        let times = all(even(4.0), Duration::from_millis(300), Duration::from_millis(500), ALONE);
        assert_eq!(times, [0, 250_000_000, 300_000_000, 550_000_000]);
    }

    #[test]
    fn counted_starts_end_when_the_next_would_be_due() {
        let check = |schedule: Schedule, requests: u64, threads: usize| -> Vec<u64> {
            let ends = (0..threads).map(|thread| {
                let share = Share { thread, threads };
                let lengths = (Duration::from_millis(50), DURATION_UNBOUNDED);
                let mut starts = Starts::new(&schedule, lengths, Some(requests), share, 7, 0);
                let mut counted = 0;
                while starts.next_ns() != NEVER_NS {
                    counted += u64::from(starts.next_ns() >= 50_000_000);
                    starts.advance();
                }
                (counted, starts.ended_ns().unwrap())
            });
            let (counts, ends): (Vec<u64>, Vec<u64>) = ends.unzip();
            assert_eq!(counts.iter().sum::<u64>(), requests);
            ends
        };
        for threads in [1, 3] {
            let ends = check(even(100.0), 7, threads);
            assert!(ends.iter().all(|end| *end == 120_000_000), "{ends:?}");
        }
        check(even(100.0), 2, 3);
        check(Schedule { arrivals: Arrivals::Poisson, ..even(100.0) }, 1_000, 3);
    }

    #[test]
    fn nothing_drifts() {
        // A third of a nanosecond more each time would be 33 ms after 10^8 requests.
        let mut starts = Starts::new(&even(3e5), (Duration::ZERO, Duration::from_secs(3600)), None, ALONE, 1, 0);
        starts.position = 300_000_000.0 - 1.0;
        starts.advance();
        assert_eq!(starts.next_ns(), 1_000_000_000_000);
    }

    #[test]
    fn a_ramp_has_the_integral_of_its_rate() {
        for (rate, rate_end) in [(100.0, 300.0), (300.0, 100.0), (200.0, 0.0), (0.5, 399.5)] {
            let schedule = Schedule { rate, rate_end, arrivals: Arrivals::Uniform };
            let times = all(schedule, Duration::ZERO, 10 * SECOND, ALONE);
            let total = (rate + rate_end) / 2.0 * 10.0;
            assert!((times.len() as f64 - total).abs() <= 1.0, "{rate} to {rate_end}: {} of {total}", times.len());
            // The number in the first half is the integral over the first half.
            let half = times.iter().filter(|&&ns| ns < 5_000_000_000).count() as f64;
            let expected = requests_due(&schedule, 10 * SECOND, 5 * SECOND);
            assert!((half - expected).abs() <= 1.0, "{rate} to {rate_end}: {half} of {expected} in the first half");
        }
    }

    #[test]
    fn poisson_gaps_are_exponential() {
        for threads in [1, 4] {
            let schedule = Schedule { arrivals: Arrivals::Poisson, ..even(1000.0 * threads as f64) };
            let times = all(schedule, Duration::ZERO, 100 * SECOND, Share { thread: threads - 1, threads });
            let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64 / 1e6).collect();
            let count = gaps.len() as f64;
            let mean = gaps.iter().sum::<f64>() / count;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / count;
            // 100,000 gaps: the standard error of the mean is 0.3%, that of an exponential's variance 0.9%.
            assert!((mean - 1.0).abs() < 0.015, "mean {mean} ms");
            assert!((variance - 1.0).abs() < 0.05, "variance {variance} ms²");
            let longer = gaps.iter().filter(|&&gap| gap > 3.0).count() as f64 / count;
            assert!((longer - (-3.0_f64).exp()).abs() < 0.005, "P(gap > 3 ms) {longer}");
        }
    }

    #[test]
    fn poisson_follows_a_ramp() {
        let schedule = Schedule { rate: 1000.0, rate_end: 3000.0, arrivals: Arrivals::Poisson };
        let times = all(schedule, Duration::ZERO, 50 * SECOND, ALONE);
        let half = times.iter().filter(|&&ns| ns < 25_000_000_000).count() as f64;
        let expected = requests_due(&schedule, 50 * SECOND, 25 * SECOND);
        assert!((half / expected - 1.0).abs() < 0.03, "{half} of {expected} in the first half");
    }

    #[test]
    fn a_seed_gives_the_same_starts_and_another_thread_others() {
        let schedule = Schedule { arrivals: Arrivals::Poisson, ..even(100.0) };
        let of = |thread| all(schedule, Duration::ZERO, SECOND, Share { thread, threads: 2 });
        assert_eq!(of(0), of(0));
        assert_ne!(of(0), of(1));
    }

    #[test]
    fn a_copy_reads_the_same_starts() {
        let schedule = Schedule { arrivals: Arrivals::Poisson, ..even(1000.0) };
        let mut ahead = Starts::new(&schedule, (SECOND, SECOND), None, ALONE, 3, 5);
        let mut behind = ahead.clone();
        let mut times = Vec::new();
        while ahead.next_ns() != NEVER_NS {
            times.push(ahead.next_ns());
            ahead.advance();
        }
        for time in times {
            assert_eq!(behind.next_ns(), time);
            behind.advance();
        }
        assert_eq!((behind.next_ns(), behind.passed()), (NEVER_NS, ahead.passed()));
    }

    #[test]
    fn cut_short() {
        let mut starts = Starts::new(&even(10.0), (Duration::ZERO, SECOND), None, ALONE, 1, 0);
        starts.cut(150_000_000);
        assert_eq!(starts.next_ns(), 0);
        starts.advance();
        assert_eq!(starts.next_ns(), 100_000_000);
        starts.advance();
        assert_eq!(starts.next_ns(), NEVER_NS);
        starts.advance();
        assert_eq!(starts.next_ns(), NEVER_NS);
    }

    proptest! {
        #[test]
        fn threads_share_an_even_schedule(rate in 1.0..5000.0_f64, rate_end in 0.0..5000.0_f64, threads in 1usize..7) {
            let schedule = Schedule { rate, rate_end, arrivals: Arrivals::Uniform };
            let warm_up = Duration::from_millis(50);
            let together = all(schedule, warm_up, SECOND, ALONE);
            let mut parts: Vec<u64> =
                (0..threads).flat_map(|thread| all(schedule, warm_up, SECOND, Share { thread, threads })).collect();
            parts.sort_unstable();
            prop_assert_eq!(parts, together);
        }
    }
}
