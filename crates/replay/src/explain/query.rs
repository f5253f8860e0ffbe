//! The parameters of `GET /v1/explain?…`, and the request that they describe.
//!
//! Every invalid parameter is reported; nothing is guessed.

use super::request_head::{ClientAddress, HeaderArgument, RequestHead, RequestLine};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// A request to explain.
#[derive(Debug, PartialEq, Eq)]
pub struct ExplainQuery {
    /// The request.
    pub head: RequestHead,
    /// The id of a route to describe in any case.
    pub route: Option<String>,
    /// The name of the consumer that makes the request.
    pub consumer: Option<String>,
}

/// The allowed parameters. Each may occur once, except `header`.
const PARAMETERS: &str = "url, host, method, header, client, server, sni, route and consumer";

impl ExplainQuery {
    /// Parses a raw query; an error is a sentence for the user.
    pub fn parse(query: &str) -> Result<ExplainQuery, String> {
        let (mut url, mut host, mut method) = (None, None, None);
        let (mut client, mut server, mut sni, mut route, mut consumer) = (None, None, None, None, None);
        let mut headers = Vec::new();
        // Bytes that are not UTF-8 are read as U+FFFD, so a query may contain that character only if it is encoded as itself.
        let is_written = query.contains('\u{fffd}') || query.to_ascii_lowercase().contains("%ef%bf%bd");
        let is_lossy = |value: &str| value.contains('\u{fffd}') && !is_written;
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let once = match &*name {
                "url" => &mut url,
                "host" => &mut host,
                "method" => &mut method,
                "client" => &mut client,
                "server" => &mut server,
                "sni" => &mut sni,
                "route" => &mut route,
                "consumer" => &mut consumer,
                "header" => {
                    if is_lossy(&value) {
                        return Err("header: bytes that are not UTF-8 cannot be asked about".to_owned());
                    }
                    let header: HeaderArgument = value.parse().map_err(|error| format!("header: {error}"))?;
                    headers.push((header.name, header.value));
                    continue;
                }
                unknown => return Err(format!("unknown parameter {unknown:?}; there are {PARAMETERS}")),
            };
            if is_lossy(&value) {
                return Err(format!(
                    "{name}: bytes that are not UTF-8 cannot be asked about; write %25ff for a \"%ff\" of the url"
                ));
            }
            if once.replace(value.into_owned()).is_some() {
                return Err(format!("{name} is listed twice; remove one"));
            }
        }
        let url = url.ok_or("url is missing; write url=http://host/path, or url=/path&host=HOST")?;
        let line = RequestLine::new(method.as_deref().unwrap_or("GET"), &url).map_err(|wrong| {
            format!("{wrong}; write url=http://host/path with method=GET, and %25 for a \"%\" and %26 for a \"&\" of the url")
        })?;
        if line.authority.is_some() && host.is_some() {
            return Err("host: the url has one already; remove one of them".to_owned());
        }
        let client = match client {
            Some(client) => client.parse().map_err(|wrong| format!("client: {wrong}"))?,
            None => ClientAddress { address: IpAddr::V4(Ipv4Addr::LOCALHOST), port: None },
        };
        let RequestLine { method, scheme, authority, target } = line;
        let mut head = RequestHead { method, scheme, target, ..RequestHead::new(client.address) };
        client.port.into_iter().for_each(|port| head.set_client_port(port));
        head.authority = authority.or(host).unwrap_or_default();
        if let Some(server) = server {
            let server: SocketAddr = server.parse().map_err(|_| {
                format!(
                    "server: {server:?} is not an address with a port; write it as 192.0.2.1:80 or [2001:db8::1]:80"
                )
            })?;
            head.set_server(server);
        }
        head.add_headers(headers);
        head.set_sni(sni.as_deref()).map_err(|wrong| format!("sni: {wrong}"))?;
        if let Some(flaw) = head.flaw() {
            return Err(format!("this request cannot be routed: {flaw}"));
        }
        Ok(ExplainQuery { head, route, consumer })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries() {
        let head = |query: &str| ExplainQuery::parse(query).unwrap().head;
        let all = "url=http%3A%2F%2Fa.example%3A81%2Fp%3Fq%3D1%26r%3D%252F&method=PUT&client=::1&route=r%201&consumer=c\
                   &header=X-A:+1&header=x-a:2&header=host:ignored";
        let ExplainQuery { head: found, route, consumer } = ExplainQuery::parse(all).unwrap();
        assert_eq!((route.as_deref(), consumer.as_deref()), (Some("r 1"), Some("c")));
        assert_eq!((found.method.as_str(), found.scheme.as_str()), ("PUT", "http"));
        assert_eq!((found.authority.as_str(), found.target.as_str()), ("a.example:81", "/p?q=1&r=%2F"));
        assert_eq!(found.client.to_string(), "::1");
        assert_eq!(found.headers, [("X-A", "1"), ("x-a", "2")].map(|(n, v)| (n.to_owned(), v.to_owned())));
        assert_eq!(head("url=/p&server=[::1]:81").known.len(), 2);
        assert_eq!(head("url=/p&host=h").authority, "h");
        assert_eq!(head("url=/p&header=Host:h").authority, "h");
        assert_eq!((head("url=/p").method.as_str(), head("url=/p").authority.as_str()), ("GET", ""));
        assert_eq!(head("url=/p").client.to_string(), "127.0.0.1");
        assert_eq!(head("url=/p&client=[::1]:5").client.to_string(), "::1");
        assert_eq!(head("url=/p&client=[::1]:5&server=127.0.0.1:80").not_known().count(), 0);
        assert_eq!(head("url=/p").not_known().count(), 3);
        let sni = |query: &str| head(query).known.first().map(|(_, name)| name.clone());
        assert_eq!(sni("url=https://A.example.:81/").as_deref(), Some("a.example"));
        assert_eq!(sni("url=https://a.example/&sni=B.example").as_deref(), Some("b.example"));
        for none in
            ["url=http://a.example/", "url=https://a.example/&sni=", "url=https://[::1]:81/", "url=https://10.0.0.1/"]
        {
            assert_eq!(sni(none), None, "{none}");
        }
    }

    #[test]
    fn what_is_wrong_is_reported() {
        let check = |query: &str, expected: &str| {
            let error = ExplainQuery::parse(query).unwrap_err();
            assert!(error.starts_with(expected), "{query}: {error}");
        };
        check("", "url is missing");
        check("method=GET", "url is missing");
        check("url=", "\"\" is not an http or https URL; write");
        check("url=/a&url=/b", "url is listed twice");
        check("uri=/a", "unknown parameter \"uri\"; there are url,");
        check("url=ftp://h/", "\"ftp://h/\" is not an http or https URL; write");
        check("url=/a%20b", "\"/a b\" holds ' ', which");
        check("url=/a%0d%0ab", "\"/a\\r\\nb\" holds '\\r', which");
        check("url=/&method=G%20T", "\"G T\" is not a method; write");
        check("url=/&method=", "\"\" is not a method");
        check("url=/&header=a", "header: \"a\" is not a header field; write");
        check("url=/&client=me", "client: \"me\" is not an address; write");
        check("url=/%ff", "url: bytes that are not UTF-8 cannot be asked about");
        check("url=/&header=x:%ff", "header: bytes that are not UTF-8 cannot be asked about");
        check("url=/&header=x:%01", "this request cannot be routed: the value of \"x\" holds a control character");
        check("url=/&server=127.0.0.1", "server: \"127.0.0.1\" is not an address with a port; write");
        check("url=/&host=a,b", "this request cannot be routed: \"a,b\" is not a host");
        check("url=http://a,b/", "this request cannot be routed: \"a,b\" is not a host");
        check("url=http://h/&sni=i", "sni: only a request through TLS has a server name; write");
        check("url=https://h/&sni=10.0.0.1", "sni: \"10.0.0.1\" is an address");
        check("url=https://h/&sni=h&sni=i", "sni is listed twice");
        check("url=http://h/&host=i", "host: the url has one already");
    }
}
