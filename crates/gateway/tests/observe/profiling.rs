//! Profiles of a running gateway: switched on by reload, read by `stillgate profile`, refused when they make no sense.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::shared::STILLGATE;
use serde_json::Value as Json;
use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};
use stillgate_profiler::output::pprof;
use stillgate_profiler::profile::{PHASE, PLUGIN, Profile, ROUTE, THREAD};
use stillgate_testkit::{Client, Gateway, Setup, Upstream, eventually, go_pages, go_top, with_longer_times};

const ON: &str = "debug: {pprof: true, heap: 16KiB}";

/// A profile is named by a thread of low priority, and tests keep the machine busy.
const PROFILE_PATIENCE: Duration = Duration::from_secs(900);

fn admin(gateway: &Gateway, target: &str) -> (u16, Vec<u8>) {
    let mut client = Client::connect(gateway.admin_addr());
    client.set_patience(PROFILE_PATIENCE);
    let answer = client.get(target);
    (answer.head.status(), answer.body)
}

/// Profiles of the same gateway wait for each other.
fn profile(gateway: &Gateway, target: &str) -> Profile {
    let (status, body) = admin(gateway, target);
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
    pprof::read(&body).unwrap()
}

/// Armed timers of a process; `None`: the kernel does not say.
fn timers(gateway: &Gateway) -> Option<usize> {
    let text = fs::read_to_string(format!("/proc/{}/timers", gateway.pid())).ok()?;
    Some(text.lines().filter(|line| line.starts_with("ID:")).count())
}

/// How long requests are sent while something is done, at first: the longest profile, and what the machine takes to begin it. No
/// longer, unless that shows too little: symbols are read by a nice thread, which would wait for a core.
const LOAD: Duration = Duration::from_secs(3);

/// Such a time where only one second is profiled.
const LOAD_OF_A_SECOND: Duration = Duration::from_millis(1500);

/// Repeats one function for so long, while another one runs.
fn beside<T>(load: Duration, again: impl Fn() + Sync, work: impl FnOnce() -> T) -> T {
    let end = Instant::now() + load;
    thread::scope(|scope| {
        scope.spawn(|| {
            while Instant::now() < end {
                again();
            }
        });
        work()
    })
}

/// Sends requests, for so long, while something else is begun.
fn under_load<T>(gateway: &Gateway, load: Duration, work: impl FnOnce() -> T) -> T {
    let requests = || {
        let mut client = gateway.client();
        for _ in 0..20 {
            assert_eq!(client.get("/").head.status(), 200);
        }
    };
    beside(load, requests, work)
}

/// How long a profile under this load takes.
fn seconds(load: Duration) -> u64 {
    (load.as_secs() - 1).max(1)
}

fn seen(profile: &Profile, part: &str) -> bool {
    profile.functions.iter().any(|function| function.name.contains(part))
}

fn command(gateway: &Gateway, arguments: &[&str]) -> Output {
    let admin = format!("http://{}", gateway.admin_addr());
    let mut command = Command::new(STILLGATE);
    command.arg("profile").args(arguments);
    if !arguments.contains(&"--from") {
        command.args(["--admin", &admin]);
    }
    command.output().unwrap()
}

#[test]
fn profiles_are_off_until_a_reload_switches_them_on() {
    let node = Upstream::echo();
    let setup = Setup::to(node.addr());
    let mut gateway = Gateway::start(STILLGATE, &setup);
    for page in ["", "profile?seconds=1", "heap", "allocs", "stalls?seconds=1"] {
        let (status, body) = admin(&gateway, &format!("/debug/pprof/{page}"));
        let body = String::from_utf8(body).unwrap();
        assert!(status == 404 && body.contains("set gateway.debug.pprof to true"), "{page}: {status} {body}");
    }
    let (from, to) = (format!("http://{}", gateway.admin_addr()), gateway.dir().join("profile.html"));
    let command = ["profile", "--admin", &from, "--seconds", "1", "-o", &to.display().to_string()];
    let refused = Command::new(STILLGATE).args(command).output().unwrap();
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(message.contains("profiles are off; set gateway.debug.pprof to true"), "{message}");
    gateway.reload(&setup.clone().gateway("debug: {pprof: true}"));
    let (status, body) = admin(&gateway, "/debug/pprof/");
    assert!(status == 200 && String::from_utf8_lossy(&body).contains("href=\"profile?seconds=30"));
    let (status, body) = admin(&gateway, "/debug/pprof/heap");
    assert!(status == 400 && String::from_utf8_lossy(&body).contains("set gateway.debug.heap"), "{status}");

    gateway.reload(&setup.clone().gateway(ON));
    // A few seconds of a busy machine may have few samples.
    with_longer_times(LOAD, "a profile with samples of an exchange", |load| {
        let target = format!("/debug/pprof/profile?seconds={}&hz=250", seconds(load));
        let cpu = under_load(&gateway, load, || profile(&gateway, &target));
        assert!(cpu.samples.iter().all(|sample| sample.thread() == "worker-0"), "{:?}", cpu.notes);
        let phases: Vec<&str> = cpu.shares(PHASE, cpu.main).into_iter().map(|(phase, _)| phase).collect();
        println!("{phases:?} {:?}", cpu.notes);
        let has_phases = phases.contains(&"event loop") && phases.contains(&"rest of the request");
        has_phases && seen(&cpu, "stillgate_proxy::exchange::")
    });
    let stalls = profile(&gateway, "/debug/pprof/stalls?seconds=1&over=5ms");
    assert!(stalls.notes[0].contains("1 event loops"), "{:?}", stalls.notes);
    let heap = profile(&gateway, "/debug/pprof/heap");
    assert!(heap.values[heap.main].kind == "inuse_space" && heap.total(heap.main) > 0, "{:?}", heap.notes);
    assert_eq!(profile(&gateway, "/debug/pprof/allocs").values[1].kind, "alloc_space");

    let (status, body) = admin(&gateway, "/debug/pprof/heap?format=json");
    let stacks: Json = serde_json::from_slice(&body).unwrap();
    assert!(status == 200 && !stacks["stacks"].as_array().unwrap().is_empty(), "{stacks}");

    gateway.reload(&setup);
    assert_eq!(admin(&gateway, "/debug/pprof/heap").0, 404);
    gateway.assert_healthy();
}

#[test]
fn a_profile_of_all_threads_has_those_that_serve_no_requests() {
    let node = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(node.addr()).gateway(ON));
    let ask = || assert_eq!(admin(&gateway, "/v1/status").0, 200);
    with_longer_times(LOAD, "a profile with samples of the control thread", |load| {
        let target = format!("/debug/pprof/profile?seconds={}&hz=250&threads=all", seconds(load));
        let all = beside(load, ask, || under_load(&gateway, load, || profile(&gateway, &target)));
        let threads: Vec<&str> = all.shares(THREAD, all.main).into_iter().map(|(thread, _)| thread).collect();
        println!("{threads:?} {:?}", all.notes);
        threads.contains(&"worker-0") && threads.contains(&"control")
    });
}

#[test]
fn go_reads_every_kind() {
    let node = Upstream::echo();
    // Long enough that each of its runs is a stall, and has samples.
    let source =
        "return function() local sum = 0 for at = 1, 4000 do sum = (function() return sum + at % 7 end)() end end";
    let resources = format!(
        "upstreams: [{{id: node, nodes: {{\"{}\": 1}}}}]\nroutes: [{{id: r, uri: /*, upstream_id: node, plugins: {{serverless-pre-function: {{phase: access, functions: [{source:?}]}}}}}}]\n",
        node.addr()
    );
    let gateway = Gateway::start(STILLGATE, &Setup::resources(resources).gateway(ON));
    let folder = tempfile::tempdir().unwrap();
    for (kind, target, title) in [
        ("cpu", "profile?seconds=1&hz=250", "Type: cpu"),
        ("heap", "heap", "Type: inuse_space"),
        ("allocs", "allocs", "Type: alloc_space"),
        ("stalls", "stalls?seconds=1&over=1ms", "Type: "),
        ("lua-cpu", "lua?kind=cpu&seconds=1&hz=250", "Type: "),
        ("lua-bytecode", "lua?kind=bytecode&seconds=1&hz=250", "Type: "),
    ] {
        let file = folder.path().join(format!("{kind}.pb.gz"));
        let mut taken = None;
        // A second of a busy machine may have no sample.
        with_longer_times(LOAD_OF_A_SECOND, "a profile with samples", |load| {
            let (status, body) = under_load(&gateway, load, || admin(&gateway, &format!("/debug/pprof/{target}")));
            assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
            let profile = pprof::read(&body).unwrap();
            taken = (!profile.samples.is_empty()).then_some((profile, body));
            taken.is_some()
        });
        let (profile, body) = taken.unwrap();
        fs::write(&file, body).unwrap();
        let top = go_top(&file);
        assert!(top.contains(title), "{kind}: {top}");
        // The function that most samples are of: Go's pages leave out what is less than half a percent.
        let mut values: HashMap<usize, i64> = HashMap::new();
        for sample in &profile.samples {
            let innermost = profile.functions_of(sample).next_back().unwrap();
            *values.entry(innermost.function).or_default() += sample.values[profile.main];
        }
        let (largest, _) = values.into_iter().max_by_key(|(_, value)| *value).unwrap();
        let name = &profile.functions[largest].name;
        let shown = without_brackets(name);
        let part = shown.split(|char: char| !char.is_ascii_alphanumeric() && char != '_').max_by_key(|part| part.len());
        let part = part.unwrap_or_default();
        assert!(top.contains(part), "{kind}: {name} is not in {top}");
        for page in go_pages(&file) {
            assert!(page.contains(part), "{kind}: {name} is not in the page");
        }
    }
}

/// The name of a function as Go's tool shows it: without what is in angle brackets.
fn without_brackets(name: &str) -> String {
    let (mut shown, mut depth) = (String::new(), 0_usize);
    for char in name.chars() {
        match char {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ if depth == 0 => shown.push(char),
            _ => {}
        }
    }
    shown
}

#[test]
fn hostile_questions_are_refused_and_nothing_stays_armed() {
    let node = Upstream::echo();
    let mut gateway = Gateway::start(STILLGATE, &Setup::to(node.addr()).gateway(ON));
    for (query, wrong) in [
        ("profile?seconds=0", "seconds: a number from 1 to 240"),
        ("profile?seconds=1000000000", "seconds: a number from 1 to 240"),
        ("profile?seconds=-1", "seconds: a number from 1 to 240"),
        ("profile?seconds=1&hz=0", "hz: a number from 1 to 1000"),
        ("profile?seconds=1&hz=1e9", "hz: a number from 1 to 1000"),
        ("profile?seconds=1&threads=some", "threads: workers or all"),
        ("profile?seconds=1&format=svg", "format: pprof or json"),
        ("stalls?seconds=1&over=0ms", "over: from 1 ms to 10 s"),
        ("stalls?seconds=1&over=soon", "over: a time such as 10ms or 1s"),
    ] {
        let (status, body) = admin(&gateway, &format!("/debug/pprof/{query}"));
        let body = String::from_utf8(body).unwrap();
        assert!(status == 400 && body.contains(wrong), "{query}: {status} {body}");
    }
    // Two at once: the second learns who has the first.
    let mut first = TcpStream::connect(gateway.admin_addr()).unwrap();
    write!(first, "GET /debug/pprof/profile?seconds=200 HTTP/1.1\r\nHost: {}\r\n\r\n", gateway.admin_addr()).unwrap();
    eventually("a second one to be refused", || admin(&gateway, "/debug/pprof/stalls?seconds=1").0 == 409);
    let (status, body) = admin(&gateway, "/debug/pprof/profile?seconds=1");
    let body = String::from_utf8(body).unwrap();
    assert!(status == 409 && body.contains("127.0.0.1 has been taking a CPU profile for"), "{status} {body}");
    if timers(&gateway).is_some() {
        eventually("a timer to be armed", || timers(&gateway) > Some(0));
    }
    // The client goes away: the profile ends, and the next one can be taken.
    drop(first);
    eventually("it to end", || admin(&gateway, "/debug/pprof/profile?seconds=1").0 == 200);
    assert!(timers(&gateway).is_none_or(|timers| timers == 0));
    gateway.assert_healthy();
}

#[test]
fn the_command_writes_what_the_name_asks_for() {
    let node = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(node.addr()).gateway(ON));
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    with_longer_times(LOAD, "a profile with samples by the command", |load| {
        let seconds = seconds(load).to_string();
        let arguments = ["--seconds", &seconds, "--hz", "250", "-o", &file("cpu.pb.gz")];
        let taken = under_load(&gateway, load, || command(&gateway, &arguments));
        let told = String::from_utf8_lossy(&taken.stdout).into_owned();
        assert!(taken.status.success() && told.contains("cpu.pb.gz: CPU profile at 250 Hz"), "{taken:?}");
        println!("{told}");
        let folded = command(&gateway, &["--from", &file("cpu.pb.gz"), "-o", &file("first.folded")]);
        let has_proxy = fs::read_to_string(file("first.folded")).is_ok_and(|text| text.contains("stillgate_proxy"));
        println!("{folded:?}");
        has_proxy && told.contains("\nby thread: worker-0 100.0%\nby phase: ")
    });
    for (name, begins) in [
        ("cpu.svg", "<svg"),
        ("cpu.html", "<!doctype html>"),
        ("cpu.folded", "worker-0;"),
        ("cpu.speedscope.json", "{"),
        ("cpu.trace.json", "{"),
    ] {
        let done = command(&gateway, &["--from", &file("cpu.pb.gz"), "-o", &file(name)]);
        assert!(done.status.success(), "{name}: {done:?}");
        let text = fs::read_to_string(file(name)).unwrap();
        assert!(text.starts_with(begins) && text.contains("stillgate_proxy"), "{name}");
    }
    let same = command(&gateway, &["--from", &file("cpu.pb.gz"), "--base", &file("cpu.pb.gz"), "-o", &file("d.html")]);
    assert!(same.status.success(), "{same:?}");
    let refused = |arguments: &[&str], code: i32, why: &str| {
        let done = command(&gateway, arguments);
        let told = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.code() == Some(code) && told.contains(why), "{arguments:?}: {done:?}");
    };
    refused(&["-o", &file("cpu.png")], 2, "end the name with one of");
    refused(&["--seconds", "0", "-o", &file("a.svg")], 1, "seconds: a number from 1 to 240");
    refused(&["--base", &file("cpu.pb.gz"), "-o", &file("a.svg")], 2, "only an .html page compares");
    let heap = ["--kind", "heap", "--base", &file("cpu.pb.gz"), "-o", &file("heap.html")];
    refused(
        &heap,
        2,
        "the base is a profile of another kind: it has cpu in nanoseconds, this one inuse_space in bytes",
    );
    assert!(!Path::new(&file("heap.html")).exists());
    refused(&["--from", &file("cpu.svg"), "-o", &file("a.svg")], 1, "not a profile");
}

/// Two routes, one of them with a function in Lua that computes, and both with a plugin.
const TWO_ROUTES: &str = r#"
upstreams: [{id: u, type: roundrobin, nodes: {"NODE": 1}}]
routes:
  - id: plain.route
    uri: /plain
    upstream_id: u
    plugins: {response-rewrite: {headers: {set: {X-A: b}}}}
  - id: busy_route
    uri: /busy
    upstream_id: u
    plugins:
      serverless-pre-function:
        phase: access
        functions:
          - |
            local function busy(n)
              local t = {}
              for i = 1, n do t[i] = tostring(i * 7 % 1000) end
              table.sort(t)
              return #t
            end
            return function(conf, ctx) ctx.count = busy(300) + 0 end
"#;

fn two_routes(node: &Upstream, debug: &str) -> Setup {
    Setup::resources(TWO_ROUTES.replace("NODE", &node.addr().to_string())).gateway(debug)
}

fn ask_both(gateway: &Gateway) {
    thread::scope(|scope| {
        for path in ["/plain", "/busy"] {
            scope.spawn(move || {
                let mut client = gateway.client();
                (0..20).for_each(|_| assert_eq!(client.get(path).head.status(), 200));
            });
        }
    });
}

#[test]
fn samples_have_their_route_their_plugin_and_functions_in_lua() {
    let node = Upstream::echo();
    let mut gateway = Gateway::start(STILLGATE, &two_routes(&node, ON));
    with_longer_times(LOAD, "a profile with samples of both routes and of Lua", |load| {
        let target = format!("/debug/pprof/profile?seconds={}&hz=250", seconds(load));
        let cpu = beside(load, || ask_both(&gateway), || profile(&gateway, &target));
        let shares = |label| -> Vec<&str> { cpu.shares(label, 0).into_iter().map(|(name, _)| name).collect() };
        println!("{:?} {:?} {:?}", shares(ROUTE), shares(PLUGIN), cpu.notes);
        // Requests interleave: each plugin is called for its own route only.
        for sample in &cpu.samples {
            match (sample.text(ROUTE), sample.text(PLUGIN)) {
                ("plain.route", "" | "response-rewrite")
                | ("busy_route", "" | "serverless-pre-function")
                | ("", "") => {}
                mixed => panic!("{mixed:?}"),
            }
        }
        let names = |sample| -> Vec<&str> {
            cpu.functions_of(sample).map(|line| cpu.functions[line.function].name.as_str()).collect()
        };
        let of_lua = cpu.samples.iter().map(names).find(|names| {
            let at = names.iter().position(|name| name.starts_with("lua busy ("));
            at.is_some_and(|at| names[..at].iter().any(|name| name.contains("stillgate_lua::")))
        });
        println!("{of_lua:?}");
        let truncated = cpu.samples.iter().filter(|sample| sample.text("truncated") == "yes").count();
        println!("{truncated} of {} truncated", cpu.samples.len());
        of_lua.is_some()
            && ["plain.route", "busy_route"].iter().all(|route| shares(ROUTE).contains(route))
            && truncated * 20 <= cpu.samples.len()
    });
    let stalls = beside(LOAD, || ask_both(&gateway), || profile(&gateway, "/debug/pprof/stalls?seconds=2&over=1ms"));
    assert!(stalls.samples.iter().any(|sample| sample.text(ROUTE) == "busy_route"), "{:?}", stalls.notes);
    gateway.assert_healthy();
}

#[test]
fn recorded_profiles_are_read_by_their_time() {
    let node = Upstream::echo();
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("profiles");
    let recording = |hz| {
        let place = place.display();
        two_routes(&node, &format!("debug: {{pprof: true, profiles: {{cpu: {hz} Hz, path: {place}}}}}"))
    };
    let state = |gateway: &Gateway| -> Json { serde_json::from_slice(&admin(gateway, "/debug/profiles").1).unwrap() };
    let mut gateway = Gateway::start(STILLGATE, &two_routes(&node, "debug: {}"));
    assert_eq!(state(&gateway)["enabled"], false);
    let (status, body) = admin(&gateway, "/debug/profiles/cpu");
    assert!(status == 404 && String::from_utf8_lossy(&body).contains("set gateway.debug.profiles"), "{body:?}");
    gateway.reload(&recording(100));
    let files = || fs::read_dir(&place).map_or(0, Iterator::count);
    with_longer_times(LOAD, "a minute on disk", |load| {
        beside(
            load,
            || ask_both(&gateway),
            || {
                // One that is taken meanwhile is not disturbed.
                let other = profile(&gateway, "/debug/pprof/profile?seconds=1&hz=250");
                assert!(other.notes[0].starts_with("CPU profile at 250 Hz"), "{:?}", other.notes);
            },
        );
        thread::sleep(Duration::from_secs(1));
        ask_both(&gateway);
        // With other settings the minute so far is written.
        gateway.reload(&recording(99));
        thread::sleep(Duration::from_secs(3));
        gateway.reload(&recording(100));
        files() > 0
    });
    let known = state(&gateway);
    assert!(known["enabled"] == true && known["hz"] == 100 && known["bytes"].as_u64() > Some(0), "{known}");
    let (from, to) = (known["from_unix_s"].as_u64().unwrap(), known["to_unix_s"].as_u64().unwrap());
    let cpu = profile(&gateway, &format!("/debug/profiles/cpu?from={from}&to={to}"));
    assert!(cpu.total(0) > 0 && !cpu.shares(PHASE, 0).is_empty(), "{:?}", cpu.notes);
    let (status, body) = admin(&gateway, &format!("/debug/profiles/cpu?from={from}&to={to}&format=json"));
    let stacks: Json = serde_json::from_slice(&body).unwrap();
    assert!(status == 200 && stacks["stacks"][0].as_array().unwrap().len() == 6, "{stacks}");
    assert_eq!(admin(&gateway, "/debug/profiles/cpu?from=60&to=120").0, 404);
    assert_eq!(admin(&gateway, "/debug/profiles/cpu?format=svg").0, 400);
    gateway.reload(&two_routes(&node, "debug: {}"));
    assert_eq!(state(&gateway)["enabled"], false);
    gateway.assert_healthy();
}
