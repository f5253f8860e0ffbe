//! The two tables of HPACK (RFC 7541 section 2.3), reduced to the facts that the walker needs about a field.

use std::collections::VecDeque;

/// Bytes that are counted for an entry besides its name and value (RFC 7541 section 4.1).
const ENTRY_OVERHEAD_BYTES: u32 = 32;

/// The kind of a field's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum FieldNameKind {
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
    pub(super) const fn of(start: &[u8]) -> FieldNameKind {
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

    pub(super) const fn is_pseudo(self) -> bool {
        !matches!(self, FieldNameKind::Plain | FieldNameKind::Connection | FieldNameKind::Te)
    }
}

/// The name of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct HpackName {
    pub(super) kind: FieldNameKind,
    pub(super) bytes: u32,
}

/// A field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct HpackField {
    pub(super) name: HpackName,
    pub(super) value_bytes: u32,
    /// The value is of interest: a path with a `#`, a status that begins with `1`, a `te` that is not `trailers`.
    pub(super) is_notable: bool,
}

impl HpackField {
    /// The size as both the table and SETTINGS_MAX_HEADER_LIST_SIZE count it.
    pub(super) fn size(&self) -> u32 {
        self.name.bytes.saturating_add(self.value_bytes).saturating_add(ENTRY_OVERHEAD_BYTES)
    }
}

/// The fields that an index can mean.
#[derive(Debug)]
pub(super) struct HpackTable {
    /// The newest first. Their sizes are within `size_max`, so there are 128 at most.
    dynamic: VecDeque<HpackField>,
    size: u32,
    size_max: u32,
}

impl HpackTable {
    /// Bytes of the dynamic table where no SETTINGS_HEADER_TABLE_SIZE was sent (RFC 9113 section 6.5.2).
    const SIZE_MAX: u32 = 4096;

    pub(super) fn new() -> HpackTable {
        HpackTable { dynamic: VecDeque::new(), size: 0, size_max: HpackTable::SIZE_MAX }
    }

    /// The entry of an index, counted from one, the static table's first.
    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<HpackField> {
        let at = (index as usize).checked_sub(1)?;
        match STATIC.get(at) {
            Some(field) => Some(*field),
            None => self.dynamic.get(at - STATIC.len()).copied(),
        }
    }

    /// Adds a field. One that is larger than the table empties it (RFC 7541 section 4.4).
    pub(super) fn insert(&mut self, field: HpackField) {
        let size = field.size();
        self.evict(self.size_max.saturating_sub(size));
        if size <= self.size_max {
            self.size += size;
            self.dynamic.push_front(field);
        }
    }

    /// Handles a size update (RFC 7541 section 6.3); `false` if it is larger than allowed.
    pub(super) fn resize(&mut self, size_max: u32) -> bool {
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
