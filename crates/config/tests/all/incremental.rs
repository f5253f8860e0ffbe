//! A reader that has read other texts before gives the same result as a fresh one: values, warnings, errors, positions.

use crate::cases;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use std::sync::Arc;
use stillgate_config::{DigestedText, IncrementalReader, LoadedConfig, load};

fn environment(name: &str) -> Option<String> {
    (name == "SET").then(|| "from-environment".to_owned())
}

fn text(bytes: impl Into<Vec<u8>>) -> DigestedText {
    DigestedText::new(bytes.into())
}

/// Reads it in both ways, which must give the same result.
#[track_caller]
fn read(reader: &mut IncrementalReader, bytes: &str) -> Option<Arc<LoadedConfig>> {
    let again = reader.load(text(bytes), &environment);
    let whole = load(bytes, &environment);
    match (again, whole) {
        (Ok(again), Ok(whole)) => {
            assert_eq!(*again, whole, "{bytes}");
            Some(again)
        }
        (Err(again), Err(_)) => {
            // A reader's errors show no possible secrets, and draws contain values in odd places.
            let whole = IncrementalReader::default().load(text(bytes), &environment);
            assert_eq!(again, whole.unwrap_err(), "{bytes}");
            None
        }
        (again, whole) => panic!("{again:?}\nbut read as a whole\n{whole:?}\n{bytes}"),
    }
}

const HEAD: &str = "gateway: {listeners: [{address: \"0.0.0.0:9080\"}]}\n\
    services:\n- {id: s, upstream_id: u}\n- {id: own, upstream: {nodes: {\"127.0.0.1:9080\": 1}}}\nroutes: # all\n";
const TAIL: &str = "upstreams:\n- {id: u, key: useless, nodes: {\"a:80\": 1}}\n- {id: v, nodes: {\"b:80\": 1}}\n\
    - {id: t, scheme: tcp, nodes: {\"b:1\": 1}}\n\
    stream_routes:\n- {id: t, upstream_id: t}\n- {id: own, upstream: {nodes: {\"127.0.0.1:9080\": 1}}}\n\
    ssls: [{id: us, type: client, cert: us.pem, key: us.key}]\n";

/// The lines of an item below its dash, which is in `column`.
fn item(column: usize, lines: &[String]) -> String {
    let indent = " ".repeat(column);
    let mut item = String::new();
    for (number, line) in lines.iter().enumerate() {
        item += &format!("{indent}{}{line}\n", if number == 0 { "- " } else { "  " });
    }
    item
}

/// Further lines of a route: valid ones, and ones that are easily mistaken for something else.
const GOOD: &[&[&str]] = &[
    &["status: 0"],
    &["status: 1", "", "# behind"],
    &["desc: |", "  - id: not", "", "  routes:"],
    &["desc: |+", "  kept", "", ""],
    &["desc: \"two", "  - lines\""],
    &["desc: plain", "  - on", "  more"],
    &["desc: '- ${SET}'"],
    &["desc: ${UNSET:-none}"],
    &["labels:", "  a: b # - c"],
    &["name: \u{e9}\u{2028}"],
    &["labels: {a: b,", "  c: d}"],
    &["upstream_id:", "  u"],
    &["priority: 5", "\t"],
];

/// Invalid lines.
const BAD: &[&[&str]] = &[
    &["status: 2"],
    &["unknown: 1"],
    &["desc: \"open"],
    &["methods: [GET"],
    &["desc: ${UNSET}"],
    &["uri: /twice"],
    &["upstream_id: nowhere"],
    &["upstream_id: t"],
    &["upstream: {scheme: tcp, nodes: {\"a:1\": 1}}"],
    &["upstream: {scheme: https, nodes: {a: 1}, tls: {client_cert_id: them}}"],
    &["name: &anchor x"],
    &["name: *anchor"],
    &["name: !!str x"],
    &["\tname: x"],
    &["name: a\rdesc: b"],
    &["name: a\0b"],
    &["{"],
    &["labels: {a: [b,", "- c]}"],
    &["labels: {a: b", "- c: d}"],
];

/// The lines of one route.
fn route() -> impl Strategy<Value = Vec<String>> {
    let id = prop_oneof![
        12 => (0..60u32).prop_map(|id| Some(format!("id: r{id}"))),
        1 => Just(None),
        1 => (1..12u32).prop_map(|id| Some(format!("id: {id}"))),
    ];
    let upstream = select(vec![
        &["upstream_id: u"][..],
        &["upstream_id: v"],
        &["service_id: s"],
        &["service_id: own"],
        &["upstream: {nodes: {\"a:80\": 1}}"],
        &["upstream: {nodes: {\"b:80\": 1}}", "timeout: {read: 1s}"],
        &["upstream:", "  nodes:", "    \"127.0.0.1:9080\": 1"],
        &["upstream: {nodes: {}}"],
        &["upstream: {scheme: https, nodes: {a: 1}, tls: {client_cert_id: us}}"],
        &["upstream: {scheme: https, nodes: {a: 1}, tls: {ca: a.pem, verify: false}}"],
        &["upstream: {key: useless, nodes: {\"c:80\": 1}}"],
    ]);
    let more = prop_oneof![20 => Just(&[][..]), 20 => select(GOOD), 1 => select(BAD)];
    (id, upstream, 0..20u32, any::<bool>(), more).prop_map(|(id, upstream, path, is_uri, more)| {
        let mut lines: Vec<String> = id.into_iter().collect();
        match is_uri {
            true => lines.push(format!("uri: /{path}")),
            false => lines.extend(["expression: >-".to_owned(), format!("  http.path == \"/{path}\"")]),
        }
        lines.extend(upstream.iter().chain(more).map(|line| (*line).to_owned()));
        lines
    })
}

#[derive(Debug, Clone)]
enum Edit {
    Change(Index, Vec<String>),
    Insert(Index, Vec<String>),
    Remove(Index),
    Move(Index, Index),
    Duplicate(Index),
    /// Lines without meaning, or with another one than they seem to have.
    Line(Index, &'static str),
    /// One character of the text, at any position.
    Character(Index, char),
    Cut(Index),
    Column(usize),
    Returns(bool),
    Head(&'static str),
    Tail(&'static str),
    FinalNewline(bool),
}

fn edit() -> impl Strategy<Value = Edit> {
    let line = select(vec![
        "",
        "   ",
        "# c",
        "      # c",
        "- ",
        "-",
        "---",
        "...",
        "  ",
        "a: b",
        "\t",
        "  - x",
        "    - x",
        " x",
        "#END",
        "routes:",
        "%TAG ! tag:x,2000:",
        "- - a",
        "- |",
        "- \"",
        "- {",
        "? a",
        "\u{feff}# c",
    ]);
    let character = select(vec!['\n', ' ', '-', '"', '\'', '#', ':', '&', '*', '!', '|', '\t', '[', '{', 'x', '\r']);
    let head = select(vec![
        HEAD,
        "# moved\n\nservices: [{id: s, upstream_id: u}, {id: own, upstream_id: v}]\nroutes:\n",
        "%YAML 1.2\n---\nservices: [{id: s, upstream_id: u}, {id: own, upstream_id: v}]\nroutes:\n",
        "services: &x [{id: s, upstream_id: u}, {id: own, upstream_id: v}]\nroutes:\n",
        "services: [{id: s, upstream_id: u}, {id: own, upstream_id: v}]\nroutes: &x\n",
        "\u{feff}services: [{id: s, upstream_id: u}, {id: own, upstream_id: v}]\n\"routes\":\n",
    ]);
    const RENEWED: &str = "ssls: [{id: us, type: client, cert: new.pem, key: us.key}]\nupstreams:\n\
        - {id: u, nodes: {\"a:80\": 1}}\n- {id: v, scheme: https, nodes: {b: 1}, tls: {client_cert_id: us}}\n";
    let tail = select(vec![
        TAIL,
        RENEWED,
        "upstreams: [{id: u, nodes: {\"a:80\": 0}}, {id: v, nodes: {}}]\n#END\n",
        "#END\n",
        "",
    ]);
    prop_oneof![
        6 => (any::<Index>(), route()).prop_map(|(at, route)| Edit::Change(at, route)),
        6 => (any::<Index>(), route()).prop_map(|(at, route)| Edit::Insert(at, route)),
        4 => any::<Index>().prop_map(Edit::Remove),
        4 => any::<(Index, Index)>().prop_map(|(from, to)| Edit::Move(from, to)),
        1 => any::<Index>().prop_map(Edit::Duplicate),
        3 => (any::<Index>(), line).prop_map(|(at, line)| Edit::Line(at, line)),
        2 => (any::<Index>(), character).prop_map(|(at, character)| Edit::Character(at, character)),
        1 => any::<Index>().prop_map(Edit::Cut),
        1 => (0..3usize).prop_map(Edit::Column),
        1 => any::<bool>().prop_map(Edit::Returns),
        1 => head.prop_map(Edit::Head),
        1 => tail.prop_map(Edit::Tail),
        1 => any::<bool>().prop_map(Edit::FinalNewline),
    ]
}

/// The parts of a text.
#[derive(Debug, Clone)]
struct Draft {
    head: &'static str,
    column: usize,
    routes: Vec<Vec<String>>,
    tail: &'static str,
    returns: bool,
    final_newline: bool,
}

impl Draft {
    /// Changes the draft, and returns the text; changes of the text alone are undone by the next edit.
    fn apply(&mut self, edit: &Edit) -> String {
        let routes = &mut self.routes;
        let count = routes.len();
        match edit {
            Edit::Change(at, route) if count > 0 => routes[at.index(count)].clone_from(route),
            Edit::Insert(at, route) => routes.insert(at.index(count + 1), route.clone()),
            Edit::Remove(at) if count > 0 => drop(routes.remove(at.index(count))),
            Edit::Move(from, to) if count > 0 => {
                let route = routes.remove(from.index(count));
                routes.insert(to.index(count), route);
            }
            Edit::Duplicate(at) if count > 0 => routes.push(routes[at.index(count)].clone()),
            Edit::Column(column) => self.column = *column,
            Edit::Returns(returns) => self.returns = *returns,
            Edit::Head(head) => self.head = head,
            Edit::Tail(tail) => self.tail = tail,
            Edit::FinalNewline(there) => self.final_newline = *there,
            _ => {}
        }
        let mut text = self.text();
        let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        match edit {
            Edit::Line(at, line) => {
                let starts: Vec<usize> = text.match_indices('\n').map(|(at, _)| at + 1).collect();
                if !starts.is_empty() {
                    text.insert_str(starts[at.index(starts.len())], &format!("{line}\n"));
                }
            }
            Edit::Character(at, character) if !places.is_empty() => {
                text.insert(places[at.index(places.len())], *character)
            }
            Edit::Cut(at) if !places.is_empty() => text.truncate(places[at.index(places.len())]),
            _ => {}
        }
        text
    }

    fn text(&self) -> String {
        let items: String = self.routes.iter().map(|route| item(self.column, route)).collect();
        let mut text = format!("{}{items}{}", self.head, self.tail);
        if self.returns {
            text = text.replace('\n', "\r\n");
        }
        if !self.final_newline {
            text.pop();
        }
        text
    }
}

fn draft() -> impl Strategy<Value = Draft> {
    (prop::collection::vec(route(), 0..12), 0..3usize).prop_map(|(routes, column)| Draft {
        head: HEAD,
        column,
        routes,
        tail: TAIL,
        returns: false,
        final_newline: true,
    })
}

/// The list without its errors, so that most sequences begin with a valid text.
fn without_errors(mut draft: Draft) -> Draft {
    let mut kept: Vec<Vec<String>> = Vec::new();
    for route in std::mem::take(&mut draft.routes) {
        draft.routes = kept.iter().chain([&route]).cloned().collect();
        if load(draft.text(), &environment).is_ok() {
            kept.push(route);
        }
    }
    draft.routes = kept;
    draft
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(400), ..ProptestConfig::default() })]

    #[test]
    fn a_text_read_after_others_is_what_it_is_by_itself(
        draft in draft(),
        edits in prop::collection::vec(edit(), 1..30),
    ) {
        let mut draft = without_errors(draft);
        let mut reader = IncrementalReader::default();
        read(&mut reader, &draft.text());
        for edit in &edits {
            let before = draft.clone();
            if read(&mut reader, &draft.apply(edit)).is_none() {
                // Otherwise most sequences would be one error after the other.
                draft = before;
            }
        }
    }
}

/// A reader that has read `before`, for comparison with other texts.
#[track_caller]
fn reader_of(before: &str) -> (IncrementalReader, Arc<LoadedConfig>) {
    let mut reader = IncrementalReader::default();
    let loaded = read(&mut reader, before).unwrap();
    assert!(reader.is_incremental());
    (reader, loaded)
}

/// The routes that are the same as before, and those with at least the same spec.
fn shared(before: &LoadedConfig, after: &LoadedConfig) -> (Vec<String>, Vec<String>) {
    let (mut routes, mut specs) = (Vec::new(), Vec::new());
    for new in &after.config.routes {
        let id = || new.spec.id.clone();
        routes.extend(before.config.routes.iter().any(|old| Arc::ptr_eq(old, new)).then(id));
        specs.extend(before.config.routes.iter().any(|old| Arc::ptr_eq(&old.spec, &new.spec)).then(id));
    }
    (routes, specs)
}

#[track_caller]
fn check_shared(before: &str, after: &str, routes: &[&str], specs: &[&str]) {
    let (mut reader, old) = reader_of(before);
    let new = read(&mut reader, after).unwrap();
    let got = shared(&old, &new);
    assert_eq!(
        got,
        (routes.iter().map(|id| (*id).to_owned()).collect(), specs.iter().map(|id| (*id).to_owned()).collect())
    );
    // The result is as good a basis as one that was read as a whole.
    let third = read(&mut reader, before).unwrap();
    assert_eq!(shared(&new, &third).0.is_empty(), routes.is_empty());
}

fn file(routes: &[&str]) -> String {
    let items: String = routes.iter().map(|route| format!("  - {route}\n")).collect();
    format!("{HEAD}{items}{TAIL}")
}

const A: &str = "{id: a, uri: /a, upstream_id: u}";
const B: &str = "{id: b, uri: /b, service_id: s}";
const C: &str = "{id: c, uri: /c, upstream: {nodes: {\"c:80\": 1}}}";
const D: &str = "{id: d, uri: /d, upstream: {nodes: {\"d:80\": 1}}}";
const OFF: &str = "{id: off, uri: /off, upstream: {nodes: {\"d:80\": 1}}, status: 0}";

#[test]
fn routes_whose_text_did_not_change_are_the_same() {
    check_shared(&file(&[A, B, C, D]), &file(&[A, B, C, D]), &["a", "b", "c", "d"], &["a", "b", "c", "d"]);
    check_shared(&file(&[A, B, C]), &file(&[A, "{id: b, uri: /x, service_id: s}", C]), &["a", "c"], &["a", "c"]);
    check_shared(&file(&[A, B]), &file(&[B, A]), &["b", "a"], &["b", "a"]);
    check_shared(&file(&[OFF, A, B]), &file(&[A, OFF, B]), &["a", "b"], &["a", "b"]);
    check_shared(&file(&[C, D]), &file(&[D, C]), &["d", "c"], &["d", "c"]);
    check_shared(&file(&[A, C, D]), &file(&[A, D]), &["a", "d"], &["a", "d"]);
    // Only line numbers changed.
    check_shared(&file(&[A, C]), &file(&[A, C]).replace("upstreams:", "# behind\n\nupstreams:"), &["a"], &["a"]);
    check_shared(
        &file(&[A, B, C]),
        &file(&[A, B, C]).replace("# all\n", "# all\n\n# of them\n"),
        &["b", "c"],
        &["b", "c"],
    );
    check_shared(&file(&[A, B]), &file(&["{id: x, uri: /x, upstream_id: u}\n\n", A, B]), &["a", "b"], &["a", "b"]);
}

#[test]
fn what_cannot_be_taken_apart_is_read_as_a_whole() {
    for routes in [
        "routes: [{id: a, uri: /a, upstream_id: u}]",
        "routes:\n- &a {id: a, uri: /a, upstream_id: u}",
        "routes:\n- {id: !!str a, uri: /a, upstream_id: u}",
        "\"routes\":\n- {id: a, uri: /a, upstream_id: u}",
        "routes:\n- {id: a, uri: /a, upstream_id: u,\ndesc: a}",
        "routes: []",
        "{routes: [\n{id: a, uri: /a, upstream_id: u}]}",
    ] {
        let text = match routes.strip_suffix('}').filter(|_| routes.starts_with('{')) {
            Some(open) => format!("{open}, upstreams: [{{id: u, nodes: {{a: 1}}}}]}}\n"),
            None => format!("{routes}\nupstreams: [{{id: u, nodes: {{a: 1}}}}]\n"),
        };
        let mut reader = IncrementalReader::default();
        if read(&mut reader, &text).is_some() {
            assert!(!reader.is_incremental(), "{text}");
        }
    }
}

#[test]
fn a_changed_environment_is_noticed() {
    let before = file(&["{id: a, uri: \"${PATH_OF_A}\", upstream_id: u}", B]);
    let path = std::cell::Cell::new("/one");
    let environment = |name: &str| (name == "PATH_OF_A").then(|| path.get().to_owned());
    let mut reader = IncrementalReader::default();
    for value in ["/one", "/one", "/two"] {
        path.set(value);
        let loaded = reader.load(text(&*before), &environment).unwrap();
        assert_eq!(*loaded, load(&before, &environment).unwrap());
        assert_eq!(loaded.config.routes[0].spec.uri().unwrap().paths[0].to_string(), value);
    }
}

#[test]
fn after_an_error_the_last_good_text_counts() {
    let (mut reader, old) = reader_of(&file(&[A, B, C]));
    assert!(read(&mut reader, &file(&[A, "{id: b", C])).is_none());
    assert!(read(&mut reader, &file(&[A, A, C])).is_none());
    assert!(reader.load(text(vec![0xff]), &environment).is_err());
    let new = read(&mut reader, &file(&[A, "{id: b, uri: /x, service_id: s}", C])).unwrap();
    assert_eq!(shared(&old, &new).0, ["a", "c"]);
}

#[test]
fn a_mask_is_refused_wherever_it_comes_in() {
    let mut reader = IncrementalReader::default();
    let consumers = |name: &str| format!("consumers:\n- username: jack\n  desc: \"{name}\"\n");
    let route = |name: &str| format!("- {{id: a, uri: /a, upstream_id: u, desc: \"{name}\"}}\n");
    let file = |route: &str, consumers: &str| format!("{HEAD}{route}{TAIL}{consumers}");
    let good = file(&route("a"), &consumers("a"));
    read(&mut reader, &good).unwrap();
    assert!(reader.is_incremental());
    assert!(read(&mut reader, &file(&route("********"), &consumers("a"))).is_none());
    assert!(read(&mut reader, &file(&route("a"), &consumers("********"))).is_none());
    assert!(read(&mut reader, &good).is_some());
}
