//! Schedules orders: before a certificate expires, and with growing pauses after failures. Time and randomness are arguments.

use std::time::Duration;
use stillgate_tls::OrderedCertificate;

/// The pause after the first failure; it doubles with each further one. Issuers count failures per hour.
pub(crate) const RETRY_MIN: Duration = Duration::from_secs(60);
/// The longest pause after failures.
pub(crate) const RETRY_MAX: Duration = Duration::from_secs(24 * 3600);
/// The largest random increase of a pause, as a share: certificates that failed together are not retried together.
const JITTER: f64 = 0.25;

/// The youngest certificate that is renewed because its server suggests it, or a third of its lifetime if that is less: a server
/// that always answers "now" must not cause one order after another.
const SUGGESTED_AGE_MIN_SECONDS: i64 = 24 * 3600;
/// One part in so many of its lifetime is always left, whatever the server suggests: an order may fail.
const SUGGESTED_LEFT: i64 = 10;

/// The reason for an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OrderReason {
    /// There is no usable certificate.
    Missing,
    /// The certificate does not cover all configured names.
    OtherNames,
    /// The certificate expires soon.
    EndsSoon,
    /// The server suggests a renewal.
    Suggested,
}

/// Returns the reason to order now, or else the time until there is one. `suggested_seconds`: the time that the server suggests, if
/// any; `renew_before` takes precedence if it is earlier.
pub(crate) fn due(
    found: Option<&OrderedCertificate>,
    names: &[String],
    renew_before: Option<Duration>,
    suggested_seconds: Option<i64>,
    now_seconds: i64,
) -> Result<OrderReason, Duration> {
    let Some(found) = found else { return Ok(OrderReason::Missing) };
    if !names.iter().all(|name| found.names.contains(name)) {
        return Ok(OrderReason::OtherNames);
    }
    let (begin, end) = (found.not_before_seconds, found.not_after_seconds);
    let lifetime = end.saturating_sub(begin).max(0);
    let wanted = renew_before.map_or(lifetime / 3, |before| i64::try_from(before.as_secs()).unwrap_or(i64::MAX));
    // If `renew_before` exceeded the lifetime, a new certificate would be due at once, forever.
    let own = end.saturating_sub(wanted.min(lifetime / 3 * 2));
    let suggested = suggested_seconds.map(|at| {
        let earliest = begin.saturating_add(SUGGESTED_AGE_MIN_SECONDS.min(lifetime / 3));
        at.max(earliest).min(end.saturating_sub(lifetime / SUGGESTED_LEFT))
    });
    let (at, reason) = match suggested {
        Some(suggested) if renew_before.is_none() || suggested <= own => (suggested, OrderReason::Suggested),
        _ => (own, OrderReason::EndsSoon),
    };
    match u64::try_from(at.saturating_sub(now_seconds)) {
        Ok(left @ 1..) => Err(Duration::from_secs(left)),
        _ => Ok(reason),
    }
}

/// Draws a moment between these two; `None` if there is none. `random`: from 0 to 1.
pub(crate) fn draw(start_seconds: i64, end_seconds: i64, random: f64) -> Option<i64> {
    let length = end_seconds.checked_sub(start_seconds).filter(|length| *length > 0)?;
    Some(start_seconds.saturating_add((length as f64 * random.clamp(0.0, 1.0)) as i64))
}

/// The pause after a certificate was issued that expires in this many seconds: one that is due at once, since its issuer dates it
/// back, must not cause one order after another.
pub(crate) fn rest(left_seconds: i64) -> Duration {
    let third = Duration::from_secs(u64::try_from(left_seconds / 3).unwrap_or(0));
    third.clamp(Duration::from_secs(1), RETRY_MIN)
}

/// The pause after this many consecutive failures. `server`: the pause that the server requested; `random`: from 0 to 1.
pub(crate) fn wait(failures: u32, server: Option<Duration>, random: f64) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let own = RETRY_MIN.saturating_mul(1 << doublings).mul_f64(1.0 + JITTER * random.clamp(0.0, 1.0));
    own.min(RETRY_MAX).max(server.unwrap_or_default())
}

impl OrderReason {
    /// The reason in words, for the log.
    pub(crate) fn words(self) -> &'static str {
        match self {
            OrderReason::Missing => "there is none that can be used",
            OrderReason::OtherNames => "it lacks a name of the configuration",
            OrderReason::EndsSoon => "it ends soon",
            OrderReason::Suggested => "the server suggests it",
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
        let found = OrderedCertificate {
            names: names(&["a", "b"]),
            not_before_seconds: 1000 * DAY,
            not_after_seconds: 1090 * DAY,
            key: None,
        };
        let check = |wanted: &[&str], before_days: Option<u64>, day: i64, expected: Result<OrderReason, i64>| {
            let before = before_days.map(|days| Duration::from_secs(days * DAY as u64));
            let expected = expected.map_err(|days| Duration::from_secs((days * DAY) as u64));
            assert_eq!(
                due(Some(&found), &names(wanted), before, None, day * DAY),
                expected,
                "{wanted:?} {before:?} {day}"
            );
        };
        check(&["a", "b"], None, 1000, Err(60));
        check(&["a"], None, 1059, Err(1));
        check(&["a", "b"], None, 1060, Ok(OrderReason::EndsSoon));
        check(&["a", "b"], None, 2000, Ok(OrderReason::EndsSoon));
        check(&["a", "c"], None, 1000, Ok(OrderReason::OtherNames));
        check(&["a"], Some(10), 1079, Err(1));
        check(&["a"], Some(10), 1080, Ok(OrderReason::EndsSoon));
        // Longer than its lifetime.
        check(&["a"], Some(365), 1000, Err(30));
        check(&["a"], Some(365), 1030, Ok(OrderReason::EndsSoon));
        assert_eq!(due(None, &names(&["a"]), None, None, 0), Ok(OrderReason::Missing));
        let backwards = OrderedCertificate { not_before_seconds: i64::MAX, not_after_seconds: i64::MIN, ..found };
        assert_eq!(due(Some(&backwards), &names(&["a"]), None, None, 0), Ok(OrderReason::EndsSoon));
    }

    #[test]
    fn what_the_server_suggests_is_done_within_reason() {
        let ordered = |begin: i64, end: i64| OrderedCertificate {
            names: vec!["a".to_owned()],
            not_before_seconds: begin,
            not_after_seconds: end,
            key: None,
        };
        let check = |found: &OrderedCertificate, before_days: Option<u64>, suggested: i64, now: i64, expected| {
            let before = before_days.map(|days| Duration::from_secs(days * DAY as u64));
            let due = due(Some(found), &["a".to_owned()], before, Some(suggested), now);
            assert_eq!(due.map_err(|left| left.as_secs() as i64), expected, "{before_days:?} {suggested} {now}");
        };
        let long = ordered(1000 * DAY, 1090 * DAY);
        // Earlier or later than our own rule, which gives 1060.
        check(&long, None, 1030 * DAY, 1029 * DAY, Err(DAY));
        check(&long, None, 1030 * DAY, 1030 * DAY, Ok(OrderReason::Suggested));
        check(&long, None, 1075 * DAY, 1070 * DAY, Err(5 * DAY));
        check(&long, None, 1075 * DAY, 1076 * DAY, Ok(OrderReason::Suggested));
        // The configured time takes precedence if it is earlier.
        check(&long, Some(20), 1075 * DAY, 1069 * DAY, Err(DAY));
        check(&long, Some(20), 1075 * DAY, 1070 * DAY, Ok(OrderReason::EndsSoon));
        check(&long, Some(20), 1030 * DAY, 1030 * DAY, Ok(OrderReason::Suggested));
        // Neither at once nor when no time is left.
        check(&long, None, i64::MIN, 1000 * DAY, Err(DAY));
        check(&long, None, i64::MIN, 1001 * DAY, Ok(OrderReason::Suggested));
        check(&long, None, i64::MAX, 1080 * DAY, Err(DAY));
        check(&long, None, i64::MAX, 1081 * DAY, Ok(OrderReason::Suggested));
        let short = ordered(0, 30);
        check(&short, None, 0, 9, Err(1));
        check(&short, None, 0, 10, Ok(OrderReason::Suggested));
        check(&ordered(i64::MAX, i64::MIN), None, 5, 0, Ok(OrderReason::Suggested));
    }

    #[test]
    fn a_moment_is_drawn_from_the_whole_window() {
        assert_eq!(draw(100, 200, 0.0), Some(100));
        assert_eq!(draw(100, 200, 0.5), Some(150));
        assert_eq!(draw(100, 200, 1.0), Some(200));
        assert_eq!(draw(-200, -100, 0.25), Some(-175));
        for (start, end) in [(100, 100), (200, 100), (i64::MAX, i64::MIN), (i64::MIN, i64::MAX)] {
            assert_eq!(draw(start, end, 0.5), None, "{start} {end}");
        }
        assert_eq!(draw(0, i64::MAX, 1.0), Some(i64::MAX));
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
