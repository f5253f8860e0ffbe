//! The meaning of configurations, and the refusal of invalid ones.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod changes;
mod consumers;
mod expressions;
mod golden;
mod hostile;
mod incremental;
mod metrics;
mod plugins;
mod secret_places;
mod store;

/// The number of cases of a property whose cases take milliseconds: all in the nightly, a quarter in an ordinary run.
fn cases(in_the_nightly: u32) -> u32 {
    let is_nightly = std::env::var("STILLGATE_NIGHTLY").is_ok_and(|value| value == "1");
    if is_nightly { in_the_nightly } else { in_the_nightly / 4 }
}
