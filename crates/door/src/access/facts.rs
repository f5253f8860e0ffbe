//! The parts of a request's head that access depends on.
//!
//! A key is searched where APISIX searches: argument `api_key`, header, cookie, in this order.

use super::{Area, Guard, Session, equal_in_constant_time};
use crate::hosts::{Hosts, Stranger};
use axum::body::Body;
use axum::http::header::{COOKIE, HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, Request};
use std::borrow::Cow;
use std::net::IpAddr;

/// The query argument that is searched for a key first.
pub const KEY_ARGUMENT: &str = "api_key";
const KEY_HEADER: &str = "x-api-key";
const KEY_COOKIE: &str = "x_api_key";
const TOKEN_HEADER: &str = "x-csrf-token";

/// The most arguments that are read, as in nginx.
const ARGUMENTS_MAX: usize = 100;

/// The facts about one request.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    pub(super) peer: IpAddr,
    pub(super) area: Area,
    /// Whether the method is GET or HEAD.
    pub(super) is_read: bool,
    pub(super) given: CallerCredential<'a>,
    /// Why a request from loopback needs a key.
    pub(super) stranger: Option<Stranger>,
    pub(super) origin: Origin,
}

/// The credential of a caller.
#[derive(Debug)]
pub(super) enum CallerCredential<'a> {
    Nothing,
    Key {
        key: Cow<'a, [u8]>,
        /// Whether it is in a cookie, which a browser adds by itself.
        is_ambient: bool,
    },
    Session {
        session: Session,
        /// Whether the request has the token that only a page of this origin can read.
        has_token: bool,
    },
}

/// The origin of the page that made a browser send the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Absent,
    /// The requested host.
    Own,
    Foreign,
}

impl<'a> Facts<'a> {
    pub(super) fn of(peer: IpAddr, request: &'a Request<Body>, hosts: &Hosts, guard: &Guard) -> Facts<'a> {
        Facts {
            peer,
            area: area(request.uri().path()),
            is_read: matches!(*request.method(), Method::GET | Method::HEAD),
            given: given(request, guard),
            stranger: hosts.check(request).err(),
            origin: origin(request),
        }
    }
}

fn area(path: &str) -> Area {
    match path {
        "/" | "/v1/health" | "/v1/status" => Area::Open,
        "/ui" => Area::Files,
        "/v1/session" => Area::SignIn,
        _ if path.starts_with("/ui/") => Area::Files,
        _ => Area::Data,
    }
}

fn given<'a>(request: &'a Request<Body>, guard: &Guard) -> CallerCredential<'a> {
    let headers = request.headers();
    let key = match argument(request.uri().query(), KEY_ARGUMENT) {
        Some(Cow::Borrowed(key)) => Some(key.as_bytes().into()),
        Some(Cow::Owned(key)) => Some(key.into_bytes().into()),
        None => headers.get(KEY_HEADER).map(|key| key.as_bytes().into()),
    };
    if let Some(key) = key {
        return CallerCredential::Key { key, is_ambient: false };
    }
    // Signing in again does not depend on an old session, whose token the page may not know.
    let is_sign_in = area(request.uri().path()) == Area::SignIn && *request.method() == Method::POST;
    let session = || guard.session(cookie(headers, super::SESSION_COOKIE)?);
    if let Some(session) = if is_sign_in { None } else { session() } {
        let token = headers.get(TOKEN_HEADER).map_or(&b""[..], |token| token.as_bytes());
        let has_token = equal_in_constant_time(token, session.csrf.as_bytes());
        return CallerCredential::Session { session, has_token };
    }
    match cookie(headers, KEY_COOKIE) {
        Some(key) => CallerCredential::Key { key: key.as_bytes().into(), is_ambient: true },
        None => CallerCredential::Nothing,
    }
}

/// The first argument of a query with this name.
fn argument<'a>(query: Option<&'a str>, name: &str) -> Option<Cow<'a, str>> {
    let mut arguments = form_urlencoded::parse(query?.as_bytes()).take(ARGUMENTS_MAX);
    arguments.find(|(known, _)| known == name).map(|(_, value)| value)
}

/// The first cookie with this name.
pub fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers.get_all(COOKIE).into_iter().filter_map(|line| line.to_str().ok());
    let mut cookies = lines.flat_map(|line| line.split(';')).filter_map(|cookie| cookie.trim().split_once('='));
    cookies.find(|(known, _)| *known == name).map(|(_, value)| value)
}

fn origin(request: &Request<Body>) -> Origin {
    let Some(origin) = request.headers().get(ORIGIN) else { return Origin::Absent };
    let of_field = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let host = request.uri().authority().map(Authority::as_str).or(of_field);
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    match (origin, host) {
        (Some((_, page)), Some(host)) if page.eq_ignore_ascii_case(host) => Origin::Own,
        _ => Origin::Foreign,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_argument_counts() {
        let query = "b=x&a=%20y&a=z";
        assert_eq!(argument(Some(query), "a").as_deref(), Some(" y"));
        assert_eq!(argument(Some(query), "c"), None);
        assert_eq!(argument(None, "a"), None);
        let too_late = format!("{}a=1", "b&".repeat(ARGUMENTS_MAX));
        assert_eq!(argument(Some(&too_late), "a"), None);
    }
}
