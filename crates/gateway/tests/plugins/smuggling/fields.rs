//! Fields of HTTP/2 responses, as the client of the h2 crate reads them: it refuses names and values that HTTP does not have.

use hyper::{HeaderMap, Request};
use stillgate_testkit::http2::{END_HEADERS, encode_frame, kind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

/// `PRI * HTTP/2.0` and what follows it.
const PREFACE_BYTES: usize = 24;
const FRAME_HEAD_BYTES: usize = 9;

/// The fields of a block, which does not use the dynamic table.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn fields(block: &[u8]) -> Result<HeaderMap, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let (near, mut far) = duplex(1 << 20);
        let (mut client, connection) = h2::client::handshake(near).await.map_err(|error| error.to_string())?;
        let request = Request::get("http://h.example/").body(()).expect("a request");
        let (response, _) = client.send_request(request, true).map_err(|error| error.to_string())?;
        let other = async move {
            let settings = [encode_frame(kind::SETTINGS, 0, 0, b""), encode_frame(kind::SETTINGS, 1, 0, b"")];
            far.write_all(&settings.concat()).await.expect("room for them");
            let mut came = Vec::new();
            while !has_head(&came) {
                far.read_buf(&mut came).await.expect("a client that asks");
            }
            // The body does not come.
            far.write_all(&encode_frame(kind::HEADERS, END_HEADERS, 1, block)).await.expect("room for a head");
            // It reads until the client is gone.
            let _ = far.read_to_end(&mut came).await;
        };
        tokio::select! {
            response = response => response.map(|response| response.headers().clone()).map_err(|error| error.to_string()),
            ended = connection => Err(format!("the connection ended: {ended:?}")),
            () = other => Err("the connection was given up".to_owned()),
        }
    })
}

/// Whether a client has sent a request's head, behind its preface.
fn has_head(came: &[u8]) -> bool {
    let mut rest = came.get(PREFACE_BYTES..).unwrap_or_default();
    while let [a, b, c, of, ..] = rest {
        if *of == kind::HEADERS {
            return true;
        }
        let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        rest = rest.get(FRAME_HEAD_BYTES + length..).unwrap_or_default();
    }
    false
}
