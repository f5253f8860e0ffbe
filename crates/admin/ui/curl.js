// Reads a curl command line, as browsers copy it, into the request that it would send.

/** Options that take a value and do not change which route is taken. */
const IGNORED = new Set([
  "-o",
  "--output",
  "-w",
  "--write-out",
  "-m",
  "--max-time",
  "--connect-timeout",
  "--retry",
  "-x",
  "--proxy",
  "--cacert",
  "--cert",
  "-E",
  "--key",
  "--limit-rate",
  "-c",
  "--cookie-jar",
  "--ciphers",
  "--interface",
  "--max-redirs",
  "-D",
  "--dump-header",
  "-K",
  "--config",
  "--connect-to",
  "--retry-delay",
  "-r",
  "--range",
  "-T",
  "--upload-file",
  "-y",
  "-Y",
  "-z",
  "-C",
  "--stderr",
  "--trace",
  "--trace-ascii",
]);
const DATA = new Set([
  "-d",
  "--data",
  "--data-raw",
  "--data-binary",
  "--data-ascii",
  "--data-urlencode",
  "--json",
  "-F",
  "--form",
  "--form-string",
]);

/** `{url, method, headers: [[name, value]], notes}`, or `{error}`: a sentence. */
export function read_curl(line) {
  const text = line.trim();
  if (!text) return { error: "Paste a curl command, or write a URL such as http://shop.example/orders/7." };
  let words;
  try {
    words = split(text);
  } catch (error) {
    return { error: error.message };
  }
  if (words[0] !== "curl" && !/^(\$|#|%)$/.test(words[0])) return bare(words);
  const request = { url: null, method: null, headers: [], notes: [] };
  let as_query = false;
  const data = [];
  const next = words.slice(words.indexOf("curl") + 1);
  while (next.length) {
    let word = next.shift();
    let attached = null;
    if (/^-[^-]./.test(word)) {
      // Short options stand together: `-sXPOST`. The first that takes a value ends the group.
      const letter = [...word.slice(1)].findIndex((one) => "XHdAebuFoTwmxEcDKrzCyY".includes(one));
      if (letter < 0) {
        if (word.includes("I")) request.method ??= "HEAD";
        if (word.includes("G")) as_query = true;
        continue;
      }
      if (word.slice(1, letter + 1).includes("I")) request.method ??= "HEAD";
      if (word.slice(1, letter + 1).includes("G")) as_query = true;
      attached = word.slice(letter + 2) || null;
      word = `-${word[letter + 1]}`;
    } else if (/^--[\w-]+=/.test(word)) {
      attached = word.slice(word.indexOf("=") + 1);
      word = word.slice(0, word.indexOf("="));
    }
    const value = () => attached ?? next.shift() ?? "";
    if (word === "-X" || word === "--request") request.method = value().toUpperCase();
    else if (word === "-H" || word === "--header") header(request, value());
    else if (DATA.has(word)) {
      if (word === "--json") request.headers.push(["Content-Type", "application/json"], ["Accept", "application/json"]);
      data.push(value());
    } else if (word === "-A" || word === "--user-agent") request.headers.push(["User-Agent", value()]);
    else if (word === "-e" || word === "--referer") request.headers.push(["Referer", value()]);
    else if (word === "-b" || word === "--cookie") request.headers.push(["Cookie", value()]);
    else if (word === "-u" || word === "--user") request.headers.push(["Authorization", `Basic ${base64(value())}`]);
    else if (word === "--oauth2-bearer") request.headers.push(["Authorization", `Bearer ${value()}`]);
    else if (word === "-I" || word === "--head") request.method ??= "HEAD";
    else if (word === "-G" || word === "--get") as_query = true;
    else if (word === "--url") request.url = value();
    else if (word === "--resolve") (value(), request.notes.push("--resolve does not change which route is taken"));
    else if (IGNORED.has(word)) value();
    else if (!word.startsWith("-")) {
      if (request.url !== null) request.notes.push(`only the first URL is explained, not ${word}`);
      else request.url = word;
    }
  }
  if (request.url === null) return { error: "There is no URL in this command. Write curl http://host/path." };
  if (data.length && as_query) request.url += (request.url.includes("?") ? "&" : "?") + data.join("&");
  request.method ??= data.length && !as_query ? "POST" : "GET";
  return finished(request);
}

/** `GET http://host/path`, or a URL alone. */
function bare(words) {
  const [first, second] = words;
  const has_method = /^[A-Z]+$/.test(first) && second;
  return finished({ url: has_method ? second : first, method: has_method ? first : "GET", headers: [], notes: [] });
}

function finished(request) {
  if (/^https?:\/\//i.test(request.url) || request.url.startsWith("/")) return request;
  if (/^[a-z]+:\/\//i.test(request.url))
    return { error: `Only http:// and https:// can be explained, not ${request.url.split(":")[0]}.` };
  return { ...request, url: `http://${request.url}` };
}

function header(request, line) {
  const colon = line.indexOf(":");
  if (colon > 0 && line.slice(colon + 1).trim())
    request.headers.push([line.slice(0, colon).trim(), line.slice(colon + 1).trim()]);
  else if (/;\s*$/.test(line)) request.headers.push([line.replace(/;\s*$/, "").trim(), ""]);
}

const base64 = (text) => btoa(String.fromCharCode(...new TextEncoder().encode(text)));

// Words as a shell splits them: '…', "…", $'…', backslashes, and line ends after a backslash.
function split(text) {
  const words = [];
  let word = null;
  for (let at = 0; at < text.length; at++) {
    const c = text[at];
    if (/\s/.test(c)) {
      if (word !== null) words.push(word);
      word = null;
    } else if (c === "\\") {
      at++;
      if (text[at] === "\r") at++;
      if (text[at] !== "\n" && at < text.length) word = (word ?? "") + text[at];
    } else if (c === "'" || c === '"') {
      const is_ansi = c === "'" && word?.endsWith("$");
      if (is_ansi) word = word.slice(0, -1);
      const [inside, end] = quoted(text, at + 1, c, is_ansi);
      word = (word ?? "") + inside;
      at = end;
    } else if ((c === "|" || c === ">" || c === ";") && word === null) {
      break;
    } else word = (word ?? "") + c;
  }
  if (word !== null) words.push(word);
  return words;
}

const ESCAPES = { n: "\n", r: "\r", t: "\t" };

function quoted(text, from, quote, is_ansi) {
  let inside = "";
  for (let at = from; at < text.length; at++) {
    const c = text[at];
    if (c === quote) return [inside, at];
    if (c !== "\\" || (quote === "'" && !is_ansi)) inside += c;
    else {
      const escaped = text[++at];
      const code = is_ansi && /^(?:u([0-9a-fA-F]{1,4})|x([0-9a-fA-F]{1,2}))/.exec(text.slice(at, at + 5));
      if (code) {
        inside += String.fromCharCode(Number.parseInt(code[1] ?? code[2], 16));
        at += code[0].length - 1;
      } else if (is_ansi) inside += ESCAPES[escaped] ?? escaped;
      else if (escaped !== "\n") inside += '"\\$`'.includes(escaped) ? escaped : `\\${escaped}`;
    }
  }
  throw new Error(`A ${quote} is not closed. Paste the whole command.`);
}

/** The parameters of `/v1/explain` for a request. */
export function explain_query({ url, method, headers, host, client, consumer, route }) {
  const query = new URLSearchParams({ url: url.replace(/#.*$/, ""), method });
  for (const [name, value] of headers) query.append("header", `${name}:${value}`);
  for (const [name, value] of Object.entries({ host, client, consumer, route })) if (value) query.append(name, value);
  return query.toString();
}
