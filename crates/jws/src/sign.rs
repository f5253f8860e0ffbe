//! Signing with a secret, or with a private key in PEM.

use crate::{Algorithm, OF_ANOTHER, RSA_BITS};
use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING, EcdsaKeyPair,
    EcdsaSigningAlgorithm, Ed25519KeyPair, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256,
    RSA_PSS_SHA384, RSA_PSS_SHA512, RsaEncoding, RsaKeyPair,
};
use x509_parser::pem::Pem;

/// How an algorithm signs.
enum Signing {
    Shared(hmac::Algorithm),
    Rsa(&'static dyn RsaEncoding),
    Ecdsa(&'static EcdsaSigningAlgorithm),
    Ed25519,
}

fn signing(algorithm: Algorithm) -> Signing {
    use Signing::{Ecdsa, Ed25519, Rsa, Shared};
    match algorithm {
        Algorithm::Hs256 => Shared(hmac::HMAC_SHA256),
        Algorithm::Hs384 => Shared(hmac::HMAC_SHA384),
        Algorithm::Hs512 => Shared(hmac::HMAC_SHA512),
        Algorithm::Rs256 => Rsa(&RSA_PKCS1_SHA256),
        Algorithm::Rs384 => Rsa(&RSA_PKCS1_SHA384),
        Algorithm::Rs512 => Rsa(&RSA_PKCS1_SHA512),
        Algorithm::Ps256 => Rsa(&RSA_PSS_SHA256),
        Algorithm::Ps384 => Rsa(&RSA_PSS_SHA384),
        Algorithm::Ps512 => Rsa(&RSA_PSS_SHA512),
        Algorithm::Es256 => Ecdsa(&ECDSA_P256_SHA256_FIXED_SIGNING),
        Algorithm::Es384 => Ecdsa(&ECDSA_P384_SHA384_FIXED_SIGNING),
        Algorithm::Es512 => Ecdsa(&ECDSA_P521_SHA512_FIXED_SIGNING),
        Algorithm::EdDsa => Ed25519,
    }
}

/// Signs a message with a secret, or with a private key in PEM, as the algorithm wants it.
///
/// # Errors
///
/// Why the key cannot be used.
pub fn sign(algorithm: Algorithm, key: &[u8], message: &[u8]) -> Result<Vec<u8>, &'static str> {
    let random = SystemRandom::new();
    match signing(algorithm) {
        Signing::Shared(hash) => Ok(hmac::sign(&hmac::Key::new(hash, key), message).as_ref().to_vec()),
        Signing::Rsa(encoding) => {
            let (label, der) = private_key(key)?;
            let key = match label.as_str() {
                "RSA PRIVATE KEY" => RsaKeyPair::from_der(&der),
                _ => RsaKeyPair::from_pkcs8(&der),
            };
            let key = key.map_err(|_| OF_ANOTHER)?;
            if !RSA_BITS.contains(&(key.public_modulus_len() * 8)) {
                return Err("an RSA key has from 2048 to 8192 bits");
            }
            let mut signature = vec![0; key.public_modulus_len()];
            key.sign(encoding, &random, message, &mut signature).map_err(|_| FAILED)?;
            Ok(signature)
        }
        Signing::Ecdsa(curve) => {
            let key = EcdsaKeyPair::from_private_key_der(curve, &private_key(key)?.1).map_err(|_| OF_ANOTHER)?;
            Ok(key.sign(&random, message).map_err(|_| FAILED)?.as_ref().to_vec())
        }
        Signing::Ed25519 => {
            let key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&private_key(key)?.1).map_err(|_| OF_ANOTHER)?;
            Ok(key.sign(message).as_ref().to_vec())
        }
    }
}

const FAILED: &str = "the key could not sign";

/// The label and the bytes of the private key in a text, which may have parameters of a curve before it.
fn private_key(text: &[u8]) -> Result<(String, Vec<u8>), &'static str> {
    let mut last = "it is not PEM";
    for pem in Pem::iter_from_buffer(text) {
        let Ok(Pem { label, contents }) = pem else { break };
        match label.as_str() {
            "ENCRYPTED PRIVATE KEY" => return Err("the private key is encrypted"),
            label if label.ends_with("PRIVATE KEY") => return Ok((label.to_owned(), contents)),
            _ => last = "it is PEM of something else than a private key",
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ALGORITHMS, public_key};
    use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
    use aws_lc_rs::rsa::KeySize;
    use aws_lc_rs::signature::KeyPair;

    fn pem(label: &str, der: &[u8]) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let encoded = der.chunks(3).flat_map(|chunk| {
            let bits = (0..3).fold(0_u32, |bits, at| bits << 8 | u32::from(*chunk.get(at).unwrap_or(&0)));
            let digit = move |at: usize| char::from(DIGITS[(bits >> (18 - 6 * at) & 63) as usize]);
            (0..4).map(move |at| if at <= chunk.len() { digit(at) } else { '=' }).collect::<Vec<char>>()
        });
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", encoded.collect::<String>())
    }

    /// A private key for an algorithm, and the public one.
    fn keys(algorithm: Algorithm) -> (String, String) {
        let (private, public) = match signing(algorithm) {
            Signing::Shared(_) => unreachable!("it has no public key"),
            Signing::Rsa(_) => {
                let key = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
                let private = AsDer::<Pkcs8V1Der<'_>>::as_der(&key).unwrap();
                (private.as_ref().to_vec(), key.public_key().as_der().unwrap().as_ref().to_vec())
            }
            Signing::Ecdsa(curve) => {
                let key = EcdsaKeyPair::generate(curve).unwrap();
                (key.to_pkcs8v1().unwrap().as_ref().to_vec(), key.public_key().as_der().unwrap().as_ref().to_vec())
            }
            Signing::Ed25519 => {
                let key = Ed25519KeyPair::generate().unwrap();
                let private = key.to_pkcs8().unwrap();
                (private.as_ref().to_vec(), key.public_key().as_der().unwrap().as_ref().to_vec())
            }
        };
        (pem("PRIVATE KEY", &private), pem("PUBLIC KEY", &public))
    }

    #[test]
    fn what_is_signed_is_verified_and_nothing_else() {
        for (name, algorithm) in ALGORITHMS.iter().filter(|(_, algorithm)| algorithm.hmac().is_none()) {
            let (private, public) = keys(*algorithm);
            let signature = sign(*algorithm, private.as_bytes(), b"message").unwrap();
            let key = public_key(*algorithm, public.as_bytes()).unwrap();
            assert!(key.verify_sig(b"message", &signature).is_ok(), "{name}");
            assert!(key.verify_sig(b"massage", &signature).is_err(), "{name}");
            // A key is of one family.
            for (other, wrong) in ALGORITHMS.iter().filter(|(other, _)| other[..2] != name[..2] && other[1..2] != *"S")
            {
                assert!(sign(*wrong, private.as_bytes(), b"message").is_err(), "{name} {other}");
                assert!(public_key(*wrong, public.as_bytes()).is_err(), "{name} {other}");
            }
        }
    }

    #[test]
    fn what_is_not_a_private_key_is_refused() {
        let (private, public) = keys(Algorithm::Es256);
        let with_parameters = format!("{}{private}", pem("EC PARAMETERS", &[6, 8, 42, 134, 72, 206, 61, 3, 1, 7]));
        assert!(sign(Algorithm::Es256, with_parameters.as_bytes(), b"m").is_ok());
        for (text, why) in [
            ("", "it is not PEM"),
            ("secret", "it is not PEM"),
            (&*public, "it is PEM of something else than a private key"),
            (&*pem("ENCRYPTED PRIVATE KEY", b"abc"), "the private key is encrypted"),
            (&*pem("PRIVATE KEY", b"abc"), OF_ANOTHER),
        ] {
            for algorithm in [Algorithm::Rs256, Algorithm::Es256, Algorithm::EdDsa] {
                assert_eq!(sign(algorithm, text.as_bytes(), b"m"), Err(why), "{text}");
            }
        }
    }
}
