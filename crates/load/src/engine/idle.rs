//! The idle connections, the longest unused first.
//!
//! Linked through indices, because a connection that its peer closes must leave from the middle: in a plain queue, ten
//! thousand closed at once would be searched for ten thousand times.

const NONE: u32 = u32::MAX;

/// A first-in-first-out list of connection numbers; each is in it at most once.
#[derive(Debug)]
pub(super) struct IdleList {
    links: Vec<Link>,
    first: u32,
    last: u32,
    len: usize,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    before: u32,
    after: u32,
}

impl IdleList {
    /// An empty list, for connection numbers below `connections`.
    pub(super) fn new(connections: usize) -> Self {
        IdleList { links: vec![Link { before: NONE, after: NONE }; connections], first: NONE, last: NONE, len: 0 }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.first == NONE
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Appends a number that is not in it.
    #[inline]
    pub(super) fn push(&mut self, number: usize) {
        let added = number as u32;
        self.links[number] = Link { before: self.last, after: NONE };
        match self.last {
            NONE => self.first = added,
            last => self.links[last as usize].after = added,
        }
        self.last = added;
        self.len += 1;
    }

    /// Takes the longest unused one.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<usize> {
        let first = self.first;
        if first == NONE {
            return None;
        }
        self.remove(first as usize);
        Some(first as usize)
    }

    /// Removes a number that is in it.
    #[inline]
    pub(super) fn remove(&mut self, number: usize) {
        let Link { before, after } = self.links[number];
        match before {
            NONE => self.first = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            NONE => self.last = before,
            after => self.links[after as usize].before = before,
        }
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn equals_a_searched_queue(steps in prop::collection::vec((0..3, 0usize..8), 0..200)) {
            let (mut list, mut queue) = (IdleList::new(8), VecDeque::new());
            for (step, number) in steps {
                match step {
                    0 if !queue.contains(&number) => {
                        list.push(number);
                        queue.push_back(number);
                    }
                    1 if queue.contains(&number) => {
                        list.remove(number);
                        queue.retain(|&held| held != number);
                    }
                    2 => prop_assert_eq!(list.pop(), queue.pop_front()),
                    _ => {}
                }
                prop_assert_eq!((list.len(), list.is_empty()), (queue.len(), queue.is_empty()));
            }
        }
    }
}
