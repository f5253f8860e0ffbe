//! Statistics for deciding whether two measured things differ.
//!
//! Pure functions: no IO, no clock, no threads; randomness is an argument, so that an analysis can be repeated from its
//! data and seed. Each function names its source; `tests/data` holds values of R and SciPy for comparison.
//!
//! One rule holds everywhere: input that has no answer (NaN, infinities, too few values, a level outside 0 to 1) gives
//! `None`, never a number that looks like one.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod binomial;
mod bootstrap;
mod change_points;
mod estimate;
mod false_discovery;
mod hodges_lehmann;
mod holm;
mod mann_whitney;
mod normal;
mod paired;
mod power;
mod quadrature;
mod quantile;
mod random;
mod ranks;
mod root;
mod screening;
mod sequential;
mod signed_rank;
mod simultaneous;
mod steps;
mod student_t;
mod theil_sen;
mod two_sample;

pub use bootstrap::bca;
pub use change_points::{ChangePoint, e_divisive};
pub use estimate::{Estimate, Interval, standard_deviation};
pub use false_discovery::benjamini_hochberg;
pub use hodges_lehmann::hodges_lehmann;
pub use holm::holm;
pub use mann_whitney::{MannWhitney, mann_whitney};
pub use paired::{PairedT, log_ratios, paired_t};
pub use power::{
    SIGNED_RANK_EFFICIENCY, effect_beyond, minimum_detectable_effect, minimum_detectable_effect_signed_rank,
    minimum_detectable_effect_two_sample, pairs_needed, power,
};
pub use quantile::{median, quantile, quantile_interval, quantile_ranks};
pub use random::Random;
pub use screening::{Looks, SCREEN_LEVELS, is_suspicious, is_undecided, screened, third_look_level};
pub use sequential::{SpendingFunction, boundaries, crossing_probability, nominal_p};
pub use signed_rank::{SignedRank, signed_rank};
pub use simultaneous::{RateChange, Slice, rate_changes};
pub use steps::{Conclusion, LevelBelief, Reading, StepPrior, Steps, choose, conclude, next_place, steps};
pub use theil_sen::theil_sen;
pub use two_sample::{TwoSampleT, two_sample_t};
