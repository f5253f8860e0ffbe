//! Transactions.

use crate::etcd::{client, impatient, key, options, run, texts};
use std::net::TcpListener;
use std::time::{Duration, Instant};
use stillgate_datastore::etcd::{Etcd, EtcdOptions};
use stillgate_datastore::{Author, CommitError, Condition, Document, Event, ReferenceCheck, Transaction, Write};
use stillgate_testkit::{EtcdServer as Server, ReservedPort, eventually};

fn put(path: &str, value: &str) -> Write {
    Write::Put { key: key(path), value: value.to_owned(), ttl_seconds: None }
}

fn delete(path: &str) -> Write {
    Write::Delete { key: key(path) }
}

fn transaction(conditions: &[(&str, Condition)], writes: Vec<Write>) -> Transaction {
    let conditions = conditions.iter().map(|(path, condition)| (key(path), *condition)).collect();
    Transaction { conditions, unreferenced: Vec::new(), writes, author: Author::default() }
}

#[test]
fn a_transaction_is_made_whole_or_not_at_all() {
    let server = Server::start();
    let etcd = client(server.endpoint(0));
    let commit = |conditions: &[_], writes| run(etcd.commit(&transaction(conditions, writes)));
    let first = commit(&[("routes/1", Condition::Absent)], vec![put("routes/1", "a"), put("routes/2", "b")]).unwrap();
    let event = |path, document| Event { key: key(path), document };
    let document = |value: &str, created, modified| Some(Document { value: value.into(), created, modified });
    let at = first.revision;
    assert_eq!(first.events, [event("routes/1", document("a", at, at)), event("routes/2", document("b", at, at))]);

    let conflict = |path, modified| Err(CommitError::Conflict { key: key(path), modified });
    assert_eq!(commit(&[("routes/1", Condition::Absent)], vec![delete("routes/2")]), conflict("routes/1", Some(at)));
    assert_eq!(commit(&[("routes/3", Condition::Present)], vec![delete("routes/2")]), conflict("routes/3", None));
    let conditions = [("routes/1", Condition::Modified(at)), ("routes/2", Condition::Modified(at - 1))];
    assert_eq!(commit(&conditions, vec![delete("routes/1")]), conflict("routes/2", Some(at)));
    assert_eq!(commit(&[("routes/3", Condition::Modified(at))], vec![delete("routes/1")]), conflict("routes/3", None));
    assert_eq!(texts(&run(etcd.list()).unwrap().snapshot).len(), 2, "nothing of them was made");

    let conditions = [("routes/1", Condition::Modified(at)), ("routes/2", Condition::Present)];
    let writes = vec![put("routes/1", "c"), delete("routes/2"), delete("routes/3")];
    let second = commit(&conditions, writes).unwrap();
    let changed = second.revision;
    assert_eq!(changed, at + 1);
    assert_eq!(second.events, [event("routes/1", document("c", at, changed)), event("routes/2", None)]);
    assert_eq!(run(etcd.list()).unwrap().snapshot.documents, [(key("routes/1"), document("c", at, changed).unwrap())]);
}

#[test]
fn nothing_may_be_written_since_below_a_path() {
    let server = Server::start();
    let etcd = client(server.endpoint(0));
    let commit = |unreferenced: &[(&str, u64)], writes| {
        let condition = |(below, since): &(&str, u64)| ReferenceCheck {
            below: (*below).to_owned(),
            since: *since,
            mentions: vec!["not looked for".to_owned()],
        };
        let unreferenced = unreferenced.iter().map(condition).collect();
        run(etcd.commit(&Transaction { unreferenced, ..transaction(&[("upstreams/u", Condition::Present)], writes) }))
    };
    let put_all = vec![put("upstreams/u", "x"), put("routes/1", "a"), put("routes1/1", "no"), put("services/1", "b")];
    let first = run(etcd.commit(&transaction(&[], put_all))).unwrap().revision;
    let second = run(etcd.commit(&transaction(&[], vec![put("routes/2", "c")]))).unwrap().revision;
    let conflict = |path, modified| Err(CommitError::Conflict { key: key(path), modified: Some(modified) });
    let gone = || vec![delete("upstreams/u")];
    assert_eq!(commit(&[("services/", second), ("routes/", first)], gone()), conflict("routes/2", second));
    assert_eq!(commit(&[("services/", first - 1)], gone()), conflict("services/1", first));
    assert_eq!(commit(&[("routes/", second), ("routes/", first)], gone()), conflict("routes/2", second));
    assert_eq!(texts(&run(etcd.list()).unwrap().snapshot).len(), 5, "nothing of them was made");
    let done = commit(&[("routes/", second), ("services/", first), ("protos/", 0)], gone());
    assert_eq!(done.unwrap().revision, second + 1);
}

#[test]
fn of_writers_at_once_one_wins() {
    let server = Server::start();
    server.put(0, "/apisix/routes/1", "0");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let etcd = client(server.endpoint(0));
                for _ in 0..25 {
                    // Adds one, however often it takes.
                    while !run(async {
                        let listed = etcd.list().await.unwrap();
                        let (key, document) = &listed.snapshot.documents[0];
                        let value = (document.value.parse::<u32>().unwrap() + 1).to_string();
                        let conditions = [(key.as_str(), Condition::Modified(document.modified))];
                        match etcd.commit(&transaction(&conditions, vec![put(key.as_str(), &value)])).await {
                            Ok(_) => true,
                            Err(CommitError::Conflict { .. }) => false,
                            Err(error) => panic!("{error}"),
                        }
                    }) {}
                }
            });
        }
    });
    let listed = run(client(server.endpoint(0)).list()).unwrap();
    assert_eq!(texts(&listed.snapshot), [("routes/1".to_owned(), "100".to_owned())]);
}

#[test]
fn what_is_too_large_is_refused() {
    let server = Server::start();
    let etcd = client(server.endpoint(0));
    let commit = |writes| run(etcd.commit(&transaction(&[], writes)));
    let many = |count: usize| (0..count).map(|number| put(&format!("routes/{number}"), "{}")).collect::<Vec<_>>();
    assert!(matches!(commit(many(129)), Err(CommitError::TooLarge(why)) if why.contains("129 writes")));
    for bytes in [1_600_000, 3_000_000] {
        let refused = commit(vec![put("routes/1", &"x".repeat(bytes))]);
        let Err(CommitError::TooLarge(why)) = refused else { panic!("{bytes}: {refused:?}") };
        assert!(why.ends_with("nothing was changed"), "{why}");
    }
    let endless = Write::Put { key: key("routes/1"), value: "{}".to_owned(), ttl_seconds: Some(u64::MAX / 2) };
    assert!(matches!(commit(vec![endless]), Err(CommitError::TooLarge(_))));
    assert_eq!(run(etcd.list()).unwrap().snapshot.documents, []);
    assert_eq!(commit(many(128)).unwrap().events.len(), 128);
}

#[test]
fn a_document_with_a_time_to_live_goes_by_itself() {
    let server = Server::start();
    let etcd = client(server.endpoint(0));
    let mortal = |path| Write::Put { key: key(path), value: "{}".to_owned(), ttl_seconds: Some(1) };
    let writes = vec![mortal("routes/1"), put("routes/2", "{}"), mortal("routes/3")];
    assert_eq!(run(etcd.commit(&transaction(&[], writes))).unwrap().events.len(), 3);
    eventually("it to be gone", || {
        texts(&run(etcd.list()).unwrap().snapshot) == [("routes/2".to_owned(), "{}".to_owned())]
    });
}

#[test]
fn without_an_answer_it_is_unknown_whether_it_was_made() {
    let server = Server::start();
    let etcd = Etcd::new(impatient(vec![server.endpoint(0)])).unwrap();
    let commit = |etcd: &Etcd, value| match run(etcd.commit(&transaction(&[], vec![put("routes/1", value)]))) {
        Err(CommitError::Unavailable(why)) => why,
        other => panic!("{other:?}"),
    };
    // Over a new connection a read would come first, and nothing of the write would be sent.
    let (before, change) = (transaction(&[], vec![put("routes/1", "b")]), transaction(&[], vec![put("routes/1", "a")]));
    let result = run(async {
        etcd.commit(&before).await.unwrap();
        server.process(0).signal("STOP");
        etcd.commit(&change).await
    });
    let Err(CommitError::Unavailable(why)) = result else { panic!("{result:?}") };
    assert!(why.contains("no answer within 2000 ms; it is unknown whether the change was made"), "{why}");
    server.process(0).signal("CONT");
    eventually("etcd to answer again", || run(etcd.list()).is_ok());
    let nobody = ReservedPort::new();
    let why = commit(&client(format!("http://{}", nobody.addr())), "a");
    assert!(why.contains("cannot connect") && why.ends_with("nothing was changed"), "{why}");
}

#[test]
fn writes_that_wait_while_etcd_hangs_are_refused_together() {
    // They accept connections, and say nothing.
    let silent = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let endpoints = silent.iter().map(|silent| format!("http://{}", silent.local_addr().unwrap())).collect();
    let request_timeout = Duration::from_millis(300);
    let etcd = Etcd::new(EtcdOptions { request_timeout, ..options(endpoints) }).unwrap();
    let change = transaction(&[], vec![put("routes/1", "{}")]);
    let arrived = Instant::now();
    let told = |arrived| run(etcd.commit_queued(&change, arrived)).unwrap_err().to_string();
    let told_all = [(); 8].map(|()| told(arrived));
    let sent = told_all.iter().take_while(|told| told.contains("no answer within")).count();
    assert!((1..=2).contains(&sent), "until each endpoint was silent: {told_all:?}");
    let are_refused = |told: &String| told.contains("has not answered") && told.ends_with("nothing was changed");
    assert!(told_all[sent..].iter().all(are_refused), "{told_all:?}");
    // One that has not waited is sent.
    assert!(told(Instant::now()).contains("no answer within"));
}
