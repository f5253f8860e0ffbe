//! Files that keys name, and PEM texts, which may be written instead.

use crate::values::Pem;
use std::path::{Component, PathBuf};
use stillgate_plugin_api::secrets::is_reference;
use stillgate_schema::kind::{Text, text};
use stillgate_schema::text::diagnostic::{Fault, shortened};

/// A file by its whole path.
pub(crate) const WHOLE_PATH: Text<PathBuf> = text("a file", whole_path);

fn whole_path(text: &str) -> Result<PathBuf, Fault> {
    match text.starts_with('/') && !text.contains('\0') {
        true => Ok(PathBuf::from(text)),
        false => Err(Fault::new("a relative path would mean another file in another folder")
            .hint("write it from the root, as in \"/run/stillgate.pid\"")),
    }
}

/// A folder by its whole path, without steps upward.
pub(crate) const FOLDER: Text<PathBuf> = text("a folder", |text| {
    let folder = whole_path(text)?;
    match folder.components().any(|part| part == Component::ParentDir) {
        true => Err(Fault::new("`..` may lead elsewhere through a link").hint("write the folder's own path")),
        false => Ok(folder),
    }
});

/// PEM text, or where it is. Faults never quote it: it may be a key.
pub(crate) const PEM: Text<Pem> = text("PEM text or a file of it", pem).secret();

fn pem(text: &str) -> Result<Pem, Fault> {
    let trimmed = text.trim();
    if trimmed.starts_with("-----BEGIN") {
        return Ok(Pem::Inline(trimmed.to_owned()));
    }
    if trimmed.starts_with("$secret://") {
        return Err(Fault::new("references to secrets are not read here").hint("write PEM text or a file's path"));
    }
    if let Some(name) = trimmed.strip_prefix("$env://") {
        let name = if name.is_empty() { "NAME" } else { name };
        return Err(Fault::new("$env:// is not read here")
            .hint(format!("write \"${{{}}}\" in a file, or PEM text or a file's path", shortened(name))));
    }
    file_path(text).map(Pem::File)
}

/// PEM text, or where it is, as it is written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum WrittenPem {
    Known(Pem),
    /// A reference to a secret, which is the text.
    Secret(String),
}

/// PEM text, where it is, or the secret that it is.
pub(crate) const PEM_OR_SECRET: Text<WrittenPem> = text("PEM text, a file of it, or a reference to a secret", |text| {
    let trimmed = text.trim();
    match is_reference(trimmed) {
        true => Ok(WrittenPem::Secret(trimmed.to_owned())),
        false => pem(text).map(WrittenPem::Known),
    }
})
.secret();

pub(crate) const FILE: Text<PathBuf> = text("a file", file_path);

fn file_path(text: &str) -> Result<PathBuf, Fault> {
    const PATH_BYTES_MAX: usize = 4096;
    if text.trim().is_empty() {
        return Err(Fault::new("nothing is here").hint("write a file's path"));
    }
    if text.len() > PATH_BYTES_MAX || text.contains(char::is_control) {
        let fault = Fault::new("this is neither PEM text nor a file's path");
        return Err(fault.hint("PEM text begins with -----BEGIN; a file's path is one line"));
    }
    Ok(text.into())
}
