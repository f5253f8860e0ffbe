//! Operations of an exporter's owner.

use crate::running::{RunningExporter, registry};
use std::future::Future;
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};
use stillgate_exporter::{Exporter, ExpositionSite};
use stillgate_metrics::{Collector, CollectorOptions};
use stillgate_testkit::{ACCEPT_TEXT, BufferedSocket, Client, SlowScrape, eventually, scrape};

/// The time for a scrape in flight when the exporter is to end, and for a connection without a request when it stops
/// serving.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_millis(500);

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

#[test]
fn questions_and_orders() {
    let mut running = RunningExporter::start(10);
    let families = wait(running.exporter.cardinality()).unwrap();
    let requests = families.iter().find(|family| family.name == "requests_total").unwrap();
    assert_eq!(requests.series, 10);

    wait(running.exporter.remove(vec!["n".to_owned()], vec![vec!["3".to_owned()], vec!["4".to_owned()]]));
    let has = |running: &RunningExporter, line: &str| {
        scrape(running.addr(), "/metrics", ACCEPT_TEXT, false).text().contains(line)
    };
    eventually("the series to go", || {
        running.tick();
        !has(&running, "requests_total{n=\"3\"}") && !has(&running, "requests_total{n=\"4\"}")
    });
    assert!(has(&running, "requests_total{n=\"5\"} 1\n"));

    wait(running.exporter.restore(vec!["n".to_owned()], vec![vec!["3".to_owned()]]));
    running.count(3, 5);
    let text = scrape(running.addr(), "/metrics", ACCEPT_TEXT, false);
    assert!(text.text().contains("requests_total{n=\"3\"} 5\n"), "a new life: {}", text.text());

    wait(running.exporter.set_site(ExpositionSite::at("/elsewhere")));
    let mut client = Client::connect(running.addr());
    assert_eq!(client.get("/metrics").head.status(), 404);
    assert_eq!(client.get("/elsewhere").head.status(), 200);
}

#[test]
fn stopping_lets_scrapes_finish() {
    let running = RunningExporter::large();
    let addr = running.addr();
    let whole = scrape(addr, "/metrics", ACCEPT_TEXT, false);
    let mut kept = Client::connect(addr);
    kept.get("/-/healthy");
    let mut kept = kept.into_connection();
    let mut slow = SlowScrape::start(addr, "/metrics", ACCEPT_TEXT, false);
    assert!(slow.take_byte());
    let (exporter, began) = (running.exporter, Instant::now());
    let stopping = thread::spawn(move || exporter.stop());
    kept.expect_close();
    eventually("new connections to be refused", || TcpStream::connect(addr).is_err());
    let is_finished = stopping.is_finished();
    let scraped = thread::spawn(move || slow.finish()).join();
    // Unless it did nothing for so long that it was given up.
    let is_late = began.elapsed() > STOP_TIMEOUT;
    assert!(is_late || !is_finished && scraped.is_ok_and(|scraped| scraped.body == whole.body));
    stopping.join().unwrap().unwrap();
}

#[test]
fn stopping_does_not_wait_for_ever() {
    let running = RunningExporter::large();
    let stuck = SlowScrape::start(running.addr(), "/metrics", ACCEPT_TEXT, false);
    eventually("the scrape to begin", || running.exporter.counts().scraping == 1);
    running.exporter.stop().unwrap();
    drop(stuck);
}

#[test]
fn one_socket_is_served_by_one_after_the_other() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let running = RunningExporter::on(socket.try_clone().unwrap(), registry(None), 10_000, 280);
    let next = Exporter::spawn(None, collector(), ExpositionSite::at("/metrics")).unwrap();
    let (addr, whole) = (running.addr(), scrape(running.addr(), "/metrics", ACCEPT_TEXT, false));
    let mut kept = Client::connect(addr);
    kept.get("/-/healthy");
    let mut kept = kept.into_connection();
    let mut slow = SlowScrape::start(addr, "/metrics", ACCEPT_TEXT, false);
    assert!(slow.take_byte());
    // Either of the two may accept it.
    let mut silent = Client::connect(addr);
    let began = Instant::now();
    wait(running.exporter.stop_serving());
    let sent = silent.try_send("GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let is_late = began.elapsed() > FIRST_REQUEST_TIMEOUT;
    kept.expect_close();
    let silent = thread::spawn(move || {
        sent.is_ok() && silent.read_response("GET").is_ok_and(|response| response.head.status() == 200)
    });
    let waiting = thread::spawn(move || scrape(addr, "/metrics", ACCEPT_TEXT, false));
    wait(next.serve(Some(socket.try_clone().unwrap())));
    let theirs = waiting.join().unwrap();
    assert_eq!((theirs.status, theirs.text().contains("requests_total{")), (200, false), "the next one's");
    assert!(silent.join().unwrap() || is_late, "who has just connected may ask");
    assert!(slow.finish().body == whole.body, "what was begun is finished");
    assert!(wait(running.exporter.cardinality()).is_some(), "everything else goes on");
    next.stop().unwrap();
    wait(running.exporter.serve(Some(socket.try_clone().unwrap())));
    assert!(scrape(addr, "/metrics", ACCEPT_TEXT, false).body == whole.body, "and may be served again");
    running.exporter.stop().unwrap();
}

#[test]
fn dropping_the_handle_ends_it() {
    let running = RunningExporter::start(10);
    let addr = running.addr();
    let mut connection = BufferedSocket::new(TcpStream::connect(addr).unwrap());
    drop(running);
    connection.expect_close();
    eventually("the address to be free", || TcpListener::bind(addr).is_ok());
}

fn collector() -> Collector {
    Collector::of_registry(registry(None), CollectorOptions::default()).unwrap()
}

#[test]
fn without_a_listener_it_still_tends() {
    let exporter = Exporter::spawn(None, collector(), ExpositionSite::at("/metrics")).unwrap();
    assert_eq!(exporter.address(), None);
    assert!(wait(exporter.cardinality()).is_some());
    assert!(!exporter.has_ended());
    let (late, later) = (exporter.cardinality(), exporter.set_site(ExpositionSite::at("/late")));
    exporter.stop().unwrap();
    assert!(wait(late).is_none());
    wait(later);
}

#[test]
fn a_folder_that_nobody_has_written_yet_is_picked_up_when_somebody_does() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("metrics");
    let collector = Collector::open(&folder, CollectorOptions::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let exporter = Exporter::spawn(Some(listener), collector, ExpositionSite::at("/metrics")).unwrap();
    let addr = exporter.address().unwrap();
    let refused = scrape(addr, "/metrics", ACCEPT_TEXT, true);
    assert_eq!((refused.status, refused.header("retry-after")), (503, "1"));
    let body = String::from_utf8(refused.body).unwrap();
    assert!(body.contains(folder.to_str().unwrap()), "{body}");

    let running = RunningExporter::of(registry(Some(folder)), 10, 0);
    let theirs = scrape(addr, "/metrics", ACCEPT_TEXT, false);
    assert!(theirs.text().contains("requests_total{n=\"9\"} 1\n"));
    assert_eq!(theirs.text(), scrape(running.addr(), "/metrics", ACCEPT_TEXT, false).text());
}
