//! Encodings of batches: a JSON array, lines, or concatenation.

use stillgate_plugin_api::outbox::{Encode, Entries};

/// A JSON array of the entries; for a batch of one entry, that entry alone.
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

/// The entries, separated by line ends.
pub(super) struct LineEncoding;

impl Encode for LineEncoding {
    fn encode(&self, entries: &Entries, out: &mut Vec<u8>) {
        join(entries, b"\n", out);
    }
}

/// The concatenated entries, which have their own ends.
pub(super) struct Concatenation;

impl Encode for Concatenation {
    fn encode(&self, entries: &Entries, out: &mut Vec<u8>) {
        join(entries, b"", out);
    }
}

/// Writes an array of JSON entries.
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
