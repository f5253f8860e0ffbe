//! One message and its response on a connection, within the call's times and bounds.

use crate::connection::stream::Stream;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::task::{Poll, ready};
use stillgate_plugin_api::calls::REPLY_HEAD;
use stillgate_plugin_api::{Call, CallError, Reply};
use stillgate_wire::{BodyDecoder, Framing, HeadProgress};
use tokio::io::ReadBuf;
use tokio::time::timeout;

/// What is read at once.
const READ_BYTES: usize = 16 * 1024;
/// Interim responses before the final one.
const INTERIMS_MAX: usize = 10;

/// Returns the reply, and whether the connection can be used again; or why the call failed, and whether part of it had arrived.
pub(crate) async fn exchange(
    stream: &mut Stream,
    call: &Call,
    message: &[u8],
) -> Result<(Reply, bool), (CallError, bool)> {
    let sent = timeout(call.timeout, send(stream, message)).await.map_err(|_| (CallError::Timeout, false))?;
    // A server may answer and close before it has read everything: its response is still read.
    let mut received = Vec::new();
    let replied = timeout(call.timeout, receive(stream, call, &mut received)).await;
    let has_begun = !received.is_empty();
    match replied {
        Err(_) => Err((CallError::Timeout, has_begun)),
        Ok(Err(error)) => Err((error, has_begun)),
        Ok(Ok((reply, is_kept))) => Ok((reply, is_kept && sent.is_ok())),
    }
}

pub(super) async fn send(stream: &mut Stream, mut message: &[u8]) -> io::Result<()> {
    poll_fn(|cx| {
        while !message.is_empty() {
            match ready!(stream.poll_write(cx, message))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => message = &message[written..],
            }
        }
        stream.poll_flush(cx)
    })
    .await
}

/// Appends the next bytes; false at the end of the connection.
pub(super) async fn read(stream: &mut Stream, received: &mut Vec<u8>) -> Result<bool, CallError> {
    poll_fn(|cx| {
        // This is not in `received`, where it would be cleared for each of the short replies.
        let mut space = [MaybeUninit::uninit(); READ_BYTES];
        let mut space = ReadBuf::uninit(&mut space);
        ready!(stream.poll_read(cx, &mut space)).map_err(|_| CallError::Closed)?;
        received.extend_from_slice(space.filled());
        Poll::Ready(Ok(!space.filled().is_empty()))
    })
    .await
}

async fn receive(stream: &mut Stream, call: &Call, received: &mut Vec<u8>) -> Result<(Reply, bool), CallError> {
    let mut reply = Reply::default();
    for _ in 0..INTERIMS_MAX {
        let end = loop {
            match reply.parsed.advance(received, call.method(), &REPLY_HEAD).map_err(|_| CallError::BadReply)? {
                HeadProgress::Complete(end) => break end,
                HeadProgress::Partial if read(stream, received).await? => {}
                HeadProgress::Partial => return Err(CallError::Closed),
            }
        };
        match reply.parsed.status {
            101 => return Err(CallError::BadReply),
            100..200 => {
                received.drain(..end);
                reply.parsed.reset();
            }
            _ => {
                reply.head = received[..end].to_vec();
                let is_kept = body(stream, call, received, end, &mut reply).await?;
                return Ok((reply, is_kept));
            }
        }
    }
    Err(CallError::BadReply)
}

/// Reads the body after the head; returns whether the connection can be used again.
async fn body(
    stream: &mut Stream,
    call: &Call,
    received: &mut Vec<u8>,
    head: usize,
    reply: &mut Reply,
) -> Result<bool, CallError> {
    let mut decoder = BodyDecoder::new(reply.parsed.framing);
    if let Framing::Length(length) = reply.parsed.framing
        && length > call.reply_bytes_max as u64
    {
        return Err(CallError::TooLarge);
    }
    received.drain(..head);
    loop {
        let decoded = decoder.decode(received).map_err(|_| CallError::BadReply)?;
        if reply.body.len() + decoded.data > call.reply_bytes_max {
            return Err(CallError::TooLarge);
        }
        reply.body.extend_from_slice(&received[..decoded.data]);
        if decoder.is_done() {
            return Ok(reply.parsed.keep_alive && decoded.consumed == received.len());
        }
        received.clear();
        if !read(stream, received).await? {
            return match reply.parsed.framing {
                Framing::UntilClose => Ok(false),
                _ => Err(CallError::Closed),
            };
        }
    }
}
