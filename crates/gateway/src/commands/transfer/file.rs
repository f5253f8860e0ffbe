//! The resources of a file, checked as `stillgate check --offline` does it; each has an id of its own.
//!
//! References to secrets are not resolved: they refer to the gateway's machine, not to this one.

use super::TransferFailure;
use super::resources::{Resource, Resources};
use crate::configuration::source::{ConfigSource, plugins};
use std::path::Path;
use std::sync::Arc;
use stillgate_config::{Errors, FileDocument, PluginSet, Severity, documents};
use stillgate_plugin_api::Secrets;

/// The value of each reference; findings that contain it are dropped.
const NOT_HERE: &str = "not looked up on this machine";

struct Elsewhere;

impl Secrets for Elsewhere {
    fn resolve(&self, _: &str) -> Result<String, String> {
        Err(NOT_HERE.to_owned())
    }
}

/// The bytes of a file.
pub(super) fn text(file: &Path) -> Result<Vec<u8>, TransferFailure> {
    ConfigSource::File(file.to_owned()).read().map_err(|error| TransferFailure::Unusable(error.to_string()))
}

/// Reads the text of a file; the error has every finding with its place. `beside`: the other resources, which those of the file may
/// refer to.
pub(super) fn read(file: &Path, text: &[u8], beside: &Resources) -> Result<Resources, TransferFailure> {
    let source = ConfigSource::File(file.to_owned());
    let refused = |errors: Errors| TransferFailure::Failed(format!("the file is refused\n{errors}"));
    source.check_end(text, false).map_err(refused)?;
    let plugins = PluginSet { secrets: Arc::new(Elsewhere), ..plugins() };
    let (found, mut errors) = documents(text, &|name| std::env::var(name).ok(), plugins, beside.keys().cloned());
    errors.diagnostics.retain(|found| found.severity == Severity::Error && !found.message.contains(NOT_HERE));
    if !errors.diagnostics.is_empty() {
        return Err(refused(Errors { file: source.name(), ..errors }));
    }
    let resource = |(index, found): (usize, FileDocument)| {
        let at = Some((found.line, found.column));
        ((found.kind, found.id), Resource { document: found.document, created: index as u64, at })
    };
    Ok(found.into_iter().enumerate().map(resource).collect())
}

/// A file that has masks in place of private keys that are not in the gateway. `places`: with line and column.
pub(super) fn refused_masks(file: &Path, places: &[String]) -> TransferFailure {
    let named: Vec<String> = places.iter().map(|place| format!("{}:{place}", file.display())).collect();
    TransferFailure::Failed(format!(
        "the file has masks in place of secrets; write the secrets, or export the file again with --secrets\n{}",
        named.join("\n")
    ))
}
