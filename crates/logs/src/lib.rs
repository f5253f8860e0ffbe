//! Sends the logs and traces of plugins, on a thread of its own: collects entries into batches, tries again, counts
//! losses.
//!
//! ```text
//!  worker 0: Outbox ──chunk──┐                 ┌─ batch of outlet a ─▶ delivery ─▶ HTTP, TCP, UDP, file
//!  worker 1: Outbox ──chunk──┴─▶ one channel ──┤
//!      ▲                                       └─ batch of outlet b ─▶ delivery ─▶ …
//!      └──────── empty chunks, a channel per worker
//! ```
//!
//! A receiver that stalls holds up its own outlet only. All waiting data is bounded in bytes; excess is counted and
//! dropped, by the workers already, so that it costs them next to nothing. The plugins define the format of entries,
//! and how they are combined for a receiver.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod delivery;
mod sender;

use sender::Sender;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;
use stillgate_plugin_api::outbox::{Chunk, Outbox, OutboxCounters, Post};
use stillgate_profiler::threads::Registration;
use tokio::sync::mpsc;

/// Chunks of one worker on their way; bytes bound them, too.
const CHUNKS_PER_WORKER: usize = 256;
/// Empty chunks that wait for their worker.
const EMPTY_PER_WORKER: usize = 8;
/// The thread's niceness: it must not take a core from a worker.
const NICE: i32 = 10;
/// Threads for blocking work besides the event loop: writing files, and resolving names.
const BLOCKING_THREADS_MAX: usize = 8;

/// The thread that sends.
pub struct Logs {
    /// The numbers of entries by result so far.
    pub counts: Arc<OutboxCounters>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
}

impl Logs {
    /// Starts the thread, with one channel for each worker; entries are counted under the names `plugins`. When all
    /// channels are dropped, it sends the remaining entries, within `flush_timeout`, and ends.
    ///
    /// # Errors
    ///
    /// If the system cannot create the thread, or its event loop.
    pub fn start(
        workers: usize,
        plugins: impl IntoIterator<Item = &'static str>,
        flush_timeout: Duration,
    ) -> io::Result<(Logs, Vec<Outbox>)> {
        let counts = Arc::new(OutboxCounters::new(plugins));
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
            // On Linux this affects the calling thread only. The thread also works without it.
            let _ = rustix::process::setpriority_process(None, NICE);
            runtime.block_on(sender.run());
            // A blocked write to a file is abandoned: the process is about to end.
            runtime.shutdown_background();
            drop(end);
        })?;
        Ok((Logs { counts, ended }, outboxes))
    }

    /// Waits until everything is sent or counted as lost, at most this long; returns whether it is. To be called after
    /// the workers have ended.
    pub fn finish(&self, at_most: Duration) -> bool {
        matches!(self.ended.recv_timeout(at_most), Err(RecvTimeoutError::Disconnected))
    }
}

/// A worker's channel to the thread.
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
