//! Certificates made for each test, a file system in memory, and handshakes between two ends of it.

mod handshakes;
mod ordered;
mod refusals;
mod reloads;

use crate::{Files, Inputs, Material, Problem, TlsProblems};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, SignatureAlgorithm,
};
use rustls::pki_types::{ServerName, UnixTime};
use rustls::server::Acceptor;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use stillgate_config::Config;

/// 2026-06-01, midday.
pub(crate) const NOW_SECONDS: u64 = 1_780_315_200;

pub(crate) type Ca = CertifiedIssuer<'static, KeyPair>;

/// Files by name.
#[derive(Default, Clone)]
pub(crate) struct Memory {
    pub(crate) files: BTreeMap<PathBuf, Vec<u8>>,
    pub(crate) readable_by_all: bool,
    pub(crate) system_roots: Vec<Vec<u8>>,
}

impl Files for Memory {
    fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
        self.files.get(file).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn is_readable_by_all(&self, _: &Path) -> bool {
        self.readable_by_all
    }

    fn system_roots(&self) -> io::Result<Vec<Vec<u8>>> {
        Ok(self.system_roots.clone())
    }
}

impl Memory {
    pub(crate) fn put(&mut self, file: &str, content: impl Into<Vec<u8>>) {
        self.files.insert(file.into(), content.into());
    }

    /// A certificate as `NAME.pem` and its key as `NAME.key`.
    pub(crate) fn put_pair(&mut self, name: &str, (cert, key): (String, String)) {
        self.put(&format!("{name}.pem"), cert);
        self.put(&format!("{name}.key"), key);
    }

    pub(crate) fn load_at(
        &self,
        config: &Config,
        previous: Option<&Material>,
        seconds: u64,
    ) -> Result<(Material, Vec<Problem>), TlsProblems> {
        let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let alpn: &[&[u8]] = &[b"http/1.1"];
        Material::load(config, &Inputs { files: self, previous, now, alpn, upstream_alpn: alpn })
    }

    pub(crate) fn load(&self, config: &Config) -> Result<(Material, Vec<Problem>), TlsProblems> {
        self.load_at(config, None, NOW_SECONDS)
    }

    /// Loads material without any problems.
    #[track_caller]
    pub(crate) fn good(&self, config: &Config) -> Material {
        let (material, warnings) = self.load(config).unwrap();
        assert_eq!(warnings, []);
        material
    }
}

/// A configuration with these entries of `ssls`, one upstream `u` with this `tls`, and TLS on its listener.
#[track_caller]
pub(crate) fn config_with(ssls: &str, tls: &str) -> Config {
    let text = format!(
        "gateway: {{listeners: [{{address: \"127.0.0.1:9443\", tls: true}}]}}\nroutes: []\nssls: [{ssls}]\n\
         upstreams: [{{id: u, scheme: https, nodes: {{\"node.example:8443\": 1}}, tls: {{{tls}}}}}]\n"
    );
    stillgate_config::load(text, &|_| None).unwrap_or_else(|errors| panic!("{errors}")).config
}

/// This configuration without the upstream.
#[track_caller]
pub(crate) fn config(ssls: &str) -> Config {
    Config { upstreams: Vec::new(), ..config_with(ssls, "") }
}

pub(crate) fn ca(name: &str) -> Ca {
    CertifiedIssuer::self_signed(ca_params(name), KeyPair::generate().unwrap()).unwrap()
}

pub(crate) fn intermediate(name: &str, issuer: &Ca) -> Ca {
    CertifiedIssuer::signed_by(ca_params(name), KeyPair::generate().unwrap(), issuer).unwrap()
}

fn ca_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

pub(crate) fn params(names: &[&str]) -> CertificateParams {
    CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap()
}

/// The PEM of the certificate and of its key.
pub(crate) fn issue(params: &CertificateParams, issuer: &Ca) -> (String, String) {
    issue_of(params, issuer, &PKCS_ECDSA_P256_SHA256)
}

pub(crate) fn issue_of(
    params: &CertificateParams,
    issuer: &Ca,
    algorithm: &'static SignatureAlgorithm,
) -> (String, String) {
    let key = KeyPair::generate_for(algorithm).unwrap();
    (params.signed_by(&key, issuer).unwrap().pem(), key.serialize_pem())
}

pub(crate) fn issue_rsa(params: &CertificateParams, issuer: &Ca) -> (String, String) {
    issue_of(params, issuer, &PKCS_RSA_SHA256)
}

/// Parameters of a client's certificate.
pub(crate) fn client_params(name: &str) -> CertificateParams {
    let mut params = params(&[]);
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
    params
}

/// The two ends of a handshake.
pub(crate) struct HandshakeEnds {
    pub(crate) client: ClientConnection,
    pub(crate) server: ServerConnection,
}

/// A client's handshake with what `material` has for the name that it asks for, as the proxy does it.
pub(crate) fn shake(material: &Material, client: Arc<ClientConfig>, name: &str) -> Result<HandshakeEnds, String> {
    shake_with(material, client, name, |_| {})
}

/// [`shake`] with a change of the server's configuration.
pub(crate) fn shake_with(
    material: &Material,
    client: Arc<ClientConfig>,
    name: &str,
    change: impl FnOnce(&mut ServerConfig),
) -> Result<HandshakeEnds, String> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(client, name).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    let mut acceptor = Acceptor::default();
    acceptor.read_tls(&mut &hello[..]).unwrap();
    let accepted = acceptor.accept().map_err(|(error, _)| error.to_string())?.expect("it is whole");
    let server = material.server.as_ref().expect("there are entries");
    let Some(chosen) = server.find(accepted.client_hello().server_name(), crate::Offer::Http2) else {
        let mut alert = &crate::UNRECOGNIZED_NAME[..];
        client.read_tls(&mut alert).unwrap();
        return Err(format!("client: {}", client.process_new_packets().unwrap_err()));
    };
    let mut config = ServerConfig::clone(chosen.config);
    change(&mut config);
    let mut server = accepted.into_connection(config.into()).map_err(|(error, _)| format!("server: {error}"))?;
    // Until neither side has anything to send, session tickets included.
    while client.wants_write() || server.wants_write() {
        pass(&mut client, &mut server, "server")?;
        pass(&mut server, &mut client, "client")?;
    }
    Ok(HandshakeEnds { client, server })
}

fn pass(
    from: &mut (impl std::ops::DerefMut<Target = rustls::ConnectionCommon<impl rustls::SideData>> + Into<Connection>),
    to: &mut (impl std::ops::DerefMut<Target = rustls::ConnectionCommon<impl rustls::SideData>> + Into<Connection>),
    receiver: &str,
) -> Result<(), String> {
    let mut bytes = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut bytes).unwrap();
    }
    let mut bytes = &bytes[..];
    while !bytes.is_empty() {
        to.read_tls(&mut bytes).unwrap();
        to.process_new_packets().map_err(|error| format!("{receiver}: {error}"))?;
    }
    Ok(())
}

/// The client configuration for an upstream with this `tls`.
pub(crate) fn client(memory: &Memory, tls: &str) -> Arc<ClientConfig> {
    // The entry does not matter here.
    let config = Config { ssls: Vec::new(), ..config_with("{id: x, cert: x, key: x, default: true}", tls) };
    memory.good(&config).clients["u"].for_worker()
}
