//! A plugin that panics costs its request a 500, is counted, and reveals nothing: in each phase, and in everything that a request
//! waits for.

use super::*;
use std::fmt;
use std::future::poll_fn;
use std::process::Command;
use std::task::Poll;
use stillgate_testkit::http2::{Http2, StreamEnd};
use stillgate_testkit::{BufferedSocket, eventually};

/// The text of panics; built when it is formatted, so that the source does not contain it.
struct PanicText;

impl fmt::Display for PanicText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "planted-{}", "secret".to_uppercase())
    }
}

fn is_asked_to(target: &[u8]) -> bool {
    target.ends_with(b"panic")
}

fn of_request() -> Option<OnRequest> {
    Some(Box::new(|request| {
        assert!(!is_asked_to(request.facts.path_and_query()), "{PanicText}");
        Flow::Continue
    }))
}

fn of_response() -> Option<OnResponse> {
    Some(Box::new(|response| assert!(!is_asked_to(response.facts.path_and_query()), "{PanicText}")))
}

/// A plugin that panics in one phase when the request calls for it, the phase, the status of such a request, and how often it
/// panics: the answer in the place of a response has its header filter, too.
fn in_each_phase() -> [(&'static str, ScriptedPlugin, u16, u64); 5] {
    let none = ScriptedPlugin::default;
    [
        ("rewrite", ScriptedPlugin { rewrite: of_request(), ..none() }, 500, 1),
        ("access", ScriptedPlugin { access: of_request(), ..none() }, 500, 1),
        ("before_proxy", ScriptedPlugin { before_proxy: of_request(), ..none() }, 500, 1),
        ("header_filter", ScriptedPlugin { header_filter: of_response(), ..none() }, 500, 2),
        ("log", ScriptedPlugin { log: of_response(), ..none() }, 200, 1),
    ]
}

/// Everything that a request can wait for, with a plugin that panics there.
const WAITING: [&str; 5] = ["future", "then", "work", "worked", "body"];

fn where_it_waits() -> ScriptedPlugin {
    ScriptedPlugin::access(|request| match request.facts.query() {
        Some(b"future") => Flow::wait(poll_fn(|_| -> Poll<()> { panic!("{PanicText}") }), |(), _| Flow::Continue),
        Some(b"then") => Flow::wait(async {}, |(), _| panic!("{PanicText}")),
        Some(b"work") => Flow::offload(|| -> u32 { panic!("{PanicText}") }, |_, _| Flow::Continue),
        Some(b"worked") => Flow::offload(|| (), |_, _| panic!("{PanicText}")),
        Some(b"body") => Flow::body(1, |_| panic!("{PanicText}")),
        _ => Flow::Continue,
    })
}

#[test]
fn in_each_phase_a_panic_costs_its_request_and_is_counted() {
    let node = Upstream::echo();
    for (phase, scripted, status, times) in in_each_phase() {
        let (bench, registry) = Bench::measured(&[&node], scripted.chain());
        let mut client = bench.client();
        for count in 1..=2 {
            assert_eq!(client.get("/r?panic").head.status(), status, "{phase}");
            eventually(&format!("the panic in {phase} to be counted"), || panics(&registry) == count * times);
            assert_eq!(client.get("/r").head.status(), 200, "{phase}");
        }
        assert_eq!(panics(&registry), 2 * times, "{phase}");
    }
}

#[test]
fn where_a_request_waits_a_panic_costs_it_and_is_counted() {
    let node = Upstream::echo();
    let (bench, registry) = Bench::measured(&[&node], where_it_waits().chain());
    let mut client = bench.client();
    for (count, query) in (1..).zip(WAITING) {
        assert_eq!(client.get(&format!("/r?{query}")).head.status(), 500, "{query}");
        assert_eq!(panics(&registry), count, "{query}");
        assert_eq!(client.get("/r").head.status(), 200, "{query}");
    }
}

#[test]
fn of_two_streams_the_other_lives() {
    const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let check = |what: &str, scripted: ScriptedPlugin, target: &str, (status, times): (u16, u64)| {
        let node = Upstream::bind();
        let (bench, registry) = Bench::measured(&[&node], scripted.chain());
        let mut client = Http2::connect(bench.address);
        client.get(1, "/r?lives");
        let mut lives = node.accept();
        lives.expect_request();
        client.get(3, target);
        let mut panics_later: Option<BufferedSocket> = None;
        if matches!(what, "header_filter" | "log") {
            let connection = panics_later.insert(node.accept());
            connection.expect_request();
            connection.send(OK);
        }
        let (heads, _, end) = client.finish(3);
        assert_eq!((heads[0].status(), end), (status, StreamEnd::Whole), "{what}");
        eventually("the panic to be counted", || panics(&registry) == times);
        lives.send(OK);
        let (heads, body, end) = client.finish(1);
        assert_eq!((heads[0].status(), &body[..], end), (200, &b"ok"[..], StreamEnd::Whole), "{what}");
        assert_eq!(panics(&registry), times, "{what}");
    };
    for (phase, scripted, status, times) in in_each_phase() {
        check(phase, scripted, "/r?panic", (status, times));
    }
    for query in WAITING {
        check(query, where_it_waits(), &format!("/r?{query}"), (500, 1));
    }
}

/// Runs in a process of its own, all of whose output is read.
const OWN_PROCESS: &str = "STILLGATE_TEST_PANICS";

#[test]
fn what_a_panic_says_is_in_no_line_of_the_log() {
    if std::env::var_os(OWN_PROCESS).is_some() {
        tracing_subscriber::fmt().with_writer(std::io::stderr).init();
        in_each_phase_a_panic_costs_its_request_and_is_counted();
        where_a_request_waits_a_panic_costs_it_and_is_counted();
        return;
    }
    let name = "exchange::tests::panics::what_a_panic_says_is_in_no_line_of_the_log";
    let this = std::env::current_exe().unwrap();
    let output = Command::new(this).args(["--exact", name, "--nocapture"]).env(OWN_PROCESS, "1").output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
    // Twice in each phase, twice as often for header filters, and once in each place where a request waits.
    let panics = said.lines().filter(|line| line.contains("panic in a plugin")).count();
    let told = said.lines().filter(|line| line.contains("a plugin panicked")).count();
    assert_eq!((panics, told), (17, 17), "{said}");
    assert!(said.contains("panics.rs"), "the place is told: {said}");
    assert!(!said.contains(&PanicText.to_string()), "{said}");
}
