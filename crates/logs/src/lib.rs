//! Sends what plugins log and trace, on a thread of its own: collects entries into batches, tries again, counts what is lost.
//!
//! ```text
//!  worker 0: Outbox ──chunk──┐                 ┌─ batch of outlet a ─▶ delivery ─▶ HTTP, TCP, UDP, file
//!  worker 1: Outbox ──chunk──┴─▶ one channel ──┤
//!      ▲                                       └─ batch of outlet b ─▶ delivery ─▶ …
//!      └──────── empty chunks, a channel per worker
//! ```
//!
//! A receiver that stalls holds up its own outlet only. Everything that waits is bounded by bytes; what comes beyond is
//! counted and dropped, by the workers already, so that it costs them next to nothing. What entries are, and how they are
//! put together for a receiver, is the plugins' business.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod batch;
mod delivery;
mod sender;

use sender::Sender;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;
use stillgate_plugin::outbox::{Chunk, Counts, Outbox, Post};
use stillgate_profiler::threads::Registration;
use tokio::sync::mpsc;

/// Chunks of one worker on their way; bytes bound them, too.
const CHUNKS_PER_WORKER: usize = 256;
/// Empty chunks that wait for their worker.
const EMPTY_PER_WORKER: usize = 8;
/// The thread's niceness: it must not take a core from a worker.
const NICE: i32 = 10;
/// What goes on beside the event loop: writing files, and asking for addresses.
const BLOCKING_THREADS_MAX: usize = 8;

/// The thread that sends.
pub struct Logs {
    /// What became of entries so far.
    pub counts: Arc<Counts>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
}

impl Logs {
    /// Starts the thread, with an end for each of so many workers; `plugins` are the names that are counted under. When all ends
    /// are dropped, it sends what it has, within `flush_timeout`, and ends.
    ///
    /// # Errors
    ///
    /// If the system has no thread, or no event loop, for it.
    pub fn start(
        workers: usize,
        plugins: impl IntoIterator<Item = &'static str>,
        flush_timeout: Duration,
    ) -> io::Result<(Logs, Vec<Outbox>)> {
        let counts = Arc::new(Counts::new(plugins));
        let (filled, chunks) = mpsc::channel(workers.max(1) * CHUNKS_PER_WORKER);
        let (mut outboxes, mut empties) = (Vec::with_capacity(workers), Vec::with_capacity(workers));
        for worker in 0..workers {
            let (give_back, empty) = sync_channel(EMPTY_PER_WORKER);
            empties.push(give_back);
            let post = Channel { worker, filled: filled.clone(), empty };
            outboxes.push(Outbox::new(Box::new(post), counts.clone()));
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_name("logs-work")
            .max_blocking_threads(BLOCKING_THREADS_MAX)
            .build()?;
        let (end, ended) = sync_channel(0);
        let sender = Sender::new(chunks, empties, counts.clone(), flush_timeout);
        thread::Builder::new().name("logs".to_owned()).spawn(move || {
            let _profiled = Registration::of_current();
            // On Linux this is about the calling thread only. The thread also works without it.
            let _ = rustix::process::setpriority_process(None, NICE);
            runtime.block_on(sender.run());
            // A write to a file that does not end is left behind: the process is about to end.
            runtime.shutdown_background();
            drop(end);
        })?;
        Ok((Logs { counts, ended }, outboxes))
    }

    /// Waits until everything is sent or counted as lost, at most this long; whether it is. To be called after the workers have
    /// ended.
    pub fn finish(&self, at_most: Duration) -> bool {
        matches!(self.ended.recv_timeout(at_most), Err(RecvTimeoutError::Disconnected))
    }
}

/// A worker's way to the thread.
struct Channel {
    worker: usize,
    filled: mpsc::Sender<(usize, Chunk)>,
    empty: Receiver<Chunk>,
}

impl Post for Channel {
    fn post(&mut self, chunk: Chunk) -> Result<(), Chunk> {
        self.filled.try_send((self.worker, chunk)).map_err(|error| error.into_inner().1)
    }

    fn empty(&mut self) -> Option<Chunk> {
        self.empty.try_recv().ok()
    }
}
