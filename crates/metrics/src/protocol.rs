//! How a writer and its readers agree without waiting for each other: six small rules over atomics.
//!
//! 1. *Commit*: a record is written in full before `committed` grows past it; who sees it committed sees all of it.
//! 2. *Epochs*: a changed value is stored before its epoch is; who sees the epoch sees the value. A reader that takes
//!    the writer's epoch before it looks at the series', and next time looks for that epoch or a later one, misses none.
//! 3. *Sequence*: words that belong together stand behind a number that is odd while they change.
//! 4. *Errands*: what was asked for has been done once as many are counted done as asked; who sees that sees all that the
//!    writer has changed before.
//! 5. *Tables*: of two tables the lowest bit of a number says which one holds; the other is changed, and then the number.
//! 6. *Policies*: which labels have collapsed is one word, which any writer may change. A writer that acts on a policy has said
//!    so in its own log before; who reads what it wrote under a policy has read the policy.
//!
//! Readers may have the words in memory mapped for reading only: they load relaxed, and fence. Nothing here knows where the atomics are, so that loom can try every interleaving (`xtask/interleavings`).

use crate::sync::{AtomicU32, AtomicU64, Ordering, Word, fence, relax};

/// Shows everything stored before to those who then see `words` committed.
#[inline]
pub(crate) fn commit(committed: &AtomicU64, words: u64) {
    committed.store(words, Ordering::Release);
}

/// What may be read.
#[inline]
pub(crate) fn committed(committed: &impl Word<Value = u64>) -> u64 {
    acquire(committed)
}

/// Says that the value stored before has changed in this epoch.
#[inline]
pub(crate) fn mark(of_series: &AtomicU32, epoch: u32) {
    of_series.store(epoch, Ordering::Release);
}

/// Begins a writer's next epoch.
#[inline]
pub(crate) fn advance(of_writer: &AtomicU32, epoch: u32) {
    of_writer.store(epoch, Ordering::Release);
}

/// The writer's epoch, to be taken before the series are looked at, and to be handed to the next look as `since`.
#[inline]
pub(crate) fn epoch(of_writer: &impl Word<Value = u32>) -> u32 {
    acquire(of_writer)
}

/// Whether a series changed in epoch `since` or later. If so its value may be read after [`see_changes`].
#[inline]
pub(crate) fn has_changed(of_series: &impl Word<Value = u32>, since: u32) -> bool {
    // Epochs wrap after years; the signed distance does not care.
    of_series.get().wrapping_sub(since).cast_signed() >= 0
}

/// Shows the values of all series that [`has_changed`] has been true of.
#[inline]
pub(crate) fn see_changes() {
    fence(Ordering::Acquire);
}

/// Changes words that belong together. There is one writer: it alone changes the number.
#[inline]
pub(crate) fn write(sequence: &AtomicU64, change: impl FnOnce()) {
    let before = sequence.load(Ordering::Relaxed);
    sequence.store(before.wrapping_add(1), Ordering::Relaxed);
    // The odd number is seen by whoever sees one of the changes.
    fence(Ordering::Release);
    change();
    sequence.store(before.wrapping_add(2), Ordering::Release);
}

/// What was seen of words that belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// All of them as they were at one moment.
    Whole,
    /// They are in the middle of one and the same change all the time: its writer was killed in it, or put to sleep.
    Stuck,
    /// They kept changing.
    Changing,
}

/// Reads words that belong together, in so many tries. Unless they are seen whole, what was read last is of two minds.
#[inline]
pub(crate) fn read(sequence: &impl Word<Value = u64>, tries: usize, mut look: impl FnMut()) -> Seen {
    let first = sequence.get();
    let mut is_same = true;
    for _ in 0..tries {
        let before = acquire(sequence);
        look();
        fence(Ordering::Acquire);
        let behind = sequence.get();
        if before.is_multiple_of(2) && behind == before {
            return Seen::Whole;
        }
        is_same &= before == first && behind == first;
        relax();
    }
    if is_same { Seen::Stuck } else { Seen::Changing }
}

/// Counts one more errand for the writer; there is one who asks, and what is asked for was stored before.
pub(crate) fn ask(asked: &AtomicU64) {
    asked.fetch_add(1, Ordering::Release);
}

/// Whether the writer, who looks, has something to do.
#[inline]
pub(crate) fn is_asked(asked: &AtomicU64, done: &AtomicU64) -> bool {
    asked.load(Ordering::Acquire) != done.load(Ordering::Relaxed)
}

/// Says that all has been done that was asked for.
pub(crate) fn finish(asked: &AtomicU64, done: &AtomicU64) {
    done.store(asked.load(Ordering::Relaxed), Ordering::Release);
}

/// Whether the writer has still to do what was asked, as the one sees it who asks.
pub(crate) fn is_pending(asked: &AtomicU64, done: &AtomicU64) -> bool {
    done.load(Ordering::Acquire) != asked.load(Ordering::Relaxed)
}

/// Has the table changed that does not hold, and makes it hold. One at a time may do so.
pub(crate) fn turn_over(turns: &AtomicU64, change: impl FnOnce(usize)) {
    let next = turns.load(Ordering::Relaxed).wrapping_add(1);
    // Who sees one of the changes sees that the table they are made in was turned away from.
    fence(Ordering::Release);
    change((next & 1) as usize);
    turns.store(next, Ordering::Release);
}

/// Looks at the table that holds, again where it was changed meanwhile; the number it holds by. Two turns are needed to
/// disturb a look, and each takes long.
pub(crate) fn look(turns: &impl Word<Value = u64>, mut look: impl FnMut(usize)) -> u64 {
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

/// What a word holds; everything stored before it was released is seen from here on.
#[inline]
pub(crate) fn acquire<W: Word>(word: &W) -> W::Value {
    let value = word.get();
    fence(Ordering::Acquire);
    value
}

/// Which labels of a family have collapsed, and how many times one has: what all its writers agree on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    /// One bit a label, in the family's order.
    pub(crate) collapsed: u32,
    /// Grows with each label that collapses, and stays when labels open again.
    pub(crate) generation: u32,
}

impl Policy {
    fn pack(self) -> u64 {
        u64::from(self.collapsed) | u64::from(self.generation) << 32
    }

    fn unpack(word: u64) -> Policy {
        Policy { collapsed: word as u32, generation: (word >> 32) as u32 }
    }
}

/// The policy that holds.
#[inline]
pub(crate) fn policy(word: &AtomicU64) -> Policy {
    Policy::unpack(word.load(Ordering::Acquire))
}

/// Collapses these labels, too, and returns the policy; the error is the one that another writer has made of it since `seen`.
pub(crate) fn collapse(word: &AtomicU64, seen: Policy, labels: u32) -> Result<Policy, Policy> {
    let next = Policy { collapsed: seen.collapsed | labels, generation: seen.generation.saturating_add(1) };
    match word.compare_exchange(seen.pack(), next.pack(), Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(next),
        Err(now) => Err(Policy::unpack(now)),
    }
}

/// Opens all labels again, unless a writer has changed the policy since `seen`. That they had collapsed is in `ever` before
/// anybody can see that they have not.
pub(crate) fn reopen(word: &AtomicU64, ever: &AtomicU32, seen: Policy) {
    ever.fetch_or(seen.collapsed, Ordering::Relaxed);
    let next = Policy { collapsed: 0, ..seen };
    // Where a writer was quicker, the labels stay as it wants them.
    let _ = word.compare_exchange(seen.pack(), next.pack(), Ordering::AcqRel, Ordering::Relaxed);
}

/// All labels that had collapsed at any time up to the generation of this policy, which was loaded before.
#[inline]
pub(crate) fn ever_collapsed(ever: &AtomicU32, policy: Policy) -> u32 {
    ever.load(Ordering::Relaxed) | policy.collapsed
}
