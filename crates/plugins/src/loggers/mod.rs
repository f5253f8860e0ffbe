//! The plugins that log requests: their common parts, and one file each.
//!
//! ```text
//!  log_format of the plugin, else of its metadata, else all that is known ── Format, entry ──▶ one entry
//!  entries ── Worker::send ──▶ the crate `logs`, which calls the plugin's Encode for a batch and sends it
//! ```
//!
//! An entry is written on the worker, into memory that is allocated already; batching, and everything that waits, is
//! done elsewhere.

mod coded;
mod elasticsearch_logger;
mod entry;
mod file_logger;
mod format;
mod http_logger;
mod keys;
mod logger;
mod loki_logger;
mod socket_loggers;

pub(crate) use elasticsearch_logger::ElasticsearchLogger;
pub(crate) use file_logger::FileLogger;
pub(crate) use http_logger::HttpLogger;
pub(crate) use keys::{HeaderSecret, URL, UrlText};
pub(crate) use logger::write_array;
pub(crate) use loki_logger::LokiLogger;
pub(crate) use socket_loggers::{TcpLogger, UdpLogger};

use entry::host;
use format::FinishedRequest;
use keys::{HOST, batching_logger_keys, logger_metadata};
use logger::{Concatenation, Logger, PHASES, of_metadata, plugin_of_logger};
use std::sync::Arc;
use std::time::Duration;
use stillgate_plugin_api::outbox::{BatchPolicy, Outlet, Receiver, SocketReceiver};
use stillgate_plugin_api::record::RecordScratch;
use stillgate_plugin_api::record::written::push_number;
use stillgate_plugin_api::{Compile, Define, Phases, Response};
use stillgate_schema::{Choice, Flag, int};

// `syslog`: sends entries as messages of RFC 5424, over TCP or UDP.

const NAME: &str = "syslog";

/// Facility `syslog` (5), severity `informational` (6), version 1, as in APISIX.
const PRIORITY: &[u8] = b"<46>1 ";
/// Longest host name (RFC 5424, section 6).
const HOSTNAME_BYTES_MAX: usize = 255;

batching_logger_keys! {
    /// Sends entries as syslog messages.
    pub(crate) struct SyslogKeys named "sys logger" {
        /// The host's name or address.
        host: String = HOST => required;
        /// Its port.
        port: u16 = int(0, 65535) => required;
        /// No effect: messages are held back only for a batch.
        flush_limit: u64 = int(1, i64::MAX) => default(4096);
        /// Most bytes of messages that wait; further ones are lost.
        drop_limit: usize = int(1, 64 * 1024 * 1024) => default(1_048_576);
        /// Timeout of connecting, and of writing, in milliseconds.
        timeout: u64 = int(1, 3_600_000) => default(3000);
        /// The transport.
        sock_type: SockType = SOCK_TYPE => default(SockType::Tcp);
        /// No effect: there is one connection.
        pool_size: u64 = int(5, i64::MAX) => default(5);
        /// Whether the connection uses TLS. The certificate is not verified.
        tls: bool = Flag => default(false);
    }
}

/// The transport of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SockType {
    /// A TCP connection.
    Tcp,
    /// A datagram for each message.
    Udp,
}

const SOCK_TYPE: Choice<SockType> = Choice { words: &[("tcp", SockType::Tcp), ("udp", SockType::Udp)], unbuilt: &[] };

/// The plugin.
pub(crate) struct Syslog {
    logger: Logger,
    outlet: Arc<Outlet>,
}

impl Define for Syslog {
    type Keys = SyslogKeys;
    const NAME: &'static str = NAME;
    const PRIORITY: i32 = 401;
    const PHASES: Phases = PHASES;

    fn compile(mut keys: SyslogKeys, cx: &mut Compile<'_>) -> Option<Syslog> {
        let logger = Logger::new(keys.contents(), cx)?;
        let batching = BatchPolicy { pending_bytes_max: keys.drop_limit, ..keys.batching() };
        let tls_name = keys.tls.then(|| keys.host.clone());
        let timeout = Duration::from_millis(keys.timeout);
        let to = SocketReceiver { host: keys.host, port: keys.port, tls_name, timeout, is_syslog: true };
        let receiver = match keys.sock_type {
            SockType::Tcp => Receiver::Tcp(to),
            SockType::Udp => Receiver::Udp(to),
        };
        let outlet = Outlet::new((NAME, keys.name), cx.identity, batching, receiver, logger.encode(Concatenation));
        Some(Syslog { logger, outlet: Arc::new(outlet) })
    }
}

impl Syslog {
    fn send(&self, response: &Response<'_>) {
        self.logger.log(of_metadata::<SyslogMetadata>(NAME, response), &self.outlet, response, write_header, b"\n");
    }
}

/// The part before the entry: time, host, application, process, and neither id nor structured data.
fn write_header(finished: &FinishedRequest<'_, '_>, scratch: &mut RecordScratch, out: &mut Vec<u8>) {
    out.extend_from_slice(PRIORITY);
    scratch.stamp.push_rfc3339(finished.record.end_unix_ms, out);
    out.push(b' ');
    let host = host(finished, &mut scratch.value);
    // The requested host may be invalid in a header.
    let is_good = host.iter().all(|byte| (b'!'..=b'~').contains(byte));
    match is_good && !host.is_empty() && host.len() <= HOSTNAME_BYTES_MAX {
        true => out.extend_from_slice(host),
        false => out.push(b'-'),
    }
    out.extend_from_slice(b" apisix ");
    push_number(finished.record.process.pid, out);
    out.extend_from_slice(b" - - ");
}

logger_metadata!(SyslogMetadata {});
plugin_of_logger!(Syslog, SyslogMetadata);
