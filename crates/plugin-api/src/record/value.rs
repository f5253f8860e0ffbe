//! Values of a finished request, by name.

use super::Tracer;
use stillgate_route::{HeaderName, Variable};
use stillgate_schema::Fault;
use stillgate_schema::text::diagnostic::nearest;
use stillgate_schema::text::diagnostic::shortened;

/// A value for logs.
#[derive(Debug, Clone, PartialEq)]
pub enum AccessValue {
    /// Time the response ended, RFC 3339 with milliseconds.
    Time,
    /// The time like nginx's `$time_iso8601`, to the second.
    TimeIso8601,
    /// The time like nginx's `$time_local`.
    TimeLocal,
    /// The time in seconds since the epoch, like nginx's `$msec`.
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
    /// Seconds from choosing the last node to its response head; null without one.
    UpstreamTime,
    /// Seconds of connecting to the last node, its TLS handshake included; 0 on a kept connection, null without one.
    UpstreamConnectTime,
    /// The nodes of all attempts, as `IP:PORT` separated by `, `; null without attempts.
    UpstreamAddr,
    /// The status of every attempt, separated by `, `; `-` for an attempt without one. Null without attempts.
    UpstreamStatus,
    /// Number of attempts.
    UpstreamTries,
    /// The address of the last node.
    BalancerIp,
    /// Its port.
    BalancerPort,
    /// The route's id; null without a match.
    RouteId,
    /// The id of the route's service; null without one.
    ServiceId,
    /// 16 random bytes in hexadecimal, generated for this request.
    RequestId,
    /// The id from the plugin `request-id`; without the plugin, like [`Self::RequestId`].
    GivenId,
    /// The trace id that a plugin has found or created, else that in the request's `traceparent` (W3C); null without
    /// either.
    TraceId,
    /// The `traceparent` that a tracing plugin sends to the node.
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
    /// An argument as nginx logs it: with its name in any case, and its value not decoded.
    RawArgument(Box<str>),
    /// A cookie as nginx logs it: with its name in any case.
    RawCookie(Box<str>),
    /// Any other variable of the request (`request_uri`, `http_user_agent`, `remote_addr`, …).
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

/// Makes a value from the name of a header field.
type OfField = fn(HeaderName) -> AccessValue;

/// The prefixes of names for response header fields, with an example of each.
const RESPONSE_FIELDS: [(&str, &str, OfField); 2] = [
    ("sent_http_", "sent_http_NAME", AccessValue::SentHeader),
    ("upstream_http_", "upstream_http_NAME", AccessValue::UpstreamHeader),
];

/// The names of the values that are not request variables; an example for those that contain a field's name.
pub fn own_names() -> impl Iterator<Item = &'static str> {
    OWN_VALUES.iter().map(|(name, _)| *name).chain(RESPONSE_FIELDS.iter().map(|(_, example, _)| *example))
}

/// The value with a name. `late`: for plugins, which know the matched route.
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
            let fault = || Fault::new(format!("{:?}: not the name of a header field", shortened(name)));
            return HeaderName::from_variable(field)
                .map(value)
                .ok_or_else(|| fault().hint(format!("write {example}, such as {prefix}content_type")));
        }
    }
    let parsed = if late { Variable::parse_late(name) } else { Variable::parse_recorded(name) };
    let parsed = parsed.map_err(|error| Fault::new(error.to_string()));
    // The access log has nginx's variables, and what plugins log has APISIX's.
    let value = |variable| match variable {
        Variable::Arg(name) if !late => AccessValue::RawArgument(name),
        Variable::Cookie(name) if !late => AccessValue::RawCookie(name),
        variable => AccessValue::Variable(variable),
    };
    parsed.map(value).map_err(|fault| match nearest(name, OWN_VALUES.iter().map(|(own, _)| *own)) {
        Some(own) => Fault::new(format!("{:?}: unknown value", shortened(name))).hint(format!("did you mean {own:?}?")),
        None => fault,
    })
}
