//! A storm of the signal that profiles use, while clients do TLS handshakes, functions in Lua run as machine code and otherwise, use up
//! their memory and their stack, profiles are taken and given up, the configuration changes and the process is replaced: every request
//! is answered.
//!
//! `STILLGATE_STORM_SIGNALS` makes it longer: 400,000 took 67 s on two busy CPUs.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
#![expect(unsafe_code, reason = "a signal to one thread of another process has no safe name")]

use crate::shared::authority::Authority;
use crate::shared::upgrade::{UpgradedGateway, with_pid_file};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};
use stillgate_profiler::signal::SIGNAL;
use stillgate_testkit::{Rounds, Setup, Upstream, eventually};

const NAME: &str = "shop.example.com";

/// A loop that becomes machine code, which uses the frame pointer's register as any other, and a closure that never does.
const FUNCTION: &str = "return function() local sum = 0 for at = 1, 5000 do sum = sum + at % 7 end local made = function() return sum end ngx.header['X-Sum'] = made() end";

/// Uses up a worker's memory for functions, whose VM is replaced.
const EXHAUSTS: &str =
    "return function() local long, all = ('x'):rep(8e6), {} for at = 1, 1e6 do all[at] = long .. at end end";

/// Uses up a function's stack.
const DEEP: &str = "return function() local function deep() return 1 + deep() end return deep() end";

/// Signals that are sent by `tgkill`, unless the environment says how many; as many again are sent as a timer's.
const SIGNALS: u64 = 40_000;

/// After so many, the threads to signal are looked up again.
const SIGNALS_A_LOOK: u64 = 100;

/// Between two signals by `tgkill`, so that workers make progress.
const PAUSE: Duration = Duration::from_micros(40);

/// How long a profile is waited for before it is given up.
const GIVEN_UP: Duration = Duration::from_millis(700);

fn signals() -> u64 {
    let text = std::env::var("STILLGATE_STORM_SIGNALS");
    text.map_or(SIGNALS, |text| text.parse().expect("STILLGATE_STORM_SIGNALS is a number"))
}

fn setup(authority: &Authority, upstream: &Upstream, route: &str) -> Setup {
    let ca = authority.dir().display();
    let routes = [(route, "/*", FUNCTION), ("exhausts", "/exhausts", EXHAUSTS), ("deep", "/deep", DEEP)].map(|(id, uri, function)| {
        format!(
            "{{id: {id}, uri: \"{uri}\", upstream_id: u, plugins: {{serverless-pre-function: {{phase: access, functions: [{function:?}]}}}}}}"
        )
    });
    let resources = format!(
        "ssls: [{{id: shop, cert: \"{ca}/shop.pem\", key: \"{ca}/shop.key\", snis: [{NAME}]}}]\n\
         upstreams: [{{id: u, nodes: {{\"{}\": 1}}}}]\n\
         routes: [{}]\n",
        upstream.addr(),
        routes.join(", ")
    );
    Setup::resources(resources).listener("tls: true").gateway("workers: 2\ndebug: {pprof: true, heap: 16KiB}")
}

/// Sends requests on a connection of its own until all is over, for one path after the other.
fn ask(authority: &Authority, addr: std::net::SocketAddr, rounds: &Rounds, paths: &[(&str, &str, &str)]) {
    for (path, status, part) in paths.iter().cycle() {
        if !rounds.go_on() {
            return;
        }
        let mut client = authority.connect(addr, NAME, &[]);
        write!(client, "GET {path} HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n").unwrap();
        let mut response = Vec::new();
        // A peer that closes without saying so in TLS is reported as an error, after the response.
        let _ = client.read_to_end(&mut response);
        let text = String::from_utf8_lossy(&response);
        assert!(text.starts_with(status) && text.contains(part), "{path}: {text}");
        rounds.count();
    }
}

/// Armed timers of a process; `None`: the kernel does not say.
fn timers(pid: u32) -> Option<usize> {
    let text = fs::read_to_string(format!("/proc/{pid}/timers")).ok()?;
    Some(text.lines().filter(|line| line.starts_with("ID:")).count())
}

/// The workers of a process, which have a handler for the signal.
fn workers(pid: u32) -> Vec<i32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let is_worker =
        |path: &std::path::Path| fs::read_to_string(path.join("comm")).is_ok_and(|name| name.starts_with("worker-"));
    let numbers = threads.filter_map(Result::ok).filter(|thread| is_worker(&thread.path()));
    numbers.filter_map(|thread| thread.file_name().to_str()?.parse().ok()).collect()
}

/// Sends a signal that claims to come from a timer, for which the handler records the stack. A signal by `tgkill` would not do
/// that.
fn send_as_timer(pid: u32, thread: i32) -> bool {
    // SAFETY: plain numbers, for all of which zero is a valid value; the kernel lets other processes send signals that claim to
    // come from a timer.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        info.si_signo = SIGNAL;
        info.si_code = libc::SI_TIMER;
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid as libc::pid_t, thread, SIGNAL, &raw const info) == 0
    }
}

/// Sends signals to all workers in turn, those of a successor too, as many by `tgkill` as said, and after each one to another worker
/// as timers do. Returns how many of both were sent.
fn storm(upgraded: &UpgradedGateway, signals: u64) -> [u64; 2] {
    let ([mut sent, mut as_timer], mut threads, mut pid) = ([0, 0], Vec::new(), 0);
    while sent < signals {
        if sent.is_multiple_of(SIGNALS_A_LOOK) || threads.is_empty() {
            pid = upgraded.pid().unwrap_or(pid);
            threads = workers(pid);
        }
        let nth = |number: u64| threads.get(number as usize % threads.len().max(1)).copied();
        let Some((thread, other)) = nth(sent).zip(nth(sent + 1)) else { continue };
        // SAFETY: sends a signal, which its receiver has a handler for as soon as it has a thread of that name.
        let done = unsafe { libc::syscall(libc::SYS_tgkill, pid as libc::pid_t, thread, SIGNAL) };
        as_timer += u64::from(send_as_timer(pid, other));
        if done == 0 {
            sent += 1;
        } else {
            threads.clear();
        }
        let begun = Instant::now();
        while begun.elapsed() < PAUSE {
            std::hint::spin_loop();
        }
    }
    [sent, as_timer]
}

/// Takes a profile; each second one is given up. Whether it is refused or cut off does not matter here.
fn take_profile(admin: std::net::SocketAddr, number: u64) {
    let targets = [
        "profile?seconds=1&hz=1000",
        "lua?kind=cpu&seconds=1&hz=1000",
        "stalls?seconds=1&over=1ms",
        "profile?seconds=200&threads=all",
        "heap",
    ];
    let target = targets[number as usize % targets.len()];
    let Ok(mut stream) = TcpStream::connect(admin) else { return };
    let asked = write!(stream, "GET /debug/pprof/{target} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
    let bounded = stream.set_read_timeout(Some(if number.is_multiple_of(2) { GIVEN_UP * 10 } else { GIVEN_UP }));
    if asked.is_ok() && bounded.is_ok() {
        let _ = stream.read_to_end(&mut Vec::new());
    }
}

#[test]
fn signals_during_handshakes_reloads_and_an_upgrade_harm_nothing() {
    let (authority, node, signals) = (Authority::new(), Upstream::echo(), signals());
    authority.issue("shop", &[NAME]);
    let mut upgraded = UpgradedGateway::start(&setup(&authority, &node, "a"));
    let (rounds, addr, admin) = (Rounds::default(), upgraded.gateway.addr(), upgraded.gateway.admin_addr());
    let failing = Rounds::default();
    let sent = thread::scope(|scope| {
        let (rounds, failing, authority) = (&rounds, &failing, &authority);
        scope.spawn(move || ask(authority, addr, rounds, &[("/?size=5", "HTTP/1.1 200", "X-Sum: 14997")]));
        scope.spawn(move || {
            ask(authority, addr, failing, &[("/exhausts", "HTTP/1.1 500", ""), ("/deep", "HTTP/1.1 500", "")]);
        });
        scope.spawn(move || (0..).take_while(|_| rounds.go_on()).for_each(|number| take_profile(admin, number)));
        let _ends = [rounds.until_dropped(), failing.until_dropped()];
        let await_both = || [rounds, failing].map(|rounds| rounds.await_more(10));
        await_both();
        let mut sent = vec![storm(&upgraded, signals / 4)];
        for route in ["b", "c", "d"] {
            upgraded.gateway.reload(&with_pid_file(&setup(authority, &node, route)));
            sent.push(storm(&upgraded, signals / 12));
        }
        let storming = &upgraded;
        sent.push(thread::scope(|scope| {
            let stormed = scope.spawn(move || storm(storming, signals / 4));
            storming.upgrade();
            stormed.join().unwrap()
        }));
        sent.push(storm(&upgraded, signals / 4));
        await_both();
        sent.iter().fold([0, 0], |[a, b], [c, d]| [a + c, b + d])
    });
    println!(
        "{} signals by tgkill, {} as a timer's; {} answers, {} failures of functions",
        sent[0],
        sent[1],
        rounds.done(),
        failing.done()
    );
    assert!(sent[0] + 16 > signals && sent[1] + 16 > signals, "{sent:?}");
    upgraded.await_old();
    assert_eq!(upgraded.gateway.status()["draining"], false);
    let successor = upgraded.pid().unwrap();
    eventually("no timer to be armed", || timers(successor).is_none_or(|timers| timers == 0));
    assert!(node.faults().is_empty(), "{:?}", node.faults());
}
