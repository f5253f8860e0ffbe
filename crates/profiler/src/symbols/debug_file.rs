//! The file that holds the line tables of a program which was stripped of them (`objcopy --only-keep-debug`).
//!
//! It is searched for where debuggers do (GDB manual, "Debugging Information in Separate Files"): by build id below
//! `/usr/lib/debug/.build-id`, then by the name in `.gnu_debuglink` next to the program, in `.debug` there, and below
//! `/usr/lib/debug`. A file of another build is not used.

use super::image::FileMapping;
use object::Object;
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The folder of these files in packages of distributions.
const DEBUG_ROOT: &str = "/usr/lib/debug";

/// Sections of line tables.
const LINES: &str = ".debug_line";

/// Opens the file for a program at `path`; `None` if the program has line tables itself, or there is no file of this
/// build.
pub(crate) fn open(program: &object::File<'_>, path: &Path) -> Option<FileMapping> {
    if program.section_by_name(LINES).is_some() {
        return None;
    }
    let id = program.build_id().ok().flatten()?;
    candidates(program, id, path).into_iter().find_map(|place| {
        let mapping = FileMapping::new(&File::open(place).ok()?).ok()?;
        let is_same = {
            let object = object::File::parse(mapping.bytes()).ok()?;
            object.build_id().ok().flatten() == Some(id) && object.section_by_name(LINES).is_some()
        };
        is_same.then_some(mapping)
    })
}

fn candidates(program: &object::File<'_>, id: &[u8], path: &Path) -> Vec<PathBuf> {
    let mut places = Vec::new();
    if let Some((first, rest)) = id.split_first() {
        let mut name = format!("{first:02x}/");
        for byte in rest {
            // Writing to a String cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
        places.push(Path::new(DEBUG_ROOT).join(".build-id").join(name + ".debug"));
    }
    let link = program.gnu_debuglink().ok().flatten().and_then(|(name, _)| std::str::from_utf8(name).ok());
    // A name with folders would lead elsewhere.
    let link = link.filter(|name| !name.is_empty() && !name.contains('/'));
    if let Some((name, folder)) = link.zip(path.parent()) {
        let below_root = folder.strip_prefix("/").unwrap_or(folder);
        places.push(folder.join(name));
        places.push(folder.join(".debug").join(name));
        places.push(Path::new(DEBUG_ROOT).join(below_root).join(name));
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn objcopy(arguments: &[&str]) {
        let output = Command::new("objcopy").args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn lines_are_found_beside_a_program_of_the_same_build_only() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let text = |name: &str| at(name).to_str().unwrap().to_owned();
        let own = std::env::current_exe().unwrap();
        objcopy(&["--only-keep-debug", own.to_str().unwrap(), &text("a.debug")]);
        let link = format!("--add-gnu-debuglink={}", text("a.debug"));
        objcopy(&["--strip-debug", &link, own.to_str().unwrap(), &text("a")]);
        let bytes = std::fs::read(at("a")).unwrap();
        let program = object::File::parse(&*bytes).unwrap();
        assert!(open(&program, &at("a")).is_some());
        // A program with its own lines needs no file.
        let whole = std::fs::read(&own).unwrap();
        assert!(open(&object::File::parse(&*whole).unwrap(), &own).is_none());
        // Another build, and no file at all.
        std::fs::copy("/bin/true", at("a.debug")).unwrap();
        assert!(open(&program, &at("a")).is_none());
        std::fs::remove_file(at("a.debug")).unwrap();
        assert!(open(&program, &at("a")).is_none());
        std::fs::create_dir(at(".debug")).unwrap();
        objcopy(&["--only-keep-debug", own.to_str().unwrap(), &text(".debug/a.debug")]);
        assert!(open(&program, &at("a")).is_some());
    }
}
