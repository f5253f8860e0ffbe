//! Converts a run of the load generator, and its intervals, for a result file.

use crate::error::Result;
use crate::result::histogram;
use crate::result::run::RunRecord;
use crate::result::tail::Point;
use std::time::UNIX_EPOCH;
use stillgate_load::{ErrorKind, Interval, Outcome};

impl RunRecord {
    /// The record of a run.
    pub(crate) fn of(outcome: &Outcome) -> Result<RunRecord> {
        let counts = ErrorKind::ALL.iter().zip(outcome.errors.counts);
        Ok(RunRecord {
            // A clock before 1970 means a machine without one; the order of runs does not depend on it.
            begun_unix_s: outcome.begun.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()),
            elapsed_s: outcome.elapsed.as_secs_f64(),
            requests: outcome.requests,
            errors: outcome.errors.total(),
            errors_by_kind: counts
                .filter(|(_, count)| *count > 0)
                .map(|(kind, count)| (kind.name().to_owned(), count))
                .collect(),
            error_examples: outcome.errors.examples.clone(),
            rate_intended: outcome.rate_intended,
            rate_achieved: outcome.rate_achieved,
            answered_in_time: Some(outcome.answered_in_time),
            missed_starts: Some(outcome.self_watch.missed_starts),
            cut_off: outcome.cut_off,
            corrected: histogram::encode(&outcome.latencies.corrected)?,
            uncorrected: histogram::encode(&outcome.latencies.uncorrected)?,
            refused: Some(histogram::encode(&outcome.refused)?),
            lateness: histogram::encode(&outcome.self_watch.lateness)?,
            generator_cpu_cores: outcome.self_watch.cpu_cores,
            generator_cpu_share_max: Some(outcome.self_watch.cpu_share_max),
            generator_cpu_wait_share: outcome.self_watch.cpu_wait_share_max,
            generator_pause_longest_s: Some(outcome.self_watch.pause_longest.as_secs_f64()),
            generator_pauses_s: Some(outcome.self_watch.pauses.as_secs_f64()),
            generator_realtime: Some(outcome.self_watch.realtime),
            void: outcome.void.iter().map(ToString::to_string).collect(),
        })
    }
}

impl Point {
    /// The point of an interval of a run.
    pub(crate) fn of(interval: &Interval<'_>) -> Point {
        let corrected = &interval.latencies.corrected;
        Point {
            at_s: interval.start.as_secs_f64(),
            length_s: interval.length.as_secs_f64(),
            requests: interval.requests,
            errors: interval.errors,
            p50_us: histogram::quantile_us(corrected, 0.5),
            p99_us: histogram::quantile_us(corrected, 0.99),
            max_us: histogram::max_us(corrected),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};
    use stillgate_load::{Errors, Latencies, SelfWatch, Void, outcome};

    #[test]
    fn a_run_is_kept_with_all_that_speaks_against_it() {
        let mut corrected = outcome::histogram();
        corrected.record_n(2_000_000, 7).unwrap();
        let mut errors = Errors::default();
        errors.counts[ErrorKind::ALL.iter().position(|kind| *kind == ErrorKind::Timeout).unwrap()] = 2;
        errors.examples.push("no answer in 1 s".into());
        let record = RunRecord::of(&Outcome {
            begun: SystemTime::UNIX_EPOCH + Duration::from_millis(1500),
            elapsed: Duration::from_millis(250),
            requests: 7,
            answered_in_time: 7,
            good: 7,
            good_in_time: 7,
            drain: Duration::ZERO,
            cut_off: 0,
            interrupted: false,
            errors,
            sent: 10,
            sent_again: 0,
            bytes_received: 700,
            rate_achieved: 28.0,
            rate_intended: Some(40.0),
            latencies: Latencies { corrected: corrected.clone(), uncorrected: outcome::histogram() },
            refused: outcome::histogram(),
            connect: outcome::histogram(),
            send: outcome::histogram(),
            first_byte: outcome::histogram(),
            self_watch: SelfWatch {
                lateness: outcome::histogram(),
                missed_starts: 0,
                cpu_cores: 0.5,
                cpu_share_max: 0.5,
                realtime: false,
                pause_longest: Duration::ZERO,
                pauses: Duration::ZERO,
                cpu_wait_share_max: None,
            },
            void: vec![Void::NoAnswers],
            notes: Vec::new(),
        })
        .unwrap();
        assert_eq!((record.begun_unix_s, record.elapsed_s, record.requests, record.errors), (1.5, 0.25, 7, 2));
        assert_eq!(record.errors_by_kind.into_iter().collect::<Vec<_>>(), [("timeout".to_owned(), 2)]);
        assert_eq!(record.error_examples, ["no answer in 1 s"]);
        assert_eq!(histogram::decode(&record.corrected).unwrap(), corrected);
        assert_eq!(record.void, [Void::NoAnswers.to_string()]);
    }
}
