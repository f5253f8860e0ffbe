//! Ended series: each is exposed once more, so that its last value is seen, and then removed.
//!
//! A tombstone ends one record. While the series has other records that live, its value stays whole: the series is
//! removed when all of them have ended. If it comes back before that, its new life starts at once from its own value:
//! not from the sum of both, which would fall back later and look like a reset of the counter.

use super::cursor::covers;
use super::mount::RecordLocation;
use super::store::{SeriesId, UnlinkResult};
use super::{Reader, RefreshSummary};
use crate::segment::SegmentProcess;
use crate::segment::layout::RecordKind;

/// How long a series waits to be scraped once more; after that it is assumed that nothing scrapes.
const LEAVING_MS_MAX: u64 = 15 * 60 * 1000;

/// The content of a tombstone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tombstone {
    /// Process that writes the segment.
    pub(super) process: SegmentProcess,
    pub(super) serial: u64,
    /// Position of the record, in words of its log.
    pub(super) record: usize,
}

/// An ended record that still counts.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeavingRecord {
    pub(super) place: RecordLocation,
    series: SeriesId,
    /// The refresh that found the tombstone; only expositions from then on matter.
    refresh: u64,
    since_ms: u64,
    is_exposed: bool,
}

impl Reader {
    /// Ends the records that new tombstones name.
    pub(super) fn apply_ended(&mut self, refreshed: &mut RefreshSummary) {
        let mut touched = Vec::new();
        for ended in std::mem::take(&mut self.ended) {
            let mount = self.store.mounts.iter().position(|mounted| {
                let segment = mounted.as_ref().map(|mounted| &mounted.segment);
                segment.is_some_and(|segment| segment.process == ended.process && segment.serial == ended.serial)
            });
            // A removed segment has taken its records along.
            let Some(mount) = mount else { continue };
            let mounted = self.store.mounted(mount as u16);
            if ended.record >= mounted.read_to {
                // Committed after we looked there, but before the tombstone.
                if !mounted.is_damaged && ended.record < mounted.segment.room().1 {
                    self.ended.push(ended);
                }
                continue;
            }
            let head = mounted.head(ended.record).filter(|head| head.kind == RecordKind::Series);
            let Some((number, _)) = head.and_then(|head| mounted.segment.series(ended.record, head)) else { continue };
            let Some(contribution) = mounted.contributions.get(number as usize) else { continue };
            if contribution.record() != ended.record || contribution.series == super::mount::NO_SERIES {
                continue;
            }
            let (series, is_first_look) = (contribution.series, mounted.known == 0);
            let place = RecordLocation { number, mount: mount as u16 };
            if is_first_look {
                // It ended before this reader started: others have exposed it, or nobody ever will.
                self.drop_place(place, refreshed);
            } else if !contribution.is_leaving() {
                self.store.contribution_mut(place).leave();
                let (refresh, since_ms) = (self.refreshes, self.now_ms);
                self.leaving.push(LeavingRecord { place, series, refresh, since_ms, is_exposed: false });
                touched.push(series);
            }
        }
        touched.sort_unstable();
        touched.dedup();
        for series in touched {
            if !self.store.is_dead(series) && self.has_new_life(series) {
                self.drop_leaving_of(series, refreshed);
            }
        }
    }

    /// Whether a live record is newer than an ended one: by the same writer and behind it, or found just now.
    fn has_new_life(&self, series: SeriesId) -> bool {
        if self.is_kept_by_folds(series) {
            return false;
        }
        let ended: Vec<RecordLocation> = self
            .store
            .places(self.store.slot(series))
            .filter(|(_, each)| each.is_leaving())
            .map(|(at, _)| at)
            .collect();
        let mut living =
            self.store.places(self.store.slot(series)).filter(|(_, each)| !each.is_leaving()).map(|(at, _)| at);
        living.any(|living| {
            let is_new = living.number as usize >= self.store.mounted(living.mount).known;
            is_new || ended.iter().any(|ended| ended.mount == living.mount && ended.number < living.number)
        })
    }

    /// Whether a live record of another label set counts for the series: then the ended record is part of the same
    /// life.
    fn is_kept_by_folds(&self, series: SeriesId) -> bool {
        self.store.places(self.store.slot(series)).any(|(_, each)| each.is_folded() && !each.is_leaving())
    }

    /// Removes the ended records of a known series for which a new record was found.
    pub(super) fn end_former_life(&mut self, series: SeriesId) {
        let has_ended = |series| self.store.places(self.store.slot(series)).any(|(_, each)| each.is_leaving());
        if !self.leaving.is_empty() && has_ended(series) && !self.is_kept_by_folds(series) {
            // This is not the last record: the new one lives.
            self.drop_leaving_of(series, &mut RefreshSummary::default());
        }
    }

    fn drop_leaving_of(&mut self, series: SeriesId, refreshed: &mut RefreshSummary) {
        let ended: Vec<RecordLocation> = self
            .store
            .places(self.store.slot(series))
            .filter(|(_, each)| each.is_leaving())
            .map(|(at, _)| at)
            .collect();
        // `drop_exposed` finds out that they are gone.
        ended.into_iter().for_each(|place| self.drop_place(place, refreshed));
    }

    /// Removes the records that have been exposed once more.
    pub(super) fn drop_exposed(&mut self, refreshed: &mut RefreshSummary) {
        let now_ms = self.now_ms;
        let mut leaving = std::mem::take(&mut self.leaving);
        leaving.retain(|leaving| {
            let contribution = self.store.contribution(leaving.place);
            contribution.is_leaving() && contribution.series == leaving.series
        });
        let (due, waiting): (Vec<LeavingRecord>, Vec<LeavingRecord>) = leaving.into_iter().partition(|leaving| {
            let is_over = leaving.is_exposed || now_ms.saturating_sub(leaving.since_ms) > LEAVING_MS_MAX;
            is_over && self.store.places(self.store.slot(leaving.series)).all(|(_, each)| each.is_leaving())
        });
        self.leaving = waiting;
        due.into_iter().for_each(|leaving| self.drop_place(leaving.place, refreshed));
    }

    /// Records that an exposition of these families was delivered in full.
    pub(super) fn exposed(&mut self, refresh: u64, names: Option<&[String]>) {
        for leaving in self.leaving.iter_mut().filter(|leaving| leaving.refresh <= refresh) {
            // A record without a chunk was dropped meanwhile.
            let chunk = self.store.exposed(leaving.series).map(|(chunk, _)| &self.order.chunks[chunk as usize]);
            let family = chunk.map(|chunk| self.order.families.get(chunk.family));
            leaving.is_exposed |= family.is_none_or(|family| covers(names, &family.family));
        }
    }

    /// Removes a record from its series.
    pub(super) fn drop_place(&mut self, place: RecordLocation, refreshed: &mut RefreshSummary) {
        if let Some(unlinked) = self.store.unlink(place) {
            self.note_taken(unlinked, refreshed);
        }
    }

    /// Accounts for a series that lost records, or all of them.
    pub(super) fn note_taken(&mut self, unlinked: UnlinkResult, refreshed: &mut RefreshSummary) {
        if unlinked.is_last {
            refreshed.series_gone += 1;
            self.touched.extend(unlinked.chunk);
        } else {
            self.order.mark_rebuilt(&self.store, unlinked.series);
        }
    }
}
