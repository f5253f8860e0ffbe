//! Reads the values of many series at once.
//!
//! A value stands at the end of a chain: series, contribution, record. With a million series each link is a wait for
//! memory. So all series go over the first link, then all over the second, and so on: loops this short let the processor
//! wait for dozens of them at the same time. That is ten times as fast as one series after the other.

use super::mount::{Contribution, Place};
use super::store::{SeriesId, Store};
use crate::family::{Kind, Merge};
use crate::segment::layout::HEAD_WORDS;
use crate::sync::AtomicU64;
use crate::sync::Ordering::Relaxed;

/// A record, by its mount and its place in the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    pub(super) at: u32,
    pub(super) mount: u16,
}

/// Series that are read together, and what was read.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// A value for each series, as bits.
    pub(super) values: Vec<u64>,
    /// The first record of each series, which has its labels.
    pub(super) records: Vec<Record>,
    places: Vec<Place>,
    contributions: Vec<Contribution>,
    /// Series with one more record: which of them, and where it is.
    more: Vec<(u32, Place)>,
}

impl Gathered {
    /// Finds the first records of these series, and with them their labels.
    pub(super) fn find(&mut self, store: &Store, series: impl Iterator<Item = SeriesId>) {
        self.places.clear();
        self.places.extend(series.map(|series| store.get(series).first()));
        let mut mounts = ByMount::new(store);
        self.contributions.clear();
        self.contributions.extend(self.places.iter().map(|place| mounts.contribution(*place)));
        let places = self.contributions.iter().zip(&self.places);
        self.records.clear();
        self.records.extend(places.map(|(each, place)| Record { at: each.record() as u32, mount: place.mount }));
    }

    /// Finds these series' records and reads their values.
    pub(super) fn read(&mut self, store: &Store, kind: &Kind, series: impl Iterator<Item = SeriesId> + Clone) {
        self.find(store, series.clone());
        self.values.clear();
        if matches!(kind, Kind::Info | Kind::Gauge(Merge::Last)) {
            // Few, and not only cells to be put together.
            self.values.extend(series.map(|series| store.single(kind, series)));
            return;
        }
        let mut mounts = ByMount::new(store);
        self.values.extend(self.records.iter().map(|record| mounts.value(*record)));
        self.more.clear();
        if self.contributions.iter().any(|each| !each.next.is_none()) {
            let nexts = self.contributions.iter().enumerate().map(|(index, each)| (index as u32, each.next));
            self.more.extend(nexts.filter(|(_, next)| !next.is_none()));
        }
        while !self.more.is_empty() {
            self.contributions.clear();
            self.contributions.extend(self.more.iter().map(|(_, place)| mounts.contribution(*place)));
            for ((index, place), each) in self.more.iter().zip(&self.contributions) {
                let value = mounts.value(Record { at: each.record() as u32, mount: place.mount });
                let sum = &mut self.values[*index as usize];
                *sum = merge(kind, *sum, value);
            }
            let nexts = self.more.iter().zip(&self.contributions).map(|((index, _), each)| (*index, each.next));
            let more: Vec<(u32, Place)> = nexts.filter(|(_, next)| !next.is_none()).collect();
            self.more = more;
        }
    }
}

/// Two records' values as one.
pub(super) fn merge(kind: &Kind, a: u64, b: u64) -> u64 {
    let (x, y) = (f64::from_bits(a), f64::from_bits(b));
    match kind {
        Kind::Counter => a.wrapping_add(b),
        Kind::Gauge(Merge::Max) => x.max(y).to_bits(),
        _ => (x + y).to_bits(),
    }
}

/// The slices of the mount that was asked for last: most often it is the same one again.
struct ByMount<'a> {
    store: &'a Store,
    mount: u16,
    contributions: &'a [Contribution],
    log: &'a [AtomicU64],
}

impl<'a> ByMount<'a> {
    fn new(store: &'a Store) -> ByMount<'a> {
        ByMount { store, mount: u16::MAX, contributions: &[], log: &[] }
    }

    #[inline]
    fn turn_to(&mut self, mount: u16) {
        if mount != self.mount {
            let mounted = self.store.mounted(mount);
            *self =
                ByMount { store: self.store, mount, contributions: &mounted.contributions, log: mounted.segment.log() };
        }
    }

    #[inline]
    fn contribution(&mut self, place: Place) -> Contribution {
        self.turn_to(place.mount);
        self.contributions[place.number as usize]
    }

    #[inline]
    fn value(&mut self, record: Record) -> u64 {
        self.turn_to(record.mount);
        self.log[record.at as usize + HEAD_WORDS].load(Relaxed)
    }
}
