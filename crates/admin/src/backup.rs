//! `POST /v1/store/backup`: a copy of the store as the body of the response.
//!
//! POST, because viewers must not get it: it contains secrets and history. The file is read while it is sent, so the size of a
//! store costs no memory.

use crate::answer::{Answer, Content};
use crate::commit::audit;
use crate::control::Backup;
use crate::router::{Api, Asked};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, HeaderName};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::fs::File;
use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::task::{JoinHandle, spawn_blocking};

/// Number of bytes read at once.
const CHUNK_BYTES: u64 = 256 * 1024;

/// The header with the store's file name, so that a client can check whether it is the expected one.
const STORE: HeaderName = HeaderName::from_static("x-stillgate-store");

/// Makes a copy and sends it.
pub(crate) async fn backup(api: &Api, asked: &Asked) -> Result<Answer, Answer> {
    let Backup { file, size, path } = api.control.backup().await.map_err(|error| Answer::refused(&error))?;
    audit(asked, "backup", api.control.documents().revision());
    let answer = Answer { status: StatusCode::OK, content: Content::File(file), headers: Vec::new() };
    Ok(answer.with(CONTENT_LENGTH, &size.to_string()).with(STORE, &path.display().to_string()))
}

/// The rest of a file.
pub(crate) struct FileBody(State);

enum State {
    Reading(JoinHandle<io::Result<(File, Vec<u8>)>>),
    Ended,
}

impl FileBody {
    pub(crate) fn new(file: File) -> FileBody {
        FileBody(next(file))
    }
}

fn next(mut file: File) -> State {
    State::Reading(spawn_blocking(move || {
        let mut bytes = Vec::new();
        file.by_ref().take(CHUNK_BYTES).read_to_end(&mut bytes)?;
        Ok((file, bytes))
    }))
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let State::Reading(reading) = &mut self.0 else { return Poll::Ready(None) };
        let read = ready!(Pin::new(reading).poll(cx));
        let read = read.unwrap_or_else(|error| Err(io::Error::other(error)));
        Poll::Ready(match read {
            Ok((_, bytes)) if bytes.is_empty() => {
                self.0 = State::Ended;
                None
            }
            Ok((file, bytes)) => {
                self.0 = next(file);
                Some(Ok(Frame::data(bytes.into())))
            }
            Err(error) => {
                self.0 = State::Ended;
                Some(Err(error))
            }
        })
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
