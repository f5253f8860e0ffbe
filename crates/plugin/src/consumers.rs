//! Consumers, and how they are found by their credentials.

use crate::chain::Entry;
use std::sync::Arc;

/// Who asks, as an auth plugin has found out: places in [`Consumers`], which an exchange holds to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attached {
    /// Place of the consumer.
    pub consumer: u32,
    /// Place of the credential among the consumer's; `None`: it was found by what stands in the consumer itself.
    pub credential: Option<u16>,
}

/// A consumer.
#[derive(Debug, PartialEq)]
pub struct Consumer {
    /// `username`
    pub name: Box<str>,
    /// `group_id`
    pub group: Option<Box<str>>,
    /// The label `custom_id`.
    pub custom_id: Option<Box<str>>,
    /// Its plugins that do not authenticate, merged with those of its group. Consumers that have the same by pointer have the
    /// same list by pointer.
    pub plugins: Arc<[Arc<Entry>]>,
    /// Ids of its credentials.
    pub credentials: Box<[Box<str>]>,
}

/// All consumers, with an index of their credentials. It is built off the workers; a change costs what changed.
#[derive(Debug, Default, Clone)]
pub struct Consumers {}

impl Consumers {
    /// The one that has a credential: what an auth plugin's [`crate::Authenticate::lookup`] gives.
    pub fn find(&self, _plugin: &'static str, _lookup: &[u8]) -> Option<Attached> {
        None
    }

    /// The one of a name.
    pub fn named(&self, _name: &str) -> Option<Attached> {
        None
    }

    /// One that was found.
    pub fn of(&self, _attached: Attached) -> &Consumer {
        unimplemented!()
    }
}
