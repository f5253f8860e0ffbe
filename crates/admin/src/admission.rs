//! The first thing that happens to a request: the guard admits it, or it is refused.

use crate::answer::Answer;
use crate::control::Control;
use crate::endpoints::writes_documents;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;
use stillgate_door::{Guard, Peer};

/// The input of [`admit`].
#[derive(Clone)]
pub(crate) struct Admission {
    pub(crate) guard: Arc<Guard>,
    pub(crate) control: Arc<dyn Control>,
}

impl Admission {
    /// The response to a write that is refused with any key, for which "a key is missing" would be misleading.
    fn useless(&self, request: &Request) -> Option<Answer> {
        let is_in_question = self.guard.reads_without_key(Peer::of(request))
            && writes_documents(request.method(), request.uri().path())
            && self.guard.needs_key(request);
        let why = self.control.writable().err().filter(|_| is_in_question)?;
        Some(Answer::error(StatusCode::NOT_IMPLEMENTED, why).closing())
    }
}

/// [`Guard::admit`] as a middleware.
pub(crate) async fn admit(State(admission): State<Admission>, mut request: Request, next: Next) -> Response {
    if let Some(answer) = admission.useless(&request) {
        return answer.into_response();
    }
    match admission.guard.admit(&mut request).await {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal,
    }
}
