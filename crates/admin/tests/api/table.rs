//! The router and its description are built from the same table.

use crate::client::{Client, text};
use serde_json::Value as Json;

/// The paths and methods of the description.
async fn described(client: &Client) -> Vec<(String, String)> {
    let response = client.send("GET", "/v1/openapi.json", &[], "").await;
    let description: Json = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(description["openapi"], "3.1.0");
    assert!(description["components"]["schemas"]["routes"].is_object());
    let paths = description["paths"].as_object().unwrap();
    let of_path = |(path, item): (&String, &Json)| {
        let methods: Vec<String> = item.as_object().unwrap().keys().cloned().collect();
        methods.into_iter().map(|method| (method.to_uppercase(), path.clone())).collect::<Vec<_>>()
    };
    paths.iter().flat_map(of_path).collect()
}

/// A path with its parts filled in.
fn filled(path: &str) -> String {
    let part = |part| match part {
        "{kind}" => "routes",
        part if str::starts_with(part, '{') => "x1",
        part => part,
    };
    path.split('/').map(part).collect::<Vec<_>>().join("/")
}

#[tokio::test]
async fn what_is_described_is_routed() {
    let client = Client::admin();
    let endpoints = described(&client).await;
    assert!(endpoints.len() > 80, "{}", endpoints.len());
    for (method, path) in endpoints {
        let response = client.send(&method, &filled(&path), &[], "").await;
        let status = response.status().as_u16();
        let text = text(response).await;
        assert_ne!(status, 405, "{method} {path}: {text}");
        let is_routed = status != 404 || text.contains("Key not found") || text.contains("consumer not found");
        let has_own_404 = path == "/v1/history/{revision}" || text.contains("plugin not found in subsystem");
        assert!(is_routed || has_own_404, "{method} {path}: {text}");
    }
}

#[tokio::test]
async fn what_is_routed_is_described() {
    let client = Client::admin();
    let endpoints = described(&client).await;
    let mut paths: Vec<&String> = endpoints.iter().map(|(_, path)| path).collect();
    paths.dedup();
    for path in paths {
        for method in ["GET", "PUT", "POST", "PATCH", "DELETE"] {
            let response = client.send(method, &filled(path), &[], "").await;
            let status = response.status().as_u16();
            let text = text(response).await;
            // An action that uses the request has to be described.
            let is_refused = status == 405
                || text.contains("error_msg\":\"not found\"")
                || text.contains("do not need it")
                || text.contains("Not found")
                || text.contains("no secret id")
                || text.starts_with("{\"error_msg\":\"missing");
            let is_described = endpoints.contains(&(method.to_owned(), path.clone()));
            assert!(is_described || is_refused, "{method} {path}: {status} {text}");
        }
    }
    for unknown in ["/v1/nothing", "/nothing", "/apisix", "/apisix/admin/routes/1/2", "/v1/status/"] {
        assert_eq!(client.send("GET", unknown, &[], "").await.status(), 404, "{unknown}");
    }
}
