//! The files that code was loaded from: where they are mapped (`/proc/self/maps`), their contents, and the files that
//! hold their line tables.
//!
//! A file is mapped, not read: only pages that are used take memory, and the kernel may drop them again. A file that
//! was replaced since it was loaded is not used, since its symbols would belong to other code. The running binary
//! itself is found even then, by `/proc/self/exe`.
//!
//! The line tables of a program which was stripped of them (`objcopy --only-keep-debug`) are in another file. It is
//! searched for where debuggers do (GDB manual, "Debugging Information in Separate Files"): by build id below
//! `/usr/lib/debug/.build-id`, then by the name in `.gnu_debuglink` next to the program, in `.debug` there, and below
//! `/usr/lib/debug`. A file of another build is not used.
//!
//! Some functions, such as `memcpy`, a library chooses at its start by the processor. The chosen variant
//! (`__memmove_avx_unaligned_erms`) is a local symbol, which distributions strip. But the dynamic linker knows which
//! variant was chosen for a name.

#![expect(unsafe_code, reason = "the dynamic linker has no safe interface")]

use object::elf::PF_X;
use object::{Object, ObjectSection, ObjectSegment, SegmentFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::CString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::ops::{Deref, Range};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

/// Most bytes of a file that is used.
const FILE_BYTES_MAX: u64 = 2 << 30;

/// The alignment of mappings of files on x86-64.
const PAGE_BYTES: u64 = 4096;

/// Most bytes of the kernel's own code (vDSO).
const VDSO_BYTES_MAX: usize = 1 << 20;

/// The contents, and their addresses in memory.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) bytes: Bytes,
    /// The line tables, if they are in a file of their own.
    pub(crate) lines: Option<FileMapping>,
    /// The difference between an address in memory and in the file.
    pub(crate) bias: u64,
    pub(crate) eh_frame: Option<Section>,
    pub(crate) eh_frame_hdr: Option<Section>,
}

/// Part of the contents.
#[derive(Debug)]
pub(crate) struct Section {
    /// The address, as in the file.
    pub(crate) address: u64,
    pub(crate) bytes: Range<usize>,
}

impl Image {
    /// Opens the file of `mapping`, a piece of code.
    pub(crate) fn open(mapping: &Mapping) -> io::Result<Image> {
        let bytes = match mapping.path.to_str() {
            Some("[vdso]") => Bytes::Read(vdso(mapping)?),
            _ => Bytes::Mapped(FileMapping::new(&file(mapping)?)?),
        };
        let unusable = |_| io::Error::other("not an ELF file");
        let object = object::File::parse(&*bytes).map_err(unusable)?;
        // A mapping begins at a page, a segment anywhere in it; the previous segment may end in that page.
        let segment = object.segments().find(|segment| {
            let (offset, length) = segment.file_range();
            let is_code = matches!(segment.flags(), SegmentFlags::Elf { p_flags, .. } if p_flags.contains(PF_X));
            is_code && (offset & !(PAGE_BYTES - 1)..offset + length).contains(&mapping.offset)
        });
        let segment = segment.ok_or_else(|| io::Error::other("no segment of the file is mapped there"))?;
        let loaded = segment.address().wrapping_sub(segment.file_range().0).wrapping_add(mapping.offset);
        let bias = (mapping.range.start as u64).wrapping_sub(loaded);
        let section = |name| {
            let section = object.section_by_name(name)?;
            let (offset, length) = section.file_range()?;
            Some(Section { address: section.address(), bytes: offset as usize..(offset + length) as usize })
        };
        let (eh_frame, eh_frame_hdr) = (section(".eh_frame"), section(".eh_frame_hdr"));
        let lines = open_debug_file(&object, &mapping.path);
        drop(object);
        Ok(Image { bytes, lines, bias, eh_frame, eh_frame_hdr })
    }

    /// The bytes of a part.
    pub(crate) fn bytes_of(&self, section: &Section) -> &[u8] {
        self.bytes.get(section.bytes.clone()).unwrap_or_default()
    }
}

/// Opens the file, if it is unchanged.
fn file(mapping: &Mapping) -> io::Result<File> {
    let places = [Path::new("/proc/self/exe"), &mapping.path];
    places
        .iter()
        .find_map(|place| {
            let file = File::open(place).ok()?;
            (file.metadata().ok()?.ino() == mapping.inode && mapping.inode != 0).then_some(file)
        })
        .ok_or_else(|| io::Error::other("the file is not the one that was loaded"))
}

fn vdso(mapping: &Mapping) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; mapping.range.len().min(VDSO_BYTES_MAX)];
    File::open("/proc/self/mem")?.read_exact_at(&mut bytes, mapping.range.start as u64)?;
    Ok(bytes)
}

/// Contents that are mapped from a file, or copied.
#[derive(Debug)]
pub(crate) enum Bytes {
    Mapped(FileMapping),
    Read(Vec<u8>),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(mapping) => mapping.bytes(),
            Bytes::Read(bytes) => bytes,
        }
    }
}

/// A file in memory, to be read only.
#[derive(Debug)]
pub(crate) struct FileMapping {
    start: *mut std::ffi::c_void,
    length: usize,
}

impl FileMapping {
    #[expect(unsafe_code, reason = "mapping a file")]
    pub(crate) fn new(file: &File) -> io::Result<FileMapping> {
        let length = file.metadata()?.len();
        if length == 0 || length > FILE_BYTES_MAX {
            return Err(io::Error::other("the file is empty or larger than 2 GiB"));
        }
        let length = length as usize;
        // SAFETY: a new mapping at a place that the kernel chooses. The file is mapped as code already: it cannot be
        // written while it runs, and libraries are replaced by renaming.
        let start = unsafe { mmap(null_mut(), length, ProtFlags::READ, MapFlags::PRIVATE, file, 0)? };
        Ok(FileMapping { start, length })
    }

    #[expect(unsafe_code, reason = "a view of mapped memory")]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped until it is dropped, and never written through this mapping.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.length) }
    }
}

impl Drop for FileMapping {
    #[expect(unsafe_code, reason = "unmapping memory")]
    fn drop(&mut self) {
        // SAFETY: this mapping, and no view of it outlives it. Unmapping it does not fail.
        let _ = unsafe { munmap(self.start, self.length) };
    }
}

/// The folder of these files in packages of distributions.
const DEBUG_ROOT: &str = "/usr/lib/debug";

/// Sections of line tables.
const LINES: &str = ".debug_line";

/// Opens the file for a program at `path`; `None` if the program has line tables itself, or there is no file of this
/// build.
fn open_debug_file(program: &object::File<'_>, path: &Path) -> Option<FileMapping> {
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

/// The address of the function of this name, according to the dynamic linker.
pub(crate) fn chosen_address(name: &str) -> Option<u64> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name ends with zero; nothing is called.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address as u64)
}

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
pub(crate) fn read_mappings() -> io::Result<Vec<Mapping>> {
    Ok(fs::read_to_string("/proc/self/maps")?.lines().filter_map(parse_mapping).collect())
}

fn parse_mapping(line: &str) -> Option<Mapping> {
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
        assert!(open_debug_file(&program, &at("a")).is_some());
        // A program with its own lines needs no file.
        let whole = std::fs::read(&own).unwrap();
        assert!(open_debug_file(&object::File::parse(&*whole).unwrap(), &own).is_none());
        // Another build, and no file at all.
        std::fs::copy("/bin/true", at("a.debug")).unwrap();
        assert!(open_debug_file(&program, &at("a")).is_none());
        std::fs::remove_file(at("a.debug")).unwrap();
        assert!(open_debug_file(&program, &at("a")).is_none());
        std::fs::create_dir(at(".debug")).unwrap();
        objcopy(&["--only-keep-debug", own.to_str().unwrap(), &text(".debug/a.debug")]);
        assert!(open_debug_file(&program, &at("a")).is_some());
    }

    #[test]
    fn lines_are_read() {
        let line = "7f00-7f80 r-xp 00026000 fe:01 1835 /usr/lib/a file (deleted)";
        let path = "/usr/lib/a file (deleted)".into();
        assert_eq!(
            parse_mapping(line),
            Some(Mapping { range: 0x7f00..0x7f80, is_code: true, offset: 0x26000, inode: 1835, path })
        );
        assert_eq!(parse_mapping("1-2 rw-p 00000000 00:00 0 ").unwrap().path, PathBuf::new());
        assert_eq!(parse_mapping("1-2 rw-p"), None);
    }

    #[test]
    fn this_process_has_code_where_its_functions_are() {
        let here = lines_are_read as fn() as usize;
        assert!(read_mappings().unwrap().iter().any(|mapping| mapping.is_code && mapping.range.contains(&here)));
    }
}
