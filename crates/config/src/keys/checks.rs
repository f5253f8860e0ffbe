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
    /// How the health of the nodes is found out. Without it a node is set aside after a connection to it failed, for a time
    /// that grows from 1 s to 30 s, and then tried by one request.
    pub struct Checks: Serialize {
        /// Checks by requests of the gateway's own, made once for all workers. A node is taken for healthy until enough
        /// of them failed.
        active: ActiveCheck = map::<ActiveCheck>() => optional;
        /// Judging nodes by the requests that are forwarded: a circuit breaker for each node, in each worker. A node that
        /// fails too often is ejected (open) for a time that grows from 1 s to 30 s, then gets one request at a time
        /// (half-open), and after `healthy.successes` good answers its share again (closed).
        passive: PassiveCheck = map::<PassiveCheck>() => optional;
        /// The share of the nodes that passive checks may have ejected at once; one node always stays. Not in APISIX.
        max_ejected_percent: u32 = int(1, 100) => default(50);
        /// For how long the weight of a node that has recovered grows, from a tenth to all of it. Not in APISIX.
        slow_start: Duration = SLOW_START => default(Duration::ZERO);
    }
}

object! {
    /// Checks by requests of the gateway's own.
    pub struct ActiveCheck: Serialize {
        /// `http`: a request whose status decides; `https`: the same with the TLS of the upstream, which must have `scheme: https`;
        /// `tcp`: whether a connection can be made. The request is one of HTTP/1.1: where the upstream has `http2`, `grpc` or
        /// `grpcs`, use `tcp`, or name a `port` that speaks it.
        r#type: CheckType = CHECK_TYPE => default(CheckType::Http);
        /// For one check, from connecting to the response's head; for a connection with `tcp`.
        timeout: Duration = CHECK_TIMEOUT => default(Duration::from_secs(1));
        /// Checks of the upstream under way at once.
        concurrency: usize = int(1, CHECK_CONCURRENCY_MAX as i64) => default(10);
        /// The `Host` of the checks, and with `type: https` the name that the node must have a certificate of; where it is absent
        /// `upstream_host` with `pass_host: rewrite`, and otherwise the node's own.
        host: String = HOST => optional;
        /// The port to check; the node's own where it is absent.
        port: u16 = int(1, 65_535) => optional;
        /// The method of the request.
        http_method: &'static str = HTTP_METHOD => default("GET");
        /// The body of the request; none where it is empty.
        http_req_body: String = TEXT.shown() => default(String::new());
        /// The path that is asked for, with its query if it has one.
        http_path: String = HTTP_PATH => default("/".to_owned());
        /// With `type: https`, whether the node's certificate is verified; it is as `tls.verify` says.
        https_verify_certificate: bool = Flag => default(true);
        /// Further header lines of the checks, `Name: value` each.
        req_headers: Vec<String> = VeiledKind(list(REQ_HEADER)) => default(Vec::new());
        /// What shows that a node is well.
        healthy: ActiveHealthy = map::<ActiveHealthy>() => nested;
        /// What shows that it is not.
        unhealthy: ActiveUnhealthy = map::<ActiveUnhealthy>() => nested;
    }
}

object! {
    /// What shows an active check that a node is well.
    pub struct ActiveHealthy: Serialize {
        /// Between two checks of a healthy node.
        interval: Duration = CHECK_INTERVAL => default(Duration::from_secs(1));
        /// Statuses that count as a success; one in neither list counts as nothing.
        http_statuses: Vec<u16> = some(STATUS) => default(vec![200, 302]);
        /// Successes in a row that make an unhealthy node healthy.
        successes: u8 = TIMES => default(2);
    }
}

object! {
    /// What shows an active check that a node is not well. The counts are of failures of the same kind without a success
    /// between them; 0: such failures do not count.
    pub struct ActiveUnhealthy: Serialize {
        /// Between two checks of an unhealthy node.
        interval: Duration = CHECK_INTERVAL => default(Duration::from_secs(1));
        /// Statuses that count as a failure.
        http_statuses: Vec<u16> = some(STATUS) => default(vec![429, 404, 500, 501, 502, 503, 504, 505]);
        /// Failures by status, or by a response that is not HTTP.
        http_failures: u8 = TIMES_OR_NEVER => default(5);
        /// Connections refused or reset.
        tcp_failures: u8 = TIMES_OR_NEVER => default(2);
        /// Checks that took too long.
        timeouts: u8 = TIMES_OR_NEVER => default(3);
    }
}

object! {
    /// Judging nodes by the requests that are forwarded.
    pub struct PassiveCheck: Serialize {
        /// `http` and `https` are the same here; with `tcp` statuses do not count.
        r#type: CheckType = CHECK_TYPE => default(CheckType::Http);
        /// What shows that a node is well.
        healthy: PassiveHealthy = map::<PassiveHealthy>() => nested;
        /// What shows that it is not.
        unhealthy: PassiveUnhealthy = map::<PassiveUnhealthy>() => nested;
    }
}

object! {
    /// What shows a passive check that a node is well.
    pub struct PassiveHealthy: Serialize {
        /// Statuses that count as a success; one in neither list counts as nothing.
        http_statuses: Vec<u16> = some(STATUS) => default(PASSIVE_HEALTHY_STATUSES.to_vec());
        /// Successes that an ejected node needs to get its share again; it gets one request at a time until then.
        successes: u8 = TIMES => default(5);
    }
}

object! {
    /// What shows a passive check that a node is not well. The counts are of failures of the same kind without a success
    /// between them; 0: such failures do not count.
    pub struct PassiveUnhealthy: Serialize {
        /// Statuses that count as a failure.
        http_statuses: Vec<u16> = some(STATUS) => default(vec![429, 500, 503]);
        /// Failures by status, or by a response that is not HTTP.
        http_failures: u8 = TIMES_OR_NEVER => default(5);
        /// Connections refused, and those reset before the response's head.
        tcp_failures: u8 = TIMES_OR_NEVER => default(2);
        /// Tries that ended by one of the bounds of `timeout`.
        timeouts: u8 = TIMES_OR_NEVER => default(7);
    }
}

object! {
    /// A bound on retries, so that they do not bury an upstream that is failing already. A retry beyond it is not made: the
    /// failure is answered. Each worker counts its own requests.
    pub struct RetryBudget: Copy, Eq, Serialize {
        /// Retries in flight, as a share of the requests in flight to the upstream.
        percent: u32 = int(0, 100) => default(20);
        /// Retries in flight that are always allowed.
        min_concurrency: u32 = int(0, 1_000_000) => default(3);
    }
}

object! {
    /// What a worker takes on for the upstream. A request beyond it waits in the queue, or is answered 503 with `Retry-After: 1`:
    /// better few that wait for nothing than all that wait too long.
    pub struct UpstreamLimits: Copy, Eq, Serialize {
        /// Requests in flight to the upstream, in each worker; no bound where it is absent.
        requests: u32 = int(1, 1_000_000) => optional;
        /// Requests that may wait until one of those has ended, in each worker; the oldest is the next. One more is answered at
        /// once.
        queue: u32 = int(0, QUEUE_MAX as i64) => default(0);
        /// How long one of them waits; then it is answered.
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
