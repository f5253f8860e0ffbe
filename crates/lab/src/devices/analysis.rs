//! The analysis of rounds of two gateways: a pure function of design and rounds, so that `verify` can repeat it.
//!
//! As in `compare`: Wilcoxon's signed-rank test on the logarithms of the rounds' ratios, Hodges and Lehmann's effect
//! with its interval, p-values corrected over the measures by Holm's method. The number of rounds was fixed before the
//! first.

use crate::result::devices::{
    DevicesAnalysis, DevicesDecision, DevicesDesign, DevicesMeasure, DevicesRound, DevicesRun,
};
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
        if let Some((found, p)) = judge(measure, &sound, design.alpha / MEASURES.len() as f64) {
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

fn judge(measure: &Measure, sound: &[&DevicesRound], level: f64) -> Option<(DevicesMeasure, f64)> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::devices::{ConnectStep, DevicesSide, Messages};

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
}
