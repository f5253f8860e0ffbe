//! Start, reload, drain, death: an operator's actions on a gateway under traffic.

use crate::shared::STILLGATE;
use std::fs::File;
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use stillgate_testkit::{
    Client, Gateway, MessageError, PATIENCE, Process, ReservedPort, Rounds, Setup, Upstream, eventually, sha256,
};

#[test]
fn the_status_tells_what_is_served() {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()).gateway("workers: 2"));
    let file = std::fs::read(gateway.config_path()).expect("the config file");
    let status = gateway.status();
    assert_eq!(status["config"]["digest"], sha256(&file).as_str());
    assert_eq!(status["config"]["generation"], 1);
    assert!(status["config"]["last_error"].is_null());
    assert!(status["config"]["loaded_at"].is_string());
    assert!(status["version"].is_string());
    let mut client = gateway.client();
    for _ in 0..5 {
        client.get("/");
    }
    eventually("the counters to change", || {
        let status = gateway.status();
        status["requests"]["total"] == 5 && status["requests"]["in_flight"] == 0 && status["connections"]["open"] == 1
    });
}

#[test]
fn a_worker_that_has_nothing_to_do_sleeps() {
    const SLEEPS_MAX: u64 = 8;
    let upstream = Upstream::echo();
    let setup = Setup::to(upstream.addr()).gateway("workers: 1\ntimeouts: {keepalive: 75s}");
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    client.get("/");
    // The work that the request left behind ends some day, the connection and its timer stay.
    eventually("two seconds with hardly a sleep of a worker", || {
        let (before, since) = (gateway.sleeps("worker-0"), Instant::now());
        std::thread::sleep(Duration::from_secs(2));
        let sleeps = gateway.sleeps("worker-0") - before;
        sleeps > 0 && sleeps <= SLEEPS_MAX * since.elapsed().as_secs() / 2
    });
    // It is as quick as before, with a clock that runs.
    assert_eq!(client.get("/").head.status(), 200);
}

#[test]
fn sigterm_ends_an_idle_gateway() {
    let upstream = Upstream::echo();
    let mut gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let mut client = gateway.client();
    client.get("/");
    let mut silent = gateway.client();
    gateway.signal("TERM");
    client.expect_close();
    silent.expect_close();
    assert!(gateway.wait().success());
}

#[test]
fn sigterm_lets_requests_finish() {
    let upstream = Upstream::bind();
    let mut gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut node = upstream.accept();
    node.expect_request();
    gateway.signal("TERM");
    eventually("new connections to be refused", || TcpStream::connect(gateway.addr()).is_err());
    assert!(gateway.ended().is_none(), "it must wait for the request");
    node.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    let response = client.expect_response("GET");
    assert_eq!(response.body, b"hello");
    assert!(response.head.connection_has("close"));
    client.expect_close();
    assert!(gateway.wait().success());
}

#[test]
fn sigterm_does_not_wait_for_ever() {
    let upstream = Upstream::bind();
    let setup = Setup::to(upstream.addr()).gateway("timeouts: {drain: 300ms}");
    let mut gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    upstream.accept().expect_request();
    let started = Instant::now();
    gateway.signal("TERM");
    gateway.wait();
    assert!(started.elapsed() < PATIENCE / 2);
}

#[test]
fn a_changed_file_is_taken_and_connections_live_on() {
    let (old, new) = (Upstream::echo(), Upstream::echo());
    let gateway = Gateway::start(STILLGATE, &Setup::to(old.addr()));
    let mut client = gateway.client();
    client.get("/");
    gateway.reload(&Setup::to(new.addr()));
    client.get("/");
    assert_eq!((old.requests(), new.requests()), (1, 1));
    assert_eq!(gateway.status()["config"]["generation"], 2);
}

#[test]
fn sighup_reloads_a_file_behind_a_symlink() {
    let (old, new) = (Upstream::echo(), Upstream::echo());
    let gateway = Gateway::start(STILLGATE, &Setup::to(old.addr()));
    // A link to another folder: a watch of the link's folder does not notice that its target changes.
    let elsewhere = tempfile::tempdir().expect("a temporary folder");
    let target = elsewhere.path().join("real.yaml");
    let yaml = gateway.write_config(&Setup::to(new.addr()));
    std::fs::write(&target, &yaml).expect("write the target");
    let link = gateway.dir().join("link");
    std::os::unix::fs::symlink(&target, &link).expect("make a link");
    std::fs::rename(&link, gateway.config_path()).expect("put the link in place");
    gateway.signal("HUP");
    eventually("the config behind the link", || {
        gateway.status()["config"]["digest"] == sha256(yaml.as_bytes()).as_str()
    });
    let yaml = format!("{yaml}# changed\n");
    std::fs::write(&target, &yaml).expect("write the target again");
    gateway.signal("HUP");
    eventually("the changed target", || gateway.status()["config"]["digest"] == sha256(yaml.as_bytes()).as_str());
    gateway.get("/");
    assert_eq!(new.requests(), 1);
}

/// git-sync and scripts of deployments swap the link of a folder.
#[test]
fn a_link_in_the_path_of_the_file_is_followed() {
    let (old, new) = (Upstream::echo(), Upstream::echo());
    let gateway = Gateway::start(STILLGATE, &Setup::to(old.addr()));
    let at = |name: &str| gateway.dir().join(name);
    let link = |target: &str, name: &str| {
        std::os::unix::fs::symlink(target, at("new-link")).expect("make a link");
        std::fs::rename(at("new-link"), at(name)).expect("put the link in place");
    };
    for (folder, node) in [("w1", &old), ("w2", &new)] {
        std::fs::create_dir(at(folder)).expect("a folder");
        std::fs::write(at(folder).join("g.yaml"), gateway.write_config(&Setup::to(node.addr()))).expect("write");
    }
    link("w1", "current");
    let name = gateway.config_path().file_name().expect("a file").to_str().expect("UTF-8").to_owned();
    link("current/g.yaml", &name);
    let digest = |folder: &str| sha256(&std::fs::read(at(folder).join("g.yaml")).expect("read"));
    let is_served = |folder: &str| gateway.status()["config"]["digest"] == digest(folder).as_str();
    eventually("the first folder", || is_served("w1"));
    link("w2", "current");
    eventually("the second folder", || is_served("w2"));
    std::fs::remove_dir_all(at("w1")).expect("remove");
    gateway.get("/");
    assert_eq!((old.requests(), new.requests()), (0, 1));
}

#[test]
fn a_request_in_flight_ends_as_it_began() {
    let (old, new) = (Upstream::bind(), Upstream::echo());
    let gateway = Gateway::start(STILLGATE, &Setup::to(old.addr()));
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut node = old.accept();
    node.expect_request();
    gateway.reload(&Setup::to(new.addr()));
    node.send("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nold");
    assert_eq!(client.expect_response("GET").body, b"old");
    client.get("/");
    assert_eq!(new.requests(), 1);
}

#[test]
fn a_bad_file_changes_nothing_and_is_reported() {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let digest = gateway.status()["config"]["digest"].clone();
    for bad in ["gateway: 7", "routes: [", "routes: [{id: a, uri: /a, upstream_id: nowhere}]", "\0"] {
        gateway.write_config_text(bad);
        eventually("the error in the status", || !gateway.status()["config"]["last_error"].is_null());
        assert_eq!(gateway.status()["config"]["digest"], digest, "{bad:?}");
        assert_eq!(gateway.get("/").head.status(), 200);
        gateway.reload(&Setup::to(upstream.addr()));
        eventually("the error to go", || gateway.status()["config"]["last_error"].is_null());
    }
    eventually("the line in the log", || gateway.log().contains("nowhere"));
}

#[test]
fn a_missing_file_changes_nothing() {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    std::fs::remove_file(gateway.config_path()).expect("remove the config");
    gateway.signal("HUP");
    eventually("the error in the status", || !gateway.status()["config"]["last_error"].is_null());
    assert_eq!(gateway.get("/").head.status(), 200);
    gateway.reload(&Setup::to(upstream.addr()));
    assert_eq!(gateway.get("/").head.status(), 200);
}

#[test]
fn a_storm_of_reloads_fails_no_request() {
    let upstream = Upstream::echo();
    let mut gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()).gateway("workers: 2"));
    let (rounds, addr) = (Rounds::default(), gateway.addr());
    std::thread::scope(|scope| {
        for number in 0..4 {
            let rounds = &rounds;
            scope.spawn(move || {
                rounds.of_requests(addr, false, |client| {
                    assert_eq!(client.get(&format!("/?size=100&seed={number}")).head.status(), 200);
                });
            });
        }
        let _end = rounds.until_dropped();
        for generation in 0..20 {
            let since = Instant::now();
            let routes: String = (0..200)
                .map(|route| format!("  - {{id: r{route}, uri: /r{route}/{generation}, upstream_id: main}}\n"))
                .collect();
            let mut yaml = gateway.write_config(&Setup::to(upstream.addr()).gateway("workers: 2"));
            yaml.push_str(&routes);
            gateway.write_config_text(&yaml);
            eventually("a tenth of a second to pass", || since.elapsed() > Duration::from_millis(100));
        }
        rounds.await_more(100);
    });
    gateway.reload(&Setup::to(upstream.addr()).gateway("workers: 2"));
    gateway.assert_healthy();
}

#[test]
fn the_health_page_tells_of_the_drain() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let health = || Client::connect(gateway.admin_addr()).get("/v1/health");
    assert_eq!(health().head.status(), 200);
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut node = upstream.accept();
    node.expect_request();
    gateway.signal("TERM");
    eventually("the health page to show the drain", || health().head.status() == 503);
    node.send("HTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(client.expect_response("GET").head.status(), 204);
}

/// Requests that were sent before the end are answered, those of a pipeline too, on every worker.
#[test]
fn sigterm_under_load_fails_no_request_that_was_begun() {
    const CLIENTS: usize = 8;
    let upstream = Upstream::echo();
    let mut gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()).gateway("workers: 2"));
    let addr = gateway.addr();
    // A connection that is not accepted yet when the listeners close is reset; so all of them are in use before.
    let (taken, served) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = Client::connect(addr);
                assert_eq!(client.get("/").head.status(), 200);
                taken.fetch_add(1, Ordering::SeqCst);
                loop {
                    if client.try_send("GET /?delay=20&size=1000 HTTP/1.1\r\nHost: a\r\n\r\n").is_err() {
                        // Closed between two requests.
                        return;
                    }
                    match client.read_response("GET") {
                        Ok(response) if response.head.connection_has("close") => return client.expect_close(),
                        Ok(response) => {
                            assert_eq!(response.head.status(), 200);
                            served.fetch_add(1, Ordering::SeqCst);
                        }
                        // Closed between two requests, before this one was looked at.
                        Err(MessageError::Closed | MessageError::Reset(_)) => return,
                        Err(broken) => panic!("{broken:?}"),
                    }
                }
            });
        }
        eventually("all connections to be in use, and requests under way", || {
            taken.load(Ordering::SeqCst) == CLIENTS && served.load(Ordering::SeqCst) > 50
        });
        gateway.signal("TERM");
    });
    assert!(gateway.wait().success());
}

/// With `SO_REUSEPORT` a second instance could take half of the connections unnoticed.
#[test]
fn a_second_gateway_on_the_same_address_is_refused() {
    let upstream = Upstream::echo();
    let setup = Setup::to(upstream.addr());
    let gateway = Gateway::start(STILLGATE, &setup);
    let admin = ReservedPort::new();
    let config = gateway.dir().join("second.yaml");
    std::fs::write(&config, setup.render(gateway.addr(), admin.addr(), gateway.dir())).expect("write the config");
    let mut command = Command::new(STILLGATE);
    command.arg("run").arg("--config").arg(&config);
    let mut second = Process::spawn("second stillgate", &mut command, &gateway.dir().join("second.log"));
    assert!(!second.wait().success());
    assert!(second.log().contains(&gateway.addr().to_string()), "{}", second.log());
    assert_eq!(gateway.get("/").head.status(), 200);
}

#[test]
fn a_bad_file_at_the_start_is_refused_with_all_its_errors() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = folder.path().join("bad.yaml");
    std::fs::write(&config, "routes:\n  - {id: a, urri: /a}\n  - {id: b, uri: /b, upstream_id: nowhere}\n")
        .expect("write the config");
    let mut command = Command::new(STILLGATE);
    command.arg("run").arg("--config").arg(&config);
    let mut process = Process::spawn("stillgate", &mut command, &folder.path().join("log"));
    assert_eq!(process.wait().code(), Some(1));
    let log = process.log();
    assert!(log.contains("urri") && log.contains("nowhere"), "{log}");
}

/// The gateway's own log may stall too: a terminal that is paused, a collector that hangs.
#[test]
fn a_stalled_reader_of_the_log_slows_nobody() {
    let upstream = Upstream::echo();
    let (listen, admin) = (ReservedPort::new(), ReservedPort::new());
    let folder = tempfile::tempdir().expect("a temporary folder");
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("run mkfifo").success());
    // Held open for both directions and never read.
    let stalled = File::options().read(true).write(true).open(&pipe).expect("open the pipe");
    let config = folder.path().join("stillgate.yaml");
    let setup = Setup::to(upstream.addr()).gateway("log: {level: trace}");
    std::fs::write(&config, setup.render(listen.addr(), admin.addr(), folder.path())).expect("write the config");
    let mut command = Command::new(STILLGATE);
    command.arg("run").arg("--config").arg(&config);
    command.stdout(stalled.try_clone().expect("duplicate the pipe")).stderr(stalled);
    let mut child = command.spawn().expect("start the gateway");
    let served = std::panic::catch_unwind(|| {
        eventually("the gateway to listen", || TcpStream::connect(listen.addr()).is_ok());
        let mut client = Client::connect(listen.addr());
        for _ in 0..2_000 {
            assert_eq!(client.get("/a/../..").head.status(), 400);
        }
        assert_eq!(client.get("/").head.status(), 200);
    });
    child.kill().expect("end the gateway");
    child.wait().expect("wait for its end");
    assert!(served.is_ok(), "see above");
}

#[test]
fn a_killed_gateway_starts_again_on_its_port() {
    let upstream = Upstream::echo();
    let mut gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let mut client = gateway.client();
    client.get("/");
    gateway.signal("KILL");
    gateway.wait();
    gateway.restart(STILLGATE);
    assert_eq!(gateway.get("/").head.status(), 200);
}
