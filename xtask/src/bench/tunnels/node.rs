//! The node behind the tunnels, a separate process: accepts each handshake and answers each ping.
//!
//! One thread and one epoll; it is never measured, and must cost less than the measured gateways.

use super::websocket::{Frame, PING, PONG, answer, head_length, is_request};
use crate::Result;
use crate::args::Args;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

/// The most events returned by epoll at once.
pub(super) const EVENTS: usize = 256;
/// Bytes per read.
pub(super) const READ_BYTES: usize = 16 * 1024;
/// The most bytes of a request's head, or of incomplete frames.
const REST_BYTES_MAX: usize = 16 * 1024;

/// The word on the command line.
pub(in crate::bench) const ROLE: &str = "tunnel-node";

/// Serves until it is killed. The argument: the address to listen on.
pub(in crate::bench) fn run(mut args: Args) -> Result {
    let address: SocketAddr = args.word().ok_or("no address")?.parse()?;
    args.finish()?;
    Node::listen(address)?.serve()
}

struct Node {
    epoll: OwnedFd,
    listener: TcpListener,
    /// By descriptor.
    connections: HashMap<u64, Connection>,
}

struct Connection {
    stream: TcpStream,
    is_tunnel: bool,
    /// Received data that is incomplete.
    rest: Vec<u8>,
}

impl Node {
    fn listen(address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, key(&listener), EventFlags::IN)?;
        Ok(Self { epoll, listener, connections: HashMap::new() })
    }

    fn serve(&mut self) -> Result {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            epoll::wait(&self.epoll, spare_capacity(&mut events), None)?;
            for event in &events {
                let key = event.data.u64();
                match self.connections.get_mut(&key) {
                    None => self.accept()?,
                    Some(connection) => {
                        // Closing the descriptor removes it from epoll.
                        if !matches!(connection.progress(), Ok(true)) {
                            self.connections.remove(&key);
                        }
                    }
                }
            }
        }
    }

    fn accept(&mut self) -> Result {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            epoll::add(&self.epoll, &stream, key(&stream), EventFlags::IN)?;
            let fd = key(&stream).u64();
            self.connections.insert(fd, Connection { stream, is_tunnel: false, rest: Vec::new() });
        }
    }
}

fn key(source: &impl AsRawFd) -> EventData {
    EventData::new_u64(u64::from(source.as_raw_fd().cast_unsigned()))
}

impl Connection {
    /// Answers received data; returns whether the connection stays open.
    fn progress(&mut self) -> Result<bool> {
        let mut buffer = [0; READ_BYTES];
        let length = match self.stream.read(&mut buffer) {
            Ok(0) => return Ok(false),
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        self.rest.extend_from_slice(&buffer[..length]);
        let mut answers = Vec::new();
        let mut taken = 0;
        if !self.is_tunnel
            && let Some(length) = head_length(&self.rest)
        {
            if !is_request(&String::from_utf8_lossy(&self.rest[..length])) {
                return Err("not a request for a tunnel".into());
            }
            self.is_tunnel = true;
            taken = length;
            answers.extend_from_slice(answer().as_bytes());
        }
        while self.is_tunnel
            && let Some((length, frame)) = Frame::read(&self.rest[taken..])?
        {
            taken += length;
            if frame.opcode != PING {
                return Err(format!("opcode {:x} where only pings come", frame.opcode).into());
            }
            Frame { opcode: PONG, ..frame }.write(&mut answers, false);
        }
        self.rest.drain(..taken);
        if self.rest.is_empty() {
            // An idle tunnel keeps no memory here either.
            self.rest = Vec::new();
        }
        // Pongs that the socket does not accept end the tunnel, and are counted as lost.
        self.stream.write_all(&answers)?;
        Ok(self.rest.len() <= REST_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fleet::{Fleet, Pace};
    use super::*;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn serves_many_tunnels_and_refuses_the_rest() {
        let mut node = Node::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = node.listener.local_addr().unwrap();
        thread::spawn(move || node.serve().map_err(|error| error.to_string()));
        let mut fleet = Fleet::new().unwrap();
        fleet.open(address, "/tunnel", 20).unwrap();
        let mut answered = 0;
        while answered < 20 {
            let counted = fleet.run(Pace::Answers(7), Duration::from_millis(50)).unwrap();
            assert_eq!((counted.sent, counted.wrong()), (counted.answered, None));
            answered += counted.answered;
        }
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0);
        assert_eq!(fleet.run(Pace::Answers(1), Duration::from_millis(10)).unwrap().wrong(), None);
    }
}
