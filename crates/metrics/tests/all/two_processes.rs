//! Writers and readers in processes of their own, killed at any moment: totals never step back and lose nothing.
//!
//! The test's executable starts itself again as a writer (or a reader). Time runs two hundred times as fast as real time in all of them,
//! so that processes are known to be dead, and their totals folded, many times in a few seconds.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::exposition::{Exposition, read};
use crate::started::{Notes, StartedProcess, family, identity, is_wanted, task};
use stillgate_metrics::encode::Format;
use stillgate_metrics::{Buckets, Collector, CollectorOptions, FamilyType, Native, Registry, RegistryOptions};

/// How much faster time runs.
const SPEED: u64 = 200;
/// Counts between two notes of their number.
const BATCH: u64 = 20;
/// Number of labels that are counted in turn.
const ROUTES: u64 = 7;
const KILLS: u64 = 30;
const PATIENCE: Duration = Duration::from_secs(300);

/// The accelerated time in milliseconds since the epoch, the same in all processes.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    // Truncated to a day, or it would be far in the future.
    let of_day = since.as_micros() as u64 % 86_400_000_000;
    since.as_secs() / 86_400 * 86_400_000 + of_day / 1000 * SPEED
}

/// Runs in a process of its own: counts until it is killed.
#[test]
fn writing_process() {
    let Some((folder, number)) = task() else { return };
    let parent = std::os::unix::process::parent_id();
    let notes = Notes::create(&folder, number);
    let options = RegistryOptions {
        memory_bytes: 4 << 20,
        ahead_bytes: 64 << 10,
        shared: Some(folder.join("metrics")),
        ..RegistryOptions::new(identity(std::process::id()), now_ms(), number)
    };
    let registry = Arc::new(Registry::start(options).unwrap());
    let requests = registry.declare(family("requests_total", FamilyType::Counter)).unwrap();
    let buckets = Buckets { classic: vec![0.1, 1.0], native: None };
    let sizes = registry.declare(family("sizes", FamilyType::Histogram(buckets))).unwrap();
    let both = Buckets { classic: vec![0.1, 1.0], native: Some(Native::default()) };
    let spans = registry.declare(family("spans", FamilyType::Histogram(both))).unwrap();
    let mut writer = registry.writer().unwrap();
    let mut collector = Collector::of_registry(registry, CollectorOptions::default()).unwrap();
    for batch in (0..).take_while(|_| is_wanted(parent)) {
        notes.begun((batch + 1) * BATCH);
        for count in batch * BATCH..(batch + 1) * BATCH {
            let route = format!("r{}", count % ROUTES);
            let handle = writer.series(&requests, &[route.as_bytes()]);
            assert!(writer.add(handle, 1));
            let handle = writer.series(&sizes, &[route.as_bytes()]);
            assert!(writer.observe(handle, 0.5));
            let handle = writer.series(&spans, &[route.as_bytes()]);
            assert!(writer.observe(handle, 0.5));
        }
        notes.done((batch + 1) * BATCH);
        if batch % 16 == 0 {
            writer.tick(now_ms());
            collector.tend(now_ms());
            let events = collector.events();
            let is_good = |event| matches!(event, &stillgate_metrics::CollectorEvent::Folded { .. });
            assert!(events.iter().all(is_good), "{events:?}");
        }
    }
}

/// Runs in a process of its own: reads until it is killed.
#[test]
fn reading_process() {
    let Some((folder, _)) = task() else { return };
    let mut collector = Collector::open(&folder.join("metrics"), CollectorOptions::default());
    let parent = std::os::unix::process::parent_id();
    while is_wanted(parent) {
        if collector.refresh(now_ms()).is_ok() {
            read(&mut collector, Format::Protobuf, true);
        }
    }
}

/// The observations of an outside reader, and the conditions that they must meet.
struct Watch<'a> {
    folder: &'a Path,
    collector: Collector,
    last: Option<Exposition>,
    /// Counts begun and finished by killed writers.
    dead: (u64, u64),
    scrapes: u64,
    /// All totals of dead processes have been merged.
    is_folded: bool,
}

impl Watch<'_> {
    /// Checks once, while this writer works.
    fn look(&mut self, number: u64) {
        let (_, done) = Notes::read(self.folder, number);
        if self.collector.refresh(now_ms()).is_err() {
            assert_eq!(done, 0, "a writer counts and there is no folder");
            return;
        }
        let shown = Exposition::of(&mut self.collector, Format::Text);
        let (begun, _) = Notes::read(self.folder, number);
        for name in ["requests_total", "sizes_count", "spans_count"] {
            let sum = shown.sum(name) as u64;
            // A process that is killed or suspended in the middle of an observation holds its series back until it
            // continues, or is known to be dead.
            let least = match (name, self.is_folded) {
                ("requests_total", _) => self.dead.1 + done,
                (_, true) => self.dead.1,
                (_, false) => 0,
            };
            assert!(sum >= least, "{name}: {sum} of {least}, writer {number}");
            assert!(sum <= self.dead.0 + begun, "{name}: {sum} of {} + {begun}, writer {number}", self.dead.0);
        }
        // A writer that is killed may have added to a bucket and not yet to the sum.
        let lost = shown.sum("sizes_count") * 0.5 - shown.sum("sizes_sum");
        assert!((0.0..=0.5 * (number + 1) as f64).contains(&lost), "{lost} is missing in the sum");
        for ((name, labels), before) in self
            .last
            .iter()
            .flat_map(|last| &last.samples)
            .filter(|((name, _), _)| name != "stillgate_metrics_collapsed_observations_total")
        {
            let now = shown.samples.get(&(name.clone(), labels.clone()));
            assert!(now.is_some_and(|now| now >= before), "{name} {labels:?} steps back from {before} to {now:?}");
        }
        assert!(self.collector.events().is_empty());
        self.last = Some(shown);
        self.scrapes += 1;
    }
}

#[test]
fn killed_at_any_moment_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::open(&folder.path().join("metrics"), CollectorOptions::default());
    let mut watch = Watch { folder: folder.path(), collector, last: None, dead: (0, 0), scrapes: 0, is_folded: false };
    // Segments of a process killed between making and listing them are removed too.
    std::fs::create_dir(folder.path().join("metrics")).unwrap();
    for orphan in ["4000000000-1-0.segment", "base-77777.segment"] {
        std::fs::write(folder.path().join("metrics").join(orphan), vec![0; 4096]).unwrap();
    }
    let mut random = 0x9E37_79B9_7F4A_7C15u64 ^ u64::from(std::process::id());
    let mut reader = StartedProcess::new("two_processes::reading_process", folder.path(), 0);
    for number in 0..KILLS {
        let writer = StartedProcess::new("two_processes::writing_process", folder.path(), number);
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // One in three is killed while it starts; the others live long enough to fold what was there before.
        let is_early = random.is_multiple_of(3);
        let most_us = if is_early { 15_000 } else { 150_000 };
        let patience = Instant::now() + PATIENCE;
        while !is_early && Notes::read(folder.path(), number).1 == 0 {
            watch.look(number);
            assert!(Instant::now() < patience, "writer {number} does not begin");
        }
        let until = Instant::now() + Duration::from_micros(random / 3 % most_us);
        while Instant::now() < until {
            watch.look(number);
        }
        writer.kill();
        let (begun, done) = Notes::read(folder.path(), number);
        watch.dead = (watch.dead.0 + begun, watch.dead.1 + done);
        watch.look(KILLS);
        if number % 5 == 4 {
            reader.kill();
            reader = StartedProcess::new("two_processes::reading_process", folder.path(), 0);
        }
    }
    reader.kill();
    assert!(watch.dead.1 > 0 && watch.scrapes > KILLS, "{:?} {}", watch.dead, watch.scrapes);
    // A process that keeps running carries all of it on, and leaves nothing else behind.
    let last = StartedProcess::new("two_processes::writing_process", folder.path(), KILLS);
    let patience = Instant::now() + PATIENCE;
    let files = || {
        std::fs::read_dir(folder.path().join("metrics"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect::<Vec<_>>()
    };
    // The list, its lock, the base, and the segments of the writer and of its collector.
    while files().len() > 5 || !files().iter().any(|file| file.starts_with("base-")) {
        watch.look(KILLS);
        assert!(Instant::now() < patience, "these are left: {:?}", files());
    }
    watch.is_folded = true;
    watch.look(KILLS);
    last.kill();
}
