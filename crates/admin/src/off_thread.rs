//! Runs long work on another thread: the Admin API shares its thread with everything that controls the gateway.

use crate::answer::Answer;
use axum::http::StatusCode;
use tokio::task::spawn_blocking;
use tracing::error;

/// Returns the result of the work; `Err`: it panicked, which is a bug.
pub(crate) async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Answer> {
    spawn_blocking(work).await.map_err(|error| {
        error!(%error, "admin API: a request failed, which is a bug");
        Answer::error(StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error; see the gateway's log")
    })
}
