//! The clients' ends of all tunnels: opened one by one, then pinged by a clock or as fast as pongs arrive.
//!
//! Every ping contains the number of its tunnel and its own, so that a lost, duplicated or misdirected pong is detected. With the
//! clock it is an open loop: pings do not wait for pongs, and a pause of the target shows in each ping during it.

use super::{Clients, MessagePace, MessageTotals};
use crate::error::{Error, Result};
use crate::target::TUNNEL_PATH;
use crate::websocket::{self, Opcode, Sender};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The time limit of a handshake and of a pong.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest wait, so that the end of a run is noticed.
const WAIT_MAX: Duration = Duration::from_millis(20);
/// Number of ended tunnels that are described; all are counted.
const ENDS_SHOWN: usize = 5;
/// The timer's index among the tunnels'.
const TIMER: u64 = u64::MAX;
/// The most events of one wait.
const EVENTS_MAX: usize = 256;
/// Bytes per read.
const READ_BYTES: usize = 16 * 1024;
/// Bytes of a ping.
const PAYLOAD_BYTES: usize = 64;
/// The mask of pings. It should be unpredictable; here it only has to be reversible.
const MASK: [u8; 4] = [0x3C, 0xA5, 0x5A, 0xC3];

/// All tunnels to one target.
#[derive(Debug)]
pub(crate) struct Fleet {
    target: SocketAddr,
    epoll: OwnedFd,
    timer: OwnedFd,
    tunnels: Vec<Tunnel>,
    /// The next tunnel to ping.
    next: usize,
    epoch: Instant,
}

#[derive(Debug)]
struct Tunnel {
    /// `None` once it has ended.
    stream: Option<TcpStream>,
    /// An incomplete frame.
    rest: Vec<u8>,
    sent: u32,
    answered: u32,
    worst_us: u64,
}

/// What a ping contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    tunnel: u32,
    number: u32,
    /// The time since the fleet's epoch.
    sent_ns: u64,
}

/// A run so far.
struct Run {
    totals: MessageTotals,
    last_answer: Instant,
}

impl Fleet {
    /// A fleet without tunnels.
    pub(crate) fn new(target: SocketAddr) -> Result<Fleet> {
        let make = || {
            let epoll = epoll::create(CreateFlags::CLOEXEC)?;
            let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
            epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
            Ok(Fleet { target, epoll, timer, tunnels: Vec::new(), next: 0, epoch: Instant::now() })
        };
        make().map_err(|error: io::Error| Error::new(format!("the tunnels: {error}")))
    }

    fn run_for(&mut self, pace: MessagePace, duration: Duration) -> io::Result<MessageTotals> {
        let begin = Instant::now();
        let mut run = Run { totals: MessageTotals::new(), last_answer: begin };
        self.tunnels.iter_mut().for_each(|tunnel| tunnel.worst_us = 0);
        let step = match pace {
            MessagePace::Clock(per_second) => Duration::from_secs_f64(1.0 / per_second),
            MessagePace::Answers(_) => Duration::ZERO,
        };
        self.set_timer(step)?;
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            let elapsed = begin.elapsed();
            match pace {
                // However late it is, the number of pings is exactly the number due.
                MessagePace::Clock(_) => loop {
                    let due = step.mul_f64((run.totals.sent + 1) as f64);
                    if due > elapsed.min(duration) {
                        break;
                    }
                    run.totals.late_us.saturating_record(micros(begin.elapsed().saturating_sub(due)));
                    self.ping(&mut run)?;
                },
                MessagePace::Answers(at_once) => {
                    while elapsed < duration && run.under_way() < at_once as u64 {
                        self.ping(&mut run)?;
                    }
                }
            }
            if elapsed >= duration && (run.under_way() == 0 || elapsed > duration + ANSWER_TIMEOUT) {
                break;
            }
            events.clear();
            epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timespec(WAIT_MAX)))?;
            for event in &events {
                self.handle(event, &mut run);
            }
        }
        self.set_timer(Duration::ZERO)?;
        self.give_up_silent(&mut run);
        for tunnel in self.tunnels.iter().filter(|tunnel| tunnel.worst_us > 0) {
            run.totals.worst_us.saturating_record(tunnel.worst_us);
        }
        Ok(run.totals)
    }

    /// A timer instead of epoll's timeout, which counts milliseconds. Zero stops it.
    fn set_timer(&self, step: Duration) -> io::Result<()> {
        let step = timespec(step);
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: step, it_value: step })?;
        Ok(())
    }

    fn handle(&mut self, event: &Event, run: &mut Run) {
        let number = event.data.u64();
        if number == TIMER {
            let mut expirations = [0; 8];
            // It may have been stopped meanwhile; the clock shows how often it fired anyway.
            let _ = rustix::io::read(&self.timer, &mut expirations);
            return;
        }
        let tunnel = &mut self.tunnels[number as usize];
        if let Err(why) = tunnel.receive(number, self.epoch, run) {
            tunnel.end(number, &why, run);
        }
    }

    /// Sends one ping on the next open tunnel.
    fn ping(&mut self, run: &mut Run) -> io::Result<()> {
        for _ in 0..self.tunnels.len() {
            let number = self.next;
            self.next = (number + 1) % self.tunnels.len();
            let tunnel = &mut self.tunnels[number];
            let Some(stream) = &mut tunnel.stream else { continue };
            let sent_ns = self.epoch.elapsed().as_nanos() as u64;
            let stamp = Stamp { tunnel: number as u32, number: tunnel.sent, sent_ns };
            let mut bytes = Vec::new();
            websocket::write(&mut bytes, Opcode::Ping, &stamp.to_bytes(), MASK);
            tunnel.sent += 1;
            run.totals.sent += 1;
            if let Err(error) = stream.write_all(&bytes) {
                tunnel.end(number as u64, &format!("a ping could not be sent: {error}"), run);
            }
            return Ok(());
        }
        Err(io::Error::other("no tunnel is left"))
    }

    /// Closes the tunnels with missing pongs: a late pong would be counted in the next run.
    fn give_up_silent(&mut self, run: &mut Run) {
        for (number, tunnel) in self.tunnels.iter_mut().enumerate() {
            if tunnel.stream.is_some() && tunnel.sent > tunnel.answered {
                tunnel.end(number as u64, &format!("no pong within {ANSWER_TIMEOUT:?}"), run);
            }
        }
    }
}

impl Clients for Fleet {
    fn open(&mut self, count: usize) -> Result {
        let request = websocket::request("tunnel.example", TUNNEL_PATH, "");
        for _ in 0..count {
            let number = self.tunnels.len();
            let open = || {
                let stream = handshake(self.target, &request)?;
                epoll::add(&self.epoll, &stream, EventData::new_u64(number as u64), EventFlags::IN)?;
                Ok(stream)
            };
            let stream = open().map_err(|error: io::Error| Error::new(format!("tunnel {number}: {error}")))?;
            let stream = Some(stream);
            self.tunnels.push(Tunnel { stream, rest: Vec::new(), sent: 0, answered: 0, worst_us: 0 });
        }
        Ok(())
    }

    fn close(&mut self) {
        self.tunnels.clear();
        self.next = 0;
    }

    fn run(&mut self, pace: MessagePace, duration: Duration) -> Result<MessageTotals> {
        self.run_for(pace, duration).map_err(|error| Error::new(format!("the tunnels: {error}")))
    }
}

impl Run {
    fn under_way(&self) -> u64 {
        self.totals.sent - self.totals.answered - self.totals.lost
    }
}

impl Tunnel {
    /// Handles received data.
    fn receive(&mut self, own: u64, epoch: Instant, run: &mut Run) -> Result<(), String> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        let mut buffer = [0; READ_BYTES];
        let length = match stream.read(&mut buffer) {
            Ok(0) => return Err("closed".to_owned()),
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        let now = Instant::now();
        self.rest.extend_from_slice(&buffer[..length]);
        let mut taken = 0;
        while let Some(frame) = websocket::read(&self.rest[taken..], Sender::Server)? {
            taken += frame.length;
            let stamp = Stamp::from_bytes(frame.payload()).filter(|stamp| u64::from(stamp.tunnel) == own);
            let Some(stamp) = stamp.filter(|_| frame.opcode == Opcode::Pong) else {
                return Err(format!("not a pong of its own: {:?}", frame.opcode));
            };
            if stamp.number < self.answered {
                run.totals.doubled += 1;
                continue;
            }
            run.totals.lost += u64::from(stamp.number - self.answered);
            run.totals.answered += 1;
            self.answered = stamp.number + 1;
            let took = micros((now - epoch).saturating_sub(Duration::from_nanos(stamp.sent_ns)));
            run.totals.answer_us.saturating_record(took);
            self.worst_us = self.worst_us.max(took);
            run.totals.silence_us = run.totals.silence_us.max(micros(now - run.last_answer));
            run.last_answer = now;
        }
        self.rest.drain(..taken);
        if self.rest.is_empty() {
            // An idle tunnel keeps no memory here either.
            self.rest = Vec::new();
        }
        Ok(())
    }

    /// Pings under way are lost.
    fn end(&mut self, own: u64, why: &str, run: &mut Run) {
        run.totals.broken += 1;
        run.totals.lost += u64::from(self.sent - self.answered);
        if run.totals.ends.len() < ENDS_SHOWN {
            run.totals.ends.push(format!("tunnel {own}, after {} pongs: {why}", self.answered));
        }
        self.answered = self.sent;
        self.stream = None;
    }
}

impl Stamp {
    fn to_bytes(self) -> [u8; PAYLOAD_BYTES] {
        let mut bytes = [0; PAYLOAD_BYTES];
        bytes[..4].copy_from_slice(&self.tunnel.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sent_ns.to_le_bytes());
        bytes
    }

    /// `None`: it has another length.
    fn from_bytes(bytes: &[u8]) -> Option<Stamp> {
        let bytes: &[u8; PAYLOAD_BYTES] = bytes.try_into().ok()?;
        let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let sent_ns = u64::from_le_bytes(std::array::from_fn(|byte| bytes[8 + byte]));
        Some(Stamp { tunnel: number(0), number: number(4), sent_ns })
    }
}

/// Opens a tunnel; a server sends nothing before it is pinged.
fn handshake(address: SocketAddr, request: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(request.as_bytes())?;
    let (mut received, mut part) = (Vec::new(), [0; 1024]);
    while !received.ends_with(b"\r\n\r\n") {
        match stream.read(&mut part)? {
            0 => break,
            length => received.extend_from_slice(&part[..length]),
        }
    }
    let head = String::from_utf8_lossy(&received);
    if !websocket::is_accepted(&head) {
        return Err(io::Error::other(format!("the handshake was answered {head:?}")));
    }
    stream.set_nonblocking(true)?;
    Ok(stream)
}

fn micros(duration: Duration) -> u64 {
    duration.as_micros() as u64
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::responder::{Latency, Responder, Setup};
    use std::net::TcpListener;
    use std::thread;

    /// A server of one tunnel, which answers the ping of each number this many times, and closes the tunnel at `None`.
    fn serve(times: &'static [Option<usize>]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut received = Vec::new();
            let read = |received: &mut Vec<u8>, stream: &mut TcpStream| {
                let mut part = [0; 1024];
                let length = stream.read(&mut part).unwrap();
                received.extend_from_slice(&part[..length]);
                length > 0
            };
            while !received.ends_with(b"\r\n\r\n") {
                assert!(read(&mut received, &mut stream));
            }
            received.clear();
            stream.write_all(websocket::acceptance().as_bytes()).unwrap();
            for times in times {
                let (length, ping) = loop {
                    let frame = websocket::read(&received, Sender::Client).unwrap();
                    match frame.map(|frame| (frame.length, frame.unmasked())) {
                        Some(ping) => break ping,
                        None if read(&mut received, &mut stream) => {}
                        None => return,
                    }
                };
                received.drain(..length);
                let Some(times) = times else { return };
                let mut bytes = Vec::new();
                (0..*times).for_each(|_| websocket::write_plain(&mut bytes, Opcode::Pong, &ping));
                stream.write_all(&bytes).unwrap();
            }
            // Until the client closes.
            while read(&mut received, &mut stream) {}
        });
        address
    }

    fn check(times: &'static [Option<usize>]) -> MessageTotals {
        let mut fleet = Fleet::new(serve(times)).unwrap();
        fleet.open(1).unwrap();
        // In the first half of the time, one ping for each that the server answers.
        let duration = Duration::from_millis(50) * times.len() as u32 + Duration::from_millis(25);
        fleet.run(MessagePace::Clock(20.0), duration).unwrap()
    }

    #[test]
    fn all_is_well() {
        let totals = check(&[Some(1), Some(1), Some(1)]);
        assert_eq!((totals.sent, totals.answered, totals.wrong()), (3, 3, None));
        assert!(totals.answer_us.max() > 0 && totals.worst_us.len() == 1);
        assert!(totals.silence_us >= 40_000);
    }

    #[test]
    fn what_goes_wrong_is_counted() {
        let passed_over = check(&[Some(1), Some(0), Some(1)]);
        assert_eq!((passed_over.sent, passed_over.answered, passed_over.lost), (3, 2, 1));
        let doubled = check(&[Some(2), Some(1)]);
        assert_eq!((doubled.answered, doubled.lost, doubled.doubled), (2, 0, 1));
        assert!(doubled.wrong().unwrap().contains("1 doubled"));
        let mut fleet = Fleet::new(serve(&[Some(1), None])).unwrap();
        fleet.open(1).unwrap();
        fleet.target = serve(&[Some(1); 100]);
        fleet.open(1).unwrap();
        let closed = fleet.run(MessagePace::Clock(40.0), Duration::from_millis(160)).unwrap();
        assert_eq!((closed.broken, closed.lost), (1, 1));
        assert!(closed.ends[0].starts_with("tunnel 0, after 1 pongs: "), "{:?}", closed.ends);
        assert_eq!(closed.sent, closed.answered + closed.lost);
    }

    #[test]
    fn a_handshake_must_be_accepted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").unwrap();
            let _ = stream.read(&mut [0; 1024]);
        });
        let error = Fleet::new(address).unwrap().open(1).unwrap_err().to_string();
        assert!(error.starts_with("tunnel 0: the handshake was answered \"HTTP/1.1 404"), "{error}");
    }

    #[test]
    fn the_responder_serves_many_tunnels() {
        let setup = Setup {
            address: "127.0.0.1:0".parse().unwrap(),
            body_bytes: 1,
            latency: Latency::None,
            seed: 1,
            connections_max: None,
        };
        let responder = Responder::bind(&setup).unwrap();
        let address = responder.address;
        thread::spawn(move || responder.run().map(drop).map_err(|error| error.to_string()));
        let mut fleet = Fleet::new(address).unwrap();
        fleet.open(20).unwrap();
        let mut answered = 0;
        while answered < 20 {
            let totals = fleet.run(MessagePace::Answers(7), Duration::from_millis(50)).unwrap();
            assert_eq!((totals.sent, totals.wrong()), (totals.answered, None));
            answered += totals.answered;
        }
        assert_eq!(crate::client::Client::new(address).get("/").unwrap().status, 200);
    }
}
