//! The record of a request whose response is finished: values for the access log and the plugins that log.
//!
//! [`AccessValue`] is the table of values, by the names of nginx and APISIX; [`write`] formats each as JSON. A log line
//! and an entry of a logger differ only in their layout.
//!
//! Several logs know a request by an id of ours, and by that of its trace.

pub mod stamp;
pub mod tries;
pub mod value;
pub mod write;
pub mod written;

pub use stamp::{Stamp, rfc3339};
pub use tries::{NodeTries, NodeTry};
pub use value::{AccessValue, access_value, own_names};
pub use write::{RecordScratch, push_recorded, push_value};

use std::cell::OnceCell;
use std::net::IpAddr;
use stillgate_route::Lookup;

/// A request's id, generated on first use.
pub type RequestId = OnceCell<[u8; DIGITS]>;

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

/// Number of digits of an id.
pub const DIGITS: usize = 32;

/// Generates ids like nginx's `$request_id`: 16 random bytes in hexadecimal. They need to be unique, not secret.
#[derive(Debug)]
pub struct Ids {
    // Never both zero.
    state: [u64; 2],
}

impl Ids {
    /// Creates a generator with these random numbers as its seed.
    pub fn new(seed: [u64; 2]) -> Ids {
        Ids { state: [seed[0], seed[1] | 1] }
    }

    /// The next id.
    pub fn next_id(&mut self) -> [u8; DIGITS] {
        let (high, low) = (self.random(), self.random());
        let mut id = [0; DIGITS];
        for (index, digit) in id.iter_mut().enumerate() {
            let half = if index < 16 { high } else { low };
            *digit = b"0123456789abcdef"[(half >> (60 - 4 * (index % 16)) & 15) as usize];
        }
        id
    }

    /// xoroshiro128++ (Blackman and Vigna, "Scrambled Linear Pseudorandom Number Generators"). Its state is as long as
    /// an id, so the sequences of workers and restarts do not overlap.
    pub fn random(&mut self) -> u64 {
        let [a, b] = self.state;
        let mixed = a ^ b;
        self.state = [a.rotate_left(49) ^ mixed ^ (mixed << 21), mixed.rotate_left(28)];
        a.wrapping_add(b).rotate_left(17).wrapping_add(a)
    }
}

/// The trace id in the value of `traceparent` (W3C Trace Context, section 3.2); `None` where it is not valid.
pub fn trace_id(traceparent: &[u8]) -> Option<&[u8]> {
    let [version, trace, parent, flags] =
        [(0, 2), (3, 35), (36, 52), (53, 55)].map(|(from, to)| traceparent.get(from..to));
    let is_hex = |part: &&[u8]| part.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let version = version.filter(is_hex).filter(|version| *version != b"ff")?;
    let is_split = [2, 35, 52].iter().all(|at| traceparent.get(*at) == Some(&b'-'));
    // Later versions may have more after another dash.
    let ends = match version {
        b"00" => traceparent.len() == 55,
        _ => matches!(traceparent.get(55), None | Some(b'-')),
    };
    let is_any = |part: &&[u8]| part.iter().any(|byte| *byte != b'0');
    flags.filter(is_hex)?;
    parent.filter(is_hex).filter(is_any)?;
    trace.filter(is_hex).filter(is_any).filter(|_| is_split && ends)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_are_different_and_hexadecimal() {
        let mut ids = [Ids::new([1, 2]), Ids::new([3, 4])];
        let mut seen = HashSet::new();
        for turn in 0..20_000 {
            let id = ids[turn % 2].next_id();
            assert!(id.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')));
            assert!(seen.insert(id));
        }
        let mut generator = Ids { state: [1, 2] };
        // Computed by hand from the reference implementation (https://prng.di.unimi.it/xoroshiro128plusplus.c) with
        // this state.
        assert_eq!(generator.random(), 3u64.rotate_left(17) + 1);
    }

    #[test]
    fn trace_ids_by_the_standard() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        let check = |traceparent: &str, expected: Option<&str>| {
            assert_eq!(trace_id(traceparent.as_bytes()), expected.map(str::as_bytes), "{traceparent}");
        };
        check(&format!("00-{id}-00f067aa0ba902b7-01"), Some(id));
        check(&format!("cc-{id}-00f067aa0ba902b7-01"), Some(id));
        check(&format!("cc-{id}-00f067aa0ba902b7-01-what-the-future"), Some(id));
        check(&format!("cc-{id}-00f067aa0ba902b7-01.what"), None);
        check(&format!("00-{id}-00f067aa0ba902b7-01-what"), None);
        check(&format!("ff-{id}-00f067aa0ba902b7-01"), None);
        check(&format!("00-{}-00f067aa0ba902b7-01", id.to_uppercase()), None);
        check(&format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)), None);
        check(&format!("00-{id}-0000000000000000-01"), None);
        check(&format!("00-{id}-00f067aa0ba902b7"), None);
        check(&format!("00_{id}-00f067aa0ba902b7-01"), None);
        check(&format!("00-{id}-00f067aa0ba902b7-01, 00-{id}-00f067aa0ba902b7-01"), None);
        check("", None);
        check("\"}\n", None);
    }
}
