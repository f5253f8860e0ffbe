//! A certificate authority of our own, and its certificates, as files.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stillgate_testkit::PATIENCE;
use stillgate_tls::rustls::pki_types::pem::PemObject;
use stillgate_tls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use stillgate_tls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use stillgate_tls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned, crypto,
};
use tempfile::TempDir;

/// A client's side of TLS.
pub(crate) type TlsClient = StreamOwned<ClientConnection, TcpStream>;
/// A server's side of TLS.
pub(crate) type TlsServer = StreamOwned<ServerConnection, TcpStream>;

/// Signs certificates and keeps them in a folder: `ca.pem`, and `NAME.pem` with `NAME.key` of each.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: TempDir,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "Test authority");
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        let dir = tempfile::tempdir().expect("a temporary folder");
        // nginx's worker may run as another user.
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("open the folder");
        fs::write(dir.path().join("ca.pem"), issuer.pem()).expect("write");
        fs::write(dir.path().join("ca.key"), issuer.key().serialize_pem()).expect("write");
        Authority { issuer, dir }
    }

    /// Issues a certificate for these names (or addresses), in `FILE.pem` and `FILE.key`.
    pub(crate) fn issue(&self, file: &str, names: &[&str]) {
        self.issue_with(file, names, |_| {});
    }

    /// [`Authority::issue`] with something changed.
    pub(crate) fn issue_with(&self, file: &str, names: &[&str], change: impl FnOnce(&mut CertificateParams)) {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, file);
        params.distinguished_name.push(DnType::OrganizationName, "Example, Inc.");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        self.write(&format!("{file}.pem"), certificate.pem());
        self.write(&format!("{file}.key"), key.serialize_pem());
    }

    /// Puts a complete file in place, readable by its owner only.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let beside = self.file("new");
        fs::write(&beside, content).expect("write");
        fs::set_permissions(&beside, PermissionsExt::from_mode(0o600)).expect("permissions");
        fs::rename(&beside, self.file(name)).expect("rename over it");
    }

    /// A certificate and its key in one file, as HAProxy wants them; its path.
    pub(crate) fn both(&self, file: &str) -> String {
        let read = |extension| fs::read_to_string(self.file(&format!("{file}.{extension}"))).expect("read");
        let name = format!("{file}.both");
        self.write(&name, read("pem") + &read("key"));
        self.path(&name)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Its path as an argument.
    pub(crate) fn path(&self, name: &str) -> String {
        self.file(name).display().to_string()
    }

    /// Connects as a client that trusts this authority and offers these protocols; the handshake is done with the first bytes.
    pub(crate) fn connect(&self, addr: SocketAddr, name: &str, alpn: &[&str]) -> TlsClient {
        StreamOwned::new(self.client(name, alpn), patient(TcpStream::connect(addr).expect("connect")))
    }

    /// A client without a socket.
    pub(crate) fn client(&self, name: &str, alpn: &[&str]) -> ClientConnection {
        self.client_with(name, alpn, |_| {})
    }

    /// [`Authority::connect`] as a client that has the certificate in `FILE.pem` of an authority.
    pub(crate) fn connect_as(
        &self,
        addr: SocketAddr,
        name: &str,
        alpn: &[&str],
        certificate: (&Authority, &str),
    ) -> TlsClient {
        let (chain, key) = certificate.0.read(certificate.1);
        let provider = crypto::aws_lc_rs::default_provider();
        let certified = CertifiedKey::from_der(chain, key, &provider).expect("a key that belongs to it");
        let client = self.client_with(name, alpn, |config| {
            config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(certified));
        });
        StreamOwned::new(client, patient(TcpStream::connect(addr).expect("connect")))
    }

    /// [`Authority::connect`] as a client that sends no name.
    pub(crate) fn connect_without_name(&self, addr: SocketAddr, name: &str, alpn: &[&str]) -> TlsClient {
        let client = self.client_with(name, alpn, |config| config.enable_sni = false);
        StreamOwned::new(client, patient(TcpStream::connect(addr).expect("connect")))
    }

    /// [`Authority::connect`] with settings from [`Authority::client_config`]; connections that share them resume sessions.
    pub(crate) fn connect_with(&self, addr: SocketAddr, name: &str, config: &Arc<ClientConfig>) -> TlsClient {
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        let client = ClientConnection::new(config.clone(), name).expect("a client");
        StreamOwned::new(client, patient(TcpStream::connect(addr).expect("connect")))
    }

    /// The settings of a client, with something changed.
    pub(crate) fn client_config(&self, alpn: &[&str], change: impl FnOnce(&mut ClientConfig)) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).expect("a root");
        let provider = Arc::new(crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = builder.expect("versions").with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        change(&mut config);
        Arc::new(config)
    }

    fn client_with(&self, name: &str, alpn: &[&str], change: impl FnOnce(&mut ClientConfig)) -> ClientConnection {
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        ClientConnection::new(self.client_config(alpn, change), name).expect("a client")
    }

    /// Serves a connection just accepted with the certificate in `FILE.pem`.
    pub(crate) fn serve(&self, stream: TcpStream, file: &str, alpn: &[&str]) -> TlsServer {
        let (chain, key) = self.read(file);
        let provider = Arc::new(crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.expect("versions").with_no_client_auth();
        let mut config = builder.with_single_cert(chain, key).expect("a key that belongs to it");
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        StreamOwned::new(ServerConnection::new(Arc::new(config)).expect("a server"), patient(stream))
    }

    /// The certificates in `FILE.pem` and the key of the first.
    fn read(&self, file: &str) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let chain = CertificateDer::pem_file_iter(self.file(&format!("{file}.pem"))).expect("a file");
        let chain = chain.collect::<Result<Vec<_>, _>>().expect("certificates");
        let key = PrivateKeyDer::from_pem_file(self.file(&format!("{file}.key"))).expect("a key");
        (chain, key)
    }
}

/// Waits for no byte longer than a test does.
pub(crate) fn patient(stream: TcpStream) -> TcpStream {
    stream.set_nonblocking(false).expect("blocking");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}
