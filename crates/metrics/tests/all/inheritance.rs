//! Successive processes that carry on the metrics: whatever they do and whenever they end, the latest exposes all
//! counts, and accepts nothing that would harm it.
//!
//! The generations are registries of one process, each with the identity of an idle child process.

use crate::exposition;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use crate::exposition::Exposition;
use crate::started::{family, identity};
use expect_test::{Expect, expect};
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create, open};
use stillgate_metrics::encode::Format;
use stillgate_metrics::{
    Buckets, Collector, CollectorEvent, CollectorOptions, DeclaredFamily, Family, FamilyType, Merge, Registry,
    RegistryError, RegistryOptions, SegmentProcess, Writer,
};

const NOW_MS: u64 = 1_700_000_000_000;
/// Longer than an ended process waits to be folded.
const STEP_MS: u64 = 3_000;
/// Marks a process that another test has started for one test.
const ALONE: &str = "STILLGATE_TEST_ALONE";

/// A process whose identity a registry borrows. It ends with this process, however that ends, as its input does.
struct Life(Child);

impl Life {
    fn new() -> Life {
        Life(Command::new("cat").stdin(Stdio::piped()).spawn().unwrap())
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The state of one generation.
struct Generation {
    registry: Arc<Registry>,
    writer: Writer,
    collector: Collector,
    requests: Arc<DeclaredFamily>,
    sizes: Arc<DeclaredFamily>,
    level: Arc<DeclaredFamily>,
    grown: Arc<DeclaredFamily>,
    latest: Arc<DeclaredFamily>,
    /// Dropped last.
    _life: Life,
}

impl Generation {
    fn new(inherited: Vec<OwnedFd>, now_ms: u64) -> Generation {
        let life = Life::new();
        let options =
            RegistryOptions { memory_bytes: 4 << 20, ..RegistryOptions::new(identity(life.0.id()), now_ms, 7) };
        let registry = Arc::new(Registry::start(options).unwrap());
        let refused = registry.inherit(inherited);
        assert!(refused.is_empty(), "{refused:?}");
        let buckets = Buckets { classic: vec![1.0], native: None };
        let declare = |name, kind| registry.declare(family(name, kind)).unwrap();
        Generation {
            writer: registry.writer().unwrap(),
            collector: Collector::of_registry(registry.clone(), CollectorOptions::default()).unwrap(),
            requests: declare("requests_total", FamilyType::Counter),
            sizes: declare("sizes", FamilyType::Histogram(buckets)),
            level: declare("level", FamilyType::Gauge(Merge::Sum)),
            grown: declare("grown", FamilyType::Gauge(Merge::Total)),
            latest: declare("latest", FamilyType::Gauge(Merge::Last)),
            registry,
            _life: life,
        }
    }

    fn count(&mut self, route: u8, amount: u64) {
        let route = format!("r{route}");
        let handle = self.writer.series(&self.requests, &[route.as_bytes()]);
        assert!(self.writer.add(handle, amount));
        let handle = self.writer.series(&self.sizes, &[route.as_bytes()]);
        assert!(self.writer.observe(handle, 0.5));
    }

    fn set(&mut self, which: impl Fn(&Generation) -> &Arc<DeclaredFamily>, value: f64) {
        let family = which(self).clone();
        let handle = self.writer.series(&family, &[b"all"]);
        assert!(self.writer.set(handle, value));
    }

    fn shown(&mut self, now_ms: u64) -> Exposition {
        self.collector.refresh(now_ms).unwrap();
        Exposition::of(&mut self.collector, Format::Text)
    }

    fn tend(&mut self, now_ms: u64) {
        self.writer.tick(now_ms);
        while self.collector.tend(now_ms) {
            self.writer.tick(now_ms);
        }
        let events = self.collector.events();
        assert!(events.iter().all(|event| matches!(event, CollectorEvent::Folded { .. })), "{events:?}");
    }
}

#[derive(Debug, Clone)]
enum Step {
    Count {
        who: prop::sample::Index,
        route: u8,
        amount: u64,
    },
    Level {
        who: prop::sample::Index,
        value: u8,
    },
    Tend {
        who: prop::sample::Index,
    },
    /// A process succeeds the latest.
    Succeed,
    /// A successor fails to start.
    Fail,
    /// Any process but the latest ends.
    End {
        who: prop::sample::Index,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let who = any::<prop::sample::Index>;
    prop_oneof![
        6 => (who(), 0..9u8, 1..1000u64).prop_map(|(who, route, amount)| Step::Count { who, route, amount }),
        2 => (who(), any::<u8>()).prop_map(|(who, value)| Step::Level { who, value }),
        3 => who().prop_map(|who| Step::Tend { who }),
        2 => Just(Step::Succeed),
        1 => Just(Step::Fail),
        2 => who().prop_map(|who| Step::End { who }),
    ]
}

/// The expected exposition.
#[derive(Default)]
struct Model {
    counts: [u64; 9],
    observations: u64,
    grown: f64,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn the_latest_shows_what_all_have_counted(steps in prop::collection::vec(step(), 1..40)) {
        let mut now_ms = NOW_MS;
        let mut model = Model::default();
        // With the level and the total that each has set.
        let mut living = vec![(Generation::new(Vec::new(), now_ms), 0.0, 0.0)];
        for step in steps {
            now_ms += STEP_MS;
            match step {
                Step::Count { who, route, amount } => {
                    let at = who.index(living.len());
                    let (generation, _, grown) = living.get_mut(at).unwrap();
                    generation.count(route, amount);
                    *grown += 1.0;
                    generation.set(|families| &families.grown, *grown);
                    model.counts[route as usize] += amount;
                    model.observations += 1;
                    model.grown += 1.0;
                }
                Step::Level { who, value } => {
                    let at = who.index(living.len());
                    let (generation, level, _) = living.get_mut(at).unwrap();
                    *level = f64::from(value);
                    generation.set(|families| &families.level, *level);
                }
                Step::Tend { who } => {
                    let at = who.index(living.len());
                    living[at].0.tend(now_ms);
                }
                Step::Succeed => {
                    let files = living.last().unwrap().0.registry.hand_over().unwrap();
                    living.push((Generation::new(files, now_ms), 0.0, 0.0));
                }
                Step::Fail => {
                    let registry = &living.last().unwrap().0.registry;
                    drop(registry.hand_over().unwrap());
                    registry.keep();
                }
                Step::End { who } if living.len() > 1 => drop(living.remove(who.index(living.len() - 1))),
                Step::End { .. } => {}
            }
            let levels: f64 = living.iter().map(|(_, level, _)| level).sum();
            let shown = living.last_mut().unwrap().0.shown(now_ms);
            for (route, count) in model.counts.iter().enumerate() {
                let is_it = |labels: &exposition::Labels| exposition::label(labels, "route") == format!("r{route}");
                prop_assert_eq!(shown.sum_where("requests_total", is_it), *count as f64);
            }
            prop_assert_eq!(shown.sum("sizes_count"), model.observations as f64);
            prop_assert_eq!(shown.sum("sizes_sum"), model.observations as f64 * 0.5);
            prop_assert_eq!(shown.sum("grown"), model.grown);
            prop_assert_eq!(shown.sum("level"), levels);
        }
        // The only process has its own two segments, and one with the totals of all before.
        let (mut last, _, _) = living.pop().unwrap();
        drop(living);
        last.tend(now_ms + STEP_MS);
        last.shown(now_ms + STEP_MS);
        prop_assert!(last.registry.hand_over().unwrap().len() <= 3);
    }
}

#[test]
fn three_generations_that_overlap() {
    let mut first = Generation::new(Vec::new(), NOW_MS);
    first.count(1, 100);
    first.set(|families| &families.level, 4.0);
    first.set(|families| &families.latest, 1.0);
    let mut second = Generation::new(first.registry.hand_over().unwrap(), NOW_MS + 1);
    second.set(|families| &families.latest, 2.0);
    first.set(|families| &families.latest, 1.5);
    first.count(1, 10);
    first.count(7, 5);
    second.count(1, 1);
    let mut third = Generation::new(second.registry.hand_over().unwrap(), NOW_MS + 2);
    third.set(|families| &families.latest, 3.0);
    third.count(2, 1000);
    second.count(2, 1);
    second.set(|families| &families.level, 3.0);
    let total = |shown: &Exposition| shown.sum("requests_total");
    let shown = third.shown(NOW_MS + 3);
    assert_eq!((total(&shown), shown.sum("level"), shown.sum("latest")), (1117.0, 7.0, 3.0));
    // The first process ends; its counts do not, nor does what it still exposes until then.
    first.count(1, 1);
    drop(first);
    let shown = third.shown(NOW_MS + 4);
    assert_eq!((total(&shown), shown.sum("level"), shown.sum("latest")), (1118.0, 3.0, 3.0));
    let before = third.registry.hand_over().unwrap().len();
    third.registry.keep();
    third.tend(NOW_MS + STEP_MS);
    assert_eq!(third.registry.hand_over().unwrap().len(), before - 1, "two segments have become one");
    third.registry.keep();
    let shown = third.shown(NOW_MS + STEP_MS);
    assert_eq!((total(&shown), shown.sum("level"), shown.sum("sizes_count")), (1118.0, 3.0, 7.0));
    second.count(2, 1);
    drop(second);
    third.tend(NOW_MS + 2 * STEP_MS);
    let shown = third.shown(NOW_MS + 2 * STEP_MS);
    assert_eq!((total(&shown), shown.sum("level"), shown.sum("latest")), (1119.0, 0.0, 3.0));
}

#[test]
fn memory_of_the_ended_is_given_back() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["inheritance::in_a_process_of_its_own", "--exact", "--nocapture"]).env(ALONE, "1");
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

/// Runs in a process in which other tests do not open memory files.
#[test]
fn in_a_process_of_its_own() {
    if std::env::var_os(ALONE).is_none() {
        return;
    }
    let is_ours = |text: &str| text.contains("memfd:stillgate-metrics");
    let open = || {
        let files = std::fs::read_dir("/proc/self/fd").unwrap();
        let targets = files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
        targets.filter(|target| is_ours(&target.to_string_lossy())).count()
    };
    // A file may be mapped in several parts; the fifth field is its inode.
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let files =
            maps.lines().filter(|line| is_ours(line)).map(|line| line.split_whitespace().nth(4).map(str::to_owned));
        files.collect::<BTreeSet<_>>().len()
    };
    let mut latest = Generation::new(Vec::new(), NOW_MS);
    for round in 1..=20u64 {
        let now_ms = NOW_MS + round * STEP_MS;
        latest.count(1, 1);
        let next = Generation::new(latest.registry.hand_over().unwrap(), now_ms);
        drop(std::mem::replace(&mut latest, next));
        latest.tend(now_ms);
        assert_eq!(latest.shown(now_ms).sum("requests_total"), round as f64);
        // Its own two, and the totals of all before.
        assert_eq!((open(), mapped()), (3, 3), "{round}");
    }
}

#[test]
fn the_next_release_may_say_what_a_family_is_in_other_words() {
    let mut first = Generation::new(Vec::new(), NOW_MS);
    first.count(1, 10);
    let mut second = Generation::new(first.registry.hand_over().unwrap(), NOW_MS + 1);
    let reworded = Family { help: "Better said.".to_owned(), ..family("requests_total", FamilyType::Counter) };
    second.requests = second.registry.declare(reworded).unwrap();
    assert_eq!(second.shown(NOW_MS + 1).sum("requests_total"), 10.0);
    second.count(1, 1);
    second.count(2, 100);
    let shown = second.shown(NOW_MS + 2);
    assert_eq!(shown.sum("requests_total"), 111.0);
    let text = exposition::read(&mut second.collector, Format::Text, false);
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("# HELP requests_total Better said.\n"), "{text}");
    assert_eq!(second.collector.events(), []);
}

#[test]
fn who_has_handed_over_makes_nothing_that_nobody_reads() {
    let mut first = Generation::new(Vec::new(), NOW_MS);
    let files = first.registry.hand_over().unwrap();
    assert!(matches!(first.registry.writer(), Err(RegistryError::HandedOver)));
    first.registry.keep();
    assert!(first.registry.writer().is_ok());
    assert_eq!(first.registry.hand_over().unwrap().len(), files.len() + 1, "and what came since is handed over too");
    first.tend(NOW_MS);
}

#[test]
fn series_of_a_process_that_lives_do_not_end_elsewhere() {
    let mut first = Generation::new(Vec::new(), NOW_MS);
    first.count(1, 1);
    let mut second = Generation::new(first.registry.hand_over().unwrap(), NOW_MS);
    let options = CollectorOptions { expire_ms: Some(10_000), ..CollectorOptions::default() };
    second.collector = Collector::of_registry(second.registry.clone(), options).unwrap();
    for second_number in 1..60 {
        second.tend(NOW_MS + second_number * 1_000);
        assert_eq!(second.shown(NOW_MS + second_number * 1_000).sum("requests_total"), 1.0, "{second_number}");
    }
    drop(first);
    for second_number in 60..120 {
        second.tend(NOW_MS + second_number * 1_000);
        second.shown(NOW_MS + second_number * 1_000);
    }
    assert_eq!(second.shown(NOW_MS + 120_000).sum("requests_total"), 0.0);
}

/// A segment of a process that has ended, with one count.
fn a_segment() -> (Registry, Writer, OwnedFd) {
    let ended = SegmentProcess { pid: u32::MAX, start: 1 };
    let registry =
        Registry::start(RegistryOptions { memory_bytes: 1 << 20, ..RegistryOptions::new(ended, NOW_MS, 7) }).unwrap();
    let requests = registry.declare(family("requests_total", FamilyType::Counter)).unwrap();
    let mut writer = registry.writer().unwrap();
    let handle = writer.series(&requests, &[b"theirs"]);
    assert!(writer.add(handle, 1));
    let file = registry.hand_over().unwrap().remove(0);
    (registry, writer, file)
}

/// Hands a file over and checks the outcome.
#[track_caller]
fn check(file: impl Into<OwnedFd>, expected: &Expect) {
    let mut own = Generation::new(Vec::new(), NOW_MS);
    own.count(1, 10);
    let refused = own.registry.inherit(vec![file.into()]);
    let said: Vec<String> = refused.iter().map(ToString::to_string).collect();
    let shown = own.shown(NOW_MS + 1);
    let events: Vec<String> = own.collector.events().iter().map(ToString::to_string).collect();
    expected.assert_eq(&format!("{}; {}", shown.sum("requests_total"), [said, events].concat().join("; ")));
    own.tend(NOW_MS + STEP_MS);
    assert_eq!(own.shown(NOW_MS + STEP_MS).sum("requests_total"), shown.sum("requests_total"));
}

/// The segment, copied into another memory file and changed there.
fn forged(bytes: Option<u64>, at: u64, change: &[u8], seals: SealFlags) -> OwnedFd {
    let (_registry, _writer, file) = a_segment();
    let file = File::from(file);
    let mut content = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut content, 0).unwrap();
    let forged = memfd_create("forged", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&forged, bytes.unwrap_or(content.len() as u64)).unwrap();
    let forged = File::from(forged);
    content.truncate(bytes.unwrap_or(u64::MAX).min(content.len() as u64) as usize);
    forged.write_all_at(&content, 0).unwrap();
    forged.write_all_at(change, at).unwrap();
    fcntl_add_seals(&forged, seals).unwrap();
    forged.into()
}

#[test]
fn what_is_not_a_segment_is_refused() {
    let not_ours = expect!["10; inherited segment 0: not a memory file that is sealed against shrinking"];
    check(io::pipe().unwrap().0, &not_ours);
    check(File::open("/dev/null").unwrap(), &not_ours);
    check(File::open("/").unwrap(), &not_ours);
    check(std::os::unix::net::UnixStream::pair().unwrap().0, &not_ours);
    let folder = tempfile::tempdir().unwrap();
    let on_disk = folder.path().join("segment");
    let mut content = vec![0; 1 << 16];
    content[..8].copy_from_slice(b"stillgat");
    std::fs::write(&on_disk, content).unwrap();
    check(File::open(&on_disk).unwrap(), &not_ours);
    check(forged(None, 0, b"", SealFlags::GROW), &not_ours);
    let (_registry, _writer, file) = a_segment();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file.as_fd()));
    check(
        open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).unwrap(),
        &expect!["10; inherited segment 0: Permission denied (os error 13)"],
    );
}

#[test]
fn a_forged_segment_is_reported_and_harmless() {
    let shrink = SealFlags::SHRINK;
    check(forged(None, 0, b"", shrink), &expect!["11; "]);
    check(forged(None, 0, b"", shrink | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL), &expect!["11; "]);
    check(
        forged(Some(100), 0, b"", shrink),
        &expect!["10; inherited segment 0: 100 bytes are not the size of a segment"],
    );
    check(
        forged(Some(4096), 0, b"", shrink),
        &expect!["10; inherited segment 0: the header contradicts the file's size"],
    );
    check(
        forged(Some(1 << 61), 0, b"", shrink),
        &expect!["10; inherited segment 0: Cannot allocate memory (os error 12)"],
    );
    check(forged(None, 0, b"x", shrink), &expect!["10; inherited segment 0: not a metrics segment"]);
    check(
        forged(None, 8, &[9], shrink),
        &expect![
            "10; inherited segment 0: written in layout version 9, this program reads version 3; run exporter and gateway of the same release"
        ],
    );
    check(
        forged(None, 56, &[0xff; 8], shrink),
        &expect!["10; inherited segment 0: the header contradicts the file's size"],
    );
    check(
        forged(None, 64, &[0xff; 8], shrink),
        &expect![[r#"11; segment 0 of process 4294967295 holds no record at word 14; the rest of it is not exposed"#]],
    );
}

#[test]
fn nothing_is_counted_twice() {
    let mut own = Generation::new(Vec::new(), NOW_MS);
    own.count(1, 10);
    let (_registry, _writer, file) = a_segment();
    let again = file.try_clone().unwrap();
    let refused = own.registry.inherit(vec![file, again]);
    assert_eq!(refused.len(), 1, "{refused:?}");
    expect!["inherited segment 1: duplicate of a segment that is read already"].assert_eq(&refused[0].to_string());
    let mine = own.registry.hand_over().unwrap();
    own.registry.keep();
    assert_eq!(own.registry.inherit(mine).len(), 3, "its own, and the one it has inherited");
    assert_eq!(own.shown(NOW_MS + 1).sum("requests_total"), 11.0);
}
