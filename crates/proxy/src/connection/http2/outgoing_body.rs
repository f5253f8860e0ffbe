//! The body of a message that our engine writes as HTTP/1.1, as HTTP/2 frames.

use super::grpc_web::Decoder;
use super::incoming_body::broken;
use bytes::{Bytes, BytesMut};
use h2::SendStream;
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use std::io;
use std::task::{Context, Poll, ready};
use stillgate_wire::{BodyDecoder, FieldSet, Fields, Framing, HeadProgress, Name};

/// A body whose head has been sent.
pub(super) struct OutgoingBody {
    send: SendStream<Bytes>,
    body: UnframedBody,
    /// A body whose end has no other sign has been ended.
    is_finished: bool,
    /// For a base64 body: the decoder.
    text: Option<Decoder>,
    /// Whether there was little room behind what was written last.
    is_tight: bool,
}

/// Room that a stream should find behind what it writes: less is a sign that the peer reads slowly. A window is 64 KiB or more, and
/// peers enlarge it when half of it is used.
const SPARE_BYTES: usize = 16 * 1024;

impl OutgoingBody {
    pub(super) fn new(send: SendStream<Bytes>, framing: Framing) -> OutgoingBody {
        let body = UnframedBody(BodyDecoder::new(framing));
        OutgoingBody { send, body, is_finished: false, text: None, is_tight: false }
    }

    /// Whether there was little room behind what was written last.
    pub(super) fn is_tight(&self) -> bool {
        self.is_tight
    }

    /// Decodes the body from base64 before it is passed on.
    pub(super) fn decoded(self) -> OutgoingBody {
        OutgoingBody { text: Some(Decoder::default()), ..self }
    }

    /// Whether the end of the body has been handed over; for an empty body the head was the end.
    pub(super) fn is_done(&self) -> bool {
        self.is_finished || self.body.0.is_done()
    }

    /// Ends a body whose end has no other sign.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        if self.is_done() {
            return Ok(());
        }
        self.is_finished = true;
        self.send.send_data(Bytes::new(), true).map_err(broken)
    }

    pub(super) fn stream(&mut self) -> &mut SendStream<Bytes> {
        &mut self.send
    }

    /// Takes what follows a head that was just sent, of which `taken` bytes were in `part`; returns the number of bytes including
    /// these.
    pub(super) fn poll_write_behind<'p>(
        &mut self,
        cx: &mut Context<'_>,
        taken: usize,
        part: &'p [u8],
        parts: impl Iterator<Item = &'p [u8]>,
    ) -> Poll<io::Result<usize>> {
        match self.poll_write(cx, std::iter::once(&part[taken..]).chain(parts)) {
            Poll::Ready(Ok(more)) => Poll::Ready(Ok(taken + more)),
            // The head has been sent; the next write shows what became of the rest.
            _ => Poll::Ready(Ok(taken)),
        }
    }

    /// Takes as much from `parts` as the peer and the connection have room for; returns the number of bytes.
    pub(super) fn poll_write<'p>(
        &mut self,
        cx: &mut Context<'_>,
        parts: impl Iterator<Item = &'p [u8]>,
    ) -> Poll<io::Result<usize>> {
        let mut parts = parts.filter(|part| !part.is_empty()).peekable();
        if parts.peek().is_none() {
            return Poll::Ready(Ok(0));
        }
        let mut consumed = 0;
        // The end may follow at once: it is sent with the last bytes rather than after them.
        let mut held: Option<Bytes> = None;
        // What was found with the head may have been held back until now.
        self.plain(Some(Bytes::new()))?;
        for part in parts {
            let mut rest = part;
            while !rest.is_empty() {
                if self.is_done() {
                    return Poll::Ready(Err(malformed("bytes behind the end of a message")));
                }
                let room = if self.body.0.content_left() == 0 { 0 } else { self.room(rest.len()) };
                let taken = self.body.take(rest, room)?;
                consumed += taken.consumed;
                rest = &rest[taken.consumed..];
                if let Some(data) = self.plain(taken.data)?
                    && let Some(held) = held.replace(data)
                {
                    self.send.send_data(held, false).map_err(broken)?;
                }
                if taken.consumed == 0 {
                    if consumed > 0 {
                        self.end(held)?;
                        return Poll::Ready(Ok(consumed));
                    }
                    ready!(self.poll_room(cx))?;
                }
            }
        }
        self.end(held)?;
        Poll::Ready(Ok(consumed))
    }

    /// The content that the peer gets.
    fn plain(&mut self, data: Option<Bytes>) -> io::Result<Option<Bytes>> {
        let (Some(decoder), Some(text)) = (&mut self.text, &data) else { return Ok(data) };
        let plain = decoder.decode(text)?;
        Ok((!plain.is_empty()).then(|| plain.into()))
    }

    /// How many of `wanted` bytes may be sent now.
    fn room(&mut self, wanted: usize) -> usize {
        self.send.reserve_capacity(wanted + SPARE_BYTES);
        let room = self.send.capacity();
        self.is_tight = room < wanted + SPARE_BYTES;
        // The rest is for other streams.
        self.send.reserve_capacity(wanted);
        room.min(wanted)
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match ready!(self.send.poll_capacity(cx)) {
            Some(Ok(_)) => Poll::Ready(Ok(())),
            Some(Err(error)) => Poll::Ready(Err(broken(error))),
            None => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        }
    }

    fn end(&mut self, held: Option<Bytes>) -> io::Result<()> {
        if !self.is_done() {
            return held.map_or(Ok(()), |data| self.send.send_data(data, false)).map_err(broken);
        }
        self.text.as_mut().map_or(Ok(()), Decoder::finish)?;
        let trailers = trailers(self.body.0.trailers())?;
        let is_end = trailers.is_none();
        if held.is_some() || is_end {
            self.send.send_data(held.unwrap_or_default(), is_end).map_err(broken)?;
        }
        trailers.map_or(Ok(()), |trailers| self.send.send_trailers(trailers)).map_err(broken)
    }
}

/// Removes the framing of a body.
struct UnframedBody(BodyDecoder);

/// What [`UnframedBody::take`] took.
#[derive(Debug, Default, PartialEq, Eq)]
struct TakenBytes {
    consumed: usize,
    data: Option<Bytes>,
}

impl UnframedBody {
    /// Takes framing and up to `room` bytes of content, stopping after the content.
    fn take(&mut self, bytes: &[u8], room: usize) -> io::Result<TakenBytes> {
        let mut consumed = 0;
        while consumed < bytes.len() && !self.0.is_done() {
            let left = usize::try_from(self.0.content_left()).unwrap_or(usize::MAX);
            if left == 0 {
                self.decode(&mut [bytes[consumed]])?;
                consumed += 1;
                continue;
            }
            let take = left.min(bytes.len() - consumed).min(room);
            if take == 0 {
                break;
            }
            let mut data = BytesMut::from(&bytes[consumed..consumed + take]);
            self.decode(&mut data)?;
            return Ok(TakenBytes { consumed: consumed + take, data: Some(data.freeze()) });
        }
        Ok(TakenBytes { consumed, data: None })
    }

    fn decode(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.0.decode(bytes).map(|_| ()).map_err(malformed)
    }
}

/// Takes the next part of a head, of which `partial` is what came before; `parse` finds where it ends. If the head is complete,
/// returns it and how many bytes of `part` belong to it. Otherwise all of them do.
pub(super) fn take_head(
    partial: &mut Vec<u8>,
    part: &[u8],
    parse: impl FnOnce(&[u8]) -> io::Result<HeadProgress>,
) -> io::Result<Option<(Bytes, usize)>> {
    let had = partial.len();
    let head = if had == 0 {
        part
    } else {
        partial.extend_from_slice(part);
        &partial[..]
    };
    match parse(head)? {
        HeadProgress::Complete(len) => {
            let whole = Bytes::copy_from_slice(&head[..len]);
            partial.clear();
            Ok(Some((whole, len - had)))
        }
        HeadProgress::Partial => {
            if had == 0 {
                partial.extend_from_slice(part);
            }
            Ok(None)
        }
    }
}

/// The fields of a head that our engine wrote, except those about an HTTP/1.1 connection (RFC 9113 section 8.2.2). The values are
/// slices of `head`, not copies.
pub(super) fn fields(head: &Bytes, fields: &Fields, hop_by_hop: FieldSet) -> io::Result<HeaderMap> {
    let mut map = HeaderMap::with_capacity(fields.len());
    for (index, field) in fields.iter().enumerate() {
        if hop_by_hop.contains(index) || field.id == Name::Host {
            continue;
        }
        let name = HeaderName::from_bytes(field.name.of(head)).map_err(malformed)?;
        let value = head.slice(usize::from(field.value.start)..field.value.end());
        map.append(name, HeaderValue::from_maybe_shared(value).map_err(malformed)?);
    }
    Ok(map)
}

/// The fields of a trailer section, given as whole lines that were checked; `None` if there are none.
fn trailers(lines: &[u8]) -> io::Result<Option<HeaderMap>> {
    if lines.is_empty() {
        return Ok(None);
    }
    let mut map = HeaderMap::new();
    for line in lines.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let name = HeaderName::from_bytes(&line[..colon]).map_err(malformed)?;
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).map_err(malformed)?;
        map.append(name, value);
    }
    Ok(Some(map))
}

/// What our own engine wrote is malformed.
pub(super) fn malformed(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Content, trailers and the remaining bytes, taken in pieces of `step` bytes with room for `room`.
    fn run(bytes: &[u8], framing: Framing, step: usize, room: usize) -> (Vec<u8>, Option<HeaderMap>, usize) {
        let mut body = UnframedBody(BodyDecoder::new(framing));
        let (mut content, mut at) = (Vec::new(), 0);
        while at < bytes.len() && !body.0.is_done() {
            let taken = body.take(&bytes[at..(at + step).min(bytes.len())], room).unwrap();
            assert!(taken.consumed > 0 && taken.data.as_ref().is_none_or(|data| data.len() <= room));
            content.extend_from_slice(&taken.data.unwrap_or_default());
            at += taken.consumed;
        }
        assert!(body.0.is_done());
        (content, trailers(body.0.trailers()).unwrap(), bytes.len() - at)
    }

    #[test]
    fn any_split_and_room_give_the_same() {
        for step in [1, 2, 3, 7, 100] {
            for room in [1, 2, 100] {
                let (content, trailers, left) =
                    run(b"3\r\nabc\r\n5\r\ndefgh\r\n0\r\nA: b\r\nx-y: \r\n\r\n", Framing::Chunked, step, room);
                assert_eq!((&content[..], left), (&b"abcdefgh"[..], 0));
                let trailers = trailers.unwrap();
                assert!(trailers["a"] == "b" && trailers["x-y"].is_empty() && trailers.len() == 2);
                let (content, trailers, left) = run(b"abcdef", Framing::Length(5), step, room);
                assert_eq!((&content[..], trailers, left), (&b"abcde"[..], None, 1));
            }
        }
    }

    /// An empty window must not hold back the end of a body.
    #[test]
    fn framing_needs_no_room() {
        let mut body = UnframedBody(BodyDecoder::new(Framing::Chunked));
        assert_eq!(body.take(b"1\r\na\r\n0\r\n\r\n", 0).unwrap(), TakenBytes { consumed: 3, data: None });
        assert_eq!(body.take(b"a\r\n0\r\n\r\n", 0).unwrap(), TakenBytes::default());
        let data = Some(Bytes::from_static(b"a"));
        assert_eq!(body.take(b"a\r\n0\r\n\r\n", 9).unwrap(), TakenBytes { consumed: 1, data });
        assert_eq!(body.take(b"\r\n0\r\n\r\n", 0).unwrap(), TakenBytes { consumed: 7, data: None });
        assert!(body.0.is_done());
    }
}
