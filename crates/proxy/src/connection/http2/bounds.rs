//! The bounds of an HTTP/2 connection, to clients and to nodes alike.

use stillgate_wire::HeadLimits;

/// Streams that may be open at once on one connection.
pub(crate) const STREAMS_MAX: u32 = 128;
/// Bytes of a body that the other side may send on one stream before we have passed them on.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 64 * 1024 - 1;
/// The same of all streams of a connection together: room for each, so that what is not read of one holds up no other.
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = STREAMS_MAX * STREAM_WINDOW_BYTES;
/// A frame of a body that is shorter takes several times its memory as long as `h2` has it: a few hundred bytes of its own, and it
/// keeps the whole buffer that it was read into, of which others may be long done with.
pub(crate) const SMALL_FRAME_BYTES: usize = 8 * 1024;
/// Such frames that come on a connection before all that `h2` has of its bodies is copied out (see [`super::bodies`]).
pub(crate) const SMALL_FRAMES_MAX: u32 = 64;
/// What of such frames `h2` would bear by itself. It charges also those of streams that are reset, which it does not keep, and never
/// forgives them: whatever the number, it would be used up in time.
pub(crate) const SMALL_FRAMES_BUDGET: usize = usize::MAX;
/// Bytes of one frame that we take.
pub(crate) const FRAME_BYTES_MAX: u32 = 16 * 1024;
/// Bytes of a body that one stream may have waiting for the connection to take them.
pub(crate) const SEND_BUFFER_BYTES_MAX: usize = 64 * 1024;
/// Streams reset by us that are remembered, so that what still comes for them is no error of the connection.
pub(crate) const RESET_STREAMS_MAX: usize = 64;
/// Streams reset by the client before we had even seen them; beyond it the connection is closed (CVE-2023-44487).
pub(crate) const UNSEEN_RESETS_MAX: usize = 64;
/// Streams within a second that a client resets while they are served, or that are reset for what it did wrong on them; beyond it
/// the connection is closed (CVE-2025-8671).
pub(crate) const RESETS_PER_SECOND_MAX: u32 = 2 * STREAMS_MAX;
/// Streams whose malformed head or trailers wait to be looked at; beyond it the oldest is forgotten. As many as a client may send
/// within two seconds, of which the requests that were taken on are looked at long before.
pub(crate) const MARKED_MAX: usize = 2 * RESETS_PER_SECOND_MAX as usize;
/// Responses of a node that have begun and not ended, as far as they are told from others by that.
pub(crate) const ANSWERED_MAX: usize = 4 * STREAMS_MAX as usize;
/// Frames that move nothing (PING, SETTINGS, PRIORITY, empty DATA, …) within a second, with none that does between them;
/// beyond it the connection is closed.
pub(crate) const FRUITLESS_FRAMES_PER_SECOND_MAX: u32 = 1_000;
/// Bytes gathered before they are written; the connection takes no more of its streams while they wait.
pub(crate) const OUTPUT_BYTES_MAX: usize = 32 * 1024;
/// How long a client is given to answer that it knows that the connection ends (RFC 9113 section 6.8).
pub(crate) const GOODBYE_MS: u64 = 500;

/// Bytes of a decoded field section (RFC 9113 section 6.5.2): what a head may have, with the 32 bytes that are counted for
/// each of its fields. A larger one is answered 431 by `h2`, four times as much ends the connection.
pub(crate) fn field_section_bytes_max(limits: &HeadLimits) -> u32 {
    const FIELD_OVERHEAD_BYTES: usize = 32;
    u32::try_from(limits.head_bytes_max + FIELD_OVERHEAD_BYTES * limits.headers_max).unwrap_or(u32::MAX)
}
