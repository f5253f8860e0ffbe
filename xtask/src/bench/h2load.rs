//! Runs h2load like its own benchmarks: a few connections with many streams each.

use super::wrk::Answered;
use super::{OTHER_CPU, grpc, tls};
use crate::Result;
use crate::step;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

/// Connections, and streams of each at once.
const CONNECTIONS: &str = "8";
const STREAMS: &str = "32";

/// Both as text.
pub(super) const SHAPE: &str = "8 connections of 32 streams";

/// The requests to send.
pub(super) struct Load {
    pub(super) path: &'static str,
    /// The length of every response's body.
    pub(super) answer_bytes: usize,
    /// The message of a gRPC call.
    pub(super) message: Option<PathBuf>,
}

/// Runs h2load with one thread; fails if one request failed.
pub(super) fn run(load: &Load, address: SocketAddr, seconds: u64) -> Result<Answered> {
    let mut command = Command::new("taskset");
    command
        .args(["--cpu-list", &OTHER_CPU.to_string(), "h2load", "--threads", "1"])
        .args(["--clients", CONNECTIONS, "--max-concurrent-streams", STREAMS])
        .args(["--duration", &seconds.to_string(), "--warm-up-time", "0"])
        // It has its own list, which overrides OpenSSL's settings.
        .args(["--tls13-ciphers", tls::CIPHER]);
    if let Some(message) = &load.message {
        command.arg("--data").arg(message);
        for header in grpc::HEADERS {
            command.args(["--header", header]);
        }
    }
    command.arg(format!("https://{address}{}", load.path));
    parse(&step::output(&mut command)?, load.answer_bytes)
}

fn parse(text: &str, answer_bytes: usize) -> Result<Answered> {
    let line = |start: &str| text.lines().find(|line| line.starts_with(start));
    let count = |what: &str| {
        let before = line("requests:")?.split_once(&format!(" {what}"))?.0;
        before.split_whitespace().last()?.parse::<u64>().ok()
    };
    let per_second = line("finished in").and_then(|line| {
        let before = line.split_once(" req/s")?.0;
        before.split_whitespace().last()?.parse().ok()
    });
    // The last part of the line: "…, 3.93MB (4123440) data".
    let data = line("traffic:").and_then(|line| {
        let number = line.strip_suffix(" data")?.rsplit_once('(')?.1;
        number.trim_end_matches(')').parse::<u64>().ok()
    });
    let (Some(requests), Some(failed), Some(errored), Some(per_second), Some(data)) =
        (count("succeeded"), count("failed"), count("errored"), per_second, data)
    else {
        return Err(format!("h2load printed no count:\n{text}").into());
    };
    if requests == 0 || failed + errored > 0 {
        return Err(
            format!("of h2load's requests {requests} were answered 2xx, {failed} failed, {errored} broke").into()
        );
    }
    if data < requests * answer_bytes as u64 {
        return Err(format!("{requests} answers with {data} bytes; each should have {answer_bytes}").into());
    }
    Ok(Answered { requests, per_second })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "finished in 3.00s, 61234.33 req/s, 7.93MB/s\n\
        requests: 183703 total, 183959 started, 183703 done, 183703 succeeded, 0 failed, 0 errored, 0 timeout\n\
        traffic: 2.67MB (2804840) total, 658.35KB (674152) headers (space savings 93.43%), 17.54MB (18395900) data\n";

    #[test]
    fn reads_counts() {
        let answered = parse(GOOD, 100).unwrap();
        assert_eq!(answered.requests, 183_703);
        assert_eq!(answered.per_second, 61_234.33);
    }

    #[test]
    fn refuses_failures() {
        for (good, bad) in [
            ("0 failed", "1 failed"),
            ("0 errored", "2 errored"),
            ("183703 succeeded", "0 succeeded"),
            // Failed calls have no message.
            ("(18395900) data", "(18370000) data"),
        ] {
            assert!(parse(&GOOD.replace(good, bad), 100).is_err(), "{bad}");
        }
        assert!(parse("", 0).is_err());
    }
}
