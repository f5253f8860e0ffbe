//! `stillgate-lab compare`: which of two to six programs is slower, with a stated error.
//!
//! [`subject`] turns the arguments into targets ([`revisions`] builds git revisions); [`run`] measures them in rounds,
//! in the orders of [`rounds`], each side by [`side`]; [`instructions`] counts separately. [`analysis`] is pure and
//! judges the results, two builds at a time ([`duel`]), by the measures of [`measures`], the error budget of [`looks`],
//! and the rules of [`failures`] and, for instructions, of [`repetitions`]. [`table`] and [`markdown`] show it in the
//! sentences of [`words`]. [`alone`] measures one program by the same means.

pub(crate) mod alone;
pub(crate) mod analysis;
pub(crate) mod duel;
pub(crate) mod failures;
#[cfg(test)]
mod false_alarms;
mod idle;
pub(crate) mod instructions;
pub(crate) mod looks;
pub(crate) mod markdown;
pub(crate) mod measures;
mod repetitions;
pub(crate) mod revisions;
pub(crate) mod rounds;
pub(crate) mod run;
pub(crate) mod side;
pub(crate) mod subject;
pub(crate) mod table;
pub(crate) mod words;
