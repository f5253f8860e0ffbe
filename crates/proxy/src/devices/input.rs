//! Input from a device: bytes become frames, frames become messages, and messages are processed.

use super::connection::DeviceConnection;
use crate::basics::clock::wake_after_others;
use crate::device_link::DeviceReport;
use crate::worker::devices::Devices;
use std::task::{Context, Poll};
use stillgate_devices::frame::{CloseCode, FrameError, FrameEvent};
use stillgate_devices::protocol::FromDevice;
use stillgate_devices::session::ResumeToken;
use tokio::io::ReadBuf;

/// Buffers read, or written, before others have their turn. One of 64 KiB can have ten thousand messages, which take milliseconds.
pub(super) const ROUNDS_MAX: u32 = 2;

/// Result of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeviceRead {
    /// Nothing that ends the connection.
    Nothing,
    /// The device is gone.
    End,
}

/// Whether the next message is processed now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InputDecision {
    Goes,
    /// It waits until the upstream has what came before.
    Waits,
}

impl DeviceConnection {
    /// Reads and processes all there is, a few buffers at a time.
    pub(super) fn poll_input(&mut self, cx: &mut Context<'_>, devices: &Devices) -> DeviceRead {
        if !self.may_read(cx) {
            return DeviceRead::Nothing;
        }
        if !self.more.held.is_empty() {
            let mut held = std::mem::take(&mut self.more.held);
            self.take_bytes(&mut held, devices);
            if !self.more.held.is_empty() {
                // Its task is woken when it may continue.
                return if self.may_read(cx) { self.again(cx) } else { DeviceRead::Nothing };
            }
        }
        for _ in 0..ROUNDS_MAX {
            if self.client.stream.poll_read_ready(cx).is_pending() {
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
            if !self.may_read(cx) {
                return DeviceRead::Nothing;
            }
        }
        self.again(cx)
    }

    fn again(&self, cx: &mut Context<'_>) -> DeviceRead {
        wake_after_others(cx);
        DeviceRead::Nothing
    }

    /// Whether input is to be processed: none is after the device has sent its close frame, and while we wait for the upstream the
    /// kernel holds the device back.
    fn may_read(&self, cx: &Context<'_>) -> bool {
        !self.client.eof && self.more.events.as_ref().is_none_or(|events| events.poll_ready(cx).is_ready())
    }

    fn take_bytes(&mut self, mut bytes: &mut [u8], devices: &Devices) {
        let now_ms = self.worker().clock.now_ms();
        self.more.received += bytes.len() as u64;
        self.pulse.on_bytes(now_ms);
        self.client.quiet_since_ms = now_ms;
        while !bytes.is_empty() {
            let (taken, event) = match self.reader.next(bytes) {
                Ok(read) => read,
                Err(error) => return self.refuse_frame(error),
            };
            let next = match event {
                None => return,
                Some(event) => self.take_event(event, devices),
            };
            bytes = &mut bytes[taken..];
            if next == InputDecision::Waits {
                self.more.received -= bytes.len() as u64;
                self.more.held = bytes.to_vec();
                return;
            }
        }
    }

    fn refuse_frame(&mut self, error: FrameError) {
        let reason = if matches!(error, FrameError::TooBig(_)) { CloseReason::TooBig } else { CloseReason::Frames };
        self.close_with(reason, error.close_code(), &error.to_string());
    }

    fn take_event(&mut self, event: FrameEvent<'_>, devices: &Devices) -> InputDecision {
        match event {
            FrameEvent::Ping(payload) if self.is_open() => self.output.pong(&payload),
            FrameEvent::Ping(_) | FrameEvent::Pong(_) => {}
            FrameEvent::Close(said) => self.answer_close(said.map_or(CloseCode::NORMAL, |(code, _)| code)),
            FrameEvent::Text(payload) if self.is_open() => return self.take_message(true, &payload, devices),
            FrameEvent::Binary(payload) if self.is_open() => return self.take_message(false, &payload, devices),
            FrameEvent::Text(_) | FrameEvent::Binary(_) => {}
        }
        InputDecision::Goes
    }

    fn take_message(&mut self, is_text: bool, payload: &[u8], devices: &Devices) -> InputDecision {
        let said = match self.protocol.read(is_text, payload) {
            Ok(said) => said,
            Err(error) => {
                self.close_with(CloseReason::Messages, error.close_code(), &error.to_string());
                return InputDecision::Goes;
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
                    return match events.push_message(self.worker(), body.into_owned()) {
                        true => InputDecision::Waits,
                        false => InputDecision::Goes,
                    };
                }
            }
        }
        InputDecision::Goes
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
            CloseReason::Asked => Some((CloseCode::NORMAL, "closed by a back-end")),
            CloseReason::Revoked => Some((CloseCode::POLICY, "the credential is no longer valid; authenticate again")),
            CloseReason::Route => Some((CloseCode::SERVICE_RESTART, "the route has changed; connect again")),
            CloseReason::Drained => Some((CloseCode::SERVICE_RESTART, "the gateway restarts; connect again")),
            _ => None,
        }
    }
}
