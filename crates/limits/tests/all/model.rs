//! Compares the table with a plain model of APISIX's counters, for any sequence of keys, costs and
//! times.

use proptest::prelude::*;
use std::collections::HashMap;
use stillgate_limits::{Limit, LimitDecision, Limits};

/// A request: its key, its cost, and the time since the previous one.
fn requests() -> impl Strategy<Value = Vec<(u8, u64, i64)>> {
    let step = prop_oneof![5 => Just(0i64), 5 => 1i64..40, 2 => 90i64..110, 1 => 100i64..1_000, 1 => -3i64..0];
    let cost = prop_oneof![6 => Just(1u64), 1 => 0u64..8];
    prop::collection::vec((0u8..12, cost, step), 1..300)
}

/// A dictionary with times to live, like nginx's: a value expires once its time is exceeded.
#[derive(Default)]
struct Dictionary(HashMap<(u8, u64), (u64, u64)>);

impl Dictionary {
    fn entry(&mut self, name: (u8, u64), now_ms: u64, ttl_ms: u64) -> &mut (u64, u64) {
        let entry = self.0.entry(name).or_insert((0, 0));
        if now_ms > entry.1 {
            *entry = (0, now_ms + ttl_ms);
        }
        entry
    }

    /// Like `resty.limit.count` with the reset of `limit-count-local`.
    fn fixed(&mut self, name: u8, limit: Limit, cost: u64, now_ms: u64) -> LimitDecision {
        let (consumed, end_ms) = self.entry((name, 0), now_ms, limit.window_ms);
        *consumed += cost;
        let reset_ms = (*end_ms - now_ms).min(limit.window_ms);
        let admitted = *consumed <= limit.count;
        let remaining = if admitted { (limit.count - *consumed) as i64 } else { 0 };
        LimitDecision { admitted, remaining, reset_ms }
    }

    /// Like `limit-count/sliding-window`, in seconds and floats.
    fn sliding(&mut self, name: u8, limit: Limit, cost: u64, now_ms: u64) -> LimitDecision {
        let (now, window, count) = (now_ms as f64 / 1e3, limit.window_ms as f64 / 1e3, limit.count as f64);
        let number = now_ms / limit.window_ms;
        let remaining_time = window - now_ms as f64 % limit.window_ms as f64 / 1e3;
        let last = self.0.get(&(name, number - 1)).map_or(0.0, |entry| entry.0 as f64).min(count);
        let current = self.0.get(&(name, number)).map_or(0.0, |entry| entry.0 as f64);
        let rate = last / window;
        let hundredths = |seconds: f64| ((seconds * 100.0 - 1e-6).ceil() as u64) * 10;
        if current >= count {
            return LimitDecision { admitted: false, remaining: 0, reset_ms: hundredths(remaining_time) };
        }
        // Equal fractions may differ as floats.
        if rate * remaining_time + current >= count - 1e-6 {
            let delay = (remaining_time - (count - current) / rate).max(0.0);
            return LimitDecision { admitted: false, remaining: 0, reset_ms: hundredths(delay) };
        }
        assert!(now > 0.0);
        let entry = self.0.entry((name, number)).or_insert((0, 0));
        entry.0 += cost;
        let remaining = (count - entry.0 as f64 - rate * remaining_time + 1e-6).floor() as i64;
        LimitDecision { admitted: true, remaining, reset_ms: hundredths(remaining_time) }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fixed_windows_are_as_in_the_model(requests in requests(), count in 1u64..20) {
        // Windows of two lengths, and room for all keys.
        let (limits, mut model, mut now_ms) = (Limits::create(256 << 10).unwrap(), Dictionary::default(), 1_000_000u64);
        for (name, cost, step_ms) in requests {
            now_ms = now_ms.saturating_add_signed(step_ms);
            let limit = Limit { count, window_ms: if name % 2 == 0 { 100 } else { 350 } };
            let key = limits.hasher().part(&[name]).finish();
            let cost = cost.max(1);
            let taken = limits.take_fixed(key, limit, cost, now_ms).unwrap();
            prop_assert_eq!(taken, model.fixed(name, limit, cost, now_ms), "{} {} {}", name, cost, now_ms);
        }
        prop_assert_eq!(limits.events().evicted, 0);
    }

    #[test]
    fn sliding_windows_are_as_in_the_model(requests in requests(), count in 1u64..20) {
        let (limits, mut model, mut now_ms) = (Limits::create(256 << 10).unwrap(), Dictionary::default(), 1_000_000u64);
        for (name, cost, step_ms) in requests {
            now_ms = now_ms.saturating_add_signed(step_ms);
            let limit = Limit { count, window_ms: if name % 2 == 0 { 100 } else { 350 } };
            let key = limits.hasher().part(&[name]).finish();
            let taken = limits.take_sliding(key, limit, cost, now_ms).unwrap();
            prop_assert_eq!(taken, model.sliding(name, limit, cost, now_ms), "{} {} {}", name, cost, now_ms);
        }
        prop_assert_eq!(limits.events().evicted, 0);
    }
}
