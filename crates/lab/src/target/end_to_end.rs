//! Each gateway that the project's scripts install: started, requested, scraped and stopped.

use super::{RunningTarget, Spec, TargetKind, make_series, mix, placement};
use crate::result::run::Placement;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::thread;
use stillgate_load::Target;
use stillgate_load::mix::Composer;
use stillgate_testkit::Client;

const BODY: &str = "from the upstream";

/// Answers everything on every connection.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(std::io::Result::ok) {
            thread::spawn(move || {
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                for _ in lines.map_while(std::io::Result::ok).filter(String::is_empty) {
                    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{BODY}", BODY.len());
                    if stream.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// The gateway of this workspace, built unless it is there: it is where test programs are.
fn stillgate() -> PathBuf {
    static BINARY: LazyLock<PathBuf> = LazyLock::new(|| {
        let own = std::env::current_exe().unwrap();
        let folder = own.ancestors().nth(2).unwrap();
        let binary = folder.join("stillgate");
        if !binary.is_file() {
            let mut build = Command::new(env!("CARGO"));
            build.args(["build", "--package", "stillgate-gateway", "--bin", "stillgate"]);
            if folder.ends_with("release") {
                build.arg("--release");
            }
            assert!(build.status().unwrap().success(), "the gateway cannot be built");
        }
        binary
    });
    BINARY.clone()
}

fn spec(kind: TargetKind, series: Option<u64>, directory: &Path) -> Spec {
    let program = (kind == TargetKind::Stillgate).then(stillgate);
    Spec { program, series, ..Spec::built_in(kind, directory.to_owned()) }
}

fn start(spec: &Spec, placement: &Placement) -> RunningTarget {
    spec.start(upstream(), placement).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn check_serves(kind: TargetKind, series: Option<u64>, shown: impl Fn(u64) -> bool) {
    let dir = tempfile::tempdir().unwrap();
    let spec = spec(kind, series, dir.path());
    let placement = placement::choose(None, None).unwrap();
    let mut started = start(&spec, &placement);
    let answer = Client::connect(started.address).get("/");
    assert_eq!((answer.head.status(), answer.body.as_slice()), (200, BODY.as_bytes()));
    let series = make_series(&started, &spec).unwrap_or_else(|error| panic!("{error}"));
    assert!(shown(series), "{series} series");
    // The load's requests are answered, too.
    let target = Target::parse(&format!("http://{}/", started.address)).unwrap();
    let asked = Composer::new(&mix(&spec, &target, 1.0).unwrap(), 1, 0, 1).compose().bytes.to_vec();
    let path = String::from_utf8(asked).unwrap().split(' ').nth(1).unwrap().to_owned();
    assert_eq!(Client::connect(started.address).get(&path).head.status(), 200);
    let subject = &started.subject;
    assert_eq!(subject.name, kind.name());
    assert!(subject.version.is_some() && subject.binary_sha256.is_some(), "{subject:?}");
    assert!(subject.configuration.as_ref().is_some_and(|text| text.contains(&started.address.to_string())));
    assert!(started.cpu_time_us().unwrap() > 0.0);
    assert!(started.rss_kib().unwrap() > 100);
    started.alive().unwrap();
    let (pids, address) = (started.pids().unwrap(), started.address);
    started.stop();
    assert!(std::net::TcpStream::connect(address).is_err(), "something still listens");
    assert!(pids.iter().all(|&pid| !stillgate_rig::proc::runs(pid)), "some of {pids:?} are still running");
    let left = std::fs::read_dir(dir.path()).unwrap().flatten().map(|entry| entry.path());
    assert!(left.into_iter().all(|path| path.is_file()), "a folder is left behind");
}

#[test]
fn stillgate_serves() {
    check_serves(TargetKind::Stillgate, None, |_| true);
}

#[test]
fn stillgate_has_a_series_for_each_number() {
    // Its own figures come on top: about 200, and some of them only once their event has happened.
    check_serves(TargetKind::Stillgate, Some(2000), |series| (2000..2400).contains(&series));
}

#[test]
fn nginx_serves() {
    check_serves(TargetKind::Nginx, Some(2000), |series| series == super::nginx::STUB_STATUS_FIGURES);
}

#[test]
fn nginx_with_lua_has_a_series_for_each_number() {
    check_serves(TargetKind::NginxLua, Some(2000), |series| (2000..2100).contains(&series));
}

#[test]
fn haproxy_has_about_the_series_asked_for() {
    check_serves(TargetKind::Haproxy, Some(2000), |series| (1800..=2200).contains(&series));
}

#[test]
fn haproxy_serves() {
    check_serves(TargetKind::Haproxy, None, |series| series > 100);
}

#[test]
fn any_program_serves_by_its_command() {
    let dir = tempfile::tempdir().unwrap();
    let config = "global\n nbthread 1\ndefaults\n mode http\n timeout client 1m\n timeout server 1m\n timeout connect 1m\n\
        frontend f\n bind \"${AT}\"\n default_backend b\nbackend b\n server s \"${TO}\"\n";
    std::fs::write(dir.path().join("any.cfg"), config).unwrap();
    let spec = Spec {
        command: Some(
            "sh -c 'AT=$0 TO=$1 exec haproxy -db -f \"$2\"/../any.cfg' {address} {upstream} {dir}".to_owned(),
        ),
        ..Spec::built_in(TargetKind::Command, dir.path().to_owned())
    };
    let started = start(&spec, &Placement::default());
    assert_eq!(Client::connect(started.address).get("/").body, BODY.as_bytes());
    assert_eq!(started.metrics, None);
    let error = make_series(&started, &spec).unwrap_err();
    assert_eq!(error.to_string(), "command: the address of its exposition is unknown");
}

#[test]
fn a_target_that_dies_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let spec = spec(TargetKind::Haproxy, None, dir.path());
    let mut started = start(&spec, &Placement::default());
    let pid = started.pids().unwrap()[0];
    assert!(Command::new("sh").args(["-c", &format!("kill -KILL {pid}")]).status().unwrap().success());
    stillgate_testkit::eventually("its end", || started.alive().is_err());
    let error = started.alive().unwrap_err().to_string();
    assert!(error.starts_with("haproxy has ended (signal: 9 (SIGKILL)); "), "{error}");
    assert!(started.cpu_time_us().is_err() && started.pids().is_err());
}

#[test]
fn a_target_that_cannot_start_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let spec = Spec { arguments: vec!["--no-such-argument".to_owned()], ..spec(TargetKind::Nginx, None, dir.path()) };
    let error = spec.start(upstream(), &Placement::default()).unwrap_err().to_string();
    assert!(error.starts_with("nginx has ended (exit status: 1); the end of what it printed:"), "{error}");
    assert!(error.contains("no-such-argument") || error.contains("invalid option"), "{error}");
}
