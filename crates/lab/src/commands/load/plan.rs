//! What was typed as a run that can be done, or everything that speaks against it.

use super::LoadArguments;
use crate::cli::values::Header;
use crate::error::{Error, Result};
use std::fs;
use std::num::NonZero;
use std::thread;
use std::time::Duration;
use stillgate_load::{Arrivals, Bounds, Load, Mix, Pace, Schedule, Target};

/// Stretches shorter than this say nothing and cost the generator its time.
pub(super) const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// The run.
pub(super) fn load(arguments: &LoadArguments) -> Result<Load> {
    for (name, value) in [("--duration", arguments.duration), ("--timeout", arguments.timeout)] {
        if value.is_zero() {
            return Err(Error::new(format!("{name} 0: must be more than nothing; write for example {name} 10s")));
        }
    }
    if arguments.interval < INTERVAL_MIN {
        return Err(Error::new(format!("--interval {:?}: at least {INTERVAL_MIN:?}", arguments.interval)));
    }
    let threads = threads(arguments)?;
    let target = Target::resolve(&arguments.url).map_err(|error| Error::new(error.to_string()))?;
    Ok(Load {
        mix: mix(arguments, &target)?,
        target,
        pace: pace(arguments),
        warm_up: arguments.warm_up,
        duration: arguments.duration,
        connections: arguments.connections,
        threads,
        cpus: arguments.cpus.as_ref().map(|cpus| cpus.0.clone()).unwrap_or_default(),
        realtime: false,
        sources: arguments.sources.clone(),
        timeout: arguments.timeout,
        interval: arguments.interval,
        bounds: Bounds { late: arguments.late, late_share_max: arguments.late_share },
        seed: arguments.seed,
    })
}

fn pace(arguments: &LoadArguments) -> Pace {
    match arguments.rate {
        None => Pace::Closed,
        Some(rate) => Pace::Open(Schedule {
            rate,
            rate_end: arguments.rate_end.unwrap_or(rate),
            arrivals: if arguments.poisson { Arrivals::Poisson } else { Arrivals::Uniform },
        }),
    }
}

/// As asked; otherwise one a CPU that is given, or half of those there are: the other half is for a target on this machine.
fn threads(arguments: &LoadArguments) -> Result<usize> {
    let connections = arguments.connections;
    match (arguments.threads, &arguments.cpus) {
        (Some(threads), _) if threads > connections => Err(Error::new(format!(
            "--threads {threads} for --connections {connections}: each thread needs a connection of its own"
        ))),
        (Some(threads), _) => Ok(threads),
        (None, Some(cpus)) => Ok(cpus.0.len().min(connections)),
        (None, None) => {
            let cpus = thread::available_parallelism().map_or(1, NonZero::get);
            Ok((cpus / 2).clamp(1, connections))
        }
    }
}

fn mix(arguments: &LoadArguments, target: &Target) -> Result<Mix> {
    let mix = match &arguments.mix {
        Some(path) => Mix::from_file(path, target),
        None => {
            let body = body(arguments.body.as_deref())?;
            let headers: Vec<(String, String)> =
                arguments.headers.iter().map(|Header(name, value)| (name.clone(), value.clone())).collect();
            Mix::single(&arguments.method, &target.path_and_query, &target.host, &headers, body)
        }
    };
    let mix = mix.map_err(|errors| Error::new(errors.to_string()))?;
    mix.expecting(arguments.expect_status.as_deref(), arguments.expect_body_contains.as_deref())
        .map_err(|error| Error::new(format!("--expect-status: {error}")))
}

fn body(typed: Option<&str>) -> Result<Vec<u8>> {
    match typed {
        None => Ok(Vec::new()),
        Some(text) => match text.strip_prefix('@') {
            None => Ok(text.as_bytes().to_vec()),
            Some(path) => fs::read(path).map_err(|error| Error::new(format!("--body @{path}: {error}"))),
        },
    }
}
