//! The analysis of rounds of two gateways: a pure function of design and rounds, so that `verify` can repeat it.
//!
//! As in `compare`: Wilcoxon's signed-rank test on the logarithms of the rounds' ratios, Hodges and Lehmann's effect
//! with its interval, p-values corrected over the measures by Holm's method. The number of rounds was fixed before the
//! first.
//!
//! The results of a run, and of rounds, as text are here, too.

use crate::report::plain;
use crate::result::devices::{
    Broadcast, ConnectStep, DevicesAnalysis, DevicesDecision, DevicesDesign, DevicesMeasure, DevicesResult,
    DevicesRound, DevicesRun, Idle, Messages, Storm, TlsHandshakes,
};
use crate::result::run::Percentiles;
use std::fmt::Write as _;
use stillgate_stats::{hodges_lehmann, holm, log_ratios, median, signed_rank};

/// With a larger share of void rounds the result does not follow its design.
const VOID_SHARE_MAX: f64 = 0.2;

/// A measure: its name, its unit, and how it is read from a run.
type Measure = (&'static str, &'static str, fn(&DevicesRun) -> Option<f64>);

const MEASURES: [Measure; 2] = [
    ("CPU per connect", "us", DevicesRun::cpu_us_per_connect),
    ("CPU per message", "us", |run| run.messages.as_ref()?.cpu_us_per_message),
];

/// Fewer rounds cannot show any difference with this error.
pub(crate) fn rounds_min(alpha: f64) -> usize {
    // The smallest p of the exact test is 2 / 2^n; Holm's method is strictest with the first of the measures.
    let first = alpha / MEASURES.len() as f64;
    (1..64).find(|rounds| 2.0 / f64::from(*rounds).exp2() <= first).unwrap_or(64) as usize
}

/// A function of its arguments alone.
pub(crate) fn analyse(design: &DevicesDesign, rounds: &[DevicesRound]) -> DevicesAnalysis {
    let reasons: Vec<&String> =
        rounds.iter().flat_map(|round| round.a.void.iter().chain(&round.b.void).take(1)).collect();
    let is_sound = |round: &&DevicesRound| round.a.void.is_empty() && round.b.void.is_empty();
    let sound: Vec<&DevicesRound> = rounds.iter().filter(is_sound).collect();
    let mut measures: Vec<DevicesMeasure> = Vec::new();
    let mut p_values = Vec::new();
    for measure in &MEASURES {
        if let Some((found, p)) = analyse_measure(measure, &sound, design.alpha / MEASURES.len() as f64) {
            measures.push(found);
            p_values.push(p);
        }
    }
    for (measure, p) in measures.iter_mut().zip(holm(&p_values)) {
        measure.p_adjusted = p;
    }
    let mut analysis = DevicesAnalysis { measures, decision: DevicesDecision::Undecided, sentence: String::new() };
    let broken: u64 = rounds.iter().map(|round| round.b.broken_promises()).sum();
    let broken_a: u64 = rounds.iter().map(|round| round.a.broken_promises()).sum();
    (analysis.decision, analysis.sentence) = if reasons.len() as f64 > VOID_SHARE_MAX * rounds.len() as f64
        || sound.is_empty()
    {
        let why = reasons.first().map_or("no round was completed", |why| why.as_str());
        (DevicesDecision::Void, format!("Void: {} of {} rounds cannot be used; {why}.", reasons.len(), rounds.len()))
    } else if analysis.measures.is_empty() {
        let why = "the gateways' processes are elsewhere or have ended, so their CPU time is unknown";
        (DevicesDecision::Void, format!("Void: {why}."))
    } else if broken > broken_a {
        let what = format!(
            "B broke its guarantees for {broken} messages (A: {broken_a}): lost, refused but delivered, out of order"
        );
        (DevicesDecision::Worse, format!("B is worse than A: {what}."))
    } else {
        decide(design, &analysis.measures, rounds.len(), sound.len())
    };
    analysis
}

fn analyse_measure(measure: &Measure, sound: &[&DevicesRound], level: f64) -> Option<(DevicesMeasure, f64)> {
    let (name, unit, read) = measure;
    let pairs: Option<Vec<(f64, f64)>> =
        sound.iter().map(|round| read(&round.a).zip(read(&round.b)).filter(|(a, b)| *a > 0.0 && *b > 0.0)).collect();
    let (a, b): (Vec<f64>, Vec<f64>) = pairs?.into_iter().unzip();
    let ratios = log_ratios(&a, &b).filter(|ratios| !ratios.is_empty())?;
    let (effect, low, high) = match hodges_lehmann(&ratios, 1.0 - level) {
        Some(estimate) => (estimate.value, estimate.interval.low, estimate.interval.high),
        None => (median(&ratios)?, f64::NEG_INFINITY, f64::INFINITY),
    };
    // JSON has no infinity: an unknown interval is written wider than any known one.
    let known = |end: f64| end.exp_m1().clamp(-1.0, 1e6);
    let found = DevicesMeasure {
        measure: (*name).to_owned(),
        unit: (*unit).to_owned(),
        a: median(&a)?,
        b: median(&b)?,
        effect: effect.exp_m1(),
        low: known(low),
        high: known(high),
        p_adjusted: 1.0,
    };
    Some((found, signed_rank(&ratios)?.p_value))
}

fn decide(
    design: &DevicesDesign,
    measures: &[DevicesMeasure],
    rounds: usize,
    sound: usize,
) -> (DevicesDecision, String) {
    let of = if sound == rounds { format!("{rounds} rounds") } else { format!("{sound} of {rounds} rounds") };
    if rounds < design.rounds {
        return (DevicesDecision::Undecided, format!("Unfinished: {rounds} of {} rounds were run.", design.rounds));
    }
    let words = |measure: &DevicesMeasure| format!("{} {:+.1}%", measure.measure, measure.effect * 100.0);
    let differs = |measure: &&DevicesMeasure| measure.p_adjusted <= design.alpha;
    let worse: Vec<String> =
        measures.iter().filter(differs).filter(|measure| measure.effect > 0.0).map(words).collect();
    if !worse.is_empty() {
        return (DevicesDecision::Worse, format!("B is worse than A: {} ({of}).", worse.join(", ")));
    }
    let wide: Vec<String> = measures
        .iter()
        .filter(|measure| measure.high > design.margin)
        .map(|measure| format!("{} may be up to {:.0}% more", measure.measure, measure.high * 100.0))
        .collect();
    if wide.is_empty() {
        let better: Vec<String> = measures.iter().filter(differs).map(words).collect();
        let better = if better.is_empty() { String::new() } else { format!(" Better: {}.", better.join(", ")) };
        return (DevicesDecision::NotWorse, format!("B is not worse than A ({of}).{better}"));
    }
    let margin = design.margin * 100.0;
    (DevicesDecision::Undecided, format!("Undecided: {}, where {margin:.0}% is the margin ({of}).", wide.join(", ")))
}

/// The whole text.
pub(crate) fn result_text(result: &DevicesResult) -> String {
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
    use crate::result::devices::{ConnectStep, DevicesSide, Messages};
    use expect_test::expect;
    use std::collections::BTreeMap;

    fn design() -> DevicesDesign {
        DevicesDesign { rounds: 10, alpha: 0.01, margin: 0.05, ..DevicesDesign::default() }
    }

    fn run(connect_us: f64, message_us: f64) -> DevicesRun {
        let step = ConnectStep { connects: 100, cpu_us_per_connect: Some(connect_us), ..ConnectStep::default() };
        let messages = Messages { cpu_us_per_message: Some(message_us), ..Messages::default() };
        DevicesRun { connects: vec![step], messages: Some(messages), ..DevicesRun::default() }
    }

    fn rounds(b: impl Fn(f64) -> DevicesRun) -> Vec<DevicesRound> {
        let round = |number| {
            let noise = f64::from(number % 3) * 0.01;
            DevicesRound {
                first: DevicesSide::A,
                a: run(100.0 + noise, 50.0 + noise),
                b: b(f64::from((number + 1) % 3) * 0.01),
            }
        };
        (0..10).map(round).collect()
    }

    #[track_caller]
    fn check(rounds: &[DevicesRound], decision: DevicesDecision, sentence: &str) {
        let analysis = analyse(&design(), rounds);
        assert_eq!(analysis.decision, decision, "{}", analysis.sentence);
        assert!(analysis.sentence.contains(sentence), "{}", analysis.sentence);
    }

    #[test]
    fn each_decision_has_its_case() {
        check(
            &rounds(|noise| run(100.0 + noise, 50.0 + noise)),
            DevicesDecision::NotWorse,
            "not worse than A (10 rounds).",
        );
        check(&rounds(|noise| run(500.0 + noise, 50.0 + noise)), DevicesDecision::Worse, "CPU per connect +400.0%");
        check(
            &rounds(|noise| run(50.0 + noise, 50.0 + noise)),
            DevicesDecision::NotWorse,
            "Better: CPU per connect -50.0%",
        );
        check(&rounds(|noise| run(92.0 + noise * 1_000.0, 50.0)), DevicesDecision::Undecided, "the margin");
        check(&rounds(|_| run(100.0, 50.0))[..9], DevicesDecision::Undecided, "Unfinished: 9 of 10");
        check(&[], DevicesDecision::Void, "no round was completed");
        let blind = DevicesRun::default();
        let round = DevicesRound { first: DevicesSide::B, a: blind.clone(), b: blind };
        check(&vec![round; 10], DevicesDecision::Void, "have ended");
    }

    #[test]
    fn a_lost_message_decides() {
        let lost = rounds(|_| {
            let mut run = run(100.0, 50.0);
            run.messages.as_mut().unwrap().lost = 1;
            run
        });
        check(&lost, DevicesDecision::Worse, "broke its guarantees for 10 messages (A: 0)");
    }

    #[test]
    fn void_rounds_are_left_out_until_there_are_too_many() {
        let mut some = rounds(|noise| run(500.0 + noise, 50.0));
        some[0].a.void.push("late".to_owned());
        check(&some, DevicesDecision::Worse, "9 of 10 rounds");
        some[1].b.void.push("late".to_owned());
        some[2].b.void.push("late".to_owned());
        check(&some, DevicesDecision::Void, "3 of 10 rounds cannot be used; late");
    }

    #[test]
    fn so_few_rounds_show_nothing() {
        assert_eq!((rounds_min(0.01), rounds_min(0.05)), (9, 7));
    }

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
        "#]].assert_eq(&result_text(&result));
    }
}
