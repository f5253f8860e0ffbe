//! The device API at the admin address, for the dashboard: requests are passed on to `gateway.devices.address`.
//!
//! The admin API has checked who sends the request and whether it may write; here it is sent on as a back-end on this machine would
//! send it, with a key of `gateway.devices` if one is configured. So each answer has one implementation, and the control thread
//! owns nothing of devices. This is not for back-ends, which use the device API itself.

use super::context::error;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, on};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Method, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::time::Duration;
use stillgate_admin::Page;
use stillgate_config::Gateway;
use stillgate_device_node::reached_at;
use stillgate_door::{Access, Caller, KEY_ARGUMENT, Role};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

/// A short timeout suffices: the device API is on this machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The fields of a request and of an answer that are passed on besides the body.
const REQUEST_FIELDS: [HeaderName; 2] = [ACCEPT, CONTENT_TYPE];
const RESPONSE_FIELDS: [HeaderName; 4] =
    [CONTENT_TYPE, RETRY_AFTER, hyper::header::CACHE_CONTROL, HeaderName::from_static("x-message-id")];

/// Requests that the dashboard sends to the device API.
const PATHS: [(Method, &str, &str); 6] = [
    (Method::GET, "/v1/devices", "List devices (prefix, online, page)"),
    (Method::GET, "/v1/devices/{id}", "Get whether a device is connected"),
    (Method::POST, "/v1/devices/{id}/messages", "Send a message to a device (ack, timeout)"),
    (Method::DELETE, "/v1/devices/{id}/connection", "Close the connection of a device"),
    (Method::GET, "/v1/device-events", "Watch connects and disconnects (server-sent events)"),
    (Method::GET, "/v1/device-stats/top", "List the devices that have moved most bytes"),
];

/// The pages; empty where no devices are configured. `access` is that of the device API, which follows the configuration.
pub(crate) fn pages(gateway: &Gateway, access: &watch::Receiver<Access>) -> Vec<Page> {
    let Some(devices) = &gateway.devices else { return Vec::new() };
    let there = DeviceApiAddress {
        address: reached_at(devices.address),
        is_tls: devices.tls.is_some(),
        access: access.clone(),
    };
    let page = |(method, path, summary): (Method, &'static str, &'static str)| {
        let answer = forwarding_router(&method, there.clone());
        Page { method, path, summary, answer }
    };
    PATHS.into_iter().map(page).collect()
}

/// The device API.
#[derive(Clone)]
struct DeviceApiAddress {
    address: SocketAddr,
    is_tls: bool,
    access: watch::Receiver<Access>,
}

fn forwarding_router(method: &Method, there: DeviceApiAddress) -> MethodRouter {
    let filter = MethodFilter::try_from(method.clone()).expect("the table has standard methods only");
    on(filter, move |request: Request| pass_on(there.clone(), request))
}

async fn pass_on(there: DeviceApiAddress, request: Request) -> Response {
    if there.is_tls {
        let why = "the device API speaks TLS only; ask it itself, at gateway.devices.address";
        return error(StatusCode::NOT_IMPLEMENTED, why.into());
    }
    // Reading without a key is for the admin API's own pages: an operator who configures keys for devices wants them to be checked.
    let is_nobody = request.extensions().get::<Caller>().is_none_or(|caller| caller.name.is_empty());
    if is_nobody && !there.access.borrow().keys.is_empty() {
        let why =
            "the device API has keys, so it is not open to everybody on this machine; send a key of gateway.admin";
        return error(StatusCode::UNAUTHORIZED, why.into());
    }
    match exchange(&there, request).await {
        Ok(response) => response,
        Err(why) => error(StatusCode::SERVICE_UNAVAILABLE, format!("the device API cannot be asked: {why}").into()),
    }
}

async fn exchange(there: &DeviceApiAddress, request: Request) -> Result<Response, String> {
    let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(there.address)).await;
    let stream = stream.map_err(|_| "it does not accept connections".to_owned())?.map_err(|error| error.to_string())?;
    let opened = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = opened.map_err(|error| error.to_string())?;
    // The task ends with the body of the answer, or when the browser has gone.
    tokio::spawn(async move { drop(connection.await) });
    let response = sender.send_request(inner(there, request)?).await.map_err(|error| error.to_string())?;
    let (mut head, body) = response.into_parts();
    let fields = std::mem::take(&mut head.headers);
    for name in RESPONSE_FIELDS {
        if let Some(value) = fields.get(&name) {
            head.headers.insert(name, value.clone());
        }
    }
    // The key of the configuration was refused: the dashboard must not take that for the end of its own session.
    if head.status == StatusCode::UNAUTHORIZED {
        return Err("it refuses this machine, or its key: see gateway.devices.keys and allow".to_owned());
    }
    Ok(Response::from_parts(head, Body::new(body)))
}

/// The request as a back-end on this machine would send it. Cookies and keys of the admin API stay here.
fn inner(there: &DeviceApiAddress, request: Request) -> Result<hyper::Request<Body>, String> {
    let (asked, body) = request.into_parts();
    // A key of the admin API must not reach the device API, percent-encoded or not.
    let is_key = |part: &str| form_urlencoded::parse(part.as_bytes()).any(|(name, _)| name == KEY_ARGUMENT);
    let query: Vec<&str> = asked.uri.query().unwrap_or_default().split('&').filter(|part| !is_key(part)).collect();
    let uri: Uri = format!("{}?{}", asked.uri.path(), query.join("&")).parse().map_err(|_| "not a URL".to_owned())?;
    let mut made = hyper::Request::new(body);
    *made.method_mut() = asked.method;
    *made.uri_mut() = uri;
    let field = |text: &str| HeaderValue::from_str(text).map_err(|error| error.to_string());
    made.headers_mut().insert(HOST, field(&there.address.to_string())?);
    for name in REQUEST_FIELDS {
        if let Some(value) = asked.headers.get(&name) {
            made.headers_mut().insert(name, value.clone());
        }
    }
    let key = there.access.borrow().keys.iter().find(|key| key.role == Role::Admin).map(|key| key.key.clone());
    if let Some(key) = key {
        let mut key = field(&key)?;
        key.set_sensitive(true);
        made.headers_mut().insert(HeaderName::from_static("x-api-key"), key);
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_door::{AdminKey, Hosts, loopback};

    #[test]
    fn what_the_admin_api_was_shown_stays_there() {
        let key = AdminKey { name: "back-end".to_owned(), key: "inner".to_owned(), role: Role::Admin };
        let (_told, access) = watch::channel(Access {
            section: "gateway.devices",
            keys: vec![key.into()],
            allow: loopback(),
            hosts: Hosts::new("gateway.devices.hosts", []),
            is_loopback_reader: false,
            is_loopback_writer: false,
        });
        let there = DeviceApiAddress { address: "127.0.0.1:9190".parse().unwrap(), is_tls: false, access };
        let request = Request::builder()
            .method(Method::POST)
            .uri("/v1/devices/a%2Fb/messages?api_key=outer&ack=reply&%61pi_key=outer")
            .header("cookie", "session=secret")
            .header("x-api-key", "outer")
            .header("origin", "http://elsewhere")
            .header("content-type", "application/json")
            .body(Body::empty())
            .unwrap();
        let made = inner(&there, request).unwrap();
        assert_eq!(made.uri(), "/v1/devices/a%2Fb/messages?ack=reply");
        let fields: Vec<(&str, &str)> =
            made.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(fields, [("host", "127.0.0.1:9190"), ("content-type", "application/json"), ("x-api-key", "inner")]);
    }
}
