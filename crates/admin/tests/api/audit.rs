//! The audit log: a line for each write, without secrets.

use crate::client::Client;
use crate::control::Memory;
use std::io;
use std::sync::{Arc, Mutex};
use stillgate_door::Role;
use tracing::subscriber::set_default;

/// The logged text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn who_wrote_what() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().without_time().with_ansi(false).with_writer(move || writer.clone()).finish();
    // With only one subscriber, tracing uses that of the first thread that logs the message, which may belong to another test.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let _until_the_end = set_default(subscriber);
    let client = Client::of(Memory::at_revision(10));
    let token = client.guard.sign_in_token("demo", Role::Admin, std::time::Duration::from_secs(60));
    for line in [
        r#"PUT /apisix/admin/routes/1?api_key=ci-secret {"uri": "/a"}"#,
        r#"PUT /apisix/admin/routes/1?api_key=ci-secret {"uri": 1}"#,
        r#"GET /apisix/admin/routes/1?api_key=ci-secret"#,
        r#"PUT /apisix/admin/routes/1 | X-API-KEY: tv-secret {"uri": "/a"}"#,
        r#"PUT /apisix/admin/routes/1 | X-API-KEY: a-guess {"uri": "/a"}"#,
        r#"POST /v1/batch | X-API-KEY: ci-secret [{"method": "PUT", "path": "/apisix/admin/consumers", "body": {"username": "jack", "plugins": {"key-auth": {"key": "hidden"}}}}, {"method": "DELETE", "path": "/apisix/admin/routes/1"}]"#,
        r#"POST /v1/rollback | X-API-KEY: ci-secret {"to": 11}"#,
        r#"PUT /apisix/admin/configs | X-API-KEY: ci-secret | X-Digest: 1 {"routes": [{"id": "1", "uri": "/b"}]}"#,
        &format!(r#"POST /v1/session {{"token": "{token}"}}"#),
    ] {
        client.ask(line).await;
    }
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let log: String = log.lines().map(|line| format!("{}\n", line.trim())).collect();
    for secret in ["ci-secret", "tv-secret", "a-guess", "hidden", &token] {
        assert!(!log.contains(secret), "{secret} in {log}");
    }
    expect_test::expect![[r#"
         INFO audit: write key="ci" address="127.0.0.1" action="PUT /apisix/admin/routes/1" keys="routes/1" revision=11
         WARN audit: admin API: a viewer tried to write peer=127.0.0.1 method=PUT path="/apisix/admin/routes/1"
         WARN audit: admin API: wrong key peer=127.0.0.1 count=1
         INFO audit: write key="ci" address="127.0.0.1" action="POST /v1/batch" keys="consumers/jack routes/1" revision=12
         INFO audit: write key="ci" address="127.0.0.1" action="POST /v1/rollback" keys="everything as at revision 11" revision=13
         INFO audit: write key="ci" address="127.0.0.1" action="PUT /apisix/admin/configs" keys="routes/1" revision=14
         INFO audit: session opened key="demo" address=127.0.0.1
    "#]].assert_eq(&log);
}
