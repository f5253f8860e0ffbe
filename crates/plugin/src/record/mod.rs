//! What is known of a request once its response is out: what the access log and the plugins that log can tell.
//!
//! [`AccessValue`] is the table of what can be told, by the names that nginx and APISIX use; [`write`] is how each is
//! written as JSON. A log line and an entry of a logger differ in their layout only.

pub mod ids;
pub mod stamp;
pub mod tries;
pub mod value;
pub mod write;
pub mod written;

pub use ids::{Ids, trace_id};
pub use stamp::{Stamp, rfc3339};
pub use tries::{NodeTries, NodeTry};
pub use value::{AccessValue, access_value, own_names};
pub use write::{Scratch, push_recorded, push_value};

use std::cell::OnceCell;
use std::net::IpAddr;
use stillgate_route::Lookup;

/// A request's id, made where something first asks for it.
pub type RequestId = OnceCell<[u8; ids::DIGITS]>;

/// A request that has ended.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    /// When the response ended, in milliseconds since the epoch.
    pub end_unix_ms: u64,
    /// Status sent to the client.
    pub status: u16,
    /// Bytes sent to the client, head included.
    pub bytes_sent: u64,
    /// Bytes of the response's body as sent, with its chunk framing; what the combined format shows.
    pub body_bytes_sent: u64,
    /// Bytes received for this request, head included.
    pub bytes_received: u64,
    /// From the request's first byte being read to the last of the response being written, in microseconds.
    pub request_time_us: u64,
    /// From choosing the last node to its response head, in microseconds; `None`: no node answered.
    pub upstream_time_us: Option<u64>,
    /// From the request's first byte being read to choosing the first node, in microseconds; `None`: none was asked.
    pub asked_us: Option<u64>,
    /// From choosing the first node to the end of the last one's response, in microseconds; `None`: none was asked.
    pub node_time_us: Option<u64>,
    /// The nodes that were asked.
    pub tries: &'a NodeTries,
    /// The route that matched.
    pub route_id: Option<&'a str>,
    /// Its service.
    pub service_id: Option<&'a str>,
    /// The request line's method, as it came; empty where the request could not be read.
    pub method: &'a [u8],
    /// The request line's target, as it came.
    pub target: &'a [u8],
    /// `HTTP/1.1` and its like.
    pub version: &'a str,
    /// Who asked.
    pub client: IpAddr,
    /// The request's variables.
    pub vars: &'a dyn Lookup,
    /// The trace it is a part of, where a plugin traces it.
    pub trace: Option<Trace>,
    /// Its id, the same in all logs.
    pub id: &'a RequestId,
    /// The id that a plugin has given it; empty: none has.
    pub given_id: &'a [u8],
    /// Who tells.
    pub process: &'a Process,
}

impl Record<'_> {
    /// When the first byte of the request was read, in microseconds since the epoch.
    pub fn start_unix_us(&self) -> u64 {
        (self.end_unix_ms * 1000).saturating_sub(self.request_time_us)
    }
}

/// The place of a request in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trace {
    /// 16 bytes, as W3C Trace Context has it.
    pub trace_id: u128,
    /// That of the gateway's span.
    pub span_id: u64,
    /// Whether it is recorded.
    pub is_sampled: bool,
    /// Whose variables tell it: `opentelemetry_…` or `zipkin_…`.
    pub shown_by: Option<Tracer>,
}

/// A plugin that traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tracer {
    /// `opentelemetry`
    OpenTelemetry,
    /// `zipkin`
    Zipkin,
}

/// The process that serves, as logs name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// The machine's name.
    pub hostname: Box<str>,
    /// Its id.
    pub pid: u32,
    /// The gateway's version.
    pub version: &'static str,
}

impl Default for Process {
    fn default() -> Process {
        Process { hostname: "localhost".into(), pid: 0, version: env!("CARGO_PKG_VERSION") }
    }
}
