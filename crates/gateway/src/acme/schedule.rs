//! When a certificate is ordered: before it ends, and after a failure later and later. No clock and no randomness of
//! its own.

use std::time::Duration;
use stillgate_tls::Ordered;

/// After the first failure; twice as long after each further one. Issuers count failures by the hour.
pub(crate) const RETRY_MIN: Duration = Duration::from_secs(60);
/// However often it has failed.
pub(crate) const RETRY_MAX: Duration = Duration::from_secs(24 * 3600);
/// By what share a wait may be longer, so that those that failed together do not come back together.
const JITTER: f64 = 0.25;

/// Why a certificate is ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// There is none that could be used.
    Missing,
    /// It is not for all names that the configuration has.
    OtherNames,
    /// It ends soon.
    EndsSoon,
}

/// Whether there is a reason to order now; else in how long there will be one.
pub(crate) fn due(
    found: Option<&Ordered>,
    names: &[String],
    renew_before: Option<Duration>,
    now_seconds: i64,
) -> Result<Reason, Duration> {
    let Some(found) = found else { return Ok(Reason::Missing) };
    if !names.iter().all(|name| found.names.contains(name)) {
        return Ok(Reason::OtherNames);
    }
    let lifetime = found.not_after_seconds.saturating_sub(found.not_before_seconds).max(0);
    let wanted = renew_before.map_or(lifetime / 3, |before| i64::try_from(before.as_secs()).unwrap_or(i64::MAX));
    // A certificate that is renewed as soon as it comes would be renewed for ever.
    let before = wanted.min(lifetime / 3 * 2);
    let left = found.not_after_seconds.saturating_sub(before).saturating_sub(now_seconds);
    match u64::try_from(left) {
        Ok(left @ 1..) => Err(Duration::from_secs(left)),
        _ => Ok(Reason::EndsSoon),
    }
}

/// How long nothing is ordered after a certificate came that ends in so many seconds: one that is due at once, since
/// its issuer dates it back, must not become an order after the other.
pub(crate) fn rest(left_seconds: i64) -> Duration {
    let third = Duration::from_secs(u64::try_from(left_seconds / 3).unwrap_or(0));
    third.clamp(Duration::from_secs(1), RETRY_MIN)
}

/// How long nothing is tried after so many failures in a row. `server`: what the server asked for; `random`: from 0 to
/// 1.
pub(crate) fn wait(failures: u32, server: Option<Duration>, random: f64) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let own = RETRY_MIN.saturating_mul(1 << doublings).mul_f64(1.0 + JITTER * random.clamp(0.0, 1.0));
    own.min(RETRY_MAX).max(server.unwrap_or_default())
}

impl Reason {
    /// For the log.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Reason::Missing => "there is none that can be used",
            Reason::OtherNames => "it lacks a name of the configuration",
            Reason::EndsSoon => "it ends soon",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 3600;

    #[test]
    fn a_certificate_is_renewed_before_it_ends_and_not_as_soon_as_it_comes() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let found =
            Ordered { names: names(&["a", "b"]), not_before_seconds: 1000 * DAY, not_after_seconds: 1090 * DAY };
        let check = |wanted: &[&str], before_days: Option<u64>, day: i64, expected: Result<Reason, i64>| {
            let before = before_days.map(|days| Duration::from_secs(days * DAY as u64));
            let expected = expected.map_err(|days| Duration::from_secs((days * DAY) as u64));
            assert_eq!(due(Some(&found), &names(wanted), before, day * DAY), expected, "{wanted:?} {before:?} {day}");
        };
        check(&["a", "b"], None, 1000, Err(60));
        check(&["a"], None, 1059, Err(1));
        check(&["a", "b"], None, 1060, Ok(Reason::EndsSoon));
        check(&["a", "b"], None, 2000, Ok(Reason::EndsSoon));
        check(&["a", "c"], None, 1000, Ok(Reason::OtherNames));
        check(&["a"], Some(10), 1079, Err(1));
        check(&["a"], Some(10), 1080, Ok(Reason::EndsSoon));
        // Longer than it lives.
        check(&["a"], Some(365), 1000, Err(30));
        check(&["a"], Some(365), 1030, Ok(Reason::EndsSoon));
        assert_eq!(due(None, &names(&["a"]), None, 0), Ok(Reason::Missing));
        let backwards = Ordered { not_before_seconds: i64::MAX, not_after_seconds: i64::MIN, ..found };
        assert_eq!(due(Some(&backwards), &names(&["a"]), None, 0), Ok(Reason::EndsSoon));
    }

    #[test]
    fn there_is_a_rest_after_each_certificate() {
        for (left_seconds, expected) in [(90 * DAY, 60), (600, 60), (30, 10), (1, 1), (0, 1), (i64::MIN, 1)] {
            assert_eq!(rest(left_seconds), Duration::from_secs(expected), "{left_seconds}");
        }
    }

    #[test]
    fn waits_grow_from_a_minute_to_a_day() {
        let check = |failures, server: Option<u64>, random, expected: f64| {
            let wait = wait(failures, server.map(Duration::from_secs), random).as_secs_f64();
            assert!((wait - expected).abs() < 0.001, "{failures} {server:?} {random}: {wait}");
        };
        check(1, None, 0.0, 60.0);
        check(1, None, 1.0, 75.0);
        check(2, None, 0.0, 120.0);
        check(5, None, 0.0, 960.0);
        check(12, None, 0.0, 86_400.0);
        check(u32::MAX, None, 0.0, 86_400.0);
        check(0, None, f64::NAN.max(0.0), 60.0);
        check(1, Some(3600), 0.5, 3600.0);
        check(1, Some(1), 0.0, 60.0);
        check(12, None, 1.0, 86_400.0);
        check(12, Some(604_800), 1.0, 604_800.0);
    }
}
