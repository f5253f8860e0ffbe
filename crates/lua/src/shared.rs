//! `ngx.shared`: dictionaries shared by the functions of all workers.
//!
//! This is the only state of the crate that workers share, and its only lock: it is held for one look-up or one write
//! of a short value, and touched only by requests whose functions use a dictionary. Values that do not fit are refused
//! (`no memory`); valid entries are never evicted. A dictionary is lost at an upgrade.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Most bytes of keys and values of one dictionary.
const DICTIONARY_BYTES_MAX: usize = 1 << 20;
/// Most dictionaries.
const DICTIONARIES_MAX: usize = 64;
/// Overhead of an entry, besides its key and value.
const ENTRY_BYTES: usize = 64;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SharedValue {
    Text(Box<[u8]>),
    Number(f64),
    Bool(bool),
}

/// Condition for writing a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteCondition {
    Always,
    /// `add`
    IfAbsent,
    /// `replace`
    IfPresent,
}

#[derive(Default)]
struct Dictionary {
    entries: HashMap<Box<[u8]>, SharedSlot>,
    bytes: usize,
}

struct SharedSlot {
    value: SharedValue,
    /// User flags of the function.
    flags: u32,
    /// Expiry in milliseconds since 1970; `None`: it never expires.
    ends_ms: Option<u64>,
}

impl SharedSlot {
    fn is_over(&self, now_ms: u64) -> bool {
        self.ends_ms.is_some_and(|ends| ends <= now_ms)
    }
}

impl SharedValue {
    fn bytes(&self) -> usize {
        match self {
            SharedValue::Text(text) => text.len(),
            SharedValue::Number(_) | SharedValue::Bool(_) => 0,
        }
    }
}

type Dictionaries = HashMap<Box<[u8]>, Dictionary>;

fn dictionaries() -> MutexGuard<'static, Dictionaries> {
    static ALL: OnceLock<Mutex<Dictionaries>> = OnceLock::new();
    // A panic leaves an entry either whole or absent.
    ALL.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// The entry of a key.
#[derive(Debug, PartialEq)]
pub(crate) struct SharedEntry {
    pub(crate) value: SharedValue,
    pub(crate) flags: u32,
    /// Milliseconds until it expires; zero: never.
    pub(crate) left_ms: u64,
}

/// The entry of a key, if it exists.
pub(crate) fn get(name: &[u8], key: &[u8], now_ms: u64) -> Option<SharedEntry> {
    let all = dictionaries();
    let entry = all.get(name)?.entries.get(key).filter(|entry| !entry.is_over(now_ms))?;
    let left_ms = entry.ends_ms.map_or(0, |ends| ends - now_ms);
    Some(SharedEntry { value: entry.value.clone(), flags: entry.flags, left_ms })
}

/// Writes a value with its flags; the error is nginx's.
pub(crate) fn set(
    name: &[u8],
    key: &[u8],
    (value, flags): (SharedValue, u32),
    ends_ms: Option<u64>,
    write: WriteCondition,
    now_ms: u64,
) -> Result<(), &'static str> {
    let mut all = dictionaries();
    let dictionary = dictionary(&mut all, name)?;
    let is_there = dictionary.entries.get(key).is_some_and(|entry| !entry.is_over(now_ms));
    match (write, is_there) {
        (WriteCondition::IfAbsent, true) => return Err("exists"),
        (WriteCondition::IfPresent, false) => return Err("not found"),
        _ => {}
    }
    dictionary.put(key, SharedSlot { value, flags, ends_ms }, now_ms)
}

/// Adds to a number; `start`: the initial value of a missing key, and its expiry.
pub(crate) fn increase(
    name: &[u8],
    key: &[u8],
    by: f64,
    start: Option<(f64, Option<u64>)>,
    now_ms: u64,
) -> Result<f64, &'static str> {
    let mut all = dictionaries();
    let dictionary = dictionary(&mut all, name)?;
    if let Some(entry) = dictionary.entries.get_mut(key).filter(|entry| !entry.is_over(now_ms)) {
        let SharedValue::Number(number) = &mut entry.value else { return Err("not a number") };
        *number += by;
        return Ok(*number);
    }
    let (from, ends_ms) = start.ok_or("not found")?;
    dictionary.put(key, SharedSlot { value: SharedValue::Number(from + by), flags: 0, ends_ms }, now_ms)?;
    Ok(from + by)
}

/// Sets the expiry of a key; `false`: it does not exist.
pub(crate) fn expire(name: &[u8], key: &[u8], ends_ms: Option<u64>, now_ms: u64) -> bool {
    let mut all = dictionaries();
    let entry = all.get_mut(name).and_then(|dictionary| dictionary.entries.get_mut(key));
    let Some(entry) = entry.filter(|entry| !entry.is_over(now_ms)) else { return false };
    entry.ends_ms = ends_ms;
    true
}

/// Removes a key.
pub(crate) fn delete(name: &[u8], key: &[u8]) {
    if let Some(dictionary) = dictionaries().get_mut(name) {
        dictionary.take(key);
    }
}

/// Removes all keys.
pub(crate) fn clear(name: &[u8]) {
    if let Some(dictionary) = dictionaries().get_mut(name) {
        *dictionary = Dictionary::default();
    }
}

fn dictionary<'a>(all: &'a mut Dictionaries, name: &[u8]) -> Result<&'a mut Dictionary, &'static str> {
    if !all.contains_key(name) {
        if all.len() >= DICTIONARIES_MAX {
            return Err("too many dictionaries");
        }
        all.insert(name.into(), Dictionary::default());
    }
    all.get_mut(name).ok_or("no dictionary")
}

impl Dictionary {
    fn put(&mut self, key: &[u8], entry: SharedSlot, now_ms: u64) -> Result<(), &'static str> {
        self.take(key);
        let bytes = ENTRY_BYTES + key.len() + entry.value.bytes();
        if self.bytes + bytes > DICTIONARY_BYTES_MAX {
            self.entries.retain(|_, entry| !entry.is_over(now_ms));
            self.bytes = self.entries.iter().map(|(key, entry)| ENTRY_BYTES + key.len() + entry.value.bytes()).sum();
            if self.bytes + bytes > DICTIONARY_BYTES_MAX {
                return Err("no memory");
            }
        }
        self.bytes += bytes;
        self.entries.insert(key.into(), entry);
        Ok(())
    }

    fn take(&mut self, key: &[u8]) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= ENTRY_BYTES + key.len() + entry.value.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_end_and_what_does_not_fit_is_refused() {
        let name = b"values_end";
        let text = |length: usize| (SharedValue::Text(vec![b'x'; length].into()), 7);
        assert_eq!(set(name, b"a", text(1), Some(2_000), WriteCondition::Always, 1_000), Ok(()));
        assert_eq!(get(name, b"a", 1_500), Some(SharedEntry { value: text(1).0, flags: 7, left_ms: 500 }));
        assert_eq!(get(name, b"a", 2_000), None);
        assert_eq!(set(name, b"a", text(1), None, WriteCondition::IfPresent, 2_000), Err("not found"));
        assert_eq!(set(name, b"a", text(1), None, WriteCondition::IfAbsent, 2_000), Ok(()));
        assert_eq!(set(name, b"a", text(1), None, WriteCondition::IfAbsent, 2_000), Err("exists"));
        assert_eq!(set(name, b"b", text(DICTIONARY_BYTES_MAX), None, WriteCondition::Always, 2_000), Err("no memory"));
        assert_eq!(set(name, b"b", text(DICTIONARY_BYTES_MAX / 2), Some(3_000), WriteCondition::Always, 2_000), Ok(()));
        // Expired entries make room.
        assert_eq!(
            set(name, b"c", text(DICTIONARY_BYTES_MAX / 2), None, WriteCondition::Always, 2_500),
            Err("no memory")
        );
        assert_eq!(set(name, b"c", text(DICTIONARY_BYTES_MAX / 2), None, WriteCondition::Always, 3_000), Ok(()));
        assert_eq!(increase(name, b"a", 1.0, None, 3_000), Err("not a number"));
        assert_eq!(increase(name, b"n", 1.0, None, 3_000), Err("not found"));
        assert_eq!(increase(name, b"n", 2.0, Some((5.0, None)), 3_000), Ok(7.0));
        assert_eq!(increase(name, b"n", -1.5, None, 3_000), Ok(5.5));
        delete(name, b"n");
        assert_eq!(get(name, b"n", 3_000), None);
        assert!(expire(name, b"a", Some(3_100), 3_000) && !expire(name, b"n", None, 3_000));
        clear(name);
        assert_eq!(get(name, b"a", 3_000), None);
    }
}
