//! What `/proc` says: of a process, of a tree of processes, of threads and of the machine. The only reader of it.
//!
//! Figures are taken from outside, so they are the same for every program. Files are read as proc(5) describes them.

pub mod machine;
mod memory;
mod threads;

pub use memory::{Memory, anonymous_kib, memory, rss_kib};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::pread;
use rustix::time::{ClockId, clock_gettime};
use std::fmt::Display;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;
pub use threads::{Thread, ThreadTimes, thread_times, threads};

/// Processes whose parent this is, of whichever of its threads.
pub fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let of = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
    let texts: Vec<String> = tasks.flatten().map(of).collect();
    texts.iter().flat_map(|text| text.split_whitespace()).filter_map(|child| child.parse().ok()).collect()
}

/// A process and its descendants, itself first. Those that end while we look are left out.
pub fn tree(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(&parent) = all.get(next) {
        next += 1;
        all.extend(children(parent));
    }
    all
}

/// All processes that we may see.
pub fn all() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Whether a process runs: it is there and not merely waiting for its parent to notice its end.
pub fn runs(pid: u32) -> bool {
    Stat::read(pid).is_ok_and(|stat| !matches!(stat.state(), None | Some('Z' | 'X')))
}

/// The name of a process, as the kernel has it.
pub fn name(pid: u32) -> io::Result<String> {
    Ok(fs::read_to_string(format!("/proc/{pid}/comm"))?.trim_end().to_owned())
}

/// The words with which a process was started, with a zero byte after each; empty where it has ended.
pub fn command_line(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).into_owned()
}

/// How many descriptors a process has open; `self` is this one.
pub fn descriptors(process: impl std::fmt::Display) -> io::Result<usize> {
    Ok(fs::read_dir(format!("/proc/{process}/fd"))?.count())
}

/// A file whose text is not as proc(5) has it.
fn strange(path: &Path) -> io::Error {
    io::Error::other(format!("{}: not as proc(5) has it", path.display()))
}

// `/proc/PID/status`: a name and a value a line.

/// The values of a `status` file.
#[derive(Debug, Clone)]
pub struct Status(String);

impl Status {
    /// The status of a process: a number or `self`.
    pub fn read(process: impl Display) -> io::Result<Status> {
        Status::of_file(Path::new(&format!("/proc/{process}/status")))
    }

    fn of_file(file: &Path) -> io::Result<Status> {
        Ok(Status(fs::read_to_string(file)?))
    }

    /// A value, by its name without the colon.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// A value that is a number, with or without a unit. A process that has ended has none of its memory.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.value(name)?.split_whitespace().next()?.parse().ok()
    }

    /// Whether it ignores a signal.
    pub fn ignores(&self, signal: i32) -> bool {
        // A bit a signal, in hexadecimal.
        let mask = self.value("SigIgn").and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
        let bit = u32::try_from(signal).ok().and_then(|signal| signal.checked_sub(1));
        bit.is_some_and(|bit| mask.checked_shr(bit).unwrap_or(0) & 1 == 1)
    }
}

// `/proc/PID/stat`: one line of fields, numbered from 1.

/// The fields of a `stat` file behind the name, which may hold anything.
#[derive(Debug, Clone)]
pub struct Stat {
    /// From the third one on.
    fields: String,
}

impl Stat {
    /// The statistics of a process (a number or `self`), or of a thread (`thread-self`).
    pub fn read(process: impl Display) -> io::Result<Stat> {
        Stat::of_file(Path::new(&format!("/proc/{process}/stat")))
    }

    fn of_file(file: &Path) -> io::Result<Stat> {
        Ok(Stat::parse(&fs::read_to_string(file)?))
    }

    fn parse(text: &str) -> Stat {
        // The command's name ends at the last bracket.
        Stat { fields: text.rsplit_once(')').map_or("", |(_, fields)| fields).trim().to_owned() }
    }

    /// A field from the fourth one on, which all are numbers.
    pub fn number(&self, field: usize) -> Option<u64> {
        self.fields.split_whitespace().nth(field.checked_sub(3)?)?.parse().ok()
    }

    /// CPU time so far, in microseconds, to the clock tick; without that of its children.
    pub fn cpu_us(&self) -> Option<f64> {
        Some(ticks_us(self.number(14)? + self.number(15)?))
    }

    /// What it does: `R` runs, `S` waits, `T` is stopped, `Z` has ended, …
    pub fn state(&self) -> Option<char> {
        self.fields.chars().next()
    }
}

// How much CPU time the calling thread has used, and how long it had to wait for the CPU.
//
// A generator that shares its CPU with its target measures the scheduler. The kernel counts both: the thread's CPU
// time, and in `/proc/thread-self/schedstat` the time it could have run and another did.

/// Reads the current thread's figures. Opened once: files should not be opened when a run begins.
#[derive(Debug)]
pub struct Meter {
    schedstat: Option<OwnedFd>,
}

/// Figures at one time, or differences of them, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time on a CPU.
    pub cpu_ns: u64,
    /// Time that it could have run and another thread did; `None` if the system does not report it.
    pub wait_ns: Option<u64>,
}

impl Meter {
    /// A meter of the calling thread.
    #[expect(clippy::new_without_default, reason = "it is of the thread that makes it")]
    pub fn new() -> Self {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Meter { schedstat: open("/proc/thread-self/schedstat", flags, Mode::empty()).ok() }
    }

    /// The present figures.
    pub fn usage(&self) -> Usage {
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        let cpu_ns = (cpu.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(cpu.tv_nsec as u64);
        Usage { cpu_ns, wait_ns: self.wait_ns() }
    }

    fn wait_ns(&self) -> Option<u64> {
        let mut text = [0; 96];
        let length = pread(self.schedstat.as_ref()?, &mut text, 0).ok()?;
        waited(std::str::from_utf8(&text[..length]).ok()?)
    }
}

impl Usage {
    /// The difference from an earlier figure.
    pub fn since(self, earlier: Usage) -> Usage {
        Usage {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            wait_ns: self.wait_ns.zip(earlier.wait_ns).map(|(now, then)| now.saturating_sub(then)),
        }
    }
}

/// The second of three figures: time on the CPU, time waiting for it, time slices.
fn waited(schedstat: &str) -> Option<u64> {
    schedstat.split_ascii_whitespace().nth(1)?.parse().ok()
}

// The TCP sockets of this network namespace, and whose they are.

/// The second is absent where there is no IPv6.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// A line of the kernel's tables of TCP sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpSocket {
    /// Its own port.
    pub local: u16,
    /// Its peer's port.
    pub remote: u16,
    /// The kernel's number: 1 is established, 10 listening.
    pub state: u8,
    inode: String,
}

impl TcpSocket {
    /// See [`TcpSocket::state`].
    pub const ESTABLISHED: u8 = 1;
    /// We have closed, and the peer has not acknowledged it.
    pub const FIN_WAIT1: u8 = 4;
    /// We have closed, and the peer has acknowledged it.
    pub const FIN_WAIT2: u8 = 5;
    /// It accepts connections.
    pub const LISTENING: u8 = 10;

    /// `number: address:port address:port state …`, all in hexadecimal digits; `None` is the table's head.
    fn parse(line: &str) -> Option<TcpSocket> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let port = |field: usize| u16::from_str_radix(fields.get(field)?.rsplit_once(':')?.1, 16).ok();
        let state = u8::from_str_radix(fields.get(3)?, 16).ok()?;
        Some(TcpSocket {
            local: port(1)?,
            remote: port(2)?,
            state,
            inode: fields.get(9).map(|inode| (*inode).to_owned())?,
        })
    }
}

/// All of them, of both families.
pub fn tcp_sockets() -> io::Result<Vec<TcpSocket>> {
    let mut sockets = Vec::new();
    for table in TABLES {
        match fs::read_to_string(table) {
            Ok(text) => sockets.extend(text.lines().filter_map(TcpSocket::parse)),
            Err(error) if error.kind() == io::ErrorKind::NotFound && table != TABLES[0] => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("{table}: {error}"))),
        }
    }
    Ok(sockets)
}

/// The process that has the listening socket of a port, in either family; `None`: none that we may see. Of several the youngest: an
/// older one may be about to end after an upgrade.
pub fn listener(port: u16) -> Option<u32> {
    let listens = |socket: &TcpSocket| socket.local == port && socket.state == TcpSocket::LISTENING;
    let sockets: Vec<TcpSocket> = tcp_sockets().ok()?.into_iter().filter(listens).collect();
    if sockets.is_empty() {
        return None;
    }
    let links: Vec<String> = sockets.iter().map(|socket| format!("socket:[{}]", socket.inode)).collect();
    let holds = |pid: &u32| {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        let mut targets = descriptors.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
        targets.any(|target| links.iter().any(|link| *target.to_string_lossy() == **link))
    };
    let mut pids = all();
    pids.sort_unstable_by(|a, b| b.cmp(a));
    pids.into_iter().find(holds)
}

// CPU time of processes.
//
// Two lower bounds are there: `schedstat` of each thread, in nanoseconds but without the threads that have ended, and `stat` of
// the process, with them but cut to clock ticks. The larger of the two is the nearer. Children that were waited for are only in
// `stat`.

/// CPU time to the clock tick, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CpuTime {
    /// In the program.
    pub user_us: f64,
    /// In the kernel.
    pub system_us: f64,
}

impl CpuTime {
    /// Both together.
    pub fn us(self) -> f64 {
        self.user_us + self.system_us
    }

    /// What was used between two looks.
    pub fn since(self, before: CpuTime) -> CpuTime {
        CpuTime { user_us: self.user_us - before.user_us, system_us: self.system_us - before.system_us }
    }
}

/// Clock ticks of the kernel's figures in microseconds.
pub fn ticks_us(ticks: u64) -> f64 {
    ticks as f64 * 1e6 / rustix::param::clock_ticks_per_second() as f64
}

/// CPU time of a process and its descendants so far, in microseconds, to the nearest lower bound.
pub fn cpu_time_us(pid: u32) -> io::Result<f64> {
    let own = process_us(pid)?;
    // A descendant may have ended since the tree was read; its parent's `stat` has its time by then.
    let others = tree(pid).into_iter().skip(1).filter_map(|child| process_us(child).ok());
    Ok(own + others.sum::<f64>())
}

/// CPU time of a process and its descendants so far, apart for program and kernel; without children that have ended.
pub fn cpu_time(pid: u32) -> io::Result<CpuTime> {
    let of_one = |pid| {
        let [user, system] = fields(pid, [14, 15])?;
        Ok::<_, io::Error>(CpuTime { user_us: ticks_us(user), system_us: ticks_us(system) })
    };
    let mut sum = of_one(pid)?;
    // A descendant may have ended since the tree was read.
    for CpuTime { user_us, system_us } in tree(pid).into_iter().skip(1).filter_map(|child| of_one(child).ok()) {
        sum = CpuTime { user_us: sum.user_us + user_us, system_us: sum.system_us + system_us };
    }
    Ok(sum)
}

/// CPU time of this process, and of all that it has started and waited for.
pub fn self_and_children() -> io::Result<(Duration, Duration)> {
    let stat = Stat::read("self")?;
    let of = |user: usize, system: usize| {
        let ticks = stat.number(user).zip(stat.number(system)).map(|(user, system)| user + system);
        ticks.map(|ticks| Duration::from_secs_f64(ticks_us(ticks) / 1e6))
    };
    of(14, 15).zip(of(16, 17)).ok_or_else(|| strange(Path::new("/proc/self/stat")))
}

fn process_us(pid: u32) -> io::Result<f64> {
    let [user, system, user_of_children, system_of_children] = fields(pid, [14, 15, 16, 17])?;
    let exact: u64 = threads(pid).unwrap_or_default().iter().filter_map(Thread::exact_ns).sum();
    Ok((exact as f64 / 1e3).max(ticks_us(user + system)) + ticks_us(user_of_children + system_of_children))
}

fn fields<const COUNT: usize>(pid: u32, numbers: [usize; COUNT]) -> io::Result<[u64; COUNT]> {
    let stat = Stat::read(pid)?;
    let mut values = [0; COUNT];
    for (value, number) in values.iter_mut().zip(numbers) {
        *value = stat.number(number).ok_or_else(|| strange(Path::new(&format!("/proc/{pid}/stat"))))?;
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Above the kernel's largest `pid_max`.
    pub(super) const ABSENT: u32 = 1 << 23;

    #[test]
    fn this_process_is_there() {
        let own = std::process::id();
        assert_eq!(tree(own)[0], own);
        assert!(runs(own) && all().contains(&own));
        assert!(!name(own).unwrap().is_empty() && !command_line(own).is_empty());
        assert!(descriptors("self").unwrap() >= 3);
    }

    #[test]
    fn a_process_that_is_not_there() {
        assert!(!runs(ABSENT));
        assert!(name(ABSENT).is_err() && command_line(ABSENT).is_empty() && descriptors(ABSENT).is_err());
        assert_eq!(tree(ABSENT), [ABSENT]);
    }

    #[test]
    fn children_are_found() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        assert!(children(std::process::id()).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!runs(child.id()));
    }
}

#[cfg(test)]
mod status_tests {
    use super::*;

    #[test]
    fn values_by_their_names() {
        let status = Status("Name:\tx\nVmRSS:\t    60 kB\nVmRSSx:\t1\nSigIgn:\t0000000000001003\n".to_owned());
        assert_eq!(status.value("Name"), Some("x"));
        assert_eq!((status.number("VmRSS"), status.number("VmHWM"), status.number("Name")), (Some(60), None, None));
        let ignored: Vec<i32> = (-1..70).filter(|signal| status.ignores(*signal)).collect();
        assert_eq!(ignored, [1, 2, 13]);
        assert!(!Status(String::new()).ignores(1));
    }

    #[test]
    fn this_process_has_one() {
        assert!(Status::read("self").unwrap().number("VmRSS").unwrap() > 0);
    }
}

#[cfg(test)]
mod stat_tests {
    use super::*;

    #[test]
    fn fields_are_behind_the_name() {
        #[track_caller]
        fn check(text: &str, state: Option<char>, user: Option<u64>) {
            let stat = Stat::parse(text);
            assert_eq!((stat.state(), stat.number(14)), (state, user), "{text}");
        }
        check("7 (nginx) S 1 7 7 0 -1 4194560 100 0 0 0 11 5 2 1 20 0 1 0 99", Some('S'), Some(11));
        check("7 (a) b (c)) Z 1 7 7 0 -1 4194560 100 0 0 0 1 0 0 0 20 0 1 0 99", Some('Z'), Some(1));
        check("7 (nginx) S 1", Some('S'), None);
        check("", None, None);
    }
}

#[cfg(test)]
mod meter_tests {
    use super::*;

    #[test]
    fn work_shows_as_cpu_time() {
        let meter = Meter::new();
        let before = meter.usage();
        let mut after = before;
        while after.since(before).cpu_ns < 2_000_000 {
            after = meter.usage();
        }
        assert_eq!(after.since(after), Usage { cpu_ns: 0, wait_ns: after.wait_ns.map(|_| 0) });
    }

    #[test]
    fn the_kernels_three_figures() {
        assert_eq!(waited("4051 69112 7\n"), Some(69_112));
        assert_eq!(waited(""), None);
    }
}

#[cfg(test)]
mod sockets_tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_listener_of_a_port_is_found() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(listener(socket.local_addr().unwrap().port()), Some(std::process::id()));
    }

    #[test]
    fn lines_of_the_kernel() {
        let line =
            "   0: 0100007F:2378 0100007F:0BB8 0A 00000000:00000000 00:00000000 00000000     0        0 41230 1 0";
        let socket = TcpSocket { local: 0x2378, remote: 3000, state: TcpSocket::LISTENING, inode: "41230".to_owned() };
        assert_eq!(TcpSocket::parse(line), Some(socket));
        assert_eq!(
            TcpSocket::parse("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid"),
            None
        );
        assert_eq!(TcpSocket::parse(""), None);
    }
}

#[cfg(test)]
mod times_tests {
    use super::tests::ABSENT;
    use super::*;
    use std::process::Command;

    #[test]
    fn this_process_uses_time() {
        let own = std::process::id();
        let before = cpu_time_us(own).unwrap();
        while cpu_time_us(own).unwrap() <= before {}
        let before = cpu_time(own).unwrap();
        while cpu_time(own).unwrap().since(before).us() <= 0.0 {}
    }

    #[test]
    fn children_count_once_they_are_waited_for() {
        let (_, before) = self_and_children().unwrap();
        let burn = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        assert!(Command::new("sh").args(["-c", burn]).status().unwrap().success());
        assert!(self_and_children().unwrap().1 > before);
    }

    #[test]
    fn a_process_that_is_not_there() {
        assert!(cpu_time_us(ABSENT).is_err() && cpu_time(ABSENT).is_err());
    }
}
