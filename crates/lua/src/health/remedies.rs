//! Alternatives to code that LuaJIT does not compile.

use super::Abort;

/// Keyed by the instruction.
const OF_INSTRUCTIONS: [(&str, &str, &str); 5] = [
    ("FNEW", "a function is made here", "make it once, outside of the function, and pass what it needs as arguments"),
    (
        "UCLO",
        "a function made here keeps a local variable",
        "make it once, outside, and pass the variable as an argument",
    ),
    ("VARG", "`...` is taken apart", "name the arguments"),
    ("ITERC", "a loop calls an iterator that is not compiled", "loop over an array: for at = 1, #list do"),
    ("ITERN", "`pairs` goes through a table", "keep an array beside it: for at = 1, #list do"),
];

/// Keyed by the called function.
const OF_CALLS: [(&str, &str); 12] = [
    ("string.gmatch", "use string.find with a position, or ngx.re.match"),
    ("string.gsub", "use ngx.re.gsub"),
    ("string.match", "use ngx.re.match"),
    ("string.find", "use ngx.re.find"),
    ("ngx.re.gmatch", "use ngx.re.match with a position"),
    ("next", "keep an array beside the table: for at = 1, #list do"),
    ("pairs", "keep an array beside the table: for at = 1, #list do"),
    ("core.json.encode", "encode once, outside of the loop"),
    ("core.json.decode", "decode once, outside of the loop"),
    ("table.sort", "sort once, where the list is made"),
    ("os.date", "use ngx.localtime or ngx.http_time, or call it once, outside of the loop"),
    ("pcall", "make the function that it calls once, outside"),
];

/// Keyed by the reason.
const OF_REASONS: [(&str, &str); 4] = [
    ("mixed_table", "keep what is a list and what is by name or by a large number in two tables"),
    ("type_changes", "give the value one type"),
    ("loop_values", "use fewer variables in the loop"),
    ("unroll_call", "use a loop in place of the recursion"),
];

/// The alternative to the code of an abort.
pub(super) fn of(abort: &Abort) -> Option<&'static str> {
    let by_instruction = || OF_INSTRUCTIONS.iter().find(|(name, ..)| abort.instruction == Some(name)).map(|row| row.2);
    let by_reason = || OF_REASONS.iter().find(|(name, _)| *name == abort.reason.name()).map(|row| row.1);
    of_call(&abort.called).or_else(by_instruction).or_else(by_reason)
}

/// What an instruction does, in terms of the language.
pub(super) fn meaning(instruction: &str) -> Option<&'static str> {
    OF_INSTRUCTIONS.iter().find(|(name, ..)| *name == instruction).map(|row| row.1)
}

/// The alternative to a call that is not compiled.
pub(super) fn of_call(called: &str) -> Option<&'static str> {
    OF_CALLS.iter().find(|(name, _)| *name == called).map(|row| row.1)
}
