//! Complete answers on connections from which no request is read.

use super::answer::{error_body, write_head};
use stillgate_wire::Method;
use tokio::net::TcpStream;

/// Beginning of a request line whose answer has no body (RFC 9110 section 9.3.2).
const HEAD: &[u8; 5] = b"HEAD ";

/// The method of a head that was refused, as far as it matters for the answer: the request line may be good up to there.
pub(crate) fn method_of(head: &[u8]) -> Method {
    if head.starts_with(HEAD) { Method::Head } else { Method::default() }
}

/// Whether the method is HEAD on a connection that no request is read from, by the bytes that have arrived; waits for them if there
/// are none.
pub(crate) async fn asks_for_head(stream: &TcpStream) -> bool {
    let mut bytes = [0; HEAD.len()];
    stream.peek(&mut bytes).await.is_ok() && bytes == *HEAD
}

/// The complete answer to a client that speaks plain HTTP on a TLS port.
pub(crate) fn plain_to_tls(is_head: bool) -> Vec<u8> {
    whole(400, "this port speaks TLS: the URL must begin with https", "", is_head)
}

/// The complete answer to a connection beyond the worker's limit.
pub(crate) fn overloaded(is_head: bool) -> Vec<u8> {
    whole(503, "too many connections, try again later", "Retry-After: 1\r\n", is_head)
}

fn whole(status: u16, message: &str, fields: &str, is_head: bool) -> Vec<u8> {
    let body = error_body(status, message);
    let mut out = Vec::new();
    write_head(&mut out, status, Some("application/json"), Some(body.len()));
    out.extend_from_slice(fields.as_bytes());
    out.extend_from_slice(b"Connection: close\r\n\r\n");
    if !is_head {
        out.extend_from_slice(body.as_bytes());
    }
    out
}
