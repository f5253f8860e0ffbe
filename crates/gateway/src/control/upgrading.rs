//! What the control loop does about an upgrade: asks for it, and leaves when the successor serves.

use super::{Control, Workers};
use crate::upgrade::{self, OLD_NAME, Progress, Step};
use std::time::Duration;
use tracing::{error, info, warn};

impl Control {
    /// Starts a successor, if there can be one now.
    pub(super) fn upgrade(&mut self) {
        let Workers::Serving(fleet) = &self.workers else {
            return warn!("SIGUSR2: this process is ending already");
        };
        if self.watch.is_none() {
            return warn!("SIGUSR2: without a configuration file there is nothing to upgrade");
        }
        if std::process::id() == 1 {
            return error!(
                "SIGUSR2: process 1 cannot be upgraded so, as its container ends with it; replace the container"
            );
        }
        if !self.testator.is_alone() {
            return warn!("SIGUSR2: an upgrade is under way already");
        }
        let plan = self.reloader.served().plan;
        let started = self.reloader.started().clone();
        match self.testator.launch(&started, fleet, &plan, self.reloader.metering().as_deref()) {
            Ok(()) => info!("SIGUSR2: starting the process that takes over"),
            Err(error) => self.serve_on(&error.to_string()),
        }
    }

    pub(super) fn upgrade_step(&mut self, step: Step) {
        match step {
            Step::Progress(Progress::Started(pid)) => {
                info!(pid, "upgrade: the new process runs");
                self.testator.started(pid);
            }
            Step::Progress(Progress::Failed(reason)) if matches!(self.workers, Workers::Serving(_)) => {
                self.serve_on(&reason);
            }
            Step::Progress(Progress::Failed(reason)) => info!("upgrade: {reason}"),
            Step::Progress(Progress::Ready(_)) if !self.testator.is_launching() => {}
            Step::Progress(Progress::Ready(heard)) => {
                let metering = self.reloader.metering();
                let unexposed = metering.map(|metering| metering.stop_serving());
                let unexposed = tokio::spawn(async move {
                    if let Some(unexposed) = unexposed {
                        unexposed.await;
                    }
                });
                self.testator.leave(heard, unexposed);
            }
            Step::Progress(Progress::Lost(reason)) => {
                let reason = upgrade::lost(&reason);
                error!("{reason}");
                self.failure = Some(reason);
            }
            Step::Progress(Progress::HandedOver) => {}
            Step::Unexposed => self.leave(),
        }
    }

    /// The successor does everything that is new from here on.
    fn leave(&mut self) {
        let Workers::Serving(fleet) = &mut self.workers else { return };
        let Some((successor, pid)) = self.testator.go() else { return };
        let deadline = self.reloader.gateway().timeouts.upgrade;
        fleet.hand_over(successor, deadline);
        self.await_workers(true);
        self.certificates.stop();
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

    /// All workers have ended: what they gave away may be on its way still.
    pub(super) async fn finish_handing_over(&mut self) -> Result<(), String> {
        if let Workers::Ending { commander, .. } = &self.workers {
            // With it goes the last of the ways to the successor.
            commander.drain(Duration::ZERO);
        }
        self.testator.finish().await
    }

    fn serve_on(&mut self, reason: &str) {
        self.testator.failed();
        if let Some(metering) = self.reloader.metering() {
            metering.keep();
        }
        error!("upgrade: {reason}; serving on as before");
    }
}
