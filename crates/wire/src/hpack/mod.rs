//! Follows field blocks in HPACK (RFC 7541) and reports facts that a decoder for requests and responses may hide.
//!
//! Only the size of a field and the facts of [`FieldBlockFacts`] are kept, so a block needs no memory of its own. The
//! dynamic table has the default SETTINGS_HEADER_TABLE_SIZE, 4096. An error ends the walk for good: it also ends the
//! connection (RFC 7541 section 2.3.3 and 5, RFC 9113 section 4.3), once the decoder of the fields finds it.

pub(crate) mod huffman;

use huffman::Decoder;
pub use huffman::huffman_bytes;
use std::collections::VecDeque;

/// Largest shift of an integer's bytes behind its prefix, so that it fits in 32 bits.
const INTEGER_SHIFT_MAX: u32 = 21;
/// Bytes at the beginning of a string that are examined: one more than the longest name of interest.
const START_BYTES: usize = "transfer-encoding".len() + 1;
/// The kinds of fields that no pseudo-header may follow, each with its bit.
const REGULAR: u16 =
    1 << FieldNameKind::Plain as u16 | 1 << FieldNameKind::Connection as u16 | 1 << FieldNameKind::Te as u16;

/// Facts about a block of fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FieldBlockFacts {
    /// Bytes of its names and values with 32 for each field, as SETTINGS_MAX_HEADER_LIST_SIZE counts them.
    pub size: u32,
    /// The name of some field begins with a colon.
    pub has_pseudo: bool,
    /// A pseudo-header other than `:status`, the only one that a response may have.
    pub has_request_pseudo: bool,
    /// A `:path` holds a `#`, which paths and queries do not contain.
    pub has_fragment: bool,
    /// A `:status` begins with `1`: the response is an interim one.
    pub is_interim: bool,
    /// A pseudo-header comes twice, behind another field or is unknown, or a field is about an HTTP/1.1 connection (RFC 9113
    /// sections 8.2.2 and 8.3).
    pub is_malformed: bool,
}

/// Follows the blocks of one direction of a connection, whatever pieces they come in.
#[derive(Debug)]
pub struct FieldWalker {
    table: HpackTable,
    at: At,
    literal: HpackLiteral,
    text: PartialString,
    block: FieldBlockFacts,
    /// The kinds of the block's fields, each with its bit.
    kinds: u16,
}

/// The position of the walker in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before a field.
    Field,
    /// Behind an integer's prefix.
    Integer { purpose: Purpose, value: u32, shift: u32 },
    /// Before the length of a name or value.
    Length,
    /// In a name or value.
    Text,
    /// After an error, nothing more can be reported.
    Lost,
}

/// The meaning of an integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Indexed,
    NameIndex,
    Length,
    Resize,
}

/// A literal field.
#[derive(Debug, Clone, Copy, Default)]
struct HpackLiteral {
    is_inserted: bool,
    /// Set once it is known: the next string is the value.
    name: Option<HpackName>,
}

/// A partially read string.
#[derive(Debug, Clone, Copy, Default)]
struct PartialString {
    /// Bytes to come.
    left: u32,
    /// Present if the string is Huffman coded.
    decoder: Option<Decoder>,
    read: StringFacts,
}

/// Facts about the text that a string represents.
#[derive(Debug, Clone, Copy, Default)]
struct StringFacts {
    bytes: u32,
    start: [u8; START_BYTES],
    has_hash: bool,
}

impl Default for FieldWalker {
    fn default() -> FieldWalker {
        let (literal, text, block) = Default::default();
        FieldWalker { table: HpackTable::new(), at: At::Field, literal, text, block, kinds: 0 }
    }
}

impl FieldWalker {
    /// Follows the next bytes of a block.
    pub fn walk(&mut self, mut bytes: &[u8]) {
        while let [first, rest @ ..] = bytes {
            if self.at == At::Text {
                bytes = self.text(bytes);
                continue;
            }
            bytes = rest;
            match self.at {
                At::Field => self.begin(*first),
                At::Integer { purpose, value, shift } => self.integer(purpose, value, shift, *first),
                At::Length => {
                    self.text = PartialString {
                        decoder: (first & 0x80 != 0).then(Decoder::default),
                        ..PartialString::default()
                    };
                    self.prefixed(Purpose::Length, *first, 0x7f);
                }
                At::Text | At::Lost => return,
            }
        }
    }

    /// Ends the block: returns the facts about it, if known.
    pub fn end(&mut self) -> Option<FieldBlockFacts> {
        if self.at != At::Field {
            self.at = At::Lost;
        }
        let block = std::mem::take(&mut self.block);
        self.kinds = 0;
        (self.at == At::Field).then_some(block)
    }

    /// RFC 7541 section 6.
    #[inline]
    fn begin(&mut self, first: u8) {
        if first & 0x80 != 0 {
            return self.prefixed(Purpose::Indexed, first, 0x7f);
        }
        if first & 0xe0 == 0x20 {
            return self.prefixed(Purpose::Resize, first, 0x1f);
        }
        let is_inserted = first & 0x40 != 0;
        self.literal = HpackLiteral { is_inserted, name: None };
        self.prefixed(Purpose::NameIndex, first, if is_inserted { 0x3f } else { 0x0f });
    }

    /// An integer that begins in the bits of `mask` (RFC 7541 section 5.1).
    #[inline]
    fn prefixed(&mut self, purpose: Purpose, first: u8, mask: u8) {
        let value = u32::from(first & mask);
        if value < u32::from(mask) {
            self.have(purpose, value);
        } else {
            self.at = At::Integer { purpose, value, shift: 0 };
        }
    }

    fn integer(&mut self, purpose: Purpose, value: u32, shift: u32, byte: u8) {
        // A value shifted by 21 stays below 2^28.
        let value = value + (u32::from(byte & 0x7f) << shift);
        if byte & 0x80 == 0 {
            self.have(purpose, value);
        } else if shift < INTEGER_SHIFT_MAX {
            self.at = At::Integer { purpose, value, shift: shift + 7 };
        } else {
            self.at = At::Lost;
        }
    }

    #[inline]
    fn have(&mut self, purpose: Purpose, value: u32) {
        self.at = At::Field;
        match purpose {
            Purpose::Indexed => match self.table.get(value) {
                Some(field) => self.note(field),
                None => self.at = At::Lost,
            },
            Purpose::NameIndex => {
                self.literal.name = self.table.get(value).map(|field| field.name);
                self.at = if value > 0 && self.literal.name.is_none() { At::Lost } else { At::Length };
            }
            Purpose::Length => {
                self.text.left = value;
                self.at = At::Text;
                if value == 0 {
                    self.end_text();
                }
            }
            Purpose::Resize => {
                if !self.table.resize(value) {
                    self.at = At::Lost;
                }
            }
        }
    }

    /// Reads the available part of a string; returns the bytes behind it.
    fn text<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let (here, behind) = bytes.split_at(bytes.len().min(self.text.left as usize));
        self.text.left -= here.len() as u32;
        if self.text.take(here).is_err() {
            self.at = At::Lost;
        } else if self.text.left == 0 {
            self.end_text();
        }
        behind
    }

    fn end_text(&mut self) {
        let Ok(StringFacts { bytes, start, has_hash }) = self.text.finish() else {
            self.at = At::Lost;
            return;
        };
        let start = &start[..START_BYTES.min(bytes as usize)];
        let Some(name) = self.literal.name else {
            self.literal.name = Some(HpackName { kind: FieldNameKind::of(start), bytes });
            self.at = At::Length;
            return;
        };
        let is_notable = match name.kind {
            FieldNameKind::Path => has_hash,
            FieldNameKind::Status => start.first() == Some(&b'1'),
            FieldNameKind::Te => start != b"trailers",
            _ => false,
        };
        let field = HpackField { name, value_bytes: bytes, is_notable };
        if self.literal.is_inserted {
            self.table.insert(field);
        }
        self.at = At::Field;
        self.note(field);
    }

    #[inline]
    fn note(&mut self, field: HpackField) {
        let kind = field.name.kind;
        let bit = 1 << kind as u16;
        let block = &mut self.block;
        block.size = block.size.saturating_add(field.size());
        block.has_pseudo |= kind.is_pseudo();
        block.has_request_pseudo |= kind.is_pseudo() && kind != FieldNameKind::Status;
        block.has_fragment |= kind == FieldNameKind::Path && field.is_notable;
        block.is_interim |= kind == FieldNameKind::Status && field.is_notable;
        block.is_malformed |= match kind {
            FieldNameKind::Plain => false,
            FieldNameKind::Connection | FieldNameKind::Unknown => true,
            FieldNameKind::Te => field.is_notable,
            _ => self.kinds & (bit | REGULAR) != 0,
        };
        self.kinds |= bit;
    }
}

impl PartialString {
    fn take(&mut self, bytes: &[u8]) -> Result<(), huffman::Invalid> {
        // Copies, so that they can be in registers.
        let mut read = self.read;
        match &mut self.decoder {
            None => bytes.iter().for_each(|byte| read.note(*byte)),
            Some(decoder) => {
                let mut local = *decoder;
                for byte in bytes {
                    local.push(*byte, |symbol| read.note(symbol))?;
                }
                *decoder = local;
            }
        }
        self.read = read;
        Ok(())
    }

    fn finish(&mut self) -> Result<StringFacts, huffman::Invalid> {
        if let Some(decoder) = self.decoder.take() {
            decoder.finish(|symbol| self.read.note(symbol))?;
        }
        Ok(self.read)
    }
}

impl StringFacts {
    #[inline]
    fn note(&mut self, byte: u8) {
        if let Some(place) = self.start.get_mut(self.bytes as usize) {
            *place = byte;
        }
        self.bytes = self.bytes.saturating_add(1);
        self.has_hash |= byte == b'#';
    }
}

// The two tables of HPACK (RFC 7541 section 2.3), reduced to the facts that the walker needs about a field.

/// Bytes that are counted for an entry besides its name and value (RFC 7541 section 4.1).
const ENTRY_OVERHEAD_BYTES: u32 = 32;

/// The kind of a field's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum FieldNameKind {
    /// Not of interest.
    #[default]
    Plain,
    /// A field about an HTTP/1.1 connection (RFC 9113 section 8.2.2).
    Connection,
    Te,
    Authority,
    Method,
    Path,
    Protocol,
    Scheme,
    Status,
    /// Any other pseudo-header.
    Unknown,
}

impl FieldNameKind {
    /// `start` is the name, or more bytes of its beginning than any name of interest has.
    const fn of(start: &[u8]) -> FieldNameKind {
        match start {
            b":authority" => FieldNameKind::Authority,
            b":method" => FieldNameKind::Method,
            b":path" => FieldNameKind::Path,
            b":protocol" => FieldNameKind::Protocol,
            b":scheme" => FieldNameKind::Scheme,
            b":status" => FieldNameKind::Status,
            [b':', ..] => FieldNameKind::Unknown,
            b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade" => {
                FieldNameKind::Connection
            }
            b"te" => FieldNameKind::Te,
            _ => FieldNameKind::Plain,
        }
    }

    const fn is_pseudo(self) -> bool {
        !matches!(self, FieldNameKind::Plain | FieldNameKind::Connection | FieldNameKind::Te)
    }
}

/// The name of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct HpackName {
    kind: FieldNameKind,
    bytes: u32,
}

/// A field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct HpackField {
    name: HpackName,
    value_bytes: u32,
    /// The value is of interest: a path with a `#`, a status that begins with `1`, a `te` that is not `trailers`.
    is_notable: bool,
}

impl HpackField {
    /// The size as both the table and SETTINGS_MAX_HEADER_LIST_SIZE count it.
    fn size(&self) -> u32 {
        self.name.bytes.saturating_add(self.value_bytes).saturating_add(ENTRY_OVERHEAD_BYTES)
    }
}

/// The fields that an index can mean.
#[derive(Debug)]
struct HpackTable {
    /// The newest first. Their sizes are within `size_max`, so there are 128 at most.
    dynamic: VecDeque<HpackField>,
    size: u32,
    size_max: u32,
}

impl HpackTable {
    /// Bytes of the dynamic table where no SETTINGS_HEADER_TABLE_SIZE was sent (RFC 9113 section 6.5.2).
    const SIZE_MAX: u32 = 4096;

    fn new() -> HpackTable {
        HpackTable { dynamic: VecDeque::new(), size: 0, size_max: HpackTable::SIZE_MAX }
    }

    /// The entry of an index, counted from one, the static table's first.
    #[inline]
    fn get(&self, index: u32) -> Option<HpackField> {
        let at = (index as usize).checked_sub(1)?;
        match STATIC.get(at) {
            Some(field) => Some(*field),
            None => self.dynamic.get(at - STATIC.len()).copied(),
        }
    }

    /// Adds a field. One that is larger than the table empties it (RFC 7541 section 4.4).
    fn insert(&mut self, field: HpackField) {
        let size = field.size();
        self.evict(self.size_max.saturating_sub(size));
        if size <= self.size_max {
            self.size += size;
            self.dynamic.push_front(field);
        }
    }

    /// Handles a size update (RFC 7541 section 6.3); `false` if it is larger than allowed.
    fn resize(&mut self, size_max: u32) -> bool {
        if size_max > HpackTable::SIZE_MAX {
            return false;
        }
        self.size_max = size_max;
        self.evict(size_max);
        true
    }

    fn evict(&mut self, size_max: u32) {
        while self.size > size_max {
            // There is an entry, since the sizes add up to more than zero.
            self.size -= self.dynamic.pop_back().map_or(self.size, |oldest| oldest.size());
        }
    }
}

/// RFC 7541 appendix A.
static STATIC: [HpackField; STATIC_TEXT.len()] = {
    let mut table =
        [HpackField { name: HpackName { kind: FieldNameKind::Plain, bytes: 0 }, value_bytes: 0, is_notable: false };
            STATIC_TEXT.len()];
    let mut at = 0;
    while at < table.len() {
        let (name, value) = STATIC_TEXT[at];
        // None of their values is notable.
        table[at].name = HpackName { kind: FieldNameKind::of(name.as_bytes()), bytes: name.len() as u32 };
        table[at].value_bytes = value.len() as u32;
        at += 1;
    }
    table
};

#[rustfmt::skip]
pub(crate) const STATIC_TEXT: [(&str, &str); 61] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html"),
    (":scheme", "http"), (":scheme", "https"), (":status", "200"), (":status", "204"), (":status", "206"),
    (":status", "304"), (":status", "400"), (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""), ("accept", ""),
    ("access-control-allow-origin", ""), ("age", ""), ("allow", ""), ("authorization", ""), ("cache-control", ""),
    ("content-disposition", ""), ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""), ("date", ""), ("etag", ""),
    ("expect", ""), ("expires", ""), ("from", ""), ("host", ""), ("if-match", ""), ("if-modified-since", ""),
    ("if-none-match", ""), ("if-range", ""), ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""),
    ("location", ""), ("max-forwards", ""), ("proxy-authenticate", ""), ("proxy-authorization", ""), ("range", ""),
    ("referer", ""), ("refresh", ""), ("retry-after", ""), ("server", ""), ("set-cookie", ""),
    ("strict-transport-security", ""), ("transfer-encoding", ""), ("user-agent", ""), ("vary", ""), ("via", ""),
    ("www-authenticate", ""),
];
