//! Conditions, the operators that join them, and recovery after an error.
//!
//! A stack of open parentheses takes the place of recursion. After an error in a condition, parsing continues at the
//! next `&&`, `||` or `)` of the same parentheses, with a placeholder for the lost condition.

use super::cursor::{Cursor, is_blank};
use super::error::{Excerpt, ExpectedPart, ExpressionError, ExpressionErrorKind as Kind, is_invisible, quoted, shown};
use super::{ERRORS_MAX, EXPRESSION_BYTES_MAX, Expression, NESTING_MAX, foreign};
use crate::condition::Condition;
use crate::regex::RegexTotal;
use std::ops::Range;

/// Longest hint: some repeat parts of the expression.
const HINT_CHARS_MAX: usize = 300;

/// The extent of text that cannot be understood; the error has been reported.
pub(super) enum ErrorExtent {
    /// This condition is lost; the next can be read.
    Condition,
    /// Everything that follows is lost.
    Rest,
}

pub(super) type Parsed<T> = Result<T, ErrorExtent>;

/// Parses an expression and collects its errors.
pub(super) struct Parser<'t> {
    pub(super) cursor: Cursor<'t>,
    pub(super) predicates: usize,
    pub(super) regexes: RegexTotal,
    groups: Vec<Group>,
    /// The parentheses of the functions around the cursor.
    pub(super) calls: usize,
    /// The last value that was read.
    pub(super) literal: Range<usize>,
    /// Whether a hint has listed the fields.
    pub(super) fields_listed: bool,
    mixed: Vec<(u32, u32)>,
    errors: Vec<ExpressionError>,
}

/// The conditions between two parentheses, or the whole expression.
#[derive(Default)]
struct Group {
    /// The opening parenthesis, `!` included; empty for the whole expression.
    opened: Range<usize>,
    negated: bool,
    /// Operands of `&&` that are complete.
    all: Vec<Condition>,
    /// Operands of `||` since the last `&&`: it binds tighter.
    any: Vec<Condition>,
    first: Option<LogicalOperator>,
    is_mixed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LogicalOperator {
    And,
    Or,
}

pub(super) fn parse(text: &str) -> Result<Expression, Vec<ExpressionError>> {
    let mut parser = Parser {
        cursor: super::cursor::Cursor::new(text),
        predicates: 0,
        regexes: RegexTotal::default(),
        groups: vec![Group::default()],
        calls: 0,
        literal: 0..0,
        fields_listed: false,
        mixed: Vec::new(),
        errors: Vec::new(),
    };
    let condition = match text.len() {
        0..=EXPRESSION_BYTES_MAX => parser.expression(),
        bytes => {
            let hint = "make it several routes, or one shorter regex";
            Err(parser.lose_rest(0..0, Kind::TooLong { bytes }, Some(hint.to_owned())))
        }
    };
    match condition {
        Ok(condition) if parser.errors.is_empty() => {
            Ok(Expression { text: text.into(), condition, mixed: parser.mixed })
        }
        _ => {
            parser.errors.sort_by_key(|error| (error.kind == Kind::TooManyErrors, error.span.start));
            Err(parser.errors)
        }
    }
}

impl Parser<'_> {
    pub(super) fn report(&mut self, span: Range<usize>, kind: Kind, hint: Option<String>) {
        let (kind, hint) = match self.errors.len() {
            0..ERRORS_MAX => (kind, hint),
            ERRORS_MAX => (Kind::TooManyErrors, None),
            // Nothing more is read once this condition is complete.
            _ => return,
        };
        let (line, column) = self.cursor.locate(span.start);
        let excerpt = Excerpt::new(self.cursor.text(), &span);
        let hint = hint.map(|hint| shown(&hint, HINT_CHARS_MAX));
        self.errors.push(ExpressionError { line, column, span, kind, hint, excerpt });
    }

    pub(super) fn lose(&mut self, span: Range<usize>, kind: Kind, hint: Option<String>) -> ErrorExtent {
        self.report(span, kind, hint);
        ErrorExtent::Condition
    }

    pub(super) fn lose_rest(&mut self, span: Range<usize>, kind: Kind, hint: Option<String>) -> ErrorExtent {
        self.report(span, kind, hint);
        ErrorExtent::Rest
    }

    /// The word at the cursor, for messages, and its place; the end is an empty one.
    pub(super) fn found_word(&self) -> (Range<usize>, String) {
        if self.cursor.rest().is_empty() {
            let end = self.cursor.end_of_last();
            return (end..end, "the end".to_owned());
        }
        let span = self.cursor.word();
        let found = quoted(&self.cursor.text()[span.clone()]);
        (span, found)
    }

    pub(super) fn report_expected(&mut self, expected: ExpectedPart, hint: Option<String>) -> ErrorExtent {
        let (span, found) = self.found_word();
        let odd = self.cursor.peek().filter(|c| !is_blank(*c) && (c.is_whitespace() || is_invisible(*c)));
        let hint = match odd {
            Some(c) => Some(format!(
                "the character U+{:04X}, which is invisible, is not a blank here: remove it",
                u32::from(c)
            )),
            None => hint,
        };
        self.lose(span, Kind::Expected { expected, found }, hint)
    }

    /// Counts a parenthesis that opens at the cursor.
    pub(super) fn count_nesting(&mut self) -> Parsed<()> {
        if self.groups.len() - 1 + self.calls < NESTING_MAX {
            return Ok(());
        }
        let at = self.cursor.at();
        let hint = "leave out parentheses that change nothing: `a || b` needs none within `&&`".to_owned();
        Err(self.lose_rest(at..at + 1, Kind::TooDeep, Some(hint)))
    }

    fn expression(&mut self) -> Parsed<Condition> {
        loop {
            match self.operand() {
                Ok(Some(condition)) => self.group().any.push(condition),
                // A parenthesis was opened.
                Ok(None) => continue,
                Err(ErrorExtent::Condition) => {
                    self.cursor.skip_condition(std::mem::take(&mut self.calls));
                    self.group().any.push(Condition::False);
                }
                Err(ErrorExtent::Rest) => return Err(ErrorExtent::Rest),
            }
            while !self.logical_operator()? {
                if let Some(condition) = self.closing()? {
                    return Ok(condition);
                }
            }
        }
    }

    fn group(&mut self) -> &mut Group {
        self.groups.last_mut().expect("the group of the whole expression is never closed but at the end")
    }

    /// A predicate; `None` where it is a parenthesis that opens.
    fn operand(&mut self) -> Parsed<Option<Condition>> {
        self.cursor.blanks();
        let begin = self.cursor.at();
        let negated = self.cursor.eat("!");
        self.cursor.blanks();
        if self.cursor.sees("(") {
            self.open(begin, negated)?;
            return Ok(None);
        }
        if negated {
            return self.misplaced_not(begin);
        }
        if let Some(word) = foreign::leading_not(self.cursor.rest()) {
            let hint = Some("write `!( … )`".to_owned());
            self.report(begin..begin + word.len(), Kind::Foreign { found: quoted(word) }, hint);
            self.cursor.eat(word);
            return self.operand_behind_not();
        }
        match self.cursor.peek() {
            Some(c) if c.is_ascii_alphabetic() => self.predicate().map(Some),
            _ => Err(self.no_operand()),
        }
    }

    fn open(&mut self, begin: usize, negated: bool) -> Parsed<()> {
        self.count_nesting()?;
        self.cursor.eat("(");
        let opened = begin..self.cursor.at();
        self.cursor.blanks();
        if self.cursor.sees(")") {
            self.cursor.eat(")");
            let hint = "leave them out, with the operator beside them".to_owned();
            let span = opened.start..self.cursor.at();
            return Err(self.lose(span, Kind::EmptyParentheses, Some(hint)));
        }
        self.groups.push(Group { opened, negated, ..Group::default() });
        Ok(())
    }

    /// Behind a `!` that is not followed by a parenthesis.
    fn misplaced_not(&mut self, begin: usize) -> Parsed<Option<Condition>> {
        if self.cursor.sees("!") {
            self.cursor.take_while(|c| c == '!' || is_blank(c));
            let span = begin..self.cursor.end_of_last();
            let found = quoted(&self.cursor.text()[span.clone()]);
            let hint = "two `!` undo each other: leave both out; else write `!(!( … ))`".to_owned();
            self.report(span, Kind::Foreign { found }, Some(hint));
        } else {
            let found = match self.cursor.peek() {
                None => "the end".to_owned(),
                Some(_) => self.found_word().1,
            };
            let hint = "`!` is only allowed before parentheses: write `!( … )`".to_owned();
            self.report(begin..begin + 1, Kind::Expected { expected: ExpectedPart::Parenthesis, found }, Some(hint));
        }
        self.operand_behind_not()
    }

    /// Reads the operand behind a reported negation as if there were no negation.
    fn operand_behind_not(&mut self) -> Parsed<Option<Condition>> {
        self.cursor.blanks();
        if self.cursor.sees("(") {
            self.open(self.cursor.at(), false)?;
            return Ok(None);
        }
        match self.cursor.peek() {
            Some(c) if c.is_ascii_alphabetic() => self.predicate().map(Some),
            _ => Err(ErrorExtent::Condition),
        }
    }

    /// Removes the errors that were reported since there were `count` of them.
    pub(super) fn discard_errors(&mut self, count: usize) {
        self.errors.truncate(count);
    }

    pub(super) fn error_count(&self) -> usize {
        self.errors.len()
    }

    /// Whether a condition can end at the cursor, or a joining operator of another language follows.
    pub(super) fn condition_ends(&self) -> bool {
        let rest = self.cursor.rest().trim_start_matches(is_blank);
        rest.is_empty()
            || [")", "&&", "||"].iter().any(|end| rest.starts_with(end))
            || foreign::logical_operator(rest).is_some()
    }

    /// Reports the error where a condition should begin.
    fn no_operand(&mut self) -> ErrorExtent {
        let at = self.cursor.at();
        let before = self.cursor.end_of_last();
        let behind = ["&&", "||"].into_iter().find(|operator| self.cursor.text()[..before].ends_with(operator));
        if let Some(operator) = ["&&", "||"].into_iter().find(|operator| self.cursor.sees(operator)) {
            let hint = "remove it, or write a condition before it".to_owned();
            return self.lose(at..at + 2, Kind::MissingOperand { operator, behind: false }, Some(hint));
        }
        if self.cursor.rest().is_empty() || self.cursor.sees(")") {
            return match behind {
                Some(operator) => {
                    let hint = "remove it, or write a condition after it".to_owned();
                    self.lose(before - 2..before, Kind::MissingOperand { operator, behind: true }, Some(hint))
                }
                None if self.cursor.sees(")") => {
                    self.cursor.eat(")");
                    self.report_unopened(at);
                    ErrorExtent::Condition
                }
                None if before == 0 => {
                    self.lose_rest(0..0, Kind::Empty, Some("`http.path ^= \"/\"` holds for every request".to_owned()))
                }
                // Nothing follows an opening parenthesis, which is reported at the end.
                None => ErrorExtent::Condition,
            };
        }
        let hint = self.value_on_the_left();
        self.report_expected(ExpectedPart::Condition, Some(hint))
    }

    /// Reads `&&` or `||`, or its equivalent in other languages. Returns whether there was one.
    fn logical_operator(&mut self) -> Parsed<bool> {
        self.cursor.blanks();
        if self.errors.len() > ERRORS_MAX {
            return Err(ErrorExtent::Rest);
        }
        let at = self.cursor.at();
        let operator = if self.cursor.eat("&&") {
            LogicalOperator::And
        } else if self.cursor.eat("||") {
            LogicalOperator::Or
        } else if let Some((word, is_and)) = foreign::logical_operator(self.cursor.rest()) {
            let write = if is_and { "&&" } else { "||" };
            self.report(at..at + word.len(), Kind::Foreign { found: quoted(word) }, Some(format!("write `{write}`")));
            self.cursor.eat(word);
            if is_and { LogicalOperator::And } else { LogicalOperator::Or }
        } else {
            return Ok(false);
        };
        let group = self.group();
        if operator == LogicalOperator::And {
            let operand = join_operands(&mut group.any, Condition::Any);
            group.all.push(operand);
        }
        let first = *group.first.get_or_insert(operator);
        if first != operator && !group.is_mixed {
            group.is_mixed = true;
            let at = self.cursor.locate(at);
            self.mixed.push(at);
        }
        Ok(true)
    }

    /// A `)`, or the end, with which the condition is complete; or an error.
    fn closing(&mut self) -> Parsed<Option<Condition>> {
        let at = self.cursor.at();
        let inside = self.groups.len() > 1;
        if self.cursor.rest().is_empty() {
            if inside {
                let opened = self.group().opened.clone();
                let hint = match self.groups.len() - 2 {
                    0 => "write `)` where it ends".to_owned(),
                    others => format!("write `)` where it ends; {others} more before it are open too"),
                };
                let span = opened.end - 1..opened.end;
                return Err(self.lose_rest(span, Kind::Unclosed { opened: "(" }, Some(hint)));
            }
            return Ok(self.groups.pop().map(Group::complete));
        }
        if self.cursor.eat(")") {
            if inside {
                let closed = self.groups.pop().map_or(Condition::False, Group::complete);
                self.group().any.push(closed);
            } else {
                self.report_unopened(at);
                // The text behind it does not continue a condition, so it is skipped.
                if !self.condition_ends() {
                    self.cursor.skip_condition(std::mem::take(&mut self.calls));
                }
            }
            return Ok(None);
        }
        let hint = foreign::missing_logical_operator(self.cursor.text(), self.literal.clone(), at);
        let expected = if inside { ExpectedPart::LogicalOperatorOrClosing } else { ExpectedPart::LogicalOperatorOrEnd };
        let _reported = self.report_expected(expected, hint);
        self.cursor.skip_condition(std::mem::take(&mut self.calls));
        Ok(None)
    }

    /// Reports a `)` that closes nothing, but only the first: others often follow from it.
    fn report_unopened(&mut self, at: usize) {
        if !self.errors.iter().any(|error| error.kind == Kind::Unopened) {
            self.report(at..at + 1, Kind::Unopened, Some("leave it out, or open it before".to_owned()));
        }
    }
}

impl Group {
    fn complete(mut self) -> Condition {
        let last = join_operands(&mut self.any, Condition::Any);
        self.all.push(last);
        let all = join_operands(&mut self.all, Condition::All);
        if self.negated { Condition::Not(Box::new(all)) } else { all }
    }
}

/// A single operand is not wrapped.
fn join_operands(operands: &mut Vec<Condition>, join: fn(Vec<Condition>) -> Condition) -> Condition {
    match operands.len() {
        1 => operands.remove(0),
        _ => join(std::mem::take(operands)),
    }
}
