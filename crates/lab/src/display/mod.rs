//! Progress of long operations on standard error: live lines on a terminal, plain ones otherwise.
//!
//! Nothing here goes to standard output, which is for results.

mod load;
mod progress;

pub(crate) use load::LoadDisplay;
pub(crate) use progress::{Progress, rough};
