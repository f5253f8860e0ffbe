//! Admits a request to its upstream: at once if there is a place, otherwise after those that already wait, or not at all.
//!
//! The order is determined by `upstream`; this module decides what ends the wait.

use super::answer::LocalReply;
use super::attempt::STATUS_CLIENT_GONE;
use super::relay::is_still_there;
use super::target::ExchangeTarget;
use super::{ConnectionNext, Exchange, RequestContext};
use crate::basics::clock::TICK_MS;
use crate::connection::client::ClientConnection;
use crate::plan::snapshot::WorkerUpstream;
use crate::telemetry::metrics::UpstreamEvent;
use crate::worker::Worker;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Instant;
use stillgate_upstream::Ticket;
use stillgate_wire::ChunkError;

/// Why a request is not admitted to its upstream.
enum QueueRefusal {
    /// The maximum number of requests waits.
    Full,
    /// It has waited for the maximum time.
    TimeUp,
    /// The client's deadline for the call has passed.
    Deadline,
    Lost(WaitLost),
}

/// A waiting request has ended, as its result is not needed any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitLost {
    /// The client closed or reset its connection.
    ClientGone,
    /// The request's body is malformed.
    BadBody(ChunkError),
    /// The client's deadline for its call has passed.
    Deadline,
}

impl WaitLost {
    /// The answer, if there is still a client to answer.
    pub(super) fn end(self, exchange: &mut Exchange) -> Result<Option<ConnectionNext>, LocalReply> {
        match self {
            WaitLost::BadBody(malformed) => Err(malformed.into()),
            WaitLost::Deadline => Err(LocalReply::deadline()),
            WaitLost::ClientGone => {
                exchange.outcome.status = STATUS_CLIENT_GONE;
                Ok(Some(ConnectionNext::Close))
            }
        }
    }
}

/// Admits the request; `Some`: its client is gone. From then on until its try begins there must be no await: the place is free for
/// others.
#[inline]
pub(super) async fn admit(
    serving: &mut RequestContext<'_>,
    target: &ExchangeTarget<'_>,
) -> Result<Option<ConnectionNext>, LocalReply> {
    if target.upstream.state.borrow().has_place() {
        return Ok(None);
    }
    // On the heap, as it is rare: otherwise every idle connection's task would have room for it.
    Box::pin(wait_or_answer(serving, target)).await
}

async fn wait_or_answer(
    serving: &mut RequestContext<'_>,
    target: &ExchangeTarget<'_>,
) -> Result<Option<ConnectionNext>, LocalReply> {
    let began = Instant::now();
    let waited = wait(serving, target).await;
    (serving.exchange.queued, serving.exchange.outcome.timing.has_queued) = (began.elapsed(), true);
    let Err(denied) = waited else { return Ok(None) };
    let own = match denied {
        QueueRefusal::Full => LocalReply::overload("the upstream has as many requests as it may have"),
        QueueRefusal::TimeUp => LocalReply::overload("the upstream had no place for the request in time"),
        QueueRefusal::Deadline => LocalReply::deadline(),
        QueueRefusal::Lost(lost) => return lost.end(serving.exchange),
    };
    if own.is_overload() {
        serving.worker.note_upstream(UpstreamEvent::Shed, target.upstream);
    }
    Err(own)
}

/// A place in the queue, which is given up even if the request's task is dropped.
struct QueuePlace<'a> {
    worker: &'a Worker,
    upstream: &'a WorkerUpstream,
    ticket: Ticket,
    until_ms: u64,
}

impl<'a> QueuePlace<'a> {
    fn new(worker: &'a Worker, upstream: &'a WorkerUpstream, cx: &Context<'_>) -> Option<QueuePlace<'a>> {
        let (ticket, timeout) = upstream.state.borrow_mut().join_queue(cx.waker())?;
        worker.note_upstream(UpstreamEvent::Queued, upstream);
        worker.counters.requests_waiting.add(1);
        worker.note_waiting(upstream);
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        Some(QueuePlace { worker, upstream, ticket, until_ms: worker.clock.now_ms() + timeout_ms })
    }
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        self.upstream.state.borrow_mut().leave_queue(self.ticket);
        self.worker.counters.requests_waiting.sub(1);
        self.worker.note_waiting(self.upstream);
    }
}

async fn wait(serving: &mut RequestContext<'_>, target: &ExchangeTarget<'_>) -> Result<(), QueueRefusal> {
    let RequestContext { worker, client, exchange, .. } = serving;
    let (upstream, deadline_ms) = (target.upstream, target.bounds.deadline_ms);
    let mut waiting = None;
    poll_fn(|cx| {
        let place = match &waiting {
            Some(place) => place,
            None => match QueuePlace::new(worker, upstream, cx) {
                Some(place) => waiting.insert(place),
                None => return Poll::Ready(Err(QueueRefusal::Full)),
            },
        };
        // This comes first, so that no place goes to a client that is gone.
        watch_client(worker, client, exchange, cx).map_err(QueueRefusal::Lost)?;
        if upstream.state.borrow_mut().poll_turn(place.ticket, cx.waker()) {
            return Poll::Ready(Ok(()));
        }
        let now_ms = worker.clock.now_ms();
        if now_ms >= deadline_ms {
            return Poll::Ready(Err(QueueRefusal::Deadline));
        }
        if now_ms >= place.until_ms {
            return Poll::Ready(Err(QueueRefusal::TimeUp));
        }
        let mut next_ms = deadline_ms.min(place.until_ms);
        if client.eof {
            next_ms = next_ms.min(now_ms + TICK_MS);
        }
        client.timer.set(&worker.clock, next_ms, cx);
        Poll::Pending
    })
    .await
}

/// Reads ahead as far as there is room, to see whether the client is still there.
pub(super) fn watch_client(
    worker: &Worker,
    client: &mut ClientConnection,
    exchange: &mut Exchange,
    cx: &mut Context<'_>,
) -> Result<(), WaitLost> {
    while !client.eof {
        let is_done = exchange.from_client.is_done();
        let read = match is_done {
            true => exchange
                .from_client
                .poll_read_ahead(cx, &mut client.stream, &worker.buffers)
                .map(|read| read.map_ok(Ok)),
            false => exchange.from_client.poll_read_early(cx, &mut client.stream, &worker.buffers),
        };
        match read {
            None | Some(Poll::Pending) => return Ok(()),
            Some(Poll::Ready(Ok(Ok(0)))) if is_done => client.eof = true,
            Some(Poll::Ready(Ok(Ok(0)) | Err(_))) => return Err(WaitLost::ClientGone),
            Some(Poll::Ready(Ok(Err(malformed)))) => return Err(WaitLost::BadBody(malformed)),
            Some(Poll::Ready(Ok(Ok(_)))) => {}
        }
    }
    is_still_there(worker, client, exchange, cx).then_some(()).ok_or(WaitLost::ClientGone)
}
