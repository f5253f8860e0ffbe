//! stillgate with one worker. Its series come from a label with the value of a query argument, made by requests.

use super::start::{Launch, LaunchInputs};
use std::fmt::Write as _;

/// Enough for a million series.
const MEMORY: &str = "1GiB";

pub(super) fn launch(place: &LaunchInputs<'_>) -> Launch {
    let file = place.file("stillgate.yaml");
    let words = ["run", "--config", &file.to_string_lossy()].map(str::to_owned).to_vec();
    Launch { words, files: vec![(file, configuration(place))] }
}

fn configuration(place: &LaunchInputs<'_>) -> String {
    let LaunchInputs { address, metrics, upstream, .. } = place;
    let mut text = format!(
        "gateway:\n  workers: 1\n  listeners:\n    - address: \"{address}\"\n  metrics:\n    address: \"{metrics}\"\n"
    );
    if let Some(series) = place.series {
        // Twice the room: a family near its budget collapses, which is not the subject here.
        let room = series.saturating_mul(2);
        // Writing to a `String` cannot fail.
        let _ = write!(
            text,
            "    memory: {MEMORY}\n    series_per_family: {room}\n    labels:\n      http_requests_total: {{id: $arg_id}}\n"
        );
    }
    // Writing to a `String` cannot fail.
    let _ = write!(
        text,
        "upstreams:\n  - id: upstream\n    type: roundrobin\n    nodes: {{\"{upstream}\": 1}}\n\
         routes:\n  - id: all\n    uri: /*\n    upstream_id: upstream\n"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn a_label_for_the_series() {
        expect![[r#"
            gateway:
              workers: 1
              listeners:
                - address: "127.0.0.1:8080"
              metrics:
                address: "127.0.0.1:9090"
                memory: 1GiB
                series_per_family: 2000
                labels:
                  http_requests_total: {id: $arg_id}
            upstreams:
              - id: upstream
                type: roundrobin
                nodes: {"127.0.0.1:3000": 1}
            routes:
              - id: all
                uri: /*
                upstream_id: upstream
        "#]]
        .assert_eq(&configuration(&LaunchInputs::example(Some(1000))));
    }

    #[test]
    fn as_it_comes_without_series() {
        expect![[r#"
            gateway:
              workers: 1
              listeners:
                - address: "127.0.0.1:8080"
              metrics:
                address: "127.0.0.1:9090"
            upstreams:
              - id: upstream
                type: roundrobin
                nodes: {"127.0.0.1:3000": 1}
            routes:
              - id: all
                uri: /*
                upstream_id: upstream
        "#]]
        .assert_eq(&configuration(&LaunchInputs::example(None)));
    }
}
