//! `stillgate-lab explain`: why one build costs more than another.
//!
//! [`isolated`] measures a part by itself. [`analysis`] makes slices of the profiles with names that both builds share,
//! and finds the changes; it is pure. [`words`] shows them in a table, and on a page with flame graphs.

pub(crate) mod analysis;
pub(crate) mod isolated;
pub(crate) mod words;
