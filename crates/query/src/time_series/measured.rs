//! What conditions on the fields of measurements say of the buckets that they lie in.
//!
//! A bucket tells the least and the greatest value of each field (`control.min`, `control.max`). A
//! condition that some measurement meets bounds them, in the order of all values: whether a bucket is
//! worth looking into is known without its columns, and an index over both is of use.

use std::cmp::Ordering;

use banyan_document::compare::{canonical_rank, compare_collated};
use banyan_document::{Collator, Path};
use bson::{DateTime, RawBson, RawBsonRef};

use crate::comparison::Comparison;
use crate::filter::{MatchNode, Predicate, column};

/// How the measurements are told apart whose conditions are asked of buckets.
pub(crate) struct Measured<'s> {
    pub time_field: &'s str,
    pub meta_field: Option<&'s str>,
    pub span_s: i64,
    /// How the least and greatest strings were found.
    pub collator: Option<&'s Collator>,
}

/// Why a condition cannot be asked of buckets, in MongoDB's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untold {
    pub why: &'static str,
}

const OTHER: Untold = Untold {
    why: "can't handle this predicate",
};
const NULL: Untold = Untold {
    why: "can't handle {$eq: null}",
};

const MIN: &str = "control.min.";
const MAX: &str = "control.max.";

impl Measured<'_> {
    /// What buckets meet in which measurements do that meet all of these, as far as it can be asked. What
    /// is about metadata alone, or about times alone, is left to who asks for it in its own way.
    pub fn of_conjuncts(&self, conjuncts: &[MatchNode]) -> Vec<MatchNode> {
        let told = |node: &&MatchNode| match node {
            MatchNode::Path { path, .. } => !self.is_meta(path) && !self.is_time(path),
            _ => true,
        };
        let conjuncts = conjuncts.iter().filter(told);
        conjuncts.filter_map(|node| self.weaker(node)).collect()
    }

    /// What can be asked of buckets of a node; `None`: nothing.
    fn weaker(&self, node: &MatchNode) -> Option<MatchNode> {
        match node {
            MatchNode::And(children) => {
                let told: Vec<_> = children.iter().filter_map(|c| self.weaker(c)).collect();
                (!told.is_empty()).then_some(MatchNode::And(told))
            }
            // What one branch says is nothing while another one may be met.
            MatchNode::Or(children) => {
                let told: Option<Vec<_>> = children.iter().map(|c| self.weaker(c)).collect();
                Some(MatchNode::Or(told?))
            }
            // To the ends of the order there are fields that are missing.
            MatchNode::Path {
                predicate: Predicate::Compare(_, RawBson::MinKey | RawBson::MaxKey),
                ..
            } => None,
            node => self.whole(node).ok(),
        }
    }

    /// What buckets meet in which measurements do that meet a node; it says all of it.
    pub fn whole(&self, node: &MatchNode) -> Result<MatchNode, Untold> {
        let each = |children: &[MatchNode]| -> Result<Vec<_>, Untold> {
            children.iter().map(|child| self.whole(child)).collect()
        };
        if let Some(renamed) = self.of_meta(node) {
            return Ok(renamed);
        }
        match node {
            MatchNode::And(children) => Ok(MatchNode::And(each(children)?)),
            MatchNode::Or(children) => Ok(MatchNode::Or(each(children)?)),
            MatchNode::AlwaysFalse => Ok(MatchNode::AlwaysFalse),
            MatchNode::Path { path, predicate } => self.of_field(path, predicate),
            _ => Err(OTHER),
        }
    }

    fn is_meta(&self, path: &Path) -> bool {
        let first = path.parts().first();
        first.is_some_and(|first| Some(&**first) == self.meta_field)
    }

    fn is_time(&self, path: &Path) -> bool {
        matches!(path.parts(), [only] if **only == *self.time_field)
    }

    /// A node that is about metadata and nothing else is one of buckets under another name.
    fn of_meta(&self, node: &MatchNode) -> Option<MatchNode> {
        let each = |children: &[MatchNode]| -> Option<Vec<_>> {
            children.iter().map(|child| self.of_meta(child)).collect()
        };
        match node {
            MatchNode::Nor(children) => each(children).map(MatchNode::Nor),
            MatchNode::Not(child) => Some(MatchNode::Not(Box::new(self.of_meta(child)?))),
            MatchNode::Path {
                predicate: Predicate::ExprCompare(..),
                ..
            } => None,
            MatchNode::Path { path, predicate } if self.is_meta(path) => {
                let rest = path.parts().iter().skip(1);
                let parts = std::iter::once("meta").chain(rest.map(|part| &**part));
                let path = Path::parse(&parts.collect::<Vec<_>>().join("."));
                Some(MatchNode::Path {
                    path: path.ok()?,
                    predicate: predicate.clone(),
                })
            }
            _ => None,
        }
    }

    fn of_field(&self, path: &Path, predicate: &Predicate) -> Result<MatchNode, Untold> {
        if path.parts().iter().any(|part| part.starts_with('$')) {
            return Err(OTHER);
        }
        match predicate {
            Predicate::Compare(comparison, value) => self.of_comparison(path, *comparison, value),
            Predicate::In { values, patterns } => {
                if !patterns.is_empty() {
                    return Err(Untold {
                        why: "can't handle $regex predicate (inside $in predicate)",
                    });
                }
                self.of_values(path, values)
            }
            Predicate::Exists => Ok(MatchNode::And(vec![
                node(at(MIN, path)?, Predicate::Exists),
                node(at(MAX, path)?, Predicate::Exists),
            ])),
            Predicate::Geo(geo) => {
                let column = column(path).ok_or(OTHER)?;
                Ok(node(column, Predicate::InBucket(geo.clone())))
            }
            _ => Err(OTHER),
        }
    }

    fn of_comparison(
        &self,
        path: &Path,
        comparison: Comparison,
        value: &RawBson,
    ) -> Result<MatchNode, Untold> {
        check_operand(value)?;
        if self.is_time(path) {
            let RawBson::DateTime(date) = value else {
                return Err(Untold {
                    why: "This predicate will never be true, because the time field always contains \
                          a Date",
                });
            };
            return self.of_time(path, comparison, *date);
        }
        let extreme = |side, comparison| extreme(side, path, comparison, value);
        match comparison {
            Comparison::Eq => Ok(MatchNode::And(vec![
                extreme(MIN, Comparison::Lte)?,
                extreme(MAX, Comparison::Gte)?,
            ])),
            Comparison::Lt | Comparison::Lte => extreme(MIN, comparison),
            Comparison::Gt | Comparison::Gte => extreme(MAX, comparison),
        }
    }

    /// A bucket that has a time begins and ends within its span of it.
    fn of_time(
        &self,
        path: &Path,
        comparison: Comparison,
        date: DateTime,
    ) -> Result<MatchNode, Untold> {
        let (ms, span_ms) = (date.timestamp_millis(), self.span_s.saturating_mul(1000));
        let asked = |side, comparison, ms| {
            let date = RawBson::DateTime(DateTime::from_millis(ms));
            extreme(side, path, comparison, &date)
        };
        let (earlier, later) = (ms.saturating_sub(span_ms), ms.saturating_add(span_ms));
        let mut told = Vec::new();
        if matches!(
            comparison,
            Comparison::Eq | Comparison::Lt | Comparison::Lte
        ) {
            let comparison = match comparison {
                Comparison::Eq => Comparison::Lte,
                other => other,
            };
            told.push(asked(MIN, comparison, ms)?);
            told.push(asked(MAX, comparison, later)?);
        }
        if matches!(
            comparison,
            Comparison::Eq | Comparison::Gt | Comparison::Gte
        ) {
            let comparison = match comparison {
                Comparison::Eq => Comparison::Gte,
                other => other,
            };
            told.push(asked(MAX, comparison, ms)?);
            told.push(asked(MIN, comparison, earlier)?);
        }
        Ok(MatchNode::And(told))
    }

    /// The least and the greatest of the values of each type are asked for.
    fn of_values(&self, path: &Path, values: &[RawBson]) -> Result<MatchNode, Untold> {
        values.iter().try_for_each(check_operand)?;
        if self.is_time(path) {
            let each = values.iter();
            let each = each.map(|value| self.of_comparison(path, Comparison::Eq, value));
            return each.collect::<Result<_, _>>().map(MatchNode::Or);
        }
        let rank = |value: &RawBson| canonical_rank(&value.as_raw_bson_ref());
        let order = |a: &RawBson, b: &RawBson| -> Ordering {
            compare_collated(a.as_raw_bson_ref(), b.as_raw_bson_ref(), self.collator)
        };
        let mut ranges: Vec<(&RawBson, &RawBson)> = Vec::new();
        for value in values {
            match ranges
                .iter_mut()
                .find(|(least, _)| rank(least) == rank(value))
            {
                None => ranges.push((value, value)),
                Some((least, greatest)) => {
                    if order(value, least).is_lt() {
                        *least = value;
                    }
                    if order(value, greatest).is_gt() {
                        *greatest = value;
                    }
                }
            }
        }
        let range = |(least, greatest): &(&RawBson, &RawBson)| {
            Ok(MatchNode::And(vec![
                extreme(MIN, path, Comparison::Lte, greatest)?,
                extreme(MAX, path, Comparison::Gte, least)?,
            ]))
        };
        match &ranges[..] {
            [] => Ok(MatchNode::AlwaysFalse),
            [one] => range(one),
            several => {
                let each: Result<Vec<_>, Untold> = several.iter().map(range).collect();
                each.map(MatchNode::Or)
            }
        }
    }
}

/// Whether a value has a place between the least and the greatest.
fn check_operand(value: &RawBson) -> Result<(), Untold> {
    match value.as_raw_bson_ref() {
        RawBsonRef::Document(_) | RawBsonRef::Array(_) => Err(Untold {
            why: "operand can't be an object or array",
        }),
        RawBsonRef::Null | RawBsonRef::Undefined => Err(NULL),
        RawBsonRef::RegularExpression(_) => Err(OTHER),
        _ => Ok(()),
    }
}

fn at(side: &str, path: &Path) -> Result<Path, Untold> {
    Path::parse(&format!("{side}{path}")).map_err(|_| OTHER)
}

fn extreme(
    side: &str,
    path: &Path,
    comparison: Comparison,
    value: &RawBson,
) -> Result<MatchNode, Untold> {
    let predicate = Predicate::Extreme(comparison, value.clone());
    Ok(node(at(side, path)?, predicate))
}

fn node(path: Path, predicate: Predicate) -> MatchNode {
    MatchNode::Path { path, predicate }
}
