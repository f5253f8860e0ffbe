//! What `stillgate-lab compare` found: each measure's ratio with its interval and what would have been missed, then the pairs.
//!
//! Figures of verdicts are those of the file's analysis; pairs and curves come from its raw data.

use super::axis::Axis;
use super::effect_plot::{Forest, Group, Row};
use super::escape::Text;
use super::pairs_plot::{self, Dot, Estimate, Measure};
use super::percentile_plot::{self, Curve};
use super::section::{ReportInput, Section, Tone, chip, folded, together};
use super::tables::{self, Cell, figures, words};
use super::{number, provenance};
use crate::compare::measures;
use crate::compare::words::{PAIRED_NOTE, headline};
use crate::error::Result;
use crate::result::compare::{
    CompareDesign, CompareResult, Decision, MeasureAnalysis, MeasureVerdict, Pair, SideRecord,
};
use crate::result::histogram;

pub(crate) fn section(prefix: &str, source: &ReportInput, result: &CompareResult) -> Result<Section> {
    let (tone, word) = match result.analysis.decision {
        Decision::NotWorse => (Tone::Same, "not worse"),
        Decision::Worse => (Tone::Worse, "worse"),
        Decision::Undecided => (Tone::Undecided, "undecided"),
        Decision::Void => (Tone::Void, "void"),
    };
    let (verdict, more) = headline(&result.analysis.sentence);
    let mut section = Section {
        tone,
        word,
        sentence: verdict.to_owned(),
        details: more.to_owned(),
        title: format!("{} (A) against {} (B)", result.a.name, result.b.name),
        entries: Vec::new(),
        body: String::new(),
    };
    let measures = match is_void(result) {
        true => nothing_judged(result),
        false => forest(prefix, result) + &sentences(result) + &measure_table(prefix, result),
    };
    section.part(&format!("{prefix}-all"), "Every measure", &measures);
    section.part(&format!("{prefix}-latency"), "Latency at the fixed rate", &latency(prefix, result)?);
    section.part(&format!("{prefix}-pairs"), "Pair by pair", &pairs(prefix, result)?);
    let programs = provenance::subject(&format!("{prefix}-a"), &result.a).replacen(
        "The program under measure",
        "A, the baseline",
        1,
    ) + &provenance::subject(&format!("{prefix}-b"), &result.b).replacen(
        "The program under measure",
        "B, compared with it",
        1,
    );
    section.part(&format!("{prefix}-programs"), "Programs", &programs);
    provenance::parts(&mut section, prefix, source, &design_rows(&result.design));
    Ok(section)
}

fn is_void(result: &CompareResult) -> bool {
    result.analysis.decision == Decision::Void
}

/// What is left of a void comparison is no finding and must not look like one.
fn nothing_judged(result: &CompareResult) -> String {
    let why = Text(&result.analysis.sentence);
    format!("<p class=\"absent\">The comparison is void, so no effect is drawn and no measure judged. {why}</p>\n")
}

/// What titles add to pictures of both sides.
fn void_mark(result: &CompareResult) -> &'static str {
    if is_void(result) { " (void: no finding)" } else { "" }
}

fn forest(prefix: &str, result: &CompareResult) -> String {
    let measures = &result.analysis.measures;
    if measures.is_empty() {
        return "<p class=\"absent\">No measure could be judged, so there is nothing to draw.</p>\n".to_owned();
    }
    let margin = result.design.margin;
    let reach = measures.iter().flat_map(|measure| {
        let missed = missed(measure.minimum_detectable);
        [measure.low, measure.effect, measure.high, missed.0, missed.1, margin]
    });
    let group =
        Group { axis: Axis::ratio(reach), lines: vec![-margin, margin], rows: measures.iter().map(row).collect() };
    let level = number::round_percent(1.0 - result.design.alpha);
    Forest {
        id: &format!("{prefix}-e"),
        caption: "How much more or less of it B has than A".to_owned(),
        before: &["A", "B"],
        strip: "difference, with its interval",
        after: &["difference", "detectable", "p"],
        groups: vec![group],
        note: format!(
            "All intervals together hold with {level}. Grey: what so few pairs would have missed (power {}). Dotted: the margin \
             of {}. p corrected for the number of measures{}. The scale is logarithmic in the ratio. {}",
            number::round_percent(result.design.power),
            number::round_percent(margin),
            if result.design.looks.is_empty() { "" } else { " and looks" },
            PAIRED_NOTE
        ),
    }
    .draw()
}

/// The ratios, less one, that would have been missed.
fn missed(minimum_detectable: f64) -> (f64, f64) {
    (1.0 / (1.0 + minimum_detectable) - 1.0, minimum_detectable)
}

fn row(measure: &MeasureAnalysis) -> Row {
    let detectable = measure.minimum_detectable;
    Row {
        name: called(&measure.measure).to_owned(),
        before: vec![number::quantity(measure.a, &measure.unit), number::quantity(measure.b, &measure.unit)],
        value: measure.effect,
        low: measure.low,
        high: measure.high,
        missed: missed(detectable),
        style: match measure.verdict {
            MeasureVerdict::Slower => 1,
            MeasureVerdict::Faster => 0,
            MeasureVerdict::NoDifference => 5,
        },
        after: vec![
            number::interval(measure.effect, (measure.low, measure.high), number::percent_difference),
            if detectable.is_finite() { number::percent(detectable) } else { number::NONE.to_owned() },
            number::p_value(measure.p_adjusted),
        ],
    }
}

fn called(measure: &str) -> &str {
    match measure {
        "cpu" => "CPU a request",
        "p50" => "median",
        "p99" => "99%",
        "p99.9" => "99.9%",
        "rss" => "memory",
        other => other,
    }
}

fn sentences(result: &CompareResult) -> String {
    let items = result.analysis.measures.iter().map(|measure| {
        let (tone, word) = verdict(measure.verdict);
        format!("<li>{} {}</li>", chip(tone, word), Text(&measure.sentence))
    });
    let void = match result.analysis.void_pairs {
        0 => String::new(),
        pairs => format!(
            "<li>{} {pairs} pairs were left out because a run of theirs was void.</li>",
            chip(Tone::Void, "void")
        ),
    };
    let missing = result.instructions_missing.as_ref().map_or_else(String::new, |why| {
        format!("<li>{} Instructions were not counted: {}</li>", chip(Tone::Plain, "not counted"), Text(why))
    });
    let failures = result.analysis.failures.sentence.iter().map(|sentence| {
        let (tone, word) = verdict(result.analysis.failures.verdict);
        format!("<li>{} {}</li>", chip(tone, word), Text(sentence))
    });
    let not_judged = result.analysis.not_judged.iter();
    let not_judged = not_judged.map(|why| format!("<li>{} {}</li>", chip(Tone::Plain, "not judged"), Text(why)));
    let crash = result.crash.iter().map(|crash| {
        format!("<li>{} B ended under load:<pre>{}</pre></li>", chip(Tone::Worse, "worse"), Text(&crash.words))
    });
    let items: String = crash.chain(items).chain(failures).chain(not_judged).collect();
    format!("<ul class=\"sentences\">{items}{void}{missing}</ul>\n")
}

fn verdict(verdict: MeasureVerdict) -> (Tone, &'static str) {
    match verdict {
        MeasureVerdict::Slower => (Tone::Worse, "worse"),
        MeasureVerdict::Faster => (Tone::Better, "better"),
        MeasureVerdict::NoDifference => (Tone::Same, "no difference"),
    }
}

fn measure_table(prefix: &str, result: &CompareResult) -> String {
    let heads = [
        words("measure"),
        words("better is"),
        figures("A"),
        figures("B"),
        figures("difference"),
        figures("p"),
        figures("p, corrected"),
        figures("p, Mann-Whitney"),
    ];
    let rows = result.analysis.measures.iter().map(|measure| {
        vec![
            Cell::Words(called(&measure.measure).to_owned()),
            Cell::Words(if measure.higher_is_better { "more" } else { "less" }.to_owned()),
            Cell::Figure(number::quantity(measure.a, &measure.unit)),
            Cell::Figure(number::quantity(measure.b, &measure.unit)),
            Cell::Figure(number::percent_difference(measure.effect)),
            Cell::Figure(number::p_value(measure.p_value)),
            Cell::Figure(number::p_value(measure.p_adjusted)),
            Cell::Figure(number::p_value(measure.p_mann_whitney)),
        ]
    });
    let rows: Vec<_> = rows.collect();
    folded(
        "All tests",
        &tables::draw(&format!("{prefix}-m"), "Medians over the pairs, and every test's p", &heads, &rows),
    )
}

fn counted(result: &CompareResult) -> impl Iterator<Item = &Pair> {
    result.pairs.iter().filter(|pair| !void(pair) && !is_late(pair))
}

/// Whether its latencies tell nothing.
fn is_late(pair: &Pair) -> bool {
    measures::late(pair).is_some()
}

/// Whether it counts for nothing but its failed requests, if for those.
fn void(pair: &Pair) -> bool {
    measures::void(pair).or_else(|| measures::failing(pair)).is_some()
}

fn latency(prefix: &str, result: &CompareResult) -> Result<String> {
    let a = together("A", counted(result).map(|pair| &pair.a.rated.corrected))?;
    let b = together("B", counted(result).map(|pair| &pair.b.rated.corrected))?;
    let (a_name, b_name) = (format!("A, {}", result.a.name), format!("B, {}", result.b.name));
    let curves = [Curve { name: &a_name, style: 0, histogram: &a }, Curve { name: &b_name, style: 1, histogram: &b }];
    let rate = number::plain(result.design.rate);
    let void = void_mark(result);
    let title = format!("Latency by percentile at {rate} requests/s{void}");
    let plot = percentile_plot::draw(&format!("{prefix}-p"), title, &curves);
    let caption = format!("Latency from the intended start, all pairs together, at {rate} requests/s{void}");
    Ok(plot + &percentile_plot::table(&format!("{prefix}-d"), &caption, ("A", &a), ("B", &b)))
}

fn pairs(prefix: &str, result: &CompareResult) -> Result<String> {
    let some_void = result.pairs.iter().any(|pair| void(pair) || is_late(pair));
    let looks = &result.design.looks;
    let mut out = pairs_plot::legend(!is_void(result), looks.len() > 1, some_void) + "<div class=\"facets\">";
    for (number, measure) in result.analysis.measures.iter().enumerate() {
        let mut dots = Vec::with_capacity(result.pairs.len());
        for pair in &result.pairs {
            let (Some(a), Some(b)) = (value(&pair.a, &measure.measure)?, value(&pair.b, &measure.measure)?) else {
                break;
            };
            dots.push(Dot {
                first: pair.first,
                ratio: b / a - 1.0,
                void: void(pair) || measure.unit == measures::LATENCY_UNIT && is_late(pair),
            });
        }
        if dots.is_empty() {
            continue;
        }
        let drawn = Measure {
            id: &format!("{prefix}-r{number}"),
            name: format!("{}{}", called(&measure.measure), void_mark(result)),
            dots: &dots,
            estimate: (!is_void(result)).then_some(Estimate {
                effect: measure.effect,
                low: measure.low,
                high: measure.high,
            }),
            looks,
        };
        out.push_str(&drawn.draw());
    }
    out.push_str("</div>\n");
    Ok(out + &folded("Pairs", &pair_table(prefix, result)?))
}

/// Of one side of a pair; none for what is not measured in pairs.
fn value(side: &SideRecord, measure: &str) -> Result<Option<f64>> {
    let latency = |share: f64| {
        let decoded = histogram::decode(&side.rated.corrected).map_err(|error| error.context("a pair"));
        decoded.map(|histogram| histogram::quantile_us(&histogram, share))
    };
    Ok(match measure {
        "throughput" => Some(side.saturation.rate_achieved),
        "cpu" => Some(side.cpu_us_per_request),
        "p50" => Some(latency(0.5)?),
        "p99" => Some(latency(0.99)?),
        "p99.9" => Some(latency(0.999)?),
        "rss" => Some(side.rss_kib as f64),
        _ => None,
    })
}

fn pair_table(prefix: &str, result: &CompareResult) -> Result<String> {
    let heads = [
        words("pair"),
        words("first"),
        figures("A, requests/s"),
        figures("B"),
        figures("A, CPU a request"),
        figures("B"),
        figures("A, 99%"),
        figures("B"),
        figures("A, memory"),
        figures("B"),
        words("remarks"),
    ];
    let mut rows = Vec::with_capacity(result.pairs.len());
    for (number, pair) in result.pairs.iter().enumerate() {
        let sides = [&pair.a, &pair.b];
        let mut row = vec![Cell::Words((number + 1).to_string()), Cell::Words(format!("{:?}", pair.first))];
        row.extend(sides.map(|side| Cell::Figure(number::plain(side.saturation.rate_achieved))));
        row.extend(sides.map(|side| Cell::Figure(number::time(side.cpu_us_per_request))));
        for side in sides {
            let us = value(side, "p99")?.unwrap_or(f64::NAN);
            row.push(Cell::Figure(number::time(us)));
        }
        row.extend(sides.map(|side| Cell::Figure(number::bytes(side.rss_kib as f64 * 1024.0))));
        row.push(Cell::Words(remark(pair)));
        rows.push(row);
    }
    Ok(tables::draw(&format!("{prefix}-pt"), "Pairs in the order they were run", &heads, &rows))
}

fn remark(pair: &Pair) -> String {
    if let Some(why) = measures::void(pair) {
        return format!("void: {why}");
    }
    let late = || Some(format!("latencies not judged: {}", measures::late(pair)?));
    measures::failing(pair).or_else(late).unwrap_or_default()
}

fn design_rows(design: &CompareDesign) -> provenance::Rows {
    let looks: Vec<String> = design.looks.iter().map(ToString::to_string).collect();
    let mut rows = vec![
        ("pairs", Some(number::count(design.pairs as u64))),
        ("looks after pairs", (!looks.is_empty()).then(|| looks.join(", "))),
        ("false alarms at most", Some(number::round_percent(design.alpha))),
        ("power of detectable differences", Some(number::round_percent(design.power))),
        ("margin", Some(number::round_percent(design.margin))),
        ("deciding measures", Some(design.deciding.join(", "))),
        ("warm-up", Some(number::seconds(design.warm_up_s))),
        ("closed loop", Some(number::seconds(design.saturation_s))),
        ("open loop", Some(format!("{} at {}/s", number::seconds(design.rate_s), number::plain(design.rate)))),
        ("connections", Some(number::count(design.connections as u64))),
        ("seed", Some(design.seed.to_string())),
    ];
    rows.extend(provenance::placement_rows(&design.placement));
    rows
}
