//! A resource that others can refer to, by its id among those of its kind.

use crate::model::ResourceKind;
use std::collections::HashMap;
use stillgate_schema::kind::At;
use stillgate_schema::text::diagnostic::{Fault, Path, Sink};

/// Such a resource.
#[derive(Debug)]
pub(crate) struct CatalogItem<T> {
    pub(crate) line: u32,
    pub(crate) value: T,
}

/// Adds a resource under its id, or removes it; returns whether it changed. An equal one is not replaced.
pub(super) fn put_item<V: PartialEq>(
    map: &mut HashMap<String, CatalogItem<V>>,
    id: &str,
    line: u32,
    value: Option<V>,
) -> bool {
    match value {
        Some(value) if map.get(id).is_some_and(|known| known.value == value) => false,
        Some(value) => {
            map.insert(id.to_owned(), CatalogItem { line, value });
            true
        }
        None => map.remove(id).is_some(),
    }
}

/// The resource that is referred to; reports a missing one.
pub(super) fn find<'a, T>(
    id: &At<String>,
    kind: ResourceKind,
    known: &'a HashMap<String, T>,
    path: &Path<'_>,
    sink: &mut Sink,
) -> Option<&'a T> {
    // With more candidates than these, a suggestion would be expensive and of little use.
    const COMPARED_MAX: usize = 1000;
    sink.refers(kind.name(), &id.value);
    let found = known.get(&id.value);
    if found.is_some() || sink.may_miss(kind.name(), &id.value) {
        return found;
    }
    if sink.is_unusable(kind.name(), &id.value) {
        let fault = Fault::new(format!("the {} {:?} cannot be used", kind.singular(), id.value));
        sink.error(id.at, path, fault.hint("see why it is rejected"));
        return None;
    }
    let fault = Fault::new(format!("there is no {} with the id {:?}", kind.singular(), id.value));
    let fault = fault.hint(format!("add it to `{}`", kind.name()));
    let fault = match known.len() <= COMPARED_MAX {
        true => sink.guess(fault, &id.value, known.keys().map(String::as_str)),
        false => fault,
    };
    sink.error(id.at, path, fault);
    None
}
