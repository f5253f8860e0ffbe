//! A small HTTP/1.1 server that wastes a given amount of work on each request: the slow-down that is planted to see
//! whether `stillgate-lab compare` finds it. `false_alarms` sets the amount.
//!
//! `spinning IP:PORT ROUNDS` serves; `spinning --time ROUNDS` prints how many nanoseconds of CPU that many rounds take.
//! It has a thread per connection, no pipelining, and no request bodies: enough for the laboratory's own load. There
//! are as many threads as connections allowed, and they outlive connections: for threads that have ended, the kernel
//! reports CPU time in clock ticks only.

use std::error::Error;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 4096;

/// The best of this many timings counts: disturbances can only add time.
const TIMINGS: usize = 20;

/// Work of every request, planted or not, so that the server is not only system calls.
const ROUNDS_ALWAYS: u64 = 3000;

/// Further connections wait until one of these ends.
const CONNECTIONS_MAX: usize = 128;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [first, rounds] = words.as_slice() else {
        return Err("usage: spinning IP:PORT ROUNDS, or spinning --time ROUNDS".into());
    };
    let rounds: u64 = rounds.parse()?;
    if first == "--time" {
        let best = (0..TIMINGS).map(|_| timed(rounds)).min().unwrap_or_default();
        println!("{best}");
        return Ok(());
    }
    let listener = &TcpListener::bind(first)?;
    thread::scope(|scope| {
        for _ in 0..CONNECTIONS_MAX {
            scope.spawn(move || {
                // A connection that breaks is counted by the load generator.
                while let Ok((stream, _)) = listener.accept() {
                    let _ = serve(stream, ROUNDS_ALWAYS + rounds);
                }
            });
        }
    });
    Ok(())
}

fn serve(mut stream: TcpStream, rounds: u64) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut head = [0; HEAD_BYTES_MAX];
    let mut length = 0;
    loop {
        match stream.read(&mut head[length..])? {
            0 => return Ok(()),
            read => length += read,
        }
        if head[..length].ends_with(b"\r\n\r\n") {
            length = 0;
            spin(rounds);
            stream.write_all(ANSWER)?;
        }
    }
}

fn timed(rounds: u64) -> u128 {
    let begun = Instant::now();
    spin(rounds);
    begun.elapsed().as_nanos()
}

/// Each round depends on the one before, so their time differs between machines by the clock rate only.
fn spin(rounds: u64) {
    let mut value = 1_u64;
    for _ in 0..rounds {
        value = black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
    black_box(value);
}
