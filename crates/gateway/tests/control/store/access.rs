//! Access to the Admin API: keys, addresses, certificates, pages in a browser.

use super::stage::{Admin, KEY, Stage, upstream};
use crate::shared::authority::Authority;
use serde_json::{Value as Json, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use stillgate_testkit::{BufferedSocket, Setup, eventually, is_nightly, run_tool};

/// Number of wrong keys, here and in the nightly run.
const WRONG_KEYS: usize = 2_000;
const WRONG_KEYS_NIGHTLY: usize = 10_000;
/// Number of concurrent guessers.
const GUESSERS: usize = 8;
/// Maximum memory that guessing may take, here and in the log.
const GUESSING_BYTES_MAX: usize = 64 * 1024 * 1024;
const LOG_LINES_MAX: usize = 32;

fn with_key() -> Setup {
    Setup::default().admin(&format!("key: {KEY}"))
}

fn route() -> Json {
    json!({ "uri": "/a", "upstream": upstream("127.0.0.1:9".parse().expect("an address")) })
}

#[test]
fn with_a_key_only_a_few_pages_need_none() {
    let stage = Stage::with(&with_key());
    assert!(!stage.gateway.dir().join("config.redb.admin-key").exists(), "none is made");
    for path in ["/", "/v1/health", "/v1/status"] {
        assert_eq!(stage.admin.ask_with("GET", path, "", b"").status, 200, "{path}");
    }
    for path in ["/v1/upstreams", "/v1/explain?url=/", "/v1/history", "/v1/openapi.json", "/apisix/admin/routes", "/v2"]
    {
        let refused = stage.admin.ask_with("GET", path, "", b"");
        assert_eq!((refused.status, refused.head.get("connection")), (401, Some("close")), "{path}");
        assert_ne!(stage.admin.ask("GET", path, "").status, 401, "{path}");
    }
    for way in [format!("/apisix/admin/routes?api_key={KEY}"), "/apisix/admin/routes".to_owned()] {
        let cookie = format!("Cookie: a=b; x_api_key={KEY}\r\n");
        assert_eq!(stage.admin.ask_with("GET", &way, &cookie, b"").status, 200, "{way}");
    }
    assert!(!stage.gateway.log().contains(KEY));
}

#[test]
fn only_addresses_that_are_allowed_are_answered() {
    let stage = Stage::with(&with_key().admin("allow: [192.0.2.0/24]"));
    for path in ["/", "/v1/status", "/apisix/admin/routes"] {
        assert_eq!(stage.admin.ask("GET", path, "").status, 403, "{path}");
    }
    let stage = Stage::with(&with_key().admin("allow: [192.0.2.0/24, 127.0.0.0/8]"));
    assert_eq!(stage.admin.ask("GET", "/apisix/admin/routes", "").status, 200);
}

/// The status that curl gets; 0: no answer.
fn curl(arguments: &[&str]) -> u16 {
    let output = run_tool("curl", "curl", &[&["-s", "-o", "/dev/null", "-w", "%{http_code}"], arguments].concat());
    String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or(0)
}

#[test]
fn over_tls_with_certificates_of_clients() {
    let (authority, others) = (Authority::new(), Authority::new());
    authority.issue("server", &["localhost"]);
    authority.issue("client", &["client"]);
    others.issue("client", &["client"]);
    let (cert, key, ca) = (authority.path("server.pem"), authority.path("server.key"), authority.path("ca.pem"));
    let header = format!("X-API-KEY: {KEY}");
    for is_mutual in [false, true] {
        let client_ca = if is_mutual { format!(", client_ca: \"{ca}\"") } else { String::new() };
        let tls = format!("tls: {{cert: \"{cert}\", key: \"{key}\"{client_ca}}}");
        let stage = Stage::with(&with_key().admin(&tls));
        let url = format!("https://localhost:{}/apisix/admin/routes", stage.admin.addr.port());
        let asked = ["--cacert", &ca, "-H", &header, &url];
        let as_client = |authority: &Authority, more: &[&str]| {
            let (cert, key) = (authority.path("client.pem"), authority.path("client.key"));
            curl(&[&["--cert", &cert, "--key", &key], more].concat())
        };
        assert_eq!(curl(&asked), if is_mutual { 0 } else { 200 });
        assert_eq!(as_client(&authority, &asked), 200);
        assert_eq!(as_client(&authority, &["--cacert", &ca, &url]), 401, "a certificate is not a key");
        assert_eq!(as_client(&others, &asked), if is_mutual { 0 } else { 200 });
        let plain = stage.admin.try_ask("GET", "/", "", b"");
        assert!(plain.is_err(), "HTTP where TLS is spoken: {plain:?}");
    }
}

#[test]
fn pages_of_others_in_a_browser_cannot_write() {
    let stage = Stage::with(&with_key());
    let Admin { addr, .. } = stage.admin;
    let rebound = "Host: rebound.example\r\n";
    assert_eq!(stage.admin.ask_with("GET", "/v1/status", rebound, b"").status, 403, "by a name that is not ours");
    let with_key = format!("Host: rebound.example\r\nX-API-KEY: {KEY}\r\n");
    assert_eq!(stage.admin.ask_with("GET", "/apisix/admin/routes", &with_key, b"").status, 200);
    let opened = stage.admin.ask_with("POST", "/v1/session", "", json!({ "key": KEY }).to_string().as_bytes());
    assert_eq!(opened.status, 201, "{opened:?}");
    let cookie = opened.head.get("set-cookie").expect("a cookie").to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    let pair = cookie.split(';').next().expect("a pair");
    let token = opened.json()["csrf"].as_str().expect("a token").to_owned();
    let write = |lines: String| {
        stage.admin.ask_with("PUT", "/apisix/admin/routes/1", &lines, route().to_string().as_bytes()).status
    };
    let own = format!("Origin: http://{addr}\r\nHost: {addr}\r\nCookie: {pair}\r\n");
    let foreign = format!("Origin: http://evil.example\r\nHost: {addr}\r\nCookie: {pair}\r\n");
    assert_eq!(write(own.clone()), 403, "without its token");
    assert_eq!(write(format!("{own}X-CSRF-Token: wrong\r\n")), 403);
    assert_eq!(write(format!("{foreign}X-CSRF-Token: {token}\r\n")), 403);
    let ambient = format!("Origin: http://evil.example\r\nCookie: x_api_key={KEY}\r\n");
    assert_eq!(write(ambient), 403);
    assert_eq!(stage.admin.ask("GET", "/apisix/admin/routes", "").json()["total"], 0);
    assert_eq!(write(format!("{own}X-CSRF-Token: {token}\r\n")), 201);
    let gone = format!("Cookie: {pair}\r\nX-CSRF-Token: {token}\r\n");
    assert_eq!(stage.admin.ask_with("DELETE", "/v1/session", &gone, b"").status, 204);
    assert_eq!(write(format!("{own}X-CSRF-Token: {token}\r\n")), 401, "it has ended");
}

/// More clients than there are places, each with an answer that takes seconds.
#[test]
fn guesses_that_wait_leave_places_for_right_keys() {
    let mut stage = Stage::with(&with_key());
    let guess = |_| {
        let mut connection = BufferedSocket::new(std::net::TcpStream::connect(stage.admin.addr).expect("connect"));
        let _ = connection.try_send("GET /apisix/admin/routes HTTP/1.1\r\nHost: h\r\nX-API-KEY: wrong\r\n\r\n");
        connection
    };
    let lines = format!("X-API-KEY: {KEY}\r\n");
    let is_served = || {
        let answer = stage.admin.try_ask("GET", "/apisix/admin/routes", &lines, b"");
        answer.is_ok_and(|answer| answer.status == 200)
    };
    // How long it takes with nothing else running.
    let begun = Instant::now();
    assert!(is_served());
    let reference = begun.elapsed();
    let guesses: Vec<BufferedSocket> = (0..400).map(guess).collect();
    let begun = Instant::now();
    eventually("the right key to be served", is_served);
    let most = Duration::from_secs(5).max(50 * reference);
    assert!(begun.elapsed() < most, "{:?}, and {reference:?} with nothing else running", begun.elapsed());
    drop(guesses);
    stage.gateway.assert_healthy();
}

#[test]
fn guessing_keys_costs_the_guesser_and_nobody_else() {
    let mut stage = Stage::with(&with_key());
    let before = stage.gateway.rss();
    let wrong_keys = if is_nightly() { WRONG_KEYS_NIGHTLY } else { WRONG_KEYS };
    let tried = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..GUESSERS {
            scope.spawn(|| {
                while tried.fetch_add(1, Ordering::Relaxed) < wrong_keys {
                    let stream = std::net::TcpStream::connect(stage.admin.addr).expect("connect");
                    let mut connection = BufferedSocket::new(stream);
                    // A client that guesses quickly does not wait for the answer.
                    let _ =
                        connection.try_send("GET /apisix/admin/routes HTTP/1.1\r\nHost: h\r\nX-API-KEY: wrong\r\n\r\n");
                }
            });
        }
    });
    let lines = format!("X-API-KEY: {KEY}\r\n");
    let is_served = || {
        let answer = stage.admin.try_ask("GET", "/apisix/admin/routes", &lines, b"");
        answer.is_ok_and(|answer| answer.status == 200)
    };
    eventually("the right key to be served", is_served);
    let taken = stage.gateway.rss().saturating_sub(before);
    assert!(taken < GUESSING_BYTES_MAX, "{taken} bytes");
    let logged = stage.gateway.log().matches("wrong key").count();
    assert!((1..=LOG_LINES_MAX).contains(&logged), "{logged} lines in the log");
    stage.gateway.assert_healthy();
}
