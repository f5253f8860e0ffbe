//! What is logged of requests, and where.

use std::path::PathBuf;
use stillgate_route::{HeaderName, Variable};

/// `gateway.access_log`.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessLog {
    /// Where lines go.
    pub destination: LogDestination,
    /// How a line looks.
    pub format: AccessFormat,
}

/// Where a log goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogDestination {
    /// Standard output.
    Stdout,
    /// A file that is appended to, and reopened on SIGUSR1.
    File(PathBuf),
}

/// The shape of an access log line.
#[derive(Debug, Clone, PartialEq)]
pub enum AccessFormat {
    /// The combined format of Apache and nginx.
    Combined,
    /// One JSON object a line with these fields, in this order.
    Json(Vec<AccessField>),
}

/// One field of a JSON access log line.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessField {
    /// The JSON key.
    pub name: String,
    /// Where its value comes from.
    pub value: AccessValue,
}

/// What an access log field can show.
#[derive(Debug, Clone, PartialEq)]
pub enum AccessValue {
    /// Time the response ended, RFC 3339 with milliseconds.
    Time,
    /// Response status, a number.
    Status,
    /// Bytes sent to the client, head included.
    BytesSent,
    /// Bytes of the response's body as they were sent, with its chunk framing.
    BodyBytesSent,
    /// Bytes received from the client for this request, head included.
    BytesReceived,
    /// Seconds from the first request byte to the last response byte, as a decimal number.
    RequestTime,
    /// Seconds from choosing the last node to its response head; null where there was none.
    UpstreamTime,
    /// Seconds that connecting to the last node took, its TLS handshake included; 0 on a kept connection, null without one.
    UpstreamConnectTime,
    /// Every node that was tried, as `IP:PORT` separated by `, `; null where none was.
    UpstreamAddr,
    /// The status of every try, separated by `, `; `-` where a try has none. Null where no node was tried.
    UpstreamStatus,
    /// How many tries there were, a number.
    UpstreamTries,
    /// The route's id; null where none matched.
    RouteId,
    /// The id of the route's service; null where it has none.
    ServiceId,
    /// 16 random bytes in hexadecimal, made for this request.
    RequestId,
    /// The trace id in the request's `traceparent` (W3C); null where there is no valid one.
    TraceId,
    /// A header field of the response as it was sent to the client; several lines are joined by `, `.
    SentHeader(HeaderName),
    /// A header field of the response as the node sent it.
    UpstreamHeader(HeaderName),
    /// Any variable of the request (`request_uri`, `http_user_agent`, `remote_addr`, …).
    Variable(Variable),
}
