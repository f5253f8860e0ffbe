#!/usr/bin/env bash
# Rust crate regex 1.13.1 beside crate pcre2 0.2.11 (PCRE2, which nginx, OpenResty and HAProxy use).
#
# A pattern that moves from a C gateway to a Rust one is not safe because it compiles. These are valid in both, and differ without
# an error: \< and \> are literal in PCRE and edges of words in regex since 1.10; \v is any vertical white space in PCRE and one
# character in regex; && and -- and [ in a class are characters in PCRE and set operations in regex; a++ is possessive in PCRE
# and a repetition of a repetition in regex; \b{start} is an edge and a literal text in PCRE, and the start of a word in regex.
#
# Seen: each line below has another answer in the two columns.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir src
cat > Cargo.toml <<'TOML'
[package]
name = "patterns"
version = "0.0.0"
edition = "2021"
[dependencies]
regex = "=1.13.1"
pcre2 = "=0.2.11"
TOML
cat > src/main.rs <<'RUST'
fn main() {
    for (pattern, text) in [
        (r"^\<script\>$", "<script>"),
        (r"^\<script\>$", "script"),
        (r"^a\vb$", "a\nb"),
        (r"^[a-z&&x]+$", "abc"),
        (r"^[!--a]$", "a"),
        (r"^[a[b]]$", "a]"),
        (r"^a++a$", "aaa"),
        (r"^ \b{start}", " y"),
        (r"^x\b{start}", "x{start}"),
    ] {
        let rust = regex::Regex::new(pattern).unwrap().is_match(text);
        let pcre = pcre2::bytes::RegexBuilder::new().utf(true).build(pattern).unwrap().is_match(text.as_bytes()).unwrap();
        println!("{pattern} {text:?} pcre={pcre} regex={rust}");
    }
}
RUST
cargo run --quiet > said
cat said
diff said - <<'SEEN'
^\<script\>$ "<script>" pcre=true regex=false
^\<script\>$ "script" pcre=false regex=true
^a\vb$ "a\nb" pcre=true regex=false
^[a-z&&x]+$ "abc" pcre=true regex=false
^[!--a]$ "a" pcre=true regex=false
^[a[b]]$ "a]" pcre=true regex=false
^a++a$ "aaa" pcre=false regex=true
^ \b{start} " y" pcre=false regex=true
^x\b{start} "x{start}" pcre=true regex=false
SEEN
