//! Parses XML into fields. The sender chooses the structure of a document, so the cost is counted: its elements,
//! attributes and texts as steps, and the memory of the result.

use super::input::add_within;
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use serde_json::{Map, Value as Json};
use stillgate_plugin_api::json::Budget;

/// Most levels of nested elements.
const DEPTH_MAX: usize = 128;
/// Most attributes of one element.
const ATTRIBUTES_MAX: usize = 1024;
/// Most steps of one document: elements, attributes, texts, entities, comments, and comparisons of names.
const STEPS_MAX: usize = 500_000;
/// Number of name comparisons that cost as much as another step.
const COMPARISONS_A_STEP: usize = 16;

/// Parses elements by their names without prefix: one with text only is that text, one with attributes has them under
/// `_attr` and its text as the first item; several of one name are a list. The document's own entities are refused.
pub(super) fn fields(body: &[u8], budget: &mut Budget) -> Result<Json, String> {
    XmlDocument::new(budget).read(body)
}

/// A partly parsed document.
struct XmlDocument<'b> {
    budget: &'b mut Budget,
    steps_left: usize,
    comparisons: usize,
    /// The root, and the open elements.
    open: Vec<Element>,
}

#[derive(Default)]
struct Element {
    name: String,
    children: Map<String, Json>,
    attributes: Map<String, Json>,
    text: String,
}

impl XmlDocument<'_> {
    fn new(budget: &mut Budget) -> XmlDocument<'_> {
        XmlDocument { budget, steps_left: STEPS_MAX, comparisons: 0, open: vec![Element::default()] }
    }

    fn read(&mut self, body: &[u8]) -> Result<Json, String> {
        let mut reader = Reader::from_reader(body);
        while self.take(reader.read_event().map_err(|error| error.to_string())?)? {
            self.step()?;
        }
        match self.open.pop() {
            Some(root) if !root.children.is_empty() => Ok(Json::Object(root.children)),
            _ => Err("no element".to_owned()),
        }
    }

    fn step(&mut self) -> Result<(), String> {
        self.steps(1)
    }

    fn steps(&mut self, count: usize) -> Result<(), String> {
        let left = self.steps_left.checked_sub(count);
        self.steps_left = left.ok_or_else(|| format!("more than {STEPS_MAX} parts"))?;
        Ok(())
    }

    /// Fails if two of the names are equal. They are sorted: comparing all pairs would be quadratic.
    fn check_unique(&mut self, names: &mut [&[u8]]) -> Result<(), String> {
        let before = self.comparisons;
        names.sort_unstable_by(|a, b| {
            self.comparisons += 1;
            a.cmp(b)
        });
        self.steps((self.comparisons - before) / COMPARISONS_A_STEP)?;
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("the attribute {:?} is given twice", String::from_utf8_lossy(pair[0]))),
            None => Ok(()),
        }
    }

    /// Processes the next event; `false`: that was the end.
    fn take(&mut self, event: Event<'_>) -> Result<bool, String> {
        match event {
            Event::Start(start) => {
                if self.open.len() > DEPTH_MAX {
                    return Err(format!("more than {DEPTH_MAX} elements inside one another"));
                }
                let element = self.begin(&start)?;
                self.open.push(element);
            }
            Event::Empty(start) => {
                let element = self.begin(&start)?;
                self.end(element)?;
            }
            Event::End(_) => match self.open.pop() {
                Some(element) if !self.open.is_empty() => self.end(element)?,
                _ => return Err("an end without a beginning".to_owned()),
            },
            Event::Text(text) => self.text(&text.decode().map_err(|error| error.to_string())?)?,
            Event::CData(text) => self.text(&text.decode().map_err(|error| error.to_string())?)?,
            Event::GeneralRef(reference) => {
                let name = reference.decode().map_err(|error| error.to_string())?;
                let character = reference.resolve_char_ref().map_err(|error| error.to_string())?;
                match (character, quick_xml::escape::resolve_predefined_entity(&name)) {
                    (Some(character), _) => self.text(character.encode_utf8(&mut [0; 4]))?,
                    (None, Some(text)) => self.text(text)?,
                    (None, None) => return Err(format!("the entity {name:?} is not known")),
                }
            }
            Event::Eof if self.open.len() == 1 => return Ok(false),
            Event::Eof => return Err("an element without an end".to_owned()),
            Event::Decl(_) | Event::Comment(_) | Event::PI(_) | Event::DocType(_) => {}
        }
        Ok(true)
    }

    fn text(&mut self, text: &str) -> Result<(), String> {
        // It may be copied once more where it ends.
        self.budget.take(2 * text.len()).map_err(|exhausted| exhausted.to_string())?;
        if let Some(element) = self.open.last_mut() {
            element.text.push_str(text);
        }
        Ok(())
    }

    fn begin(&mut self, start: &BytesStart<'_>) -> Result<Element, String> {
        let mut attributes = Map::new();
        let mut names: Vec<&[u8]> = Vec::new();
        // The reader's own check compares each name with all before it.
        for attribute in start.attributes().with_checks(false) {
            let attribute = attribute.map_err(|error| error.to_string())?;
            self.step()?;
            names.push(attribute.key.into_inner());
            if names.len() > ATTRIBUTES_MAX {
                return Err(format!("an element with more than {ATTRIBUTES_MAX} attributes"));
            }
            let value = attribute.unescape_value().map_err(|error| error.to_string())?;
            let name = local_name(attribute.key.local_name().as_ref());
            let table = if attributes.is_empty() { self.budget.take_table() } else { Ok(()) };
            let taken = table.and_then(|()| self.budget.take_entry(&name)).and_then(|()| self.budget.take_value());
            taken.and_then(|()| self.budget.take(value.len())).map_err(|exhausted| exhausted.to_string())?;
            attributes.insert(name, Json::String(value.into_owned()));
        }
        self.check_unique(&mut names)?;
        let name = local_name(start.local_name().as_ref());
        Ok(Element { name, attributes, ..Element::default() })
    }

    /// An element has ended: it becomes a field of its parent.
    fn end(&mut self, element: Element) -> Result<(), String> {
        let (name, json) = element.into_json();
        let Some(parent) = self.open.last_mut() else { return Err("an end without a beginning".to_owned()) };
        // Plus an object, as its children and attributes are counted as entries.
        let taken = self.budget.take_value();
        let added = taken.and_then(|()| add_within(self.budget, &mut parent.children, name, json));
        added.map_err(|exhausted| exhausted.to_string())
    }
}

fn local_name(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

impl Element {
    fn into_json(self) -> (String, Json) {
        let Element { name, mut children, attributes, text } = self;
        let text = text.trim();
        if children.is_empty() && attributes.is_empty() {
            return (name, Json::String(text.to_owned()));
        }
        if children.is_empty() && !text.is_empty() {
            // As a list, so that `[1]` is the text.
            return (name, Json::Array(vec![Json::String(text.to_owned())]));
        }
        if !attributes.is_empty() {
            children.insert("_attr".to_owned(), Json::Object(attributes));
        }
        (name, Json::Object(children))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    fn read(body: &str) -> Result<String, String> {
        fields(body.as_bytes(), &mut Budget::of_body(0)).map(|json| json.to_string())
    }

    /// The cost of a document.
    #[derive(Debug)]
    struct Work {
        steps: usize,
        comparisons: usize,
        /// Total of all allocations: repeated copying shows here.
        bytes: usize,
    }

    fn work_of(body: &str) -> Work {
        let mut budget = Budget::of_body(0);
        let mut document = XmlDocument::new(&mut budget);
        let mut result = Err(String::new());
        let allocated = allocation_counter::measure(|| result = document.read(body.as_bytes()));
        assert!(result.is_ok(), "{}: {result:?}", &body[..40]);
        let bytes = usize::try_from(allocated.bytes_total).unwrap();
        Work { steps: STEPS_MAX - document.steps_left, comparisons: document.comparisons, bytes }
    }

    #[test]
    fn attributes_are_read_and_bounded() {
        assert_eq!(read("<a b='1' c='&lt;'/>").as_deref(), Ok(r#"{"a":{"_attr":{"b":"1","c":"<"}}}"#));
        assert_eq!(read("<a b='1' b='2'/>"), Err("the attribute \"b\" is given twice".to_owned()));
        assert_eq!(read("<a x:b='1' y:b='2'/>").as_deref(), Ok(r#"{"a":{"_attr":{"b":"2"}}}"#));
        let with = |count: usize| {
            let attributes: String = (0..count).map(|n| format!(" a{n}='{n}'")).collect();
            format!("<a{attributes}/>")
        };
        assert!(read(&with(ATTRIBUTES_MAX)).is_ok());
        assert_eq!(
            read(&with(ATTRIBUTES_MAX + 1)),
            Err(format!("an element with more than {ATTRIBUTES_MAX} attributes"))
        );
    }

    #[test]
    fn parts_are_bounded() {
        for part in ["<a/>", "<!---->", "<?a?>", "&lt;"] {
            let body = format!("<r>{}</r>", part.repeat(STEPS_MAX + 1));
            let error = read(&body).unwrap_err();
            let is_bounded = error.contains("parts") || error.contains("memory");
            assert!(is_bounded, "{part}: {error}");
        }
    }

    #[test]
    fn memory_is_bounded() {
        let documents = [
            format!("<r>{}</r>", "<a/>".repeat(20_000)),
            format!("<r>{}</r>", "<a><b/></a>".repeat(20_000)),
            format!("<r>{}</r>", "<a b=''/>".repeat(20_000)),
            format!("<r>{}</r>", "text".repeat(MIB / 4)),
            format!("<r>{}</r>", (0..20_000).map(|n| format!("<a{n}/>")).collect::<String>()),
        ];
        for document in documents {
            let read = fields(document.as_bytes(), &mut Budget::of_memory(MIB));
            assert!(read.is_err_and(|error| error.contains("memory")), "{}", &document[..40]);
        }
    }

    /// A document four times as large takes about four times the work, not sixteen times. (For two attributes with one
    /// name the error is ours, so the reader does not compare all pairs; see `attributes_are_read_and_bounded`.)
    #[test]
    fn work_grows_with_the_document() {
        let attributes = |count: usize| (0..count).map(|n| format!("a{n}='1' ")).collect::<String>();
        let of = |size: usize| {
            [
                format!("<r>{}</r>", (0..size).map(|n| format!("<a{n} b='{n}'/>")).collect::<String>()),
                format!("<r>{}</r>", "<a/>".repeat(size)),
                format!("<r {}/>", attributes(size)),
                format!("<r>{}</r>", format!("<a {}/>", attributes(64)).repeat(size / 64)),
                format!("<r>{}</r>", "<a>".repeat(100) + &"x ".repeat(16 * size) + &"</a>".repeat(100)),
                format!("<r>{}</r>", "<a>x</a>y&lt;".repeat(size)),
                format!("<r>{}</r>", "<![CDATA[x]]>".repeat(size)),
                format!("<!DOCTYPE a [{}]><r/>", "<!ENTITY a 'b'>".repeat(size)),
                format!("<r>{}</r>", ">".repeat(16 * size)),
                format!("<r><!--{}--></r>", ">".repeat(16 * size)),
            ]
        };
        // The larger one has as many attributes as an element may have.
        for (small, large) in of(ATTRIBUTES_MAX / 4).iter().zip(&of(ATTRIBUTES_MAX)) {
            let (small, large) = (work_of(small), work_of(large));
            assert!(large.steps <= 4 * small.steps + small.steps / 2, "{small:?} {large:?}");
            // Sorting takes a little more each.
            assert!(large.comparisons <= 7 * small.comparisons, "{small:?} {large:?}");
            // A growing buffer is copied when it is full, to twice the size; a list or a map may have grown once more.
            assert!(large.bytes <= 8 * small.bytes + 4096, "{small:?} {large:?}");
        }
        let one = work_of(&format!("<r {}/>", attributes(ATTRIBUTES_MAX)));
        assert!(one.comparisons >= ATTRIBUTES_MAX - 1, "comparisons are counted: {one:?}");
        assert!(one.steps > ATTRIBUTES_MAX + one.comparisons / COMPARISONS_A_STEP, "and are steps: {one:?}");
    }
}
