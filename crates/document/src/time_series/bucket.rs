//! A bucket: measurements of one source and one stretch of time, as one document.

use bson::oid::ObjectId;
use bson::{DateTime, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use super::extremes::Extremes;
use super::measurement::Measurement;
use super::options::TimeSeries;
use crate::collation::Collator;
use crate::element::{Element, elements, field};
use crate::validate::MAX_DOCUMENT_BYTES;
use crate::writer::DocumentWriter;

/// So many measurements lie in a bucket.
const COUNT_MAX: usize = 1000;
/// Where a bucket is full, unless that is because its measurements are large.
const BYTES_MAX: usize = 125 * 1024;
const LARGE_COUNT: usize = 10;
/// A bucket of large measurements.
const LARGE_BYTES_MAX: usize = 12 * 1024 * 1024;

/// How the columns of a bucket are kept; another one is MongoDB's compressed one.
pub const VERSION: i32 = 1;

#[derive(Clone, Debug)]
pub struct Bucket {
    id: ObjectId,
    begin_ms: i64,
    /// `{meta: …}`, or empty.
    meta: RawDocumentBuf,
    extremes: Extremes,
    columns: Vec<Column>,
    count: usize,
    /// Of the columns.
    bytes: usize,
    /// No less than the document may come to.
    bytes_bound: usize,
}

#[derive(Clone, Debug)]
struct Column {
    name: Box<str>,
    /// Elements that are named by the number of their measurement.
    elements: Vec<u8>,
    /// Behind the last of them.
    rows: usize,
}

/// The `_id` of a bucket that begins at a time: it says that in its seconds, so that buckets lie in
/// the order of their times. What such an id cannot say comes before or behind all that it can.
/// `distinct` makes it another one than that of any other bucket.
pub fn bucket_id(begin_ms: i64, distinct: ObjectId) -> ObjectId {
    let mut bytes = distinct.bytes();
    if let Some(seconds) = bytes.first_chunk_mut::<4>() {
        *seconds = id_seconds(begin_ms).to_be_bytes();
    }
    ObjectId::from_bytes(bytes)
}

/// What the `_id` of a bucket says of the time at which it begins.
pub fn id_seconds(begin_ms: i64) -> u32 {
    let seconds = begin_ms.div_euclid(1000);
    u32::try_from(seconds.clamp(0, i64::from(u32::MAX))).unwrap_or(u32::MAX)
}

impl Bucket {
    /// An empty one for measurements like this one.
    pub fn open(series: &TimeSeries, first: &Measurement<'_>, distinct: ObjectId) -> Bucket {
        let begin_ms = series.rounded(first.time_ms);
        let meta = first.meta.clone();
        Bucket::empty(bucket_id(begin_ms, distinct), begin_ms, meta)
    }

    fn empty(id: ObjectId, begin_ms: i64, meta: RawDocumentBuf) -> Bucket {
        let bytes_bound = meta.as_bytes().len() + 256;
        Bucket {
            id,
            begin_ms,
            meta,
            extremes: Extremes::default(),
            columns: Vec::new(),
            count: 0,
            bytes: 0,
            bytes_bound,
        }
    }

    /// The same one without its measurements.
    pub fn emptied(&self) -> Bucket {
        Bucket::empty(self.id, self.begin_ms, self.meta.clone())
    }

    /// `None`: it is none that could take another measurement.
    pub fn parse(document: &RawDocument, series: &TimeSeries) -> Option<Bucket> {
        let Some(RawBsonRef::ObjectId(id)) = field(document, "_id") else {
            return None;
        };
        let control = field(document, "control")?.as_document()?;
        let is_closed = field(control, "closed").and_then(|closed| closed.as_bool());
        if version(control) != Some(VERSION) || is_closed == Some(true) {
            return None;
        }
        let side = |name| field(control, name).and_then(|side| side.as_document());
        let extremes = Extremes::parse(side("min")?, side("max")?)?;
        let Some(RawBsonRef::DateTime(begin)) = extremes.min(&series.time_field) else {
            return None;
        };
        let begin_ms = begin.timestamp_millis();
        let mut meta = DocumentWriter::new();
        if let Some(value) = field(document, "meta") {
            meta.append("meta", value);
        }
        let data = field(document, "data")?.as_document()?;
        let columns = elements(data).map(|element| Column::parse(&element));
        let columns: Vec<Column> = columns.collect::<Option<_>>()?;
        let mut times = columns.iter();
        let count = times
            .find(|column| *column.name == *series.time_field)?
            .rows;
        Some(Bucket {
            id,
            begin_ms,
            meta: meta.finish(),
            extremes,
            bytes: columns.iter().map(|column| column.elements.len()).sum(),
            bytes_bound: document.as_bytes().len(),
            columns,
            count,
        })
    }

    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// `{meta: …}`, or empty.
    pub fn meta(&self) -> &RawDocument {
        &self.meta
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Of the columns.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the document stays within its limit with one more measurement.
    pub fn has_room_for(&self, measurement: &Measurement<'_>) -> bool {
        bytes_with(self.bytes_bound, measurement) <= MAX_DOCUMENT_BYTES
    }

    /// Whether a measurement belongs here: it is of the same source and stretch of time, has no value
    /// of another type than those before it, and the bucket is not full.
    pub fn takes(&self, measurement: &Measurement<'_>, series: &TimeSeries) -> bool {
        let since = measurement.time_ms.checked_sub(self.begin_ms);
        let span_ms = series.span_s.saturating_mul(1000);
        since.is_some_and(|since| (0..span_ms).contains(&since))
            && self.meta == measurement.meta
            && self.count < COUNT_MAX
            && self.is_large_enough_for(measurement)
            && measurement
                .columns(series)
                .all(|element| self.extremes.suits(element.name(), element.value()))
    }

    fn is_large_enough_for(&self, measurement: &Measurement<'_>) -> bool {
        self.bytes + measurement.bytes() <= BYTES_MAX
            || self.count < LARGE_COUNT
                && bytes_with(self.bytes_bound, measurement) <= LARGE_BYTES_MAX
    }

    /// Adds a measurement that it takes.
    pub fn add(
        &mut self,
        measurement: &Measurement<'_>,
        series: &TimeSeries,
        collator: Option<&Collator>,
    ) {
        self.bytes_bound = bytes_with(self.bytes_bound, measurement);
        let row = self.count;
        for element in measurement.columns(series) {
            let name = element.name();
            let columns = &mut self.columns;
            let at = columns.iter().position(|column| *column.name == *name);
            let at = at.unwrap_or_else(|| {
                columns.push(Column::empty(name));
                columns.len() - 1
            });
            let Some(bytes) = columns[at].push(row, &element) else {
                // A second field of this name.
                continue;
            };
            self.bytes += bytes;
            if *name == *series.time_field {
                let time = |ms| RawBson::DateTime(DateTime::from_millis(ms));
                let (begin, time) = (time(self.begin_ms), time(measurement.time_ms));
                self.extremes.begin(name, begin, time);
            }
            self.extremes.add(name, element.value(), collator);
        }
        self.count += 1;
    }

    pub fn to_document(&self) -> RawDocumentBuf {
        let mut out = DocumentWriter::with_capacity(self.bytes + 512);
        out.append_oid("_id", self.id);
        out.begin_document("control");
        out.append_i32("version", VERSION);
        self.extremes.append_to(&mut out);
        out.end();
        out.append_all(&self.meta);
        out.begin_document("data");
        for column in &self.columns {
            column.append_to(&mut out);
        }
        out.end();
        out.finish()
    }
}

pub(super) fn version(control: &RawDocument) -> Option<i32> {
    match field(control, "version")? {
        RawBsonRef::Int32(version) => Some(version),
        RawBsonRef::Int64(version) => i32::try_from(version).ok(),
        RawBsonRef::Double(version) if version == f64::from(VERSION) => Some(VERSION),
        _ => None,
    }
}

/// A measurement lies in its column, and perhaps on both sides of `control`; each of its fields is
/// named anew in each of these places, and numbered.
fn bytes_with(bound: usize, measurement: &Measurement<'_>) -> usize {
    bound + 3 * measurement.bytes() + 16 * elements(measurement.document).count()
}

impl Column {
    fn empty(name: &str) -> Column {
        Column {
            name: name.into(),
            elements: Vec::new(),
            rows: 0,
        }
    }

    fn parse(element: &Element<'_>) -> Option<Column> {
        let document = element.value().as_document()?;
        let rows = match elements(document).last() {
            Some(last) => last.name().parse::<usize>().ok()?.checked_add(1)?,
            None => 0,
        };
        let bytes = document.as_bytes();
        Some(Column {
            name: element.name().into(),
            // Between the length and the end.
            elements: bytes.get(4..bytes.len() - 1)?.to_vec(),
            rows,
        })
    }

    /// Adds the value of a measurement; the bytes that it takes. `None`: it has one.
    fn push(&mut self, row: usize, element: &Element<'_>) -> Option<usize> {
        if self.rows > row {
            return None;
        }
        let before = self.elements.len();
        let [kind, ..] = element.bytes() else {
            return None;
        };
        self.elements.push(*kind);
        self.elements.extend_from_slice(row.to_string().as_bytes());
        self.elements.push(0);
        self.elements.extend_from_slice(element.value_bytes());
        self.rows = row + 1;
        Some(self.elements.len() - before)
    }

    fn append_to(&self, out: &mut DocumentWriter) {
        let length = self.elements.len() + 5;
        let mut bytes = Vec::with_capacity(length);
        // A bucket is bounded far below this.
        bytes.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend_from_slice(&self.elements);
        bytes.push(0);
        if let Ok(document) = RawDocument::from_bytes(&bytes) {
            out.append_doc(&self.name, document);
        }
    }
}
