//! The thread that starts the new process and talks to it, for the old one.
//!
//! It runs from the start, for it must not have the control thread's niceness, which a process started by it would inherit as a
//! whole. It owns the child: it kills one that does not get ready, and waits for one that has ended. The old process may leave once
//! the new one has been ordered to go on, and is notified at once when that one is gone.

use super::Program;
use super::channel::Channel;
use super::takeover::Message;
use super::{FAILURES_NAME, LAUNCHER_NAME, VARIABLE, handover::SuccessorReport};
use super::{PROBATION, ProbationResult, prove};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::gettid;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use stillgate_proxy::handover::Parcel;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::{info, warn};

/// Time for a process that sends no more to end by itself.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// How much longer a process may take that has released its memory: each of its threads needs a core for its end.
const LET_GO_TIMEOUT: Duration = Duration::from_secs(60);
const END_POLL: Duration = Duration::from_millis(10);
/// Time for a process that accepts connections to do the rest, for which its control thread, which is nice, needs a core.
pub(crate) const GO_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for a process that serves to confirm that it has everything.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time until it is known, once all is sent, whether it has arrived.
pub(super) const VERDICT_TIMEOUT: Duration =
    ANSWER_TIMEOUT.saturating_add(END_TIMEOUT).saturating_add(LET_GO_TIMEOUT).saturating_add(Duration::from_secs(1));
/// Interval of checks whether the new process is still there, while nothing is sent.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Maximum number of waiting news for the control thread.
const NEWS_MAX: usize = 8;

/// The messages that the new process is sent, each with its descriptors.
pub(crate) type Offer = Vec<(Message, Vec<OwnedFd>)>;

/// Orders to the thread.
pub(crate) enum Order {
    /// Start the new process and make it this offer.
    Launch(Offer),
    /// The new process is to go on, and gets these parcels.
    Go(mpsc::Receiver<Parcel>),
    /// The new process is not to go on after all.
    Abandon,
}

/// The progress of an upgrade.
#[derive(Debug)]
pub(crate) enum Progress {
    /// The new process runs.
    Started(u32),
    /// It serves.
    Ready(SuccessorReport),
    /// It has been notified that it serves alone from here on.
    Going,
    /// The new process could not be started, or has failed.
    Failed(String),
    /// Everything that was given away has been sent.
    HandedOver,
    /// It took over, and has ended in order; nothing that was given to it is lost.
    Ended(String),
    /// It took over, and is gone with everything it had.
    Lost(String),
}

/// The thread's other end.
pub(crate) struct Launcher {
    orders: SyncSender<Order>,
    progress: mpsc::Receiver<Progress>,
    starting: Arc<StartingProcess>,
    /// Number of failed upgrades.
    failures: u64,
    /// Since the last order, the end of the thread has been reported.
    is_loss_told: bool,
}

/// The launcher's thread, and a process that has been started and does not serve yet, as both threads see them.
#[derive(Debug, Default)]
struct StartingProcess {
    /// The launcher's thread.
    thread: AtomicI32,
    /// Zero: no process runs.
    pid: AtomicI32,
    is_unwanted: AtomicBool,
}

impl StartingProcess {
    /// The child runs. The second of two callers sees what the first has written.
    fn began(&self, child: &Child) {
        self.pid.store(i32::try_from(child.id()).unwrap_or_default(), Ordering::SeqCst);
        if self.is_unwanted() {
            self.kill();
        }
    }

    /// It serves, or is about to be waited for: its number may soon belong to another process.
    fn clear_pid(&self) {
        self.pid.store(0, Ordering::SeqCst);
    }

    fn is_unwanted(&self) -> bool {
        self.is_unwanted.load(Ordering::SeqCst)
    }

    fn kill(&self) {
        if let Some(pid) = Pid::from_raw(self.pid.load(Ordering::SeqCst)) {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

impl Launcher {
    /// Starts the thread, which does nothing yet.
    pub(crate) fn start(program: Program) -> io::Result<Launcher> {
        let (orders, ordered) = sync_channel(1);
        let (news, progress) = mpsc::channel(NEWS_MAX);
        let starting = Arc::<StartingProcess>::default();
        let seen = starting.clone();
        // The runtime is made now, for later there may be no descriptors for it.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let serve = move || serve(&program, &runtime, &ordered, &news, &seen);
        thread::Builder::new().name(LAUNCHER_NAME.to_owned()).spawn(serve)?;
        Ok(Launcher { orders, progress, starting, failures: 0, is_loss_told: false })
    }

    /// Sends the thread an order; the caller waits at most one step of its work.
    pub(crate) fn order(&mut self, order: Order) {
        // The thread ends with us, or by a panic that its own line in the log describes. The sender of an order waits for an
        // answer.
        if self.orders.send(order).is_err() {
            self.is_loss_told = false;
        }
    }

    /// This process is to end, and with it the one that it starts: that one is killed before it serves, and ordered to end after
    /// that. [`Progress::Failed`] follows.
    pub(crate) fn end_child(&self) {
        self.starting.is_unwanted.store(true, Ordering::SeqCst);
        self.starting.kill();
    }

    /// Waits for the next progress.
    pub(crate) async fn progress(&mut self) -> Progress {
        match self.progress.recv().await {
            Some(progress) => {
                if matches!(progress, Progress::Failed(_)) {
                    self.tell_failure();
                }
                progress
            }
            None if self.is_loss_told => std::future::pending().await,
            None => {
                self.is_loss_told = true;
                Progress::Failed("the upgrade's thread has ended, which is a bug".to_owned())
            }
        }
    }

    /// Shows the failure to `stillgate upgrade`, which has no other way to see it. The thread that takes signals does so: the next
    /// signal finds it done with this upgrade.
    fn tell_failure(&mut self) {
        self.failures += 1;
        let comm = format!("/proc/self/task/{}/comm", self.starting.thread.load(Ordering::SeqCst));
        // The system keeps 15 bytes of the name, which is enough for any possible number. Only that command needs it.
        let _ = fs::write(comm, format!("{FAILURES_NAME}{}", self.failures));
    }
}

fn serve(
    program: &Program,
    runtime: &Runtime,
    orders: &Receiver<Order>,
    news: &mpsc::Sender<Progress>,
    starting: &StartingProcess,
) {
    // The control thread ends with the process: then nothing is left to receive the news.
    let tell = |progress| drop(news.blocking_send(progress));
    starting.thread.store(gettid().as_raw_nonzero().get(), Ordering::SeqCst);
    while let Ok(order) = orders.recv() {
        let Order::Launch(offer) = order else { continue };
        let ready = launch(program, offer, starting, &tell).and_then(|(child, channel, heard)| {
            let (mut child, channel) = on_probation(child, channel, starting)?;
            tell(Progress::Ready(heard));
            match orders.recv() {
                Ok(Order::Go(parcels)) => go(&mut child, &channel).map(|()| (child, channel, parcels)),
                _ => Err(dismiss(child, channel)),
            }
        });
        match ready {
            Ok((mut child, channel, parcels)) => {
                tell(Progress::Going);
                // This comes last: what is still in the channel goes with it.
                tell(runtime.block_on(hand_over(&mut child, channel, parcels)));
            }
            Err(reason) => tell(Progress::Failed(reason)),
        }
    }
}

/// Lets the new process serve alongside this one for a while. An error: it is gone, and nothing has changed here.
fn on_probation(child: Child, channel: Channel, starting: &StartingProcess) -> Result<(Child, Channel), String> {
    info!("upgrade: both processes accept connections for {} s", PROBATION.as_secs());
    match prove(&channel, || starting.is_unwanted()) {
        ProbationResult::Proven => Ok((child, channel)),
        ProbationResult::Unwanted => Err(dismiss(child, channel)),
        ProbationResult::Gone => {
            // It is dropped before the wait: a process that sends out of turn sees that nothing listens.
            drop(channel);
            Err(format!(
                "the new process had started to serve, but ended ({}); its own log lines say why",
                exit_status(child)
            ))
        }
    }
}

/// Orders the new process to serve alone. An error: it is gone, and this one has changed nothing that cannot be undone.
fn go(child: &mut Child, channel: &Channel) -> Result<(), String> {
    let answer = Message::Go {}.send_with(channel, &[]).and_then(|()| Message::receive(channel, Some(GO_TIMEOUT)));
    let answer = match answer {
        Ok(Some((Message::Going {}, _))) => return Ok(()),
        Ok(Some((other, _))) => format!("it says {other:?}"),
        Ok(None) => "it says no more".to_owned(),
        Err(error) => error.to_string(),
    };
    let status = wait_for_exit(child).map_or(answer, |status| status.to_string());
    end(child);
    Err(format!("the new process was ready, but ended ({status}); its own log lines say why"))
}

/// Ends a process that serves already, and finishes what it has.
fn dismiss(mut child: Child, channel: Channel) -> String {
    // It waits for an order, and sees by this that none comes.
    drop(channel);
    // It may have ended by itself.
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::TERM);
    }
    let status = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
    format!("the new process was no longer needed and has ended ({status})")
}

/// Starts the process and waits until it serves.
fn launch(
    program: &Program,
    offer: Offer,
    starting: &StartingProcess,
    tell: &impl Fn(Progress),
) -> Result<(Child, Channel, SuccessorReport), String> {
    let deadline = Instant::now() + program.ready_timeout;
    let (channel, theirs) = Channel::pair().map_err(|error| format!("no socket for the new process: {error}"))?;
    let mut command = Command::new(&program.path);
    command.arg0(&program.name).args(&program.arguments).stdin(theirs);
    command.env(VARIABLE, std::process::id().to_string());
    let spawned = command.spawn().map_err(|error| format!("cannot start {}: {error}", program.path.display()));
    // Ours of its end is closed: so its death is seen.
    drop(command);
    let child = spawned?;
    starting.began(&child);
    tell(Progress::Started(child.id()));
    let result = channel
        .set_send_timeout(Some(program.ready_timeout))
        .and_then(|()| make_offer(&channel, offer))
        .and_then(|()| hear(&channel, deadline));
    starting.clear_pid();
    match result {
        Ok(Some(heard)) => Ok((child, channel, heard)),
        Ok(None) => Err(format!(
            "the new process ended before it was ready ({}); its own log lines say why",
            exit_status(child)
        )),
        Err(error) => {
            let status = exit_status(child);
            Err(match error.kind() {
                io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                    format!("the new process was not ready within {} s, and was ended", program.ready_timeout.as_secs())
                }
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                    format!("the new process ended before it was ready ({status}); its own log lines say why")
                }
                _ => format!("the new process broke the protocol ({error}) and was ended"),
            })
        }
    }
}

fn make_offer(channel: &Channel, offer: Offer) -> io::Result<()> {
    offer.into_iter().try_for_each(|(message, descriptors)| {
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        message.send_with(channel, &descriptors)
    })
}

/// Waits for its answer; `None`: it has ended.
fn hear(channel: &Channel, deadline: Instant) -> io::Result<Option<SuccessorReport>> {
    let mut heard = SuccessorReport::default();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match Message::receive(channel, Some(left))? {
            None => return Ok(None),
            Some((Message::Has { routes }, _)) => heard.routes.extend(routes),
            Some((Message::Ready { listening, alike, broadcasts }, _)) => {
                heard.broadcasts = broadcasts;
                heard.listening = listening.into_iter().collect();
                heard.alike = alike.into_iter().collect();
                return Ok(Some(heard));
            }
            Some((other, _)) => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("unexpected: {other:?}")));
            }
        }
    }
}

/// Sends parcels until no more come, or the receiver is gone; those still in `parcels` by then stay here.
async fn hand_over(child: &mut Child, channel: Channel, mut parcels: mpsc::Receiver<Parcel>) -> Progress {
    let (mut count, mut lost) = (0u64, 0u64);
    let sent = async {
        channel.set_send_timeout(None)?;
        loop {
            let parcel = match timeout(LOOK_EVERY, parcels.recv()).await {
                Ok(Some(parcel)) => parcel,
                // It sends no more: what is left to receive is its end.
                _ if channel.has_something(Duration::ZERO) => return Err(io::ErrorKind::BrokenPipe.into()),
                Ok(None) => return conclude(&channel),
                Err(_) => continue,
            };
            let sent = send(&channel, &parcel);
            let connections = u64::from(parcel.is_connection());
            *if matches!(sent, Ok(true)) { &mut count } else { &mut lost } += connections;
            sent?;
        }
    };
    let sent: io::Result<()> = sent.await;
    // From here on the workers keep what they have. What they have given up already belongs to no process.
    parcels.close();
    while let Some(parcel) = parcels.recv().await {
        lost += u64::from(parcel.is_connection());
    }
    let Err(error) = sent else {
        info!(connections = count, "upgrade: handed over");
        return Progress::HandedOver;
    };
    match wait_for_exit(child) {
        Some(status) if status.success() && lost == 0 => Progress::Ended(status.to_string()),
        Some(status) => Progress::Lost(status.to_string()),
        None => {
            warn!(connections = count, %error, "upgrade: the new process accepts no more, or does not confirm what it has; \
                the rest stays here");
            Progress::HandedOver
        }
    }
}

/// Waits for the confirmation that everything sent has arrived: a process that is about to end may still receive.
fn conclude(channel: &Channel) -> io::Result<()> {
    channel.finish()?;
    match Message::receive(channel, Some(ANSWER_TIMEOUT))? {
        Some((Message::Taken {}, _)) => Ok(()),
        Some((other, _)) => Err(io::Error::new(io::ErrorKind::InvalidData, format!("unexpected: {other:?}"))),
        None => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

/// False: the connection is lost. An error: the receiver accepts none.
fn send(channel: &Channel, parcel: &Parcel) -> io::Result<bool> {
    let sockets: Vec<BorrowedFd<'_>> = parcel.sockets.iter().map(AsFd::as_fd).collect();
    match channel.send(&parcel.encode(), &sockets) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => Err(error),
        Err(error) => {
            let reason = match Errno::from_io_error(&error) {
                Some(Errno::MSGSIZE) => "it is too long for the socket's buffer, see net.core.wmem_max".to_owned(),
                _ => error.to_string(),
            };
            warn!(%reason, "upgrade: a connection cannot be sent, and is lost");
            Ok(false)
        }
    }
}

/// Waits a moment for its end, and longer for one that is about to be gone; says how it ended.
fn wait_for_exit(child: &mut Child) -> Option<ExitStatus> {
    let deadline = Instant::now() + END_TIMEOUT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => sleep(END_POLL),
            Ok(None) if Instant::now() < deadline + LET_GO_TIMEOUT && has_let_go(child.id()) => sleep(END_POLL),
            _ => return None,
        }
    }
}

/// Whether a process has released its memory, after which it closes its files. The system may take long for the rest.
fn has_let_go(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.is_empty())
}

/// The exit status of the child, which is killed if it has not ended.
fn exit_status(mut child: Child) -> String {
    let Some(status) = wait_for_exit(&mut child) else {
        end(&mut child);
        return "killed".to_owned();
    };
    status.to_string()
}

fn end(child: &mut Child) {
    // Neither fails for a child that nothing else waits for.
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests;
