//! `stillgate-lab nightly`: today's commit measured in turn with yesterday's and the release's, series by series.
//!
//! [`suite`] says what is measured, [`run`] does it, [`counts`] counts what does not scatter on each commit. [`analysis`] is pure
//! and judges a night from its lines in the store, [`kept`] beside those of other nights; [`words`] says it.

pub(crate) mod analysis;
pub(crate) mod counts;
pub(crate) mod kept;
pub(crate) mod run;
pub(crate) mod suite;
pub(crate) mod words;
