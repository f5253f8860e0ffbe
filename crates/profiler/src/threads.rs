//! The threads that can be profiled, each by a registration that it owns.
//!
//! Registering gives the thread an alternate stack for the signal handler and a place in the process's list. It costs a
//! few system calls at its start and nothing later.

#![expect(unsafe_code, reason = "the thread's stack and its alternate stack have no safe name")]

use crate::machine;
use crate::signal::{self, StackScratch};
use crate::walk::{FRAMES_MAX, Stack, walk};
use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, compiler_fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Most threads that can be profiled.
pub const THREADS_MAX: usize = 1024;

/// Stack of the handler, in addition to the registers that the kernel saves.
const HANDLER_STACK_BYTES: usize = 32 * 1024;

/// The most that the kernel saves, unless it reports another size.
const FRAME_BYTES: usize = 16 * 1024;

/// All registered threads of the process.
static THREADS: Mutex<Vec<Arc<Thread>>> = Mutex::new(Vec::new());

thread_local! {
    /// This thread, for the handler that interrupts it. Without a destructor and initialised with a constant, so that
    /// reading it is one load.
    static CURRENT: Cell<*const Thread> = const { Cell::new(null()) };
    /// What this thread works on, innermost first, for its handler. Only this thread writes it.
    static WORK: AtomicPtr<Work> = const { AtomicPtr::new(null_mut()) };
}

/// How often a thread's event loop has gone to sleep and woken up: odd while it sleeps, as
/// `tokio::runtime::RuntimeMetrics::worker_park_unpark_count` counts.
pub type Turns = Box<dyn Fn() -> u64 + Send + Sync>;

/// A registered thread.
pub(crate) struct Thread {
    pub(crate) name: String,
    pub(crate) tid: i32,
    pub(crate) stack: Stack,
    /// Samples of CPU time.
    pub(crate) ring: Ring,
    /// Requested stacks.
    pub(crate) asked_ring: Ring,
    /// Whether its stack was requested.
    pub(crate) asked: AtomicBool,
    pub(crate) turns: Option<Turns>,
    /// Stacks of scripts at samples, which the thread itself adds outside of its handler.
    pub(crate) scripts: Mutex<Vec<ScriptStack>>,
    /// Memory of the handler on this thread.
    pub(crate) scratch: UnsafeCell<StackScratch>,
}

// SAFETY: only the handler uses `scratch`, on this thread; everything else may be shared.
unsafe impl Sync for Thread {}

impl fmt::Debug for Thread {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Thread").field("name", &self.name).field("tid", &self.tid).finish_non_exhaustive()
    }
}

/// Registers the calling thread until it is dropped, on that thread.
#[derive(Debug)]
pub struct Registration {
    thread: Arc<Thread>,
    _alternate: AlternateStack,
    /// Not `Send`: it belongs to its thread.
    _here: PhantomData<*const ()>,
}

impl Registration {
    /// Registers the calling thread. Call it in the thread's first function: stacks are shown from there on. `turns` is
    /// `None` for a thread without an event loop.
    pub fn new(name: &str, turns: Option<Turns>) -> io::Result<Registration> {
        if !CURRENT.get().is_null() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the thread is already registered"));
        }
        signal::install()?;
        let range = stack_range()?;
        let alternate = AlternateStack::new()?;
        let thread = Arc::new(Thread {
            name: name.to_owned(),
            tid: rustix::thread::gettid().as_raw_nonzero().get(),
            stack: Stack { bottom: bottom(&range), range },
            ring: Ring::default(),
            asked_ring: Ring::default(),
            asked: AtomicBool::new(false),
            turns,
            scripts: Mutex::default(),
            scratch: UnsafeCell::new(StackScratch::EMPTY),
        });
        let mut threads = list();
        if threads.len() >= THREADS_MAX {
            return Err(io::Error::other(format!("more than {THREADS_MAX} threads cannot be profiled")));
        }
        threads.push(thread.clone());
        drop(threads);
        CURRENT.set(Arc::as_ptr(&thread));
        Ok(Registration { thread, _alternate: alternate, _here: PhantomData })
    }

    /// Registers the calling thread by its own name; `None` if it cannot be profiled, which does not affect it
    /// otherwise.
    pub fn of_current() -> Option<Registration> {
        Registration::new(std::thread::current().name()?, None).ok()
    }

    /// Interrupts the calling thread for a sample and drops it, to measure its cost.
    pub fn interrupt(&self) -> io::Result<()> {
        self.interrupter().interrupt()
    }

    /// Lets another thread do this.
    pub fn interrupter(&self) -> TrialInterrupter {
        self.thread.asked_ring.prepare();
        TrialInterrupter(self.thread.clone())
    }
}

/// Interrupts a thread for samples that are dropped, to measure their cost and check that they are harmless. No profile
/// is taken meanwhile: a ring has one reader.
#[derive(Debug)]
pub struct TrialInterrupter(Arc<Thread>);

impl TrialInterrupter {
    /// Interrupts it once. Fails if the thread has ended, or has too many pending signals.
    pub fn interrupt(&self) -> io::Result<()> {
        let asked = signal::ask(&self.0);
        while self.0.asked_ring.pop(&mut Vec::new()) {}
        asked
    }

    /// The thread's number.
    pub fn thread(&self) -> i32 {
        self.0.tid
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        CURRENT.set(null());
        // The handler runs on this thread only: it sees this store before anything below.
        compiler_fence(Ordering::SeqCst);
        list().retain(|thread| !Arc::ptr_eq(thread, &self.thread));
    }
}

/// The registered threads.
pub(crate) fn all() -> Vec<Arc<Thread>> {
    list().clone()
}

/// The calling thread, for the handler and the allocator.
#[inline]
pub(crate) fn current() -> *const Thread {
    CURRENT.try_with(Cell::get).unwrap_or(null())
}

fn list() -> MutexGuard<'static, Vec<Arc<Thread>>> {
    THREADS.lock().unwrap_or_else(PoisonError::into_inner)
}

// What a thread works on.
//
// It is on the thread's stack while the work is done, and its handler reads it there. Nested work refers to the outer one.

/// Kinds of work that a sample names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkKind {
    /// A request or response of a route.
    Route,
    /// A call of a plugin.
    Plugin,
}

/// Work in progress.
pub(crate) struct Work {
    kind: WorkKind,
    name: *const u8,
    bytes: usize,
    outer: *const Work,
}

/// Most bytes of a name that a sample has.
pub(crate) const NAME_BYTES_MAX: usize = 128;

/// Most nested work that is searched for a name.
const NESTED_MAX: usize = 8;

/// Ends work, also if it panics.
struct WorkEnd<'a> {
    current: &'a AtomicPtr<Work>,
    outer: *mut Work,
}

impl Drop for WorkEnd<'_> {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.current.store(self.outer, Ordering::Relaxed);
    }
}

/// Does work that samples of this thread attribute to `name`. A task is polled within it, since tasks interleave.
#[inline]
pub fn work_on<R>(kind: WorkKind, name: &str, work: impl FnOnce() -> R) -> R {
    WORK.with(|current| {
        let outer = current.load(Ordering::Relaxed);
        let new = Work { kind, name: name.as_ptr(), bytes: name.len(), outer };
        let _end = WorkEnd { current, outer };
        // The handler runs on this thread: it sees all of `new` once it sees its address.
        compiler_fence(Ordering::SeqCst);
        current.store((&raw const new).cast_mut(), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        work()
    })
}

/// The name of the innermost work of a kind, in words of the first [`NAME_BYTES_MAX`] bytes, and its length. For the handler.
#[inline]
pub(crate) fn work_name(kind: WorkKind, words: &mut [u64; NAME_BYTES_MAX / 8]) -> usize {
    let mut at = WORK.try_with(|current| current.load(Ordering::Relaxed).cast_const()).unwrap_or(null());
    for _ in 0..NESTED_MAX {
        // SAFETY: null, or on this thread's stack until its `WorkEnd` is dropped, which has not happened: the thread is
        // interrupted.
        let Some(work) = (unsafe { at.as_ref() }) else { return 0 };
        if work.kind != kind {
            at = work.outer;
            continue;
        }
        let length = work.bytes.min(NAME_BYTES_MAX);
        for (number, word) in words.iter_mut().enumerate().take(length.div_ceil(8)) {
            let mut packed = 0;
            for byte in 0..(length - 8 * number).min(8) {
                // SAFETY: `work_on` borrows the name while the work is in progress. Volatile, or it becomes a call of `memcpy`.
                packed |= u64::from(unsafe { work.name.add(8 * number + byte).read_volatile() }) << (8 * byte);
            }
            *word = packed;
        }
        return length;
    }
    0
}

/// The name in such words; what is cut off ends with an ellipsis.
pub(crate) fn name_of_words(words: &[u64], length: usize) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).take(length).collect();
    let mut name = match std::str::from_utf8(&bytes) {
        Ok(name) => name.to_owned(),
        Err(error) => String::from_utf8_lossy(&bytes[..error.valid_up_to()]).into_owned(),
    };
    if length == NAME_BYTES_MAX {
        name.push('…');
    }
    name
}

// Stacks of scripts, which an interpreter on the thread runs.
//
// The handler cannot read them. It asks the interpreter, which adds its stack when it next can.

/// Most stacks of scripts that wait for their samples.
const SCRIPTS_MAX: usize = 512;

/// A script's stack, for the samples of a time.
#[derive(Debug)]
pub(crate) struct ScriptStack {
    /// The ticks of the first and the last sample.
    pub(crate) ticks: (u64, u64),
    /// Function, file and line, the innermost first.
    pub(crate) frames: Vec<ScriptFrame>,
}

/// A function of a script.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ScriptFrame {
    /// Its name, with the place where it begins.
    pub function: String,
    /// Its file; empty: none.
    pub file: String,
    /// The current line; zero: unknown.
    pub line: u32,
}

/// Called by the handler of a sample, with its ticks: returns whether a script runs, whose stack will be added. It does
/// only what handlers may do.
pub type AskScript = fn(ticks: u64) -> bool;

/// The interpreter.
static ASK_SCRIPT: OnceLock<AskScript> = OnceLock::new();

/// Sets the interpreter that samples ask, once in the process.
pub fn set_interpreter(ask: AskScript) {
    ASK_SCRIPT.get_or_init(|| ask);
}

/// Asks the interpreter for its stack. For the handler.
#[inline]
pub(crate) fn ask_script(ticks: u64) -> bool {
    ASK_SCRIPT.get().is_some_and(|ask| ask(ticks))
}

/// Adds the stack of the script that runs on the calling thread, for its samples with ticks from `first` to `last`. Not for
/// handlers.
pub fn add_script(first: u64, last: u64, frames: Vec<ScriptFrame>) {
    // SAFETY: null, or valid while this thread's registration lives, which holds it.
    let Some(thread) = (unsafe { current().as_ref() }) else { return };
    // The thread never waits for the reader: then the sample has no script.
    let Ok(mut scripts) = thread.scripts.try_lock() else { return };
    // Without a reader, the oldest are of no use.
    if scripts.len() >= SCRIPTS_MAX {
        scripts.clear();
    }
    scripts.push(ScriptStack { ticks: (first, last), frames });
}

/// The range of the calling thread's stack.
pub(crate) fn stack_range() -> io::Result<Range<usize>> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut start, mut bytes) = (null_mut(), 0);
    // SAFETY: filled by the first call, read and destroyed only if that has succeeded.
    let failed = unsafe {
        let failed = libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr());
        if failed == 0 {
            libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut start, &raw mut bytes);
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
        }
        failed
    };
    match failed {
        0 => Ok(start as usize..start as usize + bytes),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// The current outermost frame: frames above it do not belong to the thread's own functions.
#[inline(never)]
fn bottom(range: &Range<usize>) -> usize {
    let mut frames = [0; 2 * FRAMES_MAX];
    let stack = Stack { range: range.clone(), bottom: 0 };
    // SAFETY: `walk` reads aligned words between the stack pointer and the end of this thread's stack only.
    let walked = walk(machine::here(), &stack, |at| unsafe { machine::word_at(at) }, signal::is_code, &mut frames);
    walked.words.checked_sub(2).map_or(0, |last| frames[last] as usize)
}

/// The stack of the handler: the interrupted one may be nearly full, or not ours. An inaccessible page is below it.
#[derive(Debug)]
struct AlternateStack {
    mapping: *mut libc::c_void,
    bytes: usize,
    former: libc::stack_t,
}

impl AlternateStack {
    fn new() -> io::Result<AlternateStack> {
        let page = rustix::param::page_size();
        // SAFETY: reads a number that the kernel gave the process.
        let saved = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } as usize;
        let usable = (saved.max(FRAME_BYTES) + HANDLER_STACK_BYTES).next_multiple_of(page);
        let bytes = usable + page;
        // SAFETY: a new, private mapping; its first page is made inaccessible; the rest becomes the alternate stack of
        // this thread, whose former one is kept to be restored.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let mapping = libc::mmap(null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            if mapping == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let mut stack = AlternateStack { mapping, bytes, former: std::mem::zeroed() };
            let new = libc::stack_t { ss_sp: mapping.byte_add(page), ss_flags: 0, ss_size: usable };
            if libc::sigaltstack(null(), &raw mut stack.former) != 0
                || libc::mprotect(mapping, page, libc::PROT_NONE) != 0
                || libc::sigaltstack(&raw const new, null_mut()) != 0
            {
                return Err(io::Error::last_os_error());
            }
            Ok(stack)
        }
    }
}

impl Drop for AlternateStack {
    fn drop(&mut self) {
        // SAFETY: on the thread that made it, outside of any handler; the former stack belongs to the standard library,
        // which keeps it until the thread ends. Unmapped only once it is not the alternate stack any more.
        unsafe {
            if libc::sigaltstack(&raw const self.former, null_mut()) == 0 {
                libc::munmap(self.mapping, self.bytes);
            }
        }
    }
}

// The ring that a thread's signal handler writes samples into.
//
// One writer, one reader, no lock: the writer owns `head`, the reader owns `tail`. A record that does not fit is lost
// and counted; nothing is ever overwritten. The words are allocated by the first profile, not by the thread, and stay
// until the thread ends, so a late signal still has room.

/// Words of 8 bytes: 512 KiB per thread, a third of a second of samples at the usual highest rate (250 Hz) even if
/// every stack has full depth.
const WORDS: usize = 1 << 16;

/// Records of words, each after its length.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    words: OnceLock<Box<[AtomicU64]>>,
    /// Words written since the start.
    head: AtomicU64,
    /// Words read since the start; never more than `head`, never less than `head - WORDS`.
    tail: AtomicU64,
    lost: AtomicU64,
}

impl Ring {
    /// Allocates the words. Must not be called by the handler.
    pub(crate) fn prepare(&self) {
        self.words.get_or_init(|| (0..WORDS).map(|_| AtomicU64::new(0)).collect());
    }

    /// Adds a record of several parts. For the handler: it cannot panic, wait or allocate.
    #[inline]
    pub(crate) fn push(&self, parts: &[&[u64]]) {
        let Some(words) = self.words.get() else { return };
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let (head, tail) = (self.head.load(Ordering::Relaxed), self.tail.load(Ordering::Acquire));
        if (head - tail) as usize + length + 1 > WORDS {
            self.lost.store(self.lost.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            return;
        }
        let mut at = head;
        let mut put = |word: u64| {
            if let Some(place) = words.get(at as usize % WORDS) {
                place.store(word, Ordering::Relaxed);
            }
            at += 1;
        };
        put(length as u64);
        for part in parts {
            for word in *part {
                put(*word);
            }
        }
        self.head.store(at, Ordering::Release);
    }

    /// Takes the oldest record; `false` if there is none. Only one thread may do so at a time.
    pub(crate) fn pop(&self, record: &mut Vec<u64>) -> bool {
        record.clear();
        let Some(words) = self.words.get() else { return false };
        let (head, tail) = (self.head.load(Ordering::Acquire), self.tail.load(Ordering::Relaxed));
        if head == tail {
            return false;
        }
        let word = |at: u64| words[at as usize % WORDS].load(Ordering::Relaxed);
        let length = word(tail);
        record.extend((tail + 1..=tail + length).map(word));
        self.tail.store(tail + 1 + length, Ordering::Release);
        true
    }

    /// Records that did not fit, since the start.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_thread_is_registered_once_and_gone_with_its_guard() {
        let (name, tid) = thread::spawn(|| {
            let registration = Registration::new("once", None).unwrap();
            assert_eq!(Registration::new("twice", None).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            let known = all().into_iter().find(|thread| thread.name == "once").unwrap();
            let here = &raw const known as usize;
            assert!(known.stack.range.contains(&here) && known.stack.range.contains(&known.stack.bottom), "{known:?}");
            drop(registration);
            (known.name.clone(), known.tid)
        })
        .join()
        .unwrap();
        assert!(all().iter().all(|thread| (thread.name.as_str(), thread.tid) != (&*name, tid)));
        // The number is free again.
        assert!(thread::spawn(|| Registration::new("later", None).is_ok()).join().unwrap());
    }

    fn names() -> [String; 2] {
        [WorkKind::Route, WorkKind::Plugin].map(|kind| {
            let mut words = [0; NAME_BYTES_MAX / 8];
            let length = work_name(kind, &mut words);
            name_of_words(&words, length)
        })
    }

    #[test]
    fn work_has_the_innermost_names_until_it_ends() {
        assert_eq!(names(), ["", ""]);
        work_on(WorkKind::Route, "shop", || {
            assert_eq!(names(), ["shop", ""]);
            work_on(WorkKind::Plugin, "limit-count", || assert_eq!(names(), ["shop", "limit-count"]));
            let failed = std::panic::catch_unwind(|| {
                work_on(WorkKind::Plugin, "broken", || std::panic::resume_unwind(Box::new(())));
            });
            assert!(failed.is_err());
            assert_eq!(names(), ["shop", ""]);
            work_on(WorkKind::Route, "", || assert_eq!(names(), ["", ""]));
        });
        assert_eq!(names(), ["", ""]);
    }

    #[test]
    fn names_are_data_and_bounded() {
        let hostile = "</script>\u{0}\"\n\u{202e}";
        work_on(WorkKind::Route, hostile, || assert_eq!(names()[0], hostile));
        let long = format!("a{}", "ä".repeat(100));
        work_on(WorkKind::Route, &long, || assert_eq!(names()[0], format!("a{}…", "ä".repeat(63))));
    }

    #[test]
    fn the_former_alternate_stack_is_there_again() {
        let now = || {
            // SAFETY: only reads.
            unsafe {
                let mut stack: libc::stack_t = std::mem::zeroed();
                libc::sigaltstack(null(), &raw mut stack);
                (stack.ss_sp as usize, stack.ss_size)
            }
        };
        thread::spawn(move || {
            let before = now();
            let registration = Registration::new("stacks", None).unwrap();
            assert_ne!(now(), before);
            drop(registration);
            assert_eq!(now(), before);
        })
        .join()
        .unwrap();
    }
}

#[cfg(test)]
mod ring_tests {
    use super::*;
    use std::thread;

    #[test]
    fn without_words_nothing_is_kept() {
        let ring = Ring::default();
        ring.push(&[&[1, 2]]);
        assert!(!ring.pop(&mut Vec::new()));
        assert_eq!(ring.lost(), 0);
    }

    #[test]
    fn what_does_not_fit_is_lost_and_counted_and_the_rest_stays() {
        let ring = Ring::default();
        ring.prepare();
        let record = [7; 999];
        let fitting = WORDS / 1000;
        for _ in 0..fitting + 3 {
            ring.push(&[&record[..1], &record[1..]]);
        }
        assert_eq!(ring.lost(), 3);
        let mut taken = Vec::new();
        for _ in 0..fitting {
            assert!(ring.pop(&mut taken));
            assert_eq!(taken, record);
        }
        assert!(!ring.pop(&mut taken));
        ring.push(&[&[1]]);
        assert!(ring.pop(&mut taken) && taken == [1]);
    }

    /// Goes round the ring many times, with a reader in parallel to the writer.
    #[test]
    fn records_arrive_in_order_and_whole() {
        let ring = Ring::default();
        ring.prepare();
        let records = 200_000_u64;
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..records {
                    let rest = vec![number; (number % 17) as usize];
                    let lost = ring.lost();
                    ring.push(&[&[number], &rest]);
                    while ring.lost() != lost {
                        ring.lost.store(lost, Ordering::Relaxed);
                        thread::yield_now();
                        ring.push(&[&[number], &rest]);
                    }
                }
            });
            let mut record = Vec::new();
            for number in 0..records {
                while !ring.pop(&mut record) {
                    thread::yield_now();
                }
                assert_eq!(record.len(), 1 + (number % 17) as usize);
                assert!(record.iter().all(|word| *word == number), "{number}: {record:?}");
            }
        });
    }
}
