#!/usr/bin/env bash
# npm packages yaml 2.8.1 and js-yaml 4.1.0, PyYAML 6.0.2 (pure Python, and over libyaml, which APISIX's lyaml uses, too).
#
# In `{…}` and `[…]` indentation means nothing to libyaml, PyYAML and js-yaml: a file of routes whose flow collection goes on left
# of its key is read. The package `yaml`, which Prettier and language servers use, refuses the content (not the closing bracket
# at the key's own column, which it takes). So a file that a gateway serves may not pass the linter beside it.
#
# Seen: PyYAML, libyaml and js-yaml read {"a": "b"}; yaml says "Flow map in block collection must be sufficiently indented".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv python
python/bin/pip --quiet install PyYAML==6.0.2
npm --silent init --yes >/dev/null
npm --silent install yaml@2.8.1 js-yaml@4.1.0
printf 'routes:\n  - plugins: {\n      cors: {}\n    }\n' > bracket.yaml
printf 'routes:\n  - labels: {\n  a: b\n}\n' > content.yaml
cat > read.py <<'PYTHON'
import sys, yaml
for loader in (yaml.SafeLoader, yaml.CSafeLoader):
    for name in ("bracket.yaml", "content.yaml"):
        print(loader.__name__, name, yaml.load(open(name), Loader=loader)["routes"])
PYTHON
cat > read.js <<'JS'
const fs = require("fs");
const readers = { yaml: require("yaml").parse, "js-yaml": require("js-yaml").load };
for (const [reader, read] of Object.entries(readers)) {
  for (const name of ["bracket.yaml", "content.yaml"]) {
    let said;
    try { said = JSON.stringify(read(fs.readFileSync(name, "utf8")).routes); } catch (error) { said = error.message.split("\n")[0]; }
    console.log(reader, name, said);
  }
}
JS
said=$(python/bin/python read.py; node read.js)
echo "$said"
for expected in "SafeLoader content.yaml [{'labels': {'a': 'b'}}]" "CSafeLoader content.yaml [{'labels': {'a': 'b'}}]" \
    'js-yaml content.yaml [{"labels":{"a":"b"}}]' 'yaml bracket.yaml [{"plugins":{"cors":{}}}]' \
    'yaml content.yaml Flow map in block collection must be sufficiently indented'; do
    grep -qF "$expected" <<< "$said" || { echo "changed: $expected"; exit 1; }
done
