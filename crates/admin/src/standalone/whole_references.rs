//! References in a replacement of everything: those of its documents must exist, and those of unchanged documents must not break.
//!
//! All documents are known, so each is scanned once, and not once for each deleted one.

use crate::answer::Answer;
use crate::resource::reference_table::{each, users_of};
use crate::resource::references::{in_use, missing, parsed};
use crate::resource::view::View;
use std::collections::{BTreeSet, HashMap};
use stillgate_datastore::{Key, Write};

/// Refuses writes that would leave a dangling reference.
pub(super) fn check(view: &View, writes: &[Write]) -> Result<(), Answer> {
    let is_put = |write: &Write| matches!(write, Write::Put { .. });
    let written: HashMap<&str, bool> = writes.iter().map(|write| (write.key().as_str(), is_put(write))).collect();
    for write in writes {
        if let Write::Put { key, value, .. } = write {
            finds_all(view, &written, key, value)?;
        }
    }
    loses_nothing(view, &written)
}

fn finds_all(view: &View, written: &HashMap<&str, bool>, key: &Key, value: &str) -> Result<(), Answer> {
    let Some(collection) = crate::collections::Collection::of_key(key.as_str()) else { return Ok(()) };
    let is_there = |target: &str| {
        let is_stored = || Key::parse(target).is_ok_and(|target| view.get(&target).is_some());
        written.get(target).copied().unwrap_or_else(is_stored)
    };
    if consumer_of(key).is_some_and(|consumer| !is_there(consumer)) {
        return Err(without_consumer(key));
    }
    let mut refusal = Ok(());
    each(collection.name, &parsed(value), &mut |reference, id| {
        let must_be_there = reference.is_required && refusal.is_ok();
        if must_be_there && !is_there(&format!("{}/{id}", reference.target)) {
            refusal = Err(Answer::bad(format!("{key}: {}", missing(reference, &id))));
        }
    });
    refusal
}

/// The key of a credential's consumer.
fn consumer_of(key: &Key) -> Option<&str> {
    key.as_str().split_once("/credentials/").map(|(consumer, _)| consumer)
}

fn without_consumer(key: &Key) -> Answer {
    Answer::bad(format!("{key}: consumer not found"))
}

/// Checks the unchanged documents.
fn loses_nothing(view: &View, written: &HashMap<&str, bool>) -> Result<(), Answer> {
    let is_deleted = |key: &str| written.get(key) == Some(&false);
    let deleted = written
        .iter()
        .filter(|(_, is_put)| !**is_put)
        .filter_map(|(key, _)| crate::collections::Collection::of_key(key));
    let deleted: BTreeSet<&str> = deleted.map(|collection| collection.name).collect();
    let users: BTreeSet<&str> = deleted.iter().flat_map(|collection| users_of(collection)).collect();
    for users in users {
        for (user, document) in view.below(&format!("{users}/")) {
            if written.contains_key(user.as_str()) {
                continue;
            }
            let mut refusal = Ok(());
            each(users, &parsed(&document.value), &mut |reference, id| {
                let collection = crate::collections::Collection::named(reference.target);
                let is_lost = refusal.is_ok() && is_deleted(&format!("{}/{id}", reference.target));
                if let Some(collection) = collection.filter(|_| is_lost) {
                    refusal = Err(Answer::bad(in_use(collection, reference, users, user.id())));
                }
            });
            refusal?;
        }
    }
    if deleted.contains("consumers") {
        let is_lost = |key: &Key| consumer_of(key).is_some_and(is_deleted) && !written.contains_key(key.as_str());
        if let Some((key, _)) = view.below("consumers/").into_iter().find(|(key, _)| is_lost(key)) {
            return Err(without_consumer(&key));
        }
    }
    Ok(())
}
