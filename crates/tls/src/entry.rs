//! One entry of `ssls`, read and prepared, or kept if nothing about it changed.

use crate::client_auth::client_demands;
use crate::identity::{ChainReceiver, Expiry, Identity, Purpose, pair};
use crate::loading::{Digest, Digester, Text, TlsLoad};
use crate::material::Inputs;
use crate::problem::{ConfigLocation, Problem};
use crate::server::{self, Configs};
use crate::{ocsp, ordered_certificate};
use std::sync::Arc;
use stillgate_config::{ServerSsl, Ssl, SslUse};

/// One entry of `ssls`, ready for use.
#[derive(Debug)]
pub(crate) struct SslEntry {
    pub(crate) ssl: Arc<Ssl>,
    /// Set for entries of clients of our listeners.
    pub(crate) server: Option<Arc<Configs>>,
    pub(crate) identity: Arc<Identity>,
    /// The digest of all inputs.
    pub(crate) digest: Digest,
    /// The ends of its certificates; empty if it has none yet.
    pub(crate) expiries: Vec<Expiry>,
    warnings: Vec<Problem>,
}

/// The texts of an entry of `ssls`.
struct EntryTexts {
    /// Empty for an ordered certificate that has not been issued yet.
    pairs: Vec<(Text, Text)>,
    ca: Option<Text>,
    ocsp: Option<Text>,
}

/// Reads an entry or keeps it; `None` if it cannot be used, which has been reported. `known`: the previous entry with
/// that id.
pub(crate) fn entry(
    ssl: &Arc<Ssl>,
    path: &str,
    known: Option<&Arc<SslEntry>>,
    inputs: &Inputs<'_>,
    loading: &mut TlsLoad<'_>,
) -> Option<Arc<SslEntry>> {
    let texts = texts(ssl, path, loading)?;
    let mut digest = Digester::new();
    for (cert, key) in &texts.pairs {
        digest.add(cert);
        digest.add(key);
    }
    digest.add(texts.ca.as_deref().unwrap_or_default());
    digest.add(texts.ocsp.as_deref().unwrap_or_default());
    let digest = digest.finish();
    if let Some(known) = known.filter(|known| known.digest == digest && known.ssl == *ssl) {
        // It is in use already. To refuse it now, because time has passed, would keep everything else from changing.
        warn_of_expiry(ssl, &known.expiries, inputs, loading);
        loading.problems.warn_again(&known.warnings);
        return Some(known.clone());
    }
    let outer = std::mem::take(&mut loading.problems);
    let made = make(ssl, &texts, path, known, inputs, loading);
    let is_good = !loading.problems.has_errors();
    let warnings = loading.problems.warnings_into(outer);
    let (identity, server, expiries) = made.filter(|_| is_good)?;
    warn_of_expiry(ssl, &expiries, inputs, loading);
    Some(Arc::new(SslEntry { ssl: ssl.clone(), server, identity, digest, expiries, warnings }))
}

/// For an ordered certificate the code that orders it reports this.
fn warn_of_expiry(ssl: &Ssl, expiries: &[Expiry], inputs: &Inputs<'_>, loading: &mut TlsLoad<'_>) {
    for expiry in expiries.iter().filter(|_| !ssl.acme) {
        expiry.warn(inputs.now, &mut loading.problems);
    }
}

fn texts(ssl: &Ssl, path: &str, loading: &mut TlsLoad<'_>) -> Option<EntryTexts> {
    let mut pairs = Vec::with_capacity(ssl.pairs.len());
    if let Some(text) = ssl.acme.then(|| ordered_certificate::text(ssl, path, loading)).flatten() {
        pairs.push((Some(text.clone()), Some(text)));
    }
    for (index, pair) in ssl.pairs.iter().enumerate().filter(|_| !ssl.acme) {
        let (cert_path, key_path) = paths(path, index);
        pairs.push((loading.pem(&pair.cert, &cert_path), loading.pem(&pair.key, &key_path)));
    }
    let (mut ca, mut ocsp) = (Some(None), None);
    if let SslUse::Server(server) = &ssl.usage {
        if let Some(client) = &server.client {
            ca = loading.pem(&client.ca, &format!("{path}.client.ca")).map(Some);
        }
        if let Some(file) = &server.ocsp {
            ocsp = loading.optional_file(file, &format!("{path}.ocsp"));
        }
    }
    let pairs = pairs.into_iter().map(|(cert, key)| Some((cert?, key?))).collect::<Option<Vec<_>>>();
    Some(EntryTexts { pairs: pairs?, ca: ca?, ocsp })
}

/// Where the certificate and the key of a pair are in the configuration.
fn paths(path: &str, index: usize) -> (String, String) {
    match index {
        0 => (format!("{path}.cert"), format!("{path}.key")),
        _ => (format!("{path}.certs[{}]", index - 1), format!("{path}.keys[{}]", index - 1)),
    }
}

type Made = (Arc<Identity>, Option<Arc<Configs>>, Vec<Expiry>);

fn make(
    ssl: &Ssl,
    texts: &EntryTexts,
    path: &str,
    known: Option<&Arc<SslEntry>>,
    inputs: &Inputs<'_>,
    loading: &mut TlsLoad<'_>,
) -> Option<Made> {
    let (identity, expiries) = match ssl.acme {
        true => ordered_certificate::identity(ssl, texts.pairs.first().map(|(text, _)| text), path, known, loading)?,
        false => load_pairs(ssl, texts, path, known, inputs, loading)?,
    };
    let config = match &ssl.usage {
        SslUse::Server(server) => Some(server_config(server, texts, &identity, path, inputs, loading)?),
        SslUse::Client | SslUse::Refused(_) => None,
    };
    Some((identity, config, expiries))
}

/// The pairs of certificate and key that the configuration names.
fn load_pairs(
    ssl: &Ssl,
    texts: &EntryTexts,
    path: &str,
    known: Option<&Arc<SslEntry>>,
    inputs: &Inputs<'_>,
    loading: &mut TlsLoad<'_>,
) -> Option<(Arc<Identity>, Vec<Expiry>)> {
    let purpose = match &ssl.usage {
        SslUse::Server(server) => Purpose { shown: ChainReceiver::ToClients, names: &server.names },
        SslUse::Client | SslUse::Refused(_) => Purpose { shown: ChainReceiver::ToUpstreams, names: &[] },
    };
    let mut pairs = Vec::with_capacity(ssl.pairs.len());
    for (index, (key_pair, (cert, key))) in ssl.pairs.iter().zip(&texts.pairs).enumerate() {
        let (cert_path, key_path) = paths(path, index);
        pairs.push(pair(key_pair, (cert, key), (&cert_path, &key_path), purpose, loading));
    }
    let server = match &ssl.usage {
        SslUse::Server(server) => Some(server),
        SslUse::Client | SslUse::Refused(_) => None,
    };
    let ocsp_path = format!("{path}.ocsp");
    let ocsp_place = ConfigLocation { path: &ocsp_path, file: server.and_then(|server| server.ocsp.as_deref()) };
    let pairs: Vec<_> = pairs.into_iter().collect::<Option<_>>()?;
    let problems = &mut loading.problems;
    let staple = texts.ocsp.as_ref().and_then(|response| ocsp::read(response, inputs.now, ocsp_place, problems));
    let mut staple = staple.filter(|staple| staple.belongs(&pairs, ocsp_place, problems));
    if staple.is_none() && ocsp_place.file.is_some() {
        staple = known.and_then(|known| known.identity.staple_for(&pairs, inputs.now));
    }
    let expiries = pairs.iter().map(|pair| pair.expiry.clone()).collect();
    Some((Arc::new(Identity::new(pairs, staple.as_ref())), expiries))
}

fn server_config(
    ssl: &ServerSsl,
    texts: &EntryTexts,
    identity: &Arc<Identity>,
    path: &str,
    inputs: &Inputs<'_>,
    loading: &mut TlsLoad<'_>,
) -> Option<Arc<Configs>> {
    let problems = &mut loading.problems;
    let asking = match (&ssl.client, &texts.ca) {
        (Some(client), Some(ca)) => {
            let ca_path = format!("{path}.client.ca");
            let place = ConfigLocation { path: &ca_path, file: client.ca.file() };
            Some(client_demands(ca, client.depth, place, problems)?)
        }
        _ => None,
    };
    server::config(ssl, identity.clone(), asking, inputs.alpn, ConfigLocation { path, file: None }, problems)
}
