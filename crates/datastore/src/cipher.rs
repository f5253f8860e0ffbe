//! Encryption of field values compatible with APISIX: each reads the other's texts.
//!
//! AES-128-CBC with PKCS#7 padding, the key as initialisation vector, base64 around it (APISIX 3, `apisix/ssl.lua`); with a key
//! of 32 bytes, which its later versions take, AES-256-CBC with the first half of the key as vector. The first key of the ring
//! encrypts; each is tried to decrypt. This is weak by design: equal values have equal texts, and nothing shows that a text was
//! altered. It keeps values from those who read a disk or etcd, not from those who write there.
//!
//! APISIX's format has no mark: whether a text is encrypted with a missing key, or is plain, can only be guessed from
//! its form. So callers that can store a mark besides store [`Keyring::fingerprint`], and [`has_form`] is for the
//! others.
//!
//! This module does not know which fields are encrypted.

use aws_lc_rs::cipher::{
    AES_128, AES_128_KEY_LEN, AES_256, DecryptionContext, EncryptionContext, PaddedBlockDecryptingKey,
    PaddedBlockEncryptingKey, UnboundCipherKey,
};
use aws_lc_rs::hmac;
use aws_lc_rs::iv::FixedLength;
use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose};
use std::fmt;

/// Allowed lengths of a key, in bytes.
pub const KEY_BYTES: [usize; 2] = [16, 32];

/// Bytes of an initialisation vector, and of a block.
const VECTOR_BYTES: usize = 16;

/// Bytes of a fingerprint: enough to distinguish the keys of one keyring, and no help in guessing one.
const FINGERPRINT_BYTES: usize = 4;

/// Decodes like nginx, and so APISIX: padding may be missing, and the bits behind the last byte are ignored.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// One or more keys.
pub struct Keyring {
    first: Cipher,
    others: Vec<Cipher>,
    /// Fingerprint of the first key.
    pub fingerprint: String,
}

/// Why keys are not a valid keyring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyringError {
    /// The list of keys is empty.
    Empty,
    /// The length of this key is not one of [`KEY_BYTES`].
    Length {
        /// Its index.
        index: usize,
        /// Its length in bytes.
        bytes: usize,
    },
}

struct Cipher {
    encrypting: PaddedBlockEncryptingKey,
    decrypting: PaddedBlockDecryptingKey,
    vector: [u8; VECTOR_BYTES],
}

impl Keyring {
    /// Makes a keyring from texts in the form of APISIX's `data_encryption.keyring`. The first one encrypts.
    pub fn new<K: AsRef<str>>(keys: &[K]) -> Result<Keyring, KeyringError> {
        let cipher = |(index, key): (usize, &K)| {
            let key = key.as_ref().as_bytes();
            Cipher::new(key).ok_or(KeyringError::Length { index, bytes: key.len() })
        };
        let mut ciphers = keys.iter().enumerate().map(cipher);
        let first = ciphers.next().ok_or(KeyringError::Empty)??;
        let others = ciphers.collect::<Result<_, _>>()?;
        let fingerprint = keys.first().map_or_else(String::new, |key| fingerprint(key.as_ref().as_bytes()));
        Ok(Keyring { first, others, fingerprint })
    }

    /// Encrypts with the first key.
    pub fn encrypt(&self, text: &str) -> String {
        BASE64.encode(self.first.encrypt(text))
    }

    /// Tries each key. `None` if it was encrypted with none of them, so it is plain, or its key is lost.
    ///
    /// A wrong key seems right if the padding fits by chance and the bytes are UTF-8: about once in ten million for a
    /// text of one block, less for longer ones.
    pub fn decrypt(&self, text: &str) -> Option<String> {
        let bytes = BASE64.decode(text).ok()?;
        std::iter::once(&self.first).chain(&self.others).find_map(|cipher| cipher.decrypt(&bytes))
    }
}

/// Whether a text has the form of encrypted texts, of both [`Keyring::encrypt`] and APISIX: base64 with its padding, of
/// whole blocks. Plain texts may have it, too; a hash in hexadecimal digits has not, since no ciphertext consists of
/// them alone.
pub fn has_form(text: &str) -> bool {
    let is_hexadecimal = || text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let bytes = general_purpose::STANDARD.decode(text).unwrap_or_default();
    !bytes.is_empty() && bytes.len().is_multiple_of(VECTOR_BYTES) && !is_hexadecimal()
}

fn fingerprint(key: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    let tag = hmac::sign(&key, b"stillgate: the fingerprint of a key");
    tag.as_ref().iter().take(FINGERPRINT_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

impl Cipher {
    /// `None` if the key has a wrong length.
    fn new(key: &[u8]) -> Option<Cipher> {
        let algorithm = if key.len() == AES_128_KEY_LEN { &AES_128 } else { &AES_256 };
        let unbound = || UnboundCipherKey::new(algorithm, key).ok();
        Some(Cipher {
            encrypting: PaddedBlockEncryptingKey::cbc_pkcs7(unbound()?).ok()?,
            decrypting: PaddedBlockDecryptingKey::cbc_pkcs7(unbound()?).ok()?,
            vector: *key.first_chunk()?,
        })
    }

    fn encrypt(&self, text: &str) -> Vec<u8> {
        let mut bytes = text.as_bytes().to_vec();
        let context = EncryptionContext::Iv128(FixedLength::from(self.vector));
        self.encrypting.less_safe_encrypt(&mut bytes, context).expect("CBC with padding encrypts any bytes");
        bytes
    }

    fn decrypt(&self, bytes: &[u8]) -> Option<String> {
        let mut bytes = bytes.to_vec();
        let context = DecryptionContext::Iv128(FixedLength::from(self.vector));
        let plain = self.decrypting.decrypt(&mut bytes, context).ok()?;
        String::from_utf8(plain.to_vec()).ok()
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring").field("keys", &(1 + self.others.len())).finish_non_exhaustive()
    }
}

impl fmt::Display for KeyringError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyringError::Empty => f.write_str("a keyring has at least one key"),
            KeyringError::Length { index, bytes } => {
                write!(f, "key {index} of the keyring has {bytes} bytes; it must have 16 or 32")
            }
        }
    }
}

impl std::error::Error for KeyringError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OLD: &str = "qeddd145sfvddff3";
    const NEW: &str = "edd1c9f0985e76a2";
    const LONG: &str = "edd1c9f0985e76a2edd1c9f0985e76a2";
    const LONG_OF_TWO: &str = "qeddd145sfvddff3edd1c9f0985e76a2";

    /// `printf %s TEXT | openssl enc -aes-128-cbc -K HEX -iv HEX -base64 -A`, HEX being `printf %s KEY | xxd -p`;
    /// `-aes-256-cbc` for the long keys, and 16 bytes of them for `-iv`.
    const KNOWN: &[(&str, &str, &str)] = &[
        (OLD, "", "CEGh183MAO3X8/ZV2jzHeA=="),
        (OLD, "a", "dpwomMlEsHH2L7wSUi6YiQ=="),
        (OLD, "0123456789abcdef", "qpxu8KrwHqjW92zgZHFDOLQA3RNdV40A6RLotmKQPVw="),
        (OLD, "Grüße, 世界", "Fle9SuCypaw4sePAOLFj9g=="),
        (NEW, "", "vA4BfcVo+wewoRJDl1bmfA=="),
        (NEW, "jack-key", "aHjCGOCvDinqchkBIWtwUA=="),
        (NEW, "0123456789abcdef", "uB5lc7bO3T325sSYkKpZM6bQ2Yb4ZwCTwDljNDbfVIo="),
        (LONG, "", "dvEHnC+hCOAxppfUiSk7bg=="),
        (LONG, "0123456789abcdef", "IqM2AnnvPgILKmVtCy+rzgh9NpV7uSqwd9dfh28D+Oc="),
        (LONG_OF_TWO, "userkey", "7j/rc/tsLCTvt6ZJoMtrkQ=="),
        // APISIX's own tests have these as written into etcd by its Admin API.
        (NEW, "userkey", "mt39FazQccyMqt4ctoRV7w=="),
        (NEW, "bar", "77+NmbYqNfN+oLm0aX5akg=="),
        (LONG, "bar", "VlFdcMlSSIXMcCEqwGqD8A=="),
    ];

    #[test]
    fn texts_are_those_of_openssl_and_apisix() {
        for (key, plain, encrypted) in KNOWN {
            let keyring = Keyring::new(&[key]).unwrap();
            assert_eq!(keyring.encrypt(plain), *encrypted, "{plain:?}");
            assert_eq!(keyring.decrypt(encrypted).as_deref(), Some(*plain));
        }
    }

    #[test]
    fn each_key_decrypts_and_the_first_encrypts() {
        let keyring = Keyring::new(&[NEW, OLD, LONG, LONG_OF_TWO]).unwrap();
        for (_, plain, encrypted) in KNOWN {
            assert_eq!(keyring.decrypt(encrypted).as_deref(), Some(*plain));
        }
        assert_eq!(keyring.encrypt("userkey"), "mt39FazQccyMqt4ctoRV7w==");
    }

    #[test]
    fn what_no_key_encrypted_is_plain() {
        let keyring = Keyring::new(&[NEW]).unwrap();
        let check = |text: &str| assert_eq!(keyring.decrypt(text), None, "{text:?}");
        check("");
        check("jack-key");
        check("-----BEGIN PRIVATE KEY-----\n");
        // Base64 that is not a whole number of blocks.
        check("YWJj");
        // Encrypted with another key.
        check("qpxu8KrwHqjW92zgZHFDOLQA3RNdV40A6RLotmKQPVw=");
        // The last block is missing.
        check("uB5lc7bO3T325sSYkKpZMw==");
    }

    #[test]
    fn base64_is_read_as_nginx_reads_it() {
        let keyring = Keyring::new(&[NEW]).unwrap();
        assert_eq!(keyring.decrypt("77+NmbYqNfN+oLm0aX5akg").as_deref(), Some("bar"));
        assert_eq!(keyring.decrypt("77+NmbYqNfN+oLm0aX5akh==").as_deref(), Some("bar"));
    }

    #[test]
    fn what_is_encrypted_has_its_form() {
        for (_, plain, encrypted) in KNOWN {
            assert!(has_form(encrypted) && !has_form(plain), "{encrypted}");
        }
        let sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
        for plain in [sha256, "77+NmbYqNfN+oLm0aX5akg", "d2hhdA==", "$env://A", "a b", "-----BEGIN PRIVATE KEY-----"] {
            assert!(!has_form(plain), "{plain}");
        }
    }

    #[test]
    fn a_fingerprint_is_of_the_key_that_encrypts() {
        let of = |keys: &[&str]| Keyring::new(keys).unwrap().fingerprint;
        assert_eq!((of(&[NEW, OLD]), of(&[NEW]).len()), (of(&[NEW]), 8));
        assert_ne!(of(&[NEW]), of(&[OLD]));
    }

    #[test]
    fn keys_are_checked() {
        let check = |keys: &[&str], expected: &str| {
            assert_eq!(Keyring::new(keys).unwrap_err().to_string(), expected);
        };
        check(&[], "a keyring has at least one key");
        check(&[NEW, "short"], "key 1 of the keyring has 5 bytes; it must have 16 or 32");
        check(&["世界世界世界"], "key 0 of the keyring has 18 bytes; it must have 16 or 32");
        assert_eq!(format!("{:?}", Keyring::new(&[NEW, OLD]).unwrap()), "Keyring { keys: 2, .. }");
    }

    proptest! {
        #[test]
        fn what_is_encrypted_can_be_decrypted(text in ".*") {
            let keyring = Keyring::new(&[OLD, NEW]).unwrap();
            prop_assert_eq!(keyring.decrypt(&keyring.encrypt(&text)), Some(text));
        }
    }
}
