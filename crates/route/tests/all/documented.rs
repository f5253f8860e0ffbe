//! Tests the examples of the documentation.

use std::path::Path;
use stillgate_route::Expression;

#[test]
fn expressions_in_the_documentation_parse() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/expressions.md");
    let text = std::fs::read_to_string(file).unwrap();
    let examples: Vec<&str> =
        text.split("```expression\n").skip(1).filter_map(|part| part.split("```").next()).collect();
    assert!(examples.len() >= 2);
    for example in examples {
        if let Err(errors) = Expression::parse(example.trim()) {
            panic!("{}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
        }
    }
}
