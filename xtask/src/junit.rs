//! The test runner's report: each test with its time, its outcome and, if it failed, its output.

use crate::Result;
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use std::fs;
use std::path::Path;

/// One test.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct TestResult {
    /// Package and executable: `stillgate-wire::all`, or `stillgate-wire` for unit tests.
    pub(crate) binary: String,
    /// Its path in the executable.
    pub(crate) name: String,
    pub(crate) seconds: f64,
    pub(crate) failed: bool,
    /// Empty unless the test failed.
    pub(crate) output: String,
}

impl TestResult {
    pub(crate) fn id(&self) -> String {
        format!("{} {}", self.binary, self.name)
    }

    /// Selects this test alone, in nextest's language.
    pub(crate) fn expression(&self) -> String {
        format!("binary_id(={}) and test(={})", self.binary, self.name)
    }
}

/// Reads a report.
pub(crate) fn read(path: &Path) -> Result<Vec<TestResult>> {
    let text = fs::read_to_string(path).map_err(|error| format!("no report at {}: {error}", path.display()))?;
    cases(&text)
}

fn cases(text: &str) -> Result<Vec<TestResult>> {
    let mut reader = Reader::from_str(text);
    let mut cases = Vec::new();
    let mut current: Option<TestResult> = None;
    loop {
        match reader.read_event()? {
            Event::Eof => return Ok(cases),
            Event::Start(tag) if tag.name().as_ref() == b"testcase" => current = Some(case(&tag)?),
            Event::Empty(tag) if tag.name().as_ref() == b"testcase" => cases.push(case(&tag)?),
            Event::End(tag) if tag.name().as_ref() == b"testcase" => cases.extend(current.take()),
            Event::Start(tag) | Event::Empty(tag) => {
                if let Some(case) = &mut current {
                    case.failed |= matches!(tag.name().as_ref(), b"failure" | b"error");
                }
            }
            Event::Text(text) => {
                if let Some(case) = &mut current {
                    case.output.push_str(&text.decode()?);
                }
            }
            Event::GeneralRef(name) => {
                if let Some(case) = &mut current {
                    let known = quick_xml::escape::unescape(&format!("&{};", name.decode()?))?.into_owned();
                    case.output.push_str(&known);
                }
            }
            _ => {}
        }
    }
}

fn case(tag: &BytesStart<'_>) -> Result<TestResult> {
    let mut case = TestResult::default();
    for attribute in tag.attributes() {
        let attribute = attribute?;
        let value = attribute.unescape_value()?;
        match attribute.key.as_ref() {
            b"classname" => case.binary = value.into_owned(),
            b"name" => case.name = value.into_owned(),
            b"time" => case.seconds = value.parse()?,
            _ => {}
        }
    }
    Ok(case)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="2" failures="1" errors="0" time="0.5">
    <testsuite name="stillgate-wire::all" tests="2" disabled="0" errors="0" failures="1">
        <testcase name="corpus::every_seed" classname="stillgate-wire::all" time="0.013">
        </testcase>
        <testcase name="heads::&lt;T&gt;" classname="stillgate-wire::all" time="1.5">
            <failure message="a &lt; b" type="test failure">why</failure>
            <system-out>left &amp; right</system-out>
        </testcase>
    </testsuite>
</testsuites>"#;

    #[test]
    fn a_report_gives_times_outcomes_and_the_output_of_failures() {
        let found = cases(REPORT).unwrap();
        assert_eq!(found.len(), 2);
        assert!(!found[0].failed && found[0].seconds == 0.013);
        assert_eq!(found[0].expression(), "binary_id(=stillgate-wire::all) and test(=corpus::every_seed)");
        assert!(found[1].failed && found[1].output.contains("why") && found[1].output.contains("left & right"));
        assert_eq!(found[1].id(), "stillgate-wire::all heads::<T>");
    }

    #[test]
    fn a_damaged_report_is_an_error() {
        assert!(cases("<testsuites><testcase name=\"a\" time=\"x\"/></testsuites>").is_err());
        assert!(cases("<testsuites><testcase></wrong></testsuites>").is_err());
        assert!(read(Path::new("absent/junit.xml")).is_err());
    }
}
