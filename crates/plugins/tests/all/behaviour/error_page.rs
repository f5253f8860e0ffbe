//! `error-page`

use super::harness;
use expect_test::{Expect, expect};
use harness::{OK, plugins};

const GET: &str = "GET / HTTP/1.1\nHost: h\n\n";

fn check(code: u16, metadata: &str, expected: Expect) {
    let config = format!("error-page: {{}}\nworkflow: {{rules: [{{actions: [[return, {{code: {code}}}]]}}]}}");
    let plugins = plugins(&config).unwrap().with_metadata("error-page", metadata).unwrap();
    expected.assert_eq(&plugins.run(GET, OK));
}

#[test]
fn answers_of_the_gateway_get_the_page() {
    let pages = "{enable: true, error_404: {body: nothing here}, error_500: {}, \
        error_502: {body: '{}', content_type: application/json}, error_503: {body: ''}}";
    check(
        404,
        pages,
        expect![[r#"
        > workflow answers
        < 404
        < Content-Type: text/html
        < "nothing here"
    "#]],
    );
    check(
        500,
        pages,
        expect![[r#"
        > workflow answers
        < 500
        < Content-Type: text/html
        < "<html>\r\n<head><title>500 Internal Server Error</title></head>\r\n<body>\r\n<center><h1>500 Internal Server Error</h1></center>\r\n<hr><center>stillgate</center>\r\n</body>\r\n</html>\r\n"
    "#]],
    );
    check(
        502,
        pages,
        expect![[r#"
        > workflow answers
        < 502
        < Content-Type: application/json
        < "{}"
    "#]],
    );
    check(
        503,
        pages,
        expect![[r#"
        > workflow answers
        < 503
        < "{\"error_msg\":\"rejected by workflow\"}\n"
    "#]],
    );
    check(
        403,
        pages,
        expect![[r#"
        > workflow answers
        < 403
        < "{\"error_msg\":\"rejected by workflow\"}\n"
    "#]],
    );
    check(
        404,
        "{error_404: {body: nothing here}}",
        expect![[r#"
        > workflow answers
        < 404
        < "{\"error_msg\":\"rejected by workflow\"}\n"
    "#]],
    );
    check(
        404,
        "{enable: true}",
        expect![[r#"
        > workflow answers
        < 404
        < "{\"error_msg\":\"rejected by workflow\"}\n"
    "#]],
    );
}

#[test]
fn other_statuses_have_pages_where_they_are_written() {
    check(
        403,
        "{enable: true, error_403: {body: mine}}",
        expect![[r#"
        > workflow answers
        < 403
        < Content-Type: text/html
        < "mine"
    "#]],
    );
    check(
        403,
        "{enable: true, error_403: {}}",
        expect![[r#"
        > workflow answers
        < 403
        < "{\"error_msg\":\"rejected by workflow\"}\n"
    "#]],
    );
}

#[test]
fn responses_of_nodes_stay_as_they_are() {
    let plugins = plugins("error-page: {}").unwrap();
    let plugins = plugins.with_metadata("error-page", "{enable: true, error_404: {body: mine}}").unwrap();
    expect![[r#"
        > GET /
        > Host: h
        < 404
        < "the node's"
    "#]]
    .assert_eq(&plugins.run(GET, "HTTP/1.1 404 Not Found\n\nthe node's"));
}

#[test]
fn bad_metadata_is_refused() {
    let bad = |metadata| plugins("error-page: {}").unwrap().with_metadata("error-page", metadata).err().unwrap() + "\n";
    let text: String = ["{error_399: {body: a}}", "{error_404: {content_type: \"a\\nb\"}}", "{enable: 1}"]
        .into_iter()
        .map(bad)
        .collect();
    expect![[r#"
        1:2: error_399: unknown key "error_399"; did you mean "error_429"?
        1:28: error_404.content_type: a header value cannot hold control characters such as line breaks
        1:10: enable: expected true or false, found the number 1
    "#]]
    .assert_eq(&text);
}
