//! Answers in every form that servers may give, and in invalid forms.

use crate::engine::server::{AfterAnswer, ok, serve, write};
use crate::engine::{MS, errors, even, load, millis, outcome};
use std::io::Read;
use std::net::TcpListener;
use std::thread;
use stillgate_load::{ErrorKind, Load, Mix, Note, Pace, RunSummary};

/// Ten requests, each answered by these bytes; then the connection is closed or kept.
fn answered_by(method: &str, answer: &'static [u8], then_close: bool) -> RunSummary {
    let server = serve(move |stream, _| match write(stream, answer) {
        AfterAnswer::Keep if !then_close => AfterAnswer::Keep,
        _ => AfterAnswer::Close,
    });
    let load = load(server.address, even(100.0), 2, millis(100));
    outcome(&Load { mix: Mix::single(method, "/x", "test.example", &[], Vec::new()).unwrap(), ..load })
}

#[test]
fn answers_of_every_form() {
    let check = |method, answer, then_close| {
        let outcome = answered_by(method, answer, then_close);
        assert_eq!(outcome.errors.examples, [""; 0], "{}", String::from_utf8_lossy(answer));
        assert_eq!((outcome.requests, outcome.sent), (10, 10), "{}", String::from_utf8_lossy(answer));
    };
    check("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", false);
    check("GET", b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc", true);
    check("GET", b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", true);
    check("GET", b"HTTP/1.1 200 OK\r\n\r\nuntil the end", true);
    check("GET", b"HTTP/1.1 204 No Content\r\n\r\n", false);
    check("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 77\r\n\r\n", false);
    check("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n", false);
    check(
        "GET",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n",
        false,
    );
    check("GET", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false);
}

#[test]
fn answers_that_are_none() {
    let check = |answer, then_close, kind, words: &str| {
        let outcome = answered_by("GET", answer, then_close);
        let text = String::from_utf8_lossy(answer);
        assert_eq!(outcome.requests, 0, "{text}");
        assert!(errors(&outcome, kind) > 0, "{text}: {:?}", outcome.errors);
        assert_eq!(errors(&outcome, kind), outcome.errors.total(), "{text}: {:?}", outcome.errors);
        assert!(outcome.errors.examples[0].contains(words), "{text}: {:?}", outcome.errors);
        // Each start failed, or was missed because of the pauses after failures.
        assert_eq!(outcome.errors.total() + outcome.self_watch.missed_starts, 10, "{text}: {outcome:?}");
    };
    let malformed = ErrorKind::Malformed;
    check(b"SSH-2.0-OpenSSH_9.2\r\n", false, malformed, "answer head");
    check(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef", false, malformed, "3 bytes after the end");
    check(b"HTTP/1.1 200 OK\r\nContent-Length: 3, 4\r\n\r\nabc", false, malformed, "answer head");
    check(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", false, malformed, "answer body");
    let closed = ErrorKind::Closed;
    check(b"", true, closed, "before an answer");
    check(b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\nabc", true, closed, "in the middle of the answer");
}

#[test]
fn an_unexpected_status_is_an_answer_and_an_error() {
    let outcome = answered_by("GET", b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", false);
    assert_eq!((outcome.requests, errors(&outcome, ErrorKind::Status), outcome.errors.total()), (10, 10, 10));
    assert_eq!((outcome.good, outcome.good_in_time, outcome.rate_achieved), (0, 0, 0.0));
    assert_eq!((outcome.latencies.corrected.len(), outcome.refused.len()), (0, 10));
    assert!(outcome.errors.examples[0].contains("502"), "{:?}", outcome.errors);
}

#[test]
fn fast_refusals_are_neither_in_the_latencies_nor_in_the_rate() {
    for pace in [even(200.0), Pace::Closed] {
        // One in four is good, and takes 20 ms at least.
        let server = serve(|stream, asked| match asked.total % 4 {
            0 => {
                thread::sleep(millis(20));
                ok(stream, "ok")
            }
            _ => write(stream, b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"),
        });
        let outcome = outcome(&load(server.address, pace, 4, millis(200)));
        let (good, refused) = (outcome.good, errors(&outcome, ErrorKind::Status));
        assert!(good > 0 && refused >= 3 * good - 12, "{outcome:?}");
        assert_eq!((good + refused, outcome.errors.total()), (outcome.requests, refused));
        let latencies = &outcome.latencies.corrected;
        assert_eq!((latencies.len(), outcome.refused.len()), (good, refused));
        assert!(latencies.min() >= 19 * MS && outcome.refused.value_at_quantile(0.5) < latencies.min(), "{outcome:?}");
        let rated = outcome.rate_achieved * outcome.elapsed.as_secs_f64();
        assert!(rated <= good as f64 && outcome.good_in_time <= good, "{outcome:?}");
        assert!(outcome.notes.contains(&Note::Refused { refused, of: outcome.requests }), "{:?}", outcome.notes);
    }
}

#[test]
fn answers_in_single_bytes() {
    let server = serve(|stream, _| {
        let answer =
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        for byte in answer {
            if write(stream, &[*byte]) == AfterAnswer::Close {
                return AfterAnswer::Close;
            }
            thread::yield_now();
        }
        AfterAnswer::Keep
    });
    let outcome = outcome(&load(server.address, even(100.0), 2, millis(200)));
    assert_eq!(outcome.errors.examples, [""; 0]);
    assert_eq!((outcome.requests, outcome.sent), (20, 20));
}

#[test]
fn bodies_larger_than_the_sockets_buffers() {
    const BODY_BYTES: usize = 12 * 1024 * 1024;
    let server = serve(|stream, asked| {
        assert_eq!(asked.body_bytes, BODY_BYTES as u64);
        ok(stream, "ok")
    });
    let load = load(server.address, even(20.0), 2, millis(300));
    let mix = Mix::single("POST", "/", "test.example", &[], vec![b'x'; BODY_BYTES]).unwrap();
    let outcome = outcome(&Load { mix, ..load });
    assert_eq!(outcome.errors.examples, [""; 0]);
    assert_eq!((outcome.requests, outcome.send.len()), (6, 6));
}

#[test]
fn an_answer_before_the_request_was_read() {
    // Refuses a long body after its first bytes.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut some = [0; 16];
                if matches!(stream.read(&mut some), Ok(1..)) {
                    let refusal = b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
                    write(&mut stream, refusal);
                    // Closing now would be a reset, which may overtake the answer.
                    while matches!(stream.read(&mut some), Ok(1..)) {}
                }
            });
        }
    });
    let load = load(address, even(50.0), 2, millis(100));
    let mix = Mix::single("POST", "/", "test.example", &[], vec![b'x'; 32 * 1024 * 1024]).unwrap();
    let outcome = outcome(&Load { mix, ..load });
    assert_eq!((outcome.requests, errors(&outcome, ErrorKind::Status), outcome.errors.total()), (5, 5, 5));
}
