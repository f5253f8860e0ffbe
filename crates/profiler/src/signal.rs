//! The signal handler: it records the stack of its thread.
//!
//! A signal comes from a timer of the thread's CPU time, or from a request for the thread's stack. The handler is
//! installed once and stays: a signal that arrives after a profile has ended finds no request and a ring without a
//! reader, and is harmless. With the default action it would end the process.
//!
//! A sample is a record of words:
//!
//! ```text
//!  kind │ weight │ ticks │ end │ ip │ sp │ fp │ bytes of both names, words of the stack's top, gaps │
//!  the route's name … │ the plugin's name … │ the stack's top … │ a gap's address, the words there … │
//!  frame address, return address, …
//! ```

#![expect(unsafe_code, reason = "a signal handler, and what it reads of the interrupted stack")]

use crate::symbols::image;
use crate::threads::{NAME_BYTES_MAX, WorkKind, ask_script, name_of_words, work_name};
use crate::timer::{mark_of, periods_of};
use crate::walk::{FRAMES_MAX, GAPS_MAX, Registers, WalkEnd, WalkResult, walk};
use crate::{machine, threads};
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};

/// The signal, which profilers use by convention.
pub const SIGNAL: i32 = libc::SIGPROF;

/// The bit of a record's cause that says that a script ran.
const IN_SCRIPT_BIT: u32 = 8;

/// The mark of the continuous profile's timers.
pub(crate) const CONTINUOUS: usize = 1;

/// Words copied from the top of the stack: enough for a few functions on top of each other without frame pointers,
/// including those that unwind panics and cryptographic assembly.
const TOP_WORDS: usize = 384;

/// Words copied at each gap of the walk: as many as it searches, and the frame before them.
const GAP_WORDS: usize = 162;

/// Words before the names.
const HEADER_WORDS: usize = 8;

/// Most ranges of code that are known; there are more only if very many libraries are loaded.
const CODE_RANGES_MAX: usize = 16;

/// Why a sample was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A period of CPU time is over, of a profile that was requested.
    Timer,
    /// Ring of the continuous profile.
    Continuous,
    /// The stack was requested.
    Asked,
}

/// A recorded sample.
#[derive(Debug)]
pub(crate) struct RawSample<'a> {
    pub(crate) cause: Cause,
    /// A script ran, whose stack is added later.
    pub(crate) in_script: bool,
    /// The number of periods that it represents.
    pub(crate) weight: u64,
    pub(crate) ticks: u64,
    pub(crate) end: WalkEnd,
    pub(crate) registers: Registers,
    /// The route and the plugin that the thread worked on; empty: none.
    pub(crate) work: [String; 2],
    /// Words from the stack pointer on.
    pub(crate) top: &'a [u64],
    /// Addresses of frames at gaps, each with the words from there on.
    pub(crate) gaps: &'a [[u64; GAP_WORDS + 1]],
    /// Pairs of a frame's address and its return address.
    pub(crate) frames: &'a [u64],
}

impl<'a> RawSample<'a> {
    /// Reads a record of a ring.
    pub(crate) fn of_record(record: &'a [u64]) -> Option<RawSample<'a>> {
        let (&[cause, weight, ticks, end, ip, sp, fp, lengths], rest) = record.split_first_chunk::<HEADER_WORDS>()?;
        let [route, plugin, top, gaps] = [0, 16, 32, 48].map(|shift| usize::from((lengths >> shift) as u16));
        let (route_words, rest) = rest.split_at_checked(route.div_ceil(8))?;
        let (plugin_words, rest) = rest.split_at_checked(plugin.div_ceil(8))?;
        let (top, rest) = rest.split_at_checked(top)?;
        let (gaps, frames) = rest.split_at_checked(gaps * (GAP_WORDS + 1))?;
        Some(RawSample {
            in_script: cause >> IN_SCRIPT_BIT != 0,
            cause: match cause & !(1 << IN_SCRIPT_BIT) {
                0 => Cause::Timer,
                1 => Cause::Continuous,
                _ => Cause::Asked,
            },
            weight,
            ticks,
            end: WalkEnd::of_word(end),
            registers: Registers { ip: ip as usize, sp: sp as usize, fp: fp as usize },
            work: [name_of_words(route_words, route), name_of_words(plugin_words, plugin)],
            top,
            gaps: gaps.as_chunks().0,
            frames,
        })
    }

    /// The lowest recorded frame from an address on.
    pub(crate) fn frame_above(&self, sp: u64) -> Option<u64> {
        self.frames.as_chunks::<2>().0.iter().map(|[frame, _]| *frame).find(|frame| *frame >= sp)
    }

    /// A word of the stack, if it was copied.
    pub(crate) fn word(&self, at: u64) -> Option<u64> {
        let in_part = |start: u64, words: &[u64]| {
            let offset = usize::try_from(at.checked_sub(start)? / 8).ok()?;
            words.get(offset).copied()
        };
        let in_gap = |gap: &[u64; GAP_WORDS + 1]| in_part(gap[0], &gap[1..]);
        in_part(self.registers.sp as u64, self.top).or_else(|| self.gaps.iter().find_map(in_gap))
    }
}

struct Range {
    start: AtomicUsize,
    end: AtomicUsize,
}

impl Range {
    const fn none() -> Range {
        Range { start: AtomicUsize::new(0), end: AtomicUsize::new(0) }
    }

    fn set(&self, to: &std::ops::Range<usize>) {
        self.start.store(to.start, Ordering::Relaxed);
        self.end.store(to.end, Ordering::Relaxed);
    }

    #[inline]
    fn has(&self, word: usize) -> bool {
        word >= self.start.load(Ordering::Relaxed) && word < self.end.load(Ordering::Relaxed)
    }
}

/// The ranges of code. Written before the handler is installed, and before the heap is sampled.
static CODE: [Range; CODE_RANGES_MAX] = [const { Range::none() }; CODE_RANGES_MAX];

/// Whether a word may be the address of an instruction.
#[inline]
pub(crate) fn is_code(word: usize) -> bool {
    CODE.iter().any(|range| range.has(word))
}

/// Finds the ranges of code, unless they are known.
pub(crate) fn find_code() {
    static FOUND: Once = Once::new();
    FOUND.call_once(|| {
        let code = image::read_mappings().unwrap_or_default().into_iter().filter(|mapping| mapping.is_code);
        for (range, mapping) in CODE.iter().zip(code) {
            range.set(&mapping.range);
        }
    });
}

/// Installs the handler, unless it is installed.
pub(crate) fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        find_code();
        // SAFETY: a handler of the form required by `SA_SIGINFO`, which only does what handlers may do.
        let failed = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as extern "C" fn(_, _, _) as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            libc::sigfillset(&raw mut action.sa_mask);
            libc::sigaction(SIGNAL, &raw const action, null_mut()) != 0
        };
        if failed { Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(()) }
    });
    installed.map_err(io::Error::from_raw_os_error)
}

/// Requests the stack of a thread, which is written into its ring for such stacks.
pub(crate) fn ask(thread: &threads::Thread) -> io::Result<()> {
    thread.asked.store(true, Ordering::Release);
    // SAFETY: the handler is installed, or there would be no registered thread. If another thread has that number by
    // now, it belongs to this process, and its stack was not requested.
    let failed = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread.tid, SIGNAL) } != 0;
    if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Where the handler of one thread composes a stack: in existing memory, since an alternate stack may be small, and
/// zeroing an array would call the C library.
pub(crate) struct StackScratch {
    frames: [u64; 2 * FRAMES_MAX],
    top: [u64; TOP_WORDS],
    names: [[u64; NAME_BYTES_MAX / 8]; 2],
    gaps: [[u64; GAP_WORDS + 1]; GAPS_MAX],
}

impl StackScratch {
    pub(crate) const EMPTY: StackScratch = StackScratch {
        frames: [0; 2 * FRAMES_MAX],
        top: [0; TOP_WORDS],
        names: [[0; NAME_BYTES_MAX / 8]; 2],
        gaps: [[0; GAP_WORDS + 1]; GAPS_MAX],
    };
}

/// Runs on the interrupted thread, on its alternate stack, with all signals blocked. No lock, no allocation, no panic, no function of
/// the C library; `errno` is not touched.
extern "C" fn handle(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let thread = threads::current();
    // SAFETY: null, or valid while this thread's registration lives, which holds it.
    let Some(thread) = (unsafe { thread.as_ref() }) else { return };
    // SAFETY: the kernel has filled it, in the form for timers if the code is theirs.
    let (cause, weight) = unsafe {
        if (*info).si_code == libc::SI_TIMER {
            (if mark_of(info) == CONTINUOUS { Cause::Continuous } else { Cause::Timer }, periods_of(info))
        } else if thread.asked.swap(false, Ordering::Acquire) {
            (Cause::Asked, 1)
        } else {
            return;
        }
    };
    // SAFETY: this is a handler with `SA_SIGINFO`.
    let registers = unsafe { machine::interrupted(context) };
    // SAFETY: only used by this handler, on this thread, and the signal is blocked while it runs.
    let StackScratch { frames, top, names: [route, plugin], gaps } = unsafe { &mut *thread.scratch.get() };
    // SAFETY: only called with aligned addresses from the stack pointer to the end of this thread's stack, which is
    // mapped.
    let read = |at| unsafe { machine::word_at(at) };
    let WalkResult { words, gaps: found, end } = walk(registers, &thread.stack, read, is_code, frames);
    let copy = |from: usize, places: &mut [u64]| {
        let mut copied = 0;
        for (place, at) in places.iter_mut().zip((from..thread.stack.range.end).step_by(8)) {
            *place = read(at) as u64;
            copied += 1;
        }
        copied
    };
    let is_own = registers.sp.is_multiple_of(8) && thread.stack.range.contains(&registers.sp);
    let copied = if is_own { copy(registers.sp, top) } else { 0 };
    let mut gap_count = 0;
    for (gap, at) in gaps.iter_mut().zip(found).take_while(|(_, at)| *at != 0) {
        let [address, places @ ..] = gap;
        *address = at as u64;
        // Words beyond the stack's end keep an older value, which the search has not seen either.
        copy(at, places);
        gap_count += 1;
    }
    let ring = if cause == Cause::Asked { &thread.asked_ring } else { &thread.ring };
    let ticks = machine::ticks();
    let in_script = cause != Cause::Asked && ask_script(ticks);
    let cause = cause as u64 | u64::from(in_script) << IN_SCRIPT_BIT;
    let Registers { ip, sp, fp } = registers;
    let names = [(WorkKind::Route, route), (WorkKind::Plugin, plugin)].map(|(kind, words)| {
        let length = work_name(kind, words);
        (length as u64, words.get(..length.div_ceil(8)).unwrap_or(&[]))
    });
    let [(route_bytes, route), (plugin_bytes, plugin)] = names;
    let lengths = route_bytes | plugin_bytes << 16 | (copied as u64) << 32 | gap_count << 48;
    let header = [cause, weight, ticks, end.word(), ip as u64, sp as u64, fp as u64, lengths];
    let gaps = gaps.as_flattened();
    if let (Some(top), Some(gaps), Some(frames)) =
        (top.get(..copied), gaps.get(..gap_count as usize * (GAP_WORDS + 1)), frames.get(..words))
    {
        ring.push(&[&header, route, plugin, top, gaps, frames]);
    }
}
