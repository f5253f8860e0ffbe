//! The event loop: everything that can wake it, and everything that is due by the clock.
//!
//! Connects, messages and drops each have a schedule that does not wait for the gateway. A device that was refused
//! temporarily, or whose connection ended, reconnects by itself.

use super::Pace;
use super::device::{self, ConnectionEnd, Device, DeviceTotals, Stage, Surroundings, gone};
use super::ledger::{BROKEN, Ledger, TIMED_OUT, WRONG_REPLY};
use super::plan::{Ack, Api, GatewayNode, Plan, Via};
use crate::error::{Error, Result};
use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use socket2::Socket;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use stillgate_load::{Link, outcome};
use stillgate_stats::Random;
use stillgate_wire::{Framing, HeadLimits, HeadProgress, Method, ResponseHead};

const EVENTS_MAX: usize = 512;

/// Bytes per read.
const BUFFER_BYTES: usize = 64 * 1024;

/// Concurrent handshakes: more would only wait in the listener's queue.
const HANDSHAKES_MAX: usize = 256;

/// Epoll data of back-ends' connections; devices have smaller numbers.
const BACK_END: u64 = 1 << 40;

/// The longest wait of a turn: how soon Ctrl-C and time-outs are noticed.
const TURN: Duration = Duration::from_millis(50);

/// A request times out this much after the gateway should have stopped waiting for the device.
const TIMEOUT_SPARE: Duration = Duration::from_secs(5);

/// After this long without a new connection, no more are expected.
const STALL: Duration = Duration::from_secs(30);

/// A device that lost its connection reconnects within this time.
const COMES_BACK_NS: u64 = 1_000_000_000;

/// How a phase ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Done,
    /// By Ctrl-C.
    Interrupted,
}

/// All devices and back-ends of one gateway.
pub(super) struct Fleet<'a> {
    plan: &'a Plan,
    /// The gateway, or its nodes: the number of a device selects the node that it connects to.
    places: &'a [GatewayNode],
    stop: &'a AtomicBool,
    epoch: Instant,
    epoll: OwnedFd,
    devices: Vec<Device>,
    /// They are assigned to the nodes in turn, as devices are. The last one belongs to the first node, and is only for
    /// broadcasts.
    back_ends: Vec<BackEnd>,
    /// By node.
    idle: Vec<Vec<usize>>,
    /// Messages that are due while no connection is idle, by node.
    waiting: Vec<VecDeque<u32>>,
    to_connect: VecDeque<u32>,
    /// Devices that will reconnect, and when.
    later: BinaryHeap<Reverse<(u64, u32)>>,
    pub(super) connects: Pace,
    pub(super) messages: Option<Pace>,
    pub(super) churn: Option<Pace>,
    /// Handshakes under way.
    under_way: usize,
    pub(super) online: usize,
    pub(super) refused: usize,
    pub(super) connected: u64,
    pub(super) refused_for_now: u64,
    progress_ns: u64,
    pub(super) ledger: Ledger,
    pub(super) seen: DeviceTotals,
    pub(super) handshake: Histogram<u64>,
    pub(super) endings: BTreeMap<String, u64>,
    random: Random,
    buffer: Vec<u8>,
    head: ResponseHead,
}

impl<'a> Fleet<'a> {
    pub(super) fn new(plan: &'a Plan, places: &'a [GatewayNode], stop: &'a AtomicBool) -> Result<Fleet<'a>> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|error| Error::new(format!("epoll: {error}")))?;
        Ok(Fleet {
            plan,
            places,
            stop,
            epoch: Instant::now(),
            epoll,
            devices: (0..plan.devices).map(|_| Device::default()).collect(),
            back_ends: (0..=plan.back_ends * places.len()).map(|_| BackEnd::default()).collect(),
            idle: (0..places.len())
                .map(|node| (0..plan.back_ends).rev().map(|number| number * places.len() + node).collect())
                .collect(),
            waiting: places.iter().map(|_| VecDeque::new()).collect(),
            to_connect: VecDeque::new(),
            later: BinaryHeap::new(),
            connects: Pace::new(plan.connect_rate, 0),
            messages: None,
            churn: None,
            under_way: 0,
            online: 0,
            refused: 0,
            connected: 0,
            refused_for_now: 0,
            progress_ns: 0,
            ledger: Ledger::new(),
            seen: DeviceTotals::default(),
            handshake: outcome::histogram(),
            endings: BTreeMap::new(),
            random: Random::new(plan.seed),
            buffer: vec![0; BUFFER_BYTES],
            head: ResponseHead::default(),
        })
    }

    pub(super) fn now_ns(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// These devices are to connect.
    pub(super) fn connect(&mut self, devices: std::ops::Range<usize>) {
        self.to_connect.extend(devices.map(|device| device as u32));
        self.progress_ns = self.now_ns();
    }

    /// All lose their connection at once, and reconnect in another order.
    pub(super) fn storm(&mut self) {
        let mut order: Vec<u32> = Vec::new();
        for (number, device) in self.devices.iter_mut().enumerate() {
            if device.stage == Stage::Online {
                device.drop_connection(Stage::Away);
                order.push(number as u32);
            }
        }
        self.online -= order.len();
        self.random.shuffle(&mut order);
        self.to_connect.extend(order);
        self.progress_ns = self.now_ns();
    }

    /// The current connection of a device; 0: none.
    pub(super) fn connection(&self, device: u32) -> u32 {
        let device = &self.devices[device as usize];
        if device.stage == Stage::Online { device.connection } else { 0 }
    }

    /// Whether no request is waiting for its answer.
    pub(super) fn is_quiet(&self) -> bool {
        self.waiting.iter().all(VecDeque::is_empty) && self.back_ends.iter().all(|back_end| back_end.asked.is_none())
    }

    /// Whether a broadcast is not answered yet.
    pub(super) fn is_broadcasting(&self) -> bool {
        self.back_ends.last().is_some_and(|back_end| back_end.asked.is_some())
    }

    /// One message to all; one broadcast at a time.
    pub(super) fn broadcast(&mut self) -> Result {
        let number = self.back_ends.len() - 1;
        let prefix = &self.plan.prefix;
        let body = format!("{{\"match\":{{\"prefix\":\"{prefix}\"}},\"body\":{{\"broadcast\":1}}}}");
        self.send_request(number, RequestSubject::Broadcast, &body)
    }

    /// Continues until `done`, which is checked after every turn.
    pub(super) fn run(&mut self, mut done: impl FnMut(&Fleet<'_>) -> bool) -> Result<Phase> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(Phase::Interrupted);
            }
            if done(self) {
                return Ok(Phase::Done);
            }
            let next_ns = self.due()?;
            let wait = Duration::from_nanos(next_ns.saturating_sub(self.now_ns())).min(TURN);
            let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(Error::new(format!("epoll: {error}"))),
            }
            for event in &events {
                // A copy: the kernel's struct is packed.
                let data = event.data.u64();
                match data.checked_sub(BACK_END) {
                    Some(number) => self.on_back_end(number as usize)?,
                    None => self.on_device(data as u32)?,
                }
                // Also between events: a batch of them takes longer than a message may be late.
                self.due_messages()?;
            }
        }
    }

    /// Does everything that is due; returns when something is due next.
    fn due(&mut self) -> Result<u64> {
        let now = self.now_ns();
        self.due_messages()?;
        self.due_drops(now)?;
        while self.later.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            if let Some(Reverse((_, device))) = self.later.pop() {
                self.to_connect.push_back(device);
            }
        }
        self.due_connects(now)?;
        self.give_up(now)?;
        let paces = [&self.messages, &self.churn].into_iter().flatten().map(Pace::due_ns);
        let connects = (!self.to_connect.is_empty() && self.under_way < HANDSHAKES_MAX).then(|| self.connects.due_ns());
        let later = self.later.peek().map(|Reverse((at, _))| *at);
        Ok(paces.chain(connects).chain(later).min().unwrap_or(u64::MAX))
    }

    fn due_connects(&mut self, now: u64) -> Result {
        if self.to_connect.is_empty() || self.under_way >= HANDSHAKES_MAX {
            self.connects.skip_to(now);
        }
        while self.under_way < HANDSHAKES_MAX && !self.to_connect.is_empty() && self.connects.take(now).is_some() {
            let Some(number) = self.to_connect.pop_front() else { break };
            self.begin(number, now)?;
        }
        if now.saturating_sub(self.progress_ns) > STALL.as_nanos() as u64
            && (self.under_way > 0 || !self.to_connect.is_empty())
        {
            let last = self.endings.iter().max_by_key(|(_, count)| **count).map_or("", |(why, _)| why.as_str());
            return Err(Error::new(format!(
                "{} of {} devices are connected, and none has connected for {} s; most often: {}",
                self.online,
                self.plan.devices,
                STALL.as_secs(),
                if last.is_empty() { "no answer" } else { last }
            )));
        }
        Ok(())
    }

    fn begin(&mut self, number: u32, now: u64) -> Result {
        let nodes = self.places.len();
        let door = &self.places[number as usize % nodes].door;
        let from = (!door.sources.is_empty()).then(|| door.sources[number as usize / nodes % door.sources.len()]);
        match device::connect(door.address, from) {
            Ok(socket) => {
                watch(&self.epoll, &socket, u64::from(number), EventFlags::OUT)?;
                let handshake = door.handshake(&self.plan.id(number as usize));
                let device = &mut self.devices[number as usize];
                let mut link = Link::new(socket.into());
                if let Some(tls) = &door.tls {
                    let tickets = device.tickets.get_or_insert_default();
                    link.secure(&tls.of(tickets)).map_err(|error| Error::new(format!("TLS: {error}")))?;
                }
                device.begin(link, handshake, now);
                device.watched = EventFlags::OUT;
                self.under_way += 1;
                Ok(())
            }
            Err(error) if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
                Err(Error::new(format!("no more file descriptors after {} devices: {error}", self.online)))
            }
            Err(error) => {
                let ended = gone(&error);
                self.note(&ended);
                self.schedule_return(number, now);
                Ok(())
            }
        }
    }

    fn on_device(&mut self, number: u32) -> Result {
        let now_ns = self.now_ns();
        let mask = (self.random.next_u64() as u32).to_be_bytes();
        let Some(device) = self.devices.get_mut(number as usize) else { return Ok(()) };
        let before = device.stage;
        if device.link.is_none() {
            return Ok(());
        }
        let mut around = Surroundings {
            number,
            ack: self.plan.ack,
            resume: self.plan.resume,
            now_ns,
            mask,
            ledger: &mut self.ledger,
            head: &mut self.head,
            seen: &mut self.seen,
        };
        let done = device.ready(&mut self.buffer, &mut around);
        let was_shaking = matches!(before, Stage::Connecting | Stage::Securing | Stage::Shaking);
        if was_shaking && device.stage == Stage::Online {
            self.under_way -= 1;
            self.online += 1;
            self.connected += 1;
            self.progress_ns = now_ns;
            self.handshake.saturating_record(now_ns.saturating_sub(device.begun_ns));
        }
        match done {
            Ok(()) => {
                let wanted = device.wanted();
                let socket = device.link.as_ref().map(Link::socket);
                rewatch(&self.epoll, socket, u64::from(number), wanted, &mut device.watched)
            }
            Err(ended) => self.on_end(number, ended, now_ns),
        }
    }

    fn on_end(&mut self, number: u32, ended: ConnectionEnd, now: u64) -> Result {
        let device = &mut self.devices[number as usize];
        match device.stage {
            Stage::Online => self.online -= 1,
            _ => self.under_way -= 1,
        }
        device.drop_connection(Stage::Away);
        self.note(&ended);
        match ended {
            ConnectionEnd::Answered { retry_after_s: Some(seconds), .. } => {
                self.refused_for_now += 1;
                self.progress_ns = now;
                let jitter = self.random.below(COMES_BACK_NS / 2);
                self.later.push(Reverse((now + seconds * 1_000_000_000 + jitter, number)));
            }
            ConnectionEnd::Answered { status, .. } if self.connected == 0 => {
                return Err(Error::new(format!(
                    "the gateway answers {status} to the handshake of device {}; does the URL lead to a route with device-gateway, and does the device send the credentials that the route's plugins require?",
                    self.plan.id(number as usize)
                )));
            }
            ConnectionEnd::Answered { .. } => {
                self.devices[number as usize].stage = Stage::Refused;
                self.refused += 1;
            }
            ConnectionEnd::Wrong(why) if self.connected == 0 => return Err(Error::new(why)),
            ConnectionEnd::Wrong(_) | ConnectionEnd::Closed(_) | ConnectionEnd::Gone(_) => {
                self.schedule_return(number, now)
            }
        }
        Ok(())
    }

    fn schedule_return(&mut self, number: u32, now: u64) {
        let after = COMES_BACK_NS / 10 + self.random.below(COMES_BACK_NS);
        self.later.push(Reverse((now + after, number)));
    }

    fn note(&mut self, ended: &ConnectionEnd) {
        let why = match ended {
            ConnectionEnd::Answered { status, .. } => format!("handshake answered {status}"),
            ConnectionEnd::Closed(code) => format!("closed by the gateway, {code}"),
            ConnectionEnd::Gone(why) | ConnectionEnd::Wrong(why) => why.clone(),
        };
        *self.endings.entry(why).or_default() += 1;
    }

    fn due_drops(&mut self, now: u64) -> Result {
        while self.churn.as_mut().is_some_and(|churn| churn.take(now).is_some()) {
            let number = self.random.below(self.devices.len() as u64) as u32;
            let device = &mut self.devices[number as usize];
            if device.stage == Stage::Online {
                device.drop_connection(Stage::Away);
                self.online -= 1;
                *self.endings.entry("dropped by --churn".to_owned()).or_default() += 1;
                self.schedule_return(number, now);
            }
        }
        Ok(())
    }

    fn due_messages(&mut self) -> Result {
        let now = self.now_ns();
        while let Some(due) = self.messages.as_mut().and_then(|pace| pace.take(now)) {
            let device = self.random.below(self.devices.len() as u64) as u32;
            let connection = self.connection(device);
            let number = self.ledger.begin(due, now, device, connection);
            let node = self.via(device);
            self.waiting[node].push_back(number);
        }
        for node in 0..self.places.len() {
            while !self.waiting[node].is_empty()
                && let Some(back_end) = self.idle[node].pop()
            {
                let Some(number) = self.waiting[node].pop_front() else { break };
                let body = self.body(number);
                self.send_request(back_end, RequestSubject::Message(number), &body)?;
            }
        }
        Ok(())
    }

    /// The node that a message to this device is sent to.
    fn via(&mut self, device: u32) -> usize {
        let nodes = self.places.len();
        let own = device as usize % nodes;
        match self.plan.via {
            _ if nodes == 1 => 0,
            Via::Own => own,
            Via::Any => self.random.below(nodes as u64) as usize,
            Via::Other => (own + 1 + self.random.below(nodes as u64 - 1) as usize) % nodes,
        }
    }

    fn body(&self, number: u32) -> String {
        match self.plan.padding {
            0 => format!("{{\"n\":{number}}}"),
            bytes => format!("{{\"n\":{number},\"pad\":\"{:x<bytes$}\"}}", ""),
        }
    }

    fn send_request(&mut self, number: usize, asked: RequestSubject, body: &str) -> Result {
        let Some(api) = &self.places[number % self.places.len()].api else {
            return Err("the device API is needed: give --api URL".into());
        };
        let now = self.now_ns();
        let back_end = &mut self.back_ends[number];
        if back_end.socket.is_none() {
            let socket = device::connect(api.address, None)
                .map_err(|error| Error::new(format!("the device API at {} cannot be reached: {error}", api.address)))?;
            watch(&self.epoll, &socket, BACK_END + number as u64, EventFlags::OUT)?;
            back_end.begin(socket);
            back_end.watched = EventFlags::OUT;
        }
        match asked {
            RequestSubject::Message(message) => {
                let id = self.plan.id(self.ledger.device(message).unwrap_or(0) as usize);
                let (ack, timeout) = (self.plan.ack.name(), self.plan.timeout.as_millis());
                let path = format_args!("/v1/devices/{id}/messages?ack={ack}&timeout={timeout}ms");
                back_end.send_request(api, asked, path, body, now);
            }
            RequestSubject::Broadcast => back_end.send_request(api, asked, format_args!("/v1/broadcast"), body, now),
        }
        if let Some(answer) = back_end.flush() {
            return self.on_answer(number, asked, answer);
        }
        let back_end = &mut self.back_ends[number];
        let wanted = back_end.wanted();
        rewatch(&self.epoll, back_end.socket.as_ref(), BACK_END + number as u64, wanted, &mut back_end.watched)
    }

    fn on_back_end(&mut self, number: usize) -> Result {
        let Some(back_end) = self.back_ends.get_mut(number) else { return Ok(()) };
        let asked = back_end.asked;
        if let (Some(answer), Some(asked)) = (back_end.ready(&mut self.buffer), asked) {
            self.on_answer(number, asked, answer)?;
        }
        let back_end = &mut self.back_ends[number];
        let wanted = back_end.wanted();
        rewatch(&self.epoll, back_end.socket.as_ref(), BACK_END + number as u64, wanted, &mut back_end.watched)
    }

    fn on_answer(&mut self, number: usize, asked: RequestSubject, answer: Answer) -> Result {
        let now = self.now_ns();
        self.back_ends[number].asked = None;
        if number < self.back_ends.len() - 1 {
            self.idle[number % self.places.len()].push(number);
        }
        let status = match answer {
            Answer::Status(status @ (401 | 403), _) => {
                return Err(Error::new(format!("the device API answers {status}: give its key with --key")));
            }
            Answer::Status(400, body) => {
                let why = String::from_utf8_lossy(&body).into_owned();
                return Err(Error::new(format!("the device API answers 400: {why}")));
            }
            Answer::Status(200, body) if self.plan.ack == Ack::Reply && !is_reply(asked, &body) => WRONG_REPLY,
            Answer::Status(status, _) => status,
            Answer::Broken(why) if self.ledger.next() <= 1 => {
                return Err(Error::new(format!("the request to the device API failed: {why}")));
            }
            Answer::Broken(_) => BROKEN,
            Answer::Wrong(why) => return Err(Error::new(format!("the device API: {why}"))),
        };
        match asked {
            RequestSubject::Message(message) => {
                let sent_ns = self.back_ends[number].sent_ns;
                self.ledger.record_answer(message, status, sent_ns, now);
            }
            RequestSubject::Broadcast if status == 202 => {}
            RequestSubject::Broadcast => {
                return Err(Error::new(format!("the device API answers {status} to the broadcast")));
            }
        }
        Ok(())
    }

    /// Requests that were not answered although the gateway should have done so long ago.
    fn give_up(&mut self, now: u64) -> Result {
        let patience = (self.plan.timeout + TIMEOUT_SPARE).as_nanos() as u64;
        for (number, back_end) in self.back_ends.iter_mut().enumerate() {
            let Some(asked) = back_end.asked.filter(|_| now.saturating_sub(back_end.sent_ns) > patience) else {
                continue;
            };
            back_end.socket = None;
            back_end.asked = None;
            match asked {
                RequestSubject::Message(message) => {
                    self.idle[number % self.places.len()].push(number);
                    self.ledger.record_answer(message, TIMED_OUT, back_end.sent_ns, now);
                }
                RequestSubject::Broadcast => return Err("the device API does not answer the broadcast".into()),
            }
        }
        Ok(())
    }
}

/// Whether a reply belongs to this message.
fn is_reply(asked: RequestSubject, body: &[u8]) -> bool {
    let RequestSubject::Message(number) = asked else { return true };
    let value: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    value.and_then(|value| value.get("n")?.as_u64()) == Some(u64::from(number))
}

fn watch(epoll: &OwnedFd, source: impl AsFd, data: u64, flags: EventFlags) -> Result {
    epoll::add(epoll, source, EventData::new_u64(data), flags).map_err(|error| Error::new(format!("epoll: {error}")))
}

/// Changes the registration if other events are wanted.
fn rewatch(
    epoll: &OwnedFd,
    source: Option<impl AsFd>,
    data: u64,
    wanted: EventFlags,
    watched: &mut EventFlags,
) -> Result {
    let Some(source) = source.filter(|_| wanted != *watched) else { return Ok(()) };
    *watched = wanted;
    epoll::modify(epoll, source, EventData::new_u64(data), wanted)
        .map_err(|error| Error::new(format!("epoll: {error}")))
}

// One connection of the back-end: one request of the device API at a time, kept alive.

/// Most bytes of an answer of the device API, which usually has a few hundred.
const INPUT_BYTES_MAX: usize = 1 << 20;

/// The subject of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestSubject {
    Message(u32),
    Broadcast,
}

/// The result of a request.
#[derive(Debug)]
pub(super) enum Answer {
    /// A status and the body.
    Status(u16, Vec<u8>),
    /// The connection ended before the answer.
    Broken(String),
    /// The answer is not HTTP, or has no length.
    Wrong(String),
}

/// A connection.
#[derive(Debug, Default)]
pub(super) struct BackEnd {
    pub(super) socket: Option<Socket>,
    connected: bool,
    pub(super) asked: Option<RequestSubject>,
    pub(super) sent_ns: u64,
    pub(super) watched: EventFlags,
    input: Vec<u8>,
    output: Vec<u8>,
    head: ResponseHead,
}

impl BackEnd {
    /// A socket that is being connected.
    pub(super) fn begin(&mut self, socket: Socket) {
        *self = BackEnd { socket: Some(socket), ..BackEnd::default() };
    }

    /// Sends a message.
    pub(super) fn send_request(
        &mut self,
        api: &Api,
        asked: RequestSubject,
        path: std::fmt::Arguments<'_>,
        body: &str,
        now_ns: u64,
    ) {
        self.asked = Some(asked);
        self.sent_ns = now_ns;
        self.output.clear();
        api.post(&mut self.output, path, body);
    }

    pub(super) fn wanted(&self) -> EventFlags {
        match (self.connected, self.output.is_empty()) {
            (true, true) => EventFlags::IN,
            (true, false) => EventFlags::IN | EventFlags::OUT,
            (false, _) => EventFlags::OUT,
        }
    }

    /// Called when its socket is ready; returns an answer, when there is one. The end of an idle connection is not
    /// reported.
    pub(super) fn ready(&mut self, buffer: &mut [u8]) -> Option<Answer> {
        if !self.connected {
            if let Some(error) = self.socket.as_ref()?.take_error().ok().flatten() {
                return self.broken(error.to_string());
            }
            self.connected = true;
        }
        if let Some(broken) = self.flush() {
            return Some(broken);
        }
        match receive(self.socket.as_ref()?, buffer) {
            Ok(None) => None,
            Ok(Some(read)) => {
                self.input.extend_from_slice(&buffer[..read]);
                self.take()
            }
            Err(why) => self.broken(why),
        }
    }

    /// Writes as much as it can.
    pub(super) fn flush(&mut self) -> Option<Answer> {
        let mut socket = self.socket.as_ref().filter(|_| self.connected)?;
        while !self.output.is_empty() {
            match socket.write(&self.output) {
                Ok(written) => drop(self.output.drain(..written)),
                Err(error) if super::device::is_later(&error) => return None,
                Err(error) => return self.broken(error.to_string()),
            }
        }
        None
    }

    fn take(&mut self) -> Option<Answer> {
        self.head.reset();
        let length = match self.head.advance(&self.input, Method::Post, &HeadLimits::default()) {
            Ok(HeadProgress::Partial) if self.input.len() < INPUT_BYTES_MAX => return None,
            Ok(HeadProgress::Partial) => return Some(self.wrong("a head that is too long".to_owned())),
            Ok(HeadProgress::Complete(length)) => length,
            Err(error) => return Some(self.wrong(format!("not HTTP: {error:?}"))),
        };
        let body = match self.head.framing {
            Framing::None => 0,
            Framing::Length(bytes) if bytes <= INPUT_BYTES_MAX as u64 => bytes as usize,
            _ => return Some(self.wrong("an answer without a length, or one that is too long".to_owned())),
        };
        let body = self.input.get(length..length + body)?.to_vec();
        let status = self.head.status;
        if self.asked.take().is_none() {
            return Some(self.wrong("an answer without a request".to_owned()));
        }
        self.input.clear();
        if !self.head.keep_alive {
            self.socket = None;
        }
        Some(Answer::Status(status, body))
    }

    fn broken(&mut self, why: String) -> Option<Answer> {
        self.socket = None;
        self.asked.is_some().then_some(Answer::Broken(why))
    }

    fn wrong(&mut self, why: String) -> Answer {
        self.socket = None;
        Answer::Wrong(why)
    }
}

/// `None`: later.
fn receive(mut socket: &Socket, buffer: &mut [u8]) -> Result<Option<usize>, String> {
    match socket.read(buffer) {
        Ok(0) => Err("the gateway closed the connection".to_owned()),
        Ok(read) => Ok(Some(read)),
        Err(error) if super::device::is_later(&error) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}
