#!/usr/bin/env bash
# rustc 1.95.0, cargo 1.95.0, crate httparse 1.10.1.
#
# `codegen-units = 16` in a profile is not the same as leaving it out, though 16 is the default of optimised builds. Left to
# the default, rustc merges small units; told the number, it does not. So the same source becomes fewer object files and other
# machine code, since functions in different units are inlined less.
#
# Seen: 1 object file by default, 7 with `codegen-units = 16`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export CARGO_TARGET_DIR=$folder/target CARGO_INCREMENTAL=0
cargo new --quiet --lib --vcs none probe
cd probe
printf '[profile.said]\ninherits = "release"\ncodegen-units = 16\n' >> Cargo.toml
cargo add --quiet httparse@=1.10.1
objects() {
    cargo build --quiet --profile "$1"
    ar t "$CARGO_TARGET_DIR/$1"/deps/libhttparse-*.rlib | grep -c '\.rcgu\.o$'
}
unsaid=$(objects release)
said=$(objects said)
echo "$(rustc --version): $unsaid object files by default, $said with codegen-units = 16"
[ "$unsaid" -lt "$said" ]
