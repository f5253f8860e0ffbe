//! A request that waits for what a plugin needs: IO, work on another thread, the request's body.
//!
//! Its client is watched meanwhile: if it disconnects, whatever is awaited is dropped and the request ends as one whose client did
//! not wait. The Plan is the one that the request began with, however often another is published.

use super::answer::LocalReply;
use super::body_pipe::{BrokenBody, filter_all};
use super::chain::{self, ChainPosition, PausedChain};
use super::queue::{WaitLost, watch_client};
use super::relay::PROBE;
use super::{ConnectionNext, Exchange, RequestContext};
use crate::basics::clock::TICK_MS;
use crate::connection::grpc;
use crate::worker::Worker;
use crate::worker::client_shares::{SharePlace, WorkOwner};
use crate::worker::offload::OffloadResult;
use crate::worker::plugins::{PluginPanic, call, report_panic};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use stillgate_config::Measure;
use stillgate_plugin_api::client_bound::Full;
use stillgate_plugin_api::flow::{Offload, Resume};
use stillgate_plugin_api::work::{Output, Work};
use stillgate_plugin_api::{Answer, Flow, LocalFuture, QueueFull};
use stillgate_wire::{FieldName, Framing};
use tokio::sync::oneshot;

/// Waits, and continues with the phases, as often as plugins need it. `Some`: the client is gone.
pub(super) async fn run(
    serving: &mut RequestContext<'_>,
    mut paused: PausedChain,
) -> Result<Option<ConnectionNext>, LocalReply> {
    let worker = serving.worker.clone();
    note_deadline(serving);
    // Given up even if the request's task is dropped.
    let _place = match worker.plugins.waiting.take_place(serving.client.address) {
        Ok(place) => place,
        Err(full) => {
            count(serving, paused.at, Measure::PluginWaitsRefused);
            return Err(LocalReply::overload(match full {
                Full::Worker => "as many requests wait for plugins as may",
                Full::Client => "as many requests of one client wait for plugins as may",
            }));
        }
    };
    loop {
        count(serving, paused.at, Measure::PluginWaits);
        let then = match wait(serving, paused).await? {
            Ok((at, then)) => (at, then),
            Err(lost) => return lost.end(serving.exchange),
        };
        match chain::resume(serving, then.0, then.1)? {
            Some(again) => paused = again,
            None => return Ok(None),
        }
    }
}

/// Notes when the client's deadline passes: it counts from the arrival of the call, which was just now.
fn note_deadline(serving: &mut RequestContext<'_>) {
    let (exchange, now_ms) = (&mut *serving.exchange, serving.worker.clock.now_ms());
    let head = exchange.from_client.head();
    if grpc::call(&exchange.request, head).is_some() {
        let timeout_ms = grpc::timeout_ms(&exchange.request, head);
        exchange.call_deadline_ms = timeout_ms.map(|timeout_ms| now_ms.saturating_add(timeout_ms));
    }
}

async fn wait(
    serving: &mut RequestContext<'_>,
    paused: PausedChain,
) -> Result<Result<(ChainPosition, Resume), WaitLost>, LocalReply> {
    let at = paused.at;
    let then = match paused.flow {
        Flow::Wait(future) => poll_future(serving, at, future).await?,
        Flow::Offload(offload) => run_offloaded(serving, at, offload).await?,
        Flow::Body(body) => receive_whole_body(serving, body.bytes_max, body.too_large).await?.map(|()| body.then),
        Flow::Continue | Flow::Answer(_) => unreachable!("only what waits pauses"),
    };
    Ok(then.map(|then| (at, then)))
}

/// Waits for a plugin's future, which may panic.
async fn poll_future(
    serving: &mut RequestContext<'_>,
    at: ChainPosition,
    mut future: LocalFuture<Resume>,
) -> Result<Result<Resume, WaitLost>, LocalReply> {
    poll_fn(|cx| match call_waiting_plugin(serving, at, || future.as_mut().poll(cx)) {
        Err(PluginPanic) => Poll::Ready(Err(LocalReply::error(500, "a plugin failed"))),
        Ok(Poll::Ready(then)) => Poll::Ready(Ok(Ok(then))),
        Ok(Poll::Pending) => poll_client(serving, cx).map(|lost| Ok(Err(lost))),
    })
    .await
}

/// Has work done on another thread, and waits for its result.
async fn run_offloaded(
    serving: &mut RequestContext<'_>,
    at: ChainPosition,
    Offload { work, then }: Offload,
) -> Result<Result<Resume, WaitLost>, LocalReply> {
    let plugin = chain::with_paused(serving, at, |entry, _| entry.name);
    let route = serving.route.map_or("", |route| &*route.route.spec.id);
    let owner = WorkOwner::of(route, serving.client.address);
    let submit = submit_work(serving.worker.clone(), plugin, owner, work);
    let output: Result<Output, QueueFull> = match until_client_leaves(serving, submit).await {
        Err(lost) => return Ok(Err(lost)),
        Ok(Err(full)) => {
            count(serving, at, Measure::PluginOffloadsRefused);
            Err(full)
        }
        Ok(Ok((_share, done))) => {
            count(serving, at, Measure::PluginOffloads);
            match until_client_leaves(serving, done).await {
                Ok(Ok(Ok(worked))) => Ok(worked.output),
                // The thread's end is gone only after a panic.
                Ok(Ok(Err(PluginPanic)) | Err(_)) => {
                    chain::with_paused(serving, at, |entry, phase| report_panic(serving.worker, entry, phase));
                    return Err(LocalReply::error(500, "a plugin failed"));
                }
                Err(lost) => return Ok(Err(lost)),
            }
        }
    };
    Ok(Ok(Box::new(move |request| then(output, request))))
}

/// Submits work when its client has a place in its share, which it has until the first part of the result is dropped.
async fn submit_work(
    worker: Rc<Worker>,
    plugin: &'static str,
    owner: WorkOwner,
    work: Work,
) -> Result<(SharePlace, oneshot::Receiver<OffloadResult>), QueueFull> {
    let share = worker.plugins.shares.admit(plugin, owner)?.await;
    let done = worker.plugins.offloading.submit(plugin, owner, work)?;
    Ok((share, done))
}

/// Waits for a future, unless the client leaves before.
async fn until_client_leaves<T>(
    serving: &mut RequestContext<'_>,
    future: impl Future<Output = T>,
) -> Result<T, WaitLost> {
    let mut future = pin!(future);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Ok(done)),
        Poll::Pending => poll_client(serving, cx).map(Err),
    })
    .await
}

/// Ready when the client has gone, or waits no longer.
fn poll_client(serving: &mut RequestContext<'_>, cx: &mut Context<'_>) -> Poll<WaitLost> {
    let RequestContext { worker, client, exchange, .. } = serving;
    if let Err(lost) = watch_client(worker, client, exchange, cx) {
        return Poll::Ready(lost);
    }
    let (now_ms, deadline_ms) = (worker.clock.now_ms(), exchange.call_deadline_ms);
    if deadline_ms.is_some_and(|deadline_ms| now_ms >= deadline_ms) {
        return Poll::Ready(WaitLost::Deadline);
    }
    let look_ms = client.eof.then_some(now_ms + TICK_MS);
    if let Some(next_ms) = look_ms.into_iter().chain(deadline_ms).min() {
        client.timer.set(&worker.clock, next_ms, cx);
    }
    Poll::Pending
}

/// Calls into the waiting plugin. Polling is not timed.
fn call_waiting_plugin<R>(
    serving: &RequestContext<'_>,
    at: ChainPosition,
    then: impl FnOnce() -> R,
) -> Result<R, PluginPanic> {
    chain::with_paused(serving, at, |entry, phase| call(serving.worker, entry, phase, false, then))
}

fn count(serving: &RequestContext<'_>, at: ChainPosition, measure: Measure) {
    chain::with_paused(serving, at, |entry, _| {
        serving.worker.report_plugin(|recorder, metrics| recorder.count_plugin(metrics, measure, entry.name));
    });
}

// The whole body of a request, for a plugin that needs all of it before a node is tried.
//
// A small body stays where it was received, and goes on as if there had been no wait. A larger one is kept separately, within the
// plugin's bound and the worker's, and takes its place: then the node gets its length, whatever its framing was, and no trailers.
// The plugin decides how a body beyond its bound is answered.

const EXPECT: FieldName<'_> = FieldName::constant("Expect");

/// Receives the body to its end.
async fn receive_whole_body(
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
    let received = poll_fn(|cx| poll_body(serving, &mut kept, bytes_max, &mut moved_ms, cx)).await;
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

fn poll_body(
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
        let now_ms = worker.clock.now_ms();
        let call_deadline_ms = exchange.call_deadline_ms.unwrap_or(u64::MAX);
        if now_ms >= call_deadline_ms {
            return Poll::Ready(Err(BodyLoss::Lost(WaitLost::Deadline)));
        }
        let deadline_ms = *moved_ms + snapshot.plan.settings.body_ms;
        if now_ms >= deadline_ms {
            let late = LocalReply::closing(408, "the request body did not come in time");
            return Poll::Ready(Err(BodyLoss::Answered(late)));
        }
        client.timer.set(&worker.clock, deadline_ms.min(call_deadline_ms), cx);
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
