//! Malicious requests.

use crate::client::{Client, text};
use axum::body::Body;
use bytes::Bytes;
use serde_json::{Value as Json, json};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use stillgate_admin::body::{DISCARDED_BYTES_MAX, MANY_BYTES_MAX, SINGLE_BYTES_MAX};

/// A body without a declared length that counts the bytes read from it; `None`: it stalls at its end.
struct Stream {
    chunks: usize,
    read: Arc<AtomicUsize>,
    stalls: bool,
}

const CHUNK: usize = 64 * 1024;

impl axum::body::HttpBody for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        if self.chunks == 0 {
            return if self.stalls { Poll::Pending } else { Poll::Ready(None) };
        }
        self.chunks -= 1;
        self.read.fetch_add(CHUNK, Ordering::Relaxed);
        Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::from_static(&[b' '; CHUNK])))))
    }
}

fn stream(bytes: usize, stalls: bool) -> (Body, Arc<AtomicUsize>) {
    let read = Arc::new(AtomicUsize::new(0));
    (Body::new(Stream { chunks: bytes / CHUNK, read: read.clone(), stalls }), read)
}

#[tokio::test]
async fn a_huge_body_is_refused_early() {
    let client = Client::admin();
    let hundred_mib = 100 * 1024 * 1024;
    for (method, path, bytes_max) in [
        ("PUT", "/apisix/admin/routes/1", SINGLE_BYTES_MAX),
        ("POST", "/apisix/admin/routes", SINGLE_BYTES_MAX),
        ("POST", "/apisix/admin/schema/validate/routes", SINGLE_BYTES_MAX),
        ("POST", "/v1/session", 4096),
        ("POST", "/v1/rollback", 4096),
        ("POST", "/v1/batch", MANY_BYTES_MAX),
        ("PUT", "/apisix/admin/configs", MANY_BYTES_MAX),
        ("GET", "/apisix/admin/routes", 0),
        ("DELETE", "/apisix/admin/routes/1", 0),
    ] {
        let (body, read) = stream(hundred_mib, false);
        let response = client.send(method, path, &[("x-digest", "1")], body).await;
        let read = read.load(Ordering::Relaxed);
        let discarded_max = if bytes_max > 0 { DISCARDED_BYTES_MAX } else { 0 };
        assert!(read <= bytes_max + discarded_max + 2 * CHUNK, "{method} {path}: {read}");
        if bytes_max > 0 {
            assert_eq!(
                (response.status().as_u16(), &response.headers()["connection"]),
                (413, &"close".parse().unwrap())
            );
            let declared = [("content-length", "104857600"), ("x-digest", "1")];
            let (body, read) = stream(hundred_mib, false);
            let response = client.send(method, path, &declared, body).await;
            assert_eq!(read.load(Ordering::Relaxed), 0, "{method} {path}: nothing is read of a declared length");
            let text = text(response).await;
            assert!(text.contains("request size 104857600 is greater than the maximum size"), "{text}");
        }
    }
    let without_key = Client::admin().without("x-api-key");
    let (body, read) = stream(hundred_mib, false);
    assert_eq!(without_key.send("PUT", "/apisix/admin/routes/1", &[], body).await.status(), 401);
    assert_eq!(read.load(Ordering::Relaxed), 0, "nothing is read of a stranger's body");
}

/// A client that sends all of it at once must not lose the response with the connection.
#[tokio::test]
async fn a_body_that_is_a_little_too_large_is_read_to_its_end() {
    let client = Client::admin();
    let bytes = 2 * SINGLE_BYTES_MAX;
    for is_declared in [false, true] {
        let (body, read) = stream(bytes, false);
        let length = bytes.to_string();
        let headers: &[(&str, &str)] = if is_declared { &[("content-length", &length)] } else { &[] };
        let response = client.send("PUT", "/apisix/admin/routes/1", headers, body).await;
        assert_eq!((response.status().as_u16(), read.load(Ordering::Relaxed)), (413, bytes));
        let text = text(response).await;
        assert!(text.contains("is greater than the maximum size 1572864 allowed"), "{text}");
    }
    let (body, read) = stream(bytes, false);
    let waiting = [("content-length", "3145728"), ("expect", "100-continue")];
    assert_eq!(client.send("PUT", "/apisix/admin/routes/1", &waiting, body).await.status(), 413);
    assert_eq!(read.load(Ordering::Relaxed), 0, "who waits for leave to send gets none");
}

/// The format in which a shell puts a certificate into a command of APISIX's documentation.
#[tokio::test]
async fn raw_control_characters_of_strings_are_taken() {
    let client = Client::admin();
    let value = "-----BEGIN\r\n\tA\u{1}\u{1f}\n-----";
    for (method, path, body) in [
        ("PUT", "/apisix/admin/routes/1", format!("{{\"desc\": \"{value}\",\n\"uri\": \"/a\"}}")),
        ("PATCH", "/apisix/admin/routes/1", format!("{{\"desc\": \"{value}\"}}")),
        ("PATCH", "/apisix/admin/routes/1/desc", format!("\"{value}\"")),
        ("POST", "/apisix/admin/routes", format!("{{\"desc\": \"{value}\"}}")),
        ("POST", "/apisix/admin/schema/validate/routes", format!("{{\"desc\": \"{value}\"}}")),
        ("POST", "/apisix/admin/configs/validate", format!("{{\"routes\": [{{\"desc\": \"{value}\"}}]}}")),
        ("PUT", "/apisix/admin/configs", format!("{{\"routes\": [{{\"id\": 1, \"desc\": \"{value}\"}}]}}")),
        (
            "POST",
            "/v1/batch",
            format!(
                "[{{\"method\": \"PUT\", \"path\": \"/apisix/admin/routes/1\", \"body\": {{\"desc\": \"{value}\"}}}}]"
            ),
        ),
    ] {
        let response = client.send(method, path, &[("x-digest", "1")], body).await;
        let status = response.status().as_u16();
        assert!(matches!(status, 200..=202), "{method} {path}: {status} {}", text(response).await);
        assert_eq!(client.memory.get("routes/1").unwrap()["desc"], value, "{method} {path}");
    }
    for wrong in ["{\"desc\": \"\0\"}", "{\"desc\": \"\\\n\"}", "{\u{1}\"desc\": 1}", "{\"desc\": \"a\n}"] {
        let response = client.send("PUT", "/apisix/admin/routes/1", &[], wrong).await;
        assert_eq!(response.status(), 400, "{wrong:?}");
    }
}

#[tokio::test]
async fn an_error_does_not_repeat_what_was_sent() {
    let client = Client::admin();
    for (method, path) in [
        ("PUT", "/apisix/admin/ssls/1"),
        ("POST", "/apisix/admin/ssls"),
        ("PATCH", "/apisix/admin/ssls/1/key"),
        ("POST", "/apisix/admin/schema/validate/ssls"),
        ("PUT", "/apisix/admin/configs"),
        ("POST", "/apisix/admin/configs/validate"),
        ("POST", "/v1/batch"),
        ("POST", "/v1/session"),
        ("POST", "/v1/rollback"),
    ] {
        for body in [
            "{\"key\": \"s3cret\"",
            "{\"key\": s3cret}",
            "{\"key\": \"s3cret\\q\"}",
            "\"s3cret\" x",
            "[{\"method\": [\"s3cret\"], \"path\": 1}]",
            "[{\"method\": 1, \"path\": \"s3cret\"}]",
            "[\"s3cret\"]",
            "{\"ssls\": \"s3cret\", \"ssls_conf_version\": \"s3cret\"}",
            "{\"ssls\": [\"s3cret\", {\"key\": \"s3cret\"}]}",
        ] {
            let response = client.send(method, path, &[("x-digest", "1")], body).await;
            let status = response.status().as_u16();
            let answer = text(response).await;
            assert!(status < 400 || !answer.contains("s3cret"), "{method} {path} {body}: {answer}");
        }
    }
}

#[tokio::test]
async fn errors_of_a_validation_are_bounded() {
    let client = Client::admin();
    let validate = async |body: String| {
        let response = client.send("POST", "/apisix/admin/configs/validate", &[], body).await;
        assert_eq!(response.status(), 400);
        let text = text(response).await;
        assert!(text.len() < 400_000, "{}", text.len());
        serde_json::from_str::<Json>(&text).unwrap()
    };
    let many = |item: &str| format!("{{\"routes\": [{}]}}", vec![item; 50_000].join(","));
    let long = format!("{{\"id\": \"{}\", \"uri\": 1}}", "x".repeat(100_000));
    let items =
        [many("1"), many("{}, 1"), many("{\"uri\": 1}"), format!("{{\"routes\": [{}]}}", vec![long; 200].join(","))];
    for body in items {
        let answer = validate(body).await;
        assert_eq!((answer["errors"].as_array().unwrap().len(), &answer["truncated"]), (100, &json!(true)));
    }
    let few = validate(many("{}").replacen("{}", "{\"uri\": 1}", 1)).await;
    assert_eq!((few["errors"].as_array().unwrap().len(), &few["truncated"]), (1, &Json::Null));
    // A document that takes many times its text is not parsed.
    let numbers = format!("{{\"routes\": [{{\"id\": 1, \"vars\": [{}]}}]}}", vec!["1"; 500_000].join(","));
    let dense = validate(numbers.clone()).await;
    assert!(dense["errors"][0]["error"].as_str().unwrap().contains("too many values"), "{dense}");
    let huge = format!("{{\"routes\": [{{\"desc\": \"{}\"}}]}}", "x".repeat(SINGLE_BYTES_MAX));
    assert!(validate(huge).await["errors"][0]["error"].as_str().unwrap().contains("larger than the maximum size"));
    let response = client.send("PUT", "/apisix/admin/configs", &[("x-digest", "1")], numbers).await;
    assert_eq!(response.status(), 400);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_end_is_given_up() {
    let client = Client::admin();
    let start = tokio::time::Instant::now();
    let (body, _) = stream(CHUNK, true);
    assert_eq!(client.send("PUT", "/apisix/admin/routes/1", &[], body).await.status(), 408);
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[tokio::test]
async fn bodies_that_are_no_json() {
    let client = Client::admin();
    let send = async |body: Vec<u8>| {
        let response = client.send("PUT", "/apisix/admin/routes/1", &[], body).await;
        (response.status().as_u16(), text(response).await)
    };
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(10_000), close.repeat(10_000)).into_bytes();
    for body in [
        deep("[", "]"),
        deep("{\"a\":", "}"),
        deep("[", ""),
        b"\xff\xfe".to_vec(),
        b"{\"uri\": \"\xff\"}".to_vec(),
        b"{}{}".to_vec(),
        b"\0".to_vec(),
    ] {
        let (status, text) = send(body).await;
        assert_eq!(status, 400, "{text}");
        assert!(text.len() < 8000 && serde_json::from_str::<Json>(&text).is_ok(), "{text}");
    }
    let response = client.send("PUT", "/apisix/admin/configs", &[("x-digest", "1")], deep("[", "]")).await;
    assert_eq!(response.status(), 400);
    let response = client.send("POST", "/v1/batch", &[], deep("[", "]")).await;
    assert_eq!(response.status(), 400);
}

#[tokio::test]
async fn any_content_type_is_json() {
    let client = Client::admin();
    for content_type in ["application/x-www-form-urlencoded", "text/plain", "", "multipart/form-data"] {
        let response =
            client.send("PUT", "/apisix/admin/routes/1", &[("content-type", content_type)], r#"{"uri": "/a"}"#).await;
        assert!(response.status().is_success(), "{content_type}");
        assert_eq!(response.headers()["content-type"], "application/json");
        assert_eq!(response.headers()["x-api-version"], "v3");
    }
}

#[tokio::test]
async fn ids_that_lead_elsewhere() {
    let client = Client::admin();
    client.memory.put("routes/1", &json!({ "uri": "/a" }));
    client.memory.put("consumers/jack", &json!({ "username": "jack" }));
    for id in [
        "..",
        "%2e%2e",
        "..%2froutes%2f1",
        "1%2f2",
        "%00",
        "1%0a",
        "%ff",
        "%",
        "%%32",
        "a%20b",
        "1;2",
        "%3Cscript%3E",
        "consumers%2fjack",
    ] {
        for method in ["GET", "PUT", "PATCH", "DELETE"] {
            let response = client.send(method, &format!("/apisix/admin/services/{id}"), &[], r#"{"a": 1}"#).await;
            let status = response.status().as_u16();
            let text = text(response).await;
            assert!(matches!(status, 400 | 404), "{method} {id}: {status} {text}");
        }
    }
    for path in [
        "/apisix/admin/consumers/jack%2fcredentials%2f1",
        "/apisix/admin/consumers/../routes/1",
        "/apisix/admin//routes/1",
        "/apisix/admin/secrets/..%2froutes/1",
        "/apisix/admin/consumers/..%2froutes/credentials/1",
    ] {
        let response = client.send("GET", path, &[], "").await;
        assert_eq!(response.status(), 404, "{path}");
        let response = client.send("PUT", path, &[], r#"{"uri": "/x"}"#).await;
        assert!(response.status().is_client_error(), "{path}");
    }
    assert_eq!(client.memory.get("routes/1").unwrap(), json!({ "uri": "/a" }));
}

#[tokio::test]
async fn markup_stays_data() {
    let client = Client::admin();
    let name = "</script><img src=x onerror=alert(1)>\u{2028}\"'&";
    let label = name.replace(' ', "/");
    let body = json!({ "uri": "/a", "name": name, "labels": { name: label }, "desc": name }).to_string();
    assert_eq!(client.send("PUT", "/apisix/admin/routes/1", &[], body).await.status(), 201);
    let response = client.send("GET", "/apisix/admin/routes/1", &[], "").await;
    assert_eq!(response.headers()["content-type"], "application/json");
    assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    let json: Json = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!((&json["value"]["name"], &json["value"]["labels"][name]), (&json!(name), &json!(label)));
    let unknown = client.send("GET", "/apisix/admin/%3Cscript%3E", &[], "").await;
    assert_eq!(unknown.headers()["content-type"], "application/json");
}

#[tokio::test]
async fn queries_without_end() {
    let client = Client::admin();
    client.memory.put("routes/1", &json!({ "uri": "/a", "name": "a".repeat(100_000) }));
    let regex = "(a%2B)%2B%24".to_owned() + &"b".repeat(100);
    assert_eq!(client.ask(&format!("GET /apisix/admin/routes?name={regex}")).await.0, 200);
    assert_eq!(client.ask("GET /apisix/admin/routes?name=(a{1000}){1000}{1000}").await.0, 200);
    let many = "a=1&".repeat(10_000);
    assert_eq!(client.ask(&format!("GET /apisix/admin/routes?{many}")).await.0, 200);
}

/// A regex may have 1,024 bytes, and 128 KiB when compiled; a larger one matches nothing.
#[tokio::test]
async fn filters_that_are_too_large_match_nothing() {
    let client = Client::admin();
    client.memory.put("routes/1", &json!({ "uri": format!("/{}", "a".repeat(20_000)) }));
    let total = async |filter: &str| {
        let filter: String = filter.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let response = client.send("GET", &format!("/apisix/admin/routes?uri={filter}"), &[], "").await;
        assert_eq!(response.status(), 200, "{filter}");
        let list: Json = serde_json::from_str(&text(response).await).unwrap();
        assert_eq!(list["total"], list["list"].as_array().unwrap().len(), "{filter}");
        list["total"].as_u64().unwrap()
    };
    // Each would match.
    for (filter, expected) in [
        ("a".repeat(1024), 1),
        ("a".repeat(1025), 0),
        ("(\\w{100}){2}".to_owned(), 0),
        ("(a{100}){100}".to_owned(), 0),
        ("[ab]*a[ab]{100}".to_owned(), 1),
        ("(?:a|\\w)".repeat(100), 0),
        // Not a regex.
        ("(".repeat(1000), 0),
    ] {
        assert_eq!(total(&filter).await, expected, "{}", &filter[..filter.len().min(30)]);
    }
}

#[tokio::test]
async fn paths_without_end() {
    let client = Client::admin();
    client.memory.put("routes/1", &json!({ "id": "1", "uri": "/a" }));
    let patch = async |path: &str| client.ask(&format!("PATCH /apisix/admin/routes/1/{path} {{\"x\": 1}}")).await.0;
    assert_eq!(patch(&"a/".repeat(5000)).await, 400);
    let mut path = "b".to_owned();
    assert_eq!(patch(&path).await, 200);
    // One level deeper with each request, as long as it can be read again.
    let statuses: Vec<u16> = {
        let mut statuses = Vec::new();
        for _ in 0..5 {
            path.push_str(&"/b".repeat(12));
            statuses.push(patch(&path).await);
        }
        statuses
    };
    assert_eq!(statuses, [200, 200, 200, 200, 200]);
    let deep = format!("{}1{}", "{\"c\":".repeat(100), "}".repeat(100));
    let (status, text) = client.ask(&format!("PATCH /apisix/admin/routes/1/{path} {deep}")).await;
    assert_eq!((status, text.contains("lists and maps are nested too deeply")), (400, true), "{text}");
    assert_eq!(client.ask("GET /apisix/admin/routes/1").await.0, 200);
}
