//! Resolves references to secrets: environment variables, files, and secrets in Vaults.
//!
//! ```text
//!  $env://NAME             the variable            $secret://file/run/secrets/key        the file /run/secrets/key
//!  $env://NAME/KEY         a key of the JSON       $secret://file/run/secrets/all#KEY    a key of the JSON object
//!                          object in it                                                  in that file
//!                                                  $secret://vault/ID/PATH/KEY           a key of what a Vault has
//! ```
//!
//! No message contains any part of a secret.

use super::vault::{Vaults, connector};
use serde_json::Value as Json;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use stillgate_files::read_bounded;
use stillgate_plugin_api::Secrets;
use stillgate_plugin_api::secrets::{Manager, Managers};
use stillgate_schema::lenient_json;
use tokio::sync::watch;
use tracing::warn;

/// Maximum size of a secret, in bytes.
const SECRET_BYTES_MAX: usize = 64 * 1024;

/// The most secrets in files whose last values are kept.
const LAST_VALUES_MAX: usize = 10_000;

/// Where Kubernetes mounts the token of a pod, within the folder of secrets.
const POD_FOLDER: &str = "kubernetes.io";

const ENVIRONMENT: &str = "$env://";
const MANAGER: &str = "$secret://";
const OF_FILES: &str = "file/";
const OF_VAULTS: &str = "vault/";

/// The secrets of this process and machine. Nothing is cached: a file is read each time it is needed.
#[derive(Debug, Clone, Default)]
pub(crate) struct MachineSecrets {
    pub(crate) managers: Managers,
}

impl Secrets for MachineSecrets {
    fn with_managers(&self, managers: &Managers) -> Option<Arc<dyn Secrets>> {
        Some(Arc::new(MachineSecrets { managers: managers.clone() }))
    }

    fn fetch(&self, references: &[String]) {
        let places: Vec<_> = references.iter().filter_map(|reference| self.place(reference)).collect();
        if let (false, Ok(vaults)) = (places.is_empty(), vaults()) {
            vaults.fetch(&places);
        }
    }

    fn has_fetched(&self, references: &[String]) -> bool {
        let places: Vec<_> = references.iter().filter_map(|reference| self.place(reference)).collect();
        places.is_empty() || vaults().map_or(true, |vaults| vaults.has_fetched(&places))
    }

    fn in_use(&self, references: &[String]) {
        if let Some(Ok(vaults)) = VAULTS.get() {
            vaults.keep(&references.iter().filter_map(|reference| self.place(reference)).collect());
        }
    }

    fn resolve(&self, reference: &str) -> Result<String, String> {
        let text = match parse(reference)? {
            SecretLocation::Variable { name, key } => {
                let text = std::env::var(name).map_err(|error| match error {
                    std::env::VarError::NotPresent => format!("the environment variable {name} is not set; set it"),
                    std::env::VarError::NotUnicode(_) => format!("the environment variable {name} is not UTF-8"),
                })?;
                if text.len() > SECRET_BYTES_MAX {
                    return Err(format!("the environment variable {name} is longer than {SECRET_BYTES_MAX} bytes"));
                }
                select_json_key(text, key)?
            }
            SecretLocation::File { file, key } => select_json_key(read(&file)?, key)?,
            SecretLocation::Vault { id, path, key } => {
                let manager = self.manager(id)?;
                vaults()?.resolve(manager, path, key)?
            }
        };
        match text.is_empty() {
            true => Err("it is empty; a secret cannot be".to_owned()),
            false => Ok(text),
        }
    }
}

/// [`MachineSecrets`] for the resources of a datastore, where a secret that cannot be read would stop what it is used for: while a file
/// is missing or cannot be used, its last value stays valid, as it does for a Vault that cannot be reached.
///
/// Only files in some folders are read: the right to write resources does not include reading every file of this process.
#[derive(Debug, Clone, Default)]
pub(crate) struct CachedSecrets {
    secrets: MachineSecrets,
    last: Arc<Mutex<HashMap<String, LastValue>>>,
    folders: Arc<Mutex<Vec<PathBuf>>>,
}

/// The last value of a secret in a file.
struct LastValue {
    value: String,
    /// Why it could not be read again, as reported last.
    reported: Option<String>,
}

/// Omits the value.
impl fmt::Debug for LastValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LastValue")
    }
}

impl Secrets for CachedSecrets {
    fn with_managers(&self, managers: &Managers) -> Option<Arc<dyn Secrets>> {
        let secrets = MachineSecrets { managers: managers.clone() };
        Some(Arc::new(CachedSecrets { secrets, last: self.last.clone(), folders: self.folders.clone() }))
    }

    fn fetch(&self, references: &[String]) {
        self.secrets.fetch(references);
    }

    fn has_fetched(&self, references: &[String]) -> bool {
        self.secrets.has_fetched(references)
    }

    fn in_use(&self, references: &[String]) {
        let used: HashSet<&String> = references.iter().collect();
        self.last().retain(|reference, _| used.contains(reference));
        self.secrets.in_use(references);
    }

    fn resolve(&self, reference: &str) -> Result<String, String> {
        let Some(file) = file_of(reference) else { return self.secrets.resolve(reference) };
        self.check_folder(&file)?;
        let found = self.secrets.resolve(reference);
        let mut last = self.last();
        match found {
            Ok(value) => {
                if last.len() < LAST_VALUES_MAX || last.contains_key(reference) {
                    last.insert(reference.to_owned(), LastValue { value: value.clone(), reported: None });
                }
                Ok(value)
            }
            Err(why) => {
                let Some(known) = last.get_mut(reference) else { return Err(why) };
                if known.reported.as_ref() != Some(&why) {
                    warn!(file = %file.display(), "a secret can no longer be read; what was read before stays in use: {why}");
                    known.reported = Some(why);
                }
                Ok(known.value.clone())
            }
        }
    }
}

impl CachedSecrets {
    /// Reads files in these folders only, from now on.
    pub(crate) fn set_folders(&self, folders: &[PathBuf]) {
        folders.clone_into(&mut self.folders.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Refuses a file outside the folders. The message does not reveal whether the file exists.
    fn check_folder(&self, file: &Path) -> Result<(), String> {
        let folders = self.folders.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let goes_up = file.components().any(|part| part == Component::ParentDir);
        // The token of a pod is in a folder of secrets, too, and is not the operator's.
        let is_of_pod = |rest: &Path| rest.components().any(|part| part.as_os_str() == POD_FOLDER);
        let is_in = |folder: &PathBuf| file.strip_prefix(folder).is_ok_and(|rest| !is_of_pod(rest));
        let is_below = !goes_up && folders.iter().any(is_in);
        // A link in a folder may lead out of it. A missing file is reported when it is read.
        let real = file.canonicalize().ok().filter(|_| is_below);
        let is_really_below = real.is_none_or(|real| {
            let is_in = |folder: PathBuf| real.strip_prefix(folder).is_ok_and(|rest| !is_of_pod(rest));
            folders.iter().any(|folder| folder.canonicalize().is_ok_and(is_in))
        });
        match is_below && is_really_below {
            true => Ok(()),
            false => Err(format!(
                "{} is outside gateway.config.secret_folders ({}); move it into one of them, or add its folder",
                file.display(),
                Vec::from_iter(folders.iter().map(|folder| folder.display().to_string())).join(", ")
            )),
        }
    }

    fn last(&self) -> MutexGuard<'_, HashMap<String, LastValue>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MachineSecrets {
    fn manager(&self, id: &str) -> Result<&Arc<Manager>, String> {
        self.managers.0.get(id).ok_or_else(|| format!("there is no secret manager \"vault/{id}\"; add it to `secrets`"))
    }

    /// The place in a Vault that a reference names, if it names one.
    fn place(&self, reference: &str) -> Option<(Arc<Manager>, Box<str>)> {
        match parse(reference) {
            Ok(SecretLocation::Vault { id, path, .. }) => Some((self.managers.0.get(id)?.clone(), path.into())),
            _ => None,
        }
    }
}

/// The secrets in Vaults, as far as this process has read them.
fn vaults() -> Result<&'static Vaults, String> {
    let start = || Vaults::start(connector, CHANGES.clone()).map_err(|error| format!("no Vault can be asked: {error}"));
    VAULTS.get_or_init(start).as_ref().map_err(Clone::clone)
}

static VAULTS: OnceLock<Result<Vaults, String>> = OnceLock::new();
static CHANGES: LazyLock<watch::Sender<u64>> = LazyLock::new(|| watch::Sender::new(0));

/// Counts the changes of secrets in Vaults.
pub(crate) fn subscribe_changes() -> watch::Receiver<u64> {
    CHANGES.subscribe()
}

/// The file that a reference names, if it names one.
pub(crate) fn file_of(reference: &str) -> Option<PathBuf> {
    match parse(reference) {
        Ok(SecretLocation::File { file, .. }) => Some(file),
        _ => None,
    }
}

/// A warning about the file's permissions for its owner.
pub(crate) fn permission_warning(file: &Path) -> Option<String> {
    /// Readable or writable by all users, or writable by the group.
    const OPEN: u32 = 0o026;
    let mode = file.metadata().ok()?.mode() & 0o777;
    let path = file.display();
    (mode & OPEN != 0)
        .then(|| format!("{path} can be read or changed by others (mode {mode:04o}); `chmod 0640 {path}`"))
}

/// The place of a secret.
#[derive(Debug, PartialEq)]
enum SecretLocation<'a> {
    Variable { name: &'a str, key: Option<&'a str> },
    File { file: PathBuf, key: Option<&'a str> },
    Vault { id: &'a str, path: &'a str, key: &'a str },
}

fn parse(reference: &str) -> Result<SecretLocation<'_>, String> {
    let behind = |scheme: &str| {
        let (start, rest) = reference.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    };
    if let Some(rest) = behind(ENVIRONMENT) {
        let (name, key) = rest.split_once('/').map_or((rest, None), |(name, key)| (name, Some(key)));
        let is_name = !name.is_empty() && !name.contains(['=', '\0']);
        return match is_name && key != Some("") {
            true => Ok(SecretLocation::Variable { name, key }),
            false => Err("write it as $env://NAME or $env://NAME/KEY".to_owned()),
        };
    }
    let rest = behind(MANAGER).unwrap_or_default();
    if let Some(rest) = rest.strip_prefix(OF_VAULTS) {
        let parts = rest.split_once('/').and_then(|(id, rest)| Some((id, rest.rsplit_once('/')?)));
        return match parts {
            Some((id, (path, key))) if ![id, path, key].contains(&"") => Ok(SecretLocation::Vault { id, path, key }),
            _ => Err("write it as $secret://vault/ID/PATH/KEY".to_owned()),
        };
    }
    let Some(path) = rest.strip_prefix(OF_FILES) else {
        let manager = rest.split('/').next().unwrap_or_default();
        return Err(format!(
            "there is no kind of secret manager {manager:?}; write it as $secret://vault/ID/PATH/KEY, $secret://file/PATH or $env://NAME"
        ));
    };
    let (path, key) = path.split_once('#').map_or((path, None), |(path, key)| (path, Some(key)));
    match path.trim_start_matches('/') {
        "" => Err("write it as $secret://file/PATH or $secret://file/PATH#KEY".to_owned()),
        path => Ok(SecretLocation::File { file: Path::new("/").join(path), key: key.filter(|key| !key.is_empty()) }),
    }
}

fn read(file: &Path) -> Result<String, String> {
    let path = file.display();
    let bytes = read_bounded(file, SECRET_BYTES_MAX).map_err(|error| match error.kind() {
        ErrorKind::NotFound => format!("there is no file {path}; create it, or name another"),
        ErrorKind::PermissionDenied => format!("{path} cannot be read; give the gateway's user the right to"),
        _ => format!("{path} cannot be read: {error}"),
    })?;
    if bytes.len() > SECRET_BYTES_MAX {
        return Err(format!("{path} is larger than {SECRET_BYTES_MAX} bytes"));
    }
    let mut text = String::from_utf8(bytes).map_err(|_| format!("{path} is not UTF-8"))?;
    // Editors and `echo` add a newline.
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

/// The text, or the value of a key in it as a JSON object.
fn select_json_key(text: String, key: Option<&str>) -> Result<String, String> {
    let Some(key) = key else { return Ok(text) };
    let Ok(Json::Object(object)) = lenient_json::read(&text) else {
        return Err(format!("it is not a JSON object, so there is no key {key:?} in it"));
    };
    match object.get(key) {
        Some(Json::String(text)) => Ok(text.clone()),
        Some(Json::Number(number)) => Ok(number.to_string()),
        Some(_) => Err(format!("its key {key:?} is not a text")),
        None => Err(format!("there is no key {key:?} in it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn references_name_variables_and_files() {
        let check = |reference, expected| assert_eq!(parse(reference), Ok(expected), "{reference}");
        check("$env://A", SecretLocation::Variable { name: "A", key: None });
        check("$ENV://A/b/c", SecretLocation::Variable { name: "A", key: Some("b/c") });
        check("$secret://file/run/a", SecretLocation::File { file: "/run/a".into(), key: None });
        check("$secret://file//run/a#b", SecretLocation::File { file: "/run/a".into(), key: Some("b") });
        check("$secret://vault/1/a/b/c", SecretLocation::Vault { id: "1", path: "a/b", key: "c" });
        for wrong in [
            "$env://",
            "$env:///a",
            "$env://A/",
            "$secret://vault/1/a",
            "$secret://vault/1/a/",
            "$secret://file/",
            "$secret://",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn files_are_read_with_bounds_and_without_a_last_line_break() {
        let folder = tempfile::tempdir().unwrap();
        let check = |content: &[u8], key: &str, expected: Result<&str, &str>| {
            let file = folder.path().join("secret");
            fs::write(&file, content).unwrap();
            let found = MachineSecrets::default().resolve(&format!("$secret://file{}{key}", file.display()));
            match expected {
                Ok(text) => assert_eq!(found.as_deref(), Ok(text)),
                Err(part) => {
                    let error = found.unwrap_err();
                    assert!(error.contains(part) && !error.contains("planted"), "{error}");
                }
            }
        };
        check(b"planted\n", "", Ok("planted"));
        check(b"planted\r\n\n", "", Ok("planted\r\n"));
        check(b" planted ", "", Ok(" planted "));
        check(br#"{"a": "planted", "b": 7, "c": ["planted"]}"#, "#a", Ok("planted"));
        check(br#"{"a": "planted", "b": 7, "c": ["planted"]}"#, "#b", Ok("7"));
        check(br#"{"a": "planted", "b": 7, "c": ["planted"]}"#, "#c", Err("its key \"c\" is not a text"));
        check(br#"{"a": "planted"}"#, "#d", Err("there is no key \"d\" in it"));
        check(b"planted", "#a", Err("it is not a JSON object"));
        check(b"\n", "", Err("it is empty"));
        check(b"planted\xff", "", Err("is not UTF-8"));
        check(&[b'a'; SECRET_BYTES_MAX + 1], "", Err("is larger than 65536 bytes"));
        let missing = MachineSecrets::default().resolve("$secret://file/nowhere/at/all").unwrap_err();
        assert_eq!(missing, "there is no file /nowhere/at/all; create it, or name another");
        let unset = MachineSecrets::default().resolve("$env://NOT_SET_ANYWHERE").unwrap_err();
        assert_eq!(unset, "the environment variable NOT_SET_ANYWHERE is not set; set it");
    }

    #[test]
    fn the_last_value_of_a_file_stays_valid_until_nothing_refers_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        let reference = format!("$secret://file{}", file.display());
        let secrets = CachedSecrets::default();
        secrets.set_folders(&[folder.path().to_owned()]);
        assert!(secrets.resolve(&reference).is_err(), "it was never read");
        fs::write(&file, "planted").unwrap();
        // The one with managers shares them.
        let other = secrets.with_managers(&Managers::default()).unwrap();
        assert_eq!(other.resolve(&reference).as_deref(), Ok("planted"));
        fs::write(&file, "").unwrap();
        assert_eq!(secrets.resolve(&reference).as_deref(), Ok("planted"));
        fs::remove_file(&file).unwrap();
        secrets.in_use(std::slice::from_ref(&reference));
        assert_eq!(other.resolve(&reference).as_deref(), Ok("planted"));
        fs::write(&file, "grown").unwrap();
        assert_eq!(secrets.resolve(&reference).as_deref(), Ok("grown"));
        fs::remove_file(&file).unwrap();
        secrets.in_use(&[]);
        assert!(secrets.resolve(&reference).is_err());
    }

    #[test]
    fn resources_of_a_datastore_name_files_in_some_folders_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        for name in ["in", "in/below", "real", "in/kubernetes.io", "in/kubernetes.io/pod"] {
            fs::create_dir(path.join(name)).unwrap();
        }
        for name in ["in/a", "in/below/a", "real/a", "inside", "out", "in/kubernetes.io/pod/token"] {
            fs::write(path.join(name), "planted").unwrap();
        }
        symlink(path.join("real"), path.join("linked")).unwrap();
        symlink(path.join("in/a"), path.join("in/good")).unwrap();
        symlink(path.join("out"), path.join("in/bad")).unwrap();
        symlink(path.join("in/a"), path.join("lead-in")).unwrap();
        let secrets = CachedSecrets::default();
        let read = |name: &str| secrets.resolve(&format!("$secret://file{}/{name}", path.display()));
        assert!(read("in/a").is_err(), "no folder is named");
        secrets.set_folders(&[path.join("in"), path.join("linked")]);
        for name in ["in/a", "in/below/a", "in/below//a", "in/good", "linked/a"] {
            assert_eq!(read(name).as_deref(), Ok("planted"), "{name}");
        }
        for name in [
            "out",
            "inside",
            "real/a",
            "in/bad",
            "in/../out",
            "in/../in/a",
            "lead-in",
            "nowhere",
            "in/kubernetes.io/pod/token",
        ] {
            let refusal = read(name).unwrap_err();
            assert!(refusal.contains("is outside gateway.config.secret_folders"), "{name}: {refusal}");
        }
        assert!(read("in/nowhere").unwrap_err().contains("there is no file"));
        // Remembered values are not used once their folder is removed.
        secrets.set_folders(&[path.join("real"), path.join("in/kubernetes.io/pod")]);
        assert!(read("in/a").is_err());
        assert_eq!(read("in/kubernetes.io/pod/token").as_deref(), Ok("planted"), "where it is named");
    }

    #[test]
    fn a_file_that_others_can_read_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        fs::write(&file, "planted").unwrap();
        for (mode, expected) in [(0o600, false), (0o640, false), (0o644, true), (0o660, true)] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(permission_warning(&file).is_some(), expected, "{mode:o}");
        }
    }
}
