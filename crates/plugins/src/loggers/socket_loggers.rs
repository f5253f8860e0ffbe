//! `tcp-logger` and `udp-logger`: write batches of JSON entries to a socket.

use super::keys::{HOST, batching_logger_keys, logger_metadata};
use super::logger::{JsonArray, Logger, PHASES, of_metadata, plugin_of_logger};
use std::sync::Arc;
use std::time::Duration;
use stillgate_plugin_api::outbox::{Outlet, Receiver, SocketReceiver};
use stillgate_plugin_api::{Compile, Define, Phases, Response};
use stillgate_schema::{Flag, TEXT, int};

const TCP: &str = "tcp-logger";
const UDP: &str = "udp-logger";

batching_logger_keys! {
    /// Writes entries to a TCP port.
    pub(crate) struct TcpLoggerKeys named "tcp logger" {
        /// The host's name or address.
        host: String = HOST => required;
        /// Its port.
        port: u16 = int(0, 65535) => required;
        /// Whether the connection uses TLS. The certificate is not verified.
        tls: bool = Flag => default(false);
        /// The TLS server name, instead of `host`.
        tls_options: String = TEXT => optional;
        /// Timeout of connecting, and of writing, in milliseconds.
        timeout: u64 = int(1, 3_600_000) => default(1000);
    }
}

batching_logger_keys! {
    /// Sends entries in UDP datagrams.
    pub(crate) struct UdpLoggerKeys named "udp logger" {
        /// The host's name or address.
        host: String = HOST => required;
        /// Its port.
        port: u16 = int(0, 65535) => required;
        /// Timeout of sending, in seconds.
        timeout: u64 = int(1, 3600) => default(3);
    }
}

/// `tcp-logger`
pub(crate) struct TcpLogger {
    logger: Logger,
    outlet: Arc<Outlet>,
}

/// `udp-logger`
pub(crate) struct UdpLogger {
    logger: Logger,
    outlet: Arc<Outlet>,
}

impl Define for TcpLogger {
    type Keys = TcpLoggerKeys;
    const NAME: &'static str = TCP;
    const PRIORITY: i32 = 405;
    const PHASES: Phases = PHASES;

    fn compile(mut keys: TcpLoggerKeys, cx: &mut Compile<'_>) -> Option<TcpLogger> {
        let logger = Logger::new(keys.contents(), cx)?;
        let (batching, encode) = (keys.batching(), JsonArray { is_single: keys.batch_max_size == 1 });
        let tls_name = keys.tls.then(|| keys.tls_options.unwrap_or_else(|| keys.host.clone()));
        let timeout = Duration::from_millis(keys.timeout);
        let to = SocketReceiver { host: keys.host, port: keys.port, tls_name, timeout, is_syslog: false };
        let outlet = Outlet::new((TCP, keys.name), cx.identity, batching, Receiver::Tcp(to), logger.encode(encode));
        Some(TcpLogger { logger, outlet: Arc::new(outlet) })
    }
}

impl Define for UdpLogger {
    type Keys = UdpLoggerKeys;
    const NAME: &'static str = UDP;
    const PRIORITY: i32 = 400;
    const PHASES: Phases = PHASES;

    fn compile(mut keys: UdpLoggerKeys, cx: &mut Compile<'_>) -> Option<UdpLogger> {
        let logger = Logger::new(keys.contents(), cx)?;
        let (batching, encode) = (keys.batching(), JsonArray { is_single: keys.batch_max_size == 1 });
        let timeout = Duration::from_secs(keys.timeout);
        let to = SocketReceiver { host: keys.host, port: keys.port, tls_name: None, timeout, is_syslog: false };
        let outlet = Outlet::new((UDP, keys.name), cx.identity, batching, Receiver::Udp(to), logger.encode(encode));
        Some(UdpLogger { logger, outlet: Arc::new(outlet) })
    }
}

impl TcpLogger {
    fn send(&self, response: &Response<'_>) {
        self.logger.log(of_metadata::<TcpLoggerMetadata>(TCP, response), &self.outlet, response, |_, _, _| {}, b"");
    }
}

impl UdpLogger {
    fn send(&self, response: &Response<'_>) {
        self.logger.log(of_metadata::<UdpLoggerMetadata>(UDP, response), &self.outlet, response, |_, _, _| {}, b"");
    }
}

logger_metadata!(TcpLoggerMetadata {});
plugin_of_logger!(TcpLogger, TcpLoggerMetadata);
logger_metadata!(UdpLoggerMetadata {});
plugin_of_logger!(UdpLogger, UdpLoggerMetadata);
