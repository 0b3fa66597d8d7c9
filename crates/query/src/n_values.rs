//! The codes of errors in the arguments of `$firstN`, `$lastN`, `$maxN` and `$minN`, which are the same
//! for the expressions and for the accumulators.

/// What is no document. The first two have a code of their own.
pub(crate) const fn not_object(operator: &str) -> u32 {
    match operator.as_bytes() {
        b"$firstN" | b"$lastN" => 5_787_801,
        _ => 5_787_900,
    }
}

pub(crate) const UNKNOWN: u32 = 5_787_901;
pub(crate) const MISSING_N: u32 = 5_787_906;
pub(crate) const MISSING_INPUT: u32 = 5_787_907;
