//! Numbers the fields that the predicates of a matcher read, and finds the fields of a request's header and argument
//! names.
//!
//! Numbers are only ever added, so that a delta layer can extend its base's and both read one set of values.

use crate::Variable;
use crate::condition::Field;
use crate::variable::HEADER_NAME_BYTES_MAX;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// Number of a [`FieldSlot`].
pub(crate) type SlotId = u32;

/// The fields whose values are looked up, each at most once per request.
#[derive(Debug, Clone, Default)]
pub(crate) struct FieldSlots {
    slots: Vec<FieldSlot>,
    /// Slots of a field as it is, and in lower case.
    ids: HashMap<Field, [Option<SlotId>; 2], FixedState>,
    headers: FieldNames,
    arguments: FieldNames,
}

/// A field, as it is or in lower case.
#[derive(Debug, Clone)]
pub(crate) struct FieldSlot {
    pub(crate) field: Field,
    /// The slot whose values are put into lower case; `None` if they are used unchanged.
    pub(crate) lower_of: Option<SlotId>,
}

/// Names of header fields in lower case, or of arguments.
#[derive(Debug, Clone, Default)]
struct FieldNames {
    ids: HashMap<Box<[u8]>, SlotId, FixedState>,
    /// A bit for every length below 64 that a name has, so that most names of a request cost one test.
    lengths: u64,
    has_longer: bool,
}

impl FieldSlots {
    /// The number of a field, assigned now if it has none yet.
    pub(crate) fn slot(&mut self, field: &Field, lower: bool) -> SlotId {
        if let Some(id) = self.ids.get(field).and_then(|ids| ids[usize::from(lower)]) {
            return id;
        }
        let lower_of = lower.then(|| self.slot(field, false));
        let id = self.slots.len() as SlotId;
        self.slots.push(FieldSlot { field: field.clone(), lower_of });
        self.ids.entry(field.clone()).or_default()[usize::from(lower)] = Some(id);
        if !lower {
            match field {
                Field::Header(name) => self.headers.insert(name.as_str().as_bytes(), id),
                Field::Query(name) => self.arguments.insert(name.as_bytes(), id),
                _ => {}
            }
        }
        id
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn get(&self, id: SlotId) -> &FieldSlot {
        &self.slots[id as usize]
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        // A name is kept three times: in its slot, in the map of fields and in that of names.
        const COPIES: usize = 3;
        let names: usize = self.slots.iter().map(|slot| slot.field.name_bytes()).sum();
        self.slots.capacity() * size_of::<FieldSlot>()
            + self.ids.allocation_size()
            + self.headers.ids.allocation_size()
            + self.arguments.ids.allocation_size()
            + names * COPIES
    }

    /// The slot of a header field by its name on the wire.
    #[inline]
    pub(crate) fn header(&self, name: &[u8]) -> Option<SlotId> {
        if !self.headers.may_have(name) || name.len() > HEADER_NAME_BYTES_MAX {
            return None;
        }
        let mut lower = [0; HEADER_NAME_BYTES_MAX];
        let lower = &mut lower[..name.len()];
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        self.headers.ids.get(&*lower).copied()
    }

    /// Whether some predicate reads an argument.
    pub(crate) fn has_arguments(&self) -> bool {
        self.arguments.lengths != 0 || self.arguments.has_longer
    }

    /// The slot of an argument by its decoded name.
    #[inline]
    pub(crate) fn argument(&self, name: &[u8]) -> Option<SlotId> {
        if self.arguments.may_have(name) { self.arguments.ids.get(name).copied() } else { None }
    }
}

impl FieldNames {
    fn insert(&mut self, name: &[u8], id: SlotId) {
        match name.len() {
            length @ 0..64 => self.lengths |= 1 << length,
            _ => self.has_longer = true,
        }
        self.ids.insert(name.into(), id);
    }

    #[inline]
    fn may_have(&self, name: &[u8]) -> bool {
        if name.len() < 64 { self.lengths >> name.len() & 1 == 1 } else { self.has_longer }
    }
}

/// The variable that holds a field's value, for fields that are not read from the request itself.
pub(crate) fn variable_of(field: &Field) -> Option<&Variable> {
    match field {
        Field::Protocol => Some(&Variable::Scheme),
        Field::SourcePort => Some(&Variable::RemotePort),
        Field::DestinationIp => Some(&Variable::ServerAddr),
        Field::DestinationPort => Some(&Variable::ServerPort),
        Field::Sni => Some(&Variable::SslServerName),
        Field::Variable(variable) => Some(variable),
        _ => None,
    }
}
