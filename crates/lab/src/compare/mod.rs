//! `stillgate-lab compare`: which of two to six programs is slower, with a stated error.
//!
//! [`subject`] turns the arguments into targets ([`revisions`] builds git revisions); [`run`] measures them in rounds,
//! each side by [`side`]; [`instructions`] counts separately. [`analysis`] is pure and judges the results, two builds
//! at a time, by the measures of [`measures`], the error budget of [`looks`], and, for failures and instructions, the
//! rules of [`rules`]. [`tables`] shows it in the sentences of [`words`]. [`alone`] measures one program by the same
//! means.

pub(crate) mod alone;
pub(crate) mod analysis;
#[cfg(test)]
mod false_alarms;
pub(crate) mod instructions;
pub(crate) mod looks;
pub(crate) mod measures;
pub(crate) mod revisions;
pub(crate) mod rules;
pub(crate) mod run;
pub(crate) mod side;
pub(crate) mod subject;
pub(crate) mod tables;
pub(crate) mod words;
