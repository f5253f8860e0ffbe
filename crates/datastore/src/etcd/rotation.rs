//! Chooses the next endpoint: one after the other, those that failed lately last.

use std::time::{Duration, Instant};

/// How long an endpoint that failed is used only if no other is left.
const SET_ASIDE: Duration = Duration::from_secs(10);

/// The rotation of endpoints, by their index.
#[derive(Debug)]
pub(crate) struct Rotation {
    next: usize,
    /// Until when each is set aside. Never empty.
    aside: Vec<Option<Instant>>,
}

impl Rotation {
    /// A rotation of `count` endpoints, at least one. `first` is used first: gateways should not all begin with the
    /// same member.
    pub(crate) fn new(count: usize, first: usize) -> Rotation {
        Rotation { next: first % count, aside: vec![None; count] }
    }

    /// The next one that is not in `tried`, which never holds all. If all others are set aside, the one whose time ends
    /// first.
    pub(crate) fn choose(&mut self, now: Instant, tried: &[usize]) -> usize {
        let count = self.aside.len();
        let turn = (0..count).map(|step| (self.next + step) % count).filter(|index| !tried.contains(index));
        let chosen = turn.min_by_key(|index| self.aside[*index].filter(|until| *until > now)).unwrap_or(self.next);
        self.next = (chosen + 1) % count;
        chosen
    }

    pub(crate) fn failed(&mut self, index: usize, now: Instant) {
        self.aside[index] = Some(now + SET_ASIDE);
    }

    pub(crate) fn answered(&mut self, index: usize) {
        self.aside[index] = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_after_the_other_and_failed_ones_last() {
        let now = Instant::now();
        let mut rotation = Rotation::new(3, 4);
        let next = |rotation: &mut Rotation, now| rotation.choose(now, &[]);
        assert_eq!([(); 4].map(|()| next(&mut rotation, now)), [1, 2, 0, 1]);
        rotation.failed(2, now);
        assert_eq!([(); 3].map(|()| next(&mut rotation, now)), [0, 1, 0]);
        assert_eq!(rotation.choose(now, &[0, 1]), 2);
        rotation.failed(0, now + Duration::from_secs(1));
        rotation.failed(1, now + Duration::from_secs(2));
        let later = now + Duration::from_secs(3);
        assert_eq!([(); 2].map(|()| next(&mut rotation, later)), [2, 2]);
        rotation.answered(1);
        assert_eq!(next(&mut rotation, later), 1);
        let much_later = now + SET_ASIDE * 2;
        assert_eq!([(); 3].map(|()| next(&mut rotation, much_later)), [2, 0, 1]);
    }
}
