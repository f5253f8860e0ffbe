//! The values of single keys: plain types that tables of keys and the model are built from.
//!
//! Nothing here can be invalid, and nothing here depends on the written form.

mod dialect;
mod digest;
mod gateway;
mod metrics;
mod resources;

pub(crate) use dialect::families_as_markdown;
pub use dialect::{Dialect, FamilyKind, FamilySpec, Label, Measure};
pub use digest::{Pem, TlsVersion, digest};
pub use gateway::{AccessField, AccessFormat, AccessLog, AccessValue, LogDestination};
pub use gateway::{AcmeChallenge, HmacKey};
pub use gateway::{ApiKeyRole, DeviceRegistry, LogFormat, RejectedGlobalRule, RouteCacheMode, SourceKind};
pub use metrics::{LabelSource, Metrics};
pub use resources::CheckType;
pub use resources::{Host, OnChange, ProxyProtocol};
