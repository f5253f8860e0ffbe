//! What `/proc` says: of a process, of a tree of processes, of threads and of the machine. The only reader of it.
//!
//! Figures are taken from outside, so they are the same for every program. Files are read as proc(5) describes them.
//! Memory is that of a tree of processes; a thread is known by its folder.

pub mod machine;

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::pread;
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

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

/// A thread that was there when it was looked for; it may have ended since.
#[derive(Debug, Clone)]
pub struct Thread {
    folder: PathBuf,
}

/// The threads of a process.
pub fn threads(pid: u32) -> io::Result<Vec<Thread>> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))?;
    Ok(tasks.flatten().map(|task| Thread { folder: task.path() }).collect())
}

impl Thread {
    /// Its name, at most 15 bytes.
    pub fn name(&self) -> Option<String> {
        Some(fs::read_to_string(self.folder.join("comm")).ok()?.trim_end().to_owned())
    }

    /// See [`Stat::state`].
    pub fn state(&self) -> Option<char> {
        Stat::of_file(&self.folder.join("stat")).ok()?.state()
    }

    /// How often it has gone to sleep so far.
    pub fn sleeps(&self) -> Option<u64> {
        Status::of_file(&self.folder.join("status")).ok()?.number("voluntary_ctxt_switches")
    }

    /// CPU time in nanoseconds, where the kernel keeps `schedstat`.
    fn exact_ns(&self) -> Option<u64> {
        fs::read_to_string(self.folder.join("schedstat")).ok()?.split_whitespace().next()?.parse().ok()
    }

    /// CPU time in microseconds: exact where the kernel keeps `schedstat`, else to the clock tick.
    pub fn cpu_us(&self) -> Option<f64> {
        let by_ticks = || Stat::of_file(&self.folder.join("stat")).ok()?.cpu_us();
        self.exact_ns().map(|nanoseconds| nanoseconds as f64 / 1e3).or_else(by_ticks)
    }
}

/// CPU time in microseconds of each thread of a process and of its descendants.
#[derive(Debug, Clone)]
pub struct ThreadTimes(HashMap<PathBuf, f64>);

/// The CPU time so far of each thread that runs now.
pub fn thread_times(pid: u32) -> io::Result<ThreadTimes> {
    let mut all = threads(pid)?;
    // A descendant may have ended since the tree was read.
    all.extend(tree(pid).into_iter().skip(1).filter_map(|child| threads(child).ok()).flatten());
    Ok(ThreadTimes(all.into_iter().filter_map(|thread| Some((thread.folder.clone(), thread.cpu_us()?))).collect()))
}

impl ThreadTimes {
    /// What was used between two looks, in microseconds; the time of a thread that ended meanwhile is not known.
    pub fn since(&self, before: &ThreadTimes) -> f64 {
        self.0.iter().map(|(thread, us)| us - before.0.get(thread).unwrap_or(&0.0)).sum()
    }
}

/// Memory of a process and its descendants, page by page: exact, and dear to find out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Resident; what they share counts for each.
    pub rss_kib: u64,
    /// Resident; what they share counts once.
    pub pss_kib: u64,
}

/// See [`Memory`].
pub fn memory(pid: u32) -> io::Result<Memory> {
    let mut sum = memory_of_one(pid)?;
    // A descendant may have ended since the tree was read.
    for Memory { rss_kib, pss_kib } in tree(pid).into_iter().skip(1).filter_map(|child| memory_of_one(child).ok()) {
        sum = Memory { rss_kib: sum.rss_kib + rss_kib, pss_kib: sum.pss_kib + pss_kib };
    }
    Ok(sum)
}

fn memory_of_one(pid: u32) -> io::Result<Memory> {
    let file = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&file)?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let (rss_kib, pss_kib) = field("Rss:").zip(field("Pss:")).ok_or_else(|| strange(Path::new(&file)))?;
    Ok(Memory { rss_kib, pss_kib })
}

/// Resident memory of a process and its descendants. Pages of files and shared memory count once, as in the process that
/// has most of them: workers share them with their master.
pub fn rss_kib(pid: u32) -> io::Result<u64> {
    let sum = resident_of_tree(pid)?;
    Ok(sum.anonymous + sum.file + sum.shared)
}

/// As [`rss_kib`], without pages of files. How many of its binary's pages a process has depends on how the page cache holds the file.
pub fn anonymous_kib(pid: u32) -> io::Result<u64> {
    let sum = resident_of_tree(pid)?;
    Ok(sum.anonymous + sum.shared)
}

/// In KiB; a process that has ended but was not waited for has none.
#[derive(Debug, Default, PartialEq)]
struct Resident {
    anonymous: u64,
    file: u64,
    shared: u64,
}

impl Resident {
    fn of(status: &Status) -> Resident {
        let kib = |name| status.number(name).unwrap_or(0);
        Resident { anonymous: kib("RssAnon"), file: kib("RssFile"), shared: kib("RssShmem") }
    }
}

fn resident_of_tree(pid: u32) -> io::Result<Resident> {
    let mut sum = Resident::of(&Status::read(pid)?);
    for child in tree(pid).into_iter().skip(1) {
        let Ok(status) = Status::read(child) else { continue };
        let own = Resident::of(&status);
        sum.anonymous += own.anonymous;
        sum.file = sum.file.max(own.file);
        sum.shared = sum.shared.max(own.shared);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::process::Command;

    /// Above the kernel's largest `pid_max`.
    const ABSENT: u32 = 1 << 23;

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
    fn a_process_that_is_not_there_has_no_times() {
        assert!(cpu_time_us(ABSENT).is_err() && cpu_time(ABSENT).is_err());
    }

    #[test]
    fn threads_are_told_apart_by_name() {
        let own = std::process::id();
        let (stop, stopped) = std::sync::mpsc::sync_channel::<()>(0);
        let named = std::thread::Builder::new().name("a-thread".to_owned());
        let thread = named.spawn(move || stopped.recv()).unwrap();
        let found = || threads(own).unwrap().into_iter().find(|thread| thread.name().as_deref() == Some("a-thread"));
        // It gives itself its name when it runs.
        let found = loop {
            if let Some(found) = found().filter(|thread| thread.state() == Some('S')) {
                break found;
            }
        };
        assert!(found.sleeps().is_some() && found.cpu_us().is_some());
        drop(stop);
        assert!(thread.join().unwrap().is_err());
    }

    #[test]
    fn time_passes_for_threads() {
        let own = std::process::id();
        let before = thread_times(own).unwrap();
        while thread_times(own).unwrap().since(&before) <= 0.0 {}
    }

    #[test]
    fn this_process_has_some() {
        let own = std::process::id();
        let anonymous = anonymous_kib(own).unwrap();
        assert!(anonymous > 0 && rss_kib(own).unwrap() > anonymous);
        let Memory { rss_kib, pss_kib } = memory(own).unwrap();
        assert!(pss_kib > 0 && rss_kib >= pss_kib);
    }

    #[test]
    fn a_process_that_is_not_there_has_none() {
        assert!(rss_kib(ABSENT).is_err() && anonymous_kib(ABSENT).is_err() && memory(ABSENT).is_err());
    }
}
