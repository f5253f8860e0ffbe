//! What plugins can use of the worker's event loop.

use super::Worker;
use crate::calls::Calls;
use std::rc::{Rc, Weak};
use std::time::Duration;
use stillgate_config::Measure;
use stillgate_plugin::{Call, CallError, Io, Link, LinkTo, LocalFuture, LogLevel, Reply};

/// The event loop of a worker.
pub(crate) struct PluginIo {
    /// The worker that it belongs to.
    pub(crate) worker: Weak<Worker>,
    pub(crate) calls: Rc<Calls>,
}

/// Counts a call that was refused because its server is left alone.
fn counted<T: 'static>(
    worker: Weak<Worker>,
    call: impl Future<Output = Result<T, CallError>> + 'static,
) -> LocalFuture<Result<T, CallError>> {
    Box::pin(async move {
        let result = call.await;
        if let (Err(CallError::Resting), Some(worker)) = (&result, worker.upgrade()) {
            worker.counters.calls_refused.add(1);
        }
        result
    })
}

impl Io for PluginIo {
    /// Uses the runtime's own timers, which have a resolution of milliseconds: only requests that really wait pay for them.
    fn sleep(&self, time: Duration) -> LocalFuture<()> {
        Box::pin(tokio::time::sleep(time))
    }

    fn call(&self, call: Call) -> LocalFuture<Result<Reply, CallError>> {
        counted(self.worker.clone(), self.calls.clone().call(call))
    }

    fn link(&self, to: LinkTo) -> LocalFuture<Result<Box<dyn Link>, CallError>> {
        counted(self.worker.clone(), self.calls.clone().link(to))
    }

    fn send(&self, plugin: &'static str, call: Call) {
        let worker = self.worker.clone();
        if !self.calls.send(call, move || count_lost(&worker, plugin)) {
            self.drop_send(plugin);
        }
    }

    fn spawn(&self, task: LocalFuture<()>) {
        tokio::task::spawn_local(task);
    }

    fn warn(&self, plugin: &'static str, what: &str) {
        tracing::warn!(plugin, "{what}");
    }

    fn is_logged(&self, level: LogLevel) -> bool {
        match level {
            LogLevel::Error => tracing::enabled!(tracing::Level::ERROR),
            LogLevel::Warn => tracing::enabled!(tracing::Level::WARN),
            LogLevel::Info => tracing::enabled!(tracing::Level::INFO),
            LogLevel::Debug => tracing::enabled!(tracing::Level::DEBUG),
        }
    }

    fn log(&self, plugin: &'static str, level: LogLevel, text: &str) {
        match level {
            LogLevel::Error => tracing::error!(plugin, "{text}"),
            LogLevel::Warn => tracing::warn!(plugin, "{text}"),
            LogLevel::Info => tracing::info!(plugin, "{text}"),
            LogLevel::Debug => tracing::debug!(plugin, "{text}"),
        }
    }

    fn fail(&self, plugin: &'static str, why: &str) {
        tracing::error!(plugin, "{why}");
        if let Some(worker) = self.worker.upgrade() {
            worker.report_plugin(|recorder, metrics| recorder.count_plugin(metrics, Measure::PluginFailures, plugin));
        }
    }

    fn drop_send(&self, plugin: &'static str) {
        count_lost(&self.worker, plugin);
    }
}

fn count_lost(worker: &Weak<Worker>, plugin: &'static str) {
    if let Some(worker) = worker.upgrade() {
        worker.report_plugin(|recorder, metrics| {
            recorder.count_plugin(metrics, Measure::PluginSendsDropped, plugin);
        });
    }
}
