//! The connection to Redis: one server or a cluster, over TCP or TLS, made again when it breaks.

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::{Client, ConnectionInfo, FromRedisValue, IntoConnectionInfo, Script, TlsCertificates};
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;
use stillgate_devices::directory::DirectoryUnavailable;

/// Timeout of an answer. Then the directory counts as away. Unit tests compare answers, however late.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 120_000 } else { 1_000 });
const CONNECT_TIMEOUT: Duration = ANSWER_TIMEOUT;
/// The longest wait before the next attempt to connect: a directory that is back is noticed with the next heartbeat.
const RECONNECT_DELAY_MAX: Duration = Duration::from_millis(500);

/// The address of the directory.
#[derive(Debug, Clone)]
pub struct RedisAddress {
    /// `redis://[USER:PASSWORD@]HOST[:PORT][/DB]`, or `rediss://` for TLS. For a cluster, some of its nodes.
    pub urls: Vec<String>,
    /// Whether it is a cluster.
    pub is_cluster: bool,
    /// For TLS, the roots to trust, in PEM; if absent, those of the system.
    pub ca_pem: Option<Vec<u8>>,
}

/// An invalid address.
#[derive(Debug)]
pub struct LinkError(redis::RedisError);

/// A connection that is made when needed.
pub(super) enum RegistryLink {
    One(ConnectionManager),
    Cluster { client: Box<ClusterClient>, connection: Mutex<Option<ClusterConnection>> },
}

impl RegistryLink {
    /// Checks the address; connects later.
    pub(super) fn new(address: &RedisAddress) -> Result<RegistryLink, LinkError> {
        let certificates = TlsCertificates { client_tls: None, root_cert: address.ca_pem.clone() };
        let infos = address.urls.iter().map(|url| url.as_str().into_connection_info());
        let infos = infos.collect::<Result<Vec<ConnectionInfo>, _>>().map_err(LinkError)?;
        if address.is_cluster {
            let builder = ClusterClientBuilder::new(infos)
                .connection_timeout(CONNECT_TIMEOUT)
                .response_timeout(ANSWER_TIMEOUT)
                .overall_response_timeout(Some(2 * ANSWER_TIMEOUT))
                .retries(2);
            let builder = if address.ca_pem.is_some() { builder.certs(certificates) } else { builder };
            let client = Box::new(builder.build().map_err(LinkError)?);
            return Ok(RegistryLink::Cluster { client, connection: Mutex::new(None) });
        }
        let Some(info) = infos.into_iter().next() else {
            return Err(LinkError((redis::ErrorKind::InvalidClientConfig, "no url").into()));
        };
        let client = match &address.ca_pem {
            Some(_) => Client::build_with_tls(info, certificates),
            None => Client::open(info),
        };
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(ANSWER_TIMEOUT))
            .set_number_of_retries(1)
            .set_max_delay(RECONNECT_DELAY_MAX);
        let manager = client.and_then(|client| client.get_connection_manager_lazy(config));
        manager.map(RegistryLink::One).map_err(LinkError)
    }

    /// Runs a script.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[&[u8]],
        arguments: &[&[u8]],
    ) -> Result<T, DirectoryUnavailable> {
        let mut invocation = script.prepare_invoke();
        keys.iter().for_each(|key| {
            invocation.key(*key);
        });
        arguments.iter().for_each(|argument| {
            invocation.arg(*argument);
        });
        match self {
            RegistryLink::One(manager) => answer(invocation.invoke_async(&mut manager.clone()).await),
            RegistryLink::Cluster { .. } => answer(invocation.invoke_async(&mut self.cluster().await?).await),
        }
    }

    /// Reads a key.
    pub(super) async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, DirectoryUnavailable> {
        let mut get = redis::cmd("GET");
        get.arg(key);
        match self {
            RegistryLink::One(manager) => answer(get.query_async(&mut manager.clone()).await),
            RegistryLink::Cluster { .. } => answer(get.query_async(&mut self.cluster().await?).await),
        }
    }

    async fn cluster(&self) -> Result<ClusterConnection, DirectoryUnavailable> {
        let RegistryLink::Cluster { client, connection } = self else { return Err(DirectoryUnavailable) };
        let known = connection.lock().expect("no holder panics").clone();
        if let Some(known) = known {
            return Ok(known);
        }
        let made = answer(client.get_async_connection().await)?;
        *connection.lock().expect("no holder panics") = Some(made.clone());
        Ok(made)
    }
}

/// Every error of a directory means that it cannot be used now.
fn answer<T>(answered: redis::RedisResult<T>) -> Result<T, DirectoryUnavailable> {
    answered.map_err(|error| {
        tracing::debug!(%error, "the directory of devices did not answer");
        DirectoryUnavailable
    })
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; write redis://HOST:PORT or rediss://USER:PASSWORD@HOST:PORT", self.0)
    }
}

impl std::error::Error for LinkError {}
