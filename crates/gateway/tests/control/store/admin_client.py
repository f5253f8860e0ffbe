"""A client of the Admin API, written from APISIX's documentation (docs/en/latest/admin-api.md), not from our sources.

Arguments: the Admin API's URL, its key, the gateway's URL, an HTTP node (HOST:PORT), a port for TCP.
It uses every resource in every way that the documentation names, and prints "all is well".
"""

import http.client
import json
import sys
import time
import urllib.parse

ADMIN, KEY, GATEWAY, NODE, TCP_PORT = sys.argv[1:6]
UPSTREAM = {"type": "roundrobin", "nodes": {NODE: 1}}


def request(base, method, path, body=None, headers=None):
    url = urllib.parse.urlsplit(base)
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=180)
    connection.request(method, path, body, headers or {})
    response = connection.getresponse()
    text = response.read()
    connection.close()
    return response.status, text, dict((name.lower(), value) for name, value in response.getheaders())


def admin(method, path, body=None, expect=(200, 201), raw=None):
    headers = {"X-API-KEY": KEY}
    if body is not None or raw is not None:
        # What curl -d sends, as in the documentation.
        headers["Content-Type"] = "application/x-www-form-urlencoded"
    data = raw if raw is not None else (None if body is None else json.dumps(body))
    status, text, _ = request(ADMIN, method, "/apisix/admin/" + path, data, headers)
    expected = expect if isinstance(expect, tuple) else (expect,)
    assert status in expected, (method, path, body, status, text)
    try:
        return json.loads(text)
    except ValueError:
        # A few answers are bare text, or nothing.
        return text.decode()


def served(path, headers=None):
    return request(GATEWAY, "GET", path, None, headers)[0]


def eventually(what, condition):
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.01)


def value(path):
    return admin("GET", path)["value"]


def lists(resource, count):
    """Every list has the same form."""
    listed = admin("GET", resource)
    assert listed["total"] == count == len(listed["list"]), listed
    for entry in listed["list"]:
        assert set(entry) >= {"key", "value", "createdIndex", "modifiedIndex"}, entry
        assert entry["key"].startswith("/apisix/"), entry


def routes():
    route = {
        "uri": "/index.html",
        "hosts": ["foo.com", "*.bar.com"],
        "remote_addrs": ["127.0.0.0/8"],
        "methods": ["PUT", "GET"],
        "enable_websocket": True,
        "upstream": UPSTREAM,
    }
    created = admin("PUT", "routes/1", route, 201)
    assert created["key"] == "/apisix/routes/1" and created["value"]["id"] == "1", created
    assert created["value"]["create_time"] <= created["value"]["update_time"]
    admin("PUT", "routes/1", route, 200)
    assert served("/index.html", {"Host": "foo.com"}) == 200
    assert served("/index.html", {"Host": "other.com"}) == 404
    # The steps of the documentation, with what they say comes of them.
    nodes = lambda: value("routes/1")["upstream"]["nodes"]
    other = "127.0.0.1:1981"
    admin("PATCH", "routes/1", {"upstream": {"nodes": {other: 1}}}, 200)
    assert nodes() == {NODE: 1, other: 1}, nodes()
    admin("PATCH", "routes/1", {"upstream": {"nodes": {other: 10}}}, 200)
    assert nodes() == {NODE: 1, other: 10}, nodes()
    admin("PATCH", "routes/1", {"upstream": {"nodes": {NODE: None}}}, 200)
    assert nodes() == {other: 10}, nodes()
    admin("PATCH", "routes/1", {"methods": ["GET", "POST"]}, 200)
    assert value("routes/1")["methods"] == ["GET", "POST"]
    admin("PATCH", "routes/1/upstream/nodes", {NODE: 1}, 200)
    assert nodes() == {NODE: 1}, nodes()
    admin("PATCH", "routes/1/methods", ["POST", "DELETE", "PATCH"], 200)
    assert value("routes/1")["methods"] == ["POST", "DELETE", "PATCH"]
    admin("PATCH", "routes/1", {"methods": None, "status": 0}, 200)
    assert "methods" not in value("routes/1")
    assert served("/index.html", {"Host": "foo.com"}) == 404
    admin("PATCH", "routes/1", {"status": 1}, 200)
    assert served("/index.html", {"Host": "foo.com"}) == 200
    posted = admin("POST", "routes", {"uri": "/posted", "upstream": UPSTREAM}, 201)
    assert posted["key"] == "/apisix/routes/" + posted["value"]["id"], posted
    admin("PUT", "routes/2?ttl=1", {"uri": "/aa/index.html", "upstream": UPSTREAM}, 201)
    assert served("/aa/index.html") == 200
    eventually("the route to expire", lambda: served("/aa/index.html") == 404)
    lists("routes", 2)
    deleted = admin("DELETE", "routes/1", None, 200)
    assert deleted["key"] == "/apisix/routes/1" and str(deleted["deleted"]) == "1", deleted
    admin("DELETE", "routes/1", None, 404)
    admin("GET", "routes/1", None, 404)
    admin("DELETE", "routes/" + posted["value"]["id"], None, 200)
    admin("PUT", "routes/1", None, 400)
    admin("PUT", "routes/1", None, 400, raw="{nonsense")
    admin("PUT", "routes/1", {"uri": 7}, 400)
    admin("PUT", "routes/1", {"uri": "/a", "uris": ["/b"], "upstream": UPSTREAM}, 400)


def pages_and_filters():
    for number in range(25):
        labels = {"env": "test" if number % 2 else "prod"}
        route = {"uri": "/page/%d" % number, "name": "name-%d" % number, "upstream": UPSTREAM, "labels": labels}
        admin("PUT", "routes/p%d" % number, route, 201)
    seen = []
    for page in (1, 2, 3):
        listed = admin("GET", "routes?page=%d&page_size=10" % page)
        assert listed["total"] == 25, listed
        seen += [entry["value"]["id"] for entry in listed["list"]]
    assert len(seen) == len(set(seen)) == 25, seen
    admin("GET", "routes?page=1&page_size=5", None, 400)
    named = admin("GET", "routes?name=name-7")
    assert [entry["value"]["name"] for entry in named["list"]] == ["name-7"], named
    assert admin("GET", "routes?label=env")["total"] == 25
    assert admin("GET", "routes?uri=page/2")["total"] == 6
    for number in range(25):
        admin("DELETE", "routes/p%d" % number)
    lists("routes", 0)


def upstreams_and_services():
    admin("PUT", "upstreams/100", {"id": "100", "type": "roundrobin", "nodes": {NODE: 100}}, 201)
    admin("PATCH", "upstreams/100", {"nodes": {"127.0.0.1:1981": 1}}, 200)
    assert value("upstreams/100")["nodes"] == {NODE: 100, "127.0.0.1:1981": 1}
    admin("PATCH", "upstreams/100/nodes", {NODE: 1}, 200)
    posted = admin("POST", "upstreams", UPSTREAM, 201)
    lists("upstreams", 2)
    admin("DELETE", "upstreams/" + posted["value"]["id"])
    limits = {"limit-count": {"count": 2, "time_window": 600, "rejected_code": 503, "key": "remote_addr"}}
    service = {"plugins": limits, "enable_websocket": True, "upstream_id": "100"}
    admin("PUT", "services/201", service, 201)
    admin("PUT", "routes/s", {"uri": "/service", "service_id": "201"}, 201)
    assert [served("/service") for _ in range(3)] == [200, 200, 503]
    admin("PATCH", "services/201", {"plugins": {"limit-count": None}}, 200)
    assert served("/service") == 200
    posted = admin("POST", "services", {"upstream_id": "100"}, 201)
    admin("PATCH", "services/%s/name" % posted["value"]["id"], None, 200, raw='"service-test"')
    assert value("services/" + posted["value"]["id"])["name"] == "service-test"
    lists("services", 2)
    # What is in use stays.
    for used in ("services/201", "upstreams/100"):
        refused = admin("DELETE", used, None, 400)
        assert "still using it" in refused["error_msg"], refused
    admin("PUT", "routes/x", {"uri": "/x", "service_id": "no-such"}, 400)
    admin("PUT", "routes/x", {"uri": "/x", "upstream_id": "no-such"}, 400)
    for gone in ("routes/s", "services/201", "services/" + posted["value"]["id"], "upstreams/100"):
        admin("DELETE", gone)


def consumers():
    jack = {"username": "jack", "plugins": {"key-auth": {"key": "auth-one"}}}
    created = admin("PUT", "consumers", jack, 201)
    assert created["key"] == "/apisix/consumers/jack", created
    admin("PUT", "routes/1", {"uri": "/guarded", "plugins": {"key-auth": {}}, "upstream": UPSTREAM})
    assert served("/guarded") == 401
    assert served("/guarded", {"apikey": "auth-one"}) == 200
    admin("POST", "consumers", jack, 405)
    admin("PUT", "consumers", {"username": "no name"}, 400)
    admin("PUT", "consumers", {"plugins": {}}, 400)
    credential = {"plugins": {"key-auth": {"key": "auth-two"}}}
    admin("PUT", "consumers/jack/credentials/cred", credential, 201)
    assert served("/guarded", {"apikey": "auth-two"}) == 200
    assert value("consumers/jack/credentials/cred")["plugins"] == credential["plugins"]
    lists("consumers/jack/credentials", 1)
    lists("consumers", 1)
    admin("PUT", "consumers/jack/credentials/cred", {"plugins": {"cors": {}}}, 400)
    admin("DELETE", "consumers/jack/credentials/cred")
    assert served("/guarded", {"apikey": "auth-two"}) == 401
    limits = {"limit-count": {"count": 1, "time_window": 600, "rejected_code": 503, "key": "remote_addr"}}
    admin("PUT", "consumer_groups/company_a", {"plugins": limits}, 201)
    admin("PUT", "consumers", dict(jack, group_id="company_a"), 200)
    assert [served("/guarded", {"apikey": "auth-one"}) for _ in range(2)] == [200, 503]
    admin("PATCH", "consumer_groups/company_a", {"plugins": {"limit-count": {"count": 1000}}}, 200)
    assert value("consumer_groups/company_a")["plugins"]["limit-count"]["count"] == 1000
    lists("consumer_groups", 1)
    admin("DELETE", "consumer_groups/company_a", None, 400)
    admin("DELETE", "consumers/jack")
    admin("DELETE", "consumer_groups/company_a")
    admin("DELETE", "routes/1")


def plugins():
    names = admin("GET", "plugins/list")
    assert "key-auth" in names and "limit-count" in names, names
    schema = admin("GET", "plugins/key-auth")
    assert "object" in schema["type"] and "properties" in schema, schema
    assert "properties" in admin("GET", "schema/route")
    header = lambda name: {"response-rewrite": {"headers": {"set": {name: "1"}}}}
    admin("PUT", "plugin_configs/1", {"desc": "enable", "plugins": header("X-Config")}, 201)
    admin("PUT", "routes/1", {"uri": "/plugins", "plugin_config_id": "1", "upstream": UPSTREAM}, 201)
    admin("PUT", "global_rules/1", {"plugins": header("X-Global")}, 201)
    status, _, headers = request(GATEWAY, "GET", "/plugins")
    assert (status, headers.get("x-config"), headers.get("x-global")) == (200, "1", "1"), headers
    admin("PATCH", "plugin_configs/1", {"desc": None}, 200)
    assert "desc" not in value("plugin_configs/1")
    admin("PATCH", "global_rules/1", {"plugins": header("X-Other")}, 200)
    lists("plugin_configs", 1)
    lists("global_rules", 1)
    admin("DELETE", "plugin_configs/1", None, 400)
    log_format = {"log_format": {"host": "$host", "@timestamp": "$time_iso8601", "client_ip": "$remote_addr"}}
    admin("PUT", "plugin_metadata/http-logger", log_format, 201)
    assert value("plugin_metadata/http-logger")["log_format"] == log_format["log_format"]
    admin("GET", "plugin_metadata")
    admin("DELETE", "plugin_metadata/http-logger")
    admin("PUT", "plugin_metadata/no-such", {}, 400)
    for gone in ("routes/1", "plugin_configs/1", "global_rules/1"):
        admin("DELETE", gone)


def other_resources():
    admin("PUT", "upstreams/tcp", {"type": "roundrobin", "scheme": "tcp", "nodes": {NODE: 1}}, 201)
    admin("PUT", "stream_routes/1", {"server_port": int(TCP_PORT), "upstream_id": "tcp"}, 201)
    status, _, _ = request("http://127.0.0.1:" + TCP_PORT, "GET", "/through-tcp")
    assert status == 200, status
    posted = admin("POST", "stream_routes", {"server_port": int(TCP_PORT), "remote_addr": "192.0.2.1", "upstream_id": "tcp"}, 201)
    lists("stream_routes", 2)
    for gone in ("stream_routes/1", "stream_routes/" + posted["value"]["id"], "upstreams/tcp"):
        admin("DELETE", gone)
    for wrong in ("https://localhost/vault?x=1", "https://localhost/a/../b", "https://localhost//a", "https://localhost/a b"):
        vault = {"uri": wrong, "prefix": "kv/apisix", "token": "343effad"}
        assert "a host, a port and a path" in admin("PUT", "secrets/vault/test2", vault, 400)["error_msg"], wrong
    # As in the documentation's example.
    vault = {"uri": "https://localhost/vault", "prefix": "kv/apisix", "token": "343effad"}
    admin("PUT", "secrets/vault/test2", vault, 201)
    assert value("secrets/vault/test2")["prefix"] == "kv/apisix"
    admin("PATCH", "secrets/vault/test2", {"token": "other"}, 200)
    assert value("secrets/vault/test2")["token"] == "other"
    admin("PATCH", "secrets/vault/test2/prefix", None, 200, raw='"kv/other"')
    lists("secrets", 1)
    admin("DELETE", "secrets/vault/test2")
    proto = {"content": 'syntax = "proto3"; package helloworld; message HelloRequest { string name = 1; }'}
    admin("PUT", "protos/1", proto, 201)
    posted = admin("POST", "protos", proto, 201)
    assert value("protos/1")["content"] == proto["content"]
    lists("protos", 2)
    admin("DELETE", "protos/1")
    admin("DELETE", "protos/" + posted["value"]["id"])
    admin("PUT", "ssls/1", {"cert": "nonsense", "key": "nonsense", "snis": ["test.com"]}, 400)
    lists("ssls", 0)
    admin("GET", "nothing", None, 404)


def access():
    for headers in ({}, {"X-API-KEY": "wrong"}):
        status, text, _ = request(ADMIN, "GET", "/apisix/admin/routes", None, headers)
        assert status == 401 and json.loads(text)["error_msg"] == "failed to check token", text
    status, _, _ = request(ADMIN, "GET", "/apisix/admin/routes?api_key=" + KEY)
    assert status == 200


for step in (routes, pages_and_filters, upstreams_and_services, consumers, plugins, other_resources, access):
    step()
    print(step.__name__)
print("all is well")
