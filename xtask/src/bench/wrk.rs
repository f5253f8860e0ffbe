//! One run of wrk: its arguments and its output.

use super::OTHER_CPU;
use crate::Result;
use crate::step;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

/// The requests to send.
pub(super) struct Load {
    pub(super) path: &'static str,
    pub(super) headers: Vec<String>,
    /// A Lua script, for requests that the command line cannot express.
    pub(super) script: Option<PathBuf>,
    pub(super) connections: u32,
    /// Over TLS, with these settings of OpenSSL.
    pub(super) tls: Option<PathBuf>,
}

/// The result.
pub(super) struct Answered {
    pub(super) requests: u64,
    pub(super) per_second: f64,
}

/// Runs wrk with one thread; fails if a response was not 2xx or a connection broke.
pub(super) fn run(load: &Load, address: SocketAddr, seconds: u64) -> Result<Answered> {
    let mut command = Command::new("taskset");
    command
        .args(["--cpu-list", &OTHER_CPU.to_string(), "wrk", "--threads", "1"])
        .args(["--connections", &load.connections.to_string()])
        .args(["--duration", &format!("{seconds}s")]);
    for header in &load.headers {
        command.args(["--header", header]);
    }
    if let Some(script) = &load.script {
        command.arg("--script").arg(script);
    }
    let scheme = match &load.tls {
        None => "http",
        Some(settings) => {
            command.env("OPENSSL_CONF", settings);
            "https"
        }
    };
    command.arg(format!("{scheme}://{address}{}", load.path));
    parse(&step::output(&mut command)?)
}

fn parse(text: &str) -> Result<Answered> {
    let after = |mark: &str| Some(text.split_once(mark)?.1.split_whitespace().next()?.to_owned());
    if let Some(bad) = after("Non-2xx or 3xx responses:") {
        return Err(format!("{bad} answers were not 2xx").into());
    }
    if let Some((_, errors)) = text.split_once("Socket errors:") {
        return Err(format!("socket errors:{}", errors.lines().next().unwrap_or_default()).into());
    }
    let requests = text.split_once(" requests in").and_then(|(before, _)| before.split_whitespace().last());
    let (Some(requests), Some(per_second)) = (requests, after("Requests/sec:")) else {
        return Err(format!("wrk printed no count:\n{text}").into());
    };
    Ok(Answered { requests: requests.parse()?, per_second: per_second.parse()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "Running 3s test @ http://127.0.0.1:1/\n  1 threads and 64 connections\n  \
        99154 requests in 3.10s, 24.68MB read\nRequests/sec:  31988.57\nTransfer/sec:      7.96MB\n";

    #[test]
    fn reads_counts() {
        let answered = parse(GOOD).unwrap();
        assert_eq!(answered.requests, 99154);
        assert_eq!(answered.per_second, 31988.57);
    }

    #[test]
    fn refuses_failures() {
        assert!(parse(&format!("{GOOD}  Non-2xx or 3xx responses: 7\n")).is_err());
        assert!(parse(&format!("{GOOD}  Socket errors: connect 0, read 3, write 0, timeout 0\n")).is_err());
        assert!(parse("").is_err());
    }
}
