//! The dashboard: its files, compiled into the program, at `/ui/` of the admin address; and signing in to it.
//!
//! There is no build step: browsers get the files in `ui/` as they are. A file is compressed at its first request, once in the life
//! of the process. The files contain no secrets, so they need no key; the page reads its data from the Admin API.

use crate::answer::Answer;
use crate::endpoints::{Api, ParsedRequest};
use axum::body::Body;
use axum::extract::Path;
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName,
    HeaderValue, IF_NONE_MATCH, LOCATION, ORIGIN, REFERRER_POLICY, SET_COOKIE, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::get;
use bytes::Bytes;
use flate2::write::GzEncoder;
use flate2::{Compression, Crc};
use serde_json::{Value as Json, json};
use std::io::Write as _;
use std::sync::OnceLock;
use stillgate_door::{Caller, Role, SESSION_COOKIE};
use tracing::info;

/// Allows nothing but our own files: no inline script, no other server, no frame around the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The file served at the address without a file name.
const INDEX: &str = "index.html";

/// A file of the dashboard.
struct File {
    /// The path below `/ui/`.
    path: &'static str,
    bytes: &'static [u8],
    made: OnceLock<UiFile>,
}

/// The content of a file.
struct UiFile {
    etag: HeaderValue,
    gzip: Bytes,
}

macro_rules! files {
    ($($path:literal)*) => {
        [$(File { path: $path, bytes: include_bytes!(concat!("../ui/", $path)), made: OnceLock::new() }),*]
    };
}

/// All of `ui/` except `ui/dev/`, sorted. (Test: `the_table_is_the_folder`.) `profile_view.*` are links: the page that `stillgate
/// profile` writes shares them.
static FILES: [File; 52] = files![
    "api.js" "app.js" "chain_view.js" "chart.js" "curl.js" "dom.js"
    "edit/controls.js" "edit/diff.js" "edit/document_history.js" "edit/editor.js" "edit/fields.js" "edit/form.js"
    "edit/json.js" "edit/kinds.js" "edit/loading.js" "edit/panes.js" "edit/saving.js" "edit/schema.js"
    "format.js" "history_view.js" "icon.svg" "index.html" "kept_profiles.js" "live.js" "pages.css"
    "pages/cardinality.js" "pages/certificates.js" "pages/consumer.js" "pages/consumers.js" "pages/device.js" "pages/devices.js" "pages/edit.js"
    "pages/explain.js" "pages/fleet.js" "pages/lua.js" "pages/overview.js" "pages/profiles.js" "pages/resources.js" "pages/revision.js"
    "pages/route.js" "pages/routes.js" "pages/sign_in.js" "pages/slow.js" "pages/status.js" "pages/upstreams.js"
    "parts.css" "parts.js" "profile_view.css" "profile_view.js" "recent_requests.js" "shell.css" "tokens.css"
];

/// Adds the files to a router.
pub(crate) fn add_routes<S: Clone + Send + Sync + 'static>(router: axum::Router<S>) -> axum::Router<S> {
    let to_index = || async { Answer::empty(StatusCode::PERMANENT_REDIRECT).with(LOCATION, "/ui/").into_response() };
    let file = |Path(path): Path<String>, headers: HeaderMap| async move { answer(&path, &headers) };
    router
        .route("/ui", get(to_index))
        .route("/ui/", get(|headers: HeaderMap| async move { answer(INDEX, &headers) }))
        .route("/ui/{*path}", get(file))
}

fn answer(path: &str, asked: &HeaderMap) -> Response {
    let Ok(at) = FILES.binary_search_by(|file| file.path.cmp(path)) else {
        let message = "404 Not Found: the dashboard has no such file; open /ui/";
        return Answer::error(StatusCode::NOT_FOUND, message).into_response();
    };
    let file = &FILES[at];
    let UiFile { etag, gzip } = file.made();
    let is_known = asked.get_all(IF_NONE_MATCH).iter().any(|known| has_tag(known.as_bytes(), etag.as_bytes()));
    let takes_gzip = asked.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok()).any(takes_gzip);
    let body = match (is_known, takes_gzip) {
        (true, _) => Body::empty(),
        (false, true) => Body::from(gzip.clone()),
        (false, false) => Body::from(file.bytes),
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    let fixed: [(HeaderName, &'static str); 6] = [
        (CONTENT_TYPE, content_type(path)),
        // Revalidated at each request with a 304, so that after an upgrade no page mixes old and new files.
        (CACHE_CONTROL, "no-cache"),
        (VARY, "Accept-Encoding"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    headers.extend(fixed.map(|(name, value)| (name, HeaderValue::from_static(value))));
    headers.insert(ETAG, etag.clone());
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    } else if takes_gzip {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

impl File {
    fn made(&self) -> &UiFile {
        self.made.get_or_init(|| {
            let mut crc = Crc::new();
            crc.update(self.bytes);
            // Weak, since both codings of a file share it.
            let etag = format!("W/\"{:08x}{:x}\"", crc.sum(), self.bytes.len());
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            let gzip = encoder.write_all(self.bytes).and_then(|()| encoder.finish());
            UiFile {
                etag: HeaderValue::from_str(&etag).expect("hexadecimal digits and quotes"),
                gzip: gzip.expect("writing to a Vec does not fail").into(),
            }
        })
    }
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

/// Whether a list of entity tags contains this one, or any (RFC 9110, 13.1.2: compared weakly).
fn has_tag(list: &[u8], tag: &[u8]) -> bool {
    let opaque = |tag: &[u8]| tag.strip_prefix(b"W/").map_or_else(|| tag.to_vec(), <[u8]>::to_vec);
    list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).any(|one| one == b"*" || opaque(one) == opaque(tag))
}

/// Whether an `Accept-Encoding` lists gzip, with a quality other than 0.
fn takes_gzip(value: &str) -> bool {
    value.split(',').any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let is_gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let quality = parts.find_map(|part| part.strip_prefix("q=")).map_or(Some(1.0), |q| q.parse::<f32>().ok());
        is_gzip && quality.is_some_and(|quality| quality > 0.0)
    })
}

// `/v1/session`: signing in to the dashboard with a key or a sign-in token, and signing out.

/// The owner of this session.
pub(crate) fn show_session(api: &Api, asked: &ParsedRequest) -> Answer {
    match cookie(asked).and_then(|token| api.guard.session(&token)) {
        Some(session) => Answer::json(StatusCode::OK, described_session(&session.caller, &session.csrf)),
        // Everything can be read without signing in; there is no token, since nothing can be written.
        None if asked.caller.key.is_none() && api.guard.reads_without_key(asked.peer) => {
            Answer::json(StatusCode::OK, json!({ "name": "", "role": Role::Viewer.name(), "csrf": null }))
        }
        None => Answer::error(StatusCode::UNAUTHORIZED, "no session; POST {\"key\": …} here to open one"),
    }
}

/// Opens a session with a key in the header or the body, or with a sign-in token.
pub(crate) async fn open_session(api: &Api, asked: ParsedRequest) -> Answer {
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
        return Answer::error(StatusCode::UNAUTHORIZED, "wrong key, or a token that is used or too old").with_close();
    };
    let (token, csrf) = api.guard.open_session(caller.clone());
    info!(target: "audit", key = caller.name, address = %asked.peer.to_canonical(), "session opened");
    // A page that was loaded over TLS reports it; its cookie must not be sent without TLS.
    let is_by_tls = asked.headers.get(ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https://"));
    let secure = if is_by_tls { "; Secure" } else { "" };
    let cookie = format!("{SESSION_COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict{secure}");
    Answer::json(StatusCode::CREATED, described_session(&caller, &csrf)).with(SET_COOKIE, &cookie)
}

/// Ends the session of the cookie.
pub(crate) fn close_session(api: &Api, asked: &ParsedRequest) -> Answer {
    if let Some(token) = cookie(asked) {
        api.guard.close_session(&token);
    }
    let gone = format!("{SESSION_COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0");
    Answer::empty(StatusCode::NO_CONTENT).with(SET_COOKIE, &gone)
}

fn described_session(caller: &Caller, csrf: &str) -> Json {
    json!({ "name": caller.name, "role": caller.role.name(), "csrf": csrf })
}

fn cookie(asked: &ParsedRequest) -> Option<String> {
    stillgate_door::cookie(&asked.headers, SESSION_COOKIE).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;
    use http_body_util::BodyExt as _;
    use std::path::Path as FilePath;
    use tower::ServiceExt as _;

    /// The size of all files together, compressed.
    const GZIP_BYTES_MAX: usize = 150_000;

    fn files_below(folder: &FilePath, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files_below(&path, found);
            } else {
                found.push(path.to_str().unwrap().to_owned());
            }
        }
    }

    #[test]
    fn the_table_is_the_folder() {
        let root = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("ui");
        let mut found = Vec::new();
        files_below(&root, &mut found);
        let prefix = format!("{}/", root.display());
        let mut found: Vec<&str> = found.iter().map(|path| path.strip_prefix(&prefix).unwrap()).collect();
        found.retain(|path| !path.starts_with("dev/"));
        found.sort_unstable();
        assert_eq!(
            FILES.iter().map(|file| file.path).collect::<Vec<_>>(),
            found,
            "the table of ui.rs is the folder ui/"
        );
    }

    #[test]
    fn all_of_it_is_small() {
        let bytes: usize = FILES.iter().map(|file| file.made().gzip.len()).sum();
        println!("the dashboard: {} files, {bytes} bytes compressed", FILES.len());
        assert!(bytes <= GZIP_BYTES_MAX, "{bytes} bytes, of {GZIP_BYTES_MAX}");
    }

    async fn ask(path: &str, header: Option<(&str, &str)>) -> Response {
        let mut request = Request::get(path);
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        add_routes(axum::Router::new()).oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    async fn body(response: Response) -> Bytes {
        response.into_body().collect().await.unwrap().to_bytes()
    }

    #[tokio::test]
    async fn a_file_is_served_with_its_type_and_the_policy() {
        let response = ask("/ui/pages/overview.js", None).await;
        let head = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(head("content-type"), "text/javascript; charset=utf-8");
        assert!(head("content-security-policy").starts_with("default-src 'none'; script-src 'self'"));
        assert_eq!(head("x-content-type-options"), "nosniff");
        assert_eq!(head("cache-control"), "no-cache");
        let tag = head("etag");
        assert_eq!(body(response).await, include_str!("../ui/pages/overview.js"));

        let again = ask("/ui/pages/overview.js", Some(("if-none-match", &format!("\"x\", {tag}")))).await;
        assert_eq!((again.status(), body(again).await.len()), (StatusCode::NOT_MODIFIED, 0));
    }

    #[tokio::test]
    async fn who_takes_gzip_gets_it() {
        let response = ask("/ui/", Some(("accept-encoding", "br, gzip;q=0.5"))).await;
        assert_eq!(response.headers()["content-encoding"], "gzip");
        assert_eq!(response.headers()["content-type"], "text/html; charset=utf-8");
        let mut plain = String::new();
        std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&*body(response).await), &mut plain).unwrap();
        assert_eq!(plain, include_str!("../ui/index.html"));
        let refused = ask("/ui/", Some(("accept-encoding", "gzip;q=0"))).await;
        assert!(!refused.headers().contains_key("content-encoding"));
    }

    #[tokio::test]
    async fn nothing_else_is_there() {
        let moved = ask("/ui", None).await;
        assert_eq!(
            (moved.status(), &moved.headers()["location"]),
            (StatusCode::PERMANENT_REDIRECT, &"/ui/".parse().unwrap())
        );
        for path in ["/ui/dev/mock.mjs", "/ui/../src/lib.rs", "/ui/%2e%2e/Cargo.toml", "/ui/pages"] {
            assert_eq!(ask(path, None).await.status(), StatusCode::NOT_FOUND, "{path}");
        }
    }
}
