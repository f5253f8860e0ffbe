//! The thread that starts the new process and talks to it, for the old one.
//!
//! It is there from the start, for it must not have the control thread's niceness, which a process started by it would inherit
//! as a whole. It owns the child: it kills one that does not get ready, and waits for one that has ended.

use super::channel::Channel;
use super::messages::Message;
use super::{FAILURES_NAME, VARIABLE, testator::Heard};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use stillgate_proxy::handover::Parcel;
use tokio::sync::mpsc;
use tracing::{info, warn};

/// How long the new process has until it serves.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// How long one that says no more has to end by itself.
const END_TIMEOUT: Duration = Duration::from_secs(2);
const END_POLL: Duration = Duration::from_millis(10);
/// News for the control thread that may wait.
const NEWS_MAX: usize = 8;

/// What is told to the new process, with the descriptors beside it.
pub(crate) type Offer = Vec<(Message, Vec<OwnedFd>)>;

/// What the thread is to do.
pub(crate) enum Order {
    /// Start the new process and make it this offer.
    Launch(Offer),
    /// It is to go, and gets these.
    Go(mpsc::Receiver<Parcel>),
    /// It is not to go after all.
    Abandon,
}

/// What has come of it.
#[derive(Debug)]
pub(crate) enum Progress {
    /// The new process runs.
    Started(u32),
    /// It serves.
    Ready(Heard),
    /// There is no new process.
    Failed(String),
    /// Everything that was given away has been sent.
    HandedOver,
    /// It took over, and is gone.
    Lost(String),
}

/// What is started.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    /// The path of our own binary: what is there now.
    pub(crate) path: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) ready_timeout: Duration,
}

/// The thread's other end.
pub(crate) struct Launcher {
    orders: SyncSender<Order>,
    progress: mpsc::Receiver<Progress>,
    starting: Arc<Starting>,
}

/// A process that has been started and does not serve yet, as both threads see it.
#[derive(Debug, Default)]
struct Starting {
    /// Zero: there is none.
    pid: AtomicI32,
    is_unwanted: AtomicBool,
}

impl Starting {
    /// It runs. Whoever comes second sees what the other has written.
    fn began(&self, child: &Child) {
        self.pid.store(i32::try_from(child.id()).unwrap_or_default(), Ordering::SeqCst);
        if self.is_unwanted.load(Ordering::SeqCst) {
            self.kill();
        }
    }

    /// It serves, or is about to be waited for: its number may soon be another's.
    fn ended(&self) {
        self.pid.store(0, Ordering::SeqCst);
    }

    fn kill(&self) {
        if let Some(pid) = Pid::from_raw(self.pid.load(Ordering::SeqCst)) {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

impl Program {
    /// This process's own; to be asked for at its start, since the file may be replaced later.
    pub(crate) fn own() -> io::Result<Program> {
        let arguments = std::env::args_os().skip(1).collect();
        Ok(Program { path: std::env::current_exe()?, arguments, ready_timeout: READY_TIMEOUT })
    }
}

impl Launcher {
    /// Starts the thread, which does nothing yet.
    pub(crate) fn start(program: Program) -> io::Result<Launcher> {
        let (orders, ordered) = sync_channel(1);
        let (news, progress) = mpsc::channel(NEWS_MAX);
        let starting = Arc::<Starting>::default();
        let seen = starting.clone();
        thread::Builder::new().name("upgrade".to_owned()).spawn(move || serve(&program, &ordered, &news, &seen))?;
        Ok(Launcher { orders, progress, starting })
    }

    /// Has the thread do something, for which it waits at most one step of its work.
    pub(crate) fn order(&self, order: Order) {
        // The thread ends with us, or by a panic that its own line in the log describes.
        if self.orders.send(order).is_err() {
            warn!("upgrade: its thread has ended, which is a bug");
        }
    }

    /// This process is to end, and the one that it starts with it; [`Progress::Failed`] follows.
    pub(crate) fn end_child(&self) {
        self.starting.is_unwanted.store(true, Ordering::SeqCst);
        self.starting.kill();
    }

    /// What comes next.
    pub(crate) async fn progress(&mut self) -> Progress {
        match self.progress.recv().await {
            Some(progress) => progress,
            None => std::future::pending().await,
        }
    }
}

fn serve(program: &Program, orders: &Receiver<Order>, news: &mpsc::Sender<Progress>, starting: &Starting) {
    // The control thread ends with the process: nobody is left to hear what cannot be told.
    let tell = |progress| drop(news.blocking_send(progress));
    let mut failures = 0u64;
    while let Ok(order) = orders.recv() {
        let Order::Launch(offer) = order else { continue };
        let (mut child, channel, heard) = match launch(program, offer, starting, &tell) {
            Ok(ready) => ready,
            Err(reason) => {
                tell(Progress::Failed(reason));
                failures += 1;
                tell_failures(failures);
                continue;
            }
        };
        tell(Progress::Ready(heard));
        match orders.recv() {
            Ok(Order::Go(parcels)) => {
                match hand_over(&channel, parcels).and_then(|count| is_alive(&mut child).map(|()| count)) {
                    Ok(count) => {
                        info!(connections = count, "upgrade: handed over");
                        tell(Progress::HandedOver);
                    }
                    Err(error) => {
                        let _ = child.wait();
                        tell(Progress::Lost(error.to_string()));
                    }
                }
            }
            _ => {
                end(&mut child);
                tell(Progress::Failed("the new process is not wanted any more".to_owned()));
            }
        }
    }
}

/// So that `stillgate upgrade` sees it, which has no other way to ask.
fn tell_failures(count: u64) {
    // The system takes 15 bytes, which is enough for as many as there can be.
    let name = CString::new(format!("{FAILURES_NAME}{count}")).unwrap_or_default();
    // Nobody but that command misses it.
    let _ = rustix::thread::set_name(&name);
}

/// Starts the process and waits until it serves.
fn launch(
    program: &Program,
    offer: Offer,
    starting: &Starting,
    tell: &impl Fn(Progress),
) -> Result<(Child, Channel, Heard), String> {
    let deadline = Instant::now() + program.ready_timeout;
    let (channel, theirs) = Channel::pair().map_err(|error| format!("no socket for the new process: {error}"))?;
    let mut command = Command::new(&program.path);
    command.args(&program.arguments).env(VARIABLE, "1").stdin(theirs);
    let spawned = command.spawn().map_err(|error| format!("cannot start {}: {error}", program.path.display()));
    // Ours of its end is closed: so its death is seen.
    drop(command);
    let child = spawned?;
    starting.began(&child);
    tell(Progress::Started(child.id()));
    let result = channel
        .set_patience(Some(program.ready_timeout))
        .and_then(|()| make_offer(&channel, offer))
        .and_then(|()| hear(&channel, deadline));
    starting.ended();
    match result {
        Ok(Some(heard)) => Ok((child, channel, heard)),
        Ok(None) => Err(format!("the new process ended before it was ready ({}); its own lines say why", ended(child))),
        Err(error) => {
            let status = ended(child);
            Err(match error.kind() {
                io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                    format!("the new process was not ready within {} s, and was ended", program.ready_timeout.as_secs())
                }
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                    format!("the new process ended before it was ready ({status}); its own lines say why")
                }
                _ => format!("the new process does not speak as it should ({error}), and was ended"),
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
fn hear(channel: &Channel, deadline: Instant) -> io::Result<Option<Heard>> {
    let mut heard = Heard::default();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match Message::receive(channel, Some(left))? {
            None => return Ok(None),
            Some((Message::Has { routes }, _)) => heard.routes.extend(routes),
            Some((Message::Ready { listening, alike }, _)) => {
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

/// Sends what comes until nothing more does.
fn hand_over(channel: &Channel, mut parcels: mpsc::Receiver<Parcel>) -> io::Result<u64> {
    channel.set_patience(None)?;
    Message::Go {}.send_with(channel, &[])?;
    let mut count = 0;
    while let Some(parcel) = parcels.blocking_recv() {
        let sockets: Vec<BorrowedFd<'_>> = parcel.sockets.iter().map(AsFd::as_fd).collect();
        channel.send(&parcel.encode(), &sockets)?;
        count += 1;
    }
    Ok(count)
}

fn is_alive(child: &mut Child) -> io::Result<()> {
    match child.try_wait()? {
        None => Ok(()),
        Some(status) => Err(io::Error::other(status.to_string())),
    }
}

/// Waits a moment for its end and else brings it about; says how it ended.
fn ended(mut child: Child) -> String {
    let deadline = Instant::now() + END_TIMEOUT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.to_string(),
            Ok(None) if Instant::now() < deadline => sleep(END_POLL),
            _ => break,
        }
    }
    end(&mut child);
    "killed".to_owned()
}

fn end(child: &mut Child) {
    // Neither fails for a child that nobody else waits for.
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of starting a shell script.
    fn check(script: &str, expected: &str) {
        let arguments = vec!["-c".into(), script.into()];
        let program = Program { path: "/bin/sh".into(), arguments, ready_timeout: Duration::from_millis(300) };
        let hello = |_| (Message::Hello { version: 1, pid: 1, digest: "x".repeat(1000) }, Vec::new());
        let offer = (0..1000).map(hello).collect();
        let found = launch(&program, offer, &Starting::default(), &|_| {}).expect_err("it is no gateway");
        assert!(found.contains(expected), "{script}: {found}");
    }

    #[test]
    fn a_program_that_is_no_gateway_is_found_out() {
        check("exit 3", "exit status: 3");
        check("kill -9 $$", "signal: 9");
        // It does not even read: the offer fills the socket.
        check("exec sleep 30", "not ready within");
        check("exec cat >/dev/null", "not ready within");
        check("exec <&-; exec sleep 30", "killed");
        let missing = Program { path: "/nowhere/stillgate".into(), arguments: vec![], ready_timeout: READY_TIMEOUT };
        assert!(
            launch(&missing, Vec::new(), &Starting::default(), &|_| {})
                .expect_err("no file")
                .contains("/nowhere/stillgate")
        );
    }
}
