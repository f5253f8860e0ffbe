//! What `h2` reads of a connection: the received bytes, with frames rewritten that it would not tolerate.
//!
//! Bytes stay where they were read into. The header of a frame never reaches `h2` in parts, nor does a small frame that is looked
//! into, so each can be rewritten in place; a partial one is kept back until the rest has arrived.
//!
//! ```text
//!   read:    … payload │ unit │ payload │ unit │ payload │ a part of a unit
//!                        └ amended        └ amended        └ kept back, and the next read completes it alone
//! ```

use super::bounds::FRAME_BYTES_MAX;
use super::frames::{FrameHead, FrameWatch, HEADER_BYTES, PREFACE, looked_into};
use std::io;
use std::task::{Context, Poll, ready};
use tokio::io::ReadBuf;

/// Bytes of a payload that is looked into: ten settings, more than exist.
const PAYLOAD_BYTES_MAX: usize = 60;
const UNIT_BYTES_MAX: usize = HEADER_BYTES + PAYLOAD_BYTES_MAX;

/// Position in the incoming frames.
#[derive(Debug)]
pub(super) struct Inbound {
    /// Bytes until the next frame.
    skip: usize,
    /// A unit that arrived in parts, and how much of it has arrived.
    unit: [u8; UNIT_BYTES_MAX],
    have: usize,
    /// How much of it `h2` has read, once it is complete.
    given: Option<usize>,
}

impl Inbound {
    pub(super) fn of_node() -> Inbound {
        Inbound { skip: 0, unit: [0; UNIT_BYTES_MAX], have: 0, given: None }
    }

    /// For frames from a client, whose preface comes first.
    pub(super) fn of_client() -> Inbound {
        Inbound { skip: PREFACE.len(), ..Inbound::of_node() }
    }

    /// Reads from `source`; like it, this is ready with nothing at the end of the connection.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
        watch: &mut FrameWatch,
        mut source: impl FnMut(&mut Context<'_>, &mut ReadBuf<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        let before = space.filled().len();
        loop {
            if self.have > 0 {
                ready!(self.poll_unit(cx, watch, &mut source))?;
                self.give(space);
                return Poll::Ready(Ok(()));
            }
            ready!(source(cx, space))?;
            let is_end = space.filled().len() == before;
            self.pass(space, before, watch);
            if is_end || space.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Amends what was read into `space` from `before` on, and keeps back a unit that is incomplete.
    fn pass(&mut self, space: &mut ReadBuf<'_>, before: usize, watch: &mut FrameWatch) {
        let bytes = space.filled_mut();
        let mut at = before;
        loop {
            let step = self.skip.min(bytes.len() - at);
            self.skip -= step;
            at += step;
            let rest = &mut bytes[at..];
            let wanted = unit_bytes(rest);
            if is_too_long(rest) {
                self.skip = usize::MAX;
                return;
            }
            if rest.len() < wanted {
                self.unit[..rest.len()].copy_from_slice(rest);
                self.have = rest.len();
                return space.set_filled(at);
            }
            self.skip = payload_behind(rest);
            watch.amend(&mut rest[..wanted]);
            at += wanted;
        }
    }

    /// Ready when the unit that arrived in parts is complete, or at the end of the connection.
    fn poll_unit(
        &mut self,
        cx: &mut Context<'_>,
        watch: &mut FrameWatch,
        source: &mut impl FnMut(&mut Context<'_>, &mut ReadBuf<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        while self.given.is_none() {
            let wanted = unit_bytes(&self.unit[..self.have]);
            if self.have == wanted {
                self.skip = payload_behind(&self.unit);
                watch.amend(&mut self.unit[..wanted]);
                self.given = Some(0);
                break;
            }
            let mut part = ReadBuf::new(&mut self.unit[self.have..wanted]);
            ready!(source(cx, &mut part))?;
            match part.filled().len() {
                0 => self.given = Some(0),
                read => self.have += read,
            }
            if is_too_long(&self.unit[..self.have]) {
                self.skip = usize::MAX;
                self.given = Some(0);
            }
        }
        Poll::Ready(Ok(()))
    }

    fn give(&mut self, space: &mut ReadBuf<'_>) {
        let given = self.given.unwrap_or(0);
        let take = (self.have - given).min(space.remaining());
        space.put_slice(&self.unit[given..given + take]);
        self.given = Some(given + take);
        if given + take == self.have {
            (self.have, self.given) = (0, None);
        }
    }
}

/// How many bytes at the beginning of a frame must be available at once.
fn unit_bytes(bytes: &[u8]) -> usize {
    HEADER_BYTES + FrameHead::of(bytes).map_or(0, |head| looked_into(&head, PAYLOAD_BYTES_MAX))
}

/// Whether a frame that begins like this is longer than any that we accept. Most likely it is not a frame at all, and `h2` reports
/// it by the length.
fn is_too_long(bytes: &[u8]) -> bool {
    bytes.first_chunk::<3>().is_some_and(|length| {
        let payload_bytes = length.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
        payload_bytes > FRAME_BYTES_MAX
    })
}

/// Bytes of a frame after its unit.
fn payload_behind(bytes: &[u8]) -> usize {
    let payload_bytes = FrameHead::of(bytes).map_or(0, |head| head.payload_bytes);
    HEADER_BYTES + payload_bytes - unit_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::frames::kind;
    use super::*;
    use proptest::prelude::*;
    use std::rc::Rc;
    use std::task::Waker;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
    }

    /// The bytes that pass of `bytes`, which arrive in pieces of at most `step` and are read with room for `room`.
    fn pass(bytes: &[u8], mut inbound: Inbound, mut watch: FrameWatch, step: usize, room: usize) -> Vec<u8> {
        let (mut rest, mut passed) = (bytes, Vec::new());
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            let mut space = vec![0; room + 1];
            let mut space = ReadBuf::new(&mut space);
            // Bytes that are already there are not ours.
            space.put_slice(&[7]);
            let read = inbound.poll_read(&mut cx, &mut space, &mut watch, |_, space| {
                let (now, later) = rest.split_at(step.min(rest.len()).min(space.remaining()));
                space.put_slice(now);
                rest = later;
                Poll::Ready(Ok(()))
            });
            assert!(matches!(read, Poll::Ready(Ok(()))));
            if space.filled().len() == 1 {
                return passed;
            }
            passed.extend_from_slice(&space.filled()[1..]);
        }
    }

    #[test]
    fn empty_data_becomes_a_frame_without_meaning() {
        let (empty, padded) = (frame(kind::DATA, 0, 1, &[]), frame(kind::DATA, 8, 1, &[2, 0, 0]));
        let kept = [
            frame(kind::HEADERS, 4, 1, b"abc"),
            frame(kind::DATA, 0, 1, b"abc"),
            frame(kind::DATA, 1, 1, &[]),
            frame(kind::DATA, 8, 1, &[2, 7, 0, 0]),
            frame(kind::DATA, 9, 1, &[2, 0, 0]),
            // An error of the connection.
            frame(kind::DATA, 0, 0, &[]),
            frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 1, 0]),
            frame(kind::SETTINGS, 0, 0, &[7; 600]),
            frame(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 9]),
            frame(kind::WINDOW_UPDATE, 0, 1, &[0; 3]),
        ];
        let bytes =
            kept.iter().flat_map(|frame| [frame.clone(), empty.clone(), padded.clone()].concat()).collect::<Vec<_>>();
        for step in 1..80 {
            let passed = pass(&bytes, Inbound::of_node(), FrameWatch::of_node(Rc::default()), step, 100);
            let mut at = 0;
            for frame in &kept {
                assert_eq!(&passed[at..at + frame.len()], frame, "by {step}");
                at += frame.len();
                for bytes in [0, padded.len() - HEADER_BYTES] {
                    let replaced = FrameHead::of(&passed[at..]).unwrap();
                    assert!(
                        replaced.kind == kind::UNKNOWN && replaced.payload_bytes == bytes,
                        "by {step}: {replaced:?}"
                    );
                    at += HEADER_BYTES + bytes;
                }
            }
            assert_eq!(passed.len(), at);
        }
    }

    proptest! {
        /// Whatever arrives, in whatever pieces, passes completely and in order.
        #[test]
        fn nothing_is_lost(bytes in proptest::collection::vec(0..5_u8, 0..400), step in 1..50_usize, room in 1..50_usize) {
            for is_client in [false, true] {
                let (inbound, watch) = match is_client {
                    true => (Inbound::of_client(), FrameWatch::of_client(Rc::default())),
                    false => (Inbound::of_node(), FrameWatch::of_node(Rc::default())),
                };
                let whole = pass(&bytes, if is_client { Inbound::of_client() } else { Inbound::of_node() },
                    if is_client { FrameWatch::of_client(Rc::default()) } else { FrameWatch::of_node(Rc::default()) }, 1_000, 1_000);
                let passed = pass(&bytes, inbound, watch, step, room);
                prop_assert_eq!(passed.len(), bytes.len());
                prop_assert_eq!(passed, whole);
            }
        }
    }
}
