//! The record of a request whose response is finished: values for the access log and the plugins that log.
//!
//! [`AccessValue`] is the table of values, by the names of nginx and APISIX; [`write`] formats each as JSON. A log line
//! and an entry of a logger differ only in their layout.

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
pub use write::{RecordScratch, push_recorded, push_value};

use std::cell::OnceCell;
use std::net::IpAddr;
use stillgate_route::Lookup;

/// A request's id, generated on first use.
pub type RequestId = OnceCell<[u8; ids::DIGITS]>;

/// A finished request.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    /// When the response ended, in milliseconds since the epoch.
    pub end_unix_ms: u64,
    /// Status sent to the client.
    pub status: u16,
    /// Bytes sent to the client, head included.
    pub bytes_sent: u64,
    /// Bytes of the response's body as sent, with its chunk framing; the value of the combined format.
    pub body_bytes_sent: u64,
    /// Bytes received for this request, head included.
    pub bytes_received: u64,
    /// From the request's first byte being read to the last of the response being written, in microseconds.
    pub request_time_us: u64,
    /// From choosing the last node to its response head, in microseconds; `None`: no node answered.
    pub upstream_time_us: Option<u64>,
    /// From the request's first byte being read to choosing the first node, in microseconds; `None`: no node was
    /// chosen.
    pub asked_us: Option<u64>,
    /// From choosing the first node to the end of the last one's response, in microseconds; `None`: no node was chosen.
    pub node_time_us: Option<u64>,
    /// The attempts at nodes.
    pub tries: &'a NodeTries,
    /// The matched route.
    pub route_id: Option<&'a str>,
    /// Its service.
    pub service_id: Option<&'a str>,
    /// The request line's method, as it came; empty if the request could not be read.
    pub method: &'a [u8],
    /// The request line's target, as it came.
    pub target: &'a [u8],
    /// Such as `HTTP/1.1`.
    pub version: &'a str,
    /// The client's address.
    pub client: IpAddr,
    /// The request's variables.
    pub vars: &'a dyn Lookup,
    /// The trace that contains it, if a plugin traces it.
    pub trace: Option<Trace>,
    /// Its id, the same in all logs.
    pub id: &'a RequestId,
    /// The id that a plugin has set; empty: none has.
    pub given_id: &'a [u8],
    /// The process that serves it.
    pub process: &'a ServingProcess,
}

impl Record<'_> {
    /// When the first byte of the request was read, in microseconds since the epoch.
    pub fn start_unix_us(&self) -> u64 {
        (self.end_unix_ms * 1000).saturating_sub(self.request_time_us)
    }
}

/// The trace context of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trace {
    /// 16 bytes, as W3C Trace Context has it.
    pub trace_id: u128,
    /// Id of the gateway's span.
    pub span_id: u64,
    /// Whether it is sampled.
    pub is_sampled: bool,
    /// The variables that show it: `opentelemetry_…` or `zipkin_…`.
    pub shown_by: Option<Tracer>,
}

/// A tracing plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tracer {
    /// `opentelemetry`
    OpenTelemetry,
    /// `zipkin`
    Zipkin,
}

/// The serving process, as named in logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServingProcess {
    /// The machine's name.
    pub hostname: Box<str>,
    /// Its pid.
    pub pid: u32,
    /// The gateway's version.
    pub version: &'static str,
}

impl Default for ServingProcess {
    fn default() -> ServingProcess {
        ServingProcess { hostname: "localhost".into(), pid: 0, version: env!("CARGO_PKG_VERSION") }
    }
}
