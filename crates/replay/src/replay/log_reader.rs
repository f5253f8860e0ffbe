//! Reads the requests of a log in order to run them instead of routing them.

use super::lines::{LINES_WITHOUT_REQUEST_MAX, LogLines, RawLine};
use super::needs::Needs;
use super::recorded::RecordReader;
use super::{ReplayError, ReplayFailure, RequestHead};
use serde_json::{Map, Value};
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

/// Reads logs.
pub struct LogReader;

impl LogReader {
    /// Reads the first requests of a log with all recorded header fields.
    pub fn read(log: &Path, requests_max: usize) -> Result<Vec<RequestHead>, ReplayError> {
        let unreadable = |error| ReplayFailure::Unreadable(error).of(log);
        let mut lines = LogLines::new(File::open(log).map_err(unreadable)?);
        if lines.are_compressed().map_err(unreadable)? {
            return Err(ReplayFailure::Compressed.of(log));
        }
        let mut reader = RecordReader::new(Needs::default(), [].iter());
        let (mut heads, mut wrong) = (Vec::new(), None);
        while let Some((number, line)) = lines.next().map_err(unreadable)? {
            if number > LINES_WITHOUT_REQUEST_MAX && heads.is_empty() {
                break;
            }
            let RawLine::Text(text) = line else { continue };
            let mut head = RequestHead::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
            match reader.read(text, &mut head) {
                Ok(()) => {
                    add_fields(text, &mut head);
                    heads.push(head);
                }
                Err(reason) => wrong = wrong.or(Some((number, reason))),
            }
            if heads.len() == requests_max {
                break;
            }
        }
        match (heads.is_empty(), wrong) {
            (false, _) => Ok(heads),
            (true, Some((line, reason))) => Err(ReplayFailure::NoRequest(line, reason).of(log)),
            (true, None) => Err(ReplayFailure::Empty.of(log)),
        }
    }
}

/// Takes over `http_NAME`, which the reader does only for names that routes read.
fn add_fields(line: &[u8], head: &mut RequestHead) {
    let Ok(Value::Object(object)) = serde_json::from_slice::<Value>(line) else { return };
    let object: Map<String, Value> = object;
    let known = |head: &RequestHead, name: &str| head.headers.iter().any(|(of, _)| of.eq_ignore_ascii_case(name));
    for (key, value) in &object {
        let (Some(name), Value::String(value)) = (key.strip_prefix("http_"), value) else { continue };
        let name = name.replace('_', "-");
        if name != "host" && !known(head, &name) && !value.chars().any(char::is_control) {
            head.headers.push((name, value.clone()));
        }
    }
}
