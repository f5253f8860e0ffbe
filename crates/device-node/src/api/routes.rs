//! Finds the endpoint for a method and a path.

use super::endpoints::{ENDPOINTS, Endpoint};
use axum::http::{HeaderValue, Method};

/// The match for a method and a path.
#[derive(Debug)]
pub(super) enum EndpointMatch<'p> {
    /// The endpoint, and the value of its path's variable, still percent-encoded; empty if it has none.
    Endpoint(&'static Endpoint, &'p str),
    /// The path exists, but not with this method: the value of `Allow`.
    Methods(HeaderValue),
    Nothing,
}

pub(super) fn find<'p>(method: &Method, path: &'p str) -> EndpointMatch<'p> {
    let mut methods = Vec::new();
    for endpoint in &ENDPOINTS {
        let Some(part) = part(endpoint.path, path) else { continue };
        // HEAD is answered like GET; hyper leaves the body out.
        let is_head = endpoint.method == Method::GET && *method == Method::HEAD;
        if endpoint.method == *method || is_head {
            return EndpointMatch::Endpoint(endpoint, part);
        }
        methods.push(endpoint.method.as_str());
        if endpoint.method == Method::GET {
            methods.push("HEAD");
        }
    }
    match HeaderValue::try_from(methods.join(",")) {
        Ok(allow) if !methods.is_empty() => EndpointMatch::Methods(allow),
        _ => EndpointMatch::Nothing,
    }
}

/// The value of a pattern's variable in a path; empty if it has none. `None`: the path does not match.
fn part<'p>(pattern: &str, path: &'p str) -> Option<&'p str> {
    let Some((before, rest)) = pattern.split_once('{') else { return (pattern == path).then_some("") };
    let (_, after) = rest.split_once('}')?;
    let part = path.strip_prefix(before)?.strip_suffix(after)?;
    (!part.is_empty() && !part.contains('/')).then_some(part)
}

#[cfg(test)]
mod tests {
    use super::super::endpoints::Action;
    use super::*;

    #[test]
    fn endpoints_are_found_by_method_and_path() {
        let action = |method: Method, path: &'static str| match find(&method, path) {
            EndpointMatch::Endpoint(endpoint, part) => Some((endpoint.action, part)),
            _ => None,
        };
        assert_eq!(action(Method::POST, "/v1/devices/a%2Fb/messages"), Some((Action::Send, "a%2Fb")));
        assert_eq!(action(Method::GET, "/v1/devices/messages"), Some((Action::Show, "messages")));
        assert_eq!(action(Method::DELETE, "/v1/devices/d/connection"), Some((Action::Close, "d")));
        assert_eq!(action(Method::HEAD, "/v1/devices"), Some((Action::List, "")));
        assert_eq!(action(Method::GET, "/v1/broadcast/7"), Some((Action::Job, "7")));
        for nothing in
            ["/v1/devices/", "/v1/devices//messages", "/v1/devices/a/b", "/v1/devices/a/messages/", "/", "*", ""]
        {
            assert!(matches!(find(&Method::POST, nothing), EndpointMatch::Nothing), "{nothing}");
        }
    }

    #[test]
    fn other_methods_of_a_path_are_named() {
        let allowed = |method: Method, path: &str| match find(&method, path) {
            EndpointMatch::Methods(methods) => methods.to_str().unwrap().to_owned(),
            other => panic!("{path}: {other:?}"),
        };
        assert_eq!(allowed(Method::PUT, "/v1/devices"), "GET,HEAD");
        assert_eq!(allowed(Method::HEAD, "/v1/devices/d/messages"), "POST");
        assert_eq!(allowed(Method::OPTIONS, "/v1/devices/d/connection"), "DELETE");
    }
}
