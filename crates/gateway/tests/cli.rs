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
        Command::new(STILLGATE).current_dir(self.path()).args(arguments).output().expect("run stillgate")
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
    folder.check(
        &["check", "good.yaml"],
        expect![[r#"
        exit 0
        good.yaml: good (3 routes, 2 upstreams)
    "#]],
    );
    folder.check(
        &["check", "bad.yaml"],
        expect![[r#"
            exit 1
            bad.yaml:2:12: gateway.workers: expected auto or a number from 1 to 256, found the text "many"
            bad.yaml:4:5: routes[0]: nothing says which requests the route takes; add uri, uris or expression
            bad.yaml:5:5: routes[0].ur: unknown key "ur"; did you mean "uri"?
            bad.yaml:6:18: routes[0].upstream_id: there is no upstream with the id "nowhere"; add it to `upstreams`
            bad.yaml:7:5: routes[1]: nothing says where requests go; add upstream, upstream_id or service_id
            bad.yaml: refused (5 errors)
        "#]],
    );
    folder.check(
        &["check", "missing.yaml"],
        expect![[r#"
        exit 2
        stillgate: cannot read missing.yaml: No such file or directory (os error 2)
    "#]],
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn check_for_programs() {
    let folder = Folder::with(&[("good.yaml", SHOP), ("bad.yaml", WRONG)]);
    folder.check(
        &["check", "good.yaml", "--format", "json"],
        expect![[r#"
        exit 0
        {
          "valid": true,
          "file": "good.yaml",
          "routes": 3,
          "upstreams": 2,
          "errors": 0,
          "warnings": 0,
          "diagnostics": [],
          "omitted": 0
        }
    "#]],
    );
    folder.check(
        &["check", "bad.yaml", "--format", "json"],
        expect![[r#"
            exit 1
            {
              "valid": false,
              "file": "bad.yaml",
              "routes": null,
              "upstreams": null,
              "errors": 5,
              "warnings": 0,
              "diagnostics": [
                {
                  "severity": "error",
                  "path": "gateway.workers",
                  "line": 2,
                  "column": 12,
                  "message": "expected auto or a number from 1 to 256, found the text \"many\"",
                  "hint": null
                },
                {
                  "severity": "error",
                  "path": "routes[0]",
                  "line": 4,
                  "column": 5,
                  "message": "nothing says which requests the route takes",
                  "hint": "add uri, uris or expression"
                },
                {
                  "severity": "error",
                  "path": "routes[0].ur",
                  "line": 5,
                  "column": 5,
                  "message": "unknown key \"ur\"",
                  "hint": "did you mean \"uri\"?"
                },
                {
                  "severity": "error",
                  "path": "routes[0].upstream_id",
                  "line": 6,
                  "column": 18,
                  "message": "there is no upstream with the id \"nowhere\"",
                  "hint": "add it to `upstreams`"
                },
                {
                  "severity": "error",
                  "path": "routes[1]",
                  "line": 7,
                  "column": 5,
                  "message": "nothing says where requests go",
                  "hint": "add upstream, upstream_id or service_id"
                }
              ],
              "omitted": 0
            }
        "#]],
    );
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
    explain(
        "GET http://shop.example.com/orders/7?x=1",
        &[],
        expect![[r#"
        exit 0
        route "orders" (line 9; any host, /orders/*) takes the request
        it goes to upstream "shop": 10.0.0.1:8080, backend.internal:8080
        better placed, but ruled out:
          "order" (line 13; any host, /orders/:number): vars: ["http_x_beta","==","1"]: http_x_beta is absent
    "#]],
    );
    explain(
        "GET http://shop.example.com/orders/7",
        &["-H", "X-Beta: 1"],
        expect![[r#"
        exit 0
        route "order" (line 13; any host, /orders/:number) takes the request
          number = "7"
        it goes to upstream "shop": 10.0.0.1:8080, backend.internal:8080
    "#]],
    );
    explain(
        "DELETE http://other.example.com:8080/orders/7",
        &["--route", "orders"],
        expect![[r#"
        exit 0
        route "other-host" (line 18; other.example.com, /*) takes the request
        it goes to upstream "routes/other-host": [::1]:81
        route "orders" cannot take it: methods are GET, POST; the request's is DELETE
    "#]],
    );
    explain(
        "GET /x",
        &["-H", "Host: Other.Example.com."],
        expect![[r#"
        exit 0
        route "other-host" (line 18; other.example.com, /*) takes the request
        it goes to upstream "routes/other-host": [::1]:81
    "#]],
    );
    explain(
        "GET http://shop.example.com/",
        &["--route", "order"],
        expect![[r#"
        exit 0
        no route takes the request; it is answered 404
        route "order" cannot take it: paths are /orders/:number; the request's is "/"
    "#]],
    );
    explain(
        "GET http://shop.example.com/../x",
        &[],
        expect![[r#"
        exit 0
        no route is sought; the request is answered 400: the path leads above the root
    "#]],
    );
}

#[test]
fn explain_for_programs() {
    let folder = Folder::with(&[("shop.yaml", SHOP), ("bad.yaml", WRONG)]);
    let request = ["--request", "GET http://h/orders/7", "--format", "json"];
    folder.check(
        &[&["explain", "shop.yaml"], &request[..]].concat(),
        expect![[r#"
            exit 0
            {
              "status": null,
              "route": {
                "id": "orders",
                "line": 9,
                "host": null,
                "path": "/orders/*"
              },
              "params": {},
              "upstream": {
                "id": "shop",
                "nodes": [
                  "10.0.0.1:8080",
                  "backend.internal:8080"
                ]
              },
              "ruled_out": [
                {
                  "route": {
                    "id": "order",
                    "line": 13,
                    "host": null,
                    "path": "/orders/:number"
                  },
                  "reason": "vars: [\"http_x_beta\",\"==\",\"1\"]: http_x_beta is absent",
                  "predicates": [
                    {
                      "line": null,
                      "column": null,
                      "predicate": "[\"http_x_beta\",\"==\",\"1\"]",
                      "field": "http_x_beta",
                      "values": [],
                      "holds": false
                    }
                  ]
                }
              ],
              "omitted": 0,
              "asked": null
            }
        "#]],
    );
    assert_eq!(folder.run(&[&["explain", "bad.yaml"], &request[..]].concat()).status.code(), Some(1));
}

#[test]
fn run_says_what_it_needs() {
    let folder = Folder::with(&[("bad.yaml", WRONG)]);
    folder.check(
        &["run", "-c", "bad.yaml"],
        expect![[r#"
            exit 1
            stillgate: the configuration is refused
            bad.yaml:2:12: gateway.workers: expected auto or a number from 1 to 256, found the text "many"
            bad.yaml:4:5: routes[0]: nothing says which requests the route takes; add uri, uris or expression
            bad.yaml:5:5: routes[0].ur: unknown key "ur"; did you mean "uri"?
            bad.yaml:6:18: routes[0].upstream_id: there is no upstream with the id "nowhere"; add it to `upstreams`
            bad.yaml:7:5: routes[1]: nothing says where requests go; add upstream, upstream_id or service_id
        "#]],
    );
    folder.check(
        &["run", "-c", "missing.yaml"],
        expect![[r#"
        exit 2
        stillgate: cannot read missing.yaml: No such file or directory (os error 2)
    "#]],
    );
}

#[test]
fn an_address_in_use_is_told_before_anything_is_served() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = holder.local_addr().expect("its address");
    let free = "127.0.0.1:0";
    for (listener, admin, key) in [
        (address.to_string(), free.to_owned(), "gateway.listeners"),
        (free.to_owned(), address.to_string(), "gateway.admin.address"),
    ] {
        let text = SHOP
            .replace("127.0.0.1:0", &listener)
            .replace("upstreams:", &format!("  admin: {{address: \"{admin}\"}}\nupstreams:"));
        let folder = Folder::with(&[("taken.yaml", &text.replace("backend.internal", "127.0.0.1"))]);
        let output = folder.run(&["run", "-c", "taken.yaml"]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        let expected = format!("stillgate: {key}: cannot listen on {address}: ");
        assert!(told.contains(&expected), "{told}");
        assert!(told.contains(&format!("ss -ltnp 'sport = :{}'", address.port())), "{told}");
    }
}
