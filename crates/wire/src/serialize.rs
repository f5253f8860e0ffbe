//! Serialises heads: the original lines without the removed ones, and the added ones.
//!
//! Unchanged lines are copied in runs, so that an unedited head is one copy, however many fields it has.

use crate::Version;
use crate::edits::{Edits, RequestEdits, ResponseEdits};
use crate::head::Fields;
use crate::request::{RequestHead, TargetForm};
use crate::response::ResponseHead;

/// Appends a request head in HTTP/1.1, its target in origin (or asterisk) form.
pub fn write_request(out: &mut Vec<u8>, head: &[u8], parsed: &RequestHead, edits: &RequestEdits) {
    let is_line_kept = edits.method().is_none() && edits.target().is_none();
    if is_line_kept
        && parsed.version == Version::Http11
        && matches!(parsed.form, TargetForm::Origin | TargetForm::Asterisk)
    {
        return write_request_lines(out, head, 0, &parsed.fields, &edits.fields);
    }
    let path = edits.target().unwrap_or_else(|| parsed.path_and_query.of(head));
    out.extend_from_slice(edits.method().unwrap_or_else(|| parsed.method_bytes(head)));
    out.push(b' ');
    if path.first() != Some(&b'/') && parsed.form == TargetForm::Absolute {
        out.push(b'/');
    }
    out.extend_from_slice(path);
    out.extend_from_slice(b" HTTP/1.1\r\n");
    write_request_lines(out, head, fields_start(&parsed.fields), &parsed.fields, &edits.fields);
}

/// Appends a response head with a status line in HTTP/1.1, even if the upstream used another version (RFC 9110 section
/// 2.5). `reason` is for a status that was changed.
pub fn write_response(
    out: &mut Vec<u8>,
    head: &[u8],
    parsed: &ResponseHead,
    edits: &ResponseEdits,
    reason: fn(u16) -> &'static str,
) {
    const VERSION_END: usize = Version::Http10.as_str().len();
    const STATUS_END: usize = VERSION_END + " 200".len();
    if let Some(status) = edits.status() {
        out.extend_from_slice(Version::Http11.as_str().as_bytes());
        // Three digits: `ResponseEdits` holds no other statuses.
        out.push(b' ');
        out.extend([100, 10, 1].map(|digit| b'0' + (status / digit % 10) as u8));
        out.push(b' ');
        out.extend_from_slice(reason(status).as_bytes());
        out.extend_from_slice(b"\r\n");
        return write_response_lines(out, head, fields_start(&parsed.fields), &parsed.fields, &edits.fields);
    }
    // The space behind the status is required even without a reason (RFC 9112 section 4); some servers leave it out.
    let is_complete = head[STATUS_END] == b' ';
    if parsed.version == Version::Http11 && is_complete {
        return write_response_lines(out, head, 0, &parsed.fields, &edits.fields);
    }
    out.extend_from_slice(Version::Http11.as_str().as_bytes());
    out.extend_from_slice(&head[VERSION_END..STATUS_END]);
    if !is_complete {
        out.push(b' ');
    }
    write_response_lines(out, head, STATUS_END, &parsed.fields, &edits.fields);
}

fn fields_start(fields: &Fields) -> usize {
    fields.iter().next().map_or(fields.end, |first| first.name.start) as usize
}

fn write_request_lines(out: &mut Vec<u8>, head: &[u8], start: usize, fields: &Fields, edits: &Edits) {
    write_kept(out, head, start, fields, edits);
    out.extend_from_slice(&edits.appended);
    push_unless_empty(out, edits.lines());
    out.extend_from_slice(b"\r\n");
}

fn write_response_lines(out: &mut Vec<u8>, head: &[u8], start: usize, fields: &Fields, edits: &Edits) {
    write_kept(out, head, start, fields, edits);
    push_unless_empty(out, edits.lines());
    out.extend_from_slice(&edits.appended);
    out.extend_from_slice(b"\r\n");
}

/// Inline, because most heads have no lines of plugins.
#[inline]
fn push_unless_empty(out: &mut Vec<u8>, lines: &[u8]) {
    if !lines.is_empty() {
        out.extend_from_slice(lines);
    }
}

#[inline]
fn write_kept(out: &mut Vec<u8>, head: &[u8], start: usize, fields: &Fields, edits: &Edits) {
    if fields.dropped > 0 {
        return write_listed(out, head, start, fields, edits);
    }
    let mut from = start;
    for index in edits.removed.iter() {
        let line = fields.line(index);
        if from < line.start {
            out.extend_from_slice(&head[from..line.start]);
        }
        from = line.end;
    }
    out.extend_from_slice(&head[from..fields.end as usize]);
}

/// Writes the lines of a head from which some were dropped: those are between the kept ones.
#[cold]
fn write_listed(out: &mut Vec<u8>, head: &[u8], start: usize, fields: &Fields, edits: &Edits) {
    let line_end = |from: usize| memchr::memchr(b'\n', &head[from..]).map_or(fields.end.into(), |at| from + at + 1);
    if start == 0 {
        out.extend_from_slice(&head[..line_end(0)]);
    }
    for (index, field) in fields.iter().enumerate() {
        if !edits.removed.contains(index) {
            out.extend_from_slice(&head[field.name.start.into()..line_end(field.value.end())]);
        }
    }
}

/// Most bytes of [`chunk_head`].
pub const CHUNK_HEAD_BYTES_MAX: usize = 18;

/// Writes a chunk's size line to the *end* of `space` and returns it.
pub fn chunk_head(size: usize, space: &mut [u8; CHUNK_HEAD_BYTES_MAX]) -> &[u8] {
    let mut at = CHUNK_HEAD_BYTES_MAX - 2;
    space[at..].copy_from_slice(b"\r\n");
    let mut rest = size;
    loop {
        at -= 1;
        space[at] = b"0123456789abcdef"[rest & 15];
        rest >>= 4;
        if rest == 0 {
            return &space[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FieldName, FieldValue, HeadLimits, HeadProgress, Method};

    fn request(input: &str, removed: &[usize], added: &[(&str, &str)]) -> String {
        let mut head = RequestHead::default();
        let done = head.advance(input.as_bytes(), &HeadLimits::default());
        assert_eq!(done, Ok(HeadProgress::Complete(input.len())), "{input:?}");
        let mut edits = RequestEdits::default();
        removed.iter().for_each(|index| edits.fields.removed.insert(*index));
        for (name, value) in added {
            let (name, value) = (FieldName::new(name.as_bytes()).unwrap(), FieldValue::new(value.as_bytes()).unwrap());
            edits.fields.add(name, value);
        }
        let mut out = Vec::new();
        write_request(&mut out, input.as_bytes(), &head, &edits);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn writes_requests() {
        let plain = "GET /a HTTP/1.1\r\nHost: h\r\nA:1\r\nB:  2 \r\n\r\n";
        assert_eq!(request(plain, &[], &[]), plain);
        assert_eq!(request(plain, &[0], &[("Host", "x")]), "GET /a HTTP/1.1\r\nA:1\r\nB:  2 \r\nHost: x\r\n\r\n");
        assert_eq!(request(plain, &[0, 1, 2], &[]), "GET /a HTTP/1.1\r\n\r\n");
        assert_eq!(request(plain, &[2], &[]), "GET /a HTTP/1.1\r\nHost: h\r\nA:1\r\n\r\n");
        assert_eq!(request("GET / HTTP/1.0\r\n\r\n", &[], &[]), "GET / HTTP/1.1\r\n\r\n");
        assert_eq!(
            request("GET http://o?q HTTP/1.1\r\nHost: h\r\n\r\n", &[], &[]),
            "GET /?q HTTP/1.1\r\nHost: h\r\n\r\n"
        );
    }

    #[test]
    fn writes_what_was_not_dropped() {
        let check = |input: &str, removed: &[usize], added: &[(&str, &str)], expected: &str| {
            let mut head = RequestHead::default();
            head.drops_underscores = true;
            let done = head.advance(input.as_bytes(), &HeadLimits::default());
            assert_eq!(done, Ok(HeadProgress::Complete(input.len())), "{input:?}");
            assert_eq!(head.fields.dropped(), input.matches("_: ").count(), "{input:?}");
            let mut edits = RequestEdits::default();
            removed.iter().for_each(|index| edits.fields.removed.insert(*index));
            for (name, value) in added {
                let name = FieldName::new(name.as_bytes()).unwrap();
                edits.fields.add(name, FieldValue::new(value.as_bytes()).unwrap());
            }
            let mut out = Vec::new();
            write_request(&mut out, input.as_bytes(), &head, &edits);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        };
        check(
            "GET /_ HTTP/1.1\r\nX_: 1\r\nY__: 2\r\nHost: h_\r\nZ_: 3\r\nA:  4 \r\nB: 5\r\nC_: 6\r\n\r\n",
            &[2],
            &[("D_", "7")],
            "GET /_ HTTP/1.1\r\nHost: h_\r\nA:  4 \r\nD_: 7\r\n\r\n",
        );
        check("GET / HTTP/1.0\r\nX_: 1\r\n\r\n", &[], &[], "GET / HTTP/1.1\r\n\r\n");
        check("GET / HTTP/1.1\r\nHost:\r\nX_: \r\n\r\n", &[], &[], "GET / HTTP/1.1\r\nHost:\r\n\r\n");
    }

    #[test]
    fn writes_responses() {
        let input = b"HTTP/1.0 200 \xc3\xa4\r\nA: b\r\n\r\n";
        let mut head = ResponseHead::default();
        let done = head.advance(input, Method::Get, &HeadLimits::default());
        assert_eq!(done, Ok(HeadProgress::Complete(input.len())));
        let mut out = Vec::new();
        write_response(&mut out, input, &head, &ResponseEdits::default(), |_| "");
        assert_eq!(out, b"HTTP/1.1 200 \xc3\xa4\r\nA: b\r\n\r\n");
    }

    #[test]
    fn completes_a_status_line() {
        let input = b"HTTP/1.1 200\r\nA: b\r\n\r\n";
        let mut head = ResponseHead::default();
        let done = head.advance(input, Method::Get, &HeadLimits::default());
        assert_eq!(done, Ok(HeadProgress::Complete(input.len())));
        let mut out = Vec::new();
        write_response(&mut out, input, &head, &ResponseEdits::default(), |_| "");
        assert_eq!(out, b"HTTP/1.1 200 \r\nA: b\r\n\r\n");
    }

    #[test]
    fn writes_what_was_changed_of_the_first_line() {
        let input = b"GET http://o/a?b HTTP/1.0\r\nHost: h\r\n\r\n";
        let mut head = RequestHead::default();
        assert_eq!(head.advance(input, &HeadLimits::default()), Ok(HeadProgress::Complete(input.len())));
        let mut edits = RequestEdits::default();
        edits.set_method(b"PUT").unwrap();
        edits.set_target(b"/c?d").unwrap();
        let mut out = Vec::new();
        write_request(&mut out, input, &head, &edits);
        assert_eq!(out, b"PUT /c?d HTTP/1.1\r\nHost: h\r\n\r\n");

        let input = b"HTTP/1.0 200 fine\r\nA: b\r\n\r\n";
        let mut head = ResponseHead::default();
        assert_eq!(head.advance(input, Method::Get, &HeadLimits::default()), Ok(HeadProgress::Complete(input.len())));
        let mut edits = ResponseEdits::default();
        edits.set_status(503).unwrap();
        out.clear();
        write_response(&mut out, input, &head, &edits, |status| if status == 503 { "Busy" } else { "" });
        assert_eq!(out, b"HTTP/1.1 503 Busy\r\nA: b\r\n\r\n");
    }

    #[test]
    fn chunk_heads() {
        for size in [0, 1, 15, 16, 255, 65536, usize::MAX] {
            let mut space = [0; CHUNK_HEAD_BYTES_MAX];
            assert_eq!(chunk_head(size, &mut space), format!("{size:x}\r\n").as_bytes());
        }
    }
}
