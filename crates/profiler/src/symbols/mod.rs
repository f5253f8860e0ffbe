//! Converts addresses to functions: the files that code was loaded from, their unwind tables, their symbols and lines.

pub(crate) mod image;
pub(crate) mod resolve;

use image::{Image, Mapping};
use std::cell::OnceCell;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// The functions at addresses of this process, innermost ones as they are in the file; `None` if no file has code
/// there. Takes long.
pub fn names_of(addresses: &[u64]) -> io::Result<Vec<Option<String>>> {
    let modules = Modules::read()?;
    let resolved = resolve::resolve(&modules, addresses.to_vec());
    let name = |address: &u64| {
        // Memory without a file has a module, too: the machine code of a compiler at run time.
        modules.of(*address).filter(|module| !module.path.as_os_str().is_empty())?;
        // The file has a symbol for the outermost of the inlined functions.
        resolved.get(address)?.last().map(|frame| frame.function.clone())
    };
    Ok(addresses.iter().map(name).collect())
}

/// A file that code was loaded from.
#[derive(Debug)]
pub(crate) struct Module {
    /// The kernel's name of it.
    pub(crate) path: PathBuf,
    /// The ranges of its code, the lowest first.
    pub(crate) code: Vec<Mapping>,
    image: OnceCell<Option<Image>>,
}

impl Module {
    /// Its content; `None` if it cannot be read, or was replaced.
    pub(crate) fn image(&self) -> Option<&Image> {
        self.image.get_or_init(|| Image::open(self.code.first()?).ok()).as_ref()
    }

    /// The lowest and the highest address.
    pub(crate) fn range(&self) -> Range<u64> {
        let (first, last) = (self.code.first(), self.code.last());
        first.map_or(0, |mapping| mapping.range.start as u64)..last.map_or(0, |mapping| mapping.range.end as u64)
    }

    /// The name without folders.
    pub(crate) fn name(&self) -> String {
        self.path.file_name().map_or_else(|| "unknown".to_owned(), |name| name.to_string_lossy().into_owned())
    }
}

/// All files that code is currently loaded from.
#[derive(Debug)]
pub(crate) struct Modules(Vec<Module>);

impl Modules {
    pub(crate) fn read() -> io::Result<Modules> {
        let mut modules: Vec<Module> = Vec::new();
        for mapping in image::read_mappings()?.into_iter().filter(|mapping| mapping.is_code) {
            match modules.last_mut() {
                Some(last) if last.path == mapping.path && last.code[0].inode == mapping.inode => {
                    last.code.push(mapping)
                }
                _ => {
                    let path = mapping.path.clone();
                    modules.push(Module { path, code: vec![mapping], image: OnceCell::new() });
                }
            }
        }
        Ok(Modules(modules))
    }

    /// The module with this address.
    pub(crate) fn of(&self, address: u64) -> Option<&Module> {
        self.0.iter().find(|module| module.code.iter().any(|mapping| mapping.range.contains(&(address as usize))))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Module> {
        self.0.iter()
    }
}

#[cfg(test)]
#[expect(unsafe_code, reason = "only the kernel's own call maps memory that can be run")]
mod tests {
    use super::*;
    use std::ptr::null_mut;

    #[test]
    fn code_in_no_file_has_no_name() {
        const BYTES: usize = 4096;
        let (access, kind) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, which nothing runs or uses.
        let mapped = unsafe { libc::mmap(null_mut(), BYTES, access, kind, -1, 0) };
        assert_ne!(mapped, libc::MAP_FAILED);
        let here = code_in_no_file_has_no_name as fn() as usize as u64;
        let names = names_of(&[mapped.addr() as u64 + 16, here]);
        // SAFETY: the same mapping.
        unsafe { libc::munmap(mapped, BYTES) };
        let names = names.unwrap();
        assert_eq!(names[0], None);
        assert!(names[1].as_ref().is_some_and(|name| name.contains("code_in_no_file_has_no_name")), "{names:?}");
    }
}
