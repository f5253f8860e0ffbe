//! Consumers, and how they are found by their credentials.

use crate::chain::Entry;
use std::collections::HashMap;
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

/// All consumers, with an index of their credentials. It is built off the workers.
#[derive(Debug, Default, Clone)]
pub struct Consumers {
    list: Vec<Arc<Consumer>>,
    by_name: HashMap<Box<str>, u32>,
    by_credential: HashMap<(&'static str, Box<[u8]>), Attached>,
}

impl Consumers {
    /// The one that has a credential: what an auth plugin's [`crate::Authenticate::lookup`] gives.
    pub fn find(&self, plugin: &'static str, lookup: &[u8]) -> Option<Attached> {
        self.by_credential.get(&(plugin, lookup.into())).copied()
    }

    /// The one of a name.
    pub fn named(&self, name: &str) -> Option<Attached> {
        self.by_name.get(name).map(|consumer| Attached { consumer: *consumer, credential: None })
    }

    /// One that was found here.
    pub fn of(&self, attached: Attached) -> &Consumer {
        &self.list[attached.consumer as usize]
    }
}
