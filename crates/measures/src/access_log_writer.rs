//! The thread that writes the access log to standard output or to a file.
//!
//! A full disk or a slow pipe may block it for any length of time: workers then drop lines and count them, and lines that could not
//! be written are added to the same count. It never ends because of an error. Rotation is left to logrotate and similar tools: move
//! the file away, then send SIGUSR1.
//!
//! The last lines also stay in memory: a dry run replays them to show the effect of a change.
//!
//! ```text
//!  access log's thread ──chunks──▶ RecentLines ──▶ admin API
//! ```
//!
//! Workers take no part. Lines that the destination rejects, for example because its disk is full, are kept here nonetheless.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use stillgate_config::LogDestination;
use stillgate_profiler::threads::Registration;
use stillgate_proxy::access_log::{Chunk, Drain, DrainResult};
use tracing::{error, info, warn};

/// The longest sleep of the thread before it checks whether to reopen its file.
const LOOK_UP_EVERY: Duration = Duration::from_millis(250);

/// The shortest interval between two reports of dropped lines.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// The control thread's handle of the writer.
pub struct AccessLogWriter {
    recent: Option<Arc<RecentLines>>,
    reopen: Arc<AtomicBool>,
    dropped: Arc<AtomicU64>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
}

/// Why the access log could not be started.
#[derive(Debug)]
pub enum OpenError {
    /// The destination cannot be written to.
    Open {
        /// Where lines should have been written.
        destination: LogDestination,
        /// The system's error.
        error: io::Error,
    },
    /// No thread could be started.
    Thread(io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Open { destination: LogDestination::File(path), error } => write!(
                f,
                "cannot append to the access log {}: {error}; {}",
                path.display(),
                match error.kind() {
                    ErrorKind::NotFound => "create its folder, or change gateway.access_log",
                    ErrorKind::PermissionDenied => "let this user write there, or change gateway.access_log",
                    _ => "change gateway.access_log, or see what is wrong there",
                }
            ),
            OpenError::Open { destination: LogDestination::Stdout, error } => {
                write!(f, "cannot write the access log to standard output: {error}; leave it open, or log to a file")
            }
            OpenError::Thread(error) => {
                write!(f, "cannot start the access log's thread: {error}")
            }
        }
    }
}

impl std::error::Error for OpenError {}

impl AccessLogWriter {
    /// Opens the destination and starts the thread, which also gives its lines to `recent`.
    pub fn start(
        destination: LogDestination,
        drain: Drain,
        recent: Option<Arc<RecentLines>>,
    ) -> Result<AccessLogWriter, OpenError> {
        let file = open(&destination).map_err(|error| OpenError::Open { destination: destination.clone(), error })?;
        let reopen = Arc::new(AtomicBool::new(false));
        let dropped = drain.dropped_lines();
        let (end, ended) = sync_channel(0);
        let writer = LogFileWriter {
            destination,
            output: Output { file, torn: false },
            recent: recent.clone(),
            reopen: reopen.clone(),
            dropped: dropped.clone(),
            reported: 0,
            report_next: Instant::now(),
            failure: None,
        };
        thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || {
                let _profiled = Registration::of_current();
                writer.write_until_ended(drain);
                drop(end);
            })
            .map_err(OpenError::Thread)?;
        Ok(AccessLogWriter { recent, reopen, dropped, ended })
    }

    /// The last lines, if they are kept.
    pub fn recent(&self) -> Option<Arc<RecentLines>> {
        self.recent.clone()
    }

    /// Requests that the file be reopened, which happens within 250 ms.
    pub fn reopen(&self) {
        self.reopen.store(true, Ordering::Release);
    }

    /// Number of lines lost since the start.
    pub fn dropped_lines(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything is written, at most this long; returns whether it is. Call it after the workers have ended.
    pub fn finish(self, at_most: Duration) -> bool {
        // A thread blocked in a write to a dead pipe is left behind: the process is about to end.
        matches!(self.ended.recv_timeout(at_most), Err(RecvTimeoutError::Disconnected))
    }
}

fn open(destination: &LogDestination) -> io::Result<File> {
    match destination {
        LogDestination::File(path) => open_file(path),
        // Not `io::Stdout`: its buffer would keep what could not be written, and a lock is not needed.
        LogDestination::Stdout => Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?)),
    }
}

fn open_file(path: &PathBuf) -> io::Result<File> {
    // Without NONBLOCK, opening a FIFO waits for a reader. A write to one may block, which costs lines only.
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = File::options().append(true).create(true).custom_flags(flags).open(path).map_err(|error| {
        match Errno::from_io_error(&error) {
            Some(Errno::NXIO) => {
                io::Error::new(ErrorKind::NotConnected, "it is a FIFO without a reader; start its reader first")
            }
            _ => error,
        }
    })?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

struct LogFileWriter {
    destination: LogDestination,
    output: Output<File>,
    recent: Option<Arc<RecentLines>>,
    reopen: Arc<AtomicBool>,
    dropped: Arc<AtomicU64>,
    /// The value of `dropped` that was last logged.
    reported: u64,
    report_next: Instant,
    /// The last write error, for the next report.
    failure: Option<io::Error>,
}

impl LogFileWriter {
    fn write_until_ended(mut self, mut drain: Drain) {
        loop {
            let next = drain.next(LOOK_UP_EVERY);
            if self.reopen.swap(false, Ordering::Acquire) {
                self.open_anew();
            }
            match next {
                DrainResult::Chunk(chunk) => {
                    self.write(&chunk);
                    drain.return_chunk(chunk);
                }
                DrainResult::Quiet => {}
                DrainResult::Ended => break,
            }
            if Instant::now() >= self.report_next {
                self.report();
            }
        }
        self.report();
    }

    fn write(&mut self, chunk: &Chunk) {
        if let Some(recent) = &self.recent {
            recent.keep(&chunk.bytes);
        }
        if let Err((lost, error)) = self.output.write_lines(&chunk.bytes) {
            self.dropped.fetch_add(lost, Ordering::Relaxed);
            self.failure = Some(error);
        }
    }

    fn report(&mut self) {
        let dropped = self.dropped.load(Ordering::Relaxed);
        if dropped == self.reported {
            return;
        }
        let lines = dropped - self.reported;
        match self.failure.take() {
            Some(error) => warn!(lines, total = dropped, %error, "access log lines lost: writing fails"),
            None => {
                warn!(lines, total = dropped, "access log lines lost: the reader of the log, or the disk, is too slow")
            }
        }
        self.reported = dropped;
        self.report_next = Instant::now() + REPORT_EVERY;
    }

    fn open_anew(&mut self) {
        let LogDestination::File(path) = &self.destination else {
            return;
        };
        match open_file(path) {
            Ok(file) => {
                self.output = Output { file, torn: false };
                info!(path = %path.display(), "access log reopened");
            }
            Err(error) => error!(
                path = %path.display(),
                %error,
                "access log not reopened; lines go on to the old file"
            ),
        }
    }
}

/// The destination, and whether the last write stopped within a line.
struct Output<W> {
    file: W,
    torn: bool,
}

impl<W: Write> Output<W> {
    /// Writes whole lines; the error contains the number of lost lines. A truncated line is terminated before the next one begins.
    fn write_lines(&mut self, lines: &[u8]) -> Result<(), (u64, io::Error)> {
        if self.torn {
            match self.file.write(b"\n") {
                Ok(1) => self.torn = false,
                Ok(_) => return Err((count_lines(lines), ErrorKind::WriteZero.into())),
                Err(error) => return Err((count_lines(lines), error)),
            }
        }
        let mut rest = lines;
        while !rest.is_empty() {
            let error = match self.file.write(rest) {
                Ok(0) => ErrorKind::WriteZero.into(),
                Ok(written) => {
                    rest = &rest[written..];
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            let written = lines.len() - rest.len();
            self.torn = written > 0 && lines[written - 1] != b'\n';
            return Err((count_lines(rest), error));
        }
        Ok(())
    }
}

fn count_lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|&&byte| byte == b'\n').count() as u64
}

/// Number of bytes that are kept: some two thousand lines.
const RECENT_BYTES_MAX: usize = 512 * 1024;

/// Number of lines that are returned.
const RECENT_LINES_MAX: usize = 1000;

/// The kept lines.
#[derive(Debug, Default)]
pub struct RecentLines(Mutex<VecDeque<Box<[u8]>>>);

impl RecentLines {
    /// Keeps whole lines, each with its line end, and forgets older ones.
    pub(super) fn keep(&self, lines: &[u8]) {
        let mut chunks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        chunks.push_back(last_lines(lines, RECENT_LINES_MAX).into());
        let mut bytes: usize = chunks.iter().map(|chunk| chunk.len()).sum();
        while bytes > RECENT_BYTES_MAX && chunks.len() > 1 {
            bytes -= chunks.pop_front().map_or(0, |chunk| chunk.len());
        }
    }

    /// The last lines, each with its line end, the oldest first.
    pub fn copied(&self) -> Vec<u8> {
        let chunks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.iter().copied()).collect();
        drop(chunks);
        let left_out = all.len() - last_lines(&all, RECENT_LINES_MAX).len();
        all.drain(..left_out);
        all
    }
}

/// The end of a text, from the beginning of its last `count` lines.
fn last_lines(text: &[u8], count: usize) -> &[u8] {
    let ends = text.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    match ends.map(|(at, _)| at + 1).nth(count) {
        Some(start) => &text[start..],
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with room for this many bytes.
    struct Disk {
        content: Vec<u8>,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let written = bytes.len().min(self.room);
            if written == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            self.room -= written;
            self.content.extend_from_slice(&bytes[..written]);
            Ok(written)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_loses_counted_lines_and_the_rest_is_whole() {
        let disk = Disk { content: Vec::new(), room: 6 };
        let mut output = Output { file: disk, torn: false };
        let lost = |result: Result<(), (u64, io::Error)>| result.expect_err("no room").0;
        assert_eq!(lost(output.write_lines(b"one\ntwo\nthree\n")), 2);
        assert_eq!(lost(output.write_lines(b"four\n")), 1);
        output.file.room = 100;
        output.write_lines(b"five\n").expect("there is room");
        assert_eq!(output.file.content, b"one\ntw\nfive\n");
    }

    #[test]
    fn a_stop_between_lines_leaves_no_empty_line() {
        let disk = Disk { content: Vec::new(), room: 4 };
        let mut output = Output { file: disk, torn: false };
        assert!(output.write_lines(b"one\ntwo\n").is_err());
        output.file.room = 100;
        output.write_lines(b"six\n").expect("there is room");
        assert_eq!(output.file.content, b"one\nsix\n");
    }

    #[test]
    fn the_last_lines_are_kept() {
        let recent = RecentLines::default();
        assert_eq!(recent.copied(), b"");
        recent.keep(b"one\ntwo\n");
        recent.keep(b"three\n");
        assert_eq!(recent.copied(), b"one\ntwo\nthree\n");
        recent.keep("x\n".repeat(RECENT_LINES_MAX - 1).as_bytes());
        assert!(recent.copied().starts_with(b"three\nx\n"));
        recent.keep("y\n".repeat(2 * RECENT_LINES_MAX).as_bytes());
        assert_eq!(recent.copied(), "y\n".repeat(RECENT_LINES_MAX).as_bytes());
    }

    #[test]
    fn memory_is_bounded() {
        let recent = RecentLines::default();
        let line = format!("{}\n", "z".repeat(60 * 1024 - 1));
        (0..100).for_each(|_| recent.keep(line.as_bytes()));
        assert_eq!(recent.copied().len(), RECENT_BYTES_MAX / line.len() * line.len());
    }
}
