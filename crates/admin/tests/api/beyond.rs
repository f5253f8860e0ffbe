//! Extensions of APISIX: conditions, dry runs, history, batches, masks.

use crate::client::Client;
use crate::control::Memory;
use expect_test::{Expect, expect};
use serde_json::json;
use stillgate_admin::WriteError;

async fn check(client: &Client, lines: &[&str], expected: Expect) {
    expected.assert_eq(&client.transcript(lines).await);
}

#[tokio::test]
async fn conditions() {
    check(
        &Client::admin(),
        &[
            r#"PUT /apisix/admin/routes/1 | If-Match: * {"uri": "/a"}"#,
            r#"PUT /apisix/admin/routes/1 | If-None-Match: * {"uri": "/a"}"#,
            r#"PUT /apisix/admin/routes/1 | If-None-Match: * {"uri": "/a"}"#,
            r#"GET /apisix/admin/routes/1"#,
            r#"GET /apisix/admin/routes/1 | If-None-Match: "11""#,
            r#"PUT /apisix/admin/routes/1?wait=stored | If-Match: "11" {"uri": "/b"}"#,
            r#"PUT /apisix/admin/routes/1 | If-Match: "11" {"uri": "/c"}"#,
            r#"PATCH /apisix/admin/routes/1 | If-Match: "11", W/"12" {"name": "n"}"#,
            r#"PATCH /apisix/admin/routes/1 | If-Match: nonsense {"name": "m"}"#,
            r#"PUT /apisix/admin/routes/1 | If-None-Match: "1" {"uri": "/a"}"#,
            r#"DELETE /apisix/admin/routes/1 | If-Match: "12""#,
            r#"DELETE /apisix/admin/routes/1 | If-Match: "13""#,
        ],
        expect![[r#"
            > PUT /apisix/admin/routes/1 | If-Match: * {"uri": "/a"}
            412 {"error_msg":"routes/1 does not exist","modifiedIndex":null}
            > PUT /apisix/admin/routes/1 | If-None-Match: * {"uri": "/a"}
            201 {"key":"/apisix/routes/1","value":{"uri":"/a","id":"1","create_time":NOW,"update_time":NOW}} (etag: "11") (x-stillgate-generation: 1011)
            > PUT /apisix/admin/routes/1 | If-None-Match: * {"uri": "/a"}
            412 {"error_msg":"routes/1 is at revision 11; read it again","modifiedIndex":11}
            > GET /apisix/admin/routes/1
            200 {"key":"/apisix/routes/1","value":{"uri":"/a","id":"1","create_time":NOW,"update_time":NOW},"createdIndex":11,"modifiedIndex":11} (etag: "11")
            > GET /apisix/admin/routes/1 | If-None-Match: "11"
            304  (etag: "11")
            > PUT /apisix/admin/routes/1?wait=stored | If-Match: "11" {"uri": "/b"}
            200 {"key":"/apisix/routes/1","value":{"uri":"/b","id":"1","create_time":NOW,"update_time":NOW}} (etag: "12")
            > PUT /apisix/admin/routes/1 | If-Match: "11" {"uri": "/c"}
            412 {"error_msg":"routes/1 is at revision 12; read it again","modifiedIndex":12}
            > PATCH /apisix/admin/routes/1 | If-Match: "11", W/"12" {"name": "n"}
            200 {"key":"/apisix/routes/1","value":{"uri":"/b","id":"1","create_time":NOW,"update_time":NOW,"name":"n"}} (etag: "13") (x-stillgate-generation: 1013)
            > PATCH /apisix/admin/routes/1 | If-Match: nonsense {"name": "m"}
            412 {"error_msg":"routes/1 is at revision 13; read it again","modifiedIndex":13}
            > PUT /apisix/admin/routes/1 | If-None-Match: "1" {"uri": "/a"}
            400 {"error_msg":"send either If-Match or If-None-Match: *"}
            > DELETE /apisix/admin/routes/1 | If-Match: "12"
            412 {"error_msg":"routes/1 is at revision 13; read it again","modifiedIndex":13}
            > DELETE /apisix/admin/routes/1 | If-Match: "13"
            200 {"key":"/apisix/routes/1","deleted":"1"} (x-stillgate-generation: 1014)
        "#]],
    )
    .await;
}

/// A condition without a revision to compare with is refused: if it were ignored, a stale write would succeed.
#[tokio::test]
async fn conditions_of_several_resources_are_refused() {
    let client = Client::admin();
    client.memory.put("routes/1", &json!({ "uri": "/1" }));
    let (status, answer) = client.ask("GET /apisix/admin/routes/1").await;
    let writes = [
        r#"PUT /apisix/admin/configs | X-Digest: 1 | HERE {"routes": []}"#,
        r#"PUT /apisix/admin/configs?dry_run=true | X-Digest: 1 | HERE {"routes": []}"#,
        r#"POST /v1/batch | HERE [{"method": "DELETE", "path": "/apisix/admin/routes/1"}]"#,
        r#"POST /v1/rollback | HERE {"to": 10}"#,
        r#"POST /apisix/admin/configs/validate | HERE {"routes": []}"#,
        r#"PUT /apisix/admin/plugins/reload | HERE"#,
    ];
    for write in writes {
        for condition in [
            r#"If-Match: "1""#,
            r#"If-Match: "11""#,
            "If-Match: *",
            "If-None-Match: *",
            r#"If-None-Match: "1""#,
            "If-Unmodified-Since: Sat, 29 Oct 1994 19:43:31 GMT",
        ] {
            let (name, _) = condition.split_once(':').unwrap();
            let refused = client.ask(&write.replace("HERE", condition)).await;
            assert_eq!(refused.0, 400, "{write} with {condition}: {}", refused.1);
            assert!(refused.1.contains(name), "{}", refused.1);
        }
    }
    assert_eq!(client.ask("GET /apisix/admin/routes/1").await, (status, answer), "nothing was written");
    // For one resource, several lines form one list, and a condition that cannot be parsed is refused, too.
    let put = |lines: &str| format!(r#"PUT /apisix/admin/routes/1 | {lines} {{"uri": "/2"}}"#);
    assert_eq!(client.ask(&put(r#"If-Match: "1" | If-Match: "2""#)).await.0, 412);
    assert_eq!(client.ask(&put("If-Unmodified-Since: Sat, 29 Oct 1994 19:43:31 GMT")).await.0, 400);
    assert_eq!(client.ask(&put(r#"If-Match: "1" | If-Match: "11""#)).await.0, 200);
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let client = Client::admin();
    for body in [r#"{"to": 10, "dry_run": true}"#, r#"{"to": 10, "bogus": 1}"#] {
        let (status, answer) = client.ask(&format!("POST /v1/rollback {body}")).await;
        assert!(status == 400 && answer.contains("?dry_run=true"), "{status} {answer}");
    }
    check(
        &client,
        &[
            r#"PUT /apisix/admin/routes/1?dry_run=true {"uri": "/a"}"#,
            r#"GET /apisix/admin/routes/1"#,
            r#"PUT /apisix/admin/routes/1?dry_run=true {"uri": 1}"#,
            r#"PUT /apisix/admin/ssls/1 {"cert": "c", "key": "k"}"#,
            r#"DELETE /apisix/admin/ssls/1?dry_run=true"#,
            r#"POST /v1/batch?dry_run=true [{"method": "delete", "path": "/apisix/admin/ssls/1"}]"#,
        ],
        expect![[r#"
            > PUT /apisix/admin/routes/1?dry_run=true {"uri": "/a"}
            200 {"dry_run":true,"changes":[{"key":"routes/1","before":null,"after":{"uri":"/a","id":"1","create_time":NOW,"update_time":NOW}}],"warnings":["a lint"],"effects":[{"key":"routes/1","effect":"takes requests of routes/2"}],"recent_requests":{"requests":3,"changed":1}}
            > GET /apisix/admin/routes/1
            404 {"message":"Key not found"}
            > PUT /apisix/admin/routes/1?dry_run=true {"uri": 1}
            400 {"error_msg":"invalid configuration: property \"uri\" validation failed: wrong type: expected string, got number"}
            > PUT /apisix/admin/ssls/1 {"cert": "c", "key": "k"}
            201 {"key":"/apisix/ssls/1","value":{"cert":"c","id":"1","create_time":NOW,"update_time":NOW}} (etag: "11") (x-stillgate-generation: 1011)
            > DELETE /apisix/admin/ssls/1?dry_run=true
            200 {"dry_run":true,"changes":[{"key":"ssls/1","before":{"cert":"c","id":"1","create_time":NOW,"update_time":NOW},"after":null}],"warnings":["a lint"],"effects":[{"key":"ssls/1","effect":"takes requests of routes/2"}],"recent_requests":{"requests":3,"changed":1}}
            > POST /v1/batch?dry_run=true [{"method": "delete", "path": "/apisix/admin/ssls/1"}]
            200 {"dry_run":true,"changes":[{"key":"ssls/1","before":{"cert":"c","id":"1","create_time":NOW,"update_time":NOW},"after":null}],"warnings":["a lint"],"effects":[{"key":"ssls/1","effect":"takes requests of routes/2"}],"recent_requests":{"requests":3,"changed":1}}
        "#]],
    )
    .await;
    assert!(client.memory.get("ssls/1").is_some());
}

#[tokio::test]
async fn batches() {
    let client = Client::admin();
    check(
        &client,
        &[
            r#"POST /v1/batch [{"method": "PUT", "path": "/apisix/admin/upstreams/u", "body": {"nodes": {}}}, {"method": "PUT", "path": "/apisix/admin/routes/1", "body": {"uri": "/a", "upstream_id": "u"}}, {"method": "POST", "path": "/apisix/admin/routes", "body": {"uri": "/b"}}, {"method": "POST", "path": "/apisix/admin/routes", "body": {"uri": "/c"}}]"#,
            r#"POST /v1/batch [{"method": "DELETE", "path": "/apisix/admin/routes/1"}, {"method": "DELETE", "path": "/apisix/admin/upstreams/u"}]"#,
            r#"POST /v1/batch [{"method": "PUT", "path": "/apisix/admin/routes/5", "body": {"uri": "/a"}}, {"method": "PUT", "path": "/apisix/admin/routes/6", "body": {"uri": "/a", "upstream_id": "u"}}]"#,
            r#"GET /apisix/admin/routes/5"#,
            r#"POST /v1/batch [{"method": "PUT", "path": "/apisix/admin/routes/5", "body": {"uri": "/a"}}, {"method": "DELETE", "path": "/apisix/admin/routes/5"}]"#,
            r#"POST /v1/batch [{"method": "DELETE", "path": "/apisix/admin/consumers/jack/credential/1"}]"#,
            r#"POST /v1/batch [{"method": "PUT", "path": "/apisix/admin/routes/1/plugins", "body": {}}]"#,
            r#"POST /v1/batch?ttl=60 [{"method": "DELETE", "path": "/apisix/admin/routes/1"}]"#,
            r#"POST /v1/batch [{"method": "DELETE", "path": "/apisix/admin/routes/1?dryrun=true"}]"#,
            r#"POST /v1/batch [{"method": "DELETE", "path": "/apisix/admin/routes/1?force=true%26dry_run=true"}]"#,
            r#"POST /v1/batch [{"method": "GET", "path": "/apisix/admin/routes/5"}]"#,
            r#"POST /v1/batch [{"method": "PUT", "path": "/v1/rollback", "body": {}}]"#,
            r#"POST /v1/batch [{"method": "PUT", "path": "/apisix/admin/consumers/jack/credentials/1", "body": {}}]"#,
            r#"POST /v1/batch [{"method": "PUT", "path": "/apisix/admin/consumers", "body": {"username": "jack"}}, {"method": "PUT", "path": "/apisix/admin/consumers/jack/credentials/1", "body": {}}, {"method": "PATCH", "path": "/apisix/admin/consumers/jack", "body": {}}]"#,
            r#"POST /v1/batch [{"method": "PUT", "path": "/apisix/admin/routes/5", "extra": 1}]"#,
            r#"POST /v1/batch []"#,
            r#"POST /v1/batch {"a": 1}"#,
        ],
        expect![[r#"
            > POST /v1/batch [{"method": "PUT", "path": "/apisix/admin/upstreams/u", "body": {"nodes": {}}}, {"method": "PUT", "path": "/apisix/admin/routes/1", "body": {"uri": "/a", "upstream_id": "u"}}, {"method": "POST", "path": "/apisix/admin/routes", "body": {"uri": "/b"}}, {"method": "POST", "path": "/apisix/admin/routes", "body": {"uri": "/c"}}]
            200 {"revision":11,"results":[{"status":201,"body":{"key":"/apisix/upstreams/u","value":{"nodes":{},"id":"u","create_time":NOW,"update_time":NOW}}},{"status":201,"body":{"key":"/apisix/routes/1","value":{"uri":"/a","upstream_id":"u","id":"1","create_time":NOW,"update_time":NOW}}},{"status":201,"body":{"key":"/apisix/routes/00000000000000000011","value":{"uri":"/b","id":"00000000000000000011","create_time":NOW,"update_time":NOW}}},{"status":201,"body":{"key":"/apisix/routes/00000000000000000012","value":{"uri":"/c","id":"00000000000000000012","create_time":NOW,"update_time":NOW}}}]} (x-stillgate-generation: 1011)
            > POST /v1/batch [{"method": "DELETE", "path": "/apisix/admin/routes/1"}, {"method": "DELETE", "path": "/apisix/admin/upstreams/u"}]
            200 {"revision":12,"results":[{"status":200,"body":{"key":"/apisix/routes/1","deleted":"1"}},{"status":200,"body":{"key":"/apisix/upstreams/u","deleted":"1"}}]} (x-stillgate-generation: 1012)
            > POST /v1/batch [{"method": "PUT", "path": "/apisix/admin/routes/5", "body": {"uri": "/a"}}, {"method": "PUT", "path": "/apisix/admin/routes/6", "body": {"uri": "/a", "upstream_id": "u"}}]
            400 {"error_msg":"operation 1: failed to fetch upstream info by upstream id [u], response code: 404","operation":1}
            > GET /apisix/admin/routes/5
            404 {"message":"Key not found"}
            > POST /v1/batch [{"method": "PUT", "path": "/apisix/admin/routes/5", "body": {"uri": "/a"}}, {"method": "DELETE", "path": "/apisix/admin/routes/5"}]
            400 {"error_msg":"operation 1: an earlier operation of this batch writes routes/5; make one operation of both","operation":1}
            > POST /v1/batch [{"method": "DELETE", "path": "/apisix/admin/consumers/jack/credential/1"}]
            400 {"error_msg":"operation 0: path: \"/apisix/admin/consumers/jack/credential/1\" is not the path of a resource; write one such as /apisix/admin/routes/1","operation":0}
            > POST /v1/batch [{"method": "PUT", "path": "/apisix/admin/routes/1/plugins", "body": {}}]
            400 {"error_msg":"operation 0: path: \"/apisix/admin/routes/1/plugins\" is not the path of a resource; write one such as /apisix/admin/routes/1","operation":0}
            > POST /v1/batch?ttl=60 [{"method": "DELETE", "path": "/apisix/admin/routes/1"}]
            400 {"error_msg":"ttl is an argument of an operation's path, not of the batch"}
            > POST /v1/batch [{"method": "DELETE", "path": "/apisix/admin/routes/1?dryrun=true"}]
            400 {"error_msg":"operation 0: dry_run is an argument of the batch: all of it is checked, or made","operation":0}
            > POST /v1/batch [{"method": "DELETE", "path": "/apisix/admin/routes/1?force=true%26dry_run=true"}]
            400 {"error_msg":"operation 0: dry_run is an argument of the batch: all of it is checked, or made","operation":0}
            > POST /v1/batch [{"method": "GET", "path": "/apisix/admin/routes/5"}]
            400 {"error_msg":"operation 0: method: write PUT, POST, PATCH or DELETE","operation":0}
            > POST /v1/batch [{"method": "PUT", "path": "/v1/rollback", "body": {}}]
            400 {"error_msg":"operation 0: path: \"/v1/rollback\" is not the path of a resource; write one such as /apisix/admin/routes/1","operation":0}
            > POST /v1/batch [{"method": "PUT", "path": "/apisix/admin/consumers/jack/credentials/1", "body": {}}]
            404 {"error_msg":"operation 0: consumer not found","operation":0}
            > POST /v1/batch [{"method": "PUT", "path": "/apisix/admin/consumers", "body": {"username": "jack"}}, {"method": "PUT", "path": "/apisix/admin/consumers/jack/credentials/1", "body": {}}, {"method": "PATCH", "path": "/apisix/admin/consumers/jack", "body": {}}]
            405 {"error_msg":"operation 2: not supported `PATCH` method for consumer","operation":2}
            > POST /v1/batch [{"method": "PUT", "path": "/apisix/admin/routes/5", "extra": 1}]
            400 {"error_msg":"write a list of {\"method\", \"path\", \"body\"}: unknown field `extra`, expected one of `method`, `path`, `body`"}
            > POST /v1/batch []
            400 {"error_msg":"a batch takes 1 to 128 operations; this one has 0"}
            > POST /v1/batch {"a": 1}
            400 {"error_msg":"write a list of {\"method\", \"path\", \"body\"}: invalid type: map, expected a sequence"}
        "#]],
    )
    .await;
    let operations: Vec<_> = (0..129)
        .map(|n| json!({ "method": "PUT", "path": format!("/apisix/admin/routes/{n}"), "body": { "uri": "/" } }))
        .collect();
    let (status, _) = client.ask(&format!("POST /v1/batch {}", json!(operations))).await;
    assert_eq!(status, 400);
    let (status, _) = client.ask(&format!("POST /v1/batch {}", json!(operations[..128]))).await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn history_and_the_way_back() {
    check(
        &Client::admin(),
        &[
            r#"PUT /apisix/admin/routes/1 {"uri": "/a"}"#,
            r#"PUT /apisix/admin/routes/1 {"uri": "/b"}"#,
            r#"PUT /apisix/admin/routes/2 {"uri": "/c"}"#,
            r#"GET /v1/history?count=2"#,
            r#"GET /v1/history?before=12"#,
            r#"GET /v1/history?before=x"#,
            r#"GET /v1/history/12"#,
            r#"GET /v1/history/99"#,
            r#"GET /v1/history/x"#,
            r#"POST /v1/rollback?dry_run=true {"to": 11}"#,
            r#"POST /v1/rollback {"to": 11}"#,
            r#"GET /apisix/admin/routes/1"#,
            r#"GET /apisix/admin/routes/2"#,
            r#"POST /v1/rollback {"to": 99}"#,
            r#"POST /v1/rollback {}"#,
        ],
        expect![[r#"
            > PUT /apisix/admin/routes/1 {"uri": "/a"}
            201 {"key":"/apisix/routes/1","value":{"uri":"/a","id":"1","create_time":NOW,"update_time":NOW}} (etag: "11") (x-stillgate-generation: 1011)
            > PUT /apisix/admin/routes/1 {"uri": "/b"}
            200 {"key":"/apisix/routes/1","value":{"uri":"/b","id":"1","create_time":NOW,"update_time":NOW}} (etag: "12") (x-stillgate-generation: 1012)
            > PUT /apisix/admin/routes/2 {"uri": "/c"}
            201 {"key":"/apisix/routes/2","value":{"uri":"/c","id":"2","create_time":NOW,"update_time":NOW}} (etag: "13") (x-stillgate-generation: 1013)
            > GET /v1/history?count=2
            200 {"changes":[{"revision":13,"unix_ms":1700000000000,"author":{"name":"ci","address":"127.0.0.1","action":"PUT /apisix/admin/routes/2"},"keys":["routes/2"],"keys_total":1},{"revision":12,"unix_ms":1700000000000,"author":{"name":"ci","address":"127.0.0.1","action":"PUT /apisix/admin/routes/1"},"keys":["routes/1"],"keys_total":1}]}
            > GET /v1/history?before=12
            200 {"changes":[{"revision":11,"unix_ms":1700000000000,"author":{"name":"ci","address":"127.0.0.1","action":"PUT /apisix/admin/routes/1"},"keys":["routes/1"],"keys_total":1}]}
            > GET /v1/history?before=x
            400 {"error_msg":"before and count must be numbers"}
            > GET /v1/history/12
            200 {"revision":12,"unix_ms":1700000000000,"author":{"name":"ci","address":"127.0.0.1","action":"PUT /apisix/admin/routes/1"},"edits":[{"key":"routes/1","before":{"uri":"/a","id":"1","create_time":NOW,"update_time":NOW},"after":{"uri":"/b","id":"1","create_time":NOW,"update_time":NOW}}]}
            > GET /v1/history/99
            404 {"error_msg":"revision 99 is not in the history; /v1/history lists what is"}
            > GET /v1/history/x
            400 {"error_msg":"the revision must be a number"}
            > POST /v1/rollback?dry_run=true {"to": 11}
            200 {"dry_run":true,"changes":[{"key":"routes/2","before":{"uri":"/c","id":"2","create_time":NOW,"update_time":NOW},"after":null},{"key":"routes/1","before":{"uri":"/b","id":"1","create_time":NOW,"update_time":NOW},"after":{"uri":"/a","id":"1","create_time":NOW,"update_time":NOW}}]}
            > POST /v1/rollback {"to": 11}
            200 {"revision":14,"to":11}
            > GET /apisix/admin/routes/1
            200 {"key":"/apisix/routes/1","value":{"uri":"/a","id":"1","create_time":NOW,"update_time":NOW},"createdIndex":11,"modifiedIndex":14} (etag: "14")
            > GET /apisix/admin/routes/2
            404 {"message":"Key not found"}
            > POST /v1/rollback {"to": 99}
            400 {"error_msg":"revision 99 is not kept"}
            > POST /v1/rollback {}
            400 {"error_msg":"send {\"to\": REVISION}, with a number"}
        "#]],
    )
    .await;
}

#[tokio::test]
async fn viewers_see_masks_and_masks_do_not_come_back() {
    let client = Client::admin();
    check(
        &client,
        &[
            r#"PUT /apisix/admin/consumers {"username": "jack", "plugins": {"key-auth": {"key": "plain"}}}"#,
            r#"GET /apisix/admin/consumers/jack | X-API-KEY: tv-secret"#,
            r#"GET /apisix/admin/consumers | X-API-KEY: tv-secret"#,
            r#"GET /apisix/admin/configs | X-API-KEY: tv-secret"#,
            r#"GET /v1/history/11 | X-API-KEY: tv-secret"#,
            r#"GET /v1/history/11"#,
            r#"PUT /apisix/admin/consumers {"username": "jack", "plugins": {"key-auth": {"key": "********"}}}"#,
            r#"PUT /apisix/admin/routes/1 {"uri": "/", "plugins": {"x": [{"y": "********"}]}}"#,
            r#"PUT /apisix/admin/configs | X-Digest: d {"consumers": [{"username": "jack", "plugins": {"key-auth": {"key": "********"}}}]}"#,
            r#"POST /v1/batch [{"method": "PATCH", "path": "/apisix/admin/routes/1/name", "body": "********"}]"#,
        ],
        expect![[r#"
            > PUT /apisix/admin/consumers {"username": "jack", "plugins": {"key-auth": {"key": "plain"}}}
            201 {"key":"/apisix/consumers/jack","value":{"username":"jack","plugins":{"key-auth":{"key":"plain"}},"create_time":NOW,"update_time":NOW}} (etag: "11") (x-stillgate-generation: 1011)
            > GET /apisix/admin/consumers/jack | X-API-KEY: tv-secret
            200 {"key":"/apisix/consumers/jack","value":{"username":"jack","plugins":{"key-auth":{"key":"********"}},"create_time":NOW,"update_time":NOW},"createdIndex":11,"modifiedIndex":11} (etag: "11")
            > GET /apisix/admin/consumers | X-API-KEY: tv-secret
            200 {"total":1,"list":[{"key":"/apisix/consumers/jack","value":{"username":"jack","plugins":{"key-auth":{"key":"********"}},"create_time":NOW,"update_time":NOW},"createdIndex":11,"modifiedIndex":11}]}
            > GET /apisix/admin/configs | X-API-KEY: tv-secret
            200 {"routes_conf_version":0,"services_conf_version":0,"upstreams_conf_version":0,"consumers":[{"username":"jack","plugins":{"key-auth":{"key":"********"}},"modifiedIndex":11}],"consumers_conf_version":11,"consumer_groups_conf_version":0,"plugin_configs_conf_version":0,"global_rules_conf_version":0,"plugin_metadata_conf_version":0,"ssls_conf_version":0,"stream_routes_conf_version":0,"secrets_conf_version":0,"protos_conf_version":0,"X-Last-Modified":NOW}
            > GET /v1/history/11 | X-API-KEY: tv-secret
            200 {"revision":11,"unix_ms":1700000000000,"author":{"name":"ci","address":"127.0.0.1","action":"PUT /apisix/admin/consumers"},"edits":[{"key":"consumers/jack","before":null,"after":{"username":"jack","plugins":{"key-auth":{"key":"********"}},"create_time":NOW,"update_time":NOW}}]}
            > GET /v1/history/11
            200 {"revision":11,"unix_ms":1700000000000,"author":{"name":"ci","address":"127.0.0.1","action":"PUT /apisix/admin/consumers"},"edits":[{"key":"consumers/jack","before":null,"after":{"username":"jack","plugins":{"key-auth":{"key":"plain"}},"create_time":NOW,"update_time":NOW}}]}
            > PUT /apisix/admin/consumers {"username": "jack", "plugins": {"key-auth": {"key": "********"}}}
            400 {"error_msg":"the document has a masked secret (********); send the secret itself, or use PATCH without this field"}
            > PUT /apisix/admin/routes/1 {"uri": "/", "plugins": {"x": [{"y": "********"}]}}
            400 {"error_msg":"the document has a masked secret (********); send the secret itself, or use PATCH without this field"}
            > PUT /apisix/admin/configs | X-Digest: d {"consumers": [{"username": "jack", "plugins": {"key-auth": {"key": "********"}}}]}
            400 {"error_msg":"invalid consumers at index 0, err: it has a masked secret (********); send the secret itself"}
            > POST /v1/batch [{"method": "PATCH", "path": "/apisix/admin/routes/1/name", "body": "********"}]
            400 {"error_msg":"operation 0: the document has a masked secret (********); send the secret itself, or use PATCH without this field","operation":0}
        "#]],
    )
    .await;
}

#[tokio::test]
async fn a_source_that_does_not_write() {
    let mut memory = Memory::at_revision(10);
    memory.is_file = true;
    let file = Client::of(memory).with("x-api-key", "ci-secret");
    file.memory.put("routes/1", &json!({ "uri": "/a" }));
    check(
        &file,
        &[
            "GET /apisix/admin/routes/1",
            r#"PUT /apisix/admin/routes/1 {"uri": "/a"}"#,
            r#"DELETE /apisix/admin/routes/1"#,
            r#"PUT /apisix/admin/configs | X-Digest: 1 {}"#,
            r#"POST /v1/rollback {"to": 1}"#,
        ],
        expect![[r#"
            > GET /apisix/admin/routes/1
            200 {"key":"/apisix/routes/1","value":{"uri":"/a"},"createdIndex":11,"modifiedIndex":11} (etag: "11")
            > PUT /apisix/admin/routes/1 {"uri": "/a"}
            501 {"error_msg":"the resources come from a file"}
            > DELETE /apisix/admin/routes/1
            501 {"error_msg":"the resources come from a file"}
            > PUT /apisix/admin/configs | X-Digest: 1 {}
            501 {"error_msg":"the resources come from a file"}
            > POST /v1/rollback {"to": 1}
            501 {"error_msg":"the resources come from a file"}
        "#]],
    )
    .await;
    let away = Client::admin();
    *away.memory.refusal.lock().unwrap() = Some(WriteError::Unavailable("etcd is away".to_owned()));
    check(
        &away,
        &[r#"PUT /apisix/admin/routes/1 {"uri": "/a"}"#],
        expect![[r#"
        > PUT /apisix/admin/routes/1 {"uri": "/a"}
        503 {"error_msg":"etcd is away"} (retry-after: 1)
    "#]],
    )
    .await;
}

#[tokio::test]
async fn of_concurrent_writers_each_wins_once() {
    const WRITERS: usize = 8;
    const ROUNDS: usize = 25;
    let client = std::sync::Arc::new(Client::admin());
    client.memory.put("routes/1", &json!({ "id": "1", "uri": "/", "priority": 0 }));
    let write = |client: std::sync::Arc<Client>| async move {
        let mut won = 0;
        while won < ROUNDS {
            let (_, text) = client.ask("GET /apisix/admin/routes/1").await;
            let json: serde_json::Value =
                serde_json::from_str(text.split_once(' ').unwrap().1.split(" (").next().unwrap()).unwrap();
            let (revision, priority) = (&json["modifiedIndex"], json["value"]["priority"].as_u64().unwrap());
            tokio::task::yield_now().await;
            let body = json!({ "uri": "/", "priority": priority + 1 });
            match client.ask(&format!("PUT /apisix/admin/routes/1 | If-Match: \"{revision}\" {body}")).await.0 {
                200 => won += 1,
                status => assert_eq!(status, 412),
            }
        }
    };
    let writers: Vec<_> = (0..WRITERS).map(|_| tokio::spawn(write(client.clone()))).collect();
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(client.memory.get("routes/1").unwrap()["priority"], WRITERS * ROUNDS);
}

#[tokio::test]
async fn a_copy_of_the_store_is_for_admins() {
    let client = Client::admin();
    let response = client.send("POST", "/v1/store/backup", &[], "").await;
    let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
    assert_eq!((response.status().as_u16(), header("content-length")), (200, "7".to_owned()));
    assert_eq!(header("x-stillgate-store"), "/x/config.redb");
    assert_eq!(crate::client::text(response).await, "a store");
    let viewer = Client::admin().with("x-api-key", "tv-secret");
    assert_eq!(viewer.ask("POST /v1/store/backup").await.0, 401);
}

#[tokio::test]
async fn who_asks_for_a_dry_run_in_other_words_writes_nothing() {
    let client = Client::admin();
    client.memory.put("routes/1", &json!({ "uri": "/1" }));
    let batch = r#"[{"method": "DELETE", "path": "/apisix/admin/routes/1"}]"#;
    let whole = r#"| X-Digest: 1 {"routes": []}"#;
    for wrong in ["dry_run=1", "dry_run", "dry_run=TRUE"] {
        for line in [
            format!("DELETE /apisix/admin/routes/1?{wrong}"),
            format!("PUT /apisix/admin/routes/1?{wrong} {{\"uri\": \"/2\"}}"),
            format!("POST /v1/batch?{wrong} {batch}"),
            format!("PUT /apisix/admin/configs?{wrong} {whole}"),
            format!("POST /v1/rollback?{wrong} {{\"to\": 11}}"),
        ] {
            let (status, answer) = client.ask(&line).await;
            assert_eq!(status, 400, "{line}: {answer}");
            assert!(answer.contains("invalid argument dry_run"), "{line}: {answer}");
        }
    }
    let inner = r#"POST /v1/batch [{"method": "DELETE", "path": "/apisix/admin/routes/1?dry_run=true"}]"#;
    let (status, answer) = client.ask(inner).await;
    assert!(status == 400 && answer.contains("dry_run is an argument of the batch"), "{answer}");
    assert_eq!(client.memory.get("routes/1"), Some(json!({ "uri": "/1" })));
}

#[tokio::test]
async fn paths_of_a_batch_are_decoded_like_those_of_requests() {
    let client = Client::admin();
    client.memory.put("routes/a.b", &json!({ "uri": "/1" }));
    let patch = r#"[{"method": "PATCH", "path": "/apisix/admin/routes/a%2Eb/labels/a%20b%2Bc", "body": "x"}]"#;
    let (status, answer) = client.ask(&format!("POST /v1/batch {patch}")).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(client.memory.get("routes/a.b").unwrap()["labels"], json!({ "a b+c": "x" }));
    let no_text = r#"POST /v1/batch [{"method": "DELETE", "path": "/apisix/admin/routes/%ff"}]"#;
    let (status, answer) = client.ask(no_text).await;
    assert!(status == 400 && answer.contains("not UTF-8"), "{answer}");
}

/// Another client writes between the check of a write and its commit.
#[tokio::test(start_paused = true)]
async fn what_comes_to_refer_to_a_document_keeps_it() {
    let setup = [
        ("upstreams/u", json!({ "nodes": {} })),
        ("services/s", json!({})),
        ("plugin_configs/p", json!({ "plugins": {} })),
        ("consumer_groups/g", json!({ "plugins": {} })),
        ("protos/7", json!({ "content": "x" })),
        ("stream_routes/t", json!({})),
        ("consumers/jack", json!({ "username": "jack" })),
    ];
    let split = json!({ "traffic-split": { "rules": [{ "weighted_upstreams": [{ "upstream_id": "u" }] }] } });
    for (path, key, referrer) in [
        ("upstreams/u", "routes/1", json!({ "upstream_id": "u" })),
        ("upstreams/u", "services/2", json!({ "upstream_id": "u" })),
        ("upstreams/u", "stream_routes/2", json!({ "upstream_id": "u" })),
        ("upstreams/u", "global_rules/2", json!({ "plugins": split })),
        ("services/s", "routes/1", json!({ "service_id": "s" })),
        ("services/s", "stream_routes/2", json!({ "service_id": "s" })),
        ("plugin_configs/p", "routes/1", json!({ "plugin_config_id": "p" })),
        ("consumer_groups/g", "consumers/rose", json!({ "username": "rose", "group_id": "g" })),
        ("protos/7", "routes/1", json!({ "plugins": { "grpc-transcode": { "proto_id": 7 } } })),
        ("stream_routes/t", "stream_routes/2", json!({ "protocol": { "superior_id": "t" } })),
    ] {
        let own = format!("DELETE /apisix/admin/{path}");
        let batch = format!(r#"POST /v1/batch [{{"method": "DELETE", "path": "/apisix/admin/{path}"}}]"#);
        for line in [own, batch] {
            let client = Client::admin();
            setup.iter().for_each(|(key, document)| client.memory.put(key, document));
            *client.memory.overtaking.lock().unwrap() = Some((key, referrer.clone()));
            let (status, answer) = client.ask(&line).await;
            assert!(status == 400 && answer.contains("still using it"), "{line} after {key}: {answer}");
            assert!(client.memory.get(path).is_some());
            if !line.starts_with("POST") {
                assert_eq!(client.ask(&format!("{line}?force=true")).await.0, 200);
            }
        }
    }
    // A concurrent write without a reference is not a conflict.
    let client = Client::admin();
    setup.iter().for_each(|(key, document)| client.memory.put(key, document));
    *client.memory.overtaking.lock().unwrap() = Some(("routes/1", json!({ "uri": "/x" })));
    assert_eq!(client.ask("DELETE /apisix/admin/services/s").await.0, 200);
    // A credential does not outlive its consumer.
    *client.memory.overtaking.lock().unwrap() = Some(("consumers/jack/credentials/c", json!({ "plugins": {} })));
    assert_eq!(client.ask("DELETE /apisix/admin/consumers/jack").await.0, 200);
    assert!(client.memory.get("consumers/jack/credentials/c").is_none());
    // A replacement of everything considers concurrent writes.
    *client.memory.overtaking.lock().unwrap() = Some(("routes/2", json!({ "uri": "/x", "upstream_id": "u" })));
    let put = r#"PUT /apisix/admin/configs | X-Digest: 1 {"routes": []}"#;
    assert_eq!(client.ask(put).await.0, 202);
    assert!(client.memory.get("upstreams/u").is_none() && client.memory.get("routes/2").is_none());
}

#[tokio::test(start_paused = true)]
async fn what_goes_meanwhile_is_not_referred_to() {
    let client = Client::admin();
    let rule = |plugin: &str| format!(r#"PUT /apisix/admin/global_rules/1 {{"plugins": {{"{plugin}": {{}}}}}}"#);
    *client.memory.overtaking.lock().unwrap() = Some(("global_rules/2", json!({ "plugins": { "limit-count": {} } })));
    let (status, answer) = client.ask(&rule("limit-count")).await;
    assert!(status == 400 && answer.contains("already exists in global rule with id '2'"), "{answer}");
    *client.memory.overtaking.lock().unwrap() = Some(("global_rules/3", json!({ "plugins": { "key-auth": {} } })));
    assert_eq!(client.ask(&rule("limit-conn")).await.0, 201);
    let patch = r#"PATCH /apisix/admin/global_rules/1 {"plugins": {"traffic-split": {}}}"#;
    *client.memory.overtaking.lock().unwrap() = Some(("global_rules/4", json!({ "plugins": { "traffic-split": {} } })));
    assert_eq!(client.ask(patch).await.0, 400);
}

#[tokio::test(start_paused = true)]
async fn one_of_two_consumers_gets_a_key() {
    let with = |key: &str| json!({ "username": "rose", "plugins": { "key-auth": { "key": key } } });
    let own = r#"{"plugins": {"key-auth": {"key": "k"}}}"#;
    let lines = [
        r#"PUT /apisix/admin/consumers {"username": "jack", "plugins": {"key-auth": {"key": "k"}}}"#.to_owned(),
        format!("PUT /apisix/admin/consumers/jill/credentials/c {own}"),
        format!(
            r#"POST /v1/batch [{{"method": "PUT", "path": "/apisix/admin/consumers/jill/credentials/c", "body": {own}}}]"#
        ),
    ];
    for line in lines {
        let client = Client::admin();
        client.memory.put("consumers/jill", &json!({ "username": "jill" }));
        *client.memory.overtaking.lock().unwrap() = Some(("consumers/rose", with("k")));
        let (status, answer) = client.ask(&line).await;
        assert!(status == 400 && answer.contains("duplicate key found with consumer: rose"), "{line}: {answer}");
        // Another key is not a conflict.
        let client = Client::admin();
        client.memory.put("consumers/jill", &json!({ "username": "jill" }));
        *client.memory.overtaking.lock().unwrap() = Some(("consumers/rose", with("other")));
        assert!([200, 201].contains(&client.ask(&line).await.0), "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_replacement_of_everything_sees_what_changes_meanwhile() {
    let upstream = r#"{"id": "u", "nodes": {"127.0.0.1:1": 1}}"#;
    let stored: serde_json::Value = serde_json::from_str(upstream).unwrap();
    let client = Client::admin();
    client.memory.put("upstreams/u", &stored);
    // It writes the route only; the upstream that it refers to is deleted and put again.
    let put = format!(
        r#"PUT /apisix/admin/configs | X-Digest: 1 {{"upstreams": [{upstream}], "routes": [{{"id": "1", "uri": "/", "upstream_id": "u"}}]}}"#
    );
    *client.memory.overtaking.lock().unwrap() = Some(("upstreams/u", json!(null)));
    assert_eq!(client.ask(&put).await.0, 202);
    assert_eq!((client.memory.get("upstreams/u"), client.memory.get("routes/1").is_some()), (Some(stored), true));
    // A unique thing that another resource has taken meanwhile does not end up with two.
    let with_key = json!({ "username": "rose", "plugins": { "key-auth": { "key": "k" } } });
    for (overtaking, document, own) in [
        (
            "global_rules/2",
            json!({ "plugins": { "cors": {} } }),
            r#"{"global_rules": [{"id": "1", "plugins": {"cors": {}}}]}"#,
        ),
        ("consumers/rose", with_key, r#"{"consumers": [{"username": "jack", "plugins": {"key-auth": {"key": "k"}}}]}"#),
        ("ssls/2", json!({ "snis": ["a.test"] }), r#"{"ssls": [{"id": "1", "snis": ["a.test"]}]}"#),
    ] {
        let client = Client::admin();
        *client.memory.overtaking.lock().unwrap() = Some((overtaking, document));
        let (status, answer) = client.ask(&format!("PUT /apisix/admin/configs | X-Digest: 1 {own}")).await;
        assert_eq!((status, client.memory.get(overtaking)), (202, None), "{overtaking}: {answer}");
    }
}
