//! Substitutes environment variables in scalar values: `${NAME}` and `${NAME:-default}`, and APISIX's `${{NAME}}` and
//! `${{NAME:=default}}`, which are also allowed in keys of maps.
//!
//! `${http_x}` and `${http_x ?? default}` are variables of a request, which plugins resolve in APISIX, and stay unchanged:
//! an environment that happens to have `http_proxy` or `host` must not take their place.
//!
//! This happens after the YAML is parsed, so a value can never add keys or lists. As in a shell, the default of
//! `${…:-…}` is used if the variable is unset or empty, that of `${{…:=…}}` only if it is unset. `$${` means a literal
//! `${`; `${1}` is a group of a regular expression and stays unchanged, and so does any other `$`.

use crate::diagnostic::{Fault, shortened};

/// Bytes of a text after variables are put in: each of many texts may name one that is long.
const EXPANDED_BYTES_MAX: usize = 64 * 1024;

/// Looks up one environment variable.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Substitutes the variables of a text; `None` if it has none and stays unchanged.
pub fn expand(text: &str, environment: Lookup<'_>) -> Result<Option<String>, Fault> {
    expand_each(text, |reference| match is_of_request(reference) {
        true => Ok(None),
        false => value(reference, environment).map(Some),
    })
}

/// Substitutes the variables of a map's key, where only `${{NAME}}` is a variable.
pub fn expand_key(text: &str, environment: Lookup<'_>) -> Result<Option<String>, Fault> {
    if !text.contains("${{") {
        return Ok(None);
    }
    expand_each(text, |reference| match reference.strip_prefix('{') {
        Some(reference) => double(reference, environment).map(Some),
        None => Ok(None),
    })
}

/// What names of a request's variables begin with that have a free part. A test of the crate that reads them compares both.
const REQUEST_PREFIXES: &[&str] = &[
    "arg_",
    "cookie_",
    "graphql_",
    "http_",
    "post_arg_",
    "post_arg.",
    "sent_http_",
    "ssl_",
    "upstream_",
    "uri_param_",
];

/// The other names of a request's variables.
const REQUEST_NAMES: &[&str] = &[
    "apisix_request_id",
    "args",
    "balancer_ip",
    "balancer_port",
    "body_bytes_sent",
    "bytes_received",
    "bytes_sent",
    "consumer_group_id",
    "consumer_name",
    "content_length",
    "content_type",
    "document_uri",
    "host",
    "hostname",
    "is_args",
    "method",
    "msec",
    "opentelemetry_context_traceparent",
    "opentelemetry_span_id",
    "opentelemetry_trace_id",
    "pid",
    "protocol",
    "query_string",
    "realip_remote_addr",
    "remote_addr",
    "remote_port",
    "remote_user",
    "request",
    "request_body",
    "request_id",
    "request_length",
    "request_method",
    "request_time",
    "request_uri",
    "resp_body",
    "route_id",
    "route_name",
    "scheme",
    "server_addr",
    "server_port",
    "server_protocol",
    "service_id",
    "service_name",
    "status",
    "time",
    "time_iso8601",
    "time_local",
    "trace_id",
    "uri",
    "zipkin_context_traceparent",
    "zipkin_span_id",
    "zipkin_trace_id",
];

/// Whether a reference is to a variable of a request, with or without a default.
fn is_of_request(reference: &str) -> bool {
    let name = match reference.split_once("??") {
        Some((name, _)) => name.trim(),
        None => reference.trim(),
    };
    let has_prefix = || REQUEST_PREFIXES.iter().any(|prefix| name.len() > prefix.len() && name.starts_with(prefix));
    // `:-` is the default of an environment variable, and in no name.
    !name.contains(":-") && (REQUEST_NAMES.contains(&name) || has_prefix())
}

/// Replaces each reference by the result of `value`, which gets it without `${` and its end; `None` leaves it
/// unchanged.
fn expand_each(text: &str, value: impl Fn(&str) -> Result<Option<String>, Fault>) -> Result<Option<String>, Fault> {
    if !text.contains("${") {
        return Ok(None);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut is_changed = false;
    while let Some(at) = rest.find("${") {
        let (before, reference) = rest.split_at(at);
        if let Some(before) = before.strip_suffix('$') {
            out.push_str(before);
            out.push_str("${");
            rest = &reference[2..];
            is_changed = true;
            continue;
        }
        out.push_str(before);
        let close = if reference.starts_with("${{") { "}}" } else { "}" };
        let end = reference.find(close).ok_or_else(|| {
            Fault::new(format!("`{}` without `{close}`", &reference[..1 + close.len()]))
                .hint("write `$${` for a literal `${`")
        })?;
        let after = end + close.len();
        // A group of a regular expression, for its plugin.
        let is_group = end > 2 && reference[2..end].bytes().all(|byte| byte.is_ascii_digit());
        match if is_group { None } else { value(&reference[2..end])? } {
            Some(value) => {
                out.push_str(&value);
                is_changed = true;
            }
            None => out.push_str(&reference[..after]),
        }
        rest = &reference[after..];
        if out.len() > EXPANDED_BYTES_MAX {
            return Err(Fault::new(format!("more than {EXPANDED_BYTES_MAX} bytes after variables are put in")));
        }
    }
    out.push_str(rest);
    Ok(is_changed.then_some(out))
}

/// The value of `${reference}`.
fn value(reference: &str, environment: Lookup<'_>) -> Result<String, Fault> {
    if let Some(reference) = reference.strip_prefix('{') {
        return double(reference, environment);
    }
    let (name, default) = match reference.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (reference, None),
    };
    if name.starts_with(|c: char| c.is_ascii_digit()) || !is_name(name) {
        let fault = Fault::new(format!("{:?} is not the name of an environment variable", shortened(name)));
        return Err(fault.hint("write `${NAME}` or `${NAME:-default}`, or `$${` for a literal `${`"));
    }
    match (environment(name), default) {
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(unset(name, &format!("${{{name}:-default}}"))),
    }
}

/// The value of `${{reference}}`, by APISIX's rules: blanks around the name and the default are ignored, and an empty
/// variable keeps its empty value.
fn double(reference: &str, environment: Lookup<'_>) -> Result<String, Fault> {
    let (name, default) = match reference.split_once(":=") {
        Some((name, default)) => (name.trim(), Some(default.trim())),
        None => (reference.trim(), None),
    };
    if !is_name(name) {
        let fault = Fault::new(format!("{:?} is not the name of an environment variable", shortened(name)));
        return Err(fault.hint("write `${{NAME}}` or `${{NAME:=default}}`, or `$${` for a literal `${`"));
    }
    match (environment(name), default) {
        (Some(value), _) => Ok(value),
        (None, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(unset(name, &format!("${{{{{name}:=default}}}}"))),
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn unset(name: &str, write: &str) -> Fault {
    Fault::new(format!("environment variable {name} is not set")).hint(format!("set it, or write `{write}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, want: Result<Option<&str>, &str>) {
        let environment = |name: &str| match name {
            "A" => Some("1".to_owned()),
            "EMPTY" => Some(String::new()),
            "NESTED" => Some("${A}".to_owned()),
            "HUGE" => Some("x".repeat(EXPANDED_BYTES_MAX + 1)),
            _ => None,
        };
        match (expand(text, &environment), want) {
            (Ok(got), Ok(want)) => assert_eq!(got.as_deref(), want, "{text}"),
            (Err(got), Err(want)) => assert!(got.message.contains(want), "{text}: {}", got.message),
            (got, want) => panic!("{text}: {got:?}, not {want:?}"),
        }
    }

    #[test]
    fn expands() {
        check("plain $ and $A and }", Ok(None));
        check("${A}", Ok(Some("1")));
        check("a${A}b${A}c", Ok(Some("a1b1c")));
        check("${EMPTY}", Ok(Some("")));
        check("${EMPTY:-d}${UNSET:-d}${A:-d}", Ok(Some("dd1")));
        check("${UNSET:-}", Ok(Some("")));
        check("${UNSET:-a:-b}", Ok(Some("a:-b")));
        check("$${A}", Ok(Some("${A}")));
        check("$$${A}", Ok(Some("$${A}")));
        check("${NESTED}", Ok(Some("${A}")));
        check("${UNSET}", Err("UNSET is not set"));
        check("${A", Err("without"));
        check("${}", Err("not the name"));
        check("${1A}", Err("not the name"));
        check("${A B}", Err("not the name"));
        check("${HUGE}", Err("more than"));
    }

    #[test]
    fn expands_as_apisix_does() {
        check("${{A}}:80", Ok(Some("1:80")));
        check("${{ A }}${{\tUNSET := d e }}", Ok(Some("1d e")));
        // The default is only used for an unset variable.
        check("${{EMPTY:=d}}", Ok(Some("")));
        check("${{UNSET:=}}", Ok(Some("")));
        check("${{UNSET:={a}:=b}}", Ok(Some("{a}:=b")));
        check("$${{A}}", Ok(Some("${{A}}")));
        check("${{NESTED}}", Ok(Some("${A}")));
        check("${{UNSET}}", Err("UNSET is not set"));
        check("${{A}", Err("without `}}`"));
        check("${{}}", Err("not the name"));
        check("${{A-B}}", Err("not the name"));
        check("${{A:-1}}", Err("not the name"));
    }

    #[test]
    fn groups_of_regular_expressions_stay() {
        check("/b/${1}x", Ok(None));
        check("/${1}/${A}/${20}", Ok(Some("/${1}/1/${20}")));
    }

    #[test]
    fn variables_of_requests_stay() {
        let environment = |name: &str| Some(format!("environment's {name}"));
        let stays = |text: &str| assert_eq!(expand(text, &environment), Ok(None), "{text}");
        stays("${http_x}");
        stays("${http_proxy}");
        stays("${ host }:${arg_a}${cookie_b}");
        stays("${http_x ?? 50}");
        stays("${post_arg.user.roles[0] ?? a}");
        stays("${remote_addr??unknown}");
        let expands = |text: &str, want: &str| {
            assert_eq!(expand(text, &environment).unwrap().as_deref(), Some(want), "{text}");
        };
        expands("${HOST}", "environment's HOST");
        expands("${http_}", "environment's http_");
        expands("${http_proxy:-none}", "environment's http_proxy");
        expands("${{http_proxy}}", "environment's http_proxy");
        expands("${uri}${A}", "${uri}environment's A");
        expands("$${uri}", "${uri}");
        // What is neither is not passed on.
        assert!(expand("${HOST ?? a}", &environment).is_err());
    }

    #[test]
    fn keys_have_apisix_variables_only() {
        let environment = |name: &str| (name == "A").then(|| "1".to_owned());
        let key = |text: &str| expand_key(text, &environment).unwrap();
        assert_eq!(key("${{A}}:80").as_deref(), Some("1:80"));
        assert_eq!(key("${A}-${{A}}").as_deref(), Some("${A}-1"));
        assert_eq!(key("${A}"), None);
        assert!(expand_key("${{B}}", &environment).is_err());
    }
}
