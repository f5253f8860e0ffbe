//! Converts addresses to functions: the files that code was loaded from, their unwind tables, their symbols and lines; with
//! inlined functions and readable names.
//!
//! Finding the functions takes long and much memory, so it is done after the profile, on a thread of low priority, one file
//! after the other. Only requested addresses are kept.

pub(crate) mod image;

use addr2line::Context;
use addr2line::gimli::{BaseAddresses, Dwarf, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, UnwindSection};
use image::{Image, Mapping};
use object::elf::STT_GNU_IFUNC;
use object::{Object, ObjectSection, ObjectSymbol, SymbolFlags};
use rustc_demangle::demangle;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// The functions at addresses of this process, innermost ones as they are in the file; `None` if no file has code
/// there. Takes long.
pub fn names_of(addresses: &[u64]) -> io::Result<Vec<Option<String>>> {
    let modules = Modules::read()?;
    let resolved = resolve(&modules, addresses.to_vec());
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

/// Functions that were inlined into each other at one address.
const INLINED_MAX: usize = 64;

/// Most bytes of a chosen function that may only lead into another one.
const STUB_BYTES_MAX: u64 = 64;

/// How far after it the other one may begin.
const BODY_WITHIN_BYTES: u64 = 4096;

/// Most bytes of a name; generic functions can have very long ones.
const NAME_BYTES_MAX: usize = 400;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// A function at an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SymbolFrame {
    pub(crate) function: String,
    /// Empty if unknown.
    pub(crate) file: String,
    pub(crate) line: u32,
}

/// The frames at each address, the innermost first; never empty.
pub(crate) fn resolve(modules: &Modules, mut addresses: Vec<u64>) -> HashMap<u64, Vec<SymbolFrame>> {
    addresses.sort_unstable();
    addresses.dedup();
    let mut resolved = HashMap::with_capacity(addresses.len());
    for module in modules.iter() {
        let range = module.range();
        let mut own = addresses.iter().copied().filter(|address| range.contains(address)).peekable();
        if own.peek().is_none() {
            continue;
        }
        let known = module.image().map(|image| FileSymbols::of(module, image));
        for address in own {
            let frames = match &known {
                Some(known) => known.frames(address),
                None if module.path.as_os_str().is_empty() => vec![unknown()],
                None => vec![unnamed(&module.name(), address - range.start)],
            };
            resolved.insert(address, frames);
        }
    }
    for address in addresses {
        resolved.entry(address).or_insert_with(|| vec![unknown()]);
    }
    resolved
}

/// One function for all machine code of a JIT, whose addresses say nothing.
fn unknown() -> SymbolFrame {
    SymbolFrame { function: "unknown".to_owned(), file: String::new(), line: 0 }
}

fn unnamed(module: &str, offset: u64) -> SymbolFrame {
    SymbolFrame { function: format!("{module}+{offset:#x}"), file: String::new(), line: 0 }
}

/// The known facts of one file.
struct FileSymbols<'a> {
    name: String,
    image: &'a Image,
    lines: Option<Context<Slice<'a>>>,
    /// Sorted by where they begin; one for each address.
    symbols: Vec<Symbol<'a>>,
}

/// A named function of a file, in the file's own addresses.
#[derive(Debug, Clone, Copy)]
struct Symbol<'a> {
    begin: u64,
    end: u64,
    /// The mangled name. A file has hundreds of thousands, so a name is demangled only when needed.
    name: &'a str,
}

impl<'a> FileSymbols<'a> {
    fn of(module: &Module, image: &'a Image) -> FileSymbols<'a> {
        let object = object::File::parse(&*image.bytes).ok();
        let debug_file = image.lines.as_ref().and_then(|file| object::File::parse(file.bytes()).ok());
        let lines = debug_file.as_ref().or(object.as_ref()).and_then(|object| {
            let section = |name: &str| {
                let section = object.section_by_name(name)?;
                let range = section.compressed_file_range().ok()?;
                let is_plain = range.format == object::CompressionFormat::None;
                is_plain.then(|| section.data().ok()).flatten()
            };
            let load = |id: addr2line::gimli::SectionId| {
                Ok::<_, addr2line::gimli::Error>(EndianSlice::new(section(id.name()).unwrap_or_default(), LittleEndian))
            };
            Context::from_dwarf(Dwarf::load(load).ok()?).ok()
        });
        let symbols = object.as_ref().map(|object| symbols(object, image.bias)).unwrap_or_default();
        let mut known = FileSymbols { name: module.name(), image, lines, symbols };
        if let Some(object) = &object {
            known.name_bodies(object);
        }
        known
    }

    /// Variants of a function among which a library chooses share a body: on processors without fast string
    /// instructions, `memcpy` is a few instructions that jump into another variant, which has no name.
    fn name_bodies(&mut self, object: &object::File<'_>) {
        let mut bodies = Vec::new();
        for Symbol { begin, name, .. } in self.symbols.iter().filter(|symbol| symbol.begin == symbol.end) {
            let Some(own) = self.function(*begin).filter(|own| own.end - own.start <= STUB_BYTES_MAX) else { continue };
            let code =
                object.sections().find_map(|section| section.data_range(own.start, own.end - own.start).ok().flatten());
            for target in jumps(code.unwrap_or_default(), own.start) {
                let body =
                    self.function(target).filter(|body| body.start > *begin && body.start - begin < BODY_WITHIN_BYTES);
                bodies.extend(body.map(|body| Symbol { begin: body.start, end: body.start, name }));
            }
        }
        self.symbols.extend(bodies);
        sort(&mut self.symbols);
    }

    fn frames(&self, address: u64) -> Vec<SymbolFrame> {
        let own = address.wrapping_sub(self.image.bias);
        let mut frames = self.frames_with_lines(own);
        // A symbol has the function's whole path, its debugging information perhaps only the last part.
        match (frames.last_mut(), self.symbol(own)) {
            (Some(last), Some(symbol)) => last.function = symbol,
            (Some(_), None) => {}
            (None, symbol) => {
                let function = symbol.unwrap_or_else(|| self.without_name(own));
                frames.push(SymbolFrame { function, file: String::new(), line: 0 });
            }
        }
        frames
    }

    fn frames_with_lines(&self, own: u64) -> Vec<SymbolFrame> {
        let Some(mut found) = self.lines.as_ref().and_then(|lines| lines.find_frames(own).skip_all_loads().ok()) else {
            return Vec::new();
        };
        let mut frames = Vec::new();
        while let (Ok(Some(frame)), true) = (found.next(), frames.len() < INLINED_MAX) {
            let name = frame.function.as_ref().and_then(|name| name.raw_name().ok());
            let (file, line) = frame.location.map_or((None, None), |location| (location.file, location.line));
            frames.push(SymbolFrame {
                function: name.map_or_else(|| self.without_name(own), |name| readable(&name)),
                file: file.unwrap_or_default().to_owned(),
                line: line.unwrap_or(0),
            });
        }
        frames
    }

    /// The symbol around an address.
    fn symbol(&self, own: u64) -> Option<String> {
        let after = self.symbols.partition_point(|symbol| symbol.begin <= own);
        let symbol = self.symbols.get(after.checked_sub(1)?)?;
        let is_in = own < symbol.end || self.function(own).is_some_and(|function| function.start == symbol.begin);
        is_in.then(|| readable(symbol.name))
    }

    /// Describes the function around an address, which the unwind tables know without a name.
    fn without_name(&self, own: u64) -> String {
        format!("{}+{:#x}", self.name, self.function(own).map_or(own, |function| function.start))
    }

    /// The range of the function around an address, by the unwind tables.
    fn function(&self, own: u64) -> Option<Range<u64>> {
        let (header, frames) = (self.image.eh_frame_hdr.as_ref()?, self.image.eh_frame.as_ref()?);
        let bases = BaseAddresses::default().set_eh_frame_hdr(header.address).set_eh_frame(frames.address);
        let parsed = EhFrameHdr::new(self.image.bytes_of(header), LittleEndian).parse(&bases, 8).ok()?;
        let section: EhFrame<Slice<'_>> = EhFrame::new(self.image.bytes_of(frames), LittleEndian);
        let entry = parsed.table()?.fde_for_address(&section, &bases, own, EhFrame::cie_from_offset).ok()?;
        Some(entry.initial_address()..entry.end_address())
    }
}

/// Targets of jumps in a piece of code, assuming that an instruction begins at each byte. That is too many, but few of
/// them lead to a function nearby.
fn jumps(code: &[u8], start: u64) -> impl Iterator<Item = u64> {
    (start..).zip(0..code.len()).filter_map(|(address, at)| match code.get(at..)? {
        [0x70..=0x7f | 0xeb, offset, ..] => {
            Some(address.wrapping_add(2).wrapping_add_signed(offset.cast_signed().into()))
        }
        [0xe9, a, b, c, d, ..] => {
            Some(address.wrapping_add(5).wrapping_add_signed(i32::from_le_bytes([*a, *b, *c, *d]).into()))
        }
        [0x0f, 0x80..=0x8f, a, b, c, d, ..] => {
            Some(address.wrapping_add(6).wrapping_add_signed(i32::from_le_bytes([*a, *b, *c, *d]).into()))
        }
        _ => None,
    })
}

fn symbols<'a>(object: &object::File<'a>, bias: u64) -> Vec<Symbol<'a>> {
    let mut symbols = Vec::new();
    for symbol in object.dynamic_symbols().chain(object.symbols()) {
        let Ok(name) = symbol.name() else { continue };
        if symbol.is_undefined() || name.is_empty() {
            continue;
        }
        let SymbolFlags::Elf { st_info, .. } = symbol.flags() else { continue };
        if st_info.st_type() == STT_GNU_IFUNC {
            let chosen = image::chosen_address(name).map(|chosen| chosen.wrapping_sub(bias));
            symbols.extend(chosen.map(|chosen| Symbol { begin: chosen, end: chosen, name }));
        } else if symbol.kind() == object::SymbolKind::Text {
            symbols.push(Symbol { begin: symbol.address(), end: symbol.address() + symbol.size(), name });
        }
    }
    sort(&mut symbols);
    symbols
}

/// Sorts by beginning, and keeps the first of those with equal beginnings.
fn sort(symbols: &mut Vec<Symbol<'_>>) {
    symbols.sort_by_key(|symbol| symbol.begin);
    symbols.dedup_by_key(|symbol| symbol.begin);
}

/// The name as written in the source, if it is Rust's.
fn readable(name: &str) -> String {
    let mut name = format!("{:#}", demangle(name));
    if name.len() > NAME_BYTES_MAX {
        let end = (0..=NAME_BYTES_MAX).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
        name.truncate(end);
        name.push('…');
    }
    name
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

    fn of(address: u64) -> Vec<SymbolFrame> {
        resolve(&Modules::read().unwrap(), vec![address]).remove(&address).unwrap()
    }

    #[test]
    fn own_functions_have_file_and_line() {
        let frames = of(own_functions_have_file_and_line as fn() as usize as u64);
        let last = frames.last().unwrap();
        assert!(last.function.ends_with("own_functions_have_file_and_line"), "{frames:?}");
        assert!(last.file.ends_with("symbols/mod.rs") && last.line > 0, "{frames:?}");
    }

    #[test]
    fn functions_of_the_c_library_have_names_also_where_it_chooses_them() {
        for name in ["memcpy", "getpid", "strlen"] {
            let frames = of(image::chosen_address(name).unwrap() + 4);
            let same = ["memmove", "memcpy", "__memcpy_chk", "__memmove_chk"];
            let is_named =
                frames[0].function.contains(name) || (name == "memcpy" && same.contains(&&*frames[0].function));
            assert!(is_named, "{name}: {frames:?}");
        }
    }

    #[test]
    fn jumps_are_followed() {
        let check = |code: &[u8], expected: &[u64]| assert_eq!(jumps(code, 0x1000).collect::<Vec<_>>(), expected);
        check(&[0xeb, 0x10], &[0x1012]);
        check(&[0x90, 0x72, 0xfe], &[0x1001]);
        check(&[0xe9, 0x00, 0x01, 0x00, 0x00], &[0x1105]);
        check(&[0x0f, 0x87, 0x00, 0x01, 0x00, 0x00], &[0x1106]);
        check(&[0xe9, 0x00, 0x01], &[]);
        check(&[], &[]);
    }

    #[test]
    fn what_is_nowhere_is_unknown() {
        assert_eq!(of(16)[0].function, "unknown");
    }

    #[test]
    fn names_are_bounded() {
        assert_eq!(readable("_ZN4core3fmt5write17h0123456789abcdefE"), "core::fmt::write");
        let long = readable(&"ä".repeat(NAME_BYTES_MAX));
        assert!(long.len() <= NAME_BYTES_MAX + 3 && long.ends_with('…'));
    }
}
