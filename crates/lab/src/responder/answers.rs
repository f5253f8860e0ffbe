//! The answers there are, as bytes made once.

/// Which answer a request gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    /// What it says.
    pub(super) content: Content,
    /// What it says of the connection.
    pub(super) connection: Persistence,
}

/// What an answer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// 200 with the body.
    Full,
    /// 200 with the body's length only, as HEAD asks for.
    HeadOnly,
    /// 400; always the last of its connection.
    BadRequest,
}

/// What an answer says of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Persistence {
    /// Kept, as HTTP/1.1 has it without saying.
    Kept,
    /// Kept, said so for HTTP/1.0.
    KeptAloud,
    /// Closed after it.
    Close,
}

/// What a client that waits for it is told before its body is read.
pub(super) const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// All answers with the body of one length.
#[derive(Debug)]
pub(crate) struct Answers {
    /// By persistence: each with its body, and how much of it is the head.
    ok: [(Vec<u8>, usize); 3],
    bad_request: Vec<u8>,
}

/// What a body is made of: text, so that it can be looked at.
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
            bad_request: b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec(),
        }
    }

    /// The bytes of one.
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
            Content::BadRequest => &self.bad_request,
        }
    }
}
