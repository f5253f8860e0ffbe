//! `stillgate-lab explain`: why one build costs more than another.
//!
//! [`run`] takes the profiles, [`load`] those of servers; [`fold`] makes slices of them with names that both builds
//! share. [`isolated`] measures a part by itself. [`analysis`] is pure and finds the changes; [`words`] shows them in a
//! table, [`page`] with flame graphs.

pub(crate) mod analysis;
pub(crate) mod isolated;
pub(crate) mod page;
pub(crate) mod words;
