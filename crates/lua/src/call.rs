//! Calls that functions make to other servers (`resty.http`, `resty.redis`) or threads (`ngx.run_worker_thread`), and
//! their replies.

use crate::program::Program;
use mlua::{Error, Thread};
use std::sync::Arc;
use std::time::Duration;

/// A request to another server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpCall {
    /// Its method.
    pub method: Vec<u8>,
    /// The URL as the function wrote it.
    pub url: String,
    /// Whether the certificate is verified.
    pub verifies: bool,
    /// How long a connection is kept afterwards, and how many connections are; `None`: it is closed.
    pub keep: Option<(Duration, usize)>,
    /// Names and values of the header fields.
    pub headers: Vec<(Vec<u8>, Vec<u8>)>,
    /// Its body.
    pub body: Vec<u8>,
    /// Timeout of connecting, of sending and of waiting, each.
    pub timeout: Duration,
}

/// The response of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HttpReply {
    /// Its status.
    pub status: u16,
    /// Names and values, one after the other, each followed by a zero byte.
    pub headers: Vec<u8>,
    /// The whole body.
    pub body: Vec<u8>,
}

/// A call of a function on a thread that does not serve requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkCall {
    /// The file that contains the function, without its extension.
    pub module: String,
    /// The function's name in the table that the file returns.
    pub function: String,
    /// Its arguments, in the prelude's encoding.
    pub(crate) arguments: Vec<u8>,
}

/// Operations of `resty.redis` on a connection. Connections are identified by numbers, which the gateway assigns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkCall {
    /// Connects. The reply is [`OpenedLink::text`].
    Connect {
        /// A name or an address.
        host: String,
        /// Its port.
        port: u16,
        /// Over TLS, whether the certificate is verified; `None`: without TLS.
        verifies: Option<bool>,
        /// Name of the pool: idle connections of one pool are interchangeable.
        pool: String,
        /// The timeout.
        timeout: Duration,
    },
    /// Sends commands, and waits for their replies, which are the result.
    Exchange {
        /// The connection.
        link: u64,
        /// The number of replies.
        replies: usize,
        /// Timeout of sending.
        send_timeout: Duration,
        /// Timeout of the replies.
        read_timeout: Duration,
        /// The commands.
        message: Vec<u8>,
    },
    /// Returns the connection to its pool.
    Keep {
        /// The connection.
        link: u64,
        /// How long it may be idle.
        idle: Duration,
        /// Most idle connections of the pool.
        connections: usize,
    },
    /// Closes the connection.
    Close {
        /// The connection.
        link: u64,
    },
}

/// An established connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenedLink {
    /// Its number.
    pub link: u64,
    /// How often it has been used before.
    pub reused: u32,
}

impl OpenedLink {
    /// The form that the prelude reads.
    pub fn text(self) -> Vec<u8> {
        format!("{} {}", self.link, self.reused).into_bytes()
    }
}

/// The reply to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallReply {
    /// Reply from a connection of `resty.redis`.
    Link(Vec<u8>),
    /// Response of another server.
    Http(HttpReply),
    /// Result from another thread, of [`crate::Module::work`].
    Work(Vec<u8>),
}

impl WorkCall {
    /// Parses the prelude's message: module, function and arguments with zero bytes between them.
    pub(crate) fn read(message: &[u8]) -> Option<WorkCall> {
        let (module, rest) = split(message)?;
        let (function, arguments) = split(rest)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Some(WorkCall { module: text(module), function: text(function), arguments: arguments.to_vec() })
    }
}

impl LinkCall {
    /// Parses the prelude's message: parts with zero bytes between them, and the data to send. `None`: it is malformed,
    /// which the prelude never sends.
    pub(crate) fn read(message: &[u8]) -> Option<LinkCall> {
        let (kind, rest) = split(message)?;
        let mut parts = rest.splitn(5, |byte| *byte == 0);
        let mut next = || parts.next();
        let of_ms = |text: &[u8]| Some(Duration::from_millis(number(text)? as u64));
        if kind == b"connect" {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let (host, port) = (text(next()?), u16::try_from(number(next()?)?).ok()?);
            let verifies = match next()? {
                b"tls" => Some(true),
                b"unverified" => Some(false),
                _ => None,
            };
            return Some(LinkCall::Connect { host, port, verifies, timeout: of_ms(next()?)?, pool: text(next()?) });
        }
        let link = number(next()?)? as u64;
        Some(match kind {
            b"exchange" => LinkCall::Exchange {
                link,
                replies: number(next()?)?,
                send_timeout: of_ms(next()?)?,
                read_timeout: of_ms(next()?)?,
                message: next()?.to_vec(),
            },
            b"keep" => LinkCall::Keep { link, idle: of_ms(next()?)?, connections: number(next()?)? },
            b"close" => LinkCall::Close { link },
            _ => return None,
        })
    }
}

impl HttpReply {
    /// Adds a header line.
    pub fn header(&mut self, name: &[u8], value: &[u8]) {
        for part in [name, value] {
            self.headers.extend_from_slice(part);
            self.headers.push(0);
        }
    }
}

impl HttpCall {
    /// Parses the prelude's message: parts with zero bytes between them, and the body. `None`: it is malformed, which
    /// the prelude never sends.
    pub(crate) fn read(message: &[u8], timeout_ms: f64) -> Option<HttpCall> {
        let mut parts = message.splitn(8, |byte| *byte == 0);
        let mut next = || parts.next();
        let (method, url) = (next()?.to_vec(), String::from_utf8_lossy(next()?).into_owned());
        let (verifies, keeps) = (next()? == b"1", next()? == b"1");
        let (idle_ms, connections) = (number(next()?)?, number(next()?)?);
        let count = number(next()?)?;
        let mut rest = next()?;
        let mut headers = Vec::with_capacity(count);
        for _ in 0..count {
            let (name, behind) = split(rest)?;
            let (value, behind) = split(behind)?;
            headers.push((name.to_vec(), value.to_vec()));
            rest = behind;
        }
        let keep = keeps.then(|| (Duration::from_millis(idle_ms as u64), connections));
        let timeout = Duration::try_from_secs_f64(timeout_ms / 1000.0).unwrap_or(Duration::MAX);
        Some(HttpCall { method, url, verifies, keep, headers, body: rest.to_vec(), timeout })
    }
}

fn number(text: &[u8]) -> Option<usize> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn split(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = memchr::memchr(0, text)?;
    Some((&text[..at], &text[at + 1..]))
}

// Outcomes of a run of functions: done, an answer, a wait or a failure.

/// Memory limit of one VM.
pub const MEMORY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Outcome of a run.
#[derive(Debug)]
pub enum RunOutcome {
    /// The functions have run; for a condition, whether it holds.
    Done(bool),
    /// The functions answer the request.
    Answer {
        /// From 200 to 599.
        status: u16,
        /// `None`: nothing was written.
        body: Option<Vec<u8>>,
    },
    /// The functions wait.
    Wait(RunWait, PausedRun),
    /// They failed.
    Failed(RunFailure),
}

/// What a function waits for.
#[derive(Debug, Clone, PartialEq)]
pub enum RunWait {
    /// `ngx.sleep`
    Sleep(Duration),
    /// The whole body of the request.
    Body,
    /// The response of another server; the run continues with [`resume_with`].
    Call(Box<HttpCall>),
    /// The result of an operation on a connection of `resty.redis`; the run continues with [`resume_with`].
    Link(Box<LinkCall>),
    /// The result of a function on another thread; the run continues with [`resume_with`].
    Work(Box<WorkCall>),
}

/// A waiting run; it continues with [`resume`]. If it is dropped, it never continues.
#[derive(Debug)]
pub struct PausedRun {
    pub(crate) thread: Thread,
    pub(crate) program: Arc<Program>,
    pub(crate) generation: u64,
    pub(crate) usage: RunUsage,
}

impl PausedRun {
    /// By how much the VM's memory has grown at most between two of its waits: an estimate of what it holds while it waits. A sum
    /// would count garbage, in functions that wait again and again.
    pub fn memory_bytes(&self) -> usize {
        self.usage.bytes
    }
}

/// What a run has used so far: its limits are for all of it, however often it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunUsage {
    /// CPU time of the function itself.
    pub(crate) time: Duration,
    /// Number of waits. Their cost for the worker is not part of the function's CPU time.
    pub(crate) waits: u32,
    /// See [`PausedRun::memory_bytes`].
    pub(crate) bytes: usize,
}

/// Most waits of one run.
pub const WAITS_MAX: u32 = 2_500;

/// The reason why a run failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFailure {
    /// The type of failure, for a counter.
    pub kind: FailureKind,
    /// `NAME:LINE: MESSAGE`
    pub text: String,
}

impl RunFailure {
    /// Some errors have no place: those for want of memory, those of a tail call, and errors raised without one. These
    /// are named after the program that ran.
    pub(crate) fn of(mut self, program: &Program) -> RunFailure {
        let file = program.module.as_ref().map(|module| module.file.as_str());
        let mut names = [Some(program.name.as_str()), file].into_iter().flatten();
        if !names.any(|name| self.text.starts_with(name)) {
            self.text = format!("{}: {}", program.name, self.text);
        }
        self
    }
}

/// Types of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// An error of the function.
    Error,
    /// It ran for too long.
    Time,
    /// It used too much memory.
    Memory,
}

impl FailureKind {
    /// Name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            FailureKind::Error => "error",
            FailureKind::Time => "time",
            FailureKind::Memory => "memory",
        }
    }
}

#[cold]
pub(crate) fn failed_outcome(kind: FailureKind, text: String) -> RunOutcome {
    RunOutcome::Failed(RunFailure { kind, text })
}

/// The first line of an error, without the stack trace.
pub(crate) fn describe(error: &Error) -> (FailureKind, String) {
    match error {
        Error::MemoryError(_) => {
            (FailureKind::Memory, format!("a worker's functions have {} MiB of memory", MEMORY_BYTES_MAX >> 20))
        }
        Error::CallbackError { cause, .. } => describe(cause),
        Error::RuntimeError(text) => {
            let line = text.lines().next().unwrap_or_default();
            let is_memory = line.ends_with("not enough memory");
            (if is_memory { FailureKind::Memory } else { FailureKind::Error }, line.to_owned())
        }
        other => (FailureKind::Error, other.to_string().lines().next().unwrap_or_default().to_owned()),
    }
}
