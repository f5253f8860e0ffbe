//! What the first sight of a label set costs: on average, and at the worst.
//!
//! Each insertion is timed on its own, by the thread's CPU time: a system call, which itself is late now and then. The
//! slowest empty measurement of as many says how much of the slowest insertion may be the clock.

use crate::library::{Library, Owned};
use crate::ours::Stillgate;
use crate::peers::{Metrics, Prometheus, PrometheusClient};
use crate::table::{self, cpu_ns};

const SERIES: usize = 5_000_000;
/// Peers take gigabytes, and their slowest insertion grows with their size: it would be worse with as many.
const SERIES_OF_PEERS: usize = 1_000_000;
/// Nanoseconds above which an insertion is slow.
const SLOW: [u64; 5] = [5_000, 10_000, 20_000, 50_000, 100_000];

#[derive(Default)]
struct Times {
    total: u64,
    count: u64,
    least: u64,
    slowest: u64,
    slower: [usize; SLOW.len()],
}

impl Times {
    fn add(&mut self, time: u64) {
        self.least = if self.count == 0 { time } else { self.least.min(time) };
        self.count += 1;
        self.total += time;
        self.slowest = self.slowest.max(time);
        self.slower.iter_mut().zip(SLOW).for_each(|(count, bound)| *count += usize::from(time > bound));
    }

    fn text(&self) -> String {
        let slower = self.slower.iter().zip(SLOW).map(|(count, bound)| format!("{count} > {} us", bound / 1000));
        format!("slowest {:.1} us; {}", self.slowest as f64 / 1e3, slower.collect::<Vec<_>>().join(", "))
    }
}

pub fn run(is_quick: bool) {
    let part = if is_quick { 10 } else { 1 };
    let (ours, peers) = (SERIES / part, SERIES_OF_PEERS / part);
    let mut empty = Times::default();
    for _ in 0..ours {
        let start = cpu_ns();
        empty.add(cpu_ns() - start);
    }
    let times =
        [inserted::<Stillgate>(ours), inserted::<PrometheusClient>(peers), inserted::<Prometheus>(peers), inserted::<Metrics>(peers)];
    table::title(&format!("First sight of a label set ({ours} sets; peers {peers})"));
    let clock = empty.total as f64 / empty.count as f64;
    let mean = times.each_ref().map(|times| vec![times.total as f64 / times.count as f64 - clock]);
    table::row("mean (ns, without the clock)", &mean, None);
    let slowest = times.each_ref().map(|times| vec![times.slowest as f64 / 1e3]);
    table::row("slowest single one (us)", &slowest, Some(50.0));
    table::note(&format!("Stillgate: {}", times[0].text()));
    table::note(&format!("an empty measurement takes {clock:.0} ns; {}", empty.text()));
}

fn inserted<L: Library>(series: usize) -> Times {
    let mut library = L::new(series);
    let mut times = Times::default();
    for n in 0..series {
        let labels = Owned::numbered(n);
        let values = labels.values();
        let start = cpu_ns();
        let counter = library.counter(&values);
        times.add(cpu_ns() - start);
        library.add(&counter, 1);
    }
    times
}
