//! Answers requests: with the exposition, or with a page that says where it is.
//!
//! The listening address decides who can reach it; there are no keys here. On loopback the requested host name is checked
//! (`hosts`).

use crate::negotiation::NegotiatedFormat;
use crate::source::{ExpositionSource, Unavailable};
use crate::stream::ExpositionBody;
use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::header::{ALLOW, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, RETRY_AFTER, VARY};
use hyper::{Method, Request, Response, StatusCode};
use std::sync::Arc;
use stillgate_door::Stranger;

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
            source.tally.refused();
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
    let choice = NegotiatedFormat::of(request.headers(), source.prefers_text()?);
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
