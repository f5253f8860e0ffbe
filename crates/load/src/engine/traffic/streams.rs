//! Requests on the streams of HTTP/2 connections: several under way on each; the end of a connection ends all of them.
//!
//! A target that ends a connection in order (GOAWAY) names the last request that it accepted. Later ones were never
//! processed, and any client sends them again elsewhere; so does this one, with their first send as their beginning,
//! until they time out.

use super::Traffic;
use crate::engine::connection::{Request, Stage};
use crate::engine::response::{Answer, AnswerMismatch};
use crate::engine::session::{Session, State, StreamEvent};
use crate::engine::traffic::Messages;
use crate::outcome::ErrorKind;
use crate::tls::ALPN_HTTP2;
use h2::Reason;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fmt::Display;
use std::io;

/// The streams and requests of a thread's connections.
#[derive(Debug)]
pub(super) struct Multiplex {
    messages: Messages,
    /// Streams on each connection, at most.
    streams: usize,
    /// By connection, from when it is connected.
    bundles: Vec<Option<Box<Bundle>>>,
    /// The streams of all connections, connection by connection.
    places: Vec<StreamSlot>,
    /// Requests that wait to be sent again.
    lost: VecDeque<Request>,
    /// Connections with something to be written.
    unsent: Vec<usize>,
}

/// A connection with its streams.
#[derive(Debug)]
struct Bundle {
    session: Session,
    under_way: usize,
    /// No more requests are sent on it; it is closed with its last answer.
    is_leaving: bool,
}

/// A stream's sequence of requests: one is under way, or it is free.
#[derive(Debug, Default)]
struct StreamSlot {
    is_asked: bool,
    /// Whether it is in the list of idle ones, or about to be.
    is_free: bool,
    request: Request,
    answer: Answer,
}

impl Multiplex {
    pub(super) fn new(messages: Messages, connections: usize, streams: usize) -> Self {
        Multiplex {
            messages,
            streams,
            bundles: (0..connections).map(|_| None).collect(),
            places: (0..connections * streams).map(|_| StreamSlot::default()).collect(),
            lost: VecDeque::new(),
            unsent: Vec::new(),
        }
    }

    pub(super) fn has_session(&self, number: usize) -> bool {
        self.bundles[number].is_some()
    }

    fn bundle(&mut self, number: usize) -> Option<&mut Bundle> {
        self.bundles[number].as_deref_mut()
    }

    /// The slots of a connection.
    fn places_of(&self, number: usize) -> std::ops::Range<usize> {
        number * self.streams..(number + 1) * self.streams
    }

    /// Takes the request out of a slot; returns whether another may follow there.
    fn take_off(&mut self, place: usize) -> bool {
        self.places[place].is_asked = false;
        let Some(bundle) = self.bundle(place / self.streams) else { return false };
        bundle.under_way -= 1;
        !bundle.is_leaving
    }
}

impl Traffic<'_> {
    /// A connection is established: HTTP/2 begins on it.
    pub(super) fn begin_session(&mut self, number: usize, now: u64) -> u64 {
        let link = self.connections[number].take_link();
        let Some((multiplex, link)) = self.multiplex.as_mut().zip(link) else { return now };
        if self.load.tls.is_some() && link.protocol() != Some(ALPN_HTTP2) {
            let error = io::Error::new(io::ErrorKind::InvalidData, "the target did not agree to HTTP/2 (ALPN h2)");
            self.connect_failed(number, error, now);
            return now;
        }
        let session = Session::begin(link, multiplex.streams);
        multiplex.bundles[number] = Some(Box::new(Bundle { session, under_way: 0, is_leaving: false }));
        self.drive(number, now)
    }

    pub(super) fn on_session_event(&mut self, number: usize, ended: bool, now: u64) -> u64 {
        if let Some(bundle) = self.multiplex.as_mut().and_then(|multiplex| multiplex.bundle(number)) {
            bundle.session.woken(ended);
        }
        self.drive(number, now)
    }

    /// Reads and writes on a connection until nothing is left to do.
    fn drive(&mut self, number: usize, mut now: u64) -> u64 {
        loop {
            let Some(bundle) = self.multiplex.as_mut().and_then(|multiplex| multiplex.bundle(number)) else {
                return now;
            };
            let (state, bytes) = (bundle.session.drive(), bundle.session.received());
            now = self.clock.now_ns();
            self.count_bytes(bytes, now);
            match state {
                State::Over(why) => return self.session_over(number, why, now),
                State::Open(0) => self.leave(number),
                State::Open(allowed) if self.connections[number].stage == Stage::Connecting => {
                    now = self.begin_streams(number, allowed, now);
                }
                State::Open(_) | State::Opening => {}
            }
            now = self.hear_all(number, now);
            let Some(bundle) = self.multiplex.as_mut().and_then(|multiplex| multiplex.bundle(number)) else {
                return now;
            };
            if bundle.is_leaving && bundle.under_way == 0 {
                return self.session_over(number, None, now);
            }
            if !bundle.session.is_woken() {
                return now;
            }
        }
    }

    /// Handles the target's report of how many streams it allows.
    fn begin_streams(&mut self, number: usize, allowed: usize, mut now: u64) -> u64 {
        self.on_opened(number, now);
        let Some(multiplex) = &self.multiplex else { return now };
        let (streams, places) = (multiplex.streams, multiplex.places_of(number));
        if allowed < streams {
            let least = &mut self.stats.totals.streams_allowed;
            *least = Some(least.map_or(allowed, |least| least.min(allowed)));
        }
        for place in places.take(allowed) {
            now = self.free(place, now);
        }
        now
    }

    /// Uses a slot that can take a request.
    fn free(&mut self, place: usize, now: u64) -> u64 {
        if let Some(multiplex) = &mut self.multiplex {
            multiplex.places[place].is_free = true;
        }
        match self.send_lost(place, now) {
            Some(now) => now,
            None => self.start_or_idle(place, now),
        }
    }

    /// Sends a request; `asked` counts it already.
    pub(super) fn ask_stream(&mut self, place: usize, request: Request, now: u64) -> u64 {
        let composed = self.composer.compose();
        let Some(multiplex) = &mut self.multiplex else { return now };
        let message = multiplex.messages.of(&composed);
        let (number, stream) = (place / multiplex.streams, place % multiplex.streams);
        let Some(bundle) = multiplex.bundles[number].as_deref_mut() else { return now };
        let taken = &mut multiplex.places[place];
        taken.request = Request { entry: composed.entry as u32, ..request };
        (taken.is_asked, taken.is_free) = (true, false);
        bundle.under_way += 1;
        multiplex.unsent.push(number);
        self.stats.totals.sent += 1;
        match message.map(|(message, body)| bundle.session.ask(stream, message, body)) {
            Ok(Ok(())) => now,
            Ok(Err(error)) => {
                // The target has just ended the connection in some way.
                bundle.is_leaving = true;
                self.stream_failed(place, &error, now)
            }
            Err(reason) => {
                bundle.is_leaving = true;
                self.drop_request(place, ErrorKind::Send, &reason);
                now
            }
        }
    }

    /// Writes the requests that were begun since the last call.
    pub(super) fn send_asked(&mut self, mut now: u64) -> u64 {
        while let Some(multiplex) = &mut self.multiplex {
            if let Some(number) = multiplex.unsent.pop() {
                let due = multiplex.bundle(number).is_some_and(|bundle| bundle.session.is_woken() || bundle.is_leaving);
                now = if due { self.drive(number, now) } else { now };
                continue;
            }
            if multiplex.lost.is_empty() {
                return now;
            }
            let Some(place) = self.idle.pop() else { return now };
            now = self.send_lost(place, now).unwrap_or(now);
        }
        now
    }

    /// Whether requests wait to be sent again.
    pub(super) fn has_lost(&self) -> bool {
        self.multiplex.as_ref().is_some_and(|multiplex| !multiplex.lost.is_empty())
    }

    fn send_lost(&mut self, place: usize, now: u64) -> Option<u64> {
        let request = self.multiplex.as_mut()?.lost.pop_front()?;
        Some(self.ask_stream(place, request, now))
    }

    fn hear_all(&mut self, number: usize, mut now: u64) -> u64 {
        while let Some(multiplex) = &mut self.multiplex
            && let Some(stream) = multiplex.bundle(number).and_then(|bundle| bundle.session.news())
        {
            now = self.next_event(number, stream, now);
        }
        now
    }

    /// Handles an event of a stream.
    fn next_event(&mut self, number: usize, stream: usize, now: u64) -> u64 {
        loop {
            let Some(multiplex) = &mut self.multiplex else { return now };
            let place = number * multiplex.streams + stream;
            let Some(bundle) = multiplex.bundles[number].as_deref_mut() else { return now };
            let heard = bundle.session.next_event(stream);
            let StreamSlot { request, answer, .. } = &mut multiplex.places[place];
            match heard {
                StreamEvent::Nothing => return now,
                StreamEvent::Head(status) => {
                    self.reader.begin(answer, status);
                    request.answering = true;
                    let request = *request;
                    self.count_first_byte(request, now);
                }
                StreamEvent::Data(bytes) => {
                    self.reader.content(answer, self.composer.entry(request.entry as usize), &bytes);
                }
                StreamEvent::End => return self.stream_answered(place, now),
                StreamEvent::Failed(error) => return self.stream_failed(place, &error, now),
            }
        }
    }

    fn stream_answered(&mut self, place: usize, now: u64) -> u64 {
        let Some(multiplex) = &mut self.multiplex else { return now };
        let number = place / multiplex.streams;
        let StreamSlot { request, answer, .. } = &mut multiplex.places[place];
        let request = *request;
        let done = self.reader.end_with_connection(answer, self.composer.entry(request.entry as usize));
        let goes_on = multiplex.take_off(place);
        self.count_answer(request, done.and_then(|done| done.mismatch), now);
        self.asked -= 1;
        let connection = &mut self.connections[number];
        if !connection.proven {
            connection.proven = true;
            self.connector.proven();
        }
        if goes_on { self.free(place, now) } else { now }
    }

    /// Handles a request without an answer; if it was never processed, that is not a failure yet.
    fn stream_failed(&mut self, place: usize, error: &h2::Error, now: u64) -> u64 {
        let Some(multiplex) = &mut self.multiplex else { return now };
        let request = multiplex.places[place].request;
        let is_unseen = error.is_go_away() && error.is_remote() && error.reason() == Some(Reason::NO_ERROR);
        if is_unseen {
            self.reader.reset(&mut multiplex.places[place].answer);
            multiplex.take_off(place);
            multiplex.lost.push_back(Request { answering: false, ..request });
            self.stats.totals.sent_again += 1;
            return now;
        }
        let (kind, what) = failure(error, request.answering);
        let goes_on = self.drop_request(place, kind, &what);
        if goes_on && error.is_reset() { self.free(place, now) } else { now }
    }

    /// Counts a request as failed; returns whether another may follow in its slot.
    fn drop_request(&mut self, place: usize, kind: ErrorKind, what: &dyn Display) -> bool {
        let Some(multiplex) = &mut self.multiplex else { return false };
        let request = multiplex.places[place].request;
        self.reader.reset(&mut multiplex.places[place].answer);
        let goes_on = multiplex.take_off(place);
        self.asked -= 1;
        self.count_failure(request, kind, what);
        goes_on
    }

    /// Sends no more requests on a connection.
    fn leave(&mut self, number: usize) {
        let Some(multiplex) = &mut self.multiplex else { return };
        let places = multiplex.places_of(number);
        if let Some(bundle) = multiplex.bundle(number) {
            bundle.is_leaving = true;
        }
        for place in places {
            if std::mem::take(&mut multiplex.places[place].is_free) {
                self.idle.remove(place);
            }
        }
    }

    /// A connection has ended, and is closed and opened again.
    fn session_over(&mut self, number: usize, why: Option<h2::Error>, mut now: u64) -> u64 {
        self.leave(number);
        let Some(multiplex) = &self.multiplex else { return now };
        let streams = multiplex.streams;
        for place in multiplex.places_of(number) {
            now = self.next_event(number, place % streams, now);
            let Some(multiplex) = &self.multiplex else { return now };
            let StreamSlot { is_asked, request, .. } = multiplex.places[place];
            if is_asked {
                self.drop_request(place, ErrorKind::Closed, &when(request.answering));
            }
        }
        if let Some(multiplex) = &mut self.multiplex {
            multiplex.bundles[number] = None;
        }
        if self.connections[number].stage == Stage::Connecting {
            self.connect_failed(number, not_begun(why), now);
            return now;
        }
        self.close_failed(number, now);
        now
    }

    /// A connection took too long to be opened.
    pub(super) fn abandon(&mut self, number: usize, now: u64) {
        if let Some(multiplex) = &mut self.multiplex {
            multiplex.bundles[number] = None;
        }
        self.connect_failed(number, Errno::TIMEDOUT.into(), now);
    }

    pub(super) fn look_for_overdue_streams(&mut self, number: usize, now: u64) {
        let Some(multiplex) = &self.multiplex else { return };
        for place in multiplex.places_of(number) {
            let Some(multiplex) = &self.multiplex else { return };
            let StreamSlot { is_asked, request, .. } = multiplex.places[place];
            if is_asked && now.saturating_sub(request.sent_ns) >= self.timeout_ns {
                self.time_out_stream(place, request, now);
            }
        }
    }

    /// Gives up a request; its connection continues.
    fn time_out_stream(&mut self, place: usize, request: Request, now: u64) {
        let Some(multiplex) = &mut self.multiplex else { return };
        let (number, stream) = (place / multiplex.streams, place % multiplex.streams);
        if let Some(bundle) = multiplex.bundle(number) {
            bundle.session.forget(stream);
        }
        self.reader.reset(&mut multiplex.places[place].answer);
        let goes_on = multiplex.take_off(place);
        multiplex.unsent.push(number);
        self.asked -= 1;
        self.count_timeout(request, now);
        if goes_on {
            self.free(place, now);
        }
    }

    pub(super) fn look_for_overdue_lost(&mut self, now: u64) {
        while let Some(multiplex) = &mut self.multiplex
            && let Some(request) =
                multiplex.lost.pop_front_if(|request| now.saturating_sub(request.sent_ns) >= self.timeout_ns)
        {
            self.asked -= 1;
            self.count_timeout(request, now);
        }
    }

    /// Gives up all requests under way at the end of a run.
    pub(super) fn give_up_streams(&mut self, now: u64) {
        let Some(multiplex) = &mut self.multiplex else { return };
        let asked = multiplex.places.iter_mut().filter(|place| place.is_asked);
        let under_way: Vec<Request> = asked.map(|place| place.request).chain(multiplex.lost.drain(..)).collect();
        for request in under_way {
            self.asked -= 1;
            match now.saturating_sub(request.sent_ns) < self.timeout_ns {
                true => self.count_cut_off(request, now),
                false => self.count_timeout(request, now),
            }
        }
    }
}

/// A failure's kind and description.
fn failure(error: &h2::Error, answering: bool) -> (ErrorKind, String) {
    let reason = error.reason().map_or(String::new(), |reason| reason.description().to_owned());
    if error.is_io() {
        return (ErrorKind::Closed, when(answering).to_owned());
    }
    if error.is_go_away() && error.is_remote() {
        return (ErrorKind::Closed, format!("the target ended the connection ({reason})"));
    }
    if error.is_reset() && error.is_remote() {
        return (ErrorKind::Receive, format!("the target ended the stream ({reason})"));
    }
    (ErrorKind::Malformed, error.to_string())
}

/// Why HTTP/2 did not begin.
fn not_begun(why: Option<h2::Error>) -> io::Error {
    match why {
        None => io::Error::new(io::ErrorKind::UnexpectedEof, "closed before HTTP/2 began"),
        Some(error) if error.is_io() => error
            .into_io()
            .unwrap_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "closed before HTTP/2 began")),
        Some(error) => io::Error::new(io::ErrorKind::InvalidData, format!("not HTTP/2: {error}")),
    }
}

// Counts the result of a request if it was meant to start in the measured time, for every protocol.

impl Traffic<'_> {
    /// Whether it counts.
    #[inline]
    fn is_measured(&self, request: Request) -> bool {
        request.intended_ns >= self.measured_ns
    }

    #[inline]
    pub(super) fn count_first_byte(&mut self, request: Request, now: u64) {
        if self.is_measured(request) {
            self.stats.totals.first_byte.saturating_record(now - request.sent_ns);
        }
    }

    /// Counts bytes that have just come.
    #[inline]
    pub(super) fn count_bytes(&mut self, bytes: u64, now: u64) {
        if now >= self.measured_ns && now < self.end_ns {
            self.stats.totals.bytes_received += bytes;
        }
    }

    #[inline]
    pub(super) fn count_answer(&mut self, request: Request, refused: Option<AnswerMismatch>, now: u64) {
        self.answered_ns = now;
        if refused.is_none() {
            // Also counts a request that began before the measured time.
            self.stats.totals.good_shares += share_within((request.sent_ns, now), (self.measured_ns, self.end_ns));
        }
        if !self.is_measured(request) {
            return;
        }
        let in_time = u64::from(now <= self.end_ns);
        self.stats.interval.requests += 1;
        self.stats.totals.answered_in_time += in_time;
        let Some(refused) = refused else {
            self.stats.record_latency(now - request.intended_ns, now - request.sent_ns);
            self.stats.totals.good += 1;
            self.stats.totals.good_in_time += in_time;
            return;
        };
        self.stats.totals.refused.saturating_record(now - request.sent_ns);
        let name = &self.composer.entry(request.entry as usize).name;
        match refused {
            AnswerMismatch::Status(status) => {
                self.stats.record_error(ErrorKind::Status, &format_args!("{status} to {name}"))
            }
            AnswerMismatch::Body => {
                self.stats.record_error(ErrorKind::Body, &format_args!("unexpected body, to {name}"))
            }
        }
    }

    #[cold]
    pub(super) fn count_failure(&mut self, request: Request, kind: ErrorKind, what: &dyn Display) {
        if self.is_measured(request) {
            let name = &self.composer.entry(request.entry as usize).name;
            self.stats.record_error(kind, &format_args!("{what}, to {name}"));
        }
    }

    pub(super) fn count_timeout(&mut self, request: Request, now: u64) {
        if self.is_measured(request) {
            self.stats.record_latency(now - request.intended_ns, now - request.sent_ns);
        }
        let waited_ms = self.load.timeout.as_millis();
        self.count_failure(request, ErrorKind::Timeout, &format_args!("no complete answer in {waited_ms} ms"));
    }

    pub(super) fn count_cut_off(&mut self, request: Request, now: u64) {
        if self.is_measured(request) {
            self.stats.record_cut_off(now - request.intended_ns);
        }
    }
}

/// The share of one period that lies within another, 0 to 1.
#[inline]
fn share_within((from_ns, to_ns): (u64, u64), (begin_ns, end_ns): (u64, u64)) -> f64 {
    if from_ns >= begin_ns && to_ns <= end_ns {
        return 1.0;
    }
    let within_ns = to_ns.min(end_ns).saturating_sub(from_ns.max(begin_ns));
    within_ns as f64 / to_ns.saturating_sub(from_ns).max(1) as f64
}

/// The time of a connection's end, as text.
pub(super) fn when(answering: bool) -> &'static str {
    if answering { "in the middle of the answer" } else { "before an answer" }
}

#[cfg(test)]
mod tests {
    use super::share_within;

    #[test]
    fn a_request_across_a_border_counts_with_its_share() {
        let check = |request, share: f64| assert_eq!(share_within(request, (100, 200)), share, "{request:?}");
        check((100, 200), 1.0);
        check((150, 150), 1.0);
        check((0, 100), 0.0);
        check((0, 50), 0.0);
        check((200, 300), 0.0);
        check((250, 300), 0.0);
        check((250, 250), 0.0);
        check((50, 150), 0.5);
        check((180, 260), 0.25);
        // An answer that takes longer than the measured time.
        check((0, 400), 0.25);
        check((0, 200), 0.5);
        // The measured time has not begun.
        assert_eq!(share_within((5, 9), (u64::MAX, u64::MAX)), 0.0);
    }
}
