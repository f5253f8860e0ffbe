//! What can be told of a request that has ended, by name.

use super::Tracer;
use stillgate_route::{HeaderName, Variable};
use stillgate_schema::Fault;
use stillgate_schema::text::diagnostic::shortened;
use stillgate_schema::text::nearest::nearest;

/// What a log can tell of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum AccessValue {
    /// Time the response ended, RFC 3339 with milliseconds.
    Time,
    /// The same as nginx's `$time_iso8601` has it, to the second.
    TimeIso8601,
    /// The same as nginx's `$time_local` has it.
    TimeLocal,
    /// The same in seconds since the epoch, as nginx's `$msec`.
    Msec,
    /// The request line.
    RequestLine,
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
    /// The address of the node tried last.
    BalancerIp,
    /// Its port.
    BalancerPort,
    /// The route's id; null where none matched.
    RouteId,
    /// The id of the route's service; null where it has none.
    ServiceId,
    /// 16 random bytes in hexadecimal, made for this request.
    RequestId,
    /// The id from the plugin `request-id`; without the plugin, as [`Self::RequestId`].
    GivenId,
    /// The trace id that a plugin has found or made, else that in the request's `traceparent` (W3C); null where there is none.
    TraceId,
    /// What a plugin that traces gives the node as `traceparent`.
    TraceContext(Tracer),
    /// The trace id in it.
    TraceOfPlugin(Tracer),
    /// The id of the gateway's span in it.
    SpanOfPlugin(Tracer),
    /// The machine's name.
    Hostname,
    /// The process's id.
    Pid,
    /// A header field of the response as it was sent to the client; several lines are joined by `, `.
    SentHeader(HeaderName),
    /// A header field of the response as the node sent it.
    UpstreamHeader(HeaderName),
    /// Any variable of the request (`request_uri`, `http_user_agent`, `remote_addr`, …).
    Variable(Variable),
}

const OWN_VALUES: [(&str, AccessValue); 33] = [
    ("time", AccessValue::Time),
    ("time_iso8601", AccessValue::TimeIso8601),
    ("time_local", AccessValue::TimeLocal),
    ("msec", AccessValue::Msec),
    ("request", AccessValue::RequestLine),
    ("status", AccessValue::Status),
    ("bytes_sent", AccessValue::BytesSent),
    ("body_bytes_sent", AccessValue::BodyBytesSent),
    ("bytes_received", AccessValue::BytesReceived),
    ("request_length", AccessValue::BytesReceived),
    ("request_time", AccessValue::RequestTime),
    ("upstream_response_time", AccessValue::UpstreamTime),
    ("upstream_header_time", AccessValue::UpstreamTime),
    ("upstream_connect_time", AccessValue::UpstreamConnectTime),
    ("upstream_addr", AccessValue::UpstreamAddr),
    ("upstream_status", AccessValue::UpstreamStatus),
    ("upstream_tries", AccessValue::UpstreamTries),
    ("balancer_ip", AccessValue::BalancerIp),
    ("balancer_port", AccessValue::BalancerPort),
    ("route_id", AccessValue::RouteId),
    ("service_id", AccessValue::ServiceId),
    ("request_id", AccessValue::RequestId),
    ("apisix_request_id", AccessValue::GivenId),
    ("trace_id", AccessValue::TraceId),
    ("opentelemetry_context_traceparent", AccessValue::TraceContext(Tracer::OpenTelemetry)),
    ("opentelemetry_trace_id", AccessValue::TraceOfPlugin(Tracer::OpenTelemetry)),
    ("opentelemetry_span_id", AccessValue::SpanOfPlugin(Tracer::OpenTelemetry)),
    ("zipkin_context_traceparent", AccessValue::TraceContext(Tracer::Zipkin)),
    ("zipkin_trace_id", AccessValue::TraceOfPlugin(Tracer::Zipkin)),
    ("zipkin_span_id", AccessValue::SpanOfPlugin(Tracer::Zipkin)),
    ("hostname", AccessValue::Hostname),
    ("pid", AccessValue::Pid),
    ("consumer", AccessValue::Variable(Variable::ConsumerName)),
];

/// What becomes of the name of a header field.
type OfField = fn(HeaderName) -> AccessValue;

/// What the values of header fields of a response begin with, and what an example of each looks like.
const RESPONSE_FIELDS: [(&str, &str, OfField); 2] = [
    ("sent_http_", "sent_http_NAME", AccessValue::SentHeader),
    ("upstream_http_", "upstream_http_NAME", AccessValue::UpstreamHeader),
];

/// The names of the values that are no variables of requests; an example of those with a name in them.
pub fn own_names() -> impl Iterator<Item = &'static str> {
    OWN_VALUES.iter().map(|(name, _)| *name).chain(RESPONSE_FIELDS.iter().map(|(_, example, _)| *example))
}

/// The value of a name. `late`: plugins ask, which know what the route has found.
///
/// # Errors
///
/// If there is no value of that name.
pub fn access_value(name: &str, late: bool) -> Result<AccessValue, Fault> {
    if let Some((_, value)) = OWN_VALUES.iter().find(|(own, _)| *own == name) {
        return Ok(value.clone());
    }
    for (prefix, example, value) in RESPONSE_FIELDS {
        if let Some(field) = name.strip_prefix(prefix) {
            let fault = || Fault::new(format!("{:?}: no header field has that name", shortened(name)));
            return HeaderName::from_variable(field)
                .map(value)
                .ok_or_else(|| fault().hint(format!("write {example}, such as {prefix}content_type")));
        }
    }
    let parsed = if late { Variable::parse_late(name) } else { Variable::parse_recorded(name) };
    let parsed = parsed.map_err(|error| Fault::new(error.to_string()));
    parsed.map(AccessValue::Variable).map_err(|fault| match nearest(name, OWN_VALUES.iter().map(|(own, _)| *own)) {
        Some(own) => Fault::new(format!("{:?}: unknown value", shortened(name))).hint(format!("did you mean {own:?}?")),
        None => fault,
    })
}
