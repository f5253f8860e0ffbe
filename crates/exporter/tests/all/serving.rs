//! Responses for all kinds of scrapers: normal ones, slow ones, many, hostile ones.

use crate::running::{RunningExporter, small};
use std::net::TcpStream;
use std::thread;
use stillgate_testkit::{
    ACCEPT_OPENMETRICS, ACCEPT_PROTOBUF, ACCEPT_TEXT, BufferedSocket, Client, SlowScrape, eventually, python_families,
    run_tool, scrape, scrape_on,
};

#[test]
fn each_format_plain_and_packed() {
    let mut running = RunningExporter::start(10);
    running.count(3, 7);
    let text = scrape(running.addr(), "/metrics", ACCEPT_TEXT, false);
    assert_eq!(text.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    assert_eq!(text.header("vary"), "Accept, Accept-Encoding");
    assert_eq!(text.header("transfer-encoding"), "chunked");
    assert!(text.text().contains("requests_total{n=\"3\"} 8\n"), "{}", text.text());
    let openmetrics = scrape(running.addr(), "/metrics", ACCEPT_OPENMETRICS, false);
    assert_eq!(openmetrics.header("content-type"), "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(openmetrics.text().ends_with("# EOF\n"));
    for (scrape, is_openmetrics) in [(&text, false), (&openmetrics, true)] {
        let families = python_families(scrape.text(), is_openmetrics).unwrap();
        let requests = families.iter().find(|family| family.name == "requests").unwrap();
        let total = requests.samples.iter().filter(|sample| sample.name == "requests_total");
        assert_eq!(total.map(|sample| sample.value).sum::<f64>(), 17.0);
    }
    let protobuf = scrape(running.addr(), "/metrics", ACCEPT_PROTOBUF, false);
    assert_eq!(
        protobuf.header("content-type"),
        "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
    );
    assert_eq!(names_of_families(&protobuf.body), ["requests_total", "sizes"]);
    for (accept, plain) in [(ACCEPT_TEXT, &text), (ACCEPT_OPENMETRICS, &openmetrics), (ACCEPT_PROTOBUF, &protobuf)] {
        let packed = scrape(running.addr(), "/metrics", accept, true);
        assert_eq!(packed.header("content-encoding"), "gzip");
        assert_eq!(packed.header("content-type"), plain.header("content-type"));
        assert!(packed.body == plain.body, "{accept}");
        assert!(packed.encoded_bytes < plain.encoded_bytes);
    }
    let counts = running.exporter.counts();
    assert_eq!((counts.text, counts.openmetrics, counts.protobuf, counts.refused), (2, 2, 2, 0));
    assert!(counts.encoding_ns > 0);
}

/// Reads delimited messages whose first field is the name.
fn names_of_families(mut bytes: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    while !bytes.is_empty() {
        let end = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap();
        let len = bytes[..=end].iter().rev().fold(0, |len, byte| len << 7 | usize::from(byte & 0x7f));
        let message = &bytes[end + 1..][..len];
        assert_eq!(message[0], 0x0a, "the name is the first field");
        names.push(String::from_utf8(message[2..][..usize::from(message[1])].to_vec()).unwrap());
        bytes = &bytes[end + 1 + len..];
    }
    names
}

#[test]
fn curl_reads_it() {
    let running = RunningExporter::start(1000);
    let url = format!("http://{}/metrics", running.addr());
    let curl = |arguments: &[&str]| {
        let output = run_tool("curl", "curl", &[&["-sSg", "--fail", url.as_str()], arguments].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let plain = curl(&[]);
    assert_eq!(plain.iter().filter(|byte| **byte == b'\n').count(), 2 + 1000 + 2 + small::LINES);
    assert!(curl(&["--compressed"]) == plain);
    assert!(curl(&["-0"]) == plain, "HTTP/1.0");
    let head = String::from_utf8(curl(&["-I", "--compressed"])).unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("content-encoding: gzip\r\n"), "{head}");
}

#[test]
fn only_the_families_that_are_asked_for() {
    let running = RunningExporter::start(10);
    let check = |query: &str, families: &[&str]| {
        let text = scrape(running.addr(), &format!("/metrics{query}"), ACCEPT_TEXT, false);
        let lines = text.text().lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let found: Vec<_> = lines.filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(found, families, "{query}");
    };
    check("", &["requests_total", "sizes"]);
    check("?name[]=requests_total", &["requests_total"]);
    check("?name%5B%5D=sizes_bucket", &["sizes"]);
    check("?name[]=sizes&name[]=requests_total&x=y", &["requests_total", "sizes"]);
    check("?name[]=nothing", &[]);
    check("?name[]=", &[]);
}

#[test]
fn values_are_those_of_the_moment_of_asking() {
    let mut running = RunningExporter::start(10);
    let mut connection = BufferedSocket::new(TcpStream::connect(running.addr()).unwrap());
    for total in 2..100 {
        running.count(0, 1);
        let text = scrape_on(&mut connection, "/metrics", ACCEPT_TEXT, false);
        assert!(text.text().contains(&format!("requests_total{{n=\"0\"}} {total}\n")));
    }
}

#[test]
fn other_paths_and_methods() {
    let running = RunningExporter::start(10);
    let mut client = Client::connect(running.addr());
    let head = client.request("HEAD", "/metrics", b"");
    assert_eq!((head.head.status(), head.body.len()), (200, 0));
    assert_eq!(head.head.get("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert_eq!(running.exporter.counts().pieces, 0, "a HEAD encodes nothing");
    let index = client.get("/");
    assert!(String::from_utf8_lossy(&index.body).contains("<a href=\"/metrics\">"));
    assert_eq!(client.get("/-/healthy").head.status(), 200);
    let missing = client.get("/metric");
    assert_eq!(missing.head.status(), 404);
    assert!(String::from_utf8_lossy(&missing.body).contains("the metrics are at /metrics"));
    let wrong = client.request("POST", "/metrics", b"body");
    assert_eq!((wrong.head.status(), wrong.head.get("allow")), (405, Some("GET, HEAD")));
}

#[test]
fn hostile_requests_harm_only_themselves() {
    let running = RunningExporter::start(10);
    let status = |request: &[u8]| {
        let mut connection = BufferedSocket::new(TcpStream::connect(running.addr()).unwrap());
        connection.send(request);
        let status = connection.expect_response("GET").head.status();
        connection.expect_close();
        status
    };
    assert_eq!(status(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n"), 400);
    assert_eq!(status(b"GET /metrics\r\n\r\n"), 400);
    assert_eq!(status(&[b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: ".as_slice(), &[b'x'; 70_000]].concat()), 431);
    let silent = TcpStream::connect(running.addr()).unwrap();
    let mut half = BufferedSocket::new(TcpStream::connect(running.addr()).unwrap());
    half.send("GET /metr");
    assert_eq!(scrape(running.addr(), "/metrics", ACCEPT_TEXT, false).status, 200);
    // A client cannot hold a connection without sending a request.
    BufferedSocket::new(silent).expect_close();
    half.expect_close();
}

#[test]
fn a_hundred_scrapers_get_the_same() {
    let running = RunningExporter::start(5000);
    let addr = running.addr();
    let expected = scrape(addr, "/metrics", ACCEPT_TEXT, true).body;
    let before = running.exporter.counts();
    let scrapers: Vec<_> =
        (0..100).map(|number| thread::spawn(move || scrape(addr, "/metrics", ACCEPT_TEXT, number % 2 == 0))).collect();
    for scraper in scrapers {
        let scraped = scraper.join().unwrap();
        assert_eq!(scraped.status, 200);
        assert!(scraped.body == expected);
    }
    let counts = running.exporter.counts();
    assert_eq!((counts.text - before.text, counts.refused), (100, 0));
    eventually("all places to be free", || running.exporter.counts().scraping == 0);
}

#[test]
fn a_slow_scraper_pins_little_and_holds_up_nobody() {
    let running = RunningExporter::large();
    let addr = running.addr();
    let whole = scrape(addr, "/metrics", ACCEPT_TEXT, false);
    let before = running.exporter.counts().bytes;
    let mut slow = SlowScrape::start(addr, "/metrics", ACCEPT_TEXT, false);
    for _ in 0..2000 {
        assert!(slow.take_byte());
    }
    // The buffers of the kernel on both sides, the server's, and a piece.
    let made = running.exporter.counts().bytes - before;
    assert!(made < whole.body.len() as u64 / 2 && made < 1 << 20, "{made} of {}", whole.body.len());
    let during = scrape(addr, "/metrics", ACCEPT_TEXT, true);
    assert!(during.body == whole.body);
    // A response is complete before its place is free.
    eventually("only the slow one to be answered", || running.exporter.counts().scraping == 1);
    assert!(slow.finish().body == whole.body);
    eventually("the place to be free", || running.exporter.counts().scraping == 0);
}

#[test]
fn hanging_up_stops_the_work() {
    let running = RunningExporter::large();
    let whole = scrape(running.addr(), "/metrics", ACCEPT_TEXT, false);
    let before = running.exporter.counts();
    let mut scraper = SlowScrape::start(running.addr(), "/metrics", ACCEPT_TEXT, false);
    for _ in 0..100 {
        assert!(scraper.take_byte());
    }
    scraper.hang_up();
    eventually("the scrape to be given up", || running.exporter.counts().scraping == 0);
    let made = running.exporter.counts().bytes - before.bytes;
    assert!(made < whole.body.len() as u64 / 2, "{made} of {}", whole.body.len());
}

#[test]
fn there_is_a_bound_on_scrapes() {
    let running = RunningExporter::large();
    let stuck: Vec<_> = (0..128).map(|_| SlowScrape::start(running.addr(), "/metrics", ACCEPT_TEXT, false)).collect();
    eventually("all places to be taken", || running.exporter.counts().scraping == 128);
    let refused = scrape(running.addr(), "/metrics", ACCEPT_TEXT, false);
    assert_eq!((refused.status, refused.header("retry-after")), (503, "1"));
    assert!(String::from_utf8_lossy(&refused.body).contains("128 scrapes are being answered"));
    assert_eq!(running.exporter.counts().refused, 1);
    stuck.into_iter().for_each(SlowScrape::hang_up);
    eventually("a place to be free", || scrape(running.addr(), "/metrics", ACCEPT_TEXT, true).status == 200);
}
