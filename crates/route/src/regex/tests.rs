//! Properties of every regex: however it is taken apart, restricted or combined with others, it matches the same
//! values as with the `regex` crate.

use super::group::{AutomatonBounds, BOUNDS};
use super::{Pattern, REGEX_TEXT_BYTES_MAX, RegexError, RegexGroup, RegexMemory, RegexWork, TailEngine};
use ::regex::bytes::RegexBuilder;
use proptest::prelude::*;

#[test]
fn errors_have_a_reason_and_a_place() {
    let check = |pattern: &str, reason: &str, span: Option<&str>| {
        let error = Pattern::unicode(pattern).unwrap_err();
        assert_eq!(error.to_string(), reason, "{pattern}");
        assert_eq!(error.span().map(|span| &pattern[span]), span, "{pattern}");
    };
    check("ab(c", "unclosed group", Some("("));
    check("a(?=b)", "look-around, including look-ahead and look-behind, is not supported", Some("(?="));
    check(r"(a)\1", "backreferences are not supported", Some(r"\1"));
    check("é[z-a]", "invalid character class range, the start must be <= the end", Some("z-a"));
    check(r"a\p{Nope}", "Unicode property not found", Some(r"\p{Nope}"));
    check("a**{3,2}", "invalid repetition count range, the start must be <= the end", Some("{3,2}"));
    check("(a{1000}){1000}", "the regex needs more than 1048576 bytes; write fewer or smaller repetitions", None);
    check(&"a".repeat(REGEX_TEXT_BYTES_MAX + 1), "a regex has at most 16384 bytes; write several", None);
    let nested = format!("{}a{}", "(".repeat(8000), ")".repeat(8000));
    assert!(matches!(Pattern::unicode(&nested), Err(RegexError::Syntax { .. })));
}

#[test]
fn literals_are_split_off() {
    let check = |pattern: &str, prefix: Option<&str>, is_tail: bool, literal: Option<&str>| {
        let pattern = Pattern::unicode(pattern).unwrap();
        let split = pattern.anchored_prefix().map(|(prefix, tail)| (prefix, tail.is_some()));
        assert_eq!(split, prefix.map(|prefix| (prefix.as_bytes(), is_tail)), "{}", pattern.source());
        assert_eq!(pattern.anchored_literal(), literal.map(str::as_bytes), "{}", pattern.source());
    };
    check(r"^/svc-7/v\d+$", Some("/svc-7/v"), true, None);
    check(r"\A/a\.b\-c/x+", Some("/a.b-c/"), true, None);
    check("^/a/b$", Some("/a/b"), true, Some("/a/b"));
    check(r"^/é\z", Some("/é"), true, Some("/é"));
    check("^$", None, false, Some(""));
    check("^/a/b", Some("/a/b"), false, None);
    check("^/a.*", Some("/a"), false, None);
    check("^/a(/.*)?", Some("/a"), false, None);
    check("^/a(?:b|c*|d)", Some("/a"), false, None);
    check("^/a.*$", Some("/a"), true, None);
    check("^/abc?d", Some("/ab"), true, None);
    check("^/ba{0}a", Some("/b"), true, None);
    check("^/", Some("/"), false, None);
    check("^/$", Some("/"), true, Some("/"));
    check("^/[ab]", None, false, None);
    check("^/a(?i)b", Some("/a"), true, None);
    check("(^/a/[bc])d", Some("/a/"), true, None);
    check("^(?<all>/a/(b)c)$", Some("/a/bc"), true, Some("/a/bc"));
    check("^/aX|^/aY", None, false, None);
    check("(?i)^/A", None, false, None);
    check("(?i)^/1/A", Some("/1/"), true, None);
    check("^(?:/a|/b)", None, false, None);
    check("^/a|b", None, false, None);
    check("(?m)^/a", None, false, None);
    check(r"^\d", None, false, None);
    check("^", None, false, None);
    check("/a", None, false, None);
    check("(^)*/a", None, false, None);
    check("^?/a", None, false, None);
}

#[test]
fn equal_tails_are_shared_whatever_stands_before() {
    let tail = |pattern: &str| Pattern::unicode(pattern).unwrap().anchored_prefix().unwrap().1.cloned();
    assert_eq!(tail(r"^/svc-1/v\d+$"), tail(r"^/svc-23/w\d+$"));
    assert_eq!(tail(r"^/svc-1/(?<v>v)\d+$"), tail(r"^/svc-23/(?<v>v)\d+$"));
    assert_ne!(tail(r"^/svc-1/v\d+$"), tail(r"^/svc-1/v\d+"));
}

#[test]
fn captures_are_found_by_number_and_name() {
    let pattern = Pattern::unicode(r"^/(?<shop>\w+)(/x)?/(\d+)").unwrap();
    assert_eq!(pattern.names(), ["shop".into()]);
    let mut seen = Vec::new();
    let found = pattern.captures(b"/pets/17/all", &mut |number, name, value| {
        seen.push((number, name.map(str::to_owned), value.to_vec()));
    });
    assert!(found);
    let group = |number, name: Option<&str>, value: &str| (number, name.map(str::to_owned), value.as_bytes().to_vec());
    assert_eq!(seen, [group(0, None, "/pets/17"), group(1, Some("shop"), "pets"), group(3, None, "17")]);
    assert!(!pattern.captures(b"/pets", &mut |_, _, _| panic!("nothing matches")));
}

#[test]
fn a_memory_serves_one_group_after_another() {
    let patterns = |texts: &[&str]| texts.iter().map(|text| Pattern::unicode(text).unwrap()).collect::<Vec<_>>();
    let first = RegexGroup::compile(&patterns(&["a", "b", "^c"]), false);
    let second = RegexGroup::compile(&patterns(&["b"]), false);
    let mut memory = RegexMemory::default();
    let check = |group: &RegexGroup, values: &[&str], any: &[u32], all: &[u32], memory: &mut RegexMemory| {
        group.search(values.iter().map(|value| value.as_bytes()), memory, &RegexWork::default());
        let mut hits = memory.hits_any().to_vec();
        hits.sort_unstable();
        assert_eq!(hits, any);
        assert_eq!(hits.into_iter().filter(|hit| memory.all(*hit as usize)).collect::<Vec<_>>(), all);
    };
    check(&first, &["ab", "cb"], &[0, 1, 2], &[1], &mut memory);
    check(&first, &[], &[], &[], &mut memory);
    check(&second, &["ab", "x"], &[0], &[], &mut memory);
    check(&first, &["c"], &[2], &[2], &mut memory);
}

#[test]
fn a_warm_search_allocates_nothing() {
    let patterns: Vec<_> = (0..300).map(|n| Pattern::unicode(&format!("/item-[0-9]+-{n}$|x{n}.*y")).unwrap()).collect();
    let group = RegexGroup::compile(&patterns, true);
    let mut memory = RegexMemory::default();
    let values: Vec<String> = (0..50).map(|n| format!("/shop/item-{n}-{n}")).collect();
    let mut search = || {
        for (n, value) in values.iter().enumerate() {
            group.search(std::iter::once(value.as_bytes()), &mut memory, &RegexWork::default());
            assert!(memory.any(n));
        }
    };
    search();
    assert_eq!(allocation_counter::measure(search).count_total, 0);
}

#[test]
fn large_groups_stay_within_their_bounds() {
    // Each needs hundreds of states for Unicode's digits and letters, at both ends of a run of anything.
    let patterns: Vec<_> =
        (0..120).map(|n| Pattern::unicode(&format!(r"\w{{2}}k{n}\d+.*\w{{4}}-{n}$")).unwrap()).collect();
    let group = RegexGroup::compile(&patterns, false);
    let mut memory = RegexMemory::default();
    for round in 0..60 {
        let value = format!("äök{}77 {} ßxyz-{}", round, "nkä".repeat(round), round);
        group.search(std::iter::once(value.as_bytes()), &mut memory, &RegexWork::default());
        assert!(memory.any(round));
        assert!(memory.memory_bytes() < 2 * BOUNDS.cache_bytes_max, "{}", memory.memory_bytes());
    }
}

/// A regex with any kind of part, for which short values are likely to match.
fn pattern() -> impl Strategy<Value = String> {
    let atom = prop_oneof![
        6 => prop::sample::select(vec!["a", "b", "/", "é", "ab", "A", "1", "-", r"\."]).prop_map(str::to_owned),
        3 => prop::sample::select(vec![".", r"\d", r"\w", r"\W", r"\S", "[ab]", "[^a]", "[à-ü]", r"\pL", "[[:alpha:]]"])
            .prop_map(str::to_owned),
        3 => prop::sample::select(vec!["^", "$", r"\b", r"\B", r"\A", r"\z", r"\b{start}", r"\b{end}", r"\b{end-half}"])
            .prop_map(str::to_owned),
        1 => prop::sample::select(vec!["(?i)", "(?m)", "(?s)", "(?R)", "(?-u:\\w)", "(?-u:\\b)", "(?-u:\\xFF)", "(?U)"])
            .prop_map(str::to_owned),
        1 => Just(String::new()),
    ];
    let whole = atom.prop_recursive(4, 24, 6, |part| {
        prop_oneof![
            6 => prop::collection::vec(part.clone(), 1..6).prop_map(|parts| parts.concat()),
            2 => (part.clone(), part.clone()).prop_map(|(a, b)| format!("(?:{a}|{b})")),
            1 => part.clone().prop_map(|part| format!("({part})")),
            1 => part.clone().prop_map(|part| format!("(?i:{part})")),
            2 => (part, prop::sample::select(vec!["*", "+", "?", "{2}", "{0}", "{0,2}", "{1,}", "*?", "+?"]))
                .prop_map(|(part, times)| format!("(?:{part}){times}")),
        ]
    });
    (prop::sample::select(vec!["", "^", "^", "^/a", "^ab", r"\A", "(^a", "(?i)^a"]), whole).prop_map(
        |(start, whole)| {
            let close = if start.starts_with("(^") { ")" } else { "" };
            format!("{start}{whole}{close}")
        },
    )
}

fn value(ascii: bool) -> impl Strategy<Value = Vec<u8>> {
    let texts: &[&[u8]] =
        &[b"a", b"b", b"/", b"A", b"1", b"-", b"\n", b" ", b".", b"/a", "é".as_bytes(), b"\xff", "À".as_bytes()];
    let texts = if ascii { &texts[..10] } else { texts };
    prop::collection::vec(prop::sample::select(texts.to_vec()), 0..7).prop_map(|parts| parts.concat())
}

fn parse(text: &str, unicode: bool, any_case: bool) -> Option<Pattern> {
    if unicode { Pattern::unicode(text).ok() } else { Pattern::ascii(text, any_case).ok() }
}

/// The library's result; `None` where it refuses the regex.
fn expected(text: &str, unicode: bool, any_case: bool, value: &[u8]) -> Option<bool> {
    let options = stillgate_pcre::Options { translates_end: true, ..Default::default() };
    let text = if unicode { text.into() } else { stillgate_pcre::translate(text, options).ok()? };
    let regex = RegexBuilder::new(&text).unicode(unicode).case_insensitive(any_case && !unicode).build().ok()?;
    Some(regex.is_match(value))
}

/// The result by the literal and the tail.
fn by_parts(pattern: &Pattern, ascii: bool, value: &[u8]) -> Option<bool> {
    if let Some(literal) = pattern.anchored_literal() {
        assert_eq!(pattern.is_match(value), value == literal, "{}", pattern.source());
    }
    let (prefix, tail) = pattern.anchored_prefix()?;
    // A tail that does not stay small is left to the group of the whole regex.
    let goes_on = |tail| {
        TailEngine::compile(tail, ascii)
            .map_or_else(|| pattern.is_match(value), |engine| engine.is_match(value, prefix.len()))
    };
    Some(value.starts_with(prefix) && tail.is_none_or(goes_on))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn parts_say_what_the_whole_says(
        text in pattern(), unicode: bool, any_case: bool, values in prop::collection::vec(value(false), 1..6),
    ) {
        let parsed = parse(&text, unicode, any_case);
        for value in values {
            let expected = expected(&text, unicode, any_case, &value);
            prop_assert_eq!(parsed.as_ref().map(|pattern| pattern.is_match(&value)), expected);
            if let Some(parts) = parsed.as_ref().and_then(|pattern| by_parts(pattern, false, &value)) {
                prop_assert_eq!(Some(parts), expected, "{:?}", value);
            }
        }
    }

    #[test]
    fn ascii_forms_say_the_same_of_ascii(
        text in pattern(), unicode: bool, any_case: bool, values in prop::collection::vec(value(true), 1..6),
    ) {
        let Some(pattern) = parse(&text, unicode, any_case) else {
            return Ok(());
        };
        let group = RegexGroup::compile(std::slice::from_ref(&pattern), true);
        let mut memory = RegexMemory::default();
        for value in values {
            let expected = pattern.is_match(&value);
            if let Some(parts) = by_parts(&pattern, true, &value) {
                prop_assert_eq!(parts, expected, "{:?}", value);
            }
            group.search(std::iter::once(&*value), &mut memory, &RegexWork::default());
            prop_assert_eq!(memory.any(0), expected, "{:?}", value);
        }
    }

    #[test]
    fn a_group_says_what_each_of_it_says(
        texts in prop::collection::vec((pattern(), any::<bool>(), any::<bool>()), 1..12),
        searches in prop::collection::vec(prop::collection::vec(value(false), 0..4), 1..6),
        bounds in bounds(),
    ) {
        let patterns: Vec<_> = texts.iter().filter_map(|(text, unicode, case)| parse(text, *unicode, *case)).collect();
        check_group(bounds, &patterns, &searches)?;
    }

    #[test]
    fn patterns_with_equal_beginnings_are_distinguished(
        texts in prop::collection::vec(
            r"(\^|\(\?i\))?[ab]{0,3}(b|\^|\[ab\]|\\b|c\*|c\+|d|\$|\[a-c\]d)[cd]{0,2}\$?", 2..20),
        values in prop::collection::vec("[abcdB]{0,6}", 1..6),
        bounds in bounds(),
    ) {
        let patterns: Vec<_> = texts.iter().filter_map(|text| parse(text, true, false)).collect();
        let searches: Vec<_> = values.into_iter().map(|value| vec![value.into_bytes()]).collect();
        check_group(bounds, &patterns, &searches)?;
    }
}

/// The bounds in use, and bounds with which automata are not supported whole, groups are split, or nothing fits.
fn bounds() -> impl Strategy<Value = AutomatonBounds> {
    prop_oneof![
        Just(BOUNDS),
        Just(AutomatonBounds { table_nfa_bytes_max: 0, ..BOUNDS }),
        Just(AutomatonBounds { table_nfa_bytes_max: 0, nfa_bytes_max: 4000, ..BOUNDS }),
        Just(AutomatonBounds { table_nfa_bytes_max: 0, cache_bytes_max: 30_000, ..BOUNDS }),
        Just(AutomatonBounds { nfa_bytes_max: 0, ..BOUNDS }),
    ]
}

fn check_group(bounds: AutomatonBounds, patterns: &[Pattern], searches: &[Vec<Vec<u8>>]) -> Result<(), TestCaseError> {
    let group = RegexGroup::compile_within(bounds, patterns, false);
    let mut memory = RegexMemory::default();
    for values in searches {
        group.search(values.iter().map(|value| &**value), &mut memory, &RegexWork::default());
        for (index, pattern) in patterns.iter().enumerate() {
            let any = values.iter().any(|value| pattern.is_match(value));
            let all = !values.is_empty() && values.iter().all(|value| pattern.is_match(value));
            let found = (memory.any(index), memory.all(index));
            prop_assert_eq!(found, (any, all), "{}: {:?}", pattern.source(), values);
            prop_assert_eq!(memory.hits_any().contains(&(index as u32)), any);
        }
    }
    Ok(())
}
