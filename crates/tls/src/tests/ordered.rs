//! Ordered certificates: what clients get before, between and after, and the answer to the ACME server.

use super::*;
use crate::OrderedCertificateInfo;
use rcgen::date_time_ymd;
use x509_parser::extensions::ParsedExtension;
use x509_parser::oid_registry::Oid;
use x509_parser::prelude::{FromDer, X509Certificate, X509Extension};

const FILE: &str = "s/acme-v02.api.letsencrypt.org-5e76d31517ecd664/certificates/a.pem";
const NAME: &str = "a.example.com";

fn wanted(entry: &str) -> Config {
    let text = format!(
        "gateway: {{listeners: [{{address: \"127.0.0.1:9080\"}}, {{address: \"127.0.0.1:9443\", tls: true}}],\n  \
         acme: {{storage: s, agree_terms: true, ca: ca.pem}}}}\n\
         ssls: [{{id: a, acme: true, sni: {NAME}{entry}}}]\nroutes: []\n"
    );
    stillgate_config::load(text, &|_| None).unwrap_or_else(|errors| panic!("{errors}")).config
}

fn folder() -> (Memory, Ca) {
    let (mut memory, ca) = (Memory::default(), ca("root"));
    memory.put("ca.pem", ca.pem());
    (memory, ca)
}

/// As the gateway stores it.
fn joined((cert, key): (String, String)) -> String {
    format!("{cert}\n{key}")
}

/// Whether a client that trusts `ca` accepts the certificate that it gets.
fn is_trusted(memory: &Memory, material: &Material) -> bool {
    shake(material, client(memory, "ca: ca.pem"), NAME).is_ok()
}

#[track_caller]
fn loaded(memory: &Memory, config: &Config, previous: Option<&Material>, warning: &str) -> Material {
    let (material, warnings) = memory.load_at(config, previous, NOW_SECONDS).unwrap();
    let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings.is_empty(), warning.is_empty(), "{warnings:?}");
    assert!(warnings.iter().any(|told| told.contains(warning)) || warning.is_empty(), "{warnings:?}");
    material
}

#[test]
fn a_stand_in_is_shown_until_the_certificate_comes() {
    let ((mut memory, ca), config) = (folder(), wanted(""));
    let first = loaded(&memory, &config, None, "there is no certificate yet");
    assert!(!is_trusted(&memory, &first));
    assert_eq!(first.expiries().count(), 0);
    let shown = shake(&first, client(&memory, "verify: false"), NAME).unwrap();
    let shown = shown.client.peer_certificates().unwrap()[0].clone();
    let (_, certificate) = X509Certificate::from_der(&shown).unwrap();
    assert_eq!(crate::identity::names(&certificate), [NAME]);
    assert!(!certificate.is_ca());
    // It is made once.
    let second = loaded(&memory, &config, Some(&first), "there is no certificate yet");
    assert!(second.is_same(&first));
    memory.put(FILE, joined(issue(&params(&[NAME]), &ca)));
    let third = loaded(&memory, &config, Some(&second), "");
    assert!(!third.is_same(&second));
    assert!(is_trusted(&memory, &third));
    assert_eq!(third.expiries().map(|(id, _)| id).collect::<Vec<_>>(), ["a"]);
    assert!(third.acme.is_some());
}

#[test]
fn a_file_that_cannot_be_used_refuses_nothing() {
    let config = wanted("");
    let (_, ca) = folder();
    let mut old = params(&[NAME]);
    (old.not_before, old.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2020, 2, 1));
    let (cert, _) = issue(&params(&[NAME]), &ca);
    let (_, other_key) = issue(&params(&[NAME]), &ca);
    let good = joined(issue(&params(&[NAME]), &ca));
    let cases = [
        (joined(issue(&old, &ca)), "expired"),
        (joined((cert.clone(), other_key)), "the key does not belong to the certificate"),
        (cert, "no private key is in it"),
        (good[..good.len() / 2].to_owned(), "PEM"),
        (String::new(), "no certificate is in it"),
        ("who put this here?".to_owned(), "no certificate is in it"),
    ];
    for (text, warning) in cases {
        let (mut memory, _) = folder();
        memory.put("ca.pem", ca.pem());
        memory.put(FILE, text.clone());
        let first = loaded(&memory, &config, None, warning);
        assert!(!is_trusted(&memory, &first), "{warning}");
        assert!(loaded(&memory, &config, Some(&first), warning).is_same(&first), "{warning}");
        // And after a good one it takes nothing away.
        memory.put(FILE, good.clone());
        let second = loaded(&memory, &config, Some(&first), "");
        memory.put(FILE, text);
        let third = loaded(&memory, &config, Some(&second), warning);
        assert!(is_trusted(&memory, &third), "{warning}");
        memory.files.remove(Path::new(FILE));
        let fourth = loaded(&memory, &config, Some(&third), "no certificate any more");
        assert!(is_trusted(&memory, &fourth), "{warning}");
        assert_eq!(fourth.expiries().count(), 1);
    }
}

#[test]
fn what_else_is_wrong_with_the_entry_is_refused_as_ever() {
    let (memory, _) = folder();
    let refused = memory.load(&wanted(", client: {ca: missing.pem}")).unwrap_err();
    assert!(refused.to_string().contains("missing.pem: cannot be read"), "{refused}");
    let (mut memory, _) = folder();
    memory.put("ca.pem", "nothing");
    let refused = memory.load(&wanted("")).unwrap_err();
    assert!(refused.to_string().contains("gateway.acme.ca: ca.pem: no certificate is in it"), "{refused}");
}

/// Its certificates are renewed much later than other resources change.
#[test]
fn roots_of_the_acme_server_that_are_gone_for_a_moment_keep_no_change_out() {
    let (mut memory, _) = folder();
    let config = wanted("");
    let first = memory.load(&config).unwrap().0;
    memory.files.remove(Path::new("ca.pem"));
    let now = UnixTime::since_unix_epoch(Duration::from_secs(NOW_SECONDS));
    let alpn: &[&[u8]] = &[b"http/1.1"];
    let inputs = |previous| Inputs { files: &memory, previous, now, alpn, upstream_alpn: alpn };
    let (kept, findings) = Material::load_keeping_unchanged(&config, &inputs(Some(&first))).unwrap();
    assert!(Arc::ptr_eq(kept.acme.as_ref().unwrap(), first.acme.as_ref().unwrap()));
    assert!(findings.kept[0].to_string().contains("gateway.acme.ca: ca.pem: cannot be read"), "{findings:?}");
    assert!(Material::load_keeping_unchanged(&config, &inputs(None)).is_err());
}

#[test]
fn an_entry_with_other_names_goes_on_with_what_there_is() {
    let ((mut memory, ca), before) = (folder(), wanted(""));
    memory.put(FILE, joined(issue(&params(&[NAME]), &ca)));
    let first = loaded(&memory, &before, None, "");
    let text = "gateway: {listeners: [{address: \"127.0.0.1:9080\"}, {address: \"127.0.0.1:9443\", tls: true}],\n  \
                acme: {storage: s, agree_terms: true, ca: ca.pem}}\n\
                ssls: [{id: a, acme: true, snis: [a.example.com, b.example.com]}]\nroutes: []\n";
    let after = stillgate_config::load(text, &|_| None).unwrap().config;
    let second = loaded(&memory, &after, Some(&first), "");
    assert!(is_trusted(&memory, &second));
}

#[test]
fn what_was_shown_is_shown_until_another_server_has_issued() {
    let ((mut memory, ca), before) = (folder(), wanted(""));
    memory.put(FILE, joined(issue(&params(&[NAME]), &ca)));
    let first = loaded(&memory, &before, None, "");
    let text = "gateway: {listeners: [{address: \"127.0.0.1:9080\"}, {address: \"127.0.0.1:9443\", tls: true}],\n  \
                acme: {storage: s, agree_terms: true, ca: ca.pem, directory: \"https://acme.example/dir\"}}\n\
                ssls: [{id: a, acme: true, sni: a.example.com}]\nroutes: []\n";
    let after = stillgate_config::load(text, &|_| None).unwrap().config;
    let second = loaded(&memory, &after, Some(&first), "no certificate any more");
    assert!(is_trusted(&memory, &second));
    let third = loaded(&memory, &after, Some(&second), "no certificate any more");
    assert!(is_trusted(&memory, &third));
    assert!(!is_trusted(&memory, &loaded(&memory, &after, None, "there is no certificate yet")));
}

#[test]
fn what_was_ordered_is_read() {
    let ca = ca("root");
    let now = UnixTime::since_unix_epoch(Duration::from_secs(NOW_SECONDS));
    let mut wanted = params(&["A.example.com", "b.example.com"]);
    (wanted.not_before, wanted.not_after) = (date_time_ymd(2026, 5, 1), date_time_ymd(2026, 8, 1));
    let read = OrderedCertificateInfo::read(joined(issue(&wanted, &ca)).as_bytes(), now).unwrap();
    assert_eq!(read.names, ["a.example.com", "b.example.com"]);
    assert_eq!(read.not_before_seconds, 1_777_593_600);
    assert_eq!(read.not_after_seconds - read.not_before_seconds, 92 * 24 * 3600);
    assert_eq!(read.ari_identifier, None);
    wanted.use_authority_key_identifier_extension = true;
    wanted.serial_number = Some(vec![0x81, 2].into());
    let (authority, serial) =
        OrderedCertificateInfo::read(joined(issue(&wanted, &ca)).as_bytes(), now).unwrap().ari_identifier.unwrap();
    // As encoded in the certificate: a positive number.
    assert_eq!(serial, [0, 0x81, 2]);
    let (_, root) = X509Certificate::from_der(ca.der()).unwrap();
    let is_of_root = |extension: &X509Extension<'_>| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(identifier) => identifier.0 == authority,
        _ => false,
    };
    assert!(root.iter_extensions().any(is_of_root));
    let error = OrderedCertificateInfo::read(b"<html>", now).unwrap_err();
    assert!(error.contains("no certificate is in it"), "{error}");
    let late = UnixTime::since_unix_epoch(Duration::from_secs(NOW_SECONDS + 366 * 24 * 3600));
    assert!(
        OrderedCertificateInfo::read(joined(issue(&wanted, &ca)).as_bytes(), late).unwrap_err().contains("expired")
    );
}

#[test]
fn a_request_is_for_the_names_and_signed_with_its_key() {
    let (key, request) = crate::request(&[NAME.to_owned()]).unwrap();
    assert!(key.starts_with("-----BEGIN PRIVATE KEY-----"));
    assert!(request.windows(NAME.len()).any(|bytes| bytes == NAME.as_bytes()));
    assert!(crate::request(&["münchen".to_owned()]).is_err());
}

#[test]
fn an_acme_server_is_shown_the_digest_and_nothing_else() {
    let digest = [7; 32];
    let server = crate::acme_challenge(NAME, &digest).unwrap();
    let builder = ClientConfig::builder_with_provider(crate::provider::provider());
    let builder = builder.with_safe_default_protocol_versions().unwrap().dangerous();
    // Our own client would not accept a critical extension that it does not know.
    let builder = builder.with_custom_certificate_verifier(Arc::new(handshakes::RecordingVerifier::default()));
    let mut client = builder.with_no_client_auth();
    client.alpn_protocols = vec![crate::ACME_TLS_ALPN.to_vec()];
    let name = ServerName::try_from(NAME).unwrap();
    let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
    let mut server = ServerConnection::new(server).unwrap();
    while client.wants_write() || server.wants_write() {
        pass(&mut client, &mut server, "server").unwrap();
        pass(&mut server, &mut client, "client").unwrap();
    }
    assert_eq!(client.alpn_protocol(), Some(crate::ACME_TLS_ALPN));
    let shown = client.peer_certificates().unwrap();
    let (_, certificate) = X509Certificate::from_der(&shown[0]).unwrap();
    assert_eq!(crate::identity::names(&certificate), [NAME]);
    // id-pe-acmeIdentifier (RFC 8737 section 6.1).
    let identifier = Oid::from(&[1, 3, 6, 1, 5, 5, 7, 1, 31]).unwrap();
    let extension = certificate.extensions().iter().find(|extension| extension.oid == identifier).unwrap();
    assert!(extension.critical);
    assert!(matches!(extension.parsed_extension(), ParsedExtension::UnsupportedExtension { .. }));
    assert_eq!(extension.value, [&[4, 32][..], &digest].concat());
}
