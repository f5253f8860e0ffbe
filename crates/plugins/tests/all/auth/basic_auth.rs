//! `basic-auth`: user names and passwords.

use super::consumers::{consumers, refusal};
use super::outcome;
use expect_test::{Expect, expect};
use std::task::{Context, Poll, Waker};
use stillgate_plugin_api::flow::{Offload, Resume};
use stillgate_plugin_api::{Consumers, Flow, LocalFuture, QueueFull};

fn known() -> Consumers {
    consumers(&[
        ("jack", &[("custom_id", "7")], "basic-auth: {username: foo, password: bar}"),
        ("rose", &[], "basic-auth: {username: r, password: \"a b:c\"}"),
        ("anonymous", &[("custom_id", "none")], "{}"),
    ])
}

#[track_caller]
fn check(config: &str, authorization: &str, expected: Expect) {
    expected.assert_eq(&outcome(config, &known(), &format!("GET / HTTP/1.1\nHost: h{authorization}")));
}

#[test]
fn a_good_password_says_who_asks() {
    check(
        "basic-auth: {}",
        "\nAuthorization: Basic Zm9vOmJhcg==\nX-Consumer-Username: root",
        expect![[r#"
        > GET /
        > Host: h
        > Authorization: Basic Zm9vOmJhcg==
        > X-Consumer-Username: jack
        > X-Consumer-Custom-ID: 7
    "#]],
    );
    check(
        "basic-auth: {hide_credentials: true}",
        "\nauthorization: basic Zm9vOmJhcg",
        expect![[r#"
        > GET /
        > Host: h
        > X-Consumer-Username: jack
        > X-Consumer-Custom-ID: 7
    "#]],
    );
    // With a trailing line end, as `echo foo:bar | base64` writes it.
    check(
        "basic-auth: {}",
        "\nAuthorization: Basic Zm9vOmJhcgo=",
        expect![[r#"
        > GET /
        > Host: h
        > Authorization: Basic Zm9vOmJhcgo=
        > X-Consumer-Username: jack
        > X-Consumer-Custom-ID: 7
    "#]],
    );
    // A colon and a blank in the password.
    check(
        "basic-auth: {hide_credentials: true}",
        "\nAuthorization: Basic cjphIGI6Yw==",
        expect![[r#"
        > GET /
        > Host: h
        > X-Consumer-Username: rose
    "#]],
    );
}

#[test]
fn others_are_answered_401() {
    check(
        "basic-auth: {}",
        "",
        expect![[r#"
        < 401
        < WWW-Authenticate: Basic realm="basic"
        < "{\"message\":\"Missing authorization in request\"}\n"
    "#]],
    );
    for malformed in
        ["Bad_header YmFyOmJhcgo=", "Basic aca_a", "Basic YmFy", "Basic Zm9vOg==", "Basic", "", "Bearer Zm9vOmJhcg=="]
    {
        check(
            "basic-auth: {realm: the gate}",
            &format!("\nAuthorization: {malformed}"),
            expect![[r#"
            < 401
            < WWW-Authenticate: Basic realm="the gate"
            < "{\"message\":\"Invalid authorization in request\"}\n"
        "#]],
        );
    }
    let invalid = [
        "bar:bar",
        "foo:foo",
        ":bar",
        "foo:ba",
        "foo:barr",
        "foo:BAR",
        "FOO:bar",
        "foo:bar:x",
        // The name of the consumer differs from its user name.
        "jack:bar",
    ];
    for pair in invalid {
        let encoded = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pair);
        check(
            "basic-auth: {}",
            &format!("\nAuthorization: Basic {encoded}"),
            expect![[r#"
            < 401
            < WWW-Authenticate: Basic realm="basic"
            < "{\"message\":\"Invalid user authorization\"}\n"
        "#]],
        );
    }
    // The first line counts.
    check(
        "basic-auth: {}",
        "\nAuthorization: Basic eDp5\nAuthorization: Basic Zm9vOmJhcg==",
        expect![[r#"
        < 401
        < WWW-Authenticate: Basic realm="basic"
        < "{\"message\":\"Invalid user authorization\"}\n"
    "#]],
    );
}

#[test]
fn the_anonymous_consumer_stands_for_the_others() {
    let config = "basic-auth: {anonymous_consumer: anonymous, hide_credentials: true}";
    check(
        config,
        "",
        expect![[r#"
        > GET /
        > Host: h
        > X-Consumer-Username: anonymous
    "#]],
    );
    check(
        config,
        "\nAuthorization: Basic Zm9vOmZvbwo=\nX-Consumer-Custom-ID: 7",
        expect![[r#"
        > GET /
        > Host: h
        > X-Consumer-Username: anonymous
    "#]],
    );
    check(
        "basic-auth: {anonymous_consumer: nobody}",
        "",
        expect![[r#"
        < 401
        < WWW-Authenticate: Basic realm="basic"
        < "{\"message\":\"Invalid user authorization\"}\n"
    "#]],
    );
}

#[test]
fn what_cannot_work_is_refused() {
    let config = |yaml: &str, expected: Expect| expected.assert_eq(&super::harness::refusal(yaml));
    config(
        "basic-auth: {realm: 'a\"b'}",
        expect![[r#"
        1:21: basic-auth.realm: "a\"b" is not a realm; use printable ASCII characters other than '"' and '\'
    "#]],
    );
    config(
        "basic-auth: {username: a, password: b}",
        expect![[r#"
        1:14: basic-auth.username: unknown key "username"; known keys: hide_credentials, anonymous_consumer, realm
        1:27: basic-auth.password: unknown key "password"; known keys: hide_credentials, anonymous_consumer, realm
    "#]],
    );
    let credential = |yaml: &str, expected: Expect| expected.assert_eq(&refusal(yaml));
    credential(
        "basic-auth: {username: a}",
        expect![[r#"
        1:13: basic-auth: the key "password" is missing; add it
    "#]],
    );
    credential(
        "basic-auth: {username: a, password: ''}",
        expect![[r#"
        1:37: basic-auth.password: a secret cannot be empty
    "#]],
    );
    credential(
        "basic-auth: {username: 1, password: [a]}",
        expect![[r#"
        1:24: basic-auth.username: expected a text; write it in quotes, or as "$env://NAME"
        1:37: basic-auth.password: expected a text; write it in quotes, or as "$env://NAME"
    "#]],
    );
    credential(
        "basic-auth: {username: a, password: b, realm: c}",
        expect![[r#"
        1:40: basic-auth.realm: unknown key "realm"; known keys: username, password
    "#]],
    );
}

/// Hash of "password" by argon2id with 256 KiB: a test vector of the reference implementation.
pub(super) const HASH_OF_PASSWORD: &str =
    "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4";
/// Hash of "bar" by bcrypt at its lowest cost.
const BCRYPT_OF_BAR: &str = "$2b$04$abcdefghijklmnopqrstuuEnktNu4dNa/sMz6nY.lAbxawdTTajT2";

fn hashed() -> Consumers {
    let credential = |user: &str, hash: &str| format!("basic-auth: {{username: {user}, password: \"{hash}\"}}");
    let (one, other) = (credential("foo", HASH_OF_PASSWORD), credential("moo", BCRYPT_OF_BAR));
    consumers(&[("jack", &[], &one), ("rose", &[], &other), ("anonymous", &[], "{}")])
}

/// Whether each of some pairs is admitted, and as which consumer.
fn seen(plugins: &super::harness::Plugins, pairs: &[&str]) -> String {
    let mut seen = String::new();
    for pair in pairs {
        let encoded = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pair);
        let transcript =
            plugins.run(&format!("GET / HTTP/1.1\nHost: h\nAuthorization: Basic {encoded}\n\n"), super::OK);
        let outcome = super::part(&transcript);
        let said = outcome.lines().find(|line| line.contains("Username") || line.starts_with("< ")).unwrap();
        seen.push_str(&format!("{pair:?}: {said}\n"));
    }
    seen
}

#[test]
fn passwords_are_compared_with_hashes() {
    let plugins = super::harness::plugins("basic-auth: {}").unwrap().with_consumers(hashed());
    let pairs = [
        "foo:password",
        "foo:password",
        "foo:password\n",
        "foo:password ",
        "foo:passwort",
        "foo:",
        "moo:bar",
        "moo:bar\r\n",
        "moo:bar2",
        "bar:bar",
    ];
    expect![[r#"
        "foo:password": > X-Consumer-Username: jack
        "foo:password": > X-Consumer-Username: jack
        "foo:password\n": > X-Consumer-Username: jack
        "foo:password ": < 401
        "foo:passwort": < 401
        "foo:": < 401
        "moo:bar": > X-Consumer-Username: rose
        "moo:bar\r\n": > X-Consumer-Username: rose
        "moo:bar2": < 401
        "bar:bar": < 401
    "#]]
    .assert_eq(&seen(&plugins, &pairs));
    // The hash itself is not a password.
    assert!(seen(&plugins, &[&format!("foo:{HASH_OF_PASSWORD}")]).contains("401"));
    // A password that was correct for a credential is not for its replacement.
    let other = consumers(&[(
        "jack",
        &[],
        "basic-auth: {username: foo, password: \"$2b$04$abcdefghijklmnopqrstuu0HtfOlPbTiymk5tcV.3TsFPDd3SYZqu\"}",
    )]);
    let plugins = super::harness::plugins("basic-auth: {}").unwrap().with_consumers(other);
    assert!(seen(&plugins, &["foo:password"]).contains("401"));
    assert!(seen(&plugins, &["foo:other"]).contains("jack"));
}

/// Only the consumers' names distinguish an unknown user from a wrong password: the comparison and its limits are the
/// same.
#[test]
fn an_unknown_user_is_treated_as_a_wrong_password() {
    let plugins = super::harness::plugins("basic-auth: {}").unwrap().with_consumers(hashed());
    plugins.set_now_ms(1_700_000_000_000);
    let answers = |user: &str| {
        let wrong: Vec<String> = (0..34).map(|at| format!("{user}:{at}")).collect();
        let wrong: Vec<&str> = wrong.iter().map(String::as_str).collect();
        seen(&plugins, &wrong).replace(user, "user")
    };
    let known = answers("foo");
    assert_eq!(known.matches("429").count(), 2);
    assert_eq!(answers("nobody"), known);
    // Not even with the password that matches the hash.
    assert!(!seen(&plugins, &["other:password", "other:bar"]).contains("Username"));
    assert!(!seen(&plugins, &["other:password", "other:bar"]).contains("Username"));
    assert!(seen(&plugins, &["moo:bar"]).contains("rose"));
}

#[test]
fn wrong_passwords_are_throttled() {
    let plugins = super::harness::plugins("basic-auth: {}").unwrap().with_consumers(hashed());
    plugins.set_now_ms(1_700_000_000_000);
    let wrong: Vec<String> = (0..40).map(|at| format!("foo:{at}")).collect();
    let wrong: Vec<&str> = wrong.iter().map(String::as_str).collect();
    let answers = seen(&plugins, &wrong);
    assert_eq!((answers.matches("401").count(), answers.matches("429").count()), (32, 8));
    // Including the correct one, which is not cached; other users and other addresses are not affected.
    assert!(seen(&plugins, &["foo:password"]).contains("429"));
    assert!(seen(&plugins, &["moo:bar"]).contains("rose"));
    let plugins = plugins.asked_by("192.0.2.8");
    assert!(seen(&plugins, &["foo:password"]).contains("jack"));
    // Now it is cached, for the others as well.
    let plugins = plugins.asked_by("192.0.2.7");
    assert!(seen(&plugins, &["foo:password"]).contains("jack"));
    let transcript = plugins.run("GET / HTTP/1.1\nHost: h\nAuthorization: Basic Zm9vOnh4\n\n", super::OK);
    expect![[r#"
        < 429
        < Retry-After: 4
        < "{\"message\":\"Too many attempts\"}\n"
    "#]]
    .assert_eq(&super::part(&transcript));
    plugins.set_now_ms(1_700_000_004_000);
    assert!(seen(&plugins, &["foo:xx"]).contains("401"));
}

/// Requests of which a test decides when they continue.
struct Crowd(super::harness::Plugins);

/// A request that waits for the comparison of another.
struct Waiting {
    head: String,
    future: LocalFuture<Resume>,
}

impl Crowd {
    fn new() -> Crowd {
        let plugins = super::harness::plugins("basic-auth: {}").unwrap().with_consumers(hashed());
        plugins.set_now_ms(1_700_000_000_000);
        Crowd(plugins)
    }

    fn ask(&self, pair: &str) -> (String, Flow) {
        let encoded = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pair);
        let head = format!("GET / HTTP/1.1\nHost: h\nAuthorization: Basic {encoded}\n\n");
        let flow = self.0.begun(&head);
        (head, flow)
    }

    /// A request that compares its password.
    #[track_caller]
    fn comparing(&self, pair: &str) -> (String, Offload) {
        match self.ask(pair) {
            (head, Flow::Offload(offload)) => (head, offload),
            (_, flow) => panic!("{flow:?}"),
        }
    }

    /// Requests that wait, each of them polled.
    #[track_caller]
    fn waiting(&self, pair: &str, count: usize) -> Vec<Waiting> {
        let wait = |_| match self.ask(pair) {
            (head, Flow::Wait(mut future)) => {
                assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
                Waiting { head, future }
            }
            (_, flow) => panic!("{flow:?}"),
        };
        (0..count).map(wait).collect()
    }

    fn is_admitted(&self, (head, Offload { work, then }): (String, Offload)) -> Option<String> {
        outcome_of(self.0.resumed(&head, |request| then(Ok(work()), request)))
    }

    /// What a request does that need not wait any longer.
    #[track_caller]
    fn resumed(&self, Waiting { head, mut future }: Waiting) -> (Flow, Option<String>) {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(then) => {
                drop(future);
                self.0.resumed(&head, then)
            }
            Poll::Pending => panic!("it still waits"),
        }
    }

    fn status(&self, pair: &str) -> u16 {
        match self.ask(pair).1 {
            Flow::Answer(answer) => answer.status,
            flow => panic!("{flow:?}"),
        }
    }
}

/// The consumer of an admitted request; `None`: it is answered 401.
#[track_caller]
fn outcome_of((flow, consumer): (Flow, Option<String>)) -> Option<String> {
    match flow {
        Flow::Continue => consumer,
        Flow::Answer(answer) if answer.status == 401 => None,
        flow => panic!("{flow:?}"),
    }
}

/// As after a start: nothing is remembered, and many connections of one client send its password.
#[test]
fn equal_passwords_at_once_are_compared_once() {
    let crowd = Crowd::new();
    let first = crowd.comparing("foo:password");
    let waiting = crowd.waiting("foo:password", 100);
    assert_eq!(crowd.is_admitted(first).as_deref(), Some("jack"));
    for one in waiting {
        assert_eq!(outcome_of(crowd.resumed(one)).as_deref(), Some("jack"));
    }
    // It is remembered, and has cost nothing.
    assert_eq!(seen(&crowd.0, &["foo:password"]).matches("jack").count(), 1);
    let wrong: Vec<_> = (0..32).map(|at| crowd.comparing(&format!("foo:{at}"))).collect();
    assert_eq!(crowd.status("foo:32"), 429);
    // To wait for what another has begun costs nothing.
    let waiting = crowd.waiting("foo:31", 100);
    wrong.into_iter().for_each(|one| assert_eq!(crowd.is_admitted(one), None));
    waiting.into_iter().for_each(|one| assert_eq!(outcome_of(crowd.resumed(one)), None));
    assert_eq!(crowd.status("foo:32"), 429);
    crowd.0.set_now_ms(1_700_000_004_000);
    assert_eq!(crowd.is_admitted(crowd.comparing("foo:32")), None);
    assert_eq!(crowd.status("foo:33"), 429);
}

#[test]
fn one_that_goes_away_leaves_its_comparison_to_the_others() {
    let crowd = Crowd::new();
    for has_run in [false, true] {
        let (_, offload) = crowd.comparing("foo:password");
        let mut waiting = crowd.waiting("foo:password", 3);
        // The client of the first disconnects, before a thread has begun with the work or after.
        let Offload { work, then } = offload;
        if has_run {
            work();
        }
        drop(then);
        // One of the others compares now, and the rest wait for it.
        let next = waiting.remove(0);
        let head = next.head.clone();
        let (Flow::Offload(offload), _) = crowd.resumed(next) else { panic!("it does not compare") };
        for one in waiting {
            let head = one.head.clone();
            let (Flow::Wait(future), _) = crowd.resumed(one) else { panic!("it does not wait") };
            drop(Waiting { head, future });
        }
        // If the queue is full, the requests that wait for the comparison are answered, too.
        let mut waiting = crowd.waiting("foo:password", 1);
        let (flow, _) = crowd.0.resumed(&head, |request| (offload.then)(Err(QueueFull), request));
        assert!(matches!(flow, Flow::Answer(answer) if answer.status == 503));
        let last = waiting.remove(0);
        assert!(matches!(crowd.resumed(last).0, Flow::Offload(_)));
    }
    // A thread has worked on one comparison, whose result is lost.
    let begun: Vec<_> = (0..31).map(|at| crowd.comparing(&format!("foo:{at}"))).collect();
    assert_eq!(crowd.status("foo:password"), 429);
    drop(begun);
    assert_eq!(crowd.is_admitted(crowd.comparing("foo:password")).as_deref(), Some("jack"));
}

#[test]
fn the_requests_of_an_address_that_wait_are_bounded() {
    let crowd = Crowd::new();
    let first = crowd.comparing("foo:password");
    let mut waiting = crowd.waiting("foo:password", 1023);
    assert_eq!(crowd.status("foo:password"), 429);
    // Others do not share that bound.
    let crowd = Crowd(crowd.0.asked_by("192.0.2.8"));
    waiting.extend(crowd.waiting("foo:password", 1));
    let crowd = Crowd(crowd.0.asked_by("192.0.2.7"));
    waiting.remove(0);
    waiting.extend(crowd.waiting("foo:password", 1));
    assert_eq!(crowd.is_admitted(first).as_deref(), Some("jack"));
    assert!(waiting.into_iter().all(|one| outcome_of(crowd.resumed(one)).is_some()));
}

#[test]
fn hashes_that_cannot_be_used_are_refused() {
    let check = |hash: &str, expected: Expect| {
        expected.assert_eq(&refusal(&format!("basic-auth: {{username: a, password: \"{hash}\"}}")));
    };
    check(
        "$argon2id$",
        expect![[r#"
        1:13: basic-auth.password: the hash cannot be used: salt too short (minimum 8 bytes); make it again
    "#]],
    );
    check(
        "$argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHQ",
        expect![[r#"
        1:13: basic-auth.password: the hash cannot be used: it has no salt or no hash; make it again
    "#]],
    );
    check(
        "$argon2id$v=19$m=524288,t=1,p=1$c2FsdHNhbHQ$c2FsdHNhbHRzYWx0c2FsdA",
        expect![[r#"
        1:13: basic-auth.password: the hash cannot be used: it takes more than 262144 KiB, or 1048576 KiB in all passes; make it again
    "#]],
    );
    check(
        "$argon2id$v=19$m=65536,t=100,p=1$c2FsdHNhbHQ$c2FsdHNhbHRzYWx0c2FsdA",
        expect![[r#"
        1:13: basic-auth.password: the hash cannot be used: it takes more than 262144 KiB, or 1048576 KiB in all passes; make it again
    "#]],
    );
    check(
        "$2b$16$abcdefghijklmnopqrstuuAgE6f4uAbYfr5Rl6DJ0AP9RVZUq5iVy",
        expect![[r#"
        1:13: basic-auth.password: the hash cannot be used: its cost is above 15; make it again
    "#]],
    );
    check(
        "$2b$04$short",
        expect![[r#"
        1:13: basic-auth.password: the hash cannot be used: Invalid hash: the hash format is malformed; expected 60 ASCII bytes; make it again
    "#]],
    );
}
