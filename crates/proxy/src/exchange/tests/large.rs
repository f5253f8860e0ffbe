//! A response that is much larger than what a worker may hold, through a filter that changes each of its bytes and without one.
//!
//! `STILLGATE_BODY_MIB=1024` sends a whole GiB, and prints throughput and memory of both.

use super::*;
use crate::fleet::allocations::measured;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

const MIB: usize = 1024 * 1024;
/// Default without the variable.
const BODY_MIB: usize = 16;
/// Maximum of bytes that a worker's thread has allocated at once, including its runtime and the buffers of both connections.
const HELD_BYTES_MAX: u64 = MIB as u64;
/// The body repeats after so many bytes: not a power of two, so that a lost piece is always noticed.
const PATTERN_BYTES: usize = 65_521;

/// Inverts each byte.
struct InvertingFilter;

impl BodyFilter for InvertingFilter {
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), BodyError> {
        out.extend(piece.iter().map(|byte| !byte));
        Ok(())
    }

    fn end(&mut self, _: &mut Vec<u8>) -> Result<(), BodyError> {
        Ok(())
    }

    fn held_bytes(&self) -> usize {
        0
    }
}

fn pattern() -> Vec<u8> {
    (0..PATTERN_BYTES).map(|at| (at * 31 % 251) as u8).collect()
}

/// A node that responds to each request with so many bytes.
fn node(bytes: usize) -> Upstream {
    Upstream::serve(move |connection| {
        while connection.read_request().is_ok() {
            connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n"));
            let (pattern, mut left) = (pattern(), bytes);
            while left > 0 {
                let piece = left.min(PATTERN_BYTES);
                connection.send(&pattern[..piece]);
                left -= piece;
            }
        }
    })
}

/// Reads a body to its end, and checks its length and its repeated content.
fn read(address: SocketAddr, bytes: usize, expected: &[u8]) {
    let mut stream = TcpStream::connect(address).unwrap();
    // A response to HTTP/1.0 ends with the connection, whatever a filter does to its length.
    stream.write_all(b"GET /r HTTP/1.0\r\nHost: h\r\n\r\n").unwrap();
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", head.escape_ascii());
    let (mut buffer, mut left) = (vec![0; PATTERN_BYTES], bytes);
    while left > 0 {
        let piece = left.min(PATTERN_BYTES);
        stream.read_exact(&mut buffer[..piece]).unwrap();
        assert!(buffer[..piece] == expected[..piece], "byte {} or one of the {piece} behind it", bytes - left);
        left -= piece;
    }
    assert_eq!(stream.read(&mut byte).unwrap(), 0, "something behind the body");
}

fn check(name: &str, filter: Option<Arc<Chain>>, expected: &[u8]) {
    let asked = std::env::var("STILLGATE_BODY_MIB").ok().map(|mib| mib.parse::<usize>().unwrap());
    let bytes = asked.unwrap_or(BODY_MIB) * MIB;
    let node = node(bytes);
    let (config, mut plan) = planned(&[&node]);
    plan.routes.set_chain(0, filter);
    let mut took = Duration::ZERO;
    let held = measured(&config, plan, |address| {
        let began = Instant::now();
        read(address, bytes, expected);
        took = began.elapsed();
    });
    if asked.is_some() {
        let rate = (bytes / MIB) as f64 / took.as_secs_f64();
        println!("{name}: {rate:.0} MiB/s, at most {} KiB held by the worker", held.bytes_max / 1024);
    }
    assert!(held.bytes_max <= HELD_BYTES_MAX, "{name}: {} bytes at once", held.bytes_max);
}

#[test]
fn a_filter_that_changes_each_byte_holds_little() {
    let filter = ScriptedPlugin::header_filter(|response| response.body.filter(Box::new(InvertingFilter))).chain();
    let inverted: Vec<u8> = pattern().iter().map(|byte| !byte).collect();
    check("through a filter", filter, &inverted);
}

#[test]
fn without_a_filter_as_little() {
    check("without a filter", None, &pattern());
}
