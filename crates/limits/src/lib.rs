//! Limits that hold exactly over all worker threads, and over both processes of an upgrade: a bounded table of shared
//! counters without locks.
//!
//! ```text
//!  key ──▶ bucket ─┬ counter: one window of one key ──▶ admitted? remaining, reset
//!                  ├ counter
//!                  └ … 15 in all; a new one takes the place of one that is over
//! ```
//!
//! - Exactly a window's `count` of requests are admitted, whether they come from one thread, several, or two processes.
//! - A leaky bucket ([`Leak`]) admits its burst at once and its rate from then on, counted in the same way.
//! - No operation locks, waits or allocates. A process that is killed in the middle of one costs at most the one
//!   counter that it was adding; its slot is used again once no counter has been added to that bucket for 8 to 16
//!   seconds.
//! - Memory is bounded. If too many keys meet in a bucket, the counter whose window ends soonest is evicted, and that
//!   is counted ([`TableEvents::evicted`]): its key starts from zero when it comes again. Nothing else is admitted beyond
//!   a limit.
//! - Time is an argument, in milliseconds since the epoch. If the clock is set back, windows that would end later than
//!   possible are over.
//!
//! ```
//! use stillgate_limits::{Limit, Limits};
//!
//! let limits = Limits::create(1 << 20)?;
//! // Per limit, its identity: whatever tells it from all others, its configuration included.
//! let of_limit = limits.hasher().part(b"route 7, limit-count, version 3");
//! // Per request, what it is counted by.
//! let key = of_limit.part(b"192.0.2.1").finish();
//! let limit = Limit { count: 2, window_ms: 60_000 };
//! let taken = limits.take_fixed(key, limit, 1, 1_795_220_833_000).expect("nobody else is here");
//! assert!(taken.admitted && taken.remaining == 1 && taken.reset_ms == 60_000);
//! # Ok::<(), std::io::Error>(())
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bucket;
mod key;
mod leaky;
mod memory;
mod sync;
mod table;
mod window;

pub use bucket::BucketContention;
pub use key::{CounterKey, KeyHasher, KeyPrefix};
pub use leaky::{BURST_MAX, Leak, LeakyDecision, RATE_MAX, RATE_MIN};
pub use table::{Limits, TableEvents};
pub use window::{Limit, LimitDecision};

/// The most that one window can count; a higher limit is reduced to this.
pub const COUNT_MAX: u64 = (1 << bucket::COUNT_BITS) - 1;
