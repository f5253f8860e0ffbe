//! Names of types: nouns, each for few types.
//!
//! A name that many types share, such as `State`, says nothing outside its file; a bare participle, such as `Kept`, says nothing
//! anywhere. Both lists of exceptions only get shorter: a new type with such a name is refused. Tests may use any name, and names of several words are not judged.

use crate::Result;
use crate::arrows::is_of_tests;
use crate::source::{shipped, tokens, word};
use crate::tree;
use proc_macro2::{TokenStream, TokenTree};
use std::collections::BTreeMap;

/// The most types of one name in the workspace.
const SAME_MAX: usize = 3;

/// Names with their number of types.
type Exceptions = [(&'static str, usize)];

/// Names that more types have.
const COMMON: &Exceptions = &[
    ("Answer", 7),
    ("Entry", 4),
    ("Figures", 4),
    ("Measure", 4),
    ("Phase", 5),
    ("Plan", 5),
    ("Process", 4),
    ("Reader", 4),
    ("Request", 4),
    ("State", 4),
    ("Verdict", 4),
];

/// Participles that still name types.
const PARTICIPLES: &Exceptions = &[("Applied", 1), ("Running", 1), ("Sent", 1)];

/// Participles that do not end in `ed` or `ing`.
const IRREGULAR: &[&str] = &[
    "Begun", "Bound", "Broken", "Built", "Chosen", "Cut", "Done", "Drawn", "Driven", "Found", "Given", "Gone", "Grown",
    "Heard", "Held", "Hidden", "Kept", "Known", "Led", "Left", "Lost", "Made", "Met", "Paid", "Put", "Read", "Said",
    "Seen", "Sent", "Shown", "Sought", "Spent", "Split", "Taken", "Thought", "Told", "Torn", "Written",
];

/// Nouns that end like participles.
const NOUNS: &[&str] = &[
    "Embed", "Encoding", "Filing", "Finding", "Framing", "Keyring", "Mapping", "Meaning", "Mocking", "Need", "Pacing",
    "Ping", "Reading", "Ring", "Seed", "Setting", "Signing", "Speed", "String", "Thing", "Timing",
];

/// Where each name is declared: paths with lines.
type Declarations = BTreeMap<String, Vec<String>>;

/// Checks all sources; reports every violation.
pub(crate) fn check() -> Result {
    let mut declared = Declarations::new();
    for file in tree::files()? {
        if file.is_rust() && !is_of_tests(&file.path) && file.path.contains("/src/") {
            let types = types(file.text().unwrap_or_default()).map_err(|error| format!("{}: {error}", file.path))?;
            for (line, name) in types {
                declared.entry(name).or_default().push(format!("{}:{line}", file.path));
            }
        }
    }
    let wrong = violations(&declared, COMMON, PARTICIPLES);
    for (name, count, listed) in shorter(&declared, COMMON).chain(shorter(&declared, PARTICIPLES)) {
        println!("{count} of {listed} types are still called `{name}`: shorten the list in xtask/src/type_names.rs");
    }
    if wrong.is_empty() {
        println!(
            "{} names of types; exceptions: {} common ones, {} participles",
            declared.len(),
            COMMON.len(),
            PARTICIPLES.len()
        );
        return Ok(());
    }
    Err(wrong.join("\n").into())
}

fn violations(declared: &Declarations, common: &Exceptions, participles: &Exceptions) -> Vec<String> {
    let mut wrong = Vec::new();
    let allowed = |list: &Exceptions, name: &str| list.iter().find(|(have, _)| *have == name).map(|(_, count)| *count);
    for (name, places) in declared {
        let at = places.join(", ");
        let same_max = allowed(common, name).unwrap_or(SAME_MAX);
        if places.len() > same_max {
            wrong.push(format!("{} types are called `{name}`, {same_max} at most; say which: {at}", places.len()));
        }
        if is_participle(name) && places.len() > allowed(participles, name).unwrap_or(0) {
            wrong.push(format!("`{name}` is a participle; name the thing: {at}"));
        }
    }
    wrong
}

/// Entries of a list that fewer types need, with the number that does.
fn shorter<'a>(
    declared: &'a Declarations,
    list: &'a Exceptions,
) -> impl Iterator<Item = (&'static str, usize, usize)> + 'a {
    let count = |name: &str| declared.get(name).map_or(0, Vec::len);
    list.iter().map(move |(name, listed)| (*name, count(name), *listed)).filter(|(_, count, listed)| count < listed)
}

/// Whether a name is one word that is a participle.
fn is_participle(name: &str) -> bool {
    let is_one_word = name.chars().filter(char::is_ascii_uppercase).count() == 1;
    let ends_like_one = name.ends_with("ed") || name.ends_with("ing");
    is_one_word && !NOUNS.contains(&name) && (ends_like_one || IRREGULAR.contains(&name))
}

/// The types that a file declares outside its tests, with their lines. Names of other types (`type A = B`) are not types.
fn types(text: &str) -> Result<Vec<(usize, String)>> {
    let mut found = Vec::new();
    collect(tokens(text)?, &mut found);
    Ok(found)
}

fn collect(stream: TokenStream, found: &mut Vec<(usize, String)>) {
    let tokens = shipped(stream);
    for (at, token) in tokens.iter().enumerate() {
        let declares = word(token).is_some_and(|word| matches!(word.as_str(), "struct" | "enum" | "trait" | "union"));
        if declares && let Some(TokenTree::Ident(name)) = tokens.get(at + 1) {
            found.push((name.span().start().line, name.to_string()));
        }
        if let TokenTree::Group(group) = token {
            collect(group.stream(), found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[(usize, &str)]) {
        let found = types(text).unwrap();
        let found: Vec<(usize, &str)> = found.iter().map(|(line, name)| (*line, name.as_str())).collect();
        assert_eq!(found, expected, "{text}");
    }

    fn declared(names: &[(&str, usize)]) -> Declarations {
        names.iter().map(|(name, count)| ((*name).to_owned(), vec!["a.rs:1".to_owned(); *count])).collect()
    }

    #[test]
    fn types_are_found_wherever_they_are_declared() {
        check(
            "pub struct A;\npub(crate) enum B { C }\ntrait D {}\nunion E { f: u8 }",
            &[(1, "A"), (2, "B"), (3, "D"), (4, "E")],
        );
        check("mod a { fn b() {\n struct C; } }\nkeys! { struct D { e: u8 } }", &[(2, "C"), (3, "D")]);
        check("impl A for B { type C = D; }\ntype E = F;\n// struct G;\nconst H: &str = \"struct I\";", &[]);
        check("#[cfg(test)]\nmod tests { struct A; }\nmacro_rules! a { () => { struct $name; } }", &[]);
    }

    #[test]
    fn a_name_has_few_types() {
        assert!(violations(&declared(&[("Table", 3)]), &[], &[]).is_empty());
        assert_eq!(violations(&declared(&[("Table", 4)]), &[], &[]).len(), 1);
        assert!(violations(&declared(&[("Table", 4)]), &[("Table", 4)], &[]).is_empty());
    }

    #[test]
    fn participles_are_no_names() {
        for name in ["Kept", "Ended", "Waiting"] {
            assert_eq!(violations(&declared(&[(name, 1)]), &[], &[]).len(), 1, "{name}");
            assert!(violations(&declared(&[(name, 1)]), &[], &[(name, 1)]).is_empty(), "{name}");
        }
        assert!(violations(&declared(&[("Mapping", 1), ("RetainedConfig", 1), ("Table", 1)]), &[], &[]).is_empty());
    }

    #[test]
    fn lists_only_get_shorter() {
        const LIST: &Exceptions = &[("Table", 4), ("Kept", 2)];
        let left = declared(&[("Table", 4), ("Kept", 1)]);
        assert_eq!(shorter(&left, LIST).collect::<Vec<_>>(), [("Kept", 1, 2)]);
        assert!(violations(&left, LIST, LIST).is_empty());
        assert_eq!(violations(&declared(&[("Table", 5), ("Kept", 3)]), LIST, LIST).len(), 3);
    }
}
