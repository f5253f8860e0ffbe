//! What each route did in each of the last seconds, in 12 bytes a second.
//!
//! ```text
//!  route ─▶ blocks of 60 readings, one for each minute in which it had requests
//!  order ─▶ all blocks by age; at the bound the oldest one goes, whichever route it is of
//! ```
//!
//! With few routes the history is as long as that of all requests. With very many active ones it is shorter, never larger.

use super::second::OfRequests;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Readings of a block.
const BLOCK: u64 = 60;

/// Bytes of all blocks together, with what refers to them.
const BYTES_MAX: usize = 4 << 20;

/// A block, its entries in the lists of its route and of all blocks, and what the allocator adds.
const BLOCK_BYTES: usize = BLOCK as usize * size_of::<Reading>() + 80;

const BLOCKS_MAX: usize = BYTES_MAX / BLOCK_BYTES;

/// The shortest time that differs from the others, in seconds.
const TIME_MIN_S: f64 = 1e-6;

/// Steps of a time's code: each is 2% longer than the one before.
const TIME_STEPS_PER_E: f64 = 50.0;

const TIME_BITS: u32 = 10;

/// Bits of a count that are kept exactly.
const COUNT_BITS: u32 = 11;

/// The last readings of all routes, by the number of the reading.
#[derive(Default)]
pub(super) struct RouteHistory {
    routes: HashMap<Arc<str>, VecDeque<Block>>,
    /// Each block's number and route, the oldest first.
    order: VecDeque<(u64, Arc<str>)>,
    /// Blocks with smaller numbers may be missing.
    complete_from: u64,
}

struct Block {
    number: u64,
    readings: Box<[Reading; BLOCK as usize]>,
}

/// One route between two readings.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Reading {
    requests: u16,
    client_errors: u16,
    errors: u16,
    timed: u16,
    /// p50, p99 and the maximum, in ten bits each.
    times: [u16; 2],
}

impl RouteHistory {
    /// Adds a route's requests of a reading. `kept_from`: the oldest reading that anything can be asked about.
    pub(super) fn add(&mut self, reading: u64, kept_from: u64, route: &Arc<str>, of: &OfRequests) {
        let number = reading / BLOCK;
        while self.order.front().is_some_and(|(first, _)| *first < kept_from / BLOCK) {
            self.drop_oldest();
        }
        if self.routes.get(route).and_then(|blocks| blocks.back()).is_none_or(|block| block.number != number) {
            if self.order.len() >= BLOCKS_MAX
                && let Some(dropped) = self.drop_oldest()
            {
                self.complete_from = self.complete_from.max(dropped + 1);
            }
            let block = Block { number, readings: Box::new([Reading::default(); BLOCK as usize]) };
            self.routes.entry(route.clone()).or_default().push_back(block);
            self.order.push_back((number, route.clone()));
        }
        if let Some(block) = self.routes.get_mut(route).and_then(|blocks| blocks.back_mut()) {
            block.readings[(reading % BLOCK) as usize] = Reading::new(of);
        }
    }

    fn drop_oldest(&mut self) -> Option<u64> {
        let (number, route) = self.order.pop_front()?;
        if let Some(blocks) = self.routes.get_mut(&route) {
            blocks.pop_front();
            if blocks.is_empty() {
                self.routes.remove(&route);
            }
        }
        Some(number)
    }

    /// What a route did in a reading; `None`: that is no longer known. `has_codes`: whether errors are counted.
    pub(super) fn get(&self, reading: u64, route: &str, has_codes: bool) -> Option<OfRequests> {
        let number = reading / BLOCK;
        if number < self.complete_from {
            return None;
        }
        let blocks = self.routes.get(route);
        let block = blocks.and_then(|blocks| blocks.iter().rev().find(|block| block.number == number));
        let reading = block.map_or_else(Reading::default, |block| block.readings[(reading % BLOCK) as usize]);
        Some(reading.figures(has_codes))
    }

    /// Routes with requests in one of the kept readings.
    pub(super) fn routes(&self) -> impl Iterator<Item = &Arc<str>> {
        self.routes.keys()
    }
}

impl Reading {
    fn new(of: &OfRequests) -> Reading {
        let [p50, p99, max] = [of.p50, of.p99, of.max].map(|time| time.map_or(0, coded_time));
        Reading {
            requests: coded_count(of.requests),
            client_errors: coded_count(of.client_errors.unwrap_or(0)),
            errors: coded_count(of.errors.unwrap_or(0)),
            timed: coded_count(of.timed),
            times: halves(p50 | p99 << TIME_BITS | max << (2 * TIME_BITS)),
        }
    }

    fn figures(self, has_codes: bool) -> OfRequests {
        let times = u32::from(self.times[0]) | u32::from(self.times[1]) << 16;
        let time = |place: u32| time_of(times >> (place * TIME_BITS) & ((1 << TIME_BITS) - 1));
        OfRequests {
            requests: count_of(self.requests),
            client_errors: has_codes.then(|| count_of(self.client_errors)),
            errors: has_codes.then(|| count_of(self.errors)),
            timed: count_of(self.timed),
            p50: time(0),
            p99: time(1),
            p999: None,
            max: time(2),
        }
    }
}

/// Two halves, so that a reading has no unused bytes.
fn halves(times: u32) -> [u16; 2] {
    [(times & 0xffff) as u16, (times >> 16) as u16]
}

/// The first [`COUNT_BITS`] bits of a count, and how many follow: within 0.1%.
fn coded_count(count: u64) -> u16 {
    let shift = (u64::BITS - count.leading_zeros()).saturating_sub(COUNT_BITS);
    if shift > 31 {
        return u16::MAX;
    }
    (count >> shift) as u16 | (shift as u16) << COUNT_BITS
}

fn count_of(code: u16) -> u64 {
    u64::from(code & ((1 << COUNT_BITS) - 1)) << (code >> COUNT_BITS)
}

/// A time's logarithm, within 1%; 0 means that there is none.
fn coded_time(seconds: f64) -> u32 {
    let steps = (seconds.max(TIME_MIN_S) / TIME_MIN_S).ln() * TIME_STEPS_PER_E;
    (steps.round() as u32 + 1).min((1 << TIME_BITS) - 1)
}

fn time_of(code: u32) -> Option<f64> {
    let steps = f64::from(code.checked_sub(1)?);
    Some((steps / TIME_STEPS_PER_E).exp() * TIME_MIN_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(requests: u64) -> OfRequests {
        OfRequests { requests, client_errors: Some(1), errors: Some(0), timed: requests, ..OfRequests::default() }
    }

    #[test]
    fn figures_come_back_within_two_percent() {
        for seconds in [1e-6, 15e-6, 0.0012, 0.25, 1.0, 63.0, 512.0] {
            let found = time_of(coded_time(seconds)).unwrap();
            assert!((found / seconds - 1.0).abs() < 0.011, "{found} for {seconds}");
        }
        assert_eq!((time_of(0), time_of(coded_time(0.0)).map(|time| time < 1.1e-6)), (None, Some(true)));
        for count in [0, 1, 99, 2047, 2048, 123_456, 9_999_999_999] {
            let found = count_of(coded_count(count));
            assert!(count.abs_diff(found) * 1000 <= count, "{found} for {count}");
        }
        let of = OfRequests { p50: Some(0.002), p99: Some(0.3), max: Some(512.0), ..requests(7) };
        let found = Reading::new(&of).figures(true);
        assert_eq!((found.requests, found.client_errors, found.errors, found.timed), (7, Some(1), Some(0), 7));
        let near = |found: Option<f64>, seconds: f64| (found.unwrap() / seconds - 1.0).abs() < 0.011;
        assert!(near(found.p50, 0.002) && near(found.p99, 0.3) && near(found.max, 512.0), "{found:?}");
        assert_eq!(Reading::new(&requests(1)).figures(false).errors, None);
    }

    #[test]
    fn a_quiet_second_is_zero_and_a_forgotten_one_is_unknown() {
        let mut history = RouteHistory::default();
        let a: Arc<str> = "a".into();
        history.add(10, 0, &a, &requests(5));
        assert_eq!(history.get(10, "a", true).map(|of| of.requests), Some(5));
        assert_eq!(history.get(11, "a", true).map(|of| of.requests), Some(0));
        assert_eq!(history.get(10, "never seen", true).map(|of| of.requests), Some(0));
        // Older than anything that can be asked about.
        history.add(1000, 100, &a, &requests(6));
        assert_eq!(history.order.len(), 1);
    }

    /// The bound of the issue: 300 routes, each with requests in every second of 15 minutes.
    #[test]
    fn three_hundred_routes_have_fifteen_minutes_in_four_mebibytes() {
        let mut history = RouteHistory::default();
        let routes: Vec<Arc<str>> = (0..300).map(|n| format!("r{n}").into()).collect();
        for reading in 0..1800_u64 {
            for route in &routes {
                history.add(reading, reading.saturating_sub(899), route, &requests(reading % 7 + 1));
            }
        }
        for reading in 901..1800 {
            assert_eq!(history.get(reading, "r299", true).map(|of| of.requests), Some(reading % 7 + 1), "{reading}");
        }
        assert!(history.order.len() * BLOCK_BYTES <= BYTES_MAX, "{}", history.order.len());
        assert_eq!(size_of::<Reading>(), 12);
    }

    #[test]
    fn with_very_many_routes_the_history_is_shorter_and_not_larger() {
        let mut history = RouteHistory::default();
        for minute in 0..15_u64 {
            for n in 0..1000 {
                history.add(minute * BLOCK, 0, &format!("r{n}").into(), &requests(1));
            }
        }
        assert!(history.order.len() <= BLOCKS_MAX && history.routes.len() == 1000);
        assert_eq!(history.get(14 * BLOCK, "r5", true).map(|of| of.requests), Some(1));
        assert_eq!(history.get(0, "r5", true), None, "unknown, not zero");
    }
}
