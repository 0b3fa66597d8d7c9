//! The limits by their parameters.

/// What may be held, each in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Limit {
    Sort,
    Group,
    Window,
    Densify,
    /// The foreign documents of a `$lookup`.
    Lookup,
    /// What a `$lookup` finds for one document.
    LookupResult,
    FacetResult,
    // What an accumulator holds of one group.
    Push,
    AddToSet,
    TopN,
    /// All stages of an operation.
    Operation,
    /// All operations.
    Process,
}

impl Limit {
    pub(super) const COUNT: usize = Limit::Process as usize + 1;
}

/// A limit and the parameter that sets it.
#[derive(Debug)]
pub struct Row {
    pub parameter: &'static str,
    pub limit: Limit,
    pub default: i64,
    pub min: i64,
    pub max: i64,
}

/// Whether operations may use the disk that do not say so themselves.
pub const DISK_BY_DEFAULT: &str = "allowDiskUseByDefault";

/// What MongoDB lets a blocking stage hold.
pub(super) const STAGE_BYTES: i64 = 100 * 1024 * 1024;

const fn row(parameter: &'static str, limit: Limit, min: i64, max: i64) -> Row {
    Row {
        parameter,
        limit,
        default: STAGE_BYTES,
        min,
        max,
    }
}

const INT_MAX: i64 = i32::MAX as i64;

/// In the order of [`Limit`]. The last two are Banyan's own.
pub static LIMITS: &[Row; Limit::COUNT] = &[
    row(
        "internalQueryMaxBlockingSortMemoryUsageBytes",
        Limit::Sort,
        0,
        INT_MAX,
    ),
    row(
        "internalDocumentSourceGroupMaxMemoryBytes",
        Limit::Group,
        1,
        i64::MAX,
    ),
    row(
        "internalDocumentSourceSetWindowFieldsMaxMemoryBytes",
        Limit::Window,
        1,
        i64::MAX,
    ),
    row(
        "internalDocumentSourceDensifyMaxMemoryBytes",
        Limit::Densify,
        1,
        INT_MAX,
    ),
    row(
        "internalDocumentSourceLookupCacheSizeBytes",
        Limit::Lookup,
        0,
        INT_MAX,
    ),
    row(
        "internalLookupStageIntermediateDocumentMaxSizeBytes",
        Limit::LookupResult,
        16_793_600,
        i64::MAX,
    ),
    row(
        "internalQueryFacetMaxOutputDocSizeBytes",
        Limit::FacetResult,
        1,
        i64::MAX,
    ),
    row("internalQueryMaxPushBytes", Limit::Push, 1, INT_MAX),
    row(
        "internalQueryMaxAddToSetBytes",
        Limit::AddToSet,
        1,
        i64::MAX,
    ),
    row("internalQueryTopNAccumulatorBytes", Limit::TopN, 1, INT_MAX),
    Row {
        default: 5 * STAGE_BYTES,
        ..row(
            "operationMemoryMaxBytes",
            Limit::Operation,
            1 << 20,
            i64::MAX,
        )
    },
    // 0: half of the machine's memory.
    Row {
        default: 0,
        ..row("queryMemoryMaxBytes", Limit::Process, 0, i64::MAX)
    },
];

pub(super) fn bytes(value: i64) -> usize {
    usize::try_from(value.max(0)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_has_its_row() {
        for (at, row) in LIMITS.iter().enumerate() {
            assert_eq!(row.limit as usize, at, "{}", row.parameter);
        }
    }
}
