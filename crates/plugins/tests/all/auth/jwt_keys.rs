//! `jwt-auth`: keys of all types, the examples of RFC 7515, and refused ones.

use super::consumers::{consumers, refusal};
use super::jwt_auth::{HS256, encode, who, with};
use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING, EcdsaKeyPair,
    EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512,
    RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaKeyPair,
};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use expect_test::{Expect, expect};
use stillgate_plugin_api::Consumers;

fn pem(label: &str, der: &[u8]) -> String {
    let body = STANDARD.encode(der);
    let lines: Vec<&str> = (0..body.len()).step_by(64).map(|at| &body[at..(at + 64).min(body.len())]).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// A consumer whose tokens are verified by a public key.
fn of_key(algorithm: &str, pem: &str) -> Result<Consumers, String> {
    let credential = format!("jwt-auth: {{key: k, algorithm: {algorithm}, public_key: {pem:?}}}");
    super::consumers::try_consumers(&[("jack", &[], &credential)])
}

/// Checks a signer of an algorithm: its token is accepted, changed ones and those of other algorithms are not.
fn check_signer(algorithm: &str, pem: &str, sign: &dyn Fn(&[u8]) -> Vec<u8>) {
    let plugins = with("jwt-auth: {}", &of_key(algorithm, pem).unwrap());
    let signed = |alg: &str| format!("{}.{}", encode(format!(r#"{{"alg":"{alg}"}}"#)), encode(r#"{"key":"k"}"#));
    let token = |alg: &str| format!("{}.{}", signed(alg), encode(sign(signed(alg).as_bytes())));
    let unverified = r#"< "{"message":"failed to verify jwt"}"#;
    for _ in 0..2 {
        assert_eq!(who(&plugins, &token(algorithm)), "jack", "{algorithm}");
    }
    let mut signature = sign(signed(algorithm).as_bytes());
    signature[5] ^= 1;
    assert_eq!(who(&plugins, &format!("{}.{}", signed(algorithm), encode(&signature))), unverified, "{algorithm}");
    signature[5] ^= 1;
    signature.push(0);
    assert_eq!(who(&plugins, &format!("{}.{}", signed(algorithm), encode(&signature))), unverified, "{algorithm}");
    for other in ["none", "HS256", "RS384", "PS384", "ES512"].into_iter().filter(|other| *other != algorithm) {
        assert_eq!(who(&plugins, &token(other)), unverified, "{algorithm} as {other}");
    }
    // The public key as the secret of an HMAC, as PEM and as DER.
    let der = STANDARD.decode(pem.lines().filter(|line| !line.starts_with('-')).collect::<String>()).unwrap();
    for secret in [pem.as_bytes(), pem.trim_end().as_bytes(), &der] {
        assert_eq!(who(&plugins, &super::jwt_auth::token(secret, HS256, r#"{"key":"k"}"#)), unverified, "{algorithm}");
    }
}

#[test]
fn signatures_by_elliptic_curves_are_verified() {
    let random = SystemRandom::new();
    let curves: [(&str, &'static EcdsaSigningAlgorithm); 3] = [
        ("ES256", &ECDSA_P256_SHA256_FIXED_SIGNING),
        ("ES384", &ECDSA_P384_SHA384_FIXED_SIGNING),
        ("ES512", &ECDSA_P521_SHA512_FIXED_SIGNING),
    ];
    for (name, curve) in curves {
        let pair = EcdsaKeyPair::generate(curve).unwrap();
        let der: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
        let pem = pem("PUBLIC KEY", der.as_ref());
        check_signer(name, &pem, &|message| pair.sign(&random, message).unwrap().as_ref().to_vec());
        for other in ["RS256", "EdDSA", if name == "ES256" { "ES384" } else { "ES256" }] {
            assert!(of_key(other, &pem).is_err(), "{name} as {other}");
        }
        // A signature of zeros, which broken implementations accept.
        let plugins = with("jwt-auth: {}", &of_key(name, &pem).unwrap());
        let zeros = vec![0; pair.sign(&random, b"").unwrap().as_ref().len()];
        let header = format!(r#"{{"alg":"{name}"}}"#);
        let forged = format!("{}.{}.{}", encode(header), encode(r#"{"key":"k"}"#), encode(zeros));
        assert_eq!(who(&plugins, &forged), r#"< "{"message":"failed to verify jwt"}"#);
    }
    let pair = Ed25519KeyPair::generate().unwrap();
    let der: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
    check_signer("EdDSA", &pem("PUBLIC KEY", der.as_ref()), &|message| pair.sign(message).as_ref().to_vec());
}

#[test]
fn signatures_by_rsa_are_verified() {
    let random = SystemRandom::new();
    let pair = RsaKeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048).unwrap();
    let der: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
    // Both forms of the key.
    let pems = [pem("PUBLIC KEY", der.as_ref()), pem("RSA PUBLIC KEY", pair.public_key().as_ref())];
    let encodings: [(&str, &'static dyn aws_lc_rs::signature::RsaEncoding); 6] = [
        ("RS256", &RSA_PKCS1_SHA256),
        ("RS384", &RSA_PKCS1_SHA384),
        ("RS512", &RSA_PKCS1_SHA512),
        ("PS256", &RSA_PSS_SHA256),
        ("PS384", &RSA_PSS_SHA384),
        ("PS512", &RSA_PSS_SHA512),
    ];
    for (at, (name, encoding)) in encodings.into_iter().enumerate() {
        check_signer(name, &pems[at % 2], &|message| {
            let mut signature = vec![0; pair.public_modulus_len()];
            pair.sign(encoding, &random, message, &mut signature).unwrap();
            signature
        });
    }
    assert!(of_key("ES256", &pems[0]).is_err() && of_key("EdDSA", &pems[1]).is_err());
}

/// RFC 7515 appendix A. Their payloads expire in 2011, and name the issuer in `iss`.
#[test]
fn the_examples_of_rfc_7515_are_verified() {
    let payload = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    let check = |credential: &str, header: &str, signature: &str| {
        let consumers = consumers(&[("joe", &[], &format!("jwt-auth: {{key: joe, {credential}}}"))]);
        let plugins = with("jwt-auth: {key_claim_name: iss}", &consumers);
        let token = format!("{header}.{payload}.{signature}");
        assert_eq!(who(&plugins, &token), r#"< "{"message":"failed to verify jwt"}"#, "it has ended");
        plugins.set_now_ms(1_300_819_379_999);
        assert_eq!(who(&plugins, &token), "joe");
        let changed = token.replace("LA0K", "LA0L");
        assert_ne!(who(&plugins, &changed), "joe");
    };
    // A.1
    let secret = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow";
    let secret = STANDARD.encode(URL_SAFE_NO_PAD.decode(secret).unwrap());
    check(
        &format!("secret: {secret}, base64_secret: true"),
        "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9",
        "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
    );
    // A.2
    let modulus = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZ\
                   S-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2\
                   R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcD\
                   TW9gb54h4FRWyuXpoQ";
    let modulus = URL_SAFE_NO_PAD.decode(modulus).unwrap();
    // RSAPublicKey (RFC 8017 appendix A.1.1), with the exponent 65537.
    let der = [&[0x30, 0x82, 0x01, 0x0a, 0x02, 0x82, 0x01, 0x01, 0x00][..], &modulus, &[0x02, 0x03, 0x01, 0x00, 0x01]];
    let key = pem("RSA PUBLIC KEY", &der.concat());
    check(
        &format!("algorithm: RS256, public_key: {key:?}"),
        "eyJhbGciOiJSUzI1NiJ9",
        "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZ\
         cAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-e\
         OkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw",
    );
    // A.5, which is never verified.
    let consumers =
        consumers(&[("joe", &[], &format!("jwt-auth: {{key: joe, algorithm: RS256, public_key: {key:?}}}"))]);
    let plugins = with("jwt-auth: {key_claim_name: iss}", &consumers);
    plugins.set_now_ms(1_300_819_379_999);
    assert_ne!(who(&plugins, &format!("eyJhbGciOiJub25lIn0.{payload}.")), "joe");
    // A.3
    let point = |x: &str, y: &str| [URL_SAFE_NO_PAD.decode(x).unwrap(), URL_SAFE_NO_PAD.decode(y).unwrap()].concat();
    let xy = point("f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0");
    let before = "3059301306072a8648ce3d020106082a8648ce3d03010703420004";
    let before: Vec<u8> =
        (0..before.len()).step_by(2).map(|at| u8::from_str_radix(&before[at..at + 2], 16).unwrap()).collect();
    let key = pem("PUBLIC KEY", &[before, xy].concat());
    check(
        &format!("algorithm: ES256, public_key: {key:?}"),
        "eyJhbGciOiJFUzI1NiJ9",
        "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
    );
}

#[test]
fn what_cannot_work_is_refused() {
    let config = |yaml: &str, expected: Expect| expected.assert_eq(&super::harness::refusal(yaml));
    config(
        "jwt-auth: {key_claim_name: '', claims_to_verify: [iat], realm: 'a\\b', header: 'a b'}",
        expect![[r#"
        1:28: jwt-auth.key_claim_name: a claim has a name; write one, or remove the key
        1:51: jwt-auth.claims_to_verify[0]: expected exp or nbf, found the text "iat"
        1:64: jwt-auth.realm: "a\\b" is not a realm; use printable ASCII characters other than '"' and '\'
        1:79: jwt-auth.header: "a b": not the name of a header field: letters, digits and !#$%&'*+-.^_`|~ only
    "#]],
    );
    config(
        "jwt-auth: {cookie: [a], hide_credentials: 1}",
        expect![[r#"
        1:20: jwt-auth.cookie: expected a text, found a list
        1:43: jwt-auth.hide_credentials: expected true or false, found the number 1
    "#]],
    );
    let credential = |yaml: &str, expected: Expect| expected.assert_eq(&refusal(yaml));
    credential(
        "jwt-auth: {secret: a}",
        expect![[r#"
        1:11: jwt-auth: the key "key" is missing; add it
    "#]],
    );
    credential(
        "jwt-auth: {key: a}",
        expect![[r#"
        1:11: jwt-auth: the key "secret" is missing for this algorithm; add it: tokens are signed with it
    "#]],
    );
    credential(
        "jwt-auth: {key: a, secret: '', algorithm: HS384}",
        expect![[r#"
        1:11: jwt-auth: the key "secret" is missing for this algorithm; add it: tokens are signed with it
        1:28: jwt-auth.secret: a secret cannot be empty
    "#]],
    );
    credential(
        "jwt-auth: {key: a, secret: '*?', base64_secret: true}",
        expect![[r#"
        1:11: jwt-auth.secret: it is not base64; encode it, or leave `base64_secret` out
    "#]],
    );
    credential(
        "jwt-auth: {key: a, secret: '====', base64_secret: true}",
        expect![[r#"
        1:11: jwt-auth.secret: it is not base64; encode it, or leave `base64_secret` out
    "#]],
    );
    credential(
        "jwt-auth: {key: a, secret: b, algorithm: RS256}",
        expect![[r#"
        1:11: jwt-auth: the key "public_key" is missing for this algorithm; add it: tokens are verified with it
    "#]],
    );
    credential(
        "jwt-auth: {key: a, secret: b, algorithm: none}",
        expect![[r#"
        1:42: jwt-auth.algorithm: expected HS256, HS384, HS512, RS256, RS384, RS512, ES256, ES384, ES512, PS256, PS384, PS512 or EdDSA, found the text "none"
    "#]],
    );
    credential(
        "jwt-auth: {key: a, secret: b, exp: 0, lifetime_grace_period: -1}",
        expect![[r#"
            1:36: jwt-auth.exp: expected a whole number, 1 or more, found the number 0
            1:62: jwt-auth.lifetime_grace_period: expected a whole number, 0 or more, found the number -1
        "#]],
    );
    credential(
        "jwt-auth: {key: a, public_key: b, algorithm: RS256}",
        expect![[r#"
        1:11: jwt-auth.public_key: it is not PEM; give the PEM of the key that belongs to `algorithm`
    "#]],
    );
    let broken = pem("PUBLIC KEY", b"broken");
    credential(
        &format!("jwt-auth: {{key: a, public_key: {broken:?}, algorithm: ES256}}"),
        expect![[r#"
        1:11: jwt-auth.public_key: the key is of another kind than `algorithm`; give the PEM of the key that belongs to `algorithm`
    "#]],
    );
    let private = pem("EC PRIVATE KEY", b"secret");
    credential(
        &format!("jwt-auth: {{key: a, public_key: {private:?}, algorithm: ES256}}"),
        expect![[r#"
        1:11: jwt-auth.public_key: it is a private key, which only who signs should have; give the PEM of the key that belongs to `algorithm`
    "#]],
    );
    let pair = RsaKeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048).unwrap();
    let mut small = pair.public_key().as_ref().to_vec();
    // 1024 bits: a sequence of a shorter modulus, and the exponent.
    let modulus = small.split_off(9)[..128].to_vec();
    let small =
        pem("RSA PUBLIC KEY", &[&[0x30, 0x81, 0x89, 0x02, 0x81, 0x81, 0x00][..], &modulus, &[2, 3, 1, 0, 1]].concat());
    credential(
        &format!("jwt-auth: {{key: a, public_key: {small:?}, algorithm: RS256}}"),
        expect![[r#"
        1:11: jwt-auth.public_key: an RSA key has from 2048 to 8192 bits; give the PEM of the key that belongs to `algorithm`
    "#]],
    );
}
