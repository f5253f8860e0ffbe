//! The mappings of this process: `/proc/self/maps`.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// One line of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) range: Range<usize>,
    pub(crate) is_code: bool,
    /// Offset in the file.
    pub(crate) offset: u64,
    pub(crate) inode: u64,
    /// Empty if there is no file; in brackets if it is the kernel's.
    pub(crate) path: PathBuf,
}

/// All mappings of this process.
pub(crate) fn read() -> io::Result<Vec<Mapping>> {
    Ok(fs::read_to_string("/proc/self/maps")?.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut word = || {
        let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = after.trim_start();
        word
    };
    let (start, end) = word().split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let range = address(start)?..address(end)?;
    let is_code = word().as_bytes().get(2) == Some(&b'x');
    let offset = u64::from_str_radix(word(), 16).ok()?;
    word();
    let inode = word().parse().ok()?;
    Some(Mapping { range, is_code, offset, inode, path: PathBuf::from(rest) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let line = "7f00-7f80 r-xp 00026000 fe:01 1835 /usr/lib/a file (deleted)";
        let path = "/usr/lib/a file (deleted)".into();
        assert_eq!(
            parse(line),
            Some(Mapping { range: 0x7f00..0x7f80, is_code: true, offset: 0x26000, inode: 1835, path })
        );
        assert_eq!(parse("1-2 rw-p 00000000 00:00 0 ").unwrap().path, PathBuf::new());
        assert_eq!(parse("1-2 rw-p"), None);
    }

    #[test]
    fn this_process_has_code_where_its_functions_are() {
        let here = lines_are_read as fn() as usize;
        assert!(read().unwrap().iter().any(|mapping| mapping.is_code && mapping.range.contains(&here)));
    }
}
