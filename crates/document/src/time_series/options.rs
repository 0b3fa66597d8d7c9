//! How a time-series collection is divided into buckets.

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use crate::number::Number;
use crate::writer::DocumentWriter;

/// The time that measurements of one source are apart, as its owner reckons it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Granularity {
    Seconds,
    Minutes,
    Hours,
}

/// The stage that makes measurements of buckets.
pub const UNPACK_STAGE: &str = "$_internalUnpackBucket";

const HOUR_S: i64 = 3_600;
const DAY_S: i64 = 86_400;

impl Granularity {
    pub fn parse(name: &str) -> Option<Granularity> {
        let all = [
            Granularity::Seconds,
            Granularity::Minutes,
            Granularity::Hours,
        ];
        all.into_iter().find(|known| known.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Granularity::Seconds => "seconds",
            Granularity::Minutes => "minutes",
            Granularity::Hours => "hours",
        }
    }

    /// The time that a bucket spans.
    pub fn span_s(self) -> i64 {
        match self {
            Granularity::Seconds => HOUR_S,
            Granularity::Minutes => DAY_S,
            Granularity::Hours => 30 * DAY_S,
        }
    }

    /// What the time at which a bucket begins is a multiple of.
    pub fn rounding_s(self) -> i64 {
        match self {
            Granularity::Seconds => 60,
            Granularity::Minutes => HOUR_S,
            Granularity::Hours => DAY_S,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeSeries {
    pub time_field: String,
    pub meta_field: Option<String>,
    /// `None`: span and rounding were given by themselves.
    pub granularity: Option<Granularity>,
    pub span_s: i64,
    pub rounding_s: i64,
}

impl TimeSeries {
    /// Of the `timeseries` among a collection's options, as it is kept.
    pub fn parse(options: &RawDocument) -> Option<TimeSeries> {
        let text = |name| match options.get(name) {
            Ok(Some(RawBsonRef::String(text))) => Some(text.to_owned()),
            _ => None,
        };
        let seconds = |name| {
            let value = options.get(name).ok()??;
            let seconds = Number::from_raw(value)?.to_i64_exact();
            seconds.filter(|seconds| *seconds > 0)
        };
        let granularity = text("granularity").and_then(|name| Granularity::parse(&name));
        let rounding_s = match granularity {
            Some(granularity) => granularity.rounding_s(),
            None => seconds("bucketRoundingSeconds")?,
        };
        Some(TimeSeries {
            time_field: text("timeField")?,
            meta_field: text("metaField"),
            granularity,
            span_s: seconds("bucketMaxSpanSeconds")?,
            rounding_s,
        })
    }

    /// As it is kept, and shown to users.
    pub fn to_document(&self) -> RawDocumentBuf {
        let mut out = DocumentWriter::new();
        out.append_str("timeField", &self.time_field);
        if let Some(meta) = &self.meta_field {
            out.append_str("metaField", meta);
        }
        match self.granularity {
            Some(granularity) => out.append_str("granularity", granularity.name()),
            None => append_seconds(&mut out, "bucketRoundingSeconds", self.rounding_s),
        }
        append_seconds(&mut out, "bucketMaxSpanSeconds", self.span_s);
        out.finish()
    }

    /// That stage for this collection.
    pub fn unpack_stage(&self) -> RawDocumentBuf {
        let mut out = DocumentWriter::new();
        out.begin_document(UNPACK_STAGE);
        out.append_str("timeField", &self.time_field);
        if let Some(meta) = &self.meta_field {
            out.append_str("metaField", meta);
        }
        append_seconds(&mut out, "bucketMaxSpanSeconds", self.span_s);
        out.end();
        out.finish()
    }

    /// The time at which a bucket begins that is opened for a measurement of this time.
    pub fn rounded(&self, time_ms: i64) -> i64 {
        let rounding_ms = self.rounding_s.saturating_mul(1000).max(1);
        time_ms.saturating_sub(time_ms.rem_euclid(rounding_ms))
    }

    /// The name that a path of measurements has in buckets, if it is of the metadata.
    pub fn meta_path(&self, path: &str) -> Option<String> {
        meta_path(self.meta_field.as_deref()?, path)
    }
}

/// The same where the metadata have this name.
pub fn meta_path(meta_field: &str, path: &str) -> Option<String> {
    let rest = path.strip_prefix(meta_field)?;
    (rest.is_empty() || rest.starts_with('.')).then(|| format!("meta{rest}"))
}

fn append_seconds(out: &mut DocumentWriter, name: &str, seconds: i64) {
    match i32::try_from(seconds) {
        Ok(seconds) => out.append_i32(name, seconds),
        Err(_) => out.append_i64(name, seconds),
    }
}
