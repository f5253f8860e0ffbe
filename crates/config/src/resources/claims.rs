//! Things that only one resource may have: a server name, a credential, the configuration of a group. The oldest resource gets it;
//! the source decides what happens to the other.

use crate::model::ResourceKind;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use stillgate_plugin_api::{ChainEntry, Identity};
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink};

/// A claim of a resource.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    /// Its position.
    at: Position,
    /// The keys that lead there from the resource.
    keys: Vec<&'static str>,
    pub(crate) what: ClaimedThing,
    /// Claims with the same value share the thing; `None`: it cannot be shared.
    identity: Option<Identity>,
}

/// A claimed thing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ClaimedThing {
    /// A server name of TLS.
    ServerName(Box<str>),
    /// An unreadable server name: it could be any name that no earlier entry has.
    InvalidServerName,
    /// The certificate for clients whose server name is in no entry.
    DefaultCertificate,
    /// A plugin's credential, by digest.
    Credential(&'static str, Identity),
    /// A name under which configurations of a plugin share their state.
    Group(&'static str, Box<str>),
}

/// The holder of a claim.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holder {
    /// When it was created; equal for all resources of a file.
    pub(crate) created: u64,
    pub(crate) kind: ResourceKind,
    pub(crate) id: Arc<str>,
    /// Makes a holder for a resource of a file.
    pub(crate) line: u32,
}

/// All claims. Among several holders the oldest comes first.
#[derive(Debug, Default)]
pub(crate) struct Claims(HashMap<ClaimedThing, Vec<(Holder, Option<Identity>)>>);

impl Claim {
    pub(super) fn new(at: Position, key: &'static str, what: ClaimedThing) -> Claim {
        Claim { at, keys: vec![key], what, identity: None }
    }

    /// A consumer's credential, whose position is the consumer's.
    pub(crate) fn credential(plugin: &'static str, lookup: &[u8]) -> Claim {
        let what = ClaimedThing::Credential(plugin, Identity::of(&[plugin.as_bytes(), lookup]));
        Claim { at: Position::NOWHERE, keys: Vec::new(), what, identity: None }
    }

    /// Whether it is a name under which configurations share their state.
    pub(crate) fn is_plugin_state_group(&self) -> bool {
        matches!(self.what, ClaimedThing::Group(..))
    }

    /// The groups of these plugins.
    pub(super) fn groups<'a>(entries: impl Iterator<Item = &'a Arc<ChainEntry>>) -> impl Iterator<Item = Claim> {
        entries.filter_map(|entry| {
            let (name, identity) = entry.plugin.shared()?;
            let what = ClaimedThing::Group(entry.name, name.into());
            Some(Claim { at: entry.at, keys: vec!["plugins", entry.name], what, identity: Some(identity) })
        })
    }

    /// The error for a resource whose claim another has.
    pub(crate) fn fault(&self, holder: &Holder) -> Fault {
        match &self.what {
            ClaimedThing::ServerName(name) => {
                let fault = Fault::new(format!("{name:?} is a name of the entry {}", holder.place()));
                fault.hint("keep one of them; a second certificate goes into certs and keys")
            }
            ClaimedThing::InvalidServerName => Fault::new(format!("a name may be one of the entry {}", holder.place())),
            ClaimedThing::DefaultCertificate => {
                let fault = Fault::new(format!("the entry {} is the default already", holder.place()));
                fault.hint("keep one of them")
            }
            ClaimedThing::Credential(plugin, _) => {
                let fault = Fault::new(format!("{holder} has the same {plugin} credential"));
                fault.hint("give each consumer its own")
            }
            ClaimedThing::Group(_, name) => {
                let fault = Fault::new(format!("the group {name:?} is not the same in {holder}"));
                fault.hint("write the same keys in both, or give this one another group")
            }
        }
    }

    /// Reports it for the resource at `path`.
    pub(crate) fn report(&self, holder: &Holder, path: &Path<'_>, sink: &mut Sink) {
        report(&self.keys, path, &mut |path| sink.error(self.at, path, self.fault(holder)));
    }

    /// Reports a server name that could be the unreadable one of an earlier entry.
    pub(crate) fn report_invalid_name(&self, holder: &Holder, path: &Path<'_>, sink: &mut Sink) {
        let ClaimedThing::ServerName(name) = &self.what else { return };
        let place = holder.place();
        let fault = Fault::new(format!("{name:?} may be a name of the entry {place}, of which one cannot be read"));
        let fault = fault.hint("mend that entry, or delete it");
        report(&self.keys, path, &mut |path| sink.error(self.at, path, fault.clone()));
    }
}

fn report(keys: &[&str], path: &Path<'_>, then: &mut dyn FnMut(&Path<'_>)) {
    match keys {
        [] => then(path),
        [key, rest @ ..] => report(rest, &path.key(key), then),
    }
}

impl Holder {
    /// Its position in messages whose context makes the kind clear.
    fn place(&self) -> String {
        match self.line {
            0 => format!("{:?}", self.id),
            line => format!("in line {line}"),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.kind.singular().replace('_', " "), self.id)?;
        match self.line {
            0 => Ok(()),
            line => write!(f, " in line {line}"),
        }
    }
}

impl Claims {
    /// Adds claims.
    pub(crate) fn add(&mut self, claims: &[Claim], holder: &Holder) {
        for claim in claims {
            let holders = self.0.entry(claim.what.clone()).or_insert_with(|| Vec::with_capacity(1));
            let place = holders.partition_point(|(other, _)| other <= holder);
            holders.insert(place, (holder.clone(), claim.identity));
        }
    }

    /// Adds a claim; returns the conflicting one, if there is one. Among holders that share something only the first is recorded.
    pub(crate) fn try_claim(&mut self, claim: &Claim, holder: &Holder) -> Option<Holder> {
        let in_the_way = self.in_the_way(claim, holder).cloned();
        if in_the_way.is_none() {
            self.0.entry(claim.what.clone()).or_insert_with(|| vec![(holder.clone(), claim.identity)]);
        }
        in_the_way
    }

    /// Removes claims that were added.
    pub(crate) fn remove(&mut self, claims: &[Claim], holder: &Holder) {
        for claim in claims {
            let Some(holders) = self.0.get_mut(&claim.what) else { continue };
            holders.retain(|(other, _)| other != holder);
            if holders.is_empty() {
                self.0.remove(&claim.what);
            }
        }
    }

    /// The holder of a claimed thing, unless it is `holder` or shares it.
    pub(crate) fn in_the_way(&self, claim: &Claim, holder: &Holder) -> Option<&Holder> {
        let (first, identity) = self.0.get(&claim.what)?.first()?;
        let is_shared =
            claim.what == ClaimedThing::InvalidServerName || claim.identity.is_some() && claim.identity == *identity;
        (first != holder && !is_shared).then_some(first)
    }

    /// The oldest holder before `holder` that could have a server name, since one of its own names cannot be read.
    pub(crate) fn invalid_name_before(&self, claim: &Claim, holder: &Holder) -> Option<&Holder> {
        let (first, _) = self.0.get(&ClaimedThing::InvalidServerName)?.first()?;
        (matches!(claim.what, ClaimedThing::ServerName(_)) && first < holder).then_some(first)
    }

    /// Whether there is a holder.
    pub(crate) fn is_held(&self, claim: &Claim) -> bool {
        self.0.contains_key(&claim.what)
    }

    /// All holders of the same thing, or of what could be the same.
    pub(crate) fn holders(&self, claims: &[Claim]) -> impl Iterator<Item = &Holder> {
        let is_invalid = claims.iter().any(|claim| claim.what == ClaimedThing::InvalidServerName);
        let names = self.0.iter().filter(move |(what, _)| is_invalid && matches!(what, ClaimedThing::ServerName(_)));
        let same = claims.iter().filter_map(|claim| self.0.get(&claim.what));
        same.chain(names.map(|(_, holders)| holders)).flatten().map(|(holder, _)| holder)
    }
}
