//! Fetches a whole exposition and adds up its samples.
//!
//! It is read outside the measured time; the laboratory measures the effect of scrapes on requests (`stillgate-lab tail`).

use crate::Result;
use crate::step;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;

/// The body of `path`, fetched by curl, which checks framing and gzip.
pub(super) fn fetch(address: SocketAddr, path: &str) -> Result<String> {
    let url = format!("http://{address}{path}");
    // Without a time limit: a million lines are read at the server's pace.
    let arguments = ["--silent", "--show-error", "--fail", "--globoff", "--noproxy", "*", "--compressed", &url];
    step::output(Command::new("curl").args(arguments))
}

/// One family of a text exposition, added up.
pub(super) struct Sums {
    /// Number of lines.
    pub(super) series: u64,
    /// The sum over all of them.
    pub(super) total: f64,
    /// Sums by the labels of a line without the excluded ones.
    pub(super) by_labels: BTreeMap<String, f64>,
}

/// Adds up the samples called `name`, over the values of the label `without`.
pub(super) fn sums(exposition: &str, name: &str, without: &str) -> Result<Sums> {
    let mut sums = Sums { series: 0, total: 0.0, by_labels: BTreeMap::new() };
    for line in exposition.lines() {
        let Some(rest) = line.strip_prefix(name).and_then(|rest| rest.strip_prefix('{')) else {
            continue;
        };
        let (labels, value) = rest.rsplit_once("} ").ok_or_else(|| format!("not a sample: {line}"))?;
        let value: f64 = value.split(' ').next().unwrap_or_default().parse()?;
        sums.series += 1;
        sums.total += value;
        // Most lines have known labels, so nothing is kept for them.
        let labels = without_label(labels, without);
        match sums.by_labels.get_mut(labels.as_str()) {
            Some(sum) => *sum += value,
            None => drop(sums.by_labels.insert(labels, value)),
        }
    }
    Ok(sums)
}

/// `a="x",b="y"` without `b`. Values may contain anything except an unescaped quote.
fn without_label(labels: &str, without: &str) -> String {
    let mut kept = String::new();
    let mut rest = labels;
    while let Some((name, after)) = rest.split_once("=\"") {
        let mut escaped = false;
        let end = after.bytes().position(|byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        });
        let end = end.unwrap_or(after.len());
        let name = name.trim_start_matches(',');
        if name != without {
            let comma = if kept.is_empty() { "" } else { "," };
            kept.push_str(&format!("{comma}{name}=\"{}\"", &after[..end]));
        }
        rest = after.get(end + 1..).unwrap_or_default();
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_up_without_a_label() {
        let text = "# TYPE a counter\na{x=\"1\",uri=\"/a\",y=\"2\"} 3\na{x=\"1\",uri=\"/b\\\"},{\\\\\",y=\"2\"} 4\n\
            a{x=\"2\",uri=\"/a\",y=\"2\"} 5\nab{x=\"1\"} 100\n";
        let sums = sums(text, "a", "uri").unwrap();
        assert_eq!((sums.series, sums.total), (3, 12.0));
        let expected = [("x=\"1\",y=\"2\"", 7.0), ("x=\"2\",y=\"2\"", 5.0)];
        assert_eq!(sums.by_labels, expected.map(|(labels, sum)| (labels.to_owned(), sum)).into());
    }
}
