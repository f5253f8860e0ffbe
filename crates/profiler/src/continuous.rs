//! CPU profiles of all event loops, minute by minute, on disk.
//!
//! ```text
//!  timers of the threads ─▶ rings ── each second ──▶ stacks of a minute ── at its end ──▶ cpu-MINUTE-PROCESS.pb.gz
//! ```
//!
//! - One thread of low priority records. While another profile is taken it disarms its timers and waits.
//! - A minute is written under another name and then renamed, so a crash leaves whole files or none. A file that cannot
//!   be read is skipped.
//! - Bounds: the age and the bytes of all files; the oldest are removed. Several processes may share the folder.
//! - A minute that cannot be written is lost, and its samples are counted.

use crate::cpu::{CpuProfile, Names, be_nice};
use crate::output::pprof;
use crate::profile::{MergedProfile, Profile};
use crate::session::between;
use crate::symbols::Modules;
use crate::unwind::Unwinder;
use serde_json::{Value as Json, json};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The highest rate.
pub const HZ_MAX: u32 = 100;

/// Length of a part.
const STEP_S: u64 = 60;

/// The interval between two reads of the rings, which hold far more.
const DRAIN_EVERY: Duration = Duration::from_secs(1);

/// Largest file that is read.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// What is recorded, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Samples per second of CPU time, 1 to [`HZ_MAX`].
    pub hz: u32,
    /// How long a minute is kept.
    pub keep: Duration,
    /// Most bytes of all files.
    pub bytes_max: u64,
    /// Their folder.
    pub folder: PathBuf,
}

/// What the recorder does with other parts of the program.
#[derive(Debug, Clone, Copy)]
pub struct Hooks {
    /// The phases of its work, see [`Profile::name_phases`].
    pub phases: &'static [(&'static str, &'static str)],
    /// Returns memory that symbols took for a moment.
    pub give_back: fn(),
    /// Logs why minutes are lost.
    pub warn: fn(&io::Error),
}

/// Settings of the recorder, and whether its thread runs.
struct ContinuousSettings {
    settings: Option<Settings>,
    is_running: bool,
}

static WANTED: Mutex<ContinuousSettings> = Mutex::new(ContinuousSettings { settings: None, is_running: false });
static SAMPLES_LOST: AtomicU64 = AtomicU64::new(0);

fn wanted() -> MutexGuard<'static, ContinuousSettings> {
    WANTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Switches recording on, off, or to other settings. Takes effect within a second.
pub fn switch(settings: Option<Settings>, hooks: Hooks) {
    let mut wanted = wanted();
    wanted.settings = settings;
    if wanted.settings.is_none() || wanted.is_running {
        return;
    }
    match thread::Builder::new().name("profiles".to_owned()).spawn(move || run(hooks)) {
        Ok(_) => wanted.is_running = true,
        Err(error) => (hooks.warn)(&error),
    }
}

/// The recorder's thread.
fn run(hooks: Hooks) {
    be_nice();
    let mut unwinder = None;
    let mut names = Names::new();
    loop {
        let settings = {
            let mut wanted = wanted();
            wanted.is_running = wanted.settings.is_some();
            match &wanted.settings {
                Some(settings) => settings.clone(),
                None => return,
            }
        };
        let used = match unwinder.take().map_or_else(|| Modules::read().map(Unwinder::new), Ok) {
            Ok(unwinder) => unwinder,
            Err(error) => {
                (hooks.warn)(&error);
                thread::sleep(Duration::from_secs(STEP_S));
                continue;
            }
        };
        unwinder = Some(record_minute(&settings, used, &mut names, hooks));
    }
}

/// Records until the end of the minute, or until the settings change.
fn record_minute(settings: &Settings, unwinder: Unwinder, names: &mut Names, hooks: Hooks) -> Unwinder {
    let minute = minute_of(unix_s());
    let mut sampling = CpuProfile::continuous(settings.hz, unwinder);
    let mut failed = None;
    while minute_of(unix_s()) == minute && wanted().settings.as_ref() == Some(settings) {
        let done = between(|| {
            sampling.drain();
            sampling.arm_new()
        });
        match done {
            Some(Ok(())) => {}
            Some(Err(error)) => failed = Some(error),
            None => sampling.pause(),
        }
        thread::sleep(DRAIN_EVERY);
    }
    if between(|| sampling.disarm()).is_none() {
        sampling.pause();
    }
    let samples = sampling.samples();
    let (mut profile, unwinder) = sampling.finish(names);
    profile.name_phases(hooks.phases);
    let mut written = match failed {
        Some(error) => Err(error),
        None if samples == 0 => Ok(()),
        None => write(&settings.folder, minute, &pprof::write(&profile)),
    };
    drop(profile);
    if written.is_ok() {
        written = remove_old(settings);
    } else {
        SAMPLES_LOST.fetch_add(samples, Ordering::Relaxed);
    }
    if let Err(error) = written {
        (hooks.warn)(&error);
    }
    (hooks.give_back)();
    unwinder
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn minute_of(unix_s: u64) -> u64 {
    unix_s / STEP_S * STEP_S
}

/// A file of a minute.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct MinuteFile {
    minute: u64,
    path: PathBuf,
    bytes: u64,
}

/// The files of a folder, the oldest first.
fn files(folder: &Path) -> io::Result<Vec<MinuteFile>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let minute = name.to_str().and_then(|name| name.strip_prefix("cpu-")?.strip_suffix(".pb.gz")?.split_once('-'));
        let minute = minute.and_then(|(minute, process)| process.parse::<u32>().ok().and(minute.parse().ok()));
        // It may have been removed by another process.
        if let (Some(minute), Ok(metadata)) = (minute, entry.metadata())
            && metadata.is_file()
        {
            files.push(MinuteFile { minute, path: entry.path(), bytes: metadata.len() });
        }
    }
    files.sort_unstable();
    Ok(files)
}

fn write(folder: &Path, minute: u64, bytes: &[u8]) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let process = std::process::id();
    let unfinished = folder.join(format!(".cpu-{process}.unfinished"));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options
        .open(&unfinished)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&unfinished, folder.join(format!("cpu-{minute}-{process}.pb.gz"))));
    if written.is_err() {
        // What was written of it takes room on a disk that may be full.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Removes files that are too old or too many, and what crashed processes have left.
fn remove_old(settings: &Settings) -> io::Result<()> {
    if !settings.folder.exists() {
        return Ok(());
    }
    let mut files = files(&settings.folder)?;
    let oldest = minute_of(unix_s().saturating_sub(settings.keep.as_secs()));
    let mut bytes: u64 = files.iter().map(|file| file.bytes).sum();
    let mut removed = Ok(());
    for MinuteFile { minute, path, bytes: of_file } in files.drain(..) {
        if minute >= oldest && bytes <= settings.bytes_max {
            break;
        }
        bytes = bytes.saturating_sub(of_file);
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => removed = Err(error),
            _ => {}
        }
    }
    for entry in fs::read_dir(&settings.folder)?.flatten() {
        let name = entry.file_name();
        let is_unfinished =
            name.to_str().is_some_and(|name| name.starts_with(".cpu-") && name.ends_with(".unfinished"));
        let age = entry.metadata().and_then(|metadata| metadata.modified()).ok().and_then(|at| at.elapsed().ok());
        if is_unfinished && age.is_some_and(|age| age.as_secs() > STEP_S) {
            // Another process may have done so.
            let _ = fs::remove_file(entry.path());
        }
    }
    removed
}

/// The state, for `GET /debug/profiles`.
pub fn status() -> Json {
    let settings = wanted().settings.clone();
    let files = settings.as_ref().and_then(|settings| files(&settings.folder).ok()).unwrap_or_default();
    json!({
        "enabled": settings.is_some(),
        "hz": settings.as_ref().map(|settings| settings.hz),
        "keep_s": settings.as_ref().map(|settings| settings.keep.as_secs()),
        "step_s": STEP_S,
        "from_unix_s": files.first().map(|file| file.minute),
        "to_unix_s": files.last().map(|file| file.minute + STEP_S),
        "bytes": files.iter().map(|file| file.bytes).sum::<u64>(),
        "bytes_max": settings.as_ref().map(|settings| settings.bytes_max),
        "samples_lost": SAMPLES_LOST.load(Ordering::Relaxed),
    })
}

/// Why no recorded profile is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoProfile {
    /// Recording is off.
    Off,
    /// There is none of this time.
    Nothing,
    /// Another one is being read.
    Busy,
}

/// The right to read recorded profiles: one reader at a time, since it takes memory and time.
struct ReadTurn;

static IS_READING: AtomicBool = AtomicBool::new(false);

impl Drop for ReadTurn {
    fn drop(&mut self) {
        IS_READING.store(false, Ordering::Release);
    }
}

/// The profile of all minutes that touch a time in seconds since 1970. Lowers the priority of the calling thread, and takes long.
pub fn read(time: &Range<u64>) -> Result<Profile, NoProfile> {
    let folder = wanted().settings.as_ref().map(|settings| settings.folder.clone()).ok_or(NoProfile::Off)?;
    if IS_READING.swap(true, Ordering::Acquire) {
        return Err(NoProfile::Busy);
    }
    let _turn = ReadTurn;
    be_nice();
    read_folder(&folder, time)
}

fn read_folder(folder: &Path, time: &Range<u64>) -> Result<Profile, NoProfile> {
    let mut merged = MergedProfile::default();
    for file in files(folder).unwrap_or_default() {
        if file.minute >= time.end || file.minute + STEP_S <= time.start || file.bytes > FILE_BYTES_MAX {
            continue;
        }
        // Damaged, or removed meanwhile: the others are still right.
        if let Some(profile) = fs::read(&file.path).ok().and_then(|bytes| pprof::read(&bytes).ok()) {
            merged.add(&profile);
        }
    }
    merged.finish().ok_or(NoProfile::Nothing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::svg::example;
    use crate::profile::THREAD;
    use crate::session::ProfileSession;
    use crate::threads::Registration;
    use std::os::unix::fs::MetadataExt;

    fn settings(folder: &Path) -> Settings {
        Settings { hz: 100, keep: Duration::from_secs(3600), bytes_max: 1 << 20, folder: folder.to_owned() }
    }

    #[test]
    fn minutes_are_merged_and_damaged_ones_skipped() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("profiles");
        let profile = Profile { time_ns: 600_000_000_000, ..example() };
        let later = Profile { time_ns: 660_000_000_000, ..example() };
        write(&folder, 600, &pprof::write(&profile)).unwrap();
        write(&folder, 660, &pprof::write(&later)).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        let process = std::process::id();
        assert_eq!((mode(&folder), mode(&folder.join(format!("cpu-600-{process}.pb.gz")))), (0o700, 0o600));
        let whole = fs::read(folder.join(format!("cpu-660-{process}.pb.gz"))).unwrap();
        fs::write(folder.join("cpu-720-1.pb.gz"), &whole[..whole.len() / 2]).unwrap();
        fs::write(folder.join("cpu-780-1.pb.gz"), b"").unwrap();
        fs::write(folder.join("cpu-x-1.pb.gz"), b"not ours").unwrap();
        let total = |time: Range<u64>| read_folder(&folder, &time).map(|profile| profile.total(1));
        let one = example().total(1);
        assert_eq!(total(0..1000), Ok(2 * one));
        assert_eq!((total(659..660), total(660..661), total(0..600)), (Ok(one), Ok(one), Err(NoProfile::Nothing)));
        assert_eq!(total(720..1000), Err(NoProfile::Nothing));
        let both = read_folder(&folder, &(0..1000)).unwrap();
        assert_eq!((both.time_ns, both.samples.len()), (600_000_000_000, example().samples.len()));
        assert_eq!(pprof::read(&pprof::write(&both)).unwrap(), both);
    }

    #[test]
    fn age_and_bytes_are_bounded() {
        let place = tempfile::tempdir().unwrap();
        let now = minute_of(unix_s());
        for back in 0..100 {
            fs::write(place.path().join(format!("cpu-{}-7.pb.gz", now - back * STEP_S)), [0; 1000]).unwrap();
        }
        fs::write(place.path().join("notes.txt"), "theirs").unwrap();
        remove_old(&settings(place.path())).unwrap();
        let kept = files(place.path()).unwrap();
        assert!((60..=61).contains(&kept.len()), "{}", kept.len());
        remove_old(&Settings { bytes_max: 5_500, ..settings(place.path()) }).unwrap();
        let kept: Vec<u64> = files(place.path()).unwrap().iter().map(|file| file.minute).collect();
        assert_eq!(kept, [4, 3, 2, 1, 0].map(|back| now - back * STEP_S));
        assert!(place.path().join("notes.txt").exists());
    }

    #[test]
    fn a_full_disk_leaves_nothing_behind() {
        // Writing to it fails as on a full disk.
        let full = Path::new("/dev/full");
        let place = tempfile::tempdir().unwrap();
        let unfinished = place.path().join(format!(".cpu-{}.unfinished", std::process::id()));
        std::os::unix::fs::symlink(full, &unfinished).unwrap();
        let error = write(place.path(), 60, &[0; 10_000]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(!unfinished.exists() && full.exists());
        assert_eq!(files(place.path()).unwrap(), []);
    }

    /// The only test of this process that switches recording on.
    #[test]
    fn a_minute_is_recorded_around_other_profiles() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("a").join("b");
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let _registered = Registration::new("recorded", Some(Box::new(|| 0))).unwrap();
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let hooks = Hooks { phases: &[], give_back: || {}, warn: |error| panic!("{error}") };
            switch(Some(settings(&folder)), hooks);
            thread::sleep(Duration::from_secs(2));
            if let Ok(session) = ProfileSession::begin("test", "a test", Duration::ZERO) {
                thread::sleep(Duration::from_secs(2));
                drop(session);
            }
            thread::sleep(Duration::from_secs(2));
            // What was sampled until then is written.
            switch(Some(Settings { hz: 50, ..settings(&folder) }), hooks);
            stillgate_testkit::eventually("a file", || files(&folder).is_ok_and(|files| !files.is_empty()));
            assert_eq!(status()["hz"], 50);
            let profile = read(&(0..u64::MAX)).unwrap();
            switch(None, hooks);
            is_over.store(true, Ordering::Relaxed);
            assert!(profile.shares(THREAD, 0).iter().any(|(thread, samples)| *thread == "recorded" && *samples > 5));
            assert!(profile.samples.iter().all(|sample| sample.time_ns().is_none()));
            stillgate_testkit::eventually("its end", || !wanted().is_running);
            assert_eq!(read(&(0..u64::MAX)), Err(NoProfile::Off));
        });
    }
}
