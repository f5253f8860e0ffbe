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
mod handover;
mod launcher;
mod takeover;

use channel::Channel;
pub(crate) use handover::{
    AdminSocket, DeviceSocket, PeerOffer, UpgradeEvent, UpgradeHandover, ended_message, lost_message,
};
pub(crate) use launcher::{GO_TIMEOUT, Launcher, Progress};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
pub(crate) use takeover::{DatastoreState, FormerProcess, Inheritance, Takeover};
use tracing::{debug, warn};

/// The former process's number, set where standard input is its end of a socket pair.
const VARIABLE: &str = "STILLGATE_UPGRADE";
/// Name of the thread that starts successors: `stillgate upgrade` recognises a gateway by it, and by the workers.
pub(crate) const LAUNCHER_NAME: &str = "upgrade";
/// Prefix of that name once upgrades have failed, followed by their number.
pub(crate) const FAILURES_NAME: &str = "lost-";
/// Name of the main thread of a process that has been replaced, as `ps` and /proc show it.
pub(crate) const OLD_NAME: &std::ffi::CStr = c"stillgate-old";

/// Whether this process was started by one that it is to follow.
pub(crate) fn is_successor() -> bool {
    // The variable is inherited also by those that a process of an upgrade starts in its turn.
    let parent = rustix::process::getppid().map(|pid| pid.to_string());
    parent.is_some() && std::env::var(VARIABLE).ok() == parent
}

/// The revision of a datastore in the digest of a configuration; `None`: it is of a file.
pub(crate) fn revision_of(digest: &str) -> Option<u64> {
    digest.rsplit_once('@')?.1.parse().ok()
}

// Notices to a supervisor (`sd_notify(3)`): that the process serves, and its pid after an upgrade.

/// Notifies the supervisor, if one is configured.
pub(crate) fn tell_supervisor(what: &str) {
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = send(&socket, what)
    {
        debug!(%error, "the supervisor is not told that {what}");
    }
}

/// Whether a supervisor ends the service with this process, since nothing informs it of another; then what to do about it.
pub(crate) fn supervisor_loses_us() -> Option<&'static str> {
    let is_service = std::env::var("SYSTEMD_EXEC_PID").is_ok_and(|pid| pid == std::process::id().to_string());
    (is_service && std::env::var_os("NOTIFY_SOCKET").is_none()).then_some(
        "systemd would end the service with this process; set Type=notify and NotifyAccess=all in its unit, and restart it once",
    )
}

fn send(socket: &OsStr, what: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(what.as_bytes(), &address)?;
    Ok(())
}

// `gateway.pid_file`: the number of the process that serves.

/// The file, with our number in it. It is removed when this is dropped, unless another process has put its own there.
#[derive(Debug)]
pub(crate) struct PidFile(PathBuf);

/// Maximum size of a number and a line's end, in bytes.
const FILE_BYTES_MAX: u64 = 32;

impl PidFile {
    /// Writes it in one step: a reader sees a former number or this one.
    pub(crate) fn write(path: &Path) -> Option<PidFile> {
        write_pid(path).then(|| PidFile(path.to_owned()))
    }

    /// Writes it again where a process that was to follow has written its own number, or removed the file as it ended.
    pub(crate) fn restore(&self) {
        if PidFile::read(&self.0).ok() != Some(std::process::id()) {
            write_pid(&self.0);
        }
    }

    /// Whether the file may be written: an existing file must be a pid file, as it is replaced and in the end removed.
    pub(crate) fn check(path: &Path) -> io::Result<()> {
        let is_ours = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
            Ok(metadata) if metadata.len() == 0 => metadata.is_file(),
            Ok(metadata) => metadata.is_file() && metadata.len() <= FILE_BYTES_MAX && PidFile::read(path).is_ok(),
        };
        let foreign = "something else is there, which would be replaced: name a file that is not there yet";
        if is_ours { Ok(()) } else { Err(io::Error::new(io::ErrorKind::AlreadyExists, foreign)) }
    }

    /// From here on the file belongs to another process, which replaces it at any moment: checking and removing it then may remove
    /// that process's file.
    pub(crate) fn leave(self) {
        std::mem::forget(self);
    }

    /// The number in a file.
    pub(crate) fn read(path: &Path) -> io::Result<u32> {
        let text = fs::read_to_string(path)?;
        text.trim().parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it holds no process ID"))
    }
}

/// False: it cannot be written, which is in the log.
fn write_pid(path: &Path) -> bool {
    let pid = std::process::id();
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{pid}"));
    let write = || fs::write(&beside, format!("{pid}\n")).and_then(|()| fs::rename(&beside, path));
    if let Err(error) = PidFile::check(path).and_then(|()| write()) {
        // Serving does not depend on it.
        warn!(file = %path.display(), %error, "gateway.pid_file cannot be written");
        let _ = fs::remove_file(&beside);
        return false;
    }
    true
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if PidFile::read(&self.0).is_ok_and(|pid| pid == std::process::id()) {
            // If another process removed it meanwhile, that is what was to be done.
            let _ = fs::remove_file(&self.0);
        }
    }
}

// The program that a process starts as its successor: the file by which it was called itself, and its arguments.

/// How long the new process has until it serves.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// The program to start.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    /// The path of our own binary, as it is installed now.
    pub(crate) path: PathBuf,
    /// Its name in the command line.
    pub(crate) name: OsString,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) ready_timeout: Duration,
}

impl Program {
    /// This process's own program; to be determined at its start, since the file may be replaced later.
    pub(crate) fn own() -> io::Result<Program> {
        let mut arguments = std::env::args_os();
        let (name, file) = (arguments.next().unwrap_or_default(), std::env::current_exe()?);
        let path = as_called(&name, &file).unwrap_or(file);
        Ok(Program { path, name, arguments: arguments.collect(), ready_timeout: READY_TIMEOUT })
    }
}

/// The path by which `file` was called, where it still leads there: a link may lead to another version later, which the system's
/// own answer, with links resolved, does not show.
fn as_called(name: &OsStr, file: &Path) -> Option<PathBuf> {
    let called = Path::new(name);
    let is_it = |path: &PathBuf| path.canonicalize().is_ok_and(|path| path == file);
    match called.components().nth(1) {
        Some(_) => Some(std::path::absolute(called).ok()?).filter(is_it),
        None => std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(called)).find(is_it),
    }
    .filter(|path| path.is_absolute())
}

// Probation of a new process: for a second it serves alongside the old one, which gives nothing away.
//
// A new version that crashes usually does so at once: on its first requests, or because the memory it may have is used up. The old
// process still has everything then, so it just goes on. Only the connections that the new one had accepted are lost with it.

/// How long the new process serves before the old one leaves.
pub(crate) const PROBATION: Duration = Duration::from_secs(1);
/// Interval of checks whether the new process is still wanted. Its end is noticed at once.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The result of probation.
#[derive(Debug, PartialEq, Eq)]
enum ProbationResult {
    /// It has served all the time.
    Proven,
    /// It has ended, or has sent a message out of turn.
    Gone,
    /// This process is to end, and the new one with it.
    Unwanted,
}

/// Waits for the end of the new process, which is not expected.
fn prove(channel: &Channel, is_unwanted: impl Fn() -> bool) -> ProbationResult {
    let end = Instant::now() + PROBATION;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if is_unwanted() {
            return ProbationResult::Unwanted;
        }
        if channel.has_something(left.min(LOOK_EVERY)) {
            return ProbationResult::Gone;
        }
        if left.is_zero() {
            return ProbationResult::Proven;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_comes_to_either_kind_of_address() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("stillgate-test-{}", std::process::id());
        let abstract_address = SocketAddr::from_abstract_name(&name).unwrap();
        let sockets = [UnixDatagram::bind(&path).unwrap(), UnixDatagram::bind_addr(&abstract_address).unwrap()];
        for (socket, address) in sockets.iter().zip([path.into_os_string(), format!("@{name}").into()]) {
            send(&address, "READY=1").unwrap();
            let mut space = [0; 64];
            let n = socket.recv(&mut space).unwrap();
            assert_eq!(&space[..n], b"READY=1");
        }
        assert!(send(OsStr::new("/nowhere/at/all"), "x").is_err());
    }
}

#[cfg(test)]
mod pid_file_tests {
    use super::*;

    #[test]
    fn only_the_owner_removes_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid");
        let file = PidFile::write(&path).unwrap();
        assert_eq!(PidFile::read(&path).unwrap(), std::process::id());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        drop(file);
        assert!(!path.exists());
        let file = PidFile::write(&path).unwrap();
        fs::write(&path, "1\n").unwrap();
        file.restore();
        assert_eq!(PidFile::read(&path).unwrap(), std::process::id());
        fs::remove_file(&path).unwrap();
        file.restore();
        assert_eq!(PidFile::read(&path).unwrap(), std::process::id());
        fs::write(&path, "1\n").unwrap();
        drop(file);
        assert_eq!(PidFile::read(&path).unwrap(), 1);
        fs::write(&path, "one").unwrap();
        assert!(PidFile::read(&path).is_err());
        assert!(PidFile::write(&dir.path().join("no/folder")).is_none());
    }

    #[test]
    fn what_is_no_pid_file_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("config.yaml"), "routes: []\n").unwrap();
        fs::write(at("long"), "1".repeat(100)).unwrap();
        fs::create_dir(at("folder")).unwrap();
        fs::write(at("number"), "1\n").unwrap();
        std::os::unix::fs::symlink(at("number"), at("link")).unwrap();
        for path in [at("config.yaml"), at("long"), at("folder"), at("link"), "/dev/null".into()] {
            let before = fs::symlink_metadata(&path).unwrap();
            assert!(PidFile::write(&path).is_none(), "{}", path.display());
            let after = fs::symlink_metadata(&path).unwrap();
            assert_eq!((before.file_type(), before.len()), (after.file_type(), after.len()), "{}", path.display());
        }
        fs::write(at("empty"), "").unwrap();
        assert!(PidFile::write(&at("empty")).is_some() && PidFile::write(&at("number")).is_some());
        PidFile::write(&at("left")).unwrap().leave();
        assert!(at("left").exists());
    }
}

#[cfg(test)]
mod program_tests {
    use super::*;

    #[test]
    fn a_link_to_the_file_is_kept() {
        let dir = tempfile::tempdir().expect("a folder");
        let dir = dir.path().canonicalize().expect("it is there");
        let (file, link) = (dir.join("v1"), dir.join("current"));
        std::fs::write(&file, "").expect("write");
        std::os::unix::fs::symlink(&file, &link).expect("link");
        let called = |name: &Path| as_called(name.as_os_str(), &file);
        assert_eq!(called(&link), Some(link.clone()));
        assert_eq!(called(&file), Some(file.clone()));
        assert_eq!(called(&dir.join("other")), None);
        assert_eq!(called(Path::new("sh")), None);
        let sh = Path::new("/bin/sh").canonicalize().expect("it is there");
        assert!(as_called(OsStr::new("sh"), &sh).is_some_and(|path| path.ends_with("sh") && path.is_absolute()));
    }
}

#[cfg(test)]
mod probation_tests {
    use super::*;
    use crate::upgrade::takeover::Message;
    use std::cell::Cell;

    #[test]
    fn only_silence_proves_it() {
        let (ours, theirs) = Channel::pair().unwrap();
        let theirs = Channel::new(theirs).unwrap();
        let began = Instant::now();
        assert_eq!(prove(&ours, || false), ProbationResult::Proven);
        assert!(began.elapsed() >= PROBATION);
        assert_eq!(prove(&ours, || true), ProbationResult::Unwanted);
        // It dies during the probation.
        let theirs = Cell::new(Some(theirs));
        let is_unwanted = || {
            drop(theirs.take());
            false
        };
        assert_eq!(prove(&ours, is_unwanted), ProbationResult::Gone);
        let (ours, theirs) = Channel::pair().unwrap();
        Message::Taken {}.send_with(&Channel::new(theirs).unwrap(), &[]).unwrap();
        assert_eq!(prove(&ours, || false), ProbationResult::Gone);
    }
}
