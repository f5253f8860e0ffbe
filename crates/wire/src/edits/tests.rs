//! Changes of heads: what is set, added, removed, and what stays as it was.

use super::*;
use crate::{HeadLimits, HeadProgress, RequestHead};

const HEAD: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\nA: 1\r\na: 2\r\nB: 3\r\n\r\n";

fn parsed() -> RequestHead {
    let mut head = RequestHead::default();
    assert_eq!(head.advance(HEAD, &HeadLimits::default()), Ok(HeadProgress::Complete(HEAD.len())));
    head
}

fn name(name: &str) -> FieldName<'_> {
    FieldName::new(name.as_bytes()).unwrap()
}

fn value(value: &str) -> FieldValue<'_> {
    FieldValue::new(value.as_bytes()).unwrap()
}

fn values(edits: &Edits, of: &str) -> Vec<String> {
    let parsed = parsed();
    let values = edits.values(&parsed.fields, HEAD, name(of));
    values.map(|value| String::from_utf8(value.to_vec()).unwrap()).collect()
}

#[test]
fn what_was_edited_is_what_is_read() {
    let (head, mut edits) = (parsed(), Edits::default());
    assert_eq!(values(&edits, "a"), ["1", "2"]);
    edits.add(name("A"), value("4"));
    assert_eq!(values(&edits, "a"), ["1", "2", "4"]);
    edits.set(&head.fields, HEAD, name("a"), value("5"));
    edits.add(name("C"), value("6"));
    assert_eq!((values(&edits, "A"), values(&edits, "c")), (vec!["5".to_owned()], vec!["6".to_owned()]));
    edits.remove(&head.fields, HEAD, name("a"));
    assert!(values(&edits, "a").is_empty());
    let mut over = Edits::default();
    over.add(name("b"), value("7"));
    over.add(name("B"), value("8"));
    edits.overlay(&head.fields, HEAD, &over);
    assert_eq!(values(&edits, "b"), ["7", "8"]);
    assert_eq!(edits.lines(), b"C: 6\r\nb: 7\r\nB: 8\r\n");
    assert_eq!(edits.first(&head.fields, HEAD, name("B")), Some(&b"7"[..]));
    assert_eq!(edits.first(&head.fields, HEAD, name("host")), Some(&b"h"[..]));
    edits.remove_added(name("c"));
    assert_eq!((edits.lines(), values(&edits, "b")), (&b"b: 7\r\nB: 8\r\n"[..], vec!["7".to_owned(), "8".to_owned()]));
    edits.remove_each(&head.fields, HEAD, &[name("host"), name("B")]);
    assert!(["host", "b"].iter().all(|name| values(&edits, name).is_empty()));
    edits.clear();
    assert!(!edits.is_changed() && values(&edits, "b") == ["3"]);
}

#[test]
fn trailers_do_not_have_the_names_of_added_or_removed_lines() {
    const LINES: &[u8] = b"X-User: root\r\nx_user: root\r\nX-Users: 1\r\nX-USER: root\r\nX-Sum: X-User: 7\r\n";
    const LEFT: &[u8] = b"x_user: root\r\nX-Users: 1\r\nX-Sum: X-User: 7\r\n";
    let head = parsed();
    let fresh = Edits::default();
    assert_eq!(&*fresh.trailers(LINES), LINES);
    let edited = |edit: &dyn Fn(&mut Edits)| {
        let mut edits = Edits::default();
        edit(&mut edits);
        assert_eq!(&*edits.trailers(b""), b"");
        edits
    };
    let added = edited(&|edits| edits.add(name("X-User"), value("jack")));
    let removed = edited(&|edits| edits.remove(&head.fields, HEAD, name("x-user")));
    let each = edited(&|edits| edits.remove_each(&head.fields, HEAD, &[name("b"), name("X-User")]));
    let set_and_removed = edited(&|edits| {
        edits.set(&head.fields, HEAD, name("X-User"), value("jack"));
        edits.remove(&head.fields, HEAD, name("X-User"));
    });
    let overlaid = edited(&|edits| edits.overlay(&head.fields, HEAD, &removed));
    let copied = edited(&|edits| edits.copy_from(&each));
    for edits in [&added, &removed, &each, &set_and_removed, &overlaid, &copied] {
        assert_eq!(&*edits.trailers(LINES), LEFT, "{edits:?}");
    }
    let mut cleared = each.clone();
    cleared.clear();
    assert_eq!(&*cleared.trailers(LINES), LINES);
}

#[test]
fn trailer_fields_that_do_not_pass_are_not_announced() {
    let check = |lines: &str, edit: &dyn Fn(&mut Edits, &Fields, &[u8]), drops_underscores, expected: &str| {
        let text = format!("GET / HTTP/1.1\r\nHost: h\r\n{lines}\r\n");
        let mut head = RequestHead::default();
        assert_eq!(head.advance(text.as_bytes(), &HeadLimits::default()), Ok(HeadProgress::Complete(text.len())));
        let mut edits = Edits::default();
        edit(&mut edits, &head.fields, text.as_bytes());
        edits.filter_trailer_names(&head.fields, text.as_bytes(), drops_underscores);
        let kept =
            head.fields.iter().enumerate().filter(|(at, of)| of.id == Name::Trailer && !edits.removed.contains(*at));
        let kept =
            kept.map(|(_, of)| format!("Trailer: {}\r\n", String::from_utf8_lossy(of.value.of(text.as_bytes()))));
        let found = kept.collect::<String>() + &String::from_utf8_lossy(&edits.appended);
        assert_eq!(found, expected, "{lines}");
    };
    let none: &dyn Fn(&mut Edits, &Fields, &[u8]) = &|_, _, _| {};
    check("Trailer: X-Sum,  X-User\r\n", none, true, "Trailer: X-Sum,  X-User\r\n");
    check("A: 1\r\n", none, true, "");
    let set: &dyn Fn(&mut Edits, &Fields, &[u8]) =
        &|edits, fields, head| edits.set(fields, head, name("x-user"), value("a"));
    check("Trailer: X-Sum, X-User,Y\r\n", set, true, "Trailer: X-Sum, Y\r\n");
    check("Trailer: X-User\r\ntrailer: Y\r\n", set, true, "Trailer: Y\r\n");
    let removed: &dyn Fn(&mut Edits, &Fields, &[u8]) =
        &|edits, fields, head| edits.remove(fields, head, name("X-USER"));
    check("Trailer: x-user , \r\n", removed, true, "");
    check("Trailer: Authorization, Cookie, Host, X-Sum\r\n", none, true, "Trailer: X-Sum\r\n");
    check("Trailer: x_sum, X-Sum\r\n", none, true, "Trailer: X-Sum\r\n");
    check("Trailer: x_sum, X-Sum\r\n", none, false, "Trailer: x_sum, X-Sum\r\n");
}

/// A function that removes one name after another has a bound, as one that adds lines has.
#[test]
fn names_that_were_removed_have_a_bound() {
    let (head, mut edits) = (parsed(), Edits::default());
    let long = "x".repeat(1024);
    for _ in 0..1000 {
        edits.remove(&head.fields, HEAD, name(&long));
    }
    assert!(!edits.is_too_large(), "one name");
    for number in 0..=ADDED_BYTES_MAX / 1024 {
        edits.remove(&head.fields, HEAD, name(&format!("{long}{number}")));
    }
    assert!(edits.is_too_large());
}

#[test]
fn a_copy_has_what_the_other_has_and_nothing_of_before() {
    let (mut edits, mut copy) = (Edits::default(), Edits::default());
    copy.add(name("old"), value("1"));
    copy.appended.extend_from_slice(b"X: y\r\n");
    edits.add(name("new"), value("2"));
    copy.copy_from(&edits);
    assert!(values(&copy, "new") == ["2"] && values(&copy, "old").is_empty() && copy.appended.is_empty());
}

#[test]
fn names_that_the_parser_knows_are_found_in_any_case() {
    let mut edits = Edits::default();
    edits.add(FieldName::constant("Server"), value("a"));
    edits.add(name("sERVER"), value("b"));
    edits.add(name("X_Real_IP"), value("c"));
    assert_eq!(
        (values(&edits, "server"), values(&edits, "x_real_ip")),
        (vec!["a".to_owned(), "b".to_owned()], vec!["c".to_owned()])
    );
    assert!(values(&edits, "X-Real-IP").is_empty() && values(&edits, "X_Real-IP").is_empty());
    let known = [name("Server"), name("Date")];
    assert!(edits.may_have_added(&known) && !edits.may_have_added(&known[1..]));
    assert!(!edits.is_withdrawn(known[1]) && edits.may_have_changed(&known) && !edits.may_have_changed(&known[1..]));
    edits.remove(&parsed().fields, HEAD, known[1]);
    assert!(edits.is_withdrawn(known[1]) && edits.may_have_changed(&known[1..]) && !edits.is_withdrawn(known[0]));
    edits.clear();
    assert!(!edits.is_withdrawn(known[1]));
}

#[test]
fn a_name_of_a_request_takes_its_lookalikes_along() {
    const HEAD: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\nX-A-b: 1\r\nX_A_B: 2\r\nx.a-B: 3\r\nX~a!b: 4\r\n\
        XaA-B: 5\r\nX-A-B-: 6\r\nXAB: 7\r\nX_Real-IP: 8\r\nx.real.ip: 9\r\n\r\n";
    let mut head = RequestHead::default();
    assert_eq!(head.advance(HEAD, &HeadLimits::default()), Ok(HeadProgress::Complete(HEAD.len())));
    let left = |edit: &dyn Fn(&mut Edits, &Fields)| {
        let mut edits = RequestEdits::default().fields;
        edit(&mut edits, &head.fields);
        let mut left = String::new();
        edits.each(&head.fields, HEAD, &mut |_, value| left.push_str(std::str::from_utf8(value).unwrap()));
        left
    };
    assert_eq!(left(&|edits, fields| edits.set(fields, HEAD, name("X-A-B"), value("x"))), "h56789x");
    assert_eq!(left(&|edits, fields| edits.set(fields, HEAD, name("x_a_b"), value("x"))), "h56789x");
    assert_eq!(left(&|edits, fields| edits.remove(fields, HEAD, name("X.A.B"))), "h56789");
    assert_eq!(left(&|edits, fields| edits.remove(fields, HEAD, name("X-Real-Ip"))), "h1234567");
    assert_eq!(left(&|edits, fields| edits.remove_lookalikes(fields, HEAD, name("X-A-B"))), "h156789");
    let both = [name("x-a-b"), name("x-real-ip")];
    assert_eq!(left(&|edits, fields| edits.remove_each(fields, HEAD, &both)), "h567");
    let line = OwnedLine::new(name("X-A-B"), value("x"));
    assert_eq!(left(&|edits, fields| edits.set_line(fields, HEAD, &line)), "h56789x");
    let of_response = |edits: &mut Edits, fields: &Fields| {
        *edits = Edits::default();
        edits.set(fields, HEAD, name("X-A-B"), value("x"));
    };
    assert_eq!(left(&of_response), "h23456789x");
}

#[test]
fn lines_are_taken_out_of_text() {
    let mut text = b"A: 1\r\nAb: 2\r\na: 3\r\n: 4\r\n".to_vec();
    remove_lines(&mut text, name("a"));
    assert_eq!(text, b"Ab: 2\r\n: 4\r\n");
    remove_lines(&mut text, name("ab"));
    assert_eq!(text, b": 4\r\n");
}

#[test]
fn what_is_added_is_bounded() {
    let (head, mut edits) = (parsed(), Edits::default());
    let long = vec![b'x'; ADDED_BYTES_MAX / 2];
    let long = FieldValue::new(&long).unwrap();
    edits.add(name("A"), long);
    assert!(!edits.is_too_large());
    for _ in 0..100 {
        edits.add(name("B"), long);
    }
    assert!(edits.is_too_large() && edits.lines().len() <= ADDED_BYTES_MAX);
    edits.add_gateway_line(name("C"), value("ours"));
    assert_eq!(edits.appended, b"C: ours\r\n");
    let mut over = Edits::default();
    over.overlay(&head.fields, HEAD, &edits);
    assert!(over.is_too_large(), "what is laid over another brings it along");
    edits.clear();
    assert!(!edits.is_too_large());
    let mut both = Edits::default();
    both.add(name("A"), long);
    edits.add(name("B"), long);
    both.overlay(&head.fields, HEAD, &edits);
    assert!(both.is_too_large());
}

#[test]
fn nothing_splits_a_message() {
    for bad in ["", "a b", "a:", "a\r\n", "\u{e4}", "a\0"] {
        assert_eq!(FieldName::new(bad.as_bytes()).err(), Some(EditError::Name), "{bad:?}");
    }
    for bad in ["Content-Length", "transfer-encoding", "CONNECTION", "te", "Upgrade"] {
        assert_eq!(FieldName::new(bad.as_bytes()).err(), Some(EditError::Framing), "{bad:?}");
    }
    let at_the_ends = ["a\r\n", "\r\na", "a\n", "\na", "a\r", "a \n ", "\r\n", "\n", "\0", "\ta\u{b}", "a\u{c}"];
    for bad in ["a\rb", "a\nb", "a\0b", "a\u{7f}", "a\r\nb: c"].into_iter().chain(at_the_ends) {
        assert_eq!(FieldValue::new(bad.as_bytes()).err(), Some(EditError::Value), "{bad:?}");
    }
    assert_eq!(value(" a\tb \u{e4} \t").bytes(), "a\tb \u{e4}".as_bytes());
    assert_eq!((value(" \t ").bytes(), value("").bytes()), (&b""[..], &b""[..]));
    let mut edits = RequestEdits::default();
    for bad in ["", "a", "*", "/a b", "/a\r\nb", "/\0", "/\u{7f}", "http://h/"] {
        assert_eq!(edits.set_target(bad.as_bytes()), Err(EditError::Target), "{bad:?}");
    }
    assert_eq!(edits.set_target(&[b'/'; crate::HEAD_BYTES_MAX + 1]), Err(EditError::TooLarge));
    for bad in ["", "GET /", "G\r\n"] {
        assert_eq!(edits.set_method(bad.as_bytes()), Err(EditError::Method), "{bad:?}");
    }
    assert!(edits.target().is_none() && edits.method().is_none());
    for bad in [0, 100, 101, 199, 600, 999] {
        assert_eq!(ResponseEdits::default().set_status(bad), Err(EditError::Status));
    }
}

#[test]
fn a_host_for_the_node_is_one() {
    let mut edits = RequestEdits::default();
    for host in ["a.example", "A-1_b.example:8080", "a.example.", "10.0.0.1:80", "[::1]:80", "localhost"] {
        assert_eq!(edits.set_host(host.as_bytes()), Ok(()), "{host}");
        assert_eq!(edits.host(), Some(host.as_bytes()));
    }
    let others =
        ["a b", "a, b", "a/b", "u@a", "a\tb", "a..b", ".", ":80", "a:x", "a:99999", "::1", "[::1", "\u{e4}.example"];
    for host in others {
        assert_eq!(edits.set_host(host.as_bytes()), Err(EditError::Host), "{host}");
        assert_eq!(edits.host(), Some(&b"localhost"[..]), "{host}: the one before stays");
    }
    assert_eq!((edits.set_host(b""), edits.host()), (Ok(()), None));
}
