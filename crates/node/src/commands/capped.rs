//! What a capped collection holds at most: how commands say it, how it is kept and shown.

use banyan_storage::Collection;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocument, RawDocumentBuf, cstr};

use super::coll_stats::number;
use crate::context::CommandContext;
use crate::params::Field;

/// 1 PB.
pub const SIZE_MAX: i64 = 1 << 50;
/// Sizes are multiples of this.
const SIZE_UNIT: i64 = 256;
/// Stands for any number of documents.
const MAX_UNLIMITED: i64 = i32::MAX as i64;

/// The two limits, where they are given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    pub size: Option<i64>,
    pub max: Option<i64>,
}

impl Limits {
    /// By fields of these names.
    fn parse(
        ctx: &CommandContext<'_>,
        size: &'static str,
        max: &'static str,
    ) -> Result<Limits, CommandError> {
        let given = |name| ctx.field(name).filter(|field| !field.is_null());
        Ok(Limits {
            size: given(size).map(parse_size).transpose()?,
            max: given(max).map(parse_max).transpose()?,
        })
    }

    /// Of `collMod`.
    pub fn of_change(ctx: &CommandContext<'_>) -> Result<Limits, CommandError> {
        Limits::parse(ctx, "cappedSize", "cappedMax")
    }

    pub fn is_none(&self) -> bool {
        *self == Limits::default()
    }

    /// Refuses to change the limits of what has none.
    pub fn check(&self, collection: &Collection) -> Result<(), CommandError> {
        if self.is_none() || collection.is_capped {
            return Ok(());
        }
        Err(CommandError::new(
            ErrorCode::InvalidOptions,
            "Collection must be capped.",
        ))
    }

    pub fn append(&self, options: &mut RawDocumentBuf) {
        options.append(cstr!("capped"), true);
        if let Some(size) = self.size {
            options.append(cstr!("size"), number(size));
        }
        if let Some(max) = self.max {
            options.append(cstr!("max"), number(max));
        }
    }

    /// The options of a capped collection with these limits in place of its own.
    pub fn over(&self, collection: &Collection) -> RawDocumentBuf {
        let own = collection.capped_limits();
        let limits = Limits {
            size: self.size.or(own.map(|own| own.bytes)),
            max: self.max.or(own.and_then(|own| own.documents)),
        };
        limits.among(&collection.options)
    }

    /// These options as those of a capped collection with these limits.
    pub fn among(&self, options: &RawDocument) -> RawDocumentBuf {
        let mut changed = RawDocumentBuf::new();
        self.append(&mut changed);
        for (name, value) in options.iter().flatten() {
            if !matches!(name.as_str(), "capped" | "size" | "max") {
                changed.append(name, value);
            }
        }
        changed
    }
}

/// What the fields that say a limit have to be.
pub fn check_form(field: Field<'_>) -> Result<(), CommandError> {
    match field.name {
        _ if field.is_null() => Ok(()),
        "size" | "cappedSize" => parse_size(field).map(drop),
        "max" | "cappedMax" => parse_max(field).map(drop),
        _ => Ok(()),
    }
}

/// The limits that a `create` gives; `None`: the collection is not to be capped.
pub fn of_create(ctx: &CommandContext<'_>) -> Result<Option<Limits>, CommandError> {
    let invalid = |why| Err(CommandError::new(ErrorCode::InvalidOptions, why));
    let is_capped = match ctx.field("capped") {
        Some(field) => field.bool()?,
        None => false,
    };
    let limits = Limits::parse(ctx, "size", "max")?;
    match (is_capped, limits) {
        (false, limits) if limits.is_none() => Ok(None),
        (false, _) => invalid(
            "the 'capped' field needs to be true when either the 'size' or 'max' fields are \
             present",
        ),
        (true, Limits { size: None, .. }) => {
            invalid("the 'size' field is required when 'capped' is true")
        }
        (true, limits) => Ok(Some(limits)),
    }
}

fn out_of_range(field: Field<'_>, bound: &str, value: i64) -> CommandError {
    CommandError::new(
        ErrorCode::Location(51024),
        format!(
            "BSON field '{}' value must be {bound}, actual value '{value}'",
            field.name
        ),
    )
}

fn parse_size(field: Field<'_>) -> Result<i64, CommandError> {
    match field.i64()? {
        small @ ..1 => Err(out_of_range(field, ">= 1", small)),
        large if large > SIZE_MAX => Err(out_of_range(field, &format!("<= {SIZE_MAX}"), large)),
        size => Ok(rounded(size)),
    }
}

/// No number of documents means any number of them.
fn parse_max(field: Field<'_>) -> Result<i64, CommandError> {
    match field.i64()? {
        ..1 => Ok(MAX_UNLIMITED),
        large if large > MAX_UNLIMITED => Err(out_of_range(field, "< 2147483648", large)),
        max => Ok(max),
    }
}

fn rounded(size: i64) -> i64 {
    (size + SIZE_UNIT - 1) / SIZE_UNIT * SIZE_UNIT
}

/// The size that a collection is to have that is made from another. These commands have words of
/// their own for what is wrong.
pub fn size_of_copy(ctx: &CommandContext<'_>) -> Result<i64, CommandError> {
    let bad = |why| Err(CommandError::new(ErrorCode::BadValue, why));
    match ctx.required("size")?.i64()? {
        ..0 => bad("size has to be >= 0"),
        large if large > SIZE_MAX => bad("size cannot exceed 1 PB"),
        0 => bad("invalid command spec"),
        size => Ok(rounded(size)),
    }
}
