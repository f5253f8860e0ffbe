//! The connection of one device: its task, from its first frame to its record.

use super::events::Events;
use super::input::{CloseReason, DeviceRead, HeldInput};
use super::output::{Output, Wrote};
use crate::basics::clock::wake_after_others;
use crate::connection::client::ClientConnection;
use crate::device_link::{CloseWhy, DeviceCommand, DeviceReport, DeviceState, SessionToResume};
use crate::exchange::{BegunDevice, DeviceAdmission, UpgradedRequest};
use crate::plan::Lease;
use crate::worker::devices::{DeviceRegistration, Devices};
use crate::worker::watches::WatchedLease;
use crate::worker::{Open, Worker};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use stillgate_config::{Measure, OnChange, Route};
use stillgate_devices::Generation;
use stillgate_devices::frame::{CloseCode, FrameReader};
use stillgate_devices::protocol::DeviceProtocol;
use stillgate_devices::session::{
    AckLevel, Beat, Message, MessageRefusal, Pulse, QueuePolicy, Session, SessionId, SessionLimits,
};
use stillgate_plugin_api::DeviceSettings;

/// How long a device has to answer a close frame, or to take one.
const CLOSING_MS: u64 = 2_000;
/// How long a message may be incomplete: as long as the bytes that have come would take at 1 KB/s, and this much more.
const PARTIAL_MS_MAX: u64 = 60_000;
const PARTIAL_MS_PER_BYTE: u64 = 1;
/// A time that never comes.
const FAR_MS: u64 = u64::MAX / 4;

/// One device's connection.
pub(super) struct DeviceConnection {
    pub(super) client: ClientConnection,
    pub(super) place: DeviceRegistration,
    pub(super) protocol: DeviceProtocol,
    /// `None`: the connection ends, and messages for the device wait elsewhere.
    pub(super) session: Option<Session>,
    pub(super) reader: FrameReader,
    pub(super) pulse: Pulse,
    pub(super) output: Output,
    /// Set once the first frame has shown whether the device resumes an earlier session.
    pub(super) is_settled: bool,
    /// It has requested its previous session, which is on its way.
    pub(super) awaits_session: bool,
    stage: ConnectionStage,
    /// Nothing more is written.
    is_shut: bool,
    /// Bytes of messages, as they are counted for the worker.
    counted_bytes: usize,
    /// Bytes of its input, as they are counted for the worker.
    counted_input_bytes: usize,
    pub(super) more: Box<More>,
    leaving: Option<WatchedLease>,
    /// Dropped last: the connection counts as open until it has been recorded.
    pub(super) open: Open,
}

/// State that is seldom needed.
pub(super) struct More {
    pub(super) device: Arc<str>,
    pub(super) labels: Box<[(Box<str>, Box<str>)]>,
    pub(super) settings: Arc<DeviceSettings>,
    pub(super) generation: Generation,
    pub(super) request: Box<UpgradedRequest>,
    pub(super) admission: Option<DeviceAdmission>,
    /// `None`: events are not wanted.
    pub(super) events: Option<Events>,
    pub(super) received: u64,
    pub(super) sent_before: u64,
    /// Milliseconds since 1970.
    pub(super) since_ms: u64,
    /// Bytes that came with the request.
    pub(super) early: Vec<u8>,
    /// Messages that wait until the upstream has accepted what came before them.
    pub(super) held: HeldInput,
    /// When the message began that is incomplete now.
    pub(super) partial_since_ms: Option<u64>,
    reason: CloseReason,
    /// It continues in another process, where it will be recorded.
    is_given: bool,
    /// The version of the list of consumers in which the credential was last looked up.
    consumers_seen: u64,
    /// Messages both ways that have not been added to the metrics yet.
    pub(super) untold: u64,
    pub(super) told_ms: u64,
}

/// Stage of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionStage {
    Open,
    /// The device was notified, or has closed by itself; its side is awaited until the given time.
    Closing {
        until_ms: u64,
    },
    Over,
}

/// State with which a connection continues, from its request or another process.
pub(super) struct ResumedDevice {
    pub(super) place: DeviceRegistration,
    pub(super) device: Arc<str>,
    pub(super) labels: Box<[(Box<str>, Box<str>)]>,
    pub(super) protocol: DeviceProtocol,
    pub(super) settings: Arc<DeviceSettings>,
    pub(super) generation: Generation,
    pub(super) session: Session,
    pub(super) request: Box<UpgradedRequest>,
    pub(super) admission: Option<DeviceAdmission>,
    pub(super) lease: Option<Arc<Lease>>,
    pub(super) received: u64,
    pub(super) written: u64,
    /// Milliseconds since 1970.
    pub(super) since_ms: u64,
    pub(super) is_settled: bool,
    /// The number of its last event.
    pub(super) events: u64,
}

impl DeviceConnection {
    /// Begins after a 101 has been sent.
    pub(super) fn new(open: Open, client: ClientConnection, begun: BegunDevice) -> DeviceConnection {
        let BegunDevice { place, device, labels, protocol, settings, generation, session, request, admission, .. } =
            begun;
        let early = begun.buffered.map_or_else(Vec::new, |(buffer, range)| {
            let early = buffer[range].to_vec();
            open.worker.buffers.give(buffer);
            early
        });
        let resumed = ResumedDevice {
            place,
            device,
            labels,
            protocol,
            settings,
            generation,
            session: Session::new(session, generation),
            request,
            admission,
            lease: begun.lease,
            received: begun.received - early.len() as u64,
            written: begun.sent,
            since_ms: open.worker.clock.now_unix_ms(),
            is_settled: protocol == DeviceProtocol::Raw,
            events: 0,
        };
        let mut connection = DeviceConnection::resume(open, client, resumed);
        connection.more.early = early;
        connection.output.owes_hello = protocol != DeviceProtocol::Raw;
        let worker = connection.worker();
        worker.counters.devices_total.add(1);
        worker.report_devices(Measure::DeviceConnections, connection.labels("", ""), 1);
        if let Some(events) = &connection.more.events {
            events.push_connect(worker);
        }
        connection
    }

    /// Continues where another process has left it.
    pub(super) fn resume(open: Open, mut client: ClientConnection, resumed: ResumedDevice) -> DeviceConnection {
        let ResumedDevice {
            place, device, labels, protocol, settings, generation, session, request, admission, ..
        } = resumed;
        let worker = &open.worker;
        let now_ms = worker.clock.now_ms();
        let message_bytes_max = worker.devices.as_ref().map_or(0, |devices| devices.limits.message_bytes);
        if let Some(devices) = &worker.devices {
            client.forwarded = devices.no_lines.clone();
        }
        let events = settings.events.as_ref().map(|_| {
            let route = request.outcome.kept.as_ref().map_or("", |kept| &kept.route.spec.id);
            let route = worker.devices.as_ref().map_or_else(|| route.into(), |devices| devices.route(route));
            Events::new(&device, generation, &settings, route, resumed.events)
        });
        let more = Box::new(More {
            device,
            labels,
            settings,
            generation,
            request,
            admission,
            events,
            received: resumed.received,
            sent_before: resumed.written,
            since_ms: resumed.since_ms,
            early: Vec::new(),
            held: HeldInput::default(),
            partial_since_ms: None,
            reason: CloseReason::Failed,
            is_given: false,
            consumers_seen: 0,
            untold: 0,
            told_ms: now_ms,
        });
        worker.counters.devices_open.add(1);
        DeviceConnection {
            client,
            place,
            protocol,
            session: Some(session),
            reader: FrameReader::new(u32::try_from(frame_bytes_max(message_bytes_max)).unwrap_or(u32::MAX)),
            pulse: Pulse::new(now_ms, worker.random() as u16),
            output: Output::default(),
            is_settled: resumed.is_settled,
            awaits_session: false,
            stage: ConnectionStage::Open,
            is_shut: false,
            counted_bytes: 0,
            counted_input_bytes: 0,
            leaving: resumed.lease.map(|lease| WatchedLease::new(&worker.watches, lease)),
            more,
            open,
        }
    }

    /// Another process has taken it over.
    pub(super) fn on_taken_over(&mut self) {
        self.more.is_given = true;
        let worker = self.open.worker.clone();
        if let Some(devices) = &worker.devices {
            self.uncount_input(devices);
        }
        self.stage = ConnectionStage::Over;
        self.place.leave(None, "given", true);
    }

    /// Its route, as it was when it began.
    pub(super) fn route(&self) -> Option<&Route> {
        self.more.request.outcome.kept.as_ref().map(|kept| &*kept.route)
    }

    pub(super) fn worker(&self) -> &Rc<Worker> {
        &self.open.worker
    }

    pub(super) fn limits(&self, devices: &Devices) -> SessionLimits {
        SessionLimits {
            queue_bytes_max: devices.limits.queue_bytes,
            resume_ms: self.more.settings.resume_ms,
            policy: self.more.settings.policy,
            acknowledges: self.protocol != DeviceProtocol::Raw,
        }
    }

    /// Whether it is still open.
    pub(super) fn is_open(&self) -> bool {
        self.stage == ConnectionStage::Open
    }

    /// Ends it: the device is notified where possible, and has a moment to answer.
    pub(super) fn close(&mut self, reason: CloseReason) {
        match reason.close() {
            Some((code, why)) => self.close_with(reason, code, why),
            None => self.end(reason),
        }
    }

    /// Like `close`, with a given code.
    pub(super) fn close_with(&mut self, reason: CloseReason, code: CloseCode, why: &str) {
        if !self.is_open() {
            return;
        }
        self.leave(reason);
        (self.output.owes_hello, self.output.owes_ping) = (false, false);
        self.output.close(code, why);
        self.stage = ConnectionStage::Closing { until_ms: self.worker().clock.now_ms() + CLOSING_MS };
    }

    /// The device has sent a close frame: it is answered, and nothing more is read.
    pub(super) fn answer_close(&mut self, code: CloseCode) {
        if self.is_open() {
            self.close_with(CloseReason::Closed, code, "");
        } else if self.output.is_idle() {
            self.stage = ConnectionStage::Over;
        }
        self.client.eof = true;
    }

    /// Ends it without a close frame.
    pub(super) fn end(&mut self, reason: CloseReason) {
        if self.is_open() {
            self.leave(reason);
        }
        self.stage = ConnectionStage::Over;
    }

    /// The device is offline from here on; its messages are kept if it may resume the session.
    fn leave(&mut self, reason: CloseReason) {
        self.more.reason = reason;
        let worker = self.open.worker.clone();
        self.report_messages(worker.clock.now_ms(), true);
        worker.report_devices(Measure::DeviceDisconnections, self.labels(reason.name(), ""), 1);
        let Some(devices) = &worker.devices else { return };
        self.release_held(devices);
        let limits = self.limits(devices);
        let session = self.session.take().map(|mut session| {
            devices.with_notices(|notices| session.detach(devices.session_ms(&worker.clock), &limits, notices));
            session
        });
        self.count_bytes(devices);
        self.uncount_input(devices);
        self.place.leave(session.filter(|session| !session.is_over()), reason.name(), false);
        if let Some(events) = &self.more.events {
            events.push_disconnect(&worker, reason.name());
        }
    }

    /// Updates the worker's count of waiting bytes.
    pub(super) fn count_bytes(&mut self, devices: &Devices) {
        let now = self.session.as_ref().map_or(0, Session::queued_bytes);
        devices.queued_bytes.set((devices.queued_bytes.get() + now).saturating_sub(self.counted_bytes));
        self.counted_bytes = now;
        self.place.mailbox.moved_bytes.set(self.more.received + self.output.total);
    }

    /// Updates the worker's count of input that is kept. A device that adds to it while there is too much is disconnected.
    pub(super) fn count_input(&mut self, devices: &Devices) {
        let now = if self.is_open() { self.reader.kept_bytes() + self.more.held.bytes() } else { 0 };
        let has_grown = now > self.counted_input_bytes;
        let all = devices.input_bytes.get() + now - self.counted_input_bytes;
        devices.input_bytes.set(all);
        self.counted_input_bytes = now;
        if has_grown && all > devices.queued_bytes_max {
            self.close(CloseReason::Full);
        }
    }

    fn uncount_input(&mut self, devices: &Devices) {
        devices.input_bytes.set(devices.input_bytes.get() - std::mem::take(&mut self.counted_input_bytes));
    }

    /// When an incomplete message must be whole.
    fn partial_until_ms(&self) -> Option<u64> {
        let since_ms = self.more.partial_since_ms?;
        Some(since_ms + PARTIAL_MS_MAX + self.reader.kept_bytes() as u64 * PARTIAL_MS_PER_BYTE)
    }

    /// Executes the commands that have arrived.
    fn take_commands(&mut self, cx: &Context<'_>, devices: &Devices) {
        for command in self.place.mailbox.take(cx) {
            match command {
                DeviceCommand::Deliver { message, .. } => self.push(*message, devices),
                DeviceCommand::Broadcast { id, encoded, timeout_ms, .. } => {
                    let message = Message { id, encoded, key: None, level: AckLevel::Written, deadline_ms: timeout_ms };
                    self.push(message, devices);
                }
                DeviceCommand::Close { why: CloseWhy::Replaced, .. } => self.close(CloseReason::Replaced),
                DeviceCommand::Close { why: CloseWhy::Asked, .. } => self.close(CloseReason::Asked),
                DeviceCommand::Resume { session, .. } => self.go_on_with(session, devices),
                DeviceCommand::Inspect { answer, .. } => {
                    // The caller may be gone.
                    let _ = answer.send(self.state());
                }
                DeviceCommand::Top { .. } => {}
            }
        }
    }

    fn state(&self) -> DeviceState {
        let now_ms = self.worker().clock.now_ms();
        DeviceState {
            quiet_ms: now_ms.saturating_sub(self.client.quiet_since_ms),
            queued_bytes: self.session.as_ref().map_or(0, Session::queued_bytes),
            bytes_received: self.more.received,
            bytes_sent: self.more.sent_before + self.output.total,
        }
    }

    fn push(&mut self, mut message: Message, devices: &Devices) {
        let limits = self.limits(devices);
        let id = message.id;
        message.deadline_ms = message.deadline_ms.saturating_add(devices.session_ms(&self.worker().clock));
        let is_full =
            devices.queued_bytes.get() >= devices.queued_bytes_max && limits.policy != QueuePolicy::DropOldest;
        let pushed = match &mut self.session {
            None => Err(MessageRefusal::Offline),
            Some(_) if is_full => Err(MessageRefusal::Full),
            Some(session) => devices.with_notices(|notices| session.push(message, &limits, notices)),
        };
        if let Err(why) = pushed {
            devices.report(DeviceReport::Refused { id, why });
        }
        self.count_bytes(devices);
    }

    /// Resumes an earlier session, if it exists and the device may.
    fn go_on_with(&mut self, before: Option<Box<SessionToResume>>, devices: &Devices) {
        self.awaits_session = false;
        let limits = self.limits(devices);
        let now_ms = devices.session_ms(&self.worker().clock);
        if let (Some(before), Some(session)) = (before, &mut self.session) {
            let mut before = before.session;
            let token = before.token();
            devices.with_notices(|notices| match before.resume(token, self.more.generation, now_ms, &limits) {
                Ok(()) => {
                    before.absorb(session);
                    *session = before;
                }
                Err(_) => before.end(notices),
            });
        }
        self.output.owes_hello = true;
        self.count_bytes(devices);
    }

    /// Handles what is due; sets the timer.
    fn poll_time(&mut self, cx: &mut Context<'_>, devices: &Devices) {
        if self.is_open() {
            self.poll_due(cx, devices);
        }
        // Also if it has just begun to close.
        if let ConnectionStage::Closing { until_ms } = self.stage {
            let clock = &self.open.worker.clock;
            match clock.now_ms() >= until_ms {
                true => self.stage = ConnectionStage::Over,
                false => self.client.timer.set(clock, until_ms, cx),
            }
        }
    }

    /// When what the device was admitted with expires, its certificate or its token; in milliseconds since 1970.
    fn credential_until_ms(&self) -> Option<u64> {
        let certificate = self.client.tls.as_ref().and_then(|tls| tls.certificate_until_ms());
        let token = self.more.admission.as_ref().and_then(|admission| admission.until_ms);
        [certificate, token].into_iter().flatten().min()
    }

    /// Like `poll_time`, for a connection that is open.
    fn poll_due(&mut self, cx: &mut Context<'_>, devices: &Devices) {
        let worker = self.open.worker.clone();
        let now_ms = worker.clock.now_ms();
        let mut next_ms = FAR_MS;
        match self.pulse.beat(now_ms, worker.random() as u16, self.more.settings.pulse) {
            Beat::Quiet { until_ms } => next_ms = until_ms,
            Beat::Ping { until_ms } => {
                self.output.owes_ping = true;
                next_ms = until_ms;
            }
            // The event loop has not seen it yet; it will on its next turn.
            Beat::Dead if self.client.stream.has_arrived() && self.may_read() => cx.waker().wake_by_ref(),
            Beat::Dead => return self.end(CloseReason::Silent),
        }
        let limits = self.limits(devices);
        if let Some(session) = &mut self.session {
            let session_ms = devices.session_ms(&worker.clock);
            let due_ms = devices.with_notices(|notices| session.tick(session_ms, &limits, notices));
            next_ms = next_ms.min(due_ms.map_or(FAR_MS, |due_ms| devices.worker_ms(due_ms)));
        }
        self.count_bytes(devices);
        self.report_messages(now_ms, false);
        if let Some(until_ms) = self.credential_until_ms() {
            let left_ms = until_ms.saturating_sub(worker.clock.now_unix_ms());
            if left_ms == 0 {
                return self.close(CloseReason::Revoked);
            }
            next_ms = next_ms.min(now_ms + left_ms);
        }
        if let Some(until_ms) = self.partial_until_ms() {
            if now_ms >= until_ms {
                return self.close(CloseReason::Unfinished);
            }
            next_ms = next_ms.min(until_ms);
        }
        if self.output.stuck_since_ms > 0 {
            let until_ms = self.output.stuck_since_ms + worker.snapshot().plan.settings.send_ms;
            if now_ms >= until_ms {
                return self.end(CloseReason::Slow);
            }
            next_ms = next_ms.min(until_ms);
        }
        if let Some(reason) = self.poll_leaving(cx, devices, now_ms) {
            return self.close(reason);
        }
        let end_ms = self.client.listener.end_ms();
        if now_ms >= end_ms {
            return self.close(CloseReason::Route);
        }
        self.client.timer.set(&worker.clock, next_ms.min(end_ms), cx);
    }

    /// Whether its route, its credential or its worker wants it to end.
    fn poll_leaving(&mut self, cx: &mut Context<'_>, devices: &Devices, now_ms: u64) -> Option<CloseReason> {
        if let Some(leaving) = &mut self.leaving {
            leaving.look(cx, now_ms);
            // A device that is drained is notified at once: it reconnects by itself, and nothing is cut.
            if leaving.since_ms.is_some() && leaving.lease.policy != OnChange::Keep {
                return Some(CloseReason::Route);
            }
        }
        let worker = &self.open.worker;
        if worker.draining.get() && !self.may_ever_go() && !self.is_held() {
            return Some(CloseReason::Drained);
        }
        let seen = devices.consumers_seen.get();
        if self.more.consumers_seen != seen {
            self.more.consumers_seen = seen;
            let snapshot = worker.snapshot();
            let holds = |admission: &DeviceAdmission| admission.holds(&snapshot.plan.consumers);
            let tls = snapshot.plan.tls.as_deref();
            let is_verified = self.client.tls.as_ref().is_none_or(|facts| facts.is_still_verified(tls));
            if !is_verified || !self.more.admission.as_ref().is_none_or(holds) {
                return Some(CloseReason::Revoked);
            }
        }
        None
    }

    /// Writes pending output.
    fn poll_output(&mut self, cx: &mut Context<'_>, devices: &Devices) {
        let worker = self.open.worker.clone();
        let limits = self.limits(devices);
        let mut rounds = 0;
        loop {
            let said = (self.protocol, self.session.as_mut());
            let times = (worker.clock.now_ms(), devices.session_ms(&worker.clock));
            match self.output.poll_write(cx, &mut self.client.stream, said, times, &worker.buffers) {
                Poll::Pending => return,
                Poll::Ready(Err(_)) => return self.end(CloseReason::Gone),
                Poll::Ready(Ok(Wrote::Nothing)) => break,
                Poll::Ready(Ok(Wrote::Messages)) => {
                    if let Some(session) = &mut self.session {
                        devices.with_notices(|notices| session.on_written(&limits, notices));
                    }
                    self.count_bytes(devices);
                }
            }
            rounds += 1;
            if rounds >= super::input::ROUNDS_MAX {
                wake_after_others(cx);
                return;
            }
        }
        if self.stage == ConnectionStage::Open {
            return;
        }
        // The device sees our end at once, and what it still sends is read, so that no reset overtakes our last bytes.
        if !self.is_shut {
            self.is_shut = self.client.stream.poll_shutdown(cx).is_ready();
        }
        if self.client.eof {
            self.stage = ConnectionStage::Over;
        }
    }

    /// Whether the device names an earlier session that is another one.
    pub(super) fn is_other_session(&self, session: SessionId) -> bool {
        self.session.as_ref().is_some_and(|own| own.token().session != session)
    }
}

impl Future for DeviceConnection {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let connection = &mut *self;
        let worker = connection.open.worker.clone();
        let Some(devices) = &worker.devices else { return Poll::Ready(()) };
        if worker.draining.get() && connection.give() {
            return Poll::Ready(());
        }
        connection.take_commands(cx, devices);
        match connection.poll_input(cx, devices) {
            DeviceRead::Nothing => {}
            DeviceRead::End if connection.is_open() => connection.end(CloseReason::Gone),
            // Our last bytes may still reach it.
            DeviceRead::End => connection.client.eof = true,
        }
        if connection.stage != ConnectionStage::Over {
            connection.poll_time(cx, devices);
        }
        if connection.stage != ConnectionStage::Over {
            connection.poll_output(cx, devices);
        }
        // What it waited for may have arrived, and nothing else may wake it for long.
        if worker.draining.get() && connection.give() {
            return Poll::Ready(());
        }
        match connection.stage {
            ConnectionStage::Over => Poll::Ready(()),
            ConnectionStage::Open | ConnectionStage::Closing { .. } => Poll::Pending,
        }
    }
}

impl Drop for DeviceConnection {
    /// Runs whatever ended it: the device, time, the worker's end or a bug.
    fn drop(&mut self) {
        if self.is_open() {
            // The event loop ends, and sends nothing more.
            self.more.events = None;
            let reason = if std::thread::panicking() { CloseReason::Failed } else { CloseReason::Drained };
            self.leave(reason);
        }
        let worker = self.open.worker.clone();
        if self.more.reason.is_cut() {
            self.client.ends_with_connection = true;
        }
        self.output.release(&worker.buffers);
        worker.counters.devices_open.sub(1);
        if let Some(leaving) = &self.leaving {
            leaving.end(&worker.watches);
        }
        // After a panic the state is unknown, so nothing is reported.
        if !self.more.is_given && !std::thread::panicking() {
            self.record();
        }
    }
}

/// Maximum size of a frame: a message with its envelope, as text in base64.
fn frame_bytes_max(message_bytes_max: usize) -> usize {
    message_bytes_max.saturating_mul(4).div_ceil(3) + FRAME_WORDS_BYTES_MAX
}

/// `{"type":"reply","id":"…","encoding":"base64","body":""}`, with room for spaces.
const FRAME_WORDS_BYTES_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_task_of_a_device_is_small() {
        const CONNECTION_BYTES_MAX: usize = 1024;
        let bytes = size_of::<DeviceConnection>() + size_of::<More>();
        assert!(bytes <= CONNECTION_BYTES_MAX, "{bytes} bytes, and 3 KiB are all that a device may take");
    }
}
