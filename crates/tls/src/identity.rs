//! Certificates with their keys: read, checked, and chosen from in a handshake.
//!
//! A chain has to be complete: each certificate signed by the next. Clients with all intermediates in their cache do not
//! notice a broken chain; the others fail. So it is refused before any client gets it.

use crate::handshake_failure::chain_failure;
use crate::loading::TlsLoad;
use crate::ocsp::Staple;
use crate::pem::{certificates, private_key};
use crate::problem::{ConfigLocation, Problems};
use crate::provider::provider;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys, SignatureAlgorithm, SignatureScheme};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stillgate_config::{KeyPair, Pem};
use webpki::{EndEntityCert, Error as ChainError, KeyUsage, anchor_from_trusted_cert};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

/// The time before its end in which a certificate causes a warning.
const EXPIRY_WARNING_SECONDS: i64 = 14 * DAY_SECONDS;
const DAY_SECONDS: i64 = 24 * 3600;

/// The identity that one party presents: one certificate, or several with different kinds of keys.
#[derive(Debug)]
pub(crate) struct Identity {
    /// Never empty; those with the cheapest signatures first.
    certified: Vec<CertifiedIdentity>,
}

#[derive(Debug)]
struct CertifiedIdentity {
    key: Arc<CertifiedKey>,
    stapled: Option<StapledIdentity>,
}

/// The key and the chain with an OCSP response.
#[derive(Debug)]
struct StapledIdentity {
    key: Arc<CertifiedKey>,
    staple: Staple,
}

/// The use of a pair: which side receives it, and under which names it is requested.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Purpose<'a> {
    pub(crate) shown: ChainReceiver,
    /// See `ServerSsl::names`.
    pub(crate) names: &'a [String],
}

/// A pair that can be used.
pub(crate) struct UsablePair {
    key: CertifiedKey,
    /// Serial number of the first certificate, as encoded in it.
    pub(crate) serial: Vec<u8>,
    pub(crate) expiry: Expiry,
}

/// When the first certificate of a chain ends.
#[derive(Debug, Clone)]
pub(crate) struct Expiry {
    path: String,
    file: Option<PathBuf>,
    number: usize,
    pub(crate) not_after_seconds: i64,
    not_after: String,
}

impl UsablePair {
    /// The first certificate of the chain.
    pub(crate) fn leaf(&self) -> &CertificateDer<'static> {
        &self.key.cert[0]
    }
}

impl Expiry {
    /// Warns of a certificate that is in use already: it is better than none.
    pub(crate) fn warn(&self, now: UnixTime, problems: &mut Problems) {
        let left = self.not_after_seconds.saturating_sub(seconds(now));
        let place = ConfigLocation { path: &self.path, file: self.file.as_deref() };
        if left < 0 {
            let message = format!("certificate {} expired on {}", self.number, self.not_after);
            problems.warning(place, message, "renew it; it would be refused at the next start");
        } else if left < EXPIRY_WARNING_SECONDS {
            let message =
                format!("certificate {} expires in {} days, on {}", self.number, left / DAY_SECONDS, self.not_after);
            problems.warning(place, message, "renew it");
        }
    }
}

/// Reads a pair from the texts of its certificate and key; `None` if it cannot be used, which has been reported.
/// `paths`: of the certificate and of the key.
pub(crate) fn pair(
    pair: &KeyPair,
    texts: (&[u8], &[u8]),
    paths: (&str, &str),
    purpose: Purpose<'_>,
    loading: &mut TlsLoad<'_>,
) -> Option<UsablePair> {
    let cert_place = ConfigLocation { path: paths.0, file: pair.cert.file() };
    let key_place = ConfigLocation { path: paths.1, file: pair.key.file() };
    if let Pem::File(file) = &pair.key {
        warn_of_readers(file, key_place, loading);
    }
    let chain = certificates(texts.0, cert_place, &mut loading.problems);
    let key = private_key(texts.1, key_place, &mut loading.problems);
    let (chain, key) = (chain?, key?);
    if chain.len() > CERTIFICATES_MAX {
        let message = format!("{} certificates; a chain has at most {CERTIFICATES_MAX}", chain.len());
        loading.problems.error(cert_place, message, "keep the certificate and those that lead to its root");
        return None;
    }
    let key = certified(chain, key, cert_place, key_place, &mut loading.problems)?;
    let mut parsed = Vec::with_capacity(key.cert.len());
    for (index, certificate) in key.cert.iter().enumerate() {
        match X509Certificate::from_der(certificate) {
            Ok((_, certificate)) => parsed.push(certificate),
            Err(error) => {
                let message = format!("certificate {} cannot be read: {error}", index + 1);
                loading.problems.error(cert_place, message, "was it cut off?");
                return None;
            }
        }
    }
    let expiry = expiry(&parsed, cert_place, loading)?;
    check_chain(&key.cert, &parsed, purpose.shown, loading.now, cert_place, &mut loading.problems);
    warn_of_names(&parsed[0], purpose.names, cert_place, &mut loading.problems);
    let serial = parsed[0].raw_serial().to_vec();
    Some(UsablePair { key, serial, expiry })
}

fn warn_of_readers(file: &Path, place: ConfigLocation<'_>, loading: &mut TlsLoad<'_>) {
    if loading.files.is_readable_by_all(file) {
        let hint = "take the others' permission away: chmod o-r FILE";
        loading.problems.warning(place, "every user of this machine can read the private key", hint);
    }
}

/// Builds the chain with the key that belongs to its first certificate.
fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    cert_place: ConfigLocation<'_>,
    key_place: ConfigLocation<'_>,
    problems: &mut Problems,
) -> Option<CertifiedKey> {
    let key = match provider().key_provider.load_private_key(key) {
        Ok(key) => key,
        // The error's text is left out: it might show the unreadable key.
        Err(_) => {
            problems.error(key_place, "the key cannot be used", "it must be RSA (2048 bits or more), ECDSA or Ed25519");
            return None;
        }
    };
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Ok(()) => Some(certified),
        Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            let belongs = |certificate: &CertificateDer<'static>| {
                CertifiedKey::new(vec![certificate.clone()], certified.key.clone()).keys_match().is_ok()
            };
            let hint = match certified.cert.iter().position(belongs) {
                Some(index) => {
                    format!("it belongs to certificate {} of the chain, which must come first", index + 1)
                }
                None => "is one of them of an earlier renewal?".to_owned(),
            };
            problems.error(key_place, "the key does not belong to the certificate", hint);
            None
        }
        Err(error) => {
            problems.error(cert_place, format!("the certificate cannot be used: {error}"), "ask for another");
            None
        }
    }
}

/// Reports certificates that are not valid now, and returns the end of the first that ends.
fn expiry(parsed: &[X509Certificate<'_>], place: ConfigLocation<'_>, loading: &mut TlsLoad<'_>) -> Option<Expiry> {
    let now = seconds(loading.now);
    for (index, certificate) in parsed.iter().enumerate() {
        let (number, validity) = (index + 1, certificate.validity());
        if validity.not_after.timestamp() < now {
            let message = format!("certificate {number} expired on {}", validity.not_after);
            loading.problems.error(place, message, "renew it");
            return None;
        }
        if validity.not_before.timestamp() > now {
            let message = format!("certificate {number} is not valid before {}", validity.not_before);
            loading.problems.error(place, message, "wait until then, or set this machine's clock");
            return None;
        }
    }
    let ends = parsed.iter().enumerate().map(|(index, certificate)| (certificate.validity().not_after, index + 1));
    let (not_after, number) = ends.min_by_key(|(not_after, _)| not_after.timestamp())?;
    let expiry = Expiry {
        path: place.path.to_owned(),
        file: place.file.map(Path::to_owned),
        number,
        not_after_seconds: not_after.timestamp(),
        not_after: not_after.to_string(),
    };
    Some(expiry)
}

/// Warns of names that clients will ask for and not find in the certificate (RFC 9525: the subject is ignored).
fn warn_of_names(
    certificate: &X509Certificate<'_>,
    names: &[String],
    place: ConfigLocation<'_>,
    problems: &mut Problems,
) {
    let certified = self::names(certificate);
    for name in names.iter().filter(|name| *name != "*") {
        let wildcard = name.split_once('.').map(|(_, parent)| format!("*.{parent}"));
        if !certified.iter().any(|certified| certified == name || Some(certified) == wildcard.as_ref()) {
            let message = format!("the certificate does not have the name {name:?}, so clients will refuse it");
            problems.warning(place, message, "take the name out of the entry's snis, or ask for another certificate");
        }
    }
}

/// The DNS names of a certificate, in lower case.
pub(crate) fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let alternatives = certificate.subject_alternative_name().ok().flatten();
    alternatives
        .iter()
        .flat_map(|names| &names.value.general_names)
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            _ => None,
        })
        .collect()
}

fn seconds(time: UnixTime) -> i64 {
    time.as_secs().try_into().unwrap_or(i64::MAX)
}

impl Identity {
    /// `pairs`: at least one; `staple`: of one of them.
    pub(crate) fn new(pairs: Vec<UsablePair>, staple: Option<&Staple>) -> Identity {
        let certify = |UsablePair { key, serial, .. }: UsablePair| {
            let stapled = staple.filter(|staple| staple.serial == serial).map(|staple| {
                let key = CertifiedKey { ocsp: Some(staple.response.clone()), ..key.clone() };
                StapledIdentity { key: Arc::new(key), staple: staple.clone() }
            });
            CertifiedIdentity { key: Arc::new(key), stapled }
        };
        let mut certified: Vec<CertifiedIdentity> = pairs.into_iter().map(certify).collect();
        // An RSA signature costs some ten times an ECDSA one.
        certified.sort_by_key(|certified| certified.key.key.algorithm() == SignatureAlgorithm::RSA);
        Identity { certified }
    }

    /// The OCSP response that is in use, if it holds and is about one of these certificates: it is handed out until a
    /// newer one can be used.
    pub(crate) fn staple_for(&self, pairs: &[UsablePair], now: UnixTime) -> Option<Staple> {
        let mut staples = self.certified.iter().filter_map(|certified| Some(&certified.stapled.as_ref()?.staple));
        staples.find(|staple| now < staple.until && pairs.iter().any(|pair| pair.serial == staple.serial)).cloned()
    }

    /// An identity of this key alone, without checks.
    pub(crate) fn single(key: CertifiedKey) -> Identity {
        Identity { certified: vec![CertifiedIdentity { key: Arc::new(key), stapled: None }] }
    }

    /// The first whose signature the peer can check. If none fits, the first: the peer's alert then says that no
    /// signature scheme is shared.
    fn choose(&self, schemes: &[SignatureScheme]) -> Option<&CertifiedIdentity> {
        let fits = |certified: &&CertifiedIdentity| certified.key.key.choose_scheme(schemes).is_some();
        self.certified.iter().find(fits).or(self.certified.first())
    }
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let certified = self.choose(hello.signature_schemes())?;
        // A response that is too old is worse than none: some clients end the handshake.
        match &certified.stapled {
            Some(stapled) if UnixTime::now() < stapled.staple.until => Some(stapled.key.clone()),
            _ => Some(certified.key.clone()),
        }
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _roots: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.choose(schemes).map(|certified| certified.key.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Certificates of one chain.
const CERTIFICATES_MAX: usize = 10;

/// The side that receives a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChainReceiver {
    ToClients,
    ToUpstreams,
}

/// Reports the first link that does not hold. `parsed`: the same certificates, all valid by `now`.
fn check_chain(
    chain: &[CertificateDer<'_>],
    parsed: &[X509Certificate<'_>],
    shown: ChainReceiver,
    now: UnixTime,
    place: ConfigLocation<'_>,
    problems: &mut Problems,
) {
    const ORDER: &str = "put the certificate first, behind it the one that signed it, and so on";
    for (index, pair) in parsed.windows(2).enumerate() {
        let (signed, signer) = (&pair[0], &pair[1]);
        if signed.issuer().as_raw() != signer.subject().as_raw() {
            let message = format!(
                "wrong chain: certificate {} was issued by \"{}\", but the next one is of \"{}\"",
                index + 1,
                signed.issuer(),
                signer.subject()
            );
            return problems.error(place, message, ORDER);
        }
    }
    for (signer, certificate) in parsed.iter().enumerate().skip(1) {
        let Err(error) = verify_chain(chain, signer, shown, now) else { continue };
        match error {
            // Another implementation may be able to check what we cannot.
            ChainError::UnsupportedSignatureAlgorithmContext(_)
            | ChainError::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => {
                let message = format!("whether certificate {} signed the one before cannot be checked", signer + 1);
                return problems.warning(place, message, "its signature is of an old or rare kind; ask for another");
            }
            ChainError::InvalidSignatureForPublicKey | ChainError::UnknownIssuer => {
                let message = format!(
                    "wrong chain: certificate {} (\"{}\") did not sign the one before, though it has its issuer's name",
                    signer + 1,
                    certificate.subject()
                );
                return problems.error(place, message, "take the chain that came with the certificate");
            }
            other => {
                let message = format!("wrong chain: {}", chain_failure_reason(other, signer + 1, shown));
                return problems.error(place, message, "take the chain that came with the certificate");
            }
        }
    }
}

/// Why a chain does not hold although each certificate was signed by the next; `number` is the last one checked.
fn chain_failure_reason(error: ChainError, number: usize, shown: ChainReceiver) -> String {
    match error {
        ChainError::EndEntityUsedAsCa => "a certificate that is not an issuer's has signed another".to_owned(),
        ChainError::CaUsedAsEndEntity => "the first certificate is an issuer's".to_owned(),
        ChainError::PathLenConstraintViolated => "an issuer has more issuers below it than it may have".to_owned(),
        ChainError::NameConstraintViolation => "an issuer may not issue certificates for these names".to_owned(),
        ChainError::RequiredEkuNotFoundContext(_) => {
            let audience = match shown {
                ChainReceiver::ToClients => "servers",
                ChainReceiver::ToUpstreams => "clients",
            };
            format!("a certificate is not for {audience} (extended key usage)")
        }
        other => format!("it does not lead to certificate {number}: {}", chain_failure(&other)),
    }
}

/// Whether the first certificate leads to the one at `anchor`, over those between.
fn verify_chain(
    chain: &[CertificateDer<'_>],
    anchor: usize,
    shown: ChainReceiver,
    now: UnixTime,
) -> Result<(), ChainError> {
    let provider = provider();
    let leaf = EndEntityCert::try_from(&chain[0])?;
    let anchors = [anchor_from_trusted_cert(&chain[anchor])?];
    let usage = match shown {
        ChainReceiver::ToClients => KeyUsage::server_auth(),
        ChainReceiver::ToUpstreams => KeyUsage::client_auth(),
    };
    let algorithms = provider.signature_verification_algorithms.all;
    leaf.verify_for_usage(algorithms, &anchors, &chain[1..anchor], now, usage, None, None).map(|_| ())
}
