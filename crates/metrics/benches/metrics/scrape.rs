//! Cost of a scrape per series, by the share of series that changed since the last one.
//!
//! Stillgate refreshes and takes all pieces of a cursor, as the exporter does; peers gather and encode into one buffer.

use crate::library::{Extent, LabelValues, Library, Random};
use crate::ours::Stillgate;
use crate::peers::{Metrics, Prometheus, PrometheusClient};
use crate::table::{self, timed};

/// Number of series to scrape, number of rounds, and how many of those include the peers.
struct Size {
    series: usize,
    rounds: usize,
    rounds_of_peers: usize,
    with_gzip: bool,
}

const SIZES: [Size; 3] = [
    Size { series: 10_000, rounds: 15, rounds_of_peers: 5, with_gzip: false },
    Size { series: 100_000, rounds: 9, rounds_of_peers: 3, with_gzip: true },
    Size { series: 1_000_000, rounds: 5, rounds_of_peers: 1, with_gzip: false },
];

/// What happened before a scrape.
#[derive(Clone, Copy, PartialEq)]
enum Change {
    First,
    CacheDropped,
    All,
    Clustered,
    Spread,
    Nothing,
}

const ROWS: [(Change, &str, Option<f64>); 6] = [
    (Change::First, "first scrape of a new reader", None),
    (Change::CacheDropped, "nothing kept: everything is encoded again", None),
    (Change::All, "every value changed", None),
    (Change::Clustered, "1% changed, neighbours", Some(2.0)),
    (Change::Spread, "1% changed, at random", Some(2.0)),
    (Change::Nothing, "nothing changed", None),
];

/// A library with its series.
trait ScrapeBench {
    fn forget(&mut self);
    fn forget_text(&mut self);
    fn change(&mut self, series: &[u32]);
    fn scrape(&mut self, gzip: bool) -> usize;
}

struct FilledRegistry<L: Library> {
    library: L,
    counters: Vec<L::Counter>,
}

impl<L: Library + 'static> FilledRegistry<L> {
    fn boxed(series: usize) -> Box<dyn ScrapeBench> {
        let mut library = L::new(series);
        let counters = (0..series).map(|n| library.counter(&LabelValues::numbered(n).values()));
        let counters: Vec<L::Counter> = counters.collect();
        // Values of five digits, which mostly stay five digits long.
        for (n, counter) in counters.iter().enumerate() {
            library.add(counter, 10_000 + n as u64 * 7 % 80_000);
        }
        Box::new(FilledRegistry { library, counters })
    }
}

impl<L: Library> ScrapeBench for FilledRegistry<L> {
    fn forget(&mut self) {
        self.library.forget();
    }

    fn forget_text(&mut self) {
        self.library.forget_text();
    }

    fn change(&mut self, series: &[u32]) {
        self.library.tick();
        series.iter().for_each(|n| self.library.add(&self.counters[*n as usize], 1));
        self.library.tick();
    }

    fn scrape(&mut self, gzip: bool) -> usize {
        self.library.scrape(gzip)
    }
}

/// Which series change.
struct Choice {
    all: Vec<u32>,
    /// Numbers of the series in the order of their label values, as an exposition is sorted.
    sorted: Vec<u32>,
    random: Random,
}

impl Choice {
    fn of(series: usize) -> Choice {
        let all: Vec<u32> = (0..series as u32).collect();
        let mut sorted = all.clone();
        sorted.sort_by_cached_key(|n| LabelValues::numbered(*n as usize).values().join(" "));
        Choice { all, sorted, random: Random::new(4711) }
    }

    fn next(&mut self, change: Change) -> Vec<u32> {
        let part = self.all.len() / 100;
        match change {
            Change::First | Change::CacheDropped | Change::Nothing => Vec::new(),
            Change::All => self.all.clone(),
            Change::Clustered => {
                let start = self.random.below(self.all.len() - part);
                self.sorted[start..start + part].to_vec()
            }
            Change::Spread => (0..part).map(|_| self.random.below(self.all.len()) as u32).collect(),
        }
    }
}

pub fn run(extent: Extent) {
    for size in SIZES.iter().filter(|size| !extent.is_quick || size.series <= 100_000) {
        let rounds = if extent.is_quick { size.rounds.min(3) } else { size.rounds };
        let rounds_of_peers = if extent.is_alone { 0 } else { size.rounds_of_peers };
        measure(size, rounds, rounds_of_peers);
    }
}

fn measure(size: &Size, rounds: usize, rounds_of_peers: usize) {
    let n = size.series;
    let of_peers = if rounds_of_peers == 0 { 0 } else { n };
    let mut libraries = [
        FilledRegistry::<Stillgate>::boxed(n),
        FilledRegistry::<PrometheusClient>::boxed(of_peers),
        FilledRegistry::<Prometheus>::boxed(of_peers),
        FilledRegistry::<Metrics>::boxed(of_peers),
    ];
    let mut choice = Choice::of(n);
    let kinds: &[bool] = if size.with_gzip { &[false, true] } else { &[false] };
    let mut samples: Vec<(bool, usize, [Vec<f64>; 4])> = Vec::new();
    for gzip in kinds {
        samples.extend((0..ROWS.len()).map(|row| (*gzip, row, Default::default())));
    }
    let mut bytes = [0; 4];
    for round in 0..rounds {
        for (gzip, row, samples) in &mut samples {
            let change = ROWS[*row].0;
            let changed = choice.next(change);
            for (at, library) in libraries.iter_mut().enumerate() {
                if at > 0 && round >= rounds_of_peers {
                    continue;
                }
                match change {
                    Change::First => library.forget(),
                    Change::CacheDropped => library.forget_text(),
                    _ => {}
                }
                library.change(&changed);
                let (time, length) = timed(|| library.scrape(*gzip));
                bytes[at] = length;
                samples[at].push(time as f64 / n as f64);
            }
        }
    }
    for gzip in kinds {
        let what = if *gzip { "gzip, " } else { "" };
        table::title(&format!("Scrape, {what}{n} series (ns a series)"));
        for (_, row, samples) in samples.iter().filter(|each| each.0 == *gzip) {
            let (change, what, target) = ROWS[*row];
            let target = match (change, n) {
                (Change::CacheDropped | Change::All, 100_000) => Some(20.0),
                (Change::CacheDropped | Change::All, 1_000_000) => Some(25.0),
                _ => target,
            };
            table::row(what, samples, target.filter(|_| !gzip));
        }
    }
    if size.with_gzip {
        let cost = |change: Change| {
            let found = samples.iter().find(|(gzip, row, _)| *gzip && ROWS[*row].0 == change);
            table::median(&found.unwrap().2[0])
        };
        table::note(&format!(
            "gzip of a full scrape costs {} times one of 1% changed neighbours (target: 20), {} times one of 1% at random",
            table::figure(cost(Change::All) / cost(Change::Clustered)),
            table::figure(cost(Change::All) / cost(Change::Spread)),
        ));
    }
}
