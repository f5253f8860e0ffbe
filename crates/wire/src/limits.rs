//! The bounds of one message.

/// Most bytes of a head, independent of the configuration: spans are 16 bits, and a head shares its 64 KiB buffer with
/// the beginning of its body.
pub const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Most header fields of a head: the capacity of the removal set of [`crate::Edits`].
pub const HEADERS_MAX: usize = 100;
/// Most header fields of a head that was edited: those of a full one, and those that we add.
pub const EDITED_HEADERS_MAX: usize = 128;
/// Most options that the `Connection` fields of a head may name, besides `close` and `keep-alive`: each is compared
/// with every field.
pub const CONNECTION_OPTIONS_MAX: usize = 32;
/// Most bytes of a chunk's size line, extensions and CRLF included.
pub const CHUNK_LINE_BYTES_MAX: usize = 1024;
/// Most bytes of a trailer section.
pub const TRAILER_BYTES_MAX: usize = 8 * 1024;

const _: () = assert!(HEADERS_MAX <= EDITED_HEADERS_MAX);

/// The configurable bounds of one head. Each is at most its constant above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadLimits {
    /// Bytes up to and including the empty line.
    pub head_bytes_max: usize,
    /// Bytes of the request target; unused for responses.
    pub target_bytes_max: usize,
    /// Header fields.
    pub headers_max: usize,
}

impl HeadLimits {
    /// The limits of a head that was within its limits before our edits.
    pub const EDITED: HeadLimits = HeadLimits {
        head_bytes_max: u16::MAX as usize,
        target_bytes_max: u16::MAX as usize,
        headers_max: EDITED_HEADERS_MAX,
    };
}

impl Default for HeadLimits {
    fn default() -> Self {
        HeadLimits { head_bytes_max: 16 * 1024, target_bytes_max: 8 * 1024, headers_max: HEADERS_MAX }
    }
}
