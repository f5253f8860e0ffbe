//! What the pairs of a comparison say: a pure function of design and raw data, so that `verify` can make it again.
//!
//! Each measure is judged on the logarithms of its ratios B to A, one a pair: what a machine does to both of a pair cancels.
//! Wilcoxon's signed-rank test decides, exactly and without assuming a distribution; the effect and its interval are
//! Hodges and Lehmann's, which invert that test. Mann and Whitney's U is given beside, for those who expect it; it knows nothing
//! of pairs and so sees less. p-values are corrected over the measures and looks ([`looks`](super::looks)), and the intervals
//! are as wide as for all of them to hold together.
//!
//! "No difference" is never said without the smallest one that would have been seen. Nothing here asks for more pairs:
//! how many there are, and when they are looked at, was fixed before the first.

use super::looks::{self, Look};
use super::measures::{self, INSTRUCTIONS, Measure, PAIRED, Reading};
use super::{repetitions, words};
use crate::error::Result;
use crate::result::compare::{
    CompareAnalysis, CompareDesign, Decision, Instructions, MeasureAnalysis, MeasureVerdict, Pair,
};
use stillgate_stats::{
    hodges_lehmann, log_ratios, mann_whitney, median, minimum_detectable_effect_signed_rank, signed_rank,
};

/// A comparison, or a measure of it, that lost more of its pairs than this is not what was designed.
const VOID_SHARE_MAX: f64 = 0.2;

/// A function of its arguments alone. Fails only where a kept histogram cannot be read.
pub(crate) fn analyse(
    design: &CompareDesign,
    pairs: &[Pair],
    instructions: Option<&Instructions>,
) -> Result<CompareAnalysis> {
    let reasons: Vec<Option<String>> = pairs.iter().map(measures::void).collect();
    let void_pairs = reasons.iter().flatten().count();
    let sound = pairs.iter().zip(&reasons).filter(|(_, reason)| reason.is_none());
    let readings = sound.clone().map(|(pair, _)| measures::read(pair)).collect::<Result<Vec<_>>>()?;
    let late: Vec<String> = sound.filter_map(|(pair, _)| measures::late(pair)).collect();
    let counted = instructions.filter(|instructions| !instructions.a.is_empty());
    let look = looks::at(design, pairs.len(), PAIRED.len() + usize::from(counted.is_some()));
    let mut analysis = judge(design, &look, &readings, counted);
    analysis.void_pairs = void_pairs;
    analysis.late_pairs = late.len();
    if readings.is_empty() || is_lost(void_pairs, pairs.len()) {
        let reason = reasons.iter().flatten().next().map_or("no pair was run", String::as_str);
        analysis.decision = Decision::Void;
        analysis.sentence = words::void(void_pairs, pairs.len(), VOID_SHARE_MAX, reason);
    } else if !is_look(design, pairs.len()) {
        // Deciding at a moment that was not planned would be one look more than the error was stated for.
        analysis.decision = Decision::Undecided;
        analysis.sentence = words::unfinished(pairs.len(), design.pairs);
    } else if let Some(reason) = late.first().filter(|_| is_lost(late.len(), readings.len())) {
        analysis.sentence += &words::late(late.len(), readings.len(), reason);
    }
    Ok(analysis)
}

fn is_lost(missing: usize, pairs: usize) -> bool {
    missing as f64 > VOID_SHARE_MAX * pairs as f64
}

/// Whether the design looks at the data after this many pairs.
fn is_look(design: &CompareDesign, done: usize) -> bool {
    if design.looks.is_empty() { done == design.pairs } else { design.looks.contains(&done) }
}

/// All but what makes a comparison void, from plain figures: A and B of each sound pair.
pub(super) fn judge(
    design: &CompareDesign,
    look: &Look,
    readings: &[(Reading, Reading)],
    instructions: Option<&Instructions>,
) -> CompareAnalysis {
    let mut found: Vec<(&Measure, MeasureAnalysis)> = Vec::new();
    for (index, measure) in PAIRED.iter().enumerate() {
        let (a, b): (Vec<f64>, Vec<f64>) = readings.iter().filter_map(|(a, b)| a[index].zip(b[index])).unzip();
        if is_lost(readings.len() - a.len(), readings.len()) {
            continue;
        }
        found.extend(paired(measure, &a, &b, design, look).map(|analysis| (measure, analysis)));
    }
    found.extend(instructions.and_then(|counted| repeated(counted, design, look)).map(|found| (&INSTRUCTIONS, found)));
    let p_values: Vec<(f64, bool)> =
        found.iter().map(|(measure, analysis)| (analysis.p_value, measure.name == INSTRUCTIONS.name)).collect();
    for ((measure, analysis), adjusted) in found.iter_mut().zip(look.adjust(&p_values)) {
        analysis.p_adjusted = adjusted;
        analysis.verdict = verdict(measure, analysis, design.alpha);
        analysis.sentence = words::measure(measure, analysis);
    }
    let decision = decide(design, &found);
    let sentence = words::decision(decision, design, &found, readings.len());
    let measures = found.into_iter().map(|(_, analysis)| analysis).collect();
    CompareAnalysis { measures, void_pairs: 0, late_pairs: 0, decision, sentence }
}

/// None without sound pairs.
fn paired(measure: &Measure, a: &[f64], b: &[f64], design: &CompareDesign, look: &Look) -> Option<MeasureAnalysis> {
    let ratios = log_ratios(a, b).filter(|ratios| !ratios.is_empty())?;
    let test = signed_rank(&ratios)?;
    let (effect, low, high) = match hodges_lehmann(&ratios, 1.0 - look.level) {
        Some(estimate) => (estimate.value, estimate.interval.low, estimate.interval.high),
        None => (median(&ratios)?, f64::NEG_INFINITY, f64::INFINITY),
    };
    let deviation = standard_deviation(&ratios);
    let detectable = minimum_detectable_effect_signed_rank(ratios.len() as u64, deviation, look.level, design.power);
    let mut analysis = blank(measure, median(a)?, median(b)?);
    analysis.effect = effect.exp_m1();
    analysis.low = low.exp_m1();
    analysis.high = high.exp_m1();
    analysis.p_value = test.p_value;
    analysis.p_mann_whitney = mann_whitney(a, b).map_or(1.0, |test| test.p_value);
    analysis.minimum_detectable = detectable.map_or(f64::INFINITY, f64::exp_m1).max(measure.effect_min);
    Some(analysis)
}

/// Instructions: see [`repetitions`] for the rule.
fn repeated(counted: &Instructions, design: &CompareDesign, look: &Look) -> Option<MeasureAnalysis> {
    let found = repetitions::difference(&counted.a, &counted.b, look.level_once, design.power)?;
    let mut analysis = blank(&INSTRUCTIONS, median(&counted.a)?, median(&counted.b)?);
    analysis.effect = found.effect.exp_m1();
    analysis.low = found.low.exp_m1();
    analysis.high = found.high.exp_m1();
    analysis.p_value = found.p_value;
    analysis.p_mann_whitney = mann_whitney(&counted.a, &counted.b).map_or(1.0, |test| test.p_value);
    analysis.minimum_detectable = found.minimum_detectable.exp_m1().max(INSTRUCTIONS.effect_min);
    Some(analysis)
}

fn blank(measure: &Measure, a: f64, b: f64) -> MeasureAnalysis {
    MeasureAnalysis {
        measure: measure.name.to_owned(),
        unit: measure.unit.to_owned(),
        higher_is_better: measure.higher_is_better,
        a,
        b,
        effect: 0.0,
        low: 0.0,
        high: 0.0,
        p_value: 1.0,
        p_adjusted: 1.0,
        p_mann_whitney: 1.0,
        minimum_detectable: f64::INFINITY,
        verdict: MeasureVerdict::NoDifference,
        sentence: String::new(),
    }
}

fn verdict(measure: &Measure, analysis: &MeasureAnalysis, alpha: f64) -> MeasureVerdict {
    let differs = analysis.p_adjusted <= alpha && analysis.effect != 0.0 && analysis.effect.abs() >= measure.effect_min;
    match (differs, (analysis.effect > 0.0) == measure.higher_is_better) {
        (false, _) => MeasureVerdict::NoDifference,
        (true, true) => MeasureVerdict::Faster,
        (true, false) => MeasureVerdict::Slower,
    }
}

/// A worse measure decides whichever it is. Otherwise each deciding measure must be better, or so well measured that a
/// difference of the margin would have been seen.
fn decide(design: &CompareDesign, found: &[(&Measure, MeasureAnalysis)]) -> Decision {
    if found.iter().any(|(_, analysis)| analysis.verdict == MeasureVerdict::Slower) {
        return Decision::Worse;
    }
    let decided = |name: &String| {
        found.iter().any(|(measure, analysis)| {
            measure.name == name
                && (analysis.verdict == MeasureVerdict::Faster || analysis.minimum_detectable <= design.margin)
        })
    };
    if design.deciding.iter().all(decided) { Decision::NotWorse } else { Decision::Undecided }
}

/// Of a sample; zero of a single value.
fn standard_deviation(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (count - 1.0).max(1.0)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::false_alarms::design;
    use crate::result::compare::{Side, SideRecord};
    use crate::result::histogram;
    use crate::result::run::RunRecord;
    use std::collections::BTreeMap;
    use stillgate_load::outcome;

    fn run(us: u64) -> RunRecord {
        let mut latencies = outcome::histogram();
        latencies.record_n(us * 1000, 1000).unwrap();
        let text = histogram::encode(&latencies).unwrap();
        RunRecord {
            begun_unix_s: 0.0,
            elapsed_s: 1.0,
            requests: 1000,
            errors: 0,
            errors_by_kind: BTreeMap::new(),
            error_examples: Vec::new(),
            rate_intended: None,
            rate_achieved: 1e9 / us as f64,
            corrected: text.clone(),
            uncorrected: text.clone(),
            lateness: text,
            generator_cpu_cores: 0.5,
            generator_cpu_wait_share: None,
            void: Vec::new(),
        }
    }

    fn side(us: u64) -> SideRecord {
        SideRecord { saturation: run(us), cpu_us_per_request: us as f64, rated: run(us), rss_kib: 10_000 }
    }

    /// Sixteen pairs whose A varies by per mille, B by as much as `b` says.
    fn pairs(b: impl Fn(u64) -> u64) -> Vec<Pair> {
        let pair = |number: u64| Pair { first: Side::A, a: side(1000 + number % 3), b: side(b(number)) };
        (0..16).map(pair).collect()
    }

    #[track_caller]
    fn check(pairs: &[Pair], expected: Decision, sentence: &str) {
        let analysis = analyse(&design(16, &[]), pairs, None).unwrap();
        assert_eq!(analysis.decision, expected, "{}", analysis.sentence);
        assert!(analysis.sentence.contains(sentence), "{}", analysis.sentence);
    }

    #[test]
    fn each_decision_has_its_case() {
        check(&pairs(|number| 1000 + (number + 1) % 3), Decision::NotWorse, "B is not worse than A (16 pairs).");
        check(&pairs(|_| 1100), Decision::Worse, "throughput -9.0%, cpu +9.9%, p50 +9.9%");
        check(&pairs(|_| 900), Decision::NotWorse, "Better: throughput +11.2%, cpu -10.1%");
        check(&pairs(|number| 850 + number % 5 * 80), Decision::Undecided, "more than the margin of 5%; about ");
        check(&pairs(|_| 1000)[..15], Decision::Undecided, "Unfinished: 15 of 16 pairs");
        check(&[], Decision::Void, "no pair was run");
    }

    #[test]
    fn void_pairs_are_left_out_until_there_are_too_many() {
        let mut some = pairs(|_| 1100);
        some[0].b.saturation.void.push("it stood still".to_owned());
        some[1].a.cpu_us_per_request = 0.0;
        some[2].b.saturation.errors = 100;
        let analysis = analyse(&design(16, &[]), &some, None).unwrap();
        assert_eq!((analysis.void_pairs, analysis.decision), (3, Decision::Worse));
        some[3].b.rated.requests = 0;
        check(
            &some,
            Decision::Void,
            "4 of 16 pairs cannot be used, 20% may be; the first because of B: it stood still",
        );
    }

    #[test]
    fn a_late_generator_takes_the_latencies_and_nothing_else() {
        let mut some = pairs(|_| 1100);
        for pair in &mut some[..3] {
            pair.a.rated.void.push("it was late".to_owned());
        }
        let analysis = analyse(&design(16, &[]), &some, None).unwrap();
        assert_eq!((analysis.void_pairs, analysis.late_pairs, analysis.measures.len()), (0, 3, PAIRED.len()));
        some[3].b.rated.void.push("it was late".to_owned());
        let sentence = "worse than A: throughput -9.0%, cpu +9.9% (16 pairs). Latencies are not judged: they cannot be used \
                        in 4 of 16 pairs; in the first because of A: it was late";
        check(&some, Decision::Worse, sentence);
    }

    #[test]
    fn memory_and_instructions_must_change_by_a_hundredth() {
        let instructions =
            |b: f64| Instructions { counted_by: "callgrind".to_owned(), a: vec![1000.0; 3], b: vec![b; 3] };
        for (b, expected) in [(1005.0, Decision::NotWorse), (1020.0, Decision::Worse)] {
            let analysis = analyse(&design(16, &[]), &pairs(|_| 1000), Some(&instructions(b))).unwrap();
            assert_eq!(analysis.decision, expected, "{}", analysis.sentence);
            let counted = analysis.measures.last().unwrap();
            assert!(counted.measure == "instructions" && counted.minimum_detectable >= 0.01);
        }
        let mut larger = pairs(|_| 1000);
        larger.iter_mut().for_each(|pair| pair.b.rss_kib += 4);
        check(&larger, Decision::NotWorse, "B is not worse");
    }

    #[test]
    fn a_damaged_histogram_is_an_error() {
        let mut damaged = pairs(|_| 1000);
        damaged[0].b.rated.corrected = "?".to_owned();
        let error = analyse(&design(16, &[]), &damaged, None).unwrap_err().to_string();
        assert!(error.contains("the latencies of B"), "{error}");
    }
}
