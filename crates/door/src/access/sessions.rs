//! Sessions of the dashboard, and sign-in tokens that each open one session.
//!
//! In memory only: a restart ends them. A session has the rights of the key that opened it, and ends when that key changes.

use super::{Caller, Role};
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// The cookie with a session's token.
pub const SESSION_COOKIE: &str = "stillgate_session";

/// How long a session lasts.
pub(super) const SESSION_AGE_MAX: Duration = Duration::from_secs(12 * 3600);

/// Number of sessions at once. One more ends the oldest session of the owner with the most, so that an owner who opens many loses
/// their own.
const SESSIONS_MAX: usize = 256;

/// Number of sessions at once that one key has opened, or that sign-in tokens have; the oldest makes room for a new one.
const SESSIONS_OF_ONE_MAX: usize = 32;

/// Number of sign-in tokens at once.
const TOKENS_MAX: usize = 16;

/// Number of random bytes in a token.
const TOKEN_BYTES: usize = 32;

/// One session.
#[derive(Debug, Clone)]
pub struct Session {
    /// The caller that opened it.
    pub caller: Caller,
    /// The token that a write must contain besides the cookie.
    pub csrf: String,
    until: Instant,
}

/// All sessions and sign-in tokens. They are found by hash: 256 random bits do not need a comparison in constant time.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    of_token: HashMap<String, Session>,
    sign_ins: HashMap<String, (Caller, Instant)>,
}

impl Sessions {
    /// Opens a session; returns its token and its CSRF token.
    pub(super) fn open(&mut self, caller: Caller, now: Instant) -> (String, String) {
        self.of_token.retain(|_, session| session.until > now);
        if self.count_of(&caller) >= SESSIONS_OF_ONE_MAX {
            self.end_oldest_of(&caller);
        }
        if self.of_token.len() >= SESSIONS_MAX {
            let callers = self.of_token.values().map(|session| &session.caller);
            let most = callers.max_by_key(|caller| self.count_of(caller)).cloned();
            if let Some(caller) = most {
                self.end_oldest_of(&caller);
            }
        }
        let (token, csrf) = (random_token(), random_token());
        self.of_token.insert(token.clone(), Session { caller, csrf: csrf.clone(), until: now + SESSION_AGE_MAX });
        (token, csrf)
    }

    fn count_of(&self, caller: &Caller) -> usize {
        self.of_token.values().filter(|session| is_same(&session.caller, caller)).count()
    }

    fn end_oldest_of(&mut self, caller: &Caller) {
        let own = self.of_token.iter().filter(|(_, session)| is_same(&session.caller, caller));
        let oldest = own.min_by_key(|(_, session)| session.until).map(|(token, _)| token.clone());
        oldest.map(|token| self.of_token.remove(&token));
    }

    pub(super) fn get(&self, token: &str, now: Instant) -> Option<Session> {
        self.of_token.get(token).filter(|session| session.until > now).cloned()
    }

    pub(super) fn close(&mut self, token: &str) {
        self.of_token.remove(token);
    }

    /// Makes a token that opens one session with this name and role.
    pub(super) fn mint(&mut self, name: &str, role: Role, age: Duration, now: Instant) -> String {
        self.sign_ins.retain(|_, (_, until)| *until > now);
        if self.sign_ins.len() >= TOKENS_MAX {
            let oldest = self.sign_ins.iter().min_by_key(|(_, (_, until))| *until).map(|(token, _)| token.clone());
            oldest.map(|token| self.sign_ins.remove(&token));
        }
        let token = random_token();
        let caller = Caller { name: name.to_owned(), role, key: None };
        self.sign_ins.insert(token.clone(), (caller, now + age));
        token
    }

    /// The identity of the session that a sign-in token opens. A token can be used once.
    pub(super) fn redeem(&mut self, token: &str, now: Instant) -> Option<Caller> {
        self.sign_ins.remove(token).filter(|(_, until)| *until > now).map(|(caller, _)| caller)
    }
}

/// Whether two sessions were opened with the same key. A key that changed in between does not count: its sessions have ended.
fn is_same(one: &Caller, other: &Caller) -> bool {
    one.name == other.name && one.role == other.role
}

fn random_token() -> String {
    let bytes: [u8; TOKEN_BYTES] = rand::random();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
