//! `response-rewrite`: the client's response.

use crate::harness::{OK, plugins, refusal};
use expect_test::{Expect, expect};
use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use proptest::prelude::*;
use std::io::Write;

const GET: &str = "GET /a?x=1 HTTP/1.1\nHost: h\n\n";

fn response(config: &str, request: &str, response: &str) -> String {
    let plugins = plugins(&format!("response-rewrite: {config}")).expect("a good configuration");
    from_client(&plugins.run(request, response))
}

fn from_client(transcript: &str) -> String {
    transcript[transcript.find("< ").expect("a response")..].to_owned()
}

fn check(config: &str, came: &str, expected: Expect) {
    expected.assert_eq(&response(config, GET, came));
}

/// The body after these filters.
fn filtered(filters: &str, came: &str) -> String {
    let transcript = response(&format!("{{filters: {filters}}}"), GET, &format!("HTTP/1.1 200 OK\n\n{came}"));
    transcript.lines().last().expect("a line").trim_start_matches("< ").to_owned()
}

/// The transcript of a coded body, in pieces of a size.
fn coded(config: &str, coding: &str, body: &[u8], piece: usize) -> String {
    let plugins = plugins(&format!("response-rewrite: {config}")).expect("a good configuration");
    let head = format!("HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nETag: \"1\"\r\n\r\n");
    let pieces: Vec<&[u8]> = body.chunks(piece).collect();
    from_client(&plugins.exchange(GET, head.as_bytes(), &pieces))
}

#[test]
fn header_fields_of_the_request_are_those_that_plugins_have_left() {
    let config = "{proxy-rewrite: {headers: {set: {X-Set: new}, remove: [X-Gone]}}, \
        response-rewrite: {headers: {A: '$http_x_set,$http_x_gone,$http_x_kept,$content_length,$sent_http_content_length'}}}";
    let request = "GET / HTTP/1.1\nHost: h\nX-Set: old\nX-Gone: 1\nX-Kept: 2\nContent-Length: 0\n\n";
    let transcript = plugins(config).unwrap().run(request, "HTTP/1.1 200 OK\nContent-Length: 3\n\nabc");
    assert!(from_client(&transcript).contains("\n< A: new,,2,0,3\n"), "{transcript}");
}

#[test]
fn an_empty_map_of_header_fields_changes_nothing() {
    check(
        "{headers: {}}",
        "HTTP/1.1 200 OK\n\nold",
        expect![[r#"
        < 200
        < "old"
    "#]],
    );
}

#[test]
fn status_body_and_header_fields() {
    let came = "HTTP/1.1 200 OK\nContent-Type: text/plain\nContent-Encoding: gzip\nETag: \"1\"\n\
        Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\nX-Gone: 1\nSet-Cookie: a=1\n\nold";
    check(
        "{status_code: 403, body: '{\"a\": \"new\"}'}",
        came,
        expect![[r#"
        < 403
        < Content-Type: text/plain
        < X-Gone: 1
        < Set-Cookie: a=1
        < "{\"a\": \"new\"}"
    "#]],
    );
    check(
        "{body: aGVsbG8=, body_base64: true}",
        came,
        expect![[r#"
        < 200
        < Content-Type: text/plain
        < X-Gone: 1
        < Set-Cookie: a=1
        < "hello"
    "#]],
    );
    check(
        "{body: ''}",
        came,
        expect![[r#"
        < 200
        < Content-Type: text/plain
        < X-Gone: 1
        < Set-Cookie: a=1
        < ""
    "#]],
    );
    check(
        "{headers: {add: ['Set-Cookie: b=2; Path=/', 'X-Url:https://a.example/', 'X-None: $arg_none'], \
            set: {X-Server: 3, X-Of: '$status-$remote_addr', Content-Type: ''}, remove: [x-gone]}}",
        came,
        expect![[r#"
            < 200
            < Content-Encoding: gzip
            < ETag: "1"
            < Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT
            < Set-Cookie: a=1
            < Set-Cookie: b=2; Path=/
            < X-Url: https://a.example/
            < X-Server: 3
            < X-Of: 200-192.0.2.7
            < "old"
        "#]],
    );
    check(
        "{headers: {X-A: 1, set: flat}}",
        OK,
        expect![[r#"
        < 200
        < Content-Type: text/plain
        < X-A: 1
        < set: flat
        < "hello world\n"
    "#]],
    );
}

#[test]
fn it_acts_where_its_conditions_hold() {
    let config = "{vars: [[status, '==', 404], [arg_x, '==', '1']], status_code: 200, body: found}";
    check(
        config,
        "HTTP/1.1 404 Not Found\nA: b\n\nlost",
        expect![[r#"
        < 200
        < A: b
        < "found"
    "#]],
    );
    check(
        config,
        OK,
        expect![[r#"
        < 200
        < Content-Type: text/plain
        < "hello world\n"
    "#]],
    );
    let other = response(config, "GET /a?x=2 HTTP/1.1\nHost: h\n\n", "HTTP/1.1 404 Not Found\n\nlost");
    assert!(other.contains("404") && other.contains("lost"), "{other}");
    check(
        "{vars: [], body: always}",
        OK,
        expect![[r#"
        < 200
        < Content-Type: text/plain
        < "always"
    "#]],
    );
}

#[test]
fn answers_of_our_own_are_rewritten_too() {
    let plugins = plugins("{cors: {}, response-rewrite: {status_code: 204, headers: {X-A: 1}}}").expect("good");
    expect![[r#"
        > cors answers
        < 204
        < Access-Control-Allow-Methods: *
        < Access-Control-Allow-Headers: *
        < Access-Control-Max-Age: 5
        < Access-Control-Allow-Origin: *
        < X-A: 1
        < ""
    "#]]
    .assert_eq(&plugins.run("OPTIONS / HTTP/1.1\nHost: h\n\n", OK));
}

#[test]
fn filters_replace_one_after_the_other() {
    for (filters, came, expected) in [
        ("[{regex: hello, replace: test}]", "hello world hello", "test world hello"),
        ("[{regex: l, replace: t, scope: global}]", "hello world", "hetto wortd"),
        ("[{regex: hello, replace: ''}]", "hello world", " world"),
        ("[{regex: hello, replace: HELLO}, {regex: L, replace: T}]", "hello world", "HETLO world"),
        ("[{regex: none, replace: x}]", "hello world", "hello world"),
        ("[{regex: '(h)(el)', replace: '$2$1$$[$0]$3'}]", "hello", "elh$[hel]lo"),
        ("[{regex: 'x*', replace: '-', scope: global}]", "abxc", "-a-b--c-"),
        ("[{regex: HELLO, replace: x, options: ijo}]", "hello", "x"),
        ("[{regex: '^b$', replace: x, options: m, scope: global}]", "a\nb\nb", "a\nx\nx"),
        ("[{regex: 'a.b', replace: x, options: s}]", "a\nb", "x"),
        ("[{regex: 'a.b', replace: x}]", "a\nb", "a\nb"),
        ("[{regex: ' a b #', replace: y, options: x}]", "ab", "y"),
        ("[{regex: ' a #', replace: y, options: xa}]", "ba", "ba"),
        ("[{regex: 'b|a', replace: y, options: a}]", "ab", "yb"),
        // `.` is a byte, unless the body is read as UTF-8.
        ("[{regex: '^..', replace: ''}]", "\u{e4}b", "b"),
        ("[{regex: '^..', replace: '', options: u}]", "\u{e4}b", ""),
        ("[{regex: \u{e4}, replace: ae}]", "\u{e4}b", "aeb"),
    ] {
        assert_eq!(filtered(filters, came), format!("{expected:?}"), "{filters} {came:?}");
    }
}

/// As in PCRE, and so in APISIX's tests: `$` matches before a line break at the end of a body.
#[test]
fn a_dollar_matches_before_the_last_line_break() {
    for (filters, came, expected) in [
        (r"[{regex: '\w\S+$', replace: '*'}]", "hello world\n", "hello *\n"),
        (r"[{regex: '\w\S+$', replace: '*'}]", "hello world", "hello *"),
        (r"[{regex: 'd$', replace: 'D'}]", "world\n\n", "world\n\n"),
        (r"[{regex: '\s*$', replace: '!'}]", "a \n", "a!"),
        (r"[{regex: '$', replace: '!', scope: global}]", "a\n", "a!\n!"),
        (r"[{regex: '(l)?d\z', replace: '[$1]'}]", "world\n", "wor[l]\n"),
    ] {
        assert_eq!(filtered(filters, came), format!("{expected:?}"), "{filters} {came:?}");
    }
}

const TEXT: &[u8] = b"a secret, and a secret; the rest is as it was";

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

fn zlib(body: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

fn deflate(body: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

/// An uncompressed brotli body: one meta-block with these bytes, and an empty last one (RFC 7932 section 9.2).
fn brotli(body: &[u8]) -> Vec<u8> {
    assert!((1..=65536).contains(&body.len()));
    // WBITS 16 (one bit 0), ISLAST 0, MNIBBLES 4 (00), MLEN-1 in 16 bits, ISUNCOMPRESSED 1.
    let bits = ((body.len() as u32 - 1) << 4) | (1 << 20);
    let mut coded = bits.to_le_bytes()[..3].to_vec();
    coded.extend_from_slice(body);
    coded.push(0b11);
    coded
}

const MASK: &str = "{filters: [{regex: secret, replace: '***', scope: global}]}";

#[test]
fn codings_are_undone() {
    let codings: [(&str, Vec<u8>); 7] = [
        ("gzip", gzip(TEXT)),
        ("x-gzip", [gzip(&TEXT[..20]), gzip(&TEXT[20..])].concat()),
        ("deflate", zlib(TEXT)),
        ("deflate", deflate(TEXT)),
        ("br", brotli(TEXT)),
        ("identity", TEXT.to_vec()),
        ("GZIP", gzip(TEXT)),
    ];
    for (coding, body) in &codings {
        for piece in [1, 2, 3, 7, body.len()] {
            let transcript = coded(MASK, coding, body, piece);
            assert_eq!(
                transcript, "< 200\n< \"a ***, and a ***; the rest is as it was\"\n",
                "{coding} in pieces of {piece}"
            );
        }
    }
}

/// A body that cannot be read cannot be masked: it is not sent.
#[test]
fn a_body_that_cannot_be_read_is_not_sent() {
    let (gzip, zlib, deflate, brotli) = (gzip(TEXT), zlib(TEXT), deflate(TEXT), brotli(TEXT));
    let malformed = "< 502, since the body is not in the coding that its head names\n";
    for (coding, body) in [
        ("zstd", TEXT),
        ("gzip, br", TEXT),
        ("gzip", TEXT),
        ("deflate", TEXT),
        ("br", TEXT),
        ("gzip", &gzip[..gzip.len() - 1]),
        ("gzip", &gzip[..gzip.len() / 2]),
        ("deflate", &zlib[..zlib.len() / 2]),
        ("deflate", &deflate[..deflate.len() / 2]),
        ("deflate", &zlib[..1]),
        ("br", &brotli[..brotli.len() / 2]),
        ("br", &brotli[..brotli.len() - 1]),
    ] {
        for piece in [1, 5, body.len()] {
            assert_eq!(coded(MASK, coding, body, piece), malformed, "{coding} {}", body.len());
        }
    }
    // An answer to HEAD, or with 304, has a coding and no body.
    assert_eq!(coded(MASK, "gzip", b"", 1), "< 200\n< \"\"\n");
}

#[test]
fn the_bound_holds_before_and_after() {
    let too_large = "< 502, since the body is larger than a plugin may hold\n";
    let filters = "max_resp_body_size: 10, filters: [{regex: a, replace: aa, scope: global}]";
    let config = format!("{{{filters}}}");
    for (body, expected) in [
        (&b"aaaaa"[..], "< 200\n< \"aaaaaaaaaa\"\n"),
        (b"aaaaaa", too_large),
        (b"bbbbbbbbbb", "< 200\n< \"bbbbbbbbbb\"\n"),
        (b"bbbbbbbbbbb", too_large),
    ] {
        for piece in [1, 4, body.len()] {
            assert_eq!(coded(&config, "identity", body, piece), expected);
            assert_eq!(coded(&config, "gzip", &gzip(body), piece), expected);
            assert_eq!(coded(&config, "br", &brotli(body), piece), expected);
        }
    }
    // A small body that becomes a large one, with the default of 1 MiB.
    let bomb = gzip(&vec![0; 1024 * 1024 + 1]);
    assert!(bomb.len() < 2000);
    assert_eq!(coded(MASK, "gzip", &bomb, 100), too_large);
    let transcript = coded(MASK, "gzip", &gzip(&vec![b'0'; 1024 * 1024]), 16 * 1024);
    assert!(transcript.starts_with("< 200\n"), "{}", &transcript[..50]);
}

/// A value that would split the head ends in a 500 that shows nothing of the response.
#[test]
fn what_would_split_the_head_is_not_sent() {
    // A head holds no line breaks, so no variable has one: constants are the remaining case.
    for config in [
        r#"{headers: {X-A: "a\r\nSet-Cookie: b=c"}}"#,
        r#"{headers: {set: {X-A: "$uri\r\nSet-Cookie: b=c"}}}"#,
        r#"{headers: {add: ["X-A: $uri\r\nSet-Cookie: b=c"]}}"#,
        r#"{headers: {add: ["X-A\r\nSet-Cookie: b=c"]}}"#,
        r#"{headers: {remove: ["X-A\r\n"]}}"#,
    ] {
        let refused = refusal(&format!("response-rewrite: {config}"));
        assert!(refused.contains("control characters") || refused.contains("not the name"), "{config}: {refused}");
    }
}

/// The plain model of a filter: [`regex`]'s own replacement. (It differs in empty matches right after another match.)
fn modelled(pattern: &str, replace: &str, is_global: bool, body: &str) -> String {
    let regex = regex::Regex::new(pattern).expect("a pattern");
    let replace = replace.replace("$1", "${1}");
    match is_global {
        true => regex.replace_all(body, replace).into_owned(),
        false => regex.replace(body, replace).into_owned(),
    }
}

proptest! {
    #[test]
    fn filters_do_as_the_plain_model(
        pattern in proptest::sample::select(vec!["a", "ab", "(a)b", "(b+)a", "a?c", "[ab]+", "a(.)c", "(a|(c))b", "[^a]"]),
        replace in "[xy]{0,2}(\\$1)?[ab]{0,2}",
        is_global: bool,
        body in "[abc]{0,40}",
    ) {
        let scope = if is_global { "global" } else { "once" };
        let filters = format!("[{{regex: '{pattern}', replace: '{replace}', scope: {scope}}}]");
        prop_assert_eq!(filtered(&filters, &body), format!("{:?}", modelled(pattern, &replace, is_global, &body)));
    }

    #[test]
    fn every_split_gives_the_same(body in "(secret| |[a-f]){0,40}", cuts in proptest::collection::vec(0usize..200, 0..6), coding in 0usize..4) {
        let (name, coded): (&str, Vec<u8>) = match coding {
            0 => ("identity", body.clone().into_bytes()),
            1 => ("gzip", gzip(body.as_bytes())),
            2 => ("deflate", zlib(body.as_bytes())),
            _ => ("deflate", deflate(body.as_bytes())),
        };
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(coded.len())).collect();
        cuts.extend([0, coded.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &coded[cut[0]..cut[1]]).collect();
        let plugins = plugins(&format!("response-rewrite: {MASK}")).expect("good");
        let head = format!("HTTP/1.1 200 OK\r\nContent-Encoding: {name}\r\n\r\n");
        let transcript = from_client(&plugins.exchange(GET, head.as_bytes(), &pieces));
        prop_assert_eq!(transcript, format!("< 200\n< {:?}\n", body.replace("secret", "***")));
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn bad_configurations_are_refused() {
    let mut all = String::new();
    for config in [
        "{status_code: 199}",
        "{status_code: 599}",
        "{status_code: '200'}",
        "{body: a, filters: [{regex: a, replace: b}]}",
        "{filters: []}",
        "{filters: [{regex: a}]}",
        "{filters: [{replace: a}]}",
        "{filters: [{regex: '', replace: a}]}",
        "{filters: [{regex: '(', replace: a}]}",
        r"{filters: [{regex: '(a)\1', replace: a}]}",
        "{filters: [{regex: 'a)(b', replace: a, options: a}]}",
        "{filters: [{regex: a, replace: $name}]}",
        "{filters: [{regex: a, replace: b, scope: two}]}",
        "{filters: [{regex: a, replace: b, options: h}]}",
        "{filters: [{regex: a, replace: b, options: J}]}",
        "{filters: [{regex: a, replace: b, options: a, scope: global}]}",
        "{filters: [{regex: a, replace: b, flags: i}]}",
        "{body_base64: true}",
        "{body_base64: true, body: ''}",
        "{body_base64: true, body: '1'}",
        "{vars: [[status, '===', 200]]}",
        "{vars: [[nothing_like_it, '==', 200]]}",
        "{max_resp_body_size: 0}",
        "{headers: {add: {a: b}}}",
        "{headers: {add: ['no colon']}}",
        "{headers: {add: ['empty:']}}",
        "{headers: {add: ['a b: c']}}",
        "{headers: {add: ['Content-Length: 3']}}",
        "{headers: {set: {Transfer-Encoding: chunked}}}",
        "{headers: {remove: [Connection]}}",
        "{headers: {X-A: $nothing_like_it}}",
    ] {
        all.push_str(&format!("{config}\n    {}", refusal(&format!("response-rewrite: {config}"))));
    }
    expect![[r#"
        {status_code: 199}
            1:33: response-rewrite.status_code: expected a whole number from 200 to 598, found the number 199
        {status_code: 599}
            1:33: response-rewrite.status_code: expected a whole number from 200 to 598, found the number 599
        {status_code: '200'}
            1:33: response-rewrite.status_code: expected a whole number from 200 to 598, found the text "200"
        {body: a, filters: [{regex: a, replace: b}]}
            1:38: response-rewrite.filters: `filters` and `body` cannot be combined; remove one of them
        {filters: []}
            1:29: response-rewrite.filters: an empty list; name at least one, or remove the key
        {filters: [{regex: a}]}
            1:30: response-rewrite.filters[0]: the key "replace" is missing; add it
        {filters: [{replace: a}]}
            1:30: response-rewrite.filters[0]: the key "regex" is missing; add it
        {filters: [{regex: '', replace: a}]}
            1:38: response-rewrite.filters[0].regex: an empty regular expression; write what is to be replaced
        {filters: [{regex: '(', replace: a}]}
            1:38: response-rewrite.filters[0].regex: not a regular expression: unclosed group
        {filters: [{regex: '(a)\1', replace: a}]}
            1:38: response-rewrite.filters[0].regex: not a regular expression: backreferences are not supported; write it without: matching takes linear time, which rules them out
        {filters: [{regex: 'a)(b', replace: a, options: a}]}
            1:38: response-rewrite.filters[0].regex: not a regular expression: unopened group
        {filters: [{regex: a, replace: $name}]}
            1:50: response-rewrite.filters[0].replace: "$" must be followed by the number of a group; write "$$" for a dollar
        {filters: [{regex: a, replace: b, scope: two}]}
            1:60: response-rewrite.filters[0].scope: expected once or global, found the text "two"
        {filters: [{regex: a, replace: b, options: h}]}
            1:62: response-rewrite.filters[0].options: unknown flag 'h' (flags "h")
        {filters: [{regex: a, replace: b, options: J}]}
            1:62: response-rewrite.filters[0].options: the option 'J' (names of groups) is not supported
        {filters: [{regex: a, replace: b, options: a, scope: global}]}
            1:62: response-rewrite.filters[0].options: the option 'a' with the scope "global" is not supported
        {filters: [{regex: a, replace: b, flags: i}]}
            1:53: response-rewrite.filters[0].flags: unknown key "flags"; known keys: regex, scope, replace, options
        {body_base64: true}
            1:19: response-rewrite.body_base64: invalid base64 content; `body_base64` needs a `body`
        {body_base64: true, body: ''}
            1:45: response-rewrite.body: invalid base64 content
        {body_base64: true, body: '1'}
            1:45: response-rewrite.body: invalid base64 content
        {vars: [[status, '===', 200]]}
            1:36: response-rewrite.vars[0][1]: "===": unknown operator; write "=="
        {vars: [[nothing_like_it, '==', 200]]}
            1:28: response-rewrite.vars[0][0]: "nothing_like_it": unknown variable; write one of uri, document_uri, request_uri, args, query_string, is_args, host, request_method, method, scheme, server_protocol, protocol, remote_addr, remote_port, remote_user, realip_remote_addr, server_addr, server_port, ssl_server_name, ssl_protocol, ssl_cipher, ssl_client_verify, ssl_client_s_dn, ssl_client_serial, ssl_client_fingerprint, content_type, content_length, arg_NAME, http_NAME, cookie_NAME, uri_param_NAME
        {max_resp_body_size: 0}
            1:40: response-rewrite.max_resp_body_size: expected a whole number from 1 to 1073741824, found the number 0
        {headers: {add: {a: b}}}
            1:35: response-rewrite.headers.add: expected a list of lines such as "Name: value", found a map
        {headers: {add: ['no colon']}}
            1:36: response-rewrite.headers.add[0]: expected a line such as "Name: value", found the text "no colon"
        {headers: {add: ['empty:']}}
            1:36: response-rewrite.headers.add[0]: expected a line such as "Name: value", found the text "empty:"
        {headers: {add: ['a b: c']}}
            1:36: response-rewrite.headers.add[0]: not the name of a header field: letters, digits and !#$%&'*+-.^_`|~ only
        {headers: {add: ['Content-Length: 3']}}
            1:36: response-rewrite.headers.add[0]: this field frames the message or belongs to one connection; the gateway sets it
        {headers: {set: {Transfer-Encoding: chunked}}}
            1:36: response-rewrite.headers.set.Transfer-Encoding: this field frames the message or belongs to one connection; the gateway sets it
        {headers: {remove: [Connection]}}
            1:39: response-rewrite.headers.remove[0]: this field frames the message or belongs to one connection; the gateway sets it
        {headers: {X-A: $nothing_like_it}}
            accepted
    "#]].assert_eq(&all);
}
