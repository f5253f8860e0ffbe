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
    /// Certificates with their keys, presented to clients by server name, or to upstreams.
    pub(crate) struct SslKeys {
        /// Unique among `ssls`.
        id: At<String> = LocatedKind(ID) => optional;
    }
    shared desc, labels, times;
    {
        /// `server`: for clients of listeners with `tls: true`; `client`: for upstreams that reference it in
        /// `tls.client_cert_id`.
        r#type: SslType = SSL_TYPE => default(SslType::Server);
        /// The certificate, followed by its chain: PEM, a PEM file, or a [secret](secrets.md).
        cert: At<WrittenPem> = LocatedKind(PEM_OR_SECRET) => optional;
        /// Its private key, unencrypted: PEM, a PEM file, or a secret.
        key: At<WrittenPem> = VeiledKind(LocatedKind(PEM_OR_SECRET)) => optional;
        /// Instead of both: order and renew the certificate as set in `gateway.acme`.
        acme: At<bool> = LocatedKind(Flag) => optional;
        /// Further certificates, such as RSA besides ECDSA; clients get one that they can verify, ECDSA first.
        certs: At<Vec<WrittenPem>> = LocatedKind(list(PEM_OR_SECRET)) => optional;
        /// The private keys of `certs`, in the same order.
        keys: At<Vec<WrittenPem>> = VeiledKind(LocatedKind(list(PEM_OR_SECRET))) => optional;
        /// Server name to match: `example.com`, `*.example.com` for any one label, or `*` for any name that no other
        /// entry has. Set this or `snis`.
        sni: At<String> = LocatedKind(SNI) => optional;
        /// Several names.
        snis: At<Vec<At<String>>> = LocatedKind(some(LocatedKind(SNI))) => optional;
        /// Also used for clients that send no server name, or an unknown one; at most one entry. Without it, they are
        /// rejected.
        default: At<bool> = LocatedKind(Flag) => optional;
        /// Requires clients to present a certificate; see [tls.md](tls.md#client-certificates).
        client: At<SslClientKeys> = LocatedKind(map::<SslClientKeys>()) => optional;
        /// Accepted TLS versions.
        ssl_protocols: At<Vec<TlsVersion>> = LocatedKind(some(VERSION)) => optional;
        /// A file with an OCSP response for the certificate, in DER; stapled for clients that request it.
        ocsp: At<PathBuf> = LocatedKind(FILE) => optional;
        /// 1: enabled; 0: disabled, as if absent.
        status: bool = STATUS => default(true);
        any_of {
            "the key \"cert\" is missing": cert | acme;
            "the key \"key\" is missing": key | acme;
        }
    }
}

object! {
    /// Requirements for client certificates.
    pub(crate) struct SslClientKeys {
        /// Trusted CA certificates: PEM, or a PEM file.
        ca: Pem = PEM => required;
        /// Maximum intermediates between it and `ca`.
        depth: u8 = int(0, CLIENT_DEPTH_MAX as i64) => default(1);
        unbuilt {
            skip_mtls_uri_regex: "paths without client certificates are";
        }
    }
}

object! {
    /// TLS to the nodes, with `scheme: https` or `tls`.
    pub(crate) struct UpstreamTlsKeys {
        /// Client certificate, presented to nodes that request one: PEM, or a PEM file.
        client_cert: Pem = PEM => optional;
        /// Its private key: PEM, or a PEM file.
        client_key: Pem = VeiledKind(PEM) => optional;
        /// Instead of both: id of an `ssls` entry with `type: client`.
        client_cert_id: At<String> = LocatedKind(ID) => optional;
        /// Whether a node's certificate must be valid for its name and chain to a root CA.
        verify: bool = Flag => default(true);
        /// Root CAs, instead of the system's: PEM, or a PEM file.
        ca: At<Pem> = LocatedKind(PEM) => optional;
        /// Server name to send, which node certificates must match. Default: the `Host` sent, or with `scheme: tls` the
        /// node's own name.
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
