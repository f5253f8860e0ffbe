//! Certificates with their names, as `ssls`; client certificates and roots for services.

use crate::environment::lowercase;
use crate::kong_file::{Certificate, Entity, KongFile};
use crate::names::Ids;
use crate::object::{Field, Object};
use crate::vaults::Vaults;
use serde_json::{Map, Value as Json, json};
use std::cell::RefCell;
use std::collections::HashMap;

/// All certificates of a file.
pub(crate) struct Certificates {
    known: Vec<Pairs>,
    by_id: HashMap<String, usize>,
    roots: HashMap<String, String>,
    /// Ids that are taken, and those of client certificates that services use, by index.
    clients: RefCell<(Ids, HashMap<usize, String>)>,
}

/// A certificate and its key, and perhaps a second pair.
struct Pairs {
    object: Object,
    label: String,
    first: Option<(String, String)>,
    second: Option<(String, String)>,
    snis: Vec<String>,
    stamps: Map<String, Json>,
}

impl Certificates {
    pub(crate) fn read(file: &KongFile, vaults: &Vaults) -> Certificates {
        let known: Vec<Pairs> =
            file.certificates.iter().enumerate().map(|(index, one)| pairs(index, one, vaults)).collect();
        let ids = |(index, one): (usize, &Certificate)| Some((one.entity.id.clone()?, index));
        let by_id = file.certificates.iter().enumerate().filter_map(ids).collect();
        let roots = file.ca_certificates.iter().filter_map(root).collect();
        Certificates { known, by_id, roots, clients: RefCell::default() }
    }

    /// The PEM of a root that a service refers to.
    pub(crate) fn ca(&self, field: &Field) -> Option<String> {
        let found = self.roots.get(&field.text()?).cloned();
        if found.is_none() {
            field.lost("the file has no CA certificate with this id; certificates that it signed are refused");
        }
        found
    }

    /// The id of the client certificate that a service or upstream refers to.
    pub(crate) fn client(&self, field: &Field) -> Option<String> {
        let id = if field.is_object() { field.object()?.text("id") } else { field.text() };
        let found = id.and_then(|id| self.by_id.get(&id).copied()).filter(|index| self.known[*index].first.is_some());
        let Some(index) = found else {
            field.lost("the file has no certificate with this id; nodes get none");
            return None;
        };
        let mut clients = self.clients.borrow_mut();
        let (ids, names) = &mut *clients;
        let label = format!("client-{}", self.known[index].label);
        Some(names.entry(index).or_insert_with(|| ids.id(&label)).clone())
    }

    /// The list `ssls`, once all services have said which client certificates they use.
    pub(crate) fn ssls(&self) -> Vec<Json> {
        let clients = self.clients.borrow();
        let mut ids = Ids::default();
        let mut list = Vec::new();
        for (index, pairs) in self.known.iter().enumerate() {
            let client = clients.1.get(&index);
            if let (Some(id), Some((cert, key))) = (client, &pairs.first) {
                list.push(json!({"id": ids.id(id), "type": "client", "cert": cert, "key": key}));
            }
            match server(pairs, &mut ids) {
                Some(entry) => list.push(entry),
                None if client.is_none() => {
                    pairs.object.changed("no name leads to the certificate, and no service uses it; it is left out")
                }
                None => {}
            }
        }
        list
    }
}

fn pairs(index: usize, certificate: &Certificate, vaults: &Vaults) -> Pairs {
    let Entity { object, id, .. } = &certificate.entity;
    let text = |key: &str| object.field(key).and_then(|field| vaults.text(&field));
    let first = text("cert").zip(text("key"));
    if first.is_none() {
        object.changed("the certificate or its key is missing; the entry is left out");
    }
    let second = text("cert_alt").zip(text("key_alt"));
    object.lost("passphrase", "encrypted keys are not supported; write the key unencrypted");
    let label = certificate
        .snis
        .first()
        .cloned()
        .or_else(|| id.clone())
        .unwrap_or_else(|| format!("certificate-{}", index + 1));
    let mut times = Map::new();
    object.stamp(&mut times);
    object.finish();
    Pairs {
        object: object.clone(),
        label: label.replace('*', "any"),
        first,
        second,
        snis: certificate.snis.iter().map(|sni| lowercase(sni)).collect(),
        stamps: times,
    }
}

fn server(pairs: &Pairs, ids: &mut Ids) -> Option<Json> {
    let (cert, key) = pairs.first.as_ref()?;
    let is_usable = |sni: &&String| *sni == "*" || !sni.trim_start_matches("*.").contains('*');
    let snis: Vec<&String> = pairs.snis.iter().filter(is_usable).collect();
    if snis.len() < pairs.snis.len() {
        pairs.object.changed("names that end in `*` do not exist here; they are left out");
    }
    if snis.is_empty() {
        return None;
    }
    let mut entry = Map::new();
    entry.insert("id".to_owned(), ids.id(&pairs.label).into());
    entry.extend(pairs.stamps.clone());
    entry.insert("cert".to_owned(), cert.clone().into());
    entry.insert("key".to_owned(), key.clone().into());
    if let Some((cert, key)) = &pairs.second {
        entry.insert("certs".to_owned(), json!([cert]));
        entry.insert("keys".to_owned(), json!([key]));
    }
    if snis.iter().any(|sni| *sni == "*") {
        // Kong's certificate for `*` is also for clients that name no host.
        entry.insert("default".to_owned(), true.into());
    }
    entry.insert("snis".to_owned(), json!(snis));
    Some(entry.into())
}

fn root(entity: &Entity) -> Option<(String, String)> {
    let object = &entity.object;
    object.skip(&["cert_digest", "tags", "created_at", "updated_at"]);
    let cert = object.text("cert");
    object.finish();
    let mut cert = cert?;
    if !cert.ends_with('\n') {
        cert.push('\n');
    }
    Some((entity.id.clone()?, cert))
}
