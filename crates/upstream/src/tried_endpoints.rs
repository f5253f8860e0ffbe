//! The set of endpoints one request has already tried.
//!
//! The first 128 endpoints of an upstream are bits held inline, so nearly every request keeps this set without
//! allocating. Endpoints beyond that go to a list that is allocated by the first *failure* of one, never by a
//! request that succeeds at once; it is bounded by the tries of the request.

const INLINE_BITS: usize = u128::BITS as usize;

/// Endpoints that the current request must not be sent to again.
#[derive(Debug, Clone, Default)]
pub struct TriedEndpoints {
    low: u128,
    high: Vec<u32>,
}

impl TriedEndpoints {
    /// An empty set; does not allocate.
    pub const fn new() -> Self {
        Self { low: 0, high: Vec::new() }
    }

    /// Adds an endpoint; to be called when the try has failed.
    pub fn insert(&mut self, endpoint: usize) {
        if endpoint < INLINE_BITS {
            self.low |= 1 << endpoint;
        } else if !self.contains(endpoint) {
            self.high.push(endpoint as u32);
        }
    }

    /// Whether the endpoint was tried.
    #[inline]
    pub fn contains(&self, endpoint: usize) -> bool {
        if endpoint < INLINE_BITS { self.low >> endpoint & 1 == 1 } else { self.high.contains(&(endpoint as u32)) }
    }

    /// Forgets all endpoints, for the next request on the same client connection.
    pub fn clear(&mut self) {
        self.low = 0;
        self.high.clear();
    }

    /// Whether nothing was tried yet.
    pub fn is_empty(&self) -> bool {
        self.low == 0 && self.high.is_empty()
    }

    /// Distinct endpoints tried.
    pub fn len(&self) -> usize {
        self.low.count_ones() as usize + self.high.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_any_index_once() {
        let mut tried = TriedEndpoints::new();
        assert!(tried.is_empty());
        for index in [0, 5, 127, 128, 70_000, 128, 5] {
            tried.insert(index);
        }
        assert_eq!(tried.len(), 5);
        for index in [0, 5, 127, 128, 70_000] {
            assert!(tried.contains(index));
        }
        assert!(!tried.contains(1) && !tried.contains(129));
        tried.clear();
        assert!(tried.is_empty() && !tried.contains(128));
    }
}
