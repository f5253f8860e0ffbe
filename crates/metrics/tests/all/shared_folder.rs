//! A shared folder that is too small, forbidden, damaged or foreign: no crash, exact sums, errors with a remedy.

use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::exposition::{Exposition, label};
use expect_test::{Expect, expect};
use stillgate_metrics::encode::Format;
use stillgate_metrics::{
    Collector, CollectorEvent, CollectorOptions, Family, FamilyType, Registry, RegistryError, RegistryOptions,
    SegmentProcess, Writer,
};

const NOW_MS: u64 = 1_700_000_000_000;
/// The folder of the test in the child process; without it, the test does nothing.
const FOLDER: &str = "STILLGATE_TEST_FULL";

fn family(name: &str) -> Family {
    let labels = vec!["route".to_owned(), "uri".to_owned()];
    Family {
        name: name.to_owned(),
        help: "Help.".to_owned(),
        unit: String::new(),
        kind: FamilyType::Counter,
        labels,
        exemplars: false,
    }
}

fn options(folder: &Path) -> RegistryOptions {
    let process = SegmentProcess { pid: std::process::id(), start: 1 };
    RegistryOptions {
        shared: Some(folder.to_owned()),
        memory_bytes: 64 << 20,
        ..RegistryOptions::new(process, NOW_MS, 7)
    }
}

fn start(folder: &Path) -> Result<(Arc<Registry>, Writer), RegistryError> {
    let registry = Arc::new(Registry::start(options(folder))?);
    let writer = registry.writer()?;
    Ok((registry, writer))
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

/// Runs one test, by its full name, in a mount namespace of its own, with a tmpfs of this size as its folder.
fn in_tmpfs(test: &str, size: &str) {
    if !is_root() {
        eprintln!("skipped: mounting a small tmpfs needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=\"$3\" none \"$2\" && exec \"$0\" \"$1\" --exact --nocapture";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(std::env::current_exe().unwrap()).arg(test).arg(folder.path());
    let output = command.arg(size).env(FOLDER, folder.path()).stdin(Stdio::null()).output().unwrap();
    let said = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{}: {said}", output.status);
}

#[test]
fn a_full_tmpfs_collapses_labels_and_loses_nothing() {
    in_tmpfs("shared_folder::on_a_full_tmpfs", "2m");
}

#[test]
fn a_tmpfs_too_small_to_start_is_an_error() {
    in_tmpfs("shared_folder::on_a_tiny_tmpfs", "64k");
    in_tmpfs("shared_folder::on_a_small_tmpfs", "116k");
}

/// Runs in a namespace of its own.
#[test]
fn on_a_full_tmpfs() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let (registry, mut one) = start(&folder).unwrap();
    let requests = registry.declare(family("requests_total")).unwrap();
    let mut two = registry.writer().unwrap();
    let mut collector = Collector::of_registry(registry.clone(), CollectorOptions::default()).unwrap();
    // Another program fills the rest of the folder meanwhile.
    let filler = folder.join("filler");
    const COUNTS: u64 = 60_000;
    for count in 0..COUNTS {
        let writer = if count % 2 == 0 { &mut one } else { &mut two };
        let (route, uri) = (format!("r{}", count % 3), format!("/uri/{count}"));
        let handle = writer.series(&requests, &[route.as_bytes(), uri.as_bytes()]);
        assert!(writer.add(handle, 1));
        if count == 2_000 {
            let full = fs::write(&filler, vec![1; 4 << 20]).unwrap_err();
            assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        }
    }
    one.tick(NOW_MS + 1);
    two.tick(NOW_MS + 1);
    collector.tend(NOW_MS + 1_000);
    collector.refresh(NOW_MS + 1_000).unwrap();
    let shown = Exposition::of(&mut collector, Format::Text);
    assert_eq!(shown.sum("requests_total"), COUNTS as f64);
    assert_eq!(registry.lost(), 0);
    for route in ["r0", "r1", "r2"] {
        let of_route = shown.sum_where("requests_total", |labels| label(labels, "route") == route);
        assert_eq!(of_route, COUNTS as f64 / 3.0, "{route} stays exact");
    }
    let events = collector.events();
    let is_named = events.iter().any(|event| matches!(event, CollectorEvent::StorageFull(_)));
    assert!(is_named, "the operator gets an event: {events:?}");
    let mut outside = Collector::open(&folder, CollectorOptions::default());
    outside.refresh(NOW_MS + 1_000).unwrap();
    assert_eq!(Exposition::of(&mut outside, Format::Text), shown, "others see the same");
}

/// Runs in a namespace of its own: there is no room for the list of segments.
#[test]
fn on_a_tiny_tmpfs() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    check(&folder, start(&folder), &expect!["cannot make DIR/directory: No space left on device (os error 28)"]);
}

/// Runs in a namespace of its own: there is no room for a writer.
#[test]
fn on_a_small_tmpfs() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    check(&folder, start(&folder), &expect!["cannot make a writer's memory: No space left on device (os error 28)"]);
    let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert!(!left.iter().any(|file| file.to_string_lossy().ends_with(".segment")), "{left:?}");
}

#[track_caller]
fn check<T>(folder: &Path, found: Result<T, RegistryError>, expected: &Expect) {
    let error = found.err().expect("an error").to_string();
    expected.assert_eq(&error.replace(&folder.display().to_string(), "DIR"));
}

#[test]
fn what_cannot_be_a_folder_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, b"something else").unwrap();
    check(folder.path(), start(&file), &expect!["cannot make the folder DIR/file: File exists (os error 17)"]);
    check(
        folder.path(),
        start(&file.join("in")),
        &expect!["cannot make the folder DIR/file/in: Not a directory (os error 20)"],
    );
    let taken = folder.path().join("taken");
    fs::create_dir_all(taken.join("directory")).unwrap();
    check(folder.path(), start(&taken), &expect!["cannot open DIR/taken/directory: Is a directory (os error 21)"]);
    if is_root() {
        eprintln!("skipped: nothing is forbidden to root");
        return;
    }
    let forbidden = folder.path().join("forbidden");
    fs::create_dir(&forbidden).unwrap();
    fs::set_permissions(&forbidden, fs::Permissions::from_mode(0o500)).unwrap();
    check(
        folder.path(),
        start(&forbidden),
        &expect!["cannot lock DIR/forbidden/lock: Permission denied (os error 13)"],
    );
}

#[test]
fn a_list_of_another_release_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    drop(start(folder.path()).unwrap());
    let list = fs::File::options().write(true).open(folder.path().join("directory")).unwrap();
    list.write_all_at(&99u32.to_le_bytes(), 8).unwrap();
    let refused = expect![
        "DIR/directory: written in layout version 99, this program uses version 3; stop the other release's processes and remove the folder, or give this one its own"
    ];
    check(folder.path(), start(folder.path()), &refused);
    let mut outside = Collector::open(folder.path(), CollectorOptions::default());
    let error = outside.refresh(NOW_MS).unwrap_err().to_string();
    refused.assert_eq(&error.replace(&folder.path().display().to_string(), "DIR"));
    list.write_all_at(b"notours!", 0).unwrap();
    check(
        folder.path(),
        start(folder.path()),
        &expect!["DIR/directory: not written by this program; choose an empty folder for the metrics"],
    );
    list.set_len(100).unwrap();
    check(
        folder.path(),
        start(folder.path()),
        &expect!["cannot open DIR/directory: 100 bytes are not the size of a segment"],
    );
}

/// Damages one place of a segment as another process sees it, and checks the reported event and the rest of the
/// exposition.
fn damaged(at: u64, bytes: &[u8], expected: &Expect) {
    let folder = tempfile::tempdir().unwrap();
    let (registry, mut writer) = start(folder.path()).unwrap();
    let requests = registry.declare(family("requests_total")).unwrap();
    for uri in 0..10u8 {
        let handle = writer.series(&requests, &[b"r", &[b'a' + uri]]);
        assert!(writer.add(handle, 1));
    }
    let segment = folder.path().join(format!("{}-1-0.segment", std::process::id()));
    fs::File::options().write(true).open(&segment).unwrap().write_all_at(bytes, at).unwrap();
    let mut outside = Collector::open(folder.path(), CollectorOptions::default());
    outside.refresh(NOW_MS).unwrap();
    let shown = Exposition::of(&mut outside, Format::Text).sum("requests_total");
    let events: Vec<String> = outside.events().iter().map(ToString::to_string).collect();
    let events = events.join("\n").replace(&folder.path().display().to_string(), "DIR");
    expected.assert_eq(&format!("{} of 10; {}", shown.abs(), events.replace(&std::process::id().to_string(), "PID")));
    outside.refresh(NOW_MS + 1).unwrap();
    assert_eq!(outside.events(), [], "it is reported once");
}

#[test]
fn a_damaged_segment_is_reported_and_harmless() {
    let segment = |log_words: u64| {
        let folder = tempfile::tempdir().unwrap();
        drop(start(folder.path()).unwrap());
        let bytes = fs::read(folder.path().join(format!("{}-1-0.segment", std::process::id()))).unwrap();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        word(48) + log_words * 8
    };
    damaged(0, b"x", &expect!["0 of 10; DIR/PID-1-0.segment: not a metrics segment; the rest of it is not exposed"]);
    damaged(
        8,
        &[9],
        &expect![
            "0 of 10; DIR/PID-1-0.segment: written in layout version 9, this program reads version 3; run exporter and gateway of the same release; the rest of it is not exposed"
        ],
    );
    damaged(
        56,
        &[0xff; 8],
        &expect!["0 of 10; DIR/PID-1-0.segment: the header contradicts the file's size; the rest of it is not exposed"],
    );
    damaged(
        64,
        &[0xff; 8],
        &expect!["10 of 10; segment 0 of process PID holds no record at word 78; the rest of it is not exposed"],
    );
    damaged(
        segment(0),
        &[0; 8],
        &expect!["0 of 10; segment 0 of process PID holds no record at word 0; the rest of it is not exposed"],
    );
    damaged(
        segment(40),
        &[0xff; 64],
        &expect!["4 of 10; segment 0 of process PID holds no record at word 36; the rest of it is not exposed"],
    );
}
