//! How entries become what is sent: an array of JSON, lines, or one behind the other.

use stillgate_plugin::outbox::{Encode, Entries};

/// An array of the entries, which are JSON; where a batch is one entry, that entry alone.
pub(super) struct JsonArray {
    pub(super) is_single: bool,
}

impl Encode for JsonArray {
    fn encode(&self, entries: &Entries, out: &mut Vec<u8>) {
        match self.is_single {
            true => join(entries, b"", out),
            false => write_array(entries, out),
        }
    }
}

/// The entries with a line end between them.
pub(super) struct Lines;

impl Encode for Lines {
    fn encode(&self, entries: &Entries, out: &mut Vec<u8>) {
        join(entries, b"\n", out);
    }
}

/// The entries, which end by themselves.
pub(super) struct Joined;

impl Encode for Joined {
    fn encode(&self, entries: &Entries, out: &mut Vec<u8>) {
        join(entries, b"", out);
    }
}

/// An array of entries that are JSON.
pub(crate) fn write_array(entries: &Entries, out: &mut Vec<u8>) {
    out.push(b'[');
    join(entries, b",", out);
    out.push(b']');
}

fn join(entries: &Entries, separator: &[u8], out: &mut Vec<u8>) {
    for (index, entry) in entries.iter().enumerate() {
        if index > 0 {
            out.extend_from_slice(separator);
        }
        out.extend_from_slice(entry);
    }
}
