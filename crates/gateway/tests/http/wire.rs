//! Golden wire transcripts: the bytes that go upstream and that the client gets, rule by rule in `data/wire`, and plugin by plugin
//! in `data/wire/plugins`, where a file has the name of its plugin.

use std::path::Path;
use std::sync::Mutex;
use stillgate_testkit::Transcript;

/// Transcripts played at once; each waits for sockets most of its time.
const PLAYERS: usize = 4;

#[test]
fn transcripts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/wire");
    // One alone: WIRE=get cargo test -p stillgate-gateway --test http wire::
    let only = std::env::var("WIRE").ok();
    let mut files: Vec<_> = [folder.clone(), folder.join("plugins")]
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).expect("a folder of the repository"))
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.is_file())
        .filter(|path| only.as_deref().is_none_or(|name| path.file_stem().is_some_and(|stem| stem == name)))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no transcripts");
    let (todo, failures) = (Mutex::new(files), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..PLAYERS {
            scope.spawn(|| {
                loop {
                    let Some(path) = todo.lock().expect("no player panics").pop() else { return };
                    let name = path.file_stem().expect("a file name").to_string_lossy();
                    let text = std::fs::read_to_string(&path).expect("a readable transcript");
                    if let Err(why) = Transcript::parse(&name, &text).play(env!("CARGO_BIN_EXE_stillgate")) {
                        failures.lock().expect("no player panics").push(why);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no player panics");
    assert!(failures.is_empty(), "{} failed\n\n{}", failures.len(), failures.join("\n\n"));
}

/// Every plugin has a transcript of its name, and every transcript a plugin.
#[test]
fn every_plugin_has_a_transcript() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/wire/plugins");
    let files = std::fs::read_dir(folder).expect("a folder of the repository");
    let name = |path: std::path::PathBuf| path.file_stem().expect("a file name").to_string_lossy().into_owned();
    let mut named: Vec<String> = files.map(|entry| name(entry.expect("a readable folder").path())).collect();
    named.sort();
    let mut plugins: Vec<&str> = stillgate_plugins::TABLE.plugins.iter().map(|plugin| plugin.name).collect();
    plugins.sort_unstable();
    assert_eq!(named, plugins);
}
