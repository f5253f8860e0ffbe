//! Chromium, driven by its DevTools protocol over a pipe: no port, no further program, and real keys.
//!
//! Everything that a page complains about (console errors, exceptions, refused resources, dialogs) is kept, and must be empty.

use serde_json::{Value as Json, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};
use stillgate_testkit::{eventually_within, require_tool};

/// How long the page itself polls a condition before the next request.
const LOOK_MS: u32 = 500;
/// Chromium is many processes, each of which waits for a core on a busy machine.
const CHROMIUM_PATIENCE: Duration = Duration::from_secs(600);

/// Messages that wait for the test.
const MESSAGES_MAX: usize = 4096;

/// The size and the colours of the page.
#[derive(Clone, Copy)]
pub(crate) struct Look {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) is_dark: bool,
}

pub(crate) const DESK: Look = Look { width: 1280, height: 900, is_dark: false };
pub(crate) const DARK: Look = Look { is_dark: true, ..DESK };
pub(crate) const PHONE: Look = Look { width: 390, height: 844, is_dark: false };

/// A browser with one page.
pub(crate) struct Page {
    process: Child,
    requests: ChildStdin,
    messages: Receiver<Json>,
    last_id: u64,
    session: Option<String>,
    /// The page's complaints.
    problems: Vec<String>,
    _profile: tempfile::TempDir,
}

impl Page {
    /// Starts a browser.
    pub(crate) fn open(look: Look) -> Page {
        require_tool("chromium", "chromium");
        let profile = tempfile::tempdir().expect("a temporary folder");
        // The pipe is descriptors 3 and 4. Tests may run as root, where Chromium refuses its sandbox.
        let mut process = Command::new("sh")
            .args(["-c", "exec chromium \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null", "chromium"])
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--no-proxy-server"])
            .args(["--hide-scrollbars", "--force-color-profile=srgb", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start chromium");
        let requests = process.stdin.take().expect("it is piped");
        let answers = BufReader::new(process.stdout.take().expect("it is piped"));
        let (send, messages) = sync_channel(MESSAGES_MAX);
        thread::spawn(move || {
            for message in answers.split(0).map_while(Result::ok) {
                let message = serde_json::from_slice(&message).expect("JSON");
                if send.send(message).is_err() {
                    return;
                }
            }
        });
        let (session, problems) = (None, Vec::new());
        let mut page = Page { process, requests, messages, last_id: 0, session, problems, _profile: profile };
        page.attach(look);
        page
    }

    fn attach(&mut self, look: Look) {
        let mut target = None;
        eventually_within(CHROMIUM_PATIENCE, "a page to be there", || {
            let targets = self.send("Target.getTargets", json!({}));
            let pages = targets["targetInfos"].as_array().into_iter().flatten();
            target = pages.filter(|target| target["type"] == "page").map(|target| target["targetId"].clone()).next();
            target.is_some()
        });
        let attached = self.send("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        self.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            self.send(&format!("{domain}.enable"), json!({}));
        }
        self.look(look);
    }

    /// Changes the size, or the colours.
    pub(crate) fn look(&mut self, look: Look) {
        let Look { width, height, is_dark } = look;
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.send("Emulation.setDeviceMetricsOverride", size);
        let scheme = if is_dark { "dark" } else { "light" };
        let features = [("prefers-color-scheme", scheme), ("prefers-reduced-motion", "reduce")];
        let features = features.map(|(name, value)| json!({ "name": name, "value": value }));
        self.send("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// One request of the protocol and its result.
    #[track_caller]
    pub(crate) fn send(&mut self, method: &str, params: Json) -> Json {
        self.try_send(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    fn try_send(&mut self, method: &str, params: Json) -> Result<Json, Json> {
        self.last_id += 1;
        let id = self.last_id;
        let mut request = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = &self.session {
            request["sessionId"] = json!(session);
        }
        let bytes = [request.to_string().as_bytes(), b"\0"].concat();
        self.requests.write_all(&bytes).expect("chromium takes requests");
        loop {
            let message =
                self.messages.recv_timeout(CHROMIUM_PATIENCE).unwrap_or_else(|error| panic!("{method}: {error}"));
            if message["id"] == id {
                return if message["error"].is_null() {
                    Ok(message["result"].clone())
                } else {
                    Err(message["error"].clone())
                };
            }
            self.note(&message);
        }
    }

    /// Keeps the page's complaints.
    fn note(&mut self, message: &Json) {
        let params = &message["params"];
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.problems.push(params["exceptionDetails"].to_string()),
            Some("Log.entryAdded") if params["entry"]["level"] == "error" => {
                self.problems.push(params["entry"].to_string());
            }
            Some("Runtime.consoleAPICalled") if params["type"] == "error" => {
                self.problems.push(params["args"].to_string())
            }
            Some("Page.javascriptDialogOpening") => self.problems.push(format!("a dialog: {params}")),
            _ => {}
        }
    }

    /// The value of a script.
    #[track_caller]
    pub(crate) fn eval(&mut self, script: &str) -> Json {
        let params = json!({ "expression": script, "awaitPromise": true, "returnByValue": true });
        let answer = self.send("Runtime.evaluate", params);
        assert_eq!(answer["exceptionDetails"], Json::Null, "{script}");
        answer["result"]["value"].clone()
    }

    /// Waits until a script returns true; one that fails, as on a page that is left, does not.
    #[track_caller]
    pub(crate) fn until(&mut self, script: &str) {
        // The page polls by itself for a while, so that polling does not slow the work that it waits for.
        let look = format!(
            "new Promise((done) => {{ \
               const end = performance.now() + {LOOK_MS}; \
               const look = () => {{ \
                 let is = false; \
                 try {{ is = Boolean({script}); }} catch {{}} \
                 if (is || performance.now() > end) done(is); else setTimeout(look, 10); \
               }}; \
               look(); }})"
        );
        let params = json!({ "expression": look, "awaitPromise": true, "returnByValue": true });
        let deadline = Instant::now() + CHROMIUM_PATIENCE;
        loop {
            let answer = self.try_send("Runtime.evaluate", params.clone());
            if answer.is_ok_and(|answer| answer["result"]["value"] == true) {
                return;
            }
            if Instant::now() > deadline {
                let text = self.eval("document.body.innerText.slice(0, 3000)");
                panic!("never true: {script}\nproblems: {:?}\nthe page: {text}", self.problems);
            }
        }
    }

    /// Opens an address.
    pub(crate) fn navigate(&mut self, url: &str) {
        self.send("Page.navigate", json!({ "url": url }));
        self.until("document.readyState === 'complete' && document.querySelector('main h1')");
    }

    /// Goes to a page of the dashboard, such as `/routes`, and waits until it is loaded.
    #[track_caller]
    pub(crate) fn visit(&mut self, page: &str) {
        let hash = json!(format!("#{page}"));
        let go = format!(
            "if ((location.hash || '#/overview') !== {hash}) {{ \
               for (const old of document.querySelector('main').children) old.dataset.old = ''; \
               location.hash = {hash}; }}"
        );
        self.eval(&go);
        self.settle();
    }

    /// Waits until nothing of a page is on its way.
    #[track_caller]
    pub(crate) fn settle(&mut self) {
        self.until(
            "document.querySelector('main h1') && !document.querySelector('main > [data-old]') && \
             !document.querySelector('main .loading')",
        );
    }

    /// Text of the page.
    pub(crate) fn text(&mut self) -> String {
        self.eval("document.querySelector('main').innerText").as_str().unwrap_or_default().to_owned()
    }

    /// Clicks the first element that a selector finds with a text in it.
    #[track_caller]
    pub(crate) fn click(&mut self, selector: &str, text: &str) {
        let found = format!(
            "[...document.querySelectorAll({})].find((one) => one.textContent.includes({}))",
            json!(selector),
            json!(text)
        );
        self.until(&format!("{found} && !{found}.disabled"));
        self.eval(&format!("{found}.click()"));
    }

    /// Types into the first element that a selector finds, replacing its text.
    #[track_caller]
    pub(crate) fn fill(&mut self, selector: &str, text: &str) {
        let selector = json!(selector);
        self.until(&format!("document.querySelector({selector})"));
        self.eval(&format!("{{ const field = document.querySelector({selector}); field.focus(); field.select(); }}"));
        self.type_text(text);
    }

    /// Names an element for a selector: `[data-test=NAME]`.
    #[track_caller]
    pub(crate) fn mark(&mut self, element: &str, name: &str) {
        self.until(element);
        self.eval(&format!("{{ ({element}).dataset.test = {}; }}", json!(name)));
    }

    /// Types into what has the focus.
    pub(crate) fn type_text(&mut self, text: &str) {
        self.send("Input.insertText", json!({ "text": text }));
    }

    /// Presses a key: `Tab`, `Enter`, `Escape`, or a character.
    pub(crate) fn press(&mut self, key: &str) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            "/" => 191,
            other => u32::from(other.to_ascii_uppercase().as_bytes()[0]),
        };
        let mut event = json!({ "type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": code });
        match key {
            "Enter" => event["text"] = json!("\r"),
            other if other.len() == 1 => event["text"] = json!(other),
            _ => {}
        }
        self.send("Input.dispatchKeyEvent", event);
        self.send(
            "Input.dispatchKeyEvent",
            json!({ "type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": code }),
        );
    }

    /// Presses Tab until a script about `document.activeElement`, `at`, holds.
    #[track_caller]
    pub(crate) fn tab_to(&mut self, script: &str) {
        for _ in 0..200 {
            if self.eval(&format!("((at) => Boolean({script}))(document.activeElement)")) == true {
                return;
            }
            self.press("Tab");
        }
        panic!("Tab never leads to {script}");
    }

    /// # Panics
    /// When a control has no name that a screen reader could say, or the page has no heading or no language.
    #[track_caller]
    pub(crate) fn assert_named(&mut self, what: &str) {
        const CONTROLS: [&str; 9] =
            ["button", "link", "textbox", "searchbox", "combobox", "checkbox", "radio", "spinbutton", "dialog"];
        let tree = self.send("Accessibility.getFullAXTree", json!({}));
        let nodes = tree["nodes"].as_array().expect("a list");
        let is_nameless = |node: &&Json| {
            let is_control = CONTROLS.iter().any(|role| node["role"]["value"] == *role);
            let name = node["name"]["value"].as_str().unwrap_or_default().trim();
            is_control && node["ignored"] == false && name.is_empty()
        };
        let nameless: Vec<&Json> = nodes.iter().filter(is_nameless).collect();
        assert!(nameless.is_empty(), "{what}: {nameless:#?}");
        let has = |role: &str| nodes.iter().any(|node| node["role"]["value"] == role);
        // On a telephone, navigation is behind a button.
        assert!(has("heading") && has("main"), "{what}: no heading, or no main part");
        assert_ne!(self.eval("document.documentElement.lang"), "", "{what}");
    }

    /// What is shown, as a PNG file in base64: small, or made quickly.
    pub(crate) fn screenshot(&mut self, is_quick: bool) -> String {
        let data = self.send("Page.captureScreenshot", json!({ "format": "png", "optimizeForSpeed": is_quick }));
        data["data"].as_str().expect("a picture").to_owned()
    }

    /// Takes a picture into `target/dashboard/`.
    pub(crate) fn picture(&mut self, name: &str) {
        use base64::Engine as _;
        let text = self.screenshot(false);
        let png = base64::engine::general_purpose::STANDARD.decode(text).expect("base64");
        let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("dashboard");
        std::fs::create_dir_all(&folder).expect("make the folder");
        std::fs::write(folder.join(format!("{name}.png")), png).expect("write the picture");
    }

    /// Runs a script in every page before the page's own.
    pub(crate) fn run_first(&mut self, script: &str) {
        self.send("Page.addScriptToEvaluateOnNewDocument", json!({ "source": script }));
    }

    /// Notes when the Overview is shown, in milliseconds since the navigation began.
    pub(crate) fn measure_overview(&mut self) {
        let source = "new MutationObserver(() => { \
                        if (window.overview_shown_ms || !document.querySelector('main .verdict')) return; \
                        window.overview_shown_ms = performance.now(); \
                      }).observe(document, { childList: true, subtree: true });";
        self.run_first(source);
    }

    /// The page's complaints so far were expected.
    pub(crate) fn forget(&mut self) {
        self.eval("1");
        self.problems.clear();
    }

    /// # Panics
    /// When the page has complained since the last time.
    #[track_caller]
    pub(crate) fn assert_calm(&mut self, what: &str) {
        // Earlier complaints have arrived after this.
        self.eval("1");
        let problems = std::mem::take(&mut self.problems);
        assert!(problems.is_empty(), "{what}: {problems:#?}");
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // Its other processes end with it. It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
