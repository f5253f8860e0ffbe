//! Cost of the first use of a label set: the mean, and the worst case.
//!
//! Each insertion is timed on its own, by the thread's CPU time. That takes a system call, which is itself slow now and
//! then: the slowest of as many empty measurements shows how much of the slowest insertion may be the clock.

use crate::library::{Extent, LabelValues, Library};
use crate::ours::Stillgate;
use crate::peers::{Metrics, Prometheus, PrometheusClient};
use crate::table::{self, cpu_ns};

const SERIES: usize = 5_000_000;
/// The hypervisor may stop this machine, which the clocks do not notice: an insertion hit by that is slow in one round,
/// and one that is slow by itself is slow in all of them.
const ROUNDS: usize = 3;
/// Peers take gigabytes, and their slowest insertion grows with their size, so they get fewer series.
const SERIES_OF_PEERS: usize = 1_000_000;
/// Nanoseconds above which an insertion is slow.
const SLOW: [u64; 5] = [5_000, 10_000, 20_000, 50_000, 100_000];

#[derive(Default)]
struct Times {
    total: u64,
    count: u64,
    slowest: u64,
    /// Label sets for which the provisioner was too slow (and, one in a billion, sets whose hash collides).
    shared: usize,
    slower: [usize; SLOW.len()],
}

impl Times {
    fn add(&mut self, time: u64) {
        self.count += 1;
        self.total += time;
        self.slowest = self.slowest.max(time);
        self.slower.iter_mut().zip(SLOW).for_each(|(count, bound)| *count += usize::from(time > bound));
    }

    fn mean(&self) -> f64 {
        self.total as f64 / self.count as f64
    }

    fn text(&self) -> String {
        let slower = self.slower.iter().zip(SLOW).map(|(count, bound)| format!("{count} > {} us", bound / 1000));
        format!("slowest {:.1} us; {}", self.slowest as f64 / 1e3, slower.collect::<Vec<_>>().join(", "))
    }
}

pub fn run(extent: Extent) {
    let part = if extent.is_quick { 10 } else { 1 };
    let (ours, peers) = (SERIES / part, SERIES_OF_PEERS / part);
    let mut times: [Vec<Times>; 4] = Default::default();
    let mut empty = Vec::new();
    for round in 0..if extent.is_quick { 1 } else { ROUNDS } {
        empty.push(nothing(ours));
        times[0].push(inserted::<Stillgate>(ours));
        if round == 0 && !extent.is_alone {
            times[1].push(inserted::<PrometheusClient>(peers));
            times[2].push(inserted::<Prometheus>(peers));
            times[3].push(inserted::<Metrics>(peers));
        }
    }
    table::title(&format!("First sight of a label set ({ours} sets; peers {peers})"));
    let clock = table::least(&empty.iter().map(Times::mean).collect::<Vec<_>>());
    let mean = times.each_ref().map(|rounds| rounds.iter().map(|times| times.mean() - clock).collect());
    table::row("mean (ns, without the clock)", &mean, None);
    let slowest = times.each_ref().map(|rounds| rounds.iter().map(|times| times.slowest as f64 / 1e3).collect());
    table::row("slowest single one (us)", &slowest, Some(50.0));
    for times in &times[0] {
        table::note(&format!("Stillgate: {}; {} without a series of their own", times.text(), times.shared));
    }
    for empty in &empty {
        table::note(&format!("an empty measurement takes {:.0} ns; {}", empty.mean(), empty.text()));
    }
}

/// Times as many empty measurements.
fn nothing(count: usize) -> Times {
    let mut times = Times::default();
    for _ in 0..count {
        let start = cpu_ns();
        times.add(cpu_ns() - start);
    }
    times
}

fn inserted<L: Library>(series: usize) -> Times {
    let mut library = L::new(series);
    let mut times = Times::default();
    for n in 0..series {
        let labels = LabelValues::numbered(n);
        let values = labels.values();
        let start = cpu_ns();
        let counter = library.counter(&values);
        times.add(cpu_ns() - start);
        library.add(&counter, 1);
    }
    times.shared = library.sets().map_or(0, |sets| series - sets);
    times
}
