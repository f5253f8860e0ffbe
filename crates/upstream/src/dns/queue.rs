//! Decides which name is looked up next, so that names whose servers are slow or silent do not keep others waiting.
//!
//! [`LookupQueue`] knows of each name either when its next lookup is due or since when its lookup is under way. It does
//! no IO and reads no clock; the resolver owns it, begins and ends what it says, and reports every end. Beginning a
//! lookup costs O(log n) for n names.
//!
//! A name has a [`Pace`], by how its last lookups ended: quick, slow, doubtful or failing. A new name is quick until the
//! contrary is seen, and one slow answer or failure after others is not enough for that: a packet may be lost. Each pace
//! has a queue, ordered by when the names are due, and places of its own ([`Pace::bounds`]), so names of one pace wait
//! only for names of that pace. If no place is free, the lookup that has been under way for the longest gives its place
//! up to the name that waits, once it has had its turn: it goes on in a place of the next pace, or is ended and queued
//! there if there is none. A lookup of a failing name keeps its place until its timeout.
//!
//! So a quick name waits for about a tenth of a second for every 256 other names that turn out to be silent, and not at
//! all for those that were silent before. A name that is not answered in the time of its turn loses only its turn: its
//! addresses stay in use, and it gets more time in the turn that follows. A lookup that waits only for its second family
//! has had its answer when it is ended.
//!
//! Lookups that wait for a silent family to the end have no place here ([`super::patient`]).
//!
//! All paces together begin at most 2,000 lookups a second over a longer time ([`BEGIN_INTERVAL`], [`BURST`]).
//!
//! The turn of a quick lookup is short while none ends, because then the servers of all of them are silent; while some
//! end, the others may wait only because this machine or the server has much to do.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Lookups under way at once, of all paces. Each is a task and, for each address family, a socket for each server that is
/// asked, or up to three if they are silent.
pub(super) const PLACES_MAX: usize = QUICK.places + SLOW.places + DOUBTFUL.places + FAILING.places;

/// The time for each lookup that begins: 2,000 a second over a longer time. Thousands of names with a TTL of a second
/// must not keep the control thread busy, which has other work; their answers are used for longer instead.
const BEGIN_INTERVAL: Duration = Duration::from_micros(500);
/// Lookups that may begin at once after a pause, as at a start.
const BURST: u32 = 10_000;

const QUICK: PaceBounds =
    PaceBounds { places: 256, turn: Duration::from_millis(500), turn_if_none_ends: Duration::from_millis(100) };
const SLOW: PaceBounds =
    PaceBounds { places: 64, turn: Duration::from_secs(1), turn_if_none_ends: Duration::from_secs(1) };
const DOUBTFUL: PaceBounds =
    PaceBounds { places: 128, turn: Duration::from_secs(1), turn_if_none_ends: Duration::from_secs(1) };
const FAILING: PaceBounds = PaceBounds { places: 64, turn: Duration::MAX, turn_if_none_ends: Duration::MAX };

/// Answers that take longer are slow.
const QUICK_ANSWER_MAX: Duration = Duration::from_millis(200);
/// A name has become slow after this number of slow answers, and fails after this number of failures, in a row.
const IN_A_ROW: u32 = 2;

/// Bounds of the lookups of one pace.
#[derive(Debug)]
pub(super) struct PaceBounds {
    /// Lookups under way at once.
    pub(super) places: usize,
    /// How long a lookup keeps its place though a name waits for it.
    turn: Duration,
    /// A shorter turn, where no other lookup of the pace has ended for that long either.
    turn_if_none_ends: Duration,
}

/// What is to be expected of a name's lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// An answer at once.
    Quick,
    /// An answer, but not at once.
    Slow,
    /// Perhaps none: the last lookup was not answered in its turn, or it failed but not the one before.
    Doubtful,
    /// An error, or no answer at all.
    Failing,
}

impl Pace {
    const ALL: [Self; 4] = [Self::Quick, Self::Slow, Self::Doubtful, Self::Failing];

    /// The pace of a name whose last lookup had an answer, by its slow answers in a row.
    fn of_answers(slow: u32) -> Self {
        if slow < IN_A_ROW { Self::Quick } else { Self::Slow }
    }

    /// The pace of a name whose last lookup failed, by its failures in a row.
    fn of_failures(failures: u32) -> Self {
        if failures < IN_A_ROW { Self::Doubtful } else { Self::Failing }
    }

    pub(super) const fn bounds(self) -> &'static PaceBounds {
        match self {
            Self::Quick => &QUICK,
            Self::Slow => &SLOW,
            Self::Doubtful => &DOUBTFUL,
            Self::Failing => &FAILING,
        }
    }

    /// The pace of a name whose lookup was not answered within its turn.
    fn next(self) -> Option<Self> {
        match self {
            Self::Quick | Self::Slow => Some(Self::Doubtful),
            Self::Doubtful => Some(Self::Failing),
            Self::Failing => None,
        }
    }
}

/// How the last lookups of a name ended.
#[derive(Debug, Default)]
pub(super) struct LookupHistory {
    /// Failed lookups in a row.
    failures: u32,
    /// Slow answers in a row; failures between them do not count.
    slow_answers: u32,
}

impl LookupHistory {
    /// Counts an answer, and returns the pace of the next lookup.
    pub(super) fn answered(&mut self, took: Duration) -> Pace {
        self.failures = 0;
        self.slow_answers = if took > QUICK_ANSWER_MAX { self.slow_answers.saturating_add(1) } else { 0 };
        Pace::of_answers(self.slow_answers)
    }

    /// Counts a failure, and returns the pace of the next lookup and the pause until then, which doubles each time.
    pub(super) fn failed(&mut self, pause_min: Duration, pause_max: Duration) -> (Pace, Duration) {
        let pause = pause_min.saturating_mul(1 << self.failures.min(31)).min(pause_max);
        self.failures = self.failures.saturating_add(1);
        (Pace::of_failures(self.failures), pause)
    }

    /// Whether the last lookup failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failures > 0
    }
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextLookup {
    /// Begin the lookup of the name, after ending that of the other name, if there is one; it is queued again. If it has
    /// found something, that is its end.
    Begin { name: Arc<str>, instead_of: Option<Arc<str>> },
    /// Nothing is to be done before that time, or before a lookup ends.
    Wait(Option<Instant>),
}

/// Names that wait and names whose lookups are under way, by pace.
#[derive(Debug, Default)]
pub(super) struct LookupQueue {
    paces: [PaceTurns; Pace::ALL.len()],
    /// Each name, with its item in `paces`.
    names: HashMap<Arc<str>, Turn>,
    /// Until when the lookups begun so far take, one after the other, for [`BEGIN_INTERVAL`] each.
    taken_until: Option<Instant>,
}

#[derive(Debug, Default)]
struct PaceTurns {
    /// Names by when their lookups are due.
    waiting: BTreeSet<(Instant, Arc<str>)>,
    /// Names by since when their lookups have had a place of this pace.
    under_way: BTreeSet<(Instant, Arc<str>)>,
    /// When a lookup ended last.
    last_end: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Turn {
    pace: Pace,
    state: TurnState,
    at: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TurnState {
    /// The name is due at the turn's time.
    Waiting,
    /// Its lookup has had its place since the turn's time.
    UnderWay,
}

impl LookupQueue {
    /// Queues a name. If it has a turn already, that ends.
    pub(super) fn queue(&mut self, name: Arc<str>, pace: Pace, due: Instant) {
        self.set(name, Turn { pace, state: TurnState::Waiting, at: due });
    }

    /// Queues a name whose lookup ended now.
    pub(super) fn end(&mut self, name: Arc<str>, pace: Pace, due: Instant, now: Instant) {
        if let Some(turn) = self.names.get(&name) {
            self.paces[turn.pace as usize].last_end = Some(now);
        }
        self.queue(name, pace, due);
    }

    /// Makes a name that waits the next one.
    pub(super) fn hasten(&mut self, name: &Arc<str>, now: Instant) {
        if self.names.get(name).is_some_and(|turn| turn.state == TurnState::Waiting && turn.at > now) {
            self.queue(name.clone(), Pace::Quick, now);
        }
    }

    /// Forgets a name that is not in use any more.
    pub(super) fn remove(&mut self, name: &str) {
        if let Some((name, turn)) = self.names.remove_entry(name) {
            self.set_of(turn).remove(&(turn.at, name));
        }
    }

    /// What is to be done next. Where that is to begin a lookup, it counts as begun.
    pub(super) fn next(&mut self, now: Instant) -> NextLookup {
        let allowed = self.taken_until.and_then(|end| end.checked_sub(BEGIN_INTERVAL * BURST)).unwrap_or(now);
        let mut wake = None::<Instant>;
        // The longest due is first. Where quick names alone take all that may begin, others would never have a turn.
        let mut paces = Pace::ALL;
        paces.sort_by_key(|pace| self.paces[*pace as usize].waiting.first().map(|(due, _)| *due));
        for pace in paces {
            let turns = &self.paces[pace as usize];
            let Some((due, name)) = turns.waiting.first().cloned() else { continue };
            let earliest = due.max(allowed);
            let instead_of = if earliest > now {
                Err(Some(earliest))
            } else if turns.under_way.len() < pace.bounds().places {
                Ok(None)
            } else {
                self.take_place(pace, now)
            };
            match instead_of {
                Ok(instead_of) => {
                    self.taken_until = Some(self.taken_until.map_or(now, |end| end.max(now)) + BEGIN_INTERVAL);
                    self.set(name.clone(), Turn { pace, state: TurnState::UnderWay, at: now });
                    return NextLookup::Begin { name, instead_of };
                }
                Err(later) => wake = wake.into_iter().chain(later).min(),
            }
        }
        NextLookup::Wait(wake)
    }

    /// Takes the place of the lookup that has had one of this pace for the longest. Returns its name if it must end, and
    /// where its turn is not over, when that will be.
    fn take_place(&mut self, pace: Pace, now: Instant) -> Result<Option<Arc<str>>, Option<Instant>> {
        let turns = &self.paces[pace as usize];
        let (Some(next), Some((since, name))) = (pace.next(), turns.under_way.first().cloned()) else {
            return Err(None);
        };
        let bounds = pace.bounds();
        let last_end = turns.last_end.map_or(since, |end| end.max(since));
        let over = (since + bounds.turn).min(last_end + bounds.turn_if_none_ends);
        if over > now {
            return Err(Some(over));
        }
        if self.paces[next as usize].under_way.len() < next.bounds().places {
            self.set(name, Turn { pace: next, state: TurnState::UnderWay, at: now });
            return Ok(None);
        }
        self.queue(name.clone(), next, now);
        Ok(Some(name))
    }

    fn set(&mut self, name: Arc<str>, turn: Turn) {
        self.remove(&name);
        self.set_of(turn).insert((turn.at, name.clone()));
        self.names.insert(name, turn);
    }

    fn set_of(&mut self, turn: Turn) -> &mut BTreeSet<(Instant, Arc<str>)> {
        let turns = &mut self.paces[turn.pace as usize];
        match turn.state {
            TurnState::Waiting => &mut turns.waiting,
            TurnState::UnderWay => &mut turns.under_way,
        }
    }
}

#[cfg(test)]
mod tests;
