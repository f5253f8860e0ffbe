//! One run of h2load, as its own benchmarks are run: a few connections with many streams each.

use super::OTHER_CPU;
use super::wrk::Answered;
use crate::Result;
use crate::step;
use std::net::SocketAddr;
use std::process::Command;

/// Connections, and streams of each at once.
const CONNECTIONS: &str = "8";
const STREAMS: &str = "32";

/// Runs h2load with one thread; fails where one request did.
pub(super) fn run(path: &str, address: SocketAddr, seconds: u64) -> Result<Answered> {
    let mut command = Command::new("taskset");
    command
        .args(["--cpu-list", &OTHER_CPU.to_string(), "h2load", "--threads", "1"])
        .args(["--clients", CONNECTIONS, "--max-concurrent-streams", STREAMS])
        .args(["--duration", &seconds.to_string(), "--warm-up-time", "0"])
        .arg(format!("https://{address}{path}"));
    parse(&step::output(&mut command)?)
}

fn parse(text: &str) -> Result<Answered> {
    let count = |what: &str| {
        let line = text.lines().find(|line| line.starts_with("requests:"))?;
        let before = line.split_once(&format!(" {what}"))?.0;
        before.split_whitespace().last()?.parse::<u64>().ok()
    };
    let per_second = text.lines().find(|line| line.starts_with("finished in")).and_then(|line| {
        let before = line.split_once(" req/s")?.0;
        before.split_whitespace().last()?.parse().ok()
    });
    let (Some(requests), Some(failed), Some(errored), Some(per_second)) =
        (count("succeeded"), count("failed"), count("errored"), per_second)
    else {
        return Err(format!("h2load printed no count:\n{text}").into());
    };
    if requests == 0 || failed + errored > 0 {
        return Err(
            format!("of h2load's requests {requests} were answered 2xx, {failed} failed, {errored} broke").into()
        );
    }
    Ok(Answered { requests, per_second })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "finished in 3.00s, 61234.33 req/s, 7.93MB/s\n\
        requests: 183703 total, 183959 started, 183703 done, 183703 succeeded, 0 failed, 0 errored, 0 timeout\n";

    #[test]
    fn reads_counts() {
        let answered = parse(GOOD).unwrap();
        assert_eq!(answered.requests, 183_703);
        assert_eq!(answered.per_second, 61_234.33);
    }

    #[test]
    fn refuses_failures() {
        for (good, bad) in [("0 failed", "1 failed"), ("0 errored", "2 errored"), ("183703 succeeded", "0 succeeded")] {
            assert!(parse(&GOOD.replace(good, bad)).is_err());
        }
        assert!(parse("").is_err());
    }
}
