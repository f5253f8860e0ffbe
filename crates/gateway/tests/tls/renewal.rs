//! Parts of TLS that are replaced while the gateway runs, besides a server's certificate: OCSP responses, the certificate that
//! nodes are shown, the authorities that nodes must have; and sessions that outlive a reload.

use crate::shared::STILLGATE;
use crate::shared::authority::Authority;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, date_time_ymd};
use std::net::SocketAddr;
use stillgate_testkit::{BufferedSocket, Gateway, Nginx, Setup, Upstream, eventually, run_tool};

const NAME: &str = "shop.example.com";

fn openssl(script: &str, arguments: &[&str]) -> String {
    let words = [&["-c", script, "sh"][..], arguments].concat();
    let output = run_tool("sh", "dash", &words);
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// One request by OpenSSL's client, and its whole output about the connection.
fn connect(gateway: &Gateway, authority: &Authority, further: &[&str]) -> String {
    let request = format!("GET / HTTP/1.1\\r\\nHost: {NAME}\\r\\nConnection: close\\r\\n\\r\\n");
    let script = format!("printf '{request}' | timeout 300 openssl s_client -ign_eof \"$@\" 2>&1");
    let (at, ca) = (gateway.addr().to_string(), authority.path("ca.pem"));
    openssl(&script, &[&["-connect", &*at, "-servername", NAME, "-CAfile", &ca][..], further].concat())
}

/// A response with the status of the certificate `shop.pem`, valid for so many days.
fn ocsp_response(authority: &Authority, status: &str, days: u32) -> Vec<u8> {
    let serial = openssl("openssl x509 -in \"$1\" -noout -serial", &[&authority.path("shop.pem")]);
    let serial = serial.trim().strip_prefix("serial=").expect("a number").to_owned();
    let line = match status {
        "V" => format!("V\t400101000000Z\t\t{serial}\tunknown\t/CN=shop\n"),
        _ => format!("R\t400101000000Z\t200101000000Z\t{serial}\tunknown\t/CN=shop\n"),
    };
    authority.write("index.txt", line);
    let [index, ca, key, certificate] = ["index.txt", "ca.pem", "ca.key", "shop.pem"].map(|file| authority.path(file));
    let (out, days) = (authority.path("made.ocsp"), days.to_string());
    openssl(
        "openssl ocsp -index \"$1\" -rsigner \"$2\" -rkey \"$3\" -CA \"$2\" -issuer \"$2\" -cert \"$4\" -ndays \"$5\" \
         -respout \"$6\" >/dev/null 2>&1",
        &[&index, &ca, &key, &certificate, &days, &out],
    );
    std::fs::read(out).expect("a response")
}

fn setup(authority: &Authority, node: SocketAddr, entry: &str, upstream: &str) -> Setup {
    let ca = authority.dir().display();
    Setup::resources(format!(
        "ssls: [{{id: shop, cert: \"{ca}/shop.pem\", key: \"{ca}/shop.key\", snis: [{NAME}]{entry}}}]\n\
         upstreams: [{{id: u, retries: 0, nodes: {{\"{node}\": 1}}{upstream}}}]\nroutes: [{{id: all, uri: /*, upstream_id: u}}]\n"
    ))
}

fn last_error(gateway: &Gateway) -> String {
    gateway.status()["config"]["last_error"]["errors"].to_string()
}

#[test]
fn a_renewed_ocsp_response_is_handed_out_without_a_restart() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    authority.issue("shop", &[NAME]);
    authority.write("shop.ocsp", ocsp_response(&authority, "V", 2));
    let entry = format!(", ocsp: \"{}\"", authority.path("shop.ocsp"));
    let setup = setup(&authority, upstream.addr(), &entry, "").listener("tls: true");
    let gateway = Gateway::start(STILLGATE, &setup);
    // The date of its end distinguishes one response from another.
    let stapled = || {
        let told = connect(&gateway, &authority, &["-status"]);
        let ends = told.lines().find_map(|line| Some(line.trim().strip_prefix("Next Update: ")?.to_owned()));
        assert_eq!(ends.is_some(), told.contains("Cert Status: "), "{told}");
        ends
    };
    let first = stapled().expect("a response");
    assert!(connect(&gateway, &authority, &[]).contains("HTTP/1.1 200"), "a client that does not ask");

    authority.write("shop.ocsp", ocsp_response(&authority, "V", 9));
    eventually("another response", || stapled().is_some_and(|ends| ends != first));
    let second = stapled();

    for content in [&b"garbage"[..], b""] {
        authority.write("shop.ocsp", content);
        eventually("the warning", || {
            gateway.log().matches("not an OCSP response in DER, so it is not used").count() > 0
        });
        assert_eq!(stapled(), second, "the one before goes on being handed out");
        assert_eq!(last_error(&gateway), "null");
    }

    authority.write("shop.ocsp", ocsp_response(&authority, "V", 30));
    eventually("a third response", || stapled() != second);
    eventually("no error", || last_error(&gateway) == "null");

    // The truth is reported, to clients and in the log.
    authority.write("shop.ocsp", ocsp_response(&authority, "R", 9));
    eventually("the revocation", || connect(&gateway, &authority, &["-status"]).contains("Cert Status: revoked"));
    eventually("it in the log", || gateway.log().contains("says that the certificate is revoked"));
}

/// The issuer's responder may be down for days.
#[test]
fn a_certificate_is_renewed_and_a_gateway_starts_without_a_response_about_it() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    authority.issue("shop", &[NAME]);
    authority.write("shop.ocsp", ocsp_response(&authority, "V", 2));
    let entry = format!(", ocsp: \"{}\"", authority.path("shop.ocsp"));
    let setup = setup(&authority, upstream.addr(), &entry, "").listener("tls: true");
    let gateway = Gateway::start(STILLGATE, &setup);
    let serial = |gateway: &Gateway| {
        let script = "timeout 300 openssl s_client -connect \"$1\" -servername \"$2\" </dev/null 2>/dev/null | \
                      openssl x509 -noout -serial";
        openssl(script, &[&gateway.addr().to_string(), NAME])
    };
    let first = serial(&gateway);
    authority.issue("shop", &[NAME]);
    eventually("the renewed certificate", || serial(&gateway) != first);
    eventually("the warning", || gateway.log().contains("the OCSP response is of another certificate"));
    assert!(!gateway.log().contains("refused"), "{}", gateway.log());
    assert_eq!(last_error(&gateway), "null");
    assert!(connect(&gateway, &authority, &["-status"]).contains("no response sent"));
    let renewed = serial(&gateway);
    drop(gateway);
    assert_eq!(serial(&Gateway::start(STILLGATE, &setup)), renewed);
    authority.write("shop.ocsp", "garbage");
    assert_eq!(serial(&Gateway::start(STILLGATE, &setup)), renewed);
    std::fs::remove_file(authority.file("shop.ocsp")).expect("remove");
    assert_eq!(serial(&Gateway::start(STILLGATE, &setup)), renewed);
}

/// nginx that answers with the certificate it is shown, and the number of its connection.
fn asking_node(authority: &Authority) -> Nginx {
    let [ca, certificate, key] = ["ca.pem", "node.pem", "node.key"].map(|file| authority.path(file));
    Nginx::start(&format!(
        "server {{ listen 127.0.0.1:{{port}} ssl; ssl_certificate {certificate}; ssl_certificate_key {key};\n\
         ssl_client_certificate {ca}; ssl_verify_client on;\n\
         location / {{ return 200 \"$ssl_client_s_dn|$connection\"; }} }}"
    ))
}

fn asked(gateway: &Gateway) -> (String, String) {
    let response = gateway.get("/");
    assert_eq!(response.head.status(), 200, "{response:?}");
    let body = String::from_utf8_lossy(&response.body).into_owned();
    let (subject, connection) = body.split_once('|').expect("two parts");
    (subject.to_owned(), connection.to_owned())
}

#[test]
fn a_renewed_client_certificate_is_shown_on_new_connections() {
    let authority = Authority::new();
    for name in ["shop", "node", "first", "second"] {
        authority.issue(name, &["node.test"]);
    }
    let node = asking_node(&authority);
    let put = |name: &str| {
        for extension in ["pem", "key"] {
            let content = std::fs::read(authority.file(&format!("{name}.{extension}"))).expect("read");
            authority.write(&format!("ours.{extension}"), content);
        }
    };
    put("first");
    let ca = authority.dir().display();
    let upstream = format!(
        ", scheme: https, pass_host: rewrite, upstream_host: node.test, \
         tls: {{ca: \"{ca}/ca.pem\", client_cert: \"{ca}/ours.pem\", client_key: \"{ca}/ours.key\"}}"
    );
    let gateway = Gateway::start(STILLGATE, &setup(&authority, node.addr(), "", &upstream).listener("tls: false"));
    let before = asked(&gateway);
    assert!(before.0.contains("CN=first"), "{before:?}");
    assert_eq!(asked(&gateway), before, "the connection is kept");

    put("second");
    eventually("the new certificate", || asked(&gateway).0.contains("CN=second"));
    let after = asked(&gateway);
    assert_ne!(after.1, before.1, "another connection");
    assert_eq!(asked(&gateway), after, "that is kept in turn");

    // A key that does not belong to it is refused, and nothing changes.
    authority.issue("third", &["node.test"]);
    authority.write("ours.key", std::fs::read(authority.file("third.key")).expect("read"));
    eventually("the refusal", || last_error(&gateway).contains("does not belong to the certificate"));
    assert_eq!(asked(&gateway), after);
}

#[test]
fn a_renewed_authority_holds_for_connections_that_are_kept() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    for name in ["shop", "node"] {
        authority.issue(name, &["node.test"]);
    }
    let [certificate, key] = ["node.pem", "node.key"].map(|file| authority.path(file));
    for http2 in [false, true] {
        let listen = if http2 { "ssl http2" } else { "ssl" };
        let node = Nginx::start(&format!(
            "server {{ listen 127.0.0.1:{{port}} {listen}; ssl_certificate {certificate}; ssl_certificate_key {key};\n\
             location / {{ return 200 \"-|$connection\"; }} }}"
        ));
        let ours = std::fs::read(authority.file("ca.pem")).expect("read");
        let theirs = std::fs::read(stranger.file("ca.pem")).expect("read");
        authority.write("roots.pem", &ours);
        let upstream = format!(
            ", http2: {http2}, scheme: https, pass_host: rewrite, upstream_host: node.test, tls: {{ca: \"{}\"}}",
            authority.path("roots.pem")
        );
        let gateway = Gateway::start(STILLGATE, &setup(&authority, node.addr(), "", &upstream));
        let first = asked(&gateway);
        assert_eq!(asked(&gateway), first, "the connection is kept");

        authority.write("roots.pem", &theirs);
        eventually("the kept connection to be used no more", || gateway.get("/").head.status() == 502);
        assert_eq!(gateway.get("/").head.status(), 502);
        eventually("the reason in the log", || gateway.log().contains("name the roots of its certificate in `tls.ca`"));

        // The file has both, as in the middle of a change of authorities.
        authority.write("roots.pem", [&theirs[..], &ours].concat());
        eventually("a connection", || gateway.get("/").head.status() == 200);
        assert_ne!(asked(&gateway).1, first.1);
    }
}

#[test]
fn a_node_whose_certificate_does_not_hold_is_a_bad_gateway() {
    let (authority, node) = (Authority::new(), Upstream::bind());
    authority.issue("shop", &[NAME]);
    type Change = fn(&mut CertificateParams);
    let changes: [(&str, Change); 3] = [
        ("expired", |params| params.not_after = date_time_ymd(2020, 1, 1)),
        ("not valid yet", |params| params.not_before = date_time_ymd(2100, 1, 1)),
        ("extended key usage", |params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]),
    ];
    let upstream = format!(
        ", scheme: https, pass_host: rewrite, upstream_host: node.test, tls: {{ca: \"{}\"}}",
        authority.path("ca.pem")
    );
    for (reason, change) in changes {
        let gateway = Gateway::start(STILLGATE, &setup(&authority, node.addr(), "", &upstream));
        authority.issue_with("node", &["node.test"], change);
        let mut client: BufferedSocket = gateway.client().into_connection();
        client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        let socket = node.accept().stream().try_clone().expect("a handle");
        let mut peer = authority.serve(socket, "node", &[]);
        assert!(peer.conn.complete_io(&mut peer.sock).is_err(), "{reason}: the gateway took it");
        assert_eq!(client.expect_response("GET").head.status(), 502);
        eventually(&format!("{reason:?} in the log"), || gateway.log().contains("TLS with the node failed"));
        let log = gateway.log();
        let line = log.lines().find(|line| line.contains("TLS with the node failed")).expect("it was there");
        assert!(line.to_lowercase().contains(reason), "{line}");
    }
}

#[test]
fn sessions_outlive_a_reload_that_leaves_their_entry_alone() {
    let (authority, upstream) = (Authority::new(), Upstream::echo());
    authority.issue("shop", &[NAME]);
    let with = |entry: &str, upstream_keys: &str| {
        setup(&authority, upstream.addr(), entry, upstream_keys).listener("tls: true").gateway("workers: 2")
    };
    let gateway = Gateway::start(STILLGATE, &with("", ""));
    let ticket = authority.path("ticket");
    for version in ["-tls1_3", "-tls1_2"] {
        assert!(connect(&gateway, &authority, &[version, "-sess_out", &ticket]).contains("New, TLSv1"));
        gateway.reload(&with("", &format!(", timeout: {{read: {}s}}", if version == "-tls1_3" { 7 } else { 8 })));
        assert!(connect(&gateway, &authority, &[version, "-sess_in", &ticket]).contains("Reused, TLSv1"), "{version}");
    }
    // Tickets of an entry that has changed are not accepted: here, its certificate was renewed.
    let tickets = ["-tls1_3", "-tls1_2"].map(|version| (version, authority.path(&format!("ticket{version}"))));
    for (version, ticket) in &tickets {
        assert!(connect(&gateway, &authority, &[version, "-sess_out", ticket]).contains("New, TLSv1"));
    }
    authority.issue("shop", &[NAME]);
    eventually("the renewed certificate", || gateway.status()["config"]["generation"].as_u64() >= Some(4));
    for (version, ticket) in &tickets {
        let told = connect(&gateway, &authority, &[version, "-sess_in", ticket]);
        assert!(told.contains("New, TLSv1") && told.contains("HTTP/1.1 200"), "{version}: {told}");
    }
}
