//! Commands to the workers: those with messages are refused where a worker's queue is full, the others wait.

use std::collections::VecDeque;
use stillgate_proxy::device_link::{DeviceCommand, worker_of};
use tokio::sync::mpsc::Sender;

/// The queues of all workers.
#[derive(Debug)]
pub(super) struct Commands {
    workers: Vec<WorkerCommands>,
}

#[derive(Debug)]
struct WorkerCommands {
    sender: Sender<DeviceCommand>,
    /// Commands about connections that open and close: no more than one for each of those.
    waiting: VecDeque<DeviceCommand>,
}

/// The queue for a worker is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Busy;

impl Commands {
    pub(super) fn new(senders: Vec<Sender<DeviceCommand>>) -> Commands {
        let worker = |sender| WorkerCommands { sender, waiting: VecDeque::new() };
        Commands { workers: senders.into_iter().map(worker).collect() }
    }

    /// The number of workers.
    pub(super) fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Sends a command to the worker of a connection, now or not at all.
    pub(super) fn try_send(&mut self, connection: u64, command: DeviceCommand) -> Result<(), Busy> {
        self.try_send_to(worker_of(connection), command)
    }

    /// Sends a command to a worker, now or not at all.
    pub(super) fn try_send_to(&mut self, worker: usize, command: DeviceCommand) -> Result<(), Busy> {
        let worker = self.workers.get_mut(worker).ok_or(Busy)?;
        if !worker.waiting.is_empty() {
            return Err(Busy);
        }
        worker.sender.try_send(command).map_err(|_| Busy)
    }

    /// Sends a command to the worker of a connection, as soon as there is room.
    pub(super) fn send(&mut self, connection: u64, command: DeviceCommand) {
        if let Some(worker) = self.workers.get_mut(worker_of(connection)) {
            worker.waiting.push_back(command);
            worker.flush();
        }
    }

    /// Sends waiting commands.
    pub(super) fn flush(&mut self) {
        self.workers.iter_mut().for_each(WorkerCommands::flush);
    }
}

impl WorkerCommands {
    fn flush(&mut self) {
        while !self.waiting.is_empty() {
            let Ok(room) = self.sender.try_reserve() else { return };
            if let Some(command) = self.waiting.pop_front() {
                room.send(command);
            }
        }
    }
}
