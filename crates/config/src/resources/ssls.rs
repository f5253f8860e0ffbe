//! Compiles entries of `ssls` and an upstream's `tls`: names must be unique, and pairs must match.

use super::addresses::at_listener;
use super::catalog_item::{CatalogItem, put_item};
use super::claims::{Claim, ClaimedThing};
use crate::keys::acme::{ACME_NAMES_MAX, Acme};
use crate::keys::files::WrittenPem;
use crate::keys::ssls::{SslKeys, SslType, UpstreamTlsKeys};
use crate::model::{
    ClientAuth, ClientPair, KeyPair, Listener, ResourceKind, ServerSsl, Ssl, SslUse, TlsVersions, UpstreamTls, listed,
};
use crate::values::{AcmeChallenge, Pem, TlsVersion};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use stillgate_plugin_api::secrets::{NoSecrets, Secrets};
use stillgate_schema::kind::At;
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink, shortened};
use stillgate_schema::text::tree::Node;

/// All entries of `ssls`, for references from upstreams.
#[derive(Debug, Default)]
pub(crate) struct Ssls {
    /// Without a value: it is disabled, or invalid, which has been reported.
    ids: HashMap<String, CatalogItem<Option<Arc<Ssl>>>>,
}

impl Ssls {
    /// See [`super::catalog::Catalog::put`].
    pub(super) fn put(&mut self, id: &str, line: u32, ssl: Option<Option<Arc<Ssl>>>) -> bool {
        put_item(&mut self.ids, id, line, ssl)
    }

    /// Listeners with TLS need a certificate, and vice versa.
    pub(crate) fn check_listeners(
        &self,
        enabled: &[Arc<Ssl>],
        listeners: &[Listener],
        acme: Option<&Acme>,
        sink: &mut Sink,
    ) {
        let is_server = |ssl: &&Arc<Ssl>| matches!(ssl.usage, SslUse::Server(_));
        let server = enabled.iter().find(is_server);
        let with_tls = listed(listeners).find(|(_, _, listener)| listener.has_tls());
        match (with_tls, server) {
            // An entry with errors may be the missing certificate.
            (Some(_), None) if sink.has_errors_in(ResourceKind::Ssls.name()) => {}
            (Some((list, index, _)), None) => {
                let fault = Fault::new("TLS needs a certificate, and `ssls` has none that is enabled");
                let fault = fault.hint("add an entry with cert, key and snis to `ssls`");
                let mut report = |path: &Path<'_>| sink.error(Position::NOWHERE, &path.key("tls"), fault.clone());
                at_listener(&Path::Root, list, index, &mut report);
            }
            (None, Some(ssl)) => {
                let line = self.ids.get(&ssl.id).map_or(0, |known| known.line);
                let fault = Fault::new(format!("{:?} has no effect: no listener has TLS", ssl.id));
                let at = Position { line, column: 1 };
                sink.warning(at, &Path::Root.key("ssls"), fault.hint("write `tls: true` in one of gateway.listeners"));
            }
            _ => {}
        }
        if let Some(acme) = acme {
            check_acme(enabled, listeners, acme, sink);
        }
    }

    /// `tls` of an upstream with `scheme: https`.
    pub(super) fn upstream(&self, keys: Option<At<UpstreamTlsKeys>>, path: &Path<'_>, sink: &mut Sink) -> UpstreamTls {
        let Some(At { at, value: keys }) = keys else {
            return UpstreamTls { client: None, verify: true, ca: None, sni: None };
        };
        let client = match (keys.client_cert, keys.client_key, keys.client_cert_id) {
            (None, None, None) => None,
            (Some(cert), Some(key), None) => Some(ClientPair::Own(KeyPair { cert, key })),
            (None, None, Some(id)) => self.client(&id, &path.key("client_cert_id"), sink).map(ClientPair::Ssl),
            (Some(_), None, None) | (None, Some(_), None) => {
                let fault = Fault::new("only one of client_cert and client_key is here");
                sink.error(at, path, fault.hint("add the other"));
                None
            }
            (_, _, Some(id)) => {
                let fault = Fault::new("both client_cert_id and a certificate are here").hint("remove one of them");
                sink.error(id.at, &path.key("client_cert_id"), fault);
                None
            }
        };
        if let Some(ca) = keys.ca.as_ref().filter(|_| !keys.verify) {
            let fault = Fault::new("has no effect with `verify: false`").hint("remove one of them");
            sink.warning(ca.at, &path.key("ca"), fault);
        }
        UpstreamTls { client, verify: keys.verify, ca: keys.ca.map(|ca| ca.value), sni: keys.sni }
    }

    /// The entry that an upstream names.
    fn client(&self, id: &At<String>, path: &Path<'_>, sink: &mut Sink) -> Option<Arc<Ssl>> {
        // With more candidates than these, a suggestion would be expensive and of little use.
        const COMPARED_MAX: usize = 1000;
        sink.refers(ResourceKind::Ssls.name(), &id.value);
        match self.ids.get(&id.value) {
            Some(CatalogItem { value: Some(ssl), .. }) if ssl.usage == SslUse::Client => return Some(ssl.clone()),
            Some(CatalogItem { value: Some(ssl), line }) if !matches!(ssl.usage, SslUse::Refused(_)) => {
                let fault = Fault::new(format!("the entry {:?}{} is not for clients", id.value, in_line(*line)));
                sink.error(id.at, path, fault.hint("name one with `type: client`"));
            }
            // An entry with errors of its own has been reported.
            Some(CatalogItem { value: None, line }) if *line > 0 && sink.has_errors_in(ResourceKind::Ssls.name()) => {}
            Some(CatalogItem { line, .. }) => {
                let fault = Fault::new(format!("the entry {:?}{} cannot be used", id.value, in_line(*line)));
                sink.error(id.at, path, fault.hint("see whether it has errors or `status: 0`"));
            }
            None if sink.is_unusable(ResourceKind::Ssls.name(), &id.value) => {
                let fault = Fault::new(format!("the entry {:?} cannot be used", id.value));
                sink.error(id.at, path, fault.hint("see why it is rejected"));
            }
            None if sink.may_miss(ResourceKind::Ssls.name(), &id.value) => {}
            None => {
                let fault =
                    Fault::new(format!("there is no entry with the id {:?}", id.value)).hint("add it to `ssls`");
                let fault = match self.ids.len() <= COMPARED_MAX {
                    true => sink.guess(fault, &id.value, self.ids.keys().map(String::as_str)),
                    false => fault,
                };
                sink.error(id.at, path, fault);
            }
        }
        None
    }
}

/// The listeners that the ACME server connects to must exist.
fn check_acme(enabled: &[Arc<Ssl>], listeners: &[Listener], acme: &Acme, sink: &mut Sink) {
    let path = Path::Root.key("gateway");
    let path = path.key("acme");
    if !enabled.iter().any(|ssl| ssl.acme) {
        let fault = Fault::new("nothing is ordered: no entry of `ssls` has `acme: true`");
        sink.warning(Position::NOWHERE, &path, fault.hint("write it in place of cert and key"));
        return;
    }
    // This includes listeners of streams, whose handshakes answer too.
    let has_tls = listeners.iter().any(Listener::has_tls);
    let has_plain = listeners.iter().any(|listener| listener.is_http() && !listener.has_tls());
    let challenge = path.key("challenge");
    match acme.challenge {
        AcmeChallenge::TlsAlpn01 if !has_tls => {
            let fault = Fault::new("tls-alpn-01 is asked for by TLS, and no listener has it");
            let hint = "write `tls: true` in the one of gateway.listeners that port 443 leads to";
            sink.error(Position::NOWHERE, &challenge, fault.hint(hint));
        }
        AcmeChallenge::Http01 if !has_plain => {
            let fault = Fault::new("http-01 is asked for without TLS, and every listener has it");
            let hint = "add a listener that port 80 leads to, or write \"tls-alpn-01\"";
            sink.warning(Position::NOWHERE, &challenge, fault.hint(hint));
        }
        _ => {}
    }
}

/// Compiles an entry and its claims; no entry: it is disabled or invalid, which has been reported.
pub(super) fn ssl(
    mut keys: SslKeys,
    named: ResourceId<'_>,
    acme: Option<&Acme>,
    secrets: &dyn Secrets,
    sink: &mut Sink,
) -> (Option<Ssl>, Vec<Claim>) {
    let (path, status, mut claims) = (named.path, keys.status, Vec::new());
    keys.id = Some(At { at: named.at, value: named.id.to_owned() });
    let usage = match keys.r#type {
        SslType::Server => SslUse::Server(server(&keys, named, &mut claims, sink)),
        SslType::Client => {
            check_client(&keys, path, sink);
            SslUse::Client
        }
    };
    // A disabled entry claims nothing.
    if !status {
        claims.clear();
    }
    // The secrets of a disabled entry are not read.
    let secrets = if status { secrets } else { &NoSecrets };
    (pairs(keys, usage, acme, (secrets, path), sink).filter(|_| status), claims)
}

/// The entry with its certificates.
fn pairs(
    keys: SslKeys,
    usage: SslUse,
    acme: Option<&Acme>,
    (secrets, path): (&dyn Secrets, &Path<'_>),
    sink: &mut Sink,
) -> Option<Ssl> {
    if let Some(ordered_by_key) = keys.acme.as_ref() {
        match (ordered_by_key.value, &keys.cert) {
            (true, _) => return acme_ssl(keys, usage, acme, path, sink),
            (false, None) => {
                sink.error(ordered_by_key.at, path, Fault::new("there is no certificate").hint("add cert and key"));
            }
            (false, Some(_)) => {}
        }
    }
    let (certs, keys_at) = (keys.certs, keys.keys.as_ref().map(|keys| keys.at));
    let place = keys_at.or(certs.as_ref().map(|certs| certs.at));
    let mut all = |name: &str, list: Option<At<Vec<WrittenPem>>>| {
        let (path, at) = (path.key(name), list.as_ref().map_or(Position::NOWHERE, |list| list.at));
        let list = list.map_or(Vec::new(), |list| list.value).into_iter().enumerate();
        list.map(|(index, pem)| resolve_pem(At { at, value: pem }, secrets, &path.index(index), sink))
            .collect::<Vec<_>>()
    };
    let (certs, more) = (all("certs", certs), all("keys", keys.keys));
    if let Some(place) = place.filter(|_| certs.len() != more.len()) {
        let fault = Fault::new(format!("{} certs, but {} keys", certs.len(), more.len()));
        sink.error(place, &path.key("keys"), fault.hint("write one key for each of certs, in the same order"));
    }
    let mut one = |name: &str, pem: At<WrittenPem>| resolve_pem(pem, secrets, &path.key(name), sink);
    let first = (one("cert", keys.cert?), one("key", keys.key?));
    let all = std::iter::once(first).chain(certs.into_iter().zip(more));
    let pairs = all.map(|(cert, key)| Some(KeyPair { cert: cert?, key: key? })).collect::<Option<_>>()?;
    Some(Ssl { id: keys.id?.value, usage, pairs, acme: false })
}

/// The PEM as written, or the secret that a reference names. `None` if the secret cannot be used; the error is in `sink`.
fn resolve_pem(written: At<WrittenPem>, secrets: &dyn Secrets, path: &Path<'_>, sink: &mut Sink) -> Option<Pem> {
    let At { at, value } = written;
    let reference = match value {
        WrittenPem::Known(pem) => return Some(pem),
        WrittenPem::Secret(reference) => reference,
    };
    let text = match secrets.resolve(&reference) {
        Ok(text) => text,
        Err(why) => {
            sink.error(at, path, Fault::new(format!("{reference}: {why}")));
            return None;
        }
    };
    sink.hide(&text);
    let pem = text.trim();
    if !pem.starts_with("-----BEGIN") {
        let fault = Fault::new("the secret is not PEM text");
        sink.error(at, path, fault.hint("it has to begin with -----BEGIN, with its line breaks"));
        return None;
    }
    Some(Pem::Inline(pem.to_owned()))
}

/// An entry with `acme: true`.
fn acme_ssl(keys: SslKeys, usage: SslUse, acme: Option<&Acme>, path: &Path<'_>, sink: &mut Sink) -> Option<Ssl> {
    let at = keys.acme.as_ref().map_or(Position::NOWHERE, |acme| acme.at);
    let path = path.key("acme");
    let mut refuse = |message: &str, hint: &str| sink.error(at, &path, Fault::new(message).hint(hint));
    if keys.cert.is_some() || keys.key.is_some() || keys.certs.is_some() || keys.keys.is_some() {
        refuse("the certificate is ordered, and another one is here", "remove cert, key, certs and keys, or this");
    }
    if keys.ocsp.is_some() {
        refuse("an OCSP response would be of the certificate before the renewal", "remove ocsp");
    }
    match &usage {
        SslUse::Refused(_) => {}
        SslUse::Client => refuse("upstreams' trust is not the ACME server's to give", "name cert and key"),
        SslUse::Server(server) if server.names.is_empty() => {
            refuse("no certificate can be ordered without a name", "add sni or snis");
        }
        SslUse::Server(server) if server.names.len() > ACME_NAMES_MAX => {
            refuse(
                &format!("{} names; a certificate has at most {ACME_NAMES_MAX}", server.names.len()),
                "make several entries of them",
            );
        }
        SslUse::Server(server) if server.names.iter().any(|name| name.starts_with('*')) => {
            let hint = "name the hosts, or name cert and key of a certificate from elsewhere";
            refuse("a wildcard can be proved by DNS only (dns-01), which is not supported", hint);
        }
        SslUse::Server(_) => {}
    }
    let Some(acme) = acme else {
        // Reported once: an invalid section has been reported, and every entry would repeat the error.
        if sink.mark_said("gateway.acme") {
            let fault = Fault::new("nothing says who issues the certificate").hint("add gateway.acme, or mend it");
            sink.error(at, &path, fault);
        }
        return None;
    };
    let file = Pem::File(acme.certificate_file(&keys.id.as_ref()?.value));
    Some(Ssl { id: keys.id?.value, usage, pairs: vec![KeyPair { cert: file.clone(), key: file }], acme: true })
}

fn server(keys: &SslKeys, named: ResourceId<'_>, claims: &mut Vec<Claim>, sink: &mut Sink) -> ServerSsl {
    let ResourceId { at, path, .. } = named;
    let is_default = keys.default.as_ref().is_some_and(|default| default.value);
    let names = names(keys, path, claims, sink);
    if names.is_empty() && !is_default && keys.sni.is_none() && keys.snis.is_none() {
        let fault = Fault::new("nothing says which clients it is shown to");
        sink.error(at, path, fault.hint("add sni, snis or `default: true`"));
    }
    if let Some(default) = keys.default.as_ref().filter(|_| is_default) {
        claims.push(Claim::new(default.at, "default", ClaimedThing::DefaultCertificate));
    }
    let versions = keys.ssl_protocols.as_ref().map_or(TlsVersions { v12: true, v13: true }, |versions| TlsVersions {
        v12: versions.value.contains(&TlsVersion::V12),
        v13: versions.value.contains(&TlsVersion::V13),
    });
    let client = keys.client.as_ref().map(|client| &client.value);
    ServerSsl {
        names,
        is_default,
        client: client.map(|client| ClientAuth { ca: client.ca.clone(), depth: client.depth }),
        versions,
        ocsp: keys.ocsp.as_ref().map(|file| file.value.clone()),
    }
}

fn names(keys: &SslKeys, path: &Path<'_>, claims: &mut Vec<Claim>, sink: &mut Sink) -> Vec<String> {
    if let (Some(_), Some(snis)) = (&keys.sni, &keys.snis) {
        let fault = Fault::new("both sni and snis are here").hint("put all into snis");
        sink.error(snis.at, &path.key("snis"), fault);
    }
    let snis = keys.snis.iter().flat_map(|snis| &snis.value);
    let mut names: Vec<String> = Vec::new();
    let mut known = HashSet::new();
    for name in keys.sni.iter().chain(snis) {
        if !known.insert(&name.value) {
            let fault = Fault::new(format!("{:?} is listed twice", shortened(&name.value)));
            sink.error(name.at, &path.key("snis"), fault.hint("keep one of them"));
            continue;
        }
        claims.push(Claim::new(name.at, "snis", ClaimedThing::ServerName(name.value.as_str().into())));
        names.push(name.value.clone());
    }
    names
}

/// The position of an entry in a file.
fn in_line(line: u32) -> String {
    if line == 0 { String::new() } else { format!(" in line {line}") }
}

/// An entry for upstreams has no server names.
fn check_client(keys: &SslKeys, path: &Path<'_>, sink: &mut Sink) {
    fn at<T>(key: &Option<At<T>>) -> Option<Position> {
        key.as_ref().map(|key| key.at)
    }
    let others = [
        ("sni", at(&keys.sni)),
        ("snis", at(&keys.snis)),
        ("default", at(&keys.default)),
        ("client", at(&keys.client)),
        ("ssl_protocols", at(&keys.ssl_protocols)),
        ("ocsp", at(&keys.ocsp)),
    ];
    for (key, at) in others {
        let Some(at) = at else { continue };
        let fault = Fault::new("has no effect with `type: client`").hint("remove it");
        sink.warning(at, &path.key(key), fault);
    }
}

/// Keys of an upstream's `tls` without `scheme: https` are reported, not ignored. `verify` alone asks for nothing.
pub(crate) fn refuse_without_https(keys: Option<At<UpstreamTlsKeys>>, path: &Path<'_>, sink: &mut Sink) {
    let Some(At { at, value: keys }) = keys else { return };
    let fault = Fault::new("nodes are talked to without TLS").hint("write `scheme: https` or `tls`, or remove the key");
    match keys {
        UpstreamTlsKeys { client_cert: None, client_key: None, client_cert_id: None, ca: None, sni: None, .. } => {
            sink.warning(at, path, fault);
        }
        _ => sink.error(at, path, fault),
    }
}

// The identity of a resource that is being compiled, for messages and digests.

/// The identity of a resource.
#[derive(Clone, Copy)]
pub(crate) struct ResourceId<'a> {
    pub(crate) id: &'a str,
    pub(crate) at: Position,
    pub(crate) path: &'a Path<'a>,
    /// Its keys.
    pub(crate) node: &'a Node,
}
