//! Running the commands in a folder of files, and what they print.

#![allow(dead_code, reason = "not every test target uses all of it")]

use expect_test::Expect;
use std::path::Path;
use std::process::{Command, Output};

const STILLGATE: &str = env!("CARGO_BIN_EXE_stillgate");

/// A folder with these files, and the commands run in it, so that names are short and the same everywhere.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn with<T: AsRef<[u8]>>(files: &[(&str, T)]) -> Folder {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).expect("write a file");
        }
        Folder(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        Command::new(STILLGATE).current_dir(self.path()).args(arguments).output().expect("run stillgate")
    }

    /// Exit code and both outputs.
    #[track_caller]
    pub(crate) fn check(&self, arguments: &[&str], expected: Expect) {
        let output = self.run(arguments);
        let shown = format!(
            "exit {}\n{}{}",
            output.status.code().expect("an exit code"),
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        expected.assert_eq(&shown);
    }
}
