//! TLS towards upstreams: made from an upstream's `tls`, once for all upstreams with the same settings.

use crate::chain::ChainReceiver;
use crate::client;
use crate::client_auth::roots;
use crate::digest::{Digest, Digester};
use crate::entry::SslEntry;
use crate::identity::{Expiry, Identity, Purpose, pair};
use crate::loading::{Text, TlsLoad};
use crate::material::Inputs;
use crate::problem::{ConfigLocation, Problem};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use std::collections::HashMap;
use std::sync::Arc;
use stillgate_config::{ClientPair, KeyPair, UpstreamTls};

/// TLS towards upstreams with the same files and settings.
#[derive(Debug)]
pub(crate) struct Towards {
    pub(crate) config: Arc<ClientConfig>,
    expiries: Vec<Expiry>,
    warnings: Vec<Problem>,
}

/// All that a configuration's upstreams need.
#[derive(Debug, Default)]
pub(crate) struct AllTowards {
    made: HashMap<Digest, Arc<Towards>>,
    /// Read once in the process's life, and only where an upstream needs them.
    system_roots: Option<Arc<RootCertStore>>,
}

/// Where the parts of an upstream's `tls` are in the configuration.
struct Paths {
    ca: String,
    cert: String,
    key: String,
}

/// The texts of an upstream's `tls`.
struct UpstreamTexts<'a> {
    ca: Option<Text>,
    own: Option<(&'a KeyPair, Text, Text)>,
    ssl: Option<&'a Arc<SslEntry>>,
}

impl AllTowards {
    pub(crate) fn new(previous: Option<&AllTowards>) -> AllTowards {
        AllTowards { made: HashMap::new(), system_roots: previous.and_then(|previous| previous.system_roots.clone()) }
    }

    /// The client TLS for an upstream's `tls`; `None` if it cannot be used, which has been reported. `entries`: those
    /// that can be used.
    pub(crate) fn of(
        &mut self,
        tls: &UpstreamTls,
        path: &str,
        entries: &HashMap<&str, &Arc<SslEntry>>,
        inputs: &Inputs<'_>,
        loading: &mut TlsLoad<'_>,
    ) -> Option<Arc<ClientConfig>> {
        let paths =
            Paths { ca: format!("{path}.ca"), cert: format!("{path}.client_cert"), key: format!("{path}.client_key") };
        let texts = texts(tls, &paths, entries, loading)?;
        let digest = texts.digest(tls.verify);
        if let Some(made) = self.made.get(&digest) {
            return Some(made.config.clone());
        }
        let previous = inputs.previous.and_then(|previous| previous.towards.made.get(&digest));
        let made = match previous {
            Some(made) => {
                loading.problems.warn_again(&made.warnings);
                made.clone()
            }
            None => {
                let outer = std::mem::take(&mut loading.problems);
                let made = self.make(tls, &texts, &paths, inputs, loading);
                let warnings = loading.problems.warnings_into(outer);
                let (config, expiries) = made?;
                Arc::new(Towards { config, expiries, warnings })
            }
        };
        made.expiries.iter().for_each(|expiry| expiry.warn(inputs.now, &mut loading.problems));
        self.made.insert(digest, made.clone());
        Some(made.config.clone())
    }

    fn make(
        &mut self,
        tls: &UpstreamTls,
        texts: &UpstreamTexts<'_>,
        paths: &Paths,
        inputs: &Inputs<'_>,
        loading: &mut TlsLoad<'_>,
    ) -> Option<(Arc<ClientConfig>, Vec<Expiry>)> {
        let ca_place = ConfigLocation { path: &paths.ca, file: tls.ca.as_ref().and_then(|ca| ca.file()) };
        let roots = match (tls.verify, &texts.ca) {
            (false, _) => None,
            (true, Some(ca)) => Some(roots(ca, ca_place, &mut loading.problems)?),
            (true, None) => Some(self.system_roots(ca_place, loading)?),
        };
        let mut expiries = Vec::new();
        let identity = match (&texts.own, texts.ssl) {
            (Some((own, cert, key)), _) => {
                let purpose = Purpose { shown: ChainReceiver::ToUpstreams, names: &[] };
                let checked = pair(own, (cert, key), (&paths.cert, &paths.key), purpose, loading)?;
                expiries.push(checked.expiry.clone());
                let place = ConfigLocation { path: &paths.cert, file: own.cert.file() };
                Some(Arc::new(Identity::new(vec![checked], None, place, &mut loading.problems)))
            }
            (None, Some(entry)) => Some(entry.identity.clone()),
            (None, None) => None,
        };
        if loading.problems.has_errors() {
            return None;
        }
        match client::config(roots, identity, inputs.upstream_alpn) {
            Ok(config) => Some((config, expiries)),
            Err(error) => {
                let hint = "name the roots of the nodes' certificates";
                loading.problems.error(ca_place, format!("TLS cannot be set up: {error}"), hint);
                None
            }
        }
    }

    fn system_roots(&mut self, place: ConfigLocation<'_>, loading: &mut TlsLoad<'_>) -> Option<Arc<RootCertStore>> {
        const HINT: &str = "install the system's certificates (ca-certificates), or name the roots here";
        if let Some(roots) = &self.system_roots {
            return Some(roots.clone());
        }
        let certificates = match loading.files.system_roots() {
            Ok(certificates) => certificates,
            Err(error) => {
                let message = format!("the certificates that the system trusts cannot be read: {error}");
                loading.problems.error(place, message, HINT);
                return None;
            }
        };
        let mut roots = RootCertStore::empty();
        // Some systems carry one that is no longer accepted as valid DER; the others can still be used.
        roots.add_parsable_certificates(certificates.into_iter().map(CertificateDer::from));
        if roots.is_empty() {
            loading.problems.error(place, "the system trusts no certificates, so no node could be verified", HINT);
            return None;
        }
        let roots = Arc::new(roots);
        self.system_roots = Some(roots.clone());
        Some(roots)
    }
}

fn texts<'a>(
    tls: &'a UpstreamTls,
    paths: &Paths,
    entries: &HashMap<&str, &'a Arc<SslEntry>>,
    loading: &mut TlsLoad<'_>,
) -> Option<UpstreamTexts<'a>> {
    let ca = match tls.ca.as_ref().filter(|_| tls.verify) {
        Some(ca) => loading.pem(ca, &paths.ca).map(Some),
        None => Some(None),
    };
    let (own, ssl) = match &tls.client {
        None => (None, None),
        // An entry that cannot be used has been reported.
        Some(ClientPair::Ssl(ssl)) => (None, Some(*entries.get(ssl.id.as_str())?)),
        Some(ClientPair::Own(pair)) => {
            let (cert, key) = (loading.pem(&pair.cert, &paths.cert), loading.pem(&pair.key, &paths.key));
            (Some((pair, cert?, key?)), None)
        }
    };
    Some(UpstreamTexts { ca: ca?, own, ssl })
}

impl UpstreamTexts<'_> {
    fn digest(&self, verify: bool) -> Digest {
        let mut digester = Digester::new();
        digester.add(&[u8::from(verify), u8::from(self.ca.is_some()), u8::from(self.own.is_some())]);
        digester.add(self.ca.as_deref().unwrap_or_default());
        if let Some((_, cert, key)) = &self.own {
            digester.add(cert);
            digester.add(key);
        }
        if let Some(entry) = self.ssl {
            digester.add(&entry.digest);
        }
        digester.finish()
    }
}
