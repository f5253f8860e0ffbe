//! Probation of a new process: for a second it serves alongside the old one, which gives nothing away.
//!
//! A new version that crashes usually does so at once: on its first requests, or because the memory it may have is used up. The old
//! process still has everything then, so it just goes on. Only the connections that the new one had accepted are lost with it.

use super::channel::Channel;
use std::time::{Duration, Instant};

/// How long the new process serves before the old one leaves.
pub(crate) const PROBATION: Duration = Duration::from_secs(1);
/// Interval of checks whether the new process is still wanted. Its end is noticed at once.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The result of probation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It has served all the time.
    Proven,
    /// It has ended, or has sent a message out of turn.
    Gone,
    /// This process is to end, and the new one with it.
    Unwanted,
}

/// Waits for the end of the new process, which is not expected.
pub(super) fn prove(channel: &Channel, is_unwanted: impl Fn() -> bool) -> Found {
    let end = Instant::now() + PROBATION;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if is_unwanted() {
            return Found::Unwanted;
        }
        if channel.has_something(left.min(LOOK_EVERY)) {
            return Found::Gone;
        }
        if left.is_zero() {
            return Found::Proven;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upgrade::messages::Message;
    use std::cell::Cell;

    #[test]
    fn only_silence_proves_it() {
        let (ours, theirs) = Channel::pair().unwrap();
        let theirs = Channel::new(theirs).unwrap();
        let began = Instant::now();
        assert_eq!(prove(&ours, || false), Found::Proven);
        assert!(began.elapsed() >= PROBATION);
        assert_eq!(prove(&ours, || true), Found::Unwanted);
        // It dies during the probation.
        let theirs = Cell::new(Some(theirs));
        let is_unwanted = || {
            drop(theirs.take());
            false
        };
        assert_eq!(prove(&ours, is_unwanted), Found::Gone);
        let (ours, theirs) = Channel::pair().unwrap();
        Message::Taken {}.send_with(&Channel::new(theirs).unwrap(), &[]).unwrap();
        assert_eq!(prove(&ours, || false), Found::Gone);
    }
}
