//! Idle connections to an upstream's endpoints.
//!
//! One slab of entries in two kinds of linked lists: a stack per endpoint (the connection used last is the warmest and
//! the least likely to be closed by the other side) and one list over all by age, from whose old end the pool makes
//! room and drops connections that idled too long. Taking and putting are O(1); the slab grows to the most connections
//! that were ever idle at once, bounded by the pool's size, and from then on nothing is allocated.
//!
//! ```text
//! stacks[endpoint] ─→ newest ─below─→ … ─below─→ oldest of the endpoint
//! oldest ─newer─→ … ─newer─→ newest                       (all endpoints)
//! free ─newer─→ …                                         (entries without a connection)
//! ```
//!
//! Dropping a connection closes it; the pool itself does no IO. Time never runs backwards.

use stillgate_config::KeepalivePool;

/// "No entry" in a link.
const NONE: u32 = u32::MAX;

/// Connections with [`Fit::Other`] that a request skips in search of one that it can use.
const OTHERS_MAX: usize = 8;

/// How an idle connection fits a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// It can be used.
    Right,
    /// It can be used by other requests.
    Other,
    /// It is for another kind of requests, or busy with one of this kind; such ones are skipped however many there are.
    Reserved,
    /// It was closed, and is dropped.
    Dead,
}

/// State of a connection that is kept while it is in use, and handed back with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnMeta {
    /// Requests begun on it, the present one included.
    pub requests: u32,
    /// The generation of the peer it was made to: see `Slot::generation`.
    pub(crate) generation: u32,
}

impl ConnMeta {
    /// The state of a new connection that is about to carry its first request.
    pub(crate) fn fresh(generation: u32) -> Self {
        Self { requests: 1, generation }
    }

    /// Whether a request before the present one went over the connection.
    pub fn is_reused(&self) -> bool {
        self.requests > 1
    }
}

/// The idle connections of one upstream in one worker.
#[derive(Debug)]
pub struct Pool<C> {
    bounds: KeepalivePool,
    entries: Vec<PoolEntry<C>>,
    /// Top of each endpoint's stack.
    stacks: Vec<u32>,
    oldest: u32,
    newest: u32,
    free: u32,
    len: usize,
}

#[derive(Debug)]
struct PoolEntry<C> {
    /// `None` exactly for the entries of the free list.
    conn: Option<C>,
    meta: ConnMeta,
    idle_since_ms: u64,
    endpoint: u32,
    /// Neighbours in the endpoint's stack.
    above: u32,
    below: u32,
    /// Neighbours by age.
    older: u32,
    newer: u32,
}

impl<C> PoolEntry<C> {
    fn is_stale(&self, now_ms: u64, timeout_ms: u128) -> bool {
        u128::from(now_ms.saturating_sub(self.idle_since_ms)) >= timeout_ms
    }
}

impl<C> Pool<C> {
    /// An empty pool; does not allocate.
    pub fn new(bounds: KeepalivePool) -> Self {
        Self { bounds, entries: Vec::new(), stacks: Vec::new(), oldest: NONE, newest: NONE, free: NONE, len: 0 }
    }

    /// Returns the endpoint's most recently used connection that `judge` accepts, with its request count raised by one.
    /// `None` if no connection idled for less than the idle timeout, or none of the first fits: others stay.
    pub fn take(
        &mut self,
        endpoint: usize,
        now_ms: u64,
        mut judge: impl FnMut(&mut C) -> Fit,
    ) -> Option<(C, ConnMeta)> {
        let timeout_ms = self.bounds.idle_timeout.as_millis();
        let mut index = *self.stacks.get(endpoint)?;
        let mut others = 0;
        while let Some(entry) = self.entries.get_mut(index as usize) {
            let below = entry.below;
            if entry.is_stale(now_ms, timeout_ms) {
                // The stack is in order of age: if this one is too old, so is the rest, which `expire` clears.
                drop(self.remove(index));
                return None;
            }
            match entry.conn.as_mut().map_or(Fit::Other, &mut judge) {
                Fit::Right => {
                    let (conn, mut meta) = self.remove(index);
                    meta.requests = meta.requests.saturating_add(1);
                    return Some((conn, meta));
                }
                Fit::Dead => drop(self.remove(index)),
                Fit::Reserved => {}
                Fit::Other => {
                    others += 1;
                    if others == OTHERS_MAX {
                        return None;
                    }
                }
            }
            index = below;
        }
        None
    }

    /// Keeps a connection whose request is over. Returns the connection that is not kept, if any: this one if the
    /// pool's size is zero or the connection has carried its share of requests, or the one idle longest if the pool is
    /// full.
    pub fn put(&mut self, endpoint: usize, conn: C, meta: ConnMeta, now_ms: u64) -> Option<C> {
        if self.bounds.size == 0 || meta.requests >= self.bounds.requests {
            return Some(conn);
        }
        let evicted = (self.len >= self.bounds.size).then(|| self.remove(self.oldest).0);
        if endpoint >= self.stacks.len() {
            self.stacks.resize(endpoint + 1, NONE);
        }
        let entry = PoolEntry {
            conn: Some(conn),
            meta,
            idle_since_ms: now_ms,
            endpoint: endpoint as u32,
            above: NONE,
            below: self.stacks[endpoint],
            older: self.newest,
            newer: NONE,
        };
        let index = self.occupy(entry);
        if let Some(below) = self.entry(self.stacks[endpoint]) {
            below.above = index;
        }
        self.stacks[endpoint] = index;
        match self.entry(self.newest) {
            Some(newest) => newest.newer = index,
            None => self.oldest = index,
        }
        self.newest = index;
        self.len += 1;
        evicted
    }

    /// Drops connections that have idled for the idle timeout, and those for which `is_dead` holds; returns their
    /// number. To be called about once a second.
    pub fn expire(&mut self, now_ms: u64, mut is_dead: impl FnMut(&mut C) -> bool) -> usize {
        let timeout_ms = self.bounds.idle_timeout.as_millis();
        self.drop_if(|entry| entry.is_stale(now_ms, timeout_ms) || entry.conn.as_mut().is_some_and(&mut is_dead))
    }

    /// Drops the connections for whose endpoint and meta `keep` does not hold; returns their number.
    pub fn retain(&mut self, keep: impl Fn(usize, &ConnMeta) -> bool) -> usize {
        self.drop_if(|entry| !keep(entry.endpoint as usize, &entry.meta))
    }

    fn drop_if(&mut self, mut condition: impl FnMut(&mut PoolEntry<C>) -> bool) -> usize {
        let before = self.len;
        let mut index = self.oldest;
        while let Some(entry) = self.entries.get_mut(index as usize) {
            let newer = entry.newer;
            if condition(entry) {
                drop(self.remove(index));
            }
            index = newer;
        }
        before - self.len
    }

    /// Changes the bounds, and drops the oldest connections beyond a smaller size.
    pub fn set_bounds(&mut self, bounds: KeepalivePool) {
        self.bounds = bounds;
        while self.len > bounds.size {
            drop(self.remove(self.oldest));
        }
    }

    /// Idle connections over all endpoints; never more than the configured size.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no connection is idle.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Idle connections of one endpoint; it counts them, so do not call it for every request.
    pub fn idle(&self, endpoint: usize) -> usize {
        let top = self.stacks.get(endpoint).copied().unwrap_or(NONE);
        std::iter::successors(self.entries.get(top as usize), |entry| self.entries.get(entry.below as usize)).count()
    }

    fn entry(&mut self, index: u32) -> Option<&mut PoolEntry<C>> {
        self.entries.get_mut(index as usize)
    }

    /// Puts the entry into a free place or a new one; returns its index.
    fn occupy(&mut self, entry: PoolEntry<C>) -> u32 {
        let index = self.free;
        match self.entries.get_mut(index as usize) {
            Some(place) => {
                self.free = place.newer;
                *place = entry;
                index
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        }
    }

    /// Removes an entry that holds a connection from both lists and frees its place.
    fn remove(&mut self, index: u32) -> (C, ConnMeta) {
        let free = self.free;
        let entry = &mut self.entries[index as usize];
        let conn = entry.conn.take().expect("entries in the lists hold a connection");
        let meta = entry.meta;
        let (endpoint, above, below) = (entry.endpoint as usize, entry.above, entry.below);
        let (older, newer) = (entry.older, entry.newer);
        entry.newer = free;
        self.free = index;
        self.len -= 1;
        match self.entry(above) {
            Some(above) => above.below = below,
            None => self.stacks[endpoint] = below,
        }
        if let Some(below) = self.entry(below) {
            below.above = above;
        }
        match self.entry(older) {
            Some(older) => older.newer = newer,
            None => self.oldest = newer,
        }
        match self.entry(newer) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
        (conn, meta)
    }
}
