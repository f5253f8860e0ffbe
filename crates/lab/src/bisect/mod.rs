//! `stillgate-lab bisect`: which commit changed a measurement.
//!
//! [`candidates`] puts a history or a list of artefacts in a row; [`checkouts`] builds commits in worktrees.
//! [`measurement`] runs what measures them, for the number that it prints. [`analysis`] gives the answer, and puts it
//! into a sentence. It is pure, so `verify` can recompute everything. [`run`] is the loop.

pub(crate) mod analysis;
pub(crate) mod candidates;
pub(crate) mod checkouts;
pub(crate) mod measurement;
pub(crate) mod run;
