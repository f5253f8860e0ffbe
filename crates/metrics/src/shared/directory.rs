//! The list of all segments in a shared folder, read by any number of processes and changed by one at a time.
//!
//! ```text
//!  header: magic, ABI, active  │  process slots: pid, start, heartbeat  │  table 0  │  table 1
//!  a table: number of entries  │  entries: pid, start, serial           (pid 0: a base, the totals of the dead)
//! ```
//!
//! The lowest bit of `active` selects the current table. A change is written to the other one, under a file lock, and
//! takes effect by one store: a process that is killed in the middle has changed nothing, and a reader sees the list
//! before or after, never between. So the segments of dead processes and the base that replaces them change places in
//! one step.

use crate::protocol;
use crate::segment::memory::{Layout, Mapping, PAGE};
use crate::segment::{Segment, SegmentProcess};
use crate::sync::{AtomicU32, AtomicU64, Ordering, ReadOnly, Word};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use std::fmt;
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Most processes that share a folder at a time; also bounds the dead ones that wait to be folded.
pub(crate) const PROCESSES_MAX: usize = 64;
/// Most segments of all of them.
pub(crate) const SEGMENTS_MAX: usize = 2048;
/// A process of another pid namespace (another container) whose heartbeat is older has ended. For the own namespace the
/// system answers at once.
pub(crate) const HEARTBEAT_MAX_MS: u64 = 60_000;

const MAGIC: u64 = u64::from_le_bytes(*b"stilldir");
/// The version of this file and of the segments: processes that share a folder fold each other's segments, and put
/// aside what they cannot read.
const ABI: u32 = 3;
/// The lock is held for milliseconds; a process that holds it longer is stuck.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

#[repr(C)]
struct DirectoryFile<W32 = AtomicU32, W64 = AtomicU64> {
    magic: W64,
    abi: W32,
    reserved: W32,
    /// Counts the changes; its lowest bit selects the current table.
    active: W64,
    processes: [ProcessSlot<W32, W64>; PROCESSES_MAX],
    tables: [DirectoryTable<W32, W64>; 2],
}

#[repr(C)]
struct ProcessSlot<W32 = AtomicU32, W64 = AtomicU64> {
    pid: W32,
    /// The namespace in which it has this id; 0: not known.
    namespace: W32,
    start: W64,
    /// In milliseconds since the epoch.
    heartbeat_ms: W64,
}

#[repr(C)]
struct DirectoryTable<W32 = AtomicU32, W64 = AtomicU64> {
    entries: W64,
    rows: [SegmentRow<W32, W64>; SEGMENTS_MAX],
}

#[repr(C)]
struct SegmentRow<W32 = AtomicU32, W64 = AtomicU64> {
    pid: W32,
    reserved: W32,
    start: W64,
    serial: W64,
}

/// The list as readers see it.
type ReadOnlyFile = DirectoryFile<ReadOnly<AtomicU32>, ReadOnly<AtomicU64>>;

const _: () = {
    assert!(offset_of!(DirectoryFile, abi) == 8);
    assert!(offset_of!(DirectoryFile, active) == 16);
    assert!(offset_of!(DirectoryFile, processes) == 24);
    assert!(offset_of!(DirectoryFile, tables) == 24 + 24 * PROCESSES_MAX);
    assert!(offset_of!(ProcessSlot, start) == 8 && offset_of!(ProcessSlot, heartbeat_ms) == 16);
    assert!(offset_of!(DirectoryTable, rows) == 8);
    assert!(offset_of!(SegmentRow, start) == 8 && offset_of!(SegmentRow, serial) == 16);
    assert!(size_of::<SegmentRow>() == 24 && size_of::<ProcessSlot>() == 24);
};

// SAFETY: atomics only, `repr(C)`, aligned to 8.
#[expect(unsafe_code, reason = "see above")]
unsafe impl Layout for DirectoryFile {
    type ReadOnly = ReadOnlyFile;
}

/// A segment, by its process and its serial there. A base belongs to no process: pid 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SegmentName {
    pub(crate) process: SegmentProcess,
    pub(crate) serial: u64,
}

impl Segment {
    /// Its entry in the list.
    pub(crate) fn entry(&self) -> SegmentName {
        SegmentName { process: self.process, serial: self.serial }
    }
}

impl SegmentName {
    /// A base, with the totals of dead processes.
    pub(crate) fn base(serial: u64) -> SegmentName {
        SegmentName { process: SegmentProcess { pid: 0, start: 0 }, serial }
    }

    pub(crate) fn is_base(&self) -> bool {
        self.process.pid == 0
    }

    /// The segment whose file has this name, if it is one.
    pub(crate) fn of_file(name: &str) -> Option<SegmentName> {
        let name = name.strip_suffix(".segment")?;
        if let Some(serial) = name.strip_prefix("base-") {
            return serial.parse().ok().map(SegmentName::base);
        }
        let mut parts = name.split('-');
        let (pid, start, serial) = (parts.next()?, parts.next()?, parts.next()?);
        let process = SegmentProcess { pid: pid.parse().ok()?, start: start.parse().ok()? };
        (parts.next().is_none()).then_some(SegmentName { process, serial: serial.parse().ok()? })
    }

    /// The segment's file.
    pub(crate) fn path(&self, folder: &Path) -> PathBuf {
        folder.join(match self.is_base() {
            true => format!("base-{}.segment", self.serial),
            false => format!("{}-{}-{}.segment", self.process.pid, self.process.start, self.serial),
        })
    }
}

/// The reason why the shared folder cannot be used.
#[derive(Debug)]
pub enum DirectoryError {
    /// The operation, the file, and the error.
    Io(&'static str, PathBuf, io::Error),
    /// The file does not have this format.
    NotADirectory(PathBuf),
    /// Written by a release with another layout.
    Version(PathBuf, u32),
    /// Another process has held the lock for seconds.
    Locked(PathBuf),
    /// The limit on processes or segments is reached.
    Full(PathBuf),
}

impl fmt::Display for DirectoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DirectoryError::Io("open", path, error) if error.kind() == io::ErrorKind::NotFound => write!(
                f,
                "{}: does not exist yet; is a process running that shares its metrics in this folder?",
                path.display()
            ),
            DirectoryError::Io(what, path, error) => write!(f, "cannot {what} {}: {error}", path.display()),
            DirectoryError::NotADirectory(path) => {
                write!(f, "{}: not written by this program; choose an empty folder for the metrics", path.display())
            }
            DirectoryError::Version(path, abi) => write!(
                f,
                "{}: written in layout version {abi}, this program uses version {ABI}; stop the other release's \
                 processes and remove the folder, or give this one its own",
                path.display()
            ),
            DirectoryError::Locked(path) => {
                write!(
                    f,
                    "{}: another process has held the lock for {} s; is one of them stopped?",
                    path.display(),
                    LOCK_TIMEOUT.as_secs()
                )
            }
            DirectoryError::Full(path) => write!(
                f,
                "{}: more than {PROCESSES_MAX} processes or {SEGMENTS_MAX} segments share this folder; give some their own",
                path.display()
            ),
        }
    }
}

impl std::error::Error for DirectoryError {}

/// The list, mapped.
pub(crate) struct Directory {
    pub(crate) folder: PathBuf,
    mapping: Mapping,
    /// The namespace of our process ids; 0: not known.
    namespace: u32,
}

/// Holds the lock while it lives; the system releases it with the process.
pub(crate) struct Lock(#[expect(dead_code, reason = "closing it unlocks")] OwnedFd);

impl Directory {
    /// Opens the folder's list for changing; creates both if they are missing.
    pub(crate) fn create(folder: &Path) -> Result<Directory, DirectoryError> {
        std::fs::create_dir_all(folder).map_err(|error| DirectoryError::Io("make the folder", folder.into(), error))?;
        let _lock = lock(folder)?;
        let path = folder.join("directory");
        let failed = |error| DirectoryError::Io("make", path.clone(), error);
        if !path.exists() {
            // Created under another name, so that no process sees it half made.
            let new = folder.join("directory.new");
            match std::fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
            let mapping = Mapping::create(&new, size_of::<DirectoryFile>()).map_err(failed)?;
            mapping.prepare(0, size_of::<DirectoryFile>().next_multiple_of(PAGE)).map_err(failed)?;
            let file = mapping.header::<DirectoryFile>();
            file.abi.store(ABI, Ordering::Relaxed);
            file.magic.store(MAGIC, Ordering::Release);
            std::fs::rename(&new, &path).map_err(failed)?;
        }
        Directory::map(folder, true)
    }

    /// Opens the folder's list for reading.
    pub(crate) fn open(folder: &Path) -> Result<Directory, DirectoryError> {
        Directory::map(folder, false)
    }

    fn map(folder: &Path, is_writable: bool) -> Result<Directory, DirectoryError> {
        let path = folder.join("directory");
        let mapping =
            Mapping::open(&path, is_writable).map_err(|error| DirectoryError::Io("open", path.clone(), error))?;
        if mapping.bytes() < size_of::<DirectoryFile>()
            || protocol::acquire(&mapping.shown_header::<DirectoryFile>().magic) != MAGIC
        {
            return Err(DirectoryError::NotADirectory(path));
        }
        let abi = mapping.shown_header::<DirectoryFile>().abi.get();
        if abi != ABI {
            return Err(DirectoryError::Version(path, abi));
        }
        Ok(Directory { folder: folder.to_owned(), mapping, namespace: namespace() })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn file(&self) -> &ReadOnlyFile {
        self.mapping.shown_header::<DirectoryFile>()
    }

    /// The list, writable for a process that shares its metrics in it.
    fn own_file(&self) -> &DirectoryFile {
        self.mapping.header()
    }

    /// Until the lock is dropped, no other process changes the list.
    pub(crate) fn lock(&self) -> Result<Lock, DirectoryError> {
        lock(&self.folder)
    }

    /// The list, and its generation.
    pub(crate) fn entries(&self) -> (u64, Vec<SegmentName>) {
        let file = self.file();
        let mut entries = Vec::new();
        let entry = |row: &SegmentRow<ReadOnly<AtomicU32>, ReadOnly<AtomicU64>>| SegmentName {
            process: SegmentProcess { pid: row.pid.get(), start: row.start.get() },
            serial: row.serial.get(),
        };
        let generation = protocol::read_current(&file.active, |table| {
            let table = &file.tables[table];
            let count = (table.entries.get() as usize).min(SEGMENTS_MAX);
            entries.clear();
            entries.extend(table.rows[..count].iter().map(entry));
        });
        (generation, entries)
    }

    /// Replaces the list at once; the caller holds the lock.
    pub(crate) fn replace(&self, _lock: &Lock, entries: &[SegmentName]) -> Result<(), DirectoryError> {
        if entries.len() > SEGMENTS_MAX {
            return Err(DirectoryError::Full(self.folder.clone()));
        }
        let file = self.own_file();
        protocol::turn_over(&file.active, |table| {
            let table = &file.tables[table];
            for (row, entry) in table.rows.iter().zip(entries) {
                row.pid.store(entry.process.pid, Ordering::Relaxed);
                row.start.store(entry.process.start, Ordering::Relaxed);
                row.serial.store(entry.serial, Ordering::Relaxed);
            }
            table.entries.store(entries.len() as u64, Ordering::Relaxed);
        });
        Ok(())
    }

    /// Records that the process is alive, in a slot of its own.
    pub(crate) fn beat(&self, process: SegmentProcess, now_ms: u64) -> Result<(), DirectoryError> {
        let slots = &self.own_file().processes;
        let is_own = |slot: &&ProcessSlot| slot.pid.get() == process.pid && slot.start.get() == process.start;
        if let Some(slot) = slots.iter().find(is_own) {
            slot.heartbeat_ms.store(now_ms, Ordering::Relaxed);
            return Ok(());
        }
        let _lock = self.lock()?;
        let is_free = |slot: &&ProcessSlot| {
            let process = SegmentProcess { pid: slot.pid.get(), start: slot.start.get() };
            process.pid == 0 || !self.lives(slot, process, now_ms)
        };
        let slot = slots.iter().find(is_free).ok_or_else(|| DirectoryError::Full(self.folder.clone()))?;
        slot.heartbeat_ms.store(now_ms, Ordering::Relaxed);
        slot.namespace.store(self.namespace, Ordering::Relaxed);
        slot.start.store(process.start, Ordering::Relaxed);
        slot.pid.store(process.pid, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the process is alive.
    pub(crate) fn is_alive(&self, process: SegmentProcess, now_ms: u64) -> bool {
        self.file().processes.iter().any(|slot| {
            slot.pid.get() == process.pid && slot.start.get() == process.start && self.lives(slot, process, now_ms)
        })
    }

    fn lives<W32, W64>(&self, slot: &ProcessSlot<W32, W64>, process: SegmentProcess, now_ms: u64) -> bool
    where
        W32: Word<Value = u32>,
        W64: Word<Value = u64>,
    {
        let is_ours = self.namespace != 0 && slot.namespace.get() == self.namespace;
        let age_ms = now_ms.saturating_sub(slot.heartbeat_ms.get());
        if is_ours { exists(process) } else { age_ms <= HEARTBEAT_MAX_MS }
    }
}

/// The namespace of our process ids; 0 if the system does not report it.
fn namespace() -> u32 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino() as u32)
}

/// Whether there is a process with this id that started then.
pub(crate) fn exists(process: SegmentProcess) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{}/stat", process.pid)) else { return false };
    // The command in parentheses may contain anything; the start is the 20th field behind it. A zombie has ended.
    let Some((_, fields)) = stat.rsplit_once(')') else { return false };
    let mut fields = fields.split_ascii_whitespace();
    let is_zombie = matches!(fields.next(), Some("Z" | "X"));
    !is_zombie && fields.nth(18).and_then(|start| start.parse().ok()) == Some(process.start)
}

fn lock(folder: &Path) -> Result<Lock, DirectoryError> {
    let path = folder.join("lock");
    let failed = |error: io::Error| DirectoryError::Io("lock", path.clone(), error);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let file = open(&path, flags, Mode::from_raw_mode(0o644)).map_err(|error| failed(error.into()))?;
    let give_up = Instant::now() + LOCK_TIMEOUT;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Lock(file)),
            Err(error) if error == rustix::io::Errno::WOULDBLOCK && Instant::now() < give_up => {
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(error) if error == rustix::io::Errno::WOULDBLOCK => return Err(DirectoryError::Locked(path)),
            Err(error) => return Err(failed(error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(pid: u32, serial: u64) -> SegmentName {
        SegmentName { process: SegmentProcess { pid, start: 9 }, serial }
    }

    #[test]
    fn a_list_is_replaced_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let writing = Directory::create(folder.path()).unwrap();
        let reading = Directory::open(folder.path()).unwrap();
        assert_eq!(reading.entries(), (0, vec![]));
        for (generation, list) in
            [vec![entry(1, 0)], vec![entry(1, 0), entry(2, 5), SegmentName::base(7)], vec![]].iter().enumerate()
        {
            let lock = writing.lock().unwrap();
            writing.replace(&lock, list).unwrap();
            assert_eq!(reading.entries(), (generation as u64 + 1, list.clone()));
        }
        assert!(Directory::create(folder.path()).is_ok(), "a second process opens what is there");
    }

    /// The folder as seen from another pid namespace.
    fn elsewhere(folder: &Path) -> Directory {
        Directory { namespace: 0, ..Directory::create(folder).unwrap() }
    }

    #[test]
    fn of_its_own_namespace_the_system_knows() {
        let folder = tempfile::tempdir().unwrap();
        let directory = Directory::create(folder.path()).unwrap();
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let start = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(19).unwrap().parse().unwrap();
        let this = SegmentProcess { pid: std::process::id(), start };
        let other = SegmentProcess { start: start + 1, ..this };
        directory.beat(this, 1_000).unwrap();
        directory.beat(other, 1_000).unwrap();
        assert!(directory.is_alive(this, 1_000 + 10 * HEARTBEAT_MAX_MS));
        assert!(!directory.is_alive(other, 1_000), "the id was used again");
    }

    #[test]
    fn file_names_identify_their_process() {
        for entry in [entry(7, 3), SegmentName::base(12)] {
            let path = entry.path(Path::new("/metrics"));
            assert_eq!(SegmentName::of_file(path.file_name().unwrap().to_str().unwrap()), Some(entry));
        }
        for name in ["directory", "lock", "1-2.segment", "1-2-3-4.segment", "base-x.segment", "1-2-3.other"] {
            assert_eq!(SegmentName::of_file(name), None, "{name}");
        }
    }

    #[test]
    fn who_has_not_been_seen_lately_is_dead() {
        let folder = tempfile::tempdir().unwrap();
        let directory = elsewhere(folder.path());
        let process = SegmentProcess { pid: 5, start: 6 };
        assert!(!directory.is_alive(process, 1_000));
        directory.beat(process, 1_000).unwrap();
        assert!(directory.is_alive(process, 1_000 + HEARTBEAT_MAX_MS));
        assert!(!directory.is_alive(process, 1_001 + HEARTBEAT_MAX_MS));
        assert!(!directory.is_alive(SegmentProcess { pid: 5, start: 7 }, 1_000));
    }

    #[test]
    fn slots_of_the_dead_are_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let directory = elsewhere(folder.path());
        for pid in 1..=PROCESSES_MAX as u32 {
            directory.beat(SegmentProcess { pid, start: 1 }, 1_000).unwrap();
        }
        let late = SegmentProcess { pid: 1000, start: 1 };
        assert!(matches!(directory.beat(late, 2_000), Err(DirectoryError::Full(_))));
        directory.beat(late, 2_000 + HEARTBEAT_MAX_MS).unwrap();
        assert!(directory.is_alive(late, 2_000 + HEARTBEAT_MAX_MS));
    }

    #[test]
    fn what_is_not_a_directory_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let check = |bytes: &[u8]| {
            std::fs::write(folder.path().join("directory"), bytes).unwrap();
            Directory::open(folder.path()).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(check(b"").contains("cannot open"));
        assert!(check(&vec![7; 1 << 17]).contains("not written by this program"));
        let mut next_version = vec![0; 1 << 17];
        next_version[..8].copy_from_slice(b"stilldir");
        next_version[8] = 9;
        assert!(check(&next_version).contains("layout version 9"));
    }
}
