//! Compressed responses, end to end: decoded by curl, Python and Chromium, in every framing of the node and whenever the client
//! leaves.

use crate::scripted::{Node, chunked, gzip, resources, with_length};
use crate::shared::reflect::{ask, gateway, try_ask};
use brotli_decompressor::Decompressor;
use flate2::read::MultiGzDecoder;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use stillgate_testkit::{Gateway, Message, MessageError, PATIENCE, Upstream, eventually, require_tool, run_tool};
use zstd_safe::{DCtx, InBuffer, OutBuffer};

/// The plugins: the route of each, and the value of `Content-Encoding`.
const ALL: [(&str, &str); 3] = [("/gzip", "gzip"), ("/brotli", "br"), ("/zstd", "zstd")];
const HTML: &str = "Content-Type: text/html\r\n";

fn routes() -> Vec<(&'static str, &'static str)> {
    vec![
        ("/gzip", r#"{"gzip": {"types": "*", "min_length": 1, "vary": true}}"#),
        ("/brotli", r#"{"brotli": {"types": "*", "min_length": 1, "vary": true}}"#),
        ("/zstd", r#"{"zstd": {"types": "*", "min_length": 1, "vary": true}}"#),
        ("/all", r#"{"gzip": {"types": "*"}, "brotli": {"types": "*"}, "zstd": {"types": "*"}}"#),
        (
            "/hidden",
            r#"{"brotli": {"types": "*"}, "response-rewrite": {"filters": [{"regex": "secret", "replace": "public"}]}}"#,
        ),
        (
            "/mocked",
            r#"{"gzip": {"types": ["text/plain"]}, "mocking": {"content_type": "text/plain", "response_example": "made up, and made up once more"}}"#,
        ),
        (
            "/weighed",
            r#"{"gzip": {"types": "*", "vary": true}, "brotli": {"types": "*", "min_length": 100, "vary": true}, "zstd": {"types": "*", "vary": true}}"#,
        ),
        ("/plain", "{}"),
    ]
}

fn decode(coding: Option<&str>, mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match coding {
        None => return body.to_vec(),
        Some("gzip") => drop(MultiGzDecoder::new(body).read_to_end(&mut out).expect("gzip")),
        Some("br") => drop(Decompressor::new(&mut body, 4096).read_to_end(&mut out).expect("brotli")),
        Some(_) => {
            let (plain, is_whole) = unzstd(body);
            assert!(is_whole, "a zstd frame without an end");
            out = plain;
        }
    }
    out
}

/// What can be read of a zstd frame, and whether that is all.
fn unzstd(coded: &[u8]) -> (Vec<u8>, bool) {
    let (mut context, mut input) = (DCtx::create(), InBuffer::around(coded));
    let (mut out, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
    loop {
        let mut output = OutBuffer::around(&mut buffer[..]);
        let wanted = context.decompress_stream(&mut output, &mut input).expect("zstd");
        let count = output.pos();
        out.extend_from_slice(&buffer[..count]);
        if wanted == 0 || count < buffer.len() && input.pos() == coded.len() {
            assert!(wanted > 0 || input.pos() == coded.len(), "bytes behind the frame");
            return (out, wanted == 0);
        }
    }
}

fn by_program(program: &str, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    use std::process::{Command, Stdio};
    let mut command = Command::new(program);
    let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect(program);
    let (mut stdin, input) = (child.stdin.take().expect("piped"), input.to_vec());
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().expect(program);
    writer.join().expect("no panic").expect("it reads all");
    assert!(output.status.success(), "{program} refuses the body");
    output.stdout
}

#[track_caller]
fn check(response: &Message, coding: Option<&str>, body: &[u8], what: &str) {
    assert_eq!(response.head.get("content-encoding"), coding, "{what}: {:?}", response.head);
    assert!(decode(coding, &response.body) == body, "{what}: {} bytes", response.body.len());
}

fn page(bytes: usize) -> Vec<u8> {
    let lines = (0..).map(|number| format!("<p>This is line {number} of the page.</p>\n"));
    let mut page = String::new();
    lines
        .take_while(|line| {
            page.push_str(line);
            page.len() < bytes
        })
        .for_each(drop);
    page.into_bytes()
}

#[test]
fn every_split_of_a_response_decodes_alike() {
    let node = Node::new();
    let mut gateway = node.gateway(&routes());
    let mut client = gateway.client();
    let body = page(150);
    let responses = [
        (with_length(HTML, &body), false),
        (chunked(HTML, &body, 7, ""), false),
        ([b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n", &body[..]].concat(), true),
    ];
    for (response, closes) in &responses {
        for (route, coding) in &ALL {
            let asks = format!("Accept-Encoding: {coding}");
            for at in 0..=response.len() {
                node.sends(&[&response[..at], &response[at..]], *closes);
                let answer = ask(&mut client, &format!("GET {route}"), &[&asks]);
                check(&answer, Some(coding), &body, &format!("{route} split at {at}"));
            }
            let bytes: Vec<&[u8]> = response.chunks(1).collect();
            node.sends(&bytes, *closes);
            check(&ask(&mut client, &format!("GET {route}"), &[&asks]), Some(coding), &body, "byte by byte");
        }
    }
    gateway.assert_healthy();
}

#[test]
fn what_has_no_body_or_is_coded_stays_as_it_is() {
    let node = Node::new();
    let mut gateway = node.gateway(&routes());
    let mut client = gateway.client();
    let body = page(500);
    for (route, coding) in ALL {
        let get = format!("GET {route}");
        let asks = format!("Accept-Encoding: {coding}");
        let mut sent = |response: &[u8], start: &str, lines: &[&str]| {
            node.sends_whole(response, false);
            ask(&mut client, start, lines)
        };
        let plain = with_length(HTML, &body);
        check(&sent(&plain, &get, &[&asks]), Some(coding), &body, route);
        check(&sent(&plain, &get, &[]), None, &body, "nothing is taken");
        check(&sent(&plain, &get, &[&format!("{asks};q=0")]), None, &body, "it is not taken");
        let head_only = format!("HTTP/1.1 200 OK\r\n{HTML}Content-Length: {}\r\n\r\n", body.len());
        let answer = sent(head_only.as_bytes(), &format!("HEAD {route}"), &[&asks]);
        check(&answer, None, b"", "HEAD");
        assert_eq!(answer.head.get("vary"), Some("Accept-Encoding"));
        for status in ["204 No Content", "304 Not Modified"] {
            let answer = sent(format!("HTTP/1.1 {status}\r\n{HTML}\r\n").as_bytes(), &get, &[&asks]);
            check(&answer, None, b"", status);
        }
        check(&sent(&with_length(HTML, b""), &get, &[&asks]), None, b"", "an empty body");
        check(&sent(&with_length(HTML, b"x"), &get, &[&asks]), Some(coding), b"x", "a tiny body");
        check(&sent(&chunked(HTML, b"", 1, ""), &get, &[&asks]), Some(coding), b"", "an empty chunked body");
        let part =
            format!("HTTP/1.1 206 Partial Content\r\n{HTML}Content-Range: bytes 0-2/9\r\nContent-Length: 3\r\n\r\nabc");
        let answer = sent(part.as_bytes(), &get, &[&asks, "Range: bytes=0-2"]);
        check(&answer, None, b"abc", "206");
        let coded = gzip(&body);
        let answer =
            sent(&with_length(&format!("{HTML}Content-Encoding: gzip\r\nETag: \"a\"\r\n"), &coded), &get, &[&asks]);
        check(&answer, Some("gzip"), &body, "coded by the node");
        assert_eq!(answer.head.get("etag"), Some("\"a\""));
        let answer = sent(&with_length(&format!("{HTML}ETag: \"a\"\r\n"), &body), &get, &[&asks]);
        assert_eq!(answer.head.get("etag"), Some("W/\"a\""));
    }
    node.sends_whole(&with_length(HTML, b"a secret, long enough to be coded"), false);
    let answer = ask(&mut client, "GET /hidden", &["Accept-Encoding: br"]);
    check(&answer, Some("br"), b"a public, long enough to be coded", "contents are coded last");
    let answer = ask(&mut client, "GET /mocked", &["Accept-Encoding: gzip"]);
    check(&answer, Some("gzip"), b"made up, and made up once more", "an answer of our own");
    gateway.assert_healthy();
}

#[test]
fn the_highest_weight_decides_among_codings() {
    let node = Node::new();
    let mut gateway = node.gateway(&routes());
    let mut client = gateway.client();
    let mut check_one = |accept: &str, body: &[u8], coding: Option<&str>| {
        node.sends_whole(&with_length(&format!("{HTML}ETag: \"a\"\r\n"), body), false);
        let answer = ask(&mut client, "GET /weighed", &[&format!("Accept-Encoding: {accept}")]);
        check(&answer, coding, body, accept);
        assert_eq!(answer.head.all("vary"), ["Accept-Encoding"], "{accept}");
        assert_eq!(answer.head.get("etag"), Some(if coding.is_some() { "W/\"a\"" } else { "\"a\"" }), "{accept}");
    };
    let long = page(500);
    check_one("gzip, br, zstd", &long, Some("zstd"));
    check_one("gzip, br", &long, Some("br"));
    check_one("gzip;q=0.9, br;q=0.8, zstd;q=0.7", &long, Some("gzip"));
    check_one("gzip;q=0.1, br;q=0.8, zstd;q=0.7", &long, Some("br"));
    check_one("gzip;q=0.8, br;q=0.8, zstd;q=0.7", &long, Some("br"));
    check_one("*;q=0.5, gzip", &long, Some("gzip"));
    check_one("gzip;q=0.5, identity", &long, None);
    // Too short for brotli.
    check_one("gzip;q=0.1, br, zstd;q=0.7", &page(70), Some("zstd"));
    gateway.assert_healthy();
}

/// A node that sends the page of a route; the page `/plain` requests the others and shows what came.
fn site(pages: Vec<u8>) -> Upstream {
    const SCRIPT: &str = "<html><body><script>(async () => {\
        for (const of of ['/gzip', '/brotli', '/zstd', '/all']) {\
            const response = await fetch(of);\
            const text = await response.text();\
            const p = document.createElement('p');\
            p.textContent = [of, response.headers.get('content-encoding'), text.length, text.slice(-20)].join('|');\
            document.body.append(p);\
        } })()</script></body></html>";
    Upstream::serve(move |connection| {
        while let Ok(request) = connection.read_request() {
            let (_, target) = request.head.method_and_target();
            let body = if target == "/plain" { SCRIPT.as_bytes() } else { &pages };
            if connection.try_send(with_length(HTML, body)).is_err() {
                return;
            }
        }
    })
}

#[test]
fn curl_python_and_chromium_decode() {
    require_tool("curl", "curl");
    let body = page(300_000);
    let node = site(body.clone());
    let mut gateway = gateway(node.addr(), &resources(&routes()));
    let url = |route: &str| format!("http://{}{route}", gateway.addr());
    let size = body.len().to_string();
    for (route, coding) in ALL {
        let asks = format!("Accept-Encoding: {coding}");
        let arguments = ["-sS", "--compressed", "-H", &asks, "-w", "%header{content-encoding}", &url(route)];
        let output = run_tool("curl", "curl", &arguments);
        let expected = [&body[..], coding.as_bytes()].concat();
        assert!(output.status.success() && output.stdout == expected, "curl {route}: {} bytes", output.stdout.len());
    }
    let zstd = run_tool("curl", "curl", &["-sS", "-H", "Accept-Encoding: zstd", &url("/zstd")]).stdout;
    assert!(by_program("zstd", &["-dc"], &zstd) == body, "the program zstd");
    let script = "import sys, urllib.request, zlib, brotli, zstandard\n\
        decode = {'gzip': lambda coded: zlib.decompress(coded, 31), 'br': brotli.decompress,\n\
        \x20   'zstd': lambda coded: zstandard.ZstdDecompressor().decompressobj().decompress(coded)}\n\
        for path, coding in (('/gzip', 'gzip'), ('/brotli', 'br'), ('/zstd', 'zstd')):\n\
        \x20   request = urllib.request.Request(sys.argv[1] + path, headers={'Accept-Encoding': coding})\n\
        \x20   response = urllib.request.urlopen(request)\n\
        \x20   assert response.headers['Content-Encoding'] == coding, response.headers\n\
        \x20   coded = response.read()\n\
        \x20   body = decode[coding](coded)\n\
        \x20   print(coding, len(body), len(coded) < len(body) // 4, body[-5:])\n";
    let output = run_tool("/usr/bin/python3", "python3-zstandard", &["-c", script, &url("")]);
    let said = String::from_utf8_lossy(&output.stdout);
    let expected: String = ["gzip", "br", "zstd"].map(|coding| format!("{coding} {size} True b'</p>\\n'\n")).concat();
    assert!(said == expected, "{said}{}", String::from_utf8_lossy(&output.stderr));
    let dom = by_chromium(&url("/plain"));
    for (route, coding) in [ALL[0], ALL[1], ALL[2], ("/all", "zstd")] {
        let shown = format!("{route}|{coding}|{size}|");
        assert!(dom.contains(&shown), "Chromium does not show {shown}: {dom}");
    }
    gateway.assert_healthy();
}

fn by_chromium(url: &str) -> String {
    require_tool("chromium", "chromium");
    let profile = tempfile::tempdir().expect("a temporary folder");
    let profile = format!("--user-data-dir={}", profile.path().display());
    let arguments = [
        "--kill-after=5",
        "120",
        "chromium",
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        "--virtual-time-budget=20000",
        &profile,
        "--dump-dom",
        url,
    ];
    let output = run_tool("timeout", "coreutils", &arguments);
    assert!(output.status.success(), "chromium: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The content of what has come of a chunked response.
fn content(response: &[u8]) -> Vec<u8> {
    let Some(head) = response.windows(4).position(|end| end == b"\r\n\r\n") else { return Vec::new() };
    let (mut rest, mut content) = (&response[head + 4..], Vec::new());
    while let Some(line) = rest.windows(2).position(|end| end == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).expect("a size"), 16).expect("a size");
        let Some(chunk) = rest.get(line + 2..line + 2 + size) else { break };
        content.extend_from_slice(chunk);
        let Some(behind) = rest.get(line + 4 + size..).filter(|_| size > 0) else { break };
        rest = behind;
    }
    content
}

/// What can be read of a body that has not ended.
fn beginning(coding: &str, mut coded: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    // The error is that of the missing end.
    let _ = match coding {
        "gzip" => MultiGzDecoder::new(coded).read_to_end(&mut out),
        "zstd" => return unzstd(coded).0,
        _ => Decompressor::new(&mut coded, 4096).read_to_end(&mut out),
    };
    out
}

#[test]
fn the_beginning_of_a_body_does_not_wait_for_its_rest() {
    for (route, coding) in &ALL {
        let (go, goes) = mpsc::sync_channel::<()>(64);
        let goes = std::sync::Mutex::new(goes);
        let node = Upstream::serve(move |connection| {
            let Ok(_) = connection.read_request() else { return };
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            for event in ["first", "second", "third"] {
                let start = if event == "first" { head } else { "" };
                let _ = connection.try_send(format!("{start}{:x}\r\n{event}\r\n", event.len()));
                if goes.lock().expect("no test panics with it").recv_timeout(PATIENCE).is_err() {
                    return;
                }
            }
            let _ = connection.try_send("0\r\n\r\n");
        });
        let mut gateway = gateway(node.addr(), &resources(&routes()));
        let mut client = TcpStream::connect(gateway.addr()).expect("the gateway listens");
        client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        write!(client, "GET {route} HTTP/1.1\r\nHost: h\r\nAccept-Encoding: {coding}\r\n\r\n").expect("a request");
        let (mut response, mut buffer) = (Vec::new(), [0; 4096]);
        for expected in ["first", "firstsecond", "firstsecondthird"] {
            while beginning(coding, &content(&response)) != expected.as_bytes() {
                let count = client.read(&mut buffer).expect("more of the response");
                assert!(count > 0, "{route}: the response ends at {expected}");
                response.extend_from_slice(&buffer[..count]);
            }
            go.send(()).expect("the node waits");
        }
        while !response.ends_with(b"\r\n0\r\n\r\n") {
            let count = client.read(&mut buffer).expect("the end");
            assert!(count > 0, "no end");
            response.extend_from_slice(&buffer[..count]);
        }
        assert_eq!(decode(Some(coding), &content(&response)), b"firstsecondthird");
        gateway.assert_healthy();
    }
}

#[test]
fn clients_that_stop_leave_nothing_behind() {
    let body = page(3_000_000);
    let node = site(body.clone());
    let mut gateway = gateway(node.addr(), &resources(&routes()));
    for round in 0..40 {
        for (route, coding) in ALL {
            let mut client = TcpStream::connect(gateway.addr()).expect("the gateway listens");
            write!(client, "GET {route} HTTP/1.1\r\nHost: h\r\nAccept-Encoding: {coding}\r\n\r\n").expect("a request");
            let mut some = vec![0; 1 + 97 * round];
            client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            client.read_exact(&mut some).expect("the beginning");
        }
    }
    // The memory for encoders that they used is available to others.
    for (route, coding) in ALL {
        eventually("a coded response", || is_coded(&gateway, route, coding, &body));
    }
    gateway.assert_healthy();
}

fn is_coded(gateway: &Gateway, route: &str, coding: &str, body: &[u8]) -> bool {
    let mut client = gateway.client();
    let response: Result<Message, MessageError> =
        try_ask(&mut client, &format!("GET {route}"), &[&format!("Accept-Encoding: {coding}")]);
    let response = response.expect("a response");
    let is_coded = response.head.get("content-encoding") == Some(coding);
    assert!(decode(response.head.get("content-encoding"), &response.body) == body, "{route}");
    is_coded
}
