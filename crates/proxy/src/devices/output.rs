//! Output to a device: pending control frames, then messages, in as few system calls as possible.
//!
//! The buffer is taken when there is something to write and given back when the kernel has it. If several pings are unanswered,
//! only the last one is answered (RFC 6455 section 5.5.3), so a device that never reads makes nothing grow.
//!
//! Messages are counted here, too, and reported to the metrics and the access log.

use super::connection::DeviceConnection;
use crate::basics::buffer::Buffers;
use crate::connection::stream::Stream;
use crate::exchange::{self, Exchange, UpgradedRequest};
use crate::telemetry::metrics::DeviceLabels;
use std::io;
use std::task::{Context, Poll};
use stillgate_config::Measure;
use stillgate_devices::frame::{CloseCode, FRAME_HEAD_BYTES_MAX, FrameHead, Opcode, write_close, write_frame};
use stillgate_devices::protocol::DeviceProtocol;
use stillgate_devices::session::{OutgoingMessage, Session};
use stillgate_wire::{HEAD_BYTES_MAX, HEADERS_MAX, HeadLimits, HeadProgress};

/// Messages are collected up to this many bytes.
const FILL_BYTES: usize = 32 * 1024;

/// Output on its way to a device.
#[derive(Default)]
pub(super) struct Output {
    /// The kernel does not have `bytes[written..]`; without capacity while there is nothing.
    bytes: Vec<u8>,
    written: usize,
    /// Messages are among the bytes.
    has_messages: bool,
    pong: Option<Box<[u8]>>,
    pub(super) owes_hello: bool,
    pub(super) owes_ping: bool,
    close: Option<Box<(CloseCode, String)>>,
    /// The close frame has been written, and nothing follows it.
    is_closed: bool,
    /// Since when nothing could be written; 0: nothing waits.
    pub(super) stuck_since_ms: u64,
    pub(super) total: u64,
    /// Messages that were collected since this was last read.
    pub(super) messages: u64,
}

/// Whether messages were sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrote {
    Messages,
    Nothing,
}

impl Output {
    /// Answers a ping.
    pub(super) fn pong(&mut self, payload: &[u8]) {
        self.pong = Some(payload.into());
    }

    /// Sends a close frame. Nothing follows.
    pub(super) fn close(&mut self, code: CloseCode, reason: &str) {
        if self.close.is_none() && !self.is_closed {
            self.close = Some(Box::new((code, reason.to_owned())));
        }
    }

    /// Whether the kernel has everything.
    pub(super) fn is_idle(&self) -> bool {
        self.bytes.is_empty() && self.pong.is_none() && self.close.is_none() && !self.owes_hello && !self.owes_ping
    }

    /// Collects the next frames. Messages only if there is a session.
    fn fill(&mut self, protocol: DeviceProtocol, session: Option<&mut Session>, now_ms: u64, buffers: &Buffers) {
        let has_session = session.is_some();
        if self.is_closed || !(has_session || self.pong.is_some() || self.close.is_some()) {
            return;
        }
        if self.bytes.capacity() == 0 {
            self.bytes = buffers.take_output();
        }
        let out = &mut self.bytes;
        if let Some(pong) = self.pong.take() {
            write_frame(Opcode::Pong, &pong, out);
        }
        if let Some(session) = session {
            if std::mem::take(&mut self.owes_hello) {
                let token = session.token();
                framed(protocol, protocol != DeviceProtocol::Cbor, out, |out| {
                    protocol.write_hello(&token.session.to_string(), &token.to_string(), out);
                });
            }
            if std::mem::take(&mut self.owes_ping) {
                write_frame(Opcode::Ping, b"", out);
            }
            while out.len() < FILL_BYTES
                && let Some(OutgoingMessage { id, seq, encoded }) = session.next_to_write(now_ms)
            {
                framed(protocol, encoded.is_text(), out, |out| protocol.write_message(id, seq, &encoded, out));
                self.has_messages = true;
                self.messages += 1;
            }
        }
        if let Some(close) = self.close.take() {
            write_close(close.0, &close.1, out);
            self.is_closed = true;
        }
    }

    /// Writes until nothing is left, or the kernel takes no more. Ready with what was sent; called again for more.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut Stream,
        (protocol, session): (DeviceProtocol, Option<&mut Session>),
        (now_ms, session_ms): (u64, u64),
        buffers: &Buffers,
    ) -> Poll<io::Result<Wrote>> {
        if self.bytes.is_empty() {
            self.fill(protocol, session, session_ms, buffers);
        }
        while self.written < self.bytes.len() {
            match stream.poll_write(cx, &self.bytes[self.written..]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => {
                    self.written += count;
                    self.total += count as u64;
                    self.stuck_since_ms = 0;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.note_stuck(now_ms);
                    return Poll::Pending;
                }
            }
        }
        if !self.bytes.is_empty()
            && let Poll::Pending = stream.poll_flush(cx)?
        {
            self.note_stuck(now_ms);
            return Poll::Pending;
        }
        self.release(buffers);
        self.stuck_since_ms = 0;
        Poll::Ready(Ok(match std::mem::take(&mut self.has_messages) {
            true => Wrote::Messages,
            false => Wrote::Nothing,
        }))
    }

    fn note_stuck(&mut self, now_ms: u64) {
        if self.stuck_since_ms == 0 {
            self.stuck_since_ms = now_ms;
        }
    }

    /// Gives the buffer back.
    pub(super) fn release(&mut self, buffers: &Buffers) {
        self.written = 0;
        if self.bytes.capacity() > 0 {
            buffers.give_output(std::mem::take(&mut self.bytes));
        }
    }
}

/// Appends a frame whose payload is written by `write`; no frame if it writes nothing and the protocol is not raw.
fn framed(protocol: DeviceProtocol, is_text: bool, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.resize(start + FRAME_HEAD_BYTES_MAX, 0);
    let payload = out.len();
    write(out);
    let len = out.len() - payload;
    if len == 0 && protocol != DeviceProtocol::Raw {
        out.truncate(start);
        return;
    }
    let head = FrameHead::new(if is_text { Opcode::Text } else { Opcode::Binary }, len);
    let head = head.as_bytes();
    out[start..start + head.len()].copy_from_slice(head);
    out.copy_within(payload.., start + head.len());
    out.truncate(start + head.len() + len);
}

/// Minimum time between two reports of a device's messages.
const TELL_EVERY_MS: u64 = 1_000;
/// The head was within the limits when it arrived.
const HEAD_LIMITS: HeadLimits =
    HeadLimits { head_bytes_max: HEAD_BYTES_MAX, target_bytes_max: HEAD_BYTES_MAX, headers_max: HEADERS_MAX };

impl DeviceConnection {
    pub(super) fn labels<'a>(&'a self, reason: &'a str, direction: &'a str) -> DeviceLabels<'a> {
        let route = self.route().map_or("", |route| route.spec.id.as_str());
        DeviceLabels { route, protocol: self.protocol, reason, direction }
    }

    /// Reports messages to the metrics, not too often.
    pub(super) fn report_messages(&mut self, now_ms: u64, is_last: bool) {
        if !is_last && now_ms < self.more.told_ms + TELL_EVERY_MS {
            return;
        }
        let (received, sent) = (std::mem::take(&mut self.more.untold), std::mem::take(&mut self.output.messages));
        self.more.told_ms = now_ms;
        let worker = &self.open.worker;
        worker.report_devices(Measure::DeviceMessages, self.labels("", "ingress"), received);
        worker.report_devices(Measure::DeviceMessages, self.labels("", "egress"), sent);
    }

    /// Writes the line in the access log and the observation in the metrics.
    pub(super) fn record(&mut self) {
        let worker = self.open.worker.clone();
        let UpgradedRequest { head, outcome, tries, fields, chains } = &mut *self.more.request;
        let snapshot = worker.snapshot();
        let mut exchange = Exchange::take();
        exchange.begin(outcome.timing);
        exchange.outcome = std::mem::take(outcome);
        exchange.tries.clone_from(tries);
        exchange.fields.clone_from(fields);
        exchange.outcome.forget_moved_route(&snapshot.plan);
        exchange.from_client.recall(head, self.more.received, &worker.buffers);
        exchange.to_client.total = self.more.sent_before + self.output.total;
        if let Ok(HeadProgress::Complete(_)) = exchange.request.advance(head, &HEAD_LIMITS) {
            // The request was routed by its path.
            let _ = exchange.known.make(&exchange.request, head);
            exchange::end_upgraded(&worker, &mut self.client, &mut exchange, &snapshot, chains.take());
        } else {
            unreachable!("the head was parsed before");
        }
        exchange.give(&worker);
    }
}
