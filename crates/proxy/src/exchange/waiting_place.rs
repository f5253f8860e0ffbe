//! A request that waits for what a plugin needs: IO, work on another thread, the request's body.
//!
//! Its client is watched meanwhile: if it disconnects, whatever is awaited is dropped and the request ends as one whose client did
//! not wait. The Plan is the one that the request began with, however often another is published.

use super::answer::LocalReply;
use super::chain::{self, ChainPosition, PausedChain};
use super::queue::{WaitLost, watch_client};
use super::{ConnectionNext, RequestContext, whole_body};
use crate::basics::clock::TICK_MS;
use crate::worker::Worker;
use crate::worker::offload::TurnKey;
use crate::worker::plugins::{PluginPanic, call, report_panic};
use std::future::poll_fn;
use std::task::{Context, Poll};
use stillgate_config::Measure;
use stillgate_plugin_api::flow::{Offload, Resume};
use stillgate_plugin_api::work::Output;
use stillgate_plugin_api::{Flow, LocalFuture, QueueFull};

/// Requests of a worker that may wait for plugins: each keeps its buffers.
const WAITING_MAX: usize = 8 * 1024;

/// Waits, and continues with the phases, as often as plugins need it. `Some`: the client is gone.
pub(super) async fn run(
    serving: &mut RequestContext<'_>,
    mut paused: PausedChain,
) -> Result<Option<ConnectionNext>, LocalReply> {
    let worker = serving.worker.clone();
    let Some(_place) = WaitingPlace::begin(&worker) else {
        count(serving, paused.at, Measure::PluginWaitsRefused);
        return Err(LocalReply::overload("as many requests wait for plugins as may"));
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

/// A place among the waiting requests, which is given up even if the request's task is dropped.
struct WaitingPlace<'a>(&'a Worker);

impl<'a> WaitingPlace<'a> {
    fn begin(worker: &'a Worker) -> Option<WaitingPlace<'a>> {
        let waiting = &worker.plugins.waiting;
        (waiting.get() < WAITING_MAX).then(|| {
            waiting.set(waiting.get() + 1);
            WaitingPlace(worker)
        })
    }
}

impl Drop for WaitingPlace<'_> {
    fn drop(&mut self) {
        let waiting = &self.0.plugins.waiting;
        waiting.set(waiting.get() - 1);
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
        Flow::Body(body) => whole_body::receive(serving, body.bytes_max, body.too_large).await?.map(|()| body.then),
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
    let turn = TurnKey::of(route, serving.client.address);
    let output: Result<Output, QueueFull> = match serving.worker.plugins.offloading.submit(plugin, turn, work) {
        Err(full) => {
            count(serving, at, Measure::PluginOffloadsRefused);
            Err(full)
        }
        Ok(mut done) => {
            count(serving, at, Measure::PluginOffloads);
            let done = poll_fn(|cx| match std::pin::Pin::new(&mut done).poll(cx) {
                Poll::Ready(done) => Poll::Ready(Ok(done)),
                Poll::Pending => poll_client(serving, cx).map(Err),
            });
            match done.await {
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

/// Ready when the client has gone.
fn poll_client(serving: &mut RequestContext<'_>, cx: &mut Context<'_>) -> Poll<WaitLost> {
    let RequestContext { worker, client, exchange, .. } = serving;
    if let Err(lost) = watch_client(worker, client, exchange, cx) {
        return Poll::Ready(lost);
    }
    if client.eof {
        client.timer.set(&worker.clock, worker.clock.now_ms() + TICK_MS, cx);
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
