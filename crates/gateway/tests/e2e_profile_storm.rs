//! A storm of the signal that profiles use, while clients do TLS handshakes, functions in Lua run as machine code and otherwise,
//! profiles are taken and given up, the configuration changes and the process is replaced: every request is answered.
//!
//! `STILLGATE_STORM_SIGNALS` makes it longer.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
#![expect(unsafe_code, reason = "a signal to one thread of another process has no safe name")]

mod authority;
mod upgrade;

use authority::Authority;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};
use stillgate_profiler::signal::SIGNAL;
use stillgate_testkit::{Rounds, Setup, Upstream};
use upgrade::{Upgraded, with_pid_file};

const NAME: &str = "shop.example.com";
const GET: &[u8] = b"GET /?size=5 HTTP/1.1\r\nHost: shop.example.com\r\nConnection: close\r\n\r\n";

/// A loop that becomes machine code, which uses the frame pointer's register as any other, and a closure that never does.
const FUNCTION: &str = "return function() local sum = 0 for at = 1, 5000 do sum = sum + at % 7 end local made = function() return sum end ngx.header['X-Sum'] = made() end";

/// Signals that are sent, unless the environment says how many.
const SIGNALS: u64 = 40_000;

/// After so many, who is there to get them is looked up again.
const SIGNALS_A_LOOK: u64 = 100;

/// Between two signals.
const PAUSE: Duration = Duration::from_micros(100);

/// How long a profile is waited for before it is given up.
const GIVEN_UP: Duration = Duration::from_millis(700);

fn signals() -> u64 {
    let text = std::env::var("STILLGATE_STORM_SIGNALS");
    text.map_or(SIGNALS, |text| text.parse().expect("STILLGATE_STORM_SIGNALS is a number"))
}

fn setup(authority: &Authority, upstream: &Upstream, route: &str) -> Setup {
    let ca = authority.dir().display();
    let resources = format!(
        "ssls: [{{id: shop, cert: \"{ca}/shop.pem\", key: \"{ca}/shop.key\", snis: [{NAME}]}}]\n\
         upstreams: [{{id: u, nodes: {{\"{}\": 1}}}}]\n\
         routes: [{{id: {route}, uri: /*, upstream_id: u, plugins: {{serverless-pre-function: {{phase: access, functions: [{FUNCTION:?}]}}}}}}]\n",
        upstream.addr()
    );
    Setup::resources(resources).listener("tls: true").gateway("workers: 2\ndebug: {pprof: true, heap: 16KiB}")
}

/// The workers of a process, which have a handler for the signal.
fn workers(pid: u32) -> Vec<i32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let is_worker =
        |path: &std::path::Path| fs::read_to_string(path.join("comm")).is_ok_and(|name| name.starts_with("worker-"));
    let numbers = threads.filter_map(Result::ok).filter(|thread| is_worker(&thread.path()));
    numbers.filter_map(|thread| thread.file_name().to_str()?.parse().ok()).collect()
}

/// Sends signals to all workers in turn, those of a successor too; returns how many were sent.
fn storm(upgraded: &Upgraded, signals: u64) -> u64 {
    let (mut sent, mut threads, mut pid) = (0, Vec::new(), 0);
    while sent < signals {
        if sent.is_multiple_of(SIGNALS_A_LOOK) || threads.is_empty() {
            pid = upgraded.pid().unwrap_or(pid);
            threads = workers(pid);
        }
        let Some(thread) = threads.get(sent as usize % threads.len().max(1)) else { continue };
        // SAFETY: sends a signal, which its receiver has a handler for as soon as it has a thread of that name.
        let done = unsafe { libc::syscall(libc::SYS_tgkill, pid as libc::pid_t, *thread, SIGNAL) };
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
    sent
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
    let mut upgraded = Upgraded::start(&setup(&authority, &node, "a"));
    let (rounds, addr, admin) = (Rounds::default(), upgraded.gateway.addr(), upgraded.gateway.admin_addr());
    let sent = thread::scope(|scope| {
        let (rounds, authority) = (&rounds, &authority);
        scope.spawn(move || {
            while rounds.go_on() {
                let mut client = authority.connect(addr, NAME, &[]);
                client.write_all(GET).unwrap();
                let mut response = Vec::new();
                // A peer that closes without saying so in TLS is told as an error, after the response.
                let _ = client.read_to_end(&mut response);
                let text = String::from_utf8_lossy(&response);
                assert!(text.starts_with("HTTP/1.1 200") && text.contains("X-Sum: 14997"), "{text}");
                rounds.count();
            }
        });
        scope.spawn(move || (0..).take_while(|_| rounds.go_on()).for_each(|number| take_profile(admin, number)));
        let _end = rounds.until_dropped();
        rounds.await_more(10);
        let mut sent = storm(&upgraded, signals / 4);
        for route in ["b", "c", "d"] {
            upgraded.gateway.reload(&with_pid_file(&setup(authority, &node, route)));
            sent += storm(&upgraded, signals / 12);
        }
        let storming = &upgraded;
        sent += thread::scope(|scope| {
            let stormed = scope.spawn(move || storm(storming, signals / 4));
            storming.upgrade();
            stormed.join().unwrap()
        });
        sent += storm(&upgraded, signals / 4);
        rounds.await_more(10);
        sent
    });
    println!("{sent} signals");
    assert!(sent + 16 > signals, "{sent}");
    upgraded.await_old();
    assert_eq!(upgraded.gateway.status()["draining"], false);
    assert!(node.faults().is_empty(), "{:?}", node.faults());
}
