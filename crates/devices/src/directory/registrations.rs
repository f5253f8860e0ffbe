//! A node's side of the directory: which of its devices are registered, and the next request.
//!
//! A connection is reachable on its node at once, even while the directory is unavailable. Pending registrations wait
//! in one queue, taken at the caller's pace: new connections, and after a new era or epoch all of them. A request
//! without an answer is repeated, which the directory's functions allow.

use super::{ConnectOutcome, Disconnect, Duplicate, Era, Location, RegistrationAnswer};
use crate::session::Generation;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::Bound;

/// A request to the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegistrationRequest {
    /// [`super::connect`]
    Connect {
        /// The device.
        device: Box<str>,
        /// Its connection here.
        place: Location,
        /// The policy for another connection of the device.
        duplicate: Duplicate,
        /// The directory's era.
        era: Era,
    },
    /// [`super::register`]
    Register {
        /// The device.
        device: Box<str>,
        /// Its connection here.
        place: Location,
        /// Generation of the connection.
        generation: Generation,
        /// Since when, in milliseconds since the epoch.
        since_ms: u64,
    },
}

/// An action that an answer or an event makes necessary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegistrationEffect {
    /// Nothing.
    None,
    /// Close this connection of this node: a newer one has its device.
    Close {
        /// Its number.
        connection: u64,
    },
    /// Close that connection on its node. If this is lost, the node's next registration finds out.
    CloseThere {
        /// The connection.
        place: Location,
    },
    /// Request [`super::disconnect`] until it is answered.
    Disconnect(Disconnect),
}

#[derive(Debug)]
struct LocalDevice {
    connection: u64,
    /// The number of its [`Location`].
    place_number: u64,
    duplicate: Duplicate,
    since_ms: u64,
    /// `None` until the directory has assigned it.
    generation: Option<Generation>,
    /// Its number in the queue, if it is to be registered.
    due: Option<u64>,
    /// Whether the directory has it, as far as is known. False after a loss.
    is_registered: bool,
}

impl LocalDevice {
    const NONE: LocalDevice = LocalDevice {
        connection: 0,
        place_number: 0,
        duplicate: Duplicate::Replace,
        since_ms: 0,
        generation: None,
        due: None,
        is_registered: false,
    };
}

/// The devices of one node.
#[derive(Debug)]
pub struct NodeRegistrations {
    node: Box<str>,
    epoch: u64,
    /// `None` until the directory was reached.
    era: Option<Era>,
    /// In order, so that a simulation repeats, and a prefix can be listed.
    devices: BTreeMap<Box<str>, LocalDevice>,
    /// Numbered, because a device may be in the queue more than once: entries with other numbers than its own are
    /// skipped.
    due: VecDeque<(u64, Box<str>)>,
    last_due: u64,
    last_place: u64,
    /// The number of unregistered devices.
    unregistered: usize,
    /// Numbers of places that another process has taken over. This process is about to end, so there are few of them.
    handed_over: HashSet<u64>,
}

/// How many skipped entries the queue may have, besides one per device. Devices that come and go while the directory is
/// unavailable leave them.
const PASSED_OVER_MAX: usize = 1_000;

impl NodeRegistrations {
    /// The state of a node without devices. `epoch` is random; places are numbered after `last_place`, which is above all numbers
    /// of a process that has had the same epoch.
    pub fn new(node: Box<str>, epoch: u64, last_place: u64) -> NodeRegistrations {
        NodeRegistrations {
            node,
            epoch,
            era: None,
            devices: BTreeMap::new(),
            due: VecDeque::new(),
            last_due: 0,
            last_place,
            unregistered: 0,
            handed_over: HashSet::new(),
        }
    }

    /// The highest era seen.
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

    /// The place of a device, if it is connected here.
    pub fn place_of(&self, device: &str) -> Option<Location> {
        self.devices.get(device).map(|local| self.place(local.place_number))
    }

    /// The number of pending registrations, or more: some devices may have gone.
    pub fn due_count(&self) -> usize {
        self.due.len()
    }

    /// The era in which everything here is registered: a device that the directory does not know is not here.
    pub fn fully_registered_era(&self) -> Option<Era> {
        self.era.filter(|_| self.unregistered == 0)
    }

    /// The number of connected devices.
    pub fn len(&self) -> usize {
        self.devices.len()
    }

    /// Whether no device is connected.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// A device has connected here, at this place. An older connection of it here has to be closed; its place in the directory
    /// becomes the new one's. Under [`Duplicate::Refuse`] ask [`NodeRegistrations::connection`] first.
    pub fn add_connection(
        &mut self,
        device: &str,
        connection: u64,
        duplicate: Duplicate,
        now_ms: u64,
    ) -> (Location, RegistrationEffect) {
        self.begin(device, LocalDevice { connection, duplicate, since_ms: now_ms, ..LocalDevice::NONE })
    }

    /// A connection of another process of this node continues here. Its number there was lower, and the directory has
    /// that one until it knows the new one; `generation` is the one that the directory had assigned, if any.
    pub fn adopt(
        &mut self,
        device: &str,
        connection: u64,
        generation: Option<Generation>,
        since_ms: u64,
    ) -> RegistrationEffect {
        self.begin(device, LocalDevice { connection, since_ms, generation, ..LocalDevice::NONE }).1
    }

    /// Whether the device has a newer connection here than one of this generation, or is registering one: to be checked
    /// before [`NodeRegistrations::adopt`].
    pub fn is_newer(&self, device: &str, generation: Generation) -> bool {
        self.devices.get(device).is_some_and(|local| match local.generation {
            Some(known) => known > generation,
            // If the older one is to stay, the directory's answer will say so.
            None => local.duplicate == Duplicate::Replace,
        })
    }

    /// A connection has ended. Nothing if the device has another one here.
    pub fn remove_connection(&mut self, device: &str, connection: u64) -> RegistrationEffect {
        if self.devices.get(device).is_none_or(|local| local.connection != connection) {
            return RegistrationEffect::None;
        }
        // The directory may have a predecessor of this connection, from this process or an earlier one.
        let Some(local) = self.remove(device) else { return RegistrationEffect::None };
        RegistrationEffect::Disconnect(Disconnect { place: self.place(local.place_number), and_older: true })
    }

    /// Another process of this node takes over a connection, and registers it.
    pub fn mark_handed_over(&mut self, device: &str, connection: u64) {
        if self.devices.get(device).is_some_and(|local| local.connection == connection)
            && let Some(local) = self.remove(device)
        {
            self.handed_over.insert(local.place_number);
        }
    }

    /// Undoes the effect of a request for a connection that has ended meanwhile.
    fn undo_request(&self, asked: &Location) -> RegistrationEffect {
        // Another process has taken it over, and may not have registered it yet.
        match self.handed_over.contains(&asked.connection) {
            true => RegistrationEffect::None,
            false => RegistrationEffect::Disconnect(Disconnect { place: asked.clone(), and_older: false }),
        }
    }

    /// The directory's era, as it was just read. A new era means that it came back empty: all devices are due. Returns
    /// the era to begin (by compare-and-set) if there is none, or an older one than was seen.
    pub fn observe_era(&mut self, found: Option<Era>, now_s: u32) -> Option<Era> {
        match found {
            Some(found) if self.era.is_none_or(|known| found >= known) => {
                if self.era.replace(found) != Some(found) {
                    self.mark_all_due();
                }
                None
            }
            _ => Some(Era::next_era(self.era, now_s)),
        }
    }

    /// The node's lease had ended: its connections continue under a new epoch, unless their devices have connected
    /// elsewhere.
    pub fn begin_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.mark_all_due();
    }

    /// Registers a device again, to find out whether its connection here is still current. To be called for each device
    /// periodically, because a node may miss a request to close it.
    pub fn reregister(&mut self, device: &str) {
        if let Some(local) = self.devices.get_mut(device)
            && local.due.is_none()
        {
            self.last_due += 1;
            local.due = Some(self.last_due);
            self.due.push_back((self.last_due, device.into()));
        }
    }

    /// [`NodeRegistrations::reregister`] for the next `count` devices by name, wrapping around; returns where to continue.
    pub fn reregister_after(&mut self, device: &str, count: usize) -> Box<str> {
        let after = (Bound::Excluded(device), Bound::Unbounded);
        let next: Vec<Box<str>> =
            self.devices.range::<str, _>(after).take(count).map(|(next, _)| next.clone()).collect();
        next.iter().for_each(|device| self.reregister(device));
        next.into_iter().next_back().unwrap_or_default()
    }

    /// The next request; `None` until the era is known. Pass its answer to [`NodeRegistrations::on_connect_answer`] or
    /// [`NodeRegistrations::on_register_answer`], a missing answer to [`NodeRegistrations::on_missing_answer`].
    pub fn next_request(&mut self) -> Option<RegistrationRequest> {
        let era = self.era?;
        loop {
            let (number, device) = self.due.pop_front()?;
            let Some(local) = self.devices.get_mut(&device).filter(|local| local.due == Some(number)) else { continue };
            local.due = None;
            let LocalDevice { place_number, duplicate, since_ms, generation, .. } = *local;
            let place = self.place(place_number);
            return Some(match generation {
                None => RegistrationRequest::Connect { device, place, duplicate, era },
                Some(generation) => RegistrationRequest::Register { device, place, generation, since_ms },
            });
        }
    }

    /// The directory's answer to a [`RegistrationRequest::Connect`].
    pub fn on_connect_answer(&mut self, device: &str, asked: &Location, answer: ConnectOutcome) -> RegistrationEffect {
        let local = self.devices.get_mut(device).filter(|local| local.place_number == asked.connection);
        match answer {
            ConnectOutcome::Current { generation, replaced } => {
                let Some(local) = local else { return self.undo_request(asked) };
                // A late answer that comes after a later one.
                local.generation = local.generation.max(Some(generation));
                self.mark_registered(device);
                match replaced {
                    Some(place) if place.node != self.node => RegistrationEffect::CloseThere { place },
                    _ => RegistrationEffect::None,
                }
            }
            // A late answer: the directory has accepted this connection since, because the other one's node was dead.
            ConnectOutcome::Occupied { generation, .. }
                if local.as_ref().is_some_and(|local| local.generation > Some(generation)) =>
            {
                RegistrationEffect::None
            }
            // The connection itself, under a newer epoch: the request with that epoch came before this one.
            ConnectOutcome::Occupied { ref place, .. }
                if place.node == self.node && local.is_some_and(|local| local.place_number == place.connection) =>
            {
                RegistrationEffect::None
            }
            ConnectOutcome::Occupied { .. } => self.close_if_current(device, asked),
        }
    }

    /// The directory's answer to a [`RegistrationRequest::Register`].
    pub fn on_register_answer(
        &mut self,
        device: &str,
        asked: &Location,
        generation: Generation,
        answer: RegistrationAnswer,
    ) -> RegistrationEffect {
        let local = self.devices.get(device).filter(|local| local.place_number == asked.connection);
        match (local, answer) {
            // It ended meanwhile, and its disconnect may have come before.
            (None, RegistrationAnswer::Current) => self.undo_request(asked),
            (Some(local), RegistrationAnswer::Superseded) if local.generation == Some(generation) => {
                self.close_if_current(device, asked)
            }
            (Some(_), RegistrationAnswer::Current) => {
                self.mark_registered(device);
                RegistrationEffect::None
            }
            _ => RegistrationEffect::None,
        }
    }

    /// A request for this place got no answer: the directory is unavailable, or slow. It is repeated for the device,
    /// and if the device has gone, the possible effect of the request is undone.
    pub fn on_missing_answer(&mut self, device: &str, asked: &Location) -> RegistrationEffect {
        if self.devices.get(device).is_none_or(|local| local.place_number != asked.connection) {
            return self.undo_request(asked);
        }
        self.reregister(device);
        RegistrationEffect::None
    }

    /// Another node has a newer connection of this device. The directory has that one, so no older one of this node
    /// needs to be ended there. A running process of this node may even have a newer one under a lower number.
    pub fn close_if_current(&mut self, device: &str, place: &Location) -> RegistrationEffect {
        let is_current = self.devices.get(device).is_some_and(|local| local.place_number == place.connection);
        if place.node != self.node || !is_current {
            return RegistrationEffect::None;
        }
        self.remove(device)
            .map_or(RegistrationEffect::None, |local| RegistrationEffect::Close { connection: local.connection })
    }

    fn place(&self, number: u64) -> Location {
        Location { node: self.node.clone(), epoch: self.epoch, connection: number }
    }

    fn begin(&mut self, device: &str, local: LocalDevice) -> (Location, RegistrationEffect) {
        (self.last_due, self.last_place) = (self.last_due + 1, self.last_place + 1);
        let replaced = self.remove(device);
        let (place_number, due) = (self.last_place, Some(self.last_due));
        self.devices.insert(device.into(), LocalDevice { place_number, due, is_registered: false, ..local });
        self.unregistered += 1;
        // Before those that are merely registered again.
        self.due.push_front((self.last_due, device.into()));
        if self.due.len() > 2 * self.devices.len() + PASSED_OVER_MAX {
            let devices = &self.devices;
            self.due.retain(|(number, device)| devices.get(device).is_some_and(|local| local.due == Some(*number)));
        }
        let close = |replaced: LocalDevice| RegistrationEffect::Close { connection: replaced.connection };
        (self.place(place_number), replaced.map_or(RegistrationEffect::None, close))
    }

    fn remove(&mut self, device: &str) -> Option<LocalDevice> {
        let removed = self.devices.remove(device)?;
        self.unregistered -= usize::from(!removed.is_registered);
        Some(removed)
    }

    /// The directory has answered for a device. If it is due again, the answer came from a directory that was lost.
    fn mark_registered(&mut self, device: &str) {
        if let Some(local) = self.devices.get_mut(device)
            && local.due.is_none()
        {
            self.unregistered -= usize::from(!std::mem::replace(&mut local.is_registered, true));
        }
    }

    fn mark_all_due(&mut self) {
        self.due.clear();
        for (device, local) in &mut self.devices {
            self.last_due += 1;
            local.due = Some(self.last_due);
            local.is_registered = false;
            self.due.push_back((self.last_due, device.clone()));
        }
        self.unregistered = self.devices.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_come_and_go_without_a_directory_take_no_memory() {
        let mut registrations = NodeRegistrations::new("a".into(), 1, 0);
        registrations.add_connection("stays", 0, Duplicate::Replace, 0);
        for connection in 1..10_000 {
            registrations.add_connection("comes", connection, Duplicate::Replace, 0);
            assert!(registrations.due_count() <= PASSED_OVER_MAX + 4);
            registrations.remove_connection("comes", connection);
        }
        registrations.observe_era(Some(Era(1)), 1);
        assert_eq!(registrations.fully_registered_era(), None);
        let next = std::iter::from_fn(|| registrations.next_request());
        let next: Vec<RegistrationRequest> = next.collect();
        assert!(matches!(&next[..], [RegistrationRequest::Connect { device, .. }] if &**device == "stays"), "{next:?}");
    }
    #[test]
    fn registering_again_leaves_everything_registered() {
        let mut registrations = NodeRegistrations::new("a".into(), 1, 0);
        registrations.observe_era(Some(Era(1)), 1);
        assert_eq!(registrations.fully_registered_era(), Some(Era(1)));
        registrations.add_connection("d", 1, Duplicate::Replace, 0);
        let place = registrations.place(1);
        registrations.next_request();
        assert_eq!(registrations.fully_registered_era(), None, "it is on its way");
        registrations.on_connect_answer(
            "d",
            &place,
            ConnectOutcome::Current { generation: Generation(1), replaced: None },
        );
        registrations.reregister("d");
        registrations.next_request();
        assert_eq!(registrations.fully_registered_era(), Some(Era(1)));
        registrations.observe_era(Some(Era(2)), 2);
        registrations.on_register_answer("d", &place, Generation(1), RegistrationAnswer::Current);
        assert_eq!(registrations.fully_registered_era(), None, "the answer is from before the loss");
        registrations.next_request();
        registrations.on_register_answer("d", &place, Generation(1), RegistrationAnswer::Current);
        assert_eq!(registrations.fully_registered_era(), Some(Era(2)));
        registrations.add_connection("e", 2, Duplicate::Replace, 0);
        registrations.remove_connection("e", 2);
        assert_eq!(registrations.fully_registered_era(), Some(Era(2)));
    }

    #[test]
    fn the_end_of_a_connection_that_was_not_registered_ends_the_one_before() {
        let mut registrations = NodeRegistrations::new("a".into(), 1, 0);
        registrations.observe_era(Some(Era(1)), 1);
        registrations.add_connection("d", 1, Duplicate::Refuse, 0);
        registrations.next_request();
        let first = registrations.place(1);
        registrations.on_connect_answer(
            "d",
            &first,
            ConnectOutcome::Current { generation: Generation(1), replaced: None },
        );
        // The directory has the first one until it has answered for another.
        assert_eq!(
            registrations.add_connection("d", 2, Duplicate::Refuse, 0).1,
            RegistrationEffect::Close { connection: 1 }
        );
        assert_eq!(
            registrations.add_connection("d", 3, Duplicate::Refuse, 0).1,
            RegistrationEffect::Close { connection: 2 }
        );
        assert_eq!(registrations.remove_connection("d", 1), RegistrationEffect::None);
        let ended = Disconnect { place: registrations.place(3), and_older: true };
        assert_eq!(registrations.remove_connection("d", 3), RegistrationEffect::Disconnect(ended));
    }

    #[test]
    fn a_refusal_that_comes_late_closes_nothing() {
        let mut registrations = NodeRegistrations::new("a".into(), 1, 0);
        registrations.observe_era(Some(Era(1)), 1);
        registrations.add_connection("d", 1, Duplicate::Refuse, 0);
        let (own, other) = (registrations.place(1), Location { node: "b".into(), epoch: 1, connection: 9 });
        let occupied = |generation| ConnectOutcome::Occupied { place: other.clone(), generation };
        let current = ConnectOutcome::Current { generation: Generation(8), replaced: None };
        assert_eq!(registrations.on_connect_answer("d", &own, current), RegistrationEffect::None);
        assert_eq!(registrations.on_connect_answer("d", &own, occupied(Generation(7))), RegistrationEffect::None);
        // Two requests of the same connection, with a new epoch in between, whose answers arrive in reverse order.
        let itself =
            ConnectOutcome::Occupied { place: Location { epoch: 2, ..own.clone() }, generation: Generation(9) };
        assert_eq!(registrations.on_connect_answer("d", &own, itself), RegistrationEffect::None);
        assert_eq!(
            registrations.on_connect_answer("d", &own, occupied(Generation(9))),
            RegistrationEffect::Close { connection: 1 }
        );
    }

    #[test]
    fn an_answer_about_a_connection_that_was_given_away_changes_nothing() {
        let mut registrations = NodeRegistrations::new("a".into(), 1, 0);
        registrations.observe_era(Some(Era(1)), 1);
        let current = ConnectOutcome::Current { generation: Generation(1), replaced: None };
        for (device, connection) in [("d", 1), ("e", 2), ("f", 3)] {
            registrations.add_connection(device, connection, Duplicate::Replace, 0);
            registrations.next_request();
            registrations.on_connect_answer(device, &registrations.place(connection), current.clone());
            registrations.reregister(device);
            registrations.next_request();
            registrations.mark_handed_over(device, connection);
        }
        let [d, e, f] = [1, 2, 3].map(|connection| registrations.place(connection));
        assert_eq!(registrations.on_connect_answer("d", &d, current), RegistrationEffect::None);
        assert_eq!(
            registrations.on_register_answer("e", &e, Generation(1), RegistrationAnswer::Current),
            RegistrationEffect::None
        );
        assert_eq!(registrations.on_missing_answer("f", &f), RegistrationEffect::None);
        // The registration of an ended connection is undone.
        registrations.add_connection("g", 4, Duplicate::Replace, 0);
        registrations.next_request();
        registrations.remove_connection("g", 4);
        let place = registrations.place(4);
        assert_eq!(
            registrations.on_missing_answer("g", &place),
            RegistrationEffect::Disconnect(Disconnect { place, and_older: false })
        );
    }

    #[test]
    fn a_connection_that_is_given_does_not_take_the_place_of_a_newer_one() {
        let mut registrations = NodeRegistrations::new("a".into(), 1, 0);
        registrations.add_connection("asks", 1, Duplicate::Replace, 0);
        registrations.add_connection("waits", 2, Duplicate::Refuse, 0);
        registrations.adopt("older", 3, Some(Generation(5)), 0);
        for (device, generation, is_newer) in
            [("asks", 9, true), ("waits", 9, false), ("older", 4, true), ("older", 6, false), ("nobody", 1, false)]
        {
            assert_eq!(registrations.is_newer(device, Generation(generation)), is_newer, "{device}");
        }
    }

    #[test]
    fn everything_is_registered_again_in_turns() {
        let mut registrations = NodeRegistrations::new("a".into(), 1, 0);
        for device in ["d", "b", "c"] {
            registrations.add_connection(device, 1, Duplicate::Replace, 0);
        }
        registrations.observe_era(Some(Era(1)), 1);
        while registrations.next_request().is_some() {}
        let mut after: Box<str> = "".into();
        let mut asked = Vec::new();
        for _ in 0..3 {
            after = registrations.reregister_after(&after, 2);
            while let Some(RegistrationRequest::Connect { device, .. }) = registrations.next_request() {
                asked.push(device);
            }
        }
        assert_eq!(asked.iter().map(|device| &**device).collect::<Vec<_>>(), ["b", "c", "d"]);
    }
}
