//! The folder of the account and the certificates. Files are replaced atomically, so that a reader, or a gateway that starts after
//! a crash, sees either the old or the new file. Only one gateway orders at a time.
//!
//! ```text
//!  STORAGE/SERVER/lock                    locked by the gateway that orders
//!  STORAGE/SERVER/account.json            the account's URL and key
//!  STORAGE/SERVER/certificates/ID.pem     a certificate, those that lead to its root, and its key
//!  STORAGE/SERVER/certificates/ID.failed  what is known of tries that failed since
//! ```

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use stillgate_config::Acme;
use stillgate_files::read_bounded;

/// The mode of files: keys are readable by their owner only.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
/// The bit of a folder's mode that lets everybody write in it.
const OTHERS_WRITE: u32 = 0o002;
/// The largest account file that is read.
const ACCOUNT_BYTES_MAX: usize = 64 * 1024;
/// The largest note of failed tries that is read.
const NOTE_BYTES_MAX: usize = 16 * 1024;
/// The space that must be free before anything is ordered: more than a certificate with its chain and key takes.
const ROOM_BYTES: usize = 64 * 1024;

/// Creates the missing folders. Folders of other users are refused: their owners could replace the keys that are served.
pub(crate) fn prepare(acme: &Acme) -> Result<(), String> {
    let folder = acme.certificates();
    let made = DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&folder);
    made.map_err(|error| failed("make the folder", &folder, &error))?;
    check(acme)
}

/// Returns the problem with the folders, as far as they exist.
pub(crate) fn check(acme: &Acme) -> Result<(), String> {
    let ours = [rustix::process::geteuid().as_raw(), rustix::process::Uid::ROOT.as_raw()];
    for folder in [acme.storage.clone(), acme.folder(), acme.certificates()] {
        let metadata = match fs::metadata(&folder) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed("look at", &folder, &error)),
        };
        let at = folder.display();
        if !metadata.is_dir() {
            return Err(format!("{at} is not a directory; choose another path, or move the file"));
        }
        if !ours.contains(&metadata.uid()) {
            return Err(format!("{at} is another user's; give it to the gateway's user (chown), or name another"));
        }
        if metadata.mode() & OTHERS_WRITE != 0 {
            return Err(format!("anybody may write in {at}; take that away (chmod o-w), or name a folder in it"));
        }
    }
    Ok(())
}

/// The lock that this gateway holds while it orders.
pub(crate) struct Lock {
    _file: File,
}

/// Locks the folder; `None`: another gateway orders.
pub(crate) fn lock(acme: &Acme) -> Result<Option<Lock>, String> {
    let path = acme.folder().join("lock");
    let file = File::options().create(true).truncate(false).write(true).mode(FILE_MODE).open(&path);
    let file = file.map_err(|error| failed("open", &path, &error))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(Lock { _file: file })),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(failed("lock", &path, &error.into())),
    }
}

/// Whether there is space for the result of an order. Checked before the order: an issued certificate that cannot be stored still
/// counts against the server's limits.
pub(crate) fn check_room(acme: &Acme) -> Result<(), String> {
    let path = acme.certificates().join(".room");
    let written = write(&path, &[b'\n'; ROOM_BYTES]);
    let removed = fs::remove_file(&path);
    written.and(removed).map_err(|error| failed("write in", &acme.certificates(), &error))
}

/// Replaces a certificate with its key.
pub(crate) fn store_certificate(acme: &Acme, id: &str, text: &[u8]) -> Result<(), String> {
    replace(&acme.certificate_file(id), text)
}

/// The note of failed attempts; `None` if it is missing or unreadable.
pub(crate) fn note(acme: &Acme, id: &str) -> Option<Vec<u8>> {
    read_bounded(&note_file(acme, id), NOTE_BYTES_MAX).ok().filter(|text| text.len() <= NOTE_BYTES_MAX)
}

/// Replaces the note.
pub(crate) fn store_note(acme: &Acme, id: &str, text: &[u8]) -> Result<(), String> {
    replace(&note_file(acme, id), text)
}

/// Removes the note.
pub(crate) fn remove_note(acme: &Acme, id: &str) -> Result<(), String> {
    let path = note_file(acme, id);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &path, &error)),
        _ => Ok(()),
    }
}

fn note_file(acme: &Acme, id: &str) -> PathBuf {
    acme.certificate_file(id).with_extension("failed")
}

/// Replaces the account.
pub(crate) fn store_account(acme: &Acme, text: &[u8]) -> Result<(), String> {
    replace(&acme.account_file(), text)
}

/// Reads the account; `None`: there is none yet. A text that is too long is cut off, and so cannot be parsed.
pub(crate) fn account(acme: &Acme) -> Result<Option<Vec<u8>>, String> {
    let path = acme.account_file();
    match read_bounded(&path, ACCOUNT_BYTES_MAX) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", &path, &error)),
    }
}

/// The problem with an account.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AccountProblem {
    /// The server does not know it.
    Unknown,
    /// Its file cannot be understood.
    Damaged,
}

/// Renames an account, since its key may still be needed. Returns the new path.
pub(crate) fn set_account_aside(acme: &Acme, problem: AccountProblem) -> Result<PathBuf, String> {
    let path = acme.account_file();
    let aside = path.with_extension(match problem {
        AccountProblem::Unknown => "json.unknown",
        AccountProblem::Damaged => "json.damaged",
    });
    fs::rename(&path, &aside).map_err(|error| failed("rename", &path, &error))?;
    Ok(aside)
}

/// Replaces a file atomically: the new content is on the disk before it gets the name.
fn replace(path: &Path, content: &[u8]) -> Result<(), String> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(format!("{} is not the path of a file", path.display()));
    };
    let mut beside = std::ffi::OsString::from(".");
    beside.push(name);
    beside.push(".new");
    let beside = folder.join(beside);
    let replaced = write(&beside, content).and_then(|()| fs::rename(&beside, path));
    if let Err(error) = replaced {
        // A partial file is useless. If it cannot be removed either, the next write replaces it.
        let _ = fs::remove_file(&beside);
        return Err(failed("write", path, &error));
    }
    // The new name is synchronised too. If that fails, a crash may bring back the older file, which is complete.
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(())
}

fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    // A file left by a crash, or a link to elsewhere, may belong to anybody.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fill(File::options().create_new(true).write(true).mode(FILE_MODE).open(path)?, content),
    }
}

fn fill(mut file: File, content: &[u8]) -> io::Result<()> {
    file.write_all(content)?;
    file.sync_all()
}

fn failed(what: &str, path: &Path, error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; make room there",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; let the gateway's user write there, or name another folder in gateway.acme.storage"
        }
        _ => "",
    };
    format!("cannot {what} {}: {error}{hint}", path.display())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use tempfile::TempDir;

    pub(crate) fn storage() -> (TempDir, Acme) {
        let folder = tempfile::tempdir().unwrap();
        let storage = folder.path().join("a/b");
        let text = format!("gateway: {{acme: {{storage: {}, agree_terms: true}}}}\nroutes: []\n", storage.display());
        let acme = stillgate_config::load(text.as_bytes(), &|_| None).unwrap().config.gateway.acme.unwrap();
        (folder, acme)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn what_is_stored_is_ours_alone() {
        let (_folder, acme) = storage();
        assert!(store_account(&acme, b"x").unwrap_err().contains("cannot write"));
        prepare(&acme).unwrap();
        prepare(&acme).unwrap();
        assert_eq!((mode(&acme.storage), mode(&acme.certificates())), (0o700, 0o700));
        assert_eq!(account(&acme).unwrap(), None);
        store_account(&acme, b"x").unwrap();
        store_certificate(&acme, "shop", b"1").unwrap();
        assert_eq!((mode(&acme.account_file()), mode(&acme.certificate_file("shop"))), (0o600, 0o600));
        assert_eq!(account(&acme).unwrap().unwrap(), b"x");
        for (problem, name) in
            [(AccountProblem::Unknown, "account.json.unknown"), (AccountProblem::Damaged, "account.json.damaged")]
        {
            store_account(&acme, b"x").unwrap();
            assert_eq!(set_account_aside(&acme, problem).unwrap(), acme.folder().join(name));
            assert_eq!(account(&acme).unwrap(), None);
        }
        check_room(&acme).unwrap();
        let names: Vec<_> =
            fs::read_dir(acme.certificates()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["shop.pem"]);
    }

    #[test]
    fn what_a_crash_left_is_in_nobodys_way() {
        let (_folder, acme) = storage();
        prepare(&acme).unwrap();
        store_certificate(&acme, "shop", b"old").unwrap();
        let (beside, elsewhere) = (acme.certificates().join(".shop.pem.new"), acme.storage.join("elsewhere"));
        // A partial file that everybody can read and its creator holds open, or a link to a file that is not ours.
        for is_link in [false, true] {
            fs::write(&elsewhere, b"half of the new one, and longer than it").unwrap();
            fs::set_permissions(&elsewhere, Permissions::from_mode(0o666)).unwrap();
            match is_link {
                true => symlink(&elsewhere, &beside).unwrap(),
                false => fs::hard_link(&elsewhere, &beside).unwrap(),
            }
            assert_eq!(fs::read(acme.certificate_file("shop")).unwrap(), b"old");
            store_certificate(&acme, "shop", b"new").unwrap();
            assert_eq!(fs::read(acme.certificate_file("shop")).unwrap(), b"new");
            assert_eq!(mode(&acme.certificate_file("shop")), 0o600);
            assert!(!fs::symlink_metadata(acme.certificate_file("shop")).unwrap().is_symlink());
            assert!(fs::symlink_metadata(&beside).is_err());
            assert_eq!(fs::read(&elsewhere).unwrap(), b"half of the new one, and longer than it");
            assert_eq!(mode(&elsewhere), 0o666);
            store_certificate(&acme, "shop", b"old").unwrap();
        }
    }

    #[test]
    fn a_folder_that_others_may_write_in_is_refused() {
        let (_folder, acme) = storage();
        check(&acme).unwrap();
        prepare(&acme).unwrap();
        for folder in [acme.storage.clone(), acme.folder(), acme.certificates()] {
            fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
            let error = prepare(&acme).unwrap_err();
            assert!(error.starts_with(&format!("anybody may write in {}; ", folder.display())), "{error}");
            fs::set_permissions(&folder, Permissions::from_mode(0o770)).unwrap();
            prepare(&acme).unwrap();
            // Only root can change the owner.
            if rustix::process::geteuid().is_root() {
                std::os::unix::fs::chown(&folder, Some(65_534), None).unwrap();
                assert!(prepare(&acme).unwrap_err().contains("another user's"));
                std::os::unix::fs::chown(&folder, Some(0), None).unwrap();
            }
        }
    }

    #[test]
    fn what_cannot_be_written_leaves_what_was_there() {
        let (_folder, acme) = storage();
        prepare(&acme).unwrap();
        // A folder in the place of the file, since root may write anywhere.
        fs::create_dir_all(acme.certificate_file("shop").join("x")).unwrap();
        let error = store_certificate(&acme, "shop", b"new").unwrap_err();
        assert!(error.contains("shop.pem"), "{error}");
        assert!(acme.certificate_file("shop").join("x").exists());
        assert!(!acme.certificates().join(".shop.pem.new").exists());
        // Foreign entries in the place of the account.
        fs::create_dir(acme.account_file()).unwrap();
        assert!(account(&acme).unwrap_err().contains("account.json"));
        fs::remove_dir(acme.account_file()).unwrap();
        fs::write(acme.account_file(), vec![b' '; ACCOUNT_BYTES_MAX + 1]).unwrap();
        assert_eq!(account(&acme).unwrap().unwrap().len(), ACCOUNT_BYTES_MAX + 1);
    }

    #[test]
    fn a_file_in_the_way_of_a_folder_is_reported() {
        let (folder, acme) = storage();
        fs::write(folder.path().join("a"), "").unwrap();
        assert!(prepare(&acme).unwrap_err().contains("cannot make the folder"));
    }

    #[test]
    fn a_note_is_small_and_a_file_of_ours() {
        let (_folder, acme) = storage();
        prepare(&acme).unwrap();
        assert_eq!(note(&acme, "shop.v1"), None);
        store_note(&acme, "shop.v1", b"x").unwrap();
        assert_eq!(note(&acme, "shop.v1").unwrap(), b"x");
        let file = acme.certificates().join("shop.v1.failed");
        assert_eq!(mode(&file), 0o600);
        // With any content in its place.
        fs::write(&file, vec![b'x'; NOTE_BYTES_MAX + 1]).unwrap();
        assert_eq!(note(&acme, "shop.v1"), None);
        fs::remove_file(&file).unwrap();
        symlink("/dev/zero", &file).unwrap();
        assert_eq!(note(&acme, "shop.v1"), None);
        store_note(&acme, "shop.v1", b"y").unwrap();
        assert!(!fs::symlink_metadata(&file).unwrap().is_symlink());
        remove_note(&acme, "shop.v1").unwrap();
        fs::create_dir(&file).unwrap();
        assert_eq!(note(&acme, "shop.v1"), None);
        assert!(remove_note(&acme, "shop.v1").unwrap_err().contains("shop.v1.failed"));
    }

    #[test]
    fn one_gateway_at_a_time_orders() {
        let (_folder, acme) = storage();
        prepare(&acme).unwrap();
        let first = lock(&acme).unwrap().expect("nobody has it");
        assert!(lock(&acme).unwrap().is_none());
        drop(first);
        assert!(lock(&acme).unwrap().is_some());
    }

    #[test]
    fn a_full_disk_is_reported_as_one() {
        let error = failed("write", Path::new("/x"), &io::ErrorKind::StorageFull.into());
        assert!(error.ends_with("; make room there"), "{error}");
        // A device that is always full.
        let error = fill(File::options().write(true).open("/dev/full").unwrap(), b"x").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
