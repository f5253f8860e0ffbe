//! Calls of `resty.http`, made by the worker's own client.

use std::time::Duration;
use stillgate_lua::{HttpCall, HttpReply};
use stillgate_plugin_api::{Call, CallError, Keep, Reply, Url};
use stillgate_wire::{EditError, FieldName, FieldValue};

/// The longest that each of connecting, sending and waiting may take.
pub(super) const TIMEOUT_MAX: Duration = Duration::from_secs(600);
/// Most idle connections of a worker to a server.
const CONNECTIONS_MAX: usize = 1000;

/// Puts a call together; the error is for the function.
pub(super) fn call_of(asked: HttpCall) -> Result<Call, String> {
    let HttpCall { method, url, verifies, keep, headers, body, timeout } = asked;
    let url = Url::parse(&url, verifies)?;
    if method.is_empty() || !method.iter().all(u8::is_ascii_graphic) {
        return Err(format!("{:?} is not a method", String::from_utf8_lossy(&method)));
    }
    let mut call = Call::new(&url.origin, &method, url.target.as_bytes());
    for (name, value) in &headers {
        let said = |error: EditError| format!("header {:?}: {error}", String::from_utf8_lossy(name));
        let value = FieldValue::new(value).map_err(said)?;
        match FieldName::new(name) {
            Ok(name) => call.header(name, value),
            // Where the message ends is the client's business, and right whatever was written.
            Err(EditError::Framing) => {}
            Err(error) => return Err(said(error)),
        }
    }
    call.set_body(body);
    call.timeout = timeout.min(TIMEOUT_MAX);
    call.keep = keep.map(|(idle, connections)| Keep { idle, connections_max: connections.min(CONNECTIONS_MAX) });
    Ok(call)
}

/// What a function gets; errors have OpenResty's words where it has some.
pub(super) fn reply_of(answered: Result<Reply, CallError>) -> Result<HttpReply, String> {
    let reply = answered.map_err(|error| match error {
        CallError::Timeout => "timeout".to_owned(),
        CallError::Connect => "connection refused".to_owned(),
        CallError::Closed => "closed".to_owned(),
        other => other.to_string(),
    })?;
    let mut given = HttpReply { status: reply.status(), ..HttpReply::default() };
    for field in reply.parsed.fields.iter() {
        given.header(field.name.of(&reply.head), field.value.of(&reply.head));
    }
    given.body = reply.body;
    Ok(given)
}
