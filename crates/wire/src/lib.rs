//! HTTP/1.x messages as bytes: parsing heads, deciding and decoding body framing, serialising; the PROXY protocol's
//! header, which may come before them; and a parser of HTTP/2's compressed heads for facts that the HTTP/2 library does
//! not report.
//!
//! Pure functions and small state machines over buffers that the caller owns; no IO and no clock. Strictness is the
//! point: a message whose end two parties could place differently is an error here and so never forwarded
//! (RFC 9112 sections 2.2, 5.1, 6.3 and 11.2).

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod checks;
mod chunked;
mod edits;
mod error;
mod framing;
mod head;
mod host;
mod hpack;
mod name;
pub mod proxy_protocol;
mod request;
mod response;
mod serialize;
mod upgrade;

pub use chunked::{
    CHUNK_LINE_BYTES_MAX, CONNECTION_OPTIONS_MAX, ChunkDecoder, DecodedPart, EDITED_HEADERS_MAX, HEAD_BYTES_MAX,
    HEADERS_MAX, HeadLimits, TRAILER_BYTES_MAX,
};
pub use edits::{
    ADDED_BYTES_MAX, Decimal, EditError, Edits, FieldName, FieldValue, OwnedFieldName, OwnedFieldValue, OwnedLine,
    RequestEdits, ResponseEdits, remove_lines,
};
pub use error::{ChunkError, Fault, ProxyProtocolError, RequestError, ResponseError};
pub use framing::{BodyDecoder, Framing};
pub use head::{Field, FieldSet, Fields, HeadProgress, Span, leading_empty_lines};
pub use host::{Authority, is_host, split_authority};
pub use hpack::{FieldBlockFacts, FieldWalker, huffman_bytes};
pub use name::Name;
pub use request::{Method, RequestHead, TargetForm};
pub use response::{ResponseHead, reason};
pub use serialize::{CHUNK_HEAD_BYTES_MAX, chunk_head, write_request, write_response};
pub use upgrade::{switches_as_asked, upgrade_protocols, write_upgrade_lines};

/// The minor version of HTTP/1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    #[default]
    Http11,
}

impl Version {
    /// Its text in a request or status line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
        }
    }
}
