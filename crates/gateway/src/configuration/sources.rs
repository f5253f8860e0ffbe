//! The sources of configurations. What a source refuses, and what it serves instead, is its own policy.
//!
//! A source is a type that implements [`Source`], and an arm of [`ConfigSource::open`]. Nothing outside of this module knows which
//! one is in use.

use super::end_flag;
use super::kept::{DatastoreKind, DatastoreSource, OpenStore};
use super::lua_files;
use super::secrets::file_of;
use super::source::{ConfigSource, ReadError, plugins};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use stillgate_config::{Diagnostic, DigestedText, Errors, IncrementalReader, LoadedConfig, Severity, SourceKind};
use tracing::debug;

/// Gives configurations.
pub(crate) trait Source: Send {
    /// Reads the text alone, once, before all else: the log depends on it, and opening a datastore may take long.
    fn begin(&mut self) -> Result<Arc<LoadedConfig>, SourceError>;

    /// Reads the current configuration, unless its digest is `unless`. It may take long.
    fn read(&mut self, unless: Option<&str>) -> Result<SourceResult, SourceError>;

    /// The files whose change may change what is read, besides those that the configuration itself names.
    fn files(&self) -> BTreeSet<PathBuf>;

    /// Whether a version of the text that was read ended with `#END`; from then on, all must.
    fn had_end_flag(&self) -> bool;

    /// A former process has read a version that ended with `#END`. An error: the text that was read here does not.
    fn require_end_flag(&mut self) -> Result<(), SourceError>;

    /// The last configuration cannot be used, for these reasons: whether the source has something else in its place.
    fn fall_back(&mut self, _errors: &[String]) -> bool {
        false
    }

    /// A configuration that was put back may be returned again.
    fn try_again(&mut self) {}

    /// The datastore that it reads; `None`: it is a text.
    fn open_store(&self) -> Option<&OpenStore> {
        None
    }
}

/// The result of reading a source.
pub(crate) enum SourceResult {
    /// The configuration has not changed.
    Same,
    /// A configuration that can be used.
    Loaded {
        /// The configuration.
        loaded: Arc<LoadedConfig>,
        /// Why the last text is not part of it, but the last good one before.
        text_refused: Option<SourceError>,
    },
}

/// Why a source returns nothing, or not everything.
pub(crate) enum SourceError {
    /// The text cannot be read.
    Unreadable(ReadError),
    /// The text is invalid.
    Wrong {
        /// Digest of what was read.
        digest: String,
        /// Its errors.
        errors: Errors,
    },
}

impl SourceError {
    /// Digest of the text, if it could be read.
    pub(crate) fn digest(&self) -> Option<String> {
        match self {
            SourceError::Unreadable(_) => None,
            SourceError::Wrong { digest, .. } => Some(digest.clone()),
        }
    }

    /// One line per finding.
    pub(crate) fn lines(&self) -> Vec<String> {
        let errors = match self {
            SourceError::Unreadable(error) => return vec![error.to_string()],
            SourceError::Wrong { errors, .. } => errors,
        };
        let file = errors.file.as_deref();
        let mut lines: Vec<String> = errors.diagnostics.iter().map(|diagnostic| diagnostic.in_file(file)).collect();
        if errors.omitted > 0 {
            lines.push(format!("and {} more", errors.omitted));
        }
        lines
    }
}

impl ConfigSource {
    /// Opens the source. `had_end_flag`: a version of the text that was read before ended with `#END`.
    pub(crate) fn open(&self, had_end_flag: bool) -> Box<dyn Source> {
        match self {
            ConfigSource::File(_) | ConfigSource::Text(_) => {
                let (source, reader) = (self.clone(), IncrementalReader::new(plugins()));
                let text = OneText { source, reader, had_end_flag, refused_if_required: None };
                Box::new(TextSource { text, begun: None, kind: None, kept: None })
            }
        }
    }
}

/// The source that the text of the file selects: the whole configuration, or the `gateway:` section with a datastore.
struct TextSource {
    text: OneText,
    /// The text that was read to begin with, and is returned next.
    begun: Option<Arc<LoadedConfig>>,
    /// The kind that was found at the start, which holds until the end of the process.
    kind: Option<SourceKind>,
    kept: Option<DatastoreWithFile>,
}

/// A datastore, and the text with the `gateway:` section.
struct DatastoreWithFile {
    store: DatastoreSource,
    /// The last text that was good.
    text: Arc<LoadedConfig>,
    /// The one before that, if the last look replaced it.
    replaced: Option<Arc<LoadedConfig>>,
    /// Whether the text that was read last differs from `text`, because it was refused.
    is_refused: bool,
    /// A text that was valid and could not be used, and why.
    unusable: Option<(String, Vec<String>)>,
}

impl DatastoreWithFile {
    /// Reads both. An invalid text does not keep changes of the datastore from being served.
    fn read(
        &mut self,
        of_text: &mut OneText,
        kind: Option<SourceKind>,
        unless: Option<&str>,
    ) -> Result<SourceResult, SourceError> {
        self.replaced = None;
        let refused = self.read_text(of_text, kind).err();
        let was_refused = std::mem::replace(&mut self.is_refused, refused.is_some());
        match refused {
            Some(refused) if !self.store.has_news() => Err(refused),
            // A text that is valid again is returned again, so that its recovery is seen.
            text_refused => match self.store.read(&self.text, unless.filter(|_| !was_refused)) {
                Some(loaded) => Ok(SourceResult::Loaded { loaded, text_refused }),
                None => Ok(SourceResult::Same),
            },
        }
    }

    fn read_text(&mut self, of_text: &mut OneText, kind: Option<SourceKind>) -> Result<(), SourceError> {
        let Some(loaded) = of_text.read_unless(Some(&self.text.config.digest))? else { return Ok(()) };
        check_kind(&loaded, kind)?;
        let digest = &loaded.config.digest;
        match &self.unusable {
            Some((unusable, errors)) if unusable == digest => Err(refusal(unusable.clone(), errors)),
            _ => {
                self.replaced = Some(std::mem::replace(&mut self.text, loaded));
                Ok(())
            }
        }
    }
}

impl Source for TextSource {
    fn begin(&mut self) -> Result<Arc<LoadedConfig>, SourceError> {
        let loaded = self.text.read_unless(None)?.ok_or(SourceError::Unreadable(ReadError::NotFound))?;
        Ok(self.begun.insert(loaded).clone())
    }

    fn read(&mut self, unless: Option<&str>) -> Result<SourceResult, SourceError> {
        if let Some(kept) = &mut self.kept {
            return kept.read(&mut self.text, self.kind, unless);
        }
        let loaded = match self.begun.take() {
            Some(begun) => begun,
            None => match self.text.read_unless(unless)? {
                Some(loaded) => loaded,
                None => return Ok(SourceResult::Same),
            },
        };
        check_kind(&loaded, self.kind)?;
        let gateway = &loaded.config.gateway;
        self.kind = Some(gateway.config.source);
        let Some(datastore) = DatastoreKind::of(gateway) else {
            return Ok(SourceResult::Loaded { loaded, text_refused: None });
        };
        let store = DatastoreSource::open(datastore, &loaded.config)
            .map_err(|why| refusal(loaded.config.digest.clone(), &[why.to_string()]))?;
        let kept = DatastoreWithFile { store, text: loaded, replaced: None, is_refused: false, unusable: None };
        self.kept.insert(kept).read(&mut self.text, self.kind, unless)
    }

    fn files(&self) -> BTreeSet<PathBuf> {
        let mut files = self.text.files();
        files.extend(self.kept.iter().flat_map(|kept| kept.store.files()));
        files
    }

    fn had_end_flag(&self) -> bool {
        self.text.had_end_flag
    }

    fn require_end_flag(&mut self) -> Result<(), SourceError> {
        self.text.require_end_flag()
    }

    /// The text is to blame if it is new: the datastore's resources are served with the one before.
    fn fall_back(&mut self, errors: &[String]) -> bool {
        let Some(kept) = &mut self.kept else { return false };
        let Some(before) = kept.replaced.take() else { return false };
        let unusable = std::mem::replace(&mut kept.text, before);
        kept.unusable = Some((unusable.config.digest.clone(), errors.to_vec()));
        kept.store.give_again();
        true
    }

    fn try_again(&mut self) {
        if let Some(kept) = &mut self.kept {
            kept.unusable = None;
        }
    }

    fn open_store(&self) -> Option<&OpenStore> {
        self.kept.as_ref().map(|kept| kept.store.opened())
    }
}

/// Refuses a text that selects another source than the one at the start.
fn check_kind(loaded: &LoadedConfig, started: Option<SourceKind>) -> Result<(), SourceError> {
    match started {
        Some(started) if started != loaded.config.gateway.config.source => {
            let why = "gateway.config.source takes effect at the next start; restart the gateway, or set it back";
            Err(refusal(loaded.config.digest.clone(), &[why.to_owned()]))
        }
        _ => Ok(()),
    }
}

/// Findings about the file as a whole.
fn refusal(digest: String, why: &[String]) -> SourceError {
    let of_file = |why: &String| Diagnostic {
        severity: Severity::Error,
        path: String::new(),
        line: 0,
        column: 0,
        message: why.clone(),
        hint: None,
        excerpt: None,
    };
    let diagnostics = why.iter().map(of_file).collect();
    SourceError::Wrong { digest, errors: Errors { file: None, diagnostics, omitted: 0 } }
}

/// One text, mostly a file's, refused as a whole. A text that changed is read by what changed.
struct OneText {
    source: ConfigSource,
    reader: IncrementalReader,
    /// Whether a version that was read here or by a former process ended with `#END`.
    had_end_flag: bool,
    /// Why the last version is refused if an earlier one ended with `#END`.
    refused_if_required: Option<SourceError>,
}

impl OneText {
    /// Reads it, unless its digest is `unless`.
    fn read_unless(&mut self, unless: Option<&str>) -> Result<Option<Arc<LoadedConfig>>, SourceError> {
        let began = Instant::now();
        let text = self.source.read().map_err(SourceError::Unreadable)?;
        let (bytes, read_ms) = (text.len(), millis(began));
        let text = DigestedText::new(text);
        let of_text = text.digest().to_owned();
        let digest = self.reader.digest_of(&of_text);
        if unless == Some(&digest) && self.reader.has_current_secrets() {
            return Ok(None);
        }
        let refused = |errors| SourceError::Wrong { digest: digest.clone(), errors };
        self.refused_if_required = self.source.check_end(text.bytes(), true).map_err(refused).err();
        self.source.check_end(text.bytes(), self.had_end_flag).map_err(refused)?;
        let has_end_flag = end_flag::is_at_end_of(text.bytes());
        let (digest_ms, was_incremental) = (millis(began) - read_ms, self.reader.is_incremental());
        let paths = self.reader.plugin_paths().to_vec();
        let parsed = self.source.parse_next(&mut self.reader, text);
        let parse_ms = millis(began) - read_ms - digest_ms;
        debug!(bytes, read_ms, digest_ms, parse_ms, was_incremental, "configuration read");
        self.had_end_flag |= has_end_flag && parsed.is_ok();
        parsed.map(Some).map_err(|errors| {
            // A digest from before the text was parsed: a plugin's file that was written meanwhile is read again. If the text names
            // other plugins than the one before, no digest is known, and the next notice is a reason to read in any case.
            let digest =
                if self.reader.plugin_paths() == paths { digest } else { format!("{of_text} with unknown plugins") };
            SourceError::Wrong { digest, errors }
        })
    }

    fn require_end_flag(&mut self) -> Result<(), SourceError> {
        self.had_end_flag = true;
        self.refused_if_required.take().map_or(Ok(()), Err)
    }

    fn files(&self) -> BTreeSet<PathBuf> {
        let secrets = self.reader.secret_references();
        let of_secrets = secrets.iter().filter_map(|reference| file_of(reference));
        of_secrets
            .chain(self.reader.plugin_paths().iter().cloned())
            .chain(lua_files::others(self.reader.plugin_paths()))
            .collect()
    }
}

/// Milliseconds for the log.
pub(super) fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
