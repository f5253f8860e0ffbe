//! The store from its owner's point of view: changes, times to live, history, rollbacks, backups, and files it cannot
//! open.

mod files;
mod model;

use super::*;
use crate::document::{Document, Event};

/// Unix time of the tests, in seconds.
const NOW: u64 = 1_700_000_000;

const BOUNDS: HistoryBounds = HistoryBounds { history_changes_max: 1000, history_age_max: Duration::from_secs(3600) };

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn now() -> SystemTime {
    at(NOW)
}

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

fn author(name: &str) -> Author {
    Author { name: name.to_owned(), address: "127.0.0.1".to_owned(), action: "PUT /apisix/admin/routes/1".to_owned() }
}

fn put(key_text: &str, value: &str) -> Write {
    Write::Put { key: key(key_text), value: value.to_owned(), ttl_seconds: None }
}

fn put_for(key_text: &str, value: &str, ttl_seconds: u64) -> Write {
    Write::Put { key: key(key_text), value: value.to_owned(), ttl_seconds: Some(ttl_seconds) }
}

fn delete(key_text: &str) -> Write {
    Write::Delete { key: key(key_text) }
}

fn transaction(writes: Vec<Write>) -> Transaction {
    Transaction { conditions: Vec::new(), unreferenced: Vec::new(), writes, author: author("ci") }
}

fn commit(store: &mut EmbeddedStore, writes: Vec<Write>) -> Batch {
    store.commit(&transaction(writes), now()).unwrap()
}

fn values(store: &EmbeddedStore) -> Vec<(String, String)> {
    let documents = store.snapshot().unwrap().documents;
    documents.iter().map(|(key, document)| (key.to_string(), document.value.to_string())).collect()
}

fn document(value: &str, created: u64, modified: u64) -> Document {
    Document { value: value.into(), created, modified }
}

/// A store in a folder that is removed with it.
struct Fixture {
    folder: tempfile::TempDir,
    store: EmbeddedStore,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture::with(BOUNDS)
    }

    fn with(bounds: HistoryBounds) -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(&folder.path().join("config.redb"), bounds).unwrap();
        Fixture { folder, store }
    }
}

#[test]
fn a_thread_can_own_it() {
    fn check<T: Send + 'static>() {}
    check::<EmbeddedStore>();
}

#[test]
fn a_change_has_a_revision_and_tells_what_it_did() {
    let Fixture { mut store, folder: _folder } = Fixture::new();
    assert_eq!(store.snapshot().unwrap(), Snapshot::default());
    let batch = commit(&mut store, vec![put("routes/1", "a"), put("routes/2", "b")]);
    let event = |text: &str, document| Event { key: key(text), document };
    let events = vec![event("routes/1", Some(document("a", 1, 1))), event("routes/2", Some(document("b", 1, 1)))];
    assert_eq!(batch, Batch { revision: 1, events });
    let batch = commit(&mut store, vec![delete("routes/2"), put("routes/1", "c"), delete("routes/9")]);
    let events = vec![event("routes/2", None), event("routes/1", Some(document("c", 1, 2)))];
    assert_eq!(batch, Batch { revision: 2, events });
    let documents = vec![(key("routes/1"), document("c", 1, 2))];
    assert_eq!(store.snapshot().unwrap(), Snapshot { revision: 2, documents });
    // A transaction without effect is not a change.
    assert_eq!(commit(&mut store, vec![delete("routes/9")]), Batch { revision: 2, events: Vec::new() });
    assert_eq!((store.revision(), store.history(None, 10).unwrap().len()), (2, 2));
}

#[test]
fn conditions_are_checked_before_anything_is_written() {
    let Fixture { mut store, folder: _folder } = Fixture::new();
    commit(&mut store, vec![put("routes/1", "a")]);
    commit(&mut store, vec![put("routes/1", "b")]);
    let mut check = |key_text: &str, condition, expected: Result<u64, Option<u64>>| {
        let conditions = vec![(key("routes/1"), Condition::Present), (key(key_text), condition)];
        let transaction = Transaction { conditions, ..transaction(vec![put("routes/1", "b")]) };
        let result = store.commit(&transaction, now()).map(|batch| batch.revision);
        let conflict = |modified| CommitError::Conflict { key: key(key_text), modified };
        assert_eq!(result, expected.map_err(conflict));
    };
    check("routes/1", Condition::Absent, Err(Some(2)));
    check("routes/1", Condition::Modified(1), Err(Some(2)));
    check("routes/2", Condition::Present, Err(None));
    check("routes/2", Condition::Modified(1), Err(None));
    check("routes/2", Condition::Absent, Ok(3));
    check("routes/1", Condition::Modified(3), Ok(4));
    assert_eq!(store.revision(), 4);
}

#[test]
fn references_are_looked_for_in_what_was_written_since() {
    // Most of this history is pruned.
    for history_changes_max in [1000, 1] {
        let Fixture { mut store, folder: _folder } = Fixture::with(HistoryBounds { history_changes_max, ..BOUNDS });
        commit(&mut store, vec![put("routes/1", "{\"upstream_id\": \"u\"}")]);
        commit(&mut store, vec![put("upstreams/u", "{}"), put("routes/2", "{\"uri\": \"/2\"}")]);
        commit(&mut store, vec![put("routes/3", "{\"upstream_id\": \"u\"}")]);
        commit(&mut store, vec![put("routes/4", "{\"upstream_id\": \"\\u0075\"}"), delete("routes/2")]);
        let mut check = |below: &str, since, mention: &str, expected: Option<(&str, u64)>| {
            let condition = ReferenceCheck { below: below.to_owned(), since, mentions: vec![mention.to_owned()] };
            let before = store.revision();
            let transaction = Transaction { unreferenced: vec![condition], ..transaction(vec![put("protos/1", "x")]) };
            let result = store.commit(&transaction, now()).map(|batch| batch.revision);
            let conflict = |(path, modified)| CommitError::Conflict { key: key(path), modified: Some(modified) };
            assert_eq!(result, expected.map_or(Ok(before + 1), |expected| Err(conflict(expected))), "{below} {since}");
        };
        check("routes/", 0, "\"u\"", Some(("routes/1", 1)));
        check("routes/", 1, "\"u\"", Some(("routes/3", 3)));
        check("routes/", 3, "\"u\"", Some(("routes/4", 4)));
        check("routes/", 4, "\"u\"", None);
        check("routes/", 2, "", Some(("routes/3", 3)));
        check("services/", 0, "\"u\"", None);
        check("route", 0, "nothing has this", Some(("routes/4", 4)));
        check("routes/1", 0, "\"u\"", Some(("routes/1", 1)));
        check("upstreams/", 0, "\"u\"", None);
        check("routes/", 100, "", None);
    }
}

#[test]
fn what_is_too_large_is_refused() {
    let Fixture { mut store, folder: _folder } = Fixture::new();
    let mut check = |writes: Vec<Write>, expected: &str| {
        assert_eq!(store.commit(&transaction(writes), now()).unwrap_err().to_string(), expected);
    };
    check(Vec::new(), "0 writes; one transaction takes 1 to 128");
    check((0..129).map(|id| delete(&format!("routes/{id}"))).collect(), "129 writes; one transaction takes 1 to 128");
    check(vec![delete("routes/1"), put("routes/1", "a")], "routes/1 is written twice; write it once");
    let huge = "x".repeat(TRANSACTION_BYTES_MAX);
    check(vec![put("routes/1", &huge), put("routes/2", "y")], "8388609 bytes; one transaction takes at most 8388608");
    assert_eq!(commit(&mut store, vec![put("routes/1", &huge)]).revision, 1);
    assert_eq!(values(&store), [("routes/1".to_owned(), huge)]);
}

#[test]
fn documents_expire() {
    let Fixture { mut store, folder } = Fixture::new();
    commit(&mut store, vec![put_for("routes/1", "a", 10), put_for("routes/2", "b", 20), put("routes/3", "c")]);
    // Writing a document again lets it live on, for longer, or for ever.
    commit(&mut store, vec![put_for("routes/4", "d", 5), put_for("routes/5", "e", 5), put_for("routes/6", "f", 5)]);
    commit(&mut store, vec![put_for("routes/4", "d", 20), put("routes/5", "e"), delete("routes/6")]);
    assert_eq!(store.next_expiry(), Some(at(NOW + 10)));
    assert_eq!(store.expire(at(NOW + 9)).unwrap(), None);
    let batch = store.expire(at(NOW + 10)).unwrap().unwrap();
    assert_eq!(batch, Batch { revision: 4, events: vec![Event { key: key("routes/1"), document: None }] });
    assert_eq!(store.history(None, 1).unwrap()[0].author.name, "ttl");
    // Times to live outlive the process.
    store.close().unwrap();
    let mut store = EmbeddedStore::open(&folder.path().join("config.redb"), BOUNDS).unwrap();
    assert_eq!(store.next_expiry(), Some(at(NOW + 20)));
    let batch = store.expire(at(NOW + 1000)).unwrap().unwrap();
    let keys: Vec<&str> = batch.events.iter().map(|event| event.key.as_str()).collect();
    assert_eq!(keys, ["routes/2", "routes/4"]);
    assert_eq!((store.expire(at(NOW + 1000)).unwrap(), store.next_expiry()), (None, None));
    assert_eq!(values(&store).len(), 2);
}

#[test]
fn many_documents_expire_in_parts() {
    let Fixture { mut store, folder: _folder } = Fixture::new();
    let ids: Vec<usize> = (0..EXPIRED_AT_ONCE_MAX + 100).collect();
    for part in ids.chunks(WRITES_MAX) {
        commit(&mut store, part.iter().map(|id| put_for(&format!("routes/{id}"), "a", 1)).collect());
    }
    let mut expire = || store.expire(at(NOW + 1)).unwrap().map(|batch| batch.events.len());
    assert_eq!([expire(), expire(), expire()], [Some(EXPIRED_AT_ONCE_MAX), Some(100), None]);
}

#[test]
fn history_tells_who_did_what() {
    let Fixture { mut store, folder: _folder } = Fixture::new();
    commit(&mut store, vec![put("routes/1", "a")]);
    commit(&mut store, vec![put("routes/1", "b"), put("routes/2", "x")]);
    commit(&mut store, vec![delete("routes/1")]);
    let summary = |revision, keys: &[&str]| ChangeSummary {
        revision,
        unix_ms: NOW * 1000,
        author: author("ci"),
        keys: keys.iter().map(|text| key(text)).collect(),
        keys_total: keys.len(),
    };
    let (first, second) = (summary(1, &["routes/1"]), summary(2, &["routes/1", "routes/2"]));
    assert_eq!(store.history(None, 2).unwrap(), [summary(3, &["routes/1"]), second.clone()]);
    assert_eq!(store.history(Some(3), 9).unwrap(), [second, first]);
    assert_eq!(store.history(Some(1), 9).unwrap(), []);
    let edit = |text, before: Option<&str>, after: Option<&str>| Edit {
        key: key(text),
        before: before.map(Into::into),
        after: after.map(Into::into),
    };
    let edits = |revision| store.change_at(revision).unwrap().map(|change| change.edits);
    assert_eq!(edits(1), Some(vec![edit("routes/1", None, Some("a"))]));
    assert_eq!(edits(2), Some(vec![edit("routes/1", Some("a"), Some("b")), edit("routes/2", None, Some("x"))]));
    assert_eq!(edits(3), Some(vec![edit("routes/1", Some("b"), None)]));
    assert_eq!((edits(0), edits(4)), (None, None));
}

#[test]
fn history_is_bounded_by_count_and_age() {
    let bounds = HistoryBounds { history_changes_max: 3, history_age_max: Duration::from_secs(100) };
    let Fixture { mut store, folder: _folder } = Fixture::with(bounds);
    let mut commit_at = |seconds: u64| {
        let change = transaction(vec![put("routes/1", &seconds.to_string())]);
        store.commit(&change, at(NOW + seconds)).unwrap();
        store.history(None, 10).unwrap().iter().map(|change| change.revision).collect::<Vec<_>>()
    };
    assert_eq!([0, 1, 50].map(&mut commit_at), [vec![1], vec![2, 1], vec![3, 2, 1]]);
    assert_eq!(commit_at(60), [4, 3, 2]);
    assert_eq!(commit_at(151), [5, 4]);
    assert_eq!(commit_at(1000), [6]);
    let edit = &store.change_at(6).unwrap().unwrap().edits[0];
    assert_eq!((edit.before.as_deref(), edit.after.as_deref()), (Some("151"), Some("1000")));
    assert_eq!(store.way_back_to(4, now()).unwrap_err(), BackError::Pruned { oldest: 5 });
    assert_eq!(store.way_back_to(5, now()).unwrap().writes, [put("routes/1", "151")]);
}

#[test]
fn a_rollback_is_one_change_of_any_size() {
    let Fixture { mut store, folder: _folder } = Fixture::new();
    commit(&mut store, vec![put("routes/1", "a"), put("upstreams/1", "u"), put_for("routes/2", "t", 30)]);
    commit(&mut store, vec![put_for("routes/3", "soon", 5)]);
    let before = values(&store);
    for part in 0..3 {
        commit(&mut store, (0..100).map(|id| put(&format!("routes/x{part}-{id}"), "x")).collect());
    }
    commit(&mut store, vec![put("routes/1", "b"), delete("upstreams/1"), delete("routes/2")]);
    // Changed, and changed back.
    commit(&mut store, vec![put("routes/4", "d")]);
    commit(&mut store, vec![delete("routes/4")]);
    let current = store.revision();
    let WayBack { writes, expired } = store.way_back_to(2, at(NOW + 1)).unwrap();
    assert_eq!(expired, []);
    assert_eq!(writes.len(), 303);
    assert!(writes.contains(&put_for("routes/2", "t", 29)) && writes.contains(&put("upstreams/1", "u")));
    let error = store.roll_back(2, current - 1, &author("ops"), now()).unwrap_err();
    assert_eq!(error, BackError::Moved { current });
    let batch = store.roll_back(2, current, &author("ops"), at(NOW + 1)).unwrap();
    assert_eq!((batch.revision, batch.events.len()), (current + 1, 303));
    assert_eq!(values(&store), before);
    // The order by creation is restored.
    let created: Vec<u64> = store.snapshot().unwrap().documents.iter().map(|(_, document)| document.created).collect();
    assert_eq!(created, [1, 1, 2, 1]);
    assert_eq!(store.next_expiry(), Some(at(NOW + 5)));
    let summary = &store.history(None, 1).unwrap()[0];
    assert_eq!((summary.author.name.as_str(), summary.keys.len(), summary.keys_total), ("ops", SUMMARY_KEYS_MAX, 303));
    // A second rollback does nothing, and it can be undone itself.
    let again = store.roll_back(2, current + 1, &author("ops"), at(NOW + 1)).unwrap();
    assert_eq!(again, Batch { revision: current + 1, events: Vec::new() });
    assert_eq!(store.roll_back(current, current + 1, &author("ops"), at(NOW + 1)).unwrap().revision, current + 2);
    assert_eq!(values(&store).len(), 302);
    // To the beginning; documents that have expired meanwhile are not restored by going there and back.
    store.roll_back(0, current + 2, &author("ops"), at(NOW + 1)).unwrap();
    assert_eq!(values(&store), []);
    assert_eq!(store.way_back_to(2, at(NOW + 6)).unwrap().expired, [key("routes/3")]);
    store.roll_back(2, current + 3, &author("ops"), at(NOW + 6)).unwrap();
    assert_eq!(values(&store), before.into_iter().filter(|(key, _)| key != "routes/3").collect::<Vec<_>>());
    let error = store.way_back_to(current + 9, now()).unwrap_err();
    assert_eq!(error, BackError::Future { current: current + 4 });
}

#[test]
fn last_good_values_are_kept_until_the_document_goes() {
    let Fixture { mut store, folder } = Fixture::new();
    commit(&mut store, vec![put("routes/1", "a"), put("routes/2", "b")]);
    let good = |text: &str, value: &str| (key(text), Some(value.to_owned()));
    store.set_last_good(&[good("routes/1", "a"), good("routes/2", "b")]).unwrap();
    commit(&mut store, vec![put("routes/1", "bad")]);
    store.set_last_good(&[(key("routes/2"), None)]).unwrap();
    assert_eq!(store.revision(), 2);
    store.close().unwrap();
    let mut store = EmbeddedStore::open(&folder.path().join("config.redb"), BOUNDS).unwrap();
    assert_eq!(store.last_good().unwrap(), [(key("routes/1"), "a".to_owned())]);
    commit(&mut store, vec![delete("routes/1")]);
    assert_eq!(store.last_good().unwrap(), []);
}
