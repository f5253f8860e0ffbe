//! Statistics for deciding whether two measured things differ.
//!
//! Pure functions: no IO, no clock, no threads; randomness is an argument, so that an analysis can be repeated from its
//! data and seed. Each function names its source; `tests/data` holds values of R and SciPy for comparison.
//!
//! One rule holds everywhere: input that has no answer (NaN, infinities, too few values, a level outside 0 to 1) gives
//! `None`, never a number that looks like one.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod change_points;
mod distributions;
mod estimate;
mod multiplicity;
mod power;
mod random;
mod rank_tests;
mod steps;
mod student_t;

pub use change_points::{ChangePoint, e_divisive};
pub use estimate::{
    Estimate, Interval, bca, median, quantile, quantile_interval, quantile_ranks, standard_deviation, theil_sen,
};
pub use multiplicity::{
    Looks, RateChange, SCREEN_LEVELS, Slice, SpendingFunction, benjamini_hochberg, boundaries, crossing_probability,
    holm, is_suspicious, is_undecided, nominal_p, rate_changes, screened, third_look_level,
};
pub use power::{
    SIGNED_RANK_EFFICIENCY, effect_beyond, minimum_detectable_effect, minimum_detectable_effect_signed_rank,
    minimum_detectable_effect_two_sample, pairs_needed, power,
};
pub use random::Random;
pub use rank_tests::{MannWhitney, SignedRank, hodges_lehmann, mann_whitney, signed_rank};
pub use steps::{Conclusion, LevelBelief, Reading, StepPrior, Steps, choose, conclude, next_place, steps};
pub use student_t::{PairedT, TwoSampleT, log_ratios, paired_t, two_sample_t};
