//! A file that is refused: `check` shows its user what is wrong, and the status and the log show no secret of it.

use crate::shared::STILLGATE;
use crate::transfer::run;
use stillgate_testkit::{Gateway, Setup, Upstream, eventually};

const SECRET: &str = "S3CRET-1042";

#[test]
fn the_status_and_the_log_show_no_secret_of_a_refused_file() {
    let node = Upstream::echo();
    let text = |keys: &str| {
        let node = node.addr();
        format!(
            "upstreams: [{{id: u, nodes: {{\"{node}\": 1}}}}]\nroutes:\n  - {{id: a, uri: /a, upstream_id: u}}\n  - {keys}\n"
        )
    };
    let gateway = Gateway::start(STILLGATE, &Setup::resources(text("{id: b, uri: /b, upstream_id: u}")));
    let (mut before, file) = ("null".to_owned(), gateway.config_path().display().to_string());
    for (keys, expected) in [
        (format!("{{id: b, uri: /b, upstream_id: u, vars: [[http_authorization, {SECRET}]]}}"), "no operator"),
        (format!("{{id: b, upstream_id: u, expression: 'http.headers.authorization == {SECRET}'}}"), "expected a text"),
        (
            format!("{{id: b, uri: /b, upstream_id: u, filter_func: 'function(x) return {SECRET} end end'}}"),
            "filter_func",
        ),
        (
            format!(
                "{{id: b, uri: /b, upstream_id: u, plugins: {{proxy-rewrite: {{headers: {{'Bearer {SECRET}': v}}}}}}}}"
            ),
            "proxy-rewrite",
        ),
    ] {
        gateway.write_config(&Setup::resources(text(&keys)));
        let error = || gateway.status()["config"]["last_error"].to_string();
        eventually("the file to be refused", || error() != before);
        before = error();
        assert!(before.contains(expected) && !before.contains(SECRET), "{keys}: {before}");
        eventually("the refusal in the log", || gateway.log().contains(expected));
        assert!(!gateway.log().contains(SECRET), "{keys}: {}", gateway.log());
        let checked = run("", &["check", "--offline", &file]).expect(1);
        assert!(checked.out.contains(SECRET), "{keys}: {checked:?}");
    }
}
