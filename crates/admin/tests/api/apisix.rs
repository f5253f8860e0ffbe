//! Behaviour that clients of APISIX know, in its words.

use crate::client::Client;
use expect_test::{Expect, expect};
use serde_json::json;

async fn check(lines: &[&str], expected: Expect) {
    expected.assert_eq(&Client::admin().transcript(lines).await);
}

#[tokio::test]
async fn the_life_of_a_route() {
    check(
        &[
            r#"GET /apisix/admin/routes"#,
            r#"GET /apisix/admin/routes/1"#,
            r#"PUT /apisix/admin/routes/1 {"uri": "/a", "id": 1}"#,
            r#"PUT /apisix/admin/routes/1/ {"uri": "/b"}"#,
            r#"PUT /apisix/admin/routes {"uri": "/c", "id": 2}"#,
            r#"POST /apisix/admin/routes {"uri": "/d"}"#,
            r#"GET /apisix/admin/routes/1"#,
            r#"GET /apisix/admin/routes/"#,
            r#"PATCH /apisix/admin/routes/1 {"uri": null, "uris": ["/x", "/y"], "labels": {"a": "b"}}"#,
            r#"PATCH /apisix/admin/routes/1/uris ["/z"]"#,
            r#"PATCH /apisix/admin/routes/1/labels/c "d""#,
            r#"PATCH /apisix/admin/routes/1/uris/x/y "d""#,
            r#"PATCH /apisix/admin/routes/9 {"uri": "/a"}"#,
            r#"DELETE /apisix/admin/routes/1"#,
            r#"DELETE /apisix/admin/routes/1"#,
        ],
        expect![[r#"
            > GET /apisix/admin/routes
            200 {"total":0,"list":[]}
            > GET /apisix/admin/routes/1
            404 {"message":"Key not found"}
            > PUT /apisix/admin/routes/1 {"uri": "/a", "id": 1}
            201 {"key":"/apisix/routes/1","value":{"uri":"/a","id":"1","create_time":NOW,"update_time":NOW}} (etag: "11") (x-stillgate-generation: 1011)
            > PUT /apisix/admin/routes/1/ {"uri": "/b"}
            200 {"key":"/apisix/routes/1","value":{"uri":"/b","id":"1","create_time":NOW,"update_time":NOW}} (etag: "12") (x-stillgate-generation: 1012)
            > PUT /apisix/admin/routes {"uri": "/c", "id": 2}
            201 {"key":"/apisix/routes/2","value":{"uri":"/c","id":2,"create_time":NOW,"update_time":NOW}} (etag: "13") (x-stillgate-generation: 1013)
            > POST /apisix/admin/routes {"uri": "/d"}
            201 {"key":"/apisix/routes/00000000000000000014","value":{"uri":"/d","id":"00000000000000000014","create_time":NOW,"update_time":NOW}} (etag: "14") (x-stillgate-generation: 1014)
            > GET /apisix/admin/routes/1
            200 {"key":"/apisix/routes/1","value":{"uri":"/b","id":"1","create_time":NOW,"update_time":NOW},"createdIndex":11,"modifiedIndex":12} (etag: "12")
            > GET /apisix/admin/routes/
            200 {"total":3,"list":[{"key":"/apisix/routes/00000000000000000014","value":{"uri":"/d","id":"00000000000000000014","create_time":NOW,"update_time":NOW},"createdIndex":14,"modifiedIndex":14},{"key":"/apisix/routes/1","value":{"uri":"/b","id":"1","create_time":NOW,"update_time":NOW},"createdIndex":11,"modifiedIndex":12},{"key":"/apisix/routes/2","value":{"uri":"/c","id":2,"create_time":NOW,"update_time":NOW},"createdIndex":13,"modifiedIndex":13}]}
            > PATCH /apisix/admin/routes/1 {"uri": null, "uris": ["/x", "/y"], "labels": {"a": "b"}}
            200 {"key":"/apisix/routes/1","value":{"id":"1","create_time":NOW,"update_time":NOW,"uris":["/x","/y"],"labels":{"a":"b"}}} (etag: "15") (x-stillgate-generation: 1015)
            > PATCH /apisix/admin/routes/1/uris ["/z"]
            200 {"key":"/apisix/routes/1","value":{"id":"1","create_time":NOW,"update_time":NOW,"uris":["/z"],"labels":{"a":"b"}}} (etag: "16") (x-stillgate-generation: 1016)
            > PATCH /apisix/admin/routes/1/labels/c "d"
            200 {"key":"/apisix/routes/1","value":{"id":"1","create_time":NOW,"update_time":NOW,"uris":["/z"],"labels":{"a":"b","c":"d"}}} (etag: "17") (x-stillgate-generation: 1017)
            > PATCH /apisix/admin/routes/1/uris/x/y "d"
            400 {"error_msg":"invalid sub-path: /uris/x"}
            > PATCH /apisix/admin/routes/9 {"uri": "/a"}
            404 {"message":"Key not found"}
            > DELETE /apisix/admin/routes/1
            200 {"key":"/apisix/routes/1","deleted":"1"} (x-stillgate-generation: 1018)
            > DELETE /apisix/admin/routes/1
            404 {"message":"Key not found"}
        "#]],
    )
    .await;
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table")]
async fn what_is_wrong_with_ids_and_bodies() {
    check(
        &[
            r#"PUT /apisix/admin/routes {"uri": "/a"}"#,
            r#"PUT /apisix/admin/routes/1"#,
            r#"PUT /apisix/admin/routes/1 {"id": "2"}"#,
            r#"PUT /apisix/admin/routes/a%20b {"uri": "/a"}"#,
            r#"PUT /apisix/admin/routes/1 ["/a"]"#,
            r#"PUT /apisix/admin/routes/1 {"uri": 666}"#,
            r#"PUT /apisix/admin/routes/1 {"uri": "/a", "host": "a", "hosts": ["b"]}"#,
            r#"PUT /apisix/admin/routes/1 {"uri": "/a", "plugins": {"limit-cont": {}}}"#,
            r#"PUT /apisix/admin/consumers {"username": "jack", "plugins": {"limit-cont": {}}}"#,
            r#"PUT /apisix/admin/routes/1 {"uri": "/a", "plugins": {"limit-count": {"count": 0}}}"#,
            r#"PUT /apisix/admin/routes/1 {abcd"#,
            r#"PUT /apisix/admin/routes/1 {"uri": "/a", "create_time": 1602883670}"#,
            r#"POST /apisix/admin/services {"upstream": {"nodes": {}, "update_time": 1602883670}}"#,
            r#"PUT /apisix/admin/routes {"uri": "/a", "id": 0}"#,
            r#"PUT /apisix/admin/routes/1 {"uri": "/a", "upstream_id": -1}"#,
            r#"PUT /apisix/admin/routes/1 {"uri": "/a", "labels": {"env": "a b"}}"#,
            r#"PUT /apisix/admin/routes/1 {"uris": ["/a", "/a"]}"#,
            r#"PUT /apisix/admin/upstreams/1 {"type": "chash", "hash_on": "header", "nodes": {}}"#,
            r#"POST /apisix/admin/upstreams {"nodes": [{"host": "::1", "port": 80, "weight": 1}]}"#,
            r#"POST /apisix/admin/schema/validate/upstreams {"nodes": [{"host": "::1", "port": 80, "weight": 1}]}"#,
            r#"POST /apisix/admin/configs/validate {"upstreams": [{"id": "u", "type": "chash", "nodes": {}}]}"#,
            r#"PUT /apisix/admin/routes/1?ttl=x {"uri": "/a"}"#,
            r#"POST /apisix/admin/routes/1 {"uri": "/a"}"#,
            r#"POST /apisix/admin/routes {"uri": "/a", "id": "1"}"#,
            r#"POST /apisix/admin/routes"#,
            r#"PATCH /apisix/admin/routes {"uri": "/a"}"#,
            r#"PATCH /apisix/admin/routes/1"#,
            r#"DELETE /apisix/admin/routes"#,
            r#"DELETE /apisix/admin/upstreams"#,
            r#"PUT /apisix/admin/stream_routes {}"#,
            r#"PUT /apisix/admin/routs/1 {}"#,
            r#"GET /apisix/admin/routs"#,
            r#"PUT /apisix/admin/schema/service"#,
        ],
        expect![[r#"
            > PUT /apisix/admin/routes {"uri": "/a"}
            400 {"error_msg":"missing route id"}
            > PUT /apisix/admin/routes/1
            400 {"error_msg":"missing configurations"}
            > PUT /apisix/admin/routes/1 {"id": "2"}
            400 {"error_msg":"wrong route id"}
            > PUT /apisix/admin/routes/a%20b {"uri": "/a"}
            400 {"error_msg":"invalid configuration: property \"id\" validation failed: object matches none of the required"}
            > PUT /apisix/admin/routes/1 ["/a"]
            400 {"error_msg":"invalid configuration: wrong type: expected object, got table"}
            > PUT /apisix/admin/routes/1 {"uri": 666}
            400 {"error_msg":"invalid configuration: property \"uri\" validation failed: wrong type: expected string, got number"}
            > PUT /apisix/admin/routes/1 {"uri": "/a", "host": "a", "hosts": ["b"]}
            400 {"error_msg":"only one of host or hosts is allowed"}
            > PUT /apisix/admin/routes/1 {"uri": "/a", "plugins": {"limit-cont": {}}}
            400 {"error_msg":"unknown plugin [limit-cont]"}
            > PUT /apisix/admin/consumers {"username": "jack", "plugins": {"limit-cont": {}}}
            400 {"error_msg":"invalid plugins configuration: unknown plugin [limit-cont]"}
            > PUT /apisix/admin/routes/1 {"uri": "/a", "plugins": {"limit-count": {"count": 0}}}
            400 {"error_msg":"failed to check the configuration of plugin limit-count err: count"}
            > PUT /apisix/admin/routes/1 {abcd
            400 {"error_msg":"invalid request body: Expected object key string but found invalid token at character 2"}
            > PUT /apisix/admin/routes/1 {"uri": "/a", "create_time": 1602883670}
            400 {"error_msg":"the property is forbidden:  create_time"}
            > POST /apisix/admin/services {"upstream": {"nodes": {}, "update_time": 1602883670}}
            400 {"error_msg":"the property is forbidden:  upstream.update_time"}
            > PUT /apisix/admin/routes {"uri": "/a", "id": 0}
            400 {"error_msg":"invalid configuration: property \"id\" validation failed: object matches none of the required"}
            > PUT /apisix/admin/routes/1 {"uri": "/a", "upstream_id": -1}
            400 {"error_msg":"invalid configuration: property \"upstream_id\" validation failed: object matches none of the required"}
            > PUT /apisix/admin/routes/1 {"uri": "/a", "labels": {"env": "a b"}}
            400 {"error_msg":"invalid configuration: property \"labels\" validation failed: failed to validate env (matching \".*\"): failed to match pattern \"^\\S+$\" with \"a b\""}
            > PUT /apisix/admin/routes/1 {"uris": ["/a", "/a"]}
            400 {"error_msg":"invalid configuration: property \"uris\" validation failed: expected unique items but items 1 and 2 are equal"}
            > PUT /apisix/admin/upstreams/1 {"type": "chash", "hash_on": "header", "nodes": {}}
            400 {"error_msg":"missing key"}
            > POST /apisix/admin/upstreams {"nodes": [{"host": "::1", "port": 80, "weight": 1}]}
            400 {"error_msg":"invalid configuration: IPv6 address must be enclosed with '[' and ']'"}
            > POST /apisix/admin/schema/validate/upstreams {"nodes": [{"host": "::1", "port": 80, "weight": 1}]}
            400 {"error_msg":"IPv6 address must be enclosed with '[' and ']'"}
            > POST /apisix/admin/configs/validate {"upstreams": [{"id": "u", "type": "chash", "nodes": {}}]}
            400 {"error_msg":"Configuration validation failed","errors":[{"resource_type":"upstreams","resource_id":"u","index":0,"error":"missing key"}]}
            > PUT /apisix/admin/routes/1?ttl=x {"uri": "/a"}
            400 {"error_msg":"invalid argument ttl: should be a number"}
            > POST /apisix/admin/routes/1 {"uri": "/a"}
            400 {"error_msg":"wrong route id, do not need it"}
            > POST /apisix/admin/routes {"uri": "/a", "id": "1"}
            400 {"error_msg":"wrong route id, do not need it"}
            > POST /apisix/admin/routes
            400 {"error_msg":"missing configurations"}
            > PATCH /apisix/admin/routes {"uri": "/a"}
            400 {"error_msg":"missing route id"}
            > PATCH /apisix/admin/routes/1
            400 {"error_msg":"missing new configuration"}
            > DELETE /apisix/admin/routes
            400 {"error_msg":"missing route id"}
            > DELETE /apisix/admin/upstreams
            400 {"error_msg":"missing upstream id"}
            > PUT /apisix/admin/stream_routes {}
            400 {"error_msg":"missing stream route id"}
            > PUT /apisix/admin/routs/1 {}
            404 {"error_msg":"Unsupported resource type: routs"}
            > GET /apisix/admin/routs
            404 {"error_msg":"Unsupported resource type: routs"}
            > PUT /apisix/admin/schema/service
            404 {"error_msg":"not found"} (allow: GET,HEAD)
        "#]],
    )
    .await;
}

#[tokio::test]
async fn methods_that_a_collection_does_not_have() {
    check(
        &[
            "POST /apisix/admin/consumers",
            r#"PATCH /apisix/admin/consumers/jack {"desc": "x"}"#,
            r#"POST /apisix/admin/consumers/jack/credentials {}"#,
            r#"PATCH /apisix/admin/consumers/jack/credentials/1 {}"#,
            "POST /apisix/admin/consumer_groups {}",
            "POST /apisix/admin/plugin_configs {}",
            "POST /apisix/admin/global_rules {}",
            "POST /apisix/admin/plugin_metadata {}",
            "PATCH /apisix/admin/plugin_metadata/limit-count {}",
            "PATCH /apisix/admin/stream_routes/1 {}",
            "PATCH /apisix/admin/protos/1 {}",
            "POST /apisix/admin/secrets/vault/1 {}",
            "GET /apisix/admin/plugins/reload",
            "PUT /apisix/admin/plugins/reload",
            "POST /apisix/admin/configs",
            "HEAD /apisix/admin",
        ],
        expect![[r#"
            > POST /apisix/admin/consumers
            405 {"error_msg":"not supported `POST` method for consumer"}
            > PATCH /apisix/admin/consumers/jack {"desc": "x"}
            405 {"error_msg":"not supported `PATCH` method for consumer"}
            > POST /apisix/admin/consumers/jack/credentials {}
            405 {"error_msg":"not supported `POST` method for credential"}
            > PATCH /apisix/admin/consumers/jack/credentials/1 {}
            405 {"error_msg":"not supported `PATCH` method for credential"}
            > POST /apisix/admin/consumer_groups {}
            405 {"error_msg":"not supported `POST` method for consumer group"}
            > POST /apisix/admin/plugin_configs {}
            405 {"error_msg":"not supported `POST` method for plugin config"}
            > POST /apisix/admin/global_rules {}
            405 {"error_msg":"not supported `POST` method for global rule"}
            > POST /apisix/admin/plugin_metadata {}
            405 {"error_msg":"not supported `POST` method for plugin_metadata"}
            > PATCH /apisix/admin/plugin_metadata/limit-count {}
            405 {"error_msg":"not supported `PATCH` method for plugin_metadata"}
            > PATCH /apisix/admin/stream_routes/1 {}
            405 {"error_msg":"not supported `PATCH` method for stream route"}
            > PATCH /apisix/admin/protos/1 {}
            405 {"error_msg":"not supported `PATCH` method for proto"}
            > POST /apisix/admin/secrets/vault/1 {}
            405 {"error_msg":"not supported `POST` method for secret"}
            > GET /apisix/admin/plugins/reload
            405 {"error_msg":"please use PUT method to reload the plugins, GET method is not allowed."} (allow: PUT)
            > PUT /apisix/admin/plugins/reload
            200 done
            > POST /apisix/admin/configs
            404 {"error_msg":"not found"} (allow: GET,HEAD,PUT)
            > HEAD /apisix/admin
            200 
        "#]],
    )
    .await;
}

#[tokio::test]
async fn consumers_and_credentials() {
    check(
        &[
            r#"PUT /apisix/admin/consumers {"desc": "x"}"#,
            r#"PUT /apisix/admin/consumers {"username": "a b"}"#,
            r#"PUT /apisix/admin/consumers/jack {"username": "rose"}"#,
            r#"PUT /apisix/admin/consumers/jack/credentials/c1 {"plugins": {"key-auth": {"key": "k1"}}}"#,
            r#"PUT /apisix/admin/consumers {"username": "jack", "group_id": "g1"}"#,
            r#"PUT /apisix/admin/consumer_groups/g1 {"plugins": {}}"#,
            r#"PUT /apisix/admin/consumers {"username": "jack", "group_id": "g1"}"#,
            r#"DELETE /apisix/admin/consumer_groups/g1"#,
            r#"PUT /apisix/admin/consumers/jack/credentials {"plugins": {}}"#,
            r#"GET /apisix/admin/consumers/jack/credentials"#,
            r#"PUT /apisix/admin/consumers/jack/credentials/c1 {"plugins": {"limit-count": {}}}"#,
            r#"PUT /apisix/admin/consumers/jack/credentials/c1 {"plugins": {"key-auth": {"key": "k1"}}}"#,
            r#"PUT /apisix/admin/consumers/rose {"username": "rose", "plugins": {"key-auth": {"key": "k1"}}}"#,
            r#"GET /apisix/admin/consumers"#,
            r#"GET /apisix/admin/consumers/jack/credentials"#,
            r#"GET /apisix/admin/consumers/jack/credentials/c1"#,
            r#"DELETE /apisix/admin/consumers/jack"#,
            r#"GET /apisix/admin/consumers/jack/credentials/c1"#,
        ],
        expect![[r#"
            > PUT /apisix/admin/consumers {"desc": "x"}
            400 {"error_msg":"invalid configuration: property \"username\" is required"}
            > PUT /apisix/admin/consumers {"username": "a b"}
            400 {"error_msg":"invalid configuration: property \"username\" validation failed: failed to match pattern \"^[a-zA-Z0-9_\\-]+$\" with \"a b\""}
            > PUT /apisix/admin/consumers/jack {"username": "rose"}
            400 {"error_msg":"wrong username"}
            > PUT /apisix/admin/consumers/jack/credentials/c1 {"plugins": {"key-auth": {"key": "k1"}}}
            404 {"error_msg":"consumer not found"}
            > PUT /apisix/admin/consumers {"username": "jack", "group_id": "g1"}
            400 {"error_msg":"failed to fetch consumer group info by consumer group id [g1], response code: 404"}
            > PUT /apisix/admin/consumer_groups/g1 {"plugins": {}}
            201 {"key":"/apisix/consumer_groups/g1","value":{"plugins":{},"id":"g1","create_time":NOW,"update_time":NOW}} (etag: "11") (x-stillgate-generation: 1011)
            > PUT /apisix/admin/consumers {"username": "jack", "group_id": "g1"}
            201 {"key":"/apisix/consumers/jack","value":{"username":"jack","group_id":"g1","create_time":NOW,"update_time":NOW}} (etag: "12") (x-stillgate-generation: 1012)
            > DELETE /apisix/admin/consumer_groups/g1
            400 {"error_msg":"can not delete this consumer group, consumer [jack] is still using it now"}
            > PUT /apisix/admin/consumers/jack/credentials {"plugins": {}}
            400 {"error_msg":"missing credential id"}
            > GET /apisix/admin/consumers/jack/credentials
            404 {"message":"Key not found"}
            > PUT /apisix/admin/consumers/jack/credentials/c1 {"plugins": {"limit-count": {}}}
            400 {"error_msg":"only supports auth type plugins in consumer credential"}
            > PUT /apisix/admin/consumers/jack/credentials/c1 {"plugins": {"key-auth": {"key": "k1"}}}
            201 {"key":"/apisix/consumers/jack/credentials/c1","value":{"plugins":{"key-auth":{"key":"k1"}},"id":"c1","create_time":NOW,"update_time":NOW}} (etag: "13") (x-stillgate-generation: 1013)
            > PUT /apisix/admin/consumers/rose {"username": "rose", "plugins": {"key-auth": {"key": "k1"}}}
            400 {"error_msg":"duplicate key found with consumer: jack"}
            > GET /apisix/admin/consumers
            200 {"total":1,"list":[{"key":"/apisix/consumers/jack","value":{"username":"jack","group_id":"g1","create_time":NOW,"update_time":NOW},"createdIndex":12,"modifiedIndex":12}]}
            > GET /apisix/admin/consumers/jack/credentials
            200 {"total":1,"list":[{"key":"/apisix/consumers/jack/credentials/c1","value":{"plugins":{"key-auth":{"key":"k1"}},"id":"c1","create_time":NOW,"update_time":NOW},"createdIndex":13,"modifiedIndex":13}]}
            > GET /apisix/admin/consumers/jack/credentials/c1
            200 {"key":"/apisix/consumers/jack/credentials/c1","value":{"plugins":{"key-auth":{"key":"k1"}},"id":"c1","create_time":NOW,"update_time":NOW},"createdIndex":13,"modifiedIndex":13} (etag: "13")
            > DELETE /apisix/admin/consumers/jack
            200 {"key":"/apisix/consumers/jack","deleted":"1"} (x-stillgate-generation: 1014)
            > GET /apisix/admin/consumers/jack/credentials/c1
            404 {"message":"Key not found"}
        "#]],
    )
    .await;
}

#[tokio::test]
async fn references() {
    check(
        &[
            r#"PUT /apisix/admin/routes/1 {"uri": "/a", "upstream_id": "u"}"#,
            r#"PUT /apisix/admin/routes/1 {"uri": "/a", "service_id": 1}"#,
            r#"PUT /apisix/admin/routes/1 {"uri": "/a", "plugin_config_id": "p"}"#,
            r#"PUT /apisix/admin/services/1 {"upstream_id": "u"}"#,
            r#"PUT /apisix/admin/stream_routes/1 {"protocol": {"name": "redis", "superior_id": "s"}}"#,
            r#"PUT /apisix/admin/upstreams/u {"nodes": {"127.0.0.1:80": 1}}"#,
            r#"PUT /apisix/admin/services/1 {"upstream_id": "u"}"#,
            r#"PUT /apisix/admin/routes/1 {"uri": "/a", "service_id": 1}"#,
            r#"DELETE /apisix/admin/upstreams/u"#,
            r#"DELETE /apisix/admin/services/1"#,
            r#"PUT /apisix/admin/routes/1 {"uri": "/a", "plugins": {"traffic-split": {"rules": [{"weighted_upstreams": [{"upstream_id": "u"}]}]}}}"#,
            r#"DELETE /apisix/admin/upstreams/u"#,
            r#"DELETE /apisix/admin/upstreams/u?force=true"#,
        ],
        expect![[r#"
            > PUT /apisix/admin/routes/1 {"uri": "/a", "upstream_id": "u"}
            400 {"error_msg":"failed to fetch upstream info by upstream id [u], response code: 404"}
            > PUT /apisix/admin/routes/1 {"uri": "/a", "service_id": 1}
            400 {"error_msg":"failed to fetch service info by service id [1], response code: 404"}
            > PUT /apisix/admin/routes/1 {"uri": "/a", "plugin_config_id": "p"}
            400 {"error_msg":"failed to fetch plugin config info by plugin config id [p], response code: 404"}
            > PUT /apisix/admin/services/1 {"upstream_id": "u"}
            400 {"error_msg":"failed to fetch upstream info by upstream id [u], response code: 404"}
            > PUT /apisix/admin/stream_routes/1 {"protocol": {"name": "redis", "superior_id": "s"}}
            400 {"error_msg":"failed to fetch stream routes[s], response code: 404"}
            > PUT /apisix/admin/upstreams/u {"nodes": {"127.0.0.1:80": 1}}
            201 {"key":"/apisix/upstreams/u","value":{"nodes":{"127.0.0.1:80":1},"id":"u","create_time":NOW,"update_time":NOW}} (etag: "11") (x-stillgate-generation: 1011)
            > PUT /apisix/admin/services/1 {"upstream_id": "u"}
            201 {"key":"/apisix/services/1","value":{"upstream_id":"u","id":"1","create_time":NOW,"update_time":NOW}} (etag: "12") (x-stillgate-generation: 1012)
            > PUT /apisix/admin/routes/1 {"uri": "/a", "service_id": 1}
            201 {"key":"/apisix/routes/1","value":{"uri":"/a","service_id":1,"id":"1","create_time":NOW,"update_time":NOW}} (etag: "13") (x-stillgate-generation: 1013)
            > DELETE /apisix/admin/upstreams/u
            400 {"error_msg":"can not delete this upstream, service [1] is still using it now"}
            > DELETE /apisix/admin/services/1
            400 {"error_msg":"can not delete this service directly, route [1] is still using it now"}
            > PUT /apisix/admin/routes/1 {"uri": "/a", "plugins": {"traffic-split": {"rules": [{"weighted_upstreams": [{"upstream_id": "u"}]}]}}}
            200 {"key":"/apisix/routes/1","value":{"uri":"/a","plugins":{"traffic-split":{"rules":[{"weighted_upstreams":[{"upstream_id":"u"}]}]}},"id":"1","create_time":NOW,"update_time":NOW}} (etag: "14") (x-stillgate-generation: 1014)
            > DELETE /apisix/admin/upstreams/u
            400 {"error_msg":"can not delete this upstream, plugin in route [1] is still using it now"}
            > DELETE /apisix/admin/upstreams/u?force=true
            200 {"key":"/apisix/upstreams/u","deleted":"1"} (x-stillgate-generation: 1015)
        "#]],
    )
    .await;
}

#[tokio::test]
async fn more_references() {
    check(
        &[
            r#"PUT /apisix/admin/protos/7 {"content": "x"}"#,
            r#"PUT /apisix/admin/routes/2 {"uri": "/a", "plugins": {"grpc-transcode": {"proto_id": 7}}}"#,
            r#"DELETE /apisix/admin/protos/7"#,
            r#"PUT /apisix/admin/plugin_configs/p {"plugins": {}}"#,
            r#"PUT /apisix/admin/routes/2 {"uri": "/a", "plugin_config_id": "p"}"#,
            r#"DELETE /apisix/admin/plugin_configs/p"#,
            r#"PUT /apisix/admin/global_rules/1 {"plugins": {"limit-count": {}}}"#,
            r#"PUT /apisix/admin/global_rules/2 {"plugins": {"limit-count": {}}}"#,
            r#"PUT /apisix/admin/global_rules/1 {"plugins": {"limit-count": {}}}"#,
        ],
        expect![[r#"
            > PUT /apisix/admin/protos/7 {"content": "x"}
            201 {"key":"/apisix/protos/7","value":{"content":"x","id":"7","create_time":NOW,"update_time":NOW}} (etag: "11") (x-stillgate-generation: 1011)
            > PUT /apisix/admin/routes/2 {"uri": "/a", "plugins": {"grpc-transcode": {"proto_id": 7}}}
            201 {"key":"/apisix/routes/2","value":{"uri":"/a","plugins":{"grpc-transcode":{"proto_id":7}},"id":"2","create_time":NOW,"update_time":NOW}} (etag: "12") (x-stillgate-generation: 1012)
            > DELETE /apisix/admin/protos/7
            400 {"error_msg":"can not delete this proto, route [2] is still using it now"}
            > PUT /apisix/admin/plugin_configs/p {"plugins": {}}
            201 {"key":"/apisix/plugin_configs/p","value":{"plugins":{},"id":"p","create_time":NOW,"update_time":NOW}} (etag: "13") (x-stillgate-generation: 1013)
            > PUT /apisix/admin/routes/2 {"uri": "/a", "plugin_config_id": "p"}
            200 {"key":"/apisix/routes/2","value":{"uri":"/a","plugin_config_id":"p","id":"2","create_time":NOW,"update_time":NOW}} (etag: "14") (x-stillgate-generation: 1014)
            > DELETE /apisix/admin/plugin_configs/p
            400 {"error_msg":"can not delete this plugin config, route [2] is still using it now"}
            > PUT /apisix/admin/global_rules/1 {"plugins": {"limit-count": {}}}
            201 {"key":"/apisix/global_rules/1","value":{"plugins":{"limit-count":{}},"id":"1","create_time":NOW,"update_time":NOW}} (etag: "15") (x-stillgate-generation: 1015)
            > PUT /apisix/admin/global_rules/2 {"plugins": {"limit-count": {}}}
            400 {"error_msg":"plugin 'limit-count' already exists in global rule with id '1'"}
            > PUT /apisix/admin/global_rules/1 {"plugins": {"limit-count": {}}}
            200 {"key":"/apisix/global_rules/1","value":{"plugins":{"limit-count":{}},"id":"1","create_time":NOW,"update_time":NOW}} (etag: "16") (x-stillgate-generation: 1016)
        "#]],
    )
    .await;
}

#[tokio::test]
async fn metadata_secrets_and_certificates() {
    check(
        &[
            r#"PUT /apisix/admin/plugin_metadata {"k": "v"}"#,
            r#"PUT /apisix/admin/plugin_metadata/nothing {"k": "v"}"#,
            r#"PUT /apisix/admin/plugin_metadata/limit-count {"k": "v"}"#,
            r#"GET /apisix/admin/plugin_metadata/limit-count"#,
            r#"DELETE /apisix/admin/plugin_metadata/limit-count"#,
            r#"PUT /apisix/admin/secrets/vault/1 {"uri": "http://v", "token": "t"}"#,
            r#"PUT /apisix/admin/secrets/vault {"uri": "http://v"}"#,
            r#"GET /apisix/admin/secrets/vault/1"#,
            r#"PATCH /apisix/admin/secrets/vault/1/token "u""#,
            r#"PATCH /apisix/admin/secrets/vault "u""#,
            r#"GET /apisix/admin/secrets"#,
            r#"DELETE /apisix/admin/secrets/vault/1"#,
            r#"PUT /apisix/admin/ssls/1 {"cert": "c", "key": "k", "certs": ["c"], "keys": ["k"], "sni": "a.example"}"#,
            r#"GET /apisix/admin/ssls/1"#,
            r#"PATCH /apisix/admin/ssls/1 {"sni": "b.example"}"#,
            r#"GET /apisix/admin/ssls"#,
        ],
        expect![[r#"
            > PUT /apisix/admin/plugin_metadata {"k": "v"}
            400 {"error_msg":"missing plugin name"}
            > PUT /apisix/admin/plugin_metadata/nothing {"k": "v"}
            400 {"error_msg":"invalid plugin name"}
            > PUT /apisix/admin/plugin_metadata/limit-count {"k": "v"}
            201 {"key":"/apisix/plugin_metadata/limit-count","value":{"k":"v","id":"limit-count"}} (etag: "11") (x-stillgate-generation: 1011)
            > GET /apisix/admin/plugin_metadata/limit-count
            200 {"key":"/apisix/plugin_metadata/limit-count","value":{"k":"v","id":"limit-count"},"createdIndex":11,"modifiedIndex":11} (etag: "11")
            > DELETE /apisix/admin/plugin_metadata/limit-count
            200 {"key":"/apisix/plugin_metadata/limit-count","deleted":"1"} (x-stillgate-generation: 1012)
            > PUT /apisix/admin/secrets/vault/1 {"uri": "http://v", "token": "t"}
            201 {"key":"/apisix/secrets/vault/1","value":{"uri":"http://v","token":"t","id":"vault/1","create_time":NOW,"update_time":NOW}} (etag: "13") (x-stillgate-generation: 1013)
            > PUT /apisix/admin/secrets/vault {"uri": "http://v"}
            400 {"error_msg":"missing secret id"}
            > GET /apisix/admin/secrets/vault/1
            200 {"key":"/apisix/secrets/vault/1","value":{"uri":"http://v","token":"t","id":"vault/1","create_time":NOW,"update_time":NOW},"createdIndex":13,"modifiedIndex":13} (etag: "13")
            > PATCH /apisix/admin/secrets/vault/1/token "u"
            200 {"key":"/apisix/secrets/vault/1","value":{"uri":"http://v","token":"u","id":"vault/1","create_time":NOW,"update_time":NOW}} (etag: "14") (x-stillgate-generation: 1014)
            > PATCH /apisix/admin/secrets/vault "u"
            400 {"error_msg":"no secret id"}
            > GET /apisix/admin/secrets
            200 {"total":1,"list":[{"key":"/apisix/secrets/vault/1","value":{"uri":"http://v","token":"u","id":"vault/1","create_time":NOW,"update_time":NOW},"createdIndex":13,"modifiedIndex":14}]}
            > DELETE /apisix/admin/secrets/vault/1
            200 {"key":"/apisix/secrets/vault/1","deleted":"1"} (x-stillgate-generation: 1015)
            > PUT /apisix/admin/ssls/1 {"cert": "c", "key": "k", "certs": ["c"], "keys": ["k"], "sni": "a.example"}
            201 {"key":"/apisix/ssls/1","value":{"cert":"c","certs":["c"],"keys":["********"],"sni":"a.example","id":"1","create_time":NOW,"update_time":NOW}} (etag: "16") (x-stillgate-generation: 1016)
            > GET /apisix/admin/ssls/1
            200 {"key":"/apisix/ssls/1","value":{"cert":"c","certs":["c"],"keys":["********"],"sni":"a.example","id":"1","create_time":NOW,"update_time":NOW},"createdIndex":16,"modifiedIndex":16} (etag: "16")
            > PATCH /apisix/admin/ssls/1 {"sni": "b.example"}
            200 {"key":"/apisix/ssls/1","value":{"cert":"c","certs":["c"],"keys":["********"],"sni":"b.example","id":"1","create_time":NOW,"update_time":NOW}} (etag: "17") (x-stillgate-generation: 1017)
            > GET /apisix/admin/ssls
            200 {"total":1,"list":[{"key":"/apisix/ssls/1","value":{"cert":"c","certs":["c"],"keys":["********"],"sni":"b.example","id":"1","create_time":NOW,"update_time":NOW},"createdIndex":16,"modifiedIndex":17}]}
        "#]],
    )
    .await;
}

#[tokio::test]
async fn plugins_and_schemas() {
    check(
        &[
            "GET /apisix/admin/plugins/list",
            "GET /apisix/admin/plugins/list?subsystem=stream",
            "GET /apisix/admin/plugins/list?subsystem=x",
            "GET /apisix/admin/plugins?all=true",
            "GET /apisix/admin/plugins?all=true&subsystem=stream",
            "GET /apisix/admin/plugins?subsystem=asdf",
            "GET /apisix/admin/plugins/asdf",
            "GET /apisix/admin/plugins/limit-count?subsystem=stream",
            "GET /apisix/admin/plugins/key-auth",
            "GET /apisix/admin/plugins/key-auth?schema_type=consumer",
            "GET /apisix/admin/plugins/limit-count?schema_type=consumer",
            "GET /apisix/admin/schema/plugins/limit-count",
            "GET /apisix/admin/schema/route",
            "GET /apisix/admin/schema/plugin_config",
            "GET /apisix/admin/schema/noexits",
            r#"POST /apisix/admin/schema/validate/routes {"uri": "/a"}"#,
            r#"POST /apisix/admin/schema/validate/routes {"uri": 666}"#,
            r#"POST /apisix/admin/schema/validate/routs {"uri": "/a"}"#,
        ],
        expect![[r#"
            > GET /apisix/admin/plugins/list
            200 ["key-auth","limit-conn","limit-count","traffic-split","grpc-transcode"]
            > GET /apisix/admin/plugins/list?subsystem=stream
            200 ["limit-conn"]
            > GET /apisix/admin/plugins/list?subsystem=x
            400 invalid subsystem passed
            > GET /apisix/admin/plugins?all=true
            200 {"key-auth":{"version":0.1,"priority":2500,"schema":{"title":"key-auth"},"type":"auth","consumer_schema":{"required":["key"]}},"limit-conn":{"version":0.1,"priority":1003,"schema":{"title":"limit-conn"}},"limit-count":{"version":0.1,"priority":1002,"schema":{"title":"limit-count"},"metadata_schema":{"title":"metadata"}},"traffic-split":{"version":0.1,"priority":966,"schema":{"title":"traffic-split"}},"grpc-transcode":{"version":0.1,"priority":506,"schema":{"title":"grpc-transcode"}}}
            > GET /apisix/admin/plugins?all=true&subsystem=stream
            200 {"limit-conn":{"version":0.1,"priority":1003,"schema":{"title":"limit-conn"}}}
            > GET /apisix/admin/plugins?subsystem=asdf
            400 {"error_msg":"unsupported subsystem: asdf"}
            > GET /apisix/admin/plugins/asdf
            404 {"error_msg":"plugin not found in subsystem http"}
            > GET /apisix/admin/plugins/limit-count?subsystem=stream
            404 {"error_msg":"plugin not found in subsystem stream"}
            > GET /apisix/admin/plugins/key-auth
            200 {"title":"key-auth"}
            > GET /apisix/admin/plugins/key-auth?schema_type=consumer
            200 {"required":["key"]}
            > GET /apisix/admin/plugins/limit-count?schema_type=consumer
            400 {"error_msg":"not found schema"}
            > GET /apisix/admin/schema/plugins/limit-count
            200 {"title":"limit-count"}
            > GET /apisix/admin/schema/route
            200 {"type":"object","title":"routes"}
            > GET /apisix/admin/schema/plugin_config
            200 {"type":"object","title":"plugin_configs"}
            > GET /apisix/admin/schema/noexits
            400 {"error_msg":"not found schema: noexits"}
            > POST /apisix/admin/schema/validate/routes {"uri": "/a"}
            200 
            > POST /apisix/admin/schema/validate/routes {"uri": 666}
            400 {"error_msg":"property \"uri\" validation failed: wrong type: expected string, got number"}
            > POST /apisix/admin/schema/validate/routs {"uri": "/a"}
            404 {"error_msg":"Unsupported resource type: routs"}
        "#]],
    )
    .await;
}

#[tokio::test]
async fn lists_are_filtered_and_paged() {
    let client = Client::admin();
    for n in (1..=11).rev() {
        let id = n.to_string();
        let route = json!({
            "id": id, "name": id, "uri": format!("/{n}"), "labels": { format!("l{n}"): "x" },
            "service_id": n % 2, "plugins": { "key-auth": { "key": format!("hidden-{n}") } },
        });
        client.memory.put(&format!("routes/{n}"), &route);
    }
    let ids = async |query: &str| {
        let (status, text) = client.ask(&format!("GET /apisix/admin/routes?{query}")).await;
        let Ok(json) = serde_json::from_str::<serde_json::Value>(text.split_once(' ').unwrap().1) else { return text };
        assert_eq!(status, 200, "{text}");
        let ids: Vec<_> =
            json["list"].as_array().unwrap().iter().map(|node| node["value"]["id"].as_str().unwrap()).collect();
        format!("{}: {}", json["total"], ids.join(" "))
    };
    assert_eq!(ids("").await, "11: 1 10 11 2 3 4 5 6 7 8 9");
    assert_eq!(ids("page=1&page_size=10").await, "11: 11 10 9 8 7 6 5 4 3 2", "by the revision that created them");
    assert_eq!(ids("page=2&page_size=10").await, "11: 1");
    assert_eq!(ids("page=3&page_size=10").await, "11: ");
    assert_eq!(ids("page=-1&page_size=10").await, "11: 11 10 9 8 7 6 5 4 3 2");
    assert_eq!(ids("page=99999999999999999999&page_size=500").await, "11: ");
    assert_eq!(ids("page=1&page_size=9").await, "400 page_size must be between 10 and 500");
    assert_eq!(ids("name=1").await, "3: 1 10 11");
    assert_eq!(ids("name=^1$").await, "1: 1");
    assert_eq!(ids("name=(").await, "0: ", "no regex matches nothing");
    assert_eq!(ids("uri=1&name=0").await, "1: 10");
    assert_eq!(ids("label=l2").await, "1: 2");
    assert_eq!(ids("label=x").await, "0: ");
    assert_eq!(ids("filter=service_id%3D0").await, "5: 10 2 4 6 8");
    assert_eq!(ids("filter=service_id%3D0%26upstream_id%3D1").await, "0: ");
    assert_eq!(ids("name=1&page=1&page_size=10").await, "3: 11 10 1");
    assert_eq!(ids("search=HIDDEN-1").await, "3: 1 10 11");
    assert_eq!(ids("search=hidden-1&api_key=tv-secret").await, "0: ", "a viewer finds no secret");
    assert_eq!(ids("search=%2F11&api_key=tv-secret").await, "1: 11");
}

/// APISIX writes `\/` for a slash, and other programs write other escapes.
#[tokio::test]
async fn documents_are_found_however_they_are_escaped() {
    let client = Client::admin();
    client.memory.put_text("routes/1", r#"{"uri": "\/orders\/\u00e9", "desc": "\u007a\u007a"}"#);
    client.memory.put_text("consumers/jack", r#"{"username": "jack", "plugins": {"key-auth": {"key": "a\/b"}}}"#);
    for (search, total) in [("/orders/%C3%A9", 1), ("ORDERS/", 1), ("zz", 1), ("%5C/", 0), ("u007a", 0)] {
        let (_, answer) = client.ask(&format!("GET /apisix/admin/routes?search={search}")).await;
        assert!(answer.starts_with(&format!("200 {{\"total\":{total},")), "{search}: {answer}");
    }
    let (status, answer) = client
        .ask(r#"PUT /apisix/admin/consumers {"username": "rose", "plugins": {"key-auth": {"key": "a/b"}}}"#)
        .await;
    assert!(status == 400 && answer.contains("duplicate key found with consumer: jack"), "{answer}");
}

/// Only etcd can contain them, since others write there, too.
#[tokio::test]
async fn documents_with_ids_that_nobody_gets_can_be_read_and_deleted() {
    let client = Client::admin();
    for id in ["a b", "a/b", "%2e", "\u{e9}"] {
        client.memory.put(&format!("routes/{id}"), &json!({ "uri": "/1" }));
    }
    for path in ["routes/a%20b", "routes/a%2Fb", "routes/%252e", "routes/%C3%A9"] {
        let path = format!("/apisix/admin/{path}");
        assert_eq!(client.ask(&format!("GET {path}")).await.0, 200, "{path}");
        assert_eq!(client.ask(&format!("PUT {path} {{\"uri\": \"/2\"}}")).await.0, 400, "{path}");
        assert_eq!(client.ask(&format!("PATCH {path} {{\"uri\": \"/2\"}}")).await.0, 400, "{path}");
        assert_eq!(client.ask(&format!("DELETE {path}")).await.0, 200, "{path}");
        assert_eq!(client.ask(&format!("GET {path}")).await.0, 404, "{path}");
    }
}
