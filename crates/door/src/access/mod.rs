//! Access control of the Admin API and the device API: a decision from the configuration, the peer's address and the head of a request.
//!
//! ```text
//!  head ─▶ facts.rs ─▶ decide(Access, Facts) ─▶ Caller ─▶ handlers
//!                              └─▶ Refusal ─▶ 401, 403; wrong keys are counted and slowed down (failures.rs)
//! ```
//!
//! The decision is pure. Its state, sessions and wrong keys, is in [`Guard`], which calls it.

mod facts;
mod failures;
mod guard;
mod refusal;
mod sessions;

pub use facts::{KEY_ARGUMENT, cookie};
pub use guard::{Guard, Peer};
pub use refusal::Rejection;
pub use sessions::{SESSION_COOKIE, Session};

use crate::hosts::{Hosts, Stranger};
use facts::{CallerCredential, Facts, Origin};
use ipnet::IpNet;
use refusal::Refusal;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// The rights of a key or session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Everything, including secrets.
    Admin,
    /// GET only, with masks in place of secrets.
    Viewer,
}

/// A key of the Admin API.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminKey {
    /// The name, for the audit log and history.
    pub name: String,
    /// The secret itself.
    pub key: String,
    /// Its rights.
    pub role: Role,
}

/// The configuration of access control.
#[derive(Debug, Clone)]
pub struct Access {
    /// The section of the configuration that it comes from, for messages about refusals.
    pub section: &'static str,
    /// All keys, with unique names.
    pub keys: Vec<Arc<AdminKey>>,
    /// Networks whose addresses are served at all.
    pub allow: Vec<IpNet>,
    /// Host names under which loopback may send requests without a key.
    pub hosts: Hosts,
    /// Whether loopback can read everything without a key, masked: no key was configured.
    pub is_loopback_reader: bool,
    /// Whether loopback can do everything without a key.
    pub is_loopback_writer: bool,
}

/// The sender of an admitted request.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The name of the key, for the audit log; empty: there is none.
    pub name: String,
    /// Its rights.
    pub role: Role,
    /// The key that was verified, in this request or when the session was opened.
    pub key: Option<Arc<AdminKey>>,
}

impl Caller {
    /// Whether responses show what may be a secret.
    pub fn sees_secrets(&self) -> bool {
        self.role == Role::Admin
    }
}

/// The class of a path for access control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Area {
    /// Files of the dashboard, which are the same everywhere: for every address in `allow`, so that people can sign in.
    Files,
    /// `/`, health and status, without secrets.
    Open,
    /// The path at which sessions are opened, shown and ended.
    SignIn,
    /// Everything else.
    Data,
}

/// The loopback networks, which are served by default.
pub fn loopback() -> Vec<IpNet> {
    let network = |address: [u8; 4], bits| IpNet::new(IpAddr::from(address), bits).ok();
    let v6 = IpNet::new(IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1u16]), 128).ok();
    network([127, 0, 0, 0], 8).into_iter().chain(v6).collect()
}

/// Whether a request is served, and as which caller.
fn decide(access: &Access, facts: &Facts<'_>) -> Result<Caller, Refusal> {
    let peer = facts.peer.to_canonical();
    if !access.allow.iter().any(|network| network.contains(&peer)) {
        let section = access.section;
        let is_open = access.keys.is_empty();
        return Err(if is_open { Refusal::LoopbackOnly(section) } else { Refusal::NotAllowed(section) });
    }
    let caller = match &facts.given {
        CallerCredential::Key { key, is_ambient } if !access.keys.is_empty() => match find(access, key) {
            Some(_) if *is_ambient && is_forged(facts) => return Err(Refusal::ForeignOrigin),
            Some(key) => Caller { name: key.name.clone(), role: key.role, key: Some(key) },
            // A wrong key does not hide what is visible without one: a browser sends cookies of other servers, too.
            None if matches!(facts.area, Area::Open | Area::Files) => return keyless(access, peer, facts),
            None => return Err(Refusal::KeyWrong),
        },
        CallerCredential::Session { session, has_token } if is_alive(access, session) => {
            if is_forged(facts) {
                return Err(Refusal::ForeignOrigin);
            }
            if !facts.is_read && !has_token {
                return Err(Refusal::TokenMissing);
            }
            session.caller.clone()
        }
        _ => return keyless(access, peer, facts),
    };
    let may_write = caller.role == Role::Admin || facts.area == Area::SignIn;
    if facts.is_read || may_write { Ok(caller) } else { Err(Refusal::ViewerWrites) }
}

fn keyless(access: &Access, peer: IpAddr, facts: &Facts<'_>) -> Result<Caller, Refusal> {
    let role = if access.is_loopback_writer { Role::Admin } else { Role::Viewer };
    let anybody = || Caller { name: String::new(), role, key: None };
    let stranger = || facts.stranger.clone().map_or(Ok(()), |stranger| Err(Refusal::Stranger(stranger)));
    match facts.area {
        Area::SignIn if facts.origin == Origin::Foreign => Err(Refusal::ForeignOrigin),
        Area::SignIn => stranger().map(|()| anybody()),
        _ if !peer.is_loopback() && access.keys.is_empty() => Err(Refusal::LoopbackOnly(access.section)),
        Area::Files if facts.is_read => stranger().map(|()| anybody()),
        _ if !peer.is_loopback() => Err(Refusal::KeyMissing),
        _ if !facts.is_read && access.is_loopback_writer && is_forged(facts) => Err(Refusal::ForeignOrigin),
        _ if !facts.is_read && !access.is_loopback_writer => Err(Refusal::KeyMissing),
        Area::Data if !access.is_loopback_reader => Err(Refusal::KeyMissing),
        Area::Open | Area::Files | Area::Data => stranger().map(|()| anybody()),
    }
}

/// Whether a page of another origin may have made a browser send this with the browser's own cookie.
fn is_forged(facts: &Facts<'_>) -> bool {
    let is_cross_site = matches!(facts.stranger, Some(Stranger::CrossSite));
    !facts.is_read && (facts.origin == Origin::Foreign || is_cross_site)
}

/// Whether the key that opened a session is still configured unchanged.
fn is_alive(access: &Access, session: &Session) -> bool {
    session.caller.key.as_ref().is_none_or(|key| access.keys.contains(key))
}

/// The key with this text. All are compared, so that the time reveals nothing about similar keys.
fn find(access: &Access, given: &[u8]) -> Option<Arc<AdminKey>> {
    let compare = |found: Option<Arc<AdminKey>>, key: &Arc<AdminKey>| {
        let is_equal = equal_in_constant_time(given, key.key.as_bytes());
        found.or_else(|| (is_equal && !key.key.is_empty()).then(|| key.clone()))
    };
    access.keys.iter().fold(None, compare)
}

/// Takes the same time wherever the first difference is, so that a key cannot be guessed byte by byte. Its length is not hidden.
fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    let difference = a.iter().zip(b).fold(0, |difference, (a, b)| std::hint::black_box(difference | (a ^ b)));
    a.len() == b.len() && difference == 0
}

impl Role {
    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Role::Admin => "admin",
            Role::Viewer => "viewer",
        }
    }
}

impl fmt::Debug for AdminKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminKey").field("name", &self.name).field("role", &self.role).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
