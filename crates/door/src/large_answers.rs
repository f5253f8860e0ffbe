//! A bound on the memory of large answers that clients have not read yet.

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Answers up to this size are not counted: the number of connections is their bound.
const SMALL_BYTES: u64 = 256 * 1024;

/// How much memory the larger answers of a server take together. A single one may be larger.
const KIBIBYTES_MAX: u32 = 64 * 1024;

/// Bytes that the connection takes at once. What it has taken is not counted any more.
const PIECE_BYTES: usize = 64 * 1024;

const BUSY: &str = "{\"error_msg\":\"too many large answers wait for clients that read slowly; try again\"}\n";

/// The large answers of a server.
#[derive(Debug, Clone)]
pub(crate) struct LargeAnswers(Arc<Semaphore>);

impl Default for LargeAnswers {
    fn default() -> LargeAnswers {
        LargeAnswers(Arc::new(Semaphore::new(KIBIBYTES_MAX as usize)))
    }
}

impl LargeAnswers {
    /// Counts a large answer until the client has read it. If the memory is used up, 503 takes its place.
    pub(crate) fn admit(&self, answer: Response<Body>) -> Response<Body> {
        let Some(left) = answer.body().size_hint().exact().filter(|bytes| *bytes > SMALL_BYTES) else { return answer };
        let kibibytes = u32::try_from(left.div_ceil(1024)).unwrap_or(u32::MAX).min(KIBIBYTES_MAX);
        match self.0.clone().try_acquire_many_owned(kibibytes) {
            Ok(held) => answer.map(|body| Body::new(CountedBody { body, piece: Bytes::new(), left, _held: held })),
            Err(_) => busy(),
        }
    }
}

fn busy() -> Response<Body> {
    let mut answer = Response::new(Body::from(BUSY));
    *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

/// A body that comes in pieces, and is counted until the last one was taken.
struct CountedBody {
    body: Body,
    /// What has come of the body and was not taken.
    piece: Bytes,
    /// Bytes that were not taken.
    left: u64,
    _held: OwnedSemaphorePermit,
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.piece.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.piece = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        let bytes = self.piece.len().min(PIECE_BYTES);
        let next = self.piece.split_to(bytes);
        self.left = self.left.saturating_sub(bytes as u64);
        Poll::Ready(Some(Ok(Frame::data(next))))
    }

    fn is_end_stream(&self) -> bool {
        self.piece.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    const MIB: usize = 1024 * 1024;

    fn answer(bytes: usize) -> Response<Body> {
        Response::new(Body::from(vec![7; bytes]))
    }

    async fn read(answer: Response<Body>) -> usize {
        let (mut body, mut bytes) = (answer.into_body(), 0);
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let data = frame.unwrap().into_data().unwrap();
            assert!(data.len() <= PIECE_BYTES && data.iter().all(|byte| *byte == 7));
            bytes += data.len();
        }
        bytes
    }

    #[tokio::test]
    async fn what_waits_is_bounded_and_what_is_read_is_not_counted() {
        let large = LargeAnswers::default();
        let mut waiting: Vec<Response<Body>> = (0..6).map(|_| large.admit(answer(10 * MIB))).collect();
        assert!(waiting.iter().all(|answer| answer.status() == 200));
        assert_eq!(large.admit(answer(5 * MIB)).status(), 503);
        assert_eq!(large.admit(answer(SMALL_BYTES as usize)).status(), 200, "a small one");
        assert_eq!(read(waiting.remove(0)).await, 10 * MIB);
        waiting.truncate(4);
        assert_eq!(large.admit(answer(20 * MIB)).status(), 200);
        drop(waiting);
        // It takes all there is, however large it is.
        let whole = large.admit(answer(100 * MIB));
        assert_eq!((whole.status().as_u16(), large.admit(answer(MIB)).status().as_u16()), (200, 503));
        assert_eq!(read(whole).await, 100 * MIB);
        assert_eq!(large.admit(answer(MIB)).status(), 200);
    }
}
