#!/usr/bin/env bash
# rustc 1.95.0, cargo 1.95.0, on x86-64; no crate is needed.
#
# With `lto = "fat"`, loops become loops of vectors while the whole program is optimised, at the opt-level of its last crate. If
# that crate is built for size (`[profile.X.package] the-program = { opt-level = "s" }`), no loop of any other crate is
# vectorised either, though these say `opt-level = 3`, and though without LTO they are. Nothing warns of it.
#
# Seen: instructions that compare two floats at once, in one function of a library at `opt-level = 3`: some with a program at 3,
# none with a program at "s" and fat LTO, some again with a program at "s" and no LTO.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export CARGO_TARGET_DIR=$folder/target CARGO_INCREMENTAL=0
cargo new --quiet --vcs none program
cargo new --quiet --vcs none --lib program/bounds
cat > program/bounds/src/lib.rs <<'RS'
#[inline(never)]
pub fn bucket_of(bounds: &[f64], value: f64) -> usize {
    bounds.iter().map(|bound| usize::from(*bound < value)).sum()
}
RS
cat > program/src/main.rs <<'RS'
fn main() {
    let bounds: Vec<f64> = std::env::args().filter_map(|word| word.parse().ok()).collect();
    println!("{}", bounds::bucket_of(&bounds, 2.5));
}
RS
cat >> program/Cargo.toml <<'TOML'
bounds = { path = "bounds" }
[workspace]
members = ["bounds"]
[profile.fast]
inherits = "release"
lto = "fat"
[profile.small]
inherits = "release"
lto = "fat"
[profile.small.package.program]
opt-level = "s"
[profile.apart]
inherits = "release"
lto = "off"
[profile.apart.package.program]
opt-level = "s"
TOML
cd program
compares() {
    cargo build --quiet --profile "$1"
    # Counted by awk, which reads to the end: with pipefail a reader that stops early would fail the pipe.
    objdump -d --no-show-raw-insn "$CARGO_TARGET_DIR/$1/program" \
        | awk '/^[0-9a-f]+ <.*bucket_of/ { inside = 1 } /^$/ { inside = 0 } inside && /cmp[a-z]*pd/ { n++ } END { print n + 0 }'
}
fast=$(compares fast)
small=$(compares small)
apart=$(compares apart)
echo "$(rustc --version): compares of two floats at once: $fast at 3, $small at \"s\" with fat LTO, $apart at \"s\" without LTO"
[ "$fast" -gt 0 ] && [ "$small" -eq 0 ] && [ "$apart" -gt 0 ]
