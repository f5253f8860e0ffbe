# Routes and requests of each family of routes.yaml, by the number of a route: `awk -v count=N -v spread=0 -f routes.awk`.
#
# FAMILY.all has all routes, FAMILY.one a single one that takes the requests, and FAMILY.mix the requests: for the route in the
# middle; where conditions repeat after several routes, for one of each kind from there on; with spread=1 for routes all over the
# list, visited in steps of a prime.

function quoted(text) { return "expression: \047" text "\047" }

function host_and_path(n) { return sprintf("http.host == \"shop-%d.example.com\" && http.path ^= \"/area-%d/\"", n / 100, n % 100) }

# Every twentieth route has a regex, every tenth an `||`; the kinds share the others evenly.
function mixed(n, kind) {
  kind = n % 20
  if (kind == 0) {
    if (n % 100 == 0) return sprintf("http.path ~ r#\"/item-[0-9]+-%d$\"#", n)
    return sprintf("http.path ~ r#\"^/svc-%d/v[0-9]+/items/[0-9]+$\"#", n)
  }
  if (kind == 1 || kind == 11)
    return sprintf("(http.path ^= \"/left-%d/\" || http.path ^= \"/right-%d/\") && http.method == \"GET\"", n, n)
  if (kind >= 2 && kind <= 6) return sprintf("http.headers.x_tenant == \"tenant-%d\" && http.method == \"GET\"", n)
  if (kind == 7 || kind == 8) return sprintf("any(http.queries.tag) == \"tag-%d\"", n)
  if (kind == 9 || kind == 10 || kind == 12) return host_and_path(n)
  if (kind == 13) return sprintf("lower(http.path) ^= \"/docs-%d/\" && !(http.headers.x_beta == \"1\")", n)
  if (kind == 14) return sprintf("http.path == \"/exact/%d\" && net.src.ip in 127.0.0.0/8", n)
  return sprintf("http.method == \"GET\" && http.path ^= \"/api/v1/service-%d/\"", n)
}

function condition(family, n) {
  if (family == "paths")
    return quoted(sprintf("http.path ^= \"/api/v1/service-%d/\" && http.method == \"%s\"", n / 2, n % 2 ? "POST" : "GET"))
  if (family == "hosts") return quoted(host_and_path(n))
  if (family == "headers" && n % 2 == 0)
    return quoted(sprintf("http.headers.x_tenant == \"tenant-%d\" && http.path ^= \"/orders/\"", n))
  if (family == "headers") return quoted(sprintf("any(http.queries.tag) == \"tag-%d\" && http.path ^= \"/orders/\"", n))
  if (family == "mixed") return quoted(mixed(n))
  return sprintf("uri: \"/api/v1/service-%d/*\"", n)
}

# Headers of a browser, so that a search for a header has something to skip.
function request(path, method, host, header) {
  return sprintf("  - {path: \"%s\", method: %s, expect: {status: 200}, headers: {Host: %s, Accept: \"text/html,application/xhtml+xml\", Accept-Encoding: \"gzip, deflate, br\", Accept-Language: en, User-Agent: \"Mozilla/5.0 (X11; Linux x86_64)\", X-Request-Id: 5f2b7c0e%s}}", path, method, host, header)
}

function get(path) { return request(path, "GET", "www.example.com", "") }

function at_host(n) { return request(sprintf("/area-%d/cart", n % 100), "GET", sprintf("shop-%d.example.com", n / 100), "") }

function of_tenant(n) { return request("/orders/4711", "GET", "www.example.com", sprintf(", X-Tenant: tenant-%d", n)) }

# A request that the route takes, and that no earlier one takes. A POST without a body needs an explicit length.
function asked(family, n, kind) {
  if (family == "paths" && n % 2)
    return request(sprintf("/api/v1/service-%d/items/4711", n / 2), "POST", "www.example.com", ", Content-Length: \"0\"")
  if (family == "paths") return get(sprintf("/api/v1/service-%d/items/4711", n / 2))
  if (family == "hosts") return at_host(n)
  if (family == "headers") return n % 2 ? get(sprintf("/orders/4711?tag=new&tag=tag-%d&page=2", n)) : of_tenant(n)
  if (family == "uris") return get(sprintf("/api/v1/service-%d/items/4711", n))
  kind = n % 20
  if (kind == 0) return get(n % 100 == 0 ? sprintf("/item-4711-%d", n) : sprintf("/svc-%d/v2/items/4711", n))
  if (kind == 1 || kind == 11) return get(sprintf("/right-%d/basket", n))
  if (kind >= 2 && kind <= 6) return of_tenant(n)
  if (kind == 7 || kind == 8) return get(sprintf("/search?page=2&tag=tag-%d", n))
  if (kind == 9 || kind == 10 || kind == 12) return at_host(n)
  if (kind == 13) return get(sprintf("/Docs-%d/Index.html", n))
  if (kind == 14) return get(sprintf("/exact/%d", n))
  return get(sprintf("/api/v1/service-%d/items/4711", n))
}

function route(n, taken_by) { return sprintf("  - {id: r%d, %s, upstream_id: u}", n, taken_by) }

BEGIN {
  split("paths hosts headers mixed uris", families)
  split("1 1 2 20 1", kinds)
  for (f = 1; f <= 5; f++) {
    family = families[f]
    for (n = 0; n < count; n++) print route(n, condition(family, n)) > (family ".all")
    some = kinds[f] < count ? kinds[f] : count
    first = int(count / 2)
    if (first > count - some) first = count - some
    if (spread) some = count < 2000 ? count : 2000
    print "requests:" > (family ".mix")
    for (k = 0; k < some; k++) print asked(family, spread ? k * 7919 % count : first + k) > (family ".mix")
    any = family == "uris" ? "uri: /*" : quoted("http.path ^= \"/\"")
    print some == 1 ? route(first, condition(family, first)) : route(0, any) > (family ".one")
  }
}
