//! The registry of a process: its families, its writers, their memory, and the budget of all.
//!
//! Declaring and creating take a lock and may take long: they belong on a control thread. Writers hold what they need
//! and come here only to call the provisioner, the thread that prepares memory for them, or to prepare a few pages
//! themselves if it has not come yet. Neither takes a lock.

use crate::declared::DeclaredFamily;
use crate::family::{Family, FamilyError, FamilyType};
use crate::reader::{Mount, Mounts};
use crate::segment::layout::WORD;
use crate::segment::{Segment, SegmentError, SegmentProcess};
use crate::shared::directory::{Directory, DirectoryError, SegmentName, exists};
use crate::writer::Writer;
use crate::writer::memory::{MemoryBudget, NeededMemory, WriterMemory};
use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, Thread};

/// Most families of one registry.
pub const FAMILIES_MAX: usize = 4096;
/// Share of the memory that writers may take; the rest is for readers and their caches.
const WRITERS_SHARE: f64 = 0.5;
/// Most memory prepared for a writer, unless the options ask for more.
const AHEAD_BYTES_MAX: usize = 8 << 20;
/// Smallest address range of a log; a larger budget gets a larger one.
const LOG_BYTES_MIN: usize = 1 << 20;

/// Smallest memory of a label set, everything counted.
const SET_BYTES_MIN: usize = 128;

/// The family in which writers count collapsed observations.
pub const COLLAPSED: &str = "stillgate_metrics_collapsed_observations_total";

/// Options of a registry.
#[derive(Debug, Clone)]
pub struct RegistryOptions {
    /// Memory limit in bytes for everything: segments, indices, readers and their caches.
    pub memory_bytes: usize,
    /// Most label sets of each family.
    pub series_per_family: u32,
    /// Bytes of log prepared for each writer, at least; a writer that uses much more gets a quarter of what it uses.
    pub ahead_bytes: usize,
    /// The process that writes.
    pub process: SegmentProcess,
    /// The time, in milliseconds since the epoch.
    pub now_ms: u64,
    /// Random, so that clients cannot choose label values whose hashes collide.
    pub seed: u64,
    /// A folder (on tmpfs) in which other processes can read the segments, and from which the totals of ended processes
    /// are carried on. `None`: memory of this process, which another process can read only if it receives it
    /// ([`Registry::hand_over`]).
    pub shared: Option<PathBuf>,
}

impl RegistryOptions {
    /// The defaults, for this process at this time.
    pub fn new(process: SegmentProcess, now_ms: u64, seed: u64) -> RegistryOptions {
        RegistryOptions {
            memory_bytes: 256 << 20,
            series_per_family: 100_000,
            ahead_bytes: 512 << 10,
            process,
            now_ms,
            seed,
            shared: None,
        }
    }
}

/// The reason why a registry or one of its parts could not be made.
#[derive(Debug)]
pub enum RegistryError {
    /// Memory or a thread for it is not available.
    Io(&'static str, io::Error),
    /// The declaration of the family is invalid.
    Family(FamilyError),
    /// The shared folder cannot be used.
    Directory(DirectoryError),
    /// Another process carries on the metrics: new memory of this one would not be read.
    HandedOver,
}

impl fmt::Display for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegistryError::Io(what, error) => write!(f, "cannot make {what}: {error}"),
            RegistryError::Family(error) => error.fmt(f),
            RegistryError::Directory(error) => error.fmt(f),
            RegistryError::HandedOver => f.write_str("the metrics have been handed over to another process"),
        }
    }
}

impl std::error::Error for RegistryError {}

impl From<FamilyError> for RegistryError {
    fn from(error: FamilyError) -> Self {
        RegistryError::Family(error)
    }
}

impl From<DirectoryError> for RegistryError {
    fn from(error: DirectoryError) -> Self {
        RegistryError::Directory(error)
    }
}

/// Where a registry stores its segments.
pub(crate) enum SegmentStorage {
    /// In unnamed files.
    Unnamed,
    /// In files that the folder's list names.
    Shared(Directory),
    /// The only segment is this file, which no process reads yet.
    File(PathBuf),
}

/// All metrics of one process. Dropping it ends the provisioner; writers that outlive it prepare their memory
/// themselves.
pub struct Registry {
    pub(crate) inner: Arc<RegistryCore>,
    provisioner: Option<JoinHandle<()>>,
}

/// The part that writers share.
pub(crate) struct RegistryCore {
    pub(crate) options: RegistryOptions,
    hasher: SeedableRandomState,
    families: Mutex<Vec<Arc<DeclaredFamily>>>,
    writers: Mutex<Writers>,
    /// Bytes that are prepared or used, over all writers.
    taken: AtomicUsize,
    /// Most of them: what the families leave, as the provisioner last found.
    taken_max: AtomicUsize,
    /// The file system of the segments had no room when memory was prepared last.
    storage_full: AtomicBool,
    ended: AtomicBool,
    /// Another process reads all current segments; it would not notice new ones.
    is_handed_over: AtomicBool,
    /// If there is none, the caller does its work.
    provisioner: OnceLock<Thread>,
    pub(crate) place: SegmentStorage,
    /// Whether collapsed observations are counted; not while a base is made.
    pub(crate) counts_collapses: bool,
}

#[derive(Default)]
struct Writers {
    memories: Vec<Arc<WriterMemory>>,
    /// Segments of earlier processes.
    inherited: Vec<Mount>,
    /// The next segment's serial.
    serial: u64,
    /// Changes with either list.
    version: u64,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

impl Registry {
    /// Creates an empty registry and starts its provisioner.
    pub fn start(options: RegistryOptions) -> Result<Registry, RegistryError> {
        let place = match &options.shared {
            None => SegmentStorage::Unnamed,
            Some(folder) => {
                let directory = Directory::create(folder)?;
                directory.beat(options.process, options.now_ms)?;
                SegmentStorage::Shared(directory)
            }
        };
        let mut registry = Registry::with(options, place, 0, true)?;
        let body = registry.inner.clone();
        let provisioner = thread::Builder::new()
            .name("metrics-memory".to_owned())
            .spawn(move || body.provide_until_ended())
            .map_err(|error| RegistryError::Io("the thread that prepares memory", error))?;
        registry.inner.provisioner.set(provisioner.thread().clone()).expect("set nowhere else");
        registry.provisioner = Some(provisioner);
        Ok(registry)
    }

    /// Creates an empty registry whose writers prepare their memory themselves. Its first segment has this serial.
    pub(crate) fn inline(
        options: RegistryOptions,
        place: SegmentStorage,
        serial: u64,
    ) -> Result<Registry, RegistryError> {
        Registry::with(options, place, serial, false)
    }

    fn with(
        options: RegistryOptions,
        place: SegmentStorage,
        serial: u64,
        counts_collapses: bool,
    ) -> Result<Registry, RegistryError> {
        let hasher = SeedableRandomState::with_seed(options.seed, SharedSeed::global_random());
        let taken_max = AtomicUsize::new(writers_bytes_max(&options));
        let inner = Arc::new(RegistryCore {
            options,
            hasher,
            families: Mutex::default(),
            writers: Mutex::new(Writers { serial, ..Writers::default() }),
            taken: AtomicUsize::new(0),
            taken_max,
            storage_full: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            is_handed_over: AtomicBool::new(false),
            provisioner: OnceLock::new(),
            place,
            counts_collapses,
        });
        inner.declare(
            Family {
                name: COLLAPSED.to_owned(),
                help: "Observations whose label value was replaced by __other__, by family and label.".to_owned(),
                unit: String::new(),
                kind: FamilyType::Counter,
                labels: vec!["family".to_owned(), "label".to_owned()],
                exemplars: false,
            },
            u32::MAX,
        )?;
        Ok(Registry { inner, provisioner: None })
    }

    /// Declares a family, or finds an equal one that was declared before.
    pub fn declare(&self, family: Family) -> Result<Arc<DeclaredFamily>, RegistryError> {
        self.declare_bounded(family, u32::MAX)
    }

    /// Declares a family with its own bound on label sets, if that is less than [`RegistryOptions::series_per_family`]. A
    /// family that was declared before keeps its bound.
    pub fn declare_bounded(&self, family: Family, sets_max: u32) -> Result<Arc<DeclaredFamily>, RegistryError> {
        self.inner.declare(family, sets_max)
    }

    /// Creates a writer with a segment of its own.
    pub fn writer(&self) -> Result<Writer, RegistryError> {
        let memory = self.inner.add_memory(false)?;
        Ok(Writer::new(self.inner.clone(), memory))
    }

    /// Creates the writer of tombstones.
    pub(crate) fn exempt_writer(&self) -> Result<Writer, RegistryError> {
        let memory = self.inner.add_memory(true)?;
        Ok(Writer::new(self.inner.clone(), memory))
    }

    /// All families, in the order of their declaration.
    pub fn families(&self) -> Vec<Arc<DeclaredFamily>> {
        lock(&self.inner.families).clone()
    }

    /// The process that writes its segments.
    pub(crate) fn process(&self) -> SegmentProcess {
        self.inner.options.process
    }

    /// The segment with this serial.
    pub(crate) fn segment(&self, serial: u64) -> Option<Arc<Segment>> {
        self.memory(serial).map(|memory| memory.segment.clone())
    }

    /// The memory of every segment.
    pub(crate) fn memories(&self) -> Vec<Arc<WriterMemory>> {
        lock(&self.inner.writers).memories.clone()
    }

    /// The memory of the segment with this serial.
    pub(crate) fn memory(&self, serial: u64) -> Option<Arc<WriterMemory>> {
        lock(&self.inner.writers).memories.iter().find(|memory| memory.segment.serial == serial).cloned()
    }

    /// Observations for which there was no memory at all, not even in the overflow series.
    pub fn lost(&self) -> u64 {
        lock(&self.inner.writers).memories.iter().map(|memory| memory.lost.load(Ordering::Relaxed)).sum()
    }

    /// The segments to read.
    pub(crate) fn mounts(&self) -> Mounts {
        let ended = self.ended_meanwhile();
        let mut writers = lock(&self.inner.writers);
        writers.note_ended(&ended);
        let mount = |memory: &Arc<WriterMemory>| Mount { segment: memory.segment.clone(), is_alive: true };
        let own = writers.memories.iter().map(mount);
        Mounts { version: writers.version, segments: own.chain(writers.inherited.iter().cloned()).collect() }
    }

    /// Bytes of the records to read, over all writers.
    pub(crate) fn record_bytes(&self) -> usize {
        let writers = lock(&self.inner.writers);
        let own = writers.memories.iter().map(|memory| &memory.segment);
        let segments = own.chain(writers.inherited.iter().map(|mount| &mount.segment));
        segments.map(|segment| segment.committed() * WORD).sum()
    }

    /// Bytes of the writers: their logs (with epochs), and their indices (with the families' tables of label sets).
    pub fn bytes(&self) -> (usize, usize) {
        let of_families: usize = lock(&self.inner.families).iter().map(|family| family.bytes()).sum();
        let writers = lock(&self.inner.writers);
        let sum = |(log, index), memory: &Arc<WriterMemory>| (log + memory.bytes().0, index + memory.bytes().1);
        writers.memories.iter().fold((0, of_families), sum)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.inner.ended.store(true, Ordering::Relaxed);
        if let Some(provisioner) = self.provisioner.take() {
            provisioner.thread().unpark();
            // It panics only because of a bug, which has been reported then.
            let _ = provisioner.join();
        }
    }
}

/// A lock that survives a panic of another thread: its data is consistent between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes that the writers and the families' tables may take.
fn writers_bytes_max(options: &RegistryOptions) -> usize {
    (options.memory_bytes as f64 * WRITERS_SHARE) as usize
}

impl RegistryCore {
    fn declare(&self, family: Family, sets_max: u32) -> Result<Arc<DeclaredFamily>, RegistryError> {
        family.check()?;
        let mut families = lock(&self.families);
        if let Some(known) = families.iter().find(|known| *known.family() == family) {
            return Ok(known.clone());
        }
        if families.len() >= FAMILIES_MAX {
            return Err(FamilyError::TooMany(family.name).into());
        }
        // More sets than memory could hold need not be counted.
        let sets_max = sets_max.min(self.options.series_per_family);
        let sets_max = sets_max.min((self.options.memory_bytes / SET_BYTES_MIN) as u32);
        let declared = DeclaredFamily::new(families.len() as u32, family, sets_max)
            .map_err(|error| RegistryError::Io("a family's table of label sets", error))?;
        let declared = Arc::new(declared);
        families.push(declared.clone());
        Ok(declared)
    }

    /// The family of collapsed observations.
    pub(crate) fn collapsed(&self) -> Arc<DeclaredFamily> {
        lock(&self.families)[0].clone()
    }

    /// Creates a new writer's memory, which readers find from now on.
    pub(crate) fn add_memory(&self, is_exempt: bool) -> Result<Arc<WriterMemory>, RegistryError> {
        let mut writers = lock(&self.writers);
        if self.is_handed_over() {
            return Err(RegistryError::HandedOver);
        }
        let options = &self.options;
        let serial = writers.serial;
        let file = self.file_of(serial);
        let log_bytes = writers_bytes_max(&self.options).max(LOG_BYTES_MIN);
        let memory = WriterMemory::new(file.as_deref(), log_bytes, options.process, serial, is_exempt, options.now_ms)
            .map_err(|error| RegistryError::Io("a writer's memory", error))
            .and_then(|memory| self.list(&[], Some(serial)).map(|()| Arc::new(memory)));
        if let (Err(_), Some(file)) = (&memory, &file) {
            // The file may not exist, and the first error is more useful.
            let _ = std::fs::remove_file(file);
        }
        let memory = memory?;
        self.taken.fetch_add(memory.bytes().0 + memory.bytes().1, Ordering::Relaxed);
        self.provide(&memory);
        writers.serial += 1;
        writers.version += 1;
        writers.memories.push(memory.clone());
        Ok(memory)
    }

    /// Reserves the next serial, for a segment that is made elsewhere and then passed to [`RegistryCore::replace`].
    pub(crate) fn reserve_serial(&self) -> u64 {
        let mut writers = lock(&self.writers);
        writers.serial += 1;
        writers.serial - 1
    }

    /// The file of the segment with this serial, if it has one.
    pub(crate) fn file_of(&self, serial: u64) -> Option<PathBuf> {
        match &self.place {
            SegmentStorage::Unnamed => None,
            SegmentStorage::Shared(directory) => {
                Some(SegmentName { process: self.options.process, serial }.path(directory.folder()))
            }
            SegmentStorage::File(path) => Some(path.clone()),
        }
    }

    /// Replaces segments by one, in one step for all readers; with `None` they are only removed.
    pub(crate) fn replace(&self, gone: &[u64], by: Option<Arc<WriterMemory>>) -> Result<(), RegistryError> {
        let mut writers = lock(&self.writers);
        self.list(gone, by.as_ref().map(|memory| memory.segment.serial))?;
        let is_gone = |memory: &Arc<WriterMemory>| gone.contains(&memory.segment.serial);
        for memory in writers.memories.extract_if(.., |memory| is_gone(memory)) {
            self.taken.fetch_sub(memory.bytes().0 + memory.bytes().1, Ordering::Relaxed);
            if let Some(file) = self.file_of(memory.segment.serial) {
                // No reader finds it any more; processes that have it mapped keep it until they look again.
                std::fs::remove_file(file).map_err(|error| RegistryError::Io("room by removing a segment", error))?;
            }
        }
        if let Some(memory) = by {
            self.taken.fetch_add(memory.bytes().0 + memory.bytes().1, Ordering::Relaxed);
            writers.memories.push(memory);
        }
        writers.version += 1;
        Ok(())
    }

    /// Changes this process's part of a shared folder's list.
    fn list(&self, gone: &[u64], new: Option<u64>) -> Result<(), RegistryError> {
        let SegmentStorage::Shared(directory) = &self.place else { return Ok(()) };
        let own = |serial: u64| SegmentName { process: self.options.process, serial };
        let changing = directory.lock()?;
        let mut entries = directory.entries().1;
        entries.retain(|entry| !gone.iter().any(|serial| *entry == own(*serial)));
        entries.extend(new.map(own));
        Ok(directory.replace(&changing, &entries)?)
    }

    /// Whether most of the writers' memory is taken.
    pub(crate) fn is_short(&self) -> bool {
        let of_families: usize = lock(&self.families).iter().map(|family| family.bytes()).sum();
        self.taken.load(Ordering::Relaxed) + of_families > writers_bytes_max(&self.options) / 8 * 5
    }

    /// The hash of a family's label set, the same for all writers of the process. Each value is hashed independently:
    /// in a chain, each would wait for the multiplication before it.
    #[inline]
    pub(crate) fn hash(&self, family: u32, values: &[&[u8]]) -> u64 {
        let turned = |all: u64, value: &&[u8]| all.rotate_left(25) ^ self.hash_value(value);
        let all = values.iter().fold(0, turned);
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u128(u128::from(family) << 64 | u128::from(all));
        hasher.finish()
    }

    /// The hash of one label's value.
    #[inline]
    pub(crate) fn hash_value(&self, value: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(value);
        hasher.finish()
    }

    /// Calls the provisioner; once until it has come.
    #[inline]
    pub(crate) fn call_provisioner(&self, memory: &WriterMemory) {
        if !memory.called.load(Ordering::Relaxed) {
            self.wake_provisioner(memory);
        }
    }

    #[cold]
    fn wake_provisioner(&self, memory: &WriterMemory) {
        match self.provisioner.get() {
            Some(thread) => {
                memory.called.store(true, Ordering::Relaxed);
                thread.unpark();
            }
            None => self.provide(memory),
        }
    }

    fn provide_until_ended(&self) {
        while !self.ended.load(Ordering::Relaxed) {
            thread::park();
            let memories = lock(&self.writers).memories.clone();
            for memory in memories {
                if memory.called.swap(false, Ordering::Acquire) {
                    self.provide(&memory);
                }
            }
        }
    }

    /// Prepares memory for a writer, within the budget. If that fails (a full tmpfs, a limit), the writer has to manage
    /// with its current memory.
    fn provide(&self, memory: &WriterMemory) {
        let least = self.options.ahead_bytes / 8;
        let most = (AHEAD_BYTES_MAX / 8).max(least);
        let ahead = (memory.log.used() / 4).clamp(least, most);
        let families = lock(&self.families).clone();
        families.iter().filter(|family| family.sets.is_to_be_prepared()).for_each(|family| family.sets.prepare());
        let of_families: usize = families.iter().map(|family| family.bytes()).sum();
        self.taken_max.store(writers_bytes_max(&self.options).saturating_sub(of_families), Ordering::Relaxed);
        let provided = memory.provide(ahead, self.budget(memory));
        self.note_storage(&provided);
        if provided.is_err() {
            memory.exhausted.store(true, Ordering::Relaxed);
        }
    }

    fn note_storage<T>(&self, provided: &io::Result<T>) {
        let is_full = |error: &io::Error| matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
        self.storage_full.store(provided.as_ref().is_err_and(is_full), Ordering::Relaxed);
    }

    /// The shared folder, if its file system has no room for more series.
    pub(crate) fn full_folder(&self) -> Option<&Path> {
        let SegmentStorage::Shared(directory) = &self.place else { return None };
        self.storage_full.load(Ordering::Relaxed).then(|| &*directory.folder)
    }

    #[cfg(test)]
    pub(crate) fn set_storage_full(&self) {
        self.note_storage::<()>(&Err(ErrorKind::StorageFull.into()));
    }

    fn budget(&self, memory: &WriterMemory) -> MemoryBudget<'_> {
        let is_exempt = memory.is_exempt.load(Ordering::Relaxed);
        let max = if is_exempt { usize::MAX } else { self.taken_max.load(Ordering::Relaxed) };
        MemoryBudget { taken: &self.taken, max }
    }

    /// Whether a writer has the memory that it needs, if need be by preparing a few pages itself. False: the budget or
    /// the system has no more.
    #[inline]
    pub(crate) fn has_memory(&self, memory: &WriterMemory, needed: NeededMemory) -> bool {
        memory.has(needed) || self.provide_few(memory, needed)
    }

    #[cold]
    fn provide_few(&self, memory: &WriterMemory, needed: NeededMemory) -> bool {
        self.call_provisioner(memory);
        // The provisioner has been refused more; it tries again, so that the writer need not.
        if memory.exhausted.load(Ordering::Relaxed) {
            return memory.has(needed);
        }
        let provided = memory.provide_few(needed, self.budget(memory));
        self.note_storage(&provided);
        let is_provided = provided.unwrap_or(false);
        if !is_provided {
            memory.exhausted.store(true, Ordering::Relaxed);
        }
        is_provided
    }
}

// Hands the metrics over to the successor process, and takes over those of predecessors.
//
// The successor receives the segments themselves, as unnamed files, and reads them beside its own while the process
// that writes them keeps counting. When that process has ended, the successor folds its segments, as processes that
// share a folder do. It hands everything that it took over on to its own successor: several generations may run at a
// time.
//
// With a shared folder nothing is handed over: the successor finds everything there.

impl Registry {
    /// The memory of everything that this process exposes, for [`Registry::inherit`] of its successor; empty if they
    /// share a folder. From here on the writers keep the memory that they have, series do not end, and for a gauge
    /// merged by its last value, the successor's value counts once it has set one.
    pub fn hand_over(&self) -> io::Result<Vec<OwnedFd>> {
        // Under the lock, so that a segment is either handed over or not made.
        let writers = lock(&self.inner.writers);
        let own = writers.memories.iter().map(|memory| &memory.segment);
        let segments = own.chain(writers.inherited.iter().map(|mount| &mount.segment));
        let files = match self.inner.place {
            SegmentStorage::Shared(_) => Vec::new(),
            _ => segments.filter_map(|segment| segment.file()).collect::<io::Result<_>>()?,
        };
        self.inner.is_handed_over.store(true, Ordering::Release);
        Ok(files)
    }

    /// Cancels [`Registry::hand_over`] when the successor has failed.
    pub fn keep(&self) {
        self.inner.is_handed_over.store(false, Ordering::Release);
    }

    /// Takes over the segments that another process has handed over; must be called before anything is read. Files that
    /// cannot be read are skipped, and their errors returned.
    pub fn inherit(&self, files: Vec<OwnedFd>) -> Vec<SegmentError> {
        let mut writers = lock(&self.inner.writers);
        let mut refused = Vec::new();
        for (number, file) in files.into_iter().enumerate() {
            let called = PathBuf::from(format!("inherited segment {number}"));
            let segment = match Segment::inherit(file, &called) {
                Ok(segment) => segment,
                Err(error) => {
                    refused.push(error);
                    continue;
                }
            };
            let is_known = writers.inherited.iter().any(|mount| mount.segment.entry() == segment.entry());
            match is_known || segment.process == self.process() {
                true => refused.push(SegmentError::Twice(called)),
                false => writers.inherited.push(Mount { segment: Arc::new(segment), is_alive: true }),
            }
        }
        writers.version += 1;
        refused
    }

    /// Processes that were alive at the last check, and are not any more. Asking the system takes time, so the lock is
    /// not held meanwhile: the caller has the lowest priority.
    fn ended_meanwhile(&self) -> Vec<SegmentProcess> {
        let mut processes: Vec<SegmentProcess> = Vec::new();
        for mount in lock(&self.inner.writers).inherited.iter().filter(|mount| mount.is_alive) {
            if !processes.contains(&mount.segment.process) {
                processes.push(mount.segment.process);
            }
        }
        processes.retain(|process| !exists(*process));
        processes
    }
}

impl RegistryCore {
    /// Whether another process carries on the metrics.
    #[inline]
    pub(crate) fn is_handed_over(&self) -> bool {
        self.is_handed_over.load(Ordering::Acquire)
    }

    /// Replaces inherited segments by their totals, in one step for all readers.
    pub(crate) fn replace_inherited(&self, gone: &[Arc<Segment>], by: Option<Arc<Segment>>) {
        let mut writers = lock(&self.writers);
        writers.inherited.retain(|mount| !gone.iter().any(|segment| Arc::ptr_eq(segment, &mount.segment)));
        // Totals, without values that are true only of a live process.
        writers.inherited.extend(by.map(|segment| Mount { segment, is_alive: false }));
        writers.version += 1;
    }
}

impl Writers {
    /// Marks these processes as ended.
    fn note_ended(&mut self, ended: &[SegmentProcess]) {
        for mount in &mut self.inherited {
            if mount.is_alive && ended.contains(&mount.segment.process) {
                mount.is_alive = false;
                self.version += 1;
            }
        }
    }
}
