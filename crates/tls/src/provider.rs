//! The cryptography provider for all TLS of this program.

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use std::sync::{Arc, LazyLock};

/// One for the whole process; never rustls's default one, which another library could have set.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| Arc::new(aws_lc_rs::default_provider()));
    PROVIDER.clone()
}
