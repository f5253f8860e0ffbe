//! Random numbers from a seed, and the smallest case that still fails.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// SplitMix64: any seed will do, even consecutive ones.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `bound`, which is not zero.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(crate) fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

/// A number from the environment, or a default.
pub(crate) fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.replace('_', "").parse().expect("a number"))
}

/// Checks a case; if it fails, looks for a smaller one that fails too and panics with that.
///
/// `smaller` gives cases that are simpler in one place, `check` the failure. A panic inside of it is a failure as
/// well.
pub(crate) fn check_and_shrink<T: std::fmt::Debug + Clone>(
    seed: u64,
    case: &T,
    smaller: impl Fn(&T) -> Vec<T>,
    check: impl Fn(&T) -> Result<(), String>,
) {
    const STEPS_MAX: usize = 2_000;
    let caught = |case: &T| match catch_unwind(AssertUnwindSafe(|| check(case))) {
        Ok(result) => result.err(),
        Err(panic) => Some(format!("panic: {}", panic_text(&*panic))),
    };
    let Some(mut wrong) = caught(case) else { return };
    let mut case = case.clone();
    let mut steps = 0;
    // A smaller case may panic as often as it is tried; only the last one matters.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    'smaller: while steps < STEPS_MAX {
        for candidate in smaller(&case) {
            steps += 1;
            if let Some(still) = caught(&candidate) {
                (case, wrong) = (candidate, still);
                continue 'smaller;
            }
        }
        break;
    }
    std::panic::set_hook(hook);
    panic!("{wrong}\nseed {seed} (STILLGATE_SEED={seed}), as small as it gets:\n{case:#?}");
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no text").to_owned()
}

/// All lists with one element left out, from the last on: late elements often have no effect.
pub(crate) fn without_one<T: Clone>(list: &[T]) -> Vec<Vec<T>> {
    let without = |gone: usize| {
        let kept = list.iter().enumerate().filter(|(at, _)| *at != gone);
        kept.map(|(_, element)| element.clone()).collect()
    };
    (0..list.len()).rev().map(without).collect()
}

/// The halves of a list, for a quick start of [`without_one`].
pub(crate) fn halves<T: Clone>(list: &[T]) -> Vec<Vec<T>> {
    if list.len() < 4 {
        return Vec::new();
    }
    let (first, second) = list.split_at(list.len() / 2);
    vec![first.to_vec(), second.to_vec()]
}
