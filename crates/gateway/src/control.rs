//! The control loop: everything that can wake the main thread, and what it does about it.
//!
//! It owns the workers' handle, the configuration and the logs; the admin server and the signals only ask it. Nothing
//! here takes long: what would is done on another thread and comes back as an event.

use crate::access_log_writer::AccessLogWriter;
use crate::admin::Question;
use crate::reload::{Reloader, Step};
use crate::status::{AccessLogStatus, Status, counted};
use crate::watch::FileWatch;
use std::io;
use std::ops::ControlFlow;
use std::time::Duration;
use stillgate_proxy::{Fleet, StartError, Tally};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, Interval, interval};
use tracing::{error, info, warn};

/// What the access log gets to be written out in, after the last request.
const ACCESS_LOG_END_TIMEOUT: Duration = Duration::from_secs(2);

/// How often the workers are counted.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Everything that can wake the control thread.
enum Event {
    /// SIGHUP: reload, whether or not the file changed; without a file as SIGTERM.
    Hangup,
    /// SIGTERM or SIGINT: finish and end; the second time at once.
    Terminate(&'static str),
    /// SIGUSR1: open the access log anew.
    ReopenLogs,
    /// The configuration file may have changed.
    FileTouched,
    /// The admin API wants to know how things are.
    Asked(Question),
    /// A reload, or a change of addresses, has come a step further.
    Reload(Step),
    /// A worker has ended while it should serve.
    WorkerLost,
    /// All workers have ended, as they were told to.
    WorkersEnded(Result<(), String>),
}

/// The signals the process takes.
pub(crate) struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
    reopen: Signal,
}

impl Signals {
    /// From here on these signals are events and no longer end the process. Needs a running runtime.
    pub(crate) fn take() -> io::Result<Signals> {
        Ok(Signals {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            reopen: signal(SignalKind::user_defined1())?,
        })
    }
}

/// The workers, as seen from here.
enum Workers {
    Serving(Fleet),
    /// Finishing what is in flight.
    Draining(JoinHandle<Result<(), StartError>>),
}

/// Owns what runs.
pub(crate) struct Control {
    signals: Signals,
    /// `None`: the configuration is not a file.
    watch: Option<FileWatch>,
    questions: mpsc::Receiver<Question>,
    reloader: Reloader,
    workers: Workers,
    workers_count: usize,
    tally: Tally,
    access_log: Option<AccessLogWriter>,
    started: Instant,
    /// When to look whether all workers are there.
    look: Interval,
}

impl Control {
    /// Takes over everything that was started.
    pub(crate) fn new(
        signals: Signals,
        watch: Option<FileWatch>,
        questions: mpsc::Receiver<Question>,
        reloader: Reloader,
        fleet: Fleet,
        access_log: Option<AccessLogWriter>,
    ) -> Control {
        Control {
            signals,
            watch,
            questions,
            reloader,
            workers_count: fleet.workers(),
            tally: fleet.tally(),
            workers: Workers::Serving(fleet),
            access_log,
            started: Instant::now(),
            look: interval(LOOK_EVERY),
        }
    }

    /// Runs until the gateway has ended; an error says that it should not have.
    pub(crate) async fn run(mut self) -> Result<(), String> {
        loop {
            let event = self.next().await;
            if let ControlFlow::Break(result) = self.handle(event) {
                return result;
            }
        }
    }

    /// Every arm can be cancelled without losing what it waits for.
    async fn next(&mut self) -> Event {
        let watch = &mut self.watch;
        let touched = async {
            match watch {
                Some(watch) => watch.changed().await,
                None => std::future::pending().await,
            }
        };
        let (workers, look) = (&mut self.workers, &mut self.look);
        let ended = async {
            match workers {
                Workers::Serving(fleet) => loop {
                    look.tick().await;
                    if fleet.has_ended() {
                        break Event::WorkerLost;
                    }
                },
                Workers::Draining(ended) => Event::WorkersEnded(match ended.await {
                    Ok(result) => result.map_err(|error| error.to_string()),
                    Err(error) => Err(error.to_string()),
                }),
            }
        };
        tokio::select! {
            // Ending goes before answering, so that a flood of questions cannot hold it up.
            biased;
            Some(()) = self.signals.terminate.recv() => Event::Terminate("SIGTERM"),
            Some(()) = self.signals.interrupt.recv() => Event::Terminate("SIGINT"),
            event = ended => event,
            Some(()) = self.signals.hangup.recv() => Event::Hangup,
            Some(()) = self.signals.reopen.recv() => Event::ReopenLogs,
            () = touched => Event::FileTouched,
            step = self.reloader.next() => Event::Reload(step),
            Some(question) = self.questions.recv() => Event::Asked(question),
        }
    }

    fn handle(&mut self, event: Event) -> ControlFlow<Result<(), String>> {
        match event {
            // A demo whose terminal is closed ends: there is nothing to reload.
            Event::Hangup if self.watch.is_none() => return self.terminate("SIGHUP"),
            Event::Hangup => {
                info!("SIGHUP: reloading");
                self.reloader.request(true);
            }
            Event::FileTouched => self.reloader.request(false),
            Event::Reload(step) => self.reloader.handle(step),
            Event::ReopenLogs => match &self.access_log {
                Some(access_log) => access_log.reopen(),
                None => info!("SIGUSR1: there is no access log to reopen"),
            },
            // Whoever asked may have gone meanwhile.
            Event::Asked(question) => drop(question.send(self.status())),
            Event::Terminate(signal) => return self.terminate(signal),
            // The others would serve on, with less and less; whoever supervises us starts anew with all.
            Event::WorkerLost => {
                error!("a worker has ended, which is a bug; so the gateway ends");
                return self.terminate("worker lost");
            }
            Event::WorkersEnded(result) => {
                self.end_access_log();
                match &result {
                    Ok(()) => info!("ended"),
                    Err(error) => error!("{error}"),
                }
                return ControlFlow::Break(result);
            }
        }
        ControlFlow::Continue(())
    }

    fn terminate(&mut self, signal: &str) -> ControlFlow<Result<(), String>> {
        let Workers::Serving(fleet) = &self.workers else {
            let open = self.tally.read().requests_in_flight;
            return ControlFlow::Break(Err(format!("{signal} again: ending at once, with {open} requests in flight")));
        };
        let deadline = self.reloader.gateway().timeouts.drain;
        info!(
            in_flight = self.tally.read().requests_in_flight,
            deadline_seconds = deadline.as_secs_f64(),
            "{signal}: finishing what is in flight"
        );
        fleet.drain(deadline);
        let (start, started) = std::sync::mpsc::sync_channel::<Fleet>(1);
        let ended = spawn_blocking(move || match started.recv() {
            Ok(fleet) => fleet.join(),
            // The sender sends before it is dropped.
            Err(_) => Ok(()),
        });
        let draining = Workers::Draining(ended);
        if let Workers::Serving(fleet) = std::mem::replace(&mut self.workers, draining) {
            let _ = start.send(fleet);
        }
        ControlFlow::Continue(())
    }

    fn end_access_log(&mut self) {
        let Some(access_log) = self.access_log.take() else {
            return;
        };
        if !access_log.finish(ACCESS_LOG_END_TIMEOUT) {
            warn!("the access log's last lines are lost: whoever reads it is too slow");
        }
    }

    fn status(&self) -> Status {
        let (connections, requests) = counted(&self.tally.read());
        Status {
            version: Status::VERSION,
            config: self.reloader.status(),
            workers: self.workers_count,
            uptime_seconds: self.started.elapsed().as_secs(),
            connections,
            requests,
            access_log: self.access_log.as_ref().map(|log| AccessLogStatus { dropped_lines: log.dropped_lines() }),
            draining: matches!(self.workers, Workers::Draining(_)),
        }
    }
}
