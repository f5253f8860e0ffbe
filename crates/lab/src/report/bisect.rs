//! The result of `stillgate-lab bisect`: every measurement by commit, with the step that was found, and each commit's
//! probability and figures.
//!
//! Columns are the commits that were measured, or could not be, oldest first; those between two columns are not drawn.
//! Within a column measurements are in their order. The axis is that of the usual measurements: the others are arrows
//! at its ends, so that the step stays visible, and are in the table like all.

use super::axis::{Axis, AxisEnd, without_outliers};
use super::compare::{ReportInput, Section, Tone};
use super::markup::{self, Key, LegendSymbol, Plot, Probe};
use super::plots::beyond_in_words;
use super::tables::{self, Cell, figures, words};
use super::{number, provenance};
use crate::bisect::analysis::{probability, report};
use crate::error::Result;
use crate::git::short;
use crate::result::bisect::{BisectResult, BisectVerdict, CommitRecord, MergeOrder, TryOutcome};
use stillgate_stats::median;

/// Commits less likely than this are not listed unless they were measured.
const LISTED_MIN: f64 = 0.005;

/// Least width of a commit's median, as a share of the plot.
const MEDIAN_WIDTH_MIN: f64 = 0.02;

/// Share of a column over which its measurements are spread.
const SPREAD: f64 = 0.64;

/// Characters of a version's name in the plot, and measurements in a read-out.
const NAME_CHARS_MAX: usize = 16;
const READ_OUT_VALUES_MAX: usize = 10;

/// Styles of measurements before a step and after it, in turn.
const STYLES: [usize; 2] = [0, 1];

/// Left of this a label has no room on the left.
const LABEL_TURNS_AT: f64 = 0.45;

pub(crate) fn section(prefix: &str, source: &ReportInput, result: &BisectResult) -> Result<Section> {
    let answer = &result.answer;
    let (tone, word) = match answer.verdict {
        BisectVerdict::Found if result.is_worse() => (Tone::Worse, "found"),
        BisectVerdict::Found => (Tone::Better, "found"),
        BisectVerdict::None => (Tone::Same, "none"),
        BisectVerdict::Undecided => (Tone::Undecided, "undecided"),
        BisectVerdict::Void => (Tone::Void, "void"),
    };
    let mut section = Section {
        tone,
        word,
        sentence: answer.sentence.clone(),
        details: String::new(),
        title: format!("Bisection from {} to {}", short(&result.design.good), short(&result.design.bad)),
        entries: Vec::new(),
        body: String::new(),
    };
    let columns = Column::all(result);
    let plot = Chart::of(result, &columns).map_or_else(String::new, |chart| chart.draw(&format!("{prefix}-p")));
    section.part(&format!("{prefix}-commits"), "Commits", &(plot + &table(prefix, result)));
    let rows: provenance::Rows = vec![
        ("measured by", Some(result.design.measure.clone())),
        ("built by", result.design.build.clone()),
        ("patched by", result.design.apply.as_ref().map(|applied| applied.path.clone())),
        ("versions", result.design.versions.clone()),
        (
            "merges",
            result.design.versions.is_none().then(|| match result.design.line {
                MergeOrder::FirstParent => "one step each, on the line of first parents".to_owned(),
                MergeOrder::Linear => "their commits are in the row".to_owned(),
            }),
        ),
        ("confidence", Some(number::percent(result.design.confidence))),
        ("least change that counts", Some(number::percent(result.design.min_effect))),
        ("in short", Some(report(result).trim_end().replace('\n', " "))),
    ];
    provenance::parts(&mut section, prefix, source, &rows);
    Ok(section)
}

/// A commit with its measurements, in their order.
struct Column<'a> {
    place: usize,
    record: &'a CommitRecord,
    values: Vec<f64>,
    probability: f64,
    is_measurable: bool,
}

impl Column<'_> {
    /// All commits that were measured, or tried in vain.
    fn all(result: &BisectResult) -> Vec<Column<'_>> {
        let answer = &result.answer;
        let column = |(place, record): (usize, &CommitRecord)| Column {
            place,
            record: &result.commits[place],
            values: measured(result, place),
            probability: answer.posterior.get(&record.commit).copied().unwrap_or(0.0),
            is_measurable: !answer.unbuildable.contains(&record.commit),
        };
        let all = result.commits.iter().enumerate().map(column);
        all.filter(|column| !column.values.is_empty() || !column.is_measurable).collect()
    }

    fn median(&self) -> Option<f64> {
        median(&self.values)
    }
}

fn measured(result: &BisectResult, place: usize) -> Vec<f64> {
    let of_place = result.tries.iter().filter(|tried| tried.place == place);
    let value = of_place.filter_map(|tried| match tried.outcome {
        TryOutcome::Measured { value, .. } => Some(value),
        _ => None,
    });
    value.collect()
}

/// The unit of the measurements.
fn unit(result: &BisectResult) -> &str {
    let unit = result.tries.iter().find_map(|tried| match &tried.outcome {
        TryOutcome::Measured { unit, .. } => unit.as_deref(),
        _ => None,
    });
    unit.unwrap_or("")
}

/// A change, by the columns around it.
struct Step {
    /// The columns that may have made it.
    first: usize,
    last: usize,
    label: String,
    confidence: String,
    /// Whether measurements after it are larger.
    is_up: bool,
}

/// The plot.
struct Chart<'a> {
    columns: &'a [Column<'a>],
    steps: Vec<Step>,
    unit: &'a str,
    items: &'static str,
    commits: usize,
    /// The measurement that the others are compared with.
    reference: f64,
    x: Axis,
    y: Axis,
}

impl<'a> Chart<'a> {
    /// `None` if nothing was measured.
    fn of(result: &'a BisectResult, columns: &'a [Column<'a>]) -> Option<Chart<'a>> {
        let reference = columns.iter().find_map(Column::median)?;
        let steps: Vec<Step> = steps(result, columns);
        let ratios: Vec<f64> =
            columns.iter().flat_map(|column| &column.values).map(|value| value / reference - 1.0).collect();
        let mut chart = Chart {
            columns,
            steps,
            unit: unit(result),
            items: result.design.items(),
            commits: result.commits.len(),
            reference,
            x: Axis::columns(&[], &[]),
            y: Axis::columns(&[], &[]),
        };
        let levels = chart.levels().into_iter().map(|(_, _, level)| level / reference - 1.0);
        chart.y = Axis::ratio(without_outliers(&ratios).into_iter().chain(levels));
        let named: Vec<String> = columns.iter().map(|column| column.place.to_string()).collect();
        let ends = [0, columns.len() - 1];
        let always: Vec<usize> = chart.steps.iter().map(|step| step.last).chain(ends).collect();
        chart.x = Axis::columns(&named, &always);
        Some(chart)
    }

    fn shown(&self, value: f64) -> String {
        number::quantity(value, self.unit).trim_end().to_owned()
    }

    fn height(&self, value: f64) -> f64 {
        self.y.place(value / self.reference - 1.0)
    }

    fn beyond(&self, value: f64) -> Option<AxisEnd> {
        self.y.beyond(value / self.reference - 1.0)
    }

    fn middle(&self, column: usize) -> f64 {
        self.x.place((column + 1) as f64)
    }

    /// Between a column and the one before it.
    fn border(&self, column: usize) -> f64 {
        self.x.place(column as f64 + 0.5)
    }

    /// The median of all measurements between two steps, with its columns.
    fn levels(&self) -> Vec<(usize, usize, f64)> {
        let mut from = 0;
        let mut levels = Vec::new();
        let ends = self.steps.iter().map(|step| (step.first, step.last));
        for (end, next) in ends.chain([(self.columns.len(), self.columns.len())]) {
            let of = &self.columns[from.min(end)..end];
            let values: Vec<f64> = of.iter().flat_map(|column| column.values.iter().copied()).collect();
            levels.extend(median(&values).map(|level| (from, end, level)));
            from = next;
        }
        levels
    }

    fn style(&self, column: usize) -> usize {
        STYLES[self.steps.iter().filter(|step| step.last <= column).count() % STYLES.len()]
    }

    fn draw(&self, id: &str) -> String {
        let (mut curves, mut marks) = (String::new(), String::new());
        for (from, end, level) in self.levels() {
            let height = self.height(level);
            curves.push_str(&markup::line("estimate", &[(self.border(from), height), (self.border(end), height)]));
        }
        for step in &self.steps {
            let (from, to) = (self.border(step.first), self.border(step.last));
            curves.push_str(&markup::vertical_band("step", from, to));
            marks.push_str(&markup::straight_line("step", (to, 0.0), (to, 1.0)));
        }
        for column in 0..self.columns.len() {
            marks.push_str(&self.column(column));
        }
        marks.extend(self.steps.iter().map(|step| self.label(step)));
        let values = || self.columns.iter().flat_map(|column| &column.values);
        let beyond = beyond_in_words(values().filter(|value| self.beyond(**value).is_some()).count(), "measurement");
        let items = self.items;
        Plot {
            id,
            kind: "series",
            title: format!(
                "{} measurements of {} of {} {items}{beyond}",
                values().count(),
                self.measured(),
                self.commits
            ),
            description: self.description(),
            x: &self.x,
            x_name: if items == "commits" {
                "measured commits by number, oldest first"
            } else {
                "measured versions by number, oldest first"
            },
            y: &self.y,
            y_name: "difference from the first median",
            legend: self.legend(),
            curves,
            marks,
            probes: self.probes(),
        }
        .draw()
    }

    fn measured(&self) -> usize {
        self.columns.iter().filter(|column| !column.values.is_empty()).count()
    }

    fn column(&self, index: usize) -> String {
        let column = &self.columns[index];
        let (middle, width) = (self.middle(index), SPREAD / self.columns.len() as f64);
        let mut out = String::new();
        if !column.is_measurable {
            out.push_str(&markup::text("mid void", (middle, 0.0), (0, -6), "✕"));
        }
        // Measurements are drawn over it, so that a single one is seen.
        if let Some(median) = column.median().filter(|median| self.beyond(*median).is_none()) {
            let height = self.height(median);
            let half = width.max(MEDIAN_WIDTH_MIN) / 2.0;
            out.push_str(&markup::straight_line("median", (middle - half, height), (middle + half, height)));
        }
        let style = self.style(index);
        let count = column.values.len() as f64;
        let mut beyond = [(AxisEnd::Low, 0), (AxisEnd::High, 0)];
        for (number, value) in column.values.iter().enumerate() {
            match self.beyond(*value) {
                None => {
                    let aside = ((number as f64 + 0.5) / count - 0.5) * width;
                    out.push_str(&markup::marker(style, middle + aside, self.height(*value)));
                }
                Some(end) => beyond.iter_mut().filter(|(of, _)| *of == end).for_each(|(_, count)| *count += 1),
            }
        }
        for (end, count) in beyond.into_iter().filter(|(_, count)| *count > 0) {
            out.push_str(&markup::clipped_marker(style, middle, end));
            out.push_str(&markup::clipped_count(middle, end, count));
        }
        out
    }

    /// Where the measurements of both sides leave room.
    fn label(&self, step: &Step) -> String {
        let at = self.border(step.last);
        let is_left = at > LABEL_TURNS_AT;
        let (class, aside) = if is_left { ("step end", -8) } else { ("step", 8) };
        let (height, lines) = if is_left == step.is_up { (1.0, [16, 31]) } else { (0.0, [-25, -10]) };
        let line = |text: &str, down| markup::text(class, (at, height), (aside, down), text);
        line(&step.label, lines[0]) + &line(&step.confidence, lines[1])
    }

    fn legend(&self) -> Vec<Key> {
        let mut keys = vec![Key { name: "a measurement".to_owned(), look: LegendSymbol::Marker(STYLES[0]) }];
        if !self.steps.is_empty() {
            keys.push(Key { name: "after a step".to_owned(), look: LegendSymbol::Marker(STYLES[1]) });
            keys.push(Key { name: "the step".to_owned(), look: LegendSymbol::Line("step") });
        }
        keys.push(Key { name: "median of a commit".to_owned(), look: LegendSymbol::Line("median") });
        if self.items != "commits" {
            keys.last_mut().into_iter().for_each(|key| key.name = "median of a version".to_owned());
        }
        keys.push(Key { name: "median between steps".to_owned(), look: LegendSymbol::Line("estimate") });
        if self.columns.iter().any(|column| !column.is_measurable) {
            keys.push(Key { name: "cannot be measured".to_owned(), look: LegendSymbol::Word("void", "✕") });
        }
        keys
    }

    fn probes(&self) -> Vec<Probe> {
        let probe = |(index, column): (usize, &Column<'_>)| {
            let style = self.style(index);
            let mut lines = Vec::new();
            if let Some(median) = column.median() {
                let change = number::percent_difference(median / self.reference - 1.0);
                lines.push((Some(style), format!("median {}, {change}", self.shown(median))));
                lines.push((None, self.values(column)));
            }
            if !column.is_measurable {
                lines.push((None, "cannot be measured".to_owned()));
            }
            lines.push((None, format!("changed it: {}", probability(column.probability))));
            Probe {
                at: self.middle(index),
                from: self.border(index),
                to: self.border(index + 1),
                head: format!("{} {}", short(&column.record.commit), column.record.subject),
                lines,
                dots: Vec::new(),
            }
        };
        self.columns.iter().enumerate().map(probe).collect()
    }

    fn values(&self, column: &Column<'_>) -> String {
        let count = column.values.len();
        let shown: Vec<String> =
            column.values.iter().take(READ_OUT_VALUES_MAX).map(|value| self.shown(*value)).collect();
        match count {
            1 => "measured once".to_owned(),
            count if count <= READ_OUT_VALUES_MAX => shown.join(", "),
            count => format!("{} and {} more", shown.join(", "), count - READ_OUT_VALUES_MAX),
        }
    }

    fn description(&self) -> String {
        let steps = self.steps.iter().map(|step| format!("Step at {}, {}. ", step.label, step.confidence));
        let levels = self.levels().into_iter().map(|(_, _, level)| self.shown(level));
        let levels = levels.collect::<Vec<_>>().join(", then ");
        format!("{}Median: {levels}. The table below has every measurement.", steps.collect::<String>())
    }
}

/// For a label, which has little room.
fn label_name(commit: &str) -> String {
    let name = short(commit);
    match name.char_indices().nth(NAME_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// The changes that were found, oldest first.
fn steps(result: &BisectResult, columns: &[Column<'_>]) -> Vec<Step> {
    let column = |commit: &String| columns.iter().position(|column| column.record.commit == *commit);
    let mut steps: Vec<Step> = Vec::new();
    for change in &result.answer.changes {
        let mut places = change.commits.iter().filter_map(column);
        let (Some(first), last) = (places.next(), places.next_back()) else { continue };
        let name = match change.commits.as_slice() {
            [only] => label_name(only),
            several => format!("one of {} {}", several.len(), result.design.items()),
        };
        let size = change.effect.map_or(0.0, |effect| effect.value);
        steps.push(Step {
            first,
            last: last.unwrap_or(first),
            label: format!("{name}: {}", number::percent_difference(size)),
            confidence: format!("probability {}", probability(change.probability)),
            is_up: size > 0.0,
        });
    }
    steps.sort_by_key(|step| step.first);
    steps
}

fn table(prefix: &str, result: &BisectResult) -> String {
    let (answer, unit) = (&result.answer, unit(result));
    let shown = |value: f64| number::quantity(value, unit).trim_end().to_owned();
    let row = |(place, record): (usize, &CommitRecord)| {
        let p = answer.posterior.get(&record.commit).copied().unwrap_or(0.0);
        let values = measured(result, place);
        if values.is_empty() && p < LISTED_MIN && !answer.unbuildable.contains(&record.commit) {
            return None;
        }
        let all: Vec<String> = values.iter().map(|value| shown(*value)).collect();
        Some(vec![
            Cell::Words(short(&record.commit).to_owned()),
            Cell::Words(record.subject.clone()),
            Cell::Figure(place.to_string()),
            Cell::Figure(probability(p)),
            Cell::Figure(median(&values).map_or_else(|| "none".to_owned(), shown)),
            Cell::Words(all.join(", ")),
        ])
    };
    let rows: Vec<Vec<Cell>> = result.commits.iter().enumerate().filter_map(row).collect();
    let heads = [
        words("commit"),
        words("subject"),
        figures("number"),
        figures("probability"),
        figures("median"),
        words("measurements"),
    ];
    tables::draw(&format!("{prefix}-t"), "Probability that each commit changed it, and its measurements", &heads, &rows)
}
