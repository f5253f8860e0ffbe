//! Waits for the whole body of a request, for a plugin that needs all of it before a node is tried.
//!
//! A small body stays where it was received, and goes on as if there had been no wait. A larger one is kept separately, within the
//! plugin's bound and the worker's, and takes its place: then the node gets its length, whatever its framing was, and no trailers.
//! The plugin decides how a body beyond its bound is answered.

use super::answer::LocalReply;
use super::body_pipe::{BrokenBody, filter_all};
use super::queue::WaitLost;
use super::relay::PROBE;
use super::{Exchange, RequestContext};
use std::future::poll_fn;
use std::task::{Context, Poll};
use stillgate_plugin_api::Answer;
use stillgate_wire::{FieldName, Framing};

const EXPECT: FieldName<'_> = FieldName::constant("Expect");

/// Receives the body to its end.
pub(super) async fn receive(
    serving: &mut RequestContext<'_>,
    bytes_max: usize,
    too_large: Answer,
) -> Result<Result<(), WaitLost>, LocalReply> {
    let mut kept = Vec::new();
    if let Framing::Length(length) = serving.exchange.request.framing
        && length > bytes_max as u64
    {
        return Err(beyond(serving, too_large));
    }
    permit(serving);
    let mut moved_ms = serving.worker.clock.now_ms();
    let received = poll_fn(|cx| poll(serving, &mut kept, bytes_max, &mut moved_ms, cx)).await;
    match received {
        Ok(()) => finish(serving, kept).await.map(Ok).map_err(|broken| refused(serving, broken)),
        Err(BodyLoss::Lost(lost)) => Ok(Err(lost)),
        Err(BodyLoss::Broken(broken)) => Err(refused(serving, broken)),
        Err(BodyLoss::TooLarge) => Err(beyond(serving, too_large)),
        Err(BodyLoss::Answered(own)) => Err(own),
    }
}

/// Why a body is not received to its end.
enum BodyLoss {
    Lost(WaitLost),
    Broken(BrokenBody),
    /// It exceeds the plugin's limit.
    TooLarge,
    Answered(LocalReply),
}

fn refused(serving: &RequestContext<'_>, broken: BrokenBody) -> LocalReply {
    broken.tell(serving.worker);
    LocalReply::closing(broken.status(), broken.message())
}

fn beyond(serving: &RequestContext<'_>, too_large: Answer) -> LocalReply {
    BrokenBody::too_large(serving.exchange.request_body.changes.plugin).tell(serving.worker);
    LocalReply::of_plugin_closing(too_large)
}

/// A client that waits for permission to send its body gets it from us, and the expectation is not forwarded to the node.
fn permit(serving: &mut RequestContext<'_>) {
    let RequestContext { worker, exchange, .. } = serving;
    if !exchange.request.expects_continue {
        return;
    }
    exchange.request.expects_continue = false;
    exchange.request_edits.fields.remove(&exchange.request.fields, exchange.from_client.head(), EXPECT);
    // A client that has not waited needs no permission.
    let waits = exchange.from_client.content().is_empty() && !exchange.from_client.is_done();
    if waits && !exchange.probed {
        exchange.probed = true;
        exchange.to_client.head(&worker.buffers).extend_from_slice(PROBE);
        exchange.to_client.stage(&[], None, &worker.buffers);
    }
}

fn poll(
    serving: &mut RequestContext<'_>,
    kept: &mut Vec<u8>,
    bytes_max: usize,
    moved_ms: &mut u64,
    cx: &mut Context<'_>,
) -> Poll<Result<(), BodyLoss>> {
    let RequestContext { worker, client, exchange, snapshot, .. } = serving;
    loop {
        if kept.len() + exchange.from_client.content().len() > bytes_max {
            return Poll::Ready(Err(BodyLoss::TooLarge));
        }
        if exchange.from_client.is_done() {
            return Poll::Ready(Ok(()));
        }
        let read = match exchange.from_client.poll_read_early(cx, &mut client.stream, &worker.buffers) {
            Some(read) => read,
            None => {
                set_aside_content(exchange, kept);
                let begin = || worker.plugins.held.begin(client.address);
                if let Err(broken) = exchange.request_body.hold(kept.capacity(), begin) {
                    return Poll::Ready(Err(BodyLoss::Broken(broken)));
                }
                continue;
            }
        };
        match read {
            Poll::Ready(Ok(Ok(0)) | Err(_)) => return Poll::Ready(Err(BodyLoss::Lost(WaitLost::ClientGone))),
            Poll::Ready(Ok(Err(malformed))) => return Poll::Ready(Err(BodyLoss::Lost(WaitLost::BadBody(malformed)))),
            Poll::Ready(Ok(Ok(_))) => {
                *moved_ms = worker.clock.now_ms();
                continue;
            }
            Poll::Pending => {}
        }
        if !exchange.to_client.is_idle()
            && let Poll::Ready(Err(_)) = exchange.to_client.poll_flush(cx, &mut client.stream, &[], &worker.buffers)
        {
            return Poll::Ready(Err(BodyLoss::Lost(WaitLost::ClientGone)));
        }
        let deadline_ms = *moved_ms + snapshot.plan.settings.body_ms;
        if worker.clock.now_ms() >= deadline_ms {
            let late = LocalReply::closing(408, "the request body did not come in time");
            return Poll::Ready(Err(BodyLoss::Answered(late)));
        }
        client.timer.set(&worker.clock, deadline_ms, cx);
        return Poll::Pending;
    }
}

/// Makes room for more by moving what has arrived elsewhere.
fn set_aside_content(exchange: &mut Exchange, kept: &mut Vec<u8>) {
    kept.extend_from_slice(exchange.from_client.content());
    exchange.from_client.drop_content();
}

/// The body has arrived: it replaces the received content, unless that is still in place.
async fn finish(serving: &mut RequestContext<'_>, mut kept: Vec<u8>) -> Result<(), BrokenBody> {
    let RequestContext { worker, client, exchange, .. } = serving;
    let has_changes = !exchange.request_body.is_empty();
    if kept.is_empty() && !has_changes {
        return Ok(());
    }
    set_aside_content(exchange, &mut kept);
    if has_changes {
        let filtered = filter_all(&mut exchange.request_body, &kept, client.address, worker).await?;
        exchange.request_body.clear();
        // It has not been sent yet.
        exchange.request_body.changes.captured_mut().rewind();
        kept = filtered.unwrap_or(kept);
    }
    exchange.request_body.hold(kept.capacity(), || worker.plugins.held.begin(client.address))?;
    exchange.request_body.changes.replace_with(kept);
    Ok(())
}
