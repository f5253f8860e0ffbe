//! `stillgate-lab bisect`: which commit changed a measurement.
//!
//! [`commits`] puts a history in a row, [`versions`] a list of artefacts; [`checkouts`] builds commits in worktrees,
//! with a [`patch`] if one is given. [`priors`] makes commits likelier by counts. [`command`] runs what measures them,
//! for the number that it prints ([`number`]). [`record`] summarises the tries so far and chooses the next commit;
//! [`analysis`] gives the answer, and [`words`] puts it into a sentence. Both are pure, so `verify` can recompute
//! everything. [`run`] is the loop, [`display`] its progress display.

pub(crate) mod analysis;
pub(crate) mod checkouts;
pub(crate) mod command;
pub(crate) mod commits;
pub(crate) mod number;
pub(crate) mod run;
pub(crate) mod versions;
pub(crate) mod words;
