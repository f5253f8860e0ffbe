//! A gateway with a store and a key, and the commands that move resources to it and from it.

use crate::shared::STILLGATE;
use serde_json::Value as Json;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;
use stillgate_testkit::{EtcdServer, Gateway, Setup};
use tempfile::TempDir;

/// Key of the Admin API of every gateway here.
pub(crate) const KEY: &str = "a-key-of-the-tests";

/// The result of a command.
#[derive(Debug)]
pub(crate) struct CommandResult {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl CommandResult {
    /// # Panics
    /// When it has another exit code.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> CommandResult {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    /// The last line.
    pub(crate) fn summary(&self) -> &str {
        self.out.lines().last().unwrap_or_default()
    }
}

/// A gateway, and a folder for files.
pub(crate) struct Site {
    pub(crate) gateway: Gateway,
    folder: TempDir,
    url: String,
}

impl Site {
    /// A site with a store.
    pub(crate) fn new() -> Site {
        Site::with("config: {source: store, store: \"{dir}/config.redb\"}")
    }

    /// A site with an etcd, below a prefix.
    pub(crate) fn on_etcd(etcd: &EtcdServer, prefix: &str) -> Site {
        let endpoint = etcd.endpoint(0);
        Site::with(&format!("config: {{source: etcd, etcd: {{endpoints: [\"{endpoint}\"], prefix: {prefix}}}}}"))
    }

    /// A site with further lines of the `gateway:` section.
    pub(crate) fn with(gateway: &str) -> Site {
        let setup = Setup::resources("").gateway(&format!("  key: {KEY}")).gateway(gateway);
        let gateway = Gateway::start(STILLGATE, &setup);
        let url = format!("http://{}", gateway.admin_addr());
        Site { gateway, folder: tempfile::tempdir().expect("a temporary folder"), url }
    }

    /// Where the Admin API is.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The path of a file.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.path(name), text).expect("write a file");
        self.path(name)
    }

    /// Runs `stillgate COMMAND FILE --to URL …`.
    pub(crate) fn run(&self, command: &str, file: &Path, more: &[&str]) -> CommandResult {
        let file = file.display().to_string();
        run(KEY, &[&[command, &file, "--to", &self.url][..], more].concat())
    }

    /// Applies a text.
    pub(crate) fn apply(&self, text: &str, more: &[&str]) -> CommandResult {
        self.run("apply", &self.file("apply.yaml", text), more)
    }

    /// Exports everything, with secrets.
    #[track_caller]
    pub(crate) fn export(&self) -> String {
        run(KEY, &["export", "--from", &self.url, "--secrets"]).expect(0).out
    }
}

/// Runs a command with this key in its environment.
pub(crate) fn run(key: &str, arguments: &[&str]) -> CommandResult {
    let mut command = Command::new(STILLGATE);
    let output = command.args(arguments).env("STILLGATE_ADMIN_KEY", key).output().expect("run stillgate");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    CommandResult { code: output.status.code().unwrap_or(-1), out: text(&output.stdout), err: text(&output.stderr) }
}

/// What an exported file has below its comments.
pub(crate) fn resources(exported: &str) -> String {
    exported.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect()
}

/// Documents as a file: JSON is YAML.
pub(crate) fn as_file(lists: &Json) -> String {
    lists.to_string().replace("${", "$${")
}

/// A web server of this name that answers each target with a status and a body; its URL.
pub(crate) fn server(name: &'static str, answer: fn(&str) -> (u16, String)) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            stream.set_read_timeout(Some(Duration::from_secs(180))).expect("a timeout");
            let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
            let head: Vec<String> =
                reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
            let length = |line: &String| line.to_lowercase().strip_prefix("content-length: ")?.parse::<u64>().ok();
            let sent = head.iter().find_map(length).unwrap_or_default();
            // A body that is not read resets the connection, and the answer with it.
            let _ = std::io::copy(&mut reader.take(sent), &mut std::io::sink());
            let target = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
            let (status, body) = answer(target);
            let length = body.len();
            let _ = write!(
                stream,
                "HTTP/1.1 {status} X\r\nServer: {name}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
        }
    });
    url
}
