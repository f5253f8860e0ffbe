//! Reads answers: where each ends, whether its connection continues, and whether it is the expected one.
//!
//! A server sends almost the same head over and over. If a head equals the last one that answered the same entry of the
//! mix byte for byte, all decisions about it are equal, too, and comparing it costs a fraction of parsing it. Pure
//! except for its buffers: bytes in, verdict out; the connection transports them.

use crate::mix::Entry;
use std::fmt;
use stillgate_wire::{
    BodyDecoder, ChunkError, Framing, HEAD_BYTES_MAX, HEADERS_MAX, HeadLimits, HeadProgress, Method, ResponseError,
    ResponseHead,
};

/// Most bytes of a body to be checked; a longer one fails its check.
pub(super) const CHECKED_BODY_BYTES_MAX: usize = 1024 * 1024;

/// Heads remembered; further entries of a mix share their places.
const MEMOS_MAX: usize = 64;

/// Buffers of checked bodies that are kept for the next; more are in use only where many bodies come in pieces at once.
const SPARE_BODIES_MAX: usize = 16;

const LIMITS: HeadLimits = HeadLimits { head_bytes_max: HEAD_BYTES_MAX, target_bytes_max: 0, headers_max: HEADERS_MAX };

const SWITCHING_PROTOCOLS: u16 = 101;

/// Reads the answers of all connections of a thread.
#[derive(Debug)]
pub(super) struct Reader {
    memos: Vec<Memo>,
    head: ResponseHead,
    spare_bodies: Vec<CheckedBody>,
}

/// The state of reading one connection's answer.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// The verdict of the final head, once that was read.
    verdict: Option<Verdict>,
    decoder: BodyDecoder,
    /// The body so far; only if it will be checked and comes in pieces.
    body: Option<CheckedBody>,
}

/// The decisions of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Verdict {
    status: u16,
    framing: Framing,
    keep_alive: bool,
}

/// The result of a call of [`Reader::advance`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Advance {
    /// More is to come. The bytes from here on are the beginning of a head, to be passed again with those that follow.
    Partial(usize),
    /// The answer is complete.
    Done(CompletedResponse),
}

/// A complete answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CompletedResponse {
    /// Whether another request may follow on the connection.
    pub(super) keep_alive: bool,
    pub(super) mismatch: Option<AnswerMismatch>,
}

/// Why an answer was not the expected one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AnswerMismatch {
    /// An unexpected status.
    Status(u16),
    Body,
}

/// Why something is not an HTTP/1 answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MalformedAnswer {
    Head(ResponseError),
    Body(ChunkError),
    /// This many bytes after the end of the answer to a request without a successor.
    Extra(usize),
}

impl fmt::Display for MalformedAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MalformedAnswer::Head(error) => write!(f, "answer head: {error}"),
            MalformedAnswer::Body(error) => write!(f, "answer body: {error}"),
            MalformedAnswer::Extra(bytes) => write!(f, "{bytes} bytes after the end of the answer"),
        }
    }
}

#[derive(Debug, Default)]
struct Memo {
    bytes: Vec<u8>,
    method: Method,
    verdict: Option<Verdict>,
}

/// Boxed, so that connections without one stay small.
type CheckedBody = Box<BodyBytes>;

#[derive(Debug, Default)]
struct BodyBytes {
    bytes: Vec<u8>,
    too_long: bool,
}

impl Reader {
    /// A reader for a mix with this many entries.
    pub(super) fn new(entries: usize) -> Self {
        let memo = || Memo { bytes: Vec::with_capacity(1024), ..Memo::default() };
        Reader {
            memos: (0..entries.clamp(1, MEMOS_MAX)).map(|_| memo()).collect(),
            head: ResponseHead::default(),
            spare_bodies: Vec::with_capacity(SPARE_BODIES_MAX),
        }
    }

    /// Continues to read: `bytes` have arrived and were not read yet. They are changed where the coding is removed.
    #[inline]
    pub(super) fn advance(
        &mut self,
        answer: &mut Answer,
        index: usize,
        entry: &Entry,
        bytes: &mut [u8],
    ) -> Result<Advance, MalformedAnswer> {
        let mut at = 0;
        let verdict = loop {
            if let Some(verdict) = answer.verdict {
                break verdict;
            }
            let Some((length, verdict)) =
                self.head(index, entry.method, &bytes[at..]).map_err(MalformedAnswer::Head)?
            else {
                return Ok(Advance::Partial(at));
            };
            at += length;
            if verdict.status >= 200 || verdict.status == SWITCHING_PROTOCOLS {
                answer.verdict = Some(verdict);
                answer.decoder = BodyDecoder::new(verdict.framing);
            }
        };
        let decoded = answer.decoder.decode(&mut bytes[at..]).map_err(MalformedAnswer::Body)?;
        let content = at..at + decoded.data;
        at += decoded.consumed;
        if !answer.decoder.is_done() {
            if entry.expect.needs_body() {
                self.keep(answer, &bytes[content]);
            }
            return Ok(Advance::Partial(at));
        }
        if at < bytes.len() {
            return Err(MalformedAnswer::Extra(bytes.len() - at));
        }
        Ok(Advance::Done(self.judge(answer, verdict, entry, &bytes[content])))
    }

    /// Ends the answer with its connection, if its body may end that way. `None` if it was not complete.
    pub(super) fn end_with_connection(&mut self, answer: &mut Answer, entry: &Entry) -> Option<CompletedResponse> {
        let verdict = answer.verdict.filter(|verdict| verdict.framing == Framing::UntilClose)?;
        Some(self.judge(answer, verdict, entry, &[]))
    }

    /// Notes the head of an answer whose framing belongs to another protocol; [`Reader::end_with_connection`] completes it.
    pub(super) fn begin(&mut self, answer: &mut Answer, status: u16) {
        answer.verdict = Some(Verdict { status, framing: Framing::UntilClose, keep_alive: true });
    }

    /// Notes some of the body of an answer that was begun by [`Reader::begin`].
    pub(super) fn content(&mut self, answer: &mut Answer, entry: &Entry, bytes: &[u8]) {
        if entry.expect.needs_body() {
            self.keep(answer, bytes);
        }
    }

    /// Prepares for the next answer, in any state of this one.
    #[inline]
    pub(super) fn reset(&mut self, answer: &mut Answer) {
        answer.verdict = None;
        if let Some(mut body) = answer.body.take()
            && self.spare_bodies.len() < SPARE_BODIES_MAX
        {
            body.bytes.clear();
            body.too_long = false;
            self.spare_bodies.push(body);
        }
    }

    #[inline]
    fn head(&mut self, index: usize, method: Method, bytes: &[u8]) -> Result<Option<(usize, Verdict)>, ResponseError> {
        let place = index % self.memos.len();
        let memo = &self.memos[place];
        if let Some(verdict) = memo.verdict
            && memo.method == method
            && bytes.starts_with(&memo.bytes)
        {
            return Ok(Some((memo.bytes.len(), verdict)));
        }
        self.parse(place, method, bytes)
    }

    #[inline(never)]
    fn parse(&mut self, place: usize, method: Method, bytes: &[u8]) -> Result<Option<(usize, Verdict)>, ResponseError> {
        self.head.reset();
        let HeadProgress::Complete(length) = self.head.advance(bytes, method, &LIMITS)? else {
            return Ok(None);
        };
        // Another protocol follows 101.
        let keep_alive = self.head.keep_alive && self.head.status != SWITCHING_PROTOCOLS;
        let verdict = Verdict { status: self.head.status, framing: self.head.framing, keep_alive };
        if verdict.status >= 200 {
            let memo = &mut self.memos[place];
            memo.bytes.clear();
            memo.bytes.extend_from_slice(&bytes[..length]);
            (memo.method, memo.verdict) = (method, Some(verdict));
        }
        Ok(Some((length, verdict)))
    }

    fn keep(&mut self, answer: &mut Answer, content: &[u8]) {
        let body = answer.body.get_or_insert_with(|| self.spare_bodies.pop().unwrap_or_default());
        body.add(content);
    }

    #[inline]
    fn judge(&mut self, answer: &mut Answer, verdict: Verdict, entry: &Entry, content: &[u8]) -> CompletedResponse {
        let refused = if !entry.expect.status(verdict.status) {
            Some(AnswerMismatch::Status(verdict.status))
        } else if entry.expect.needs_body() && !is_expected(answer, entry, content) {
            Some(AnswerMismatch::Body)
        } else {
            None
        };
        self.reset(answer);
        CompletedResponse { keep_alive: verdict.keep_alive, mismatch: refused }
    }
}

/// Whether the body is the expected one; `content` is its last piece, or all of it.
fn is_expected(answer: &mut Answer, entry: &Entry, content: &[u8]) -> bool {
    match &mut answer.body {
        Some(body) => {
            body.add(content);
            !body.too_long && entry.expect.body(&body.bytes)
        }
        None => content.len() <= CHECKED_BODY_BYTES_MAX && entry.expect.body(content),
    }
}

impl BodyBytes {
    fn add(&mut self, content: &[u8]) {
        let room = CHECKED_BODY_BYTES_MAX - self.bytes.len();
        self.too_long |= content.len() > room;
        self.bytes.extend_from_slice(&content[..content.len().min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::Mix;
    use proptest::prelude::*;

    fn entry(method: &str) -> Entry {
        Mix::single(method, "/", "test.example", &[], Vec::new()).unwrap().entries()[0].clone()
    }

    /// An answer in the pieces that `cuts` make, optionally followed by the connection's end.
    fn read(
        reader: &mut Reader,
        entry: &Entry,
        answer: &[u8],
        cuts: &[usize],
        ends: bool,
    ) -> Result<Option<CompletedResponse>, MalformedAnswer> {
        let mut state = Answer::default();
        let (mut kept, mut from) = (Vec::new(), 0);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (answer.len() + 1)).collect();
        cuts.push(answer.len());
        cuts.sort_unstable();
        for cut in cuts {
            kept.extend_from_slice(&answer[from..cut]);
            from = cut;
            match reader.advance(&mut state, 0, entry, &mut kept)? {
                Advance::Partial(at) => drop(kept.drain(..at)),
                Advance::Done(done) if from == answer.len() => return Ok(Some(done)),
                Advance::Done(_) => return Err(MalformedAnswer::Extra(answer.len() - from)),
            }
        }
        Ok(if ends { reader.end_with_connection(&mut state, entry) } else { None })
    }

    const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";
    const CHUNKED: &[u8] =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x\r\nc\r\n0\r\nA: b\r\n\r\n";
    const INTERIM: &[u8] = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    const UNTIL_CLOSE: &[u8] = b"HTTP/1.1 200 OK\r\n\r\nabc";

    fn done(keep_alive: bool) -> Option<CompletedResponse> {
        Some(CompletedResponse { keep_alive, mismatch: None })
    }

    #[test]
    fn the_end_of_an_answer() {
        let check = |method, answer: &[u8], ends, expected: Option<CompletedResponse>| {
            let mut reader = Reader::new(1);
            // The second time the head is known.
            for _ in 0..2 {
                let found = read(&mut reader, &entry(method), answer, &[], ends).unwrap();
                assert_eq!(found, expected, "{}", String::from_utf8_lossy(answer));
            }
        };
        check("GET", OK, false, done(true));
        check("GET", CHUNKED, false, done(true));
        check("GET", INTERIM, false, done(true));
        check("GET", UNTIL_CLOSE, false, None);
        check("GET", UNTIL_CLOSE, true, done(false));
        check("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", false, done(true));
        check("GET", b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", false, done(false));
        check("GET", b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", false, done(false));
        check("GET", &OK[..OK.len() - 1], true, None);
        check("GET", &OK[..20], true, None);
        let refused = Some(CompletedResponse { keep_alive: false, mismatch: Some(AnswerMismatch::Status(101)) });
        check("GET", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", false, refused);
        let refused = Some(CompletedResponse { keep_alive: true, mismatch: Some(AnswerMismatch::Status(503)) });
        check("GET", b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", false, refused);
    }

    #[test]
    fn a_known_head_means_the_same_only_to_the_same_method() {
        let mut reader = Reader::new(1);
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n";
        assert_eq!(read(&mut reader, &entry("HEAD"), head, &[], false).unwrap(), done(true));
        assert_eq!(read(&mut reader, &entry("GET"), head, &[], false).unwrap(), None);
        assert_eq!(read(&mut reader, &entry("GET"), OK, &[], false).unwrap(), done(true));
        let longer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd";
        assert_eq!(read(&mut reader, &entry("GET"), longer, &[], false).unwrap(), done(true));
    }

    #[test]
    fn what_is_no_answer() {
        let check = |answer: &[u8]| {
            let found = read(&mut Reader::new(1), &entry("GET"), answer, &[], false);
            assert!(found.is_err(), "{}: {found:?}", String::from_utf8_lossy(answer));
        };
        check(b"220 smtp.example\r\n");
        check(b"\x16\x03\x01\x02\x00\x01\r\n");
        check(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\n");
        check(b"HTTP/1.1 204 No Content\r\n\r\nabc");
        check(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n");
        check(&[b"HTTP/1.1 200 OK\r\nA: ".as_slice(), &vec![b'a'; HEAD_BYTES_MAX]].concat());
    }

    proptest! {
        #[test]
        fn any_pieces_mean_the_same(cuts in prop::collection::vec(0usize..200, 0..6), known: bool) {
            for answer in [OK, CHUNKED, INTERIM, UNTIL_CLOSE] {
                let (mut reader, entry) = (Reader::new(1), entry("GET"));
                if known {
                    read(&mut reader, &entry, answer, &[], true).unwrap();
                }
                let whole = read(&mut reader, &entry, answer, &[], true);
                prop_assert_eq!(&whole, &Ok(done(answer != UNTIL_CLOSE)));
                prop_assert_eq!(read(&mut reader, &entry, answer, &cuts, true), whole);
            }
        }
    }
}
