//! A profile in the forms that tools and people read.
//!
//! Each is a pure function of a [`crate::profile::Profile`], and so is reading one back from pprof's form. None of them
//! knows how the profile was taken.

pub mod format;
pub mod html;
pub mod pprof;
pub mod svg;
