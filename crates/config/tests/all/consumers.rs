//! Consumers of a file: reading by differences gives the same result as reading as a whole, and consumers that cannot work are
//! refused.

use crate::plugins::TABLE;
use proptest::prelude::*;
use proptest::sample::Index;
use std::sync::{Arc, Mutex};
use stillgate_config::{DigestedText, IncrementalReader, LoadedConfig, PluginSet, load_with};
use stillgate_plugin_api::Secrets;
use stillgate_plugin_api::secrets::Managers;

/// One secret that changes.
struct One(Mutex<String>);

impl Secrets for One {
    fn resolve(&self, reference: &str) -> Result<String, String> {
        match reference {
            "$env://ONE" => Ok(self.0.lock().unwrap().clone()),
            _ => Err("it is not set".to_owned()),
        }
    }
}

fn plugin_set() -> (PluginSet, Arc<One>) {
    let secrets = Arc::new(One(Mutex::new("first secret".to_owned())));
    (PluginSet { table: TABLE, secrets: secrets.clone(), ..PluginSet::default() }, secrets)
}

/// Reads it in both ways, which must give the same result.
#[track_caller]
fn read(reader: &mut IncrementalReader, plugins: &PluginSet, text: &str) -> Result<Arc<LoadedConfig>, String> {
    let again = reader.load(DigestedText::new(text.into()), &|_| None);
    let whole = load_with(text, &|_| None, plugins.clone());
    match (again, whole) {
        (Ok(again), Ok(whole)) => {
            assert_eq!(*again, whole, "{text}");
            for key in 0..20 {
                let name_by = |loaded: &LoadedConfig| {
                    let consumers = &loaded.config.plugins.consumers;
                    let found = consumers.find("key-auth", format!("k{key}").as_bytes());
                    found.map(|found| consumers.of(found).name.to_string())
                };
                assert_eq!(name_by(&again), name_by(&whole), "k{key} in {text}");
            }
            Ok(again)
        }
        (Err(again), Err(whole)) => {
            assert_eq!(again, whole, "{text}");
            Err(again.to_string())
        }
        (again, whole) => panic!("{again:?}\nbut read as a whole\n{whole:?}\n{text}"),
    }
}

fn file(routes: &[String], consumers: &[String], is_above: bool) -> String {
    let list = |items: &[String]| items.iter().map(|item| format!("  - {item}\n")).collect::<String>();
    let (routes, consumers) = (format!("routes:\n{}", list(routes)), format!("consumers:\n{}", list(consumers)));
    let lists = if is_above { format!("{consumers}{routes}") } else { format!("{routes}{consumers}") };
    format!(
        "consumer_groups: [{{id: g, plugins: {{}}}}]\n{lists}upstreams: [{{id: u, key: useless, nodes: {{a: 1}}}}]\n"
    )
}

fn consumer() -> impl Strategy<Value = String> {
    let more = prop_oneof![
        8 => Just(""),
        2 => Just(", group_id: g"),
        1 => Just(", labels: {custom_id: x}"),
        1 => Just(", credentials: [{id: c, plugins: {key-auth: {key: k19}}}]"),
        1 => Just(", desc: \"- two\n    - lines\""),
        1 => Just(" # behind\n    "),
        1 => Just(", unknown: 1"),
    ];
    (0..14u8, 0..18u8, more)
        .prop_map(|(name, key, more)| format!("{{username: c{name}, plugins: {{key-auth: {{key: k{key}}}}}{more}}}"))
}

fn route() -> impl Strategy<Value = String> {
    (0..9u8).prop_map(|id| format!("{{id: r{id}, uri: /{id}, upstream_id: u}}"))
}

#[derive(Debug, Clone)]
enum Edit {
    Put(Index, String),
    Replace(Index, String),
    Remove(Index),
    Move(Index, Index),
    Route(Index, String),
    Turn,
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        4 => (any::<Index>(), consumer()).prop_map(|(at, item)| Edit::Put(at, item)),
        4 => (any::<Index>(), consumer()).prop_map(|(at, item)| Edit::Replace(at, item)),
        3 => any::<Index>().prop_map(Edit::Remove),
        2 => any::<(Index, Index)>().prop_map(|(from, to)| Edit::Move(from, to)),
        2 => (any::<Index>(), route()).prop_map(|(at, item)| Edit::Route(at, item)),
        1 => Just(Edit::Turn),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_text_read_after_others_is_what_it_is_by_itself(edits in prop::collection::vec(edit(), 1..25)) {
        let (plugins, _) = plugin_set();
        let mut reader = IncrementalReader::new(plugins.clone());
        let (mut routes, mut consumers, mut is_above) = (vec!["{id: r, uri: /r, upstream_id: u}".to_owned()], Vec::new(), false);
        for edit in edits {
            let before = (routes.clone(), consumers.clone());
            let count = consumers.len();
            match edit {
                Edit::Put(at, item) => consumers.insert(at.index(count + 1), item),
                Edit::Replace(at, item) if count > 0 => consumers[at.index(count)] = item,
                Edit::Remove(at) if count > 0 => drop(consumers.remove(at.index(count))),
                Edit::Move(from, to) if count > 0 => {
                    let item = consumers.remove(from.index(count));
                    consumers.insert(to.index(count), item);
                }
                Edit::Route(at, item) => routes.insert(at.index(routes.len() + 1), item),
                Edit::Turn => is_above = !is_above,
                _ => {}
            }
            // An error stays for one text only, so that most are valid.
            if read(&mut reader, &plugins, &file(&routes, &consumers, is_above)).is_err() {
                (routes, consumers) = before;
            }
        }
    }
}

#[test]
fn consumers_keep_their_places() {
    let (plugins, _) = plugin_set();
    let mut reader = IncrementalReader::new(plugins.clone());
    let item = |n: u32| format!("{{username: c{n}, plugins: {{key-auth: {{key: k{n}}}}}}}");
    let route = ["{id: r, uri: /r, upstream_id: u}".to_owned()];
    let of = |numbers: &[u32]| file(&route, &numbers.iter().map(|n| item(*n)).collect::<Vec<_>>(), false);
    let old = read(&mut reader, &plugins, &of(&[1, 2, 3])).unwrap();
    let new = read(&mut reader, &plugins, &of(&[4, 3, 2, 5])).unwrap();
    let place = |loaded: &LoadedConfig, name: &str| loaded.config.plugins.consumers.find_by_name(name);
    for name in ["c2", "c3"] {
        assert_eq!(place(&old, name), place(&new, name));
    }
    assert_eq!(place(&new, "c1"), None);
    assert!(Arc::ptr_eq(&old.config.routes[0], &new.config.routes[0]));
}

#[test]
fn a_key_that_two_have_is_refused_with_both_places_and_without_the_key() {
    let (plugins, _) = plugin_set();
    let item = |name: &str| format!("{{username: {name}, plugins: {{key-auth: {{key: planted}}}}}}");
    let route = ["{id: r, uri: /r, upstream_id: u}".to_owned()];
    let text = file(&route, &[item("jack"), item("rose")], false);
    let error = load_with(&text, &|_| None, plugins).unwrap_err().to_string();
    assert!(
        error.contains("5:5: consumers[1]: consumer \"jack\" in line 5 has the same key-auth credential")
            || error.contains("6:5: consumers[1]: consumer \"jack\" in line 5 has the same key-auth credential"),
        "{error}"
    );
    assert!(!error.contains("planted"), "{error}");
}

#[test]
fn no_message_shows_a_credential() {
    let route = ["{id: r, uri: /r, upstream_id: u}".to_owned()];
    for plugins_of in [
        "key-auth: planted",
        "key-auth: [planted]",
        "key-auth: {key: [planted]}",
        "key-auth: {key: {planted: planted}}",
        "key-auth: {key: planted, other: planted}",
        "key-auth: {kye: planted}",
        "key-auth: {key: 2027112233}",
        "key-auth: {key: $env://ONE, other: 1}",
        "key-auth: {other: $env://ONE}",
        "key-auth: $env://ONE",
    ] {
        let (plugins, secret) = plugin_set();
        *secret.0.lock().unwrap() = "planted".to_owned();
        let text = file(&route, &[format!("{{username: jack, plugins: {{{plugins_of}}}}}")], false);
        let error = load_with(&text, &|_| None, plugins).unwrap_err();
        for shown in [format!("{error}"), format!("{error:?}")] {
            let shown = shown.replace("key.planted", "");
            assert!(!shown.contains("planted") && !shown.contains("2027112233"), "{plugins_of}: {shown}");
        }
    }
}

#[test]
fn a_changed_secret_is_noticed() {
    let (plugins, secret) = plugin_set();
    let mut reader = IncrementalReader::new(plugins);
    let route = ["{id: r, uri: /r, upstream_id: u}".to_owned()];
    let text = file(&route, &["{username: jack, plugins: {key-auth: {key: $env://ONE}}}".to_owned()], false);
    for value in ["first secret", "first secret", "second secret"] {
        *secret.0.lock().unwrap() = value.to_owned();
        let loaded = reader.load(DigestedText::new(text.clone().into()), &|_| None).unwrap();
        let consumers = &loaded.config.plugins.consumers;
        assert!(consumers.find("key-auth", value.as_bytes()).is_some(), "{value}");
        assert_eq!(consumers.find("key-auth", b"$env://ONE"), None);
    }
    let unset = text.replace("ONE", "TWO");
    let error = reader.load(DigestedText::new(unset.into()), &|_| None).unwrap_err().to_string();
    assert!(error.contains("consumers[0].plugins.key-auth.key: $env://TWO: it is not set"), "{error}");
}

#[test]
fn a_changed_secret_is_noticed_where_a_text_was_refused_before() {
    let route = ["{id: r, uri: /r, upstream_id: u}".to_owned()];
    let text = file(&route, &["{username: jack, plugins: {key-auth: {key: $env://ONE}}}".to_owned()], false);
    for refused in [text.replace("ONE", "TWO"), format!("{text}\n["), text.replace("$env://ONE", "k1, unknown: 1")] {
        let (plugins, secret) = plugin_set();
        let mut reader = IncrementalReader::new(plugins);
        let mut load = |text: &str| reader.load(DigestedText::new(text.into()), &|_| None);
        let first = load(&text).unwrap();
        for _ in 0..2 {
            assert!(load(&refused).is_err(), "{refused}");
        }
        assert!(Arc::ptr_eq(&load(&text).unwrap().config.routes[0], &first.config.routes[0]), "{refused}");
        assert_eq!(reader.secret_references(), ["$env://ONE"], "{refused}");
        assert!(reader.has_current_secrets());
        "second secret".clone_into(&mut secret.0.lock().unwrap());
        assert!(!reader.has_current_secrets(), "{refused}");
        let loaded = reader.load(DigestedText::new(text.clone().into()), &|_| None).unwrap();
        assert!(loaded.config.plugins.consumers.find("key-auth", b"second secret").is_some(), "{refused}");
    }
}

/// Every reference resolves to itself. Records the references reported as in use.
#[derive(Clone, Default)]
struct RecordingSecrets(Arc<Mutex<Vec<Vec<String>>>>);

impl Secrets for RecordingSecrets {
    fn resolve(&self, reference: &str) -> Result<String, String> {
        Ok(reference.to_owned())
    }

    fn with_managers(&self, _: &Managers) -> Option<Arc<dyn Secrets>> {
        Some(Arc::new(self.clone()))
    }

    fn in_use(&self, references: &[String]) {
        self.0.lock().unwrap().push(references.to_vec());
    }
}

#[test]
fn other_secrets_may_be_forgotten_only_where_all_that_are_used_are_known() {
    let check = |text: &str, expected: &[&[&str]]| {
        let noted = RecordingSecrets::default();
        let plugins = PluginSet { table: TABLE, secrets: Arc::new(noted.clone()), ..PluginSet::default() };
        IncrementalReader::new(plugins).load(DigestedText::new(text.into()), &|_| None).unwrap();
        assert_eq!(*noted.0.lock().unwrap(), expected, "{text}");
    };
    let route = ["{id: r, uri: /r, upstream_id: u}".to_owned()];
    let consumers = |count: usize| -> Vec<String> {
        (0..count).map(|n| format!("{{username: c{n}, plugins: {{key-auth: {{key: $env://ONE{n}}}}}}}")).collect()
    };
    check(&file(&route, &consumers(1), false), &[&["$env://ONE0"]]);
    check(&file(&route, &consumers(1500), false), &[]);
    check("gateway: {config: {source: store}, admin: {address: \"127.0.0.1:0\"}}\n", &[]);
}

#[test]
fn an_anonymous_consumer_must_be_there() {
    let (plugins, _) = plugin_set();
    let mut reader = IncrementalReader::new(plugins.clone());
    let route = |guest: &str| {
        format!("{{id: r, uri: /r, upstream_id: u, plugins: {{key-auth: {{anonymous_consumer: {guest}}}}}}}")
    };
    let consumers = |names: &[&str]| names.iter().map(|name| format!("{{username: {name}}}")).collect::<Vec<_>>();
    let file = |guest: &str, names: &[&str]| file(&[route(guest)], &consumers(names), false);
    read(&mut reader, &plugins, &file("a", &["a", "b"])).unwrap();
    read(&mut reader, &plugins, &file("b", &["a", "b"])).unwrap();
    let error = read(&mut reader, &plugins, &file("c", &["a", "b"])).unwrap_err();
    assert!(error.contains("key-auth of route \"r\" names the consumer \"c\", which is not there"), "{error}");
    // The consumer is removed by a read of the differences.
    assert!(read(&mut reader, &plugins, &file("b", &["a"])).is_err());
    read(&mut reader, &plugins, &file("b", &["b"])).unwrap();
}

/// Measures the memory that stays once they are read, including the text kept for comparison.
#[test]
fn a_consumer_takes_less_than_a_kibibyte() {
    const CONSUMERS: usize = 5_000;
    const BYTES_MAX: i64 = 1024;
    let names: Vec<String> = (0..CONSUMERS).map(|n| format!("{{username: user-{n}, labels: {{team: t{}}}, plugins: {{key-auth: {{key: a-rather-long-key-of-the-user-{n}}}}}}}", n % 7)).collect();
    let text = file(&["{id: r, uri: /r, upstream_id: u}".to_owned()], &names, false);
    let (plugins, _) = plugin_set();
    let mut reader = IncrementalReader::new(plugins);
    let mut loaded = None;
    let taken = allocation_counter::measure(|| {
        loaded = Some(reader.load(DigestedText::new(text.clone().into_bytes()), &|_| None).unwrap());
    });
    assert!(reader.is_incremental());
    let each = taken.bytes_current / CONSUMERS as i64;
    assert!(each <= BYTES_MAX, "{each} bytes each");
}
