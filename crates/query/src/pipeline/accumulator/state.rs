//! What an accumulator remembers of one group.

use std::collections::HashSet;

use bson::spec::BinarySubtype;
use bson::{Binary, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::{Collator, DocumentWriter, Number, compare_collated, key};
use foldhash::fast::RandomState;

use super::count::{Group, count};
use super::kind::Kind;
use super::ranked::{Positional, Ranked};
use super::script::Scripted;
use super::value::{null, value_bytes};
use crate::budget::Budget;
use crate::error::QueryError;
use crate::expression::byte_len;
use crate::expression::moments::Moments;
use crate::expression::sum::Sum;
use crate::expression::value::{Value, error, is_nullish, items, type_name};
use crate::merge_sort;

#[derive(Clone, Debug)]
pub(in crate::pipeline) enum State {
    Sum(Sum),
    Avg {
        sum: Sum,
        count: i64,
    },
    /// `$min` and `$max`.
    Extreme {
        value: Option<RawBson>,
        greatest: bool,
        collator: Option<Collator>,
    },
    /// `$first` and `$last`: none until a document came.
    Edge {
        value: Option<RawBson>,
        last: bool,
    },
    List(List),
    Set {
        list: List,
        seen: HashSet<Box<[u8]>, RandomState>,
        bytes: usize,
        collator: Option<Collator>,
    },
    StdDev {
        moments: Moments,
        sample: bool,
    },
    Merged(RawDocumentBuf),
    Positional(Positional),
    Ranked(Ranked),
    Percentile(Vec<f64>),
    Scripted(Box<Scripted>),
}

/// An array under construction.
#[derive(Clone, Debug)]
pub(in crate::pipeline) struct List {
    /// Most groups have no list, and need not be as large as if they had.
    writer: Box<DocumentWriter>,
}

impl List {
    fn new() -> List {
        let mut writer = DocumentWriter::with_capacity(64);
        writer.begin_array("");
        List {
            writer: Box::new(writer),
        }
    }

    fn push(&mut self, value: RawBsonRef<'_>) {
        self.writer.push(value);
    }

    fn finish(&mut self) -> RawBson {
        let document = std::mem::replace(self, List::new()).writer.finish();
        first_value(&document)
    }
}

fn first_value(document: &RawDocument) -> RawBson {
    document
        .iter()
        .next()
        .and_then(Result::ok)
        .map_or(null(), |(_, value)| value.into())
}

// There is one for each accumulator of each group.
const _: () = assert!(size_of::<State>() <= 112);

/// What is left where a state was taken out.
impl Default for State {
    fn default() -> State {
        State::Sum(Sum::default())
    }
}

impl State {
    pub(in crate::pipeline) fn new(
        kind: &Kind,
        collator: Option<&Collator>,
        group: Group<'_>,
    ) -> Result<State, QueryError> {
        let collator = || collator.cloned();
        Ok(match kind {
            Kind::Sum => State::Sum(Sum::default()),
            Kind::Avg => State::Avg {
                sum: Sum::default(),
                count: 0,
            },
            Kind::Min => State::Extreme {
                value: None,
                greatest: false,
                collator: collator(),
            },
            Kind::Max => State::Extreme {
                value: None,
                greatest: true,
                collator: collator(),
            },
            Kind::First => State::Edge {
                value: None,
                last: false,
            },
            Kind::Last => State::Edge {
                value: None,
                last: true,
            },
            Kind::Push | Kind::ConcatArrays => State::List(List::new()),
            Kind::AddToSet | Kind::SetUnion => State::Set {
                list: List::new(),
                seen: HashSet::default(),
                collator: collator(),
                bytes: 0,
            },
            Kind::StdDev { sample } => State::StdDev {
                moments: Moments::default(),
                sample: *sample,
            },
            Kind::MergeObjects => State::Merged(RawDocumentBuf::new()),
            Kind::Positional { n, last } => {
                State::Positional(Positional::new(count(n, group)?, *last))
            }
            Kind::Ranked { n, .. } => State::Ranked(Ranked::new(count(n, group)?, collator())),
            Kind::Percentile { .. } => State::Percentile(Vec::new()),
            Kind::Script(script) => State::Scripted(Box::new(Scripted::new(script, group)?)),
        })
    }

    /// Whether a further document could make a difference.
    pub(in crate::pipeline) fn needs_input(&self) -> bool {
        match self {
            State::Edge {
                value: Some(_),
                last: false,
            } => false,
            State::Positional(positional) => positional.needs_input(),
            _ => true,
        }
    }

    /// Takes one document's value.
    pub(in crate::pipeline) fn add(
        &mut self,
        kind: &Kind,
        value: Value<'_>,
        root: &RawDocument,
        budget: &Budget,
    ) -> Result<(), QueryError> {
        budget.spend_bytes(value.map_or(0, byte_len))?;
        match self {
            State::Sum(sum) => {
                if let Some(number) = value.and_then(Number::from_raw) {
                    sum.add(number);
                }
            }
            State::Avg { sum, count } => {
                if let Some(number) = value.and_then(Number::from_raw) {
                    sum.add(number);
                    *count += 1;
                }
            }
            State::Extreme {
                value: best,
                greatest,
                collator,
            } => {
                if !is_nullish(value)
                    && let Some(value) = value
                {
                    let better = best.as_ref().is_none_or(|best| {
                        let order =
                            compare_collated(value, best.as_raw_bson_ref(), collator.as_ref());
                        if *greatest {
                            order.is_gt()
                        } else {
                            order.is_lt()
                        }
                    });
                    if better {
                        *best = Some(value.into());
                    }
                }
            }
            State::Edge { value: edge, last } => {
                if *last || edge.is_none() {
                    *edge = Some(value.map_or(null(), Into::into));
                }
            }
            State::List(list) => match kind {
                Kind::ConcatArrays => {
                    each_item("$concatArrays", value, budget, |item| list.push(item))?;
                }
                _ => value.into_iter().for_each(|value| list.push(value)),
            },
            State::Set {
                list,
                seen,
                bytes,
                collator,
            } => {
                let mut add = |value: RawBsonRef<'_>| {
                    let mut encoded = Vec::new();
                    key::encode_collated(value, collator.as_ref(), &mut encoded);
                    let encoded_bytes = encoded.len() + 32;
                    if seen.insert(encoded.into()) {
                        *bytes += encoded_bytes;
                        list.push(value);
                    }
                };
                match kind {
                    Kind::SetUnion => each_item("$setUnion", value, budget, add)?,
                    _ => value.into_iter().for_each(&mut add),
                }
            }
            State::StdDev { moments, .. } => {
                if let Some(number) = value.and_then(Number::from_raw) {
                    moments.add(number.to_f64());
                }
            }
            State::Merged(merged) => merge_object(merged, value, budget)?,
            State::Positional(positional) => positional.add(value),
            State::Ranked(ranked) => ranked.add(kind, value, root)?,
            State::Percentile(numbers) => {
                if let Some(number) = value.and_then(Number::from_raw)
                    && !number.is_nan()
                {
                    numbers.push(number.to_f64());
                }
            }
            State::Scripted(scripted) => {
                if let Kind::Script(script) = kind {
                    scripted.add(script, value)?;
                }
            }
        }
        Ok(())
    }

    /// For a window that slides.
    pub(in crate::pipeline) fn sliding(self) -> State {
        match self {
            State::Ranked(ranked) => State::Ranked(ranked.sliding()),
            state => state,
        }
    }

    /// Bytes held beyond the state itself.
    pub(in crate::pipeline) fn memory_bytes(&self) -> usize {
        match self {
            State::Extreme {
                value: Some(value), ..
            }
            | State::Edge {
                value: Some(value), ..
            } => value_bytes(value),
            State::List(list) => list.writer.len(),
            State::Set { list, bytes, .. } => list.writer.len() + bytes,
            State::Merged(merged) => merged.as_bytes().len(),
            State::Positional(positional) => positional.memory_bytes(),
            State::Ranked(ranked) => ranked.memory_bytes(),
            State::Percentile(numbers) => numbers.len() * 8,
            State::Scripted(scripted) => scripted.memory_bytes(),
            _ => 0,
        }
    }

    /// Whether `memory_bytes` can grow with every document.
    pub(in crate::pipeline) fn grows(&self) -> bool {
        !matches!(
            self,
            State::Sum(_) | State::Avg { .. } | State::StdDev { .. }
        )
    }

    /// The result.
    pub(in crate::pipeline) fn finish(
        &mut self,
        kind: &Kind,
        budget: &Budget,
    ) -> Result<RawBson, QueryError> {
        Ok(match self {
            State::Sum(sum) => sum.total().to_raw().into(),
            State::Avg { count: 0, .. } => null(),
            State::Avg { sum, count } => sum.average(*count).to_raw().into(),
            State::Extreme { value, .. } | State::Edge { value, .. } => {
                value.take().unwrap_or(null())
            }
            State::List(list) | State::Set { list, .. } => list.finish(),
            State::StdDev { moments, sample } => {
                moments.deviation(*sample).map_or(null(), RawBson::Double)
            }
            State::Merged(merged) => RawBson::Document(std::mem::take(merged)),
            State::Positional(positional) => positional.finish(),
            State::Ranked(ranked) => ranked.finish(kind),
            State::Percentile(numbers) => percentiles(kind, std::mem::take(numbers), budget)?,
            State::Scripted(scripted) => match kind {
                Kind::Script(script) => scripted.finish(script)?,
                _ => null(),
            },
        })
    }

    /// What is needed to go on from here: by the router, or once it was spilled to disk.
    pub(in crate::pipeline) fn partial(
        &mut self,
        kind: &Kind,
        budget: &Budget,
    ) -> Result<RawBson, QueryError> {
        Ok(match self {
            State::Sum(sum) => binary(&sum.to_bytes()),
            State::Avg { sum, count } => {
                let mut bytes = sum.to_bytes().to_vec();
                bytes.extend_from_slice(&count.to_le_bytes());
                binary(&bytes)
            }
            State::StdDev { moments, .. } => binary(&moments.to_bytes()),
            State::Ranked(ranked) => ranked.partial(),
            State::Percentile(numbers) => {
                let mut list = List::new();
                numbers
                    .drain(..)
                    .for_each(|v| list.push(RawBsonRef::Double(v)));
                list.finish()
            }
            State::Scripted(scripted) => match kind {
                Kind::Script(script) => scripted.partial(script)?,
                _ => null(),
            },
            _ => self.finish(kind, budget)?,
        })
    }

    /// Takes what another state has gathered of later documents.
    pub(in crate::pipeline) fn absorb(
        &mut self,
        kind: &Kind,
        mut later: State,
        budget: &Budget,
    ) -> Result<(), QueryError> {
        match (&mut *self, &later) {
            (State::Sum(sum), State::Sum(later)) => sum.merge(later),
            (
                State::Avg { sum, count },
                State::Avg {
                    sum: later,
                    count: more,
                },
            ) => {
                sum.merge(later);
                *count += more;
            }
            _ => {
                let partial = later.partial(kind, budget)?;
                self.merge(kind, partial.as_raw_bson_ref(), budget)?;
            }
        }
        Ok(())
    }

    /// Takes what `partial` gave of documents that came later than those taken.
    pub(in crate::pipeline) fn merge(
        &mut self,
        kind: &Kind,
        partial: RawBsonRef<'_>,
        budget: &Budget,
    ) -> Result<(), QueryError> {
        let merged = match (&mut *self, partial) {
            (State::Sum(sum), RawBsonRef::Binary(bytes)) => {
                Sum::from_bytes(bytes.bytes).map(|other| sum.merge(&other))
            }
            (State::Avg { sum, count }, RawBsonRef::Binary(bytes)) => split_last_8(bytes.bytes)
                .and_then(|(front, last)| {
                    *count += i64::from_le_bytes(last);
                    Sum::from_bytes(front).map(|other| sum.merge(&other))
                }),
            (State::StdDev { moments, .. }, RawBsonRef::Binary(bytes)) => {
                Moments::from_bytes(bytes.bytes).map(|other| moments.merge(&other))
            }
            (
                State::List(_) | State::Set { .. } | State::Positional(_) | State::Percentile(_),
                RawBsonRef::Array(array),
            ) => {
                // Each element counts as the value of one document.
                let root = RawDocumentBuf::new();
                let each = match kind {
                    Kind::ConcatArrays => &Kind::Push,
                    Kind::SetUnion => &Kind::AddToSet,
                    other => other,
                };
                for item in items(array) {
                    self.add(each, Some(item), &root, budget)?;
                }
                Some(())
            }
            (State::Ranked(ranked), RawBsonRef::Array(array)) => ranked.merge(kind, array),
            (State::Scripted(scripted), value) => match kind {
                Kind::Script(script) => Some(scripted.merge(script, value)?),
                _ => None,
            },
            (State::Extreme { .. } | State::Edge { .. } | State::Merged(_), value) => {
                self.add(kind, Some(value), &RawDocumentBuf::new(), budget)?;
                Some(())
            }
            _ => None,
        };
        match merged {
            Some(()) => Ok(()),
            None => error(
                9961600,
                format!(
                    "a shard sent an unexpected partial result: {}",
                    type_name(Some(partial))
                ),
            ),
        }
    }
}

fn each_item(
    name: &str,
    value: Value<'_>,
    budget: &Budget,
    mut f: impl FnMut(RawBsonRef<'_>),
) -> Result<(), QueryError> {
    match value {
        None => {}
        Some(RawBsonRef::Array(array)) => {
            for item in items(array) {
                budget.spend_bytes(byte_len(item))?;
                f(item);
            }
        }
        other => {
            return error(
                10422200,
                format!(
                    "{name} requires array inputs, but found {}",
                    type_name(other)
                ),
            );
        }
    }
    Ok(())
}

/// The later object's fields win and keep the earlier one's places.
fn merge_object(
    merged: &mut RawDocumentBuf,
    value: Value<'_>,
    budget: &Budget,
) -> Result<(), QueryError> {
    if is_nullish(value) {
        return Ok(());
    }
    let Some(RawBsonRef::Document(document)) = value else {
        return error(
            40400,
            format!(
                "$mergeObjects requires object inputs, but input {} is of type {}",
                crate::expression::value::describe(value),
                type_name(value)
            ),
        );
    };
    *merged = crate::expression::merge_documents(&[&**merged, document], budget)?;
    Ok(())
}

fn percentiles(kind: &Kind, numbers: Vec<f64>, budget: &Budget) -> Result<RawBson, QueryError> {
    let Kind::Percentile { fractions, single } = kind else {
        return Ok(null());
    };
    let numbers = merge_sort::sort(numbers, f64::total_cmp, |_| 0, budget)?;
    let at = |fraction: f64| {
        crate::expression::percentile(&numbers, fraction).map_or(null(), RawBson::Double)
    };
    if *single {
        return Ok(fractions.first().map_or(null(), |fraction| at(*fraction)));
    }
    let mut list = List::new();
    fractions
        .iter()
        .for_each(|fraction| list.push(at(*fraction).as_raw_bson_ref()));
    Ok(list.finish())
}

fn binary(bytes: &[u8]) -> RawBson {
    RawBson::Binary(Binary {
        subtype: BinarySubtype::Generic,
        bytes: bytes.to_vec(),
    })
}

fn split_last_8(bytes: &[u8]) -> Option<(&[u8], [u8; 8])> {
    let (front, last) = bytes.split_last_chunk::<8>()?;
    Some((front, *last))
}
