//! HTTP/2 frame by frame, valid or not: one side of a connection that a test writes and reads by hand.
//!
//! Field sections are written as literals without indexing or Huffman coding (RFC 7541 section 6.2.2), and only the
//! status is read from received ones, as long as it is not taken from the dynamic table. For everything else there is
//! curl.

use crate::PATIENCE;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// Types of frames (RFC 9113 section 6).
pub mod kind {
    /// A part of a body.
    pub const DATA: u8 = 0;
    /// The beginning of a field section.
    pub const HEADERS: u8 = 1;
    /// How streams depend on each other; obsolete.
    pub const PRIORITY: u8 = 2;
    /// The abrupt end of a stream.
    pub const RST_STREAM: u8 = 3;
    /// Settings for the other side.
    pub const SETTINGS: u8 = 4;
    /// A response without a request.
    pub const PUSH_PROMISE: u8 = 5;
    /// Requires an answer.
    pub const PING: u8 = 6;
    /// The end of a connection.
    pub const GOAWAY: u8 = 7;
    /// Allows more DATA.
    pub const WINDOW_UPDATE: u8 = 8;
    /// More of a field section.
    pub const CONTINUATION: u8 = 9;
}

/// END_STREAM of DATA and HEADERS, ACK of SETTINGS and PING.
pub const END_STREAM: u8 = 1;
/// END_HEADERS of HEADERS and CONTINUATION.
pub const END_HEADERS: u8 = 4;

/// The setting that keeps a peer from using the dynamic table, so that each status can be read.
pub const NO_DYNAMIC_TABLE: (u16, u32) = (1, 0);

/// Error codes (RFC 9113 section 7).
pub mod code {
    /// A graceful end.
    pub const NO_ERROR: u32 = 0;
    /// A violation without a specific code.
    pub const PROTOCOL_ERROR: u32 = 1;
    /// The other side's fault.
    pub const INTERNAL_ERROR: u32 = 2;
    /// The request was not processed.
    pub const REFUSED_STREAM: u32 = 7;
    /// No longer wanted.
    pub const CANCEL: u32 = 8;
    /// The peer does something excessively.
    pub const ENHANCE_YOUR_CALM: u32 = 11;
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// See [`kind`].
    pub kind: u8,
    /// Depend on the type.
    pub flags: u8,
    /// Zero: the connection itself.
    pub stream: u32,
    /// Everything after the nine bytes of the header.
    pub payload: Vec<u8>,
}

impl Frame {
    /// The error code of RST_STREAM or GOAWAY.
    ///
    /// # Panics
    /// If it is another frame.
    pub fn code(&self) -> u32 {
        let at = match self.kind {
            kind::RST_STREAM => 0,
            kind::GOAWAY => 4,
            _ => panic!("no error code in {self:?}"),
        };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().expect("four bytes"))
    }

    /// The status that a response's field section begins with.
    ///
    /// # Panics
    /// If it is neither in the static table nor a literal.
    pub fn status(&self) -> u16 {
        assert_eq!(self.kind, kind::HEADERS, "{self:?}");
        // After changes of the dynamic table's size to less than 31 (RFC 7541 section 6.3).
        let resized = self.payload.iter().take_while(|byte| (0x20..0x3f).contains(*byte)).count();
        match self.payload[resized..] {
            [index @ 0x88..=0x8e, ..] => [200, 204, 206, 304, 400, 404, 500][usize::from(index - 0x88)],
            [0x08 | 0x48, 3, a, b, c, ..] => [a, b, c].iter().fold(0, |sum, digit| 10 * sum + u16::from(digit - b'0')),
            [0x08 | 0x48, 0x82 | 0x83, a, b, c, ..] => huffman_digits(u32::from_be_bytes([a, b, c, 0])),
            _ => panic!("not a status: {self:?}"),
        }
    }
}

/// Three digits in Huffman's code (RFC 7541 appendix B): 0 to 2 have five bits, the others six that begin with 011.
fn huffman_digits(mut bits: u32) -> u16 {
    let mut number = 0;
    for _ in 0..3 {
        let (digit, length) = match bits >> 27 {
            small @ 0..=2 => (small, 5),
            _ => ((bits >> 26) - 0x19 + 3, 6),
        };
        number = 10 * number + digit as u16;
        bits <<= length;
    }
    number
}

/// The end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    /// With END_STREAM.
    Whole,
    /// With RST_STREAM and this code.
    Reset(u32),
    /// With GOAWAY and this code, other than NO_ERROR.
    GoAway(u32),
    /// The connection was closed.
    Closed,
}

/// One side of a connection, over TCP or any other stream.
#[derive(Debug)]
pub struct Http2<S = TcpStream> {
    stream: S,
}

impl Http2 {
    /// Connects and sends preface and empty SETTINGS.
    #[track_caller]
    pub fn connect(addr: SocketAddr) -> Self {
        Self::connect_with(addr, &[])
    }

    /// [`Http2::connect`] with settings, each an identifier and a value.
    ///
    /// # Panics
    /// If connecting fails.
    #[track_caller]
    pub fn connect_with(addr: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let mut http2 = Self::over(TcpStream::connect(addr).expect("connect"));
        http2.send_bytes(PREFACE);
        http2.send(kind::SETTINGS, 0, 0, &encode_settings(settings));
        http2
    }

    /// Serves an accepted connection: reads the preface and sends settings.
    ///
    /// # Panics
    /// If something else comes.
    #[track_caller]
    pub fn accept(stream: TcpStream, settings: &[(u16, u32)]) -> Self {
        let mut http2 = Self::over(stream);
        let mut preface = [0; PREFACE.len()];
        http2.stream.read_exact(&mut preface).expect("a preface");
        assert_eq!(preface, PREFACE);
        http2.send(kind::SETTINGS, 0, 0, &encode_settings(settings));
        http2
    }

    /// Sends nothing by itself.
    ///
    /// # Panics
    /// If the socket refuses its options.
    #[track_caller]
    pub fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("no delay");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        Self { stream }
    }
}

impl<S: Read + Write> Http2<S> {
    /// Begins as a client over a connection whose reads wait at most [`PATIENCE`].
    pub fn begin(stream: S) -> Self {
        Self::begin_with(stream, &[])
    }

    /// [`Http2::begin`] with settings, each an identifier and a value.
    pub fn begin_with(stream: S, settings: &[(u16, u32)]) -> Self {
        let mut http2 = Self::begin_silently(stream);
        http2.send_bytes(PREFACE);
        http2.send(kind::SETTINGS, 0, 0, &encode_settings(settings));
        http2
    }

    /// [`Http2::begin`] without a preface.
    pub fn begin_silently(stream: S) -> Self {
        Self { stream }
    }

    /// The underlying stream.
    pub fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Writes bytes; if the other side has closed, reading will show it.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Writes a frame.
    pub fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.send_bytes(&encode_frame(kind, flags, stream, payload));
    }

    /// Sends a request's or a response's head in one frame.
    pub fn send_head(&mut self, stream: u32, fields: &[(&str, &str)], flags: u8) {
        self.send(kind::HEADERS, END_HEADERS | flags, stream, &encode_fields(fields));
    }

    /// Sends a `GET` that also ends its stream.
    pub fn get(&mut self, stream: u32, path: &str) {
        self.send_head(stream, &get_fields(path), END_STREAM);
    }

    /// The next frame of any kind; `None` at the end of the connection.
    ///
    /// # Panics
    /// If none comes in time.
    #[track_caller]
    pub fn next_frame(&mut self) -> Option<Frame> {
        let mut header = [0; 9];
        if !self.read(&mut header) {
            return None;
        }
        let [a, b, c, kind, flags, stream @ ..] = header;
        let mut payload = vec![0; usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c)];
        if !self.read(&mut payload) {
            return None;
        }
        Some(Frame { kind, flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff, payload })
    }

    #[track_caller]
    fn read(&mut self, space: &mut [u8]) -> bool {
        match self.stream.read_exact(space) {
            Ok(()) => true,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("no frame came within {PATIENCE:?}")
            }
            Err(_) => false,
        }
    }

    /// The next frame for which `wanted` holds; SETTINGS and PING are acknowledged meanwhile.
    ///
    /// # Panics
    /// If the connection ends first.
    #[track_caller]
    pub fn until(&mut self, wanted: impl Fn(&Frame) -> bool) -> Frame {
        loop {
            let frame = self.next_frame().expect("the frame before the end of the connection");
            self.acknowledge(&frame);
            if wanted(&frame) {
                return frame;
            }
        }
    }

    fn acknowledge(&mut self, frame: &Frame) {
        if frame.flags & END_STREAM != 0 {
            return;
        }
        match frame.kind {
            kind::SETTINGS => self.send(kind::SETTINGS, END_STREAM, 0, &[]),
            kind::PING => self.send(kind::PING, END_STREAM, 0, &frame.payload),
            _ => {}
        }
    }

    /// Reads a stream to its end: its HEADERS frames and DATA. No window is opened for it.
    #[track_caller]
    pub fn finish(&mut self, stream: u32) -> (Vec<Frame>, Vec<u8>, StreamEnd) {
        let (mut heads, mut body) = (Vec::new(), Vec::new());
        loop {
            let Some(frame) = self.next_frame() else { return (heads, body, StreamEnd::Closed) };
            self.acknowledge(&frame);
            match frame.kind {
                kind::GOAWAY if frame.code() != code::NO_ERROR => {
                    return (heads, body, StreamEnd::GoAway(frame.code()));
                }
                _ if frame.stream != stream => continue,
                kind::RST_STREAM => return (heads, body, StreamEnd::Reset(frame.code())),
                kind::DATA => body.extend_from_slice(&frame.payload),
                kind::HEADERS => heads.push(frame.clone()),
                _ => continue,
            }
            if frame.flags & END_STREAM != 0 {
                return (heads, body, StreamEnd::Whole);
            }
        }
    }

    /// A `GET` whose status is in the static table.
    ///
    /// # Panics
    /// If the response is not complete.
    #[track_caller]
    pub fn get_status(&mut self, stream: u32, path: &str) -> u16 {
        self.get(stream, path);
        let (heads, _, end) = self.finish(stream);
        assert_eq!(end, StreamEnd::Whole);
        heads[0].status()
    }

    /// The end of the connection: the code of its last GOAWAY, if one came.
    ///
    /// # Panics
    /// If it does not end in time.
    #[track_caller]
    pub fn closed(&mut self) -> Option<u32> {
        let mut code = None;
        while let Some(frame) = self.next_frame() {
            self.acknowledge(&frame);
            if frame.kind == kind::GOAWAY {
                code = Some(frame.code());
            }
        }
        code
    }
}

/// The fields of a plain `GET`.
pub fn get_fields(path: &str) -> [(&str, &str); 4] {
    [(":method", "GET"), (":scheme", "http"), (":authority", "h.example"), (":path", path)]
}

/// A frame's bytes.
pub fn encode_frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a frame is shorter").to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A field section of literals.
pub fn encode_fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            push_length(&mut block, text.len());
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// An integer with a prefix of seven bits (RFC 7541 section 5.1).
fn push_length(block: &mut Vec<u8>, length: usize) {
    let Some(mut rest) = length.checked_sub(127) else { return block.push(length as u8) };
    block.push(127);
    while rest >= 128 {
        block.push(rest as u8 | 128);
        rest >>= 7;
    }
    block.push(rest as u8);
}

fn encode_settings(settings: &[(u16, u32)]) -> Vec<u8> {
    settings.iter().flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_read() {
        let check = |payload: &[u8], expected| {
            let frame = Frame { kind: kind::HEADERS, flags: 0, stream: 1, payload: payload.to_vec() };
            assert_eq!(frame.status(), expected);
        };
        check(&[0x89], 204);
        check(&[0x48, 3, b'5', b'0', b'2'], 502);
        check(&[0x20, 0x08, 3, b'4', b'2', b'1'], 421);
        // RFC 7541 appendix C.6.1, with what follows it there.
        check(&[0x48, 0x82, 0x64, 0x02, 0x58], 302);
        check(&[0x48, 0x82, 0b0110_1100, 0b0000_0010, 0], 502);
        check(&[0x48, 0x83, 0b0110_1000, 0b0000_1100, 0b1111_1111], 403);
    }
}
