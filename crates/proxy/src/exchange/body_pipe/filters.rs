//! The filters of one body, each called with the output of the previous one, and their work that is done by other threads, while
//! nothing more of the body is read.

use super::{BreakCause, BrokenBody, FilteredBody, OffloadedFilter, PIECE_BYTES_MAX, Stopwatch};
use crate::worker::client_shares::{SharePlace, WorkOwner};
use crate::worker::offload::{FinishedWork, OffloadPlace, OffloadResult};
use crate::worker::plugins::{PluginRefusal, Plugins};
use std::cell::Cell;
use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use stillgate_plugin_api::BodyFilter;
use stillgate_plugin_api::client_bound::Lease;
use stillgate_plugin_api::work::{Output, Work};
use stillgate_plugin_api::{BodyChanges, BodyError, LocalFuture, QueueFull};
use stillgate_profiler::threads::{WorkKind, work_on};
use tokio::sync::oneshot;
use tokio::time::sleep;

/// CPU time that work may take on other threads, where it holds up no worker, and what each byte adds to it: brotli at its highest
/// level takes 1 to 2 µs per byte.
pub(super) const OFFLOADED_CPU_MAX: Duration = Duration::from_secs(1);
const OFFLOADED_CPU_NANOS_PER_BYTE: u64 = 4000;

/// Maximum time of work on other threads, including its time in the queue: nothing is read or written meanwhile. A queue full of
/// blocks for brotli at its highest level takes 10 s.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(30);

/// Where the work is.
pub(super) enum OffloadState {
    /// Still with the filter's pipe.
    NotBegun(Work),
    /// It waits for the share of its client, or for a place in the queue, which is full.
    Queueing(Work, LocalFuture<Result<(SharePlace, OffloadPlace), QueueFull>>),
    /// The share is the client's until the work is done.
    Elsewhere(oneshot::Receiver<OffloadResult>, SharePlace),
}

impl OffloadState {
    /// Advances it as far as possible now: returns its result, or where it is.
    fn poll(
        self,
        cx: &mut Context<'_>,
        plugins: &Plugins,
        plugin: &'static str,
        owner: WorkOwner,
    ) -> Result<Result<FinishedWork, OffloadState>, BreakCause> {
        let busy = |_| BreakCause::Refused(PluginRefusal::Busy);
        let (work, mut place) = match self {
            OffloadState::Elsewhere(mut receiver, share) => {
                return match Pin::new(&mut receiver).poll(cx) {
                    Poll::Pending => Ok(Err(OffloadState::Elsewhere(receiver, share))),
                    Poll::Ready(Ok(Ok(worked))) => Ok(Ok(worked)),
                    Poll::Ready(Ok(Err(_)) | Err(_)) => Err(BreakCause::Panic),
                };
            }
            OffloadState::NotBegun(work) => {
                let share = plugins.shares.wait(plugin, owner);
                let place = plugins.offloading.place(plugin);
                let place: LocalFuture<_> = Box::pin(async move { Ok((share.await, place.await?)) });
                (work, place)
            }
            OffloadState::Queueing(work, place) => (work, place),
        };
        match place.as_mut().poll(cx) {
            Poll::Pending => Ok(Err(OffloadState::Queueing(work, place))),
            Poll::Ready(place) => {
                let (share, place) = place.map_err(busy)?;
                let receiver = plugins.offloading.submit_at(plugin, owner, work, place).map_err(busy)?;
                OffloadState::Elsewhere(receiver, share).poll(cx, plugins, plugin, owner)
            }
        }
    }
}

impl FilteredBody {
    /// Waits for work on other threads. Ready when filters can get more.
    #[cold]
    pub(super) fn poll_work(&mut self, cx: &mut Context<'_>, plugins: &Plugins) -> Poll<Result<(), BrokenBody>> {
        while let Some(OffloadedFilter { at, plugin, step, doing, limit }) = self.waiting.take() {
            match doing.poll(cx, plugins, plugin, self.owner()).map_err(|why| BrokenBody { plugin, cause: why })? {
                Ok(worked) => self.worked(at, plugin, worked, step)?,
                Err(doing) => {
                    let mut limit = limit.unwrap_or_else(|| Box::pin(sleep(WAIT_MAX)));
                    if limit.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(Err(BrokenBody {
                            plugin,
                            cause: BreakCause::Refused(PluginRefusal::Busy),
                        }));
                    }
                    self.waiting = Some(OffloadedFilter { at, plugin, step, doing, limit: Some(limit) });
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn owner(&self) -> WorkOwner {
        WorkOwner::of_bodies(self.held.as_ref().and_then(Lease::client).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)))
    }

    /// Whether the body waits for work on other threads, and so neither for the node nor for the client.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    fn worked(
        &mut self,
        at: usize,
        plugin: &'static str,
        worked: FinishedWork,
        step: PieceEnd,
    ) -> Result<(), BrokenBody> {
        let is_of_bounded_cost = |(_, filter): (&str, &mut Box<dyn BodyFilter>)| filter.is_of_bounded_cost();
        if !self.changes.filters_mut().nth(at).is_some_and(is_of_bounded_cost) {
            self.offloaded_cpu += worked.cpu;
        }
        let per_byte = Duration::from_nanos(self.seen_bytes.saturating_mul(OFFLOADED_CPU_NANOS_PER_BYTE));
        if self.offloaded_cpu > OFFLOADED_CPU_MAX + per_byte {
            return Err(BrokenBody { plugin, cause: BreakCause::Refused(PluginRefusal::Time) });
        }
        self.run_from(at, Some(worked.output), (&[], step))?;
        self.has_begun |= self.is_ended || !self.unwritten().is_empty();
        Ok(())
    }

    /// Waits until all work is done.
    pub(super) async fn finish_work(&mut self, plugins: &Plugins) -> Result<(), BrokenBody> {
        if self.waiting.is_none() {
            return Ok(());
        }
        poll_fn(|cx| self.poll_work(cx, plugins)).await
    }
}

/// How much memory is kept of what lies between filters.
const KEPT_BYTES_MAX: usize = 64 * 1024;

/// What a piece is followed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PieceEnd {
    /// Another piece may follow.
    Piece,
    /// Nothing follows for now.
    Pause,
    /// The end follows.
    End,
}

/// The filters of a body, about to get a piece.
pub(super) struct Filters<'a> {
    pub(super) changes: &'a mut BodyChanges,
    pub(super) between: &'a mut [Vec<u8>; 2],
    /// The plugin whose filter is running; afterwards, the one whose filter holds most.
    pub(super) running: &'a Cell<&'static str>,
    /// CPU time of filters that does not count against the bound of a body.
    pub(super) uncounted: &'a Cell<Duration>,
}

impl Filters<'_> {
    /// Appends to `out` what the filters make of a piece, starting with the given one; with a result, the work of that filter is
    /// done. Returns work that has to be done before the filter at that place can continue.
    pub(super) fn run(
        self,
        first: usize,
        mut result: Option<Output>,
        (piece, step): (&[u8], PieceEnd),
        out: &mut Vec<u8>,
    ) -> Result<Option<(usize, Work)>, PluginRefusal> {
        let [current, next] = self.between;
        let last = self.changes.filters_mut().count().saturating_sub(1);
        let mut most = (0, "");
        let mut piece = Some(piece);
        for (at, (plugin, filter)) in self.changes.filters_mut().enumerate().skip(first) {
            self.running.set(plugin);
            // The last filter writes to the final output: most bodies have one filter, and are not copied.
            let gives = if at == last { &mut *out } else { &mut *next };
            let (before, comes) = (gives.len(), piece.take().unwrap_or(&current[..]));
            let stopwatch = filter.is_of_bounded_cost().then(Stopwatch::start);
            work_on(WorkKind::Plugin, plugin, || match result.take() {
                // Its output from before its work is already there.
                Some(result) => filter.on_work_done(result, gives).map_err(refusal),
                None => {
                    for piece in comes.chunks(PIECE_BYTES_MAX) {
                        filter.piece(piece, gives).map_err(refusal)?;
                    }
                    match step {
                        PieceEnd::Piece => Ok(()),
                        PieceEnd::Pause => filter.pause(gives).map_err(refusal),
                        PieceEnd::End => filter.end(gives).map_err(refusal),
                    }
                }
            })?;
            if let Some(stopwatch) = stopwatch {
                self.uncounted.set(self.uncounted.get() + stopwatch.elapsed());
            }
            if let Some(work) = filter.work() {
                return Ok(Some((at, work)));
            }
            most = most.max((filter.held_bytes() + gives.len() - before, plugin));
            std::mem::swap(current, next);
            next.clear();
        }
        self.running.set(most.1);
        for memory in self.between {
            memory.clear();
            memory.shrink_to(KEPT_BYTES_MAX);
        }
        Ok(None)
    }
}

fn refusal(error: BodyError) -> PluginRefusal {
    match error {
        BodyError::TooLarge => PluginRefusal::TooLarge,
        BodyError::Malformed => PluginRefusal::Malformed,
        BodyError::Failed => PluginRefusal::Failed,
    }
}
