//! What has failed, and how long nothing is tried after it: in memory, for the status, and as a note beside the certificate,
//! so that a gateway that is started again and again asks the server no more often than one that goes on running.

use super::schedule::{self, RETRY_MAX};
use super::{Certificate, Wanted, https, storage};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use stillgate_config::Acme;
use stillgate_proxy::access_log::rfc3339;
use tokio::time::Instant;
use tracing::warn;

/// Of the last error in a note.
const ERROR_CHARS_MAX: usize = 2048;
/// What a note says while an order is under way: who reads it comes after a crash.
const CUT_SHORT: &str = "the gateway ended while it was ordering";

/// How the ordering of one certificate goes, for the status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct State {
    /// In a row; 0 after a success.
    pub failures: u32,
    /// Why the last try failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// When it is tried again, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try: Option<String>,
}

/// What is known of one certificate beside its file.
#[derive(Default)]
pub(super) struct Tries {
    pub(super) state: State,
    /// Nothing is tried before.
    pub(super) not_before: Option<Instant>,
    /// Nor, whatever changes here, before the server allows it.
    pub(super) server_not_before: Option<Instant>,
    /// It was issued, but could not be kept.
    pub(super) unsaved: Option<String>,
    /// What was noted before this process began to try has been looked at.
    pub(super) has_read_note: bool,
}

impl Tries {
    /// After `state.failures`, for so long, of which the server has asked for some.
    pub(super) fn failed(failures: u32, error: String, wait: Duration, server: Duration, now_seconds: u64) -> Tries {
        let next_try = rfc3339(now_seconds.saturating_add(wait.as_secs()).saturating_mul(1000));
        let now = Instant::now();
        Tries {
            state: State { failures, last_error: Some(error), next_try: Some(next_try) },
            not_before: Some(now + wait),
            server_not_before: (!server.is_zero()).then(|| now + server),
            unsaved: None,
            has_read_note: true,
        }
    }
}

/// What failed may be mended by what has changed. Other entries' changes mend nothing, and would have the server asked again
/// each time.
pub(super) fn forget_mended(tries: &mut HashMap<String, Tries>, before: Option<&Wanted>, after: Option<&Wanted>) {
    let (Some(before), Some(after)) = (before, after) else { return };
    if before.acme.directory != after.acme.directory {
        // Another server: neither the patience that one asked for nor what it has issued is of use with this one.
        return tries.clear();
    }
    let is_set_otherwise = before.acme != after.acme || !Arc::ptr_eq(&before.tls, &after.tls);
    for (id, tries) in tries {
        let names = |of: &Wanted| {
            of.certificates
                .iter()
                .find(|certificate| certificate.id == *id)
                .map(|certificate| certificate.names.clone())
        };
        if is_set_otherwise || names(before) != names(after) {
            tries.not_before = tries.server_not_before;
        }
    }
}

/// What is kept of failed tries over the end of the process. Nothing in it is believed that would be of harm: whatever it says,
/// what comes of it is a wait that could have come of failures, and an error's text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    /// In a row.
    pub(super) failures: u32,
    /// The last one, in seconds since 1970.
    at_seconds: u64,
    /// How long nothing is tried from then on.
    wait_seconds: u64,
    /// Of that, what the server has asked for.
    server_wait_seconds: u64,
    /// A digest of what was ordered, and how: another one may have mended it.
    of: String,
    pub(super) error: String,
}

impl Note {
    /// What a note says that is written before the try: all that is known of it if the process ends within it.
    pub(super) fn begun(failures: u32, of: &str, now_seconds: u64) -> Note {
        let wait = schedule::wait(failures, None, 0.0);
        Note::failed(failures, of, CUT_SHORT, (wait, Duration::ZERO), now_seconds)
    }

    /// `waits`: until the next try, and what of it the server has asked for.
    pub(super) fn failed(failures: u32, of: &str, error: &str, waits: (Duration, Duration), now_seconds: u64) -> Note {
        let (wait_seconds, server_wait_seconds) = (waits.0.as_secs(), waits.1.as_secs());
        let (of, error) = (of.to_owned(), error.to_owned());
        Note { failures, at_seconds: now_seconds, wait_seconds, server_wait_seconds, of, error }
    }

    /// `None`: it is no note.
    pub(super) fn read(text: &[u8]) -> Option<Note> {
        let note: Note = serde_json::from_slice(text).ok()?;
        let error = note.error.chars().take(ERROR_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
        Some(Note { error, ..note })
    }

    pub(super) fn text(&self) -> Vec<u8> {
        serde_json::json!(self).to_string().into_bytes()
    }

    /// How long nothing is tried yet that is `of` this, and what of it the server has asked for.
    pub(super) fn left(&self, of: &str, now_seconds: u64) -> (Duration, Duration) {
        let left = |wait_seconds: u64, max: Duration| {
            let wait_seconds = wait_seconds.min(max.as_secs());
            // The clock was set back; by more than the wait, and nobody knows how long ago it was.
            let is_void = self.at_seconds > now_seconds.saturating_add(wait_seconds);
            let passed_seconds = now_seconds.saturating_sub(self.at_seconds);
            Duration::from_secs(if is_void { 0 } else { wait_seconds.saturating_sub(passed_seconds) })
        };
        let own = if self.of == of { left(self.wait_seconds, RETRY_MAX) } else { Duration::ZERO };
        let server = left(self.server_wait_seconds, https::RETRY_AFTER_MAX);
        (own.max(server), server)
    }
}

/// A digest of what is ordered and how.
pub(super) fn digest(acme: &Acme, certificate: &Certificate) -> String {
    let key = acme.eab.as_ref().map(|eab| (&eab.kid, &eab.hmac_key.0));
    let text = format!("{:?}", (&certificate.names, acme.challenge, &acme.email, key, &acme.ca));
    stillgate_config::digest(text.as_bytes())
}

/// The note of a try that is under way. Where that is given up, as it is when the gateway is stopped or hands over, it has not
/// failed, and another one may begin at once: only a crash counts as a failure.
pub(super) struct Begun {
    acme: Arc<Acme>,
    id: String,
    /// `None`: there was none, or there is nothing to be put back any more.
    before: Option<Option<Note>>,
}

impl Begun {
    /// Takes time. An error says that the note cannot be written, and so nothing may be ordered.
    pub(super) fn new(acme: Arc<Acme>, id: String, note: &Note, before: Option<Note>) -> Result<Begun, String> {
        storage::store_note(&acme, &id, &note.text())?;
        Ok(Begun { acme, id, before: Some(before) })
    }

    /// The try has ended, and what came of it is noted by whoever calls this.
    pub(super) fn end(mut self) {
        self.before = None;
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let Some(before) = self.before.take() else { return };
        let noted = match before {
            // Its wait was over, or somebody did not want to wait.
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
            let (wait, server) = read.left(of, now_seconds);
            assert_eq!((wait.as_secs(), server.as_secs()), expected, "{note:?} {of} {now_seconds}");
        };
        check(&note(240, 0), "this", NOW_SECONDS, (240, 0));
        check(&note(240, 0), "this", NOW_SECONDS + 200, (40, 0));
        check(&note(240, 0), "this", NOW_SECONDS + 241, (0, 0));
        // Something was changed that may have mended it. The server's wish holds all the same.
        check(&note(240, 0), "that", NOW_SECONDS, (0, 0));
        check(&note(3600, 3600), "that", NOW_SECONDS + 600, (3000, 3000));
        check(&note(3600, 1800), "this", NOW_SECONDS + 600, (3000, 1200));
        // The clock was set back a little, or by years; it never gets longer than it was.
        check(&note(240, 0), "this", NOW_SECONDS - 100, (240, 0));
        check(&note(240, 0), "this", NOW_SECONDS - 241, (0, 0));
        check(&note(240, 0), "this", 0, (0, 0));
        check(&note(240, 0), "this", u64::MAX, (0, 0));
        assert_eq!(Note::begun(1, "this", NOW_SECONDS).left("this", NOW_SECONDS).0, schedule::RETRY_MIN);
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
        assert_eq!(read.left("that", NOW_SECONDS), (https::RETRY_AFTER_MAX, https::RETRY_AFTER_MAX));
        assert_eq!(read.left("this", NOW_SECONDS + https::RETRY_AFTER_MAX.as_secs()).0, Duration::ZERO);
        assert_eq!(note(u64::MAX, 0).left("this", NOW_SECONDS).0, RETRY_MAX);
        assert!(read.error.len() == ERROR_CHARS_MAX && !read.error.contains(char::is_control));
        let future = Note { at_seconds: u64::MAX, ..huge };
        assert_eq!(future.left("this", NOW_SECONDS).0, Duration::ZERO);
        // What is shown of it.
        let tries = Tries::failed(u32::MAX, String::new(), RETRY_MAX, Duration::ZERO, u64::MAX);
        assert!(tries.state.next_try.is_some());
    }

    #[test]
    fn a_try_that_is_given_up_has_not_failed() {
        let (_folder, acme) = storage::tests::storage();
        storage::prepare(&acme).unwrap();
        let acme = Arc::new(acme);
        let noted = || storage::note(&acme, "shop").as_deref().and_then(Note::read);
        let begin = |before: Option<Note>| Begun::new(acme.clone(), "shop".to_owned(), &note(60, 0), before).unwrap();
        let begun = begin(None);
        assert_eq!(noted(), Some(note(60, 0)));
        drop(begun);
        assert_eq!(noted(), None);
        drop(begin(Some(note(30, 20))));
        assert_eq!(noted(), Some(note(0, 0)));
        // What a crash leaves, and what comes of the try.
        begin(Some(note(30, 20))).end();
        assert_eq!(noted(), Some(note(60, 0)));
        storage::remove_note(&acme, "shop").unwrap();
        storage::remove_note(&acme, "shop").unwrap();
        assert_eq!(noted(), None);
    }
}
