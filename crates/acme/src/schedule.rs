//! Schedules orders: before a certificate expires, and with growing pauses after failures. Time and randomness are arguments.
//!
//! The server's suggestions when to renew certificates (ARI, RFC 9773) are requested now and then. If the server has none or
//! cannot be reached, our own rule applies.

use super::order::{OrderFailure, Orderer};
use instant_acme::{CertificateIdentifier, Error};
use std::collections::HashMap;
use std::time::Duration;
use stillgate_proxy::access_log::rfc3339;
use stillgate_tls::OrderedCertificateInfo;
use stillgate_tls::rustls::pki_types::Der;
use tokio::time::Instant;
use tracing::{debug, info};

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
    found: Option<&OrderedCertificateInfo>,
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
fn draw(start_seconds: i64, end_seconds: i64, random: f64) -> Option<i64> {
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

/// The shortest interval between two requests, whatever the server says (RFC 9773 section 4.3.2).
const ASK_MIN: Duration = Duration::from_secs(60);
const ASK_MAX: Duration = Duration::from_secs(24 * 3600);
/// The interval after a failed request or an unusable response (section 4.3.3).
const ASK_AFTER_FAILURE: Duration = Duration::from_secs(6 * 3600);
/// The longest URL of an explanation.
const URL_CHARS_MAX: usize = 500;

/// The key by which the server identifies a certificate, as in [`OrderedCertificateInfo::ari_identifier`].
pub(super) type SuggestionKey = (Vec<u8>, Vec<u8>);

/// The server's suggestion for one certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Window {
    start_seconds: i64,
    end_seconds: i64,
    /// The URL of an explanation.
    explanation: Option<String>,
}

/// The suggestions for the certificates in use, by the ids of their entries.
#[derive(Default)]
pub(super) struct Suggestions {
    infos: HashMap<String, RenewalInfo>,
    /// No request is sent to the server before this.
    not_before: Option<Instant>,
}

/// The server's suggestion for one certificate, named as in RFC 9773.
struct RenewalInfo {
    key: SuggestionKey,
    /// The window, and the moment that was drawn within it.
    window: Option<(Window, i64)>,
    ask_again: Instant,
}

impl Suggestions {
    /// Forgets certificates that are no longer wanted.
    pub(super) fn retain(&mut self, is_wanted: impl Fn(&String) -> bool) {
        self.infos.retain(|id, _| is_wanted(id));
    }

    /// The time until the next request about this certificate; `None`: the server cannot be asked about it.
    pub(super) fn ask_in(&self, id: &str, found: &OrderedCertificateInfo, now: Instant) -> Option<Duration> {
        let until = |at: Instant| at.saturating_duration_since(now);
        let info = self.infos.get(id).filter(|info| Some(&info.key) == found.ari_identifier.as_ref());
        let of_server = self.not_before.map_or(Duration::ZERO, until);
        found.ari_identifier.as_ref().map(|_| info.map_or(Duration::ZERO, |info| until(info.ask_again)).max(of_server))
    }

    /// When the server suggests renewing this certificate, in seconds since 1970.
    pub(super) fn at_seconds(&self, id: &str, found: &OrderedCertificateInfo) -> Option<i64> {
        let info = self.infos.get(id).filter(|info| Some(&info.key) == found.ari_identifier.as_ref())?;
        info.window.as_ref().map(|(_, at_seconds)| *at_seconds)
    }

    /// Records a response that came `now`, or its failure; `random`: from 0 to 1.
    pub(super) fn take(
        &mut self,
        id: &str,
        key: &SuggestionKey,
        answer: Result<(Window, Duration), NoSuggestion>,
        now: Instant,
        random: f64,
    ) {
        let before = self.infos.remove(id).filter(|info| info.key == *key).and_then(|info| info.window);
        let (window, again) = match answer {
            Ok((window, again)) => (Some(window), again.clamp(ASK_MIN, ASK_MAX)),
            Err(unanswered) => {
                debug!(ssl = id, "ACME: no renewal information: {}", unanswered.why);
                if unanswered.is_of_server {
                    self.not_before = Some(now + ASK_AFTER_FAILURE);
                }
                // The last suggestion is better than none.
                (before.as_ref().map(|(window, _)| window.clone()), ASK_AFTER_FAILURE)
            }
        };
        let window = window.and_then(|window| match before {
            // Drawing again each time would favour the beginning of the window.
            Some(before) if before.0 == window => Some(before),
            _ => {
                let at_seconds = draw(window.start_seconds, window.end_seconds, random)?;
                log_window(id, &window, at_seconds);
                Some((window, at_seconds))
            }
        });
        self.infos.insert(id.to_owned(), RenewalInfo { key: key.clone(), window, ask_again: now + again });
    }
}

fn log_window(id: &str, window: &Window, at_seconds: i64) {
    let at = rfc3339(u64::try_from(at_seconds).unwrap_or(0).saturating_mul(1000));
    let why = window.explanation.as_deref().unwrap_or("it does not say why");
    info!(ssl = id, at, why, "ACME: the server suggests when to renew");
}

/// Why there is no suggestion.
#[derive(Debug)]
pub(super) struct NoSuggestion {
    why: String,
    /// Whether a request about another certificate would fail too.
    is_of_server: bool,
}

impl From<OrderFailure> for NoSuggestion {
    fn from(failure: OrderFailure) -> NoSuggestion {
        NoSuggestion { why: failure.to_string(), is_of_server: true }
    }
}

/// Requests a suggestion. The duration is the time until the next request that the server asks for.
pub(super) async fn ask_server(orderer: &Orderer, key: &SuggestionKey) -> Result<(Window, Duration), NoSuggestion> {
    let Some(account) = orderer.known_account(ASK_AFTER_FAILURE).await? else {
        return Err(NoSuggestion { why: "there is no account yet".to_owned(), is_of_server: true });
    };
    match account.renewal_info(&certificate_identifier(key)).await {
        Ok((info, again)) => {
            let of = info.suggested_window;
            let url = |url: String| url.chars().take(URL_CHARS_MAX).filter(|c| !c.is_control()).collect();
            let window = Window {
                start_seconds: of.start.unix_timestamp(),
                end_seconds: of.end.unix_timestamp(),
                explanation: info.explanation_url.map(url),
            };
            match window.start_seconds < window.end_seconds {
                true => Ok((window, again)),
                false => Err(NoSuggestion { why: "the window ends before it begins".to_owned(), is_of_server: false }),
            }
        }
        Err(error) => {
            // The server was reached a moment ago, so another failure may concern this certificate only.
            let is_of_server = matches!(error, Error::Unsupported(_));
            Err(NoSuggestion { why: OrderFailure::new("asking", error, "").to_string(), is_of_server })
        }
    }
}

/// The identifier, as used in the server's URLs and in an order that replaces the certificate.
pub(super) fn certificate_identifier((authority, serial): &SuggestionKey) -> CertificateIdentifier<'static> {
    CertificateIdentifier::new(Der::from_slice(authority), Der::from_slice(serial)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 3600;

    #[test]
    fn a_certificate_is_renewed_before_it_ends_and_not_as_soon_as_it_comes() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let found = OrderedCertificateInfo {
            names: names(&["a", "b"]),
            not_before_seconds: 1000 * DAY,
            not_after_seconds: 1090 * DAY,
            ari_identifier: None,
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
        let backwards = OrderedCertificateInfo { not_before_seconds: i64::MAX, not_after_seconds: i64::MIN, ..found };
        assert_eq!(due(Some(&backwards), &names(&["a"]), None, None, 0), Ok(OrderReason::EndsSoon));
    }

    #[test]
    fn what_the_server_suggests_is_done_within_reason() {
        let ordered = |begin: i64, end: i64| OrderedCertificateInfo {
            names: vec!["a".to_owned()],
            not_before_seconds: begin,
            not_after_seconds: end,
            ari_identifier: None,
        };
        let check = |found: &OrderedCertificateInfo, before_days: Option<u64>, suggested: i64, now: i64, expected| {
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

    fn found(serial: u8) -> OrderedCertificateInfo {
        let key = Some((vec![1, 2], vec![serial]));
        OrderedCertificateInfo { names: Vec::new(), not_before_seconds: 0, not_after_seconds: 100, ari_identifier: key }
    }

    fn window(start_seconds: i64, end_seconds: i64) -> Window {
        Window { start_seconds, end_seconds, explanation: None }
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn the_server_is_asked_when_it_wants_to_be() {
        let (mut suggestions, found, now) = (Suggestions::default(), found(1), Instant::now());
        let key = found.ari_identifier.clone().unwrap();
        let unanswered = |is_of_server| NoSuggestion { why: String::new(), is_of_server };
        assert_eq!(suggestions.ask_in("a", &found, now), Some(Duration::ZERO));
        assert_eq!(
            suggestions.ask_in("a", &OrderedCertificateInfo { ari_identifier: None, ..found.clone() }, now),
            None
        );
        for (again, expected) in [(HOUR, HOUR), (Duration::ZERO, ASK_MIN), (1000 * HOUR, ASK_MAX)] {
            suggestions.take("a", &key, Ok((window(10, 20), again)), now, 0.5);
            assert_eq!(suggestions.ask_in("a", &found, now), Some(expected));
            assert_eq!(suggestions.at_seconds("a", &found), Some(15));
        }
        // The server does not know this one, and can be asked about others.
        suggestions.take("a", &key, Err(unanswered(false)), now, 0.5);
        assert_eq!(suggestions.ask_in("a", &found, now), Some(ASK_AFTER_FAILURE));
        assert_eq!(suggestions.ask_in("b", &found, now), Some(Duration::ZERO));
        suggestions.take("a", &key, Err(unanswered(true)), now, 0.5);
        assert_eq!(suggestions.ask_in("b", &found, now), Some(ASK_AFTER_FAILURE));
        // The last suggestion still applies.
        assert_eq!(suggestions.at_seconds("a", &found), Some(15));
        let now = now + ASK_AFTER_FAILURE;
        assert_eq!(suggestions.ask_in("a", &found, now), Some(Duration::ZERO));
        suggestions.retain(|id| id != "a");
        assert_eq!(suggestions.at_seconds("a", &found), None);
    }

    #[test]
    fn a_moment_is_drawn_once_for_each_window() {
        let (mut suggestions, now) = (Suggestions::default(), Instant::now());
        let (first, second) = (found(1), found(2));
        let (one, two) = (first.ari_identifier.clone().unwrap(), second.ari_identifier.clone().unwrap());
        suggestions.take("a", &one, Ok((window(10, 20), HOUR)), now, 0.2);
        suggestions.take("a", &one, Ok((window(10, 20), HOUR)), now, 0.9);
        assert_eq!(suggestions.at_seconds("a", &first), Some(12));
        suggestions.take("a", &one, Ok((window(0, 10), HOUR)), now, 0.9);
        assert_eq!(suggestions.at_seconds("a", &first), Some(9));
        // It applies to this certificate, not to the next one.
        assert_eq!(suggestions.at_seconds("a", &second), None);
        assert_eq!(suggestions.ask_in("a", &second, now), Some(Duration::ZERO));
        suggestions.take("a", &two, Err(NoSuggestion { why: String::new(), is_of_server: false }), now, 0.5);
        assert_eq!(suggestions.at_seconds("a", &second), None);
        // A window that ends before it begins is invalid.
        suggestions.take("a", &two, Ok((window(20, 10), HOUR)), now, 0.5);
        assert_eq!(suggestions.at_seconds("a", &second), None);
    }

    #[test]
    fn a_certificate_has_the_name_of_the_standard() {
        // The example of RFC 9773 section 4.1.
        let authority = [
            0x69, 0x88, 0x5B, 0x6B, 0x87, 0x46, 0x40, 0x41, 0xE1, 0xB3, 0x7B, 0x84, 0x7B, 0xA0, 0xAE, 0x2C, 0xDE, 0x01,
            0xC8, 0xD4,
        ];
        let key = (authority.to_vec(), vec![0x00, 0x87, 0x65, 0x43, 0x21]);
        assert_eq!(certificate_identifier(&key).to_string(), "aYhba4dGQEHhs3uEe6CuLN4ByNQ.AIdlQyE");
    }
}
