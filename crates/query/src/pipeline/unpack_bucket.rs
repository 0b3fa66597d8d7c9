//! $_internalUnpackBucket: the measurements of the buckets of a time-series collection

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use banyan_document::time_series::{RowError, Rows, meta_path};
use banyan_document::{DocumentWriter, Number, elements, field, items};
use bson::{RawArray, RawBsonRef, RawDocument, RawDocumentBuf, cstr};

use super::dependencies::Dependencies;
use super::stage::{Changes, Division, Stage};
use super::stage_run::{Flow, Next, StageRun, Start};
use crate::budget::Budget;
use crate::context::Context;
use crate::error::QueryError;
use crate::expression::value::{error, type_name};
use crate::filter::Filter;
use crate::memory::{Holding, consumer};
use crate::metadata::Metadata;
use crate::time_series::{self, Measured};

pub(super) const NAME: &str = banyan_document::time_series::UNPACK_STAGE;

#[derive(Clone, Debug)]
pub struct UnpackBucket {
    time_field: String,
    meta_field: Option<String>,
    span_s: i64,
    choice: Option<Choice>,
    /// What the `$match` behind says of buckets stands before it.
    is_bounded: bool,
    /// Measurements are told how far away their buckets are, and what is so far away.
    hands_on_distances: bool,
}

/// The fields that measurements are to have.
#[derive(Clone, Debug)]
enum Choice {
    Only(BTreeSet<String>),
    AllBut(BTreeSet<String>),
}

pub(super) fn parse(
    value: RawBsonRef<'_>,
    _: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let RawBsonRef::Document(source) = value else {
        return error(
            5346500,
            format!(
                "{NAME} specification must be an object, got: {}",
                type_name(Some(value))
            ),
        );
    };
    let (mut time_field, mut meta_field, mut span_s, mut choice) = (None, None, None, None);
    for element in elements(source) {
        let (name, value) = (element.name(), element.value());
        match name {
            "timeField" => time_field = Some(field_name(5346504, name, value)?),
            "metaField" => meta_field = Some(field_name(5346505, name, value)?),
            "bucketMaxSpanSeconds" => span_s = Some(seconds(value)?),
            "include" | "exclude" => {
                if choice.is_some() {
                    return error(
                        5408000,
                        format!(
                            "The {NAME} stage expects at most one of include/exclude parameters to \
                             be specified"
                        ),
                    );
                }
                let fields = field_names(name, value)?;
                choice = Some(match name {
                    "include" => Choice::Only(fields),
                    _ => Choice::AllBut(fields),
                });
            }
            // What they tell of the buckets is looked at in each of them.
            "assumeNoMixedSchemaData" | "usesExtendedRange" => {
                if !matches!(value, RawBsonRef::Boolean(_)) {
                    let kind = type_name(Some(value));
                    return error(6067202, format!("{name} field must be a bool, got: {kind}"));
                }
            }
            _ => {
                return error(5346506, format!("unrecognized parameter to {NAME}: {name}"));
            }
        }
    }
    let Some(time_field) = time_field else {
        return error(
            5346508,
            format!("The {NAME} stage requires a timeField parameter"),
        );
    };
    let Some(span_s) = span_s else {
        return error(
            5510602,
            format!("The {NAME} stage requires a bucketMaxSpanSeconds parameter"),
        );
    };
    out.push(Arc::new(UnpackBucket {
        time_field,
        meta_field,
        span_s,
        choice,
        is_bounded: false,
        hands_on_distances: false,
    }));
    Ok(())
}

fn field_name(code: u32, name: &str, value: RawBsonRef<'_>) -> Result<String, QueryError> {
    match value {
        RawBsonRef::String(field) => Ok(field.to_owned()),
        other => error(
            code,
            format!(
                "{name} field must be a string, got: {}",
                type_name(Some(other))
            ),
        ),
    }
}

fn seconds(value: RawBsonRef<'_>) -> Result<i64, QueryError> {
    let Some(number) = Number::from_raw(value).and_then(|number| number.to_i64_exact()) else {
        return error(
            5510600,
            format!(
                "bucketMaxSpanSeconds field must be an integer, got: {}",
                type_name(Some(value))
            ),
        );
    };
    match number > 0 {
        true => Ok(number),
        false => error(
            5510601,
            "bucketMaxSpanSeconds field must be greater than zero",
        ),
    }
}

fn field_names(name: &str, value: RawBsonRef<'_>) -> Result<BTreeSet<String>, QueryError> {
    let each = |array: &RawArray| {
        let each = items(array).map(|item| match item.value() {
            RawBsonRef::String(field) if !field.contains('.') => Ok(field.to_owned()),
            RawBsonRef::String(_) => error(
                5346503,
                "include or exclude field element must be a single-element field path",
            ),
            _ => error(5346502, "include or exclude field element must be a string"),
        });
        each.collect()
    };
    match value {
        RawBsonRef::Array(array) => each(array),
        other => error(
            5346501,
            format!(
                "{name} field must be an array, got: {}",
                type_name(Some(other))
            ),
        ),
    }
}

impl UnpackBucket {
    /// What a filter of its measurements says of buckets.
    pub(super) fn conditions(
        &self,
        filter: &Filter,
        budget: &Budget,
    ) -> Result<Option<Filter>, QueryError> {
        let measured = Measured {
            time_field: &self.time_field,
            meta_field: self.meta_field.as_deref(),
            span_s: self.span_s,
            collator: filter.collator(),
        };
        time_series::conditions(filter, &measured, budget)
    }

    pub(super) fn is_bounded(&self) -> bool {
        self.is_bounded
    }

    /// The stage with what its `$match` says of buckets before it.
    pub(super) fn bounded(&self) -> UnpackBucket {
        UnpackBucket {
            is_bounded: true,
            ..self.clone()
        }
    }

    pub(super) fn handing_on_distances(&self) -> UnpackBucket {
        UnpackBucket {
            hands_on_distances: true,
            ..self.clone()
        }
    }

    /// The path that buckets have metadata at, if it is one of metadata.
    pub(super) fn meta_path(&self, path: &str) -> Option<String> {
        meta_path(self.meta_field.as_deref()?, path)
    }

    fn has(&self, field: &str) -> bool {
        match &self.choice {
            None => true,
            Some(Choice::Only(fields)) => fields.contains(field),
            Some(Choice::AllBut(fields)) => !fields.contains(field),
        }
    }
}

impl Stage for UnpackBucket {
    fn name(&self) -> &'static str {
        NAME
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.begin_document(NAME);
        let choice = match &self.choice {
            None => None,
            Some(Choice::Only(fields)) => Some(("include", fields)),
            Some(Choice::AllBut(fields)) => Some(("exclude", fields)),
        };
        if let Some((name, fields)) = choice {
            out.begin_array(name);
            for field in fields {
                out.push(RawBsonRef::String(field));
            }
            out.end();
        }
        out.append_str("timeField", &self.time_field);
        if let Some(meta) = &self.meta_field {
            out.append_str("metaField", meta);
        }
        match i32::try_from(self.span_s) {
            Ok(span) => out.append_i32("bucketMaxSpanSeconds", span),
            Err(_) => out.append_i64("bucketMaxSpanSeconds", self.span_s),
        }
        out.end();
    }

    /// What stands in the metadata stands in `meta` before.
    fn changes(&self) -> Changes {
        let meta = self.meta_field.iter().filter(|meta| self.has(meta));
        Changes::AllBut {
            kept: BTreeSet::new(),
            renamed: meta
                .map(|meta| (meta.clone(), "meta".to_owned()))
                .collect::<BTreeMap<_, _>>(),
        }
    }

    fn is_filter_transparent(&self) -> bool {
        true
    }

    fn split(&self) -> Division {
        Division::Shards
    }

    fn run(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        Ok(Box::new(UnpackRun {
            needed: start.needed.clone(),
            rest: VecDeque::new(),
            holding: start.budget.holding(&consumer::UNPACK),
            stage: self,
        }))
    }
}

struct UnpackRun {
    stage: Arc<UnpackBucket>,
    needed: Dependencies,
    /// The measurements that are left of a bucket when the results are full.
    rest: VecDeque<RawDocumentBuf>,
    holding: Holding,
}

impl StageRun for UnpackRun {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        while !self.rest.is_empty() {
            if self.resume(next)? == Flow::Stop {
                return Ok(Flow::Stop);
            }
        }
        let stage = &*self.stage;
        let wanted = |field: &str| stage.has(field) && self.needed.needs(field);
        let meta_field = stage.meta_field.as_deref();
        let rows = Rows::of(document, &stage.time_field, meta_field, wanted);
        let rows = rows.or_else(malformed)?;
        let told = |told: Metadata| {
            let value = field(document, told.field());
            value.filter(|_| stage.hands_on_distances)
        };
        let (distance, place) = (told(Metadata::Distance), told(Metadata::Place));
        let mut rows = rows.map(|mut row| {
            if let Some(distance) = distance {
                row.append(cstr!("$dis"), distance);
            }
            if let Some(place) = place {
                row.append(cstr!("$pt"), place);
            }
            row
        });
        for row in rows.by_ref() {
            match next.push(&row)? {
                Flow::Continue => {}
                Flow::Stop => return Ok(Flow::Stop),
                Flow::Full => {
                    let mut bytes = 0;
                    for row in rows {
                        bytes += row.as_bytes().len();
                        self.rest.push_back(row);
                    }
                    self.holding.set(bytes)?;
                    return Ok(Flow::Full);
                }
            }
        }
        Ok(Flow::Continue)
    }

    fn resume(&mut self, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        while let Some(row) = self.rest.pop_front() {
            match next.push(&row)? {
                Flow::Continue => {}
                flow => return Ok(flow),
            }
        }
        self.holding.set(0)?;
        Ok(Flow::Continue)
    }
}

fn malformed<T>(found: RowError) -> Result<T, QueryError> {
    match found {
        RowError::NoData => error(10065, "invalid parameter: expected an object (data)"),
        RowError::NoTimes => error(
            5346700,
            format!("The {NAME} stage requires the data region to have a timeField object"),
        ),
        RowError::UnexpectedMeta => error(
            5369601,
            format!(
                "The {NAME} stage expects buckets to have missing metadata regions if the \
                 metaField parameter is not provided"
            ),
        ),
        RowError::Version(version) => error(
            5857600,
            format!("buckets of version {version} have compressed columns, which cannot be read"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use banyan_document::extjson;
    use bson::{DateTime, rawdoc};

    use crate::pipeline::Pipeline;

    use super::*;

    fn bucket(count: usize) -> RawDocumentBuf {
        let mut out = DocumentWriter::new();
        out.begin_document("control");
        out.append_i32("version", 1);
        out.end();
        out.append_i32("meta", 7);
        out.begin_document("data");
        out.begin_document("t");
        for row in 0..count {
            out.append_date(&row.to_string(), DateTime::from_millis(row as i64));
        }
        out.end();
        out.begin_document("x");
        for row in (0..count).step_by(2) {
            out.append_i32(&row.to_string(), row as i32);
        }
        out.end();
        out.end();
        out.finish()
    }

    fn run(stages: &[RawDocumentBuf], count: usize) -> Vec<RawDocumentBuf> {
        let stages: Vec<&RawDocument> = stages.iter().map(|stage| &**stage).collect();
        let pipeline = Pipeline::parse(&stages, &Context::default()).unwrap();
        let input = [bucket(count), bucket(1)]
            .into_iter()
            .map(Ok::<_, QueryError>);
        let run = pipeline.run(input, None).unwrap();
        run.collect::<Result<_, _>>().unwrap()
    }

    fn unpack() -> RawDocumentBuf {
        let argument = r#"{"timeField":"t","metaField":"m","bucketMaxSpanSeconds":3600}"#;
        let argument = extjson::parse(argument).unwrap();
        rawdoc! { "$_internalUnpackBucket": argument }
    }

    #[test]
    fn more_measurements_than_fit_into_the_results_are_kept_until_they_do() {
        let found = run(&[unpack()], 1_000);
        assert_eq!(found.len(), 1_001);
        let date = DateTime::from_millis;
        assert_eq!(found[998], rawdoc! { "t": date(998), "m": 7, "x": 998 });
        assert_eq!(found[999], rawdoc! { "t": date(999), "m": 7 });
        assert_eq!(found[1_000], rawdoc! { "t": date(0), "m": 7, "x": 0 });
    }

    #[test]
    fn a_limit_ends_within_a_bucket() {
        assert_eq!(run(&[unpack(), rawdoc! { "$limit": 3 }], 1_000).len(), 3);
    }

    #[test]
    fn later_stages_read_what_they_need() {
        let group = rawdoc! { "$group": { "_id": "$m", "n": { "$sum": "$x" } } };
        assert_eq!(run(&[unpack(), group], 5), [rawdoc! { "_id": 7, "n": 6 }]);
    }
}
