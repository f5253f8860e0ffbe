//! `grpc-web`

use super::{check, harness};
use expect_test::expect;
use harness::refusal;

#[test]
fn preflights_are_answered_and_others_refused() {
    check(
        "grpc-web: {}",
        "OPTIONS /a HTTP/1.1\nHost: h\nOrigin: https://a.example\n\n",
        expect![[r#"
        > grpc-web answers
        < 204
        < Access-Control-Allow-Methods: POST
        < Access-Control-Allow-Headers: content-type,x-grpc-web,x-user-agent
        < Access-Control-Allow-Origin: *
        < Access-Control-Expose-Headers: grpc-message,grpc-status
        < ""
    "#]],
    );
    check(
        "grpc-web: {cors_allow_headers: 'x-a,x-b'}\ncors: {allow_origins: 'https://a.example'}",
        "GET /a HTTP/1.1\nHost: h\nOrigin: https://a.example\n\n",
        expect![[r#"
            > grpc-web answers
            < 405
            < Vary: Origin
            < Access-Control-Allow-Methods: *
            < Access-Control-Allow-Headers: *
            < Access-Control-Max-Age: 5
            < Access-Control-Allow-Origin: https://a.example
            < Access-Control-Expose-Headers: grpc-message,grpc-status
            < "<html>\r\n<head><title>405 Not Allowed</title></head>\r\n<body>\r\n<center><h1>405 Not Allowed</h1></center>\r\n<hr><center>stillgate</center>\r\n</body>\r\n</html>\r\n"
        "#]],
    );
    check(
        "grpc-web: {}",
        "POST /a HTTP/1.1\nHost: h\nContent-Type: application/json\n\n",
        expect![[r#"
        > grpc-web answers
        < 400
        < Access-Control-Allow-Origin: *
        < Access-Control-Expose-Headers: grpc-message,grpc-status
        < "<html>\r\n<head><title>400 Bad Request</title></head>\r\n<body>\r\n<center><h1>400 Bad Request</h1></center>\r\n<hr><center>stillgate</center>\r\n</body>\r\n</html>\r\n"
    "#]],
    );
}

#[test]
fn a_call_has_a_body_and_goes_on() {
    check(
        "grpc-web: {}",
        "POST /a HTTP/1.1\nHost: h\nContent-Type: application/grpc-web+proto\n\n",
        expect![[r#"
        > grpc-web answers
        < 400
        < Access-Control-Allow-Origin: *
        < Access-Control-Expose-Headers: grpc-message,grpc-status
        < "<html>\r\n<head><title>400 Bad Request</title></head>\r\n<body>\r\n<center><h1>400 Bad Request</h1></center>\r\n<hr><center>stillgate</center>\r\n</body>\r\n</html>\r\n"
    "#]],
    );
    // The route of these tests is a path without a prefix to strip.
    check(
        "grpc-web: {}",
        "POST /a HTTP/1.1\nHost: h\nContent-Type: application/grpc-web+proto\nContent-Length: 5\n\n\0\0\0\0\0",
        expect![[r#"
            > POST /a
            > Host: h
            > Content-Type: application/grpc-web+proto
            > Content-Length: 5
            < 200
            < Content-Type: text/plain
            < Access-Control-Allow-Origin: *
            < Access-Control-Expose-Headers: grpc-message,grpc-status
            < "hello world\n"
        "#]],
    );
    expect![[r#"
        1:32: grpc-web.cors_allow_headers: a header value cannot hold control characters such as line breaks
    "#]]
    .assert_eq(&refusal("grpc-web: {cors_allow_headers: \"a\\r\\nb\"}"));
}
