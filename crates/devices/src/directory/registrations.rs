//! A node's side of the directory: which of its devices are registered, and what to ask next.
//!
//! A connection is reachable on its node at once; the directory may be away. What is to be registered waits in one queue,
//! taken at the pace of its caller: new connections, and after another era or epoch all of them. An answer that does not
//! come is asked for again, which the directory's functions allow.

use super::{Connected, Era, Place, Registered};
use crate::generation::Generation;
use std::collections::{BTreeMap, VecDeque};

/// What to ask the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// [`super::connect`]
    Connect {
        /// The device.
        device: Box<str>,
        /// Its connection here.
        place: Place,
        /// The directory's.
        era: Era,
    },
    /// [`super::register`]
    Register {
        /// The device.
        device: Box<str>,
        /// Its connection here.
        place: Place,
        /// Of the connection.
        generation: Generation,
        /// Since when, in milliseconds since the epoch.
        since_ms: u64,
    },
}

/// What an answer or an event makes necessary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// Close this connection of this node: a newer one has its device.
    Close {
        /// Its number.
        connection: u64,
    },
    /// Have that node close its connection. If this is lost, the node's next registration finds out.
    CloseThere {
        /// The connection.
        place: Place,
    },
    /// Ask [`super::disconnect`], until it is answered: the connection has ended.
    Disconnect {
        /// Its place.
        place: Place,
    },
}

#[derive(Debug)]
struct Local {
    connection: u64,
    since_ms: u64,
    /// None until the directory has given it.
    generation: Option<Generation>,
    /// Whether it is in the queue.
    is_due: bool,
}

/// The devices of one node.
#[derive(Debug)]
pub struct Registrations {
    node: Box<str>,
    epoch: u64,
    /// None until the directory was reached.
    era: Option<Era>,
    /// In order, so that a simulation repeats, and a prefix can be listed.
    devices: BTreeMap<Box<str>, Local>,
    /// A device that is not due any more is passed over.
    due: VecDeque<Box<str>>,
}

impl Registrations {
    /// Of a node without devices. `epoch` is random.
    pub fn new(node: Box<str>, epoch: u64) -> Registrations {
        Registrations { node, epoch, era: None, devices: BTreeMap::new(), due: VecDeque::new() }
    }

    /// The highest era that was seen.
    pub fn era(&self) -> Option<Era> {
        self.era
    }

    /// The node's epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The connection of a device here, and its generation if the directory has given one.
    pub fn connection(&self, device: &str) -> Option<(u64, Option<Generation>)> {
        self.devices.get(device).map(|local| (local.connection, local.generation))
    }

    /// How many are to be registered.
    pub fn due(&self) -> usize {
        self.devices.values().filter(|local| local.is_due).count()
    }

    /// A device has connected here. An older connection of it here has to be closed; its place in the directory becomes the
    /// new one's. Under [`super::Duplicate::Refuse`] ask [`Registrations::connection`] first.
    pub fn connected(&mut self, device: &str, connection: u64, now_ms: u64) -> Effect {
        let local = Local { connection, since_ms: now_ms, generation: None, is_due: true };
        let before = self.devices.insert(device.into(), local);
        // Before those that are only registered again.
        self.due.push_front(device.into());
        before.map_or(Effect::None, |before| Effect::Close { connection: before.connection })
    }

    /// A connection has ended. Nothing if the device has another one here.
    pub fn disconnected(&mut self, device: &str, connection: u64) -> Effect {
        if self.devices.get(device).is_none_or(|local| local.connection != connection) {
            return Effect::None;
        }
        self.devices.remove(device);
        Effect::Disconnect { place: self.place(connection) }
    }

    /// The directory's era, as it was just read. Another one than before means that it came back empty: everything is due.
    /// Returns the era to begin instead (by compare-and-set) if there is none, or one that is older than what was seen.
    pub fn found_era(&mut self, found: Option<Era>, now_s: u32) -> Option<Era> {
        match found {
            Some(found) if self.era.is_none_or(|known| found >= known) => {
                if self.era.replace(found) != Some(found) {
                    self.everything_is_due();
                }
                None
            }
            _ => Some(Era::after(self.era, now_s)),
        }
    }

    /// The node's lease had ended: its connections live on under a new epoch, unless their devices have gone elsewhere.
    pub fn begin_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.everything_is_due();
    }

    /// Registers a device again, to find out whether its connection here is still the current one. To be called for each
    /// device now and then, as a node that was to close it may not have heard.
    pub fn audit(&mut self, device: &str) {
        if let Some(local) = self.devices.get_mut(device)
            && !local.is_due
        {
            local.is_due = true;
            self.due.push_back(device.into());
        }
    }

    /// What to ask next; nothing before the era is known. An answer goes to [`Registrations::answered`] or
    /// [`Registrations::registered`], the lack of one to [`Registrations::unanswered`].
    pub fn next_request(&mut self) -> Option<Request> {
        let era = self.era?;
        loop {
            let device = self.due.pop_front()?;
            let Some(local) = self.devices.get_mut(&device).filter(|local| local.is_due) else { continue };
            local.is_due = false;
            let (connection, generation, since_ms) = (local.connection, local.generation, local.since_ms);
            let place = self.place(connection);
            return Some(match generation {
                None => Request::Connect { device, place, era },
                Some(generation) => Request::Register { device, place, generation, since_ms },
            });
        }
    }

    /// The directory's answer to a [`Request::Connect`].
    pub fn answered(&mut self, device: &str, asked: &Place, answer: Connected) -> Effect {
        let local = self.devices.get_mut(device).filter(|local| local.connection == asked.connection);
        match answer {
            Connected::Current { generation, replaced } => {
                let Some(local) = local else {
                    return Effect::Disconnect { place: asked.clone() };
                };
                // An answer that comes late, after a later one.
                local.generation = local.generation.max(Some(generation));
                match replaced {
                    Some(place) if place.node != self.node => Effect::CloseThere { place },
                    _ => Effect::None,
                }
            }
            Connected::Occupied { .. } => self.close(device, asked),
        }
    }

    /// The directory's answer to a [`Request::Register`].
    pub fn registered(&mut self, device: &str, asked: &Place, generation: Generation, answer: Registered) -> Effect {
        let local = self.devices.get(device).filter(|local| local.connection == asked.connection);
        match (local, answer) {
            // It ended meanwhile, and its disconnect may have come before.
            (None, Registered::Current) => Effect::Disconnect { place: asked.clone() },
            (Some(local), Registered::Superseded) if local.generation == Some(generation) => self.close(device, asked),
            _ => Effect::None,
        }
    }

    /// No answer came to a request for this place: the directory is away, or slow. The device is asked for again, and if it
    /// has gone, what the request may have written is undone.
    pub fn unanswered(&mut self, device: &str, asked: &Place) -> Effect {
        if self.devices.get(device).is_none_or(|local| local.connection != asked.connection) {
            return Effect::Disconnect { place: asked.clone() };
        }
        self.audit(device);
        Effect::None
    }

    /// Another node has a newer connection of this device.
    pub fn close(&mut self, device: &str, place: &Place) -> Effect {
        let is_current = self.devices.get(device).is_some_and(|local| local.connection == place.connection);
        if place.node != self.node || !is_current {
            return Effect::None;
        }
        self.devices.remove(device);
        Effect::Close { connection: place.connection }
    }

    fn everything_is_due(&mut self) {
        self.due.clear();
        for (device, local) in &mut self.devices {
            local.is_due = true;
            self.due.push_back(device.clone());
        }
    }

    fn place(&self, connection: u64) -> Place {
        Place { node: self.node.clone(), epoch: self.epoch, connection }
    }
}
