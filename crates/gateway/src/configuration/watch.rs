//! Notices that the configuration file, or one that it names, may have changed.
//!
//! Folders are watched, not files: editors replace a file by renaming another over it, and Kubernetes swaps a symbolic link
//! (`..data`) beside it, git-sync one in the path. So the folder of each link is watched that leads to a file. What these events do
//! not show, such as another name of a folder further up, is found by looking at the files now and then. Whether the content differs
//! is for the reader to find out: here a burst of events becomes one notice.

use super::source::ConfigSource;
use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::warn;

/// How long after the first event the notice comes: what writes a file does so in several steps. Not after the last,
/// or a file that is written all the time would never be read.
const SETTLE: Duration = Duration::from_millis(20);

/// How often the files are looked at. What is found must be the same at the next look: it may be written just now.
const LOOK: Duration = Duration::from_secs(2);

/// Watches the configuration file, and other files.
pub(crate) struct FileWatch {
    file: PathBuf,
    /// Certificates and keys.
    others: BTreeSet<PathBuf>,
    /// `None`: the system would not let us watch, and only SIGHUP reloads.
    watcher: Option<RecommendedWatcher>,
    touched: Arc<Notify>,
    /// The folders that are watched.
    folders: BTreeMap<PathBuf, Identity>,
    /// The folders that were to be watched, some of which may not exist.
    wanted: BTreeMap<PathBuf, Identity>,
    /// The files at the last notice, and at the last look.
    seen: BTreeMap<PathBuf, (FileStamp, FileStamp)>,
    next_look: Instant,
    /// The names in these folders, as the watcher's thread knows them.
    names: Arc<Mutex<BTreeMap<PathBuf, WatchedNames>>>,
    /// When the notice is due, once something has happened. Kept here so that [`FileWatch::wait_for_change`] can be cancelled.
    due: Option<Instant>,
}

/// Which file is at a path, and when it last changed; another stamp shows a change that the watcher missed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FileStamp(Option<(u64, u64, u64, i64, i64)>);

impl FileStamp {
    fn is_same_file(self, other: FileStamp) -> bool {
        let identity = |stamp: FileStamp| stamp.0.map(|(device, inode, ..)| (device, inode));
        identity(self) == identity(other)
    }

    /// The stamp of a file now, to be taken before the file is read.
    pub(crate) fn of(file: &Path) -> FileStamp {
        let metadata = file.metadata();
        FileStamp(metadata.ok().map(|file| (file.dev(), file.ino(), file.size(), file.ctime(), file.ctime_nsec())))
    }
}

/// Device and inode of a folder: another one may have taken its name. `None`: the folder does not exist.
type Identity = Option<(u64, u64)>;

/// The names in a folder that concern us.
#[derive(Debug, Clone, PartialEq)]
enum WatchedNames {
    /// Files and links with these names.
    These(HashSet<OsString>),
    /// Any name: the folder itself is among the files.
    Any,
}

impl FileWatch {
    /// The stamp of what a source reads, before it is read; `None`: it never changes.
    pub(crate) fn stamp(source: &ConfigSource) -> Option<FileStamp> {
        source.file().map(FileStamp::of)
    }

    /// Watches what a source reads, which had that stamp when it was read, and other files.
    pub(crate) fn of(source: &ConfigSource, read: FileStamp, others: &BTreeSet<PathBuf>) -> Option<FileWatch> {
        let mut watch = FileWatch::start(source.file()?, read);
        watch.set_others(others);
        Some(watch)
    }

    /// Begins to watch a file that was read when it had that stamp. Where watching fails the log says so, and no notice ever
    /// comes.
    pub(crate) fn start(file: &Path, read: FileStamp) -> FileWatch {
        let (touched, names) = (Arc::new(Notify::new()), Arc::new(Mutex::new(BTreeMap::new())));
        let watcher = notify::recommended_watcher({
            let (touched, names) = (touched.clone(), names.clone());
            // Several notices collapse into one, so nothing can pile up here.
            move |event: notify::Result<Event>| match event {
                Ok(event) if concerns(&event, &names.lock().unwrap_or_else(PoisonError::into_inner)) => {
                    touched.notify_one()
                }
                Ok(_) => {}
                Err(error) => {
                    warn!(%error, "watching the configuration file: some changes may be missed");
                    touched.notify_one();
                }
            }
        });
        let (file, others, folders) = (file.to_owned(), BTreeSet::new(), BTreeMap::new());
        let (wanted, seen, next_look) = (BTreeMap::new(), BTreeMap::new(), Instant::now() + LOOK);
        let mut watch =
            FileWatch { file, others, watcher: None, touched, folders, wanted, seen, next_look, names, due: None };
        match watcher {
            Ok(watcher) => watch.watcher = Some(watcher),
            Err(error) => warn!(
                %error,
                "the configuration file cannot be watched; send SIGHUP after changing it"
            ),
        }
        watch.watch_folders();
        watch.remember();
        if FileStamp::of(&watch.file) != read {
            watch.touched.notify_one();
        }
        watch
    }

    /// Watches these files besides the configuration file, and no others.
    pub(crate) fn set_others(&mut self, others: &BTreeSet<PathBuf>) {
        if self.others != *others {
            self.others.clone_from(others);
            self.watch_folders();
            self.remember();
        }
    }

    /// Waits until a file may have changed. May be cancelled without losing a notice.
    pub(crate) async fn wait_for_change(&mut self) {
        let due = match self.due {
            Some(due) => due,
            None => {
                loop {
                    tokio::select! {
                        () = self.touched.notified() => break,
                        () = tokio::time::sleep_until(self.next_look) => {
                            self.next_look = Instant::now() + LOOK;
                            if self.look() {
                                break;
                            }
                        }
                    }
                }
                *self.due.insert(Instant::now() + SETTLE)
            }
        };
        tokio::time::sleep_until(due).await;
        // This notice also covers what happened meanwhile: a change is mostly several events.
        let _ = tokio::time::timeout(Duration::ZERO, self.touched.notified()).await;
        self.due = None;
        self.watch_folders();
        self.remember();
    }

    /// Takes the files as they are now for those that were noticed.
    fn remember(&mut self) {
        let stamp = |file: &PathBuf| (file.clone(), (FileStamp::of(file), FileStamp::of(file)));
        self.seen = std::iter::once(&self.file).chain(&self.others).map(stamp).collect();
    }

    /// Whether another file has taken a name of ours, and is complete as far as can be seen. Also watches folders that are there
    /// since the last look.
    fn look(&mut self) -> bool {
        if self.wanted_folders().iter().any(|(folder, (identity, _))| self.wanted.get(folder) != Some(identity)) {
            self.watch_folders();
        }
        let mut is_replaced = false;
        for (file, (noticed, last)) in &mut self.seen {
            let now = FileStamp::of(file);
            is_replaced |= !now.is_same_file(*noticed) && now == *last;
            *last = now;
        }
        is_replaced
    }

    fn wanted_folders(&self) -> BTreeMap<PathBuf, (Identity, WatchedNames)> {
        folders_of(std::iter::once(&self.file).chain(&self.others))
    }

    /// Watches the folders that contain the files now; a link may point elsewhere than before.
    pub(crate) fn watch_folders(&mut self) {
        let wanted = self.wanted_folders();
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        let names = wanted.iter().map(|(folder, (_, names))| (folder.clone(), names.clone())).collect();
        *self.names.lock().unwrap_or_else(PoisonError::into_inner) = names;
        let folders: BTreeMap<PathBuf, Identity> =
            wanted.into_iter().map(|(folder, (identity, _))| (folder, identity)).collect();
        self.wanted.clone_from(&folders);
        for (gone, _) in self.folders.iter().filter(|(folder, identity)| folders.get(*folder) != Some(identity)) {
            // It fails where the folder was deleted, and then it is not watched any more either.
            let _ = watcher.unwatch(gone);
        }
        let mut watched = BTreeMap::new();
        for (folder, identity) in folders {
            if self.folders.get(&folder) == Some(&identity) {
                watched.insert(folder, identity);
                continue;
            }
            match watcher.watch(&folder, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    watched.insert(folder, identity);
                }
                Err(error) => warn!(
                    folder = %folder.display(),
                    %error,
                    "this folder cannot be watched; send SIGHUP after changing the configuration or a certificate in it"
                ),
            }
        }
        self.folders = watched;
    }
}

/// The folders that contain the files' names, and those of all links on the way to the files. A folder among the files themselves is
/// watched as a whole. A folder with several names is listed under one of them: the system would report all
/// its events under the last one that was watched.
fn folders_of<'a>(files: impl Iterator<Item = &'a PathBuf>) -> BTreeMap<PathBuf, (Identity, WatchedNames)> {
    let mut folders = BTreeMap::new();
    let mut spelled: BTreeMap<(u64, u64), PathBuf> = BTreeMap::new();
    let mut add = |folder: PathBuf, names: WatchedNames| {
        let identity = folder.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()));
        let folder = match identity {
            Some(identity) => spelled.entry(identity).or_insert(folder).clone(),
            None => folder,
        };
        let (_, known) = folders.entry(folder).or_insert((identity, WatchedNames::These(HashSet::new())));
        match (known, names) {
            (WatchedNames::These(known), WatchedNames::These(names)) => known.extend(names),
            (known, WatchedNames::Any) => *known = WatchedNames::Any,
            (WatchedNames::Any, _) => {}
        }
    };
    for file in files {
        if file.is_dir() {
            add(file.clone(), WatchedNames::Any);
        }
        for name in names_of(file) {
            if let Some(last) = name.file_name() {
                add(folder_of(&name), WatchedNames::These(HashSet::from([last.to_owned()])));
            }
        }
    }
    folders
}

/// The names whose change may mean another file: its own, that of each link on the way to it, and the one that it finally has.
/// The folders of all but its own are without links.
fn names_of(file: &Path) -> Vec<PathBuf> {
    /// The system's limit (`ELOOP`).
    const LINKS_MAX: usize = 40;
    let reversed = |path: &Path| path.components().rev().map(|part| part.as_os_str().to_owned()).collect::<Vec<_>>();
    let (mut names, mut rest, mut at) = (vec![file.to_owned()], reversed(file), PathBuf::new());
    while let Some(part) = rest.pop() {
        let folder = at.clone();
        at.push(part);
        let Ok(target) = at.read_link() else { continue };
        if names.len() > LINKS_MAX {
            return names;
        }
        names.push(std::mem::replace(&mut at, folder));
        // An absolute target begins with the root, which replaces all before it.
        rest.append(&mut reversed(&target));
    }
    names.push(at);
    names
}

fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Whether an event may mean other content of a file of ours.
fn concerns(event: &Event, folders: &BTreeMap<PathBuf, WatchedNames>) -> bool {
    // Reading a file is an event too, and must not lead to reading it again. Neither must a write: a file that is written slowly
    // would be read half, and half a list of routes is valid too. Closing the file shows that it is complete. A new file is written
    // and closed as well; a link that appears is not.
    let changes = match event.kind {
        EventKind::Access(access) => access == AccessKind::Close(AccessMode::Write),
        EventKind::Create(_) => event.paths.iter().any(|path| path.is_symlink()),
        EventKind::Modify(ModifyKind::Name(_)) | EventKind::Remove(_) => true,
        EventKind::Any | EventKind::Modify(_) => false,
        EventKind::Other => event.need_rescan(),
    };
    // Another file of the same folder, such as a log, does not concern us, except for the targets of our links and Kubernetes's
    // links. An event of the folder itself does: it may be gone.
    let ours = |path: &PathBuf| match path.parent().and_then(|folder| folders.get(folder)) {
        Some(WatchedNames::These(names)) => {
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"..") || names.contains(name))
        }
        Some(WatchedNames::Any) | None => true,
    };
    changes && (event.paths.is_empty() || event.paths.iter().any(ours))
}

#[cfg(test)]
mod tests {
    use super::*;
    use notify::event::RemoveKind;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Runs a change and waits for its notice; a notice that never comes makes the test hang, and then fail by its
    /// timeout.
    async fn notices(watch: &mut FileWatch, change: impl FnOnce()) {
        change();
        tokio::time::timeout(Duration::from_secs(180), watch.wait_for_change()).await.expect("a notice");
    }

    #[tokio::test]
    async fn every_way_to_change_a_file_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("stillgate.yaml");
        let beside = folder.path().join("new");
        fs::write(&file, "1").expect("write");
        let mut watch = FileWatch::start(&file, FileStamp::of(&file));
        notices(&mut watch, || fs::write(&file, "2").expect("in place")).await;
        notices(&mut watch, || {
            fs::write(&beside, "3").expect("write");
            fs::rename(&beside, &file).expect("rename over it");
        })
        .await;
        notices(&mut watch, || fs::remove_file(&file).expect("remove")).await;
        notices(&mut watch, || fs::write(&file, "4").expect("again")).await;
    }

    #[tokio::test]
    async fn a_change_before_it_is_watched_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, beside) = (folder.path().join("stillgate.yaml"), folder.path().join("new"));
        let check = async |change: &dyn Fn(), expected: bool| {
            fs::write(&file, "1").expect("write");
            let read = FileStamp::of(&file);
            change();
            let mut watch = FileWatch::start(&file, read);
            let patience = if expected { Duration::from_secs(180) } else { 4 * SETTLE };
            let is_noticed = tokio::time::timeout(patience, watch.wait_for_change()).await.is_ok();
            assert_eq!(is_noticed, expected);
        };
        check(&|| {}, false).await;
        check(&|| fs::write(&file, "12").expect("in place"), true).await;
        check(&|| fs::remove_file(&file).expect("remove"), true).await;
        let rename = || {
            fs::write(&beside, "1").expect("write");
            fs::rename(&beside, &file).expect("rename over it");
        };
        check(&rename, true).await;
    }

    #[tokio::test]
    async fn what_the_folders_do_not_show_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let make = |release: &str| {
            fs::create_dir_all(at(release).join("conf")).expect("a folder");
            fs::write(at(release).join("conf/stillgate.yaml"), release).expect("write");
        };
        make("now");
        make("next");
        let file = at("now/conf/stillgate.yaml");
        let mut watch = FileWatch::start(&file, FileStamp::of(&file));
        // A folder further up gets another name.
        notices(&mut watch, || {
            fs::rename(at("now"), at("old")).expect("away");
            fs::rename(at("next"), at("now")).expect("in its place");
        })
        .await;
        notices(&mut watch, || fs::write(&file, "later").expect("in place")).await;
        // The whole path goes, and comes back later.
        notices(&mut watch, || fs::remove_dir_all(at("now")).expect("remove")).await;
        notices(&mut watch, || make("now")).await;
        notices(&mut watch, || fs::write(&file, "later").expect("in place")).await;
    }

    #[tokio::test]
    async fn a_config_map_is_swapped_by_its_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        for (version, text) in [("..v1", "1"), ("..v2", "2")] {
            fs::create_dir(at(version)).expect("a folder");
            fs::write(at(version).join("stillgate.yaml"), text).expect("write");
        }
        symlink("..v1", at("..data")).expect("link");
        symlink("..data/stillgate.yaml", at("stillgate.yaml")).expect("link");
        let mut watch = FileWatch::start(&at("stillgate.yaml"), FileStamp::of(&at("stillgate.yaml")));
        notices(&mut watch, || {
            symlink("..v2", at("..tmp")).expect("link");
            fs::rename(at("..tmp"), at("..data")).expect("swap");
        })
        .await;
        // The folder that it points to now is watched, too.
        notices(&mut watch, || {
            fs::write(at("..v2").join("stillgate.yaml"), "3").expect("in place");
        })
        .await;
    }

    #[tokio::test]
    async fn a_link_to_another_name_of_the_same_folder_is_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::write(at("x.yaml"), "1").expect("write");
        symlink("x.yaml", at("stillgate.yaml")).expect("link");
        let mut watch = FileWatch::start(&at("stillgate.yaml"), FileStamp::of(&at("stillgate.yaml")));
        notices(&mut watch, || fs::write(at("x.yaml"), "2").expect("in place")).await;
        notices(&mut watch, || {
            fs::write(at("new"), "3").expect("write");
            fs::rename(at("new"), at("x.yaml")).expect("rename over it");
        })
        .await;
    }

    #[tokio::test]
    async fn a_link_anywhere_in_the_path_is_followed() {
        let root = tempfile::tempdir().expect("a folder");
        let at = |name: &str| root.path().join(name);
        for (folder, text) in [("w/1", "1"), ("w/2", "2"), ("other", "")] {
            fs::create_dir_all(at(folder)).expect("a folder");
            fs::write(at(folder).join("g.yaml"), text).expect("write");
        }
        let swap = |link: &str, target: &str| {
            symlink(target, at("tmp")).expect("link");
            fs::rename(at("tmp"), at(link)).expect("swap");
        };
        swap("current", "w/1");
        swap("other/deep", "../current");
        swap("other/file", "deep/g.yaml");
        // By the link of a folder, by one that leads to it from elsewhere, and by a file that is a link itself.
        for file in ["current/g.yaml", "other/deep/../../other/deep/g.yaml", "other/file"] {
            let mut watch = FileWatch::start(&at(file), FileStamp::of(&at(file)));
            notices(&mut watch, || swap("current", "w/2")).await;
            notices(&mut watch, || fs::write(at("w/2/g.yaml"), "3").expect("in place")).await;
            notices(&mut watch, || swap("current", &at("w/1").display().to_string())).await;
            notices(&mut watch, || fs::write(at("w/1/g.yaml"), "4").expect("in place")).await;
        }
        let mut watch = FileWatch::start(&at("w/1/g.yaml"), FileStamp::of(&at("w/1/g.yaml")));
        watch.set_others(&[at("current/g.yaml")].into());
        notices(&mut watch, || swap("current", "w/2")).await;
        // Links in a circle lead nowhere.
        swap("a", "b");
        swap("b", "a");
        assert!(names_of(&at("a/x")).len() < 50);
    }

    #[tokio::test]
    async fn another_folder_of_the_name_is_watched_from_then_on() {
        let root = tempfile::tempdir().expect("a folder");
        let at = |name: &str| root.path().join(name);
        for folder in ["k", "new"] {
            fs::create_dir(at(folder)).expect("a folder");
            fs::write(at(folder).join("stillgate.yaml"), folder).expect("write");
        }
        let file = at("k").join("stillgate.yaml");
        let mut watch = FileWatch::start(&file, FileStamp::of(&file));
        fs::rename(at("k"), at("old")).expect("move away");
        fs::rename(at("new"), at("k")).expect("swap");
        // This happens on SIGHUP.
        watch.watch_folders();
        notices(&mut watch, || fs::write(&file, "2").expect("in place")).await;
    }

    #[tokio::test]
    async fn files_that_the_configuration_names_are_watched_while_it_does() {
        let (folder, elsewhere) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let file = folder.path().join("stillgate.yaml");
        // One folder under two names, one with a link into a third, and one that does not exist yet.
        let beside = folder.path().join(".").join("beside.pem");
        let (linked, target) = (elsewhere.path().join("linked.pem"), folder.path().join("target"));
        fs::create_dir(&target).expect("a folder");
        fs::write(&file, "1").expect("write");
        fs::write(&beside, "1").expect("write");
        fs::write(target.join("a.pem"), "1").expect("write");
        symlink(target.join("a.pem"), &linked).expect("link");
        let mut watch = FileWatch::start(&file, FileStamp::of(&file));
        watch.set_others(&[beside.clone(), linked.clone(), elsewhere.path().join("missing.pem")].into());
        notices(&mut watch, || fs::write(&beside, "2").expect("in place")).await;
        notices(&mut watch, || fs::write(target.join("a.pem"), "2").expect("in place")).await;
        notices(&mut watch, || fs::write(elsewhere.path().join("missing.pem"), "1").expect("write")).await;
        notices(&mut watch, || fs::write(&file, "2").expect("in place")).await;
        watch.set_others(&BTreeSet::new());
        assert_eq!(watch.folders.len(), 1, "{:?}", watch.folders);
        notices(&mut watch, || fs::write(&file, "3").expect("in place")).await;
    }

    #[test]
    fn other_files_and_reading_are_ignored() {
        let check = |kind, path: &str, expected| {
            let event = Event::new(kind).add_path(path.into());
            let names = |names: &[&str]| WatchedNames::These(names.iter().map(OsString::from).collect());
            let folders =
                [("/etc/x", names(&["s.yaml"])), ("/etc/tls", names(&["a.pem", "b.pem"])), ("/opt", WatchedNames::Any)];
            let folders = folders.map(|(folder, names)| (PathBuf::from(folder), names)).into();
            assert_eq!(concerns(&event, &folders), expected, "{path} {kind:?}");
        };
        let written = EventKind::Access(AccessKind::Close(AccessMode::Write));
        let read = EventKind::Access(AccessKind::Close(AccessMode::Read));
        check(written, "/etc/x/s.yaml", true);
        check(read, "/etc/x/s.yaml", false);
        check(EventKind::Modify(ModifyKind::Any), "/etc/x/s.yaml", false);
        check(written, "/etc/x/access.log", false);
        check(written, "/etc/x/..data", true);
        check(written, "/opt/target.yaml", true);
        check(written, "/etc/tls/b.pem", true);
        check(written, "/etc/tls/s.yaml", false);
        check(EventKind::Remove(RemoveKind::Folder), "/etc/tls", true);
    }
}
