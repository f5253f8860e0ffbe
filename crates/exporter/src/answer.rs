//! Answers requests: with the exposition, or with a page that says where it is.
//!
//! The listening address decides who can reach it; there are no keys here. On loopback the requested host name is checked
//! (`hosts`).

use crate::source::{ExpositionSource, SendPermit, Unavailable};
use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame};
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, ALLOW, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER,
    VARY,
};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use stillgate_door::Stranger;
use stillgate_metrics::encode::Format;
use stillgate_metrics::reader::ExpositionCursor;

/// The query's key for the names of families.
const NAMES_KEY: &str = "name[]";

const PLAIN: &str = "text/plain; charset=utf-8";

/// The body of a response.
pub(crate) type Payload = Either<Full<Bytes>, ExpositionBody>;

/// Answers a request; the exposition's bytes are produced later, as the client takes them.
pub(crate) async fn answer<B>(
    request: &Request<B>,
    source: &Arc<ExpositionSource>,
    is_on_loopback: bool,
) -> Response<Payload> {
    let site = match source.site() {
        Ok(site) => site,
        Err(error) => return unavailable(&error),
    };
    if is_on_loopback && let Err(stranger) = site.hosts.check(request) {
        return refuse(&stranger);
    }
    let path = &site.path;
    let endpoint = match find(request.method(), request.uri().path(), path) {
        Ok(endpoint) => endpoint,
        Err(ScrapeRefusal::NoSuchPath) => {
            return text(StatusCode::NOT_FOUND, PLAIN, format!("404 Not Found: the metrics are at {path}\n"));
        }
        Err(ScrapeRefusal::MethodNotAllowed) => {
            let body = "405 Method Not Allowed: use GET\n".to_owned();
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, PLAIN, body);
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
    };
    match endpoint {
        ExporterPage::Index => text(StatusCode::OK, "text/html; charset=utf-8", index(path)),
        ExporterPage::Healthy => text(StatusCode::OK, PLAIN, "healthy\n".to_owned()),
        ExporterPage::Metrics => answer_scrape(request, source).await,
    }
}

/// Answers a request for the exposition, under whatever path and name.
pub(crate) async fn answer_scrape<B>(request: &Request<B>, source: &Arc<ExpositionSource>) -> Response<Payload> {
    match expose(request, source).await {
        Ok(response) => response,
        Err(error) => {
            source.tally.count_refused();
            unavailable(&error)
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum ExporterPage {
    Metrics,
    Index,
    Healthy,
}

#[derive(Debug, PartialEq, Eq)]
enum ScrapeRefusal {
    NoSuchPath,
    MethodNotAllowed,
}

/// Where APISIX exposes metrics unless `export_uri` says otherwise: scrape jobs for it find ours there, too.
const APISIX_PATH: &str = "/apisix/prometheus/metrics";

fn find(method: &Method, path: &str, metrics_path: &str) -> Result<ExporterPage, ScrapeRefusal> {
    let endpoint = match path {
        // First, since it may be one of the others.
        _ if path == metrics_path || path == APISIX_PATH => ExporterPage::Metrics,
        "/" => ExporterPage::Index,
        "/-/healthy" => ExporterPage::Healthy,
        _ => return Err(ScrapeRefusal::NoSuchPath),
    };
    match *method {
        Method::GET | Method::HEAD => Ok(endpoint),
        _ => Err(ScrapeRefusal::MethodNotAllowed),
    }
}

async fn expose<B>(request: &Request<B>, source: &Arc<ExpositionSource>) -> Result<Response<Payload>, Unavailable> {
    let place = source.place()?;
    source.refresh().await?;
    let choice = NegotiatedFormat::of(request.headers(), source.ranks_text_first()?);
    let body = match *request.method() {
        Method::HEAD => Either::Left(Full::default()),
        _ => {
            let names = names(request.uri().query().unwrap_or_default());
            let cursor = source.cursor(choice.format, choice.gzip, names)?;
            Either::Right(ExpositionBody::new(source.clone(), cursor, place))
        }
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(choice.content_type));
    headers.insert(VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
    if choice.gzip {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    Ok(response)
}

/// The requested families, as many as a head has room for; `None` for all.
fn names(query: &str) -> Option<Vec<String>> {
    let pairs = form_urlencoded::parse(query.as_bytes());
    let names: Vec<_> = pairs.filter(|(key, _)| key == NAMES_KEY).map(|(_, value)| value.into_owned()).collect();
    (!names.is_empty()).then_some(names)
}

fn refuse(stranger: &Stranger) -> Response<Payload> {
    let mut response = text(StatusCode::FORBIDDEN, PLAIN, format!("403 Forbidden: {stranger}\n"));
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

fn unavailable(error: &Unavailable) -> Response<Payload> {
    let status = match error {
        Unavailable::Collect(_) | Unavailable::Busy => StatusCode::SERVICE_UNAVAILABLE,
        Unavailable::Broken => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut response = text(status, PLAIN, format!("{status}: {error}\n"));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

fn text(status: StatusCode, content_type: &'static str, body: String) -> Response<Payload> {
    let mut response = Response::new(Either::Left(Full::new(Bytes::from(body))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn index(path: &str) -> String {
    let path = path.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;");
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><title>Stillgate exporter</title></head>\n\
         <body><h1>Stillgate exporter</h1><p><a href=\"{path}\">Metrics</a></p></body></html>\n"
    )
}

// An exposition on its way to one scraper, made as fast as it is taken and no faster.
//
// The server asks for a piece when its buffer has room. So a scraper that reads slowly pins that buffer and costs no
// work, and when it hangs up the stream is dropped, and nothing more is made.

/// After so much work, by the wall clock, the other tasks have their turn.
const SLICE: Duration = Duration::from_micros(500);

/// The body of a response.
#[derive(Debug)]
pub(crate) struct ExpositionBody {
    source: Arc<ExpositionSource>,
    cursor: ExpositionCursor,
    /// When the current slice began.
    slice: Option<Instant>,
    _place: SendPermit,
}

impl ExpositionBody {
    pub(crate) fn new(source: Arc<ExpositionSource>, cursor: ExpositionCursor, place: SendPermit) -> ExpositionBody {
        ExpositionBody { source, cursor, slice: None, _place: place }
    }
}

impl Body for ExpositionBody {
    type Data = Bytes;
    type Error = Unavailable;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Unavailable>>> {
        let this = self.get_mut();
        // The server continues as long as the socket accepts data, so ending the slice is up to us.
        let now = Instant::now();
        if now - *this.slice.get_or_insert(now) >= SLICE {
            this.slice = None;
            this.source.work.notify_one();
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let piece = this.source.next(&mut this.cursor).transpose();
        Poll::Ready(piece.map(|piece| piece.map(|piece| Frame::data(Bytes::from_owner(piece)))))
    }
}

// Negotiates the format: `Accept` and `Accept-Encoding` (RFC 9110, section 12.5).
//
// The rules are those of Go's `expfmt.NegotiateIncludingOpenMetrics`, since scrapers are written for it: the best quality wins,
// then a name before `*`, then the first; and a client that accepts no supported format gets the text format instead of a 406. If
// OpenMetrics cannot declare a counter (`apisix_http_status`), clients that also accept text get text: a receiver that goes by the
// types would take a counter for a gauge. Parameters such as `escaping` are ignored: all names are plain ones.

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
    /// The best choice for these fields of a request; `ranks_text_first` ranks text before OpenMetrics.
    pub(crate) fn of(headers: &HeaderMap, ranks_text_first: bool) -> NegotiatedFormat {
        let (format, content_type) = format(headers, ranks_text_first);
        NegotiatedFormat { format, content_type, gzip: gzip(headers) }
    }
}

fn format(headers: &HeaderMap, ranks_text_first: bool) -> (Format, &'static str) {
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
    if ranks_text_first && accepts_text && is_openmetrics { text } else { best }
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

    #[test]
    fn what_is_found() {
        let check = |method: Method, path: &str, metrics_path: &str, expected| {
            assert_eq!(find(&method, path, metrics_path), expected, "{method} {path}");
        };
        check(Method::GET, "/metrics", "/metrics", Ok(ExporterPage::Metrics));
        check(Method::HEAD, "/metrics", "/metrics", Ok(ExporterPage::Metrics));
        check(Method::GET, "/metrics/", "/metrics", Err(ScrapeRefusal::NoSuchPath));
        check(Method::GET, "/metrics", "/m", Err(ScrapeRefusal::NoSuchPath));
        check(Method::GET, "/apisix/prometheus/metrics", "/m", Ok(ExporterPage::Metrics));
        check(Method::GET, "/apisix/prometheus/metrics/", "/m", Err(ScrapeRefusal::NoSuchPath));
        check(Method::GET, "/", "/metrics", Ok(ExporterPage::Index));
        check(Method::GET, "/", "/", Ok(ExporterPage::Metrics));
        check(Method::GET, "/-/healthy", "/metrics", Ok(ExporterPage::Healthy));
        check(Method::POST, "/metrics", "/metrics", Err(ScrapeRefusal::MethodNotAllowed));
        check(Method::POST, "/x", "/metrics", Err(ScrapeRefusal::NoSuchPath));
    }

    #[test]
    fn names_of_families() {
        let check = |query: &str, expected: &[&str]| assert_eq!(names(query).unwrap_or_default(), expected, "{query}");
        check("", &[]);
        check("name[]=a", &["a"]);
        check("name%5B%5D=a_total&x=1&name[]=b%20c+d", &["a_total", "b c d"]);
        check("name=a&Name[]=b", &[]);
        // An invalid name matches no family, and does not select all.
        check("name[]", &[""]);
        check("name[]=%zz&name[]=%ff", &["%zz", "\u{fffd}"]);
    }

    #[test]
    fn a_path_is_not_markup() {
        assert!(index("/a\"><b&").contains("<a href=\"/a&quot;>&lt;b&amp;\">"));
    }
}

#[cfg(test)]
mod negotiation_tests {
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
