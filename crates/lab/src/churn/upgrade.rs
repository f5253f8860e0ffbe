//! Upgrades: the running target gets a signal, starts its successor, which takes over, and exits.
//!
//! The successor must be a descendant, as it is of everything that hands its sockets over; it becomes a child of this program when
//! the process that started it exits.

use super::{Change, ChangeOptions, LOOK, Mode, micros};
use crate::error::{Error, Result};
use crate::result::Durations;
use crate::target::{RunningTarget, Spec, TargetKind};
use rustix::process::{getpid, set_child_subreaper};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use stillgate_rig::{Running, Signal, proc};

/// An old process that still exists then is an error.
const GONE_TIMEOUT: Duration = Duration::from_secs(60);
/// The polling interval, which limits the precision of an upgrade's times.
const POLL: Duration = Duration::from_millis(2);

struct Upgrade {
    signal: Signal,
    /// From the beginning of a block until its upgrade.
    after: Duration,
    started_us: Vec<u64>,
    gone_us: Vec<u64>,
}

pub(super) fn make(options: &ChangeOptions, spec: &mut Spec) -> Result<Box<dyn Change>> {
    let signal = match (options.signal, spec.kind) {
        (Some(signal), _) => signal,
        (None, TargetKind::Stillgate) => Signal::USR2,
        (None, kind) => {
            return Err(Error::new(format!(
                "--upgrade: name the signal after which {} starts its successor and exits, by --signal",
                kind.name()
            )));
        }
    };
    Ok(Box::new(Upgrade { signal, after: options.upgrade_after, started_us: Vec::new(), gone_us: Vec::new() }))
}

impl Change for Upgrade {
    fn begin(&mut self, _: &mut RunningTarget) -> Result {
        set_child_subreaper(Some(getpid())).map_err(|error| Error::new(format!("the successor's parent: {error}")))
    }

    fn change_until_over(&mut self, target: &mut RunningTarget, mode: Mode, over: &AtomicBool) -> Result<u64> {
        let begin = Instant::now();
        while !over.load(Ordering::Relaxed) && begin.elapsed() < self.after {
            sleep(LOOK);
        }
        if mode == Mode::Without || over.load(Ordering::Relaxed) {
            super::wait_for_end(over);
            return Ok(0);
        }
        self.upgrade(target.process()?)?;
        super::wait_for_end(over);
        Ok(1)
    }

    fn durations(&mut self) -> Vec<Durations> {
        let take = |of: &str, us: &mut Vec<u64>| Durations { of: of.to_owned(), us: std::mem::take(us) };
        vec![
            take("from the signal until the successor existed", &mut self.started_us),
            take("from the signal until the old process was gone", &mut self.gone_us),
        ]
    }
}

impl Upgrade {
    /// Lets a target start its successor, and waits until it has exited; `process` is the successor then.
    fn upgrade(&mut self, process: &mut Running) -> Result {
        let begin = Instant::now();
        process.signal(self.signal)?;
        let mut successor: Option<(u32, u64)> = None;
        while !process.has_ended()? {
            match successor {
                // It may exit between two polls.
                None => successor = process.pids().get(1).map(|pid| (*pid, micros(begin))),
                Some((pid, _)) if !proc::runs(pid) => {
                    return Err(Error::new(format!("the successor has ended:\n{}", process.log())));
                }
                Some(_) => {}
            }
            if begin.elapsed() > GONE_TIMEOUT {
                let log = process.log();
                return Err(Error::new(format!("the old process is still there after {GONE_TIMEOUT:?}:\n{log}")));
            }
            sleep(POLL);
        }
        let Some((successor, started_us)) = successor else {
            return Err(Error::new(format!(
                "the signal ended the target, and it has no successor:\n{}",
                process.log()
            )));
        };
        process.follow(successor);
        self.started_us.push(started_us);
        self.gone_us.push(micros(begin));
        Ok(())
    }
}
