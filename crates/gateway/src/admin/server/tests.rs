//! Peers of other machines, who are there in name only: all connections of a test are of loopback.

use super::*;
use std::io::{Read, Write};
use std::net::TcpStream as Client;
use stillgate_config::Gateway;
use stillgate_testkit::PATIENCE;
use tokio::task::JoinHandle;

fn api() -> Arc<Api> {
    let text = b"gateway: {admin: {address: \"127.0.0.1:1\", key: secret}}\nroutes: []\n";
    let gateway: Gateway = stillgate_config::load(text, &|_| None).unwrap().config.gateway;
    let (_, access) = watch::channel(Access::of(&gateway));
    let (questions, _) = mpsc::channel(1);
    Arc::new(Api { access, questions, explaining: Arc::new(Semaphore::new(EXPLAINED_MAX)) })
}

/// A client's connection, served as of this peer.
async fn connect(api: &Arc<Api>, peer: &str) -> (Client, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::connect(listener.local_addr().unwrap()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let (api, peer) = (api.clone(), peer.parse().unwrap());
    (client, tokio::spawn(async move { serve_connection(stream, peer, &api).await }))
}

/// Everything that comes until the connection is closed from the other side.
async fn all_of(mut client: Client) -> String {
    let read = spawn_blocking(move || {
        let mut answer = String::new();
        client.read_to_string(&mut answer).map(|_| answer)
    });
    read.await.unwrap().expect("the server closes within the test's patience")
}

#[tokio::test]
async fn who_is_not_admitted_keeps_no_connection() {
    let api = api();
    for (key, status) in [("", "401"), ("X-API-KEY: wrong\r\n", "401")] {
        let (mut client, serving) = connect(&api, "192.0.2.1:5000").await;
        write!(client, "GET /v1/health HTTP/1.1\r\nHost: gateway\r\n{key}\r\n").unwrap();
        let answer = all_of(client).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        serving.await.unwrap();
    }
    let (mut client, serving) = connect(&api, "127.0.0.1:5000").await;
    write!(client, "GET /v1/health HTTP/1.1\r\nHost: rebound.example\r\n\r\n").unwrap();
    let answer = all_of(client).await;
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("add the name to gateway.admin.hosts"), "{answer}");
    serving.await.unwrap();
}

#[tokio::test]
async fn who_is_admitted_may_ask_again() {
    let api = api();
    let (mut client, serving) = connect(&api, "192.0.2.1:5000").await;
    let last = "Connection: close\r\n";
    for more in ["", last] {
        write!(client, "GET / HTTP/1.1\r\nHost: gateway\r\nX-API-KEY: secret\r\n{more}\r\n").unwrap();
    }
    let answer = all_of(client).await;
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2, "{answer}");
    serving.await.unwrap();
}
