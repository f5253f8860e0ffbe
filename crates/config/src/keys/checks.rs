//! The keys that say how the health of an upstream's nodes is found out.
//!
//! Names, meaning and defaults are those of APISIX (`checks.active`, `checks.passive`); what is ours is said with the
//! key. How a check is made, and what is done with a node that fails it, is the business of `upstream` and `gateway`.

use crate::keys::nodes::parse_authority;
use crate::values::CheckType;
use serde::Serialize;
use std::time::Duration;
use stillgate_plugin_api::secrets::VeiledKind;
use stillgate_schema::kind::{Choice, Flag, Int, TEXT, Text, int, list, some, text};
use stillgate_schema::object;
use stillgate_schema::object::map;
use stillgate_schema::quantity::{DurationRange, span};
use stillgate_schema::text::diagnostic::{Fault, shortened};

/// The largest count of successes or failures, as of APISIX.
pub const CHECK_COUNT_MAX: u8 = 254;
/// The most checks of an upstream under way at once.
pub const CHECK_CONCURRENCY_MAX: usize = 10_000;
/// The largest `limits.queue`: each request in it holds what has come of it, up to 64 KiB.
const QUEUE_MAX: u32 = 10_000;

const DAY: Duration = Duration::from_secs(24 * 3600);
const CHECK_TIMEOUT: DurationRange = span(Duration::from_millis(1), Duration::from_secs(3600));
const CHECK_INTERVAL: DurationRange = span(Duration::from_millis(100), DAY);
const QUEUE_TIMEOUT: DurationRange = span(Duration::from_millis(1), Duration::from_secs(3600));
pub(crate) const QUEUE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(1);
const SLOW_START: DurationRange = span(Duration::ZERO, DAY);
const STATUS: Int<u16> = int(200, 599);
const TIMES: Int<u8> = int(1, CHECK_COUNT_MAX as i64);
const TIMES_OR_NEVER: Int<u8> = int(0, CHECK_COUNT_MAX as i64);

object! {
    /// Health checks of the nodes. Without them, a node is set aside after a failed connection, for a time that grows
    /// from 1 s to 30 s, and then probed with one request.
    pub struct Checks: Serialize {
        /// Active health checks, made once for all workers. A node counts as healthy until enough checks have failed.
        active: ActiveCheck = map::<ActiveCheck>() => optional;
        /// Passive health checks, based on forwarded requests: a circuit breaker per node and worker. A node that fails
        /// too often is ejected (open) for a time that grows from 1 s to 30 s, then gets one request at a time
        /// (half-open), and its share again after `healthy.successes` successes (closed).
        passive: PassiveCheck = map::<PassiveCheck>() => optional;
        /// Maximum share of nodes ejected by passive checks at the same time; one node always stays. Not in APISIX.
        max_ejected_percent: u32 = int(1, 100) => default(50);
        /// Time over which the weight of a recovered node grows from a tenth to full. Not in APISIX.
        slow_start: Duration = SLOW_START => default(Duration::ZERO);
    }
}

object! {
    /// Active health checks.
    pub struct ActiveCheck: Serialize {
        /// `http`: a request, judged by its status; `https`: the same over the upstream's TLS, which needs
        /// `scheme: https`; `tcp`: a connection attempt. Requests use HTTP/1.1: if the upstream has `http2`, `grpc` or
        /// `grpcs`, use `tcp`, or set a `port` that speaks HTTP/1.1.
        r#type: CheckType = CHECK_TYPE => default(CheckType::Http);
        /// Per check, from connecting to the response head; with `tcp`, for the connection.
        timeout: Duration = CHECK_TIMEOUT => default(Duration::from_secs(1));
        /// Maximum concurrent checks per upstream.
        concurrency: usize = int(1, CHECK_CONCURRENCY_MAX as i64) => default(10);
        /// The `Host` of the checks and, with `type: https`, the name that the node's certificate must have. Default:
        /// `upstream_host` with `pass_host: rewrite`, otherwise the node's own.
        host: String = HOST => optional;
        /// The port to check. Default: the node's own.
        port: u16 = int(1, 65_535) => optional;
        /// The method of the request.
        http_method: &'static str = HTTP_METHOD => default("GET");
        /// The body of the request; none if empty.
        http_req_body: String = TEXT.shown() => default(String::new());
        /// The path to request, optionally with a query.
        http_path: String = HTTP_PATH => default("/".to_owned());
        /// With `type: https`, `tls.verify` alone decides whether the node's certificate is verified; `false` is
        /// rejected unless `tls.verify` is `false`, too.
        https_verify_certificate: bool = Flag => default(true);
        /// Additional request headers, each as `Name: value`.
        req_headers: Vec<String> = VeiledKind(list(REQ_HEADER)) => default(Vec::new());
        /// When a node counts as healthy.
        healthy: ActiveHealthy = map::<ActiveHealthy>() => nested;
        /// When it is unhealthy.
        unhealthy: ActiveUnhealthy = map::<ActiveUnhealthy>() => nested;
    }
}

object! {
    /// When active checks consider a node healthy.
    pub struct ActiveHealthy: Serialize {
        /// Check interval of a healthy node.
        interval: Duration = CHECK_INTERVAL => default(Duration::from_secs(1));
        /// Statuses that count as a success; those in neither list are ignored.
        http_statuses: Vec<u16> = some(STATUS) => default(vec![200, 302]);
        /// Successes in a row that make an unhealthy node healthy.
        successes: u8 = TIMES => default(2);
    }
}

object! {
    /// When active checks consider a node unhealthy. Thresholds count failures of one kind without a success in
    /// between; 0: such failures do not count.
    pub struct ActiveUnhealthy: Serialize {
        /// Check interval of an unhealthy node.
        interval: Duration = CHECK_INTERVAL => default(Duration::from_secs(1));
        /// Statuses that count as a failure.
        http_statuses: Vec<u16> = some(STATUS) => default(vec![429, 404, 500, 501, 502, 503, 504, 505]);
        /// Failures by status, or by a response that is not HTTP.
        http_failures: u8 = TIMES_OR_NEVER => default(5);
        /// Connections refused or reset.
        tcp_failures: u8 = TIMES_OR_NEVER => default(2);
        /// Checks that timed out.
        timeouts: u8 = TIMES_OR_NEVER => default(3);
    }
}

object! {
    /// Passive checks, based on forwarded requests.
    pub struct PassiveCheck: Serialize {
        /// `http` and `https` are equivalent; with `tcp`, statuses do not count.
        r#type: CheckType = CHECK_TYPE => default(CheckType::Http);
        /// When a node counts as healthy.
        healthy: PassiveHealthy = map::<PassiveHealthy>() => nested;
        /// When it is unhealthy.
        unhealthy: PassiveUnhealthy = map::<PassiveUnhealthy>() => nested;
    }
}

object! {
    /// When passive checks consider a node healthy.
    pub struct PassiveHealthy: Serialize {
        /// Statuses that count as a success; those in neither list are ignored.
        http_statuses: Vec<u16> = some(STATUS) => default(PASSIVE_HEALTHY_STATUSES.to_vec());
        /// Successes after which an ejected node gets its share again; until then, one request at a time.
        successes: u8 = TIMES => default(5);
    }
}

object! {
    /// When passive checks consider a node unhealthy. Thresholds count failures of one kind without a success in
    /// between; 0: such failures do not count.
    pub struct PassiveUnhealthy: Serialize {
        /// Statuses that count as a failure.
        http_statuses: Vec<u16> = some(STATUS) => default(vec![429, 500, 503]);
        /// Failures by status, or by a response that is not HTTP.
        http_failures: u8 = TIMES_OR_NEVER => default(5);
        /// Connections refused, or reset before the response head.
        tcp_failures: u8 = TIMES_OR_NEVER => default(2);
        /// Tries that exceeded one of the limits in `timeout`.
        timeouts: u8 = TIMES_OR_NEVER => default(7);
    }
}

object! {
    /// A limit on retries, so that they do not overload a failing upstream. Beyond it, a request is not retried: it
    /// fails. Each worker counts its own requests.
    pub struct RetryBudget: Copy, Eq, Serialize {
        /// Maximum retries in flight, as a share of requests in flight upstream.
        percent: u32 = int(0, 100) => default(20);
        /// Retries in flight that are always allowed.
        min_concurrency: u32 = int(0, 1_000_000) => default(3);
    }
}

object! {
    /// Concurrency limits for the upstream, per worker. Excess requests are queued, or get 503 (gRPC: `UNAVAILABLE`)
    /// with `Retry-After: 1`: better to reject a few than to delay all of them.
    pub struct UpstreamLimits: Copy, Eq, Serialize {
        /// Maximum requests in flight to the upstream, per worker. Default: unlimited.
        requests: u32 = int(1, 1_000_000) => optional;
        /// Maximum queued requests, per worker, served oldest first. Further requests get 503 (gRPC: `UNAVAILABLE`) at
        /// once.
        queue: u32 = int(0, QUEUE_MAX as i64) => default(0);
        /// Maximum time in the queue; then 503 (gRPC: `UNAVAILABLE`).
        queue_timeout: Duration = QUEUE_TIMEOUT => default(QUEUE_TIMEOUT_DEFAULT);
    }
}

const PASSIVE_HEALTHY_STATUSES: [u16; 19] =
    [200, 201, 202, 203, 204, 205, 206, 207, 208, 226, 300, 301, 302, 303, 304, 305, 306, 307, 308];

const CHECK_TYPE: Choice<CheckType> =
    Choice { words: &[("http", CheckType::Http), ("https", CheckType::Https), ("tcp", CheckType::Tcp)], unbuilt: &[] };

/// APISIX's, but for CONNECT, which asks for no path.
const HTTP_METHOD: Choice<&'static str> = Choice {
    words: &[
        ("GET", "GET"),
        ("HEAD", "HEAD"),
        ("OPTIONS", "OPTIONS"),
        ("POST", "POST"),
        ("PUT", "PUT"),
        ("PATCH", "PATCH"),
        ("DELETE", "DELETE"),
        ("TRACE", "TRACE"),
        ("PURGE", "PURGE"),
    ],
    unbuilt: &[],
};

/// `host` or `host:port`, kept as written.
const HOST: Text<String> = text("a host", |text| parse_authority(text).map(|_| text.to_owned()));

/// An origin-form target (RFC 9112 section 3.2.1).
const HTTP_PATH: Text<String> = text("a path", |text| {
    if !text.starts_with('/') {
        let fault = Fault::new(format!("{:?} does not begin with \"/\"", shortened(text)));
        return Err(fault.hint("write the path only, such as /healthz"));
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
        let fault = Fault::new(format!("{:?} has characters that a request line cannot hold", shortened(text)));
        return Err(fault.hint("write them percent-encoded, a space as %20"));
    }
    Ok(text.to_owned())
})
.shown();

/// Lines that the check writes itself, or that would give it a body.
const OWN_HEADERS: [&str; 4] = ["connection", "content-length", "host", "transfer-encoding"];

/// A header line that cannot break out of its line.
const REQ_HEADER: Text<String> = text("a header line", |line| {
    let Some((name, value)) = line.split_once(':') else {
        let fault = Fault::new(format!("{:?} has no colon", shortened(line)));
        return Err(fault.hint("write \"Name: value\""));
    };
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err(Fault::new(format!("{:?} is not a header's name", shortened(name))));
    }
    if OWN_HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
        let fault = Fault::new(format!("{name} is written by the check itself"));
        return Err(match name.eq_ignore_ascii_case("host") {
            true => fault.hint("write it as the key `host`"),
            false => fault.hint("remove it"),
        });
    }
    if value.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t') {
        return Err(Fault::new(format!("the value of {name} has control characters")));
    }
    Ok(format!("{name}: {}", value.trim()))
});
