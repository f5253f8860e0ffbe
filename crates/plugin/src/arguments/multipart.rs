//! Parses multipart bodies (RFC 7578) strictly: if another parser could find a part elsewhere, or under another name,
//! the whole body is unreadable.
//!
//! ```text
//!  --B CRLF                                  preamble and what follows the last mark are not looked at
//!  Content-Disposition: form-data; name="a" CRLF CRLF
//!  content CRLF
//!  --B-- CRLF
//! ```

use super::values::ArgumentError;

/// Most parts of a body that are read.
pub(super) const PARTS_MAX: usize = 256;

/// A part with a name.
pub(super) struct NamedPart<'b> {
    pub(super) name: &'b [u8],
    pub(super) content: &'b [u8],
}

/// The parts, in order.
pub(super) fn parts<'b>(body: &'b [u8], boundary: &[u8]) -> Result<Vec<NamedPart<'b>>, ArgumentError> {
    let mark = [b"--", boundary].concat();
    let (mut parts, mut from) = (Vec::new(), None);
    for at in memchr::memmem::find_iter(body, &mark) {
        let before = &body[..at];
        match before.strip_suffix(b"\n") {
            // Within a line it is content.
            None if at > 0 => continue,
            Some(before) if !before.ends_with(b"\r") => return Err(ArgumentError::Body),
            _ => {}
        }
        if let Some(from) = from {
            parts.push(part(body.get(from..at - 2).ok_or(ArgumentError::Body)?)?);
        }
        let rest = &body[at + mark.len()..];
        if rest.starts_with(b"--") {
            return Ok(parts);
        }
        if parts.len() == PARTS_MAX {
            return Err(ArgumentError::Body);
        }
        let blanks = rest.iter().take_while(|byte| is_blank(byte)).count();
        if !rest[blanks..].starts_with(b"\r\n") {
            return Err(ArgumentError::Body);
        }
        from = Some(at + mark.len() + blanks + 2);
    }
    // The body is truncated.
    Err(ArgumentError::Body)
}

/// A part, parsed from its head on.
fn part(text: &[u8]) -> Result<NamedPart<'_>, ArgumentError> {
    let end = memchr::memmem::find(text, b"\r\n\r\n").ok_or(ArgumentError::Body)?;
    let name = name_of(&text[..end]).ok_or(ArgumentError::Body)?;
    Ok(NamedPart { name, content: &text[end + 4..] })
}

/// The name of a part, from its head; `None`: it has none, or other parsers may read another one.
fn name_of(head: &[u8]) -> Option<&[u8]> {
    let mut name = None;
    for line in head.split_inclusive(|byte| *byte == b'\n') {
        let line = match line.strip_suffix(b"\n") {
            Some(line) => line.strip_suffix(b"\r")?,
            None => line,
        };
        let (field, value) = line.split_at(memchr::memchr(b':', line)?);
        let (value, is_token) = (value[1..].trim_ascii(), !field.is_empty() && field.iter().all(u8::is_ascii_graphic));
        if !is_token || memchr::memchr2(b'\r', b'\0', line).is_some() {
            return None;
        }
        if field.eq_ignore_ascii_case(b"content-disposition") {
            let (kind, parameters) = value.split_at(memchr::memchr(b';', value)?);
            let is_form = kind.trim_ascii().eq_ignore_ascii_case(b"form-data");
            let own = parameter(parameters, b"name").filter(|_| is_form && name.is_none());
            name = Some(own.flatten()?);
        }
        // Another transfer encoding would change its content.
        let is_plain = || [&b"7bit"[..], b"8bit", b"binary"].iter().any(|kind| value.eq_ignore_ascii_case(kind));
        if field.eq_ignore_ascii_case(b"content-transfer-encoding") && !is_plain() {
            return None;
        }
    }
    name
}

/// A parameter of a header field, quoted or not: from `; a=1; name="value"`. `None`: the text is ambiguous;
/// `Some(None)`: it is absent.
pub(super) fn parameter<'a>(mut text: &'a [u8], name: &[u8]) -> Option<Option<&'a [u8]>> {
    let mut found = None;
    loop {
        text = text.trim_ascii();
        if text.is_empty() {
            return Some(found);
        }
        text = text.strip_prefix(b";")?.trim_ascii_start();
        if text.is_empty() || text.starts_with(b";") {
            continue;
        }
        let (key, rest) = text.split_at(memchr::memchr(b'=', text)?);
        let rest = rest[1..].trim_ascii_start();
        let (value, rest) = match rest.strip_prefix(b"\"") {
            Some(quoted) => {
                let (value, rest) = quoted.split_at(memchr::memchr(b'"', quoted)?);
                // Some parsers take it for an escape, and others do not.
                if value.ends_with(b"\\") {
                    return None;
                }
                (value, &rest[1..])
            }
            None => {
                let (value, rest) = rest.split_at(memchr::memchr(b';', rest).unwrap_or(rest.len()));
                (value.trim_ascii_end(), rest)
            }
        };
        let key = key.trim_ascii_end();
        let is_extended = key.strip_suffix(b"*").is_some_and(|key| key.eq_ignore_ascii_case(name));
        let is_own = key.eq_ignore_ascii_case(name);
        let is_odd =
            memchr::memchr2(b'"', b'\\', key).is_some() || is_own && (found.is_some() || value.contains(&b'\\'));
        if is_extended || is_odd {
            return None;
        }
        if is_own {
            found = Some(value);
        }
        text = rest;
    }
}

fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Vec<(String, String)>, ArgumentError> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(parts(body.as_bytes(), b"B")?.iter().map(|part| (text(part.name), text(part.content))).collect())
    }

    #[track_caller]
    fn check(body: &str, expected: &[(&str, &str)]) {
        let expected: Vec<_> = expected.iter().map(|(name, content)| (name.to_string(), content.to_string())).collect();
        assert_eq!(read(body), Ok(expected), "{body:?}");
    }

    #[test]
    fn parts_have_names_and_contents() {
        let head = "Content-Disposition: form-data; name=";
        check(&format!("--B\r\n{head}\"a\"\r\n\r\n1\r\n--B--\r\n"), &[("a", "1")]);
        check(
            &format!("preamble\r\n--B \t\r\n{head}a\r\n\r\n\r\n--B\r\n{head}\"b;c\"\r\n\r\nx--B\ny\r\n--B--"),
            &[("a", ""), ("b;c", "x--B\ny")],
        );
        check(
            "--B\r\nX-Own: 1\r\ncontent-disposition: Form-Data; filename=\"a;b=\"; name=f\r\n\
             Content-Transfer-Encoding: 8BIT\r\n\r\nx\r\n--B--",
            &[("f", "x")],
        );
        check("--B--\r\n", &[]);
    }

    /// For each of these, another parser may read another name, or another content.
    #[test]
    fn what_can_be_read_in_several_ways_is_not_read() {
        let of = |head: &str| read(&format!("--B\r\n{head}\r\n\r\n1\r\n--B--"));
        assert!(of("Content-Disposition: form-data; name=a").is_ok());
        for head in [
            "",
            "X-Own: 1",
            "Content-Disposition: form-data",
            "Content-Disposition: form-data; filename=a",
            "Content-Disposition: attachment; name=a",
            "Content-Disposition: form-data; name=a; name=b",
            "Content-Disposition: form-data; name=a; name*=utf-8''b",
            "Content-Disposition: form-data; name=\"a\\\"b\"",
            "Content-Disposition: form-data; name=\"a\\b\"",
            "Content-Disposition: form-data; filename=\"a\\\"; name=\"x\"; y=\"",
            "Content-Disposition: form-data; x=\"; name=y\" z; name=\"a\"",
            "Content-Disposition: form-data; name=\"a",
            "Content-Disposition: form-data;\r\n name=a",
            "Content-Disposition: form-data; name=a\nX: y",
            "Content-Disposition : form-data; name=a",
            "Content-Disposition: form-data; name=a\r\nContent-Disposition: form-data; name=b",
            "Content-Disposition: form-data; name=a\r\nContent-Transfer-Encoding: base64",
        ] {
            assert_eq!(of(head), Err(ArgumentError::Body), "{head:?}");
        }
        let part = "Content-Disposition: form-data; name=a\r\n\r\n1";
        for body in [
            String::new(),
            "x".to_owned(),
            format!("--B\r\n{part}"),
            format!("--B\r\n{part}\r\n--B"),
            format!("--B\n{part}\n--B--"),
            format!("--B\r\n{part}\n--B--"),
            format!("--Bx\r\n{part}\r\n--B--"),
            "--B\r\n--B--".to_owned(),
            format!("--B\r\n{part}\r\n--B--").replace("\r\n\r\n", "\n\n"),
        ] {
            assert_eq!(read(&body), Err(ArgumentError::Body), "{body:?}");
        }
        let many = |count: usize| format!("--B\r\n{part}\r\n").repeat(count) + "--B--";
        assert_eq!(read(&many(PARTS_MAX)).map(|parts| parts.len()), Ok(PARTS_MAX));
        assert_eq!(read(&many(PARTS_MAX + 1)), Err(ArgumentError::Body));
    }
}
