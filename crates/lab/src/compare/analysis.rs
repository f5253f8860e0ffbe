//! The analysis of a comparison's pairs: a pure function of design and raw data, so that `verify` can repeat it.
//!
//! More than two builds are compared two at a time, each pair as if there were no others, except for the error: one
//! correction covers all measures of all comparisons. The overall decision is about the comparisons with the baseline.
//!
//! Each measure is judged on the logarithms of its ratios B to A, one a pair: effects of the machine on both of a pair
//! cancel. Wilcoxon's signed-rank test decides, exactly and without assuming a distribution; the effect and its
//! interval are Hodges and Lehmann's, which invert that test. Mann and Whitney's U is also given, for readers who
//! expect it; it ignores pairs and so detects less. p-values are corrected over the measures and looks
//! ([`Look`]), and the intervals are as wide as for all of them to hold together. Failed requests are a
//! measure too ([`rules`](super::rules)).
//!
//! "No difference" is never reported without the smallest one that would have been detected. Nothing here requests more
//! pairs: their number, and the looks at them, were fixed before the first.

use super::measures::{self, Duel, INSTRUCTIONS, Measure, PAIRED, Reading, duels};
use super::rules::{self, Look};
use super::words;
use crate::error::Result;
use crate::result::compare::{
    BuildPair, CompareAnalysis, CompareDesign, CompareResult, Crash, Decision, Failures, Instructions, MeasureAnalysis,
    MeasureVerdict, Pair, PairwiseResult, Side,
};
use std::collections::BTreeMap;
use stillgate_stats::{
    effect_beyond, hodges_lehmann, log_ratios, mann_whitney, median, minimum_detectable_effect_signed_rank,
    signed_rank, standard_deviation,
};

/// A comparison, or a measure of it, that lost more of its pairs than this does not follow its design.
const VOID_SHARE_MAX: f64 = 0.2;

/// The figures of one comparison that are judged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figures<'a> {
    pub(super) between: BuildPair,
    /// A and B of each pair that is not void.
    pub(super) readings: &'a [(Reading, Reading)],
    /// The shares of failed requests of each.
    pub(super) failed: &'a [rules::Shares],
    /// Counts of A and of B.
    pub(super) instructions: Option<(&'a [f64], &'a [f64])>,
}

/// The pairs of one comparison, sorted by their usability.
struct UsablePairs<'a> {
    between: BuildPair,
    sound: Vec<Duel<'a>>,
    /// Why the others are void.
    void: Vec<String>,
    readings: Vec<(Reading, Reading)>,
    failed: Vec<rules::Shares>,
}

/// Recomputes the analysis from the rest of a result.
pub(crate) fn recompute(result: &CompareResult) -> Result<CompareAnalysis> {
    analyse(&result.design, &result.pairs, result.instructions.as_ref(), result.crash.as_ref())
}

/// A function of its arguments alone. Fails only if a stored histogram cannot be read.
pub(crate) fn analyse(
    design: &CompareDesign,
    pairs: &[Pair],
    instructions: Option<&Instructions>,
    crash: Option<&Crash>,
) -> Result<CompareAnalysis> {
    let comparisons = design.comparisons();
    let sorted = comparisons.iter().map(|between| UsablePairs::of(pairs, *between)).collect::<Result<Vec<_>>>()?;
    let instructions = instructions.filter(|instructions| !instructions.a.is_empty());
    let look = rules::look_after(design, pairs.len(), measures::family(comparisons.len(), instructions.is_some()));
    let figures: Vec<Figures<'_>> = sorted.iter().map(|sorted| sorted.figures(instructions)).collect();
    let mut analyses = analyse_comparisons(design, &look, &figures);
    for (analysis, sorted) in analyses.iter_mut().zip(&sorted) {
        finish(analysis, sorted, design, &look, (pairs.len(), crash));
    }
    if analyses.len() == 1 {
        return Ok(analyses.remove(0));
    }
    let judged = comparisons.into_iter().zip(analyses);
    Ok(combine_comparisons(
        judged.map(|(between, analysis)| PairwiseResult { between, analysis }).collect(),
        pairs.len(),
    ))
}

impl<'a> UsablePairs<'a> {
    fn of(pairs: &'a [Pair], between: BuildPair) -> Result<UsablePairs<'a>> {
        let (mut sound, mut void) = (Vec::new(), Vec::new());
        for duel in duels(pairs, between)? {
            match measures::void(&duel) {
                Some(reason) => void.push(reason),
                None => sound.push(duel),
            }
        }
        let readings = sound.iter().map(measures::read).collect::<Result<Vec<_>>>()?;
        let failed = sound.iter().map(rules::shares).collect();
        Ok(UsablePairs { between, sound, void, readings, failed })
    }

    fn figures<'b>(&'b self, instructions: Option<&'b Instructions>) -> Figures<'b> {
        let BuildPair { one, other } = self.between;
        let instructions = instructions.map(|counted| (counted.of(one), counted.of(other)));
        Figures { between: self.between, readings: &self.readings, failed: &self.failed, instructions }
    }
}

/// Reasons why a comparison is void or unfinished, and why some of it is not judged.
fn finish(
    analysis: &mut CompareAnalysis,
    sorted: &UsablePairs<'_>,
    design: &CompareDesign,
    look: &Look,
    (pairs, crash): (usize, Option<&Crash>),
) {
    let void = sorted.void.len();
    analysis.void_pairs = void;
    analysis.late_pairs = sorted.sound.iter().filter(|pair| measures::late(pair).is_some()).count();
    analysis.not_judged = not_judged(analysis, &sorted.sound);
    rules::add_example(&mut analysis.failures, &sorted.sound);
    if let Some(crash) = crash.filter(|crash| crash.side == sorted.between.other) {
        analysis.decision = Decision::Worse;
        analysis.sentence = words::crashed(crash, sorted.between, design);
    } else if sorted.readings.is_empty() || is_lost(void, pairs) {
        let reason = sorted.void.first().map_or("no pair was run", String::as_str);
        analysis.decision = Decision::Void;
        analysis.sentence = words::void(void, pairs, VOID_SHARE_MAX, reason);
    } else if !rules::is_look(design, pairs) || look.is_early && void > 0 {
        // A decision at an unplanned moment would be one look more than the stated error allows.
        analysis.decision = Decision::Undecided;
        analysis.sentence = words::unfinished(pairs, design.pairs, void);
    }
}

/// All comparisons of more than two builds. One that is worse than the baseline decides; the whole is not called "not
/// worse" if one of them may be worse.
fn combine_comparisons(comparisons: Vec<PairwiseResult>, rounds: usize) -> CompareAnalysis {
    let with_baseline: Vec<&PairwiseResult> =
        comparisons.iter().filter(|judged| judged.between.one == Side::A).collect();
    let decisions = || with_baseline.iter().map(|judged| judged.analysis.decision);
    let decision = if decisions().any(|decision| decision == Decision::Worse) {
        Decision::Worse
    } else if decisions().all(|decision| decision == Decision::Void) {
        Decision::Void
    } else if decisions().all(|decision| decision == Decision::NotWorse) {
        Decision::NotWorse
    } else {
        Decision::Undecided
    };
    let sentence = words::together(&with_baseline, rounds);
    CompareAnalysis {
        comparisons,
        measures: Vec::new(),
        void_pairs: 0,
        late_pairs: 0,
        failures: Failures::default(),
        not_judged: Vec::new(),
        decision,
        sentence,
    }
}

/// Whether nothing is left to find out at an early look: "not worse" is never concluded before the last look.
pub(super) fn is_certain(analysis: &CompareAnalysis) -> bool {
    match analysis.comparisons.as_slice() {
        [] => analysis.decision == Decision::Worse,
        all => all.iter().all(|judged| judged.analysis.decision == Decision::Worse),
    }
}

fn is_lost(missing: usize, pairs: usize) -> bool {
    missing as f64 > VOID_SHARE_MAX * pairs as f64
}

/// Measures without an analysis, grouped by reason; the reason is that of the first pair that has one.
fn not_judged(analysis: &CompareAnalysis, sound: &[Duel<'_>]) -> Vec<String> {
    let mut found: Vec<(Vec<&str>, usize, String)> = Vec::new();
    let is_judged = |name: &str| analysis.measures.iter().any(|measure| measure.measure == name);
    for measure in PAIRED.iter().filter(|measure| !is_judged(measure.name)) {
        let reasons: Vec<String> = sound.iter().filter_map(|pair| measures::missing(pair, measure)).collect();
        let Some(reason) = reasons.first() else { continue };
        match found.iter_mut().find(|(_, count, known)| *count == reasons.len() && known == reason) {
            Some((names, ..)) => names.push(measure.name),
            None => found.push((vec![measure.name], reasons.len(), reason.clone())),
        }
    }
    found.iter().map(|(names, count, reason)| words::not_judged(names, *count, sound.len(), reason)).collect()
}

/// Everything except whether a comparison is void or unfinished; one correction covers all of them.
pub(super) fn analyse_comparisons(design: &CompareDesign, look: &Look, all: &[Figures<'_>]) -> Vec<CompareAnalysis> {
    let mut units = Units::new();
    let mut found: Vec<ComparisonTests> =
        all.iter().map(|figures| ComparisonTests::of(design, look, figures, &mut units)).collect();
    let p_values: Vec<(f64, bool)> = found.iter().flat_map(ComparisonTests::p_values).collect();
    let mut adjusted = look.adjust(&p_values).into_iter();
    for found in &mut found {
        found.conclude(design, &mut adjusted);
    }
    let analysis = |(found, figures): (ComparisonTests, &Figures<'_>)| found.analysis(design, figures);
    found.into_iter().zip(all).map(analysis).collect()
}

/// For each number of pairs, what the test would have detected with a standard deviation of 1. All measures of a run
/// have the same few numbers, and this takes longer than all tests.
type Units = BTreeMap<u64, Option<f64>>;

/// One comparison's tests, before and after their correction.
struct ComparisonTests {
    between: BuildPair,
    measures: Vec<(&'static Measure, MeasureAnalysis)>,
    failures: Failures,
}

impl ComparisonTests {
    fn of(design: &CompareDesign, look: &Look, figures: &Figures<'_>, units: &mut Units) -> ComparisonTests {
        let Figures { between, readings, failed, instructions } = *figures;
        let mut found: Vec<(&Measure, MeasureAnalysis)> = Vec::new();
        for (index, measure) in PAIRED.iter().enumerate() {
            let (a, b): (Vec<f64>, Vec<f64>) = readings.iter().filter_map(|(a, b)| a[index].zip(b[index])).unzip();
            let missing = readings.len() - a.len();
            if is_lost(missing, readings.len()) || look.is_early && missing > 0 {
                continue;
            }
            found.extend(
                analyse_pairs(measure, &a, &b, (design, look, &mut *units)).map(|analysis| (measure, analysis)),
            );
        }
        let counted = instructions.and_then(|(a, b)| analyse_repeated(a, b, design, look));
        found.extend(counted.map(|found| (&INSTRUCTIONS, found)));
        ComparisonTests { between, measures: found, failures: rules::failures_of(failed) }
    }

    /// Each with whether it is looked at only once in any design. Failed requests come last.
    fn p_values(&self) -> Vec<(f64, bool)> {
        let of =
            |(measure, analysis): &(&Measure, MeasureAnalysis)| (analysis.p_value, measure.name == INSTRUCTIONS.name);
        self.measures.iter().map(of).chain([(self.failures.p_value, false)]).collect()
    }

    /// Takes as many corrected values as it gave.
    fn conclude(&mut self, design: &CompareDesign, adjusted: &mut impl Iterator<Item = f64>) {
        let mut next = || adjusted.next().unwrap_or(1.0);
        for (measure, analysis) in &mut self.measures {
            analysis.p_adjusted = next();
            analysis.verdict = verdict(measure, analysis, design.alpha);
            analysis.sentence = words::measure(measure, analysis, design.margin);
        }
        rules::conclude_failures(&mut self.failures, self.between, next(), design.alpha);
    }

    fn analysis(self, design: &CompareDesign, figures: &Figures<'_>) -> CompareAnalysis {
        let ComparisonTests { between, measures, failures } = self;
        let decision = decide(design, &measures, &failures);
        let sentence = words::decision(decision, design, (between, &measures, &failures), figures.readings.len());
        let measures = measures.into_iter().map(|(_, analysis)| analysis).collect();
        CompareAnalysis {
            comparisons: Vec::new(),
            measures,
            void_pairs: 0,
            late_pairs: 0,
            failures,
            not_judged: Vec::new(),
            decision,
            sentence,
        }
    }
}

/// `None` without sound pairs.
fn analyse_pairs(
    measure: &Measure,
    a: &[f64],
    b: &[f64],
    (design, look, units): (&CompareDesign, &Look, &mut Units),
) -> Option<MeasureAnalysis> {
    let ratios = log_ratios(a, b).filter(|ratios| !ratios.is_empty())?;
    let test = signed_rank(&ratios)?;
    let (effect, low, high) = match hodges_lehmann(&ratios, 1.0 - look.level) {
        Some(estimate) => (estimate.value, estimate.interval.low, estimate.interval.high),
        None => (median(&ratios)?, f64::NEG_INFINITY, f64::INFINITY),
    };
    let mut analysis = blank(measure, median(a)?, median(b)?);
    analysis.effect = effect.exp_m1();
    analysis.low = low.exp_m1();
    analysis.high = high.exp_m1();
    analysis.p_value = test.p_value;
    analysis.p_mann_whitney = mann_whitney(a, b).map_or(1.0, |test| test.p_value);
    analysis.minimum_detectable = detectable(measure, &ratios, (design, look, units)).exp_m1();
    Some(analysis)
}

/// The difference that the test would have detected and that would have been large enough to count, as a logarithm.
fn detectable(measure: &Measure, ratios: &[f64], (design, look, units): (&CompareDesign, &Look, &mut Units)) -> f64 {
    let (pairs, deviation) = (ratios.len() as u64, standard_deviation(ratios).unwrap_or(0.0));
    let unit = units
        .entry(pairs)
        .or_insert_with(|| minimum_detectable_effect_signed_rank(pairs, 1.0, look.level, design.power));
    let tested = unit.map(|unit| unit * deviation);
    let least = measure.effect_min.ln_1p();
    let counts = effect_beyond(least, pairs, deviation, design.power).unwrap_or(least);
    tested.unwrap_or(f64::INFINITY).max(counts)
}

/// Instructions: see [`rules`] for the rule.
fn analyse_repeated(a: &[f64], b: &[f64], design: &CompareDesign, look: &Look) -> Option<MeasureAnalysis> {
    let least = INSTRUCTIONS.effect_min.ln_1p();
    let found = rules::difference_of_repetitions(a, b, look.level_once, design.power, least)?;
    let mut analysis = blank(&INSTRUCTIONS, median(a)?, median(b)?);
    analysis.effect = found.effect.exp_m1();
    analysis.low = found.low.exp_m1();
    analysis.high = found.high.exp_m1();
    analysis.p_value = found.p_value;
    analysis.p_mann_whitney = mann_whitney(a, b).map_or(1.0, |test| test.p_value);
    analysis.minimum_detectable = found.minimum_detectable.exp_m1();
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

/// For tests of the judgement of a single comparison.
#[cfg(test)]
pub(crate) fn blank_p99() -> MeasureAnalysis {
    blank(measures::named("p99").expect("it is a measure"), 100.0, 100.0)
}

fn verdict(measure: &Measure, analysis: &MeasureAnalysis, alpha: f64) -> MeasureVerdict {
    let differs = analysis.p_adjusted <= alpha && analysis.effect != 0.0 && analysis.effect.abs() >= measure.effect_min;
    match (differs, (analysis.effect > 0.0) == measure.higher_is_better) {
        (false, _) => MeasureVerdict::NoDifference,
        (true, true) => MeasureVerdict::Faster,
        (true, false) => MeasureVerdict::Slower,
    }
}

/// A worse measure decides, whichever it is, and so do failed requests. If B failed many in any pair it is never called
/// "not worse": it did not do the requested work. Otherwise each deciding measure must be better, or so well measured
/// that a difference of the margin would have been detected and is not in its interval.
fn decide(design: &CompareDesign, found: &[(&Measure, MeasureAnalysis)], failures: &Failures) -> Decision {
    let slower = MeasureVerdict::Slower;
    if failures.verdict == slower || found.iter().any(|(_, analysis)| analysis.verdict == slower) {
        return Decision::Worse;
    }
    let decided = |name: &String| {
        found.iter().any(|(measure, analysis)| {
            let seen = analysis.minimum_detectable <= design.margin && worst(analysis) <= design.margin;
            measure.name == name && (analysis.verdict == MeasureVerdict::Faster || seen)
        })
    };
    let is_decided = failures.pairs_b_failing == 0 && design.deciding.iter().all(decided);
    if is_decided { Decision::NotWorse } else { Decision::Undecided }
}

/// How much worse B may be according to the interval.
pub(super) fn worst(analysis: &MeasureAnalysis) -> f64 {
    if analysis.higher_is_better { -analysis.low } else { analysis.high }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::false_alarms::design;
    use crate::result::compare::SideRecord;
    use crate::result::histogram;
    use crate::result::run::RunRecord;
    use stillgate_load::{Void, outcome};

    /// Enough requests for p99.9.
    const REQUESTS: u64 = 4000;

    fn run(us: u64) -> RunRecord {
        let mut latencies = outcome::histogram();
        latencies.record_n(us * 1000, REQUESTS).unwrap();
        let text = histogram::encode(&latencies).unwrap();
        RunRecord {
            elapsed_s: 1.0,
            requests: REQUESTS,
            rate_achieved: 1e9 / us as f64,
            corrected: text.clone(),
            uncorrected: text.clone(),
            lateness: text,
            ..RunRecord::default()
        }
    }

    /// Requests of `run` that were answered 503.
    fn fail(run: &mut RunRecord, count: u64) {
        run.errors = count;
        run.errors_by_kind = BTreeMap::from([("status".to_owned(), count)]);
        run.error_examples = vec!["status 503".to_owned()];
    }

    fn side(us: u64) -> SideRecord {
        SideRecord { saturation: run(us), cpu_us_per_request: us as f64, rated: run(us), rss_kib: 10_000 }
    }

    /// Sixteen pairs in which A varies by per mille, and B as `b` defines.
    fn pairs(b: impl Fn(u64) -> u64) -> Vec<Pair> {
        let pair = |number: u64| Pair {
            first: Side::A,
            order: Vec::new(),
            a: side(1000 + number % 3),
            b: side(b(number)),
            others: Vec::new(),
        };
        (0..16).map(pair).collect()
    }

    fn analysed(pairs: &[Pair]) -> CompareAnalysis {
        analyse(&design(16, &[]), pairs, None, None).unwrap()
    }

    #[track_caller]
    fn check(pairs: &[Pair], expected: Decision, sentence: &str) {
        let analysis = analysed(pairs);
        assert_eq!(analysis.decision, expected, "{}", analysis.sentence);
        assert!(analysis.sentence.contains(sentence), "{}", analysis.sentence);
    }

    #[test]
    fn each_decision_has_its_case() {
        check(&pairs(|number| 1000 + (number + 1) % 3), Decision::NotWorse, "B is not worse than A (16 pairs).");
        check(&pairs(|_| 1100), Decision::Worse, "cpu +9.9% (+9.8% to +10.0%), p50 +9.9% (+9.8% to +10.0%), ");
        check(&pairs(|_| 900), Decision::NotWorse, "B is not worse than A; better: throughput +11.2% (");
        check(&pairs(|number| 850 + number % 5 * 80), Decision::Undecided, "which is above the margin of 5%; about ");
        check(&pairs(|_| 1000)[..15], Decision::Undecided, "Unfinished: 15 of 16 pairs");
        check(&[], Decision::Void, "no pair was run");
    }

    #[test]
    fn void_pairs_are_left_out_until_there_are_too_many() {
        let mut some = pairs(|_| 1100);
        some[0].b.saturation.void.push("it stood still".to_owned());
        some[1].a.cpu_us_per_request = 0.0;
        some[2].b.rss_kib = 0;
        let analysis = analysed(&some);
        assert_eq!((analysis.void_pairs, analysis.decision), (3, Decision::Worse));
        some[3].b.rss_kib = 0;
        check(
            &some,
            Decision::Void,
            "4 of 16 pairs cannot be used (at most 20% allowed); the first because of B: it stood still",
        );
    }

    #[test]
    fn a_program_that_fails_requests_is_never_not_worse() {
        let failing = |count: usize| {
            let mut some = pairs(|number| 1000 + (number + 1) % 3);
            some[..count].iter_mut().for_each(|pair| fail(&mut pair.b.saturation, REQUESTS / 100));
            some
        };
        let few = "Undecided after 16 pairs: more than 0.1% of B's requests failed in 1 pair (A's in 0)";
        check(&failing(1), Decision::Undecided, few);
        assert_eq!(analysed(&failing(1)).void_pairs, 0);
        check(&failing(7), Decision::Undecided, "failed in 7 pairs (A's in 0); cpu was not judged.");
        check(&failing(16), Decision::Worse, "B is worse than A: failed requests 0.50% (A 0%) (16 pairs).");
        let analysis = analysed(&failing(16));
        let words = "B: 40 of 4000 requests failed, for example: status 503";
        assert!(analysis.failures.sentence.as_ref().is_some_and(|said| said.ends_with(words)), "{analysis:?}");
        assert!(analysis.measures.is_empty() && analysis.not_judged[0].contains(words), "{analysis:?}");
    }

    #[test]
    fn a_program_that_answers_nothing_is_worse() {
        let mut hanging = pairs(|_| 1000);
        for pair in &mut hanging {
            for run in [&mut pair.b.saturation, &mut pair.b.rated] {
                *run = RunRecord { errors: 4, void: vec![Void::NoAnswers.to_string()], ..run.clone() };
                (run.requests, run.rate_achieved) = (0, 0.0);
            }
            pair.b.cpu_us_per_request = 0.0;
        }
        check(&hanging, Decision::Worse, "B is worse than A: failed requests 100.00% (A 0%)");
    }

    #[test]
    fn a_crash_is_worse_whatever_else_was_seen() {
        let crash = |pair| Crash { side: Side::B, pair, words: "it has ended (signal: 11)".to_owned() };
        for (pair, said) in [(None, "in the pilot"), (Some(3), "in pair 3 of 16")] {
            let analysis = analyse(&design(16, &[]), &pairs(|_| 900)[..2], None, Some(&crash(pair))).unwrap();
            assert_eq!(analysis.decision, Decision::Worse);
            assert!(analysis.sentence.contains(said), "{}", analysis.sentence);
        }
    }

    #[test]
    fn a_late_generator_takes_the_latencies_and_nothing_else() {
        let mut some = pairs(|_| 1100);
        for pair in &mut some[..3] {
            pair.a.rated.void.push("it was late".to_owned());
        }
        let analysis = analysed(&some);
        assert_eq!((analysis.void_pairs, analysis.late_pairs, analysis.measures.len()), (0, 3, PAIRED.len()));
        some[3].b.rated.void.push("it was late".to_owned());
        let sentence = "worse than A: throughput -9.0% (-9.1% to -8.9%), cpu +9.9% (+9.8% to +10.0%) (16 pairs). Not judged: p50, p99, p99.9.";
        check(&some, Decision::Worse, sentence);
        let expected = "p50, p99, p99.9 not judged: 4 of 16 pairs cannot be used, the first because of A: it was late";
        assert_eq!(analysed(&some).not_judged, [expected]);
    }

    #[test]
    fn throughput_is_not_judged_where_the_generator_was_the_limit_of_both() {
        let limited = |of: fn(&mut Pair) -> Vec<&mut SideRecord>| {
            let mut some = pairs(|_| 1100);
            for pair in &mut some {
                for side in of(pair) {
                    side.saturation.generator_cpu_share_max = Some(0.7);
                    side.saturation.generator_cpu_wait_share = Some(0.25);
                }
            }
            analysed(&some)
        };
        let both = limited(|pair| vec![&mut pair.a, &mut pair.b]);
        assert!(both.sentence.contains("worse than A: cpu +9.9%"), "{}", both.sentence);
        assert!(both.not_judged[0].starts_with("throughput not judged: "), "{both:?}");
        let one = limited(|pair| vec![&mut pair.a]);
        assert!(one.sentence.contains("throughput -9.0%") && one.not_judged.is_empty(), "{}", one.sentence);
    }

    #[test]
    fn a_percentile_of_too_few_requests_is_not_judged_and_counts_in_the_family() {
        let mut short = pairs(|_| 1100);
        let corrected = analysed(&short).measures[0].p_adjusted;
        short.iter_mut().for_each(|pair| pair.b.rated.requests = 1000);
        let analysis = analysed(&short);
        assert_eq!(analysis.measures.len(), PAIRED.len() - 1);
        assert!(analysis.not_judged[0].contains("1000 requests a run, where 3688"), "{:?}", analysis.not_judged);
        assert_eq!(analysis.measures[0].p_adjusted, corrected);
    }

    #[test]
    fn an_early_look_with_a_void_pair_decides_nothing() {
        let (design, mut some) = (design(32, &[16, 24, 32]), pairs(|_| 1100));
        let decision = |pairs: &[Pair]| analyse(&design, pairs, None, None).unwrap().decision;
        assert_eq!(decision(&some), Decision::Worse);
        some[0].a.rss_kib = 0;
        assert_eq!(decision(&some), Decision::Undecided);
    }

    #[test]
    fn memory_and_instructions_must_change_by_a_hundredth() {
        let instructions = |b: f64, count: usize| Instructions {
            counted_by: "callgrind".to_owned(),
            a: vec![1000.0; count],
            b: vec![b; count],
            others: Vec::new(),
        };
        // Only three differ, so more would be counted; by themselves they may be two states.
        for (b, count, expected) in [
            (1005.0, 3, Decision::NotWorse),
            (1020.0, 3, Decision::NotWorse),
            (1005.0, 7, Decision::NotWorse),
            (1020.0, 7, Decision::Worse),
        ] {
            let analysis = analyse(&design(16, &[]), &pairs(|_| 1000), Some(&instructions(b, count)), None).unwrap();
            assert_eq!(analysis.decision, expected, "{}", analysis.sentence);
            let counted = analysis.measures.last().unwrap();
            assert!(counted.measure == "instructions" && counted.minimum_detectable > 0.01);
        }
        let mut larger = pairs(|_| 1000);
        larger.iter_mut().for_each(|pair| pair.b.rss_kib += 4);
        check(&larger, Decision::NotWorse, "B is not worse");
    }

    #[test]
    fn a_damaged_histogram_is_an_error() {
        let mut damaged = pairs(|_| 1000);
        damaged[0].b.rated.corrected = "?".to_owned();
        let error = analyse(&design(16, &[]), &damaged, None, None).unwrap_err().to_string();
        assert!(error.contains("the latencies of B"), "{error}");
    }
}
