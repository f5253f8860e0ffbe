//! The server's suggestions when to renew certificates (ARI, RFC 9773), requested now and then. If the server has none or cannot be
//! reached, our own rule applies.

use super::order::{OrderFailure, Orderer};
use super::schedule;
use instant_acme::{CertificateIdentifier, Error};
use std::collections::HashMap;
use std::time::Duration;
use stillgate_proxy::access_log::rfc3339;
use stillgate_tls::OrderedCertificate;
use stillgate_tls::rustls::pki_types::Der;
use tokio::time::Instant;
use tracing::{debug, info};

/// The shortest interval between two requests, whatever the server says (RFC 9773 section 4.3.2).
const ASK_MIN: Duration = Duration::from_secs(60);
const ASK_MAX: Duration = Duration::from_secs(24 * 3600);
/// The interval after a failed request or an unusable response (section 4.3.3).
const ASK_AFTER_FAILURE: Duration = Duration::from_secs(6 * 3600);
/// The longest URL of an explanation.
const URL_CHARS_MAX: usize = 500;

/// The key by which the server identifies a certificate, as in [`OrderedCertificate::key`].
pub(super) type Key = (Vec<u8>, Vec<u8>);

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
    key: Key,
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
    pub(super) fn ask_in(&self, id: &str, found: &OrderedCertificate, now: Instant) -> Option<Duration> {
        let until = |at: Instant| at.saturating_duration_since(now);
        let info = self.infos.get(id).filter(|info| Some(&info.key) == found.key.as_ref());
        let of_server = self.not_before.map_or(Duration::ZERO, until);
        found.key.as_ref().map(|_| info.map_or(Duration::ZERO, |info| until(info.ask_again)).max(of_server))
    }

    /// When the server suggests renewing this certificate, in seconds since 1970.
    pub(super) fn at_seconds(&self, id: &str, found: &OrderedCertificate) -> Option<i64> {
        let info = self.infos.get(id).filter(|info| Some(&info.key) == found.key.as_ref())?;
        info.window.as_ref().map(|(_, at_seconds)| *at_seconds)
    }

    /// Records a response that came `now`, or its failure; `random`: from 0 to 1.
    pub(super) fn take(
        &mut self,
        id: &str,
        key: &Key,
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
                let at_seconds = schedule::draw(window.start_seconds, window.end_seconds, random)?;
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
    pub(super) why: String,
    /// Whether a request about another certificate would fail too.
    pub(super) is_of_server: bool,
}

impl From<OrderFailure> for NoSuggestion {
    fn from(failure: OrderFailure) -> NoSuggestion {
        NoSuggestion { why: failure.to_string(), is_of_server: true }
    }
}

/// Requests a suggestion. The duration is the time until the next request that the server asks for.
pub(super) async fn ask(orderer: &Orderer, key: &Key) -> Result<(Window, Duration), NoSuggestion> {
    let Some(account) = orderer.known_account(ASK_AFTER_FAILURE).await? else {
        return Err(NoSuggestion { why: "there is no account yet".to_owned(), is_of_server: true });
    };
    match account.renewal_info(&identifier(key)).await {
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
pub(super) fn identifier((authority, serial): &Key) -> CertificateIdentifier<'static> {
    CertificateIdentifier::new(Der::from_slice(authority), Der::from_slice(serial)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(serial: u8) -> OrderedCertificate {
        let key = Some((vec![1, 2], vec![serial]));
        OrderedCertificate { names: Vec::new(), not_before_seconds: 0, not_after_seconds: 100, key }
    }

    fn window(start_seconds: i64, end_seconds: i64) -> Window {
        Window { start_seconds, end_seconds, explanation: None }
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn the_server_is_asked_when_it_wants_to_be() {
        let (mut suggestions, found, now) = (Suggestions::default(), found(1), Instant::now());
        let key = found.key.clone().unwrap();
        let unanswered = |is_of_server| NoSuggestion { why: String::new(), is_of_server };
        assert_eq!(suggestions.ask_in("a", &found, now), Some(Duration::ZERO));
        assert_eq!(suggestions.ask_in("a", &OrderedCertificate { key: None, ..found.clone() }, now), None);
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
        let (one, two) = (first.key.clone().unwrap(), second.key.clone().unwrap());
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
        assert_eq!(identifier(&key).to_string(), "aYhba4dGQEHhs3uEe6CuLN4ByNQ.AIdlQyE");
    }
}
