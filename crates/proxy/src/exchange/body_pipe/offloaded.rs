//! Work of filters that is done by other threads, while nothing more of the body is read.

use super::super::filter_time::Stopwatch;
use super::super::filters::Step;
use super::{BrokenBody, Doing, Filtered, Waiting, Why};
use crate::worker::offload::{Offloading, Worked};
use crate::worker::plugins::{Refusal, guarded};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use stillgate_plugin::flow::Work;

/// CPU time that work may take elsewhere, where it holds up no worker, and what each byte adds to it: brotli at its highest level
/// takes 1 to 2 µs for a byte.
pub(super) const OFFLOADED_CPU_MAX: Duration = Duration::from_secs(1);
const OFFLOADED_CPU_NANOS_PER_BYTE: u64 = 4000;

impl Filtered {
    /// Waits for work that is done elsewhere. Ready when filters can be given more.
    #[cold]
    pub(super) fn poll_work(&mut self, cx: &mut Context<'_>, threads: &Offloading) -> Poll<Result<(), BrokenBody>> {
        while let Some(Waiting { at, plugin, step, done }) = self.waiting.take() {
            let mut receiver = match done {
                Doing::Elsewhere(receiver) => receiver,
                Doing::Here(work) => match threads.submit_or_return(plugin, work) {
                    Ok(receiver) => receiver,
                    // They have more to do than they can: it is done here.
                    Err(work) => {
                        self.work_here(at, plugin, step, work)?;
                        // Others are served before it goes on.
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                },
            };
            match Pin::new(&mut receiver).poll(cx) {
                Poll::Pending => {
                    self.waiting = Some(Waiting { at, plugin, step, done: Doing::Elsewhere(receiver) });
                    return Poll::Pending;
                }
                Poll::Ready(Ok(Ok(worked))) => self.worked(at, plugin, worked, step)?,
                Poll::Ready(Ok(Err(_)) | Err(_)) => return Poll::Ready(Err(BrokenBody { plugin, why: Why::Panic })),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn work_here(&mut self, at: usize, plugin: &'static str, step: Step, work: Work) -> Result<(), BrokenBody> {
        let stopwatch = Stopwatch::start();
        let output = guarded(work).map_err(|_| BrokenBody { plugin, why: Why::Panic })?;
        self.worked(at, plugin, Worked { output, cpu: stopwatch.elapsed() }, step)
    }

    fn worked(&mut self, at: usize, plugin: &'static str, worked: Worked, step: Step) -> Result<(), BrokenBody> {
        self.offloaded_cpu += worked.cpu;
        let per_byte = Duration::from_nanos(self.seen_bytes.saturating_mul(OFFLOADED_CPU_NANOS_PER_BYTE));
        if self.offloaded_cpu > OFFLOADED_CPU_MAX + per_byte {
            return Err(BrokenBody { plugin, why: Why::Refused(Refusal::Time) });
        }
        self.run_from(at, Some(worked.output), (&[], step))?;
        self.has_begun |= self.is_ended || !self.unwritten().is_empty();
        Ok(())
    }

    /// Has all work done by this thread.
    pub(super) fn finish_work(&mut self) -> Result<(), BrokenBody> {
        while let Some(Waiting { at, plugin, step, done: Doing::Here(work) }) = self.waiting.take() {
            self.work_here(at, plugin, step, work)?;
        }
        Ok(())
    }
}
