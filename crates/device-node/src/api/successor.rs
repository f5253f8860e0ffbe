//! Forwards requests that arrive after another process has taken over.
//!
//! A back-end may be sending on a kept connection while its gateway is replaced. Closing the connection would lose the request, and
//! the back-end could not know whether it was carried out. So the request goes to the new process, and its answer comes back with
//! `Connection: close`. Over TLS nothing is forwarded: a request for a device that has moved is answered 503, to be repeated.

use super::super::node::DeviceNode;
use super::answer::unknown;
use axum::body::Body;
use axum::extract::Request;
use axum::http::Version;
use axum::http::header::CONNECTION;
use axum::response::Response;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The other process is on this machine, so it accepts at once or not at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The other process's answer. An error gives the request back: it could not be sent.
pub(super) async fn pass_on(node: &DeviceNode, request: Request) -> Result<Response, Box<Request>> {
    let Some(mut sender) = connected(node).await else { return Err(Box::new(request)) };
    let (mut head, body) = request.into_parts();
    head.version = Version::HTTP_11;
    head.headers.remove(CONNECTION);
    match sender.send_request(Request::from_parts(head, body)).await {
        Ok(response) => {
            let (mut head, body) = response.into_parts();
            head.headers.remove(CONNECTION);
            Ok(Response::from_parts(head, Body::new(body)))
        }
        Err(_) => Ok(unknown("the process that has taken over did not answer")),
    }
}

async fn connected(node: &DeviceNode) -> Option<SendRequest<Body>> {
    let address = *node.successor_api.get().filter(|_| node.has_left())?;
    let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await.ok()?.ok()?;
    stream.set_nodelay(true).ok()?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await.ok()?;
    // The task ends with the body of the answer.
    tokio::spawn(async move { drop(connection.await) });
    Some(sender)
}
