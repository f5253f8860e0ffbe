//! A reload's first step: a configuration from its source, and the certificates that it names.

use super::kept::OpenStore;
use super::sources::{Source, SourceError, SourceResult, millis};
use super::tls_material;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use stillgate_config::{Config, LoadedConfig};
use stillgate_tls::{Material, TlsFindings};
use tracing::{debug, warn};

/// The result of reading.
pub(crate) enum ReadResult {
    /// The text is the one that was looked at last, and so are the files that it names.
    Unchanged,
    /// Everything is valid.
    Good(Candidate),
    /// Something is invalid, or the text is missing.
    Refused {
        /// Digest of the text, if it could be read.
        digest: Option<String>,
        /// One line per finding.
        errors: Vec<String>,
    },
}

/// The result of a look at the configuration.
pub(crate) struct SourceReading {
    /// Result for the text, and for the certificates that it names.
    pub(crate) read: ReadResult,
    /// The certificates of what is served, if they have changed and what was read is not to replace it.
    pub(crate) renewed: Option<Arc<Material>>,
}

/// A configuration that could be served.
#[derive(Clone)]
pub(crate) struct Candidate {
    pub(crate) loaded: Arc<LoadedConfig>,
    pub(crate) tls: Arc<Material>,
    /// Warnings about certificates for its author.
    pub(crate) tls_warnings: Vec<String>,
    /// Why the current file is not part of it, one line per finding; empty where it is.
    pub(crate) file_errors: Vec<String>,
}

/// Reads one configuration after the other.
pub(crate) struct ConfigReader {
    source: Box<dyn Source>,
    /// Creates what must exist before the files of a configuration are watched.
    prepare: fn(&Config),
    /// The result for the last text that was valid.
    last: Option<Last>,
    /// Files for TLS that a text names and that make it unusable.
    missed: BTreeSet<PathBuf>,
    /// Why certificates that are served were not read again at the last look; this has been reported already.
    stays: Vec<String>,
}

struct Last {
    loaded: Arc<LoadedConfig>,
    /// Why its certificates cannot be used, or not be loaded again; empty where they can.
    errors: Vec<String>,
}

impl ConfigReader {
    /// Begins with a source that has given `loaded` already, if anything.
    pub(crate) fn new(
        source: Box<dyn Source>,
        loaded: Option<Arc<LoadedConfig>>,
        prepare: fn(&Config),
    ) -> ConfigReader {
        let last = loaded.map(|loaded| Last { loaded, errors: Vec::new() });
        ConfigReader { source, prepare, last, missed: BTreeSet::new(), stays: Vec::new() }
    }

    /// Reads and validates what the source has now, unless its digest is `unless` and its certificates are the `served` ones.
    /// It takes long.
    pub(crate) fn look(&mut self, unless: Option<&str>, served: &Candidate) -> SourceReading {
        if unless.is_none() || !std::mem::take(&mut self.missed).is_empty() {
            self.source.try_again();
        }
        let read = self.read(unless, &served.tls);
        let digest = &served.loaded.config.digest;
        let is_whole =
            self.last.as_ref().is_some_and(|last| last.loaded.config.digest == *digest && last.errors.is_empty());
        let renewed = match &read {
            ReadResult::Good(_) => None,
            // These certificates were checked just now.
            ReadResult::Unchanged if is_whole => None,
            ReadResult::Unchanged | ReadResult::Refused { .. } => self.renew_certificates(served),
        };
        SourceReading { read, renewed }
    }

    /// Checks only the certificates of what is served: what was read is not to replace it.
    pub(crate) fn look_at_served(&mut self, served: &Candidate) -> SourceReading {
        SourceReading { read: ReadResult::Unchanged, renewed: self.renew_certificates(served) }
    }

    fn read(&mut self, unless: Option<&str>, served: &Material) -> ReadResult {
        match self.source.read(unless) {
            Ok(SourceResult::Same) => self.look_at_certificates(served),
            Ok(SourceResult::Loaded { loaded, text_refused }) => match self.with_certificates(loaded.clone(), served) {
                ReadResult::Good(candidate) => {
                    let mut file_errors = text_refused.map(|refused| refused.lines()).unwrap_or_default();
                    file_errors.extend(candidate.file_errors.iter().cloned());
                    ReadResult::Good(Candidate { file_errors, ..candidate })
                }
                ReadResult::Refused { errors, .. } if self.source.fall_back(&errors) => {
                    self.missed = tls_material::files(&loaded.config);
                    self.read(unless, served)
                }
                other => other,
            },
            Err(refused) => {
                if let SourceError::Wrong { .. } = refused {
                    self.last = None;
                }
                ReadResult::Refused { digest: refused.digest(), errors: refused.lines() }
            }
        }
    }

    /// What was read last cannot be used: whether the source has something else in its place.
    pub(crate) fn fall_back(&mut self, errors: &[String]) -> bool {
        self.source.fall_back(errors)
    }

    /// The text is the same as before.
    fn look_at_certificates(&mut self, served: &Material) -> ReadResult {
        // Once a text is refused, the files that it names do not matter.
        let Some(Last { loaded, errors: before }) = self.last.take() else { return ReadResult::Unchanged };
        match self.with_certificates(loaded, served) {
            ReadResult::Good(candidate) if candidate.tls.is_same(served) && candidate.file_errors == before => {
                ReadResult::Unchanged
            }
            ReadResult::Good(candidate) if candidate.tls.is_same(served) && !candidate.file_errors.is_empty() => {
                let digest = Some(candidate.loaded.config.digest.clone());
                ReadResult::Refused { digest, errors: candidate.file_errors }
            }
            ReadResult::Refused { errors, .. } if errors == before => ReadResult::Unchanged,
            other => other,
        }
    }

    fn with_certificates(&mut self, loaded: Arc<LoadedConfig>, served: &Material) -> ReadResult {
        let began = Instant::now();
        let material = match self.source.open_store() {
            Some(_) => tls_material::load_keeping_unchanged(&loaded.config, Some(served)),
            None => tls_material::load(&loaded.config, Some(served))
                .map(|(tls, warnings)| (tls, TlsFindings { warnings, kept: Vec::new() })),
        };
        debug!(tls_ms = millis(began), "certificates read");
        let (read, errors) = match material {
            Ok((tls, TlsFindings { warnings, kept })) => {
                // Before it is watched.
                (self.prepare)(&loaded.config);
                let tls_warnings = warnings.iter().map(ToString::to_string).collect();
                let errors: Vec<String> =
                    kept.iter().map(|problem| format!("what was read before stays in use: {problem}")).collect();
                let file_errors = errors.clone();
                (ReadResult::Good(Candidate { loaded: loaded.clone(), tls, tls_warnings, file_errors }), errors)
            }
            Err(refused) => {
                let errors: Vec<String> = refused.errors.iter().map(ToString::to_string).collect();
                (ReadResult::Refused { digest: Some(loaded.config.digest.clone()), errors: errors.clone() }, errors)
            }
        };
        self.last = Some(Last { loaded, errors });
        read
    }

    /// The certificates of what is served, if some have changed: neither a mistake in the text nor a broken file must keep a
    /// renewed certificate from clients until the one before has ended.
    fn renew_certificates(&mut self, served: &Candidate) -> Option<Arc<Material>> {
        let (tls, problems) = tls_material::renew(&served.loaded.config, &served.tls);
        let stays: Vec<String> = problems.iter().map(ToString::to_string).collect();
        // Those of a text that is refused for them are reported with it.
        let is_reported = |problem: &&String| self.last.as_ref().is_some_and(|last| last.errors.contains(problem));
        for problem in stays.iter().filter(|problem| !self.stays.contains(problem) && !is_reported(problem)) {
            warn!("what was read before stays in use: {problem}");
        }
        self.stays = stays;
        (!tls.is_same(&served.tls)).then_some(tls)
    }

    /// Whether a version of the file ended with `#END`; see [`Source::had_end_flag`].
    pub(crate) fn had_end_flag(&self) -> bool {
        self.source.had_end_flag()
    }

    /// The datastore that configurations come from.
    pub(crate) fn open_store(&self) -> Option<&OpenStore> {
        self.source.open_store()
    }

    /// The files besides the configuration's own whose change may change what is read.
    pub(crate) fn files(&self) -> BTreeSet<PathBuf> {
        let mut files = self.last.as_ref().map_or(BTreeSet::new(), |last| tls_material::files(&last.loaded.config));
        files.append(&mut self.source.files());
        files.extend(self.missed.iter().cloned());
        files
    }
}
