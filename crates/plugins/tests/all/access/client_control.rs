//! `client-control`. The transcripts test that a body of unknown length is limited as it comes.

use super::outcome;
use crate::harness::refusal;
use expect_test::expect;

#[test]
fn a_length_is_bounded() {
    let of = |keys: &str, lines: &str| {
        outcome(&format!("client-control: {keys}"), &format!("POST / HTTP/1.1\nHost: h\n{lines}"))
    };
    assert_eq!(of("{max_body_size: 5}", "Content-Length: 5"), "passes");
    assert_eq!(of("{max_body_size: 5}", "Transfer-Encoding: chunked"), "passes");
    assert!(of("{max_body_size: 5}", "Content-Length: 6").contains("<title>413 Request Entity Too Large</title>"));
    for keys in ["{}", "{max_body_size: 0}", "{max_body_size: 9223372036854775807}"] {
        assert_eq!(of(keys, "Content-Length: 9000000000000000000"), "passes");
    }
}

#[test]
fn bad_configurations_are_refused() {
    let all = ["client-control: {max_body_size: -1}", "client-control: {max_body_size: 1.5}"].map(refusal).concat();
    expect![[r#"
        1:33: client-control.max_body_size: expected a whole number, 0 or more, found the number -1
        1:33: client-control.max_body_size: expected a whole number, 0 or more, found the number 1.5
    "#]]
    .assert_eq(&all);
}
