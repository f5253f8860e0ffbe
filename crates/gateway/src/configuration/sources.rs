//! Where configurations come from, one after the other. What a source refuses, and what it serves instead, is its own policy.
//!
//! A source is what implements [`Source`], and an arm of [`ConfigSource::open`]. Nothing outside of this room knows which it is.

use super::kept::{KeptSource, Opened, refusal};
use super::secrets::file_of;
use super::source::{ConfigSource, ReadError, plugins};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use stillgate_config::{Errors, Loaded, Reader, SourceKind, Text};
use tracing::debug;

/// Gives configurations.
pub(crate) trait Source: Send {
    /// Reads what there is now, unless its digest is `unless`. It may take long.
    fn read(&mut self, unless: Option<&str>) -> Result<Given, Refused>;

    /// The files whose change may change what is read, besides those that the configuration itself names.
    fn files(&self) -> BTreeSet<PathBuf>;

    /// The datastore that it reads; `None`: it is a text.
    fn kept(&self) -> Option<&Opened> {
        None
    }
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
                let text = OneText { source: self.clone(), reader: Reader::new(plugins()) };
                Box::new(Chosen { text, kind: None, of_text: None, kept: None })
            }
        }
    }
}

/// What the text of the file says that it is: all there is, or the `gateway:` section beside a datastore.
struct Chosen {
    text: OneText,
    /// What was found at the start, which holds until the end of the process.
    kind: Option<SourceKind>,
    /// The text that was read last, beside a datastore.
    of_text: Option<Arc<Loaded>>,
    kept: Option<KeptSource>,
}

impl Chosen {
    /// Reads the text beside a datastore. One that is wrong does not keep changes of the datastore from being served.
    fn read_kept(&mut self, unless: Option<&str>) -> Result<Given, Refused> {
        let (Some(kept), Some(before)) = (&mut self.kept, &self.of_text) else { return Ok(Given::Same) };
        let read = match self.text.read(Some(&before.config.digest)) {
            Ok(Given::Loaded(loaded)) => check_kind(&loaded, self.kind).map(|()| self.of_text = Some(loaded)),
            Ok(Given::Same) => Ok(()),
            Err(refused) => Err(refused),
        };
        match (read, &self.of_text) {
            (Err(refused), _) if !kept.has_news() => Err(refused),
            (_, Some(text)) => kept.read(text, unless),
            (_, None) => Ok(Given::Same),
        }
    }
}

impl Source for Chosen {
    fn read(&mut self, unless: Option<&str>) -> Result<Given, Refused> {
        if self.kept.is_some() {
            return self.read_kept(unless);
        }
        let given = self.text.read(unless)?;
        let Given::Loaded(loaded) = &given else { return Ok(given) };
        check_kind(loaded, self.kind)?;
        let gateway = &loaded.config.gateway;
        if gateway.config.source != SourceKind::File {
            let kept = KeptSource::open(gateway).map_err(|why| refusal(loaded.config.digest.clone(), why))?;
            (self.kept, self.of_text) = (Some(kept), Some(loaded.clone()));
        }
        self.kind = Some(gateway.config.source);
        match self.kept {
            Some(_) => self.read_kept(unless),
            None => Ok(given),
        }
    }

    fn files(&self) -> BTreeSet<PathBuf> {
        let mut files = self.text.files();
        files.extend(self.kept.iter().flat_map(KeptSource::files));
        files
    }

    fn kept(&self) -> Option<&Opened> {
        self.kept.as_ref().map(KeptSource::opened)
    }
}

/// Refuses a text that says that resources come from elsewhere than they did at the start.
fn check_kind(loaded: &Loaded, started: Option<SourceKind>) -> Result<(), Refused> {
    match started {
        Some(started) if started != loaded.config.gateway.config.source => {
            let why = "gateway.config.source takes effect at the next start; restart the gateway, or set it back";
            Err(refusal(loaded.config.digest.clone(), why.to_owned()))
        }
        _ => Ok(()),
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
