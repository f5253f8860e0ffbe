//! WebSocket frames (RFC 6455) as a server reads and writes them.
//!
//! Reading, a [`Reader`] takes bytes as they come and gives back whole messages and control frames. It owns no buffer while
//! its connection is idle: what arrives whole is borrowed from the caller's buffer, and only what is split over reads or
//! frames is gathered. Writing, frames are not masked (section 5.1), and a message is one frame.
//!
//! No extension is spoken, so every reserved bit is an error. The handshake is HTTP and not here.

mod close;
mod head;
mod reader;
mod utf8;
mod write;

pub use close::{CLOSE_REASON_BYTES_MAX, CloseCode};
pub use head::{CONTROL_PAYLOAD_BYTES_MAX, Opcode};
pub use reader::{Event, FrameError, Reader};
pub use write::{FRAME_HEAD_BYTES_MAX, FrameHead, write_close, write_frame};
