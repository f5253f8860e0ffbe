//! A strict parser of both text formats, for tests that read thousands of expositions: too many to start Python for
//! each.
//!
//! It refuses everything that is not exactly what we promise, even where other parsers are lenient.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};

use stillgate_metrics::Collector;
use stillgate_metrics::encode::Format;

/// Labels in the order of the line.
pub type Labels = Vec<(String, String)>;

/// One exposition that is complete and consistent.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Exposition {
    /// Type by family, as declared.
    pub kinds: BTreeMap<String, String>,
    /// Every sample line but the `_created` ones.
    pub samples: BTreeMap<(String, Labels), f64>,
    /// When a series began, by the family's name and labels; OpenMetrics only.
    pub created: BTreeMap<(String, Labels), f64>,
}

impl Exposition {
    /// Reads from a collector that has been refreshed.
    #[track_caller]
    pub fn of(collector: &mut Collector, format: Format) -> Exposition {
        let text = read(collector, format, false);
        let text = String::from_utf8(text).expect("an exposition is UTF-8");
        match parse(&text, format == Format::OpenMetrics) {
            Ok(exposition) => exposition,
            Err(error) => panic!("{error}\n--- in ---\n{text}"),
        }
    }

    /// The sum over all samples of this name.
    pub fn sum(&self, name: &str) -> f64 {
        self.sum_where(name, |_| true)
    }

    /// The sum over the samples whose labels are wanted.
    pub fn sum_where(&self, name: &str, wanted: impl Fn(&Labels) -> bool) -> f64 {
        let all = self.samples.iter().filter(|((each, labels), _)| each == name && wanted(labels));
        all.map(|(_, value)| value).sum()
    }
}

/// All bytes of an exposition.
pub fn read(collector: &mut Collector, format: Format, gzip: bool) -> Vec<u8> {
    let mut cursor = collector.cursor(format, gzip, None);
    let mut bytes = Vec::new();
    while let Some(piece) = collector.next(&mut cursor) {
        bytes.extend_from_slice(piece.as_ref());
    }
    bytes
}

/// The value of a label; empty if it is missing.
pub fn label<'a>(labels: &'a Labels, name: &str) -> &'a str {
    labels.iter().find(|(each, _)| each == name).map_or("", |(_, value)| value)
}

/// Parses an exposition; the error says what is wrong.
pub fn parse(text: &str, openmetrics: bool) -> Result<Exposition, String> {
    let body = match openmetrics {
        true => text.strip_suffix("# EOF\n").ok_or("it does not end in # EOF")?,
        false => text,
    };
    if !body.is_empty() && !body.ends_with('\n') {
        return Err("the last line does not end".to_owned());
    }
    let mut reading = Reading { openmetrics, ..Reading::default() };
    for line in body.split_terminator('\n') {
        reading.line(line).map_err(|error| format!("{error}: {line}"))?;
    }
    reading.end_family()?;
    Ok(reading.found)
}

#[derive(Default)]
struct Reading {
    openmetrics: bool,
    found: Exposition,
    /// The family whose lines these are.
    family: String,
    kind: String,
    /// Cumulative buckets of each series of a histogram.
    buckets: BTreeMap<Labels, Vec<(f64, f64)>>,
}

impl Reading {
    fn line(&mut self, line: &str) -> Result<(), String> {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut parts = comment.splitn(3, ' ');
            let (what, name) = (parts.next().unwrap_or_default(), parts.next().ok_or("no name")?);
            self.enter(name)?;
            let rest = parts.next().ok_or("nothing behind the name")?;
            return match what {
                "HELP" => Ok(()),
                "TYPE" if self.kind.is_empty() => {
                    self.kind = rest.to_owned();
                    self.found.kinds.insert(name.to_owned(), rest.to_owned());
                    Ok(())
                }
                "UNIT" if self.openmetrics && name.ends_with(&format!("_{rest}")) => Ok(()),
                _ => Err("a comment nobody asked for".to_owned()),
            };
        }
        let at = line.find(['{', ' ']).ok_or("no value")?;
        let (name, rest) = line.split_at(at);
        let (labels, value) = match rest.strip_prefix('{') {
            Some(rest) => labels(rest)?,
            None => (Labels::new(), rest),
        };
        let value = value.strip_prefix(' ').ok_or("no space before the value")?;
        // An exemplar may follow; other tests check its content.
        let value = value.split_once(" # ").map_or(value, |(value, _)| value);
        let value: f64 = value.parse().map_err(|_| format!("{value:?} is not a number"))?;
        self.sample(name, labels, value)
    }

    /// Begins the next family, if it is another one.
    fn enter(&mut self, name: &str) -> Result<(), String> {
        if self.family != name {
            self.end_family()?;
            if self.found.kinds.contains_key(name) {
                return Err(format!("{name} comes twice"));
            }
            self.family = name.to_owned();
            self.kind.clear();
        }
        Ok(())
    }

    fn sample(&mut self, name: &str, mut labels: Labels, value: f64) -> Result<(), String> {
        let suffix = name.strip_prefix(&self.family).ok_or("a sample of another family")?;
        let is_series = match (self.kind.as_str(), suffix) {
            ("counter", "_total") => self.openmetrics,
            ("counter", "") => !self.openmetrics,
            ("gauge" | "unknown" | "untyped", "") => true,
            ("info", "_info") => self.openmetrics,
            ("histogram", "_bucket" | "_sum" | "_count") => true,
            ("counter" | "histogram", "_created") if self.openmetrics => {
                let again = self.found.created.insert((self.family.clone(), labels), value);
                return again.map_or(Ok(()), |_| Err("created twice".to_owned()));
            }
            _ => false,
        };
        if !is_series {
            return Err(format!("no sample of a {}", self.kind));
        }
        if self.kind != "gauge" && suffix != "_sum" && !(value >= 0.0 && value.is_finite()) {
            return Err("no count".to_owned());
        }
        if suffix == "_bucket" {
            let (_, bound) = labels.pop().filter(|(name, _)| name == "le").ok_or("le is not the last label")?;
            let bound: f64 = bound.parse().map_err(|_| "le is not a number")?;
            self.buckets.entry(labels.clone()).or_default().push((bound, value));
            // OpenMetrics writes 1.0 where the text format has 1.
            labels.push(("le".to_owned(), bound.to_string()));
        }
        match self.found.samples.insert((name.to_owned(), labels), value) {
            None => Ok(()),
            Some(_) => Err("the same series twice".to_owned()),
        }
    }

    fn end_family(&mut self) -> Result<(), String> {
        for (labels, buckets) in std::mem::take(&mut self.buckets) {
            let ascend = buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
            let (last, all) = *buckets.last().ok_or("no bucket")?;
            let count = self.found.samples.get(&(format!("{}_count", self.family), labels.clone()));
            if !ascend || last != f64::INFINITY || count != Some(&all) {
                return Err(format!("{}{labels:?}: buckets {buckets:?}, count {count:?}", self.family));
            }
        }
        Ok(())
    }
}

/// The labels between the braces, and the rest of the line.
fn labels(mut rest: &str) -> Result<(Labels, &str), String> {
    let (mut all, mut names) = (Labels::new(), BTreeSet::new());
    loop {
        let (name, after) = rest.split_once("=\"").ok_or("no label")?;
        let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if name.is_empty() || !name.bytes().all(good) || !names.insert(name) {
            return Err(format!("label {name:?}"));
        }
        let (mut value, mut chars) = (String::new(), after.char_indices());
        let end = loop {
            match chars.next().ok_or("a value without an end")? {
                (at, '"') => break at,
                (_, '\\') => match chars.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, same @ ('"' | '\\'))) => value.push(same),
                    other => return Err(format!("escape {other:?}")),
                },
                (_, other) => value.push(other),
            }
        };
        all.push((name.to_owned(), value));
        rest = &after[end + 1..];
        match rest.as_bytes().first() {
            Some(b',') => rest = &rest[1..],
            Some(b'}') => return Ok((all, &rest[1..])),
            _ => return Err("neither comma nor brace behind a label".to_owned()),
        }
    }
}
