//! Checks the final state, and whether the worlds were wild enough to reveal errors.

use super::message::{MessageRecord, SenderAnswer};
use super::{DEVICES, SETTLED_MS, World};
use std::collections::BTreeMap;
use stillgate_devices::Generation;
use stillgate_devices::directory::{DeliveryError, DirectoryEntry, Lease};
use stillgate_devices::protocol::MessageId;

impl World {
    pub(super) fn judge(&self) -> Result<(), String> {
        if let Some(wrong) = &self.wrong {
            return Err(wrong.clone());
        }
        self.judge_places()?;
        self.judge_messages()
    }

    fn judge_places(&self) -> Result<(), String> {
        for device in &self.devices {
            let (name, connection) = (&device.name, device.connection);
            let held: Vec<(usize, u64, Option<Generation>)> = (0..self.nodes.len())
                .filter(|node| !self.nodes[*node].is_over)
                .filter_map(|node| {
                    let (connection, generation) = self.nodes[node].registrations.connection(name)?;
                    Some((node, connection, generation))
                })
                .collect();
            let [(node, number, generation)] = held[..] else { return Err(format!("{name} has connections {held:?}")) };
            if connection.map(|(node, _, connection)| (node, connection)) != Some((node, number)) {
                return Err(format!("{name} believes in {connection:?}, and is at {held:?}"));
            }
            let entry = self.directory.entries.get(name).and_then(Option::as_ref);
            let Some(DirectoryEntry::Online { place, generation: newest, .. }) = entry else {
                return Err(format!("{name} is at {held:?}, and the directory says {entry:?}"));
            };
            let it = &self.nodes[node];
            let is_named = it.registrations.place_of(name).as_ref() == Some(place) && Some(*newest) == generation;
            let lease = self.directory.members.get(&place.node).map(|member| &member.lease);
            if !is_named || !Lease::is_alive(lease, place.epoch, self.now_ms) {
                return Err(format!("{name} is at {held:?}, and the directory says {entry:?} with {lease:?}"));
            }
        }
        Ok(())
    }

    fn judge_messages(&self) -> Result<(), String> {
        for (index, MessageRecord { device, from, sent_ms, told, .. }) in self.messages.iter().enumerate() {
            let id = MessageId(index as u128);
            let what = format!("{id} to device {device} at {sent_ms} ms from {from:?}");
            let received = self.devices.get(*device).and_then(|device| device.received.get(&id));
            if received.is_some_and(|numbers| numbers.len() > 1) {
                return Err(format!("{what} was sent again as new: {received:?}"));
            }
            let Some(told) = told else {
                if self.process(from.0) == *from {
                    return Err(format!("{what} was never answered"));
                }
                continue;
            };
            if told.is_undelivered() && received.is_some() {
                return Err(format!("{what} was answered {told:?}, and received"));
            }
            let is_as_it_should = match device {
                &DEVICES => *told == SenderAnswer::Unsent(DeliveryError::NeverSeen),
                _ => told.is_acknowledged(),
            };
            if *sent_ms >= SETTLED_MS && !is_as_it_should {
                return Err(format!("{what} was answered {told:?}"));
            }
        }
        Ok(())
    }
}

/// How often each answer was given.
#[derive(Debug, Default)]
pub(super) struct Answers {
    worlds: u64,
    moved: u64,
    given: u64,
    carried: u64,
    twice: u64,
    answers: BTreeMap<String, u64>,
}

impl Answers {
    pub(super) fn count(&mut self, world: &World) {
        self.worlds += 1;
        self.moved += world.moved;
        self.given += world.given;
        self.carried += world.carried;
        self.twice += world.twice;
        for MessageRecord { told, .. } in &world.messages {
            let mut answer = format!("{told:?}");
            answer.retain(|character| !character.is_ascii_digit());
            *self.answers.entry(answer).or_default() += 1;
        }
    }

    /// Every event must happen, or the worlds show nothing.
    pub(super) fn check(&self) {
        let answers: Vec<&str> = self.answers.keys().map(String::as_str).collect();
        for answer in [
            "None",
            "Some(Lost)",
            "Some(Outcome(Acknowledged))",
            "Some(Outcome(Ended { was_written: false }))",
            "Some(Outcome(Ended { was_written: true }))",
            "Some(Outcome(Replied(Json(\"\"))))",
            "Some(Outcome(TimedOut { was_written: true }))",
            "Some(Outcome(Written))",
            "Some(Refused(Full))",
            "Some(Unsent(Moved))",
            "Some(Unsent(NeverSeen))",
            "Some(Unsent(Offline { last_seen_ms: None }))",
            "Some(Unsent(Offline { last_seen_ms: Some() }))",
            "Some(Unsent(Unknown))",
        ] {
            assert!(self.worlds < 300 || answers.contains(&answer), "{answer} was never given: {self:?}");
        }
        let all_happened = [self.moved, self.given, self.carried, self.twice].iter().all(|count| *count > 0);
        assert!(self.worlds < 300 || all_happened, "{self:?}");
    }
}
