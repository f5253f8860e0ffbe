//! What a worker counts about itself, for the status page and the metrics.
//!
//! A count becomes a metric by a row in the tables of `stillgate-config` (`values/dialect`) with its name:
//! `Measure::WorkerCount("tunnels_open")`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillgate_tls::FailureReason;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// One worker's counts; only that worker writes them, and no other's share their cache lines.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub(crate) struct WorkerCounters {
            $(pub(crate) $name: Count,)*
            pub(crate) tls_handshakes_failed: [Count; FailureReason::COUNT],
        }

        /// The counts of all workers together.
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
            /// Connections of clients that ended before their TLS handshake was done, by [`FailureReason`].
            pub tls_handshakes_failed: [u64; FailureReason::COUNT],
        }

        impl WorkerCounters {
            pub(crate) fn add_to(&self, sum: &mut Counters) {
                $(sum.$name += self.$name.0.load(Relaxed);)*
                for (sum, count) in sum.tls_handshakes_failed.iter_mut().zip(&self.tls_handshakes_failed) {
                    *sum += count.0.load(Relaxed);
                }
            }
        }

        impl Counters {
            /// The count with this name.
            pub fn named(&self, name: &str) -> Option<u64> {
                match name {
                    $(stringify!($name) => Some(self.$name),)*
                    _ => None,
                }
            }
        }
    };
}

counters! {
    /// Client connections open now.
    connections_open,
    /// Client connections accepted so far.
    connections_total,
    /// Connections refused because the worker had reached its limit.
    connections_refused,
    /// HTTP/2 streams refused for the same reason.
    streams_refused,
    /// HTTP/2 requests refused before they were handled as requests: malformed, with fields that are too large, or more at once
    /// than a connection may have.
    http2_requests_refused,
    /// Times `accept` failed, mostly for lack of file descriptors.
    accept_errors,
    /// Connections closed because their PROXY protocol header was malformed or missing.
    proxy_protocol_errors,
    /// Tunnels open now: connections whose client and node speak another protocol.
    tunnels_open,
    /// Tunnels opened so far.
    tunnels_total,
    /// Device connections open now, which are terminated by the gateway.
    devices_open,
    /// Device connections begun so far.
    devices_total,
    /// `stream_proxy` sessions open now, TCP and UDP.
    stream_sessions_open,
    /// Sessions that have ended, including those that were not served.
    stream_sessions_total,
    /// UDP sessions that are open now.
    udp_sessions_open,
    /// Datagrams that could not be passed on, either way.
    udp_datagrams_dropped,
    /// Requests whose head has been received and whose response is not out.
    requests_in_flight,
    /// Requests cut off at the end of the worker because they did not finish in time.
    cut_requests,
    /// Tunnels cut off likewise.
    cut_tunnels,
    /// Sessions of `stream_proxy` cut off likewise.
    cut_streams,
    /// Slow requests that were not reported because too many reports were pending.
    slow_requests_lost,
    /// Requests answered so far, by an upstream or by the gateway itself.
    requests_total,
    /// Lines of requests' headers that were dropped because of a `_` in their names.
    header_lines_dropped,
    /// Requests that were sent a second time or to another node.
    upstream_retries,
    /// Retries that were not made because of `retry_budget`.
    retries_over_budget,
    /// Requests answered 503 because of `limits.requests` of their upstream, at once or after waiting.
    requests_shed,
    /// Requests that had to wait because of that limit.
    requests_queued,
    /// Requests that are waiting now.
    requests_waiting,
    /// Calls of plugins that were refused because connecting to their server had failed repeatedly.
    calls_refused,
    /// Connections made to nodes.
    upstream_connects,
    /// Connections lost because of a bug in the gateway.
    panics,
    /// TLS handshakes done with clients.
    tls_handshakes,
    /// Requests whose route was in the route cache.
    route_cache_hits,
    /// Requests whose route the cache was looked up for and did not contain.
    route_cache_misses,
    /// Requests in the route cache now.
    route_cache_entries,
    /// Bytes the route cache takes now.
    route_cache_bytes,
}

/// Reads the counts of all workers, also after the [`crate::Fleet`] has been handed over to be joined.
#[derive(Debug, Clone, Default)]
pub struct WorkerTally(pub(crate) Arc<[Arc<WorkerCounters>]>);

impl WorkerTally {
    /// The sums at this moment.
    pub fn read(&self) -> Counters {
        let mut sum = Counters::default();
        self.0.iter().for_each(|worker| worker.add_to(&mut sum));
        sum
    }
}

/// A count with one writer: a plain store is enough, without a locked instruction.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    #[inline]
    pub(crate) fn sub(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_sub(n), Relaxed);
    }

    #[inline]
    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
