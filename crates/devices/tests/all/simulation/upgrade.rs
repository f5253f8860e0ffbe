//! One process of a node replaces another: devices move one by one, each when no message of it is under way.
//!
//! The next process holds the lease with the same epoch, and devices and peers connect to it. Connections continue with
//! other numbers, and sessions with their unacknowledged messages. The first process ends when it has nothing left.

use super::message::SenderAnswer;
use super::node::{AttachedSession, Node};
use super::{DEVICES, World};
use stillgate_devices::Generation;
use stillgate_devices::directory::{Era, Members};
use stillgate_devices::session::{MessageOutcome, Session};

impl World {
    /// Begins, unless a replacement is under way on this node.
    pub(super) fn upgrade(&mut self, number: usize) {
        let old = self.current[number];
        if !self.is_up(old) || self.is_filling(old) {
            return;
        }
        // Each connection has taken a number.
        let (new, filled, last_place) = (self.nodes.len(), self.filled(old), self.number());
        let it = &self.nodes[old];
        let members = it.members.iter().map(|(name, member)| (name.into(), member.address.clone()));
        let mut next = Node::new(number, 0, it.registrations.epoch(), last_place);
        (next.members, next.former) = (Members::from_predecessor(members), Some((old, filled)));
        (next.cut_off_until_ms, next.lapsed_ms) = (it.cut_off_until_ms, it.lapsed_ms);
        self.nodes.push(next);
        self.nodes[old].successor = Some(new);
        self.current[number] = new;
    }

    /// Whether the predecessor may still have devices.
    pub(super) fn is_filling(&self, node: usize) -> bool {
        self.nodes[node].former.is_some_and(|(former, _)| !self.nodes[former].is_over)
    }

    /// The era in which the directory has all that a node has, as its lease says.
    pub(super) fn filled(&self, node: usize) -> Option<Era> {
        let it = &self.nodes[node];
        let filled = it.registrations.fully_registered_era();
        filled.filter(|_| !self.is_filling(node) || it.former.is_some_and(|(_, former)| filled == former))
    }

    pub(super) fn give_devices(&mut self, old: usize) {
        for device in 0..DEVICES {
            // Each when its worker gets to it.
            if let Some(connection) = self.free_to_go(old, device)
                && self.random.one_in(4)
            {
                self.hand_over(old, device, connection);
            }
        }
        let it = &self.nodes[old];
        let has_devices = !it.registrations.is_empty() || (0..DEVICES).any(|device| self.is_attached(old, device));
        let has_work = !it.sending.is_empty() || !it.taken.is_empty() || !it.waiting.is_empty();
        if !has_devices && !has_work && it.silent.is_empty() && it.parked.is_empty() {
            self.nodes[old].is_over = true;
        }
    }

    /// A device's connection, if no message of it is under way.
    fn free_to_go(&self, old: usize, device: usize) -> Option<u64> {
        let it = &self.nodes[old];
        if let Some(AttachedSession { session, connection: Some(connection) }) = it.sessions.get(&device) {
            return session.is_movable().then_some(*connection);
        }
        // Excludes a session that its device has resumed elsewhere, or that is still being waited for.
        let (connection, _) = it.registrations.connection(&self.devices[device].name)?;
        (self.devices[device].connection != Some((old, it.process, connection))).then_some(connection)
    }

    fn hand_over(&mut self, old: usize, device: usize, before: u64) {
        let (new, name) = (self.nodes[old].successor.unwrap(), self.devices[device].name.clone());
        let (after, mut notices) = (self.number(), Vec::new());
        let known = self.nodes[old].registrations.connection(&name).filter(|(connection, _)| *connection == before);
        self.nodes[old].registrations.mark_handed_over(&name, before);
        let carried = self.is_attached(old, device).then(|| {
            let mut session = self.nodes[old].sessions.remove(&device).unwrap().session;
            (session.token(), session.carry(session.token(), &mut notices).unwrap())
        });
        assert!(notices.is_empty(), "a session that moves has callers waiting");
        // Connections whose loss is not noticed yet remain so.
        let (silent, others) =
            std::mem::take(&mut self.nodes[old].silent).into_iter().partition(|(.., number)| *number == before);
        self.nodes[old].silent = others;
        let silent: Vec<(u64, Box<str>, u64)> = silent;
        self.nodes[new].silent.extend(silent.into_iter().map(|(at_ms, name, _)| (at_ms, name, after)));
        self.go_over((old, before), (new, after), device);
        let generation = known.and_then(|(_, generation)| generation);
        let registrations = &mut self.nodes[new].registrations;
        if registrations.is_newer(&name, generation.unwrap_or(Generation(1))) {
            return self.close_connection(new, after);
        }
        let effect = registrations.adopt(&name, after, generation, self.now_ms);
        self.apply(new, &name, effect);
        if let Some((token, carried)) = carried {
            let mut session = Session::from_carried(carried, token.generation, self.now_ms);
            session.keep_handed_out();
            if let Some(mut held) = self.nodes[new].sessions.remove(&device) {
                held.session.end(&mut notices);
            }
            self.nodes[new].sessions.insert(device, AttachedSession { session, connection: Some(after) });
            self.notify(new, notices);
        }
        self.given += 1;
    }

    /// The device notices nothing: its connection becomes another one in another process, including data under way.
    fn go_over(&mut self, (old, before): (usize, u64), (new, after): (usize, u64), device: usize) {
        let [from, to] = [old, new].map(|slot| self.process(slot));
        let it = &mut self.devices[device];
        if it.connection == Some((from.0, from.1, before)) {
            it.connection = Some((to.0, to.1, after));
        }
        it.frames.iter_mut().filter(|(_, number, _)| *number == before).for_each(|(_, number, frame)| {
            *number = after;
            frame.is_from(to);
        });
        if let Some((_, home)) = &mut it.token
            && *home == from
        {
            *home = to;
        }
    }

    /// Looks again for devices that were waited for. A process that was stopped meanwhile may find that it is too late.
    pub(super) fn step_parked(&mut self, node: usize) {
        for (from, id) in std::mem::take(&mut self.nodes[node].parked) {
            match self.now_ms < self.deadline_ms(id) {
                true => self.take(node, from, id),
                false => {
                    let late = SenderAnswer::Outcome(MessageOutcome::TimedOut { was_written: false });
                    self.answer_sender(node, from, id, late);
                }
            }
        }
    }
}
