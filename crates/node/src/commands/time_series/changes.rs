//! What updates and deletes of measurements do to their buckets.
//!
//! A statement finds buckets by what its filter says of them. A delete takes out of each the
//! measurements that meet the filter, or the first one that does if it is of one, and the bucket if none
//! is left. An update is one of metadata, which all measurements of a bucket have in common.

use banyan_document::Collator;
use banyan_document::time_series::{Bucket, Measurement, Rows, TimeSeries, index_keys};
use banyan_query::time_series::BucketFilter;
use banyan_query::{Context, Filter, Update, UpdateContext};
use banyan_replication::write::rewrite::{Outcome, Rewrite, Rewritten};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::invalid;
use crate::errors;

/// A delete of measurements: the buckets that it looks into, and what it does to them.
pub struct Delete {
    pub buckets: Filter,
    taken: Taken,
}

struct Taken {
    series: TimeSeries,
    /// `None`: all that lie in the buckets.
    measurements: Option<Filter>,
    multi: bool,
    /// The collection's, by which buckets know their least and greatest values.
    collator: Option<Collator>,
}

impl Delete {
    pub fn parse(
        filter: &RawDocument,
        multi: bool,
        series: &TimeSeries,
        context: &Context,
        collator: Option<&Collator>,
    ) -> Result<Delete, CommandError> {
        let filter = Filter::of_query(filter, context).map_err(errors::query)?;
        let divided = BucketFilter::of(filter, series, context).map_err(errors::query)?;
        Ok(Delete {
            buckets: divided.buckets,
            taken: Taken {
                series: series.clone(),
                measurements: divided.measurements,
                multi,
                collator: collator.cloned(),
            },
        })
    }

    /// How many measurements it may remove.
    pub fn most(&self) -> Option<u64> {
        (!self.taken.multi).then_some(1)
    }

    pub fn rewrite(&self) -> &dyn Rewrite {
        &self.taken
    }
}

impl Rewrite for Taken {
    fn rewrite(&self, before: &RawDocument) -> Result<Rewritten, CommandError> {
        let filter = self.measurements.as_ref();
        if self.multi && filter.is_none() {
            return Ok(Rewritten {
                matched: count(before, &self.series)?,
                record: Outcome::Gone,
            });
        }
        let parsed = Bucket::parse(before, &self.series);
        let mut left = parsed.ok_or_else(unreadable)?.emptied();
        let mut matched = 0;
        for row in rows(before, &self.series, |_| true)? {
            let is_taken = (self.multi || matched == 0)
                && filter
                    .map_or(Ok(true), |filter| filter.try_matches(&row))
                    .map_err(errors::query)?;
            if is_taken {
                matched += 1;
                continue;
            }
            let measurement = Measurement::of(&row, &self.series).map_err(|_| unreadable())?;
            left.add(&measurement, &self.series, self.collator.as_ref());
        }
        let record = match (matched, left.is_empty()) {
            (0, _) => Outcome::Same,
            (_, true) => Outcome::Gone,
            (_, false) => Outcome::Becomes(left.to_document()),
        };
        Ok(Rewritten { matched, record })
    }
}

/// The hint at an index over buckets, where one at an index over their measurements is another.
pub fn bucket_hint(hint: RawBsonRef<'_>, series: &TimeSeries) -> Option<RawDocumentBuf> {
    index_keys::hint_to_buckets(hint, &series.time_field, series.meta_field.as_deref())
}

/// An update of metadata: the buckets that it changes, and how.
pub struct MetaUpdate {
    pub buckets: Filter,
    changed: Changed,
}

struct Changed {
    series: TimeSeries,
    update: Update,
    context: UpdateContext,
}

/// A statement of an `update` as it is written.
#[derive(Clone, Copy)]
pub struct Statement<'a> {
    pub filter: &'a RawDocument,
    pub update: RawBsonRef<'a>,
    pub array_filters: &'a [&'a RawDocument],
    pub multi: bool,
    pub upsert: bool,
}

impl MetaUpdate {
    pub fn parse(
        statement: Statement<'_>,
        series: &TimeSeries,
        context: &Context,
        update_context: UpdateContext,
    ) -> Result<MetaUpdate, CommandError> {
        let Some(meta) = &series.meta_field else {
            return Err(invalid(
                "Cannot perform an update on a time-series collection that does not have a \
                 metaField",
            ));
        };
        if statement.upsert {
            return Err(invalid(
                "Cannot perform an upsert on a time-series collection",
            ));
        }
        if !statement.multi {
            return Err(invalid(
                "Cannot perform a non-multi update on a time-series collection",
            ));
        }
        let RawBsonRef::Document(update) = statement.update else {
            return Err(invalid(
                "Cannot perform an update on a time-series collection using a pipeline update",
            ));
        };
        let update = of_buckets(update, meta, series)?;
        let source = RawBsonRef::Document(&update);
        let update = Update::parse(source, statement.array_filters, context);
        let update = update.map_err(errors::query)?;
        let filter = Filter::of_query(statement.filter, context).map_err(errors::query)?;
        if filter.computes() {
            return Err(invalid(
                "Cannot use $expr when performing an update or delete on a time-series collection",
            ));
        }
        let divided = BucketFilter::of(filter, series, context).map_err(errors::query)?;
        if divided.measurements.is_some() {
            return Err(invalid(format!(
                "Cannot perform an update or delete on a time-series collection when querying on \
                 a field that is not the metaField '{meta}'"
            )));
        }
        Ok(MetaUpdate {
            buckets: divided.buckets,
            changed: Changed {
                series: series.clone(),
                update,
                context: update_context,
            },
        })
    }

    pub fn rewrite(&self) -> &dyn Rewrite {
        &self.changed
    }
}

impl Rewrite for Changed {
    fn rewrite(&self, before: &RawDocument) -> Result<Rewritten, CommandError> {
        let after = self.update.apply(before, &self.context);
        Ok(Rewritten {
            matched: count(before, &self.series)?,
            record: match after.map_err(errors::query)? {
                Some(after) => Outcome::Becomes(after),
                None => Outcome::Same,
            },
        })
    }
}

/// An update by operators, with the paths of metadata as they are in buckets.
fn of_buckets(
    update: &RawDocument,
    meta: &str,
    series: &TimeSeries,
) -> Result<RawDocumentBuf, CommandError> {
    let other_field = || {
        invalid(format!(
            "Cannot perform an update on a time-series collection which updates a field that is \
             not the metaField '{meta}'"
        ))
    };
    let mut out = banyan_document::DocumentWriter::new();
    for operator in banyan_document::elements(update) {
        if !operator.name().starts_with('$') {
            return Err(invalid(
                "Cannot perform an update on a time-series collection using a replacement document",
            ));
        }
        let RawBsonRef::Document(fields) = operator.value() else {
            // The parser tells what is wrong with it.
            out.append_element(&operator);
            continue;
        };
        out.begin_document(operator.name());
        for field in banyan_document::elements(fields) {
            let path = series.meta_path(field.name()).ok_or_else(other_field)?;
            match (operator.name(), field.value()) {
                ("$rename", RawBsonRef::String(to)) => {
                    let to = series.meta_path(to).ok_or_else(other_field)?;
                    out.append_str(&path, &to);
                }
                _ => out.append_element_as(&path, &field),
            }
        }
        out.end();
    }
    Ok(out.finish())
}

/// The measurements of a bucket.
fn rows<'b>(
    bucket: &'b RawDocument,
    series: &'b TimeSeries,
    wanted: impl Fn(&str) -> bool,
) -> Result<Rows<'b>, CommandError> {
    let meta = series.meta_field.as_deref();
    Rows::of(bucket, &series.time_field, meta, wanted).map_err(|_| unreadable())
}

fn count(bucket: &RawDocument, series: &TimeSeries) -> Result<u64, CommandError> {
    Ok(rows(bucket, series, |_| false)?.count() as u64)
}

fn unreadable() -> CommandError {
    CommandError::new(
        ErrorCode::BadValue,
        "a bucket of the collection is not one that this server has written",
    )
}
