//! Parses requests from the bytes of a connection: where each ends, and which answer it gets.

use super::answers::{Answer, Content, Persistence};
use crate::websocket::HANDSHAKE_KEY;
use stillgate_wire::{
    BodyDecoder, ChunkError, Field, HeadLimits, Method, Progress, RequestError, RequestHead, Version,
    leading_empty_lines,
};

/// A request up to this length is remembered, to be recognised byte by byte.
const REMEMBERED_BYTES_MAX: usize = 4096;

/// What is at the beginning of some bytes.
#[derive(Debug)]
pub(super) enum ParsedInput {
    /// A request with its length, including the body.
    Whole(usize, Answer),
    /// A head with its length, and a body that continues after the available bytes.
    Head(usize, Body),
    /// A part of a head.
    Partial,
    /// Not a valid request; it can only be refused.
    Refused,
}

/// The rest of a request whose head is complete.
#[derive(Debug)]
pub(super) struct Body {
    decoder: BodyDecoder,
    answer: Answer,
    /// Whether the client waits for 100 Continue before it sends it.
    pub(super) expects_continue: bool,
}

impl Body {
    /// Takes its bytes from the front of `bytes`: returns their number, and the answer once the body is complete.
    pub(super) fn take(&mut self, bytes: &mut [u8]) -> Result<(usize, Option<Answer>), ChunkError> {
        let decoded = self.decoder.decode(bytes)?;
        Ok((decoded.consumed, self.decoder.is_done().then_some(self.answer)))
    }
}

/// Parses requests, and recognises the last one.
///
/// A client that repeats one request is parsed once: if the bytes begin with the last whole request, they are that
/// request, because its end does not depend on the bytes after it.
#[derive(Debug)]
pub(super) struct Requests {
    head: RequestHead,
    limits: HeadLimits,
    remembered: Vec<u8>,
    remembered_answer: Answer,
}

impl Requests {
    pub(super) fn new() -> Requests {
        Requests {
            head: RequestHead::default(),
            limits: HeadLimits::default(),
            remembered: Vec::with_capacity(REMEMBERED_BYTES_MAX),
            remembered_answer: Answer { content: Content::BadRequest, connection: Persistence::Close },
        }
    }

    /// Finds what is at the beginning of `bytes`; the body's bytes may be overwritten.
    pub(super) fn find(&mut self, bytes: &mut [u8]) -> ParsedInput {
        if !self.remembered.is_empty() && bytes.starts_with(&self.remembered) {
            return ParsedInput::Whole(self.remembered.len(), self.remembered_answer);
        }
        self.parse(bytes).unwrap_or(ParsedInput::Refused)
    }

    fn parse(&mut self, bytes: &mut [u8]) -> Result<ParsedInput, RequestError> {
        let skipped = leading_empty_lines(bytes)?;
        self.head.reset();
        let Progress::Complete(len) = self.head.advance(&bytes[skipped..], &self.limits)? else {
            return Ok(ParsedInput::Partial);
        };
        let head_end = skipped + len;
        let mut body = Body {
            decoder: BodyDecoder::new(self.head.framing),
            answer: self.answer(&bytes[skipped..]),
            expects_continue: self.head.expects_continue,
        };
        if body.decoder.is_done() {
            self.remember(&bytes[..head_end], body.answer);
            return Ok(ParsedInput::Whole(head_end, body.answer));
        }
        // Decoding overwrites chunk framing, so only a body of given length can be remembered afterwards.
        let chunked = matches!(body.decoder, BodyDecoder::Chunked(_));
        match body.take(&mut bytes[head_end..]) {
            Err(_) => Ok(ParsedInput::Refused),
            Ok((taken, Some(answer))) => {
                if !chunked {
                    self.remember(&bytes[..head_end + taken], answer);
                }
                Ok(ParsedInput::Whole(head_end + taken, answer))
            }
            Ok((taken, None)) => {
                // A client that has begun to send does not wait.
                body.expects_continue &= taken == 0;
                Ok(ParsedInput::Head(head_end + taken, body))
            }
        }
    }

    fn answer(&self, head: &[u8]) -> Answer {
        if self.head.asks_upgrade && self.is_websocket_handshake(head) {
            return Answer { content: Content::WebSocket, connection: Persistence::Kept };
        }
        let content = match self.head.method {
            Method::Head => Content::HeadOnly,
            // CONNECT has no tunnel to open here.
            Method::Connect => return Answer { content: Content::BadRequest, connection: Persistence::Close },
            _ => Content::Full,
        };
        let connection = match (self.head.keep_alive, self.head.version) {
            (false, _) => Persistence::Close,
            (true, Version::Http10) => Persistence::KeptAloud,
            (true, Version::Http11) => Persistence::Kept,
        };
        Answer { content, connection }
    }

    /// Whether it is the handshake of the laboratory's clients, whose key is always the same.
    fn is_websocket_handshake(&self, head: &[u8]) -> bool {
        let is_key = |field: &Field| field.name.of(head).eq_ignore_ascii_case(b"sec-websocket-key");
        let mut fields = self.head.fields.iter().filter(|field| is_key(field));
        fields.next().is_some_and(|field| field.value.of(head) == HANDSHAKE_KEY.as_bytes())
    }

    fn remember(&mut self, bytes: &[u8], answer: Answer) {
        if bytes.len() <= REMEMBERED_BYTES_MAX {
            self.remembered.clear();
            self.remembered.extend_from_slice(bytes);
            self.remembered_answer = answer;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Answer = Answer { content: Content::Full, connection: Persistence::Kept };
    const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

    /// Checks three cases: parsed, recognised, and followed by other bytes.
    fn check(text: &str, whole: &str, expected: Answer) {
        let mut requests = Requests::new();
        for behind in ["", "", "GET"] {
            let mut bytes = format!("{text}{behind}").into_bytes();
            match requests.find(&mut bytes) {
                ParsedInput::Whole(len, answer) => assert_eq!((len, answer), (whole.len(), expected), "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn whole_requests() {
        check(GET, GET, KEPT);
        check(&format!("\r\n{GET}"), &format!("\r\n{GET}"), KEPT);
        let with_body = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
        check(with_body, with_body, KEPT);
        let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        check(chunked, chunked, KEPT);
        let head = "HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        check(head, head, Answer { content: Content::HeadOnly, connection: Persistence::Close });
        let old = "GET / HTTP/1.0\r\n\r\n";
        check(old, old, Answer { content: Content::Full, connection: Persistence::Close });
        let old_kept = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
        check(old_kept, old_kept, Answer { content: Content::Full, connection: Persistence::KeptAloud });
    }

    #[test]
    fn handshakes_of_the_laboratory_only() {
        let ours = crate::websocket::request("a", "/tunnel", "");
        check(&ours, &ours, Answer { content: Content::WebSocket, connection: Persistence::Kept });
        let other = ours.replace(HANDSHAKE_KEY, "AAAAAAAAAAAAAAAAAAAAAA==");
        check(&other, &other, KEPT);
    }

    #[test]
    fn bodies_in_pieces() {
        let mut requests = Requests::new();
        let mut head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n".to_vec();
        let ParsedInput::Head(len, mut body) = requests.find(&mut head) else { panic!("no head") };
        assert_eq!((len, body.expects_continue), (head.len(), true));
        assert_eq!(body.take(&mut b"abc".to_vec()), Ok((3, None)));
        assert_eq!(body.take(&mut b"deGET".to_vec()), Ok((2, Some(KEPT))));
    }

    #[test]
    fn what_is_not_http() {
        for text in ["\x16\x03\x01\x02\x00", "GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\nHost: a\n\n", "GET /\r\n\r\n"] {
            let mut bytes = text.as_bytes().to_vec();
            assert!(matches!(Requests::new().find(&mut bytes), ParsedInput::Refused), "{text:?}");
        }
        for text in ["", "G", "GET / HTTP/1.1\r\nHost: a\r\n"] {
            let mut bytes = text.as_bytes().to_vec();
            assert!(matches!(Requests::new().find(&mut bytes), ParsedInput::Partial), "{text:?}");
        }
    }
}
