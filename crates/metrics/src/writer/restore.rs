//! Carrying values over: what a series of an ended process came to, and the word that a series has ended.
//!
//! Both are for whoever looks after the life of series; what serves requests uses neither.

use super::Writer;
use crate::declared::Declared;
use crate::protocol;
use crate::segment::Process;
use crate::segment::cells::{self, Form};
use crate::segment::layout::{HEAD_WORDS, Head, RecordKind, TOMBSTONE_WORDS};
use crate::sync::Ordering::Relaxed;
use crate::value::Value;
use std::sync::Arc;

impl Writer {
    /// Adds what a series came to elsewhere. It began when the older of both did.
    pub(crate) fn restore(&mut self, family: &Arc<Declared>, values: &[&[u8]], created_ms: u64, value: Value<'_>) {
        let handle = self.series(family, values);
        if handle == super::Handle::NONE {
            return;
        }
        let at = handle.at as usize;
        let log = self.segment.log();
        let cell = &log[at + HEAD_WORDS];
        match value {
            Value::Unsigned(count) => cells::add(cell, count),
            Value::Float(amount) => cells::add_float(cell, amount),
            Value::Histogram(distribution) => {
                if let Form::Histogram { bounds, native } = &family.shape.form {
                    cells::restore_histogram(&log[at + HEAD_WORDS..], bounds, native.as_ref(), distribution);
                }
            }
        }
        let created = &log[at + HEAD_WORDS - 1];
        created.store(created.load(Relaxed).min(created_ms), Relaxed);
        self.mark(log, at);
    }

    /// Ends the series whose record is there; false where there is no room to say so.
    pub(crate) fn tombstone(&mut self, process: Process, serial: u64, record: usize) -> bool {
        let room = self.memory.log.ready() - self.log_used;
        if room < 8 * TOMBSTONE_WORDS + self.reserve {
            self.inner.call_provisioner(&self.memory);
        }
        if room < TOMBSTONE_WORDS + self.reserve {
            return false;
        }
        let at = self.log_used;
        let log = &self.segment.log()[at..at + TOMBSTONE_WORDS];
        let head = Head { words: TOMBSTONE_WORDS as u32, kind: RecordKind::Tombstone, flags: 0, family: 0 };
        for (word, value) in log.iter().zip([head.pack(), serial, record as u64, u64::from(process.pid), process.start]) {
            word.store(value, Relaxed);
        }
        self.log_used = at + TOMBSTONE_WORDS;
        self.memory.log.use_up_to(self.log_used);
        protocol::commit(&self.segment.header().committed, self.log_used as u64);
        true
    }
}

impl Drop for Writer {
    /// Nobody will do what the writer is asked from now on.
    fn drop(&mut self) {
        self.segment.header().closed.store(1, Relaxed);
    }
}
