//! Input from a device: bytes become frames, frames become messages, and messages are processed.

use super::connection::DeviceConnection;
use super::events::Events;
use crate::basics::clock::wake_after_others;
use crate::device_link::DeviceReport;
use crate::worker::devices::Devices;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::task::{Context, Poll};
use stillgate_devices::frame::{CloseCode, FrameError, FrameEvent};
use stillgate_devices::protocol::FromDevice;
use stillgate_devices::session::ResumeToken;
use tokio::io::ReadBuf;

/// Buffers read, or written, before others have their turn. One of 64 KiB can have ten thousand messages, which take milliseconds.
pub(super) const ROUNDS_MAX: u32 = 2;
/// Bytes of messages behind an event that waits for the upstream; documented in `docs/plugins/device-gateway.md`.
const HELD_BYTES_MAX: usize = 64 * 1024;
/// What a held message counts in addition to its bytes.
const HELD_OVERHEAD_BYTES: usize = 64;

/// Result of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeviceRead {
    /// Nothing that ends the connection.
    Nothing,
    /// The device is gone.
    End,
}

/// Messages that wait until the upstream has accepted the event before them. Bounded: beyond [`HELD_BYTES_MAX`] nothing more is read.
#[derive(Debug, Default)]
pub(super) struct HeldInput {
    messages: VecDeque<HeldMessage>,
    bytes: usize,
}

#[derive(Debug)]
struct HeldMessage {
    is_text: bool,
    payload: Vec<u8>,
}

impl HeldInput {
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn push(&mut self, message: HeldMessage) {
        self.bytes += message.bytes();
        self.messages.push_back(message);
    }

    fn pop(&mut self) -> Option<HeldMessage> {
        let message = self.messages.pop_front()?;
        self.bytes -= message.bytes();
        Some(message)
    }
}

impl HeldMessage {
    fn bytes(&self) -> usize {
        HELD_OVERHEAD_BYTES + self.payload.len()
    }
}

impl DeviceConnection {
    /// Reads and processes all there is, a few buffers at a time.
    pub(super) fn poll_input(&mut self, cx: &mut Context<'_>, devices: &Devices) -> DeviceRead {
        self.take_held(cx, devices);
        if !self.more.early.is_empty() {
            let mut early = std::mem::take(&mut self.more.early);
            self.take_bytes(&mut early, devices);
        }
        let read = self.poll_read(cx, devices);
        // What was read may wait now: this task is woken when it may continue.
        self.take_held(cx, devices);
        self.count_input(devices);
        read
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, devices: &Devices) -> DeviceRead {
        for _ in 0..ROUNDS_MAX {
            if !self.may_read() || self.client.stream.poll_read_ready(cx).is_pending() {
                return DeviceRead::Nothing;
            }
            let worker = self.worker().clone();
            let mut buffer = worker.buffers.take();
            let mut space = ReadBuf::new(&mut buffer);
            let read = self.client.stream.poll_read(cx, &mut space);
            let count = space.filled().len();
            match read {
                Poll::Ready(Ok(())) if count > 0 => self.take_bytes(&mut buffer[..count], devices),
                _ => {}
            }
            worker.buffers.give(buffer);
            match read {
                Poll::Pending => return DeviceRead::Nothing,
                Poll::Ready(Ok(())) if count > 0 => {}
                Poll::Ready(_) => return DeviceRead::End,
            }
        }
        wake_after_others(cx);
        DeviceRead::Nothing
    }

    /// Whether input is to be read: none is after the device has sent its close frame. Messages behind an event that waits for the
    /// upstream are read, up to a bound, so that pongs and closes among them are seen; beyond it the kernel holds the device back.
    pub(super) fn may_read(&self) -> bool {
        !self.client.eof && self.more.held.bytes < HELD_BYTES_MAX
    }

    /// Processes messages that have waited for the upstream, as far as it has accepted what came before them.
    fn take_held(&mut self, cx: &Context<'_>, devices: &Devices) {
        while !self.more.held.is_empty() {
            let events = self.more.events.as_ref();
            if events.is_some_and(|events| events.poll_ready(&devices.events, cx).is_pending()) {
                return;
            }
            if let Some(HeldMessage { is_text, payload }) = self.more.held.pop() {
                self.take_message(is_text, &payload, devices);
            }
        }
    }

    /// The connection ends: events that were read go to the upstream all the same, if the device's queue has room. Acknowledgements
    /// and replies behind them do not count, so those messages may come again.
    pub(super) fn release_held(&mut self, devices: &Devices) {
        while let Some(HeldMessage { is_text, payload }) = self.more.held.pop() {
            if let Ok(FromDevice::Event { body }) = self.protocol.read(is_text, &payload)
                && body.bytes().len() <= devices.limits.message_bytes
                && let Some(events) = &self.more.events
            {
                events.push_message(self.worker(), body.into_owned());
            }
        }
    }

    fn take_bytes(&mut self, mut bytes: &mut [u8], devices: &Devices) {
        let now_ms = self.worker().clock.now_ms();
        self.more.received += bytes.len() as u64;
        self.pulse.on_bytes(now_ms);
        self.client.quiet_since_ms = now_ms;
        while !bytes.is_empty() {
            match self.reader.next(bytes) {
                Ok((taken, Some(event))) => {
                    if matches!(event, FrameEvent::Text(_) | FrameEvent::Binary(_)) {
                        self.more.partial_since_ms = None;
                    }
                    self.take_event(event, devices);
                    bytes = &mut bytes[taken..];
                }
                Ok((_, None)) => break,
                Err(error) => return self.refuse_frame(error),
            }
        }
        if self.reader.is_partial() {
            self.more.partial_since_ms.get_or_insert(now_ms);
        }
    }

    fn refuse_frame(&mut self, error: FrameError) {
        let reason = if matches!(error, FrameError::TooBig(_)) { CloseReason::TooBig } else { CloseReason::Frames };
        self.close_with(reason, error.close_code(), &error.to_string());
    }

    fn take_event(&mut self, event: FrameEvent<'_>, devices: &Devices) {
        match event {
            FrameEvent::Ping(payload) if self.is_open() => self.output.pong(&payload),
            FrameEvent::Ping(_) | FrameEvent::Pong(_) => {}
            FrameEvent::Close(said) => self.answer_close(said.map_or(CloseCode::NORMAL, |(code, _)| code)),
            FrameEvent::Text(payload) if self.is_open() => self.take_or_hold(true, payload, devices),
            FrameEvent::Binary(payload) if self.is_open() => self.take_or_hold(false, payload, devices),
            FrameEvent::Text(_) | FrameEvent::Binary(_) => {}
        }
    }

    fn take_or_hold(&mut self, is_text: bool, payload: Cow<'_, [u8]>, devices: &Devices) {
        let waits = |events: &Events| events.holds_back(&devices.events);
        match !self.more.held.is_empty() || self.more.events.as_ref().is_some_and(waits) {
            true => self.more.held.push(HeldMessage { is_text, payload: payload.into_owned() }),
            false => self.take_message(is_text, &payload, devices),
        }
    }

    fn take_message(&mut self, is_text: bool, payload: &[u8], devices: &Devices) {
        let said = match self.protocol.read(is_text, payload) {
            Ok(said) => said,
            Err(error) => {
                return self.close_with(CloseReason::Messages, error.close_code(), &error.to_string());
            }
        };
        self.more.untold += 1;
        let is_first = !std::mem::replace(&mut self.is_settled, true);
        let token = match &said {
            FromDevice::Hello { resume, .. } => resume.as_deref().and_then(ResumeToken::parse),
            _ => None,
        };
        let token = token.filter(|token| is_first && self.is_other_session(token.session));
        if let (true, None) = (is_first, token) {
            devices.report(DeviceReport::Fresh { connection: self.place.connection });
        }
        match (said, token) {
            (FromDevice::Hello { .. }, Some(token)) => {
                self.awaits_session = true;
                devices.report(DeviceReport::Resume { connection: self.place.connection, token });
            }
            (FromDevice::Hello { .. }, None) => self.output.owes_hello = true,
            (FromDevice::Ack { seq }, _) => self.acknowledge(seq, devices),
            (FromDevice::Reply { id, body }, _) => {
                if let Some(session) = &mut self.session {
                    // A second answer to a message that came twice has no recipient.
                    let _ = devices.with_notices(|notices| session.reply(id, body, notices));
                }
                self.count_bytes(devices);
            }
            (FromDevice::Event { body }, _) => {
                if body.bytes().len() > devices.limits.message_bytes {
                    self.refuse_frame(FrameError::TooBig(devices.limits.message_bytes as u32));
                } else if let Some(events) = &self.more.events {
                    events.push_message(self.worker(), body.into_owned());
                }
            }
        }
    }

    fn acknowledge(&mut self, seq: u64, devices: &Devices) {
        let Some(session) = &mut self.session else { return };
        let acknowledged = devices.with_notices(|notices| session.acknowledge(seq, notices));
        self.count_bytes(devices);
        if let Err(error) = acknowledged {
            self.close_with(CloseReason::Messages, CloseCode::POLICY, &error.to_string());
        }
    }
}

// Why a connection of a device ends, and the close frame that its device gets.

/// Why a connection has ended, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// The device has closed it, with a close frame.
    Closed,
    /// The device has gone without a close frame: its connection ended or was reset.
    Gone,
    /// Nothing came within `ping_interval` and `ping_timeout`.
    Silent,
    /// It did not read what it was sent.
    Slow,
    /// It sent something that is not a frame.
    Frames,
    /// It sent something that is not a message, or a message that is not accepted.
    Messages,
    /// It sent a message that is too long.
    TooBig,
    /// It began a message and did not finish it.
    Unfinished,
    /// The worker holds as much input of its devices as it may.
    Full,
    /// Another connection of the device has taken its place.
    Replaced,
    /// A back-end has closed it.
    Asked,
    /// The credential that it was admitted with is gone, or its time is over.
    Revoked,
    /// Its route or listener was changed or removed.
    Route,
    /// The process ends.
    Drained,
    /// A bug.
    Failed,
}

impl CloseReason {
    /// Name of the reason as a label.
    pub(super) fn name(self) -> &'static str {
        match self {
            CloseReason::Closed => "closed",
            CloseReason::Gone => "gone",
            CloseReason::Silent => "silent",
            CloseReason::Slow => "slow",
            CloseReason::Frames => "bad_frames",
            CloseReason::Messages => "bad_messages",
            CloseReason::TooBig => "too_big",
            CloseReason::Unfinished => "unfinished",
            CloseReason::Full => "full",
            CloseReason::Replaced => "replaced",
            CloseReason::Asked => "asked",
            CloseReason::Revoked => "revoked",
            CloseReason::Route => "route",
            CloseReason::Drained => "drained",
            CloseReason::Failed => "failed",
        }
    }

    /// Whether bytes may be lost, so that the end must not look orderly.
    pub(super) fn is_cut(self) -> bool {
        matches!(self, CloseReason::Silent | CloseReason::Slow | CloseReason::Failed)
    }

    /// The close code and reason sent to the device; `None`: nothing is sent, or it is gone.
    pub(super) fn close(self) -> Option<(CloseCode, &'static str)> {
        match self {
            CloseReason::Replaced => Some((CloseCode::POLICY, "replaced by another connection of this device")),
            CloseReason::Unfinished => Some((CloseCode::POLICY, "a message was begun and not finished in time")),
            CloseReason::Full => Some((CloseCode::TRY_AGAIN_LATER, "too much unprocessed input; connect again later")),
            CloseReason::Asked => Some((CloseCode::NORMAL, "closed by a back-end")),
            CloseReason::Revoked => Some((CloseCode::POLICY, "the credential is no longer valid; authenticate again")),
            CloseReason::Route => Some((CloseCode::SERVICE_RESTART, "the route has changed; connect again")),
            CloseReason::Drained => Some((CloseCode::SERVICE_RESTART, "the gateway restarts; connect again")),
            _ => None,
        }
    }
}
