//! Cost of a request's metrics: an increment, an observation.

use crate::library::{Extent, LabelValues, Library, Random, Values};
use crate::ours::Stillgate;
use crate::peers::{Metrics, Prometheus, PrometheusClient};
use crate::table::{self, timed};
use std::hint::black_box;

/// Operations of one round.
const BATCH: usize = 500_000;
const ROUNDS: usize = 11;
/// Strings of each of the four pools: any combination is a label set.
const POOLS: [(usize, &str, f64); 2] =
    [(10, "labels given, 10^4 sets at random", 40.0), (18, "labels given, 18^4 = 105k sets at random", 40.0)];

/// Four pools of strings.
struct Pools {
    strings: [Vec<String>; 4],
}

impl Pools {
    fn of(size: usize) -> Pools {
        let names = ["rout", "serv", "node", "cons"];
        Pools { strings: names.map(|name| (0..size).map(|n| format!("{name}{n:06}")).collect()) }
    }

    fn sets(&self) -> usize {
        self.strings[0].len().pow(4)
    }

    fn numbered(&self, mut n: usize) -> Values<'_> {
        self.strings.each_ref().map(|pool| {
            let value = &pool[n % pool.len()];
            n /= pool.len();
            value.as_str()
        })
    }

    #[inline]
    fn random(&self, random: &mut Random) -> Values<'_> {
        let word = random.word();
        [0, 1, 2, 3].map(|at| {
            let pool = &self.strings[at];
            pool[((word >> (16 * at)) as u16 as usize * pool.len()) >> 16].as_str()
        })
    }
}

/// A library that is ready to be written to.
trait WriteBench {
    fn by_handle(&mut self);
    fn by_set(&mut self);
    fn by_values(&mut self);
    fn observe(&mut self);
    fn meet(&mut self, pools: &Pools);
    fn by_random(&mut self, pools: &Pools, random: &mut Random);
}

struct Ready<L: Library> {
    library: L,
    counter: L::Counter,
    set: L::Set,
    histogram: L::Histogram,
}

impl<L: Library + 'static> Ready<L> {
    fn boxed(series: usize) -> Box<dyn WriteBench> {
        let mut library = L::new(series);
        let labels = LabelValues::numbered(5);
        let (counter, set) = (library.counter(&labels.values()), library.set(&labels.values()));
        let histogram = library.histogram(&labels.values());
        Box::new(Ready { library, counter, set, histogram })
    }
}

impl<L: Library> WriteBench for Ready<L> {
    fn by_handle(&mut self) {
        for _ in 0..BATCH {
            self.library.add(black_box(&self.counter), 1);
        }
    }

    fn by_set(&mut self) {
        for _ in 0..BATCH {
            self.library.count_set(black_box(&self.set));
        }
    }

    fn by_values(&mut self) {
        let labels = LabelValues::numbered(5);
        let values = labels.values();
        for _ in 0..BATCH {
            self.library.count(black_box(&values));
        }
    }

    fn observe(&mut self) {
        for n in 0..BATCH {
            self.library.observe(black_box(&self.histogram), (n % 64) as f64 * 0.003);
        }
        self.library.settle();
    }

    fn meet(&mut self, pools: &Pools) {
        (0..pools.sets()).for_each(|n| self.library.count(&pools.numbered(n)));
    }

    fn by_random(&mut self, pools: &Pools, random: &mut Random) {
        for _ in 0..BATCH {
            self.library.count(black_box(&pools.random(random)));
        }
    }
}

fn libraries(series: usize, is_alone: bool) -> Vec<Box<dyn WriteBench>> {
    let mut all = vec![Ready::<Stillgate>::boxed(series)];
    if !is_alone {
        all.push(Ready::<PrometheusClient>::boxed(series));
        all.push(Ready::<Prometheus>::boxed(series));
        all.push(Ready::<Metrics>::boxed(series));
    }
    all
}

pub fn run(extent: Extent) {
    let rounds = if extent.is_quick { 5 } else { ROUNDS };
    table::title("Write (ns each)");
    let mut all = libraries(1000, extent.is_alone);
    let mut row = |what: &str, target: Option<f64>, work: fn(&mut dyn WriteBench)| {
        table::row(what, &in_turns(&mut all, rounds, |library| work(library)), target);
    };
    row("increment through a kept handle", Some(3.0), |library| library.by_handle());
    row("labels given, one set again and again", Some(20.0), |library| library.by_values());
    row("the same, where the library can keep a set built", Some(20.0), |library| library.by_set());
    row("observe in a histogram of 11 bounds, by handle", None, |library| library.observe());
    for (size, what, target) in POOLS {
        let pools = Pools::of(size);
        let mut all = libraries(2 * pools.sets(), extent.is_alone);
        all.iter_mut().for_each(|library| library.meet(&pools));
        let mut random = Random::new(99);
        let samples = in_turns(&mut all, rounds, |library| library.by_random(&pools, &mut random));
        table::row(what, &samples, Some(target));
        let mut picks: Vec<f64> = Vec::new();
        for _ in 0..rounds {
            let (time, ()) = timed(|| {
                (0..BATCH).for_each(|_| {
                    black_box(pools.random(&mut random));
                })
            });
            picks.push(time as f64 / BATCH as f64);
        }
        table::note(&format!("of that, choosing four strings takes {}", table::figure(table::least(&picks))));
    }
}

/// Times of a batch, by library; they take turns.
fn in_turns(
    all: &mut [Box<dyn WriteBench>],
    rounds: usize,
    mut work: impl FnMut(&mut dyn WriteBench),
) -> [Vec<f64>; 4] {
    let mut samples: [Vec<f64>; 4] = Default::default();
    // The first round warms up.
    for round in 0..=rounds {
        for (library, samples) in all.iter_mut().zip(&mut samples) {
            let (time, ()) = timed(|| work(library.as_mut()));
            if round > 0 {
                samples.push(time as f64 / BATCH as f64);
            }
        }
    }
    samples
}
