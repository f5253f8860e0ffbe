#!/usr/bin/env bash
# rustc 1.95.0 on Linux, crate regex-lite 0.1.6.
#
# `split-debuginfo = "packed"` does not move line tables out of a program: `.debug_line` stays where it was, and with
# `debug = "line-tables-only"` that is most of what there is. Only `objcopy --only-keep-debug` and `--strip-debug` separate it.
#
# Seen: 534,524 bytes of .debug_line in the program with packed, 535,990 without.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export CARGO_TARGET_DIR=$folder/target CARGO_INCREMENTAL=0
cargo new --quiet --bin --vcs none probe
cd probe
printf '[profile.release]\ndebug = "line-tables-only"\n[profile.packed]\ninherits = "release"\nsplit-debuginfo = "packed"\n' >> Cargo.toml
cargo add --quiet regex-lite@=0.1.6
cat > src/main.rs <<'RUST'
fn main() {
    let pattern = std::env::args().nth(1).unwrap_or_default();
    println!("{}", regex_lite::Regex::new(&pattern).is_ok_and(|regex| regex.is_match("text")));
}
RUST
lines() {
    cargo build --quiet --profile "$1"
    # "Size" is the third column of the section's line, in hexadecimal.
    size=$(objdump -h "$CARGO_TARGET_DIR/$1/probe" | awk '$2 == ".debug_line" { print $3 }')
    echo $((16#$size))
}
whole=$(lines release)
packed=$(lines packed)
echo "$(rustc --version): $packed bytes of .debug_line in the program with packed, $whole without"
[ "$packed" -gt $((whole * 9 / 10)) ]
