//! Where programs are.

use std::path::{Path, PathBuf};

/// Debian's folder of daemons, which is not on every PATH.
const DAEMONS: &str = "/usr/sbin";

/// The file of a program, looked for as a shell does and among the daemons.
pub fn find(name: impl AsRef<Path>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from(DAEMONS)]);
    folders.map(|folder| folder.join(&name)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_by_its_name() {
        assert!(find("sh").unwrap().is_absolute());
        assert_eq!(find("no-such-program-anywhere"), None);
    }
}
