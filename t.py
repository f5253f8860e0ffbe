from lupa import luajit21 as l
lua = l.LuaRuntime()
print(lua.execute("return jit.version"))
lua.execute(r'''
local function loop()
  local n = 0
  for at = 1, 200 do n = n + #(("x"):rep(1e6)) end
  return n
end
assert(loop() == 2e8)
local weak = setmetatable({}, {__mode = "k"})
loop = nil
collectgarbage() collectgarbage()
''')
print(lua.execute(r'''
local function fresh(compiled)
  local made = {}
  for letter = 65, 90 do
    local text = ("return function() local n = 0 for at = 1, 200 do n = n + #(('%s'):rep(1e5)) end return n end"):format(string.char(letter))
    local f = load(text)()
    if not compiled then jit.off(f) end
    assert(f() == 2e7)
    made[#made + 1] = f
  end
  collectgarbage() collectgarbage()
  local kept = collectgarbage("count")
  jit.flush()
  collectgarbage() collectgarbage()
  return ("%d KiB, %d KiB after jit.flush()"):format(kept, collectgarbage("count"))
end
return "interpreted: " .. fresh(false) .. "; compiled: " .. fresh(true)
'''))
