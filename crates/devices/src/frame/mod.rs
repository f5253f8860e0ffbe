//! WebSocket frames (RFC 6455) as a server reads and writes them.
//!
//! A [`FrameReader`] takes bytes as they arrive and returns whole messages and control frames. It owns no buffer while its
//! connection is idle: a whole frame is borrowed from the caller's buffer, and only data that is split over reads or
//! frames is gathered. Written frames are not masked (section 5.1), and a message is one frame.
//!
//! No extension is supported, so every reserved bit is an error. The handshake is HTTP and is implemented elsewhere.

mod close;
mod head;
mod reader;
mod utf8;
mod write;

pub use close::{CLOSE_REASON_BYTES_MAX, CloseCode};
pub use head::{CONTROL_PAYLOAD_BYTES_MAX, Opcode};
pub use reader::{FrameError, FrameEvent, FrameReader};
pub use write::{FRAME_HEAD_BYTES_MAX, FrameHead, write_close, write_frame};
