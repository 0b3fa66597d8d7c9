//! What a filter of measurements says of the buckets that they lie in.
//!
//! Conditions on metadata are conditions on the buckets themselves. Those on times bound the times
//! that a bucket may have, and with them its `_id`, in the order of which buckets lie. Those on other
//! fields bound the least and greatest values that it tells ([`measured`]).

mod measured;

use banyan_document::time_series::TimeSeries;
use banyan_document::time_series::bucket::id_seconds;
use banyan_document::{DocumentWriter, Path};
use bson::oid::ObjectId;
use bson::{DateTime, RawBson, RawDocumentBuf};

use crate::budget::Budget;
use crate::comparison::Comparison;
use crate::context::Context;
use crate::error::QueryError;
use crate::filter::{Filter, MatchNode, Predicate};

pub(crate) use measured::Measured;

/// A filter of measurements, divided.
pub struct BucketFilter {
    /// What a bucket meets in which any measurement is found.
    pub buckets: Filter,
    /// What measurements of such a bucket have to meet besides; `None`: all are found.
    pub measurements: Option<Filter>,
}

impl BucketFilter {
    pub fn of(
        filter: Filter,
        series: &TimeSeries,
        context: &Context,
    ) -> Result<BucketFilter, QueryError> {
        let collator = filter.collator().cloned();
        if filter.is_empty() {
            return Ok(BucketFilter {
                buckets: Filter::all_in(collator),
                measurements: None,
            });
        }
        let mut rename = |path: &Path, _: &Predicate| {
            let path = series.meta_path(&path.to_string())?;
            Path::parse(&path).ok()
        };
        let mut parts = Vec::new();
        let left = match filter.divide(&mut rename, &context.budget)? {
            Some(divided) => {
                parts.push(divided.moved.filter);
                divided.left.map(|_| filter)
            }
            None => Some(filter),
        };
        if let Some(filter) = &left {
            let measured = Measured {
                time_field: &series.time_field,
                meta_field: series.meta_field.as_deref(),
                span_s: series.span_s,
                collator: collator.as_ref(),
            };
            parts.extend(conditions(filter, &measured, &context.budget)?);
        }
        Ok(BucketFilter {
            buckets: Filter::conjunction(&parts, collator, &context.budget)?,
            measurements: left,
        })
    }
}

/// What buckets meet whose measurements may meet the filter, beside what it says of metadata; `None`:
/// nothing is known.
pub(crate) fn conditions(
    filter: &Filter,
    measured: &Measured<'_>,
    budget: &Budget,
) -> Result<Option<Filter>, QueryError> {
    let collator = measured.collator.cloned();
    let mut parts = Vec::new();
    if let Some(bounds) = time_bounds(filter, measured.time_field, measured.span_s) {
        let context = Context {
            collator: collator.clone(),
            budget: budget.clone(),
            ..Context::default()
        };
        parts.push(Filter::parse(&bounds, &context)?);
    }
    let told = measured.of_conjuncts(filter.conjuncts());
    if !told.is_empty() {
        parts.push(Filter::of(MatchNode::And(told), collator.clone(), budget)?);
    }
    match parts.is_empty() {
        true => Ok(None),
        false => Filter::conjunction(&parts, collator, budget).map(Some),
    }
}

/// The filter of a partial index over buckets, of one of measurements; an error says, in MongoDB's words,
/// what cannot be asked of buckets.
pub fn partial_filter(
    filter: &Filter,
    series: &TimeSeries,
    budget: &Budget,
) -> Result<Result<RawDocumentBuf, &'static str>, QueryError> {
    let measured = Measured {
        time_field: &series.time_field,
        meta_field: series.meta_field.as_deref(),
        span_s: series.span_s,
        collator: filter.collator(),
    };
    match measured.whole(filter.root()) {
        Ok(node) => {
            let filter = Filter::of(node, filter.collator().cloned(), budget)?;
            Ok(Ok(filter.to_document()))
        }
        Err(untold) => Ok(Err(untold.why)),
    }
}

/// Between which times measurements are asked for, in milliseconds. An end that is excluded is of no
/// measurement.
#[derive(Default)]
struct Times {
    from: Option<(i64, Excluded)>,
    to: Option<(i64, Excluded)>,
}

type Excluded = bool;

impl Times {
    fn from(&mut self, ms: i64, excluded: Excluded) {
        self.from = self.from.max(Some((ms, excluded)));
    }

    fn to(&mut self, ms: i64, excluded: Excluded) {
        // Of two equal ends the excluded one is the narrower.
        let narrower = |(known_ms, known): &(i64, Excluded)| (*known_ms, !known) <= (ms, !excluded);
        if !self.to.as_ref().is_some_and(narrower) {
            self.to = Some((ms, excluded));
        }
    }

    fn narrow(&mut self, predicate: &Predicate) {
        match predicate {
            // A time is one date and never missing, so both mean the same of it.
            Predicate::Compare(comparison, RawBson::DateTime(date))
            | Predicate::ExprCompare(comparison, RawBson::DateTime(date)) => {
                let ms = date.timestamp_millis();
                match comparison {
                    Comparison::Eq => {
                        self.from(ms, false);
                        self.to(ms, false);
                    }
                    Comparison::Gt => self.from(ms, true),
                    Comparison::Gte => self.from(ms, false),
                    Comparison::Lt => self.to(ms, true),
                    Comparison::Lte => self.to(ms, false),
                }
            }
            Predicate::In { values, patterns } if patterns.is_empty() => {
                let dates = values.iter().filter_map(|value| match value {
                    RawBson::DateTime(date) => Some(date.timestamp_millis()),
                    _ => None,
                });
                // Other values are no measurement's time.
                if let (Some(first), Some(last)) = (dates.clone().min(), dates.max()) {
                    self.from(first, false);
                    self.to(last, false);
                }
            }
            _ => {}
        }
    }
}

/// What buckets meet whose measurements may meet the filter, by its conditions on times; `None`: it
/// has none. A bucket holds no time that is its whole span or more behind its beginning.
fn time_bounds(filter: &Filter, time_field: &str, span_s: i64) -> Option<RawDocumentBuf> {
    let path = Path::parse(time_field).ok()?;
    if path.parts().len() != 1 || time_field.starts_with('$') {
        return None;
    }
    let mut times = Times::default();
    for node in filter.conjuncts() {
        if let MatchNode::Path {
            path: asked,
            predicate,
        } = node
            && *asked == path
        {
            times.narrow(predicate);
        }
    }
    if times.from.is_none() && times.to.is_none() {
        return None;
    }
    let span_ms = span_s.saturating_mul(1000);
    let begins_behind = times.from.map(|(ms, _)| ms.saturating_sub(span_ms));
    let mut out = DocumentWriter::new();
    out.begin_document("_id");
    if let Some(begin_ms) = begins_behind {
        out.append_oid("$gte", id_with(begin_ms, 0));
    }
    if let Some((ms, _)) = times.to {
        out.append_oid("$lte", id_with(ms, u8::MAX));
    }
    out.end();
    let date = DateTime::from_millis;
    out.begin_document(&format!("control.min.{time_field}"));
    if let Some(begin_ms) = begins_behind {
        out.append_date("$gt", date(begin_ms));
    }
    if let Some((ms, excluded)) = times.to {
        out.append_date(if excluded { "$lt" } else { "$lte" }, date(ms));
    }
    out.end();
    out.begin_document(&format!("control.max.{time_field}"));
    if let Some((ms, excluded)) = times.from {
        out.append_date(if excluded { "$gt" } else { "$gte" }, date(ms));
    }
    if let Some((ms, _)) = times.to {
        out.append_date("$lt", date(ms.saturating_add(span_ms)));
    }
    out.end();
    Some(out.finish())
}

/// The first or the last of the ids that say a time.
fn id_with(ms: i64, rest: u8) -> ObjectId {
    let mut bytes = [rest; 12];
    if let Some(seconds) = bytes.first_chunk_mut::<4>() {
        *seconds = id_seconds(ms).to_be_bytes();
    }
    ObjectId::from_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use banyan_document::time_series::Granularity;
    use bson::{RawDocument, rawdoc};

    use super::*;

    fn divided(filter: &RawDocument) -> (RawDocumentBuf, bool) {
        let series = TimeSeries {
            time_field: "t".to_owned(),
            meta_field: Some("m".to_owned()),
            granularity: Some(Granularity::Seconds),
            span_s: 3_600,
            rounding_s: 60,
        };
        let context = Context::default();
        let filter = Filter::parse(filter, &context).unwrap();
        let divided = BucketFilter::of(filter, &series, &context).unwrap();
        (
            divided.buckets.to_document(),
            divided.measurements.is_some(),
        )
    }

    #[test]
    fn conditions_on_metadata_are_those_of_buckets() {
        assert_eq!(divided(&rawdoc! {}), (rawdoc! {}, false));
        let (buckets, left) = divided(&rawdoc! { "m.a": 1 });
        assert_eq!((buckets, left), (rawdoc! { "meta.a": { "$eq": 1 } }, false));
        let (buckets, left) = divided(&rawdoc! { "m": "a", "x": 1 });
        let both = rawdoc! { "$and": [
            { "meta": { "$eq": "a" } },
            { "control.max.x": { "$_internalExprGte": 1 } },
            { "control.min.x": { "$_internalExprLte": 1 } },
        ] };
        assert_eq!((buckets, left), (both, true));
        // Another field, whose name begins alike.
        let (buckets, left) = divided(&rawdoc! { "mx": { "$gt": 1 } });
        let bounded = rawdoc! { "control.max.mx": { "$_internalExprGt": 1 } };
        assert_eq!((buckets, left), (bounded, true));
        // Either way has to be looked at.
        let (buckets, left) = divided(&rawdoc! { "$or": [{ "m": 1 }, { "x": { "$ne": 1 } }] });
        assert_eq!((buckets, left), (rawdoc! {}, true));
    }

    #[test]
    fn conditions_on_measurements_bound_the_values_of_buckets() {
        let told = |filter: RawDocumentBuf| divided(&filter).0;
        let below = rawdoc! { "control.min.x.y": { "$_internalExprLt": 5 } };
        assert_eq!(told(rawdoc! { "x.y": { "$lt": 5 } }), below);
        // The least and the greatest of each type.
        let ranges = rawdoc! { "$or": [
            { "$and": [
                { "control.max.x": { "$_internalExprGte": 1 } },
                { "control.min.x": { "$_internalExprLte": 3 } },
            ] },
            { "$and": [
                { "control.max.x": { "$_internalExprGte": "a" } },
                { "control.min.x": { "$_internalExprLte": "a" } },
            ] },
        ] };
        assert_eq!(told(rawdoc! { "x": { "$in": [3, 1, "a"] } }), ranges);
        let circle = rawdoc! { "$centerSphere": [[0, 0], 1] };
        let places = rawdoc! { "$_internalBucketGeoWithin": {
            "withinRegion": circle.clone(), "field": "l",
        } };
        assert_eq!(told(rawdoc! { "l": { "$geoWithin": circle } }), places);
        // Nothing is known of what is missing, of arrays and of what is negated.
        for filter in [
            rawdoc! { "x": null },
            rawdoc! { "x": [1] },
            rawdoc! { "x": { "$in": [1, null] } },
            rawdoc! { "x": { "$not": { "$gt": 1 } } },
            rawdoc! { "x": { "$exists": false } },
            rawdoc! { "x": { "$type": "string" } },
            rawdoc! { "$nor": [{ "x": 1 }] },
            rawdoc! { "$or": [{ "x": 1 }, { "y": null }] },
        ] {
            assert_eq!(told(filter), rawdoc! {});
        }
    }

    #[test]
    fn the_values_of_buckets_are_compared_in_the_order_of_all_values() {
        let context = Context::default();
        let matches = |filter: &RawDocument, bucket: &RawDocument| {
            let filter = Filter::parse(filter, &context).unwrap();
            filter.try_matches(bucket).unwrap()
        };
        let below = rawdoc! { "control.min.x": { "$_internalExprLt": 5 } };
        let with = |least: bson::RawBson| rawdoc! { "control": { "min": { "x": least } } };
        assert!(matches(&below, &with(4.into())));
        assert!(!matches(&below, &with(5.into())));
        // Not a number is the least number, and numbers come before strings.
        assert!(matches(&below, &with(f64::NAN.into())));
        assert!(!matches(&below, &with("a".into())));
        // What is or lies in an array is not known.
        let array: bson::RawArrayBuf = [9].into_iter().collect();
        assert!(matches(&below, &with(array.into())));
        assert!(matches(&below, &rawdoc! { "control": {} }));
        let above = rawdoc! { "control.max.x": { "$_internalExprGt": 5 } };
        assert!(!matches(&above, &rawdoc! { "control": {} }));
    }

    #[test]
    fn a_place_in_a_column_is_looked_for() {
        let context = Context::default();
        let asked = rawdoc! { "$_internalBucketGeoWithin": {
            "withinRegion": { "$centerSphere": [[0, 0], 0.1] }, "field": "a.l",
        } };
        let filter = Filter::parse(&asked, &context).unwrap();
        assert_eq!(filter.to_document(), asked);
        let found = |column: RawDocumentBuf| {
            let bucket = rawdoc! { "data": { "a": column } };
            filter.try_matches(&bucket).unwrap()
        };
        assert!(found(
            rawdoc! { "0": { "l": [90, 0] }, "3": { "l": [1, 1] } }
        ));
        assert!(!found(rawdoc! { "0": { "l": [90, 0] }, "3": 5 }));
        assert!(!found(rawdoc! {}));
    }

    #[test]
    fn the_narrowest_times_count() {
        let date = DateTime::from_millis;
        let times = rawdoc! { "$and": [
            { "t": { "$gte": date(5_000) } },
            { "t": { "$gt": date(5_000) } },
            { "t": { "$lte": date(9_000) } },
            { "t": { "$lt": date(9_000) } },
            { "t": { "$lt": date(9_001) } },
        ] };
        let filter = Filter::parse(&times, &Context::default()).unwrap();
        let bounds = time_bounds(&filter, "t", 3_600).unwrap();
        let max = bounds.get_document("control.max.t").unwrap();
        assert_eq!(
            max.to_owned(),
            rawdoc! { "$gt": date(5_000), "$lt": date(3_609_000) }
        );
        let min = bounds.get_document("control.min.t").unwrap();
        assert_eq!(
            min.to_owned(),
            rawdoc! { "$gt": date(-3_595_000), "$lt": date(9_000) }
        );
        let ids = bounds.get_document("_id").unwrap();
        assert_eq!(ids.get_object_id("$lte").unwrap().timestamp(), date(9_000));
        assert_eq!(ids.get_object_id("$gte").unwrap().timestamp(), date(0));
        assert_eq!(time_bounds(&filter, "x", 3_600), None);
    }
}
