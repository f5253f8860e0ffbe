//! Two gateways in alternation: each round connects new devices to both, in random order, and sends them messages.

use super::plan::{GatewayNode, Plan};
use super::run;
use crate::display::Progress;
use crate::error::Result;
use crate::result::devices::{DevicesRound, DevicesSide};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use stillgate_stats::Random;

/// The completed rounds; `keep` is called after each.
pub(crate) fn run(
    plan: &Plan,
    places: (&[GatewayNode], &[GatewayNode]),
    rounds: usize,
    stop: &AtomicBool,
    mut keep: impl FnMut(&[DevicesRound]) -> Result,
) -> Result<Vec<DevicesRound>> {
    let mut progress = Progress::new("devices", run::steps(plan) * 2 * rounds as u64);
    let mut random = Random::new(plan.seed);
    // Devices of an earlier command must not still be connected.
    let begun = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut done: Vec<DevicesRound> = Vec::new();
    for round in 0..rounds {
        let plan = Plan { prefix: format!("{}{begun:x}-{round}-", plan.prefix), ..plan.clone() };
        let first = if random.below(2) == 0 { DevicesSide::A } else { DevicesSide::B };
        let mut side = |side: DevicesSide| {
            let place = if side == DevicesSide::A { places.0 } else { places.1 };
            let label = format!("round {} of {rounds}, {side:?}: ", round + 1);
            run::run(&plan, place, stop, &label, &mut progress).map_err(|error| error.context(format!("{side:?}")))
        };
        let (a, b) = match first {
            DevicesSide::A => {
                let a = side(DevicesSide::A)?;
                (a, side(DevicesSide::B)?)
            }
            DevicesSide::B => {
                let b = side(DevicesSide::B)?;
                (side(DevicesSide::A)?, b)
            }
        };
        if stop.load(Ordering::Relaxed) {
            break;
        }
        done.push(DevicesRound { first, a, b });
        keep(&done)?;
    }
    progress.finish();
    Ok(done)
}
