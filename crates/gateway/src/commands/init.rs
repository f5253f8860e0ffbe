//! `stillgate init`: a configuration file to begin with, explained, with what is often needed next in comments.

use super::cli::{EXIT_ERRORS, EXIT_GOOD, EXIT_UNUSABLE, Init};
use super::starter::{ADMIN, Starter};
use super::stdout::show;
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::Path;

/// The first lines of the file.
const HEADING: &str = "\
# Configuration of Stillgate: `stillgate check` validates it, `stillgate run` serves it.
# A change takes effect when the file is saved. docs/configuration.md lists all keys.

";

/// What is often needed next. Each block is valid where its comment signs are removed.
const NEXT: &str = r#"
# Also possible, each under its key above:
#
# gateway:
#   listeners:
#     - {address: "0.0.0.0:9443", tls: true}       # HTTPS, with the certificate below
#   access_log: {path: /var/log/stillgate/access.log, format: json}
#   trusted_proxies: [10.0.0.0/8]                  # their X-Forwarded-For is believed
#
# upstreams:
#   - id: nodes
#     checks:                                      # a node that does not answer gets no requests
#       active: {http_path: /, healthy: {interval: 5}, unhealthy: {interval: 5}}
#
# routes:
#   - id: api                                      # only with a consumer's key, 100 requests a minute
#     uri: /api/*
#     upstream_id: nodes
#     plugins:
#       key-auth: {}
#       limit-count: {count: 100, time_window: 60, key: consumer_name}
#
# consumers:
#   - username: shop
#     plugins: {key-auth: {key: "${SHOP_KEY}"}}    # from the environment
#
# ssls:
#   - {id: shop, sni: shop.example, cert: /etc/stillgate/shop.pem, key: /etc/stillgate/shop.key}
"#;

/// Runs the command; returns the exit code.
pub(crate) fn run(arguments: Init) -> u8 {
    let Init { file, to, listen, host } = arguments;
    let text = match Starter::new(to, listen, host, ADMIN) {
        Ok(starter) => format!("{HEADING}{}{NEXT}", starter.yaml(false)),
        Err(error) => {
            eprintln!("stillgate: {error}");
            return EXIT_UNUSABLE;
        }
    };
    if file == Path::new("-") {
        show(text);
        return EXIT_GOOD;
    }
    let name = file.display();
    let written = File::create_new(&file).and_then(|mut created| {
        let written = created.write_all(text.as_bytes()).and_then(|()| created.sync_all());
        // A part of it would be in the way of the next try.
        written.inspect_err(|_| drop(std::fs::remove_file(&file)))
    });
    match written {
        Ok(()) => {
            show(format!("{name} is written. Next:\n\n  stillgate check {name}\n  stillgate run --config {name}\n"));
            EXIT_GOOD
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            eprintln!("stillgate: {name} exists, and is left as it is; name another file, or - for standard output");
            EXIT_ERRORS
        }
        Err(error) => {
            eprintln!("stillgate: cannot write {name}: {error}");
            EXIT_ERRORS
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::source::ConfigSource;

    /// The examples behind comment signs, on their own.
    #[test]
    fn what_is_in_comments_is_valid() {
        let examples: String = NEXT
            .lines()
            .skip(2)
            .map(|line| format!("{}\n", line.strip_prefix("# ").or(line.strip_prefix('#')).unwrap_or(line)))
            .collect();
        let examples = examples.replace("      - id: nodes\n", "").replace("${SHOP_KEY}", "a-key-of-a-consumer");
        // The node is in the part that is not in comments.
        let examples = examples.replace("  - id: nodes\n", "  - id: nodes\n    nodes: {\"127.0.0.1:3000\": 1}\n");
        let loaded = ConfigSource::Text(examples.clone()).parse(examples.as_bytes());
        let loaded = loaded.unwrap_or_else(|errors| panic!("{examples}\n{errors}"));
        assert_eq!(loaded.warnings, [], "{examples}");
    }
}
