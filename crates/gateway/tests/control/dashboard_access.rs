//! Every page of the dashboard, light and dark, wide and narrow: nothing is wider than the screen, axe-core finds no serious
//! barrier, and the page looks like its accepted picture.
//!
//! The gateway's answers, the clock and the fonts are those of `tests/data/dashboard`, so a page looks the same in every run. A
//! picture is the brightness of its blocks, as text, in `pictures/`. `UPDATE_EXPECT=1` writes them again; look at the PNG files in
//! `target/dashboard/` before you commit them.

use crate::shared::STILLGATE;
use crate::shared::dashboard::chromium::{DESK, Look, Page};
use crate::shared::dashboard::{gateway, sign_in};
use serde_json::{Value as Json, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const ANSWERS: &str = include_str!("../data/dashboard/answers.json");
const STILL: &str = include_str!("../data/dashboard/still.js");

/// Where `cargo xtask test` installs axe-core, below cargo's folder.
const AXE: &str = "peers/axe-0.1.8/axe_playwright_python/axe.min.js";

/// Every page of the dashboard, besides the one to sign in.
const PAGES: [&str; 22] = [
    "/overview",
    "/routes",
    "/routes/orders",
    "/slow",
    "/explain?curl=/orders/7",
    "/upstreams",
    "/devices",
    "/devices/lamp-1",
    "/consumers",
    "/consumers/rose",
    "/certificates",
    "/fleet",
    "/cardinality",
    "/profiles",
    "/lua",
    "/status",
    "/history/73",
    "/resources/services",
    "/edit/routes/orders",
    "/new/routes",
    "/new/consumers",
    "/nowhere",
];

const NARROW: Look = Look { width: 400, height: 844, is_dark: false };
const LOOKS: [(&str, Look); 4] = [
    ("wide-light", DESK),
    ("wide-dark", Look { is_dark: true, ..DESK }),
    ("narrow-light", NARROW),
    ("narrow-dark", Look { is_dark: true, ..NARROW }),
];

/// Sides of a block of a picture.
const BLOCK_PIXELS: u32 = 20;
/// How much the brightness of a block may differ, of 63.
const LEVELS_MAX: u8 = 3;
/// How many blocks of a thousand may differ by more.
const BLOCKS_PER_MILLE_MAX: usize = 10;
/// How long a page may take to look like its picture.
const PICTURE_PATIENCE: Duration = Duration::from_secs(3);

/// Draws what has changed.
const DRAWN: &str =
    "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(scrollTo(0, 0)))))";

/// What is serious or critical. Another scheme of colours changes only contrasts, and another width changes none of them; they take
/// most of the time.
fn barriers(page: &mut Page, look: Look) -> Json {
    let rules = match (look.is_dark, look.width == DESK.width) {
        (true, _) => "runOnly: ['color-contrast'], ",
        (false, true) => "",
        (false, false) => "rules: { 'color-contrast': { enabled: false } }, ",
    };
    page.eval(&format!(
        "axe.run(document, {{ {rules}resultTypes: ['violations'] }}).then(({{ violations }}) => violations \
           .filter(({{ impact }}) => impact === 'serious' || impact === 'critical') \
           .flatMap(({{ id, nodes }}) => nodes.slice(0, 3).map(({{ html, failureSummary }}) => \
             `${{id}}: ${{html.slice(0, 200)}} ${{failureSummary}}`)))"
    ))
}

/// The brightness of the blocks of the page that is shown: a character for each, a line for each row.
fn blocks(page: &mut Page, look: Look) -> String {
    let (across, down) = (look.width / BLOCK_PIXELS, look.height / BLOCK_PIXELS);
    let script = format!(
        "(async () => {{ \
           const bytes = Uint8Array.from(atob({}), (letter) => letter.charCodeAt(0)); \
           const [across, down] = [{across}, {down}]; \
           const size = {{ resizeWidth: across, resizeHeight: down, resizeQuality: 'medium' }}; \
           const image = await createImageBitmap(new Blob([bytes]), size); \
           const context = new OffscreenCanvas(across, down).getContext('2d'); \
           context.drawImage(image, 0, 0); \
           const {{ data }} = context.getImageData(0, 0, across, down); \
           const block = (_, i) => 0.3 * data[4 * i] + 0.6 * data[4 * i + 1] + 0.1 * data[4 * i + 2]; \
           const levels = Array.from({{ length: across * down }}, block).map((level) => 48 + Math.floor(level / 4)); \
           let text = ''; \
           for (let at = 0; at < levels.length; at += across) \
             text += `${{String.fromCharCode(...levels.slice(at, at + across))}}\\n`; \
           return text; \
         }})()",
        json!(page.screenshot(true))
    );
    page.eval(&script).as_str().expect("a text").to_owned()
}

/// How many blocks differ, and of how many.
fn difference(now: &str, accepted: &str) -> (usize, usize) {
    let differ = |(a, b): (u8, u8)| a.abs_diff(b) > LEVELS_MAX;
    let differing = now.bytes().zip(accepted.bytes()).filter(|pair| differ(*pair)).count();
    (differing + now.len().abs_diff(accepted.len()), now.len())
}

fn is_alike((differing, all): (usize, usize)) -> bool {
    differing * 1000 <= all * BLOCKS_PER_MILLE_MAX
}

/// The accepted pictures of a page, one for each look.
struct Pictures {
    file: PathBuf,
    accepted: Vec<String>,
    now: Vec<String>,
}

impl Pictures {
    fn of(name: &str) -> Pictures {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/dashboard/pictures");
        let file = folder.join(format!("{name}.txt"));
        let text = fs::read_to_string(&file).unwrap_or_default();
        Pictures {
            file,
            accepted: text.trim_end().split("\n\n").map(|part| format!("{part}\n")).collect(),
            now: Vec::new(),
        }
    }

    /// Takes the next picture. Returns how it differs from the accepted one, if it does.
    fn compare(&mut self, page: &mut Page, title: &str, look: Look) -> Option<String> {
        let accepted = self.accepted.get(self.now.len()).cloned().unwrap_or_default();
        let is_update = std::env::var_os("UPDATE_EXPECT").is_some();
        let deadline = Instant::now() + PICTURE_PATIENCE;
        let mut before = String::new();
        loop {
            let now = format!("{title}\n{}", blocks(page, look));
            let found = difference(&now, &accepted);
            let is_still = is_update && now == before;
            if is_alike(found) || is_still || Instant::now() > deadline {
                if is_alike(found) {
                    // It is not written again.
                    self.now.push(accepted);
                    return None;
                }
                self.now.push(now);
                page.picture(&format!("access-{title}"));
                let (differing, all) = found;
                return (!is_update).then(|| {
                    format!("{title}: {differing} of {all} blocks differ from the accepted picture; look at target/dashboard/access-{title}.png, then set UPDATE_EXPECT=1")
                });
            }
            before = now;
            page.eval(DRAWN);
        }
    }

    fn write(&self) {
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            fs::create_dir_all(self.file.parent().expect("a folder")).expect("make the folder");
            fs::write(&self.file, self.now.join("\n")).expect("write the pictures");
        }
    }
}

/// What is wrong with the page that is open.
fn check(page: &mut Page, name: &str, complaints: &mut Vec<String>) {
    let mut pictures = Pictures::of(name);
    for (look_name, look) in LOOKS {
        let title = format!("{name}-{look_name}");
        page.look(look);
        page.eval(DRAWN);
        let width = page.eval("document.scrollingElement.scrollWidth");
        if width.as_u64() > Some(look.width.into()) {
            complaints.push(format!("{title}: it is {width} pixels wide"));
        }
        for barrier in barriers(page, look).as_array().into_iter().flatten() {
            complaints.push(format!("{title}: {}", barrier.as_str().unwrap_or_default()));
        }
        complaints.extend(pictures.compare(page, &title, look));
    }
    pictures.write();
    page.look(DESK);
}

#[test]
fn every_page_can_be_used_by_all_and_looks_as_accepted() {
    let target = Path::new(STILLGATE).ancestors().nth(2).expect("the folder of the profile's folder");
    let axe = fs::read_to_string(target.join(AXE));
    let axe = axe.unwrap_or_else(|error| panic!("{AXE}: {error}; `cargo xtask test` fetches it"));
    let gateway = gateway();
    let mut page = Page::open(DESK);
    page.send("Emulation.setTimezoneOverride", json!({ "timezoneId": "UTC" }));
    page.run_first(&format!("const ANSWERS = {ANSWERS};\n{STILL}"));
    page.run_first(&axe);
    let mut complaints = Vec::new();

    page.navigate(&format!("http://{}/ui/", gateway.admin_addr()));
    page.until("document.querySelector('#key')");
    check(&mut page, "sign-in", &mut complaints);
    sign_in(&mut page, &gateway);
    for path in PAGES {
        page.visit(path);
        page.until("!document.querySelector('main [aria-busy]')");
        let name = path[1..].split('?').next().unwrap_or_default().replace('/', "-");
        check(&mut page, &name, &mut complaints);
        page.assert_calm(path);
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
