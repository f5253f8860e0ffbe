//! All possible answers, as bytes made once.

use crate::websocket;

/// The kind of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Its content.
    pub(super) content: Content,
    /// Its effect on the connection.
    pub(super) connection: Persistence,
}

/// The content of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// 200 with the body.
    Full,
    /// 200 with the body's length only, for HEAD.
    HeadOnly,
    /// 101; from then on the connection carries WebSocket frames.
    WebSocket,
    /// 400; always the last of its connection.
    BadRequest,
}

/// The effect of an answer on the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Persistence {
    /// Kept, as is the default of HTTP/1.1.
    Kept,
    /// Kept, with a header field for HTTP/1.0.
    KeptAloud,
    /// Closed after it.
    Close,
}

/// Sent to a client that waits for it before it sends its body.
pub(super) const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// All answers with the body of one length.
#[derive(Debug)]
pub(crate) struct Answers {
    /// By persistence: each with its body, and the length of the head.
    ok: [(Vec<u8>, usize); 3],
    web_socket: Vec<u8>,
    bad_request: Vec<u8>,
}

/// The text that bodies are filled with.
const FILLING: &[u8] = b"still ";

impl Answers {
    /// With a body of `body_bytes` bytes.
    pub(super) fn new(body_bytes: usize) -> Answers {
        let body: Vec<u8> = FILLING.iter().copied().cycle().take(body_bytes).collect();
        let ok = |connection: &str| {
            let mut bytes = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {body_bytes}\r\n{connection}\r\n"
            )
            .into_bytes();
            let head = bytes.len();
            bytes.extend_from_slice(&body);
            (bytes, head)
        };
        Answers {
            ok: [ok(""), ok("Connection: keep-alive\r\n"), ok("Connection: close\r\n")],
            web_socket: websocket::acceptance().into_bytes(),
            bad_request: b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec(),
        }
    }

    /// The bytes of an answer.
    pub(super) fn bytes(&self, answer: Answer) -> &[u8] {
        let index = match answer.connection {
            Persistence::Kept => 0,
            Persistence::KeptAloud => 1,
            Persistence::Close => 2,
        };
        let (bytes, head) = &self.ok[index];
        match answer.content {
            Content::Full => bytes,
            Content::HeadOnly => &bytes[..*head],
            Content::WebSocket => &self.web_socket,
            Content::BadRequest => &self.bad_request,
        }
    }
}
