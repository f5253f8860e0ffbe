//! Runs the commands in a folder of files, and captures their output.

use crate::shared::STILLGATE;
use expect_test::Expect;
use std::path::Path;
use std::process::{Command, Output};

/// Upstreams and routes by URI.
pub(crate) const SHOP: &str = r#"gateway:
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

/// A configuration that is refused for more than one reason.
pub(crate) const WRONG: &str = r#"gateway:
  workers: many
routes:
  - id: a
    ur: /a
    upstream_id: nowhere
  - id: b
    uri: /b
    plugins: {}
"#;

/// Routes with many findings of lint.
pub(crate) const KINDS: &str = r#"gateway:
  listeners:
    - address: "127.0.0.1:0"
upstreams:
  - id: shop
    type: roundrobin
    nodes: {"10.0.0.1:8080": 1}
routes:
  - id: all
    uri: /*
    upstream_id: shop
  - id: beta
    expression: |
      http.path ^= "/orders/"
        && any(http.headers.x_beta) == "1"
    upstream_id: shop
  - id: beta-again
    expression: http.path ^= "/orders/7" && any(http.headers.x_beta) == "1"
    upstream_id: shop
  - id: mixed
    expression: http.method == "PUT" && http.path == "/a" || http.path == "/b"
    priority: 3
    upstream_id: shop
"#;

/// A folder with these files, and the commands run in it, so that names are short and the same everywhere.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn with<T: AsRef<[u8]>>(files: &[(&str, T)]) -> Folder {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).expect("write a file");
        }
        Folder(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("run stillgate")
    }

    /// A command that is not started yet.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(STILLGATE);
        command.current_dir(self.path()).args(arguments);
        command
    }

    /// Exit code and both outputs.
    #[track_caller]
    pub(crate) fn check(&self, arguments: &[&str], expected: Expect) {
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
