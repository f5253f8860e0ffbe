//! Finds and reads the configuration file, and passes its text to the loader.
//!
//! Finding and reading are separate from validating because they fail differently: a file that cannot be read is an unusable
//! argument, an invalid file is a finding.

use super::end_flag;
use super::lua_files;
use super::secrets::{MachineSecrets, file_of, permission_warning};
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use stillgate_config::{
    Diagnostic, DigestedText, Errors, FILE_BYTES_MAX, IncrementalReader, LoadedConfig, PluginSet, Severity,
};
use stillgate_files::read_bounded;
use stillgate_plugin_api::Secrets;
use stillgate_plugin_api::secrets::Managers;

/// Paths that `run` tries by default, in this order.
pub(crate) const DEFAULT_FILES: [&str; 2] = ["./stillgate.yaml", "/etc/stillgate/stillgate.yaml"];

/// The place that a configuration is read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ConfigSource {
    /// A file, which may change.
    File(PathBuf),
    /// Text that is built in; it never changes.
    Text(String),
}

/// Why the text could not be read.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// No file was named, and none exists at the default paths.
    NotFound,
    /// It cannot be read.
    Unreadable {
        /// Path of the file.
        file: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::NotFound => write!(
                f,
                "no configuration file; tried {}. Name one with --config FILE, or try `stillgate demo`",
                DEFAULT_FILES.join(" and ")
            ),
            ReadError::Unreadable { file, error } => {
                write!(f, "cannot read {}: {error}", file.display())
            }
        }
    }
}

impl std::error::Error for ReadError {}

/// What plugins are compiled with.
pub(crate) fn plugins() -> PluginSet {
    with_secrets(Arc::new(MachineSecrets::default()))
}

fn with_secrets(secrets: Arc<dyn Secrets>) -> PluginSet {
    PluginSet { table: stillgate_plugins::TABLE, secrets, plugin_files: lua_files::read }
}

/// The secrets of the machine, and which of its files they are in.
#[derive(Default, Clone)]
struct SecretFiles {
    secrets: MachineSecrets,
    files: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl Secrets for SecretFiles {
    fn resolve(&self, reference: &str) -> Result<String, String> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).extend(file_of(reference));
        self.secrets.resolve(reference)
    }

    fn fetch(&self, references: &[String]) {
        self.secrets.fetch(references);
    }

    fn with_managers(&self, managers: &Managers) -> Option<Arc<dyn Secrets>> {
        let secrets = MachineSecrets { managers: managers.clone() };
        Some(Arc::new(SecretFiles { secrets, files: self.files.clone() }))
    }
}

impl SecretFiles {
    /// Warnings for the owner of the secrets.
    fn warnings(&self) -> Vec<Diagnostic> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let warning = |message| Diagnostic {
            severity: Severity::Warning,
            path: String::new(),
            line: 0,
            column: 0,
            message,
            hint: None,
            excerpt: None,
        };
        files.iter().filter_map(|file| permission_warning(file)).map(warning).collect()
    }
}

impl ConfigSource {
    /// The file that was named, or the first of [`DEFAULT_FILES`] that exists.
    pub(crate) fn find(named: Option<PathBuf>) -> Result<ConfigSource, ReadError> {
        named
            .or_else(|| DEFAULT_FILES.map(PathBuf::from).into_iter().find(|file| file.exists()))
            .map(ConfigSource::File)
            .ok_or(ReadError::NotFound)
    }

    /// The text; of a file, at most one byte more than the loader takes.
    pub(crate) fn read(&self) -> Result<Vec<u8>, ReadError> {
        match self {
            ConfigSource::File(file) => {
                read_bounded(file, FILE_BYTES_MAX).map_err(|error| ReadError::Unreadable { file: file.clone(), error })
            }
            ConfigSource::Text(text) => Ok(text.clone().into_bytes()),
        }
    }

    /// Validates what was read. Errors name the file.
    pub(crate) fn parse(&self, text: &[u8]) -> Result<LoadedConfig, Errors> {
        self.parse_with(text, &environment)
    }

    /// [`ConfigSource::parse`] with the environment of another process.
    pub(crate) fn parse_with(
        &self,
        text: &[u8],
        lookup: &dyn Fn(&str) -> Option<String>,
    ) -> Result<LoadedConfig, Errors> {
        self.check_end(text, false)?;
        let secrets = Arc::new(SecretFiles::default());
        let loaded = stillgate_config::load_with(text, lookup, with_secrets(secrets.clone()));
        let mut loaded = loaded.map_err(|errors| self.with_file_name(errors))?;
        loaded.warnings.extend(secrets.warnings());
        Ok(loaded)
    }

    /// `gateway.pid_file` in what was read; the rest may be of another process's environment.
    pub(crate) fn pid_file(&self, text: &[u8]) -> Result<Option<PathBuf>, Errors> {
        stillgate_config::pid_file(text, &environment).map_err(|errors| self.with_file_name(errors))
    }

    /// [`ConfigSource::parse`] after earlier texts; the work is in proportion to the changes since.
    pub(crate) fn parse_next(
        &self,
        reader: &mut IncrementalReader,
        text: DigestedText,
    ) -> Result<Arc<LoadedConfig>, Errors> {
        reader.load(text, &environment).map_err(|errors| self.with_file_name(errors))
    }

    /// Refuses a file that may be cut off. `had_flag`: an earlier version ended with `#END`.
    pub(crate) fn check_end(&self, text: &[u8], had_flag: bool) -> Result<(), Errors> {
        match self {
            ConfigSource::File(file) => end_flag::check(Some(file), text, had_flag),
            ConfigSource::Text(_) => Ok(()),
        }
    }

    /// Line and column of a key in what was read and validated.
    pub(crate) fn locate(text: &[u8], path: &str) -> Option<(u32, u32)> {
        stillgate_config::locate(text, &environment, path)
    }

    fn with_file_name(&self, errors: Errors) -> Errors {
        Errors { file: self.name(), ..errors }
    }

    /// The file's name as findings show it.
    pub(crate) fn name(&self) -> Option<String> {
        self.file().map(|file| file.display().to_string())
    }

    /// The file, where it is one.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            ConfigSource::File(file) => Some(file),
            ConfigSource::Text(_) => None,
        }
    }
}

fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
