#!/usr/bin/env bash
# LuaJIT 2.1.1774896198, as the Python package lupa 2.8 has it.
#
# Code that LuaJIT's compiler has made may keep far more memory than the function that it was made from. Of a call such as
# `("x"):rep(1e5)`, whose arguments are constants, the compiler stores the result in the machine code's constants. A full garbage
# collection does not free it, as long as the code lives; `collectgarbage("count")` counts it; only `jit.flush()` frees it. So a
# program that makes its large texts anew in each call, and drops them, has them all the time once it is hot.
#
# Seen: 26 functions that each make a text of 100 kB and drop it. After two full collections 83 KiB are in use where the functions
# were interpreted, and 2640 KiB where they were compiled; after jit.flush(), 60 KiB.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet --disable-pip-version-check lupa==2.8
"$folder/python/bin/python" - <<'PYTHON'
from lupa import luajit21

lua = luajit21.LuaRuntime()
used = lua.execute(r"""
    local source = "return function() local n = 0 for _ = 1, 200 do n = n + #(('%s'):rep(1e5)) end return n end"
    local function used(is_compiled)
        local functions = {}
        for letter = 65, 90 do
            local made = load(source:format(string.char(letter)))()
            if not is_compiled then jit.off(made) end
            assert(made() == 200 * 1e5)
            functions[#functions + 1] = made
        end
        collectgarbage() collectgarbage()
        local before = collectgarbage("count")
        jit.flush()
        collectgarbage() collectgarbage()
        return before, collectgarbage("count")
    end
    local interpreted = used(false)
    return { jit.version, interpreted, used(true) }
""")
version, interpreted, compiled, flushed = (used[at] for at in range(1, 5))
print(f"{version}: {interpreted:.0f} KiB interpreted, {compiled:.0f} KiB compiled, {flushed:.0f} KiB after jit.flush()")
assert version == "LuaJIT 2.1.1774896198", version
assert interpreted < 500 and flushed < 500 and compiled > 26 * 1e5 / 1024, used
PYTHON
