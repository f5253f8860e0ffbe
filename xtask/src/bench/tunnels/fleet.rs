//! The clients' ends of all tunnels: opened one by one, then pinged by a clock or as fast as pongs arrive.
//!
//! Every ping contains the number of its tunnel and its own, so that a lost, duplicated or misdirected pong is detected. With the
//! clock it is an open loop: pings do not wait for pongs, and a pause of the gateway shows in each ping during it.

use super::counted::{Counted, Quantiles};
use super::node::{EVENTS, READ_BYTES};
use super::websocket::{Frame, PAYLOAD_BYTES, PING, PONG, head_length, is_answer, request};
use crate::Result;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The time limit of a handshake and of a pong.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest wait, so that the end of a run is noticed.
const WAIT_MAX: Duration = Duration::from_millis(20);
/// Number of ended tunnels reported in full; all are counted.
const ENDS_SHOWN: usize = 5;
/// The timer's index among the tunnels'.
const TIMER: u64 = u64::MAX;

/// When pings are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::bench) enum Pace {
    /// This many per second, on the tunnels in turn.
    Clock(f64),
    /// This many in flight; each pong triggers the next ping on the next tunnel.
    Answers(usize),
}

pub(super) struct Fleet {
    epoll: OwnedFd,
    timer: OwnedFd,
    tunnels: Vec<Tunnel>,
    /// The next tunnel to ping.
    next: usize,
    epoch: Instant,
}

struct Tunnel {
    /// `None` once it has ended.
    stream: Option<TcpStream>,
    /// An incomplete frame.
    rest: Vec<u8>,
    sent: u32,
    answered: u32,
    worst_us: u32,
}

/// The payload of a ping.
struct Stamp {
    tunnel: u32,
    number: u32,
    /// The time since the fleet's epoch.
    sent_ns: u64,
}

/// The counts of a run so far.
struct Run {
    counted: Counted,
    answer_us: Vec<u32>,
    late_us: Vec<u32>,
    last_answer: Instant,
}

impl Fleet {
    pub(super) fn new() -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        Ok(Self { epoll, timer, tunnels: Vec::new(), next: 0, epoch: Instant::now() })
    }

    /// Opens further tunnels.
    pub(super) fn open(&mut self, address: SocketAddr, path: &str, count: usize) -> Result {
        let request = request(path);
        for _ in 0..count {
            let number = self.tunnels.len();
            let stream = handshake(address, &request).map_err(|error| format!("tunnel {number}: {error}"))?;
            epoll::add(&self.epoll, &stream, EventData::new_u64(number as u64), EventFlags::IN)?;
            let stream = Some(stream);
            self.tunnels.push(Tunnel { stream, rest: Vec::new(), sent: 0, answered: 0, worst_us: 0 });
        }
        Ok(())
    }

    /// Closes all of them.
    pub(super) fn close(&mut self) {
        self.tunnels.clear();
        self.next = 0;
    }

    /// Pings for this long and then waits for the last pongs.
    pub(super) fn run(&mut self, pace: Pace, duration: Duration) -> Result<Counted> {
        let begin = Instant::now();
        let mut run = Run { counted: Counted::default(), answer_us: vec![], late_us: vec![], last_answer: begin };
        for tunnel in &mut self.tunnels {
            tunnel.worst_us = 0;
        }
        let step = match pace {
            Pace::Clock(per_second) => Duration::from_secs_f64(1.0 / per_second),
            Pace::Answers(_) => Duration::ZERO,
        };
        self.set_timer(step)?;
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            let elapsed = begin.elapsed();
            match pace {
                // However late it is, the number of pings is exactly the number due.
                Pace::Clock(_) => loop {
                    let due = step * u32::try_from(run.counted.sent + 1)?;
                    if due > elapsed.min(duration) {
                        break;
                    }
                    run.late_us.push(micros(begin.elapsed() - due));
                    self.ping(&mut run)?;
                },
                Pace::Answers(at_once) => {
                    while elapsed < duration && run.under_way() < at_once as u64 {
                        self.ping(&mut run)?;
                    }
                }
            }
            if elapsed >= duration && (run.under_way() == 0 || elapsed > duration + ANSWER_TIMEOUT) {
                break;
            }
            events.clear();
            epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&Timespec::try_from(WAIT_MAX)?))?;
            for event in &events {
                self.handle(event, &mut run)?;
            }
        }
        self.set_timer(Duration::ZERO)?;
        self.give_up_silent(&mut run);
        let worst = self.tunnels.iter().map(|tunnel| tunnel.worst_us).collect();
        Ok(Counted {
            answer_us: Quantiles::of(run.answer_us),
            worst_us: Quantiles::of(worst),
            late_us: Quantiles::of(run.late_us),
            ..run.counted
        })
    }

    /// A timer instead of epoll's timeout, which counts milliseconds. Zero stops it.
    fn set_timer(&self, step: Duration) -> Result {
        let step = Timespec::try_from(step)?;
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: step, it_value: step })?;
        Ok(())
    }

    fn handle(&mut self, event: &Event, run: &mut Run) -> Result {
        let number = event.data.u64();
        if number == TIMER {
            let mut expirations = [0; 8];
            // It may have been stopped meanwhile; the clock shows how often it fired anyway.
            let _ = rustix::io::read(&self.timer, &mut expirations);
            return Ok(());
        }
        let tunnel = &mut self.tunnels[usize::try_from(number)?];
        if let Err(error) = tunnel.receive(number, self.epoch, run) {
            tunnel.end(number, &error.to_string(), run);
        }
        Ok(())
    }

    /// Sends one ping on the next open tunnel.
    fn ping(&mut self, run: &mut Run) -> Result {
        for _ in 0..self.tunnels.len() {
            let number = self.next;
            self.next = (number + 1) % self.tunnels.len();
            let tunnel = &mut self.tunnels[number];
            let Some(stream) = &mut tunnel.stream else { continue };
            let sent_ns = u64::try_from(self.epoch.elapsed().as_nanos())?;
            let stamp = Stamp { tunnel: u32::try_from(number)?, number: tunnel.sent, sent_ns };
            let mut bytes = Vec::new();
            Frame { opcode: PING, payload: stamp.to_bytes() }.write(&mut bytes, true);
            tunnel.sent += 1;
            run.counted.sent += 1;
            if let Err(error) = stream.write_all(&bytes) {
                tunnel.end(number as u64, &format!("a ping could not be sent: {error}"), run);
            }
            return Ok(());
        }
        Err("no tunnel is left".into())
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

impl Run {
    fn under_way(&self) -> u64 {
        self.counted.sent - self.counted.answered - self.counted.lost
    }
}

impl Tunnel {
    /// Handles received data.
    fn receive(&mut self, own: u64, epoch: Instant, run: &mut Run) -> Result {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        let mut buffer = [0; READ_BYTES];
        let length = match stream.read(&mut buffer) {
            Ok(0) => return Err("closed".into()),
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let now = Instant::now();
        self.rest.extend_from_slice(&buffer[..length]);
        let mut taken = 0;
        while let Some((length, frame)) = Frame::read(&self.rest[taken..])? {
            taken += length;
            let stamp = Stamp::from_bytes(&frame.payload);
            if frame.opcode != PONG || u64::from(stamp.tunnel) != own {
                return Err(format!("a pong of tunnel {} with opcode {:x}", stamp.tunnel, frame.opcode).into());
            }
            if stamp.number < self.answered {
                run.counted.doubled += 1;
                continue;
            }
            run.counted.lost += u64::from(stamp.number - self.answered);
            run.counted.answered += 1;
            self.answered = stamp.number + 1;
            let took = micros((now - epoch).saturating_sub(Duration::from_nanos(stamp.sent_ns)));
            run.answer_us.push(took);
            self.worst_us = self.worst_us.max(took);
            run.counted.silence_us = run.counted.silence_us.max(micros(now - run.last_answer));
            run.last_answer = now;
        }
        self.rest.drain(..taken);
        Ok(())
    }

    /// Pings in flight are lost.
    fn end(&mut self, own: u64, why: &str, run: &mut Run) {
        run.counted.broken += 1;
        run.counted.lost += u64::from(self.sent - self.answered);
        if run.counted.ends.len() < ENDS_SHOWN {
            run.counted.ends.push(format!("tunnel {own}, after {} pongs: {why}", self.answered));
        }
        self.answered = self.sent;
        self.stream = None;
    }
}

impl Stamp {
    fn to_bytes(&self) -> [u8; PAYLOAD_BYTES] {
        let mut bytes = [0; PAYLOAD_BYTES];
        bytes[..4].copy_from_slice(&self.tunnel.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sent_ns.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; PAYLOAD_BYTES]) -> Self {
        let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let sent_ns = u64::from_le_bytes(std::array::from_fn(|byte| bytes[8 + byte]));
        Self { tunnel: number(0), number: number(4), sent_ns }
    }
}

/// Makes a tunnel after its handshake; a server sends nothing before it is pinged.
fn handshake(address: SocketAddr, request: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(request.as_bytes())?;
    let (mut received, mut part) = (Vec::new(), [0; 1024]);
    while head_length(&received).is_none() {
        let length = stream.read(&mut part)?;
        received.extend_from_slice(&part[..length]);
        if length == 0 {
            break;
        }
    }
    let head = String::from_utf8_lossy(&received);
    if !is_answer(&head) || head_length(&received) != Some(received.len()) {
        return Err(format!("not a handshake's answer: {head:?}").into());
    }
    stream.set_nonblocking(true)?;
    Ok(stream)
}

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::websocket::answer;
    use super::*;
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
            while head_length(&received).is_none() {
                assert!(read(&mut received, &mut stream));
            }
            received.clear();
            stream.write_all(answer().as_bytes()).unwrap();
            for times in times {
                let (length, ping) = loop {
                    match Frame::read(&received).unwrap() {
                        Some(found) => break found,
                        None if read(&mut received, &mut stream) => {}
                        None => return,
                    }
                };
                received.drain(..length);
                let Some(times) = times else { return };
                let mut bytes = Vec::new();
                for _ in 0..*times {
                    Frame { opcode: PONG, payload: ping.payload }.write(&mut bytes, false);
                }
                stream.write_all(&bytes).unwrap();
            }
            // Until the client closes.
            while read(&mut received, &mut stream) {}
        });
        address
    }

    fn check(times: &'static [Option<usize>], pace: Pace) -> Counted {
        let mut fleet = Fleet::new().unwrap();
        fleet.open(serve(times), "/", 1).unwrap();
        // In the first half of the time, one ping for each that the server answers.
        fleet
            .run(pace, Duration::from_millis(50) * u32::try_from(times.len()).unwrap() + Duration::from_millis(25))
            .unwrap()
    }

    #[test]
    fn all_is_well() {
        let counted = check(&[Some(1), Some(1), Some(1)], Pace::Clock(20.0));
        assert_eq!((counted.sent, counted.answered, counted.wrong()), (3, 3, None));
        assert!(counted.answer_us.max > 0 && counted.worst_us.max == counted.answer_us.max);
        assert!(counted.silence_us >= 40_000);
    }

    #[test]
    fn what_goes_wrong_is_counted() {
        let passed_over = check(&[Some(1), Some(0), Some(1)], Pace::Clock(20.0));
        assert_eq!((passed_over.sent, passed_over.answered, passed_over.lost), (3, 2, 1));
        let doubled = check(&[Some(2), Some(1)], Pace::Clock(20.0));
        assert_eq!((doubled.answered, doubled.lost, doubled.doubled), (2, 0, 1));
        assert!(doubled.wrong().unwrap().contains("1 doubled"));
        let closed = Fleet::new().and_then(|mut fleet| {
            fleet.open(serve(&[Some(1), None]), "/", 1)?;
            fleet.open(serve(&[Some(1); 100]), "/", 1)?;
            fleet.run(Pace::Clock(40.0), Duration::from_millis(160))
        });
        let closed = closed.unwrap();
        assert_eq!((closed.sent, closed.answered + closed.lost, closed.broken), (6, 6, 1));
        // Three on one tunnel; on the other the first, and one more that may be sent before its end is noticed is lost as well.
        assert!((1..=2).contains(&closed.lost), "{}", closed.lost);
        assert!(closed.ends[0].starts_with("tunnel 0, after 1 pongs: closed"), "{:?}", closed.ends);
    }

    #[test]
    fn a_server_that_does_not_switch_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n").unwrap();
            let _ = stream.read(&mut [0; 1024]);
        });
        let error = Fleet::new().unwrap().open(address, "/", 1).unwrap_err().to_string();
        assert!(error.contains("502"), "{error}");
    }
}
