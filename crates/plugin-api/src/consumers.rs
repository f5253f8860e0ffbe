//! The table of consumers, which finds them by their credentials.
//!
//! Each configuration has a new table, and most consumers are in both the old and the new one. So a clone shares
//! everything with its original, and a change costs what changed: the page that holds a consumer, and the pieces of the
//! index that lead to it.

use crate::Phase;
use crate::identity::Identity;
use crate::plugin::ChainEntry as Plugin;
use hashbrown::HashTable;
use siphasher::sip::SipHasher13;
use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::Arc;

/// The authenticated consumer of a request: places in [`Consumers`], which an exchange holds to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsumerRef {
    /// The consumer's place.
    pub consumer: u32,
    /// Index of the credential among the consumer's; `None`: the credential is in the consumer itself.
    pub credential: Option<u16>,
}

/// A consumer.
#[derive(Debug, PartialEq)]
pub struct Consumer {
    /// `username`
    pub name: Box<str>,
    /// `group_id`
    pub group: Option<Box<str>>,
    /// Names and values, sorted by name.
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// Its plugins that do not authenticate, merged with those of its group. Consumers whose plugins are equal by
    /// pointer share one list.
    pub plugins: Arc<[Arc<Plugin>]>,
    /// Ids of its credentials.
    pub credentials: Box<[Box<str>]>,
}

impl Consumer {
    /// The label with this name.
    pub fn label(&self, name: &str) -> Option<&str> {
        let found = self.labels.binary_search_by(|(label, _)| (**label).cmp(name));
        found.ok().map(|at| &*self.labels[at].1)
    }
}

/// A credential for look-ups.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// The plugin that uses it.
    pub plugin: &'static str,
    /// The look-up key.
    pub lookup: Box<[u8]>,
    /// Index among the consumer's credentials; `None`: it is in the consumer itself.
    pub place: Option<u16>,
    /// What requests are verified against; `None`: finding the credential is enough.
    pub verifier: Option<Arc<CredentialVerifier>>,
}

/// What a request is verified against after its credential was found: [`crate::Authenticate::verifier`].
pub struct CredentialVerifier {
    /// Digest of the plugin and the whole credential, including resolved secrets: results obtained with this verifier
    /// apply to others with the same identity, and are kept no longer than one of them exists.
    pub identity: Identity,
    value: Box<dyn Any + Send + Sync>,
}

impl CredentialVerifier {
    /// Wraps the value that a plugin has compiled.
    pub fn new(identity: Identity, value: impl Any + Send + Sync) -> CredentialVerifier {
        CredentialVerifier { identity, value: Box::new(value) }
    }

    /// The compiled value; the plugin knows its type.
    #[inline]
    pub fn get<T: 'static>(&self) -> Option<&T> {
        self.value.downcast_ref()
    }
}

/// Compares the identity: equal for the same credential, compiled once or twice.
impl PartialEq for CredentialVerifier {
    fn eq(&self, other: &CredentialVerifier) -> bool {
        self.identity == other.identity
    }
}

impl Eq for CredentialVerifier {}

/// Omits the value, which is secret.
impl fmt::Debug for CredentialVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialVerifier")
    }
}

/// Omits the look-up key, which is secret.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a credential of {}", self.plugin)
    }
}

/// All consumers, with an index of their names and credentials. It is built off the workers.
///
/// Two tables are equal if they have the same consumers, whatever their places.
#[derive(Debug, Default, Clone)]
pub struct Consumers {
    pages: Vec<Arc<Page>>,
    index: CredentialIndex,
    count: usize,
    /// Free places; the last is used first.
    free: Vec<u32>,
    /// Number of consumers with a plugin in the phase `log`.
    with_log_plugins: usize,
    /// Number of consumers with a plugin that counts in the table of limits.
    with_limits: usize,
}

/// Consumers that are copied together, by pointer, when one of them changes.
type Page = Vec<Option<Arc<IndexedConsumer>>>;

const PAGE_PLACES: usize = 256;
/// Most places that [`Consumers::decoy_verifier`] tries.
const DECOY_PLACES_MAX: u64 = 64;

/// A consumer and its look-up keys.
#[derive(Debug, PartialEq)]
struct IndexedConsumer {
    consumer: Consumer,
    credentials: Box<[Credential]>,
}

/// [`IndexSlot::which`] of a name; other values are indices into [`IndexedConsumer::credentials`].
const NAME: u32 = u32::MAX;
/// Replaces the plugin's name in look-ups of names.
const OF_NAMES: &str = "";

impl Consumers {
    /// Adds a consumer, at a place that it keeps as long as it exists. Its name must be new.
    ///
    /// # Errors
    ///
    /// If another consumer, or this one, already has one of its credentials: the index of that credential in the list,
    /// and its owner. The consumer is added nevertheless, without that credential.
    pub fn insert(&mut self, consumer: Consumer, credentials: Vec<Credential>) -> Result<(), DuplicateCredential> {
        let place = self.free.pop().unwrap_or_else(|| self.places());
        self.put(place, consumer, credentials)
    }

    /// Replaces the consumer of the same name, or adds it.
    ///
    /// # Errors
    ///
    /// As [`Consumers::insert`].
    pub fn replace(&mut self, consumer: Consumer, credentials: Vec<Credential>) -> Result<(), DuplicateCredential> {
        match self.vacate(&consumer.name) {
            Some(place) => self.put(place, consumer, credentials),
            None => self.insert(consumer, credentials),
        }
    }

    /// Removes a consumer. `false`: no consumer has that name.
    pub fn remove(&mut self, name: &str) -> bool {
        let place = self.vacate(name);
        self.free.extend(place);
        place.is_some()
    }

    /// The consumer with a credential: the key is that of an auth plugin's [`crate::Authenticate::lookup`].
    #[inline]
    pub fn find(&self, plugin: &str, lookup: &[u8]) -> Option<ConsumerRef> {
        self.credential(plugin, lookup).map(|(attached, _)| attached)
    }

    /// Like [`Consumers::find`], with the verifier that the request is verified against.
    #[inline]
    pub fn find_with_verifier(&self, plugin: &str, lookup: &[u8]) -> Option<(ConsumerRef, &Arc<CredentialVerifier>)> {
        let (attached, credential) = self.credential(plugin, lookup)?;
        Some((attached, credential.verifier.as_ref()?))
    }

    /// Some consumer's verifier, for a request whose credential is unknown, so that refusing it takes as long. The same
    /// `seed` returns the same one; `None`: few consumers have a credential of the plugin.
    pub fn decoy_verifier(&self, plugin: &str, seed: u64) -> Option<&Arc<CredentialVerifier>> {
        let places = u64::from(self.places());
        let tried = (0..places.min(DECOY_PLACES_MAX)).map(|step| ((seed % places + step) % places) as u32);
        let verifier = |credential: &'_ &Credential| credential.plugin == plugin && credential.verifier.is_some();
        let mut credentials = tried.filter_map(|place| self.indexed_at(place)).flat_map(|indexed| &indexed.credentials);
        credentials.find(verifier)?.verifier.as_ref()
    }

    /// The consumer with a name.
    pub fn find_by_name(&self, name: &str) -> Option<ConsumerRef> {
        self.slot(OF_NAMES, name.as_bytes()).map(|slot| ConsumerRef { consumer: slot.place, credential: None })
    }

    /// A consumer that was found in this table.
    #[inline]
    pub fn of(&self, attached: ConsumerRef) -> &Consumer {
        &self.indexed_at(attached.consumer).expect("it was found here").consumer
    }

    /// The consumer at a place, if there is one.
    pub fn get(&self, attached: ConsumerRef) -> Option<&Consumer> {
        self.indexed_at(attached.consumer).map(|indexed| &indexed.consumer)
    }

    /// A mark of the credential that authenticated a request: a new key of the same credential has another mark. It is
    /// stable across processes.
    pub fn credential_fingerprint(&self, attached: ConsumerRef) -> Option<u64> {
        let indexed = self.indexed_at(attached.consumer)?;
        let mut hasher = DefaultHasher::new();
        for credential in indexed.credentials.iter().filter(|credential| credential.place == attached.credential) {
            let verifier = credential.verifier.as_ref().map(|verifier| verifier.identity);
            (credential.plugin, &credential.lookup, verifier).hash(&mut hasher);
        }
        Some(hasher.finish())
    }

    /// The plugins for which some consumer has a credential. It visits every consumer.
    pub fn plugins_with_credentials(&self) -> BTreeSet<&'static str> {
        self.all().flat_map(|indexed| indexed.credentials.iter()).map(|credential| credential.plugin).collect()
    }

    /// All consumers.
    pub fn iter(&self) -> impl Iterator<Item = &Consumer> {
        self.all().map(|indexed| &indexed.consumer)
    }

    /// Number of consumers.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no consumers.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether some consumer has a plugin in the phase `log`.
    pub fn are_logged(&self) -> bool {
        self.with_log_plugins > 0
    }

    /// Whether some consumer's plugin counts in the table of limits.
    pub fn need_limits(&self) -> bool {
        self.with_limits > 0
    }

    /// Upper bound of all places.
    pub fn places(&self) -> u32 {
        match self.pages.split_last() {
            None => 0,
            Some((last, before)) => (before.len() * PAGE_PLACES + last.len()) as u32,
        }
    }

    /// Whether a place of a consumer in `earlier` is free here, or another consumer's: then state kept under the
    /// numbers of places is invalid. It compares the pages that changed.
    pub fn has_moved_since(&self, earlier: &Consumers) -> bool {
        let mut pages = earlier.pages.iter().enumerate();
        pages.any(|(at, old)| {
            let new = self.pages.get(at);
            !new.is_some_and(|new| Arc::ptr_eq(old, new))
                && old.iter().enumerate().any(|(place, old)| {
                    let new = new.and_then(|new| new.get(place)).and_then(|indexed| indexed.as_deref());
                    let is_same =
                        |old: &Arc<IndexedConsumer>| new.is_some_and(|new| new.consumer.name == old.consumer.name);
                    !old.as_ref().is_none_or(is_same)
                })
        })
    }

    fn put(&mut self, place: u32, consumer: Consumer, credentials: Vec<Credential>) -> Result<(), DuplicateCredential> {
        let mut taken = Ok(());
        self.index.insert(consumer.name.as_bytes(), place, NAME);
        for (at, credential) in credentials.iter().enumerate() {
            match self.find(credential.plugin, &credential.lookup) {
                Some(by) => taken = taken.and(Err(DuplicateCredential { at, by })),
                // It is not in its page yet: a second credential of the same text is compared with the list below.
                None => match credentials[..at].iter().position(|earlier| earlier.is_found_like(credential)) {
                    Some(earlier) => {
                        let by = ConsumerRef { consumer: place, credential: credentials[earlier].place };
                        taken = taken.and(Err(DuplicateCredential { at, by }));
                    }
                    None => self.index.insert(&credential.lookup, place, at as u32),
                },
            }
        }
        self.with_log_plugins += usize::from(is_logged(&consumer));
        self.with_limits += usize::from(needs_limits(&consumer));
        *self.place_mut(place) = Some(Arc::new(IndexedConsumer { consumer, credentials: credentials.into() }));
        self.count += 1;
        taken
    }

    /// Empties the place of a consumer.
    fn vacate(&mut self, name: &str) -> Option<u32> {
        let place = self.slot(OF_NAMES, name.as_bytes())?.place;
        let indexed = self.place_mut(place).take()?;
        self.with_log_plugins -= usize::from(is_logged(&indexed.consumer));
        self.with_limits -= usize::from(needs_limits(&indexed.consumer));
        self.index.remove(name.as_bytes(), place, NAME);
        for (at, credential) in indexed.credentials.iter().enumerate() {
            self.index.remove(&credential.lookup, place, at as u32);
        }
        self.count -= 1;
        Some(place)
    }

    fn place_mut(&mut self, place: u32) -> &mut Option<Arc<IndexedConsumer>> {
        let (page, place) = (place as usize / PAGE_PLACES, place as usize % PAGE_PLACES);
        if page == self.pages.len() {
            self.pages.push(Arc::default());
        }
        let page = Arc::make_mut(&mut self.pages[page]);
        if place == page.len() {
            page.push(None);
        }
        &mut page[place]
    }

    #[inline]
    fn credential(&self, plugin: &str, lookup: &[u8]) -> Option<(ConsumerRef, &Credential)> {
        let slot = self.slot(plugin, lookup)?;
        let credential = self.indexed_at(slot.place)?.credentials.get(slot.which as usize)?;
        Some((ConsumerRef { consumer: slot.place, credential: credential.place }, credential))
    }

    #[inline]
    fn indexed_at(&self, place: u32) -> Option<&IndexedConsumer> {
        let (page, place) = (place as usize / PAGE_PLACES, place as usize % PAGE_PLACES);
        self.pages.get(page)?.get(place)?.as_deref()
    }

    fn all(&self) -> impl Iterator<Item = &IndexedConsumer> {
        self.pages.iter().flat_map(|page| page.iter()).filter_map(|indexed| indexed.as_deref())
    }

    #[inline]
    fn slot(&self, plugin: &str, text: &[u8]) -> Option<IndexSlot> {
        self.index.find(text, |slot| {
            self.indexed_at(slot.place).is_some_and(|indexed| match slot.which {
                NAME => plugin == OF_NAMES && indexed.consumer.name.as_bytes() == text,
                at => indexed
                    .credentials
                    .get(at as usize)
                    .is_some_and(|credential| credential.plugin == plugin && *credential.lookup == *text),
            })
        })
    }
}

fn is_logged(consumer: &Consumer) -> bool {
    consumer.plugins.iter().any(|entry| entry.phases.contains(Phase::Log))
}

fn needs_limits(consumer: &Consumer) -> bool {
    consumer.plugins.iter().any(|entry| entry.plugin.needs_limits())
}

impl PartialEq for Consumers {
    fn eq(&self, other: &Consumers) -> bool {
        let in_other =
            |indexed: &IndexedConsumer| other.indexed_at(other.slot(OF_NAMES, indexed.consumer.name.as_bytes())?.place);
        self.count == other.count
            && self
                .all()
                .all(|indexed| in_other(indexed).is_some_and(|other| std::ptr::eq(indexed, other) || indexed == other))
    }
}

impl Credential {
    fn is_found_like(&self, other: &Credential) -> bool {
        self.plugin == other.plugin && self.lookup == other.lookup
    }
}

/// A credential that another consumer has already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DuplicateCredential {
    /// Its index in the list to insert.
    pub at: usize,
    /// Its owner.
    pub by: ConsumerRef,
}

// An index from the hash of a text to its slot. Two plugins may have the same text: the caller decides which slot is
// meant.
//
// Hashes are SipHash with a secret key, stored whole and compared before the texts are: the duration of a search
// reveals nothing about other credentials.

/// Number of pieces of the index, a power of two. A change copies one of them: for 100,000 consumers about 6 KiB.
const PIECES: usize = 1024;

/// The place of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct IndexSlot {
    hash: u64,
    /// The consumer's place.
    place: u32,
    /// Which text of the consumer.
    which: u32,
}

const _: () = assert!(size_of::<IndexSlot>() == 16, "one consumer has two or more of them");

#[derive(Clone)]
struct CredentialIndex {
    /// Empty until the first text is inserted.
    pieces: Vec<Arc<HashTable<IndexSlot>>>,
    /// Hashes a text as one piece, unlike the standard library's.
    hasher: SipHasher13,
}

impl Default for CredentialIndex {
    fn default() -> Self {
        let random = RandomState::new();
        let hasher = SipHasher13::new_with_keys(random.hash_one(0), random.hash_one(1));
        CredentialIndex { pieces: Vec::new(), hasher }
    }
}

impl fmt::Debug for CredentialIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Index")
    }
}

impl CredentialIndex {
    /// The slot that `is_it` accepts, among those with the same hash.
    #[inline]
    fn find(&self, text: &[u8], is_it: impl Fn(&IndexSlot) -> bool) -> Option<IndexSlot> {
        let hash = self.hasher.hash(text);
        let piece = self.pieces.get(piece_of(hash))?;
        piece.find(hash, |slot| slot.hash == hash && is_it(slot)).copied()
    }

    fn insert(&mut self, text: &[u8], place: u32, which: u32) {
        if self.pieces.is_empty() {
            self.pieces = vec![Arc::default(); PIECES];
        }
        let hash = self.hasher.hash(text);
        let piece = Arc::make_mut(&mut self.pieces[piece_of(hash)]);
        piece.insert_unique(hash, IndexSlot { hash, place, which }, |slot| slot.hash);
    }

    /// Removes a slot, if it exists.
    fn remove(&mut self, text: &[u8], place: u32, which: u32) {
        let slot = IndexSlot { hash: self.hasher.hash(text), place, which };
        let Some(piece) = self.pieces.get_mut(piece_of(slot.hash)) else { return };
        if let Ok(found) = Arc::make_mut(piece).find_entry(slot.hash, |known| *known == slot) {
            found.remove();
        }
    }
}

/// Uses bits that the tables themselves do not use: they use the lowest ones and the highest seven.
fn piece_of(hash: u64) -> usize {
    (hash >> 32) as usize % PIECES
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn consumer(name: &str) -> Consumer {
        Consumer {
            name: name.into(),
            group: None,
            labels: Box::default(),
            plugins: Arc::default(),
            credentials: Box::default(),
        }
    }

    fn credential(key: u8) -> Credential {
        Credential { plugin: "key-auth", lookup: [key].into(), place: None, verifier: None }
    }

    #[test]
    fn a_credential_belongs_to_the_first_who_has_it() {
        let mut all = Consumers::default();
        all.insert(consumer("a"), vec![credential(1)]).unwrap();
        let by = all.find_by_name("a").unwrap();
        assert_eq!(
            all.insert(consumer("b"), vec![credential(2), credential(1)]),
            Err(DuplicateCredential { at: 1, by })
        );
        assert_eq!(all.find("key-auth", &[1]), Some(by));
        assert_eq!(all.find("key-auth", &[2]), all.find_by_name("b"));
        assert_eq!(all.find("jwt-auth", &[2]), None);
        assert_eq!(all.find("", b"a"), None, "a name is not a credential");
        let twice = all.insert(consumer("c"), vec![credential(3), credential(3)]).unwrap_err();
        assert_eq!((twice.at, Some(twice.by)), (1, all.find_by_name("c")));
        // b's removal does not affect the credential that it did not get.
        assert!(all.remove("b"));
        assert_eq!(all.find("key-auth", &[1]), Some(by));
        assert_eq!(all.find("key-auth", &[2]), None);
    }

    #[test]
    fn a_credential_leads_to_its_verifier() {
        let verifier =
            |identity, text: &str| Some(Arc::new(CredentialVerifier::new(Identity(identity), text.to_owned())));
        let table = |verifier| {
            let mut all = Consumers::default();
            all.insert(consumer("a"), vec![Credential { verifier, ..credential(1) }, credential(2)]).unwrap();
            all
        };
        let all = table(verifier(1, "of a"));
        let (by, found) = all.find_with_verifier("key-auth", &[1]).unwrap();
        assert_eq!((Some(by), found.get::<String>().unwrap().as_str()), (all.find_by_name("a"), "of a"));
        assert_eq!(found.get::<u8>(), None, "of another type");
        assert!(all.find_with_verifier("key-auth", &[2]).is_none());
        assert_eq!(format!("{found:?}"), "CredentialVerifier");
        assert_eq!(all, table(verifier(1, "of a")));
        assert_ne!(all, table(verifier(2, "of a")), "another credential, found by the same");
    }

    #[test]
    fn labels_are_found_by_their_names() {
        let labels = ["a", "b", "d"].map(|name| (name.into(), format!("of {name}").into()));
        let consumer = Consumer { labels: labels.into(), ..consumer("a") };
        assert_eq!(consumer.label("b"), Some("of b"));
        assert_eq!(consumer.label("c"), None);
    }

    #[test]
    fn places_that_others_have_now_are_reported() {
        let mut all = Consumers::default();
        for number in 0..2 * PAGE_PLACES {
            all.insert(consumer(&number.to_string()), vec![]).unwrap();
        }
        let before = all.clone();
        assert!(!all.has_moved_since(&before));
        all.insert(consumer("new"), vec![credential(1)]).unwrap();
        all.replace(consumer("7"), vec![credential(2)]).unwrap();
        assert!(!all.has_moved_since(&before), "nobody has lost a place");
        assert!(before.has_moved_since(&all), "the new one is not there yet");
        assert!(all.remove("300"));
        assert!(all.has_moved_since(&before));
        let without = all.clone();
        all.insert(consumer("in its place"), vec![]).unwrap();
        assert!(all.has_moved_since(&before) && !all.has_moved_since(&without));
        assert!(Consumers::default().has_moved_since(&before) && !all.has_moved_since(&Consumers::default()));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Put(u8, Vec<u8>),
        Remove(u8),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let put = (0..8u8, proptest::collection::vec(0..12u8, 0..3)).prop_map(|(name, keys)| Step::Put(name, keys));
        proptest::collection::vec(prop_oneof![3 => put, 1 => (0..8u8).prop_map(Step::Remove)], 0..60)
    }

    proptest! {
        /// Compares with a plain model: owners of credentials, and stable places; a cloned table does not change.
        #[test]
        fn a_table_is_what_was_put_there(steps in steps()) {
            let (mut all, mut model) = (Consumers::default(), BTreeMap::<u8, Vec<u8>>::new());
            for step in steps {
                let (before, places) = (all.clone(), model.keys().map(|name| (*name, all.find_by_name(&name.to_string()))));
                let places: Vec<_> = places.collect();
                let old = model.clone();
                match &step {
                    Step::Put(name, keys) => {
                        model.remove(name);
                        let mut own = Vec::new();
                        let mut is_taken = false;
                        for key in keys {
                            match own.contains(key) || model.values().any(|keys| keys.contains(key)) {
                                true => is_taken = true,
                                false => own.push(*key),
                            }
                        }
                        let put = all.replace(consumer(&name.to_string()), keys.iter().copied().map(credential).collect());
                        prop_assert_eq!(put.is_err(), is_taken);
                        model.insert(*name, own);
                    }
                    Step::Remove(name) => {
                        prop_assert_eq!(all.remove(&name.to_string()), model.remove(name).is_some());
                    }
                }
                for (table, model) in [(&before, &old), (&all, &model)] {
                    prop_assert_eq!(table.len(), model.len());
                    for key in 0..12 {
                        let owner = model.iter().find(|(_, keys)| keys.contains(&key)).map(|(name, _)| name.to_string());
                        let found = table.find("key-auth", &[key]).map(|found| table.of(found).name.to_string());
                        prop_assert_eq!(found, owner);
                    }
                }
                for (name, place) in places.into_iter().filter(|(name, _)| model.contains_key(name)) {
                    prop_assert_eq!(all.find_by_name(&name.to_string()), place);
                }
            }
        }
    }
}
