//! Sessions of devices that are away: each is kept for its device for as long as its route says, with unacknowledged messages.
//!
//! Bounded in bytes; beyond that the sessions that would end first end early.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use stillgate_devices::session::{Notice, ResumeToken, Session, SessionLimits};

/// What a session counts in addition to its messages.
const SESSION_BYTES: usize = 256;

/// The sessions of one node.
#[derive(Debug)]
pub(super) struct OfflineSessions {
    bytes_max: usize,
    bytes: usize,
    sessions: HashMap<Arc<str>, OfflineSession>,
    /// When each session is to be checked next.
    due: BTreeSet<(u64, Arc<str>)>,
}

#[derive(Debug)]
struct OfflineSession {
    session: Session,
    limits: SessionLimits,
    due_ms: u64,
    bytes: usize,
}

impl OfflineSessions {
    pub(super) fn new(bytes_max: usize) -> OfflineSessions {
        OfflineSessions { bytes_max, bytes: 0, sessions: HashMap::new(), due: BTreeSet::new() }
    }

    /// Keeps a session. A session that the device had before ends.
    pub(super) fn keep(
        &mut self,
        device: &Arc<str>,
        mut session: Session,
        limits: SessionLimits,
        now_ms: u64,
        notices: &mut Vec<Notice>,
    ) {
        self.end(device, notices);
        let due_ms = session.tick(now_ms, &limits, notices);
        let (Some(due_ms), false) = (due_ms, session.is_over()) else { return };
        let bytes = SESSION_BYTES + session.queued_bytes();
        self.bytes += bytes;
        self.due.insert((due_ms, device.clone()));
        self.sessions.insert(device.clone(), OfflineSession { session, limits, due_ms, bytes });
        while self.bytes > self.bytes_max
            && let Some((_, first)) = self.due.first().cloned()
        {
            self.end(&first, notices);
        }
    }

    /// The session that a device comes back to, if it is here.
    pub(super) fn take(&mut self, device: &str, token: ResumeToken) -> Option<(Session, SessionLimits)> {
        let is_it = self.sessions.get(device).is_some_and(|kept| kept.session.token() == token);
        if is_it { self.remove(device).map(|kept| (kept.session, kept.limits)) } else { None }
    }

    /// The device does not resume it.
    pub(super) fn end(&mut self, device: &str, notices: &mut Vec<Notice>) {
        if let Some(mut kept) = self.remove(device) {
            kept.session.end(notices);
        }
    }

    fn remove(&mut self, device: &str) -> Option<OfflineSession> {
        let (device, kept) = self.sessions.remove_entry(device)?;
        self.due.remove(&(kept.due_ms, device));
        self.bytes -= kept.bytes;
        Some(kept)
    }

    /// Runs the work that is due.
    pub(super) fn tick(&mut self, now_ms: u64, notices: &mut Vec<Notice>) {
        while let Some((due_ms, device)) = self.due.first().cloned()
            && due_ms <= now_ms
        {
            let Some(mut kept) = self.remove(&device) else { return };
            match kept.session.tick(now_ms, &kept.limits, notices) {
                Some(next_ms) if !kept.session.is_over() => {
                    kept.due_ms = next_ms.max(now_ms + 1);
                    kept.bytes = SESSION_BYTES + kept.session.queued_bytes();
                    self.bytes += kept.bytes;
                    self.due.insert((kept.due_ms, device.clone()));
                    self.sessions.insert(device, kept);
                }
                _ => {}
            }
        }
    }
}
