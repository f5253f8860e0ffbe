//! Consumers, and how they are found by their credentials.

use crate::chain::Entry as Plugin;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
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
    pub plugins: Arc<[Arc<Plugin>]>,
    /// Ids of its credentials.
    pub credentials: Box<[Box<str>]>,
}

/// All consumers, with an index of their credentials. It is built off the workers.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Consumers {
    list: Vec<Arc<Consumer>>,
    by_name: HashMap<Box<str>, u32>,
    by_credential: HashMap<&'static str, HashMap<Box<[u8]>, Attached>>,
}

/// A credential, to be found by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// The plugin that asks for it.
    pub plugin: &'static str,
    /// What it is looked up by.
    pub lookup: Box<[u8]>,
    /// Place among the consumer's credentials; `None`: it stands in the consumer itself.
    pub place: Option<u16>,
}

impl Consumers {
    /// Adds a consumer. Its name must be new.
    ///
    /// # Errors
    ///
    /// Where another consumer has one of its credentials: the place of that credential in the list, and its owner. The consumer is
    /// there all the same, without that credential.
    pub fn insert(&mut self, consumer: Arc<Consumer>, credentials: Vec<Credential>) -> Result<(), Taken> {
        let place = self.list.len() as u32;
        self.by_name.insert(consumer.name.clone(), place);
        self.list.push(consumer);
        let mut taken = Ok(());
        for (at, credential) in credentials.into_iter().enumerate() {
            let attached = Attached { consumer: place, credential: credential.place };
            match self.by_credential.entry(credential.plugin).or_default().entry(credential.lookup) {
                Entry::Vacant(vacant) => drop(vacant.insert(attached)),
                Entry::Occupied(occupied) => taken = taken.and(Err(Taken { at, by: *occupied.get() })),
            }
        }
        taken
    }

    /// The one that has a credential: what an auth plugin's [`crate::Authenticate::lookup`] gives.
    pub fn find(&self, plugin: &'static str, lookup: &[u8]) -> Option<Attached> {
        self.by_credential.get(plugin)?.get(lookup).copied()
    }

    /// The one of a name.
    pub fn named(&self, name: &str) -> Option<Attached> {
        self.by_name.get(name).map(|consumer| Attached { consumer: *consumer, credential: None })
    }

    /// One that was found here.
    pub fn of(&self, attached: Attached) -> &Consumer {
        &self.list[attached.consumer as usize]
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Consumer>> {
        self.list.iter()
    }
}

/// A credential that another consumer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Its place in the list that was to be inserted.
    pub at: usize,
    /// Who has it.
    pub by: Attached,
}
