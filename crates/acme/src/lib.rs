//! Certificates from an ACME server (RFC 8555): one task of the control runtime orders them one by one and writes files, which a
//! reload reads like any other.
//!
//! ```text
//!  reload ── what is wanted ──▶ Renewing: which is due? (schedule) ── lock, room (storage) ──▶ order ──▶ file ──▶ reload
//!                                                                                             │ live challenges
//!                                                                                             ▼
//!                                                                                  proxy::Challenges ──▶ workers
//! ```
//!
//! A failure is logged and shown at `/v1/status`, and the order is tried again after growing pauses. The previous certificate stays
//! in use.

#![forbid(unsafe_code)]

mod https;
mod order;
mod order_progress;
mod renewal;
mod schedule;
mod storage;

pub use order_progress::OrderState;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use stillgate_config::{Acme, Config, LoadedConfig, SslUse};
use stillgate_proxy::PlanCell;
use stillgate_tls::rustls::ClientConfig;
use stillgate_tls::{Material, Problem};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tracing::error;

/// The certificates that a configuration orders.
#[derive(Debug, Clone)]
struct CertificateOrders {
    acme: Arc<Acme>,
    /// TLS settings for connections to the ACME server.
    tls: Arc<ClientConfig>,
    certificates: Vec<Certificate>,
}

/// One entry of `ssls`.
#[derive(Debug, Clone, PartialEq)]
struct Certificate {
    id: String,
    names: Vec<String>,
}

/// Owns the task that orders certificates.
pub struct Renewals {
    wanted: watch::Sender<Option<CertificateOrders>>,
    retry: Arc<Notify>,
    stored: Arc<Notify>,
    states: watch::Receiver<BTreeMap<String, OrderState>>,
    failures: Arc<AtomicU64>,
    task: AbortHandle,
    /// The configuration that was followed last. Weak, so that it is freed once nothing serves it.
    followed: Weak<LoadedConfig>,
    followed_tls: Weak<Material>,
}

impl Renewals {
    /// Starts the task without orders; a runtime must be running. `plans`: how workers learn the answers to the server's
    /// challenges.
    pub fn start(plans: Arc<PlanCell>) -> Renewals {
        let (wanted, receiver) = watch::channel(None);
        let (tell, states) = watch::channel(BTreeMap::new());
        let (retry, stored) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let failures = Arc::new(AtomicU64::new(0));
        let renewing = renewal::CertificateRenewal::new(plans, tell, stored.clone(), failures.clone());
        let task = tokio::spawn(renewing.run(receiver, retry.clone())).abort_handle();
        Renewals { wanted, retry, stored, states, failures, task, followed: Weak::new(), followed_tls: Weak::new() }
    }

    /// Orders the certificates of this configuration from now on. An order in progress is completed first.
    pub fn follow(&mut self, served: &Arc<LoadedConfig>, tls: &Arc<Material>) {
        let (followed, followed_tls) = (Arc::downgrade(served), Arc::downgrade(tls));
        if followed.ptr_eq(&self.followed) && followed_tls.ptr_eq(&self.followed_tls) {
            return;
        }
        (self.followed, self.followed_tls) = (followed, followed_tls);
        let wanted = wanted_orders(&served.config, tls);
        self.wanted.send_if_modified(|before| {
            let is_same = match (&*before, &wanted) {
                (Some(before), Some(wanted)) => before.is_same(wanted),
                (before, wanted) => before.is_none() && wanted.is_none(),
            };
            *before = wanted;
            !is_same
        });
    }

    /// Retries failed orders at once.
    pub fn retry(&self) {
        self.retry.notify_one();
    }

    /// Waits until a certificate is stored, here or by another gateway. Cancel-safe.
    pub async fn wait_for_certificate(&self) {
        self.stored.notified().await;
    }

    /// The state of each certificate, by the entry's id.
    pub fn states(&self) -> BTreeMap<String, OrderState> {
        self.states.borrow().clone()
    }

    /// The number of orders that have failed so far.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Stops ordering.
    pub fn stop(&self) {
        self.task.abort();
    }
}

impl Drop for Renewals {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl CertificateOrders {
    fn is_same(&self, other: &CertificateOrders) -> bool {
        let CertificateOrders { acme, tls, certificates } = self;
        (acme, certificates) == (&other.acme, &other.certificates) && Arc::ptr_eq(tls, &other.tls)
    }
}

/// Creates the folders before they are watched. A failure is logged; the orders will fail too, and be tried again.
pub fn prepare(config: &Config) {
    if let Some(acme) = &config.gateway.acme
        && let Err(error) = storage::prepare(acme)
    {
        error!("gateway.acme.storage: {error}");
    }
}

/// Returns what would keep the folders from being created or used, as far as that is known without creating them.
pub fn problem(config: &Config) -> Option<Problem> {
    let acme = config.gateway.acme.as_ref()?;
    let message = storage::check(acme).err()?;
    Some(Problem { path: "gateway.acme.storage".to_owned(), message, hint: None })
}

fn wanted_orders(config: &Config, tls: &Material) -> Option<CertificateOrders> {
    let (acme, tls) = (config.gateway.acme.clone()?, tls.acme.clone()?);
    let certificate = |ssl: &Arc<stillgate_config::Ssl>| match &ssl.usage {
        SslUse::Server(server) if ssl.acme => Some(Certificate { id: ssl.id.clone(), names: server.names.clone() }),
        _ => None,
    };
    let certificates: Vec<_> = config.ssls.iter().filter_map(certificate).collect();
    (!certificates.is_empty()).then(|| CertificateOrders { acme: Arc::new(acme), tls, certificates })
}
