//! The directory: entries, leases and the era, each by itself.

use super::{Answer, DirectoryCall, Mail, Process, World};
use std::collections::{BTreeMap, HashMap};
use stillgate_devices::directory::{
    self, Connect, ConnectOutcome, DirectoryEntry, Era, LEASE_MS, Lease, Member, Members, RegistrationRequest,
};

#[derive(Default)]
pub(super) struct Directory {
    pub(super) entries: HashMap<Box<str>, Option<DirectoryEntry>>,
    pub(super) members: BTreeMap<Box<str>, Member>,
    pub(super) era: Option<Era>,
    pub(super) away_until_ms: u64,
    /// When it was back without its contents.
    pub(super) lost_ms: u64,
}

impl World {
    pub(super) fn ask_directory(&mut self, from: Process, number: u64, asked: DirectoryCall) {
        if self.now_ms >= self.directory.away_until_ms && self.now_ms >= self.nodes[from.0].cut_off_until_ms {
            let answer = self.answer(from.0, asked);
            self.send(Mail::ToNode { to: from, number, answer });
        }
    }

    fn answer(&mut self, node: usize, asked: DirectoryCall) -> Answer {
        let now_ms = self.now_ms;
        let Directory { entries, members, era, .. } = &mut self.directory;
        match asked {
            DirectoryCall::Heartbeat { holds: false, .. } => self.reading(),
            DirectoryCall::Heartbeat { epoch, filled, holds: true } => {
                let name = &self.nodes[node].name;
                let mut lease = members.get(name).map(|member| member.lease);
                if lease.is_some_and(|lease| now_ms >= lease.until_ms) {
                    let number = self.nodes[node].number;
                    self.nodes.iter_mut().filter(|it| it.number == number).for_each(|it| it.lapsed_ms = now_ms);
                }
                let name = &self.nodes[node].name;
                // Without the lease a node continues, but others consider it dead.
                if Lease::acquire_or_renew(&mut lease, epoch, now_ms, LEASE_MS).is_ok()
                    && let Some(lease) = lease
                {
                    members.insert(name.clone(), Member { lease, address: "".into(), fully_registered_era: filled });
                }
                self.reading()
            }
            DirectoryCall::Members { .. } => self.reading(),
            DirectoryCall::BeginEra { found, era: new } => {
                if *era == found {
                    *era = Some(new);
                }
                self.reading()
            }
            DirectoryCall::Registration {
                request: RegistrationRequest::Connect { device, place, duplicate, era },
                dead,
            } => {
                let request = Connect { place, era, duplicate, dead, now_ms };
                let connected = directory::connect(entries.entry(device).or_default(), request);
                let is_dead = match &connected {
                    ConnectOutcome::Occupied { place, .. } => {
                        let lease = members.get(&place.node).map(|member| &member.lease);
                        !Lease::is_alive(lease, place.epoch, now_ms)
                    }
                    ConnectOutcome::Current { .. } => false,
                };
                Answer::Connected(connected, is_dead)
            }
            DirectoryCall::Registration {
                request: RegistrationRequest::Register { device, place, generation, since_ms },
                ..
            } => {
                let entry = entries.entry(device).or_default();
                Answer::Registered(directory::register(entry, place, generation, since_ms))
            }
            DirectoryCall::Disconnect { device, ended } => {
                directory::disconnect(entries.entry(device).or_default(), &ended, now_ms);
                Answer::Done
            }
            DirectoryCall::LookUp { device, .. } => Answer::Entry(entries.get(&device).cloned().flatten()),
        }
    }

    fn reading(&self) -> Answer {
        let Directory { members, era, .. } = &self.directory;
        let members = members.iter().map(|(name, member)| (name.clone(), member.clone())).collect();
        Answer::Read { era: *era, members, now_ms: self.now_ms }
    }
}

/// The members in an [`Answer::Read`].
pub(super) fn members(era: Option<Era>, members: Vec<(Box<str>, Member)>, now_ms: u64, contact_ms: u64) -> Members {
    Members::new(members, era, now_ms, Era((now_ms / 1000) as u32)).after_contact(contact_ms)
}
