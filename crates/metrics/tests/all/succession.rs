//! Successive processes that count and are killed: the latest never steps back, and loses nothing.
//!
//! The test's executable starts itself as one writer after the other. Each receives the memory of the one before over a
//! socket and passes all of it on, the last one to the test, which reads and counts along.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::exposition::Exposition;
use crate::started::{Notes, StartedProcess, family, identity, is_wanted, task};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use stillgate_metrics::encode::Format;
use stillgate_metrics::{
    Buckets, Collector, CollectorEvent, CollectorOptions, FamilyType, Merge, Registry, RegistryOptions, Writer,
};

const NOW_MS: u64 = 1_700_000_000_000;
/// Counts between two notes of their number.
const BATCH: u64 = 20;
const ROUTES: u64 = 7;
/// Files that are handed over at a time.
const FILES_MAX: usize = 64;
/// Writers before the test itself.
const GENERATIONS: u64 = 3;
const ROUNDS: u64 = 4;
const PATIENCE: Duration = Duration::from_secs(300);

fn socket(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("socket-{number}"))
}

fn hand_over(to: &UnixStream, files: &[OwnedFd]) {
    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    assert!(files.len() <= FILES_MAX, "{}", files.len());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&files)));
    sendmsg(to, &[IoSlice::new(b"!")], &mut ancillary, SendFlags::empty()).unwrap();
}

fn take_over(folder: &Path, number: u64) -> Vec<OwnedFd> {
    let until = Instant::now() + PATIENCE;
    let from = loop {
        match UnixStream::connect(socket(folder, number)) {
            Ok(from) => break from,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(&from, &mut [IoSliceMut::new(&mut [0])], &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights);
        }
    }
    assert!(!files.is_empty());
    files
}

/// The metrics of each process.
struct ProcessMetrics {
    registry: Arc<Registry>,
    writer: Writer,
    collector: Collector,
    count: u64,
}

impl ProcessMetrics {
    fn new(inherited: Vec<OwnedFd>, seed: u64) -> ProcessMetrics {
        let own = identity(std::process::id());
        let options =
            RegistryOptions { memory_bytes: 4 << 20, ahead_bytes: 64 << 10, ..RegistryOptions::new(own, NOW_MS, seed) };
        let registry = Arc::new(Registry::start(options).unwrap());
        let refused = registry.inherit(inherited);
        assert!(refused.is_empty(), "{refused:?}");
        let writer = registry.writer().unwrap();
        let collector = Collector::of_registry(registry.clone(), CollectorOptions::default()).unwrap();
        ProcessMetrics { registry, writer, collector, count: 0 }
    }

    /// Counts once in every family.
    fn count(&mut self) {
        let route = format!("r{}", self.count % ROUTES);
        let declare = |name, kind| self.registry.declare(family(name, kind)).unwrap();
        let requests = declare("requests_total", FamilyType::Counter);
        let sizes = declare("sizes", FamilyType::Histogram(Buckets { classic: vec![0.1, 1.0], native: None }));
        let lives = declare("lives", FamilyType::Gauge(Merge::Sum));
        let handle = self.writer.series(&requests, &[route.as_bytes()]);
        assert!(self.writer.add(handle, 1));
        let handle = self.writer.series(&sizes, &[route.as_bytes()]);
        assert!(self.writer.observe(handle, 0.5));
        let handle = self.writer.series(&lives, &[b"all"]);
        assert!(self.writer.set(handle, 1.0));
        self.count += 1;
    }
}

/// Runs in a process of its own: carries on from the one before, counts, and hands over, until it is killed.
#[test]
fn counting_process() {
    let Some((folder, number)) = task() else { return };
    let parent = std::os::unix::process::parent_id();
    let inherited = match number % GENERATIONS {
        0 => Vec::new(),
        _ => take_over(&folder, number - 1),
    };
    let notes = Notes::create(&folder, number);
    let mut counting = ProcessMetrics::new(inherited, number);
    let successor = UnixListener::bind(socket(&folder, number)).unwrap();
    successor.set_nonblocking(true).unwrap();
    while is_wanted(parent) {
        notes.begun(counting.count + BATCH);
        (0..BATCH).for_each(|_| counting.count());
        notes.done(counting.count);
        counting.writer.tick(NOW_MS + counting.count);
        counting.collector.tend(NOW_MS + counting.count);
        if let Ok((successor, _)) = successor.accept() {
            hand_over(&successor, &counting.registry.hand_over().unwrap());
        }
    }
}

/// Checks once: all counts are there, and none is less than before.
fn look(counting: &mut ProcessMetrics, folder: &Path, numbers: std::ops::Range<u64>, last: &mut Option<Exposition>) {
    counting.count();
    let sum =
        |notes: fn((u64, u64)) -> u64| numbers.clone().map(|number| notes(Notes::read(folder, number))).sum::<u64>();
    let done = sum(|(_, done)| done) + counting.count;
    counting.collector.refresh(NOW_MS + counting.count).unwrap();
    let shown = Exposition::of(&mut counting.collector, Format::Text);
    let begun = sum(|(begun, _)| begun) + counting.count;
    let requests = shown.sum("requests_total") as u64;
    assert!((done..=begun).contains(&requests), "{requests} of {done} to {begun}");
    // A process in the middle of an observation holds its series back.
    assert!(shown.sum("sizes_count") as u64 <= begun);
    let before = last.iter().flat_map(|last| &last.samples);
    for ((name, labels), before) in before.filter(|((name, _), _)| name != "lives") {
        let now = shown.samples.get(&(name.clone(), labels.clone()));
        assert!(now.is_some_and(|now| now >= before), "{name} {labels:?} steps back from {before} to {now:?}");
    }
    *last = Some(shown);
}

#[test]
fn killed_at_any_moment_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = 0x9E37_79B9_7F4A_7C15u64 ^ u64::from(std::process::id());
    for round in 0..ROUNDS {
        let numbers = round * GENERATIONS..(round + 1) * GENERATIONS;
        let mut writers: Vec<StartedProcess> = numbers
            .clone()
            .map(|number| StartedProcess::new("succession::counting_process", folder.path(), number))
            .collect();
        let mut counting = ProcessMetrics::new(take_over(folder.path(), numbers.end - 1), numbers.end);
        let mut last = None;
        look(&mut counting, folder.path(), numbers.clone(), &mut last);
        assert_eq!(last.as_ref().unwrap().sum("lives"), (GENERATIONS + 1) as f64);
        let mut now_ms = NOW_MS;
        let mut folded = 0;
        while !writers.is_empty() {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let until = Instant::now() + Duration::from_micros(random % 50_000);
            while Instant::now() < until {
                look(&mut counting, folder.path(), numbers.clone(), &mut last);
            }
            // Kills any of them, the latest as well as the first.
            writers.swap_remove(random as usize % writers.len()).kill();
            look(&mut counting, folder.path(), numbers.clone(), &mut last);
            assert_eq!(last.as_ref().unwrap().sum("lives"), (writers.len() + 1) as f64);
            now_ms += 10_000;
            counting.collector.tend(now_ms);
            let events = counting.collector.events();
            assert!(matches!(&events[..], [CollectorEvent::Folded { segments, .. }] if *segments >= 2), "{events:?}");
            folded += events.len() as u64;
            look(&mut counting, folder.path(), numbers.clone(), &mut last);
        }
        assert_eq!(folded, GENERATIONS);
        // Its own two segments, and the totals of the others.
        assert_eq!(counting.registry.hand_over().unwrap().len(), 3);
        let sum = |name| last.as_ref().unwrap().sum(name) as u64;
        let (begun, done) = numbers
            .map(|number| Notes::read(folder.path(), number))
            .fold((counting.count, counting.count), |(begun, done), (more_begun, more_done)| {
                (begun + more_begun, done + more_done)
            });
        assert!((done..=begun).contains(&sum("sizes_count")) && (done..=begun).contains(&sum("requests_total")));
    }
}
