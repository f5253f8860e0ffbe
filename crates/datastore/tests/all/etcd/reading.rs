//! Lists and watches.

use crate::etcd::{PREFIX, client, key, options, run, texts};
use std::sync::atomic::{AtomicBool, Ordering};
use stillgate_datastore::Event;
use stillgate_datastore::etcd::{Etcd, EtcdError, EtcdOptions, EtcdWatchEvent, WatchStart};
use stillgate_testkit::{EtcdServer as Server, ReservedPort};

fn from(after: u64, cluster: u64) -> WatchStart {
    WatchStart { after, cluster, keys: None }
}

#[test]
fn a_list_of_many_pages_has_everything_in_order() {
    const COUNT: usize = 10_050;
    let server = Server::start();
    server.fill(0, (0..COUNT).map(|number| (format!("{PREFIX}/routes/{number:05}"), format!("{{\"id\":{number}}}"))));
    // Keys next to the prefix, on both sides.
    for beside in ["/apisix", "/apisix.", "/apisix0", "/apisixx/routes/1"] {
        server.put(0, beside, "no");
    }
    let begun = std::time::Instant::now();
    let listed = run(client(server.endpoint(0)).list()).unwrap();
    println!("{COUNT} documents in {:?}", begun.elapsed());
    assert_eq!(listed.snapshot.revision, server.revision(0));
    let expected = (0..COUNT).map(|number| (format!("routes/{number:05}"), format!("{{\"id\":{number}}}")));
    assert!(texts(&listed.snapshot).into_iter().eq(expected));
    let document = &listed.snapshot.documents[0].1;
    assert_eq!((document.created, document.modified), (2, 2));
}

#[test]
fn a_page_that_would_be_too_large_becomes_several() {
    // Small values that make large pages, followed by large ones: 93 MB of Base64.
    const SMALL: usize = 1000;
    const LARGE: usize = 70;
    let server = Server::start();
    let value = "x".repeat(1_000_000);
    server.fill(0, (0..SMALL).map(|number| (format!("{PREFIX}/routes/a{number:03}"), "x".to_owned())));
    for number in 0..LARGE {
        server.put(0, &format!("{PREFIX}/routes/b{number:02}"), &value);
    }
    let etcd = client(server.endpoint(0));
    let listed = run(etcd.list()).unwrap();
    let documents = &listed.snapshot.documents;
    assert_eq!(documents.len(), SMALL + LARGE);
    assert!(documents[..SMALL].iter().all(|(_, document)| &*document.value == "x"));
    assert!(documents[SMALL..].iter().all(|(_, document)| *document.value == *value));
    // A watch gets everything in one line.
    let error = run(async {
        let mut watch = etcd.watch(from(1, listed.cluster)).await.unwrap();
        // An etcd that takes long to answer says meanwhile that it is there.
        loop {
            if let Err(error) = watch.next().await {
                return error;
            }
        }
    });
    assert!(matches!(error, EtcdError::TooLarge { .. }), "{error}");
}

#[test]
fn a_list_is_of_one_revision_whatever_is_written_meanwhile() {
    let server = Server::start();
    server.fill(0, (0..5000).map(|number| (format!("{PREFIX}/routes/m{number}"), "{}".to_owned())));
    let (etcd, is_over) = (client(server.endpoint(0)), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The first and the last page are always equal.
            for number in 0.. {
                let value = number.to_string();
                let both = ["/apisix/routes/a", "/apisix/routes/z"].map(|key| (key, Some(&*value)));
                server.write(0, &both);
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
            }
        });
        let lists = (0..20).map(|_| run(etcd.list()));
        let lists: Vec<_> = lists.collect();
        is_over.store(true, Ordering::SeqCst);
        for listed in lists {
            let texts = texts(&listed.unwrap().snapshot);
            let (first, last) = (texts.first().unwrap(), texts.last().unwrap());
            assert!(first.0 != "routes/a" || (first.1 == last.1 && last.0 == "routes/z"), "{first:?} {last:?}");
        }
    });
}

#[test]
fn what_is_not_a_document_is_left_out() {
    let server = Server::start();
    server.put(0, "/apisix/routes/", "init_dir");
    server.put(0, "/apisix/services/", "");
    // APISIX serves it under an empty id.
    server.put(0, "/apisix/upstreams/", "{}");
    server.put(0, "/apisix/data_plane/server_info/0a1b", "{}");
    server.put(0, "/apisix/routes/1", "{}");
    server.put(0, "/apisix/routes/2", b"\xff\xfe");
    server.put(0, "/apisix/routes/3", "no JSON");
    let listed = run(client(server.endpoint(0)).list()).unwrap();
    // If values that are not text were left out, they would count as deleted.
    let refused = "(no text: byte 0 is not UTF-8; write JSON) \u{fffd}\u{fffd}";
    let expected = [("routes/1", "{}"), ("routes/2", refused), ("routes/3", "no JSON"), ("upstreams/", "{}")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(texts(&listed.snapshot), expected);
    assert_eq!(listed.unreadable.len(), 1);
    assert_eq!(listed.unreadable[0].key, "/apisix/routes/2");
    assert!(listed.unreadable[0].why.contains("byte 0 is not UTF-8"), "{:?}", listed.unreadable);
    let empty = run(Etcd::new(EtcdOptions { prefix: "/other".to_owned(), ..options(vec![server.endpoint(0)]) })
        .unwrap()
        .list());
    assert_eq!(texts(&empty.unwrap().snapshot), []);
}

#[test]
fn a_watch_brings_each_revision_in_one_batch() {
    let server = Server::start();
    server.put(0, "/apisix/routes/1", "a");
    let etcd = client(server.endpoint(0));
    let listed = run(etcd.list()).unwrap();
    let after = listed.snapshot.revision;
    let all = [("/apisix/routes/1", None), ("/apisix/routes/2", Some("b")), ("/apisix/services/1", Some("c"))];
    server.write(0, &all);
    server.put(0, "/other/routes/1", "no");
    server.put(0, "/apisix/routes/", "init_dir");
    server.put(0, "/apisix/routes/2", b"\xff");
    server.put(0, "/apisix/routes/2", "d");
    let found = run(async {
        let mut watch = etcd.watch(from(after, listed.cluster)).await.unwrap();
        let mut found = Vec::new();
        while found.last().is_none_or(|(revision, _): &(u64, _)| *revision < after + 5) {
            if let EtcdWatchEvent::Batch(batch) = watch.next().await.unwrap() {
                found.push((batch.revision, batch.events.iter().map(text).collect::<Vec<_>>()));
            }
        }
        found
    });
    let all = vec![
        "routes/1 gone".to_owned(),
        format!("routes/2=b {0} {0}", after + 1),
        format!("services/1=c {0} {0}", after + 1),
    ];
    let expected = [
        (after, vec![format!("routes/1=a {after} {after}")]),
        (after + 1, all),
        (after + 3, vec!["routes/ gone".to_owned()]),
        (
            after + 4,
            vec![format!("routes/2=(no text: byte 0 is not UTF-8; write JSON) \u{fffd} {} {}", after + 1, after + 4)],
        ),
        (after + 5, vec![format!("routes/2=d {} {}", after + 1, after + 5)]),
    ];
    assert_eq!(found, expected);
}

fn text(event: &Event) -> String {
    match &event.document {
        Some(document) => format!("{}={} {} {}", event.key, document.value, document.created, document.modified),
        None => format!("{} gone", event.key),
    }
}

#[test]
fn a_history_that_is_not_there_is_an_error() {
    let server = Server::start();
    server.put(0, "/apisix/routes/1", "a");
    let etcd = client(server.endpoint(0));
    let listed = run(etcd.list()).unwrap();
    let (at, cluster) = (listed.snapshot.revision, listed.cluster);
    let deleted = server.delete(0, "/apisix/routes/1");
    server.compact(0, deleted);
    let watch = |after, cluster| {
        run(async {
            match etcd.watch(from(after, cluster)).await {
                Ok(mut watch) => watch.next().await.unwrap_err(),
                Err(error) => error,
            }
        })
    };
    assert_eq!(watch(at, cluster), EtcdError::Compacted { oldest: Some(deleted) });
    assert!(matches!(watch(deleted + 1, cluster), EtcdError::Replaced { .. }));
    assert!(matches!(watch(deleted, cluster + 1), EtcdError::Replaced { .. }));
}

#[test]
fn progress_is_reported_where_nothing_changes() {
    let arguments = vec!["--experimental-watch-progress-notify-interval=100ms".to_owned()];
    let server = Server::start_with(&stillgate_testkit::EtcdSetup { arguments, ..Default::default() });
    server.put(0, "/apisix/routes/1", "a");
    let etcd = client(server.endpoint(0));
    let listed = run(etcd.list()).unwrap();
    let elsewhere = server.put(0, "/elsewhere", "b");
    run(async {
        let mut watch = etcd.watch(from(listed.snapshot.revision, listed.cluster)).await.unwrap();
        while watch.next().await.unwrap() != EtcdWatchEvent::Progress(elsewhere) {}
    });
}

#[test]
fn an_endpoint_that_is_away_or_no_etcd_is_passed_over() {
    let (server, nobody) = (Server::start(), ReservedPort::new());
    server.put(0, "/apisix/routes/1", "{}");
    let other = stillgate_testkit::Upstream::serve(|connection| {
        connection.read_request().expect("a request");
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nOK");
    });
    let (away, wrong) = (format!("http://{}", nobody.addr()), format!("http://{}", other.addr()));
    let etcd = Etcd::new(options(vec![away.clone(), wrong.clone(), server.endpoint(0)])).unwrap();
    for _ in 0..6 {
        assert!(run(etcd.list()).unwrap().snapshot.documents.iter().any(|(found, _)| *found == key("routes/1")));
    }
    let message = run(client(away.clone()).list()).unwrap_err().to_string();
    assert!(
        message.starts_with(&format!("etcd at {away}: cannot connect: ")) && message.contains("is it up"),
        "{message}"
    );
    let message = run(client(wrong.clone()).list()).unwrap_err().to_string();
    assert!(message.starts_with(&format!("{wrong} does not answer like etcd")), "{message}");
}
