//! `insert` into a time-series collection: measurements go into buckets.

use banyan_document::time_series::Measurement;
use banyan_replication::sessions::StatementOutcome;
use banyan_replication::time_series;
use banyan_replication::write::context::WriteContext;
use banyan_replication::write::measurements::{Added, Measurements};
use banyan_replication::write::staging::Staging;
use banyan_wire::{CommandError, ErrorCode};
use bson::RawDocument;

use super::super::table::CommandResult;
use super::super::write_report::{self, WriteReport, statement_ids};
use crate::context::CommandContext;

/// `name` is that of the collection.
pub async fn insert(
    ctx: &CommandContext<'_>,
    name: &str,
    documents: &[&RawDocument],
    mut report: WriteReport,
) -> CommandResult {
    let write_context = WriteContext {
        // What measurements become is what the validator of buckets asks for.
        bypass_validation: true,
        ..ctx.write_context()
    };
    let mut staging = super::open(write_context, name).await?;
    let collection = staging.collection.clone();
    let found = collection.and_then(|found| Some((time_series::of(&found)?, found)));
    let Some((series, collection)) = found else {
        return Err(CommandError::new(
            ErrorCode::NamespaceNotFound,
            "the collection was dropped",
        ));
    };
    let statements = statement_ids(ctx, documents.len())?;
    let mut measurements = Measurements::new(collection, series);
    for (at, document) in documents.iter().enumerate() {
        if report.is_over() {
            break;
        }
        write_report::look(ctx, at)?;
        let statement = statements.of(at);
        if staging.settled(statement).is_some() {
            report.n += 1;
            report.retried.push(statement);
            continue;
        }
        ctx.work.insert_tried.add(1);
        match add(&mut staging, &mut measurements, document).await {
            Ok(()) => {
                report.n += 1;
                staging.settle(statement, StatementOutcome::Insert);
            }
            Err(error) if write_report::ends_command(ctx, &error) => return Err(error),
            Err(error) => report.refuse(at, error),
        }
        if measurements.is_full(staging.unit.room()) {
            measurements.stage(&mut staging)?;
            staging.flush().await?;
        }
    }
    measurements.stage(&mut staging)?;
    staging.finish().await?;
    report.count(ctx);
    ctx.work
        .inserted
        .add(report.n - report.retried.len() as u64);
    Ok(report.reply(|_| {}))
}

async fn add(
    staging: &mut Staging<'_>,
    measurements: &mut Measurements,
    document: &RawDocument,
) -> Result<(), CommandError> {
    let series = measurements.series();
    let measurement = Measurement::of(document, series).map_err(|_| {
        let time = &series.time_field;
        CommandError::new(
            ErrorCode::BadValue,
            format!("'{time}' must be present and contain a valid BSON UTC datetime value"),
        )
    })?;
    loop {
        match measurements.add(staging, &measurement)? {
            Added::Done => return Ok(()),
            Added::Busy(latch) => {
                measurements.stage(staging)?;
                staging.wait_for(latch).await?;
            }
        }
    }
}
