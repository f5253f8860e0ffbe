//! Calls to servers that answer, fail, stall and lie.

use super::*;
use std::time::Duration;
use stillgate_plugin_api::{Keep, Url};
use stillgate_testkit::{BufferedSocket, Upstream};
use tokio::task::LocalSet;

fn call_to(server: &Upstream, target: &str) -> Call {
    let url = Url::parse(&format!("http://{}{target}", server.addr()), true).unwrap();
    patient(Call::new(&url.origin, b"GET", url.target.as_bytes()))
}

fn patient(mut call: Call) -> Call {
    call.timeout = stillgate_testkit::PATIENCE;
    call
}

fn keeping(mut call: Call, keep: Option<Keep>) -> Call {
    call.keep = keep;
    call
}

/// Results of calls made one after the other.
fn run(calls: impl IntoIterator<Item = Call>) -> Vec<Result<(u16, String), CallError>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = Rc::new(Calls::new(Box::new(|_, _| unreachable!("no server of gRPC"))));
    LocalSet::new().block_on(&runtime, async {
        let mut results = Vec::new();
        for call in calls {
            let reply = client.clone().call(call).await;
            results.push(reply.map(|reply| (reply.status(), String::from_utf8(reply.body).unwrap())));
        }
        results
    })
}

fn answering(response: &'static str) -> Upstream {
    Upstream::serve(move |connection: &mut BufferedSocket| {
        while connection.read_request().is_ok() {
            connection.send(response);
        }
    })
}

#[test]
fn replies_of_all_framings() {
    let check = |response: &'static str, expected: Result<(u16, &str), CallError>, connections: usize| {
        let server = answering(response);
        let results = run([call_to(&server, "/a"), call_to(&server, "/b?c")]);
        for result in results {
            let got = result.as_ref().map(|(status, body)| (*status, body.as_str())).map_err(|error| *error);
            assert_eq!(got, expected, "{response}");
        }
        assert_eq!(server.connections(), connections, "{response}");
    };
    check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", Ok((200, "ok")), 1);
    check(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\nA: b\r\n\r\n",
        Ok((200, "ok")),
        1,
    );
    check("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", Ok((204, "")), 1);
    check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok", Ok((200, "ok")), 2);
    // What follows the response belongs to no call.
    check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n", Ok((200, "ok")), 2);
    check("HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n", Err(CallError::TooLarge), 2);
    check("nonsense\r\n\r\n", Err(CallError::BadReply), 2);
    check("HTTP/1.1 101 Switching Protocols\r\n\r\n", Err(CallError::BadReply), 2);
}

#[test]
fn a_reply_may_end_with_its_connection_or_break_off() {
    let check = |response: &'static str, expected: Result<(u16, String), CallError>| {
        let server = Upstream::serve(move |connection: &mut BufferedSocket| {
            if connection.read_request().is_ok() {
                connection.send(response);
            }
        });
        assert_eq!(run([call_to(&server, "/")]), [expected], "{response}");
    };
    check("HTTP/1.1 200 OK\r\n\r\nok", Ok((200, "ok".to_owned())));
    check("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok", Err(CallError::Closed));
    check("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", Err(CallError::Closed));
    check("", Err(CallError::Closed));
}

#[test]
fn a_kept_connection_that_ends_is_replaced() {
    // Each connection answers once without announcing that it ends.
    let server = Upstream::serve(|connection: &mut BufferedSocket| {
        if connection.read_request().is_ok() {
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            let _ = connection.read_request();
        }
    });
    let results = run([call_to(&server, "/"), call_to(&server, "/"), call_to(&server, "/")]);
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let without = keeping(call_to(&server, "/"), None);
    let few = keeping(call_to(&server, "/"), Some(Keep { idle: Duration::ZERO, connections_max: 1 }));
    assert!(run([without.clone(), without, few.clone(), few]).iter().all(Result::is_ok));
}

#[test]
fn a_server_that_cannot_be_connected_to_rests_after_a_while() {
    let refusing = Upstream::refusing();
    let results = run((0..6).map(|_| call_to(&refusing, "/")));
    assert_eq!(results[..5], [const { Err(CallError::Connect) }; 5]);
    assert_eq!(results[5], Err(CallError::Resting));
}

/// The content of one client's request must not keep others from the server.
#[test]
fn one_that_closes_on_some_calls_does_not_rest() {
    let server = Upstream::serve(|connection: &mut BufferedSocket| {
        while let Ok(request) = connection.read_request() {
            if request.head.method_and_target().1 == "/bad" {
                return;
            }
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let mut targets = ["/bad"; 12];
    (targets[0], targets[11]) = ("/", "/");
    let results = run(targets.map(|target| call_to(&server, target)));
    for (target, result) in targets.into_iter().zip(results) {
        let expected = if target == "/bad" { Err(CallError::Closed) } else { Ok((200, String::new())) };
        assert_eq!(result, expected, "{target}");
    }
}

/// A client may know a target for which the server takes long, or whose reply is invalid.
#[test]
fn one_that_answers_late_or_badly_does_not_rest() {
    let silent = Upstream::bind();
    let mut call = call_to(&silent, "/");
    call.timeout = Duration::from_millis(20);
    assert_eq!(run((0..12).map(|_| call.clone())), [const { Err(CallError::Timeout) }; 12]);
    let broken = answering("nonsense\r\n\r\n");
    assert_eq!(run((0..12).map(|_| call_to(&broken, "/"))), [const { Err(CallError::BadReply) }; 12]);
}

#[test]
fn what_nobody_waits_for_is_bounded() {
    let server = Upstream::bind();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = Rc::new(Calls::new(Box::new(|_, _| unreachable!("no server of gRPC"))));
    LocalSet::new().block_on(&runtime, async {
        let sent = (0..2 * SENT_MAX).filter(|_| client.send(call_to(&server, "/"), || ())).count();
        assert_eq!(sent, SENT_MAX);
    });
    assert_eq!(client.sent.get(), (0, 0), "whatever ends a call gives its place back");
    LocalSet::new().block_on(&runtime, async {
        let mut large = call_to(&server, "/");
        large.set_body(vec![0; SENT_BYTES_MAX / 3]);
        assert_eq!((0..4).filter(|_| client.send(large.clone(), || ())).count(), 2);
    });
}

#[test]
fn names_are_resolved() {
    let server = answering("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let url = |host: &str| Url::parse(&format!("http://{host}:{}/", server.addr().port()), true).unwrap();
    let call = |host: &str| patient(Call::new(&url(host).origin, b"GET", b"/"));
    let results = run([call("localhost"), call("localhost"), call("name.invalid")]);
    assert_eq!(results[0], Ok((200, String::new())));
    assert_eq!(results[1], Ok((200, String::new())));
    assert_eq!(results[2], Err(CallError::Resolve));
}
