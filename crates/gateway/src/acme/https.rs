//! Requests to the ACME server: over our own TLS, each on a connection of its own, bounded in time and size.
//!
//! `instant-acme` would bring another TLS connector along; a dozen requests in two months need no pool.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use stillgate_tls::rustls::ClientConfig;
use stillgate_tls::rustls::pki_types::ServerName;
use stillgate_tls::{Peer, handshake_failure};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// For one request, from connecting to the last byte of the response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// For connecting to one address, so that one that nobody answers at leaves time for the next.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// However long the server wants to be left alone.
pub(crate) const RETRY_AFTER_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// The largest response. A chain of ten certificates is a tenth of it.
const RESPONSE_BYTES_MAX: usize = 256 * 1024;
const UNREACHED: &str = "can the gateway reach it?";
const AGENT: &str = concat!("stillgate/", env!("CARGO_PKG_VERSION"), " (ACME)");

/// How long the server wants to be left alone; what it said last, if anything.
pub(crate) type RetryAfter = Arc<Mutex<Option<Duration>>>;

/// Takes what the server said; nothing is left then.
pub(crate) fn take(retry_after: &RetryAfter) -> Option<Duration> {
    retry_after.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// What `instant-acme` makes its requests with.
pub(crate) struct Https {
    connector: TlsConnector,
    retry_after: RetryAfter,
    /// What an answer says of it that says nothing.
    or_after: Option<Duration>,
}

/// There is no answer that could be used.
#[derive(Debug)]
pub(crate) struct Unusable(String);

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unusable {}

impl Https {
    /// With these roots, and telling `retry_after` what the server says beside a refusal.
    pub(crate) fn new(tls: Arc<ClientConfig>, retry_after: RetryAfter) -> Https {
        Https { connector: TlsConnector::from(tls), retry_after, or_after: None }
    }

    /// Where the server does not say when to ask again, it is as if it had said this.
    pub(crate) fn or_after(self, after: Duration) -> Https {
        Https { or_after: Some(after), ..self }
    }
}

impl HttpClient for Https {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let (connector, retry_after, or_after) = (self.connector.clone(), self.retry_after.clone(), self.or_after);
        Box::pin(async move {
            let at = request.uri().clone();
            let answered = match timeout(REQUEST_TIMEOUT, exchange(&connector, request)).await {
                Ok(answered) => answered,
                Err(_) => Err(format!("no answer within {} s; {UNREACHED}", REQUEST_TIMEOUT.as_secs())),
            };
            let response = answered.and_then(|response| usable(response, &retry_after));
            let response = response.map_err(|error| Error::Other(Unusable(format!("{at}: {error}")).into()))?;
            let (mut parts, body) = response.into_parts();
            if let Some(after) = or_after {
                parts.headers.entry(RETRY_AFTER).or_insert(after.as_secs().into());
            }
            Ok(BytesResponse { parts, body: Box::new(body) })
        })
    }
}

async fn exchange(connector: &TlsConnector, request: Request<BodyWrapper<Bytes>>) -> Result<Response<Bytes>, String> {
    let (host, port) = authority(request.uri())?;
    let name = ServerName::try_from(host.to_owned()).map_err(|_| format!("{host:?} is no server's name"))?;
    let stream = connect(host, port).await.map_err(|error| format!("cannot connect: {error}; {UNREACHED}"))?;
    let stream = connector.connect(name, stream).await;
    let stream = stream.map_err(|error| format!("TLS: {}", handshake_failure(&error, Peer::AcmeServer)))?;
    let opened = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = opened.map_err(|error| error.to_string())?;
    // It ends when the response has been read, or is given up. What went wrong with it the response tells.
    tokio::spawn(async move { drop(connection.await) });
    let response = sender.send_request(in_origin_form(request)?).await.map_err(|error| error.to_string())?;
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await.map_err(|error| error.to_string())?;
    Ok(Response::from_parts(parts, body.to_bytes()))
}

/// Asks the system for addresses, as other programs on the machine that talk to the server do; the gateway's own resolver is
/// for names that it keeps up to date.
async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host((host, port)).await? {
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failed = error,
            Err(_) => failed = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(failed)
}

/// Where a URL leads. An address has no brackets.
fn authority(uri: &Uri) -> Result<(&str, u16), String> {
    match (uri.scheme_str(), uri.host()) {
        (Some("https"), Some(host)) => {
            Ok((host.trim_start_matches('[').trim_end_matches(']'), uri.port_u16().unwrap_or(443)))
        }
        // The server names these URLs.
        _ => Err("not an https URL".to_owned()),
    }
}

fn in_origin_form(mut request: Request<BodyWrapper<Bytes>>) -> Result<Request<BodyWrapper<Bytes>>, String> {
    let uri = request.uri().clone();
    let host = uri.authority().map_or("", |authority| authority.as_str());
    let host = HeaderValue::from_str(host).map_err(|error| error.to_string())?;
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    *request.uri_mut() = target.parse().map_err(|_| "not a URL".to_owned())?;
    request.headers_mut().insert(HOST, host);
    request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(AGENT));
    Ok(request)
}

/// What `instant-acme` can read. It takes any answer for JSON, a redirection for success, and adds any time to the present.
fn usable(mut response: Response<Bytes>, told: &RetryAfter) -> Result<Response<Bytes>, String> {
    let status = response.status();
    let after = retry_after(response.headers(), SystemTime::now());
    match after {
        Some(after) => drop(response.headers_mut().insert(RETRY_AFTER, after.as_secs().into())),
        None => drop(response.headers_mut().remove(RETRY_AFTER)),
    }
    if status.is_success() {
        return Ok(response);
    }
    *told.lock().unwrap_or_else(PoisonError::into_inner) = after;
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    match kind.starts_with("application/problem+json") {
        true => Ok(response),
        false if status.is_redirection() => {
            Err(format!("answered {status}; write the URL that it leads to in gateway.acme.directory"))
        }
        false => Err(format!("answered {status}, which is no answer of an ACME server; is the URL right?")),
    }
}

/// RFC 9110 section 10.2.3.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let after = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(now).ok()?,
    };
    Some(after.min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};
    use std::time::UNIX_EPOCH;
    use stillgate_tls::rustls::crypto::aws_lc_rs::default_provider;
    use stillgate_tls::rustls::pki_types::PrivatePkcs8KeyDer;
    use stillgate_tls::rustls::{RootCertStore, ServerConfig};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    /// What comes of a request to a server that answers `response`, by a client that trusts it or not.
    async fn fetched(response: Vec<u8>, is_trusted: bool) -> Result<BytesResponse, String> {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
        let mut roots = RootCertStore::empty();
        if is_trusted {
            roots.add(certificate.der().clone()).unwrap();
        }
        let builder = ServerConfig::builder_with_provider(default_provider().into());
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let server = builder.with_single_cert(vec![certificate.der().clone()], key).unwrap();
        let builder = ClientConfig::builder_with_provider(default_provider().into());
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let client = builder.with_root_certificates(roots).with_no_client_auth();

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server));
        let serving = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            // A client that does not trust it leaves, and one that has enough, too.
            let Ok(mut stream) = acceptor.accept(stream).await else { return };
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(&response).await;
            let _ = stream.shutdown().await;
        });
        let https = Https::new(Arc::new(client), RetryAfter::default()).or_after(Duration::from_secs(77));
        let request = Request::get(format!("https://{address}/dir")).body(BodyWrapper::default()).unwrap();
        let result = https.request(request).await;
        serving.await.unwrap();
        result.map_err(|error| {
            assert!(matches!(&error, Error::Other(error) if error.is::<Unusable>()), "{error:?}");
            error.to_string()
        })
    }

    /// The length of its body.
    async fn answered(response: Vec<u8>, is_trusted: bool) -> Result<usize, String> {
        let mut response = fetched(response, is_trusted).await?;
        Ok(response.body.into_bytes().await.unwrap().len())
    }

    #[tokio::test]
    async fn an_answer_without_retry_after_gets_one() {
        let check = async |head: &str, expected: &str| {
            let head = format!("HTTP/1.1 {head}Content-Type: application/problem+json\r\nContent-Length: 0\r\n\r\n");
            let response = fetched(head.into_bytes(), true).await.unwrap();
            assert_eq!(response.parts.headers[RETRY_AFTER], expected);
        };
        check("200 OK\r\n", "77").await;
        check("200 OK\r\nRetry-After: 5\r\n", "5").await;
        check("200 OK\r\nRetry-After: soon\r\n", "77").await;
        check("404 Not Found\r\n", "77").await;
    }

    #[tokio::test]
    async fn a_servers_answer_is_bounded_and_told_apart_from_others() {
        let ok = |body: usize| {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {body}\r\n\r\n");
            [head.into_bytes(), vec![b'x'; body]].concat()
        };
        assert_eq!(answered(ok(10), true).await, Ok(10));
        assert_eq!(answered(ok(RESPONSE_BYTES_MAX), true).await, Ok(RESPONSE_BYTES_MAX));
        let check = |result: Result<usize, String>, expected: &str| {
            let error = result.unwrap_err();
            assert!(error.starts_with("https://127.0.0.1:") && error.contains(expected), "{error}");
        };
        check(answered(ok(RESPONSE_BYTES_MAX + 1), true).await, "length limit exceeded");
        check(
            answered(ok(10), false).await,
            "TLS: its certificate leads to no root that is trusted; name its roots in `gateway.acme.ca`",
        );
        check(answered(b"SSH-2.0-OpenSSH_9.7\r\n".to_vec(), true).await, "invalid HTTP version");
        check(answered(Vec::new(), true).await, "connection closed before message completed");
        check(answered(ok(10)[..45].to_vec(), true).await, "");
        let html = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/html\r\nContent-Length: 0\r\n\r\n";
        check(answered(html.to_vec(), true).await, "503 Service Unavailable");
    }

    #[test]
    fn only_https_is_asked() {
        let check = |url: &str, expected: Result<(&str, u16), &str>| {
            let uri: Uri = url.parse().unwrap();
            assert_eq!(authority(&uri), expected.map_err(str::to_owned), "{url}");
        };
        check("https://acme.example/dir", Ok(("acme.example", 443)));
        check("https://127.0.0.1:14000/dir", Ok(("127.0.0.1", 14000)));
        check("https://[::1]:14000/dir", Ok(("::1", 14000)));
        check("http://acme.example/dir", Err("not an https URL"));
        check("/dir", Err("not an https URL"));
    }

    #[test]
    fn requests_are_as_a_server_wants_them() {
        let request = Request::post("https://a.example:14000/order?x=1").body(BodyWrapper::default()).unwrap();
        let request = in_origin_form(request).unwrap();
        assert_eq!(request.uri(), "/order?x=1");
        assert_eq!(request.headers()[HOST], "a.example:14000");
    }

    #[test]
    fn what_is_no_answer_of_an_acme_server_is_told() {
        let check = |status: u16, kind: &str, expected: Option<&str>| {
            let response = Response::builder().status(status).header(CONTENT_TYPE, kind).header(RETRY_AFTER, "90");
            let told = RetryAfter::default();
            let error = usable(response.body(Bytes::new()).unwrap(), &told).err();
            assert_eq!(error.is_some(), expected.is_some(), "{status} {kind}: {error:?}");
            assert!(error.unwrap_or_default().contains(expected.unwrap_or_default()), "{status} {kind}");
            assert_eq!(take(&told).is_some(), status >= 300);
            assert_eq!(take(&told), None);
        };
        check(200, "text/plain", None);
        check(429, "application/problem+json; charset=utf-8", None);
        check(502, "text/html", Some("502 Bad Gateway"));
        check(301, "", Some("write the URL that it leads to"));
    }

    #[test]
    fn no_answer_says_to_wait_for_ever() {
        let check = |value: &str, expected: Option<&str>| {
            let response = Response::builder().header(RETRY_AFTER, value).body(Bytes::new()).unwrap();
            let response = usable(response, &RetryAfter::default()).unwrap();
            assert_eq!(response.headers().get(RETRY_AFTER).map(|value| value.to_str().unwrap()), expected, "{value}");
        };
        check("18446744073709551615", Some("604800"));
        check("5", Some("5"));
        check("soon", None);
    }

    #[test]
    fn a_server_says_how_long_to_wait() {
        let now = UNIX_EPOCH + Duration::from_secs(784_111_777);
        let check = |value: &str, expected: Option<u64>| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, value.parse().unwrap())]);
            assert_eq!(retry_after(&headers, now), expected.map(Duration::from_secs), "{value}");
        };
        check("120", Some(120));
        check(" 0 ", Some(0));
        check("Sun, 06 Nov 1994 08:50:37 GMT", Some(60));
        check("Sun, 06 Nov 1994 08:48:37 GMT", None);
        check("604801", Some(604_800));
        check("18446744073709551615", Some(604_800));
        check("18446744073709551616", None);
        check("Fri, 31 Dec 9999 23:59:59 GMT", Some(604_800));
        check("soon", None);
        check("-1", None);
    }
}
