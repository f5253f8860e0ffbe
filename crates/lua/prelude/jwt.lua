-- `resty.jwt`: signed JSON Web Tokens.
--
-- The caller's key selects the verifier, and never the token alone: a secret is not a public key and a public key is not a
-- secret.

local S = ...
local ask, try, op, closed, raise, ngx = S.ask, S.try, S.operations, S.closed, S.raise, S.ngx
local validators, algorithms = S.jwt_validators, S.jws_algorithms
local type, tostring, error, pcall, pairs, ipairs, select = type, tostring, error, pcall, pairs, ipairs, select
local rawget, setmetatable, next = rawget, setmetatable, next
local find, gsub, sub, format = string.find, string.gsub, string.sub, string.format
-- With settings of its own, which functions cannot change.
local json = S.modules["cjson.safe"].new()

local GOOD = "everything is awesome~ :p"
local PACKED = 64
local EDDSA = { EdDSA = true, Ed25519 = true }

-- As in OpenResty, errors are tables with a reason.
local reason_mt = { __tostring = function(self) return self.reason end }
local function fail(reason) error(setmetatable({ reason = reason }, reason_mt), 0) end

local jwt = { _VERSION = "0.3.2" }

-- A setting of an instance, or of the module, whose settings apply to all functions of the worker.
local function setting(self, name)
  local own = rawget(self, name)
  if own ~= nil then return own end
  return rawget(jwt, name)
end

-- Index of an algorithm in the gateway's list; `nil`: it is unknown.
local function number_of(alg)
  if type(alg) ~= "string" then return nil end
  return algorithms[EDDSA[alg] and "EdDSA" or alg]
end

local function is_hmac(alg) return sub(alg, 1, 2) == "HS" end

function jwt:jwt_encode(value, is_payload)
  if type(value) == "table" then
    local encoder = is_payload and setting(self, "payload_encoder")
    local text, why = (encoder or json.encode)(value)
    if not text then fail("cannot be encoded: " .. tostring(why)) end
    value = text
  end
  return (ask(op.encode_base64url, tostring(value), "", 0))
end

function jwt:jwt_decode(text, is_json, is_payload)
  if type(text) ~= "string" then raise("bad argument #1 to 'jwt_decode' (string expected, got " .. type(text) .. ")") end
  local value = ask(op.decode_base64url, (gsub(gsub(text, "%+", "-"), "/", "_")), "", 0)
  if not value or not is_json then return value end
  local decoder = is_payload and setting(self, "payload_decoder")
  return ((decoder or json.decode)(value))
end

-- A part in its signed form: as it came, or assembled by the caller.
local function raw_part(self, name, token)
  local raw = token["raw_" .. name]
  if raw ~= nil then return raw end
  if token[name] == nil then fail("missing part " .. name) end
  return jwt.jwt_encode(self, token[name], name == "payload")
end

local function signed_part(self, token) return raw_part(self, "header", token) .. "." .. raw_part(self, "payload", token) end

-- The secret, or the result of a function for the token's `kid`.
local function secret_of(secret, token)
  if type(secret) == "function" then
    local kid = token.header.kid
    if kid == nil then fail("secret function specified without kid in header") end
    if type(kid) ~= "string" then fail("secret function specified with non-string kid in header") end
    local found = secret(kid)
    if found == nil then fail("function returned nil for kid: " .. kid) end
    secret = found
  end
  if type(secret) ~= "string" then fail("invalid secret type (must be string or function)") end
  -- A public key is public: with it as a secret, anybody could sign.
  if find(secret, "-----BEGIN", 1, true) then
    fail("invalid secret for " .. token.header.alg .. ": PEM key material cannot be used as an HMAC secret")
  end
  return secret
end

function jwt:sign(key, token)
  if type(token) ~= "table" or type(token.header) ~= "table" then raise("resty.jwt.sign: a table with header and payload expected") end
  local header = token.header
  if header.typ ~= nil and header.typ ~= "JWT" then fail("invalid typ: " .. tostring(header.typ)) end
  if header.enc ~= nil or token.typ == "JWE" then raise("resty.jwt.sign: encrypted tokens (JWE) are not supported") end
  local alg = header.alg
  local number = number_of(alg)
  if not number then fail("unsupported alg: " .. tostring(alg)) end
  if is_hmac(alg) then
    key = secret_of(key, token)
  elseif type(key) ~= "string" then
    fail("signer error: no private key")
  end
  local message = signed_part(self, token)
  local signature, why = try(op.jws_sign, key, message, number)
  if not signature then fail("signer error: " .. why) end
  return message .. "." .. jwt.jwt_encode(self, signature)
end

-- The parts between dots; only the last may be empty.
local function split(text)
  local parts, from = {}, 1
  while true do
    local spot = find(text, ".", from, true)
    parts[#parts + 1] = sub(text, from, spot and spot - 1)
    if not spot or #parts > 5 then return parts end
    from = spot + 1
  end
end

local function invalid(reason) return { valid = false, verified = false, reason = reason } end

function jwt:load_jwt(text)
  if type(text) ~= "string" then return invalid("invalid jwt string") end
  local parts = split(text)
  if #parts == 4 or #parts == 5 then return invalid("invalid jwt string: encrypted tokens (JWE) are not supported") end
  if #parts ~= 3 then return invalid("invalid jwt string") end
  local raw_header, raw_payload, signature = parts[1], parts[2], parts[3]
  local header = jwt.jwt_decode(self, raw_header, true)
  if type(header) ~= "table" then return invalid("invalid header: " .. raw_header) end
  -- A payload that is not JSON stays a text.
  local payload = jwt.jwt_decode(self, raw_payload, true, true)
  if payload == nil then payload = jwt.jwt_decode(self, raw_payload, false) end
  if payload == nil then return invalid("invalid payload: " .. raw_payload) end
  return { typ = "JWT", raw_header = raw_header, raw_payload = raw_payload, header = header, payload = payload,
    signature = signature, verified = false, valid = true }
end

-- Why a signature is not valid; `nil`: it is.
local function signature_fault(self, key, token)
  local header = token.header
  local alg = header.alg
  if alg == nil then return "No algorithm supplied" end
  if type(alg) ~= "string" then return "invalid alg: must be a string" end
  local allowed = setting(self, "alg_whitelist")
  if allowed ~= nil and allowed[alg] == nil then return "whitelist unsupported alg: " .. alg end
  local number = number_of(alg)
  if not number then return "Unsupported algorithm " .. alg end
  -- `crit` must be understood, whatever it says, and is not (RFC 7515 section 4.1.11).
  if header.crit ~= nil then return "Unsupported crit header" end
  local encoded = token.signature
  local signature = type(encoded) == "string" and jwt.jwt_decode(self, encoded, false)
  -- One signature has one form.
  local is_plain = signature and jwt.jwt_encode(self, signature) == encoded
  if is_hmac(alg) then
    key = secret_of(key, token)
    if is_plain and try(op.jws_verify, signature .. key, signed_part(self, token), number + PACKED * #signature) then return nil end
    return "signature mismatch: " .. tostring(encoded)
  end
  if key == nil then return "No trusted certs loaded" end
  if type(key) ~= "string" or not (find(key, "CERTIFICATE", 1, true) or find(key, "PUBLIC KEY", 1, true)) then
    return "Decode secret is not a valid cert/public key"
  end
  if not is_plain then return "Wrongly encoded signature" end
  local is_good, why = try(op.jws_verify, signature .. key, signed_part(self, token), number + PACKED * #signature)
  if is_good then return nil end
  if why then return "Decode secret is not a valid cert/public key: " .. why end
  return EDDSA[alg] and "EdDSA signature verification failed" or "Verification failed"
end

-- Claims

local LEGACY = { valid_issuers = true, lifetime_grace_period = true, require_nbf_claim = true, require_exp_claim = true }

local function is_legacy(options)
  for name in pairs(options) do
    if not LEGACY[name] then return false end
  end
  return next(options) ~= nil
end

local function flag_of(options, name)
  local value = options[name]
  if value ~= nil and type(value) ~= "boolean" then
    error(format("'%s' validation option is expected to be a boolean.", name), 0)
  end
  return value
end

-- The validators for legacy options. A grace period applies to these only, and not, as in OpenResty, to all later ones.
local function spec_of_legacy(options)
  local spec, grace = {}, options.lifetime_grace_period
  local needs_nbf, needs_exp = flag_of(options, "require_nbf_claim"), flag_of(options, "require_exp_claim")
  if options.valid_issuers ~= nil then spec.iss = validators.equals_any_of(options.valid_issuers) end
  if grace ~= nil and not needs_nbf and not needs_exp then spec.__jwt = validators.require_one_of({ "nbf", "exp" }) end
  if grace ~= nil or needs_nbf ~= nil or needs_exp ~= nil then
    local within = { leeway = grace }
    spec.nbf = validators[needs_nbf and "is_not_before" or "opt_is_not_before"](within)
    spec.exp = validators[needs_exp and "is_not_expired" or "opt_is_not_expired"](within)
  end
  return spec
end

function jwt:get_default_validation_options(token)
  local payload = token.payload
  local is_table = type(payload) == "table"
  return { require_exp_claim = is_table and payload.exp ~= nil, require_nbf_claim = is_table and payload.nbf ~= nil }
end

local function specs_of(self, token, ...)
  local specs, count = { ... }, select("#", ...)
  if count == 0 then specs, count = { jwt.get_default_validation_options(self, token) }, 1 end
  for at = 1, count do
    if type(specs[at]) ~= "table" then error("Claim spec must be a table - see jwt-validators.lua for helper functions", 0) end
    if is_legacy(specs[at]) then specs[at] = spec_of_legacy(specs[at]) end
    for _, one in pairs(specs[at]) do
      if type(one) ~= "function" then
        error("Claim spec value must be a function - see jwt-validators.lua for helper functions", 0)
      end
    end
  end
  return specs
end

-- Why claims are invalid; `nil`: they are valid.
local function claims_fault(token, specs)
  local text, payload = json.encode(token), token.payload
  if not text then return "the token cannot be encoded" end
  for _, spec in ipairs(specs) do
    for claim, holds in pairs(spec) do
      local value
      if claim == "__jwt" then
        value = json.decode(text)
      elseif type(payload) == "table" then
        value = payload[claim]
      end
      local ok, result = pcall(holds, value, claim, text)
      if not ok then
        if type(result) == "table" and result.reason ~= nil then return tostring(result.reason) end
        if type(result) == "string" then return (gsub(result, "^.-:%d-: ", "")) end
        return format("Claim '%s' validation failed", tostring(claim))
      end
      if result == false then return format("Claim '%s' ('%s') returned failure", tostring(claim), tostring(value)) end
    end
  end
  return nil
end

function jwt:verify_jwt_obj(key, token, ...)
  if type(token) ~= "table" then raise("bad argument #2 to 'verify_jwt_obj' (table expected, got " .. type(token) .. ")") end
  if not token.valid then return token end
  -- Never the result of an earlier verification.
  token.verified, token.reason = false, nil
  if type(token.header) ~= "table" then
    token.reason = "invalid header"
    return token
  end
  local specs = specs_of(self, token, ...)
  local ok, fault = pcall(signature_fault, self, key, token)
  if not ok then fault = type(fault) == "table" and fault.reason or tostring(fault) end
  -- Only a genuine token has claims.
  fault = fault or claims_fault(token, specs)
  token.verified, token.reason = fault == nil, fault or GOOD
  return token
end

function jwt:verify(key, text, ...)
  local token = jwt.load_jwt(self, text)
  if not token.valid then return { verified = false, reason = token.reason } end
  return jwt.verify_jwt_obj(self, key, token, ...)
end

function jwt:set_alg_whitelist(allowed) self.alg_whitelist = allowed end

function jwt:set_payload_encoder(encoder)
  if type(encoder) ~= "function" then fail("payload encoder must be function") end
  self.payload_encoder = encoder
end

function jwt:set_payload_decoder(decoder)
  if type(decoder) ~= "function" then fail("payload decoder must be function") end
  self.payload_decoder = decoder
end

local instance_mt = { __index = closed("resty.jwt", jwt) }
function jwt.new() return setmetatable({}, instance_mt) end

S.modules["resty.jwt"] = jwt

return S.entries
