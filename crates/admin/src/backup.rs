//! `POST /v1/store/backup`: a copy of the store as the body of the response.
//!
//! POST, because viewers must not get it: it contains secrets and history.

use crate::answer::{Answer, Content};
use crate::api::Api;
use crate::commit::audit;
use crate::control::Backup;
use crate::endpoints::ParsedRequest;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, HeaderName};

/// The header with the store's file name, so that a client can check whether it is the expected one.
const STORE: HeaderName = HeaderName::from_static("x-stillgate-store");

/// Makes a copy and sends it.
pub(crate) async fn backup(api: &Api, asked: &ParsedRequest) -> Result<Answer, Answer> {
    let Backup { file, size, path } = api.control.backup().await.map_err(|error| Answer::refused(&error))?;
    audit(asked, "backup", api.control.documents().revision());
    let answer = Answer { status: StatusCode::OK, content: Content::File(file), headers: Vec::new() };
    Ok(answer.with(CONTENT_LENGTH, &size.to_string()).with(STORE, &path.display().to_string()))
}
