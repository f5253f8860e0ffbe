//! The values that a client can send, in every place that a plugin reads: routes with plugins that write heads, and requests.

/// Routes and their plugins. `PEER` is the server that plugins use.
pub(crate) const PLUGGED: &[(&str, &str)] = &[
    (
        "/rr",
        r#"{"response-rewrite": {"headers": {"set": {"X-Arg": "[$arg_x]", "X-Args": "[$args]", "X-Uri": "[$uri]", "X-Request-Uri": "[$request_uri]", "X-Cookie": "[$cookie_x]", "X-Header": "[$http_x_in]", "X-Host": "[$host]", "X-Method": "[$request_method]"}, "add": ["X-Added: $arg_x$http_x_in"]}}}"#,
    ),
    (
        "/pr",
        r#"{"proxy-rewrite": {"headers": {"set": {"X-Arg": "[$arg_x]", "X-Args": "[$args]", "X-Uri": "[$uri]", "X-Cookie": "[$cookie_x]", "X-Header": "[$http_x_in]", "X-Host": "[$host]"}, "add": {"X-Added": "$arg_x$http_x_in"}}}}"#,
    ),
    ("/uri", r#"{"proxy-rewrite": {"uri": "/to/$arg_x/$cookie_x/$http_x_in?q=$arg_x&h=$http_x_in&c=$cookie_x"}}"#),
    ("/raw", r#"{"proxy-rewrite": {"uri": "/to/$arg_x$http_x_in", "use_real_request_uri_unsafe": true}}"#),
    ("/re/*", r#"{"proxy-rewrite": {"regex_uri": ["^/re/(.*)", "/$1"], "headers": {"set": {"X-Captured": "[$1]"}}}}"#),
    (
        "/rawre/*",
        r#"{"proxy-rewrite": {"regex_uri": ["^/rawre/(.*)", "/$1"], "use_real_request_uri_unsafe": true, "headers": {"set": {"X-Captured": "[$1]"}}}}"#,
    ),
    (
        "/cors",
        r#"{"cors": {"allow_origins": "**", "allow_headers": "**", "allow_credential": true, "allow_methods": "GET"}}"#,
    ),
    (
        "/cors-re",
        r#"{"cors": {"allow_origins_by_regex": [".*"], "timing_allow_origins_by_regex": [".*"], "allow_headers": "**"}}"#,
    ),
    (
        "/auth",
        r#"{"key-auth": {"hide_credentials": true}, "attach-consumer-label": {"headers": {"X-Label": "$custom_id"}}}"#,
    ),
    ("/guest", r#"{"key-auth": {"anonymous_consumer": "guest"}}"#),
    ("/basic", r#"{"basic-auth": {"hide_credentials": true}}"#),
    ("/jwt", r#"{"jwt-auth": {"hide_credentials": true, "header": "X-In", "query": "x", "cookie": "x"}}"#),
    ("/hmac", r#"{"hmac-auth": {"hide_credentials": true}}"#),
    ("/multi", r#"{"multi-auth": {"auth_plugins": [{"key-auth": {}}, {"basic-auth": {}}, {"jwt-auth": {}}]}}"#),
    (
        "/limit",
        r#"{"limit-count": {"count": "$arg_x", "time_window": 60, "key": "$http_x_in $arg_x", "key_type": "var_combination", "rejected_code": 429, "rejected_msg": "a\r\nX-Evil: 1\r\n\r\n"}}"#,
    ),
    ("/body", r#"{"response-rewrite": {"body": "\r\n\r\nHTTP/1.1 200 OK\r\nX-Evil: 1\r\n\r\n"}}"#),
    ("/to", r#"{"redirect": {"uri": "/to/$arg_x$http_x_in?c=$cookie_x&$args", "append_query_string": true}}"#),
    ("/encoded", r#"{"redirect": {"uri": "$uri/$arg_x$http_x_in$cookie_x", "encode_uri": true, "ret_code": 301}}"#),
    ("/to-re/*", r#"{"redirect": {"regex_uri": ["^/to-re/(.*)", "/to/$1"], "append_query_string": true}}"#),
    ("/secure", r#"{"redirect": {"http_to_https": true}}"#),
    ("/id", r#"{"request-id": {"header_name": "X-In"}}"#),
    (
        "/ip",
        r#"{"real-ip": {"source": "http_x_in"}, "proxy-rewrite": {"headers": {"set": {"X-Client": "[$remote_addr]"}}}}"#,
    ),
    ("/ip-for", r#"{"real-ip": {"source": "http_x_forwarded_for", "recursive": true}}"#),
    (
        "/fault",
        r#"{"fault-injection": {"abort": {"http_status": 418, "body": "$arg_x$http_x_in", "headers": {"X-Arg": "[$arg_x]", "X-In": "$http_x_in$cookie_x"}}}}"#,
    ),
    ("/mock", r#"{"mocking": {"response_example": "\r\n\r\nX-Evil: 1$arg_x", "response_headers": {"X-A": "$arg_x"}}}"#),
    (
        "/label",
        r#"{"traffic-label": {"rules": [{"actions": [{"set_headers": {"X-Arg": "[$arg_x]", "X-In": "$http_x_in$cookie_x"}}]}]}}"#,
    ),
    (
        "/forward",
        r#"{"forward-auth": {"uri": "http://PEER/auth", "request_headers": ["X-In", "Cookie"], "extra_headers": {"X-Extra": "$arg_x$http_x_in$cookie_x", "X-Uri": "$request_uri"}, "upstream_headers": ["X-Out"], "client_headers": ["X-Out"]}}"#,
    ),
    ("/opa", r#"{"opa": {"host": "http://PEER", "policy": "p", "send_headers_upstream": ["X-Out", "Set-Cookie"]}}"#),
    (
        "/breaker",
        r#"{"api-breaker": {"break_response_code": 599, "break_response_body": "b", "break_response_headers": [{"key": "X-Arg", "value": "[$arg_x$http_x_in]"}], "unhealthy": {"http_statuses": [500], "failures": 1}}}"#,
    ),
    ("/csrf", r#"{"csrf": {"key": "k", "name": "x"}}"#),
    (
        "/mirror",
        r#"{"proxy-mirror": {"host": "http://PEER", "path": "/copy", "path_concat_mode": "prefix"}, "proxy-rewrite": {"headers": {"set": {"X-A": "$arg_x$http_x_in"}}}}"#,
    ),
    (
        "/transformed",
        r#"{"body-transformer": {"request": {"input_format": "args", "template": "\r\n\r\nX-Evil: 1{{x}}"}, "response": {"input_format": "plain", "template": "\r\n\r\nX-Evil: 1{{_body}}"}}}"#,
    ),
    (
        "/echo",
        r#"{"echo": {"before_body": "\r\n\r\nHTTP/1.1 200 OK\r\nX-Evil: 1\r\n\r\n", "after_body": "\r\n", "headers": {"X-A": "$arg_x"}}}"#,
    ),
    (
        "/lua",
        r#"{"serverless-pre-function": {"phase": "rewrite", "functions": ["return function() ngx.req.set_header('X-In', ngx.var.http_x_in) ngx.req.set_header('X-Arg', ngx.unescape_uri(ngx.var.arg_x)) end"]}}"#,
    ),
    (
        "/lua-uri",
        r#"{"serverless-post-function": {"functions": ["return function(conf, ctx) ctx.var.upstream_uri = '/to/' .. ngx.unescape_uri(ngx.var.arg_x) .. (ngx.var.http_x_in or '') end"]}}"#,
    ),
    (
        "/lua-response",
        r#"{"serverless-pre-function": {"phase": "header_filter", "functions": ["return function() ngx.header['X-In'] = ngx.var.http_x_in ngx.header['X-Arg'] = ngx.unescape_uri(ngx.var.arg_x) end"]}}"#,
    ),
    ("/zipkin", r#"{"zipkin": {"endpoint": "http://PEER/spans", "sample_ratio": 1}}"#),
    ("/otel", r#"{"opentelemetry": {"sampler": {"name": "always_on"}, "additional_attributes": ["http_x_in"]}}"#),
    (
        "/http-logger",
        r#"{"http-logger": {"uri": "http://PEER/log", "auth_header": "Bearer k", "batch_max_size": 9, "log_format": {"a": "$arg_x$http_x_in"}}}"#,
    ),
    (
        "/loki",
        r#"{"loki-logger": {"endpoint_addrs": ["http://PEER"], "batch_max_size": 9, "log_labels": {"a": "$arg_x$http_x_in"}}}"#,
    ),
    (
        "/elastic",
        r#"{"elasticsearch-logger": {"endpoint_addrs": ["http://PEER"], "batch_max_size": 9, "field": {"index": "i-$arg_x$http_x_in"}}}"#,
    ),
];

/// Plugins that put nothing into a head but constants of the gateway's own.
pub(crate) const WITHOUT_HEADS: &[&str] = &[
    // A subprotocol, which is a token.
    "device-gateway",
    "acl",
    "consumer-restriction",
    "limit-req",
    "limit-conn",
    "ip-restriction",
    "client-control",
    "ua-restriction",
    "uri-blocker",
    "referer-restriction",
    "request-validation",
    "workflow",
    "proxy-control",
    "public-api",
    "node-status",
    "server-info",
    "prometheus",
    "grpc-web",
    "gzip",
    "brotli",
    "zstd",
    "proxy-buffering",
    "tcp-logger",
    "udp-logger",
    "syslog",
    "file-logger",
];

pub(crate) const CONSUMERS: &str = "consumers:\n  - {\"username\": \"guest\", \"plugins\": {}}\n  - {\"username\": \"jack\", \"labels\": {\"custom_id\": \"c\"}, \"plugins\": {\"key-auth\": {\"key\": \"k\"}}}\n";

/// The collector of opentelemetry.
pub(crate) const METADATA: &str =
    "plugin_metadata:\n  - {\"id\": \"opentelemetry\", \"collector\": {\"address\": \"PEER\"}}\n";

/// Parts of values: encoded and raw line ends, NUL, bytes above ASCII, other separators.
pub(crate) const VALUES: &[&[u8]] = &[
    b"%0d%0aX-Evil:%201%0d%0a%0d%0a",
    b"%0aX-Evil:1",
    b"%0dX-Evil:1",
    b"%250d%250aX-Evil:1",
    b"%u000aX-Evil:1",
    b"%e5%98%8a%e5%98%8dX-Evil:1",
    b"%c0%8aX-Evil:1",
    b"a%00b",
    b"%20HTTP/1.1%0d%0aX-Evil:1",
    b"%09X-Evil:1",
    b"a\xe5\x98\x8a\xe5\x98\x8dX-Evil:1",
    b"\xff\xfe\x80",
    b"a\rX-Evil: 1",
    b"a\nX-Evil: 1",
    b"a\0b",
    b"a\x0bX-Evil: 1",
    b"a\x0cX-Evil: 1",
    b"a\x1fb",
    b"a\x7fb",
    b"a\tb",
    b"a b",
    b"\"a\", b;c\\",
    b"?a#b&c",
    b"%2e%2e/%2e%2e//x",
    b"%",
    b"%zz%0",
    b"$arg_x$http_x_in${uri}$1\\$1",
];

/// The requests that carry a value, each with its method: in the query, the path, a cookie and header fields.
pub(crate) fn requests(path: &str, value: &[u8]) -> Vec<(String, Vec<u8>)> {
    let path = path.replace('*', "p");
    let mut requests = Vec::new();
    let mut push = |method: &str, target: &[u8], lines: &[&[u8]]| {
        let mut bytes = [method.as_bytes(), b" ", target, b" HTTP/1.1\r\nHost: h\r\n"].concat();
        for line in lines {
            bytes.extend_from_slice(line);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"Connection: close\r\n\r\n");
        requests.push((method.to_owned(), bytes));
    };
    push("GET", &[path.as_bytes(), b"?x=", value, b"&apikey=", value].concat(), &[]);
    if let Some(folder) = path.strip_suffix('p').filter(|folder| folder.ends_with('/')) {
        push("GET", &[folder.as_bytes(), b"/", value].concat(), &[]);
        push("GET", &[folder.as_bytes(), value].concat(), &[]);
    }
    let names: [&[u8]; 11] = [
        b"X-In: ",
        b"Cookie: x=",
        b"Origin: ",
        b"Access-Control-Request-Headers: ",
        b"apikey: ",
        b"X-Consumer-Username: ",
        b"Authorization: ",
        b"X-Forwarded-For: ",
        b"tracestate: ",
        b"X-B3-TraceId: ",
        b"X-Request-Id: ",
    ];
    let lines: Vec<Vec<u8>> = names.iter().map(|name| [name, value].concat()).collect();
    let mut all: Vec<&[u8]> = lines.iter().map(Vec::as_slice).collect();
    all.push(b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    push("GET", path.as_bytes(), &all);
    if path.starts_with("/cors") {
        push("OPTIONS", path.as_bytes(), &all);
    }
    if matches!(&*path, "/rr" | "/pr" | "/auth") {
        // Each alone, since one that is refused hides the others.
        for line in &all[..3] {
            push("GET", path.as_bytes(), &[line, b"apikey: k"]);
        }
        push("GET", path.as_bytes(), &[&[b"X-In", value, b": 1"].concat()]);
    }
    requests
}
