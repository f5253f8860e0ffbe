//! `gzip`, `brotli` and `zstd`

use super::harness;
use expect_test::expect;
use flate2::read::MultiGzDecoder;
use harness::{plugins, refusal, work};
use proptest::prelude::*;
use std::io::Read;
use stillgate_plugin_api::BodyChanges;
use stillgate_plugin_api::body::BodyChange;

/// The plugins, with their values of `Content-Encoding`.
const ALL: [(&str, &str); 3] = [("gzip", "gzip"), ("brotli", "br"), ("zstd", "zstd")];

const GET: &str = "GET / HTTP/1.1\nHost: h\nAccept-Encoding: gzip, br, zstd\n\n";
const HTML: &str = "HTTP/1.1 200 OK\nContent-Type: text/html\n\n";

fn decode(coding: &str, mut coded: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    match coding {
        "gzip" => MultiGzDecoder::new(coded).read_to_end(&mut out).map(drop).map_err(|error| error.to_string())?,
        "br" => brotli_decompressor::BrotliDecompress(&mut coded, &mut out).map_err(|error| error.to_string())?,
        _ => return decode_zstd(coded, true),
    }
    Ok(out)
}

fn decode_zstd(coded: &[u8], is_whole: bool) -> Result<Vec<u8>, String> {
    let mut context = zstd_safe::DCtx::create();
    let (mut out, mut input) = (Vec::new(), zstd_safe::InBuffer::around(coded));
    loop {
        let mut buffer = Vec::with_capacity(64 * 1024);
        let mut output = zstd_safe::OutBuffer::around(&mut buffer);
        let left = context.decompress_stream(&mut output, &mut input).map_err(|code| format!("zstd: {code}"))?;
        let given = buffer.len();
        out.extend_from_slice(&buffer);
        if input.pos() == coded.len() && given < 64 * 1024 {
            return if left == 0 || !is_whole { Ok(out) } else { Err("not the end".to_owned()) };
        }
    }
}

/// The readable part of an unfinished body.
fn decode_beginning(coding: &str, mut coded: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    // The error is that of the missing end.
    let _ = match coding {
        "gzip" => MultiGzDecoder::new(coded).read_to_end(&mut out),
        "br" => brotli_decompressor::Decompressor::new(&mut coded, 4096).read_to_end(&mut out),
        _ => {
            out = decode_zstd(coded, false).expect("a good beginning");
            Ok(0)
        }
    };
    out
}

/// Begins the response to a request: its transcript, and its body's changes.
fn begin(config: &str, request: &str, response: &str) -> (String, BodyChanges) {
    plugins(config).unwrap_or_else(|why| panic!("{why}")).begin(request, response)
}

/// Passes pieces to the filter, with a pause after those for which `pauses` returns true.
fn code(changes: &mut BodyChanges, pieces: &[&[u8]], pauses: impl Fn(usize) -> bool) -> Vec<u8> {
    let mut out = Vec::new();
    let Some(BodyChange::Filter(filter)) = changes.iter_mut().next() else { panic!("no filter") };
    for (at, piece) in pieces.iter().enumerate() {
        filter.piece(piece, &mut out).unwrap();
        work(&mut **filter, &mut out).unwrap();
        if pauses(at) {
            filter.pause(&mut out).unwrap();
            work(&mut **filter, &mut out).unwrap();
        }
    }
    filter.end(&mut out).unwrap();
    work(&mut **filter, &mut out).unwrap();
    assert_eq!(filter.held_bytes(), 0, "the encoder is given back");
    out
}

/// `Content-Encoding`, `Vary` and `ETag` of the response.
fn head(config: &str, request: &str, response: &str) -> String {
    let (transcript, changes) = begin(config, request, response);
    let of = |name: &str| {
        let mut lines = transcript.lines().filter_map(|line| line.strip_prefix("< ")?.split_once(": "));
        lines.find(|(line, _)| line.eq_ignore_ascii_case(name)).map_or("-", |(_, value)| value)
    };
    let (coding, vary, etag) = (of("content-encoding"), of("vary"), of("etag"));
    let is_coded = if changes.is_empty() { "plain" } else { "coded" };
    format!("{is_coded} {coding} {vary} {etag}")
}

#[test]
fn the_head_decides_what_is_compressed() {
    for (plugin, coding) in ALL {
        let config = format!("{plugin}: {{}}");
        let coded = format!("coded {coding} - -");
        let check = |request: &str, response: &str, expected: &str| {
            let request = format!("{request}\nHost: h\nAccept-Encoding: {coding}\n\n");
            let response = format!("HTTP/1.1 {response}\n\n");
            assert_eq!(head(&config, &request, &response), expected, "{plugin}: {request} {response}");
        };
        let get = |response: &str, expected: &str| check("GET / HTTP/1.1", response, expected);
        get("200 OK\nContent-Type: text/html", &coded);
        get("200 OK\nContent-Type: Text/HTML ; charset=utf-8", &coded);
        get("404 Not Found\nContent-Type: text/html", &coded);
        get("200 OK\nContent-Type: text/html\nContent-Length: 20", &coded);
        get("200 OK\nContent-Type: text/html\nContent-Length: 19", "plain - - -");
        get("200 OK\nContent-Type: text/html\nContent-Length: 0", "plain - - -");
        get("200 OK\nContent-Type: text/plain", "plain - - -");
        get("200 OK", "plain - - -");
        get("206 Partial Content\nContent-Type: text/html\nContent-Range: bytes 0-99/200", "plain - - -");
        get("206 Partial Content\nContent-Type: text/html", "plain - - -");
        get("204 No Content\nContent-Type: text/html", "plain - - -");
        get("304 Not Modified\nContent-Type: text/html", "plain - - -");
        get("200 OK\nContent-Type: text/html\nContent-Encoding: deflate", "plain deflate - -");
        get("200 OK\nContent-Type: text/html\nContent-Encoding: identity", &coded);
        get("200 OK\nContent-Type: text/html\nCache-Control: private, No-Transform", "plain - - -");
        get("200 OK\nContent-Type: text/html\nCache-Control: no-transformer", &coded);
        check("HEAD / HTTP/1.1", "200 OK\nContent-Type: text/html", "plain - - -");
        check("GET / HTTP/1.0", "200 OK\nContent-Type: text/html", "plain - - -");
    }
    assert_eq!(head("gzip: {}", GET, "HTTP/1.1 500 Oh\nContent-Type: text/html\n\n"), "plain - - -");
    assert_eq!(head("brotli: {}", GET, "HTTP/1.1 500 Oh\nContent-Type: text/html\n\n"), "coded br - -");
    let old = "GET / HTTP/1.0\nHost: h\nAccept-Encoding: gzip\n\n";
    assert_eq!(head("gzip: {http_version: 1.0}", old, HTML), "coded gzip - -");
    assert_eq!(head("gzip: {types: [image/svg+xml, TEXT/html]}", GET, HTML), "coded gzip - -");
    let any = |content_type: &str| {
        head("gzip: {types: '*'}", GET, &format!("HTTP/1.1 200 OK\nContent-Type: {content_type}\n\n"))
    };
    assert_eq!(any("x/y"), "coded gzip - -");
    assert_eq!(any("application/grpc+proto"), "plain - - -");
}

#[test]
fn clients_that_do_not_take_a_coding_do_not_get_it() {
    for (plugin, coding) in ALL {
        let config = format!("{plugin}: {{vary: true}}");
        let check = |accepts: &str, is_coded: bool| {
            let coded = format!("coded {coding} Accept-Encoding -");
            let expected = if is_coded { &*coded } else { "plain - Accept-Encoding -" };
            let request = format!("GET / HTTP/1.1\nHost: h\n{accepts}\n\n");
            assert_eq!(head(&config, &request, HTML), expected, "{accepts}");
        };
        check("X: y", false);
        check("Accept-Encoding: other", false);
        check(&format!("Accept-Encoding: {coding};q=0"), false);
        check(&format!("Accept-Encoding: {coding};q=0, *"), false);
        check("Accept-Encoding: *", coding != "gzip");
        check("Accept-Encoding: *;q=0", false);
        check("Accept-Encoding: identity", false);
        check(&format!("Accept-Encoding: other\nAccept-Encoding: {coding};q=0.5"), true);
        check(&format!("Accept-Encoding: identity, {coding};q=0.5"), false);
    }
}

#[test]
fn the_head_says_what_became_of_the_body() {
    let check = |config: &str, fields: &str, expected: &str| {
        let response = format!("HTTP/1.1 200 OK\nContent-Type: text/html\n{fields}\n\n");
        assert_eq!(head(config, GET, &response), expected, "{config} {fields}");
    };
    check("gzip: {}", "ETag: \"a\"", "coded gzip - W/\"a\"");
    check("gzip: {}", "ETag: W/\"a\"", "coded gzip - W/\"a\"");
    check("gzip: {}", "ETag: a", "coded gzip - -");
    check("brotli: {}", "ETag: \"a\"", "coded br - W/\"a\"");
    check("gzip: {vary: true}", "Vary: Origin", "coded gzip Origin -");
    check("gzip: {vary: true}", "Vary: origin, accept-encoding", "coded gzip origin, accept-encoding -");
    check("gzip: {vary: true}", "Vary: *", "coded gzip * -");
    check("gzip: {}\nbrotli: {}", "A: b", "coded br - -");
    check("gzip: {vary: true}\nbrotli: {vary: true}\nzstd: {}", "A: b", "coded zstd Accept-Encoding -");
    let response = "HTTP/1.1 200 OK\nContent-Type: text/html\nVary: Origin\nAccept-Ranges: bytes\nLast-Modified: x\n\
        Repr-Digest: a\nContent-Length: 500\n\n";
    let (transcript, _) = begin("gzip: {vary: true}", GET, response);
    expect![[r#"
        > GET /
        > Host: h
        > Accept-Encoding: gzip, br, zstd
        < 200
        < Content-Type: text/html
        < Vary: Origin
        < Last-Modified: x
        < Content-Length: 500
        < Vary: Accept-Encoding
        < Content-Encoding: gzip
        < ""
    "#]]
    .assert_eq(&transcript);
}

/// Compressible text like that of a page, and incompressible text.
fn text(bytes: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut word = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ["the ", "gateway ", "of ", "a ", "request ", "<p>", "</p>\n", "0123"][(state >> 29) as usize]
    };
    let mut text = String::new();
    while text.len() < bytes {
        text.push_str(word());
    }
    text.truncate(bytes);
    text.into_bytes()
}

#[test]
fn every_split_of_a_body_decodes_to_it() {
    let body = text(300);
    for (plugin, coding) in ALL {
        for at in 0..=body.len() {
            let (first, rest) = body.split_at(at);
            for pauses in [false, true] {
                let (_, mut changes) = begin(&format!("{plugin}: {{}}"), GET, HTML);
                let coded = code(&mut changes, &[first, rest], |_| pauses);
                assert_eq!(decode(coding, &coded).as_ref(), Ok(&body), "{plugin} at {at}");
            }
        }
    }
}

#[test]
fn every_level_decodes_and_makes_bodies_smaller() {
    let body = text(200_000);
    let pieces: Vec<&[u8]> = body.chunks(16 * 1024).collect();
    for (plugin, coding) in ALL {
        let levels = match plugin {
            "gzip" | "zstd" => 1..=9,
            _ => 0..=11,
        };
        for level in levels {
            let (_, mut changes) = begin(&format!("{plugin}: {{comp_level: {level}}}"), GET, HTML);
            let coded = code(&mut changes, &pieces, |_| false);
            assert!(coded.len() < body.len() / 2, "{plugin} {level}: {}", coded.len());
            assert_eq!(decode(coding, &coded).as_ref(), Ok(&body), "{plugin} {level}");
        }
    }
    for keys in ["mode: 1", "mode: 2, lgwin: 24", "lgwin: 10, lgblock: 24", "lgwin: 0, lgblock: 16, comp_level: 11"] {
        let (_, mut changes) = begin(&format!("brotli: {{{keys}}}"), GET, HTML);
        assert_eq!(decode("br", &code(&mut changes, &pieces, |_| false)).as_ref(), Ok(&body), "{keys}");
    }
}

#[test]
fn empty_bodies_are_whole() {
    for (plugin, coding) in ALL {
        let (_, mut changes) = begin(&format!("{plugin}: {{}}"), GET, HTML);
        let coded = code(&mut changes, &[], |_| false);
        assert!(!coded.is_empty());
        assert_eq!(decode(coding, &coded), Ok(Vec::new()));
    }
}

#[test]
fn nothing_is_held_back_at_a_pause() {
    let body = text(3000);
    for (plugin, coding) in ALL {
        let (_, mut changes) = begin(&format!("{plugin}: {{}}"), GET, HTML);
        let Some(BodyChange::Filter(filter)) = changes.iter_mut().next() else { panic!("no filter") };
        let mut out = Vec::new();
        for (at, piece) in body.chunks(100).enumerate() {
            filter.piece(piece, &mut out).unwrap();
            filter.pause(&mut out).unwrap();
            work(&mut **filter, &mut out).unwrap();
            let known = (100 * (at + 1)).min(body.len());
            assert!(decode_beginning(coding, &out) == body[..known], "{plugin}: {known} bytes");
            let length = out.len();
            filter.pause(&mut out).unwrap();
            work(&mut **filter, &mut out).unwrap();
            assert!(plugin == "gzip" || out.len() == length, "{plugin}: a second pause gives nothing");
        }
    }
}

#[test]
fn encoders_take_no_more_memory_than_they_may() {
    let plugins = plugins("gzip: {}\nbrotli: {}").unwrap();
    let mut bodies = Vec::new();
    let plain = loop {
        let (transcript, changes) = plugins.begin(GET, HTML);
        if changes.is_empty() {
            break transcript;
        }
        bodies.push(changes);
        assert!(bodies.len() < 1000, "there is no bound");
    };
    assert!(!plain.contains("Content-Encoding"), "{plain}");
    drop(bodies);
    assert!(!plugins.begin(GET, HTML).1.is_empty(), "what has ended gives its memory back");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn decoding_gives_the_body_back(
        body in prop_oneof![prop::collection::vec(any::<u8>(), 0..5000), (0..40_000_usize).prop_map(text)],
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        pauses in any::<u8>(),
        plugin in 0..3_usize,
        level in 1..=9_u32,
    ) {
        let (plugin, coding) = ALL[plugin];
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
        places.extend([0, body.len()]);
        places.sort_unstable();
        let pieces: Vec<&[u8]> = places.windows(2).map(|pair| &body[pair[0]..pair[1]]).collect();
        let (_, mut changes) = begin(&format!("{plugin}: {{comp_level: {level}}}"), GET, HTML);
        let coded = code(&mut changes, &pieces, |at| pauses >> (at % 8) & 1 == 1);
        prop_assert_eq!(decode(coding, &coded), Ok(body));
    }
}

#[test]
fn bad_configurations_are_refused() {
    let all = [
        "gzip: {types: []}",
        "gzip: {types: ['']}",
        "gzip: {types: text/html}",
        "gzip: {types: 1}",
        "gzip: {min_length: 0}",
        "gzip: {comp_level: 0}",
        "gzip: {comp_level: 10}",
        "gzip: {http_version: 2}",
        "gzip: {buffers: {number: 0}}",
        "brotli: {comp_level: 12}",
        "brotli: {mode: 3}",
        "brotli: {lgwin: 9}",
        "brotli: {lgblock: 15}",
        "zstd: {comp_level: 0}",
        "zstd: {comp_level: 10}",
        "zstd: {window: 1}",
    ];
    let text: String = all.into_iter().map(refusal).collect();
    expect![[r#"
        1:15: gzip.types: an empty list; name at least one, or remove the key
        1:16: gzip.types[0]: an empty media type; write one such as "text/html"
        1:15: gzip.types: expected a list of media types, or "*", found "text/html"
        1:15: gzip.types: expected a list of media types, or "*", found the number 1; write it in quotes: "1"
        1:20: gzip.min_length: expected a whole number, 1 or more, found the number 0
        1:20: gzip.comp_level: expected a whole number from 1 to 9, found the number 0
        1:20: gzip.comp_level: expected a whole number from 1 to 9, found the number 10
        1:22: gzip.http_version: expected 1.1, 1.0 or 1, found the number 2
        1:26: gzip.buffers.number: expected a whole number, 1 or more, found the number 0
        1:22: brotli.comp_level: expected a whole number from 0 to 11, found the number 12
        1:16: brotli.mode: expected a whole number from 0 to 2, found the number 3
        1:17: brotli.lgwin: expected 0, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23 or 24, found the number 9; did you mean "19"?
        1:19: brotli.lgblock: expected 0, 16, 17, 18, 19, 20, 21, 22, 23 or 24, found the number 15; did you mean "16"?
        1:20: zstd.comp_level: expected a whole number from 1 to 9, found the number 0
        1:20: zstd.comp_level: expected a whole number from 1 to 9, found the number 10
        1:8: zstd.window: unknown key "window"; known keys: types, min_length, comp_level, http_version, vary
    "#]].assert_eq(&text);
    for good in
        ["gzip: {types: '*', buffers: {number: 1}}", "gzip: {http_version: 1}", "brotli: {lgwin: 0, lgblock: 24}"]
    {
        assert!(plugins(good).is_ok(), "{good}");
    }
}
