//! The history of each message: when it was due, whether its device received it, and which answer its sender got.
//!
//! The two ends are compared here. An acknowledgement of a message that never arrived, a refusal of one that did, and a
//! message that overtook one completed before it began are broken guarantees of the gateway; a second delivery is not,
//! because a device that reconnects may get a message again.

use crate::result::devices::Messages;
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::ops::Range;
use stillgate_load::outcome;

/// The sender's answer as a status, or why there is none.
pub(super) const BROKEN: u16 = 1;
pub(super) const TIMED_OUT: u16 = 2;
/// 200 with the reply to another message.
pub(super) const WRONG_REPLY: u16 = 3;

/// Statuses that mean that it was not delivered.
const REFUSALS: [u16; 5] = [404, 409, 410, 413, 429];

/// A message is late if it is started later than this after it was due.
const LATE_NS: u64 = 10_000_000;

/// One message.
#[derive(Debug, Clone, Copy)]
struct Entry {
    due_ns: u64,
    device: u32,
    /// The device's connection when it was sent; 0: it had none.
    connection: u32,
    /// The number that the next message would have had when this one was answered; 0: not answered yet.
    done_before: u32,
    answer: u16,
    received: u8,
}

/// All messages of a run.
#[derive(Debug)]
pub(super) struct Ledger {
    entries: Vec<Entry>,
    times: Times,
    reordered: u64,
    late: u64,
}

/// Times of one phase, in nanoseconds.
#[derive(Debug)]
struct Times {
    corrected: Histogram<u64>,
    uncorrected: Histogram<u64>,
    delivery: Histogram<u64>,
}

impl Times {
    fn new() -> Times {
        Times { corrected: outcome::histogram(), uncorrected: outcome::histogram(), delivery: outcome::histogram() }
    }
}

impl Ledger {
    pub(super) fn new() -> Ledger {
        Ledger { entries: Vec::new(), times: Times::new(), reordered: 0, late: 0 }
    }

    /// Registers a message that is due, and returns its number. `connection` is the device's, 0 if it has none.
    pub(super) fn begin(&mut self, due_ns: u64, now_ns: u64, device: u32, connection: u32) -> u32 {
        self.late += u64::from(now_ns.saturating_sub(due_ns) > LATE_NS);
        self.entries.push(Entry { due_ns, device, connection, done_before: 0, answer: 0, received: 0 });
        (self.entries.len() - 1) as u32
    }

    /// The number that the next message will have.
    pub(super) fn next(&self) -> u32 {
        self.entries.len() as u32
    }

    pub(super) fn device(&self, number: u32) -> Option<u32> {
        self.entries.get(number as usize).map(|entry| entry.device)
    }

    /// A device received it. `last` is the highest number that it received before.
    pub(super) fn record_message(&mut self, number: u32, device: u32, last: Option<u32>, now_ns: u64) {
        let Some(entry) = self.entries.get_mut(number as usize).filter(|entry| entry.device == device) else { return };
        entry.received = entry.received.saturating_add(1);
        if entry.received > 1 {
            return;
        }
        let overtaken = last.is_some_and(|last| entry.done_before != 0 && entry.done_before <= last);
        self.reordered += u64::from(overtaken);
        self.times.delivery.saturating_record(now_ns.saturating_sub(entry.due_ns));
    }

    /// Its sender has its answer.
    pub(super) fn record_answer(&mut self, number: u32, answer: u16, sent_ns: u64, now_ns: u64) {
        let next = self.next();
        let Some(entry) = self.entries.get_mut(number as usize) else { return };
        entry.answer = answer;
        entry.done_before = next;
        self.times.corrected.saturating_record(now_ns.saturating_sub(entry.due_ns));
        self.times.uncorrected.saturating_record(now_ns.saturating_sub(sent_ns));
    }

    /// Whether a message answered as written may still be on its way.
    pub(super) fn is_settled(&self, from: u32) -> bool {
        self.entries[from as usize..].iter().all(|entry| entry.answer != 202 || entry.received > 0)
    }

    /// The results of the messages from this number on; the times start again from nothing. `connection` gives a
    /// device's current connection.
    pub(super) fn close(&mut self, from: u32, seconds: f64, connection: impl Fn(u32) -> u32) -> Messages {
        let range = from as usize..self.entries.len();
        let mut found = Messages { sent: range.len() as u64, seconds, ..Messages::default() };
        self.count(range, &mut found, connection);
        let times = std::mem::replace(&mut self.times, Times::new());
        found.keep(&times.corrected, &times.uncorrected, &times.delivery);
        found.reordered = std::mem::take(&mut self.reordered);
        found.late = std::mem::take(&mut self.late);
        found
    }

    fn count(&self, range: Range<usize>, found: &mut Messages, connection: impl Fn(u32) -> u32) {
        let mut answers: BTreeMap<String, u64> = BTreeMap::new();
        for entry in &self.entries[range] {
            *answers.entry(answer_name(entry.answer)).or_default() += 1;
            let arrived = entry.received > 0;
            found.received += u64::from(arrived);
            found.duplicated += u64::from(entry.received > 1);
            match entry.answer {
                200 | WRONG_REPLY => {
                    found.acknowledged += 1;
                    found.lost += u64::from(!arrived);
                    found.wrong_replies += u64::from(entry.answer == WRONG_REPLY);
                }
                202 => {
                    found.acknowledged += 1;
                    // Data in the kernel is lost with the connection; `written` promises no more.
                    let stayed = entry.connection != 0 && connection(entry.device) == entry.connection;
                    found.lost += u64::from(!arrived && stayed);
                    found.went_with_connection += u64::from(!arrived && !stayed);
                }
                refusal if REFUSALS.contains(&refusal) => {
                    found.refused += 1;
                    found.refused_but_delivered += u64::from(arrived);
                }
                _ => found.unknown += 1,
            }
        }
        found.answers = answers;
    }
}

fn answer_name(answer: u16) -> String {
    match answer {
        0 | TIMED_OUT => "no answer".to_owned(),
        BROKEN => "connection broke".to_owned(),
        WRONG_REPLY => "200, wrong reply".to_owned(),
        status => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three devices; only device 0 has kept its connection.
    fn closed(play: impl FnOnce(&mut Ledger)) -> Messages {
        let mut ledger = Ledger::new();
        play(&mut ledger);
        ledger.close(0, 1.0, |device| if device == 0 { 1 } else { 2 })
    }

    #[test]
    fn a_promise_is_broken_where_the_two_ends_differ() {
        let found = closed(|ledger| {
            for (device, answer, arrives) in [
                (0, 200, true),
                (0, 200, false),
                (0, 202, false),
                (1, 202, false),
                (1, 410, true),
                (1, 410, false),
                (2, 504, true),
            ] {
                let number = ledger.begin(0, 0, device, 1);
                if arrives {
                    ledger.record_message(number, device, None, 5);
                }
                ledger.record_answer(number, answer, 0, 10);
            }
        });
        assert_eq!((found.sent, found.acknowledged, found.refused, found.unknown), (7, 4, 2, 1));
        assert_eq!((found.lost, found.went_with_connection, found.refused_but_delivered), (2, 1, 1));
        assert_eq!(found.answers["410"], 2);
        assert_eq!(found.broken_promises(), 3);
    }

    #[test]
    fn only_what_was_done_before_can_be_overtaken() {
        let both = |answered_first: bool| {
            closed(|ledger| {
                let first = ledger.begin(0, 0, 0, 1);
                if answered_first {
                    ledger.record_answer(first, 202, 0, 1);
                }
                let second = ledger.begin(0, 0, 0, 1);
                ledger.record_message(second, 0, None, 2);
                ledger.record_message(first, 0, Some(second), 3);
            })
        };
        assert_eq!(both(true).reordered, 1);
        assert_eq!(both(false).reordered, 0);
    }

    #[test]
    fn a_second_delivery_is_counted_and_no_more() {
        let found = closed(|ledger| {
            let number = ledger.begin(0, LATE_NS + 1, 0, 1);
            ledger.record_message(number, 0, None, 5);
            ledger.record_message(number, 0, Some(number), 6);
            // From another device: not counted.
            ledger.record_message(number, 1, None, 6);
            ledger.record_answer(number, 200, 0, 10);
        });
        assert_eq!((found.duplicated, found.reordered, found.received, found.late), (1, 0, 1, 1));
        assert_eq!(found.broken_promises(), 0);
    }
}
