//! Requests that come after another process has taken over: they are passed on to it.
//!
//! A back-end may be sending on a connection that it has kept while its gateway is replaced. To close the connection would lose the
//! request, and nobody could say whether it was carried out. So the other process is asked, and its answer is passed on; it ends
//! the connection. Not where the API speaks TLS: there who asks for what is not here is told to ask again.

use super::super::node::Node;
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

/// It is on this machine: it accepts or it does not.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The other process's answer; an error: there is none that could be asked, or none at all, and the request has gone nowhere.
pub(super) async fn pass_on(node: &Node, request: Request) -> Result<Response, Box<Request>> {
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

async fn connected(node: &Node) -> Option<SendRequest<Body>> {
    let address = *node.successor_api.get().filter(|_| node.has_left())?;
    let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await.ok()?.ok()?;
    stream.set_nodelay(true).ok()?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await.ok()?;
    // It ends with the body of the answer.
    tokio::spawn(async move { drop(connection.await) });
    Some(sender)
}
