//! `--hosts FILE`: target and upstream on separate machines, reached by ssh; the generator is this machine.
//!
//! [`file`] reads the machines, and the commands that bring them up and down. On each machine this very program runs as
//! an [`agent`], copied there and started by ssh; it starts, watches and ends programs with the code that does it
//! locally, and [`serve`] is its side of the conversation. The system's ssh is used, with the user's keys and settings.
//!
//! The agent executes requests on its machine until its input ends. Then, or if it is killed, everything that it has
//! started ends: see [`Running`](crate::target). So nothing continues after the connection breaks.

mod file;

use crate::command_line::quoted_word;
use crate::error::{Error, Result};
use crate::result::run::{Environment, HostEnvironment, Placement, Subject};
use crate::target::{MetricsAddress, RunningTarget, Spec, TargetKind, Upstream, sha256};
use crate::{environment, output};
use file::{Hosts, Machine};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;

/// `stillgate-lab host-agent`: the agent that `--hosts` runs on other machines.
#[derive(Debug, clap::Args)]
pub(crate) struct HostAgent {}

/// Runs the agent; returns the exit code.
pub(crate) fn run(_: &HostAgent) -> Result<u8> {
    serve().map(|()| 0)
}

/// A machine with its agent.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) agent: Agent,
    /// Address at which programs started there listen.
    pub(crate) ip: IpAddr,
}

/// The machines of an experiment, up until this is dropped.
#[derive(Debug)]
pub(crate) struct Machines {
    // In this order: agents end before their machines do.
    pub(crate) target: Option<Host>,
    pub(crate) upstream: Option<Host>,
    _rented: RentedMachines,
}

/// The command that brings the machines down again.
#[derive(Debug)]
struct RentedMachines {
    down: Option<String>,
    values: BTreeMap<String, String>,
}

/// Brings the machines of a hosts file up, and starts an agent on each.
pub(crate) fn up(path: &Path) -> Result<Arc<Machines>> {
    let hosts = Hosts::read(path)?;
    // From here on they are brought down even after a failure.
    let mut rented = RentedMachines { down: hosts.down.clone(), values: BTreeMap::new() };
    if let Some(up) = &hosts.up {
        eprintln!("bringing machines up: {up}");
        rented.values = brought_up(up).map_err(|error| error.context(format!("{}: up", path.display())))?;
    }
    let host = |role: &str, machine: &Option<Machine>| {
        let connected = machine.as_ref().map(|machine| connect(role, machine, &rented.values)).transpose();
        connected.map_err(|error| error.context(format!("{}: {role}", path.display())))
    };
    let (target, upstream) = (host("target", &hosts.target)?, host("upstream", &hosts.upstream)?);
    Ok(Arc::new(Machines { target, upstream, _rented: rented }))
}

/// Whether a hosts file gives the target a separate machine.
pub(crate) fn has_target(path: &Path) -> Result<bool> {
    Ok(Hosts::read(path)?.target.is_some())
}

impl Machines {
    /// As result files keep them.
    pub(crate) fn environments(&self) -> Vec<HostEnvironment> {
        let of = |(role, host): (&str, &Option<Host>)| {
            let host = host.as_ref()?;
            let (ip, environment) = (host.ip.to_string(), host.agent.environment.clone());
            Some(HostEnvironment { role: role.to_owned(), ip, environment })
        };
        [("target", &self.target), ("upstream", &self.upstream)].into_iter().filter_map(of).collect()
    }
}

/// Makes these programs run on the target's machine, copied there if they are local files.
pub(crate) fn place<'a>(machines: &Arc<Machines>, specs: impl Iterator<Item = &'a mut Spec>) -> Result {
    for spec in specs {
        spec.machines = Some(Arc::clone(machines));
        if let Some(host) = &machines.target {
            spec.ip = Some(host.ip);
            host.agent.copy_program(spec).map_err(|error| error.context(&spec.name))?;
        }
    }
    Ok(())
}

fn connect(role: &str, machine: &Machine, values: &BTreeMap<String, String>) -> Result<Host> {
    let (ssh, address) = (file::fill(&machine.ssh, values)?, file::fill(&machine.address, values)?);
    let ip = address.parse().map_err(|_| Error::new(format!("address: {address:?} is not an IP address")))?;
    eprintln!("{role}: connecting to {ssh}");
    Ok(Host { agent: Agent::connect(&ssh)?, ip })
}

/// The `NAME=VALUE` lines that the command prints.
fn brought_up(command: &str) -> Result<BTreeMap<String, String>> {
    let output = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Error::new(format!("cannot run {command:?}: {error}")))?;
    if !output.status.success() {
        return Err(Error::new(format!("{command:?} failed ({})", output.status)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let is_name =
        |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let pairs = text.lines().filter_map(|line| line.split_once('=')).filter(|(name, _)| is_name(name));
    Ok(pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
}

impl Drop for RentedMachines {
    fn drop(&mut self) {
        let Some(down) = &self.down else { return };
        eprintln!("bringing machines down: {down}");
        let ended = Command::new("sh").args(["-c", down]).envs(&self.values).stdin(Stdio::null()).status();
        // There is no caller to report to; running machines cost money, so it is printed.
        match ended {
            Ok(status) if status.success() => {}
            Ok(status) => eprintln!("WARNING: {down:?} failed ({status}); the machines may still be up"),
            Err(error) => eprintln!("WARNING: cannot run {down:?}: {error}; the machines may still be up"),
        }
    }
}

// The requests to an agent and its answers: one JSON object per line, one answer per request.

/// To an agent. Programs that it has started are identified by the numbers that it assigned.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Request {
    /// Requests the environment of its machine.
    Hello,
    StartTarget {
        spec: Box<Spec>,
        upstream: SocketAddr,
        placement: Placement,
    },
    StartUpstream {
        ip: IpAddr,
        body_bytes: usize,
    },
    CpuTimeUs {
        number: u64,
    },
    RssKib {
        number: u64,
    },
    Alive {
        number: u64,
    },
    Stop {
        number: u64,
    },
}

/// From an agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Hello {
        version: String,
        environment: Box<Environment>,
    },
    Target(Box<TargetStarted>),
    Upstream {
        number: u64,
        address: SocketAddr,
    },
    CpuTimeUs(f64),
    RssKib(u64),
    Done,
    /// With an error message.
    Failed(String),
}

/// A target that listens there.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TargetStarted {
    pub(crate) number: u64,
    pub(crate) subject: Subject,
    pub(crate) address: SocketAddr,
    pub(crate) metrics: Option<MetricsAddress>,
    pub(crate) admin: Option<SocketAddr>,
}

// Our side of an agent: copies programs to its machine by ssh, starts it there, and sends it requests.
//
// Copies are kept in the user's cache there under their SHA-256, so the next experiment finds them. An agent ends when
// its input does, and with it everything that it has started.

/// No prompts, because there may be no user; and an end when the machine does not answer for a minute.
const OPTIONS: [&str; 6] = ["-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"];

/// The folder of programs, in the syntax of the remote shell.
const FOLDER: &str = r#"d="${XDG_CACHE_HOME:-$HOME/.cache}/stillgate-lab/hosts""#;

/// The first request prints this before the folder's path: a login may print text of its own.
const FOLDER_IS: &str = "stillgate-lab-hosts=";

/// A running agent; ended when dropped.
#[derive(Debug)]
pub(crate) struct Agent {
    /// Arguments of `ssh`.
    destination: Vec<String>,
    /// Environment of its machine.
    pub(crate) environment: Environment,
    /// The folder of programs there.
    folder: PathBuf,
    talk: Mutex<Conversation>,
}

/// A program that the agent has started; stopped when dropped.
#[derive(Debug)]
pub(crate) struct RemoteProgram {
    pub(crate) number: u64,
}

#[derive(Debug)]
struct Conversation {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Agent {
    /// `ssh` are the arguments of ssh: a destination, optionally with options before it.
    fn connect(ssh: &str) -> Result<Agent> {
        let destination = shlex::split(ssh).filter(|words| !words.is_empty());
        let destination = destination.ok_or_else(|| Error::new(format!("ssh: {ssh:?} names no machine")))?;
        let own = std::env::current_exe()
            .map_err(|error| Error::new(format!("this program cannot find itself to copy it: {error}")))?;
        let folder = folder(&destination)?;
        let program = copy(&destination, &folder, &own)?;
        let mut child = ssh_command(&destination, &format!("exec {} host-agent", quoted(&program)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Error::new(format!("cannot run ssh: {error}")))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("it was piped above"));
        let mut talk = Conversation { child, input, output };
        match talk.request(&Request::Hello)? {
            Answer::Hello { version, environment } if version == env!("CARGO_PKG_VERSION") => {
                Ok(Agent { destination, environment: *environment, folder, talk: Mutex::new(talk) })
            }
            answer => Err(unexpected(&answer)),
        }
    }

    /// Copies the program of a target if it is a local file, and replaces its path by the remote one.
    fn copy_program(&self, spec: &mut Spec) -> Result {
        let there = |program: &Path| copy(&self.destination, &self.folder, program);
        if let Some(program) = &mut spec.program {
            *program = there(program)?;
        } else if let (TargetKind::Command, Some(command)) = (spec.kind, &mut spec.command) {
            let words = shlex::split(command).unwrap_or_default();
            if let Some((first, rest)) = words.split_first()
                && Path::new(first).is_file()
            {
                let program = there(Path::new(first))?.to_string_lossy().into_owned();
                let all = std::iter::once(&program).chain(rest).map(|word| quoted_word(word));
                *command = all.collect::<Vec<_>>().join(" ");
            }
        }
        Ok(())
    }

    pub(crate) fn start_target(
        &self,
        spec: &Spec,
        upstream: SocketAddr,
        placement: &Placement,
    ) -> Result<TargetStarted> {
        let (spec, placement) = (Box::new(spec.clone()), placement.clone());
        match self.request(&Request::StartTarget { spec, upstream, placement })? {
            Answer::Target(started) => Ok(*started),
            answer => Err(unexpected(&answer)),
        }
    }

    pub(crate) fn start_upstream(&self, ip: IpAddr, body_bytes: usize) -> Result<(RemoteProgram, SocketAddr)> {
        match self.request(&Request::StartUpstream { ip, body_bytes })? {
            Answer::Upstream { number, address } => Ok((RemoteProgram { number }, address)),
            answer => Err(unexpected(&answer)),
        }
    }

    pub(crate) fn cpu_time_us(&self, held: &RemoteProgram) -> Result<f64> {
        match self.request(&Request::CpuTimeUs { number: held.number })? {
            Answer::CpuTimeUs(us) => Ok(us),
            answer => Err(unexpected(&answer)),
        }
    }

    pub(crate) fn rss_kib(&self, held: &RemoteProgram) -> Result<u64> {
        match self.request(&Request::RssKib { number: held.number })? {
            Answer::RssKib(kib) => Ok(kib),
            answer => Err(unexpected(&answer)),
        }
    }

    pub(crate) fn alive(&self, held: &RemoteProgram) -> Result {
        self.request(&Request::Alive { number: held.number }).map(drop)
    }

    /// If the agent cannot be reached, the target has ended with its connection.
    pub(crate) fn stop(&self, held: &RemoteProgram) {
        let _ = self.request(&Request::Stop { number: held.number });
    }

    fn request(&self, request: &Request) -> Result<Answer> {
        self.talk().request(request)
    }

    fn talk(&self) -> MutexGuard<'_, Conversation> {
        self.talk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let mut talk = self.talk();
        drop(talk.input.take());
        // It was stopped; waiting could only fail if it had been waited for elsewhere.
        let _ = talk.child.wait();
    }
}

impl Conversation {
    fn request(&mut self, request: &Request) -> Result<Answer> {
        let broken = |why: &str| Error::new(format!("the connection to another machine broke{why}"));
        let mut text = serde_json::to_string(request).map_err(|error| Error::new(error.to_string()))?;
        text.push('\n');
        let input = self.input.as_mut().ok_or_else(|| broken(""))?;
        input.write_all(text.as_bytes()).map_err(|error| broken(&format!(": {error}")))?;
        let mut line = String::new();
        let read = self.output.read_line(&mut line).map_err(|error| broken(&format!(": {error}")))?;
        if read == 0 {
            return Err(broken("; what ssh says is above"));
        }
        match serde_json::from_str(&line).map_err(|_| Error::new(format!("an agent sent {:?}", line.trim_end())))? {
            Answer::Failed(why) => Err(Error::new(why)),
            answer => Ok(answer),
        }
    }
}

fn unexpected(answer: &Answer) -> Error {
    Error::new(format!("the agent has another version: it answers {answer:?}"))
}

/// A process group of its own: Ctrl-C is for us, and we end it in order.
fn ssh_command(destination: &[String], words: &str) -> Command {
    let mut command = Command::new("ssh");
    command.args(OPTIONS).args(destination).arg(words).process_group(0);
    command
}

fn folder(destination: &[String]) -> Result<PathBuf> {
    let words = format!(r#"{FOLDER}; mkdir -p "$d" && echo "{FOLDER_IS}$d""#);
    let output = ssh_command(destination, &words)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Error::new(format!("cannot run ssh: {error}")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let path = text.lines().find_map(|line| line.strip_prefix(FOLDER_IS)).filter(|_| output.status.success());
    path.map(PathBuf::from)
        .ok_or_else(|| Error::new(format!("ssh {} failed ({})", destination.join(" "), output.status)))
}

/// The remote path of a program, copied unless it was before.
fn copy(destination: &[String], folder: &Path, program: &Path) -> Result<PathBuf> {
    let shown = program.display();
    let hash = sha256(program).ok_or_else(|| Error::new(format!("{shown}: cannot be read to copy it")))?;
    let there = folder.join(&hash);
    let at = quoted(&there);
    let run = |words: &str, input: Stdio| {
        ssh_command(destination, words)
            .stdin(input)
            .stdout(Stdio::null())
            .status()
            .map_err(|error| Error::new(format!("cannot run ssh: {error}")))
    };
    if run(&format!("test -x {at}"), Stdio::null())?.success() {
        return Ok(there);
    }
    let file = File::open(program).map_err(|error| Error::new(format!("{shown}: cannot be read: {error}")))?;
    // It is renamed when it is complete.
    let words =
        format!("cat > {at}.$$ && sha256sum < {at}.$$ | grep -q ^{hash} && chmod 755 {at}.$$ && mv {at}.$$ {at}");
    match run(&words, file.into())?.success() {
        true => Ok(there),
        false => Err(Error::new(format!("{shown}: cannot be copied to {}", destination.join(" ")))),
    }
}

fn quoted(path: &Path) -> String {
    quoted_word(&path.to_string_lossy())
}

/// The programs that it has started.
struct AgentState {
    // In this order: programs end before their folders do.
    targets: BTreeMap<u64, RunningTarget>,
    upstreams: BTreeMap<u64, Upstream>,
    last: u64,
    folder: TempDir,
}

/// Answers each line of standard input on standard output.
pub(crate) fn serve() -> Result {
    let folder = tempfile::tempdir().map_err(|error| format!("cannot make a temporary folder: {error}"))?;
    let mut agent = AgentState { targets: BTreeMap::new(), upstreams: BTreeMap::new(), last: 0, folder };
    for line in std::io::stdin().lock().lines() {
        // A broken connection is an end.
        let Ok(line) = line else { break };
        let request = serde_json::from_str(&line).map_err(|error| Error::new(format!("not a request: {error}")));
        let answer = request.and_then(|request| agent.answer(request));
        let answer = answer.unwrap_or_else(|error| Answer::Failed(error.to_string()));
        let text = serde_json::to_string(&answer).map_err(|error| Error::new(error.to_string()))?;
        output::show(format_args!("{text}\n"))?;
    }
    Ok(())
}

impl AgentState {
    fn answer(&mut self, request: Request) -> Result<Answer> {
        match request {
            Request::Hello => {
                let environment = Box::new(environment::gather());
                Ok(Answer::Hello { version: env!("CARGO_PKG_VERSION").to_owned(), environment })
            }
            Request::StartTarget { mut spec, upstream, placement } => {
                self.folder.path().clone_into(&mut spec.directory);
                let started = spec.start(upstream, &placement)?;
                let told = TargetStarted {
                    number: self.next(),
                    subject: started.subject.clone(),
                    address: started.address,
                    metrics: started.metrics.clone(),
                    admin: started.admin,
                };
                self.targets.insert(told.number, started);
                Ok(Answer::Target(Box::new(told)))
            }
            Request::StartUpstream { ip, body_bytes } => {
                // Nothing else runs here.
                let started = Upstream::start_here(&Placement::default(), body_bytes, ip)?;
                let (number, address) = (self.next(), started.address);
                self.upstreams.insert(number, started);
                Ok(Answer::Upstream { number, address })
            }
            Request::CpuTimeUs { number } => Ok(Answer::CpuTimeUs(self.target(number)?.cpu_time_us()?)),
            Request::RssKib { number } => Ok(Answer::RssKib(self.target(number)?.rss_kib()?)),
            Request::Alive { number } => self.target(number)?.alive().map(|()| Answer::Done),
            Request::Stop { number } => {
                drop((self.targets.remove(&number), self.upstreams.remove(&number)));
                Ok(Answer::Done)
            }
        }
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn target(&mut self, number: u64) -> Result<&mut RunningTarget> {
        self.targets.get_mut(&number).ok_or_else(|| Error::new(format!("unknown target {number}")))
    }
}
