//! Expressions of templates: the subset of Lua's that needs only values.
//!
//! ```text
//!  or  and  < > <= >= ~= ==  ..  + -  * / %  not # -      from the weakest; all as in Lua
//!  nil  true  false  12.5  "text"  'text'  (expression)
//!  name { .name | ["name"] | [number] }                   a field; numbers count from 1
//!  _body  _ctx.var.NAME  _escape_json(…)  _escape_xml(…)  tonumber(…)  tostring(…)
//! ```
//!
//! Functions of Lua are refused when the configuration is read. Calling a field is an error of the request, as in
//! APISIX.

use stillgate_route::{Variable, VariableError};

/// A parsed expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expression {
    Nil,
    Bool(bool),
    Number(f64),
    Text(String),
    Body,
    /// Index into the list.
    Variable(usize),
    Field(Vec<PathStep>),
    Call(TemplateFunction, Box<Expression>),
    /// A call of a field, which always fails.
    CallOf(Vec<PathStep>),
    Not(Box<Expression>),
    Negated(Box<Expression>),
    Length(Box<Expression>),
    Binary(Operator, Box<[Expression; 2]>),
}

/// A step to a field.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum PathStep {
    Name(String),
    /// Counted from 1.
    Index(usize),
}

/// A function that can be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TemplateFunction {
    EscapeJson,
    EscapeXml,
    ToNumber,
    ToString,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Or,
    And,
    Less,
    Greater,
    LessOrEqual,
    GreaterOrEqual,
    Different,
    Equal,
    Concatenate,
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
}

/// Operators by precedence, weakest first; a longer operator before its prefixes.
const LEVELS: [&[(&str, Operator)]; 6] = [
    &[("or", Operator::Or)],
    &[("and", Operator::And)],
    &[
        ("<=", Operator::LessOrEqual),
        (">=", Operator::GreaterOrEqual),
        ("~=", Operator::Different),
        ("==", Operator::Equal),
        ("<", Operator::Less),
        (">", Operator::Greater),
    ],
    &[("..", Operator::Concatenate)],
    &[("+", Operator::Add), ("-", Operator::Subtract)],
    &[("*", Operator::Multiply), ("/", Operator::Divide), ("%", Operator::Modulo)],
];

const FUNCTIONS: [(&str, TemplateFunction); 4] = [
    ("_escape_json", TemplateFunction::EscapeJson),
    ("_escape_xml", TemplateFunction::EscapeXml),
    ("tonumber", TemplateFunction::ToNumber),
    ("tostring", TemplateFunction::ToString),
];

/// Words of Lua, and its globals: they are not fields.
const LUA: [&str; 34] = [
    "_multipart",
    "assert",
    "bit",
    "break",
    "coroutine",
    "do",
    "else",
    "elseif",
    "end",
    "error",
    "for",
    "function",
    "if",
    "in",
    "io",
    "ipairs",
    "local",
    "math",
    "next",
    "ngx",
    "os",
    "pairs",
    "pcall",
    "print",
    "repeat",
    "require",
    "return",
    "select",
    "setmetatable",
    "string",
    "table",
    "then",
    "type",
    "while",
];

/// Most levels of nested expressions.
const DEPTH_MAX: usize = 32;

/// Parses the expressions of one template.
pub(super) struct ExpressionParser<'u> {
    /// The variables used by `_ctx.var`.
    pub(super) variables: Vec<Variable>,
    unknown: &'u mut dyn FnMut(VariableError),
}

impl<'u> ExpressionParser<'u> {
    pub(super) fn new(unknown: &'u mut dyn FnMut(VariableError)) -> ExpressionParser<'u> {
        ExpressionParser { variables: Vec::new(), unknown }
    }

    /// Parses a text that is one expression; the error says what is wrong with it.
    pub(super) fn whole(&mut self, text: &str) -> Result<Expression, String> {
        let mut cursor = ExpressionCursor { text: text.trim(), whole: text.trim() };
        let value = self.level(&mut cursor, 0, 0)?;
        if cursor.text.is_empty() { Ok(value) } else { Err(cursor.refusal()) }
    }

    /// Parses the operands and operators of a level.
    fn level(&mut self, cursor: &mut ExpressionCursor<'_>, level: usize, depth: usize) -> Result<Expression, String> {
        if depth > DEPTH_MAX {
            return Err(cursor.refusal());
        }
        let Some(operators) = LEVELS.get(level) else { return self.unary(cursor, depth) };
        let mut left = self.level(cursor, level + 1, depth)?;
        let mut count = 0;
        while let Some(operator) = cursor.operator(operators) {
            count += 1;
            // Each is nested in the next.
            if count > DEPTH_MAX {
                return Err(cursor.refusal());
            }
            let right = match operator {
                // To the right: `a .. (b .. c)`.
                Operator::Concatenate => self.level(cursor, level, depth + 1)?,
                _ => self.level(cursor, level + 1, depth)?,
            };
            left = Expression::Binary(operator, Box::new([left, right]));
        }
        Ok(left)
    }

    fn unary(&mut self, cursor: &mut ExpressionCursor<'_>, depth: usize) -> Result<Expression, String> {
        if depth > DEPTH_MAX {
            return Err(cursor.refusal());
        }
        if cursor.take_word("not") {
            return Ok(Expression::Not(Box::new(self.unary(cursor, depth + 1)?)));
        }
        if cursor.take("#") {
            return Ok(Expression::Length(Box::new(self.unary(cursor, depth + 1)?)));
        }
        if cursor.take("-") {
            return Ok(Expression::Negated(Box::new(self.unary(cursor, depth + 1)?)));
        }
        self.term(cursor, depth)
    }

    fn term(&mut self, cursor: &mut ExpressionCursor<'_>, depth: usize) -> Result<Expression, String> {
        if let Some(text) = cursor.literal()? {
            return Ok(Expression::Text(text));
        }
        if let Some(number) = cursor.number() {
            return Ok(Expression::Number(number));
        }
        if cursor.take("(") {
            let inner = self.level(cursor, 0, depth + 1)?;
            return if cursor.take(")") { Ok(inner) } else { Err(cursor.refusal()) };
        }
        let name = cursor.name().ok_or_else(|| cursor.refusal())?;
        if let Some((_, function)) = FUNCTIONS.iter().find(|(known, _)| *known == name) {
            let argument = match cursor.take("(") {
                true => self.level(cursor, 0, depth + 1)?,
                false => return Err(cursor.refusal()),
            };
            return match cursor.take(")") {
                true => Ok(Expression::Call(*function, Box::new(argument))),
                false => Err(cursor.refusal()),
            };
        }
        match name {
            "nil" => Ok(Expression::Nil),
            "true" => Ok(Expression::Bool(true)),
            "false" => Ok(Expression::Bool(false)),
            "_body" => Ok(Expression::Body),
            "_ctx" => self.variable(cursor),
            "context" => Ok(Expression::Field(cursor.steps()?)),
            "and" | "or" | "not" => Err(cursor.refusal()),
            name if LUA.contains(&name) => Err(cursor.refusal()),
            name => {
                let mut steps = vec![PathStep::Name(name.to_owned())];
                steps.extend(cursor.steps()?);
                match cursor.take("(") {
                    true => self.call(cursor, steps, depth),
                    false => Ok(Expression::Field(steps)),
                }
            }
        }
    }

    fn variable(&mut self, cursor: &mut ExpressionCursor<'_>) -> Result<Expression, String> {
        let steps = cursor.steps()?;
        let [PathStep::Name(var), PathStep::Name(name)] = &steps[..] else { return Err(cursor.refusal()) };
        if var != "var" {
            return Err(cursor.refusal());
        }
        match Variable::parse_late(name) {
            Ok(variable) => {
                self.variables.push(variable);
                Ok(Expression::Variable(self.variables.len() - 1))
            }
            Err(error) => {
                (self.unknown)(error);
                Ok(Expression::Nil)
            }
        }
    }

    /// Parses the arguments of a call of a field, which are ignored.
    fn call(
        &mut self,
        cursor: &mut ExpressionCursor<'_>,
        steps: Vec<PathStep>,
        depth: usize,
    ) -> Result<Expression, String> {
        if !cursor.take(")") {
            loop {
                self.level(cursor, 0, depth + 1)?;
                if cursor.take(")") {
                    break;
                }
                if !cursor.take(",") {
                    return Err(cursor.refusal());
                }
            }
        }
        Ok(Expression::CallOf(steps))
    }
}

/// Whether a text is a valid field name.
pub(super) fn is_name(text: &str) -> bool {
    let mut cursor = ExpressionCursor { text, whole: text };
    cursor.name().is_some_and(|name| name == text && !LUA.contains(&name))
}

/// The unread part of an expression.
struct ExpressionCursor<'a> {
    text: &'a str,
    whole: &'a str,
}

impl<'a> ExpressionCursor<'a> {
    fn refusal(&self) -> String {
        format!(
            "{:?} needs Lua, which is not supported; fields, texts, numbers, operators, _body, _ctx.var, _escape_…, \
             tonumber and tostring are",
            self.whole
        )
    }

    fn take(&mut self, sign: &str) -> bool {
        match self.text.trim_start().strip_prefix(sign) {
            Some(rest) => {
                self.text = rest.trim_start();
                true
            }
            None => false,
        }
    }

    /// Takes a word that is not the beginning of a longer one.
    fn take_word(&mut self, word: &str) -> bool {
        let rest = self.text.trim_start().strip_prefix(word);
        let Some(rest) = rest.filter(|rest| !rest.bytes().next().is_some_and(is_name_byte)) else { return false };
        self.text = rest.trim_start();
        true
    }

    fn operator(&mut self, operators: &[(&str, Operator)]) -> Option<Operator> {
        let is_word = |sign: &str| sign.as_bytes()[0].is_ascii_alphabetic();
        let found =
            operators.iter().find(|(sign, _)| if is_word(sign) { self.take_word(sign) } else { self.take(sign) });
        found.map(|(_, operator)| *operator)
    }

    fn name(&mut self) -> Option<&'a str> {
        let text = self.text.trim_start();
        let end = text.bytes().position(|byte| !is_name_byte(byte)).unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        if name.is_empty() || name.starts_with(|first: char| first.is_ascii_digit()) {
            return None;
        }
        self.text = rest;
        Some(name)
    }

    /// A decimal number.
    fn number(&mut self) -> Option<f64> {
        let text = self.text.trim_start();
        let digits = |text: &str| text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
        let mut end = digits(text);
        if end == 0 {
            return None;
        }
        // `1..2` joins two numbers.
        if text[end..].starts_with('.') && !text[end..].starts_with("..") {
            end += 1 + digits(&text[end + 1..]);
        }
        let (number, rest) = text.split_at(end);
        if rest.bytes().next().is_some_and(is_name_byte) {
            return None;
        }
        self.text = rest.trim_start();
        number.parse().ok()
    }

    /// A text in quotes.
    fn literal(&mut self) -> Result<Option<String>, String> {
        let text = self.text.trim_start();
        let Some(quote) = text.chars().next().filter(|first| matches!(first, '"' | '\'')) else { return Ok(None) };
        let (mut out, mut chars) = (String::new(), text[1..].char_indices());
        while let Some((at, char)) = chars.next() {
            match char {
                '\\' => match chars.next() {
                    Some((_, 'n')) => out.push('\n'),
                    Some((_, 't')) => out.push('\t'),
                    Some((_, sign @ ('\\' | '"' | '\''))) => out.push(sign),
                    _ => return Err(self.refusal()),
                },
                char if char == quote => {
                    self.text = text[at + 2..].trim_start();
                    return Ok(Some(out));
                }
                char => out.push(char),
            }
        }
        Err(self.refusal())
    }

    fn steps(&mut self) -> Result<Vec<PathStep>, String> {
        let mut steps = Vec::new();
        loop {
            if self.text.trim_start().starts_with("..") {
                return Ok(steps);
            }
            if self.take(".") {
                let name = self.name().ok_or_else(|| self.refusal())?;
                steps.push(PathStep::Name(name.to_owned()));
            } else if self.take("[") {
                steps.push(match self.literal()? {
                    Some(name) => PathStep::Name(name),
                    None => {
                        let end = self.text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(self.text.len());
                        let (digits, rest) = self.text.split_at(end);
                        self.text = rest;
                        PathStep::Index(digits.parse().map_err(|_| self.refusal())?)
                    }
                });
                if !self.take("]") {
                    return Err(self.refusal());
                }
            } else {
                self.text = self.text.trim_start();
                return Ok(steps);
            }
        }
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}
