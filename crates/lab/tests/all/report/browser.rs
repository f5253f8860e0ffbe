//! Headless Chromium: the elements of a page, and the rendered picture.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use stillgate_testkit::{require_tool, run_tool};

/// A browser that takes longer hangs.
const SECONDS_MAX: &str = "1200";

/// Prints the elements of all pages, as JSON in base64, because the dump is escaped.
const FRAMES: &str = r#"<!DOCTYPE html><html lang="en"><body><p id="said"></p><script>
const loaded = url => new Promise(done => {
    const frame = document.createElement('iframe');
    [frame.width, frame.height] = [1280, 1400];
    frame.onload = () => done(frame.contentDocument.documentElement.outerHTML);
    frame.src = url;
    document.body.append(frame);
});
Promise.all(URLS.map(loaded)).then(all => {
    const bytes = new TextEncoder().encode(JSON.stringify(all));
    const text = Array.from(bytes, byte => String.fromCharCode(byte)).join('');
    document.getElementById('said').textContent = btoa(text);
});
</script></body></html>"#;

/// The page for the browser, with its width and colour scheme.
pub(crate) struct Browser<'a> {
    pub(crate) width: u32,
    pub(crate) dark: bool,
    pub(crate) page: &'a Path,
}

impl Browser<'_> {
    /// The page's elements when it is loaded and its scripts, if any, have run.
    ///
    /// # Panics
    /// If the console has any message: refused by the policy, not parsed, not found.
    #[track_caller]
    pub(crate) fn dom(&self) -> String {
        let output = self.run(&["--dump-dom", "--virtual-time-budget=4000"]);
        String::from_utf8(output).unwrap()
    }

    /// The elements of many pages, each in a frame of one: a browser takes longer to start than a page.
    ///
    /// # Panics
    /// As [`Browser::dom`].
    #[track_caller]
    pub(crate) fn doms(pages: &[PathBuf]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let urls: Vec<String> = pages.iter().map(|page| format!("file://{}", page.display())).collect();
        let html = FRAMES.replace("URLS", &serde_json::to_string(&urls).unwrap());
        let page = folder.path().join("frames.html");
        fs::write(&page, html).unwrap();
        let dom = Browser { width: 1280, dark: false, page: &page }.dom();
        let said = dom.split_once("<p id=\"said\">").unwrap().1.split_once("</p>").unwrap().0;
        serde_json::from_slice(&STANDARD.decode(said).unwrap()).unwrap()
    }

    /// The upper part of the rendered page.
    #[track_caller]
    pub(crate) fn screenshot(&self) -> Picture {
        let file = self.page.with_extension("png");
        self.run(&[&format!("--screenshot={}", file.display())]);
        Picture::decode(&fs::read(&file).unwrap())
    }

    /// The printed page.
    #[track_caller]
    pub(crate) fn printed(&self) -> Paper {
        let file = self.page.with_extension("pdf");
        self.run(&["--no-pdf-header-footer", &format!("--print-to-pdf={}", file.display())]);
        Paper::of(&fs::read(&file).unwrap())
    }

    #[track_caller]
    fn run(&self, arguments: &[&str]) -> Vec<u8> {
        require_tool("chromium", "chromium");
        let profile = tempfile::tempdir().unwrap();
        let url = format!("file://{}", self.page.display());
        let scheme = if self.dark { "0" } else { "1" };
        let settings = [
            format!("--blink-settings=preferredColorScheme={scheme}"),
            format!("--window-size={},1400", self.width),
            format!("--user-data-dir={}", profile.path().display()),
        ];
        // Tests of ours may run as root, where Chromium refuses its sandbox; containers have little shared memory.
        let always = [
            "--kill-after=5",
            SECONDS_MAX,
            "chromium",
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--allow-file-access-from-files",
            "--enable-logging=stderr",
            "--log-level=0",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
        ];
        let all: Vec<&str> = always
            .into_iter()
            .chain(settings.iter().map(String::as_str))
            .chain(arguments.iter().copied())
            .chain([&*url])
            .collect();
        let output = run_tool("timeout", "coreutils", &all);
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "chromium failed: {}\n{log}", output.status);
        let console: Vec<&str> = log.lines().filter(|line| line.contains("CONSOLE")).collect();
        assert!(console.is_empty(), "the console shows: {}", console.join("\n"));
        output.stdout
    }
}

/// A PDF as Chromium writes it: its texts are compressed, its objects are not.
pub(crate) struct Paper {
    /// All of it without the times of its creation.
    pub(crate) timeless: String,
}

impl Paper {
    fn of(pdf: &[u8]) -> Paper {
        assert!(pdf.starts_with(b"%PDF-"), "not a PDF");
        // One character per byte: everything that is compared and counted is ASCII.
        let text: String = pdf.iter().map(|&byte| char::from(byte)).collect();
        let dated = |line: &&str| ["/CreationDate", "/ModDate"].iter().any(|key| line.starts_with(key));
        Paper { timeless: text.split('\n').filter(|line| !dated(line)).collect::<Vec<_>>().join("\n") }
    }

    pub(crate) fn pages(&self) -> usize {
        self.lines("<</Type /Page")
    }

    /// Elements of a kind, for example `Table`, in the structure for screen readers: those that are shown on paper.
    pub(crate) fn elements(&self, kind: &str) -> usize {
        self.lines(&format!("/S /{kind}"))
    }

    fn lines(&self, wanted: &str) -> usize {
        self.timeless.split('\n').filter(|line| *line == wanted).count()
    }
}

/// Pixels of three bytes.
pub(crate) struct Picture {
    pub(crate) width: usize,
    pub(crate) pixels: Vec<[u8; 3]>,
}

impl Picture {
    /// Decodes the PNGs that Chromium writes: eight bits per channel, not interlaced.
    fn decode(png: &[u8]) -> Picture {
        let number = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap()) as usize;
        let (width, height) = (number(16), number(20));
        let channels = match (png[24], png[25]) {
            (8, 2) => 3,
            (8, 6) => 4,
            other => panic!("bit depth and colour type {other:?}"),
        };
        let (mut data, mut at) = (Vec::new(), 8);
        while at + 12 <= png.len() {
            let length = number(at);
            if &png[at + 4..at + 8] == b"IDAT" {
                data.extend_from_slice(&png[at + 8..at + 8 + length]);
            }
            at += length + 12;
        }
        let mut raw = Vec::new();
        ZlibDecoder::new(data.as_slice()).read_to_end(&mut raw).unwrap();
        let stride = width * channels;
        let mut before = vec![0u8; stride];
        let mut pixels = Vec::with_capacity(width * height);
        for line in raw.chunks_exact(stride + 1) {
            let decoded = unfilter(line[0], &line[1..], &before, channels);
            pixels.extend(decoded.chunks_exact(channels).map(|pixel| [pixel[0], pixel[1], pixel[2]]));
            before = decoded;
        }
        Picture { width, pixels }
    }

    /// Mean lightness, 0 to 1.
    pub(crate) fn lightness(&self) -> f64 {
        let sum: u64 = self.pixels.iter().flatten().map(|channel| u64::from(*channel)).sum();
        sum as f64 / (self.pixels.len() as f64 * 3.0 * 255.0)
    }

    /// The number of different colours.
    pub(crate) fn colours(&self) -> usize {
        let mut all = self.pixels.clone();
        all.sort_unstable();
        all.dedup();
        all.len()
    }
}

/// PNG specification, section 9: filter types for bytes.
fn unfilter(filter: u8, line: &[u8], before: &[u8], channels: usize) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::with_capacity(line.len());
    for (at, byte) in line.iter().enumerate() {
        let left = if at >= channels { out[at - channels] } else { 0 };
        let corner = if at >= channels { before[at - channels] } else { 0 };
        let up = before[at];
        let predicted = match filter {
            0 => 0,
            1 => left,
            2 => up,
            3 => u16::midpoint(u16::from(left), u16::from(up)) as u8,
            4 => paeth(left, up, corner),
            other => panic!("filter {other}"),
        };
        out.push(byte.wrapping_add(predicted));
    }
    out
}

fn paeth(left: u8, up: u8, corner: u8) -> u8 {
    let estimate = i16::from(left) + i16::from(up) - i16::from(corner);
    let distance = |value: u8| (estimate - i16::from(value)).abs();
    match (distance(left), distance(up), distance(corner)) {
        (a, b, c) if a <= b && a <= c => left,
        (_, b, c) if b <= c => up,
        _ => corner,
    }
}
