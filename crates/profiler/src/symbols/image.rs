//! The contents of a file that code was loaded from.
//!
//! A file is mapped, not read: only pages that are used take memory, and the kernel may drop them again. A file that
//! was replaced since it was loaded is not used, since its symbols would belong to other code. The running binary
//! itself is found even then, by `/proc/self/exe`.

use super::debug_file;
use super::maps::Mapping;
use object::elf::PF_X;
use object::{Object, ObjectSection, ObjectSegment, SegmentFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
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
        let lines = debug_file::open(&object, &mapping.path);
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
