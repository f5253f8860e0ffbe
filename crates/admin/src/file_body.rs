//! A file as the body of a response: it is read while it is sent, so its size costs no memory.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::fs::File;
use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::task::{JoinHandle, spawn_blocking};

/// Number of bytes read at once.
const CHUNK_BYTES: u64 = 256 * 1024;

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
