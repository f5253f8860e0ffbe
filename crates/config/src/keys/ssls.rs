//! The keys of `ssls` and of an upstream's `tls`: certificates with their keys, and what is to be done with them.
//!
//! Files are only named here. Who reads them, and whether what is in them can be used, is the business of `stillgate-tls`.

use crate::keys::files::{FILE, PEM, PEM_OR_SECRET, WrittenPem};
use crate::keys::nodes::parse_authority;
use crate::keys::shared::{ID, STATUS, resource};
use crate::values::{Host, Pem, TlsVersion};
use std::net::IpAddr;
use std::path::PathBuf;
use stillgate_plugin_api::secrets::VeiledKind;
use stillgate_schema::kind::{At, Choice, Flag, LocatedKind, Text, int, list, some, text};
use stillgate_schema::object;
use stillgate_schema::object::map;
use stillgate_schema::text::diagnostic::{Fault, shortened};

/// The largest `client.depth`.
pub const CLIENT_DEPTH_MAX: u8 = 10;

resource! {
    /// Certificates with their keys, and the server names they are shown for, or the upstreams they are shown to.
    pub(crate) struct SslKeys {
        /// Unique among `ssls`.
        id: At<String> = LocatedKind(ID) => optional;
    }
    shared desc, labels, times;
    {
        /// `server`: shown to clients of a listener with `tls: true`; `client`: shown to upstreams that name it by
        /// `tls.client_cert_id`.
        r#type: SslType = SSL_TYPE => default(SslType::Server);
        /// The certificate and behind it those that lead to its root: PEM, a file of it, or a [secret](secrets.md).
        cert: At<WrittenPem> = LocatedKind(PEM_OR_SECRET) => optional;
        /// Its private key, not encrypted: PEM, a file of it, or a secret.
        key: At<WrittenPem> = VeiledKind(LocatedKind(PEM_OR_SECRET)) => optional;
        /// In place of both: the certificate is ordered, and renewed, as `gateway.acme` says.
        acme: At<bool> = LocatedKind(Flag) => optional;
        /// Further certificates, say RSA beside ECDSA; the client is shown one that it can check, ECDSA first.
        certs: At<Vec<WrittenPem>> = LocatedKind(list(PEM_OR_SECRET)) => optional;
        /// The private keys of `certs`, in the same order.
        keys: At<Vec<WrittenPem>> = VeiledKind(LocatedKind(list(PEM_OR_SECRET))) => optional;
        /// The name that clients ask for: `example.com`, `*.example.com` for any one label, or `*` for any name that no other
        /// entry has. This or `snis`.
        sni: At<String> = LocatedKind(SNI) => optional;
        /// Several of them.
        snis: At<Vec<At<String>>> = LocatedKind(some(LocatedKind(SNI))) => optional;
        /// Shown also to clients that ask for no name, or for one that no entry has; at most one. Without it those are
        /// refused.
        default: At<bool> = LocatedKind(Flag) => optional;
        /// Requires clients to present a certificate; see [tls.md](tls.md#client-certificates).
        client: At<SslClientKeys> = LocatedKind(map::<SslClientKeys>()) => optional;
        /// Versions of TLS that are spoken.
        ssl_protocols: At<Vec<TlsVersion>> = LocatedKind(some(VERSION)) => optional;
        /// A file with an OCSP response for the certificate, in DER; it is handed to clients that ask for one.
        ocsp: At<PathBuf> = LocatedKind(FILE) => optional;
        /// 1: enabled; 0: the entry does not exist.
        status: bool = STATUS => default(true);
        any_of {
            "the key \"cert\" is missing": cert | acme;
            "the key \"key\" is missing": key | acme;
        }
    }
}

object! {
    /// What is asked of a client's certificate.
    pub(crate) struct SslClientKeys {
        /// The certificates that may have signed it: PEM, or a file of it.
        ca: Pem = PEM => required;
        /// Most certificates between it and one of `ca`.
        depth: u8 = int(0, CLIENT_DEPTH_MAX as i64) => default(1);
        unbuilt {
            skip_mtls_uri_regex: "paths without client certificates are";
        }
    }
}

object! {
    /// TLS towards the nodes, with `scheme: https` or `tls`.
    pub(crate) struct UpstreamTlsKeys {
        /// The certificate that nodes are shown where they ask for one: PEM, or a file of it.
        client_cert: Pem = PEM => optional;
        /// Its private key: PEM, or a file of it.
        client_key: Pem = VeiledKind(PEM) => optional;
        /// In place of both the id of one of `ssls` with `type: client`.
        client_cert_id: At<String> = LocatedKind(ID) => optional;
        /// Whether a node's certificate must be valid for its name and lead to a known root.
        verify: bool = Flag => default(true);
        /// The roots, in place of the system's: PEM, or a file of it.
        ca: At<Pem> = LocatedKind(PEM) => optional;
        /// The name that nodes are asked for and must have a certificate of; where it is absent the `Host` they see, or with `scheme: tls` their own.
        sni: String = NODE_NAME => optional;
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum SslType {
    Server,
    Client,
}

const SSL_TYPE: Choice<SslType> =
    Choice { words: &[("server", SslType::Server), ("client", SslType::Client)], unbuilt: &[] };

const VERSION: Text<TlsVersion> = text("a version of TLS", |text| match text {
    "TLSv1.2" => Ok(TlsVersion::V12),
    "TLSv1.3" => Ok(TlsVersion::V13),
    "TLSv1.1" | "TLSv1" | "TLSv1.0" | "SSLv3" | "SSLv2" => {
        let fault = Fault::new(format!("{text} is broken and not spoken by this gateway (RFC 8996)"));
        Err(fault.hint("write TLSv1.2, TLSv1.3 or both"))
    }
    _ => Err(Fault::new(format!("{:?} is not a version of TLS", shortened(text))).hint("write TLSv1.2 or TLSv1.3")),
})
.pattern("^TLSv1\\.[23]$");

/// A server name: a DNS name in lower case, one with a wildcard as its first label, or `*` for any.
const SNI: Text<String> = text("a server name", |text| {
    let fault = |message: &str| Fault::new(format!("{:?}: {message}", shortened(text)));
    if text == "*" {
        return Ok(text.to_owned());
    }
    let name = text.strip_prefix("*.").unwrap_or(text);
    if name.contains('*') {
        let hint = "write it like \"*.example.com\", or \"*\" for any name";
        return Err(fault("only \"*.\" at the beginning, for one label").hint(hint));
    }
    if !name.is_ascii() {
        return Err(fault("clients ask for names in ASCII").hint("write its \"xn--\" form"));
    }
    match parse_authority(name) {
        Ok((Host::Name(host), None)) if text.starts_with("*.") => Ok(format!("*.{host}")),
        Ok((Host::Name(host), None)) => Ok(host),
        Ok((Host::Ip(_), _)) => {
            Err(fault("clients that come by address ask for no name").hint("write `default: true` for them"))
        }
        Ok((Host::Name(_), Some(_))) => Err(fault("a server name has no port").hint("remove it")),
        Err(fault) => Err(fault),
    }
});

/// The name of a node: DNS name or IP address, without a port.
const NODE_NAME: Text<String> = text("a host name", |text| {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(address.to_string());
    }
    match parse_authority(text)? {
        (Host::Name(name), None) => Ok(name),
        (Host::Ip(address), None) => Ok(address.to_string()),
        (_, Some(_)) => Err(Fault::new(format!("{:?} has a port", shortened(text))).hint("write the name only")),
    }
});
