//! The bounds of an HTTP/2 connection, to clients and to nodes alike.

use stillgate_wire::{HeadLimits, huffman_bytes};

/// Streams that may be open at once on one connection.
pub(crate) const STREAMS_MAX: u32 = 128;
/// Bytes of a body that the other side may send on one stream before we have passed them on.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 64 * 1024 - 1;
/// Window of a connection, for all its streams: it has room for each, so that unread data of one stream holds up no other.
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = STREAMS_MAX * STREAM_WINDOW_BYTES;
/// A shorter DATA frame takes several times its size in memory as long as `h2` has it: a few hundred bytes of its own, and it keeps
/// the whole buffer that it was read into alive, although other frames in it may long have been processed.
pub(crate) const SMALL_FRAME_BYTES: usize = 8 * 1024;
/// Small frames that may arrive on a connection before everything that `h2` has of its bodies is copied out (see
/// [`super::bodies`]).
pub(crate) const SMALL_FRAMES_MAX: u32 = 64;
/// How many small frames `h2` would accept by itself. It also charges frames of streams that are reset, which it does not keep, and
/// never resets the count: any limit would be used up in time.
pub(crate) const SMALL_FRAMES_BUDGET: usize = usize::MAX;
/// Largest frame that we accept.
pub(crate) const FRAME_BYTES_MAX: u32 = 16 * 1024;
/// Bytes of a body that may wait in one stream for the connection to take them.
pub(crate) const SEND_BUFFER_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a head, coded and decoded (RFC 9113 section 6.5.2), up to which its request shares a connection to a node. Some servers
/// end the whole connection because of one head that is too large for them, and with it the requests of other clients; nginx does so
/// for a field that takes more than 8 KiB. A request with more has a connection to itself while it is under way.
pub(crate) const SHARED_HEAD_BYTES_MAX: usize = 4 * 1024;
/// Streams of a connection to a node that are reset before their end; after these it takes no further requests. With those that
/// are under way then, a node sees fewer than the 200 after which the strictest (Netty) ends the connection.
pub(crate) const RESETS_TO_NODE_MAX: usize = 64;
/// Streams reset by us that are remembered, so that frames still arriving for them do not count as a connection error.
pub(crate) const RESET_STREAMS_MAX: usize = 64;
/// Streams reset by the client before we had even seen them; beyond it the connection is closed (CVE-2023-44487).
pub(crate) const UNSEEN_RESETS_MAX: usize = 64;
/// Streams per second that a client resets while they are served, or that are reset because of its errors; beyond it the connection
/// is closed (CVE-2025-8671).
pub(crate) const RESETS_PER_SECOND_MAX: u32 = 2 * STREAMS_MAX;
/// Streams with malformed heads or trailers that wait to be looked at; beyond it the oldest is forgotten. As many as a client may
/// send within two seconds; accepted requests are looked at long before.
pub(crate) const MARKED_MAX: usize = 2 * RESETS_PER_SECOND_MAX as usize;
/// Interim responses of a node that wait to be looked at, over all streams of its connection; beyond it the connection is closed.
/// Nothing else bounds them: heads have no flow control, `h2` keeps them all, and a client that does not read holds up the task that
/// looks at them. Four times as many as one request may have.
pub(crate) const WAITING_INTERIMS_MAX: u32 = 400;
/// Responses of a node that have begun and not ended, as far as they are tracked to tell heads from trailers.
pub(crate) const ANSWERED_MAX: usize = 4 * STREAMS_MAX as usize;
/// Frames that move no data (PING, SETTINGS, PRIORITY, empty DATA, …) within a second, without one in between that does; beyond it
/// the connection is closed.
pub(crate) const FRUITLESS_FRAMES_PER_SECOND_MAX: u32 = 1_000;
/// Bytes gathered before they are written; the connection takes no more of its streams while they wait.
pub(crate) const OUTPUT_BYTES_MAX: usize = 32 * 1024;
/// How long a client has to acknowledge that the connection ends (RFC 9113 section 6.8).
pub(crate) const GOODBYE_MS: u64 = 500;

/// Bytes that are counted for each field besides its name and value (RFC 9113 section 6.5.2).
const FIELD_OVERHEAD_BYTES: usize = 32;

/// Whether a request has a connection to a node of its own: these parts of its head, as text, with so many fields, may be too large
/// for the node.
pub(crate) fn is_large_head(parts: &[&[u8]], fields: usize) -> bool {
    /// No code of HPACK is longer than four bytes.
    const CODED_BYTES_MAX: usize = 4;
    let text = parts.iter().map(|part| part.len()).sum::<usize>();
    text + FIELD_OVERHEAD_BYTES * fields > SHARED_HEAD_BYTES_MAX
        || CODED_BYTES_MAX * text > SHARED_HEAD_BYTES_MAX
            && parts.iter().map(|part| huffman_bytes(part)).sum::<usize>() > SHARED_HEAD_BYTES_MAX
}

/// Bytes of a decoded field section (RFC 9113 section 6.5.2): what a head may have, with the 32 bytes that are counted for each of
/// its fields. A larger section is answered 431 by `h2`, four times as much ends the connection.
pub(crate) fn field_section_bytes_max(limits: &HeadLimits) -> u32 {
    u32::try_from(limits.head_bytes_max + FIELD_OVERHEAD_BYTES * limits.headers_max).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_large_by_its_text_its_codes_or_its_fields() {
        let large = |text: &str, times: usize, fields| is_large_head(&[text.repeat(times).as_bytes()], fields);
        assert!(!large("a", 4_000, 3) && large("a", 4_097, 0));
        assert!(large("a", 4_000, 4));
        // 13 bits for each.
        assert!(!large("~", 2_500, 1) && large("~", 2_600, 1));
        assert!(!large("\u{ef}", 500, 1) && large("\u{ef}", 900, 1));
        assert!(is_large_head(&[&b"a".repeat(2_100), &b"b".repeat(2_100)], 2));
    }
}
