//! Variables of a request, as nginx and APISIX name them, parsed once.
//!
//! This has only what a client has sent; results (its route, status, times, bytes) and ids belong to the access log.
//! [`Lookup`] gives the values.

use crate::body_path::BodyPath;
use std::fmt;

/// A named value of a request.
///
/// All values are the original bytes, undecoded, except for [`Variable::Uri`], [`Variable::Host`] and parameters of paths.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Variable {
    /// `uri`: the normalised path, decoded, without query.
    Uri,
    /// `request_uri`: path and query as they came.
    RequestUri,
    /// `args` or `query_string`: the query without `?`; absent where there is no `?`.
    Args,
    /// `is_args`: `?` where there is a query that is not empty, else empty.
    IsArgs,
    /// `host`: in lower case, without port.
    Host,
    /// `request_method` or `method`
    RequestMethod,
    /// `scheme`: `http` or `https`, of the client's connection.
    Scheme,
    /// `server_protocol` or `protocol`: `HTTP/1.1`.
    ServerProtocol,
    /// `remote_addr`: the client, after trusted proxies were believed.
    RemoteAddr,
    /// `remote_port`: the port of the connection's peer.
    RemotePort,
    /// `realip_remote_addr`: the connection's peer, even if that is a proxy.
    PeerAddr,
    /// `server_addr`: our address on the connection.
    ServerAddr,
    /// `server_port`: our port on the connection.
    ServerPort,
    /// `arg_NAME`: the value of the first `NAME=value` in the query, undecoded; empty for `NAME` alone. Names are
    /// case-sensitive.
    Arg(Box<str>),
    /// `http_NAME`, `content_type`, `content_length`: a header field; several lines are joined by `, `.
    Header(HeaderName),
    /// `cookie_NAME`: the value of the first cookie of that name. Names are case-sensitive.
    Cookie(Box<str>),
    /// `ssl_server_name`: the server name that the client requested by TLS (SNI).
    SslServerName,
    /// `ssl_protocol`, `ssl_cipher`, `ssl_client_…`: other properties of the connection's TLS; absent without TLS.
    Ssl(SslVariable),
    /// `uri_param_NAME`: the value of `:NAME` or `*NAME` of the route's path, decoded.
    PathParam(Box<str>),
    /// `uri_param_NAME` of plugins: a parameter of the route that was found, while `PathParam` belongs to the route
    /// being matched.
    RouteParam(Box<str>),
    /// `route_id`; known from the route on.
    RouteId,
    /// `service_id`: the id of the route's service; known from the route on.
    ServiceId,
    /// `consumer_name`: the client's consumer, once a plugin has identified it.
    ConsumerName,
    /// `consumer_group_id`: the consumer's group.
    ConsumerGroupId,
    /// `status`: the status of the response; known from its head on.
    Status,
    /// `route_name`: the route's name, if it has one; known from the route on.
    RouteName,
    /// `service_name`: the name of the route's service.
    ServiceName,
    /// `remote_user`: the name that the client gives by basic authentication, right or wrong.
    RemoteUser,
    /// `post_arg_NAME`: the value of the first `NAME=value` in a form, decoded. Only available to callers that wait for
    /// the body.
    PostArg(Box<str>),
    /// `post_arg.WAY`: the value at a path of a form, of JSON or of `multipart/form-data`. Only available to callers
    /// that wait for the body.
    BodyArg(BodyPath),
    /// A name of [`RECORDED`]: a result of the request; known from the response on.
    Recorded(&'static str),
    /// `sent_http_NAME`: a header field of the response as sent to the client.
    SentHeader(HeaderName),
    /// `upstream_http_NAME`: a header field of the response as received from the node.
    UpstreamHeader(HeaderName),
}

/// Properties of a TLS connection, as nginx names and writes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SslVariable {
    /// `ssl_protocol`: `TLSv1.3`.
    Protocol,
    /// `ssl_cipher`: as OpenSSL names it.
    Cipher,
    /// `ssl_client_verify`: `SUCCESS` for a client that presented a valid certificate, else `NONE`.
    ClientVerify,
    /// `ssl_client_s_dn`: the subject of the client's certificate (RFC 2253).
    ClientSubject,
    /// `ssl_client_serial`: its serial number in hexadecimal.
    ClientSerial,
    /// `ssl_client_fingerprint`: its SHA-1 in hexadecimal.
    ClientFingerprint,
}

/// Longest name of a header field that can be used as a variable.
pub(crate) const HEADER_NAME_BYTES_MAX: usize = 256;

/// A header field's name, in lower case, with dashes where the variable's name had underscores.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HeaderName(Box<str>);

impl HeaderName {
    /// Makes a header name from the spelling of variables: in any case, with underscores for dashes. `None` where no
    /// field can have it.
    pub fn from_variable(name: &str) -> Option<HeaderName> {
        let valid = !name.is_empty() && name.len() <= HEADER_NAME_BYTES_MAX && name.bytes().all(is_token);
        valid.then(|| HeaderName(name.to_ascii_lowercase().replace('_', "-").into()))
    }

    /// The name in lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a field on the wire has this name. `X_User` is not `x-user`: a proxy in front of us that strips one
    /// would let the other through.
    pub fn matches(&self, field_name: &[u8]) -> bool {
        self.0.as_bytes().eq_ignore_ascii_case(field_name)
    }
}

/// Gives the variables of one request.
///
/// Implemented by everything that holds a request: the proxy, explain, tests.
pub trait Lookup {
    /// The value of a variable, or `None` if the request has none: a part of the request if possible, else written to
    /// `buffer`, whose content may be replaced.
    ///
    /// During the search for a route the matcher itself gives [`Variable::PathParam`].
    fn value<'a>(&'a self, variable: &Variable, buffer: &'a mut Vec<u8>) -> Option<&'a [u8]>;

    /// Whether the request's value of it is known. A made-up request may leave parts open; they are absent during the
    /// search for a route, and [`crate::Matcher::explain`] reports that they are unknown.
    fn is_known(&self, _variable: &Variable) -> bool {
        true
    }

    /// Calls `visit` with name and value of every header field, in the order they came.
    fn each_header(&self, visit: &mut dyn FnMut(&[u8], &[u8]));

    /// Whether functions of routes are run for it. If not, no function lets its route take the request.
    fn runs_functions(&self) -> bool {
        true
    }
}

/// Variables without a name part. Each prints as its first name.
const PLAIN: [(&str, Variable); 25] = [
    ("uri", Variable::Uri),
    ("document_uri", Variable::Uri),
    ("request_uri", Variable::RequestUri),
    ("args", Variable::Args),
    ("query_string", Variable::Args),
    ("is_args", Variable::IsArgs),
    ("host", Variable::Host),
    ("request_method", Variable::RequestMethod),
    ("method", Variable::RequestMethod),
    ("scheme", Variable::Scheme),
    ("server_protocol", Variable::ServerProtocol),
    ("protocol", Variable::ServerProtocol),
    ("remote_addr", Variable::RemoteAddr),
    ("remote_port", Variable::RemotePort),
    ("remote_user", Variable::RemoteUser),
    ("realip_remote_addr", Variable::PeerAddr),
    ("server_addr", Variable::ServerAddr),
    ("server_port", Variable::ServerPort),
    ("ssl_server_name", Variable::SslServerName),
    ("ssl_protocol", Variable::Ssl(SslVariable::Protocol)),
    ("ssl_cipher", Variable::Ssl(SslVariable::Cipher)),
    ("ssl_client_verify", Variable::Ssl(SslVariable::ClientVerify)),
    ("ssl_client_s_dn", Variable::Ssl(SslVariable::ClientSubject)),
    ("ssl_client_serial", Variable::Ssl(SslVariable::ClientSerial)),
    ("ssl_client_fingerprint", Variable::Ssl(SslVariable::ClientFingerprint)),
];

/// Prefixes of variables with a name part, and an example of each.
const PREFIXES: [(&str, &str); 4] =
    [("arg_", "arg_NAME"), ("http_", "http_NAME"), ("cookie_", "cookie_NAME"), ("uri_param_", "uri_param_NAME")];

/// Header fields that are variables without a prefix.
const HEADERS: [&str; 2] = ["content_type", "content_length"];

/// Variables that are known once the route is: conditions of routes cannot use them.
const LATE: [(&str, Variable); 7] = [
    ("route_id", Variable::RouteId),
    ("service_id", Variable::ServiceId),
    ("consumer_name", Variable::ConsumerName),
    ("consumer_group_id", Variable::ConsumerGroupId),
    ("status", Variable::Status),
    ("route_name", Variable::RouteName),
    ("service_name", Variable::ServiceName),
];

/// Names of [`RECORDED`] that are known before the response.
pub const RECORDED_EARLY: &[&str] = RECORDED.split_at(16).0;

/// Names of results of a request: the access log has them, and plugins from the response on. Those known earlier come
/// first.
pub const RECORDED: [&str; 35] = [
    "time",
    "time_iso8601",
    "time_local",
    "msec",
    "request",
    "request_id",
    "apisix_request_id",
    "trace_id",
    "opentelemetry_context_traceparent",
    "opentelemetry_trace_id",
    "opentelemetry_span_id",
    "zipkin_context_traceparent",
    "zipkin_trace_id",
    "zipkin_span_id",
    "hostname",
    "pid",
    "bytes_received",
    "request_length",
    "body_bytes_sent",
    "bytes_sent",
    "request_time",
    "upstream_addr",
    "upstream_status",
    "upstream_tries",
    "upstream_response_time",
    "upstream_header_time",
    "upstream_connect_time",
    "balancer_ip",
    "balancer_port",
    "upstream_unresolved_host",
    "upstream_host",
    "upstream_scheme",
    "upstream_uri",
    "request_body",
    "resp_body",
];

/// Makes a variable from the name of a header field.
type OfField = fn(HeaderName) -> Variable;

/// Prefixes of the other recorded variables, and an example of each.
const RECORDED_PREFIXES: [(&str, &str, OfField); 2] = [
    ("sent_http_", "sent_http_NAME", Variable::SentHeader),
    ("upstream_http_", "upstream_http_NAME", Variable::UpstreamHeader),
];

/// Spellings of body arguments.
const BODY_ARG_EXAMPLE: &str = "post_arg.a, post_arg.a.b, post_arg.a[0] or post_arg.a[*].b";

/// The prefix of arguments of a form, and that of arguments of any body.
const POST_ARG: &str = "post_arg_";
const BODY_ARG: &str = "post_arg.";

/// A name that is not a variable of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VariableError {
    /// The text as written, without a leading `$`.
    pub name: String,
    /// The error.
    pub kind: VariableErrorKind,
}

/// Kinds of errors of a variable's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VariableErrorKind {
    /// No variable has that name.
    Unknown,
    /// The name part is missing, too long or holds a character it cannot.
    Name {
        /// An example of the right spelling.
        example: &'static str,
    },
    /// It is known only from the response on.
    Logged,
    /// It is known only from the route on.
    Late,
    /// It is in the body, which only some callers wait for.
    InBody,
    /// It exists in APISIX, but is not implemented here.
    NotBuilt,
}

impl Variable {
    /// The names that plugins can use. A name with a free part is given as an example: `arg_NAME`.
    pub fn names() -> impl Iterator<Item = &'static str> {
        early_names().chain(LATE.iter().map(|(name, _)| *name))
    }

    /// Parses the name of a variable that a plugin reads, including those known from the route on.
    pub fn parse_late(name: &str) -> Result<Variable, VariableError> {
        let plain = name.strip_prefix('$').unwrap_or(name);
        if let Some((_, variable)) = LATE.iter().find(|(known, _)| *known == plain) {
            return Ok(variable.clone());
        }
        if let Some(recorded) = RECORDED.iter().find(|recorded| **recorded == plain) {
            return Ok(Variable::Recorded(recorded));
        }
        for (prefix, example, variable) in RECORDED_PREFIXES {
            if let Some(field) = plain.strip_prefix(prefix) {
                let error = VariableError { name: plain.to_owned(), kind: VariableErrorKind::Name { example } };
                return HeaderName::from_variable(field).map(variable).ok_or(error);
            }
        }
        Variable::parse(name).map(|variable| match variable {
            Variable::PathParam(name) => Variable::RouteParam(name),
            variable => variable,
        })
    }

    /// Like [`Variable::parse_late`], for callers that wait for the body.
    pub fn parse_with_body(name: &str) -> Result<Variable, VariableError> {
        let plain = name.strip_prefix('$').unwrap_or(name);
        let parsed = match (plain.strip_prefix(POST_ARG), plain.strip_prefix(BODY_ARG)) {
            (Some(argument), _) => {
                (!argument.is_empty()).then(|| Variable::PostArg(argument.into())).ok_or("post_arg_NAME")
            }
            (_, Some(way)) => BodyPath::parse(way).map(Variable::BodyArg).ok_or(BODY_ARG_EXAMPLE),
            _ => return Variable::parse_late(name),
        };
        parsed.map_err(|example| VariableError { name: plain.to_owned(), kind: VariableErrorKind::Name { example } })
    }

    /// Parses the name of a variable that is read at the end of a request: the consumer is known by then. The ids of
    /// route and service are values of their own there.
    pub fn parse_recorded(name: &str) -> Result<Variable, VariableError> {
        match name.strip_prefix('$').unwrap_or(name) {
            "consumer_name" => Ok(Variable::ConsumerName),
            "consumer_group_id" => Ok(Variable::ConsumerGroupId),
            _ => Variable::parse(name),
        }
    }

    /// Parses a variable's name; a leading `$` is accepted.
    pub fn parse(name: &str) -> Result<Variable, VariableError> {
        let name = name.strip_prefix('$').unwrap_or(name);
        if let Some((_, variable)) = PLAIN.iter().find(|(plain, _)| *plain == name) {
            return Ok(variable.clone());
        }
        let header = |name: &str| Variable::Header(HeaderName(name.to_ascii_lowercase().replace('_', "-").into()));
        if HEADERS.contains(&name) {
            return Ok(header(name));
        }
        let error = |kind| VariableError { name: name.to_owned(), kind };
        let Some((prefix, example)) = PREFIXES.iter().find(|(prefix, _)| name.starts_with(prefix)) else {
            return Err(error(unknown(name)));
        };
        let part = &name[prefix.len()..];
        let valid = match *prefix {
            "http_" => part.len() <= HEADER_NAME_BYTES_MAX && part.bytes().all(is_token),
            "cookie_" => part.bytes().all(is_token),
            "uri_param_" => part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'),
            _ => part.bytes().all(|b| !matches!(b, b'&' | b'=' | b' ' | b'#') && !b.is_ascii_control()),
        };
        if part.is_empty() || !valid {
            return Err(error(VariableErrorKind::Name { example }));
        }
        Ok(match *prefix {
            "arg_" => Variable::Arg(part.into()),
            "http_" => header(part),
            "cookie_" => Variable::Cookie(part.into()),
            _ => Variable::PathParam(part.into()),
        })
    }
}

fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

/// The longest text that may be a slip of the pen of a name.
const COMPARED_BYTES_MAX: usize = 80;

/// The names that routes can use.
fn early_names() -> impl Iterator<Item = &'static str> {
    PLAIN.iter().map(|(name, _)| *name).chain(HEADERS).chain(PREFIXES.iter().map(|(_, example)| *example))
}

fn unknown(name: &str) -> VariableErrorKind {
    if LATE.iter().any(|(late, _)| *late == name) {
        return VariableErrorKind::Late;
    }
    if RECORDED.contains(&name) || RECORDED_PREFIXES.iter().any(|(prefix, ..)| name.starts_with(prefix)) {
        return VariableErrorKind::Logged;
    }
    if name.starts_with(POST_ARG) || name.starts_with(BODY_ARG) {
        return VariableErrorKind::InBody;
    }
    if name.starts_with("graphql_") {
        return VariableErrorKind::NotBuilt;
    }
    VariableErrorKind::Unknown
}

/// The most similar name that exists. Comparing costs the product of both lengths for each name: only a message needs it, while
/// any text may be looked up.
fn nearest(name: &str) -> Option<&'static str> {
    let compared = early_names().filter(|_| name.len() <= COMPARED_BYTES_MAX);
    let nearest = compared
        .map(|known| (strsim::damerau_levenshtein(name, known), known))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, known)| *distance <= known.len().div_ceil(3));
    nearest.map(|(_, known)| known)
}

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Variable::Arg(name) => write!(f, "arg_{name}"),
            Variable::Header(name) => write!(f, "http_{}", name.0.replace('-', "_")),
            Variable::Cookie(name) => write!(f, "cookie_{name}"),
            Variable::PathParam(name) | Variable::RouteParam(name) => write!(f, "uri_param_{name}"),
            Variable::PostArg(name) => write!(f, "{POST_ARG}{name}"),
            Variable::BodyArg(way) => write!(f, "{BODY_ARG}{way}"),
            Variable::Recorded(name) => f.write_str(name),
            Variable::SentHeader(name) => write!(f, "sent_http_{}", name.0.replace('-', "_")),
            Variable::UpstreamHeader(name) => write!(f, "upstream_http_{}", name.0.replace('-', "_")),
            plain => {
                let known = PLAIN.iter().chain(&LATE).find(|(_, variable)| variable == plain);
                f.write_str(known.map_or("", |(name, _)| name))
            }
        }
    }
}

impl fmt::Display for VariableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match &self.kind {
            VariableErrorKind::Unknown => {
                write!(f, "\"{name}\": unknown variable; ")?;
                match nearest(name) {
                    Some(nearest) => write!(f, "did you mean \"{nearest}\"?"),
                    None => write!(f, "write one of {}", Vec::from_iter(early_names()).join(", ")),
                }
            }
            VariableErrorKind::Name { example } => {
                write!(
                    f,
                    "\"{name}\": the name part is missing, too long, or holds a character it cannot; write {example}"
                )
            }
            VariableErrorKind::Late => {
                write!(f, "\"{name}\": not known before the route is; plugins and the access log may use it")
            }
            VariableErrorKind::Logged => {
                write!(f, "\"{name}\": not known before the response is; plugins and the access log may use it")
            }
            VariableErrorKind::InBody => {
                write!(
                    f,
                    "\"{name}\": not known before the body is; conditions of plugins and keys of limits may use it"
                )
            }
            VariableErrorKind::NotBuilt => write!(f, "\"{name}\": GraphQL is not read here"),
        }
    }
}

impl std::error::Error for VariableError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_print_as_they_parse() {
        let check = |name: &str, printed: &str| assert_eq!(Variable::parse(name).unwrap().to_string(), printed);
        for (name, variable) in PLAIN {
            assert_eq!(Variable::parse(name), Ok(variable));
        }
        check("$uri", "uri");
        check("query_string", "args");
        check("http_X-Real-IP", "http_x_real_ip");
        check("content_type", "http_content_type");
        check("arg_Page", "arg_Page");
        check("cookie_Session", "cookie_Session");
        check("uri_param_id", "uri_param_id");
    }

    #[test]
    fn plugins_can_ask_for_more() {
        let check = |name: &str, printed: &str| assert_eq!(Variable::parse_late(name).unwrap().to_string(), printed);
        RECORDED.iter().for_each(|name| check(name, name));
        check("$route_name", "route_name");
        check("sent_http_X-A", "sent_http_x_a");
        check("upstream_http_server", "upstream_http_server");
        assert!(Variable::parse_late("sent_http_").is_err() && Variable::parse_late("post_arg_a").is_err());
        assert_eq!(Variable::parse_with_body("post_arg_a.b"), Ok(Variable::PostArg("a.b".into())));
        for name in ["post_arg_a.b", "post_arg.a.b", "post_arg.a[0].b[*]"] {
            assert_eq!(Variable::parse_with_body(&format!("${name}")).unwrap().to_string(), name);
        }
        assert_eq!(Variable::parse_with_body("uri"), Ok(Variable::Uri));
        assert_eq!(
            Variable::parse_with_body("post_arg.a..b").unwrap_err().to_string(),
            "\"post_arg.a..b\": the name part is missing, too long, or holds a character it cannot; write post_arg.a, \
             post_arg.a.b, post_arg.a[0] or post_arg.a[*].b"
        );
        assert!(Variable::parse_with_body("post_arg_").is_err());
    }

    #[test]
    fn header_names_match_in_any_case_but_not_with_underscores() {
        let Ok(Variable::Header(name)) = Variable::parse("http_X_user") else {
            panic!("not a header");
        };
        assert_eq!(name.as_str(), "x-user");
        assert!(name.matches(b"X-User"));
        assert!(!name.matches(b"X_User"));
        assert!(!name.matches(b"X-Users"));
    }

    #[test]
    fn errors_say_what_to_write() {
        let check = |name: &str, message: &str| {
            assert_eq!(Variable::parse(name).unwrap_err().to_string(), message);
        };
        check("remote_adr", "\"remote_adr\": unknown variable; did you mean \"remote_addr\"?");
        check(
            "URI",
            "\"URI\": unknown variable; write one of uri, document_uri, request_uri, args, query_string, is_args, host, request_method, method, scheme, server_protocol, protocol, remote_addr, remote_port, remote_user, realip_remote_addr, server_addr, server_port, ssl_server_name, ssl_protocol, ssl_cipher, ssl_client_verify, ssl_client_s_dn, ssl_client_serial, ssl_client_fingerprint, content_type, content_length, arg_NAME, http_NAME, cookie_NAME, uri_param_NAME",
        );
        check("arg_", "\"arg_\": the name part is missing, too long, or holds a character it cannot; write arg_NAME");
        check(
            "http_a b",
            "\"http_a b\": the name part is missing, too long, or holds a character it cannot; write http_NAME",
        );
        check(
            "request_time",
            "\"request_time\": not known before the response is; plugins and the access log may use it",
        );
        check(
            "post_arg.a",
            "\"post_arg.a\": not known before the body is; conditions of plugins and keys of limits may use it",
        );
        check("graphql_name", "\"graphql_name\": GraphQL is not read here");
        check("status", "\"status\": not known before the route is; plugins and the access log may use it");
    }
}
