//! The last long turns of the workers' event loops with their stacks, recorded while slow requests are.
//!
//! A thread of low priority reads the workers' counters a few hundred times a second. The workers take no part, except that one
//! with a long turn is asked for its stack.

use serde_json::{Value as Json, json};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use stillgate_profiler::continuous_watch::{ContinuousWatch, LongTurn, LongTurnStack};
use stillgate_proxy::WORKER_NAME;
use stillgate_proxy::slow::SlowRequest;
use tracing::warn;

/// Turns shorter than this have no stack.
const OVER: Duration = Duration::from_millis(20);

/// Number of turns that are kept.
const TURNS_MAX: usize = 256;

/// Number of turns shown for one request.
const SHOWN_MAX: usize = 3;

/// The interval at which stacks are symbolised.
const NAME_EVERY: Duration = Duration::from_secs(1);

/// The pause before a watch that failed to start is started again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The share of the thread's time that symbolising may take: one part in so many.
const REST: u32 = 10;

/// The recorded turns, and whether a thread watches.
pub(super) struct LongTurns {
    /// Locked for a few instructions, by the control side only.
    kept: Mutex<VecDeque<LongTurn>>,
    /// The flag that keeps the watching thread running.
    watching: Mutex<Option<Arc<AtomicBool>>>,
    /// Returns free memory of the calling thread to the system.
    give_back: fn(),
}

impl LongTurns {
    pub(super) fn new(give_back: fn()) -> Arc<LongTurns> {
        Arc::new(LongTurns { kept: Mutex::default(), watching: Mutex::default(), give_back })
    }

    /// Starts or stops watching.
    pub(super) fn watch(self: &Arc<Self>, is_wanted: bool) {
        let mut watching = self.watching.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*watching, is_wanted) {
            (Some(goes_on), false) => {
                goes_on.store(false, Ordering::Relaxed);
                *watching = None;
            }
            (None, true) => {
                let goes_on = Arc::new(AtomicBool::new(true));
                let (turns, sign) = (self.clone(), goes_on.clone());
                let begun = thread::Builder::new().name("long-turns".to_owned()).spawn(move || turns.run(&sign));
                match begun {
                    Ok(_) => *watching = Some(goes_on),
                    Err(error) => warn!(%error, "long turns of event loops have no stacks in /v1/slow"),
                }
            }
            _ => {}
        }
    }

    fn run(&self, goes_on: &AtomicBool) {
        let begun = begin(goes_on, || ContinuousWatch::new(OVER), || thread::sleep(AGAIN_AFTER));
        let Some(mut watch) = begun else { return };
        let pause = watch.pause();
        let mut named = Instant::now();
        while goes_on.load(Ordering::Relaxed) {
            watch.look();
            if named.elapsed() >= NAME_EVERY {
                let begin = Instant::now();
                let turns = watch.long_turns();
                if !turns.is_empty() {
                    self.add(turns);
                    // The symbols of the binary took much of it for a moment.
                    (self.give_back)();
                }
                // Paused in proportion, so that most of the time is spent watching.
                named = Instant::now() + begin.elapsed() * REST;
            }
            thread::sleep(pause);
        }
    }

    fn add(&self, turns: Vec<LongTurn>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(turns);
        let surplus = kept.len().saturating_sub(TURNS_MAX);
        drop(kept.drain(..surplus));
    }

    /// The turns of the request's worker that overlapped the request, the longest first.
    pub(super) fn of(&self, request: &SlowRequest) -> Json {
        let worker = format!("{WORKER_NAME}{}", request.worker);
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let began_unix_ms = request.ended_unix_ms.saturating_sub(ms(request.times.took));
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let overlaps = |turn: &&LongTurn| {
            turn.thread == worker
                && turn.ended_unix_ms >= began_unix_ms
                && turn.ended_unix_ms.saturating_sub(ms(turn.took)) <= request.ended_unix_ms
        };
        let mut turns: Vec<&LongTurn> = kept.iter().filter(overlaps).collect();
        turns.sort_by_key(|turn| std::cmp::Reverse(turn.took));
        turns.iter().take(SHOWN_MAX).map(|turn| shown(turn)).collect()
    }
}

/// Tries until it succeeds or is no longer wanted; logs the first failure.
fn begin<T>(goes_on: &AtomicBool, mut new: impl FnMut() -> io::Result<T>, mut pause: impl FnMut()) -> Option<T> {
    let mut is_said = false;
    while goes_on.load(Ordering::Relaxed) {
        match new() {
            Ok(begun) => return Some(begun),
            Err(error) if !is_said => {
                warn!(%error, "long turns of event loops have no stacks in /v1/slow; this is tried again");
                is_said = true;
            }
            Err(_) => {}
        }
        pause();
    }
    None
}

fn shown(turn: &LongTurn) -> Json {
    let stack = |stack: &LongTurnStack| {
        let frames: Vec<&str> = stack.frames.iter().map(|frame| &**frame).collect();
        json!({ "seen": stack.seen, "frames": frames })
    };
    json!({
        "ended_unix_ms": turn.ended_unix_ms,
        "took_ms": (turn.took.as_secs_f64() * 1e6).round() / 1e3,
        "stacks": turn.stacks.iter().map(stack).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_cannot_begin_is_tried_again_while_it_is_wanted() {
        let goes_on = AtomicBool::new(true);
        let mut tries = 0;
        let mut new = || {
            tries += 1;
            if tries < 3 { Err(io::Error::other("not yet")) } else { Ok(tries) }
        };
        assert_eq!(begin(&goes_on, &mut new, || {}), Some(3));
        let failing = || Err::<(), _>(io::Error::other("never"));
        let mut pauses = 0;
        let ended = begin(&goes_on, failing, || {
            pauses += 1;
            goes_on.store(pauses < 2, Ordering::Relaxed);
        });
        assert_eq!((ended, pauses), (None, 2));
    }
}
