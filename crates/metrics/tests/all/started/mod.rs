//! Processes that a test starts of its own executable, and kills: their identities, and their notes of counts.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use stillgate_metrics::{Family, FamilyType, SegmentProcess};

/// The folder of a started process; without it, the test does nothing.
const FOLDER: &str = "STILLGATE_TEST_FOLDER";
/// The number of a started process.
const NUMBER: &str = "STILLGATE_TEST_NUMBER";

/// The folder and the number of this process, if a test has started it.
pub fn task() -> Option<(PathBuf, u64)> {
    let folder = std::env::var_os(FOLDER).map(PathBuf::from)?;
    Some((folder, std::env::var(NUMBER).unwrap().parse().unwrap()))
}

/// The identity of the process with this pid.
pub fn identity(pid: u32) -> SegmentProcess {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let start = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
    SegmentProcess { pid, start }
}

/// A process that is killed when this value is dropped.
pub struct StartedProcess(Child);

impl StartedProcess {
    /// Runs the test with this full name, and nothing else.
    pub fn new(test: &str, folder: &Path, number: u64) -> StartedProcess {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture"]).env(FOLDER, folder).env(NUMBER, number.to_string());
        StartedProcess(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    }

    #[track_caller]
    pub fn kill(mut self) {
        assert_eq!(self.0.try_wait().unwrap(), None, "it ends by being killed only");
    }
}

impl Drop for StartedProcess {
    fn drop(&mut self) {
        // It has ended already if a test has failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether the test that started this process is still running.
pub fn is_wanted(parent: u32) -> bool {
    std::os::unix::process::parent_id() == parent
}

/// The number of counts that a writer has begun, and the number that it has certainly finished.
pub struct Notes(File);

impl Notes {
    /// Creates empty notes.
    pub fn create(folder: &Path, number: u64) -> Notes {
        Notes(File::options().create(true).write(true).truncate(true).open(Notes::path(folder, number)).unwrap())
    }

    fn path(folder: &Path, number: u64) -> PathBuf {
        folder.join(format!("notes-{number}"))
    }

    pub fn read(folder: &Path, number: u64) -> (u64, u64) {
        let mut bytes = [0; 16];
        // The file does not exist yet: nothing has been counted.
        let Ok(file) = File::open(Notes::path(folder, number)) else { return (0, 0) };
        let read = file.read_at(&mut bytes, 0).unwrap();
        let number =
            |at: usize| if at + 8 > read { 0 } else { u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) };
        (number(0), number(8))
    }

    pub fn begun(&self, count: u64) {
        self.0.write_all_at(&count.to_le_bytes(), 0).unwrap();
    }

    pub fn done(&self, count: u64) {
        self.0.write_all_at(&count.to_le_bytes(), 8).unwrap();
    }
}

/// A family with one label.
pub fn family(name: &str, kind: FamilyType) -> Family {
    let labels = vec!["route".to_owned()];
    Family { name: name.to_owned(), help: "Help.".to_owned(), unit: String::new(), kind, labels, exemplars: false }
}
