//! Suites: tables of targets, cases and figures, in YAML, for `stillgate-lab measure FIGURES --suite FILE`.
//!
//! ```text
//!  file ──▶ targets × cases ──fill──▶ configurations, requests ──run──▶ rounds of a table (see `figures`)
//! ```
//!
//! [`file`] reads a suite; [`fill`] makes texts of its templates; [`run`] starts the targets of each case, checks that they
//! answer as expected, and measures their figures in the same rounds.

pub(crate) mod file;
mod fill;
pub(crate) mod run;
