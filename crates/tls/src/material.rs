//! Everything that one configuration needs for TLS: loaded whole or not at all; unchanged parts are kept.

use crate::client::{ClientTls, name_of};
use crate::entry::{SslEntry, entry};
use crate::loading::TlsLoad;
use crate::pem::Files;
use crate::problem::{Problem, Problems, TlsProblems};
use crate::server::ServerTls;
use crate::towards::AllTowards;
use rustls::ClientConfig;
use rustls::pki_types::UnixTime;
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use stillgate_config::{Acme, Config, KeyPair, RefusedSsl, SslUse, UpstreamTls};

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
    /// In the order of the file.
    pub(crate) entries: Vec<Arc<SslEntry>>,
    /// Entries that no handshake is made with.
    refused: Vec<RefusedSsl>,
    pub(crate) towards: AllTowards,
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
        let (material, problems) = Material::gather(config, inputs, None);
        problems.finish().map(|warnings| (material, warnings))
    }

    /// Loads changed files of a configuration that is served with `inputs.previous`: an entry that cannot be used any more
    /// stays as it was, so that it keeps nothing else from being renewed. The problems are those of the entries that stay.
    pub fn renew(config: &Config, inputs: &Inputs<'_>) -> (Material, Vec<Problem>) {
        let (material, problems) = Material::gather(config, inputs, inputs.previous);
        (material, problems.finish().err().map_or(Vec::new(), |refused| refused.errors))
    }

    /// `stays`: material to keep for the parts that cannot be used.
    fn gather(config: &Config, inputs: &Inputs<'_>, stays: Option<&Material>) -> (Material, Problems) {
        let mut loading = TlsLoad::new(inputs.files, inputs.now);
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
            let made = entry(ssl, &path, known, inputs, &mut loading);
            material.entries.extend(made.or_else(|| stays.and(known.cloned())));
        }
        let entries = by_id(&material.entries);
        for upstream in &config.upstreams {
            let Some(tls) = &upstream.tls else { continue };
            let path = format!("upstreams[{:?}].tls", upstream.key);
            let known = inputs.previous.and_then(|previous| previous.clients.get(&upstream.key));
            let client = match material.towards.of(tls, &path, &entries, inputs, &mut loading) {
                Some(config) => {
                    let sni = tls.sni.as_deref().and_then(name_of);
                    match known.filter(|known| Arc::ptr_eq(&known.config, &config) && known.sni == sni) {
                        Some(known) => known.clone(),
                        None => Arc::new(ClientTls { config, sni }),
                    }
                }
                None => match stays.and(known) {
                    Some(known) => known.clone(),
                    None => continue,
                },
            };
            material.clients.insert(upstream.key.clone(), client);
        }
        if let Some(acme) = &config.gateway.acme {
            let tls = UpstreamTls { client: None, verify: true, ca: acme.ca.clone(), sni: None };
            let made = material.towards.of(&tls, "gateway.acme", &HashMap::new(), inputs, &mut loading);
            material.acme = made.or_else(|| stays.and_then(|stays| stays.acme.clone()));
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
