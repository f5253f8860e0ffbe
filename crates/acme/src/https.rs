//! Requests to the ACME server, over our own TLS.
//!
//! `instant-acme` would bring another TLS connector along; a dozen requests in two months need no pool.

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use hyper::{Request, Response};
use instant_acme::{BodyWrapper, BytesResponse, Error};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use stillgate_outbound::HttpClient;
use stillgate_tls::Peer;
use stillgate_tls::rustls::ClientConfig;
use tokio_rustls::TlsConnector;

/// The time limit for one request, from connecting to the last byte of the response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest pause that a server can request.
pub(crate) const RETRY_AFTER_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// The largest response. A chain of ten certificates is a tenth of it.
const RESPONSE_BYTES_MAX: usize = 256 * 1024;
const AGENT: &str = concat!("stillgate/", env!("CARGO_PKG_VERSION"), " (ACME)");

/// The pause that the server requested last, if any.
pub(crate) type RetryAfter = Arc<Mutex<Option<Duration>>>;

/// Takes the requested pause and leaves nothing.
pub(crate) fn take_retry_after(retry_after: &RetryAfter) -> Option<Duration> {
    retry_after.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// The HTTP client of `instant-acme`.
pub(crate) struct Https {
    client: Arc<HttpClient>,
    retry_after: RetryAfter,
    /// The pause assumed for an answer without `Retry-After`.
    or_after: Option<Duration>,
}

/// The response cannot be used, or none came.
#[derive(Debug)]
pub(crate) struct Unusable(String);

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unusable {}

impl Https {
    /// Makes a client that trusts these roots and records in `retry_after` the pause that comes with a refusal.
    pub(crate) fn new(tls: Arc<ClientConfig>, retry_after: RetryAfter) -> Https {
        let client = HttpClient {
            tls: Some(TlsConnector::from(tls)),
            allows_plain: false,
            peer: Peer::AcmeServer,
            agent: AGENT,
            timeout: REQUEST_TIMEOUT,
            response_bytes_max: RESPONSE_BYTES_MAX,
        };
        Https { client: Arc::new(client), retry_after, or_after: None }
    }

    /// Sets the pause that is assumed if the server does not send one.
    pub(crate) fn or_after(self, after: Duration) -> Https {
        Https { or_after: Some(after), ..self }
    }
}

impl instant_acme::HttpClient for Https {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let (client, retry_after, or_after) = (self.client.clone(), self.retry_after.clone(), self.or_after);
        Box::pin(async move {
            let at = request.uri().clone();
            let response = client.send(request).await.and_then(|response| usable(response, &retry_after));
            let response = response.map_err(|error| Error::Other(Unusable(format!("{at}: {error}")).into()))?;
            let (mut parts, body) = response.into_parts();
            if let Some(after) = or_after {
                parts.headers.entry(RETRY_AFTER).or_insert(after.as_secs().into());
            }
            Ok(BytesResponse { parts, body: Box::new(body) })
        })
    }
}

/// Makes a response that `instant-acme` can read: it takes any response for JSON and a redirection for success, and adds any
/// duration to the present.
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
        false => Err(format!("answered {status}, which is not an answer of an ACME server; is the URL right?")),
    }
}

/// Parses `Retry-After` (RFC 9110 section 10.2.3).
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
    use instant_acme::HttpClient as _;
    use rcgen::{CertificateParams, KeyPair};
    use std::time::UNIX_EPOCH;
    use stillgate_tls::rustls::crypto::aws_lc_rs::default_provider;
    use stillgate_tls::rustls::pki_types::PrivatePkcs8KeyDer;
    use stillgate_tls::rustls::{RootCertStore, ServerConfig};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    /// Requests a resource from a server that answers `response`; the client trusts the server or does not.
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
            // A client that does not trust the server disconnects, and so does one that has read enough.
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

    /// Returns the length of the response's body.
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
    async fn a_servers_answer_is_bounded_and_distinguished_from_others() {
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
    fn what_is_not_an_answer_of_an_acme_server_is_reported() {
        let check = |status: u16, kind: &str, expected: Option<&str>| {
            let response = Response::builder().status(status).header(CONTENT_TYPE, kind).header(RETRY_AFTER, "90");
            let told = RetryAfter::default();
            let error = usable(response.body(Bytes::new()).unwrap(), &told).err();
            assert_eq!(error.is_some(), expected.is_some(), "{status} {kind}: {error:?}");
            assert!(error.unwrap_or_default().contains(expected.unwrap_or_default()), "{status} {kind}");
            assert_eq!(take_retry_after(&told).is_some(), status >= 300);
            assert_eq!(take_retry_after(&told), None);
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
