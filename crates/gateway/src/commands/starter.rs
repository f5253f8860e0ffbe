//! Builds a configuration from a few options: one address, one route, one upstream.
//!
//! `stillgate proxy` serves this text and prints it with `--print-config`; `stillgate init` writes it to a file. It passes the same
//! checks as a file that a person wrote.

use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// Address of the admin API, as in the documentation.
pub(super) const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9180);

/// How requests to a node are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpstreamScheme {
    Http,
    Https,
}

impl UpstreamScheme {
    /// As the key `scheme` of an upstream has it.
    fn name(self) -> &'static str {
        match self {
            UpstreamScheme::Http => "http",
            UpstreamScheme::Https => "https",
        }
    }
}

/// A server that requests are forwarded to: `HOST:PORT`, `:PORT` on this machine, `http://HOST` or `https://HOST`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UpstreamNodeArgument {
    pub(super) scheme: UpstreamScheme,
    /// A name or an IP address, IPv6 in brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

impl fmt::Display for UpstreamNodeArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl FromStr for UpstreamNodeArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<UpstreamNodeArgument, String> {
        let (scheme, rest, default_port) = match text.split_once("://") {
            None => (UpstreamScheme::Http, text, None),
            Some(("http", rest)) => (UpstreamScheme::Http, rest, Some(80)),
            Some(("https", rest)) => (UpstreamScheme::Https, rest, Some(443)),
            Some(_) => return Err("its scheme is neither http nor https".to_owned()),
        };
        // Before anything is quoted: it may be a password.
        if rest.contains('@') {
            return Err("a user name or password cannot be in it".to_owned());
        }
        let authority = match default_port {
            Some(_) => rest.strip_suffix('/').unwrap_or(rest),
            None => rest,
        };
        if authority.contains(['/', '?', '#']) {
            return Err("it has a path; requests keep the path that the client sent".to_owned());
        }
        let (host, port) = split_port(authority)?;
        let port = port.or(default_port).ok_or("it has no port: write HOST:PORT, such as 127.0.0.1:3000")?;
        Ok(UpstreamNodeArgument { scheme, host, port })
    }
}

/// Splits `HOST:PORT`. Without a host it is this machine's.
fn split_port(authority: &str) -> Result<(String, Option<u16>), String> {
    let (host, port) = match authority.rfind([':', ']']) {
        Some(at) if authority[at..].starts_with(':') => (&authority[..at], Some(&authority[at + 1..])),
        _ => (authority, None),
    };
    let port = match port.map(str::parse::<u16>) {
        None => None,
        Some(Ok(port)) if port > 0 => Some(port),
        Some(_) => return Err("its port is not a number from 1 to 65535".to_owned()),
    };
    if host.is_empty() {
        return match port {
            Some(_) => Ok((Ipv4Addr::LOCALHOST.to_string(), port)),
            None => Err("it has no host".to_owned()),
        };
    }
    if let Some(address) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        let address: Ipv6Addr = address.parse().map_err(|_| "what is in brackets is not an IPv6 address".to_owned())?;
        return Ok((format!("[{address}]"), port));
    }
    if host.contains(':') {
        return Err("an IPv6 address must be in brackets, such as [::1]:3000".to_owned());
    }
    let is_name = host.len() <= 253 && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    match is_name && !host.starts_with(['.', '-']) {
        true => Ok((host.to_owned(), port)),
        false => Err("its host is neither a name nor an IP address".to_owned()),
    }
}

/// An address to listen on: `IP:PORT`, `localhost:PORT`, or `:PORT` for all addresses of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListenArgument(pub(super) SocketAddr);

impl FromStr for ListenArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<ListenArgument, String> {
        let wrong = || "write IP:PORT, such as 127.0.0.1:8080, or :8080 for all addresses".to_owned();
        if let Ok(address) = text.parse() {
            return Ok(ListenArgument(address));
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().map_err(|_| wrong())?;
        match host {
            "" => Ok(ListenArgument((Ipv4Addr::UNSPECIFIED, port).into())),
            "localhost" => Ok(ListenArgument((Ipv4Addr::LOCALHOST, port).into())),
            _ => Err(wrong()),
        }
    }
}

/// A host name that requests must have, perhaps with a wildcard in front: `shop.example`, `*.example`.
pub(crate) fn parse_host(text: &str) -> Result<String, String> {
    let name = text.strip_prefix("*.").unwrap_or(text);
    let is_name =
        |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    match is_name(name) && name.len() <= 253 {
        true => Ok(text.to_owned()),
        false => Err("write a host name without scheme and port, such as shop.example".to_owned()),
    }
}

/// What the options say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Starter {
    /// One at least. All have the same scheme.
    pub(super) nodes: Vec<UpstreamNodeArgument>,
    listen: SocketAddr,
    host: Option<String>,
    admin: SocketAddr,
}

impl Starter {
    /// Refuses nodes of different schemes: an upstream has one.
    pub(super) fn new(
        nodes: Vec<UpstreamNodeArgument>,
        ListenArgument(listen): ListenArgument,
        host: Option<String>,
        admin: SocketAddr,
    ) -> Result<Starter, String> {
        let scheme = nodes.first().map(|node| node.scheme);
        match nodes.iter().all(|node| Some(node.scheme) == scheme) {
            true => Ok(Starter { nodes, listen, host, admin }),
            false => Err("some of --to have https:// and others do not: an upstream has one scheme".to_owned()),
        }
    }

    /// The nodes, one after the other.
    pub(super) fn node_list(&self) -> String {
        self.nodes.iter().map(UpstreamNodeArgument::to_string).collect::<Vec<_>>().join(", ")
    }

    /// A command that sends a request to the gateway at this address.
    pub(super) fn curl(&self, gateway: SocketAddr) -> String {
        let gateway = reachable(gateway);
        match &self.host {
            None => format!("curl http://{gateway}/"),
            Some(host) => {
                let name = host.strip_prefix('*').map_or_else(|| host.clone(), |rest| format!("www{rest}"));
                format!("curl -H 'Host: {name}' http://{gateway}/")
            }
        }
    }

    /// The configuration, with what explains it. `is_for_terminal`: the process prints a page, and ends with Ctrl-C.
    pub(super) fn yaml(&self, is_for_terminal: bool) -> String {
        let mut text = format!(
            "gateway:\n  \
               listeners:\n    \
                 - address: \"{}\"\n  \
               # Metrics at /metrics, the dashboard at /ui/. Keep it away from clients.\n  \
               admin:\n    \
                 address: \"{}\"\n",
            self.listen, self.admin
        );
        if is_for_terminal {
            text.push_str(
                "  \
                 # For a terminal: few messages, and a quick end. A service needs neither.\n  \
                 log: {level: error}\n  \
                 timeouts: {drain: 5s}\n",
            );
        }
        text.push_str("\nupstreams:\n  - id: nodes\n");
        if self.nodes.iter().any(|node| node.scheme == UpstreamScheme::Https) {
            let name = UpstreamScheme::Https.name();
            write!(
                text,
                "    scheme: {name}\n    \
                     # The name that the node's certificate has to have, and that the node gets as `Host`.\n    \
                     pass_host: node\n"
            )
            .expect("writing to a String does not fail");
        }
        text.push_str("    # Address and weight. Requests take turns.\n    nodes:\n");
        for node in &self.nodes {
            writeln!(text, "      \"{node}\": 1").expect("writing to a String does not fail");
        }
        text.push_str("\nroutes:\n  - id: everything\n");
        if let Some(host) = &self.host {
            writeln!(text, "    host: \"{host}\"").expect("writing to a String does not fail");
        }
        text.push_str("    uri: /*\n    upstream_id: nodes\n");
        text
    }
}

/// An address that a client on this machine can connect to: one that means all addresses is none.
pub(super) fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::source::ConfigSource;

    fn node(text: &str) -> UpstreamNodeArgument {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_node_is_an_address_or_a_url_without_a_path() {
        for (text, scheme, shown) in [
            ("127.0.0.1:3000", UpstreamScheme::Http, "127.0.0.1:3000"),
            (":3000", UpstreamScheme::Http, "127.0.0.1:3000"),
            ("[::1]:3000", UpstreamScheme::Http, "[::1]:3000"),
            ("shop_1.internal:80", UpstreamScheme::Http, "shop_1.internal:80"),
            ("http://shop.internal", UpstreamScheme::Http, "shop.internal:80"),
            ("https://shop.internal/", UpstreamScheme::Https, "shop.internal:443"),
            ("https://[2001:DB8::1]:8443", UpstreamScheme::Https, "[2001:db8::1]:8443"),
        ] {
            let node = node(text);
            assert_eq!((node.scheme, node.to_string().as_str()), (scheme, shown), "{text}");
        }
    }

    #[test]
    fn what_is_no_node_is_refused_with_a_reason() {
        for (text, reason) in [
            ("", "no host"),
            ("shop", "no port"),
            ("shop:", "port"),
            ("shop:0", "port"),
            ("shop:65536", "port"),
            ("::1:80", "brackets"),
            ("[::1:80", "brackets"),
            ("[x]:80", "IPv6"),
            ("sh op:80", "neither a name"),
            ("shop\":80", "neither a name"),
            ("-shop:80", "neither a name"),
            ("ftp://shop", "scheme"),
            ("http://", "no host"),
            ("http://shop/api", "path"),
            ("shop:80/api", "path"),
            ("https://shop?x", "path"),
        ] {
            let error = text.parse::<UpstreamNodeArgument>().expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
        let error = "http://me:secret@shop".parse::<UpstreamNodeArgument>().unwrap_err();
        assert!(error.contains("password") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn addresses_to_listen_on() {
        let address = |text: &str| text.parse().map(|ListenArgument(address)| address.to_string());
        assert_eq!(address("[::1]:8080").as_deref(), Ok("[::1]:8080"));
        assert_eq!(address(":8080").as_deref(), Ok("0.0.0.0:8080"));
        assert_eq!(address("localhost:0").as_deref(), Ok("127.0.0.1:0"));
        for wrong in ["", "8080", "shop:8080", ":x", ":65536", "::1:80x"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_configuration_is_valid_without_a_warning() {
        let nodes: [&[&str]; 4] =
            [&["127.0.0.1:3000"], &["a.example:80", "[::1]:81"], &["https://a.example"], &["https://127.0.0.1:8443"]];
        for nodes in nodes {
            for host in [None, Some("shop.example"), Some("*.example")] {
                let nodes = nodes.iter().map(|text| node(text)).collect();
                let name = host.map(|host| parse_host(host).unwrap());
                let starter = Starter::new(nodes, ":8080".parse().unwrap(), name, ADMIN).unwrap();
                let text = starter.yaml(host.is_none());
                let loaded = ConfigSource::Text(text.clone()).parse(text.as_bytes());
                let loaded = loaded.unwrap_or_else(|errors| panic!("{text}\n{errors}"));
                assert_eq!(loaded.warnings, [], "{text}");
            }
        }
        assert!(parse_host("shop.example:80").is_err() && parse_host("a b").is_err() && parse_host("*").is_err());
    }

    #[test]
    fn schemes_do_not_mix() {
        let nodes = vec![node("https://a.example"), node("b.example:80")];
        assert!(Starter::new(nodes, ":8080".parse().unwrap(), None, ADMIN).unwrap_err().contains("scheme"));
    }

    #[test]
    fn commands_name_an_address_and_a_host_that_exist() {
        let starter = |host: Option<&str>| {
            Starter::new(vec![node(":1")], ":8080".parse().unwrap(), host.map(str::to_owned), ADMIN).unwrap()
        };
        let all = (Ipv6Addr::UNSPECIFIED, 8080).into();
        assert_eq!(starter(None).curl(all), "curl http://[::1]:8080/");
        assert_eq!(starter(Some("*.a.example")).curl(all), "curl -H 'Host: www.a.example' http://[::1]:8080/");
    }
}
