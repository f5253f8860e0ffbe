//! Where configurations come from, one after the other. What a source refuses, and what it serves instead, is its own policy.
//!
//! A source is what implements [`Source`], and an arm of [`ConfigSource::open`]. Nothing outside of this room knows which it is.

use super::secrets::file_of;
use super::source::{ConfigSource, ReadError, plugins};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use stillgate_config::{Errors, Loaded, Reader, Text};
use tracing::debug;

/// Gives configurations.
pub(crate) trait Source: Send {
    /// Reads what there is now, unless its digest is `unless`. It may take long.
    fn read(&mut self, unless: Option<&str>) -> Result<Given, Refused>;

    /// The files whose change may change what is read, besides those that the configuration itself names.
    fn files(&self) -> BTreeSet<PathBuf>;
}

/// What a source gives.
pub(crate) enum Given {
    /// What was given before.
    Same,
    /// A configuration that can be used.
    Loaded(Arc<Loaded>),
}

/// Why a source gives nothing.
pub(crate) enum Refused {
    /// There is nothing to be read.
    Unreadable(ReadError),
    /// What there is, is wrong.
    Wrong {
        /// Of what was read.
        digest: String,
        /// What is wrong with it.
        errors: Errors,
    },
}

impl ConfigSource {
    /// Gives its configurations from now on.
    pub(crate) fn open(&self) -> Box<dyn Source> {
        match self {
            ConfigSource::File(_) | ConfigSource::Text(_) => {
                Box::new(OneText { source: self.clone(), reader: Reader::new(plugins()) })
            }
        }
    }
}

/// One text, mostly a file's, refused as a whole. A text that changed is read by what changed.
struct OneText {
    source: ConfigSource,
    reader: Reader,
}

impl Source for OneText {
    fn read(&mut self, unless: Option<&str>) -> Result<Given, Refused> {
        let began = Instant::now();
        let text = self.source.read().map_err(Refused::Unreadable)?;
        let (bytes, read_ms) = (text.len(), millis(began));
        let text = Text::new(text);
        let digest = text.digest().to_owned();
        if unless == Some(&digest) && self.reader.has_current_secrets() {
            return Ok(Given::Same);
        }
        let (digest_ms, was_incremental) = (millis(began) - read_ms, self.reader.is_incremental());
        let parsed = self.source.parse_next(&mut self.reader, text);
        let parse_ms = millis(began) - read_ms - digest_ms;
        debug!(bytes, read_ms, digest_ms, parse_ms, was_incremental, "configuration read");
        parsed.map(Given::Loaded).map_err(|errors| Refused::Wrong { digest, errors })
    }

    fn files(&self) -> BTreeSet<PathBuf> {
        self.reader.secret_references().iter().filter_map(|reference| file_of(reference)).collect()
    }
}

/// Milliseconds for the log.
pub(super) fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
