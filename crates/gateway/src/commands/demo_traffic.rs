//! A little traffic for the demo, so that the dashboard has something to show: a few requests a second of several kinds.
//!
//! It is one thread, which ends with the process, and one connection a request. It is for looking at, not for measuring.

use std::f64::consts::TAU;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Requests a second, on average.
const RATE: f64 = 5.0;

/// The rate swings around that by so much, in so long.
const SWING: f64 = 0.5;
const PERIOD: Duration = Duration::from_secs(120);

/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Pause between two requests while the gateway does not answer, as at its end.
const PAUSE: Duration = Duration::from_secs(1);

/// One payment in so many is declined by its node, with an error.
const DECLINED: u64 = 12;

/// Starts sending requests.
pub(super) fn start(gateway: SocketAddr) -> io::Result<()> {
    let thread = thread::Builder::new().name("demo-traffic".to_owned());
    thread.spawn(move || run(gateway)).map(drop)
}

fn run(gateway: SocketAddr) {
    let began = Instant::now();
    for turn in 0.. {
        if ask(gateway, &request(turn)).is_err() {
            thread::sleep(PAUSE);
        }
        let swing = SWING * (TAU * began.elapsed().as_secs_f64() / PERIOD.as_secs_f64()).sin();
        thread::sleep(Duration::from_secs_f64(1.0 / (RATE * (1.0 + swing))));
    }
}

/// Sends it and reads the answer.
fn ask(gateway: SocketAddr, request: &str) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&gateway, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = [0; 4096];
    while stream.read(&mut answer)? > 0 {}
    Ok(())
}

/// The kinds take turns; every second request is a search, each for something else.
fn request(turn: u64) -> String {
    let kinds = turn / 2;
    let get = |path: String, fields: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: demo.example.com\r\n{fields}Connection: close\r\n\r\n")
    };
    let post = |path: &str, body: &str| {
        let length = body.len();
        format!(
            "POST {path} HTTP/1.1\r\nHost: demo.example.com\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
    };
    if turn.is_multiple_of(2) {
        return get(format!("/search/{turn}"), "");
    }
    match kinds % 6 {
        0 => get("/orders/7".to_owned(), "apikey: rose\r\n"),
        1 => get("/hello/world".to_owned(), ""),
        2 if (kinds / 6) % DECLINED == 1 => post("/payments/declined", "{}"),
        2 => post("/payments/card", "{}"),
        3 => get("/".to_owned(), ""),
        4 => get("/orders/8".to_owned(), "apikey: rose\r\n"),
        _ => post("/echo", "hello"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_differ_and_a_few_payments_fail() {
        let requests: Vec<String> = (0..288).map(request).collect();
        let count = |what: &str| requests.iter().filter(|request| request.contains(what)).count();
        assert_eq!((count(" /search/"), count(" /payments/"), count("/declined")), (144, 24, 2));
        assert_eq!(requests.iter().filter(|request| request.starts_with("GET /search/12 ")).count(), 1);
    }
}
