//! Servers at the address of the Admin API that are something else: nothing is read from them, and nothing counts as written to
//! them.

use crate::shared::authority::Authority;
use crate::transfer::{KEY, Site, run, server};
use stillgate_testkit::ReservedPort;

const FILE: &str = "routes:\n  - {id: a, uri: /a, upstream: {nodes: {\"127.0.0.1:9\": 1}}}\n";

/// Checks that every command that uses this address ends with 1 and says so.
#[track_caller]
fn refused(site: &Site, url: &str, expected: &[&str]) {
    let file = site.file("routes.yaml", FILE).display().to_string();
    let copy = site.path("copy.redb");
    let backup = copy.display().to_string();
    for arguments in [
        &["export", "--from", url][..],
        &["diff", &file, "--to", url],
        &["apply", &file, "--to", url],
        &["apply", &file, "--to", url, "--dry-run"],
        &["store", "backup", &backup, "--to", url],
    ] {
        let done = run(KEY, arguments).expect(1);
        for expected in expected {
            let expected =
                if arguments[0] == "export" { expected.replace("--to", "--from") } else { (*expected).into() };
            assert!(done.err.contains(&expected), "{arguments:?}: {expected}: {done:?}");
        }
        assert_eq!(done.out, "", "{arguments:?}: {done:?}");
    }
    assert!(!copy.exists(), "{url}");
}

#[test]
fn the_traffic_is_not_the_admin_api() {
    let site = Site::new();
    let url = format!("http://{}", site.gateway.addr());
    refused(&site, &url, &["this is not the Admin API: ", " was answered 404 Not Found", "gateway.admin with --to"]);
    let ui = format!("{}/ui/", site.url());
    refused(&site, &ui, &["this is not the Admin API: ", "leave the path out of --to"]);
    let below = format!("{}/apisix/admin", site.url());
    refused(&site, &below, &["this is not the Admin API: ", "leave the path out of --to"]);
}

#[test]
fn a_server_that_answers_everything_is_not_the_admin_api() {
    let site = Site::new();
    let expected = ["this is not the Admin API: ", " was answered 200 OK by any/1", "gateway.admin with --to"];
    for answer in [
        |_: &str| (200, "<html>Welcome</html>".to_owned()),
        |_: &str| (200, "{}".to_owned()),
        |_: &str| (200, "[]".to_owned()),
        |_: &str| (200, String::new()),
    ] {
        refused(&site, &server("any/1", answer), &expected);
    }
}

/// An address that can be read, but answers writes in another form than the Admin API.
#[test]
fn a_write_that_is_not_answered_by_the_admin_api_is_not_made() {
    let site = Site::new();
    let file = site.file("routes.yaml", FILE).display().to_string();
    let apply = |answer| run(KEY, &["apply", &file, "--to", &server("any/1", answer)]).expect(1);
    let ok = apply(|target| (200, if target.contains("configs") { "{\"a_conf_version\":1}" } else { "{}" }.to_owned()));
    assert!(ok.err.contains("POST /v1/batch was answered 200 OK by any/1 ({})"), "{ok:?}");
    assert!(ok.err.contains("0 of 1 changes were made") && ok.err.ends_with("Check --to\n"), "{ok:?}");
    assert_eq!(ok.summary(), "0 created, 0 changed, 0 deleted, 0 unchanged");
    let absent = apply(|target| match target.contains("configs") {
        true => (200, "{\"a_conf_version\":1}".to_owned()),
        false => (404, String::new()),
    });
    assert!(absent.err.contains("POST /v1/batch was answered 404 Not Found by any/1;"), "{absent:?}");
}

#[test]
fn a_server_that_speaks_tls_or_wants_a_certificate_is_distinguished() {
    let authority = Authority::new();
    authority.issue("server", &["127.0.0.1"]);
    let dir = authority.dir().display();
    let admin = format!(
        "  tls: {{cert: \"{dir}/server.pem\", key: \"{dir}/server.key\", client_ca: \"{dir}/ca.pem\"}}\n\
         config: {{source: store, store: \"{{dir}}/config.redb\"}}"
    );
    let site = Site::with(&admin);
    let plain = run(KEY, &["export", "--from", site.url()]).expect(1);
    assert!(plain.err.contains("if it speaks TLS, write https://"), "{plain:?}");
    let url = site.url().replace("http://", "https://");
    let unknown = run(KEY, &["export", "--from", &url]).expect(1);
    assert!(unknown.err.contains("; name its CA with --ca FILE"), "{unknown:?}");
    let ca = format!("{dir}/ca.pem");
    let unshown = run(KEY, &["export", "--from", &url, "--ca", &ca]).expect(1);
    assert!(unshown.err.contains("; present one with --client-cert and --client-key"), "{unshown:?}");
    let closed = format!("http://{}", ReservedPort::new().addr());
    let nobody = run(KEY, &["export", "--from", &closed]).expect(1);
    assert!(nobody.err.contains("; is a gateway running there, with gateway.admin?"), "{nobody:?}");
}
