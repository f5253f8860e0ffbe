//! Compares rule sets with the `regex` crate, and measures their cost.

use super::*;
use proptest::prelude::*;
use std::time::{Duration, Instant};

fn set(rules: &[&str]) -> RuleSet {
    compile(rules).unwrap()
}

fn compile(rules: &[&str]) -> Result<RuleSet, RuleError> {
    RuleSet::compile(&texts(rules), CompileBudget::RESOURCE)
}

fn texts(rules: &[&str]) -> Vec<String> {
    rules.iter().map(ToString::to_string).collect()
}

fn matches(set: &RuleSet, text: &[u8]) -> bool {
    set.search(std::iter::once(text), usize::MAX).unwrap()
}

#[test]
fn needed_literals() {
    let check = |rule: &str, expected: &[&str]| {
        let found = required_literals(&parse(rule, Flags::default()).unwrap()).unwrap_or_default();
        let found: Vec<_> = found.iter().map(|literal| std::str::from_utf8(literal).unwrap()).collect();
        assert_eq!(found, expected, "{rule}");
    };
    check("root.exe", &["root"]);
    check("^/Internal/.*[0-9]+x", &["/internal/"]);
    check("(?i)/Admin", &["/admin"]);
    check("a.*bcd.*ef", &["bcd"]);
    check("\\.(?:php|aspx)$", &["php", "aspx"]);
    check("x(abc)+y", &["abc"]);
    check("(?:abc)*[0-9]", &[]);
    check("abc|[0-9]+", &[]);
    check(".*", &[]);
    check("a.b", &[]);
    check("/a-very-long-literal-indeed/x", &["teral-indeed/x"].map(|_| "literal-indeed/x"));
    check("union(?-u:[\\x00-\\xff])+select", &["select"]);
    check("foo\\bbar|^$", &[]);
    check("fo\\bba", &["foba"]);
}

const RULES: [&str; 20] = [
    "root.exe",
    "root.m+",
    "^/internal/",
    "(?i)cmd\\.exe$",
    "a.*b.*c",
    "[0-9]{3}",
    "x+y?z",
    "\\.(?:php|aspx)(?:\\?|$)",
    "(?i)select.+from",
    "é",
    "[^a-z/]{2}",
    "\\bid\\b",
    "q{2,4}",
    "(?:ab|ba){2}",
    "^$",
    "/%2e",
    "\\?.*=.*<",
    "aa$",
    "[ab]c[ab]",
    "b|cc",
];

proptest! {
    #[test]
    fn a_set_matches_where_one_of_its_rules_does(
        picked in proptest::collection::vec(0..RULES.len(), 1..8), text in "[abcxyzqio0-9/.?=%<é RrO]{0,40}",
        word in 0usize..8,
    ) {
        let words = ["", "root.exe", "CMD.exe", "select * from", "/internal/", ".aspx", "root.mm", "\u{e9}"];
        let text = format!("{}{text}", words[word]);
        let rules: Vec<&str> = picked.iter().map(|rule| RULES[*rule]).collect();
        let of_crate = |rule: &&str| {
            regex::bytes::RegexBuilder::new(rule).unicode(false).build().unwrap().is_match(text.as_bytes())
        };
        prop_assert_eq!(matches(&set(&rules), text.as_bytes()), rules.iter().any(of_crate), "{:?} {:?}", rules, text);
    }
}

#[test]
fn bytes_are_not_utf8() {
    let rules = set(&["/\\xff", "(?i)Stra\u{df}e"]);
    assert!(matches(&rules, b"/a/\xff\xfe"));
    assert!(matches(&rules, "STRA\u{df}E".as_bytes()));
    assert!(!matches(&rules, b"/a/\xfe"));
    assert!(!matches(&set(&["[^a]{3}"]), b"a\xff\xfe"));
    assert!(matches(&set(&["[^a]{3}"]), b"\x00\xff\xfe"));
}

#[test]
fn what_no_dfa_fits_is_matched_slowly_or_refused() {
    let explodes = "a[ab]{21}c";
    let rules = set(&[explodes, "plain"]);
    let text = |before: usize| format!("--b{}c--", "ab".repeat(before)).into_bytes();
    assert!(matches(&rules, &text(11)));
    assert!(!matches(&rules, &text(10)));
    // Its states are soon known, so a worker does it.
    let long = b"ab".repeat(4096);
    assert_eq!(rules.search(std::iter::once(&long[..]), WORKER_STEPS_MAX), Ok(false));
    // Here each byte leads to another state.
    let hostile = random(b"ab", 8192);
    assert_eq!(rules.search(std::iter::once(&hostile[..]), WORKER_STEPS_MAX), Err(TooLong));
    assert!(!matches(&rules, &hostile));
    let refused = compile(&["fine", "(?:a[ab]{800}c){3}", "fine too"]).err().unwrap();
    assert_eq!((refused.rule, refused.fault.message.contains("takes too much time")), (1, true), "{refused:?}");
    let refused = compile(&["(?:(?:(?:a{50}){50}){50}){50}"]).err().unwrap();
    assert_eq!((refused.rule, refused.fault.message.contains("takes too much memory")), (0, true), "{refused:?}");
}

/// The queue of the plugin's threads is for all clients.
#[test]
fn what_takes_too_long_elsewhere_is_given_up() {
    let rules = set(&["[ab].{0,900}[cd]x"]);
    let search = |text: &[u8]| rules.search(std::iter::once(text), OFFLOADED_STEPS_MAX);
    let hostile = [random(b"abcdefgh", 7000), b"-x".to_vec()].concat();
    assert_eq!(search(&hostile), Err(TooLong));
    assert_eq!(search(b"/an/ordinary/path/of/some/length?with=a&query=and+a+long+text+that+ends+with+x"), Ok(false));
    assert_eq!(search(b"a and dx"), Ok(true));
}

/// Letters that repeat in no pattern.
fn random(letters: &[u8], length: usize) -> Vec<u8> {
    let mut state = 5_u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        letters[(state >> 40) as usize % letters.len()]
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// 1,000 rules of which each has gaps, and a text of 8 KiB that nearly matches all of them: the worst known case.
#[test]
fn what_a_hostile_text_takes_is_bounded_and_leaves_the_worker() {
    let rules: Vec<String> = (0..1000).map(|number| format!("k{number}a.*k{number}b.*k{number}c")).collect();
    let rules = set(&rules.iter().map(String::as_str).collect::<Vec<_>>());
    let mut text = b"/".to_vec();
    for number in (0..1000).cycle().take_while({
        let mut bytes = 0;
        move |_| {
            bytes += 5;
            bytes < 8192
        }
    }) {
        text.extend_from_slice(format!("k{number}a").as_bytes());
    }
    text.truncate(8192);
    let began = Instant::now();
    assert_eq!(rules.search(std::iter::once(&text[..]), WORKER_STEPS_MAX), Err(TooLong));
    let on_worker = began.elapsed();
    assert!(!matches(&rules, &text));
    println!("worker {on_worker:?}, all of it {:?}", began.elapsed() - on_worker);
    // Debug builds and busy machines take far longer than the measured time: this only catches explosions.
    assert!(began.elapsed() < Duration::from_secs(600));
    assert!(!matches(&rules, b"/usual/path?with=arguments"));
}

/// Rules of which each needs a large DFA, or none that fits: the whole set is refused before it takes seconds.
#[test]
fn what_compiling_takes_is_bounded_for_all_rules_together() {
    for rule in [r"(\w{40}){10}", r"(\w{40}){40}0", "a[ab]{20}c", "(.*a){12}x{20}"] {
        let rules: Vec<String> = (0..5000).map(|number| format!("{rule}{number}")).collect();
        let refused = RuleSet::compile(&rules, CompileBudget::RESOURCE).err().expect(rule);
        assert!(refused.rule < 3000, "{rule}: {refused:?}");
    }
    let simple: Vec<String> = (0..2000).map(|number| format!("(?i)evil-bot-{number}/[0-9.]+")).collect();
    let set = RuleSet::compile(&simple, CompileBudget::RESOURCE).unwrap();
    assert!(matches(&set, b"Mozilla (Evil-Bot-1999/1.0)"));
    assert!(!matches(&set, b"Mozilla (Evil-Bot-2000/1.0)"));
}

#[test]
fn resources_with_the_same_rules_share_a_set() {
    let (budget, rules) = (CompileBudget::default(), texts(&["shared-[0-9]+", "by.*two"]));
    let of = |rules: &[String]| RuleSet::of(rules, &budget).unwrap();
    let (first, second, other) = (of(&rules), of(&rules), of(&rules[..1]));
    assert!(Arc::ptr_eq(&first, &second) && !Arc::ptr_eq(&first, &other));
    assert_eq!(CompileBudget::RESOURCE - budget.remaining(), 2 * first.cost + other.cost, "both pay");
}

/// Sets that nothing uses are forgotten, but for the last ones.
#[test]
fn few_sets_are_kept_without_use() {
    let mut shared = SharedSets::default();
    let rules: Vec<Vec<String>> = (0..100).map(|number| vec![format!("rule-{number}")]).collect();
    for rules in &rules {
        shared.add(rules, &Arc::new(RuleSet::compile(rules, CompileBudget::RESOURCE).unwrap()));
    }
    let kept: Vec<usize> = (0..100).filter(|number| shared.find(&rules[*number]).is_some()).collect();
    assert_eq!(kept, [96, 97, 98, 99]);
    assert!(shared.in_use.len() < 40, "{}", shared.in_use.len());
}
