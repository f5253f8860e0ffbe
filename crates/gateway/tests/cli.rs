//! What the commands print and how they end: the contract of scripts outside the project.

use expect_test::{Expect, expect};
use std::path::Path;
use std::process::{Command, Output};

const STILLGATE: &str = env!("CARGO_BIN_EXE_stillgate");

const SHOP: &str = r#"gateway:
  listeners:
    - address: "127.0.0.1:0"
upstreams:
  - id: shop
    type: roundrobin
    nodes: {"10.0.0.1:8080": 2, "backend.internal:8080": 1}
routes:
  - id: orders
    uri: /orders/*
    methods: [GET, POST]
    upstream_id: shop
  - id: order
    uri: /orders/:number
    methods: [GET]
    vars: [["http_x_beta", "==", "1"]]
    upstream_id: shop
  - id: other-host
    host: other.example.com
    uri: /*
    upstream: {type: roundrobin, nodes: {"[::1]:81": 1}}
"#;

const WRONG: &str = r#"gateway:
  workers: many
routes:
  - id: a
    ur: /a
    upstream_id: nowhere
  - id: b
    uri: /b
    plugins: {}
"#;

/// A folder with these files, and the commands run in it, so that names are short and the same everywhere.
struct Folder(tempfile::TempDir);

impl Folder {
    fn with(files: &[(&str, &str)]) -> Folder {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).expect("write a file");
        }
        Folder(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(STILLGATE)
            .current_dir(self.path())
            .args(arguments)
            .output()
            .expect("run stillgate")
    }

    /// Exit code and both outputs.
    #[track_caller]
    fn check(&self, arguments: &[&str], expected: Expect) {
        let output = self.run(arguments);
        let shown = format!(
            "exit {}\n{}{}",
            output.status.code().expect("an exit code"),
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        expected.assert_eq(&shown);
    }
}

#[test]
fn check_tells_good_from_bad() {
    let folder = Folder::with(&[("good.yaml", SHOP), ("bad.yaml", WRONG)]);
    folder.check(&["check", "good.yaml"], expect![[""]]);
    folder.check(&["check", "bad.yaml"], expect![[""]]);
    folder.check(&["check", "missing.yaml"], expect![[""]]);
}

#[test]
fn check_for_programs() {
    let folder = Folder::with(&[("good.yaml", SHOP), ("bad.yaml", WRONG)]);
    folder.check(&["check", "good.yaml", "--format", "json"], expect![[""]]);
    folder.check(&["check", "bad.yaml", "--format", "json"], expect![[""]]);
}

#[test]
fn the_schema_is_json() {
    let output = Folder::with(&[]).run(&["check", "--schema"]);
    assert!(output.status.success());
    let schema: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(schema["properties"]["routes"].is_object(), "{schema:#}");
}

#[test]
fn unusable_arguments_end_with_2() {
    let folder = Folder::with(&[("good.yaml", SHOP)]);
    for arguments in [
        &["check"][..],
        &["check", "good.yaml", "--format", "xml"],
        &["explain", "good.yaml"],
        &["explain", "good.yaml", "--request", "GET"],
        &["explain", "good.yaml", "--request", "GET /", "-H", "no colon"],
        &["explain", "good.yaml", "--request", "GET /", "--client", "me"],
        &["explain", "missing.yaml", "--request", "GET /"],
        &["run", "--config", "missing.yaml"],
        &["nothing"],
        &[],
    ] {
        assert_eq!(folder.run(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn the_version_is_the_packages() {
    let expected = format!("exit 0\nstillgate {}\n", env!("CARGO_PKG_VERSION"));
    let output = Folder::with(&[]).run(&["--version"]);
    assert_eq!(format!("exit 0\n{}", String::from_utf8_lossy(&output.stdout)), expected);
}

#[test]
fn explain_tells_the_route_and_who_was_ruled_out() {
    let folder = Folder::with(&[("shop.yaml", SHOP)]);
    let explain = |request: &str, more: &[&str], expected: Expect| {
        let arguments = [&["explain", "shop.yaml", "--request", request], more].concat();
        folder.check(&arguments, expected);
    };
    explain("GET http://shop.example.com/orders/7?x=1", &[], expect![[""]]);
    explain("GET http://shop.example.com/orders/7", &["-H", "X-Beta: 1"], expect![[""]]);
    explain("DELETE http://other.example.com:8080/orders/7", &["--route", "orders"], expect![[""]]);
    explain("GET /x", &["-H", "Host: Other.Example.com."], expect![[""]]);
    explain("GET http://shop.example.com/", &["--route", "order"], expect![[""]]);
    explain("GET http://shop.example.com/../x", &[], expect![[""]]);
}

#[test]
fn explain_for_programs() {
    let folder = Folder::with(&[("shop.yaml", SHOP), ("bad.yaml", WRONG)]);
    let request = ["--request", "GET http://h/orders/7", "--format", "json"];
    folder.check(&[&["explain", "shop.yaml"], &request[..]].concat(), expect![[""]]);
    assert_eq!(folder.run(&[&["explain", "bad.yaml"], &request[..]].concat()).status.code(), Some(1));
}

#[test]
fn run_says_what_it_needs() {
    let folder = Folder::with(&[("bad.yaml", WRONG)]);
    folder.check(&["run", "-c", "bad.yaml"], expect![[""]]);
    folder.check(&["run", "-c", "missing.yaml"], expect![[""]]);
}

#[test]
fn an_address_in_use_is_told_before_anything_is_served() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = holder.local_addr().expect("its address");
    let free = "127.0.0.1:0";
    for (listener, admin, key) in [(address.to_string(), free.to_owned(), "gateway.listeners"), (free.to_owned(), address.to_string(), "gateway.admin.address")] {
        let text = SHOP.replace("127.0.0.1:0", &listener).replace("upstreams:", &format!("  admin: {{address: \"{admin}\"}}\nupstreams:"));
        let folder = Folder::with(&[("taken.yaml", &text.replace("backend.internal", "127.0.0.1"))]);
        let output = folder.run(&["run", "-c", "taken.yaml"]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        let expected = format!("stillgate: {key}: cannot listen on {address}: ");
        assert!(told.contains(&expected), "{told}");
        assert!(told.contains(&format!("ss -ltnp 'sport = :{}'", address.port())), "{told}");
    }
}
