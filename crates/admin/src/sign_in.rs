//! `/v1/session`: signing in to the dashboard with a key or a sign-in token, and signing out.

use crate::answer::Answer;
use crate::api::Api;
use crate::endpoints::ParsedRequest;
use axum::http::StatusCode;
use axum::http::header::{ORIGIN, SET_COOKIE};
use serde_json::{Value as Json, json};
use stillgate_door::{Caller, Role, SESSION_COOKIE};
use tracing::info;

/// The owner of this session.
pub(crate) fn show(api: &Api, asked: &ParsedRequest) -> Answer {
    match cookie(asked).and_then(|token| api.guard.session(&token)) {
        Some(session) => Answer::json(StatusCode::OK, described(&session.caller, &session.csrf)),
        // Everything can be read without signing in; there is no token, since nothing can be written.
        None if asked.caller.key.is_none() && api.guard.reads_without_key(asked.peer) => {
            Answer::json(StatusCode::OK, json!({ "name": "", "role": Role::Viewer.name(), "csrf": null }))
        }
        None => Answer::error(StatusCode::UNAUTHORIZED, "no session; POST {\"key\": …} here to open one"),
    }
}

/// Opens a session with a key in the header or the body, or with a sign-in token.
pub(crate) async fn open(api: &Api, asked: ParsedRequest) -> Answer {
    let body = match asked.json() {
        Ok(body) => body.unwrap_or_default(),
        Err(answer) => return answer,
    };
    let caller = match (&body["key"], &body["token"]) {
        (Json::String(key), Json::Null) => api.guard.caller_of_key(key),
        (Json::Null, Json::String(token)) => api.guard.redeem(token),
        (Json::Null, Json::Null) if !asked.caller.name.is_empty() => Some(asked.caller.clone()),
        _ => return Answer::bad("send {\"key\": …} or {\"token\": …} to open a session"),
    };
    let Some(caller) = caller else {
        if let Err(too_many) = api.guard.slow_down(asked.peer).await {
            return too_many.into();
        }
        return Answer::error(StatusCode::UNAUTHORIZED, "wrong key, or a token that is used or too old").closing();
    };
    let (token, csrf) = api.guard.open_session(caller.clone());
    info!(target: "audit", key = caller.name, address = %asked.peer.to_canonical(), "session opened");
    // A page that was loaded over TLS reports it; its cookie must not be sent without TLS.
    let is_by_tls = asked.headers.get(ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https://"));
    let secure = if is_by_tls { "; Secure" } else { "" };
    let cookie = format!("{SESSION_COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict{secure}");
    Answer::json(StatusCode::CREATED, described(&caller, &csrf)).with(SET_COOKIE, &cookie)
}

/// Ends the session of the cookie.
pub(crate) fn close(api: &Api, asked: &ParsedRequest) -> Answer {
    if let Some(token) = cookie(asked) {
        api.guard.close_session(&token);
    }
    let gone = format!("{SESSION_COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0");
    Answer::empty(StatusCode::NO_CONTENT).with(SET_COOKIE, &gone)
}

fn described(caller: &Caller, csrf: &str) -> Json {
    json!({ "name": caller.name, "role": caller.role.name(), "csrf": csrf })
}

fn cookie(asked: &ParsedRequest) -> Option<String> {
    stillgate_door::cookie(&asked.headers, SESSION_COOKIE).map(str::to_owned)
}
