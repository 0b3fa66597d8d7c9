//! $fill: values for fields that are null or missing
//!
//! A field given by an expression is set by an `$addFields` stage behind this one. For the others
//! the documents are sorted by their partition and by `sortBy`, and each partition is filled as a
//! whole.

use std::sync::Arc;

use bson::{RawArray, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::{DocumentWriter, Number, key};

use super::execute::{Drained, Flow, Next, Start, Step};
use super::project::{self, Projector};
use super::sort::SortKey;
use super::specification::{Fields, missing, wrong_type};
use super::stage::Stage;
use crate::budget::Holding;
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{Value, error, is_nullish, items, type_name};
use crate::expression::{Arena, Expression, byte_len};
use crate::sort::{Sorted, Sorter};
use crate::variables::Variables;

#[derive(Debug)]
pub struct Fill {
    partition: Option<Expression>,
    order: Option<SortKey>,
    /// Where a document stands between others, for linear interpolation.
    position: Option<Expression>,
    outputs: Vec<Output>,
    /// Sets the fields to the values of variables.
    setter: Projector,
    source: RawDocumentBuf,
}

#[derive(Debug)]
struct Output {
    value: Expression,
    method: Method,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// The last value that was observed.
    LastObserved,
    /// On the line between the values before and behind.
    Linear,
}

const KNOWN: &[&str] = &["partitionBy", "partitionByFields", "sortBy", "output"];

pub(super) fn parse(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let RawBsonRef::Document(source) = value else {
        return Err(QueryError::new(
            ErrorKind::FailedToParse,
            format!(
                "The $fill stage specification must be an object, found {}",
                type_name(Some(value))
            ),
        ));
    };
    let fields = Fields::new("$fill", source, KNOWN)?;
    let partition = fields.document("partitionBy")?;
    let partition_fields = fields.array("partitionByFields")?;
    let order = fields.document("sortBy")?;
    let output = fields
        .document("output")?
        .ok_or_else(|| missing("$fill.output"))?;
    if partition.is_some() && partition_fields.is_some() {
        return error(
            6050204,
            "Maximum one of 'partitionBy' and 'partitionByFields' can be specified in '$fill'",
        );
    }
    if output.is_empty() {
        return error(
            6050203,
            "The output field in '$fill' must contain an object with at least one element",
        );
    }
    let by_fields = partition_fields.map(object_of_fields).transpose()?;
    let partition = partition.or(by_fields.as_deref());
    let (methods, values) = outputs(output)?;
    if !methods.is_empty() {
        out.push(Arc::new(Fill::new(partition, order, &methods, context)?));
    }
    match values {
        Some(values) => project::parse_add_fields(RawBsonRef::Document(&values), context, out),
        None => Ok(()),
    }
}

/// `{a: "$a", ...}`.
fn object_of_fields(names: &RawArray) -> Result<RawDocumentBuf, QueryError> {
    let mut writer = DocumentWriter::new();
    for (index, item) in items(names).enumerate() {
        let RawBsonRef::String(name) = item else {
            let name = format!("$fill.partitionByFields.{index}");
            return Err(wrong_type(&name, item, "type 'string'"));
        };
        writer.append_str(name, &format!("${name}"));
    }
    Ok(writer.finish())
}

type Outputs<'a> = (Vec<(&'a str, Method)>, Option<RawDocumentBuf>);

/// The fields that are filled by a method, and an `$addFields` for the others.
fn outputs(output: &RawDocument) -> Result<Outputs<'_>, QueryError> {
    let (mut methods, mut values, mut any) = (Vec::new(), DocumentWriter::new(), false);
    for (path, how) in output.iter().map_while(Result::ok) {
        let RawBsonRef::Document(how) = how else {
            return error(
                6050200,
                "Each fill output specification must be an object with exactly one field",
            );
        };
        let how = Fields::new("$fill", how, &["method", "value"])?;
        match (how.string("method")?, how.get("value")) {
            (Some(_), Some(_)) => {
                return error(
                    6050201,
                    "Each fill output specification must have exactly one of 'method' or 'value' \
                     fields, not both",
                );
            }
            (Some("locf"), None) => methods.push((path.as_str(), Method::LastObserved)),
            (Some("linear"), None) => methods.push((path.as_str(), Method::Linear)),
            (Some(_), None) => return error(6050202, "Method must be either locf or linear"),
            (None, Some(value)) => {
                any = true;
                values.begin_document(path.as_str());
                values.begin_array("$ifNull");
                values.push(RawBsonRef::String(&format!("${path}")));
                values.push(value);
                values.end();
                values.end();
            }
            (None, None) => {}
        }
    }
    Ok((methods, any.then(|| values.finish())))
}

impl Fill {
    fn new(
        partition: Option<&RawDocument>,
        order: Option<&RawDocument>,
        methods: &[(&str, Method)],
        context: &Context,
    ) -> Result<Fill, QueryError> {
        let order = order.filter(|order| !order.is_empty());
        let mut fill = Fill {
            partition: match partition {
                Some(by) => Some(Expression::parse(RawBsonRef::Document(by), context)?),
                None => None,
            },
            order: order.map(SortKey::parse).transpose()?,
            position: None,
            outputs: Vec::with_capacity(methods.len()),
            setter: setter(methods, context)?,
            source: written(partition, order, methods),
        };
        for (path, method) in methods {
            let field = format!("${path}");
            let value = Expression::parse(RawBsonRef::String(&field), context)?;
            let method = *method;
            fill.outputs.push(Output { value, method });
        }
        if fill
            .outputs
            .iter()
            .any(|output| output.method == Method::Linear)
        {
            let mut names = order.into_iter().flat_map(|order| order.iter().flatten());
            let (Some((name, _)), None) = (names.next(), names.next()) else {
                return error(
                    605001,
                    "$linearFill must be specified with a top level sortBy expression with \
                     exactly one element",
                );
            };
            let field = format!("${name}");
            fill.position = Some(Expression::parse(RawBsonRef::String(&field), context)?);
        }
        Ok(fill)
    }
}

/// Sets each path to a variable, as `$addFields` does.
fn setter(methods: &[(&str, Method)], context: &Context) -> Result<Projector, QueryError> {
    let names: Vec<_> = (0..methods.len())
        .map(|index| format!("f{index}"))
        .collect();
    let mut writer = DocumentWriter::new();
    for ((path, _), name) in methods.iter().zip(&names) {
        writer.append_str(path, &format!("$${name}"));
    }
    let context = Context {
        scope: context.scope.with(names.iter().map(String::as_str)),
        ..context.clone()
    };
    Projector::parse_add_fields(&writer.finish(), &context).map_err(|failed| match failed.kind {
        ErrorKind::Location(40176) => QueryError::new(
            ErrorKind::Location(6307900),
            "$setWindowFields 'output' specification contains two conflicting paths",
        ),
        _ => failed,
    })
}

/// The stage without the fields that an `$addFields` sets.
fn written(
    partition: Option<&RawDocument>,
    order: Option<&RawDocument>,
    methods: &[(&str, Method)],
) -> RawDocumentBuf {
    let mut writer = DocumentWriter::new();
    partition
        .into_iter()
        .for_each(|by| writer.append_doc("partitionBy", by));
    order
        .into_iter()
        .for_each(|by| writer.append_doc("sortBy", by));
    writer.begin_document("output");
    for (path, method) in methods {
        writer.begin_document(path);
        let name = match method {
            Method::LastObserved => "locf",
            Method::Linear => "linear",
        };
        writer.append_str("method", name);
        writer.end();
    }
    writer.end();
    writer.finish()
}

impl Stage for Fill {
    fn name(&self) -> &'static str {
        "$fill"
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.append_doc(self.name(), &self.source);
    }

    fn step(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn Step>, QueryError> {
        Ok(Box::new(FillStep {
            partition: self.partition.as_ref().map(|p| p.bind(start.variables)),
            fill: self,
            outer: start.variables.clone(),
            sorter: Sorter::new(None),
            holding: start.budget.holding("$fill"),
            sorted: None,
            filled: Vec::new().into_iter(),
            arena: Arena::new(),
        }))
    }
}

/// A document and its partition.
#[derive(Debug)]
struct Placed {
    partition: Box<[u8]>,
    document: RawDocumentBuf,
}

struct FillStep {
    fill: Arc<Fill>,
    partition: Option<Expression>,
    /// The variables of the `$lookup` stages around.
    outer: Variables,
    sorter: Sorter<Placed>,
    holding: Holding,
    sorted: Option<std::iter::Peekable<Sorted<Placed>>>,
    /// The documents of a partition, with what fills them.
    filled: std::vec::IntoIter<(RawDocumentBuf, Vec<Arc<RawBson>>)>,
    arena: Arena,
}

impl Step for FillStep {
    fn push(&mut self, document: &RawDocument, _: &mut Next<'_>) -> Result<Flow, QueryError> {
        self.arena.reset();
        let mut order = Vec::new();
        if let Some(partition) = &self.partition {
            let value = partition.evaluate(document, &self.arena)?;
            if matches!(value, Some(RawBsonRef::Array(_))) {
                return Err(QueryError::new(
                    ErrorKind::TypeMismatch,
                    "An expression used to partition cannot evaluate to value of type array",
                ));
            }
            key::encode(value.unwrap_or(RawBsonRef::Null), &mut order);
        }
        let partition: Box<[u8]> = order.as_slice().into();
        if let Some(key) = &self.fill.order {
            order.extend(key.pattern.key(document)?);
        }
        let bytes = partition.len() + document.as_bytes().len() + size_of::<Placed>();
        let placed = Placed {
            partition,
            document: document.to_owned(),
        };
        self.sorter.push(order, placed, bytes)?;
        self.holding.set(self.sorter.bytes())?;
        Ok(Flow::Continue)
    }

    fn drain(&mut self, next: &mut Next<'_>) -> Result<Drained, QueryError> {
        if self.sorted.is_none() {
            let sorter = std::mem::replace(&mut self.sorter, Sorter::new(None));
            self.sorted = Some(sorter.finish(next.budget)?.peekable());
        }
        let Some((document, values)) = self.filled.next() else {
            let more = self.fill_partition(next)?;
            return Ok(if more { Drained::More } else { Drained::Done });
        };
        self.arena.reset();
        let values = values.iter().map(|value| Some(value.as_raw_bson_ref()));
        let variables = self.outer.with(values);
        let mut writer = DocumentWriter::with_capacity(document.as_bytes().len() + 16);
        let setter = &self.fill.setter;
        setter.apply(&document, &self.arena, &variables, &mut writer)?;
        match next.push(&writer.finish())? {
            Flow::Continue | Flow::Full => Ok(Drained::More),
            Flow::Stop => Ok(Drained::Done),
        }
    }
}

impl FillStep {
    /// Fills the documents of the next partition; false if there is none.
    fn fill_partition(&mut self, next: &mut Next<'_>) -> Result<bool, QueryError> {
        let Some(sorted) = &mut self.sorted else {
            return Ok(false);
        };
        let Some(first) = sorted.next() else {
            return Ok(false);
        };
        let partition = first.partition;
        let mut documents = vec![first.document];
        while let Some(more) = sorted.next_if(|more| more.partition == partition) {
            next.budget.spend(1)?;
            documents.push(more.document);
        }
        let mut filled: Vec<_> = documents
            .iter()
            .map(|_| Vec::with_capacity(self.fill.outputs.len()))
            .collect();
        for output in &self.fill.outputs {
            let mut values = Vec::with_capacity(documents.len());
            for document in &documents {
                next.budget.spend_bytes(document.as_bytes().len())?;
                let value = output.value.evaluate_owned(document)?;
                let held = value.as_ref().map_or(0, |v| byte_len(v.as_raw_bson_ref()));
                self.holding.add(held + size_of::<RawBson>())?;
                values.push(Arc::new(value.unwrap_or(RawBson::Null)));
            }
            match output.method {
                Method::LastObserved => last_observed(&mut values),
                Method::Linear => self.interpolate(&documents, &mut values, next)?,
            }
            for (filled, value) in filled.iter_mut().zip(values) {
                filled.push(value);
            }
        }
        let filled: Vec<_> = documents.into_iter().zip(filled).collect();
        self.filled = filled.into_iter();
        Ok(true)
    }

    /// Fills what lies between two numbers.
    fn interpolate(
        &self,
        documents: &[RawDocumentBuf],
        values: &mut [Arc<RawBson>],
        next: &Next<'_>,
    ) -> Result<(), QueryError> {
        let mut points = Vec::with_capacity(values.len());
        for document in documents {
            next.budget.spend_bytes(document.as_bytes().len())?;
            points.push(self.position(document)?);
            if let [.., before, last] = points.as_slice()
                && before.compare(*last).is_eq()
            {
                return error(6050106, "There can be no repeated values in the sort field");
            }
        }
        let mut known: Option<(usize, Number)> = None;
        for at in 0..values.len() {
            let value = values.get(at).map(|value| value.as_raw_bson_ref());
            let Some(y) = number(value)? else {
                continue;
            };
            if let Some((left, before)) = known {
                let (x1, x2) = (points[left], points[at]);
                let slope = y.subtract(before).divide(x2.subtract(x1));
                for between in left + 1..at {
                    next.budget.spend(1)?;
                    let along = points[between].subtract(x1);
                    let filled = slope.map(|slope| before.add(along.multiply(slope)));
                    values[between] = Arc::new(filled.map_or(RawBson::Null, |n| n.to_raw().into()));
                }
            }
            known = Some((at, y));
        }
        Ok(())
    }

    fn position(&self, document: &RawDocument) -> Result<Number, QueryError> {
        let value = match &self.fill.position {
            Some(position) => position.evaluate_owned(document)?,
            None => None,
        };
        let value = value.as_ref().map(RawBson::as_raw_bson_ref);
        match value {
            Some(RawBsonRef::DateTime(date)) => Ok(Number::Int64(date.timestamp_millis())),
            other => other.and_then(Number::from_raw).ok_or_else(|| {
                let found = type_name(other);
                QueryError::new(
                    ErrorKind::TypeMismatch,
                    format!(
                        "Value of the sortBy field must be numeric or a date, but found {found}"
                    ),
                )
            }),
        }
    }
}

fn last_observed(values: &mut [Arc<RawBson>]) {
    let mut last: Option<usize> = None;
    for at in 0..values.len() {
        let value = values.get(at).map(|value| value.as_raw_bson_ref());
        if !is_nullish(value) {
            last = Some(at);
        } else if let Some(last) = last {
            values[at] = values[last].clone();
        }
    }
}

/// A number; `None` for what is to be filled.
fn number(value: Value<'_>) -> Result<Option<Number>, QueryError> {
    if is_nullish(value) {
        return Ok(None);
    }
    match value.and_then(Number::from_raw) {
        Some(number) => Ok(Some(number)),
        None => Err(QueryError::new(
            ErrorKind::TypeMismatch,
            format!(
                "Value to be filled must be numeric or nullish, but found {}",
                type_name(value)
            ),
        )),
    }
}
