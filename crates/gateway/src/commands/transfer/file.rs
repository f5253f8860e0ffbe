//! The resources of a file, checked as `stillgate check --offline` does it.
//!
//! References to secrets are not looked up: they stand for something on the gateway's machine, not on this one.

use super::Failure;
use super::resources::{Resource, Resources};
use crate::configuration::source::ConfigSource;
use std::path::Path;
use std::sync::Arc;
use stillgate_config::{Errors, PluginSet, Severity, documents};
use stillgate_plugin::Secrets;

/// What a reference is answered with; findings that say so are none.
const NOT_HERE: &str = "not looked up on this machine";

struct Elsewhere;

impl Secrets for Elsewhere {
    fn resolve(&self, _: &str) -> Result<String, String> {
        Err(NOT_HERE.to_owned())
    }
}

/// Reads a file; the error has every finding with its place.
pub(super) fn read(file: &Path) -> Result<Resources, Failure> {
    let source = ConfigSource::File(file.to_owned());
    let text = source.read().map_err(|error| Failure::Unusable(error.to_string()))?;
    let plugins = PluginSet { table: stillgate_plugins::TABLE, secrets: Arc::new(Elsewhere) };
    let (found, mut errors) = documents(&text, &|name| std::env::var(name).ok(), plugins);
    errors.diagnostics.retain(|found| found.severity == Severity::Error && !found.message.contains(NOT_HERE));
    if !errors.diagnostics.is_empty() {
        let errors = Errors { file: source.name(), ..errors };
        return Err(Failure::Failed(format!("the file is refused\n{errors}")));
    }
    let resource = |(index, found): (usize, stillgate_config::FileDocument)| {
        let at = Some((found.line, found.column));
        ((found.kind, found.id), Resource { document: found.document, created: index as u64, at })
    };
    Ok(found.into_iter().enumerate().map(resource).collect())
}
