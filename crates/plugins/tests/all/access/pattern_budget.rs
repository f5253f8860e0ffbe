//! What the regular expressions in the plugins of one resource may cost together.

use crate::harness::{plugins, refusal};

/// A list of patterns, in which each is different.
fn list(count: usize, pattern: &str) -> String {
    let each: Vec<String> = (0..count).map(|number| format!("'{pattern}{number}'")).collect();
    format!("[{}]", each.join(", "))
}

#[test]
fn regular_expressions_of_one_resource_have_a_bound_together() {
    let large = r"(\w{40}){40}";
    let filters = |count: usize, pattern: &str| {
        let each = (0..count).map(|number| format!("{{regex: '{pattern}{number}', replace: x}}"));
        each.collect::<Vec<_>>().join(", ")
    };
    let pairs = |count: usize| list(2 * count, large);
    // Each has a DFA that takes long to build, or has none that fits.
    let (long, slow) = (r"(\w{40}){10}", "matching the rule takes too much time");
    let together = "too large together; write fewer of them, or smaller repetitions";
    let refused = [
        (format!("response-rewrite: {{filters: [{}]}}", filters(200, large)), "filters[", together),
        (format!("proxy-rewrite: {{regex_uri: {}}}", pairs(200)), "regex_uri[", together),
        (format!("uri-blocker: {{block_rules: {}}}", list(500, large)), "block_rules[", slow),
        (format!("ua-restriction: {{denylist: {}}}", list(500, long)), "denylist[", "cost too much"),
        (format!("cors: {{allow_origins_by_regex: {}}}", list(500, long)), "allow_origins_by_regex[", "cost too much"),
        // Each by itself would do.
        (
            format!(
                "response-rewrite: {{filters: [{}]}}\nproxy-rewrite: {{regex_uri: {}}}",
                filters(20, large),
                pairs(20)
            ),
            "",
            together,
        ),
    ];
    for (yaml, key, why) in refused {
        let refusal = refusal(&yaml);
        assert!(refusal.contains(key) && refusal.contains(why), "{key}: {}", &refusal[..refusal.len().min(2000)]);
    }
    // Conditions of plugins count, too: each by itself would do.
    let vars = |count: usize| {
        let each: Vec<String> = (0..count).map(|number| format!("[http_a, '~~', '{large}{number}']")).collect();
        format!("[{}]", each.join(", "))
    };
    let rules = |count: usize, rule: &dyn Fn() -> String| vec![rule(); count].join(", ");
    let split = || format!("{{match: [{{vars: {}}}], weighted_upstreams: [{{weight: 1}}]}}", vars(20));
    let case = || format!("{{case: {}, actions: [[return, {{code: 403}}]]}}", vars(20));
    let conditions = [
        (format!("traffic-split: {{rules: [{}]}}", rules(20, &split)), "traffic-split.rules[", together),
        (format!("workflow: {{rules: [{}]}}", rules(20, &case)), "workflow.rules[", together),
        (
            format!("fault-injection: {{abort: {{http_status: 403, vars: [{}]}}}}", rules(20, &|| vars(20))),
            "vars",
            together,
        ),
        (format!("response-rewrite: {{vars: {}}}", vars(100)), "vars[", "this condition need more than"),
    ];
    for (yaml, key, why) in conditions {
        let refusal = refusal(&yaml);
        assert!(refusal.contains(key) && refusal.contains(why), "{key}: {}", &refusal[..refusal.len().min(2000)]);
    }
    let accepted = [
        format!("traffic-split: {{rules: [{}]}}", rules(3, &split)),
        format!("workflow: {{rules: [{}]}}", rules(3, &case)),
        format!("response-rewrite: {{filters: [{}]}}", filters(20, large)),
        format!("proxy-rewrite: {{regex_uri: {}}}", pairs(20)),
        format!("response-rewrite: {{filters: [{}]}}", filters(1000, "word")),
        format!("uri-blocker: {{block_rules: {}}}", list(1000, "/internal/[a-z]+/")),
        format!("ua-restriction: {{denylist: {}}}", list(1000, "evil-bot-[0-9.]+/")),
        format!("cors: {{allow_origins_by_regex: {}}}", list(1000, r"^https://[a-z0-9-]+\.example\.com:")),
    ];
    for yaml in accepted {
        if let Err(why) = plugins(&yaml) {
            panic!("{}: {why}", &yaml[..60]);
        }
    }
}
