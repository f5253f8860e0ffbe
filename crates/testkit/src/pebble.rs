//! Let's Encrypt's test server `pebble`, with a DNS server that resolves every name to this machine.

use crate::eventually;
use crate::peers::{require_tool, run_tool};
use crate::port::ReservedPort;
use crate::process::Process;
use serde_json::json;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// The Debian package of both programs.
const PACKAGE: &str = "pebble";

/// The setup of pebble.
#[derive(Debug, Clone, Default)]
pub struct PebbleSetup {
    /// PEM files of its own certificate, for 127.0.0.1, and of its key.
    pub certificate: PathBuf,
    /// The key of `certificate`.
    pub key: PathBuf,
    /// Port for http-01.
    pub http_port: u16,
    /// Port for tls-alpn-01.
    pub tls_port: u16,
    /// Validity of its certificates; five years if absent.
    pub validity_seconds: Option<u64>,
    /// Accounts require this key of that name (RFC 8555 section 7.3.4).
    pub external_account: Option<(String, String)>,
    /// Further environment variables: kinds of failures, and how often.
    pub environment: Vec<(&'static str, &'static str)>,
}

/// A running pebble. Its accounts and orders are lost when it ends.
#[derive(Debug)]
pub struct Pebble {
    process: Process,
    _dns: Process,
    setup: PebbleSetup,
    ports: [ReservedPort; 4],
    dir: TempDir,
}

impl Pebble {
    /// Starts it and waits until it answers.
    ///
    /// # Panics
    /// If it is missing or does not listen.
    #[track_caller]
    pub fn start(setup: PebbleSetup) -> Self {
        require_tool("pebble", PACKAGE);
        require_tool("pebble-challtestsrv", PACKAGE);
        let dir = tempfile::tempdir().expect("a temporary folder");
        let ports: [ReservedPort; 4] = std::array::from_fn(|_| ReservedPort::new());
        let mut command = Command::new("pebble-challtestsrv");
        let (dns, dns_management) = (ports[2].addr().to_string(), ports[3].addr().to_string());
        command.args(["-dns01", &dns, "-management", &dns_management, "-defaultIPv4", "127.0.0.1"]);
        command.args(["-defaultIPv6", "", "-http01", "", "-https01", "", "-tlsalpn01", ""]);
        let mut dns = Process::spawn("pebble-challtestsrv", &mut command, &dir.path().join("dns.log"));
        let dns_addr = ports[2].addr();
        eventually("pebble-challtestsrv to listen", || {
            assert!(dns.ended().is_none(), "pebble-challtestsrv ended at its start");
            TcpStream::connect(dns_addr).is_ok()
        });
        let process = spawn(&setup, &ports, &dir);
        let mut pebble = Self { process, _dns: dns, setup, ports, dir };
        pebble.await_listening();
        pebble
    }

    /// Ends it; [`Pebble::start_again`] starts a new one at the same address.
    pub fn stop(&mut self) {
        self.process.signal("KILL");
        self.process.wait();
    }

    /// Starts it without its earlier state.
    ///
    /// # Panics
    /// If it does not listen.
    #[track_caller]
    pub fn start_again(&mut self) {
        self.process = spawn(&self.setup, &self.ports, &self.dir);
        self.await_listening();
    }

    /// The URL of its directory.
    pub fn directory(&self) -> String {
        format!("https://{}/dir", self.ports[0].addr())
    }

    /// The root of its certificates, as PEM; another one after each start.
    ///
    /// # Panics
    /// If it does not answer.
    #[track_caller]
    pub fn root(&self) -> String {
        let url = format!("https://{}/roots/0", self.ports[1].addr());
        let output = run_tool("curl", "curl", &["--silent", "--insecure", "--fail", &url]);
        let root = String::from_utf8(output.stdout).expect("PEM is text");
        assert!(root.starts_with("-----BEGIN CERTIFICATE-----"), "{root:?}");
        root
    }

    /// Its output.
    pub fn log(&self) -> String {
        self.process.log()
    }

    #[track_caller]
    fn await_listening(&mut self) {
        let addrs = [self.ports[0].addr(), self.ports[1].addr()];
        eventually("pebble to listen", || {
            assert!(self.process.ended().is_none(), "pebble ended at its start");
            addrs.iter().all(|addr| TcpStream::connect(addr).is_ok())
        });
    }
}

fn spawn(setup: &PebbleSetup, ports: &[ReservedPort; 4], dir: &TempDir) -> Process {
    let mut pebble = json!({
        "listenAddress": ports[0].addr().to_string(),
        "managementListenAddress": ports[1].addr().to_string(),
        "certificate": setup.certificate,
        "privateKey": setup.key,
        "httpPort": setup.http_port,
        "tlsPort": setup.tls_port,
        "externalAccountBindingRequired": setup.external_account.is_some(),
    });
    if let Some((name, key)) = &setup.external_account {
        pebble["externalAccountMACKeys"] = json!({name: key});
    }
    if let Some(seconds) = setup.validity_seconds {
        pebble["certificateValidityPeriod"] = json!(seconds);
    }
    let file = dir.path().join("pebble.json");
    std::fs::write(&file, json!({"pebble": pebble}).to_string()).expect("write pebble.json");
    let mut command = Command::new("pebble");
    command.arg("-config").arg(&file).args(["-dnsserver", &ports[2].addr().to_string()]);
    command.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_WFE_NONCEREJECT", "0").envs(setup.environment.iter().copied());
    Process::spawn("pebble", &mut command, &dir.path().join("pebble.log"))
}
