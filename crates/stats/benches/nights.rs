//! How often nights without a change have an alarm, and how soon changes are found.
//!
//! `cargo bench -p stillgate-stats --bench nights`; another argument is the number of nights (2,000). Seeds are fixed.

#[path = "../tests/all/simulated/nights.rs"]
mod nights;

use nights::{Noise, night};
use stillgate_stats::Random;

/// Nights of a creep: a change of 1% in each of them.
const CREEP_NIGHTS: u32 = 10;

fn main() {
    let runs: u32 = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(2000);
    println!("{:>15} {:>10} {:>10} {:>16} {:>10}", "noise", "any alarm", "5% at once", "2% in 3 nights", "creep");
    for noise in [
        Noise::Outliers(0.01),
        Noise::Outliers(0.02),
        Noise::Outliers(0.03),
        Noise::States(0.5),
        Noise::States(0.15),
        Noise::LastingStates,
    ] {
        let share = |seed: u64, runs: u32, hit: &dyn Fn(&mut Random) -> bool| {
            let mut random = Random::new(seed);
            f64::from((0..runs).map(|_| u32::from(hit(&mut random))).sum::<u32>()) / f64::from(runs)
        };
        let alarms = share(1, runs, &|random| night(random, noise, [0.0, 0.0]) != [false, false]);
        let step = share(2, runs / 4, &|random| night(random, noise, [0.05_f64.ln_1p(); 2])[0]);
        // A change stays visible against the release; against yesterday it is visible for one night only.
        let small = share(3, runs / 4, &|random| {
            (0..3).any(|number| night(random, noise, [0.02, if number == 0 { 0.02 } else { 0.0 }])[0])
        });
        let creep = share(4, runs / 10, &|random| {
            (1..=CREEP_NIGHTS).any(|number| night(random, noise, [0.01 * f64::from(number), 0.01])[0])
        });
        println!("{:>15} {alarms:>10.4} {step:>10.3} {small:>16.3} {creep:>10.3}", format!("{noise:?}"));
    }
}
