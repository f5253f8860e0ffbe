//! Failed attempts and the pauses after them: in memory, for the status, and as a note beside the certificate, so that a gateway
//! that restarts again and again sends no more requests than one that keeps running.

use super::schedule::{self, RETRY_MAX};
use super::{Certificate, CertificateOrders, https, storage};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use stillgate_config::Acme;
use stillgate_proxy::access_log::rfc3339;
use tokio::time::Instant;
use tracing::warn;

/// The longest error text in a note.
const ERROR_CHARS_MAX: usize = 2048;
/// The error in the note of an attempt in progress: it is only read after a crash.
const CUT_SHORT: &str = "the gateway ended while it was ordering";

/// The state of ordering one certificate, for the status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct OrderState {
    /// Consecutive failures; 0 after a success.
    pub failures: u32,
    /// The error of the last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// When the next attempt is made, as in RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try: Option<String>,
}

/// The state of one certificate besides its file.
#[derive(Default)]
pub(super) struct OrderProgress {
    pub(super) state: OrderState,
    /// No attempt is made before this.
    pub(super) not_before: Option<Instant>,
    /// No attempt is made before the server allows it, whatever changes here.
    pub(super) server_not_before: Option<Instant>,
    /// A certificate that was issued but could not be stored.
    pub(super) unsaved: Option<String>,
    /// Whether the note of an earlier process has been read.
    pub(super) has_read_note: bool,
}

impl OrderProgress {
    /// The state after a failure: the number of consecutive failures, the pause, and the part of it that the server requested.
    pub(super) fn failed(
        failures: u32,
        error: String,
        wait: Duration,
        server: Duration,
        now_seconds: u64,
    ) -> OrderProgress {
        let next_try = rfc3339(now_seconds.saturating_add(wait.as_secs()).saturating_mul(1000));
        let now = Instant::now();
        OrderProgress {
            state: OrderState { failures, last_error: Some(error), next_try: Some(next_try) },
            not_before: Some(now + wait),
            server_not_before: (!server.is_zero()).then(|| now + server),
            unsaved: None,
            has_read_note: true,
        }
    }
}

/// Forgets failures that a changed configuration may have fixed. Changes of other entries fix nothing, and would only cause further
/// requests.
pub(super) fn forget_mended(
    progress: &mut HashMap<String, OrderProgress>,
    before: Option<&CertificateOrders>,
    after: Option<&CertificateOrders>,
) {
    let (Some(before), Some(after)) = (before, after) else { return };
    if before.acme.directory != after.acme.directory {
        // With another server, neither the requested pause nor an issued certificate is of any use.
        return progress.clear();
    }
    let is_set_otherwise = before.acme != after.acme || !Arc::ptr_eq(&before.tls, &after.tls);
    for (id, progress) in progress {
        let names = |of: &CertificateOrders| {
            of.certificates
                .iter()
                .find(|certificate| certificate.id == *id)
                .map(|certificate| certificate.names.clone())
        };
        if is_set_otherwise || names(before) != names(after) {
            progress.not_before = progress.server_not_before;
        }
    }
}

/// The record of failed attempts that outlives the process. It is not trusted: whatever it contains, the result is a pause that
/// failures could have caused, and an error text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    /// Consecutive failures.
    pub(super) failures: u32,
    /// When the last attempt failed, in seconds since 1970.
    at_seconds: u64,
    /// The pause after that.
    wait_seconds: u64,
    /// The part of the pause that the server requested.
    server_wait_seconds: u64,
    /// A digest of the names and settings of the order: changing them may have fixed the failure.
    of: String,
    pub(super) error: String,
}

impl Note {
    /// The note written before an attempt; it remains if the process ends during the attempt.
    pub(super) fn begun(failures: u32, of: &str, now_seconds: u64) -> Note {
        let wait = schedule::wait(failures, None, 0.0);
        Note::failed(failures, of, CUT_SHORT, (wait, Duration::ZERO), now_seconds)
    }

    /// `waits`: the pause until the next attempt, and the part of it that the server requested.
    pub(super) fn failed(failures: u32, of: &str, error: &str, waits: (Duration, Duration), now_seconds: u64) -> Note {
        let (wait_seconds, server_wait_seconds) = (waits.0.as_secs(), waits.1.as_secs());
        let (of, error) = (of.to_owned(), error.to_owned());
        Note { failures, at_seconds: now_seconds, wait_seconds, server_wait_seconds, of, error }
    }

    /// Parses a note; `None`: the text is not a note.
    pub(super) fn read(text: &[u8]) -> Option<Note> {
        let note: Note = serde_json::from_slice(text).ok()?;
        let error = note.error.chars().take(ERROR_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
        Some(Note { error, ..note })
    }

    pub(super) fn text(&self) -> Vec<u8> {
        serde_json::json!(self).to_string().into_bytes()
    }

    /// The remaining pause for an order with the digest `of`, and the part of it that the server requested.
    pub(super) fn remaining_pause(&self, of: &str, now_seconds: u64) -> (Duration, Duration) {
        let left = |wait_seconds: u64, max: Duration| {
            let wait_seconds = wait_seconds.min(max.as_secs());
            // The clock was set back by more than the pause, so its start is unknown.
            let is_void = self.at_seconds > now_seconds.saturating_add(wait_seconds);
            let passed_seconds = now_seconds.saturating_sub(self.at_seconds);
            Duration::from_secs(if is_void { 0 } else { wait_seconds.saturating_sub(passed_seconds) })
        };
        let own = if self.of == of { left(self.wait_seconds, RETRY_MAX) } else { Duration::ZERO };
        let server = left(self.server_wait_seconds, https::RETRY_AFTER_MAX);
        (own.max(server), server)
    }
}

/// A digest of the order's names and settings.
pub(super) fn digest(acme: &Acme, certificate: &Certificate) -> String {
    let key = acme.eab.as_ref().map(|eab| (&eab.kid, &eab.hmac_key.0));
    let text = format!("{:?}", (&certificate.names, acme.challenge, &acme.email, key, &acme.ca));
    stillgate_config::digest(text.as_bytes())
}

/// The note of an attempt in progress. If the attempt is cancelled, as when the gateway is stopped or hands over, it has not failed
/// and another one may begin at once: only a crash counts as a failure.
pub(super) struct AttemptNote {
    acme: Arc<Acme>,
    id: String,
    /// The earlier note, if any; `None` once nothing has to be restored.
    before: Option<Option<Note>>,
}

impl AttemptNote {
    /// Writes the note, which blocks. An error means that it cannot be written, so nothing may be ordered.
    pub(super) fn new(acme: Arc<Acme>, id: String, note: &Note, before: Option<Note>) -> Result<AttemptNote, String> {
        storage::store_note(&acme, &id, &note.text())?;
        Ok(AttemptNote { acme, id, before: Some(before) })
    }

    /// Ends the attempt; the caller records the result.
    pub(super) fn end(mut self) {
        self.before = None;
    }
}

impl Drop for AttemptNote {
    fn drop(&mut self) {
        let Some(before) = self.before.take() else { return };
        let noted = match before {
            // The pause was over, or the attempt was forced.
            Some(note) => {
                let note = Note { wait_seconds: 0, server_wait_seconds: 0, ..note };
                storage::store_note(&self.acme, &self.id, &note.text())
            }
            None => storage::remove_note(&self.acme, &self.id),
        };
        if let Err(error) = noted {
            warn!("ACME: the next start waits before it orders, as after a failure: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_SECONDS: u64 = 1_780_315_200;

    fn note(wait_seconds: u64, server_wait_seconds: u64) -> Note {
        let waits = (Duration::from_secs(wait_seconds), Duration::from_secs(server_wait_seconds));
        Note::failed(3, "this", "no", waits, NOW_SECONDS)
    }

    #[test]
    fn a_note_holds_for_what_is_left_of_its_wait() {
        let check = |note: &Note, of: &str, now_seconds: u64, expected: (u64, u64)| {
            let read = Note::read(&note.text()).unwrap();
            assert_eq!(read, *note);
            let (wait, server) = read.remaining_pause(of, now_seconds);
            assert_eq!((wait.as_secs(), server.as_secs()), expected, "{note:?} {of} {now_seconds}");
        };
        check(&note(240, 0), "this", NOW_SECONDS, (240, 0));
        check(&note(240, 0), "this", NOW_SECONDS + 200, (40, 0));
        check(&note(240, 0), "this", NOW_SECONDS + 241, (0, 0));
        // A change may have fixed it. The pause that the server requested still applies.
        check(&note(240, 0), "that", NOW_SECONDS, (0, 0));
        check(&note(3600, 3600), "that", NOW_SECONDS + 600, (3000, 3000));
        check(&note(3600, 1800), "this", NOW_SECONDS + 600, (3000, 1200));
        // The clock was set back a little, or by years; the pause never grows.
        check(&note(240, 0), "this", NOW_SECONDS - 100, (240, 0));
        check(&note(240, 0), "this", NOW_SECONDS - 241, (0, 0));
        check(&note(240, 0), "this", 0, (0, 0));
        check(&note(240, 0), "this", u64::MAX, (0, 0));
        assert_eq!(Note::begun(1, "this", NOW_SECONDS).remaining_pause("this", NOW_SECONDS).0, schedule::RETRY_MIN);
    }

    #[test]
    fn a_note_of_somebody_else_does_no_harm() {
        for text in ["", "{}", "[]", "null", "{\"failures\": -1}", "\u{0}", "{\"failures\":1e400}"] {
            assert_eq!(Note::read(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Note::read(&b"[".repeat(100_000)), None);
        let huge = Note { failures: u32::MAX, at_seconds: NOW_SECONDS, ..note(u64::MAX, u64::MAX) };
        let huge = Note { error: "a\n\u{1b}[2J".repeat(100_000), ..huge };
        let read = Note::read(&huge.text()).unwrap();
        assert_eq!(read.remaining_pause("that", NOW_SECONDS), (https::RETRY_AFTER_MAX, https::RETRY_AFTER_MAX));
        assert_eq!(read.remaining_pause("this", NOW_SECONDS + https::RETRY_AFTER_MAX.as_secs()).0, Duration::ZERO);
        assert_eq!(note(u64::MAX, 0).remaining_pause("this", NOW_SECONDS).0, RETRY_MAX);
        assert!(read.error.len() == ERROR_CHARS_MAX && !read.error.contains(char::is_control));
        let future = Note { at_seconds: u64::MAX, ..huge };
        assert_eq!(future.remaining_pause("this", NOW_SECONDS).0, Duration::ZERO);
        // The part that the status shows.
        let progress = OrderProgress::failed(u32::MAX, String::new(), RETRY_MAX, Duration::ZERO, u64::MAX);
        assert!(progress.state.next_try.is_some());
    }

    #[test]
    fn a_try_that_is_given_up_has_not_failed() {
        let (_folder, acme) = storage::tests::storage();
        storage::prepare(&acme).unwrap();
        let acme = Arc::new(acme);
        let noted = || storage::note(&acme, "shop").as_deref().and_then(Note::read);
        let begin =
            |before: Option<Note>| AttemptNote::new(acme.clone(), "shop".to_owned(), &note(60, 0), before).unwrap();
        let begun = begin(None);
        assert_eq!(noted(), Some(note(60, 0)));
        drop(begun);
        assert_eq!(noted(), None);
        drop(begin(Some(note(30, 20))));
        assert_eq!(noted(), Some(note(0, 0)));
        // The note that a crash leaves, and the result of the attempt.
        begin(Some(note(30, 20))).end();
        assert_eq!(noted(), Some(note(60, 0)));
        storage::remove_note(&acme, "shop").unwrap();
        storage::remove_note(&acme, "shop").unwrap();
        assert_eq!(noted(), None);
    }
}
