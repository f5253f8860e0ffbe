//! A reload's first step: the text of the configuration, read and validated.

use crate::source::Source;
use std::sync::Arc;
use std::time::Instant;
use stillgate_config::{Errors, Loaded, Reader, Text};
use tracing::debug;

/// How reading ended.
pub(crate) enum Read {
    /// The text is the one that was looked at last.
    Unchanged,
    /// It is valid.
    Good(Arc<Loaded>),
    /// It is not, or there is none.
    Refused {
        /// Of the text, where there is one.
        digest: Option<String>,
        /// One line per finding.
        errors: Vec<String>,
    },
}

/// Reads and validates what `source` holds now, unless its digest is `unless`. It takes long.
pub(crate) fn read(source: &Source, reader: &mut Reader, unless: Option<&str>) -> Read {
    let began = Instant::now();
    let text = match source.read() {
        Ok(text) => text,
        Err(error) => {
            return Read::Refused { digest: None, errors: vec![error.to_string()] };
        }
    };
    let (bytes, read_ms) = (text.len(), millis(began));
    let text = Text::new(text);
    let digest = text.digest().to_owned();
    if unless == Some(&digest) {
        return Read::Unchanged;
    }
    let (digest_ms, was_incremental) = (millis(began) - read_ms, reader.is_incremental());
    let parsed = source.parse_next(reader, text);
    let parse_ms = millis(began) - read_ms - digest_ms;
    debug!(bytes, read_ms, digest_ms, parse_ms, was_incremental, "configuration read");
    match parsed {
        Ok(loaded) => Read::Good(loaded),
        Err(errors) => Read::Refused { digest: Some(digest), errors: lines(&errors) },
    }
}

/// Findings as one line each.
pub(crate) fn lines(errors: &Errors) -> Vec<String> {
    let file = errors.file.as_deref();
    let mut lines: Vec<String> = errors.diagnostics.iter().map(|diagnostic| diagnostic.in_file(file)).collect();
    if errors.omitted > 0 {
        lines.push(format!("and {} more", errors.omitted));
    }
    lines
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
