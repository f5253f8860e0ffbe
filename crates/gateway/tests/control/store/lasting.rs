//! What is served stays served while files of certificates and secrets are being replaced, and an upgrade never serves less.

use super::stage::{Admin, KEY, STORE, Stage, upstream};
use crate::shared::authority::Authority;
use crate::shared::upgrade::UpgradedGateway;
use serde_json::{Value as Json, json};
use std::fs;
use stillgate_testkit::{Client, EtcdServer, ReservedPort, Setup, Upstream, eventually};

fn status(admin: &Admin) -> Json {
    let answer = admin.ask("GET", "/v1/status", "");
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// Resources that are not served as they were put.
fn rejected(admin: &Admin) -> Json {
    status(admin)["rejected"].clone()
}

#[test]
fn certificates_stay_while_their_files_are_replaced_beside_other_changes() {
    let (mut stage, authority, node) = (Stage::start(), Authority::new(), ReservedPort::new());
    let ca = stage.gateway.dir().join("ca.pem");
    let good = fs::read(authority.file("ca.pem")).expect("the authority's file");
    fs::write(&ca, &good).expect("write");
    let mut secure = upstream(node.addr());
    secure["scheme"] = "https".into();
    secure["tls"] = json!({ "ca": ca });
    stage.admin.put("upstreams/secure", &secure);
    stage.admin.put("routes/secure", &json!({ "uri": "/secure", "upstream_id": "secure" }));
    // Nothing listens there.
    assert_eq!(stage.get("/secure"), 502);
    let write_another = |name: &str| {
        let revision = stage.admin.revision();
        stage.admin.put(&format!("upstreams/{name}"), &upstream(node.addr()));
        eventually("the change to be served", || stage.admin.revision() > revision);
    };
    let last_error = || status(&stage.admin)["config"]["last_error"].clone();
    fs::write(&ca, "").expect("write");
    eventually("the reason in the status", || last_error().to_string().contains("what was read before stays in use"));
    write_another("one");
    assert_eq!((stage.get("/secure"), rejected(&stage.admin)), (502, json!([])));
    assert!(last_error().to_string().contains("ca.pem"), "{}", last_error());
    fs::write(&ca, &good).expect("write");
    eventually("the end of the error", || last_error().is_null());
    write_another("two");
    assert_eq!((stage.get("/secure"), rejected(&stage.admin)), (502, json!([])));

    // A start without the file has nothing to go on with, until there is one.
    fs::remove_file(&ca).expect("remove");
    stage.restart("KILL");
    assert_eq!(stage.get("/secure"), 503);
    fs::write(&ca, &good).expect("write");
    eventually("the upstream to be served", || rejected(&stage.admin) == json!([]));
    assert_eq!(stage.get("/secure"), 502);
}

#[test]
fn secrets_stay_while_their_files_are_replaced() {
    let (stage, node) = (Stage::start(), Upstream::echo());
    let file = stage.gateway.dir().join("key");
    fs::write(&file, "first").expect("write");
    let secret = format!("$secret://file{}", file.display());
    stage.admin.put("consumers/jack", &json!({ "username": "jack", "plugins": { "key-auth": { "key": secret } } }));
    let route = json!({ "uri": "/*", "plugins": { "key-auth": {} }, "upstream": upstream(node.addr()) });
    stage.admin.put("routes/1", &route);
    let answered = |key: &str| {
        let mut client = Client::connect(stage.gateway.addr());
        client.send(format!("GET / HTTP/1.1\r\nHost: h\r\napikey: {key}\r\n\r\n"));
        client.expect_response("GET").head.status()
    };
    eventually("the consumer", || answered("first") == 200);
    for spoil in [|file: &std::path::Path| fs::write(file, ""), |file: &std::path::Path| fs::remove_file(file)] {
        spoil(&file).expect("spoil");
        eventually("a warning", || stage.gateway.log().contains("a secret can no longer be read"));
        stage.admin.put("upstreams/other", &upstream(node.addr()));
        assert_eq!((answered("first"), rejected(&stage.admin)), (200, json!([])));
    }
    fs::write(&file, "second").expect("write");
    eventually("the new secret", || answered("second") == 200);
    assert_eq!(answered("first"), 401);
}

#[test]
fn an_upgrade_creates_no_store() {
    let node = Upstream::echo();
    let setup = Setup::resources("").gateway(STORE).admin(&format!("key: {KEY}"));
    let upgraded = UpgradedGateway::start(&setup);
    let admin = Admin { addr: upgraded.gateway.admin_addr(), key: KEY.to_owned() };
    admin.put("routes/1", &json!({ "uri": "/*", "upstream": upstream(node.addr()) }));
    let (store, elsewhere) = (upgraded.gateway.dir().join("config.redb"), upgraded.gateway.dir().join("gone.redb"));
    fs::rename(&store, &elsewhere).expect("move");
    // What is written now would be gone after a restart.
    let lost = admin.ask(
        "PUT",
        "/apisix/admin/routes/2",
        &json!({ "uri": "/2", "upstream": upstream(node.addr()) }).to_string(),
    );
    assert!(lost.status == 503 && lost.text().contains("put the file back"), "{lost:?}");
    let refused = upgraded.try_upgrade();
    assert!(!refused.status.success() && !store.exists(), "{refused:?}");
    assert!(upgraded.gateway.log().contains("an upgrade does not create one"), "{}", upgraded.gateway.log());
    assert_eq!(upgraded.gateway.get("/").head.status(), 200);
    fs::rename(&elsewhere, &store).expect("move");
    eventually("the store to be taken again", || status(&admin)["source_error"].is_null());
    admin.put("routes/2", &json!({ "uri": "/2", "upstream": upstream(node.addr()) }));
    upgraded.upgrade();
    assert_eq!(upgraded.gateway.get("/").head.status(), 200);
}

#[test]
fn an_upgrade_that_cannot_read_what_is_served_is_refused() {
    let (mut etcd, node) = (EtcdServer::start(), Upstream::echo());
    let endpoint = etcd.endpoint(0);
    let setup =
        Setup::resources("").gateway(&format!("config: {{source: etcd, etcd: {{endpoints: [\"{endpoint}\"]}}}}"));
    let upgraded = UpgradedGateway::start(&setup);
    let route = json!({ "uri": "/*", "upstream": upstream(node.addr()) });
    etcd.put(0, "/apisix/routes/1", route.to_string());
    eventually("the route", || upgraded.gateway.get("/").head.status() == 200);
    etcd.kill(0);
    let refused = upgraded.try_upgrade();
    assert!(!refused.status.success(), "{refused:?}");
    assert!(upgraded.gateway.log().contains("not upgraded: the running process serves revision"), "{refused:?}");
    assert_eq!(upgraded.gateway.get("/").head.status(), 200);
    etcd.start_again(0);
    eventually("the return", || upgraded.gateway.status()["source_error"].is_null());
    upgraded.upgrade();
    assert_eq!(upgraded.gateway.get("/").head.status(), 200);
}

#[test]
fn an_upgrade_that_would_reject_what_is_served_is_refused() {
    let node = Upstream::echo();
    let setup = Setup::resources("").gateway(STORE).admin(&format!("key: {KEY}"));
    let upgraded = UpgradedGateway::start(&setup);
    let admin = Admin { addr: upgraded.gateway.admin_addr(), key: KEY.to_owned() };
    let file = upgraded.gateway.dir().join("key");
    fs::write(&file, "a-key").expect("write");
    let secret = format!("$secret://file{}", file.display());
    let route = json!({ "uri": "/*", "plugins": { "csrf": { "key": secret } }, "upstream": upstream(node.addr()) });
    admin.put("routes/1", &route);
    eventually("the route", || upgraded.gateway.get("/").head.status() == 200);
    fs::remove_file(&file).expect("remove");
    let refused = upgraded.try_upgrade();
    assert!(!refused.status.success(), "{refused:?}");
    assert!(
        upgraded
            .gateway
            .log()
            .contains("not upgraded: resources that are not served: 1, and with the running process 0"),
        "{}",
        upgraded.gateway.log()
    );
    assert_eq!(upgraded.gateway.get("/").head.status(), 200);
    fs::write(&file, "a-key").expect("write");
    upgraded.upgrade();
    assert_eq!(upgraded.gateway.get("/").head.status(), 200);
}
