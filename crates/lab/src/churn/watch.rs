//! Readers: people who have a page with live figures open.

use super::{Change, ChangeOptions, Mode, only_of_stillgate, stillgate_with};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::target::{RunningTarget, Spec};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How often a reader asks for the status: more often than the dashboard, which does so once a minute.
const STATUS_EVERY: Duration = Duration::from_secs(10);
/// A stream that is silent for this long has ended.
const SILENCE: Duration = Duration::from_secs(10);
/// The least size of an event, of which there is one each second: far below the actual one.
const EVENT_BYTES_MIN: u64 = 64;

/// Readers of a stream of the admin interface.
struct StreamReaders {
    readers: usize,
    /// A path of the target itself; `None`: what stillgate's dashboard reads.
    stream: Option<String>,
    address: Option<SocketAddr>,
}

pub(super) fn make(options: &ChangeOptions, spec: &mut Spec) -> Result<Box<dyn Change>> {
    if options.stream.is_none() {
        only_of_stillgate(spec, "watch without --stream")?;
        let lines = "  admin: {address: \"{admin}\"}\n  metrics: {address: \"{metrics}\"}\n";
        spec.configuration.get_or_insert_with(|| stillgate_with(lines));
    }
    Ok(Box::new(StreamReaders { readers: options.readers, stream: options.stream.clone(), address: None }))
}

impl Change for StreamReaders {
    fn begin(&mut self, target: &mut RunningTarget) -> Result {
        self.address = match self.stream {
            Some(_) => Some(target.address),
            None => Some(target.admin.ok_or("--watch needs {admin} in the configuration")?),
        };
        Ok(())
    }

    fn change_until_over(&mut self, _: &mut RunningTarget, mode: Mode, over: &AtomicBool) -> Result<u64> {
        let Some(address) = self.address.filter(|_| mode != Mode::Without) else {
            super::wait_for_end(over);
            return Ok(0);
        };
        let (begin, read) = (Instant::now(), AtomicU64::new(0));
        let path = self.stream.as_deref().unwrap_or("/v1/live");
        let streams = (0..self.readers).map(|_| open(address, path)).collect::<Result<Vec<TcpStream>>>()?;
        thread::scope(|scope| {
            for mut stream in &streams {
                let read = &read;
                scope.spawn(move || {
                    let mut buffer = vec![0; 64 * 1024];
                    while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
                        read.fetch_add(bytes as u64, Ordering::Relaxed);
                    }
                });
            }
            let mut next = Instant::now();
            while !over.load(Ordering::Relaxed) {
                if self.stream.is_none() && Instant::now() >= next {
                    // Evenly spread, as people open them at any time.
                    next += STATUS_EVERY / self.readers.max(1) as u32;
                    Client::new(address).get("/v1/status")?;
                }
                thread::sleep(super::LOOK);
            }
            for stream in &streams {
                // It may have ended by itself.
                let _ = stream.shutdown(Shutdown::Both);
            }
            Ok::<(), Error>(())
        })?;
        let (read, seconds) = (read.into_inner(), begin.elapsed().as_secs().saturating_sub(1));
        let expected = self.readers as u64 * seconds * EVENT_BYTES_MIN;
        match read >= expected {
            true => Ok(self.readers as u64),
            false => Err(format!("the readers were sent {read} bytes only; at least {expected} were expected").into()),
        }
    }
}

fn open(address: SocketAddr, path: &str) -> Result<TcpStream> {
    let connect = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(SILENCE))?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n");
        stream.write_all(request.as_bytes()).map(|()| stream)
    };
    connect().map_err(|error| Error::new(format!("a reader of http://{address}{path}: {error}")))
}
