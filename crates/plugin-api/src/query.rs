//! Query arguments as APISIX reads them: names and values are percent-decoded, `+` is a blank, and invalid escapes are
//! kept.

use stillgate_route::path::target_path;

/// The arguments with a name in a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument<'a> {
    /// No argument of that name.
    Absent,
    /// Exactly one, with this undecoded value; [`decoded`] decodes it.
    One(&'a [u8]),
    /// One without `=`, or several: not a text that a credential could equal.
    Other,
}

/// The argument with a name, which is given decoded.
pub fn argument<'a>(query: &'a [u8], name: &[u8]) -> Argument<'a> {
    let mut found = Argument::Absent;
    for pair in pairs(query).filter(|pair| has_name(pair, name)) {
        found = match (found, value_of(pair)) {
            (Argument::Absent, Some(value)) => Argument::One(value),
            _ => Argument::Other,
        };
    }
    found
}

/// The raw value of the first argument with this decoded name. The inner `None`: it has no `=`.
pub(crate) fn first<'a>(query: &'a [u8], name: &[u8]) -> Option<Option<&'a [u8]>> {
    pairs(query).find(|pair| has_name(pair, name)).map(value_of)
}

/// The value of the first argument with a name as nginx has it: not decoded, and the name in any case. One without `=` does not
/// count.
pub fn raw_argument<'a>(query: &'a [u8], name: &str) -> Option<&'a [u8]> {
    query.split(|byte| *byte == b'&').find_map(|pair| {
        let (found, value) = pair.split_at_checked(name.len())?;
        value.strip_prefix(b"=").filter(|_| found.eq_ignore_ascii_case(name.as_bytes()))
    })
}

/// The value of a cookie in one line as nginx has it: the name in any case, after `;` or `,`, with blanks around `=`; the value
/// ends at `;`.
pub fn raw_cookie<'a>(line: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let without_blanks = |text: &'a [u8]| {
        let blanks = text.iter().take_while(|byte| **byte == b' ').count();
        &text[blanks..]
    };
    let mut rest = line;
    loop {
        rest = without_blanks(rest);
        if let Some((found, behind)) = rest.split_at_checked(name.len())
            && found.eq_ignore_ascii_case(name.as_bytes())
            && let Some(value) = without_blanks(behind).strip_prefix(b"=")
        {
            return without_blanks(value).split(|byte| *byte == b';').next();
        }
        let end = rest.iter().position(|byte| matches!(byte, b';' | b','))?;
        rest = &rest[end + 1..];
    }
}

/// Writes path and query without the arguments of a name. The others are unchanged.
pub fn write_without(target: &[u8], name: &[u8], out: &mut Vec<u8>) {
    let (path, query) = target_path(target);
    out.extend_from_slice(path);
    out.push(b'?');
    let begin = out.len();
    write_query_without(query.unwrap_or_default(), name, out);
    if out.len() == begin {
        out.pop();
    }
}

/// Like [`write_without`], for a query alone.
pub fn write_query_without(query: &[u8], name: &[u8], out: &mut Vec<u8>) {
    for (index, pair) in pairs(query).filter(|pair| !has_name(pair, name)).enumerate() {
        if index > 0 {
            out.push(b'&');
        }
        out.extend_from_slice(pair);
    }
}

/// Decodes a name or value.
pub fn decoded(text: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (first, behind) = rest.split_first()?;
        rest = behind;
        Some(match (first, behind) {
            (b'+', _) => b' ',
            (b'%', [high, low, behind @ ..]) => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => {
                    rest = behind;
                    high << 4 | low
                }
                _ => b'%',
            },
            (plain, _) => *plain,
        })
    })
}

fn pairs(query: &[u8]) -> impl Iterator<Item = &[u8]> {
    query.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty())
}

fn has_name(pair: &[u8], name: &[u8]) -> bool {
    let end = memchr::memchr(b'=', pair).unwrap_or(pair.len());
    decoded(&pair[..end]).eq(name.iter().copied())
}

fn value_of(pair: &[u8]) -> Option<&[u8]> {
    memchr::memchr(b'=', pair).map(|at| &pair[at + 1..])
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded_and_broken_ones_stay() {
        let check = |text: &str, expected: &str| {
            assert_eq!(decoded(text.as_bytes()).collect::<Vec<u8>>(), expected.as_bytes(), "{text}");
        };
        check("", "");
        check("a%20b+c", "a b c");
        check("%c3%A4", "ä");
        check("%", "%");
        check("%4", "%4");
        check("%zz%%41", "%zz%A");
        check("%2541", "%41");
    }

    #[test]
    fn arguments_are_found_by_their_decoded_names() {
        let check = |query: &'static str, expected: Argument<'_>| {
            assert_eq!(argument(query.as_bytes(), b"key"), expected, "{query}");
        };
        check("", Argument::Absent);
        check("keys=1&ke=2", Argument::Absent);
        check("a=1&key=x%41", Argument::One(b"x%41"));
        check("%6bey=1", Argument::One(b"1"));
        check("key=", Argument::One(b""));
        check("key=a=b", Argument::One(b"a=b"));
        check("key", Argument::Other);
        check("key=1&%6Bey=2", Argument::Other);
    }

    #[test]
    fn raw_arguments_and_cookies_are_nginxs() {
        let argument = |query: &str, name: &str, expected: Option<&str>| {
            let found = raw_argument(query.as_bytes(), name);
            assert_eq!(found, expected.map(str::as_bytes), "{query} {name}");
        };
        argument("Admin=1&admin=2", "admin", Some("1"));
        argument("a=%2e%2E+x&b", "a", Some("%2e%2E+x"));
        argument("xa=1&&a=b=c", "a", Some("b=c"));
        argument("a=", "a", Some(""));
        for query in ["", "a", "%61=1", "ab=1", "x=1;a=1", "a%3d1"] {
            argument(query, "a", None);
        }
        let cookie = |line: &str, name: &str, expected: Option<&str>| {
            let found = raw_cookie(line.as_bytes(), name);
            assert_eq!(found, expected.map(str::as_bytes), "{line} {name}");
        };
        cookie("x=1; SID=%31 ; sid=2", "sid", Some("%31 "));
        cookie("sid = a=b", "sid", Some("a=b"));
        cookie("a=1,sid=1", "sid", Some("1"));
        cookie("sid=1,x=2; y=3", "sid", Some("1,x=2"));
        cookie("sid=1,x=2; y=3", "x", Some("2"));
        cookie("sid;sid=", "sid", Some(""));
        for line in ["", "sid", "xsid=1; sidx=1", "a=1,xsid=1", "%73id=1"] {
            cookie(line, "sid", None);
        }
    }

    #[test]
    fn an_argument_is_taken_out_and_the_others_stay_as_written() {
        let check = |target: &str, expected: &str| {
            let mut out = Vec::new();
            write_without(target.as_bytes(), b"key", &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{target}");
        };
        check("/a", "/a");
        check("/a?key=1", "/a");
        check("/a?b=%7e&key=1&c&%6bey&keys=2", "/a?b=%7e&c&keys=2");
        check("/key=1?key", "/key=1");
    }
}
