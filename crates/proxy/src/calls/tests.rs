//! Calls to servers that answer, fail, stall and lie.

use super::*;
use std::future::pending;
use std::net::Ipv4Addr;
use std::time::Duration;
use stillgate_plugin_api::{Keep, Url};
use stillgate_testkit::{BufferedSocket, Upstream};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::{LocalSet, yield_now};
use tokio::time::sleep;

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

/// One client's call may be answered late; the others need not wait for it to know that the server is back.
#[test]
fn a_pause_ends_when_the_server_is_connected_to() {
    run_here(async {
        // It accepts, and is silent.
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let names = Names::new(&[Ipv4Addr::LOCALHOST]);
        let client = names.calls();
        let url = format!("http://name.test:{}/", server.local_addr().unwrap().port());
        let call = Call::new(&Url::parse(&url, true).unwrap().origin, b"GET", b"/");
        client.pool(&call.origin).breaker.pause_until(Instant::now());
        let late = tokio::task::spawn_local(client.clone().call(patient(call.clone())));
        let _open = server.accept().await.unwrap();
        sleep(Duration::from_millis(50)).await;
        let mut hurried = call;
        hurried.timeout = Duration::from_millis(20);
        assert_eq!(client.call(hurried).await.map(|reply| reply.status()), Err(CallError::Timeout));
        assert!(!late.is_finished());
    });
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

// Servers with a name, whose addresses a test tells.

/// A port at which 127.0.0.1 answers and 127.0.0.9 is silent: its queue of connections is full.
struct HalfSilent {
    good: Upstream,
    _listener: TcpListener,
    _waiting: Vec<TcpStream>,
}

const SILENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
/// Nobody listens there.
const REFUSING: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 10);

impl HalfSilent {
    async fn new() -> HalfSilent {
        let good = answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        let silent = SocketAddr::from((SILENT, good.addr().port()));
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(silent).unwrap();
        let listener = socket.listen(0).unwrap();
        let mut waiting = Vec::new();
        while let Ok(connected) = timeout(Duration::from_millis(300), TcpStream::connect(silent)).await {
            waiting.push(connected.unwrap());
        }
        HalfSilent { good, _listener: listener, _waiting: waiting }
    }

    fn call(&self) -> Call {
        let url = format!("http://name.test:{}/", self.good.addr().port());
        Call::new(&Url::parse(&url, true).unwrap().origin, b"GET", b"/")
    }
}

/// A resolver under a test's control.
#[derive(Default)]
struct Names {
    answer: RefCell<Vec<Ipv4Addr>>,
    /// Lookups do not end.
    is_silent: Cell<bool>,
    lookups: Cell<usize>,
}

impl Names {
    fn new(answer: &[Ipv4Addr]) -> Rc<Names> {
        Rc::new(Names { answer: RefCell::new(answer.to_vec()), ..Names::default() })
    }

    /// Calls that ask it.
    fn calls(self: &Rc<Names>) -> Rc<Calls> {
        let names = self.clone();
        let resolve: Resolve = Rc::new(move |_, port| {
            names.lookups.set(names.lookups.get() + 1);
            let names = names.clone();
            Box::pin(async move {
                yield_now().await;
                if names.is_silent.get() {
                    pending::<()>().await;
                }
                let answer = names.answer.borrow().iter().map(|ip| SocketAddr::from((*ip, port))).collect();
                Ok(answer)
            })
        });
        Rc::new(Calls { resolve, ..Calls::new(Box::new(|_, _| unreachable!("no server of gRPC"))) })
    }
}

fn run_here(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

#[test]
fn a_silent_address_leaves_time_for_the_next_and_is_tried_last_from_then_on() {
    run_here(async {
        let server = HalfSilent::new().await;
        let names = Names::new(&[SILENT, Ipv4Addr::LOCALHOST]);
        let client = names.calls();
        // Whatever the time, the second address gets some of it.
        let mut first = server.call();
        first.timeout = Duration::from_millis(400);
        assert_eq!(client.clone().call(first).await.map(|reply| reply.status()), Ok(200));
        let pool = client.pool(&server.call().origin);
        for answer in [[SILENT, Ipv4Addr::LOCALHOST], [Ipv4Addr::LOCALHOST, SILENT]] {
            assert_eq!(pool.addresses.ips(), [Ipv4Addr::LOCALHOST, SILENT]);
            *names.answer.borrow_mut() = answer.to_vec();
            let lookups = names.lookups.get();
            pool.addresses.expire();
            assert!(client.clone().call(server.call()).await.is_ok());
            assert_eq!(names.lookups.get(), lookups + 1);
        }
    });
}

#[test]
fn a_refusing_address_is_followed_by_the_next() {
    run_here(async {
        let server = HalfSilent::new().await;
        let client = Names::new(&[REFUSING, Ipv4Addr::LOCALHOST]).calls();
        assert!(client.clone().call(patient(server.call())).await.is_ok());
        assert_eq!(client.pool(&server.call().origin).addresses.ips(), [Ipv4Addr::LOCALHOST, REFUSING]);
        let client = Names::new(&[REFUSING]).calls();
        let refused = client.clone().call(patient(server.call())).await;
        assert_eq!(refused.map(|reply| reply.status()), Err(CallError::Connect));
    });
}

#[test]
fn known_addresses_are_used_while_a_lookup_renews_them() {
    run_here(async {
        let server = HalfSilent::new().await;
        let names = Names::new(&[Ipv4Addr::LOCALHOST]);
        let client = names.calls();
        let call = || client.clone().call(patient(server.call()));
        assert!(call().await.is_ok());
        let pool = client.pool(&server.call().origin);
        names.is_silent.set(true);
        pool.addresses.expire();
        for _ in 0..12 {
            assert!(call().await.is_ok());
        }
        assert_eq!(names.lookups.get(), 2, "one is under way, which no call ends");
        // It ends with the pool.
        drop((pool, client.pools.take()));
        for _ in 0..100 {
            yield_now().await;
        }
        assert_eq!(Rc::strong_count(&names), 2, "the lookup has ended");
        // A lookup that fails leaves the old addresses for another period.
        names.is_silent.set(false);
        assert!(call().await.is_ok());
        let pool = client.pool(&server.call().origin);
        names.answer.take();
        pool.addresses.expire();
        for _ in 0..12 {
            assert!(call().await.is_ok());
            yield_now().await;
        }
        assert_eq!(names.lookups.get(), 4);
        assert_eq!(pool.addresses.ips(), [Ipv4Addr::LOCALHOST]);
    });
}

#[test]
fn a_server_that_has_moved_is_found_by_the_call_that_misses_it() {
    run_here(async {
        let server = HalfSilent::new().await;
        for gone in [REFUSING, SILENT] {
            let names = Names::new(&[gone]);
            let client = names.calls();
            let mut first = server.call();
            first.timeout = Duration::from_millis(20);
            assert!(client.clone().call(first).await.is_err());
            *names.answer.borrow_mut() = vec![Ipv4Addr::LOCALHOST];
            client.pool(&server.call().origin).addresses.expire();
            assert!(client.clone().call(patient(server.call())).await.is_ok(), "{gone}");
        }
    });
}

/// Its old address may be another server's.
#[test]
fn after_a_long_silence_a_lookup_has_a_head_start() {
    run_here(async {
        let (old, new) = (HalfSilent::new().await, Ipv4Addr::new(127, 0, 0, 11));
        let names = Names::new(&[Ipv4Addr::LOCALHOST]);
        let client = names.calls();
        assert!(client.clone().call(patient(old.call())).await.is_ok());
        *names.answer.borrow_mut() = vec![new];
        let addresses = client.pool(&old.call().origin).addresses.clone();
        addresses.expire_long_ago();
        assert!(client.clone().call(patient(old.call())).await.is_err(), "nobody listens at the new address");
        // It does not wait for one that does not end, neither does the call after it.
        *names.answer.borrow_mut() = vec![Ipv4Addr::LOCALHOST];
        addresses.expire_long_ago();
        assert!(client.clone().call(patient(old.call())).await.is_ok());
        names.is_silent.set(true);
        addresses.expire_long_ago();
        let mut call = old.call();
        call.timeout = Duration::from_secs(1);
        assert!(client.clone().call(call.clone()).await.is_ok());
        assert!(client.clone().call(call).await.is_ok());
    });
}

#[test]
fn a_lookup_without_a_result_is_one_failure() {
    run_here(async {
        let server = HalfSilent::new().await;
        let names = Names::new(&[]);
        names.is_silent.set(true);
        let client = names.calls();
        let hurried = || {
            let mut call = server.call();
            call.timeout = Duration::from_millis(20);
            tokio::task::spawn_local(client.clone().call(call))
        };
        let together: Vec<_> = (0..12).map(|_| hurried()).collect();
        for call in together {
            assert_eq!(call.await.unwrap().map(|reply| reply.status()), Err(CallError::Timeout));
        }
        for _ in 0..12 {
            assert_eq!(hurried().await.unwrap().map(|reply| reply.status()), Err(CallError::Timeout));
        }
        assert_eq!(names.lookups.get(), 1);
        // Other lookups that fail are further failures, and a rest follows.
        drop(client.pools.take());
        names.is_silent.set(false);
        sleep(Duration::from_millis(1)).await;
        for failed in [CallError::Resolve; 5].into_iter().chain([CallError::Resting; 2]) {
            assert_eq!(hurried().await.unwrap().map(|reply| reply.status()), Err(failed));
        }
        assert_eq!(names.lookups.get(), 6);
    });
}
