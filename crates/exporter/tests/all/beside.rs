//! Scrapes over connections from another thread of the process.

use crate::running::RunningExporter;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use stillgate_exporter::ScrapeForwarder;
use stillgate_testkit::{ACCEPT_TEXT, eventually, scrape};

/// Most concurrent scrapes over connections within the process.
const SCRAPES_MAX: usize = 16;

/// A connection that requests the exposition, with these lines in the head.
fn ask(forwarder: &ScrapeForwarder, target: &str, lines: &str) -> UnixStream {
    let (mut ours, exporters) = UnixStream::pair().unwrap();
    write!(ours, "GET {target} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n").unwrap();
    assert!(forwarder.forward(exporters));
    ours
}

/// The whole response, up to the end, which is a reset if the request was not read to its end.
fn read(mut connection: UnixStream) -> String {
    let mut text = Vec::new();
    match connection.read_to_end(&mut text) {
        Ok(_) => {}
        Err(error) => assert!(error.kind() == ErrorKind::ConnectionReset && text.is_empty(), "{error}"),
    }
    String::from_utf8(text).unwrap()
}

#[test]
fn the_exposition_is_given_whatever_the_path() {
    let running = RunningExporter::start(10);
    let forwarder = running.exporter.route_scrapes();
    for target in ["/", "/elsewhere", "/metrics"] {
        let text = read(ask(&forwarder, target, ""));
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(text.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{text}");
        assert!(text.contains("requests_total{n=\"3\"} 1\n") && text.contains("sizes_count 1\n"), "{text}");
    }
    let some = read(ask(&forwarder, "/?name[]=sizes", "Accept: application/openmetrics-text\r\n"));
    assert!(some.contains("application/openmetrics-text") && !some.contains("requests_total"), "{some}");
}

#[test]
fn scrapes_that_nobody_reads_have_a_bound_of_their_own() {
    let running = RunningExporter::large();
    let forwarder = running.exporter.route_scrapes();
    let refused = running.exporter.counts().refused;
    let mut stuck: Vec<UnixStream> = (0..SCRAPES_MAX).map(|_| ask(&forwarder, "/", "")).collect();
    eventually("all to be under way", || running.exporter.counts().scraping == SCRAPES_MAX as u64);
    assert_eq!(read(ask(&forwarder, "/", "")), "", "there is no place");
    assert_eq!(running.exporter.counts().refused, refused + 1);
    // Connections to the exporter's own address have their own places.
    let whole = scrape(running.addr(), "/metrics", ACCEPT_TEXT, false);
    assert_eq!(whole.status, 200);
    drop(stuck.pop());
    eventually("a place to be free", || running.exporter.counts().scraping == SCRAPES_MAX as u64 - 1);
    assert!(read(ask(&forwarder, "/", "")).contains("requests_total{"));
    // A client that waited gets all of it, as fast as it reads.
    assert!(read(stuck.pop().unwrap()).len() > whole.body.len());
}

#[test]
fn it_is_closed_while_another_process_exposes_and_where_the_exporter_has_ended() {
    let running = RunningExporter::start(10);
    let (forwarder, runtime) =
        (running.exporter.route_scrapes(), tokio::runtime::Builder::new_current_thread().build().unwrap());
    runtime.block_on(running.exporter.stop_serving());
    assert_eq!(read(ask(&forwarder, "/", "")), "");
    runtime.block_on(running.exporter.serve(None));
    assert!(read(ask(&forwarder, "/", "")).starts_with("HTTP/1.1 200 OK\r\n"));
    running.exporter.stop().unwrap();
    assert!(!forwarder.forward(UnixStream::pair().unwrap().0));
}
