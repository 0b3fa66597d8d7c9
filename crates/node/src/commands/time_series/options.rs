//! `collMod` of a time-series collection: the span of its buckets, and when they go.

use banyan_document::time_series::{Granularity, TimeSeries};
use banyan_replication::time_series::OPTION;
use banyan_replication::write::validation::{ACTION, LEVEL, VALIDATOR};
use banyan_wire::CommandError;
use bson::{RawDocument, RawDocumentBuf, cstr};

use super::super::images::{IMAGES, RECORD_IMAGES};
use super::create::granularity;
use super::invalid;
use crate::context::CommandContext;
use crate::params::{self, Field};

const PARSER: &str = "collMod.timeseries";

/// Options that a time-series collection cannot have.
const REFUSED: &[&str] = &[VALIDATOR, LEVEL, ACTION, IMAGES, RECORD_IMAGES];

pub fn refuse_others(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    let fields = params::fields("collMod", ctx.body());
    let mut refused = fields.filter(|field| REFUSED.contains(&field.name) && !field.is_null());
    refused.next().map_or(Ok(()), |field| {
        Err(invalid(format!(
            "option not supported on a time-series collection: {}",
            field.name
        )))
    })
}

/// The granularity that is asked for, if one is.
pub fn asked(ctx: &CommandContext<'_>) -> Result<Option<Granularity>, CommandError> {
    match ctx.field(OPTION).filter(|field| !field.is_null()) {
        Some(field) => parse(field),
        None => Ok(None),
    }
}

/// The granularity that the option names, if it names one.
pub fn parse(field: Field<'_>) -> Result<Option<Granularity>, CommandError> {
    let mut given = params::given(PARSER, field.document()?, &["granularity"]);
    given.next().map(|field| granularity(field?)).transpose()
}

/// The options of the buckets with another granularity. Buckets that are there span no more than
/// those to come, so that what is found by their beginnings is found still.
pub fn with(
    options: &RawDocument,
    series: &TimeSeries,
    granularity: Granularity,
) -> Result<RawDocumentBuf, CommandError> {
    if granularity.span_s() < series.span_s {
        return Err(invalid(
            "Invalid transition for timeseries.granularity. Can only transition from 'seconds' to \
             'minutes' or 'minutes' to 'hours'.",
        ));
    }
    let coarser = TimeSeries {
        granularity: Some(granularity),
        span_s: granularity.span_s(),
        rounding_s: granularity.rounding_s(),
        ..series.clone()
    };
    let mut changed = RawDocumentBuf::new();
    for (name, value) in options.iter().flatten() {
        match name.as_str() == OPTION {
            true => changed.append(cstr!("timeseries"), coarser.to_document()),
            false => changed.append(name, value),
        }
    }
    Ok(changed)
}
