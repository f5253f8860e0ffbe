//! A child process of a test: its output is kept, its resources are read from `/proc`, its end is guaranteed.

use crate::peers::{require_tool, run_tool};
use crate::port::ReservedPort;
use crate::{PATIENCE, eventually, eventually_within, holds_within};
use serde_json::json;
use signal_hook::consts::{SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::flag;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stillgate_rig::proc::{self, Stat, Status, Thread};
use stillgate_rig::{Child, Signal};
use tempfile::TempDir;

/// How long a process may take to end, if that time is not what the test is about. Each of its threads must get a core
/// for that, even one with the idle policy, as exporters have: next to others that compute all the time that has taken
/// minutes, even after a kill.
pub const END_PATIENCE: Duration = Duration::from_secs(300);

/// How much of the log a failed test shows.
const LOG_SHOWN_BYTES: usize = 8 * 1024;

/// Number of searches for processes to end: one that was found may have started another just before.
const SWEEPS: usize = 3;

/// The gateway's log line when it has served everything: afterwards only threads that wait for a core, and the kernel,
/// delay its end.
const ENDED: &str = "\"message\":\"ended\"";

/// A running child, killed when dropped. When the test panics, its log is printed.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    is_killed: AtomicBool,
}

impl Process {
    /// Starts `command` with both outputs appended to `log`. It does not inherit ignored signals.
    ///
    /// # Panics
    /// If it cannot be started.
    #[track_caller]
    pub fn spawn(name: &str, command: &mut Command, log: &Path) -> Self {
        reset_in_children();
        let child = Child::spawn(command, Stdio::null(), log).unwrap_or_else(|error| panic!("start {name}: {error}"));
        Self { name: name.to_owned(), child, is_killed: AtomicBool::new(false) }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Everything it has printed so far.
    pub fn log(&self) -> String {
        self.child.log()
    }

    /// Sends a signal by name (`TERM`, `HUP`, `KILL`, …).
    pub fn signal(&self, name: &str) {
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.pid())]).status().expect("run sh");
        assert!(status.success(), "kill -{name} {} failed", self.pid());
        self.is_killed.fetch_or(name == "KILL", Ordering::Relaxed);
        if name == "STOP" {
            // A thread that runs on another CPU stops a moment later.
            let is_stopped = || Stat::read(self.pid()).is_ok_and(|stat| stat.state() == Some('T'));
            crate::eventually("the process to be stopped", is_stopped);
        }
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.exit().expect("wait for an own child")
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it runs for more than [`PATIENCE`], or [`END_PATIENCE`] if it was killed or has logged its end.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        holds_within(PATIENCE, || self.ended().is_some());
        let is_over = self.is_killed.load(Ordering::Relaxed) || self.log().contains(ENDED);
        assert!(is_over || self.ended().is_some(), "{} did not end within {PATIENCE:?}", self.name);
        self.wait_within(END_PATIENCE)
    }

    /// [`Process::wait`] with its own deadline.
    ///
    /// # Panics
    /// If it runs longer.
    #[track_caller]
    pub fn wait_within(&mut self, limit: Duration) -> ExitStatus {
        let mut status = None;
        eventually_within(limit, &format!("the end of {}", self.name), || {
            status = self.child.exit().expect("wait for an own child");
            status.is_some()
        });
        status.expect("the loop above ends with a status")
    }

    /// Resident memory in bytes.
    pub fn rss(&self) -> usize {
        self.memory("VmRSS")
    }

    /// Anonymous resident memory, which the kernel cannot take back.
    pub fn rss_anonymous(&self) -> usize {
        self.memory("RssAnon")
    }

    /// Peak resident memory since the start.
    pub fn rss_peak(&self) -> usize {
        self.memory("VmHWM")
    }

    fn memory(&self, key: &str) -> usize {
        let status = Status::read(self.pid()).unwrap_or_else(|error| self.gone(&error));
        let kib = status.number(key).expect("a live process has it");
        usize::try_from(kib).expect("memory fits into addresses") * 1024
    }

    /// CPU time used so far, user and system.
    pub fn cpu(&self) -> Duration {
        let stat = Stat::read(self.pid()).unwrap_or_else(|error| self.gone(&error));
        Duration::from_secs_f64(stat.cpu_us().expect("a process has used some time or none") / 1e6)
    }

    /// How often its threads with this name have gone to sleep so far.
    pub fn sleeps(&self, name: &str) -> u64 {
        let named = |thread: &&Thread| thread.name().as_deref() == Some(name);
        // A thread may end meanwhile.
        self.each_thread().iter().filter(named).filter_map(Thread::sleeps).sum()
    }

    /// The number of its threads whose names begin with `prefix`.
    pub fn threads(&self, prefix: &str) -> usize {
        // A thread may end meanwhile.
        self.each_thread().iter().filter_map(Thread::name).filter(|name| name.starts_with(prefix)).count()
    }

    /// Whether all its threads are waiting: none has work left, such as opening files after its start.
    pub fn is_at_rest(&self) -> bool {
        self.each_thread().iter().all(|thread| matches!(thread.state(), None | Some('S')))
    }

    /// Open file descriptors.
    pub fn fd_count(&self) -> usize {
        proc::descriptors(self.pid()).expect("a live process has a fd table")
    }

    fn each_thread(&self) -> Vec<Thread> {
        proc::threads(self.pid()).expect("a live process has threads")
    }

    fn gone(&self, error: &std::io::Error) -> ! {
        panic!("{} is gone ({error}); log:\n{}", self.name, self.log())
    }
}

/// Whether a process runs with the configuration in this folder.
pub fn is_gateway(pid: u32, dir: &Path) -> bool {
    proc::command_line(pid).contains(&*dir.to_string_lossy())
}

/// Kills a gateway, if it still runs, and all its successors by upgrades: they are not our children, so nothing else
/// ends them.
pub(crate) fn kill_all(gateway: Option<u32>, dir: &Path) {
    for _ in 0..SWEEPS {
        let others = proc::all().into_iter().filter(|pid| is_gateway(*pid, dir));
        for pid in gateway.map(proc::children).into_iter().flatten().chain(others) {
            // One may have ended by itself.
            let _ = stillgate_rig::send(pid, Signal::KILL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.child.exit().ok().flatten().is_none() {
            // It may end by itself in between, which is fine.
            let _ = self.child.signal(Signal::KILL);
            holds_within(END_PATIENCE, || self.child.exit().ok().flatten().is_some());
        }
        if std::thread::panicking() {
            let log = self.log();
            let from = log.len().saturating_sub(LOG_SHOWN_BYTES);
            let shown = log.get(from..).unwrap_or(&log);
            eprintln!("--- log of {} ---\n{shown}\n--- end ---", self.name);
        }
    }
}

// Signal dispositions of a test's children: the defaults, regardless of the environment of the test itself.
//
// `nohup`, and a shell that starts a background job, ignore SIGHUP, SIGINT or SIGQUIT, and children inherit that. Some
// programs respect it, so a test would signal them in vain. A signal with a handler is reset when a program is
// started: so an ignored signal gets a handler that does nothing, which is equivalent for this process.

const SIGNALS: [i32; 8] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGCHLD];

/// From here on children are started without ignoring any of [`SIGNALS`].
pub(crate) fn reset_in_children() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        let status = Status::read("self").expect("/proc is there");
        for signal in SIGNALS.into_iter().filter(|signal| status.ignores(*signal)) {
            flag::register(signal, std::sync::Arc::default()).expect("it may be handled");
        }
    });
}

// Let's Encrypt's test server `pebble`, with a DNS server that resolves every name to this machine.

/// The Debian package of both programs.
const PACKAGE: &str = "pebble";

/// The setup of pebble.
#[derive(Debug, Clone, Default)]
pub struct PebbleSetup {
    /// PEM files of its own certificate, for 127.0.0.1, and of its key.
    pub certificate: PathBuf,
    /// The key of `certificate`.
    pub key: PathBuf,
    /// Port for http-01.
    pub http_port: u16,
    /// Port for tls-alpn-01.
    pub tls_port: u16,
    /// Validity of its certificates; five years if absent.
    pub validity_seconds: Option<u64>,
    /// Accounts require this key of that name (RFC 8555 section 7.3.4).
    pub external_account: Option<(String, String)>,
    /// Further environment variables: kinds of failures, and how often.
    pub environment: Vec<(&'static str, &'static str)>,
}

/// A running pebble. Its accounts and orders are lost when it ends.
#[derive(Debug)]
pub struct Pebble {
    process: Process,
    _dns: Process,
    setup: PebbleSetup,
    ports: [ReservedPort; 4],
    dir: TempDir,
}

impl Pebble {
    /// Starts it and waits until it answers.
    ///
    /// # Panics
    /// If it is missing or does not listen.
    #[track_caller]
    pub fn start(setup: PebbleSetup) -> Self {
        require_tool("pebble", PACKAGE);
        require_tool("pebble-challtestsrv", PACKAGE);
        let dir = tempfile::tempdir().expect("a temporary folder");
        let ports: [ReservedPort; 4] = std::array::from_fn(|_| crate::port::ReservedPort::new());
        let mut command = Command::new("pebble-challtestsrv");
        let (dns, dns_management) = (ports[2].addr().to_string(), ports[3].addr().to_string());
        command.args(["-dns01", &dns, "-management", &dns_management, "-defaultIPv4", "127.0.0.1"]);
        command.args(["-defaultIPv6", "", "-http01", "", "-https01", "", "-tlsalpn01", ""]);
        let mut dns = Process::spawn("pebble-challtestsrv", &mut command, &dir.path().join("dns.log"));
        let dns_addr = ports[2].addr();
        eventually("pebble-challtestsrv to listen", || {
            assert!(dns.ended().is_none(), "pebble-challtestsrv ended at its start");
            TcpStream::connect(dns_addr).is_ok()
        });
        let process = spawn(&setup, &ports, &dir);
        let mut pebble = Self { process, _dns: dns, setup, ports, dir };
        pebble.await_listening();
        pebble
    }

    /// Ends it; [`Pebble::start_again`] starts a new one at the same address.
    pub fn stop(&mut self) {
        self.process.signal("KILL");
        self.process.wait();
    }

    /// Starts it without its earlier state.
    ///
    /// # Panics
    /// If it does not listen.
    #[track_caller]
    pub fn start_again(&mut self) {
        self.process = spawn(&self.setup, &self.ports, &self.dir);
        self.await_listening();
    }

    /// The URL of its directory.
    pub fn directory(&self) -> String {
        format!("https://{}/dir", self.ports[0].addr())
    }

    /// The root of its certificates, as PEM; another one after each start.
    ///
    /// # Panics
    /// If it does not answer.
    #[track_caller]
    pub fn root(&self) -> String {
        let url = format!("https://{}/roots/0", self.ports[1].addr());
        let output = run_tool("curl", "curl", &["--silent", "--insecure", "--fail", &url]);
        let root = String::from_utf8(output.stdout).expect("PEM is text");
        assert!(root.starts_with("-----BEGIN CERTIFICATE-----"), "{root:?}");
        root
    }

    /// Its output.
    pub fn log(&self) -> String {
        self.process.log()
    }

    #[track_caller]
    fn await_listening(&mut self) {
        let addrs = [self.ports[0].addr(), self.ports[1].addr()];
        eventually("pebble to listen", || {
            assert!(self.process.ended().is_none(), "pebble ended at its start");
            addrs.iter().all(|addr| TcpStream::connect(addr).is_ok())
        });
    }
}

fn spawn(setup: &PebbleSetup, ports: &[ReservedPort; 4], dir: &TempDir) -> Process {
    let mut pebble = json!({
        "listenAddress": ports[0].addr().to_string(),
        "managementListenAddress": ports[1].addr().to_string(),
        "certificate": setup.certificate,
        "privateKey": setup.key,
        "httpPort": setup.http_port,
        "tlsPort": setup.tls_port,
        "externalAccountBindingRequired": setup.external_account.is_some(),
    });
    if let Some((name, key)) = &setup.external_account {
        pebble["externalAccountMACKeys"] = json!({name: key});
    }
    if let Some(seconds) = setup.validity_seconds {
        pebble["certificateValidityPeriod"] = json!(seconds);
    }
    let file = dir.path().join("pebble.json");
    std::fs::write(&file, json!({"pebble": pebble}).to_string()).expect("write pebble.json");
    let mut command = Command::new("pebble");
    command.arg("-config").arg(&file).args(["-dnsserver", &ports[2].addr().to_string()]);
    command.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_WFE_NONCEREJECT", "0").envs(setup.environment.iter().copied());
    Process::spawn("pebble", &mut command, &dir.path().join("pebble.log"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{END_PATIENCE, Process, eventually};
    use std::process::Command;
    use stillgate_rig::proc;

    /// In separate processes: the first ignores signals, the second is this test again, the third its child.
    #[test]
    fn children_ignore_nothing() {
        const AGAIN: &str = "STILLGATE_TEST_DISPOSITIONS";
        if std::env::var_os(AGAIN).is_none() {
            let mut shell = Command::new("sh");
            shell.args(["-c", r#"trap "" HUP INT QUIT CHLD; exec "$0" "$@""#]).arg(std::env::current_exe().unwrap());
            shell.args(["--exact", "process::tests::children_ignore_nothing"]).env(AGAIN, "1");
            let output = shell.output().unwrap();
            let passed = String::from_utf8_lossy(&output.stdout).contains("1 passed");
            assert!(output.status.success() && passed, "{output:?}");
            return;
        }
        let status = Status::read("self").unwrap();
        assert!(status.ignores(SIGHUP) && status.ignores(SIGINT), "{status:?}");
        let folder = tempfile::tempdir().unwrap();
        for name in ["HUP", "INT", "QUIT"] {
            let mut command = Command::new("sleep");
            let mut child = Process::spawn("sleep", command.arg("600"), &folder.path().join("log"));
            eventually("it to run", || proc::name(child.pid()).is_ok_and(|name| name == "sleep"));
            child.signal(name);
            assert!(!child.wait_within(END_PATIENCE).success(), "{name}");
        }
    }
}
