//! A client of etcd v3 over its JSON gateway (`/v3/…`), with the layout of keys that APISIX uses.
//!
//! ```text
//!  Etcd ─▶ call: token, next endpoint ─▶ connection: TCP, TLS, HTTP/1.1 ─▶ etcd
//!   ├ list    everything at one revision, in pages
//!   ├ watch   what changes after a revision
//!   ├ commit  a transaction
//!   └ follow  list, then watch, again after each break; decides by `follower`, which does no IO
//!  saved: the file with the last snapshot, for starts without etcd
//! ```
//!
//! The gateway is part of every etcd, and APISIX's own client uses it too. A gRPC client would need `protoc` or
//! generated code. Values are not interpreted here, and only [`follow`] retries in the background.

mod call;
mod commit;
mod digest;
mod error;
mod follower;
mod layout;
mod message;
mod options;
mod watch;

use crate::document::{Document, Key, Snapshot};
use call::Caller;
pub use error::{EtcdError, ListResult, Unreadable};
use follower::Follower;
pub use follower::FollowerEvent;
use layout::KeyLayout;
pub use options::{EtcdOptions, EtcdTls, OptionsError, RenewTls};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use tokio::sync::mpsc::Sender;
use tokio::time::sleep;
pub use watch::{EtcdWatch, EtcdWatchEvent, WatchStart};

/// One etcd, or the members of one cluster.
#[derive(Debug)]
pub struct Etcd {
    caller: Caller,
    /// A write was refused because etcd's space is used up, and none was made since.
    is_full: AtomicBool,
    /// Writes in a row that etcd has not answered.
    unanswered_writes: AtomicUsize,
    layout: KeyLayout,
}

impl Etcd {
    /// Checks the options. Does not connect yet.
    ///
    /// # Errors
    /// The option that cannot be used, with a suggestion.
    pub fn new(options: EtcdOptions) -> Result<Etcd, OptionsError> {
        let layout = KeyLayout::new(&options.prefix)?;
        let (known_key, _) = layout.range();
        let caller = Caller::new(options, known_key)?;
        Ok(Etcd { caller, is_full: AtomicBool::new(false), unanswered_writes: AtomicUsize::new(0), layout })
    }

    /// Its endpoints, for messages.
    pub fn endpoints(&self) -> String {
        self.caller.urls()
    }

    /// The prefix of all keys, without a slash at its end.
    pub fn prefix(&self) -> &str {
        self.layout.prefix()
    }
}

// Follows etcd as long as there is a receiver: lists, watches, and begins again after every failure.
//
// [`follower`] decides the next step; this module performs it. The receiver may be slow: then the watch is not
// read, and etcd buffers the events.

/// Why following has ended, or must begin again.
enum FollowEnd {
    Failed(EtcdError),
    /// The receiver is gone.
    Unheard,
}

/// Follows etcd until the receiver is dropped.
pub async fn follow(etcd: Arc<Etcd>, sender: Sender<FollowerEvent>) {
    tokio::select! {
        () = sender.closed() => {}
        () = follow_on(&etcd, &sender) => {}
    }
}

async fn follow_on(etcd: &Etcd, sender: &Sender<FollowerEvent>) {
    let mut follower = Follower::default();
    loop {
        let error = match run(etcd, &mut follower, sender).await {
            Err(FollowEnd::Failed(error)) => error,
            Err(FollowEnd::Unheard) => return,
        };
        if let EtcdError::Replaced { why } = &error {
            tracing::warn!(why, "etcd: its history is not the one that was followed; reading everything again");
        }
        tracing::debug!(%error, "etcd: following is interrupted");
        let (told, pause) = follower.on_failure(&error, rand::random());
        if send_event(sender, told).await.is_err() {
            return;
        }
        sleep(pause).await;
    }
}

async fn run(etcd: &Etcd, follower: &mut Follower, sender: &Sender<FollowerEvent>) -> Result<Infallible, FollowEnd> {
    let at = match follower.position() {
        Some((at, documents)) => {
            let keys = etcd.must_have(at, documents).await?;
            WatchStart { keys: Some(keys), ..at }
        }
        None => {
            let listed = etcd.list().await?;
            let at = WatchStart { after: listed.snapshot.revision, cluster: listed.cluster, keys: Some(listed.keys) };
            let told = follower.listed(listed.snapshot, listed.cluster);
            send_event(sender, Some(told)).await?;
            at
        }
    };
    let mut watch = etcd.watch(at).await?;
    send_event(sender, follower.on_watch_begun()).await?;
    loop {
        match watch.next().await? {
            EtcdWatchEvent::Batch(batch) => send_event(sender, follower.batch(batch)).await?,
            EtcdWatchEvent::Progress(revision) => {
                follower.progress(revision);
                send_event(sender, Some(FollowerEvent::Heard { revision })).await?;
            }
            EtcdWatchEvent::Heard(revision) => send_event(sender, Some(FollowerEvent::Heard { revision })).await?,
            EtcdWatchEvent::WritesRefused(reason) => send_event(sender, follower.on_writes_refused(reason)).await?,
            EtcdWatchEvent::WritesTaken => send_event(sender, follower.on_watch_begun()).await?,
        }
    }
}

async fn send_event(sender: &Sender<FollowerEvent>, told: Option<FollowerEvent>) -> Result<(), FollowEnd> {
    match told {
        Some(told) => sender.send(told).await.map_err(|_| FollowEnd::Unheard),
        None => Ok(()),
    }
}

impl From<EtcdError> for FollowEnd {
    fn from(error: EtcdError) -> FollowEnd {
        FollowEnd::Failed(error)
    }
}

// The file with the last snapshot of etcd, which a gateway serves after a start without etcd.
//
// Lines of JSON: a head (format, version, prefix, revision), one line for each document, one for each last good value,
// an end with the number of lines and their CRC-32. It is written to a temporary file in the same folder, synchronised
// and renamed, so there is the old or the new one and never a part. Like etcd, it contains secrets: only its owner may
// read it.

const FORMAT: &str = "stillgate etcd snapshot";
const VERSION: u32 = 1;

/// The longest line that is read. etcd accepts 1.5 MiB for a request by default, and JSON may make six bytes of one.
const LINE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SavedSnapshot {
    /// The documents as etcd had them.
    pub snapshot: Snapshot,
    /// For keys whose document in the snapshot was rejected: the last one that was not, which is served instead.
    pub last_good: Vec<(Key, Document)>,
}

/// Why a file cannot be written or read.
#[derive(Debug)]
pub enum SavedError {
    /// An error of the file system.
    Io {
        /// The failed operation, such as `cannot rename`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The file does not exist: nothing was saved yet.
    Absent(PathBuf),
    /// It is incomplete, or was changed.
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The error. It does not repeat text of the file.
        why: &'static str,
    },
    /// Another version of Stillgate wrote it.
    Version {
        /// The file.
        path: PathBuf,
        /// The file's version.
        version: u32,
    },
    /// It belongs to another prefix, hence to other resources.
    Prefix {
        /// The file.
        path: PathBuf,
        /// The file's prefix.
        found: String,
        /// The expected prefix.
        wanted: String,
    },
}

#[derive(Serialize, Deserialize)]
struct SavedHeader {
    format: String,
    version: u32,
    prefix: String,
    revision: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SnapshotLine {
    Document(SavedEntry),
    LastGood(SavedEntry),
    End { lines: u64, crc32: u32 },
}

#[derive(Serialize, Deserialize)]
struct SavedEntry {
    key: String,
    value: String,
    created: u64,
    modified: u64,
}

impl SavedEntry {
    fn document(self) -> (Key, Document) {
        let SavedEntry { key, value, created, modified } = self;
        (Key::from_etcd_path(&key), Document { value: value.into(), created, modified })
    }
}

impl SavedSnapshot {
    /// Writes the file in the place of an older one. Blocks until it is on the disk.
    ///
    /// # Errors
    /// Errors of the file system. The older file still exists then.
    pub fn write(&self, path: &Path, prefix: &str) -> Result<(), SavedError> {
        let failed = |what, path: &Path| {
            let path = path.to_owned();
            move |error| SavedError::Io { what, path, error }
        };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let new = folder.join(name);
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("cannot remove", &new)(error)),
            _ => {}
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
        let file = file.map_err(failed("cannot create", &new))?;
        self.write_to(&file, prefix).and_then(|()| file.sync_all()).map_err(failed("cannot write", &new))?;
        fs::rename(&new, path).map_err(failed("cannot rename to", path))?;
        // The new name is on the disk once its folder is.
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("cannot synchronise", folder))
    }

    fn write_to(&self, file: &File, prefix: &str) -> io::Result<()> {
        let mut out = SummingWriter { out: BufWriter::new(file), crc32: crc32fast::Hasher::new(), lines: 0 };
        let revision = self.snapshot.revision;
        out.line(&SavedHeader { format: FORMAT.to_owned(), version: VERSION, prefix: prefix.to_owned(), revision })?;
        for (key, document) in &self.snapshot.documents {
            out.line(&SnapshotLine::Document(SavedEntry::of(key, document)))?;
        }
        for (key, document) in &self.last_good {
            out.line(&SnapshotLine::LastGood(SavedEntry::of(key, document)))?;
        }
        let (lines, crc32) = (out.lines, out.crc32.clone().finalize());
        out.line(&SnapshotLine::End { lines, crc32 })?;
        out.out.flush()
    }

    /// Reads the file that was written for this prefix.
    ///
    /// # Errors
    /// If there is none, or it was damaged or changed.
    pub fn read(path: &Path, prefix: &str) -> Result<SavedSnapshot, SavedError> {
        let file = File::open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => SavedError::Absent(path.to_owned()),
            _ => SavedError::Io { what: "cannot open", path: path.to_owned(), error },
        })?;
        let mut lines = SnapshotLines {
            path,
            file: BufReader::new(file),
            crc32: crc32fast::Hasher::new(),
            lines: 0,
            text: Vec::new(),
        };
        lines.next()?;
        let head: SavedHeader = lines.parse("not a snapshot of etcd")?;
        if head.format != FORMAT {
            return Err(lines.damaged("not a snapshot of etcd"));
        }
        if head.version != VERSION {
            return Err(SavedError::Version { path: path.to_owned(), version: head.version });
        }
        if head.prefix != prefix {
            let (found, wanted) = (head.prefix, prefix.to_owned());
            return Err(SavedError::Prefix { path: path.to_owned(), found, wanted });
        }
        let mut saved = SavedSnapshot::default();
        saved.snapshot.revision = head.revision;
        loop {
            let before = (lines.lines, lines.crc32.clone().finalize());
            lines.next()?;
            match lines.parse("the line cannot be read")? {
                SnapshotLine::Document(entry) => saved.snapshot.documents.push(entry.document()),
                SnapshotLine::LastGood(entry) => saved.last_good.push(entry.document()),
                SnapshotLine::End { lines: count, crc32 } if (count, crc32) == before => return Ok(saved),
                SnapshotLine::End { .. } => return Err(lines.damaged("the checksum does not match")),
            }
        }
    }
}

impl SavedEntry {
    fn of(key: &Key, document: &Document) -> SavedEntry {
        let Document { value, created, modified } = document;
        SavedEntry { key: key.to_string(), value: value.to_string(), created: *created, modified: *modified }
    }
}

/// Writes lines and sums them up.
struct SummingWriter<W> {
    out: W,
    crc32: crc32fast::Hasher,
    lines: u64,
}

impl<W: Write> SummingWriter<W> {
    fn line(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.crc32.update(&text);
        self.lines += 1;
        self.out.write_all(&text)
    }
}

/// Reads lines and sums them up.
struct SnapshotLines<'a> {
    path: &'a Path,
    file: BufReader<File>,
    crc32: crc32fast::Hasher,
    lines: u64,
    /// The current line.
    text: Vec<u8>,
}

impl SnapshotLines<'_> {
    fn next(&mut self) -> Result<(), SavedError> {
        self.text.clear();
        let mut bounded = io::Read::take(&mut self.file, LINE_BYTES_MAX);
        let read = bounded.read_until(b'\n', &mut self.text);
        read.map_err(|error| SavedError::Io { what: "cannot read", path: self.path.to_owned(), error })?;
        self.lines += 1;
        self.crc32.update(&self.text);
        match self.text.last() {
            Some(b'\n') => Ok(()),
            _ => Err(self.damaged("it is cut off")),
        }
    }

    fn parse<'a, T: Deserialize<'a>>(&'a self, why: &'static str) -> Result<T, SavedError> {
        // Without the parser's message, which may quote a secret.
        serde_json::from_slice(&self.text).map_err(|_| self.damaged(why))
    }

    fn damaged(&self, why: &'static str) -> SavedError {
        SavedError::Damaged { path: self.path.to_owned(), line: self.lines, why }
    }
}

impl fmt::Display for SavedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SavedError::Io { what, path, error } => write!(f, "{what} {}: {error}", path.display()),
            SavedError::Absent(path) => write!(f, "{}: nothing was saved there yet", path.display()),
            SavedError::Damaged { path, line, why } => {
                write!(f, "{}, line {line}: {why}; remove the file, and it is written again from etcd", path.display())
            }
            SavedError::Version { path, version } => {
                write!(
                    f,
                    "{}: the file has format version {version}, and this Stillgate reads version {VERSION}; remove the file",
                    path.display()
                )
            }
            SavedError::Prefix { path, found, wanted } => {
                write!(f, "{}: it belongs to the prefix {found:?}, not {wanted:?}; use another file", path.display())
            }
        }
    }
}

impl std::error::Error for SavedError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn saved() -> SavedSnapshot {
        let entry = |path: &str, value: &str, created, modified| {
            (Key::parse(path).unwrap(), Document { value: value.into(), created, modified })
        };
        let documents = vec![entry("routes/1", "{\"a\":\n1}", 2, 9), entry("routes/2", "no JSON \u{1f600}\0", 3, 3)];
        SavedSnapshot { snapshot: Snapshot { revision: 12, documents }, last_good: vec![entry("routes/2", "{}", 3, 1)] }
    }

    #[test]
    fn what_was_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        assert!(matches!(SavedSnapshot::read(&path, "/a"), Err(SavedError::Absent(_))));
        SavedSnapshot::default().write(&path, "/a").unwrap();
        assert_eq!(SavedSnapshot::read(&path, "/a").unwrap(), SavedSnapshot::default());
        fs::write(folder.path().join("snapshot.new"), "left by a crash").unwrap();
        saved().write(&path, "/a").unwrap();
        assert_eq!(SavedSnapshot::read(&path, "/a").unwrap(), saved());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_not_whole_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        saved().write(&path, "/a").unwrap();
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let error = SavedSnapshot::read(&path, "/a").unwrap_err();
            assert!(matches!(error, SavedError::Damaged { why: "it is cut off", .. }), "{length}: {error}");
        }
        let text = String::from_utf8(whole).unwrap();
        let check = |text: String, expected: &str| {
            fs::write(&path, text).unwrap();
            let error = SavedSnapshot::read(&path, "/a").unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("snapshot"), "{error}");
        };
        check(text.replace("\"created\":2", "\"created\":1"), "the checksum does not match");
        check(text.replace("\"version\":1", "\"version\":2"), "format version 2, and this Stillgate reads version 1");
        check(text.replace("\"/a\"", "\"/b\""), "it belongs to the prefix \"/b\", not \"/a\"");
        check("{}\n".to_owned(), "line 1: not a snapshot of etcd");
        check("resources: []\n".to_owned(), "line 1: not a snapshot of etcd");
    }

    #[test]
    fn a_file_that_cannot_be_written_leaves_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        saved().write(&path, "/a").unwrap();
        fs::create_dir(folder.path().join("snapshot.new")).unwrap();
        assert!(SavedSnapshot::default().write(&path, "/a").unwrap_err().to_string().contains("snapshot.new"));
        assert_eq!(SavedSnapshot::read(&path, "/a").unwrap(), saved());
    }
}
