//! Independent judges of an exposition: promtool and Python's `prometheus_client`.
//!
//! Both are run on a complete text; `prometheus.rs` shows how a scraper treats a live target.

use crate::peers::require_tool;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Seek, Write};
use std::process::{Command, Output, Stdio};

/// Labels by name.
pub type Labels = BTreeMap<String, String>;

/// One family as `prometheus_client` parsed it.
///
/// It removes `_total` from a counter's name in both formats; sample names are unchanged.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedFamily {
    /// Without the suffixes of its samples.
    pub name: String,
    /// `counter`, `gauge`, `histogram`, …; `unknown` if no type was given.
    pub kind: String,
    /// Unescaped.
    pub help: String,
    /// Empty in the text format.
    pub unit: String,
    /// In their order.
    pub samples: Vec<ParsedSample>,
}

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedSample {
    /// Including its suffix.
    pub name: String,
    /// Unescaped.
    pub labels: Labels,
    /// Its number.
    pub value: f64,
    /// Seconds since the epoch, if there is one.
    pub timestamp: Option<f64>,
    /// Only OpenMetrics has them.
    pub exemplar: Option<ParsedExemplar>,
}

/// The part after a `#` in OpenMetrics.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedExemplar {
    /// Unescaped.
    pub labels: Labels,
    /// The observation.
    pub value: f64,
    /// Seconds since the epoch, if there is one.
    pub timestamp: Option<f64>,
}

/// `promtool check metrics`: the text format 0.0.4, parsed and linted.
///
/// # Errors
/// The output of promtool, if it has complaints.
///
/// # Panics
/// If promtool is missing.
#[track_caller]
pub fn promtool_check_metrics(text: &str) -> Result<(), String> {
    require_tool("promtool", "prometheus");
    let mut command = Command::new("promtool");
    let output = fed(command.args(["check", "metrics"]), text);
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    // Some versions print something on success, others complain with status 0.
    if output.status.success() && said.is_empty() { Ok(()) } else { Err(format!("{}: {said}", output.status)) }
}

/// Reads an exposition with `prometheus_client`, whose OpenMetrics parser is the strictest one.
///
/// # Errors
/// The parser's exception.
///
/// # Panics
/// If Python or the module is missing.
#[track_caller]
pub fn python_families(text: &str, openmetrics: bool) -> Result<Vec<ParsedFamily>, String> {
    let format = if openmetrics { "openmetrics" } else { "text" };
    // Debian's interpreter, which finds Debian's modules.
    let mut command = Command::new("/usr/bin/python3");
    let output = fed(command.args(["-c", include_str!("families.py"), format]), text);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        !error.contains("No module named 'prometheus_client'"),
        "install the Debian package python3-prometheus-client (`cargo xtask test` does it when root)"
    );
    if !output.status.success() {
        return Err(error.lines().last().unwrap_or("no output from Python").to_owned());
    }
    let families: Value = serde_json::from_slice(&output.stdout).expect("the script prints JSON");
    Ok(elements(&families).iter().map(family).collect())
}

/// Runs a program with `text` as its standard input, from a file: a pipe could block on both sides.
#[track_caller]
fn fed(command: &mut Command, text: &str) -> Output {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(text.as_bytes()).and_then(|()| file.rewind()).expect("write a temporary file");
    let program = command.get_program().to_owned();
    command.stdin(Stdio::from(file)).output().unwrap_or_else(|error| panic!("run {}: {error}", program.display()))
}

fn family(value: &Value) -> ParsedFamily {
    ParsedFamily {
        name: word(&value["name"]),
        kind: word(&value["kind"]),
        help: word(&value["help"]),
        unit: word(&value["unit"]),
        samples: elements(&value["samples"]).iter().map(sample).collect(),
    }
}

fn sample(value: &Value) -> ParsedSample {
    let exemplar = &value["exemplar"];
    ParsedSample {
        name: word(&value["name"]),
        labels: labels(&value["labels"]),
        value: number(&value["value"]).expect("a sample has a value"),
        timestamp: number(&value["timestamp"]),
        exemplar: exemplar.is_object().then(|| ParsedExemplar {
            labels: labels(&exemplar["labels"]),
            value: number(&exemplar["value"]).expect("an exemplar has a value"),
            timestamp: number(&exemplar["timestamp"]),
        }),
    }
}

/// A JSON object of strings as labels.
pub(crate) fn labels(value: &Value) -> Labels {
    value.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), word(value))).collect()
}

pub(crate) fn elements(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(crate) fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A number as text, as Go and Python write NaN and infinity.
pub(crate) fn number(value: &Value) -> Option<f64> {
    value.as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP a_total A \\\\ help.\n# TYPE a_total counter\na_total{x=\"q\\\"\\n\\\\\",y=\"ö\"} 3\n\
        # HELP b_seconds B.\n# TYPE b_seconds gauge\nb_seconds +Inf\n";

    #[test]
    fn python_reads_text() {
        let families = python_families(TEXT, false).unwrap();
        assert_eq!(families.len(), 2);
        assert_eq!((families[0].name.as_str(), families[0].kind.as_str()), ("a", "counter"));
        assert_eq!(families[0].help, "A \\ help.");
        assert_eq!(families[0].samples[0].name, "a_total");
        assert_eq!(families[0].samples[0].labels["x"], "q\"\n\\");
        assert_eq!(families[0].samples[0].labels["y"], "ö");
        assert_eq!(families[1].samples[0].value, f64::INFINITY);
    }

    #[test]
    fn python_reads_openmetrics_strictly() {
        let text = "# TYPE a counter\n# UNIT a_seconds seconds\n";
        assert!(python_families(text, true).is_err());
        let text = "# TYPE a counter\n# HELP a Help.\na_total{x=\"1\"} 3.0 # {trace_id=\"t\"} 0.5 1.25\n\
            a_created{x=\"1\"} 12.5\n# EOF\n";
        let families = python_families(text, true).unwrap();
        let exemplar = families[0].samples[0].exemplar.as_ref().unwrap();
        assert_eq!((exemplar.value, exemplar.timestamp), (0.5, Some(1.25)));
        assert_eq!(exemplar.labels["trace_id"], "t");
        assert_eq!(families[0].samples[1].name, "a_created");
        let unfinished = text.replace("# EOF\n", "");
        assert!(python_families(&unfinished, true).unwrap_err().contains("EOF"));
    }

    #[test]
    fn promtool_lints() {
        promtool_check_metrics(TEXT).unwrap();
        assert!(promtool_check_metrics("# TYPE a counter\na 1\n").unwrap_err().contains("_total"));
        assert!(promtool_check_metrics("a{ 1\n").is_err());
    }
}
