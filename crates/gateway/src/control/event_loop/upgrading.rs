//! What the control loop does for an upgrade: starts it, and leaves when the successor serves.

use super::{Control, Workers};
use crate::configuration::kept::datastore_state;
use crate::upgrade::{self, OLD_NAME, Progress, UpgradeEvent};
use std::time::Duration;
use tokio::time::timeout;
use tracing::{error, info, warn};

/// How long the exporter may take to stop answering scrapes: its thread has a low priority.
const UNEXPOSED_TIMEOUT: Duration = Duration::from_secs(5);

impl Control {
    /// Starts a successor, if there can be one now.
    pub(super) fn upgrade(&mut self) {
        let (Workers::Serving(fleet), None) = (&self.workers, self.announced) else {
            return warn!("SIGUSR2: this process is ending already");
        };
        if self.watch.is_none() {
            return warn!("SIGUSR2: without a configuration file there is nothing to upgrade");
        }
        if std::process::id() == 1 {
            return error!(
                "SIGUSR2: process 1 cannot be upgraded, because its container ends with it; replace the container"
            );
        }
        if let Some(advice) = upgrade::supervisor_loses_us() {
            return error!("SIGUSR2: not upgraded: {advice}");
        }
        if !self.predecessor.is_alone() {
            return warn!("SIGUSR2: an upgrade is under way already");
        }
        self.set_datastore_released(true);
        let plans = self.reloader.plans().clone();
        let state = (self.reloader.had_end_flag(), datastore_state(&self.reloader.served_plan().loaded));
        match self.predecessor.launch((fleet, &plans), self.reloader.metering().as_deref(), state) {
            Ok(()) => info!("SIGUSR2: starting the process that takes over"),
            Err(error) => self.serve_on(&error.to_string()),
        }
    }

    pub(super) fn upgrade_step(&mut self, step: UpgradeEvent) {
        match step {
            UpgradeEvent::Progress(Progress::Started(pid)) => {
                info!(pid, "upgrade: the new process runs");
                self.predecessor.on_started(pid);
            }
            UpgradeEvent::Progress(Progress::Failed(reason)) if matches!(self.workers, Workers::Serving(_)) => {
                self.serve_on(&reason);
            }
            UpgradeEvent::Progress(Progress::Failed(reason)) => info!("upgrade: {reason}"),
            UpgradeEvent::Progress(Progress::Ready(_)) if !self.predecessor.is_launching() => {}
            UpgradeEvent::Progress(Progress::Ready(heard)) => {
                let metering = self.reloader.metering();
                // It is a task of its own, so that it goes on where nothing waits for it.
                let unexposed = metering.map(|metering| tokio::spawn(metering.stop_serving()));
                let unexposed = tokio::spawn(async move {
                    if let Some(unexposed) = unexposed
                        && timeout(UNEXPOSED_TIMEOUT, unexposed).await.is_err()
                    {
                        warn!("upgrade: the exporter is slow to stop; going on, and it may answer some scrapes still");
                    }
                });
                self.predecessor.leave(heard, unexposed);
            }
            UpgradeEvent::Progress(Progress::Lost(reason)) => {
                let reason = upgrade::lost_message(&reason);
                error!("{reason}");
                self.failure = Some(reason);
            }
            UpgradeEvent::Progress(Progress::Ended(reason)) => warn!("{}", upgrade::ended_message(&reason)),
            UpgradeEvent::Progress(Progress::HandedOver) => {}
            UpgradeEvent::Unexposed => self.predecessor.go(),
            UpgradeEvent::Progress(Progress::Going) => self.leave(),
        }
    }

    /// The successor does all new work from here on.
    fn leave(&mut self) {
        let Workers::Serving(fleet) = &mut self.workers else { return };
        let Some((successor, pid)) = self.predecessor.end_own_services() else { return };
        if let Some(pid_file) = self.pid_file.take() {
            pid_file.leave();
        }
        let deadline = self.reloader.gateway().timeouts.upgrade;
        fleet.hand_over(successor, deadline);
        self.await_workers(true);
        self.certificates.stop();
        // The successor runs the checks; the known state of the nodes stays as it is.
        self.checker.stop();
        if let Some(metering) = self.reloader.metering() {
            metering.leave();
        }
        info!(
            pid,
            deadline_seconds = deadline.as_secs_f64(),
            "upgrade: the new process serves; handing over, and finishing what cannot be"
        );
        upgrade::tell_supervisor(&format!("MAINPID={pid}"));
        if let Err(error) = rustix::thread::set_name(OLD_NAME) {
            warn!(%error, "upgrade: this process keeps its name");
        }
    }

    /// All workers have ended: what they gave away may be on its way still. Where they were not waited for nor is this.
    pub(super) async fn finish_handing_over(&mut self) -> Result<(), String> {
        if let Workers::Ending { commander, ended, .. } = &self.workers {
            if !ended.is_finished() {
                return Ok(());
            }
            // This drops the last sender to the successor.
            commander.drain(Duration::ZERO);
        }
        let hurried = || Err("asked to end again: not waiting for the new process to take the rest".to_owned());
        self.signals.ending.unless_asked(self.predecessor.finish()).await.unwrap_or_else(hurried)
    }

    /// Only one process can have the file of a store open.
    fn set_datastore_released(&self, is_released: bool) {
        if let Some(datastore) = &self.datastore {
            datastore.set_released(is_released);
        }
    }

    fn serve_on(&mut self, reason: &str) {
        self.predecessor.on_failed();
        self.set_datastore_released(false);
        if let Some(metering) = self.reloader.metering() {
            metering.keep();
        }
        if let Some(pid_file) = &self.pid_file {
            pid_file.restore();
        }
        error!("upgrade: {reason}; serving on as before");
    }
}
