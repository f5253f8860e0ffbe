//! Starts and ends with an etcd: without one, with a snapshot, and what is written for the next start.

use super::*;
use crate::shared::STILLGATE;

#[test]
fn a_start_without_etcd_answers_503_until_it_is_there() {
    let (mut etcd, node) = (EtcdServer::start(), Upstream::echo());
    write(&etcd, "routes/1", &route("/*", node.addr()));
    etcd.kill(0);
    let mut gateway = start(&etcd, 1);
    assert_eq!((status(&gateway, "/"), health(&gateway)), (503, 503));
    let (log, place) = (gateway.log(), format!("etcd at {}", etcd.endpoint(0)));
    let (waiting, starting) = (log.find(&format!("waiting for {place}")), log.find("\"starting\""));
    assert!(waiting.is_some() && waiting < starting, "{log}");
    assert!(log.contains("no snapshot is configured") && log.contains("refused"), "{log}");
    let why = gateway.status()["source_error"].to_string();
    assert!(why.contains(&place) && why.contains("refused"), "{why}");
    // Unread resources are not the same as none.
    let one = route("/*", node.addr());
    for (line, body) in [
        ("GET /apisix/admin/routes", &Value::Null),
        ("GET /apisix/admin/routes/1", &Value::Null),
        ("GET /apisix/admin/configs", &Value::Null),
        ("PUT /apisix/admin/routes/1", &one),
        ("PATCH /apisix/admin/routes/1", &one),
        ("DELETE /apisix/admin/routes/1", &Value::Null),
        ("POST /v1/batch", &json!([])),
    ] {
        let (status, head, answer) = ask(&gateway, line, "", body);
        assert_eq!((status, head.get("retry-after")), (503, Some("1")), "{line}: {answer}");
        assert!(answer["error_msg"].as_str().is_some_and(|why| why.contains("not been read")), "{line}: {answer}");
    }
    etcd.start_again(0);
    await_status(&gateway, "/", 200);
    assert_eq!(ask(&gateway, "GET /apisix/admin/routes/1", "", &Value::Null).0, 200);
    assert_eq!(health(&gateway), 200);
    gateway.assert_healthy();
}

#[test]
fn a_start_without_etcd_serves_the_snapshot() {
    let (mut etcd, node) = (EtcdServer::start(), Upstream::echo());
    write(&etcd, "routes/1", &route("/one", node.addr()));
    write(&etcd, "routes/2", &route("/two", node.addr()));
    let setup = setup(&endpoints(&etcd, 1), ", snapshot: \"{dir}/snapshot\"");
    let mut gateway = Gateway::start(STILLGATE, &setup);
    // The resource is refused from now on: its earlier version is served, after a start too.
    write(&etcd, "routes/2", &json!({"uri": "/two", "plugins": {"no-such-plugin": {}}}));
    let expected = [("routes".to_owned(), "2".to_owned(), "previous".to_owned())];
    eventually("the refusal", || rejected(&gateway) == expected);
    let revision = etcd.revision(0);
    eventually("the snapshot", || gateway.log().contains(&format!("\"revision\":{revision},")));
    for is_killed in [true, false] {
        gateway.signal(if is_killed { "KILL" } else { "TERM" });
        gateway.wait();
        if is_killed {
            etcd.kill(0);
        }
        gateway.restart(STILLGATE);
        assert_eq!((status(&gateway, "/one"), status(&gateway, "/two"), health(&gateway)), (200, 200, 200));
        assert_eq!(rejected(&gateway), expected);
        let told = gateway.status()["source_error"].as_str().map(str::to_owned);
        assert!(told.is_some(), "{}", gateway.status());
    }
    etcd.start_again(0);
    write(&etcd, "routes/3", &route("/three", node.addr()));
    await_status(&gateway, "/three", 200);
    assert!(gateway.status()["source_error"].is_null());
    // A start with etcd serves the last good version, too.
    gateway.signal("TERM");
    gateway.wait();
    gateway.restart(STILLGATE);
    assert_eq!((status(&gateway, "/two"), rejected(&gateway)), (200, expected.to_vec()));
}

#[test]
fn a_prefix_without_resources_is_reported() {
    let (etcd, node) = (EtcdServer::start(), Upstream::echo());
    write(&etcd, "routes/1", &route("/one", node.addr()));
    write(&etcd, "plugins", &json!([{"name": "cors"}]));
    let gateway = start(&etcd, 1);
    eventually("a line of what was read", || gateway.log().contains("\"resources\":1,\"prefix\":\"/apisix\""));
    let other = Gateway::start(STILLGATE, &setup(&endpoints(&etcd, 1), ", prefix: /apisex"));
    let log = other.log();
    let line = log.lines().find(|line| line.contains("no resource below the prefix")).expect("a line");
    assert!(line.contains("WARN") && line.contains("\"prefix\":\"/apisex\""), "{line}");
}

#[test]
fn a_snapshot_that_cannot_be_used_is_distinguished_from_none() {
    let mut etcd = EtcdServer::start();
    let setup = setup(&endpoints(&etcd, 1), ", snapshot: \"{dir}/snapshot\"");
    etcd.kill(0);
    let mut gateway = Gateway::start(STILLGATE, &setup);
    eventually("a warning", || gateway.log().contains("there is no snapshot yet"));
    let file = gateway.dir().join("snapshot");
    gateway.signal("TERM");
    gateway.wait();
    assert!(!file.exists(), "nothing was read");
    std::fs::write(&file, "{\"format\": \"stillgate").expect("write");
    gateway.restart(STILLGATE);
    let log = gateway.log();
    assert!(log.contains("the snapshot cannot be used (") && log.contains("it is cut off"), "{log}");
    assert_eq!(log.matches("there is no snapshot yet").count(), 1, "{log}");
    etcd.start_again(0);
    eventually("etcd", || gateway.status()["source_error"].is_null());
}

#[test]
fn what_was_written_last_is_in_the_snapshot_of_a_process_that_ends() {
    let (mut etcd, node) = (EtcdServer::start(), Upstream::echo());
    let setup = setup(&endpoints(&etcd, 1), ", snapshot: \"{dir}/snapshot\"");
    let mut gateway = Gateway::start(STILLGATE, &setup);
    for number in 0..3 {
        put(&gateway, "routes/1", &route(&format!("/v{number}"), node.addr()));
        gateway.signal("TERM");
        gateway.wait();
        etcd.kill(0);
        gateway.restart(STILLGATE);
        assert_eq!(status(&gateway, &format!("/v{number}")), 200);
        etcd.start_again(0);
        eventually("the return", || gateway.status()["source_error"].is_null());
    }
}

/// Secrets are encrypted in it, also those that were written to etcd in plain text.
#[test]
fn a_snapshot_has_no_secret_in_plain() {
    let (mut etcd, node) = (EtcdServer::start(), Upstream::echo());
    let keys = ", snapshot: \"{dir}/snapshot\"";
    let setup = setup(&endpoints(&etcd, 1), keys).gateway("data_encryption: {keyring: [edd1c9f0985e76a2]}");
    let mut gateway = Gateway::start(STILLGATE, &setup);
    let consumer = |name: &str, key: &str| json!({"username": name, "plugins": {"key-auth": {"key": key}}});
    put(&gateway, "consumers/jack", &consumer("jack", "secret-by-the-api"));
    write(&etcd, "consumers/jill", &consumer("jill", "secret-in-plain"));
    let mut plain = route("/one", node.addr());
    plain["plugins"] = json!({"key-auth": {}});
    write(&etcd, "routes/1", &plain);
    for key in ["secret-by-the-api", "secret-in-plain"] {
        await_status(&gateway, &format!("/one?apikey={key}"), 200);
    }
    gateway.signal("TERM");
    gateway.wait();
    let snapshot = std::fs::read(gateway.dir().join("snapshot")).expect("the snapshot");
    let has = |text: &str| snapshot.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has("jack") && has("jill"), "it is not compressed");
    assert!(!has("secret-by-the-api") && !has("secret-in-plain"));
    // It is read again without etcd.
    etcd.kill(0);
    gateway.restart(STILLGATE);
    for key in ["secret-by-the-api", "secret-in-plain"] {
        assert_eq!(status(&gateway, &format!("/one?apikey={key}")), 200, "{key}");
    }
}
