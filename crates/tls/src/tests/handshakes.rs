//! Which certificates the two sides present, and which clients are let in.

use super::*;
use crate::{Offer, ServerTls};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::CertificateDer;
use rustls::{DigitallySignedStruct, HandshakeKind, ProtocolVersion, SignatureScheme};
use std::sync::Mutex;
use stillgate_config::{RefusedSsl, Ssl, SslUse};

/// The CA's certificate is in `ca.pem`, those of servers are by the names of their entries.
fn servers(entries: &[(&str, &[&str])]) -> (Memory, Ca) {
    let (mut memory, ca) = (Memory::default(), ca("root"));
    memory.put("ca.pem", ca.pem());
    for (name, names) in entries {
        memory.put_pair(name, issue(&params(names), &ca));
    }
    (memory, ca)
}

/// The first name of the certificate that a client was shown.
fn shown(ended: &HandshakeEnds) -> String {
    let certificate = &ended.client.peer_certificates().unwrap()[0];
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).unwrap();
    certificate.subject_alternative_name().unwrap().unwrap().value.general_names[0].to_string()
}

#[test]
fn a_name_leads_to_its_entry() {
    let (memory, _) = servers(&[
        ("exact", &["a.example.com"]),
        ("wildcard", &["*.example.com", "a.b.example.com"]),
        ("default", &["other.example", "127.0.0.1"]),
    ]);
    let exact = "{id: exact, cert: exact.pem, key: exact.key, sni: A.example.com}";
    let wildcard = "{id: wildcard, cert: wildcard.pem, key: wildcard.key, snis: [\"*.example.com\"]}";
    let default = "{id: default, cert: default.pem, key: default.key, default: true}";
    let all = memory.good(&config(&format!("{exact}, {wildcard}, {default}")));
    let without_default = memory.good(&config(&format!("{exact}, {wildcard}")));
    // Whether the certificate covers the name does not matter here: the default's has none of them.
    let client = client(&memory, "verify: false");
    let check = |material: &Material, name: &str, expected: Result<&str, &str>| {
        let got = shake(material, client.clone(), name).map(|ended| shown(&ended));
        assert_eq!(got.as_deref().map_err(String::as_str), expected, "{name}");
    };
    let refused = Err("client: received fatal alert: UnrecognisedName");
    check(&all, "a.example.com", Ok("DNSName(a.example.com)"));
    check(&all, "A.EXAMPLE.com", Ok("DNSName(a.example.com)"));
    check(&all, "b.example.com", Ok("DNSName(*.example.com)"));
    check(&all, "a.b.example.com", Ok("DNSName(other.example)"));
    check(&all, "example.com", Ok("DNSName(other.example)"));
    check(&all, "127.0.0.1", Ok("DNSName(other.example)"));
    check(&without_default, "b.example.com", Ok("DNSName(*.example.com)"));
    check(&without_default, "a.b.example.com", refused);
    check(&without_default, "example.com", refused);
    check(&without_default, "unknown.test", refused);
    // Without a name.
    check(&without_default, "127.0.0.1", refused);
}

#[test]
fn names_are_found_whatever_they_look_like() {
    let (memory, _) = servers(&[("a", &["a.example.com", "*.example.com"])]);
    let material = memory.good(&config("{id: a, cert: a.pem, key: a.key, snis: [a.example.com, \"*.example.com\"]}"));
    let server = material.server.unwrap();
    for (name, found) in [
        ("a.example.com", true),
        ("a.example.com.", true),
        ("B.Example.Com", true),
        ("*.example.com", true),
        (".example.com", false),
        ("example.com", false),
        ("com", false),
        ("", false),
        (".", false),
        ("a.b.example.com", false),
        ("a.example.com.evil", false),
        ("\u{e4}.example.com", true),
    ] {
        assert_eq!(server.find(Some(name), Offer::Http2).is_some(), found, "{name:?}");
    }
    assert!(server.find(None, Offer::Http2).is_none());
}

/// Configurations for different listeners are made once for each entry, not for each connection, and share the keys of tickets.
#[test]
fn each_offer_is_made_once() {
    let (memory, _) = servers(&[("a", &["a.example.com"])]);
    let config = config("{id: a, cert: a.pem, key: a.key, snis: [a.example.com]}");
    let alpn: &[&[u8]] = &[b"h2", b"http/1.1"];
    let now = UnixTime::since_unix_epoch(Duration::from_secs(NOW_SECONDS));
    let inputs = Inputs { files: &memory, previous: None, now, alpn, upstream_alpn: &[] };
    let server = Material::load(&config, &inputs).unwrap().0.server.unwrap();
    let find = |offer| server.find(Some("a.example.com"), offer).unwrap().config;
    for (offer, protocols) in [(Offer::Http2, alpn), (Offer::Http1, &alpn[1..]), (Offer::Nothing, &alpn[2..])] {
        let config = find(offer);
        assert!(Arc::ptr_eq(config, find(offer)));
        assert_eq!(config.alpn_protocols, protocols);
        assert!(Arc::ptr_eq(&config.ticketer, &find(Offer::Http2).ticketer));
    }
}

#[test]
fn clients_need_a_certificate_of_the_right_issuer() {
    let (mut memory, ca) = servers(&[("a", &["a.example.com"])]);
    let clients = super::ca("clients");
    memory.put("clients.pem", clients.pem());
    let first = intermediate("first", &clients);
    let second = intermediate("second", &first);
    memory.put_pair("good", issue(&client_params("alice"), &clients));
    memory.put_pair("wrong", issue(&client_params("mallory"), &ca));
    let below = |issuer: &Ca, chain: &[&Ca]| {
        let (cert, key) = issue(&client_params("bob"), issuer);
        (chain.iter().fold(cert, |chain, ca| chain + &ca.pem()), key)
    };
    memory.put_pair("below", below(&first, &[&first]));
    memory.put_pair("deep", below(&second, &[&second, &first]));
    // One certificate too many, but not in the chain that is verified.
    memory.put_pair("loose", below(&first, &[&first, &clients]));
    for protocols in ["", ", ssl_protocols: [TLSv1.2]"] {
        let entry = |more: &str| {
            format!(
                "{{id: a, cert: a.pem, key: a.key, sni: a.example.com, client: {{ca: clients.pem{more}}}{protocols}}}"
            )
        };
        let (one, two) = (memory.good(&config(&entry(""))), memory.good(&config(&entry(", depth: 2"))));
        let none = memory.good(&config(&entry(", depth: 0")));
        let check = |material: &Material, name: Option<&str>, expected: Result<&str, &str>| {
            let tls = match name {
                Some(name) => format!("ca: ca.pem, client_cert: {name}.pem, client_key: {name}.key"),
                None => "ca: ca.pem".to_owned(),
            };
            let got = shake(material, client(&memory, &tls), "a.example.com");
            let got = got.map(|ended| {
                crate::client_certificate(ended.server.peer_certificates().unwrap_or_default()).unwrap().subject
            });
            assert_eq!(got.as_deref().map_err(String::as_str), expected, "{name:?} {protocols}");
        };
        check(&one, Some("good"), Ok("CN=alice"));
        check(&one, None, Err("server: peer sent no certificates"));
        check(&one, Some("wrong"), Err("server: invalid peer certificate: UnknownIssuer"));
        check(&one, Some("below"), Ok("CN=bob"));
        check(&one, Some("loose"), Ok("CN=bob"));
        check(&one, Some("deep"), Err("server: invalid peer certificate: UnknownIssuer"));
        check(&two, Some("deep"), Ok("CN=bob"));
        check(&none, Some("good"), Ok("CN=alice"));
        check(&none, Some("below"), Err("server: invalid peer certificate: UnknownIssuer"));
    }
}

#[test]
fn a_client_cannot_ask_for_another_host_than_it_has_shown_its_certificate_for() {
    let (memory, _) = servers(&[("open", &["open.example"]), ("strict", &["strict.example", "*.strict.example"])]);
    let open = "{id: open, cert: open.pem, key: open.key, sni: open.example, default: true}";
    let names = "snis: [strict.example, \"*.strict.example\"]";
    let strict = format!("{{id: strict, cert: strict.pem, key: strict.key, {names}, client: {{ca: ca.pem}}}}");
    let server = memory.good(&config(&format!("{open}, {strict}"))).server.unwrap();
    let shown_by = |name| server.find(name, Offer::Http1).unwrap().client_ca.map(|ca| &**ca);
    for (came, host, expected) in [
        (Some("open.example"), "open.example", true),
        (Some("open.example"), "strict.example", false),
        (Some("open.example"), "a.strict.example", false),
        (Some("open.example"), "b.a.strict.example", false),
        (Some("open.example"), "", true),
        (Some("open.example"), "[::1]", true),
        (Some("strict.example"), "strict.example", true),
        (Some("strict.example"), "b.a.strict.example", true),
        (Some("A.Strict.Example."), "strict.example", true),
        (Some("strict.example"), "open.example", true),
        (Some("strict.example"), "unknown.example", true),
        (Some("b.a.strict.example"), "b.a.strict.example", false),
        (None, "strict.example", false),
        (None, "unknown.example", true),
    ] {
        assert_eq!(server.allows(host.as_bytes(), shown_by(came)), expected, "{came:?} {host}");
    }
    let no_client = memory.good(&config(open)).server.unwrap();
    assert!(no_client.allows(b"strict.example", None));
    let strict_default = strict.replace("snis", "default: true, snis");
    let server = memory.good(&config(&format!("{}, {strict_default}", open.replace(", default: true", "")))).server;
    assert!(!server.unwrap().allows(b"unknown.example", None));
}

#[test]
fn versions_are_those_of_the_entry() {
    let (memory, _) = servers(&[("a", &["a.example.com"])]);
    for (protocols, expected) in [
        ("[TLSv1.2]", ProtocolVersion::TLSv1_2),
        ("[TLSv1.3]", ProtocolVersion::TLSv1_3),
        ("[TLSv1.2, TLSv1.3]", ProtocolVersion::TLSv1_3),
    ] {
        let entry = format!("{{id: a, cert: a.pem, key: a.key, sni: a.example.com, ssl_protocols: {protocols}}}");
        let ended = shake(&memory.good(&config(&entry)), client(&memory, "ca: ca.pem"), "a.example.com").unwrap();
        assert_eq!(ended.client.protocol_version(), Some(expected));
        assert_eq!(ended.client.alpn_protocol(), Some(&b"http/1.1"[..]));
    }
}

#[test]
fn a_client_is_shown_the_certificate_that_it_can_check() {
    let (mut memory, ca) = servers(&[("ecdsa", &["a.example.com"])]);
    memory.put_pair("rsa", issue_rsa(&params(&["a.example.com"]), &ca));
    // In whatever order the file has them.
    let entry = "{id: a, cert: rsa.pem, key: rsa.key, certs: [ecdsa.pem], keys: [ecdsa.key], sni: a.example.com}";
    let material = memory.good(&config(entry));
    let schemes = |wanted: &[SignatureScheme]| {
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        let algorithms = provider.signature_verification_algorithms.mapping;
        let kept: Vec<_> = algorithms.iter().filter(|(scheme, _)| wanted.contains(scheme)).copied().collect();
        provider.signature_verification_algorithms.mapping = kept.leak();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(ca.der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(provider.into()).with_safe_default_protocol_versions();
        Arc::new(builder.unwrap().with_root_certificates(roots).with_no_client_auth())
    };
    let is_rsa = |client: Arc<ClientConfig>| {
        let ended = shake(&material, client, "a.example.com").unwrap();
        let certificate: &CertificateDer<'_> = &ended.client.peer_certificates().unwrap()[0];
        let (_, certificate) = x509_parser::parse_x509_certificate(certificate).unwrap();
        let key = certificate.public_key().parsed().unwrap();
        matches!(key, x509_parser::public_key::PublicKey::RSA(_))
    };
    let (ecdsa, rsa) = (SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::RSA_PSS_SHA256);
    assert!(!is_rsa(schemes(&[ecdsa, rsa])));
    assert!(!is_rsa(schemes(&[ecdsa])));
    assert!(is_rsa(schemes(&[rsa, ecdsa][..1])));
}

#[test]
fn nodes_are_verified_unless_it_is_switched_off() {
    let (mut memory, _) = servers(&[("node", &["node.example", "10.0.0.1"])]);
    let other = super::ca("other");
    memory.put("other.pem", other.pem());
    let material = memory.good(&config("{id: node, cert: node.pem, key: node.key, default: true}"));
    let check = |memory: &Memory, tls: &str, name: &str, expected: Result<(), &str>| {
        let got = shake(&material, client(memory, tls), name).map(|_| ());
        assert_eq!(got, expected.map_err(str::to_owned), "{tls} {name}");
    };
    check(&memory, "ca: ca.pem", "node.example", Ok(()));
    check(&memory, "ca: ca.pem", "10.0.0.1", Ok(()));
    check(&memory, "ca: other.pem", "node.example", Err("client: invalid peer certificate: UnknownIssuer"));
    check(&memory, "verify: false", "another.example", Ok(()));
    let roots = [other.der().to_vec()];
    let system = Memory { system_roots: roots.into(), ..memory.clone() };
    check(&system, "", "node.example", Err("client: invalid peer certificate: UnknownIssuer"));
    let got = shake(&material, client(&memory, "ca: ca.pem"), "another.example").map(|_| ()).unwrap_err();
    assert!(got.contains("not valid for name"), "{got}");
}

#[test]
fn nodes_are_asked_for_the_host_that_they_see() {
    let (memory, _) = servers(&[]);
    let name = |tls: &str, host: &str, node: &str| {
        let config = Config { ssls: Vec::new(), ..config_with("{id: x, cert: x, key: x, default: true}", tls) };
        memory.good(&config).clients["u"].server_name(host, node).to_str().into_owned()
    };
    let check =
        |host: &str, expected: &str| assert_eq!(name("ca: ca.pem", host, "node.example:8443"), expected, "{host:?}");
    check("Example.com", "example.com");
    check("example.com:8443", "example.com");
    check("10.0.0.1:80", "10.0.0.1");
    check("[::1]:80", "::1");
    check("::1", "::1");
    check("a_b.example", "a_b.example");
    check("example.com.", "example.com");
    for none in ["", " ", "[::1", ":80", "a b", "\u{e4}.example"] {
        check(none, "node.example");
    }
    assert_eq!(name("ca: ca.pem, sni: Fixed.example", "example.com", "node.example:8443"), "fixed.example");
    assert_eq!(name("ca: ca.pem, sni: \"::1\"", "example.com", "node.example:8443"), "::1");
    assert_eq!(name("ca: ca.pem", "", "10.0.0.9:8443"), "10.0.0.9");
    assert_eq!(name("ca: ca.pem", "", "[::9]:8443"), "::9");
    // No certificate is for that name.
    assert_eq!(name("ca: ca.pem", "", "-.-"), "0.0.0.0");
}

#[test]
fn a_worker_resumes_its_own_sessions() {
    let (memory, _) = servers(&[("a", &["a.example.com"])]);
    for protocols in ["[TLSv1.2]", "[TLSv1.3]"] {
        let entry = format!("{{id: a, cert: a.pem, key: a.key, sni: a.example.com, ssl_protocols: {protocols}}}");
        let material = memory.good(&config(&entry));
        let kind = |client: &Arc<ClientConfig>| {
            let ended = shake(&material, client.clone(), "a.example.com").unwrap();
            (ended.client.handshake_kind().unwrap(), ended.client.tls13_tickets_received())
        };
        let (one, another) = (client(&memory, "ca: ca.pem"), client(&memory, "ca: ca.pem"));
        let tickets = u32::from(protocols == "[TLSv1.3]");
        assert_eq!(kind(&one), (HandshakeKind::Full, tickets));
        assert_eq!(kind(&one), (HandshakeKind::Resumed, tickets));
        assert_eq!(kind(&one), (HandshakeKind::Resumed, tickets));
        assert_eq!(kind(&another).0, HandshakeKind::Full);
    }
}

#[test]
fn a_client_is_handed_the_ocsp_response_of_its_certificate() {
    let (mut memory, ca) = servers(&[("other", &["a.example.com"])]);
    let mut of_response = params(&["a.example.com"]);
    of_response.serial_number = Some(vec![0xab, 0xcd, 0xef, 0x01, 0x23].into());
    memory.put_pair("a", issue(&of_response, &ca));
    let response = include_bytes!("../../tests/data/good.ocsp");
    memory.put("a.der", &response[..]);
    let at = 1_795_315_317 + 3600;
    let entry = |pairs: &str| config(&format!("{{id: a, {pairs}, sni: a.example.com, ocsp: a.der}}"));
    let handed = |pairs: &str| {
        let seen = Arc::new(RecordingVerifier::default());
        let builder = ClientConfig::builder_with_provider(crate::provider::provider());
        let builder = builder.with_safe_default_protocol_versions().unwrap().dangerous();
        let client = builder.with_custom_certificate_verifier(seen.clone()).with_no_client_auth();
        let material = memory.load_at(&entry(pairs), None, at).unwrap().0;
        shake(&material, Arc::new(client), "a.example.com").unwrap();
        let handed = seen.0.lock().unwrap().take();
        handed.unwrap()
    };
    assert_eq!(handed("cert: a.pem, key: a.key"), response);
    // With two pairs, the response goes to the one that it is about; the other is presented without it.
    assert_eq!(handed("cert: a.pem, key: a.key, certs: [other.pem], keys: [other.key]"), response);
    assert_eq!(handed("cert: other.pem, key: other.key, certs: [a.pem], keys: [a.key]"), b"");
    assert_eq!(handed("cert: other.pem, key: other.key"), b"");
}

/// A response is optional: whatever is wrong with it, the certificate is used, in a first load as well as in a later one.
#[test]
fn a_response_that_cannot_be_used_keeps_no_certificate_out() {
    let (mut memory, ca) = servers(&[("a", &["a.example.com"]), ("new", &["a.example.com"])]);
    let mut of_response = params(&["a.example.com"]);
    of_response.serial_number = Some(vec![0xab, 0xcd, 0xef, 0x01, 0x23].into());
    memory.put_pair("a", issue(&of_response, &ca));
    let response = include_bytes!("../../tests/data/good.ocsp");
    let entry = config("{id: a, cert: a.pem, key: a.key, sni: a.example.com, ocsp: a.der}");
    let made = 1_795_315_317;
    let handed = |material: &Material| {
        let seen = Arc::new(RecordingVerifier::default());
        let builder = ClientConfig::builder_with_provider(crate::provider::provider());
        let builder = builder.with_safe_default_protocol_versions().unwrap().dangerous();
        let client = builder.with_custom_certificate_verifier(seen.clone()).with_no_client_auth();
        let ended = shake(material, Arc::new(client), "a.example.com").unwrap();
        let handed = seen.0.lock().unwrap().take().unwrap();
        (ended.client.peer_certificates().unwrap()[0].clone(), handed)
    };
    memory.put("a.der", &response[..]);
    let first = memory.load_at(&entry, None, made + 60).unwrap().0;
    let (certificate, _) = handed(&first);
    let mut renewed = memory.clone();
    for file in ["pem", "key"] {
        renewed.put(&format!("a.{file}"), memory.files[Path::new(&format!("new.{file}"))].clone());
    }
    let other = "the OCSP response is of another certificate, so it is not used; ask the certificate's issuer for a new \
                 response";
    let cut = "not an OCSP response in DER, so it is not used: it cannot be read; ask the certificate's issuer for a new \
               response";
    let missing = "cannot be read, so it is not used: entity not found; fix the path or the file's permissions";
    for (is_renewed, content, expected) in [
        (true, Some(&response[..]), other),
        (true, Some(b"garbage"), cut),
        (true, Some(b""), cut),
        (true, None, missing),
        (false, Some(b"garbage"), cut),
        (false, None, missing),
    ] {
        let mut memory = if is_renewed { renewed.clone() } else { memory.clone() };
        match content {
            Some(content) => memory.put("a.der", content),
            None => drop(memory.files.remove(Path::new("a.der"))),
        }
        for previous in [None, Some(&first)] {
            let (material, warnings) = memory.load_at(&entry, previous, made + 120).unwrap();
            let warnings: Vec<_> = warnings.iter().map(ToString::to_string).collect();
            assert_eq!(warnings, [format!("ssls[\"a\"].ocsp: a.der: {expected}")]);
            let (presented, stapled) = handed(&material);
            assert_eq!(presented != certificate, is_renewed, "{expected}");
            // The response before is of the same certificate and still holds.
            let is_stapled = !is_renewed && previous.is_some();
            assert_eq!(stapled, if is_stapled { &response[..] } else { b"" }, "{expected} {is_renewed}");
            // Nothing new is published for what did not change.
            assert!(memory.load_at(&entry, Some(&material), made + 180).unwrap().0.is_same(&material));
        }
    }
}

/// Accepts any certificate, and keeps the OCSP response of the handshake.
#[derive(Debug, Default)]
pub(super) struct RecordingVerifier(Mutex<Option<Vec<u8>>>);

impl ServerCertVerifier for RecordingVerifier {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        *self.0.lock().unwrap() = Some(ocsp.to_vec());
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        crate::provider::provider().signature_verification_algorithms.supported_schemes()
    }
}

#[test]
fn names_of_an_entry_that_cannot_be_used_get_no_handshake() {
    let ca = ca("root");
    let mut memory = Memory::default();
    memory.put_pair("wild", issue(&params(&["*.example.com"]), &ca));
    memory.put_pair("good", issue(&params(&["good.example.com"]), &ca));
    let mut config = config(
        "{id: w, cert: wild.pem, key: wild.key, sni: \"*.example.com\", default: true}, \
         {id: g, cert: good.pem, key: good.key, sni: good.example.com}",
    );
    let open = memory.good(&config).server.unwrap();
    let names = ["sec.example.com", "good.example.com"].map(str::to_owned).to_vec();
    let usage = SslUse::Refused(RefusedSsl { names, is_name_unread: false, is_default: false, asks: false });
    config.ssls.push(Arc::new(Ssl { id: "r".to_owned(), usage, pairs: Vec::new(), acme: false }));
    let closed = memory.good(&config).server.unwrap();
    let found = |server: &ServerTls, name| server.find(name, Offer::Http1).is_some();
    for (name, is_closed) in [("sec.example.com", true), ("good.example.com", false), ("a.example.com", false)] {
        assert!(found(&open, Some(name)) && open.allows(name.as_bytes(), None), "{name}");
        assert_eq!(found(&closed, Some(name)), !is_closed, "{name}");
        // Nor does a connection that was made for another name reach it.
        assert_eq!(closed.allows(name.as_bytes(), None), !is_closed, "{name}");
    }
    assert!(found(&closed, None));
    // One that asks clients for certificates is stricter than an entry that does not.
    let usage = SslUse::Refused(RefusedSsl {
        names: vec!["good.example.com".to_owned()],
        is_name_unread: false,
        is_default: true,
        asks: true,
    });
    config.ssls.push(Arc::new(Ssl { id: "s".to_owned(), usage, pairs: Vec::new(), acme: false }));
    let closed = memory.good(&config).server.unwrap();
    for (name, is_closed) in [(Some("good.example.com"), true), (None, true), (Some("a.example.com"), false)] {
        assert_eq!(found(&closed, name), !is_closed, "{name:?}");
    }
    assert!(!closed.allows(b"good.example.com", None));
    config.ssls.pop();
    // One of the names of a refused entry could not be read: it may be any that no entry has exactly.
    let usage = SslUse::Refused(RefusedSsl { names: Vec::new(), is_name_unread: true, is_default: false, asks: false });
    config.ssls.push(Arc::new(Ssl { id: "u".to_owned(), usage, pairs: Vec::new(), acme: false }));
    let closed = memory.good(&config).server.unwrap();
    for (name, is_closed) in [("good.example.com", false), ("a.example.com", true), ("other.test", true)] {
        assert_eq!(found(&closed, Some(name)), !is_closed, "{name}");
        assert_eq!(closed.allows(name.as_bytes(), None), !is_closed, "{name}");
    }
    assert!(found(&closed, None), "who asks for no name gets the default");
}
