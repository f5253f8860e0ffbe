//! The key of the Admin API that a store brings with it.

use rand::random;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use stillgate_config::Gateway;
use stillgate_files::read_bounded;
use stillgate_tls::Problem;
use tracing::warn;

/// Bytes of a key that was made, and of its file.
const KEY_BYTES_MIN: usize = 16;
const KEY_BYTES_MAX: usize = 4096;

/// The key that is generated where a store is opened and none is configured: a user who can read the store's folder may write the
/// store. Without `may_make` a missing key stays missing.
pub(super) fn made_key(gateway: &Gateway, may_make: bool) -> Result<Option<Arc<str>>, Problem> {
    let has_keys = gateway.admin.as_ref().is_none_or(|admin| admin.key.is_some() || !admin.keys.is_empty());
    if has_keys {
        return Ok(None);
    }
    let mut name = gateway.config.store.clone().into_os_string();
    name.push(".admin-key");
    let file = PathBuf::from(name);
    let problem = |message: String| Problem { path: "gateway.admin".to_owned(), message, hint: None };
    let fail = |error: std::io::Error| problem(format!("the admin key in {}: {error}", file.display()));
    match read_bounded(&file, KEY_BYTES_MAX) {
        Ok(key) => {
            let key = String::from_utf8_lossy(&key).trim().to_owned();
            let is_good = key.len() >= KEY_BYTES_MIN && key.bytes().all(|byte| byte.is_ascii_graphic());
            let why = || {
                format!("{} has no valid admin key; remove the file, and the gateway creates a new one", file.display())
            };
            is_good.then(|| Some(key.into())).ok_or_else(|| problem(why()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound && !may_make => Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let key: String = rand_hex();
            let mut options = OpenOptions::new();
            let mut made = options.write(true).create_new(true).mode(0o600).open(&file).map_err(fail)?;
            made.write_all(key.as_bytes()).and_then(|()| made.sync_all()).map_err(fail)?;
            warn!("no admin key is configured; the gateway created one in {}", file.display());
            Ok(Some(key.into()))
        }
        Err(error) => Err(fail(error)),
    }
}

/// 32 random bytes that cannot be guessed.
fn rand_hex() -> String {
    random::<[u8; 32]>().iter().map(|byte| format!("{byte:02x}")).collect()
}
