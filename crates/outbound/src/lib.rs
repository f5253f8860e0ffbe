//! One HTTP request to a server that the operator named, over TLS or not, on a connection of its own.
//!
//! For callers that send few requests: to an ACME server, a secret manager, the Admin API of another gateway. The connection is
//! closed after the response, and redirections are not followed. Time and the size of the response are bounded.

#![forbid(unsafe_code)]

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Body;
use hyper::header::{HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::io;
use std::time::Duration;
use stillgate_tls::rustls;
use stillgate_tls::rustls::pki_types::ServerName;
use stillgate_tls::{Peer, handshake_failure};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// For connecting to one address, so that an address that does not answer leaves time for the next.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Ends messages about servers that were not reached.
pub const UNREACHED: &str = "can the gateway reach it?";

/// How to send requests to one kind of server.
pub struct HttpClient {
    /// `None`: only `http` URLs are requested.
    pub tls: Option<TlsConnector>,
    /// Whether `http` URLs may be requested.
    pub allows_plain: bool,
    /// What messages about failed handshakes advise on.
    pub peer: Peer,
    /// `User-Agent`
    pub agent: &'static str,
    /// For one request, from connecting to the last byte of the response.
    pub timeout: Duration,
    /// The largest body of a response.
    pub response_bytes_max: usize,
}

impl HttpClient {
    /// Sends a request with an absolute URL and reads the whole response. The error is one line without the URL.
    pub async fn send<B>(&self, request: Request<B>) -> Result<Response<Bytes>, String>
    where
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        match timeout(self.timeout, self.exchange(request)).await {
            Ok(answered) => answered,
            Err(_) => Err(format!("no answer within {} s; {UNREACHED}", self.timeout.as_secs())),
        }
    }

    async fn exchange<B>(&self, request: Request<B>) -> Result<Response<Bytes>, String>
    where
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let uri = request.uri().clone();
        let origin = UrlOrigin::of(&uri, self.allows_plain)?;
        let tls = match (origin.is_tls, &self.tls) {
            (true, Some(tls)) => Some((tls, origin.server_name()?)),
            (true, None) => return Err("TLS is not set up".to_owned()),
            (false, _) => None,
        };
        let request = self.in_origin_form(request)?;
        let stream = connect(&origin).await.map_err(|error| format!("cannot connect: {error}; {UNREACHED}"))?;
        match tls {
            None => self.over(stream, false, request).await,
            Some((tls, name)) => {
                let stream = tls.connect(name, stream).await;
                let stream = stream.map_err(|error| format!("TLS: {}", handshake_failure(&error, self.peer)))?;
                self.over(stream, true, request).await
            }
        }
    }

    async fn over<S, B>(&self, stream: S, is_tls: bool, request: Request<B>) -> Result<Response<Bytes>, String>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let opened = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = opened.map_err(|error| self.failed(&error, is_tls))?;
        // It ends when the response has been read or is given up. The response says what went wrong with it.
        tokio::spawn(async move { drop(connection.await) });
        let response = sender.send_request(request).await.map_err(|error| self.failed(&error, is_tls))?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, self.response_bytes_max).collect().await.map_err(|error| error.to_string())?;
        Ok(Response::from_parts(parts, body.to_bytes()))
    }

    /// Why there is no response.
    fn failed(&self, error: &hyper::Error, is_tls: bool) -> String {
        // In TLS 1.3 a server refuses a client's certificate when the handshake is over to the client.
        let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        match io.filter(|io| io.get_ref().is_some_and(|cause| cause.is::<rustls::Error>())) {
            Some(io) => format!("TLS: {}", handshake_failure(io, self.peer)),
            None if error.is_parse() && !is_tls => {
                format!("the response is not HTTP ({error}); if it speaks TLS, write https://")
            }
            None => error.to_string(),
        }
    }

    fn in_origin_form<B>(&self, mut request: Request<B>) -> Result<Request<B>, String> {
        let uri = request.uri().clone();
        let host = uri.authority().map_or("", |authority| authority.as_str());
        let host = HeaderValue::from_str(host).map_err(|error| error.to_string())?;
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        *request.uri_mut() = target.parse().map_err(|_| "not a URL".to_owned())?;
        request.headers_mut().insert(HOST, host);
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(self.agent));
        Ok(request)
    }
}

/// Where a URL leads.
#[derive(Debug, PartialEq)]
struct UrlOrigin<'a> {
    is_tls: bool,
    /// An address has no brackets.
    host: &'a str,
    port: u16,
}

impl UrlOrigin<'_> {
    fn of(uri: &Uri, allows_plain: bool) -> Result<UrlOrigin<'_>, String> {
        let host = uri.host().map(|host| host.trim_start_matches('[').trim_end_matches(']'));
        let (is_tls, port) = match uri.scheme_str() {
            Some("https") => (true, 443),
            Some("http") if allows_plain => (false, 80),
            _ if allows_plain => return Err("not an http or https URL".to_owned()),
            _ => return Err("not an https URL".to_owned()),
        };
        let host = host.ok_or_else(|| "the URL has no host".to_owned())?;
        Ok(UrlOrigin { is_tls, host, port: uri.port_u16().unwrap_or(port) })
    }

    fn server_name(&self) -> Result<ServerName<'static>, String> {
        ServerName::try_from(self.host.to_owned()).map_err(|_| format!("{:?} is not the name of a server", self.host))
    }
}

/// Looks the host up with the system's resolver, as other programs on the machine do; the gateway's own resolver is for names that
/// it keeps up to date.
async fn connect(origin: &UrlOrigin<'_>) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host((origin.host, origin.port)).await? {
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failed = error,
            Err(_) => failed = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_leads_to_a_host_and_a_port() {
        let check = |url: &str, allows_plain: bool, expected: Result<(bool, &str, u16), &str>| {
            let uri: Uri = url.parse().unwrap();
            let origin = UrlOrigin::of(&uri, allows_plain).map(|origin| (origin.is_tls, origin.host, origin.port));
            assert_eq!(origin, expected.map_err(str::to_owned), "{url}");
        };
        check("https://acme.example/dir", false, Ok((true, "acme.example", 443)));
        check("https://127.0.0.1:14000/dir", false, Ok((true, "127.0.0.1", 14000)));
        check("https://[::1]:14000/dir", true, Ok((true, "::1", 14000)));
        check("http://vault.example:8200/v1", true, Ok((false, "vault.example", 8200)));
        check("http://[::1]/v1", true, Ok((false, "::1", 80)));
        check("http://acme.example/dir", false, Err("not an https URL"));
        check("/dir", false, Err("not an https URL"));
        check("ftp://vault.example/", true, Err("not an http or https URL"));
    }

    #[test]
    fn a_server_gets_the_path_and_its_own_name() {
        let client = HttpClient {
            tls: None,
            allows_plain: true,
            peer: Peer::AcmeServer,
            agent: "a test",
            timeout: Duration::from_secs(1),
            response_bytes_max: 1,
        };
        let request = Request::post("https://a.example:14000/order?x=1").body(()).unwrap();
        let request = client.in_origin_form(request).unwrap();
        assert_eq!(request.uri(), "/order?x=1");
        assert_eq!(request.headers()[HOST], "a.example:14000");
        assert_eq!(request.headers()[USER_AGENT], "a test");
    }
}
