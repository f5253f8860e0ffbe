//! Upgrade without loss: a new process of the binary takes over sockets, connections and metrics, and the old one drains.
//!
//! ```text
//!  old                                             new
//!  starts the binary, its end of a socket pair ──▶ standard input
//!  Hello, Sockets…, Metrics…, Routes…, End ──────▶ reads and checks the configuration, starts on the sockets
//!                        ◀──── Has…, Ready ──── accepts connections from here on, on the same sockets
//!  waits for a second; both serve
//!  exposes no more ── Go ────────────────────────▶ exposes, answers admin requests, reads datagrams, writes the pid file
//!  accepts no more       ◀──── Going ─────────────
//!  parcels (stillgate_proxy::handover) ──────────▶ workers
//!  that was all ─────────────────────────────────▶
//!  ends                  ◀──── Taken ───────────── alone with all of it
//! ```
//!
//! Until `Going` the old process has changed nothing that it cannot undo: whatever becomes of the new one, it serves on. After
//! `Going` the new one has nothing left to do that could keep it from serving.

mod channel;
mod launcher;
mod messages;
mod notify;
mod pid_file;
mod predecessor;
mod probation;
mod program;
mod takeover;

pub(crate) use launcher::{GO_TIMEOUT, Launcher, Progress};
pub(crate) use notify::{supervisor_loses_us, tell_supervisor};
pub(crate) use pid_file::PidFile;
pub(crate) use predecessor::{AdminSocket, DeviceSocket, PeerOffer, Predecessor, Step, ended, lost};
pub(crate) use probation::PROBATION;
pub(crate) use program::{Program, READY_TIMEOUT};
pub(crate) use takeover::{Following, Former, Takeover};

/// The former process's number, set where standard input is its end of a socket pair.
const VARIABLE: &str = "STILLGATE_UPGRADE";
/// Name of the thread that starts successors: `stillgate upgrade` recognises a gateway by it, and by the workers.
pub(crate) const LAUNCHER_NAME: &str = "upgrade";
/// Prefix of that name once upgrades have failed, followed by their number.
pub(crate) const FAILURES_NAME: &str = "lost-";
/// Name of the main thread of a process that has been replaced, as `ps` and /proc show it.
pub(crate) const OLD_NAME: &std::ffi::CStr = c"stillgate-old";
