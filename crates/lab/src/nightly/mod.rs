//! `stillgate-lab nightly`: today's commit measured in alternation with yesterday's and the release's, series by
//! series.
//!
//! [`suite`] defines the series, [`run`] measures them, [`counts`] counts each commit. [`analysis`] is pure and judges
//! a night from its lines in the store, [`kept`] compares it with those of other nights; [`words`] formats the report.

pub(crate) mod analysis;
pub(crate) mod counts;
pub(crate) mod run;
pub(crate) mod suite;
pub(crate) mod words;
