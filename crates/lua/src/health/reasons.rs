//! Reasons why LuaJIT does not compile code, in words: its reasons and instructions by their numbers.
//!
//! LuaJIT has its words in a Lua file that does not belong into a sandbox, and they are meant for its developers. The
//! numbers change with its version; tests compare those that can be provoked.

/// LuaJIT's instructions by their numbers (`lj_bc.h`).
const INSTRUCTIONS: &str = "ISLT ISGE ISLE ISGT ISEQV ISNEV ISEQS ISNES ISEQN ISNEN ISEQP ISNEP ISTC ISFC IST ISF ISTYPE ISNUM \
    MOV NOT UNM LEN ADDVN SUBVN MULVN DIVVN MODVN ADDNV SUBNV MULNV DIVNV MODNV ADDVV SUBVV MULVV DIVVV MODVV POW CAT KSTR \
    KCDATA KSHORT KNUM KPRI KNIL UGET USETV USETS USETN USETP UCLO FNEW TNEW TDUP GGET GSET TGETV TGETS TGETB TGETR TSETV TSETS \
    TSETB TSETM TSETR CALLM CALL CALLMT CALLT ITERC ITERN VARG ISNEXT RETM RET RET0 RET1 FORI JFORI FORL IFORL JFORL ITERL \
    IITERL JITERL LOOP ILOOP JLOOP JMP BNOT BAND BOR BXOR BSHL BSHR BSAR FUNCF IFUNCF JFUNCF FUNCV IFUNCV JFUNCV FUNCC FUNCCW";

/// The instruction that creates a closure.
pub(super) const FNEW: usize = 51;

/// Instructions that mark code that LuaJIT has given up.
const GIVEN_UP: [&str; 5] = ["IFORL", "IITERL", "ILOOP", "IFUNCF", "IFUNCV"];

/// A reason's name for metrics and scripts, and its meaning.
const REASONS: [(&str, &str); 35] = [
    ("error", "an error is thrown, or a profile or the watchdog looks in, while it is recorded"),
    ("too_short", "there is too little before a call that is not compiled"),
    ("too_long", "the recorded path is too long"),
    ("too_deep", "calls are nested too deeply"),
    ("snapshots", "the recorded path has too many branches"),
    ("blacklisted", "it calls what LuaJIT has given up before"),
    ("retry", "it is recorded again"),
    ("bytecode", "the bytecode is not compiled"),
    ("leaves_loop", "the loop ends while it is recorded"),
    ("inner_loop", "there is a loop within that repeats"),
    ("unroll_loop", "a loop is unrolled too often"),
    ("bad_type", "an argument has a type that is not compiled"),
    ("switched_off", "compiling is switched off for the function"),
    ("unroll_call", "calls are unrolled too often"),
    ("down_recursion", "it returns further than it began"),
    ("built_in", "this use of a built-in function is not compiled"),
    ("lower_frame", "it returns to where it was not called from"),
    ("nil_key", "a table is written with nil or NaN as key"),
    ("metamethod", "a metamethod is missing"),
    ("endless_index", "a look-up has no end"),
    ("mixed_table", "a table that is both list and map is made"),
    ("symbol", "a symbol of C is not known"),
    ("c_conversion", "a type of C is not converted"),
    ("c_call", "a function of C is not compiled"),
    ("guard", "a type changes while it is recorded"),
    ("loop_values", "too many values change in a loop"),
    ("type_changes", "a value's type changes with each turn of a loop"),
    ("no_memory", "there is no memory for machine code"),
    ("code_too_long", "its machine code is too long"),
    ("memory_full", "the memory for machine code is full"),
    ("spills", "too many values are used at once"),
    ("registers", "registers cannot be allocated"),
    ("operation", "an operation cannot be assembled"),
    ("shuffled", "values of a loop are exchanged in too many ways"),
    ("joined", "registers cannot be joined"),
];

/// The reason for numbers that this table does not have.
const UNKNOWN: (&str, &str) = ("other", "LuaJIT gives a reason that is not known here");

/// Reasons that a function call can cause.
const OF_CALLS: [&str; 6] = ["error", "too_short", "bad_type", "built_in", "c_conversion", "c_call"];

/// Reasons that also occur on the way to machine code.
const HARMLESS: [&str; 6] = ["blacklisted", "retry", "leaves_loop", "inner_loop", "unroll_loop", "lower_frame"];

/// The reason whose `detail` is the number of an instruction.
const BYTECODE: usize = 7;

/// The reason why a recording has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AbortReason(u8);

impl AbortReason {
    /// Number of reasons, including the unknown one.
    pub const COUNT: usize = REASONS.len() + 1;

    /// The reason for LuaJIT's number.
    pub(super) fn of(number: i64) -> AbortReason {
        let known = usize::try_from(number).ok().filter(|number| *number < REASONS.len());
        // There are 36.
        AbortReason(known.unwrap_or(REASONS.len()) as u8)
    }

    /// All reasons.
    pub fn all() -> impl Iterator<Item = AbortReason> {
        (0..AbortReason::COUNT as u8).map(AbortReason)
    }

    /// Its index among all.
    pub fn number(self) -> usize {
        usize::from(self.0)
    }

    /// Name for metrics and scripts.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// Text for people.
    pub fn text(self) -> &'static str {
        self.row().1
    }

    /// Whether the callee is the reason.
    pub(super) fn is_of_calls(self) -> bool {
        OF_CALLS.contains(&self.name())
    }

    /// Whether it also occurs if all is well: LuaJIT continues at another place.
    pub fn is_harmless(self) -> bool {
        HARMLESS.contains(&self.name())
    }

    fn row(self) -> (&'static str, &'static str) {
        REASONS.get(self.number()).copied().unwrap_or(UNKNOWN)
    }

    /// The instruction that a detail of this reason names.
    pub(super) fn instruction(self, detail: i64) -> Option<&'static str> {
        let number = usize::try_from(detail).ok().filter(|_| self.number() == BYTECODE)?;
        INSTRUCTIONS.split_ascii_whitespace().nth(number)
    }
}

/// The numbers of the instructions that mark code that LuaJIT has given up.
pub(super) fn given_up() -> impl Iterator<Item = usize> {
    let all = INSTRUCTIONS.split_ascii_whitespace().enumerate();
    all.filter(|(_, name)| GIVEN_UP.contains(name)).map(|(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_have_luajit_s_numbers() {
        let names: Vec<&str> = INSTRUCTIONS.split_ascii_whitespace().collect();
        assert_eq!((names.len(), names[50], names[FNEW]), (104, "UCLO", "FNEW"));
        assert_eq!(given_up().collect::<Vec<_>>(), [80, 83, 86, 97, 100]);
    }

    #[test]
    fn reasons_have_names_of_their_own() {
        let mut names: Vec<&str> = AbortReason::all().map(AbortReason::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), AbortReason::COUNT);
        assert_eq!(
            (AbortReason::of(7).name(), AbortReason::of(35).name(), AbortReason::of(-1).name()),
            ("bytecode", "other", "other")
        );
        assert_eq!((AbortReason::of(7).instruction(51), AbortReason::of(15).instruction(51)), (Some("FNEW"), None));
    }
}
