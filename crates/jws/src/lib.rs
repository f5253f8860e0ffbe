//! Signatures of JSON Web Signatures (RFC 7515): which algorithms there are, which keys they take, how these verify and sign.
//!
//! A key is made for one algorithm, and can do nothing else: who verifies chooses it, and no token does. Tokens themselves are not
//! read here.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod sign;

pub use sign::sign;

use aws_lc_rs::hmac;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ED25519, ParsedPublicKey,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, VerificationAlgorithm,
};
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::{PublicKey, RSAPublicKey};
use x509_parser::x509::SubjectPublicKeyInfo;

/// How tokens are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// HMAC with SHA-256.
    Hs256,
    /// HMAC with SHA-384.
    Hs384,
    /// HMAC with SHA-512.
    Hs512,
    /// RSA, PKCS #1 version 1.5, with SHA-256.
    Rs256,
    /// RSA, PKCS #1 version 1.5, with SHA-384.
    Rs384,
    /// RSA, PKCS #1 version 1.5, with SHA-512.
    Rs512,
    /// RSA, PSS, with SHA-256.
    Ps256,
    /// RSA, PSS, with SHA-384.
    Ps384,
    /// RSA, PSS, with SHA-512.
    Ps512,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// ECDSA on P-384 with SHA-384.
    Es384,
    /// ECDSA on P-521 with SHA-512.
    Es512,
    /// Ed25519.
    EdDsa,
}

/// Their names (RFC 7518 section 3.1, RFC 8037 section 3.1).
pub const ALGORITHMS: &[(&str, Algorithm)] = &[
    ("HS256", Algorithm::Hs256),
    ("HS384", Algorithm::Hs384),
    ("HS512", Algorithm::Hs512),
    ("RS256", Algorithm::Rs256),
    ("RS384", Algorithm::Rs384),
    ("RS512", Algorithm::Rs512),
    ("ES256", Algorithm::Es256),
    ("ES384", Algorithm::Es384),
    ("ES512", Algorithm::Es512),
    ("PS256", Algorithm::Ps256),
    ("PS384", Algorithm::Ps384),
    ("PS512", Algorithm::Ps512),
    ("EdDSA", Algorithm::EdDsa),
];

/// RSA keys above this take more than 100 µs to verify with.
const FAST_RSA_BITS_MAX: usize = 4096;

impl Algorithm {
    /// The one of a name.
    pub fn named(name: &str) -> Option<Algorithm> {
        ALGORITHMS.iter().find(|(known, _)| *known == name).map(|(_, algorithm)| *algorithm)
    }

    /// HMAC with its hash; `None`: it has public keys.
    pub fn hmac(self) -> Option<hmac::Algorithm> {
        match self {
            Algorithm::Hs256 => Some(hmac::HMAC_SHA256),
            Algorithm::Hs384 => Some(hmac::HMAC_SHA384),
            Algorithm::Hs512 => Some(hmac::HMAC_SHA512),
            _ => None,
        }
    }
}

/// RSA keys below this are too weak, and none above the other are used.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// Whether verifying by a key takes more than 100 µs.
pub fn is_slow(algorithm: Algorithm, key: &ParsedPublicKey) -> bool {
    let is_slow_curve = matches!(algorithm, Algorithm::Es384 | Algorithm::Es512);
    is_slow_curve || rsa_bits(key.as_ref()) > Some(FAST_RSA_BITS_MAX)
}

/// What a public key must be, and how it verifies.
fn verification(algorithm: Algorithm) -> Option<&'static dyn VerificationAlgorithm> {
    Some(match algorithm {
        Algorithm::Hs256 | Algorithm::Hs384 | Algorithm::Hs512 => return None,
        Algorithm::Rs256 => &RSA_PKCS1_2048_8192_SHA256,
        Algorithm::Rs384 => &RSA_PKCS1_2048_8192_SHA384,
        Algorithm::Rs512 => &RSA_PKCS1_2048_8192_SHA512,
        Algorithm::Ps256 => &RSA_PSS_2048_8192_SHA256,
        Algorithm::Ps384 => &RSA_PSS_2048_8192_SHA384,
        Algorithm::Ps512 => &RSA_PSS_2048_8192_SHA512,
        Algorithm::Es256 => &ECDSA_P256_SHA256_FIXED,
        Algorithm::Es384 => &ECDSA_P384_SHA384_FIXED,
        Algorithm::Es512 => &ECDSA_P521_SHA512_FIXED,
        Algorithm::EdDsa => &ED25519,
    })
}

/// Reads a public key, or a certificate of one, in PEM.
///
/// # Errors
///
/// Why it cannot be used.
pub fn public_key(algorithm: Algorithm, text: &[u8]) -> Result<ParsedPublicKey, &'static str> {
    let (_, pem) = parse_x509_pem(text).map_err(|_| "it is not PEM")?;
    let der = match pem.label.as_str() {
        "PUBLIC KEY" | "RSA PUBLIC KEY" => pem.contents,
        "CERTIFICATE" => pem.parse_x509().map_err(|_| "the certificate is broken")?.public_key().raw.to_vec(),
        label if label.ends_with("PRIVATE KEY") => return Err("it is a private key, which only who signs should have"),
        _ => return Err("it is PEM of something else than a public key"),
    };
    parse_der(algorithm, der)
}

/// Reads a public key in DER: SubjectPublicKeyInfo, or RSAPublicKey.
///
/// # Errors
///
/// Why it cannot be used.
pub fn parse_der(algorithm: Algorithm, der: Vec<u8>) -> Result<ParsedPublicKey, &'static str> {
    if let Some(bits) = rsa_bits(&der)
        && !RSA_BITS.contains(&bits)
    {
        return Err("an RSA key has from 2048 to 8192 bits");
    }
    let verification = verification(algorithm).ok_or(OF_ANOTHER)?;
    ParsedPublicKey::new(verification, der).map_err(|_| OF_ANOTHER)
}

const OF_ANOTHER: &str = "the key is of another kind than `algorithm`";

/// How large an RSA key is; `None`: it is none.
fn rsa_bits(der: &[u8]) -> Option<usize> {
    let of_key = |key: &RSAPublicKey<'_>| {
        let first = key.modulus.iter().position(|byte| *byte != 0)?;
        Some((key.modulus.len() - first) * 8 - key.modulus[first].leading_zeros() as usize)
    };
    match SubjectPublicKeyInfo::from_der(der) {
        Ok((_, info)) => match info.parsed() {
            Ok(PublicKey::RSA(key)) => of_key(&key),
            _ => None,
        },
        Err(_) => RSAPublicKey::from_der(der).ok().and_then(|(_, key)| of_key(&key)),
    }
}
