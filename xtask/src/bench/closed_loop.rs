//! A load that sends a number of numbered requests as fast as they are answered, each exactly once.
//!
//! For counting, not for latency: any response other than 200 ends it, because a sum could no longer be exact.

use super::load_connection::{LoadConnection, wait};
use crate::Result;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The longest time without any response before an error.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The requests to send.
pub(super) struct ClosedLoop<'a> {
    pub(super) address: SocketAddr,
    pub(super) connections: usize,
    /// Requests in flight on each connection; 1 means without pipelining.
    pub(super) depth: u64,
    /// Total number of requests.
    pub(super) count: u64,
    /// Appends the request with this number.
    pub(super) request: &'a dyn Fn(u64, &mut Vec<u8>),
}

/// One connection with its requests in flight.
struct Lane {
    connection: LoadConnection,
    under_way: u64,
}

impl ClosedLoop<'_> {
    /// Sends all requests and waits for all responses; returns how long that took.
    pub(super) fn run(&self) -> Result<Duration> {
        let begin = Instant::now();
        let mut sent = 0;
        let mut answered = 0;
        let mut lanes = Vec::with_capacity(self.connections);
        for _ in 0..self.connections {
            let connection = LoadConnection::open(self.address)?;
            let mut lane = Lane { connection, under_way: 0 };
            self.fill(&mut lane, &mut sent)?;
            lanes.push(lane);
        }
        while answered < self.count {
            let open = lanes.iter().enumerate().map(|(number, lane)| (number, &lane.connection));
            let ready = wait(open, STALL_TIMEOUT)?;
            if ready.is_empty() {
                return Err(format!("{answered} requests answered, and nothing more for 10 s").into());
            }
            for number in ready {
                let lane = &mut lanes[number];
                let received = lane.connection.progress().map_err(|error| format!("after {answered}: {error}"))?;
                answered += received.answers;
                lane.under_way = lane.under_way.checked_sub(received.answers).ok_or("more answers than requests")?;
                if received.closes {
                    if lane.under_way > 0 {
                        return Err(format!("closed with {} requests unanswered", lane.under_way).into());
                    }
                    lane.connection = LoadConnection::open(self.address)?;
                }
                self.fill(lane, &mut sent)?;
            }
        }
        Ok(begin.elapsed())
    }

    /// Sends as many of the next requests on a connection as may be in flight.
    fn fill(&self, lane: &mut Lane, sent: &mut u64) -> Result {
        let room = (self.depth - lane.under_way).min(self.count - *sent);
        if room == 0 {
            return Ok(());
        }
        let mut requests = Vec::new();
        for number in *sent..*sent + room {
            (self.request)(number, &mut requests);
        }
        *sent += room;
        lane.under_way += room;
        lane.connection.send(&requests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::sync::mpsc::sync_channel;

    #[test]
    fn every_request_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, all) = sync_channel(1000);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, seen) = (stream.unwrap(), seen.clone());
                std::thread::spawn(move || {
                    let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                    for line in lines.map_while(std::io::Result::ok).filter(|line| !line.is_empty()) {
                        seen.send(line).unwrap();
                        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
                    }
                });
            }
        });
        let request = |number: u64, out: &mut Vec<u8>| {
            // Writing to a `Vec` cannot fail.
            let _ = write!(out, "GET /{number} HTTP/1.1\r\n\r\n");
        };
        let load = ClosedLoop { address, connections: 3, depth: 4, count: 100, request: &request };
        load.run().unwrap();
        let lines: HashSet<String> = all.iter().take(100).collect();
        assert_eq!(lines.len(), 100);
        assert!(all.try_recv().is_err());
    }
}
