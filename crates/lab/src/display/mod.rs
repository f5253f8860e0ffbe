//! What long work shows on standard error: live lines where it is a terminal, plain ones otherwise.
//!
//! Nothing here goes to standard output: that is for results.

mod load;
mod progress;

pub(crate) use load::LoadDisplay;
pub(crate) use progress::{Progress, rough};
