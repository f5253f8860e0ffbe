//! Everything that one configuration needs for TLS: loaded whole or not at all; unchanged parts are kept.

use crate::client::{self, ClientTls, name_of};
use crate::client_auth::roots;
use crate::entry::{SslEntry, entry};
use crate::identity::{ChainReceiver, Expiry, Identity, Purpose, pair};
use crate::loading::{Digest, Digester, Text, TlsLoad};
use crate::pem::Files;
use crate::problem::{ConfigLocation, Problem, Problems, TlsFindings, TlsProblems};
use crate::server::ServerTls;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{ClientConfig, RootCertStore};
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use stillgate_config::{Acme, ClientPair, Config, KeyPair, RefusedSsl, SslUse, UpstreamTls};

/// The inputs of material, besides the configuration.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// Access to files.
    pub files: &'a dyn Files,
    /// The material that is in use.
    pub previous: Option<&'a Material>,
    /// The present.
    pub now: UnixTime,
    /// The protocols that clients are offered, the preferred one first (RFC 7301).
    pub alpn: &'a [&'a [u8]],
    /// The protocols that upstreams are offered.
    pub upstream_alpn: &'a [&'a [u8]],
}

/// Everything that a configuration needs for TLS.
#[derive(Debug, Default)]
pub struct Material {
    /// TLS for clients; `None` if no entry of `ssls` is for them.
    pub server: Option<Arc<ServerTls>>,
    /// By [`Upstream::key`](stillgate_config::Upstream::key), for each upstream with `scheme: https`. A reload keeps
    /// the same one if nothing about it changed.
    pub clients: HashMap<String, Arc<ClientTls>>,
    /// Towards the server of `gateway.acme`, if there is one. A reload keeps the same one if nothing about it changed.
    pub acme: Option<Arc<ClientConfig>>,
    /// The keys that it was made from.
    acme_tls: Option<UpstreamTls>,
    /// In the order of the file.
    pub(crate) entries: Vec<Arc<SslEntry>>,
    /// Entries that no handshake is made with.
    refused: Vec<RefusedSsl>,
    pub(crate) towards: AllTowards,
}

/// Which parts of the material in use are kept when they can no longer be loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeepPolicy {
    Nothing,
    /// Parts that the configuration has as before; the reason is reported.
    Unchanged,
    /// Every part; the reason is still an error.
    All,
}

impl KeepPolicy {
    fn keeps(self, is_unchanged: bool) -> bool {
        self == KeepPolicy::All || self == KeepPolicy::Unchanged && is_unchanged
    }

    /// Adds the problems of one part to those found `before` it.
    fn finish_part(self, before: Problems, is_kept: bool, problems: &mut Problems) {
        if is_kept && self == KeepPolicy::Unchanged {
            problems.downgrade_errors();
        }
        problems.prepend(before);
    }
}

/// All files that a configuration names for TLS.
pub fn files_of(config: &Config) -> BTreeSet<PathBuf> {
    let of_pair = |pair: &KeyPair| [pair.cert.file(), pair.key.file()].map(|file| file.map(PathBuf::from));
    let mut files = BTreeSet::new();
    for ssl in &config.ssls {
        files.extend(ssl.pairs.iter().flat_map(of_pair).flatten());
        if let SslUse::Server(server) = &ssl.usage {
            let ca = server.client.as_ref().and_then(|client| client.ca.file());
            files.extend(ca.map(PathBuf::from).into_iter().chain(server.ocsp.clone()));
        }
    }
    let upstreams = config.upstreams.iter().filter_map(|upstream| upstream.tls.as_ref());
    files.extend(upstreams.flat_map(UpstreamTls::files).map(PathBuf::from));
    files.extend(config.gateway.acme.as_ref().and_then(Acme::ca_file).map(PathBuf::from));
    files
}

impl Material {
    /// Loads all of it; the warnings are for the operator even when loading succeeds.
    pub fn load(config: &Config, inputs: &Inputs<'_>) -> Result<(Material, Vec<Problem>), TlsProblems> {
        let (material, problems) = Material::gather(config, inputs, KeepPolicy::Nothing);
        problems.finish().map(|warnings| (material, warnings))
    }

    /// Loads changed files of a configuration that is served with `inputs.previous`: an entry that cannot be used any more
    /// stays as it was, so that it keeps nothing else from being renewed. The problems are those of the entries that stay.
    pub fn renew(config: &Config, inputs: &Inputs<'_>) -> (Material, Vec<Problem>) {
        let (material, problems) = Material::gather(config, inputs, KeepPolicy::All);
        (material, problems.finish().err().map_or(Vec::new(), |refused| refused.errors))
    }

    /// Loads all of it for a source whose resources change one by one: a part that is in use, and that the configuration has as
    /// before, stays in use while its files cannot be loaded, so that a change of something else does not take it away.
    pub fn load_keeping_unchanged(
        config: &Config,
        inputs: &Inputs<'_>,
    ) -> Result<(Material, TlsFindings), TlsProblems> {
        let (material, problems) = Material::gather(config, inputs, KeepPolicy::Unchanged);
        problems.findings().map(|findings| (material, findings))
    }

    fn gather(config: &Config, inputs: &Inputs<'_>, keep: KeepPolicy) -> (Material, Problems) {
        let mut loading = crate::loading::TlsLoad::new(inputs.files, inputs.now);
        let mut material = Material {
            towards: AllTowards::new(inputs.previous.map(|previous| &previous.towards)),
            ..Material::default()
        };
        let known = inputs.previous.map_or(HashMap::new(), |previous| by_id(&previous.entries));
        for ssl in &config.ssls {
            if let SslUse::Refused(of) = &ssl.usage {
                material.refused.push(of.clone());
                continue;
            }
            let path = format!("ssls[{:?}]", ssl.id);
            let known = known.get(ssl.id.as_str()).copied();
            let before = std::mem::take(&mut loading.problems);
            let made = entry(ssl, &path, known, inputs, &mut loading);
            let kept = known.filter(|known| made.is_none() && keep.keeps(known.ssl == *ssl));
            keep.finish_part(before, kept.is_some(), &mut loading.problems);
            material.entries.extend(made.or_else(|| kept.cloned()));
        }
        let entries = by_id(&material.entries);
        for upstream in &config.upstreams {
            let Some(tls) = &upstream.tls else { continue };
            let path = format!("upstreams[{:?}].tls", upstream.key);
            let known = inputs.previous.and_then(|previous| previous.clients.get(&upstream.key));
            let before = std::mem::take(&mut loading.problems);
            let made = material.towards.of(tls, &path, &entries, inputs, &mut loading);
            let kept = known.filter(|known| made.is_none() && keep.keeps(known.tls == *tls));
            keep.finish_part(before, kept.is_some(), &mut loading.problems);
            let client = match made {
                Some(config) => {
                    let sni = tls.sni.as_deref().and_then(name_of);
                    match known.filter(|known| Arc::ptr_eq(&known.config, &config) && known.sni == sni) {
                        Some(known) => known.clone(),
                        None => Arc::new(ClientTls { tls: tls.clone(), config, sni }),
                    }
                }
                None => match kept {
                    Some(known) => known.clone(),
                    None => continue,
                },
            };
            material.clients.insert(upstream.key.clone(), client);
        }
        if let Some(acme) = &config.gateway.acme {
            let tls = UpstreamTls { client: None, verify: true, ca: acme.ca.clone(), sni: None };
            let before = std::mem::take(&mut loading.problems);
            let made = material.towards.of(&tls, "gateway.acme", &HashMap::new(), inputs, &mut loading);
            let kept = inputs.previous.filter(|previous| keep.keeps(previous.acme_tls.as_ref() == Some(&tls)));
            let kept = kept.filter(|_| made.is_none()).and_then(|previous| previous.acme.clone());
            keep.finish_part(before, kept.is_some(), &mut loading.problems);
            material.acme = made.or(kept);
            material.acme_tls = Some(tls);
        }
        material.server = material.server(inputs.previous);
        (material, loading.problems)
    }

    /// The ids of the entries of `ssls` and when the first of their certificates ends, in seconds since 1970. Entries
    /// without a certificate are left out.
    pub fn expiries(&self) -> impl Iterator<Item = (&str, i64)> {
        let end = |entry: &SslEntry| entry.expiries.iter().map(|expiry| expiry.not_after_seconds).min();
        self.entries.iter().filter_map(move |entry| Some((entry.ssl.id.as_str(), end(entry)?)))
    }

    /// Whether both are identical.
    pub fn is_same(&self, other: &Material) -> bool {
        let same_client = |(key, client): (&String, &Arc<ClientTls>)| {
            other.clients.get(key).is_some_and(|other| Arc::ptr_eq(client, other))
        };
        let same_acme = match (&self.acme, &other.acme) {
            (Some(acme), Some(other)) => Arc::ptr_eq(acme, other),
            (acme, other) => acme.is_none() && other.is_none(),
        };
        let same_clients = self.clients.len() == other.clients.len() && self.clients.iter().all(same_client);
        same_clients && same_acme && self.same_entries(other)
    }

    fn same_entries(&self, other: &Material) -> bool {
        let both = self.entries.iter().zip(&other.entries);
        self.entries.len() == other.entries.len()
            && { both }.all(|(a, b)| Arc::ptr_eq(a, b))
            && self.refused == other.refused
    }

    fn server(&self, previous: Option<&Material>) -> Option<Arc<ServerTls>> {
        if self.refused.is_empty() && !self.entries.iter().any(|entry| entry.server.is_some()) {
            return None;
        }
        let kept = previous.filter(|previous| self.same_entries(previous)).and_then(|previous| previous.server.clone());
        Some(kept.unwrap_or_else(|| Arc::new(ServerTls::new(self.entries.iter(), &self.refused))))
    }
}

fn by_id(entries: &[Arc<SslEntry>]) -> HashMap<&str, &Arc<SslEntry>> {
    entries.iter().map(|entry| (entry.ssl.id.as_str(), entry)).collect()
}

// TLS towards upstreams: made from an upstream's `tls`, once for all upstreams with the same settings.

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
                Some(Arc::new(Identity::new(vec![checked], None)))
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
