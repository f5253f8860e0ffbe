//! What a value may look like: objects from one table of keys each, and the kinds of their values.
//!
//! From the same tables come the readers, the JSON Schema and the reference. Which keys there are is not known here.

pub(crate) mod description;
pub(crate) mod kind;
pub(crate) mod object;
pub(crate) mod quantity;
