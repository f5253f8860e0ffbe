//! What stays the same over a reload, and what its clients notice.

use super::*;
use rcgen::date_time_ymd;
use rustls::HandshakeKind;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};

const A: &str = "{id: a, cert: a.pem, key: a.key, sni: a.example.com}";
const B: &str = "{id: b, cert: b.pem, key: b.key, sni: b.example.com}";

fn both() -> (Memory, Ca) {
    let (mut memory, ca) = (Memory::default(), ca("root"));
    memory.put("ca.pem", ca.pem());
    memory.put_pair("a", issue(&params(&["a.example.com", "b.example.com"]), &ca));
    memory.put_pair("b", issue(&params(&["b.example.com"]), &ca));
    (memory, ca)
}

fn again(memory: &Memory, config: &Config, previous: &Material) -> Material {
    memory.load_at(config, Some(previous), NOW_SECONDS).unwrap().0
}

#[test]
fn sessions_are_resumed_after_a_reload_that_leaves_the_entry_alone() {
    let (mut memory, ca) = both();
    let client = client(&memory, "ca: ca.pem");
    let kind = |material: &Material, name: &str| {
        shake(material, client.clone(), name).unwrap().server.handshake_kind().unwrap()
    };
    let first = memory.good(&config(&format!("{A}, {B}")));
    assert_eq!(kind(&first, "a.example.com"), HandshakeKind::Full);
    assert_eq!(kind(&first, "b.example.com"), HandshakeKind::Full);
    // Another entry is renewed, and a third one comes.
    memory.put_pair("b", issue(&params(&["b.example.com"]), &ca));
    memory.put_pair("c", issue(&params(&["c.example.com"]), &ca));
    let c = "{id: c, cert: c.pem, key: c.key, sni: c.example.com}";
    let second = again(&memory, &config(&format!("{c}, {A}, {B}")), &first);
    assert!(!second.is_same(&first));
    assert_eq!(kind(&second, "a.example.com"), HandshakeKind::Resumed);
    assert_eq!(kind(&second, "b.example.com"), HandshakeKind::Full);
    // A restart keeps nothing.
    let other_process = memory.good(&config(&format!("{A}, {B}")));
    assert_eq!(kind(&other_process, "a.example.com"), HandshakeKind::Full);
}

#[test]
fn a_session_is_of_one_entry() {
    let (mut memory, ca) = both();
    memory.put_pair("alice", issue(&client_params("alice"), &ca));
    // One certificate for both names, but only one of them asks who the client is.
    let strict = "{id: b, cert: a.pem, key: a.key, sni: b.example.com, client: {ca: ca.pem}}";
    let material = memory.good(&config(&format!("{A}, {strict}")));
    for protocols in [&rustls::version::TLS12, &rustls::version::TLS13] {
        // A client that offers to one name the session that it got from the other.
        let store = Arc::new(rustls::client::ClientSessionMemoryCache::new(8));
        let mut roots = rustls::RootCertStore::empty();
        roots.add(ca.der().clone()).unwrap();
        let builder =
            ClientConfig::builder_with_provider(crate::provider::provider()).with_protocol_versions(&[protocols]);
        let mut config = builder.unwrap().with_root_certificates(roots).with_no_client_auth();
        config.resumption = rustls::client::Resumption::store(Arc::new(OneName(store)));
        let config = Arc::new(config);
        shake(&material, config.clone(), "a.example.com").unwrap();
        let kind = shake(&material, config.clone(), "a.example.com").unwrap().server.handshake_kind();
        assert_eq!(kind, Some(HandshakeKind::Resumed));
        let refused = shake(&material, config, "b.example.com").map(|_| ()).unwrap_err();
        assert_eq!(refused, "server: peer sent no certificates");
    }
}

/// The clock of a handshake long ago.
#[derive(Debug, Clone, Copy)]
struct FixedTime(u64);

impl rustls::time_provider::TimeProvider for FixedTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(self.0)))
    }
}

#[test]
fn a_session_is_not_resumed_once_the_certificate_of_its_client_has_ended() {
    let (memory, ca) = both();
    let pair = |year| {
        let mut params = client_params("alice");
        params.not_after = date_time_ymd(year, 1, 2);
        let (cert, key) = issue(&params, &ca);
        let chain = vec![CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        CertifiedKey::from_der(chain, key, &crate::provider::provider()).unwrap()
    };
    // 2020-01-01.
    let then = FixedTime(1_577_836_800);
    for versions in ["TLSv1.2", "TLSv1.3"] {
        let strict = A.replace('}', &format!(", ssl_protocols: [{versions}], client: {{ca: ca.pem}}}}"));
        let material = memory.good(&config(&strict));
        for (year, expected) in [(2200, HandshakeKind::Resumed), (2020, HandshakeKind::Full)] {
            let mut config = ClientConfig::clone(&client(&memory, "ca: ca.pem"));
            config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(pair(year)));
            let client = Arc::new(config);
            let kind = || {
                let shaken = shake_with(&material, client.clone(), "a.example.com", |config| {
                    config.time_provider = Arc::new(then);
                });
                shaken.unwrap().server.handshake_kind().unwrap()
            };
            assert_eq!(kind(), HandshakeKind::Full);
            assert_eq!(kind(), expected, "{year} {versions}");
        }
    }
}

/// Keeps the sessions of all servers as those of one.
#[derive(Debug)]
struct OneName(Arc<rustls::client::ClientSessionMemoryCache>);

impl OneName {
    fn name() -> ServerName<'static> {
        ServerName::try_from("one.example").unwrap()
    }
}

impl rustls::client::ClientSessionStore for OneName {
    fn set_kx_hint(&self, _: ServerName<'static>, group: rustls::NamedGroup) {
        self.0.set_kx_hint(Self::name(), group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<rustls::NamedGroup> {
        self.0.kx_hint(&Self::name())
    }

    fn set_tls12_session(&self, _: ServerName<'static>, value: rustls::client::Tls12ClientSessionValue) {
        self.0.set_tls12_session(Self::name(), value);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<rustls::client::Tls12ClientSessionValue> {
        self.0.tls12_session(&Self::name())
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.0.remove_tls12_session(&Self::name());
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: rustls::client::Tls13ClientSessionValue) {
        self.0.insert_tls13_ticket(Self::name(), value);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<rustls::client::Tls13ClientSessionValue> {
        self.0.take_tls13_ticket(&Self::name())
    }
}

/// A connection stays allowed while the same issuers are demanded, whatever entry names them.
#[test]
fn a_certificate_is_good_as_long_as_its_issuers_are_asked_for() {
    let (mut memory, ca) = both();
    let other = super::ca("other");
    memory.put("one.pem", ca.pem() + &other.pem());
    memory.put("turned.pem", format!("# the same\n{}{}{}", other.pem(), ca.pem(), other.pem()));
    memory.put("other.pem", other.pem());
    let asking = |id: &str, client: &str| {
        format!("{{id: {id}, cert: a.pem, key: a.key, sni: a.example.com, client: {{ca: {client}}}}}")
    };
    let first = memory.good(&config(&asking("a", "one.pem"))).server.unwrap();
    let shown = first.find(Some("a.example.com"), crate::Offer::Http1).unwrap().client_ca.unwrap().clone();
    let check = |entry: &str, expected: bool| {
        let server = memory.good(&config(entry)).server.unwrap();
        assert_eq!(server.allows(b"a.example.com", Some(&shown)), expected, "{entry}");
    };
    check(&asking("a", "one.pem"), true);
    check(&asking("renamed", "turned.pem"), true);
    check(&asking("a", "one.pem, depth: 2"), false);
    check(&asking("a", "other.pem"), false);
    check(A, true);
}

#[test]
fn what_did_not_change_is_the_same() {
    let (mut memory, ca) = both();
    memory.put_pair("alice", issue(&client_params("alice"), &ca));
    let ssls = format!("{A}, {B}, {{id: c, cert: alice.pem, key: alice.key, type: client}}");
    let tls = "ca: ca.pem, client_cert_id: c";
    let first = memory.good(&config_with(&ssls, tls));
    let same = again(&memory, &config_with(&ssls, tls), &first);
    assert!(same.is_same(&first));
    assert!(Arc::ptr_eq(first.server.as_ref().unwrap(), same.server.as_ref().unwrap()));
    assert!(Arc::ptr_eq(&first.clients["u"], &same.clients["u"]));
    let check = |memory: &Memory, ssls: &str, tls: &str, server: bool, client: bool| {
        let next = again(memory, &config_with(ssls, tls), &first);
        assert_eq!(Arc::ptr_eq(first.server.as_ref().unwrap(), next.server.as_ref().unwrap()), server);
        assert_eq!(Arc::ptr_eq(&first.clients["u"], &next.clients["u"]), client);
        assert!(!next.is_same(&first) && !first.is_same(&next));
    };
    check(&memory, &ssls, "ca: ca.pem", true, false);
    check(&memory, &ssls, "ca: ca.pem, client_cert_id: c, sni: x.example", true, false);
    check(&memory, &ssls.replace("sni: b", "sni: c"), tls, false, true);
    let mut renewed = memory.clone();
    renewed.put_pair("alice", issue(&client_params("alice"), &ca));
    check(&renewed, &ssls, tls, false, false);
    let mut other_roots = memory.clone();
    other_roots.put("ca.pem", ca.pem() + &super::ca("more").pem());
    check(&other_roots, &ssls, tls, true, false);
}

#[test]
fn upstreams_with_equal_settings_share_one() {
    let (memory, _) = both();
    let text = "routes: []\nupstreams: [{id: a, scheme: https, nodes: {x: 1}, tls: {ca: ca.pem}}, \
                {id: b, scheme: https, nodes: {y: 1}, tls: {ca: ca.pem, sni: z.example}}, \
                {id: c, scheme: https, nodes: {y: 1}, tls: {verify: false}}, {id: d, nodes: {y: 1}}]\n";
    let config = stillgate_config::load(text, &|_| None).unwrap().config;
    let material = memory.good(&config);
    let shared = |a: &str, b: &str| Arc::ptr_eq(&material.clients[a].config, &material.clients[b].config);
    assert!(shared("a", "b") && !shared("a", "c"));
    assert!(material.server.is_none() && !material.clients.contains_key("d"));
}

#[test]
fn what_serves_already_is_not_refused_for_its_age() {
    let (mut memory, ca) = both();
    let mut ends = params(&["a.example.com"]);
    ends.not_after = date_time_ymd(2026, 7, 1);
    memory.put_pair("a", issue(&ends, &ca));
    let config = config(A);
    let first = memory.good(&config);
    let later = NOW_SECONDS + 60 * 24 * 3600;
    let (second, warnings) = memory.load_at(&config, Some(&first), later).unwrap();
    assert!(second.is_same(&first));
    assert_eq!(
        warnings[0].to_string(),
        "ssls[\"a\"].cert: a.pem: certificate 1 expired on Jul  1 00:00:00 2026 +00:00; renew it; it would be refused \
         at the next start"
    );
    assert!(memory.load_at(&config, None, later).is_err());
}

#[test]
fn warnings_are_repeated_for_what_did_not_change() {
    let (mut memory, _) = both();
    memory.readable_by_all = true;
    let config = config(A);
    let (first, warnings) = memory.load(&config).unwrap();
    assert_eq!(warnings.len(), 1);
    assert_eq!(memory.load_at(&config, Some(&first), NOW_SECONDS).unwrap().1, warnings);
}

#[test]
fn the_files_of_a_configuration() {
    let ssls = "{id: a, cert: a.pem, key: a.key, certs: [b.pem], keys: [b.key], sni: a.x, client: {ca: ca.pem}, ocsp: a.der}, \
                {id: c, cert: c.pem, key: c.key, type: client}, {id: off, cert: off.pem, key: off.key, sni: off, status: 0}";
    let tls = "client_cert: u.pem, client_key: u.key, ca: /roots.pem";
    let files: Vec<PathBuf> = crate::files_of(&config_with(ssls, tls)).into_iter().collect();
    let expected =
        ["/roots.pem", "a.der", "a.key", "a.pem", "b.key", "b.pem", "c.key", "c.pem", "ca.pem", "u.key", "u.pem"];
    assert_eq!(files, expected.map(PathBuf::from));
}

#[test]
fn what_cannot_be_used_any_more_keeps_nothing_else_from_being_renewed() {
    let (mut memory, ca) = both();
    memory.put_pair("node", issue(&client_params("gateway"), &ca));
    let text = format!(
        "gateway: {{listeners: [{{address: \"127.0.0.1:9443\", tls: true}}]}}\nssls: [{A}, {B}]\nupstreams:\n  \
         - {{id: x, scheme: https, nodes: {{\"127.0.0.1:1\": 1}}, tls: {{ca: ca.pem}}}}\n  \
         - {{id: y, scheme: https, nodes: {{\"127.0.0.1:1\": 1}}, tls: {{ca: ca.pem, client_cert: node.pem, client_key: \
         node.key}}}}\nroutes: []\n"
    );
    let config = stillgate_config::load(text, &|_| None).unwrap_or_else(|errors| panic!("{errors}")).config;
    let renew = |memory: &Memory, previous: &Material| {
        let now = UnixTime::since_unix_epoch(Duration::from_secs(NOW_SECONDS));
        let alpn: &[&[u8]] = &[b"http/1.1"];
        let inputs = Inputs { files: memory, previous: Some(previous), now, alpn, upstream_alpn: alpn };
        let (material, problems) = Material::renew(&config, &inputs);
        (material, problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    };
    let serial = |material: &Material, name: &str| {
        let shown = shake(material, client(&memory, "verify: false"), name).unwrap();
        shown.client.peer_certificates().unwrap()[0].to_vec()
    };
    let first = memory.good(&config);
    let (unchanged, problems) = renew(&memory, &first);
    assert!(unchanged.is_same(&first) && problems.is_empty(), "{problems}");
    let mut after = memory.clone();
    after.put("b.key", "nothing");
    after.files.remove(Path::new("node.key"));
    let (broken, problems) = renew(&after, &first);
    assert!(broken.is_same(&first));
    assert!(problems.contains("ssls[\"b\"].key: b.key: ") && problems.contains("client_key: node.key: "), "{problems}");
    // All files are gone, and one is renewed.
    after.files.clear();
    after.put_pair("a", issue(&params(&["a.example.com"]), &ca));
    let (renewed, problems) = renew(&after, &first);
    assert!(problems.contains("ca.pem: cannot be read"), "{problems}");
    assert!(!renewed.is_same(&first));
    assert_ne!(serial(&renewed, "a.example.com"), serial(&first, "a.example.com"));
    assert_eq!(serial(&renewed, "b.example.com"), serial(&first, "b.example.com"));
    assert_eq!(renewed.clients.len(), 2);
    // Entries that stayed are still the first ones once everything is fixed.
    assert!(after.load_at(&config, Some(&renewed), NOW_SECONDS).is_err());
    let mended = again(&memory, &config, &renewed);
    assert_eq!(serial(&mended, "b.example.com"), serial(&first, "b.example.com"));
}
