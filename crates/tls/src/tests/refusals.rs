//! Errors and warnings of loading, with the words that an operator gets.

use super::*;
use rcgen::{Issuer, date_time_ymd};

const ENTRY: &str = "{id: a, cert: a.pem, key: a.key, sni: a.example.com}";

/// One entry whose files are these; the words of its errors and warnings.
fn problems_of(memory: &Memory, ssls: &str) -> (Vec<String>, Vec<String>) {
    let words = |problems: Vec<Problem>| problems.iter().map(ToString::to_string).collect();
    match memory.load(&config(ssls)) {
        Ok((_, warnings)) => (Vec::new(), words(warnings)),
        Err(refused) => (words(refused.errors), words(refused.warnings)),
    }
}

#[track_caller]
fn refused(memory: &Memory, ssls: &str, expected: &str) {
    let (errors, _) = problems_of(memory, ssls);
    assert_eq!(errors, [expected]);
}

#[track_caller]
fn warned(memory: &Memory, ssls: &str, expected: &str) {
    assert_eq!(problems_of(memory, ssls), (Vec::new(), vec![expected.to_owned()]));
}

fn one(params: &CertificateParams, issuer: &Ca) -> Memory {
    let mut memory = Memory::default();
    memory.put_pair("a", issue(params, issuer));
    memory
}

#[test]
fn times() {
    let ca = ca("root");
    let mut expired = params(&["a.example.com"]);
    expired.not_after = date_time_ymd(2026, 5, 31);
    refused(
        &one(&expired, &ca),
        ENTRY,
        "ssls[\"a\"].cert: a.pem: certificate 1 expired on May 31 00:00:00 2026 +00:00; renew it",
    );
    let mut soon = params(&["a.example.com"]);
    soon.not_after = date_time_ymd(2026, 6, 14);
    warned(
        &one(&soon, &ca),
        ENTRY,
        "ssls[\"a\"].cert: a.pem: certificate 1 expires in 12 days, on Jun 14 00:00:00 2026 +00:00; renew it",
    );
    soon.not_after = date_time_ymd(2026, 6, 16);
    assert_eq!(problems_of(&one(&soon, &ca), ENTRY), (vec![], vec![]));
    let mut early = params(&["a.example.com"]);
    early.not_before = date_time_ymd(2026, 6, 2);
    refused(
        &one(&early, &ca),
        ENTRY,
        "ssls[\"a\"].cert: a.pem: certificate 1 is not valid before Jun  2 00:00:00 2026 +00:00; wait until then, or \
         set this machine's clock",
    );
    // An expired certificate further up ends all below it.
    let mut params = ca_params("old");
    params.not_after = date_time_ymd(2026, 5, 31);
    let old = CertifiedIssuer::signed_by(params, KeyPair::generate().unwrap(), &ca).unwrap();
    let (cert, key) = issue(&super::params(&["a.example.com"]), &old);
    let mut memory = Memory::default();
    memory.put_pair("a", (cert + &old.pem(), key));
    refused(&memory, ENTRY, "ssls[\"a\"].cert: a.pem: certificate 2 expired on May 31 00:00:00 2026 +00:00; renew it");
}

#[test]
fn keys() {
    let ca = ca("root");
    let (cert, key) = issue(&params(&["a.example.com"]), &ca);
    let (other_cert, other) = issue(&params(&["b.example.com"]), &ca);
    let check = |cert: &str, key: &str, expected: &str| {
        let mut memory = Memory::default();
        memory.put_pair("a", (cert.to_owned(), key.to_owned()));
        refused(&memory, ENTRY, expected);
    };
    let mismatch = "ssls[\"a\"].key: a.key: the key does not belong to the certificate; ";
    check(&cert, &other, &format!("{mismatch}is one of them of an earlier renewal?"));
    let reversed = ca.pem() + &cert;
    check(&reversed, &key, &format!("{mismatch}it belongs to certificate 2 of the chain, which must come first"));
    let pem = "was it cut off, or changed by an editor?";
    let middle = key.len() / 2;
    check(&cert, &key[..middle], &format!("ssls[\"a\"].key: a.key: not valid PEM; {pem}"));
    let broken = key.replace("\n-----END", "\n!!!!\n-----END");
    check(&cert, &broken, &format!("ssls[\"a\"].key: a.key: not valid PEM; {pem}"));
    let swapped = "there is a certificate; are cert and key the wrong way round?";
    check(&cert, &other_cert, &format!("ssls[\"a\"].key: a.key: no private key is in it; {swapped}"));
    let none = "ssls[\"a\"].key: a.key: no private key is in it; it must be PEM: -----BEGIN PRIVATE KEY-----";
    check(&cert, "", none);
    check(&cert, "\0\u{7f}\u{202e}", none);
    let encrypted = "ssls[\"a\"].key: a.key: the key is encrypted, and nobody can be asked for its password; decrypt it \
                     (openssl pkey -in FILE -out FILE) and let only the gateway read it";
    check(&cert, &key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY"), encrypted);
    let old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAAAA\n\
               -----END RSA PRIVATE KEY-----\n";
    check(&cert, old, encrypted);
    let nonsense = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    check(
        &cert,
        nonsense,
        "ssls[\"a\"].key: a.key: the key cannot be used; it must be RSA (2048 bits or more), ECDSA or Ed25519",
    );
}

#[test]
fn certificates() {
    let ca = ca("root");
    let (cert, key) = issue(&params(&["a.example.com"]), &ca);
    let check = |cert: &[u8], expected: &str| {
        let mut memory = Memory::default();
        memory.put("a.pem", cert);
        memory.put("a.key", &*key);
        refused(&memory, ENTRY, &format!("ssls[\"a\"].cert: a.pem: {expected}"));
    };
    check(b"", "no certificate is in it; it must be PEM: -----BEGIN CERTIFICATE-----");
    check(key.as_bytes(), "no certificate is in it; there is a private key; are cert and key the wrong way round?");
    check(
        &[0x30, 0x82, 1, 0],
        "no certificate is in it; it looks like DER; convert it: openssl x509 -inform der -in FILE",
    );
    let (errors, _) = problems_of(&one_text(&cert[..cert.len() / 2], &key), ENTRY);
    assert!(errors[0].contains("not valid PEM"), "{errors:?}");
    let nonsense = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let (errors, _) = problems_of(&one_text(nonsense, &key), ENTRY);
    assert!(errors[0].contains("the certificate cannot be used"), "{errors:?}");
    check(
        cert.repeat(11).as_bytes(),
        "11 certificates; a chain has at most 10; keep the certificate and those that lead to its root",
    );
    let large = vec![b'\n'; crate::FILE_BYTES_MAX + 1];
    check(&large, "cannot be read: it is larger than 4194304 bytes; fix the path or the file's permissions");
    let mut memory = one_text(&cert, &key);
    memory.files.remove(Path::new("a.pem"));
    refused(
        &memory,
        ENTRY,
        "ssls[\"a\"].cert: a.pem: cannot be read: entity not found; fix the path or the file's permissions",
    );
}

fn one_text(cert: &str, key: &str) -> Memory {
    let mut memory = Memory::default();
    memory.put_pair("a", (cert.to_owned(), key.to_owned()));
    memory
}

#[test]
fn chains() {
    let root = ca("root");
    let (first, impostor) = (intermediate("first", &root), intermediate("first", &root));
    let second = intermediate("second", &first);
    let (cert, key) = issue(&params(&["a.example.com"]), &second);
    let (first_pem, second_pem, root_pem) = (first.pem(), second.pem(), root.pem());
    let chain = |parts: &[&str]| one_text(&(cert.clone() + &parts.concat()), &key);
    for good in [&[][..], &[&second_pem[..]], &[&second_pem, &first_pem], &[&second_pem, &first_pem, &root_pem]] {
        assert_eq!(problems_of(&chain(good), ENTRY), (vec![], vec![]));
    }
    let order = "put the certificate first, behind it the one that signed it, and so on";
    let wrong = "ssls[\"a\"].cert: a.pem: wrong chain: certificate";
    let check = |parts: &[&str], expected: &str| refused(&chain(parts), ENTRY, &format!("{wrong} {expected}"));
    check(
        &[&first_pem, &second_pem],
        &format!("1 was issued by \"CN=second\", but the next one is of \"CN=first\"; {order}"),
    );
    check(
        &[&second_pem, &root_pem],
        &format!("2 was issued by \"CN=first\", but the next one is of \"CN=root\"; {order}"),
    );
    check(
        &[&cert],
        &format!("1 was issued by \"CN=second\", but the next one is of \"CN=rcgen self signed cert\"; {order}"),
    );
    // The right name, but another key.
    let not_signed = "did not sign the one before, though it has its issuer's name; take the chain that came with the \
                      certificate";
    check(&[&second_pem, &impostor.pem()], &format!("3 (\"CN=first\") {not_signed}"));
    // A certificate that is not a CA.
    let not_a_ca = KeyPair::generate().unwrap();
    let mut no_ca = params(&["leaf.example"]);
    no_ca.distinguished_name.push(DnType::CommonName, "leaf");
    let leaf = no_ca.signed_by(&not_a_ca, &root).unwrap();
    let below = params(&["a.example.com"]).signed_by(&KeyPair::from_pem(&key).unwrap(), &Issuer::new(no_ca, not_a_ca));
    let text = below.unwrap().pem() + &leaf.pem() + &root_pem;
    refused(
        &one_text(&text, &key),
        ENTRY,
        "ssls[\"a\"].cert: a.pem: wrong chain: a certificate that is not an issuer's has signed another; take the chain that \
         came with the certificate",
    );
    // A certificate that is not for servers.
    let (cert, key) = issue(&client_params("alice"), &first);
    let (errors, _) =
        problems_of(&one_text(&(cert + &first_pem), &key), "{id: a, cert: a.pem, key: a.key, default: true}");
    assert!(errors[0].contains("a certificate is not for servers (extended key usage)"), "{errors:?}");
}

#[test]
fn names_that_the_certificate_does_not_have() {
    let ca = ca("root");
    let memory = one(&params(&["a.example.com", "*.b.example.com"]), &ca);
    let check = |name: &str, is_missing: bool| {
        let (errors, warnings) = problems_of(&memory, &ENTRY.replace("a.example.com", &format!("{name:?}")));
        let expected = format!(
            "ssls[\"a\"].cert: a.pem: the certificate does not have the name {name:?}, so clients will refuse it; take the \
             name out of the entry's snis, or ask for another certificate"
        );
        assert_eq!((errors, warnings), (vec![], Vec::from_iter(is_missing.then_some(expected))), "{name}");
    };
    check("a.example.com", false);
    check("x.b.example.com", false);
    check("*.b.example.com", false);
    check("b.example.com", true);
    check("x.y.b.example.com", true);
    check("*.example.com", true);
    // The subject does not count.
    let mut only_subject = params(&[]);
    only_subject.distinguished_name.push(DnType::CommonName, "a.example.com");
    assert_eq!(problems_of(&one(&only_subject, &ca), ENTRY).1.len(), 1);
}

#[test]
fn keys_that_everybody_can_read() {
    let mut memory = one(&params(&["a.example.com"]), &ca("root"));
    memory.readable_by_all = true;
    warned(
        &memory,
        ENTRY,
        "ssls[\"a\"].key: a.key: every user of this machine can read the private key; take the others' permission away: \
         chmod o-r FILE",
    );
}

#[test]
fn every_entry_is_looked_at() {
    let mut memory = one(&params(&["a.example.com"]), &ca("root"));
    memory.put("bad.key", "");
    let entries = "{id: x, cert: none.pem, key: bad.key, sni: x.example}, {id: off, cert: off, key: off, sni: o, status: 0}, \
                   {id: y, cert: a.pem, key: bad.key, type: client}, {id: z, cert: a.pem, key: a.key, certs: [a.pem, n.pem], \
                   keys: [bad.key, a.key], default: true}";
    let (errors, _) = problems_of(&memory, entries);
    let places: Vec<&str> = errors.iter().map(|error| error.split(": ").next().unwrap()).collect();
    assert_eq!(places, ["ssls[\"x\"].cert", "ssls[\"y\"].key", "ssls[\"z\"].certs[1]"], "{errors:#?}");
    memory.put("n.pem", memory.files[Path::new("a.pem")].clone());
    let (errors, _) = problems_of(&memory, entries);
    assert_eq!(errors[2].split(": ").next().unwrap(), "ssls[\"z\"].keys[0]", "{errors:#?}");
}

#[test]
fn clients_issuers() {
    let mut memory = one(&params(&["a.example.com"]), &ca("root"));
    memory.put("empty.pem", "nothing");
    let entry = |ca: &str| ENTRY.replace("sni:", &format!("client: {{ca: {ca}}}, sni:"));
    refused(
        &memory,
        &entry("empty.pem"),
        "ssls[\"a\"].client.ca: empty.pem: no certificate is in it; it must be PEM: -----BEGIN CERTIFICATE-----",
    );
    let (errors, _) = problems_of(&memory, &entry("none.pem"));
    assert!(errors[0].starts_with("ssls[\"a\"].client.ca: none.pem: cannot be read"), "{errors:?}");
}

#[test]
fn upstreams() {
    let root = ca("root");
    let mut memory = one(&params(&["a.example.com"]), &root);
    memory.put("root.pem", root.pem());
    memory.put_pair("alice", issue(&client_params("alice"), &root));
    let check = |tls: &str, expected: &[&str]| {
        let config = config_with(&format!("{ENTRY}, {{id: c, cert: alice.pem, key: alice.key, type: client}}"), tls);
        let errors = memory.load(&config).map(|_| ()).err().map_or(Vec::new(), |refused| refused.errors);
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(errors, expected, "{tls}");
    };
    check("ca: root.pem", &[]);
    check("verify: false", &[]);
    check("ca: root.pem, client_cert: alice.pem, client_key: alice.key", &[]);
    check("ca: root.pem, client_cert_id: c", &[]);
    check(
        "",
        &["upstreams[\"u\"].tls.ca: the system trusts no certificates, so no node could be verified; install the \
           system's certificates (ca-certificates), or name the roots here"],
    );
    check(
        "ca: root.pem, client_cert: alice.pem, client_key: a.key",
        &["upstreams[\"u\"].tls.client_key: a.key: the key does not belong to the certificate; is one of them of an \
           earlier renewal?"],
    );
    check(
        "ca: a.key",
        &[
            "upstreams[\"u\"].tls.ca: a.key: no certificate is in it; there is a private key; are cert and key the wrong \
           way round?",
        ],
    );
    // A problem of an entry is reported once, at the entry.
    memory.files.remove(Path::new("alice.key"));
    let config = config_with(
        &format!("{ENTRY}, {{id: c, cert: alice.pem, key: alice.key, type: client}}"),
        "ca: root.pem, client_cert_id: c",
    );
    let errors = memory.load(&config).unwrap_err().errors;
    assert_eq!(errors.iter().map(|error| &error.path[..]).collect::<Vec<_>>(), ["ssls[\"c\"].key"]);
}

#[test]
fn inline_text_is_never_shown() {
    let (cert, key) = issue(&params(&["a.example.com"]), &ca("root"));
    let secret = key.lines().nth(1).unwrap().to_owned();
    let quoted = |text: &str| format!("{text:?}");
    let (_, other) = issue(&params(&["a.example.com"]), &ca("root"));
    for (cert, key) in
        [(&cert, &other), (&key, &key), (&cert, &key.replace("END", "EMD")), (&cert, &key[..90].to_owned())]
    {
        let ssls = format!("{{id: a, cert: {}, key: {}, sni: a.example.com}}", quoted(cert), quoted(key));
        let config = config(&ssls);
        let refused = Memory::default().load(&config).unwrap_err();
        let told = format!("{refused} {refused:?} {config:?}");
        assert!(!told.contains(&secret) && !told.contains(&other.lines().nth(1).unwrap().to_owned()), "{told}");
    }
    let ssls = format!("{{id: a, cert: {}, key: {}, sni: a.example.com}}", quoted(&cert), quoted(&key));
    let material = Memory::default().good(&config(&ssls));
    assert!(!format!("{material:?}").contains(&secret));
}

#[test]
fn problems_are_bounded() {
    let entries: Vec<String> =
        (0..300).map(|n| format!("{{id: e{n}, cert: no.pem, key: no.key, sni: e{n}.x}}")).collect();
    let refused = Memory::default().load(&config(&entries.join(", "))).unwrap_err();
    assert_eq!(refused.errors.len(), 101);
    assert_eq!(refused.errors[100].to_string(), "ssls: and 500 more problems with certificates and keys");
}
