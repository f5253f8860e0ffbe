//! `stillgate-lab history`: what changed when, from a store.
//!
//! [`analysis`] is pure: series, and the change points in them. [`words`] formats them for a terminal; the page is made
//! in `report`.

pub(crate) mod analysis;
pub(crate) mod words;
