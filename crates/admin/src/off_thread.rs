//! Work that takes long, on a thread of its own: the Admin API shares its thread with all that controls the gateway.

use crate::answer::Answer;
use axum::http::StatusCode;
use tokio::task::spawn_blocking;
use tracing::error;

/// The result of the work; `Err`: it failed, which is a bug.
pub(crate) async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Answer> {
    spawn_blocking(work).await.map_err(|error| {
        error!(%error, "admin API: a request failed, which is a bug");
        Answer::error(StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error; see the gateway's log")
    })
}
