//! Negotiates the format: `Accept` and `Accept-Encoding` (RFC 9110, section 12.5).
//!
//! The rules are those of Go's `expfmt.NegotiateIncludingOpenMetrics`, since scrapers are written for it: the best quality wins,
//! then a name before `*`, then the first; and a client that accepts no supported format gets the text format instead of a 406. If
//! OpenMetrics cannot declare a counter (`apisix_http_status`), clients that also accept text get text: a receiver that goes by the
//! types would take a counter for a gauge. Parameters such as `escaping` are ignored: all names are plain ones.

use hyper::HeaderMap;
use hyper::header::{ACCEPT, ACCEPT_ENCODING, HeaderName};
use stillgate_metrics::encode::Format;

/// The type of OpenMetrics' first draft, whose text is the same. Scrapers that know only this one must see it named.
const OPENMETRICS_DRAFT: &str = "application/openmetrics-text; version=0.0.1; charset=utf-8";

/// The only supported message in protobuf.
const MESSAGE: &str = "io.prometheus.client.MetricFamily";

/// How an exposition is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NegotiatedFormat {
    pub(crate) format: Format,
    /// The `Content-Type`.
    pub(crate) content_type: &'static str,
    pub(crate) gzip: bool,
}

impl NegotiatedFormat {
    /// The best choice for these fields of a request; `prefers_text` ranks text before OpenMetrics.
    pub(crate) fn of(headers: &HeaderMap, prefers_text: bool) -> NegotiatedFormat {
        let (format, content_type) = format(headers, prefers_text);
        NegotiatedFormat { format, content_type, gzip: gzip(headers) }
    }
}

fn format(headers: &HeaderMap, prefers_text: bool) -> (Format, &'static str) {
    let text = (Format::Text, Format::Text.content_type());
    let (mut best, mut best_rank) = (text, (Quality::NONE, false));
    let mut accepts_text = false;
    for clause in values(headers, &ACCEPT).flat_map(Clause::list) {
        let Some(offered) = offered(&clause).filter(|_| clause.quality > Quality::NONE) else { continue };
        accepts_text |= offered == text;
        // A later one of the same rank is not better.
        let rank = (clause.quality, !clause.name.contains('*'));
        if rank > best_rank {
            (best, best_rank) = (offered, rank);
        }
    }
    let is_openmetrics = best.0 == Format::OpenMetrics;
    if prefers_text && accepts_text && is_openmetrics { text } else { best }
}

/// The format that a clause of `Accept` requests, if it is supported.
fn offered(clause: &Clause<'_>) -> Option<(Format, &'static str)> {
    let of = |format: Format| Some((format, format.content_type()));
    let version = clause.parameter("version");
    match clause.name.to_ascii_lowercase().as_str() {
        "application/openmetrics-text" => match version {
            None | Some("1.0.0") => of(Format::OpenMetrics),
            Some("0.0.1") => Some((Format::OpenMetrics, OPENMETRICS_DRAFT)),
            Some(_) => None,
        },
        "application/vnd.google.protobuf" => {
            let is_known = clause.parameter("proto") == Some(MESSAGE);
            let is_delimited = matches!(clause.parameter("encoding"), Some("delimited"));
            if is_known && is_delimited { of(Format::Protobuf) } else { None }
        }
        "text/plain" if matches!(version, None | Some("0.0.4")) => of(Format::Text),
        "text/*" | "*/*" => of(Format::Text),
        _ => None,
    }
}

/// Whether gzip is accepted, and not less than no coding where that is named.
fn gzip(headers: &HeaderMap) -> bool {
    let (mut gzip, mut any, mut identity) = (None, None, Quality::NONE);
    for clause in values(headers, &ACCEPT_ENCODING).flat_map(Clause::list) {
        match clause.name.to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => gzip = gzip.max(Some(clause.quality)),
            "*" => any = any.max(Some(clause.quality)),
            "identity" => identity = clause.quality,
            _ => {}
        }
    }
    let gzip = gzip.or(any).unwrap_or(Quality::NONE);
    gzip > Quality::NONE && gzip >= identity
}

/// All values of a field; one that is not ASCII accepts nothing.
fn values<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok())
}

/// In thousandths, as RFC 9110 section 12.4.2 has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Quality(u16);

impl Quality {
    const NONE: Quality = Quality(0);
    const FULL: Quality = Quality(1000);

    /// `None`: not a quality.
    fn parse(text: &str) -> Option<Quality> {
        let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
        if decimals.len() > 3 || !decimals.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let thousandths = format!("{decimals:0<3}").parse().ok()?;
        match whole {
            "0" => Some(Quality(thousandths)),
            "1" if thousandths == 0 => Some(Quality::FULL),
            _ => None,
        }
    }
}

/// One of the alternatives that a field lists.
#[derive(Debug)]
struct Clause<'a> {
    name: &'a str,
    /// Everything behind the name.
    parameters: &'a str,
    quality: Quality,
}

impl<'a> Clause<'a> {
    /// The alternatives of a field's value. Those with an invalid quality are left out.
    fn list(value: &'a str) -> impl Iterator<Item = Clause<'a>> {
        split(value, ',').filter_map(|clause| {
            let (name, parameters) = clause.split_once(';').unwrap_or((clause, ""));
            let mut clause = Clause { name: name.trim(), parameters, quality: Quality::FULL };
            if let Some(quality) = clause.parameter("q") {
                clause.quality = Quality::parse(quality)?;
            }
            (!clause.name.is_empty()).then_some(clause)
        })
    }

    fn parameter(&self, name: &str) -> Option<&'a str> {
        let mut parameters = split(self.parameters, ';').filter_map(|parameter| parameter.split_once('='));
        let (_, value) = parameters.find(|(found, _)| found.trim().eq_ignore_ascii_case(name))?;
        let value = value.trim();
        // No value that matters has anything in it that would need a backslash.
        Some(value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value))
    }
}

/// Splits where the separator is not quoted.
fn split(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    let mut is_escaped = false;
    text.split(move |char| {
        match char {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            _ => {}
        }
        char == separator && !is_quoted
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;
    use stillgate_testkit::{ACCEPT_OPENMETRICS, ACCEPT_PROTOBUF, ACCEPT_TEXT};

    fn headers(name: HeaderName, values: &[&str]) -> HeaderMap {
        let value = |value: &&str| (name.clone(), HeaderValue::from_str(value).unwrap());
        values.iter().map(value).collect()
    }

    #[test]
    fn formats() {
        fn check(accept: &[&str], expected: Format) {
            let (found, content_type) = format(&headers(ACCEPT, accept), false);
            assert_eq!(found, expected, "{accept:?}");
            assert_eq!(content_type, expected.content_type(), "{accept:?}");
        }
        use Format::{OpenMetrics, Protobuf, Text};
        check(&[], Text);
        check(&[""], Text);
        check(&["*/*"], Text);
        check(&["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"], Text);
        check(&[ACCEPT_TEXT], Text);
        check(&[ACCEPT_OPENMETRICS], OpenMetrics);
        check(&[ACCEPT_PROTOBUF], Protobuf);
        // Prometheus 3 with native histograms, and without.
        let three = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,\
            application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
            application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
            text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        check(&[three], Protobuf);
        check(&[three.split_once(',').unwrap().1], OpenMetrics);
        check(&["application/openmetrics-text"], OpenMetrics);
        check(&["application/openmetrics-text; version=\"1.0.0\" ; charset=utf-8"], OpenMetrics);
        check(&["Application/OpenMetrics-Text; VERSION=1.0.0"], OpenMetrics);
        check(&["application/openmetrics-text;version=2.0.0, text/plain;q=0.1"], Text);
        check(&["application/openmetrics-text;q=0, */*"], Text);
        check(&["application/openmetrics-text;q=0"], Text);
        check(&["application/openmetrics-text;q=0.0001"], Text);
        check(&["application/openmetrics-text;q=high"], Text);
        check(&["application/openmetrics-text;q=0.5,text/plain;q=0.500"], OpenMetrics);
        check(&["text/plain;q=0.5,application/openmetrics-text;q=0.5"], Text);
        check(&["*/*,application/openmetrics-text"], OpenMetrics);
        check(&["text/plain;q=0.5", "application/openmetrics-text;q=0.7"], OpenMetrics);
        check(&["application/vnd.google.protobuf"], Text);
        check(&["application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text"], Text);
        check(&["application/x;a=\"q,application/openmetrics-text;\\\",\""], Text);
        check(&["application/json"], Text);
        check(&[";;;,,,=;q"], Text);
    }

    #[test]
    fn the_draft_is_named_to_those_who_know_only_it() {
        let accept = "application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(format(&headers(ACCEPT, &[accept]), false), (Format::OpenMetrics, OPENMETRICS_DRAFT));
    }

    #[test]
    fn where_text_is_preferred_openmetrics_is_for_those_who_accept_nothing_else() {
        fn check(accept: &[&str], expected: Format) {
            assert_eq!(format(&headers(ACCEPT, accept), true).0, expected, "{accept:?}");
        }
        use Format::{OpenMetrics, Protobuf, Text};
        check(&[], Text);
        check(&[ACCEPT_PROTOBUF], Protobuf);
        check(&["application/openmetrics-text"], OpenMetrics);
        check(
            &["application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.5"],
            OpenMetrics,
        );
        check(&["application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"], Text);
        check(&["application/openmetrics-text", "text/plain;q=0.001"], Text);
        check(&["application/openmetrics-text,*/*;q=0.1"], Text);
        check(&["application/openmetrics-text,text/plain;q=0,*/*;q=0"], OpenMetrics);
        check(&["application/openmetrics-text,text/plain;version=1.0.0,application/json"], OpenMetrics);
    }

    #[test]
    fn codings() {
        fn check(accepted: &[&str], expected: bool) {
            assert_eq!(gzip(&headers(ACCEPT_ENCODING, accepted)), expected, "{accepted:?}");
        }
        check(&[], false);
        check(&[""], false);
        check(&["gzip"], true);
        check(&["GZIP"], true);
        check(&["x-gzip"], true);
        check(&["deflate, gzip;q=1.0, *;q=0.5"], true);
        check(&["gzip;q=0"], false);
        check(&["gzip;q=0.000, *"], false);
        check(&["gzip;q=0.001"], true);
        check(&["*"], true);
        check(&["*;q=0"], false);
        check(&["identity"], false);
        check(&["identity, gzip"], true);
        check(&["identity;q=1, gzip;q=0.5"], false);
        check(&["br", "gzip"], true);
        check(&["gzip;q=2"], false);
        check(&["br;q=1, zstd"], false);
    }
}
