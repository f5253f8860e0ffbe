//! A receiver of `http-logger` that stalls until it is switched to answering, and then counts the entries that it receives.

use crate::Result;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const LOOK: Duration = Duration::from_millis(5);

pub(super) struct Receiver {
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    answers: AtomicBool,
    entries: AtomicU64,
}

impl Receiver {
    /// Accepts connections and reads nothing. Its threads end with the process.
    pub(super) fn start() -> Result<Receiver> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (address, shared) = (listener.local_addr()?, Arc::<Shared>::default());
        let of_threads = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = of_threads.clone();
                thread::spawn(move || shared.serve(stream));
            }
        });
        Ok(Receiver { address, shared })
    }

    pub(super) fn answer(&self) {
        self.shared.answers.store(true, Ordering::Relaxed);
    }

    /// Number of entries, one per line, in answered requests.
    pub(super) fn entries(&self) -> u64 {
        self.shared.entries.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn serve(&self, stream: TcpStream) {
        while !self.answers.load(Ordering::Relaxed) {
            thread::sleep(LOOK);
        }
        let mut stream = BufReader::new(stream);
        while let Some(body) = request(&mut stream) {
            let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
            self.entries.fetch_add(lines as u64, Ordering::Relaxed);
            if stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err() {
                return;
            }
        }
    }
}

/// The body of the next request, which has a length.
fn request(stream: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let (mut line, mut length) = (String::new(), 0);
    loop {
        line.clear();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let Some((name, value)) = line.trim_end().split_once(':') else {
            match line.trim_end().is_empty() {
                true => break,
                // The request line, whose target contains no colon.
                false => continue,
            }
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(body)
}
