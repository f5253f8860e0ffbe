//! h2spec, the conformance tests of RFC 7540 and 7541 (HTTP/2, HPACK): all of them, through TLS and without.

use crate::shared::STILLGATE;
use crate::shared::authority::Authority;
use std::path::Path;
use std::process::Command;
use stillgate_testkit::{Gateway, PATIENCE, Setup, Upstream};

/// Where `cargo xtask test` installs it, below cargo's folder.
const H2SPEC: &str = "peers/h2spec-2.2.1/h2spec";
/// A response with a body: without one, tests of flow control are skipped.
const PATH: &str = "/?size=5";

/// What it says of a gateway.
fn h2spec(gateway: &Gateway, arguments: &[&str]) -> String {
    let target = Path::new(STILLGATE).ancestors().nth(2).expect("the folder of the profile's folder");
    let program = target.join(H2SPEC);
    assert!(program.is_file(), "{} is missing; `cargo xtask test` builds it", program.display());
    let (port, timeout) = (gateway.addr().port().to_string(), PATIENCE.as_secs().to_string());
    // No test waits for its timeout where all is well.
    let common = ["--host", "127.0.0.1", "--port", &port, "--path", PATH, "--timeout", &timeout];
    let output = Command::new(program).args(common).args(arguments).output().expect("run h2spec");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The failed ones, which follow all others.
fn failures(said: &str) -> &str {
    said.split_once("Failures:").map_or("", |(_, failures)| failures)
}

#[test]
fn passes_through_tls() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    authority.issue("shop", &["shop.example.com"]);
    let (dir, node) = (authority.dir().display(), upstream.addr());
    let setup = Setup::resources(format!(
        "ssls:\n  - {{id: shop, cert: \"{dir}/shop.pem\", key: \"{dir}/shop.key\", snis: [shop.example.com], default: true}}\n\
         upstreams:\n  - {{id: main, nodes: {{\"{node}\": 1}}}}\nroutes:\n  - {{id: all, uri: /*, upstream_id: main}}\n"
    ));
    let gateway = Gateway::start(STILLGATE, &setup.listener("tls: true"));
    let said = h2spec(&gateway, &["--tls", "--insecure"]);
    assert!(said.contains("145 tests, 145 passed, 0 skipped, 0 failed"), "{}", failures(&said));
    assert_eq!(upstream.faults(), [""; 0]);
}

/// What does not begin as HTTP/2 does is HTTP/1.1 there, and answered as such before it is closed: the one test that cannot
/// pass where a port speaks both.
#[test]
fn passes_without_tls_but_for_the_preface() {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let said = h2spec(&gateway, &[]);
    let failed: Vec<&str> = failures(&said).lines().filter(|line| line.trim_start().starts_with('×')).collect();
    assert!(said.contains("145 tests, 144 passed, 0 skipped, 1 failed"), "{}", failures(&said));
    assert!(matches!(failed[..], [line] if line.ends_with("Sends invalid connection preface")), "{failed:?}");
    assert_eq!(upstream.faults(), [""; 0]);
}
