//! How a writer and its readers agree without waiting for each other: six small rules over atomics.
//!
//! 1. *Commit*: a record is written in full before `committed` grows past it; a reader that sees it committed sees all
//!    of it.
//! 2. *Epochs*: a changed value is stored before its epoch; a reader that sees the epoch sees the value. A reader that
//!    loads the writer's epoch before those of the series, and next time looks for that epoch or a later one, misses
//!    none.
//! 3. *Sequence*: words that belong together are guarded by a number that is odd while they change.
//! 4. *Errands*: a request is done once the count of completed errands reaches the count of requests; a thread that
//!    sees that sees everything that the writer changed before.
//! 5. *Tables*: of two tables the lowest bit of a number selects the current one; the other is changed, and then the
//!    number.
//! 6. *Policies*: the collapsed labels are one word, which any writer may change. A writer that acts on a policy has
//!    recorded it in its own log before; a reader that sees what was written under a policy has read the policy.
//!
//! Readers may have the words in memory that is mapped read-only: they load relaxed, and fence. This module does not
//! know where the atomics are, so that loom can try every interleaving (`xtask/interleavings`).

use crate::sync::{AtomicU32, AtomicU64, Ordering, Word, fence, relax};

/// Publishes everything stored before to the threads that then see `words` committed.
#[inline]
pub(crate) fn commit(committed: &AtomicU64, words: u64) {
    committed.store(words, Ordering::Release);
}

/// Number of words that may be read.
#[inline]
pub(crate) fn committed(committed: &impl Word<Value = u64>) -> u64 {
    acquire(committed)
}

/// Marks the value that was stored before as changed in this epoch.
#[inline]
pub(crate) fn mark_changed(of_series: &AtomicU32, epoch: u32) {
    of_series.store(epoch, Ordering::Release);
}

/// Begins a writer's next epoch.
#[inline]
pub(crate) fn advance(of_writer: &AtomicU32, epoch: u32) {
    of_writer.store(epoch, Ordering::Release);
}

/// The writer's epoch, to be loaded before the series are checked, and to be passed to the next check as `since`.
#[inline]
pub(crate) fn epoch(of_writer: &impl Word<Value = u32>) -> u32 {
    acquire(of_writer)
}

/// Whether a series changed in epoch `since` or later. If so, its value may be read after [`see_changes`].
#[inline]
pub(crate) fn has_changed(of_series: &impl Word<Value = u32>, since: u32) -> bool {
    // Epochs wrap after years; the signed distance still holds.
    of_series.get().wrapping_sub(since).cast_signed() >= 0
}

/// Makes the values of all series for which [`has_changed`] returned true visible.
#[inline]
pub(crate) fn see_changes() {
    fence(Ordering::Acquire);
}

/// Changes words that belong together. There is one writer: only it changes the number.
#[inline]
pub(crate) fn write(sequence: &AtomicU64, change: impl FnOnce()) {
    let before = sequence.load(Ordering::Relaxed);
    sequence.store(before.wrapping_add(1), Ordering::Relaxed);
    // A reader that sees one of the changes sees the odd number.
    fence(Ordering::Release);
    change();
    sequence.store(before.wrapping_add(2), Ordering::Release);
}

/// The result of reading words that belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    /// All words as they were at one moment.
    Whole,
    /// The words are in the middle of one and the same change all the time: its writer was killed in it, or is
    /// suspended.
    Stuck,
    /// The words kept changing.
    Changing,
}

/// Reads words that belong together, with a limited number of tries. Unless the result is whole, the last values read
/// are inconsistent.
#[inline]
pub(crate) fn read(sequence: &impl Word<Value = u64>, tries: usize, mut look: impl FnMut()) -> ReadOutcome {
    let first = sequence.get();
    let mut is_same = true;
    for _ in 0..tries {
        let before = acquire(sequence);
        look();
        fence(Ordering::Acquire);
        let behind = sequence.get();
        if before.is_multiple_of(2) && behind == before {
            return ReadOutcome::Whole;
        }
        is_same &= before == first && behind == first;
        relax();
    }
    if is_same { ReadOutcome::Stuck } else { ReadOutcome::Changing }
}

/// Requests one more errand of the writer; there is one requester, and the details were stored before.
pub(crate) fn ask(asked: &AtomicU64) {
    asked.fetch_add(1, Ordering::Release);
}

/// Whether the writer has an errand to run.
#[inline]
pub(crate) fn is_asked(asked: &AtomicU64, done: &AtomicU64) -> bool {
    asked.load(Ordering::Acquire) != done.load(Ordering::Relaxed)
}

/// Records that all requested errands are done.
pub(crate) fn finish(asked: &AtomicU64, done: &AtomicU64) {
    done.store(asked.load(Ordering::Relaxed), Ordering::Release);
}

/// Whether the writer still has to run an errand, as the requester sees it.
pub(crate) fn is_pending(asked: &AtomicU64, done: &AtomicU64) -> bool {
    done.load(Ordering::Acquire) != asked.load(Ordering::Relaxed)
}

/// Changes the table that is not current, and makes it current. Only one thread at a time may do so.
pub(crate) fn turn_over(turns: &AtomicU64, change: impl FnOnce(usize)) {
    let next = turns.load(Ordering::Relaxed).wrapping_add(1);
    // A reader that sees one of the changes sees that the table has stopped being current.
    fence(Ordering::Release);
    change((next & 1) as usize);
    turns.store(next, Ordering::Release);
}

/// Reads the current table, again if it was changed meanwhile; returns the number that selected it. Two turns are
/// needed to disturb a look, and each takes long.
pub(crate) fn read_current(turns: &impl Word<Value = u64>, mut look: impl FnMut(usize)) -> u64 {
    loop {
        let turn = acquire(turns);
        look((turn & 1) as usize);
        fence(Ordering::Acquire);
        if turns.get() == turn {
            return turn;
        }
        relax();
    }
}

/// Loads a word; everything stored before it was released is visible from here on.
#[inline]
pub(crate) fn acquire<W: Word>(word: &W) -> W::Value {
    let value = word.get();
    fence(Ordering::Acquire);
    value
}

/// Which labels of a family have collapsed, and how many times one has collapsed: the state that all its writers share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CollapseState {
    /// One bit a label, in the family's order.
    pub(crate) collapsed: u32,
    /// Grows with each label that collapses, and stays when labels open again.
    pub(crate) generation: u32,
}

impl CollapseState {
    fn pack(self) -> u64 {
        u64::from(self.collapsed) | u64::from(self.generation) << 32
    }

    fn unpack(word: u64) -> CollapseState {
        CollapseState { collapsed: word as u32, generation: (word >> 32) as u32 }
    }
}

/// The current policy.
#[inline]
pub(crate) fn policy(word: &AtomicU64) -> CollapseState {
    CollapseState::unpack(word.load(Ordering::Acquire))
}

/// Collapses these labels, too, and returns the policy; the error is the policy that another writer has set since
/// `seen`.
pub(crate) fn collapse(word: &AtomicU64, seen: CollapseState, labels: u32) -> Result<CollapseState, CollapseState> {
    let next = CollapseState { collapsed: seen.collapsed | labels, generation: seen.generation.saturating_add(1) };
    match word.compare_exchange(seen.pack(), next.pack(), Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(next),
        Err(now) => Err(CollapseState::unpack(now)),
    }
}

/// Opens all labels again, unless a writer has changed the policy since `seen`. Their bits are in `ever` before any
/// thread can see that they are open.
pub(crate) fn reopen(word: &AtomicU64, ever: &AtomicU32, seen: CollapseState) {
    ever.fetch_or(seen.collapsed, Ordering::Relaxed);
    let next = CollapseState { collapsed: 0, ..seen };
    // If a writer was faster, its policy holds.
    let _ = word.compare_exchange(seen.pack(), next.pack(), Ordering::AcqRel, Ordering::Relaxed);
}

/// All labels that had collapsed at any time up to the generation of this policy, which was loaded before.
#[inline]
pub(crate) fn ever_collapsed(ever: &AtomicU32, policy: CollapseState) -> u32 {
    ever.load(Ordering::Relaxed) | policy.collapsed
}
