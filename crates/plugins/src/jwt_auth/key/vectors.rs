//! Project Wycheproof's vectors for the primitives that sign tokens, through the keys of credentials: signatures that
//! are invalid there are invalid here.
//!
//! Its vectors of JSON Web Signatures are in no package; `tests/all/auth` tests the token format.

use super::*;
use wycheproof::{TestResult, ecdsa, eddsa, mac, rsa_pkcs1_verify, rsa_pss_verify};

/// One vector: its number, the signed text, the signature, and whether that is valid.
type Vector<'a> = (usize, &'a [u8], &'a [u8], bool);

/// Verifies vectors with a public key; returns the number of valid ones.
fn check<'a>(name: &str, algorithm: Algorithm, pem: &str, vectors: impl Iterator<Item = Vector<'a>>) -> usize {
    let key = public_key(algorithm, pem.as_bytes()).unwrap_or_else(|why| panic!("{name}: {why}\n{pem}"));
    let verifier =
        Verifier { algorithm, key: VerifyingKey::Public(Box::new(key)), is_slow: false, grace_s: 0, expected: None };
    let mut valid = 0;
    for (number, signed, signature, is_valid) in vectors {
        assert_eq!(verifier.verifies(signed, signature), is_valid, "{name}, {number}");
        valid += usize::from(is_valid);
    }
    valid
}

#[test]
fn ecdsa_signatures() {
    use ecdsa::TestName::{EcdsaSecp256r1Sha256P1363, EcdsaSecp384r1Sha384P1363, EcdsaSecp521r1Sha512P1363};
    for (name, algorithm) in [
        (EcdsaSecp256r1Sha256P1363, Algorithm::Es256),
        (EcdsaSecp384r1Sha384P1363, Algorithm::Es384),
        (EcdsaSecp521r1Sha512P1363, Algorithm::Es512),
    ] {
        let set = ecdsa::TestSet::load(name).unwrap();
        let of_group = |group: &ecdsa::TestGroup| {
            let vectors =
                group.tests.iter().map(|test| (test.tc_id, &test.msg[..], &test.sig[..], is_valid(test.result)));
            check(&format!("{name:?}"), algorithm, &group.pem, vectors)
        };
        let valid: usize = set.test_groups.iter().map(of_group).sum();
        assert!(valid > 50, "{name:?}: {valid}");
    }
}

#[test]
fn rsa_signatures() {
    use rsa_pkcs1_verify::TestName::{
        Rsa2048Sha256, Rsa2048Sha384, Rsa2048Sha512, Rsa3072Sha256, Rsa3072Sha384, Rsa3072Sha512, Rsa4096Sha256,
        Rsa4096Sha384, Rsa4096Sha512, Rsa8192Sha256, Rsa8192Sha384, Rsa8192Sha512,
    };
    let of = |names: [rsa_pkcs1_verify::TestName; 4], algorithm| names.map(|name| (name, algorithm));
    let all = [
        of([Rsa2048Sha256, Rsa3072Sha256, Rsa4096Sha256, Rsa8192Sha256], Algorithm::Rs256),
        of([Rsa2048Sha384, Rsa3072Sha384, Rsa4096Sha384, Rsa8192Sha384], Algorithm::Rs384),
        of([Rsa2048Sha512, Rsa3072Sha512, Rsa4096Sha512, Rsa8192Sha512], Algorithm::Rs512),
    ];
    for (name, algorithm) in all.into_iter().flatten() {
        let set = rsa_pkcs1_verify::TestSet::load(name).unwrap();
        let of_group = |group: &rsa_pkcs1_verify::TestGroup| {
            // "Acceptable" vectors lack the NULL that RFC 8017 requires, and are refused.
            let vectors =
                group.tests.iter().map(|test| (test.tc_id, &test.msg[..], &test.sig[..], is_valid(test.result)));
            check(&format!("{name:?}"), algorithm, &group.pem, vectors)
        };
        assert!(set.test_groups.iter().map(of_group).sum::<usize>() > 0, "{name:?}");
    }
}

/// RFC 7518 section 3.5: the salt is as long as the hash, and MGF1 uses the same hash.
#[test]
fn rsa_pss_signatures() {
    use rsa_pss_verify::TestName::{
        RsaPss2048Sha256Mgf1SaltLen0, RsaPss2048Sha256Mgf1SaltLen32, RsaPss2048Sha256Mgf1Sha1_20,
        RsaPss2048Sha384Mgf1SaltLen48, RsaPss3072Sha256Mgf1SaltLen32, RsaPss4096Sha256Mgf1SaltLen32,
        RsaPss4096Sha384Mgf1SaltLen48, RsaPss4096Sha512Mgf1SaltLen32, RsaPss4096Sha512Mgf1SaltLen64,
    };
    for (name, algorithm, but) in [
        (RsaPss2048Sha256Mgf1SaltLen32, Algorithm::Ps256, None),
        (RsaPss3072Sha256Mgf1SaltLen32, Algorithm::Ps256, None),
        (RsaPss4096Sha256Mgf1SaltLen32, Algorithm::Ps256, None),
        (RsaPss2048Sha384Mgf1SaltLen48, Algorithm::Ps384, None),
        (RsaPss4096Sha384Mgf1SaltLen48, Algorithm::Ps384, None),
        (RsaPss4096Sha512Mgf1SaltLen64, Algorithm::Ps512, None),
        (RsaPss2048Sha256Mgf1SaltLen0, Algorithm::Ps256, Some("s_len changed to 32")),
        (RsaPss2048Sha256Mgf1Sha1_20, Algorithm::Ps256, Some("no vector")),
        (RsaPss4096Sha512Mgf1SaltLen32, Algorithm::Ps512, Some("no vector")),
    ] {
        let set = rsa_pss_verify::TestSet::load(name).unwrap();
        // Sets with other parameters have one vector that is invalid there because it uses ours.
        let is_ours =
            |test: &rsa_pss_verify::Test| but.map_or(is_valid(test.result), |comment| test.comment == comment);
        let of_group = |group: &rsa_pss_verify::TestGroup| {
            let vectors = group.tests.iter().map(|test| (test.tc_id, &test.msg[..], &test.sig[..], is_ours(test)));
            check(&format!("{name:?}"), algorithm, &group.pem, vectors)
        };
        assert_eq!(set.test_groups.iter().map(of_group).sum::<usize>() > 0, but != Some("no vector"), "{name:?}");
    }
}

#[test]
fn ed25519_signatures() {
    let set = eddsa::TestSet::load(eddsa::TestName::Ed25519).unwrap();
    let of_group = |group: &eddsa::TestGroup| {
        let vectors = group.tests.iter().map(|test| (test.tc_id, &test.msg[..], &test.sig[..], is_valid(test.result)));
        check("Ed25519", Algorithm::EdDsa, &group.pem, vectors)
    };
    assert!(set.test_groups.iter().map(of_group).sum::<usize>() > 50);
}

/// A truncated tag is invalid, though Wycheproof has such vectors.
#[test]
fn hmac_tags() {
    use mac::TestName::{HmacSha256, HmacSha384, HmacSha512};
    for (name, algorithm, bytes) in
        [(HmacSha256, Algorithm::Hs256, 32), (HmacSha384, Algorithm::Hs384, 48), (HmacSha512, Algorithm::Hs512, 64)]
    {
        let set = mac::TestSet::load(name).unwrap();
        let mut valid = 0;
        for test in set.test_groups.iter().flat_map(|group| &group.tests) {
            let shared = SharedSecret::new(algorithm.hmac().unwrap(), &test.key);
            let verifier =
                Verifier { algorithm, key: VerifyingKey::Shared(shared), is_slow: false, grace_s: 0, expected: None };
            let expected = is_valid(test.result) && test.tag.len() == bytes;
            assert_eq!(verifier.verifies(&test.msg, &test.tag), expected, "{name:?}, {}", test.tc_id);
            let with = verifier.verifies_with(&mut LastSecret::default(), Identity(1), &test.msg, &test.tag);
            assert_eq!(with, expected, "{name:?}, {}, prepared", test.tc_id);
            valid += usize::from(expected);
        }
        assert!(valid > 20, "{name:?}: {valid}");
    }
}

fn is_valid(result: TestResult) -> bool {
    matches!(result, TestResult::Valid)
}
