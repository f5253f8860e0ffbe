//! The results of a run as text.

use crate::report::plain;
use crate::result::devices::{Broadcast, ConnectStep, DevicesResult, DevicesRun, Idle, Messages, Storm, TlsHandshakes};
use crate::result::run::Percentiles;
use std::fmt::Write as _;

/// The whole text.
pub(crate) fn text(result: &DevicesResult) -> String {
    match (&result.run, &result.analysis) {
        (Some(run), _) => of_run(run, &result.design.ack),
        (None, Some(_)) => of_rounds(result),
        (None, None) => String::new(),
    }
}

fn of_run(run: &DevicesRun, ack: &str) -> String {
    let mut out = String::new();
    match (&run.process, run.pid) {
        (Some(name), Some(pid)) if run.further_pids.is_empty() => {
            line(&mut out, &format!("gateway      {}, process {pid}", plain(name)));
        }
        (Some(name), Some(pid)) => {
            let all: Vec<String> = [pid].iter().chain(&run.further_pids).map(u32::to_string).collect();
            let words =
                format!("gateway      {}, processes {}: CPU time and memory are sums", plain(name), all.join(", "));
            line(&mut out, &words);
        }
        _ => line(&mut out, "gateway      its process is not on this machine: no CPU time or memory; or give --pid"),
    }
    for step in &run.connects {
        connect(&mut out, step);
    }
    line(&mut out, &format!("connects     {:.0} per second in all", run.connects_per_s));
    if let Some(bytes) = run.rss_bytes_per_device {
        line(&mut out, &format!("memory       {bytes:.0} bytes per device"));
    }
    run.idle.iter().for_each(|found| idle(&mut out, found));
    run.messages.iter().for_each(|found| messages(&mut out, found, ack));
    run.broadcast.iter().for_each(|found| broadcast(&mut out, found, ack));
    run.storm.iter().for_each(|found| storm(&mut out, found, ack));
    for (why, count) in &run.endings {
        line(&mut out, &format!("connections  {count} ended: {}", plain(why)));
    }
    if run.resumed > 0 {
        line(&mut out, &format!("sessions     {} resumed after the device reconnected", run.resumed));
    }
    for why in &run.void {
        line(&mut out, &format!("VOID         {why}"));
    }
    out
}

fn connect(out: &mut String, step: &ConnectStep) {
    let cpu = step.cpu_us_per_connect.map(|us| format!(", {us:.1} us of CPU each")).unwrap_or_default();
    let rss = step.rss_kib.map(|kib| format!(", {:.1} MiB", kib as f64 / 1024.0)).unwrap_or_default();
    let per_s = step.connects as f64 / step.seconds.max(1e-9);
    let (p50, p99) = (step.handshake.p50 / 1e3, step.handshake.p99 / 1e3);
    let head =
        format!("to {:>9} {} connects in {:.2} s ({per_s:.0} per second)", step.devices, step.connects, step.seconds);
    line(out, &format!("{head}{cpu}{rss}; handshake p50 {p50:.2} ms, p99 {p99:.2} ms{}", tls(step.tls)));
}

fn tls(found: Option<TlsHandshakes>) -> String {
    found.map(|found| format!("; TLS {} full, {} resumed", found.full, found.resumed)).unwrap_or_default()
}

fn idle(out: &mut String, found: &Idle) {
    let cpu = found.cpu_share.map(|share| format!(", {:.2}% of a CPU", share * 100.0)).unwrap_or_default();
    line(out, &format!("idle         {:.1} s, {} pings{cpu}", found.seconds, found.pings));
}

fn messages(out: &mut String, found: &Messages, ack: &str) {
    let per_s = found.sent as f64 / found.seconds.max(1e-9);
    line(out, &format!("messages     {} in {:.1} s ({per_s:.0} per second), ack={ack}", found.sent, found.seconds));
    let answers: Vec<String> = found.answers.iter().map(|(what, count)| format!("{what}: {count}")).collect();
    line(out, &format!("  answers    {}", answers.join(", ")));
    let Messages { lost, duplicated, reordered, refused_but_delivered, wrong_replies, .. } = found;
    let mut kept = format!("lost {lost}, duplicated {duplicated}, reordered {reordered}");
    let others = [
        ("refused but delivered", *refused_but_delivered),
        ("wrong replies", *wrong_replies),
        ("lost with their connection", found.went_with_connection),
    ];
    for (what, count) in others.iter().filter(|(_, count)| *count > 0) {
        // Writing to a `String` does not fail.
        let _ = write!(kept, ", {what} {count}");
    }
    line(out, &format!("  kept       {kept}"));
    times(out, "answer", &found.corrected);
    times(out, "(from send)", &found.uncorrected);
    times(out, "delivery", &found.delivery);
    if let Some(us) = found.cpu_us_per_message.filter(|us| *us > 0.0) {
        line(out, &format!("  CPU        {us:.1} us per message, {:.0} messages per CPU second", 1e6 / us));
    }
}

fn times(out: &mut String, what: &str, found: &Percentiles) {
    if found.max <= 0.0 {
        return;
    }
    let ms = |us: f64| format!("{:.2}", us / 1e3);
    let [p50, p99, p99_9, max] = [found.p50, found.p99, found.p99_9, found.max].map(ms);
    line(out, &format!("  {what:<12}p50 {p50} ms, p99 {p99} ms, p99.9 {p99_9} ms, max {max} ms"));
}

fn broadcast(out: &mut String, found: &Broadcast, ack: &str) {
    let Broadcast { devices, received, last_s, times_s, messages: meanwhile } = found;
    let times = times_s.len();
    let several = if times > 1 { format!(", the longest of {times} broadcasts") } else { String::new() };
    let missing = (devices * times.max(1)) as u64 - (*received).min((devices * times.max(1)) as u64);
    let missing = if missing > 0 { format!("; {missing} copies have NOT arrived") } else { String::new() };
    line(out, &format!("broadcast    the last of {devices} devices has it after {last_s:.2} s{several}{missing}"));
    meanwhile.iter().for_each(|found| messages(out, found, ack));
}

fn storm(out: &mut String, found: &Storm, ack: &str) {
    let cpu = found.cpu_us_per_connect.map(|us| format!(", {us:.1} us of CPU per connect")).unwrap_or_default();
    let later = if found.refused > 0 {
        format!(", {} handshakes were answered with Retry-After", found.refused)
    } else {
        String::new()
    };
    let tls = tls(found.tls);
    line(
        out,
        &format!("storm        {} devices were back after {:.2} s{later}{cpu}{tls}", found.devices, found.seconds),
    );
    found.messages.iter().for_each(|found| messages(out, found, ack));
}

fn of_rounds(result: &DevicesResult) -> String {
    let mut out = String::new();
    let Some(analysis) = &result.analysis else { return out };
    line(
        &mut out,
        &format!("A  {}\nB  {}", plain(&result.design.url), plain(result.design.other_url.as_deref().unwrap_or(""))),
    );
    line(&mut out, &format!("{:<18} {:>11} {:>11} {:>9}  interval", "measure", "A", "B", "change"));
    for found in &analysis.measures {
        let (a, b) = (format!("{:.1} {}", found.a, found.unit), format!("{:.1} {}", found.b, found.unit));
        let (effect, low, high) = (found.effect * 100.0, found.low * 100.0, found.high * 100.0);
        let row = format!(
            "{:<18} {a:>11} {b:>11} {effect:>+8.1}%  {low:+.1}% to {high:+.1}%, p {:.4}",
            found.measure, found.p_adjusted
        );
        line(&mut out, &row);
    }
    let sum = |read: fn(&DevicesRun) -> u64| {
        let of = |side: fn(&crate::result::devices::DevicesRound) -> &DevicesRun| {
            result.rounds.iter().map(|round| read(side(round))).sum::<u64>()
        };
        (of(|round| &round.a), of(|round| &round.b))
    };
    let (a, b) = sum(DevicesRun::broken_promises);
    line(&mut out, &format!("broken promises: A {a}, B {b}\n{}", analysis.sentence));
    out
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use std::collections::BTreeMap;

    #[test]
    fn a_run_is_formatted_in_lines() {
        let times = Percentiles { p50: 800.0, p90: 1e3, p99: 2e3, p99_9: 3e3, p99_99: 4e3, max: 5e3 };
        let found = Messages {
            sent: 1_000,
            seconds: 10.0,
            answers: BTreeMap::from([("200".to_owned(), 990), ("410".to_owned(), 10)]),
            lost: 1,
            corrected: times,
            uncorrected: times,
            delivery: times,
            cpu_us_per_message: Some(50.0),
            ..Messages::default()
        };
        let step = ConnectStep {
            devices: 100,
            connects: 100,
            seconds: 0.1,
            cpu_us_per_connect: Some(90.0),
            rss_kib: Some(20_480),
            handshake: times,
            tls: Some(TlsHandshakes { full: 100, resumed: 0 }),
        };
        let run = DevicesRun {
            pid: Some(7),
            process: Some("gateway\u{1b}[31m".to_owned()),
            further_pids: vec![8],
            connects: vec![step],
            connects_per_s: 1000.0,
            rss_bytes_per_device: Some(2048.0),
            idle: Some(Idle { seconds: 5.0, pings: 3, cpu_share: Some(0.01) }),
            messages: Some(found),
            broadcast: Some(Broadcast {
                devices: 100,
                received: 199,
                last_s: 0.5,
                times_s: vec![0.4, 0.5],
                messages: None,
            }),
            storm: Some(Storm {
                devices: 100,
                seconds: 2.0,
                refused: 4,
                cpu_us_per_connect: Some(80.0),
                tls: Some(TlsHandshakes { full: 1, resumed: 99 }),
                messages: None,
            }),
            endings: BTreeMap::from([("closed by the gateway, 1012".to_owned(), 2)]),
            resumed: 2,
            void: vec!["it was interrupted".to_owned()],
        };
        let result = DevicesResult { run: Some(run), ..DevicesResult::default() };
        expect![[r#"
            gateway      gateway�[31m, processes 7, 8: CPU time and memory are sums
            to       100 100 connects in 0.10 s (1000 per second), 90.0 us of CPU each, 20.0 MiB; handshake p50 0.80 ms, p99 2.00 ms; TLS 100 full, 0 resumed
            connects     1000 per second in all
            memory       2048 bytes per device
            idle         5.0 s, 3 pings, 1.00% of a CPU
            messages     1000 in 10.0 s (100 per second), ack=
              answers    200: 990, 410: 10
              kept       lost 1, duplicated 0, reordered 0
              answer      p50 0.80 ms, p99 2.00 ms, p99.9 3.00 ms, max 5.00 ms
              (from send) p50 0.80 ms, p99 2.00 ms, p99.9 3.00 ms, max 5.00 ms
              delivery    p50 0.80 ms, p99 2.00 ms, p99.9 3.00 ms, max 5.00 ms
              CPU        50.0 us per message, 20000 messages per CPU second
            broadcast    the last of 100 devices has it after 0.50 s, the longest of 2 broadcasts; 1 copies have NOT arrived
            storm        100 devices were back after 2.00 s, 4 handshakes were answered with Retry-After, 80.0 us of CPU per connect; TLS 1 full, 99 resumed
            connections  2 ended: closed by the gateway, 1012
            sessions     2 resumed after the device reconnected
            VOID         it was interrupted
        "#]].assert_eq(&text(&result));
    }
}
