//! The operators of a field: `{path: {$gt: 1, $lt: 5}}`.

use std::cell::OnceCell;

use banyan_document::element::{Element, elements, items};
use banyan_document::kind;
use banyan_document::number::{Number, Rounding};
use banyan_document::path::Path;
use banyan_geo::near::is_near;
use banyan_geo::parse::Relation;
use bson::{RawArray, RawBson, RawBsonRef, RawDocument};

use super::bits::{BitTest, Bits};
use super::geo::{Geo, GeoNear};
use super::parse;
use super::parse::{Parser, bad, equality, is_operators};
use super::tree::{MatchNode, Predicate};
use super::type_set::TypeSet;
use crate::comparison::Comparison;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{describe, is_true};
use crate::pattern::{Compiler, Pattern};

/// An operator on a field: its name, and what it makes of its operand. `None`: it belongs to
/// another one.
struct Operator {
    name: &'static str,
    parse: for<'d> fn(&At<'_, 'd>, &Element<'d>) -> Result<Option<MatchNode>, QueryError>,
    /// Whether it is known as an operator wherever a value could stand, too.
    begins_condition: bool,
}

/// The operators of a field. How one matches, is shown and narrows a search is up to the
/// [`Predicate`] that it makes.
static OPERATORS: &[Operator] = &[
    row("$eq", |at, element| at.test(equality(element.value())?)),
    row("$ne", |at, element| {
        if matches!(element.value(), RawBsonRef::RegularExpression(_)) {
            return Err(bad("Can't have regex as arg to $ne."));
        }
        at.negation(equality(element.value())?)
    }),
    row("$lt", |at, element| at.range(Comparison::Lt, element)),
    row("$lte", |at, element| at.range(Comparison::Lte, element)),
    row("$gt", |at, element| at.range(Comparison::Gt, element)),
    row("$gte", |at, element| at.range(Comparison::Gte, element)),
    row("$_internalExprEq", |at, element| {
        at.extreme(Comparison::Eq, element)
    }),
    row("$_internalExprLt", |at, element| {
        at.extreme(Comparison::Lt, element)
    }),
    row("$_internalExprLte", |at, element| {
        at.extreme(Comparison::Lte, element)
    }),
    row("$_internalExprGt", |at, element| {
        at.extreme(Comparison::Gt, element)
    }),
    row("$_internalExprGte", |at, element| {
        at.extreme(Comparison::Gte, element)
    }),
    row("$in", |at, element| {
        at.test(one_of("$in", element.value(), at.parser)?)
    }),
    row("$nin", |at, element| {
        at.negation(one_of("$nin", element.value(), at.parser)?)
    }),
    row("$exists", |at, element| {
        match is_true(Some(element.value())) {
            true => at.test(Predicate::Exists),
            false => at.negation(Predicate::Exists),
        }
    }),
    row("$type", |at, element| {
        at.test(Predicate::Type(types(at, element.value())?))
    }),
    row("$size", |at, element| {
        at.test(Predicate::Size(size(element)?))
    }),
    row("$mod", |at, element| at.test(modulo(element.value())?)),
    row("$regex", |at, element| {
        let pattern = regex(element.value(), at.siblings, &at.parser.patterns)?;
        at.test(Predicate::Regex(pattern))
    }),
    row("$options", |at, _| {
        let mut siblings = elements(at.siblings.document);
        match siblings.any(|sibling| sibling.name() == "$regex") {
            true => Ok(None),
            false => Err(bad("$options needs a $regex")),
        }
    }),
    within("$not", |at, element| {
        at.parser.not(at.path, element.value()).map(Some)
    }),
    row("$all", |at, element| {
        at.parser.all(at.path, element.value()).map(Some)
    }),
    row("$elemMatch", |at, element| {
        at.parser.elem_match(at.path, element.value()).map(Some)
    }),
    row("$bitsAllSet", |at, element| {
        at.bits(BitTest::AllSet, element)
    }),
    row("$bitsAllClear", |at, element| {
        at.bits(BitTest::AllClear, element)
    }),
    row("$bitsAnySet", |at, element| {
        at.bits(BitTest::AnySet, element)
    }),
    row("$bitsAnyClear", |at, element| {
        at.bits(BitTest::AnyClear, element)
    }),
    within("$where", |_, _| {
        Err(bad("$where cannot be applied to a field"))
    }),
    row("$near", near),
    row("$nearSphere", near),
    row("$geoNear", near),
    row("$geoWithin", |at, _| at.geo(Relation::Within)),
    row("$within", |at, _| at.geo(Relation::Within)),
    row("$geoIntersects", |at, _| at.geo(Relation::Intersects)),
];

type Parse = for<'d> fn(&At<'_, 'd>, &Element<'d>) -> Result<Option<MatchNode>, QueryError>;

const fn row(name: &'static str, parse: Parse) -> Operator {
    Operator {
        name,
        parse,
        begins_condition: true,
    }
}

/// One that only counts where there are operators for certain.
const fn within(name: &'static str, parse: Parse) -> Operator {
    Operator {
        name,
        parse,
        begins_condition: false,
    }
}

/// One that stands first has taken its siblings with it.
fn near(_: &At<'_, '_>, element: &Element<'_>) -> Result<Option<MatchNode>, QueryError> {
    Err(bad(format!("near must be first in: {}", element.name())))
}

/// Whether a document begins with an operator on a field, where values may begin with other names.
pub(crate) fn begins_with_operator(document: &RawDocument) -> bool {
    let first = elements(document).next();
    let name = first.as_ref().map_or("", Element::name);
    let mut operators = OPERATORS.iter();
    operators.any(|operator| operator.begins_condition && operator.name == name)
}

/// Where an operator stands.
struct At<'p, 'd> {
    parser: &'p Parser<'p>,
    path: &'p Path,
    siblings: &'p Siblings<'d>,
}

impl At<'_, '_> {
    fn node(&self, predicate: Predicate) -> MatchNode {
        MatchNode::Path {
            path: self.path.clone(),
            predicate,
        }
    }

    fn test(&self, predicate: Predicate) -> Result<Option<MatchNode>, QueryError> {
        Ok(Some(self.node(predicate)))
    }

    fn negation(&self, predicate: Predicate) -> Result<Option<MatchNode>, QueryError> {
        Ok(Some(MatchNode::Not(Box::new(self.node(predicate)))))
    }

    fn range(
        &self,
        op: Comparison,
        element: &Element<'_>,
    ) -> Result<Option<MatchNode>, QueryError> {
        self.test(range(self.path, op, element.value())?)
    }

    fn extreme(
        &self,
        comparison: Comparison,
        element: &Element<'_>,
    ) -> Result<Option<MatchNode>, QueryError> {
        match element.value() {
            RawBsonRef::Undefined | RawBsonRef::Array(_) | RawBsonRef::RegularExpression(_) => {
                let kind = kind::name(&element.value());
                Err(bad(format!("{} cannot compare to {kind}", element.name())))
            }
            value => self.test(Predicate::Extreme(comparison, value.into())),
        }
    }

    fn geo(&self, relation: Relation) -> Result<Option<MatchNode>, QueryError> {
        let operators = self.siblings.document;
        let geo = Geo::parse(relation, operators, self.parser.budget())?;
        self.test(Predicate::Geo(geo))
    }

    fn bits(&self, test: BitTest, element: &Element<'_>) -> Result<Option<MatchNode>, QueryError> {
        self.test(bits(self, test, element)?)
    }
}

/// The operators that stand beside one another at a path.
struct Siblings<'d> {
    document: &'d RawDocument,
    /// What `$options` says, once `$regex` has asked.
    options: OnceCell<Option<RawBsonRef<'d>>>,
}

impl<'d> Siblings<'d> {
    fn options(&self) -> Result<Option<&'d str>, QueryError> {
        let options = self.options.get_or_init(|| {
            let found = elements(self.document).filter(|element| element.name() == "$options");
            found.last().map(|element| element.value())
        });
        match options {
            None => Ok(None),
            Some(RawBsonRef::String(text)) => Ok(Some(*text)),
            Some(_) => Err(bad("$options has to be a string")),
        }
    }
}

/// Whether the first operator is one that those beside it belong to: `{$near: ..., $maxDistance: 1}`.
fn takes_siblings(document: &RawDocument) -> bool {
    elements(document).next().is_some_and(|first| {
        let has_operand = matches!(
            first.value(),
            RawBsonRef::Document(_) | RawBsonRef::Array(_)
        );
        has_operand && is_near(first.name())
    })
}

impl Parser<'_> {
    pub(super) fn operators(
        &self,
        path: &Path,
        document: &RawDocument,
        children: &mut Vec<MatchNode>,
    ) -> Result<(), QueryError> {
        if takes_siblings(document) {
            if !self.may_order {
                let message = "$geoNear, $near, and $nearSphere are not allowed in this context";
                return Err(QueryError::new(ErrorKind::Location(5_626_500), message));
            }
            let near = GeoNear::parse(document, self.budget())?;
            children.push(MatchNode::Path {
                path: path.clone(),
                predicate: Predicate::Near(Box::new(near)),
            });
            return Ok(());
        }
        let siblings = Siblings {
            document,
            options: OnceCell::new(),
        };
        let at = At {
            parser: self,
            path,
            siblings: &siblings,
        };
        for element in elements(document) {
            self.spend()?;
            let name = element.name();
            let operator = OPERATORS.iter().find(|operator| operator.name == name);
            let operator = operator.ok_or_else(|| bad(format!("unknown operator: {name}")))?;
            children.extend((operator.parse)(&at, &element)?);
        }
        Ok(())
    }

    fn not(&self, path: &Path, value: RawBsonRef<'_>) -> Result<MatchNode, QueryError> {
        let inner = match value {
            RawBsonRef::RegularExpression(pattern) => {
                let (pattern, options) = (pattern.pattern.as_str(), pattern.options.as_str());
                let pattern = self.patterns.compile(pattern, options)?;
                MatchNode::Path {
                    path: path.clone(),
                    predicate: Predicate::Regex(pattern),
                }
            }
            RawBsonRef::Document(document) if document.is_empty() => {
                return Err(bad("$not cannot be empty"));
            }
            RawBsonRef::Document(document) => {
                let mut children = Vec::new();
                self.operators(path, document, &mut children)?;
                MatchNode::And(children)
            }
            _ => return Err(bad("$not needs a regex or a document")),
        };
        Ok(MatchNode::Not(Box::new(inner)))
    }

    fn all(&self, path: &Path, value: RawBsonRef<'_>) -> Result<MatchNode, QueryError> {
        let RawBsonRef::Array(array) = value else {
            return Err(bad("$all needs an array"));
        };
        let first_name = |value: RawBsonRef<'_>| {
            let document = value.as_document()?;
            elements(document)
                .next()
                .map(|element| element.name().to_string())
        };
        let elem_match = |value| first_name(value).is_some_and(|name| name == "$elemMatch");
        let matchers = items(array)
            .next()
            .is_some_and(|item| elem_match(item.value()));
        let mut children = Vec::new();
        for item in items(array) {
            self.spend()?;
            let value = item.value();
            if matchers {
                let Some(document) = value.as_document().filter(|_| elem_match(value)) else {
                    return Err(bad("$all/$elemMatch has to be consistent"));
                };
                self.operators(path, document, &mut children)?;
                continue;
            }
            let predicate = match value {
                RawBsonRef::RegularExpression(regex) => {
                    let (pattern, options) = (regex.pattern.as_str(), regex.options.as_str());
                    Predicate::Regex(self.patterns.compile(pattern, options)?)
                }
                RawBsonRef::Document(document) if begins_with_operator(document) => {
                    return Err(bad("no $ expressions in $all"));
                }
                other => equality(other)?,
            };
            children.push(MatchNode::Path {
                path: path.clone(),
                predicate,
            });
        }
        Ok(if children.is_empty() {
            MatchNode::AlwaysFalse
        } else {
            MatchNode::And(children)
        })
    }

    fn elem_match(&self, path: &Path, value: RawBsonRef<'_>) -> Result<MatchNode, QueryError> {
        let RawBsonRef::Document(document) = value else {
            return Err(bad("$elemMatch needs an Object"));
        };
        let first = elements(document).next();
        let pathless = first.is_some_and(|first| parse::is_pathless(first.name()));
        let predicate = if is_operators(document, true) && !pathless {
            let mut children = Vec::new();
            self.nested()
                .operators(&Path::field(""), document, &mut children)?;
            Predicate::ElemMatchValue(Box::new(MatchNode::And(children)))
        } else {
            Predicate::ElemMatchObject(Box::new(self.nested().document(document)?))
        };
        Ok(MatchNode::Path {
            path: path.clone(),
            predicate,
        })
    }
}

fn range(path: &Path, op: Comparison, value: RawBsonRef<'_>) -> Result<Predicate, QueryError> {
    match value {
        RawBsonRef::RegularExpression(_) => Err(bad(format!(
            "Can't have RegEx as arg to predicate over field '{path}'."
        ))),
        RawBsonRef::Undefined => Err(bad("cannot compare to undefined")),
        other => Ok(Predicate::Compare(op, RawBson::from(other))),
    }
}

fn one_of(
    operator: &str,
    value: RawBsonRef<'_>,
    parser: &Parser<'_>,
) -> Result<Predicate, QueryError> {
    let RawBsonRef::Array(array) = value else {
        return Err(bad(format!("{operator} needs an array")));
    };
    let mut values = Vec::new();
    let mut patterns = Vec::new();
    for item in items(array) {
        parser.spend()?;
        match item.value() {
            RawBsonRef::RegularExpression(regex) => {
                let (pattern, options) = (regex.pattern.as_str(), regex.options.as_str());
                patterns.push(parser.patterns.compile(pattern, options)?);
            }
            RawBsonRef::Document(document) if is_operators(document, false) => {
                return Err(bad(format!("cannot nest $ under {operator}")));
            }
            RawBsonRef::Undefined => {
                return Err(bad("InMatchExpression equality cannot be undefined"));
            }
            other => values.push(RawBson::from(other)),
        }
    }
    Ok(Predicate::In { values, patterns })
}

fn types(at: &At<'_, '_>, value: RawBsonRef<'_>) -> Result<TypeSet, QueryError> {
    let mut set = TypeSet::default();
    match value {
        RawBsonRef::Array(array) => {
            for item in items(array) {
                at.parser.spend()?;
                add_type(item.value(), &mut set)?;
            }
        }
        one => add_type(one, &mut set)?,
    }
    if set.types.is_empty() && !set.numbers {
        let message = format!("{} must match at least one type", at.path);
        return Err(QueryError::new(ErrorKind::FailedToParse, message));
    }
    Ok(set)
}

pub(super) fn add_type(value: RawBsonRef<'_>, set: &mut TypeSet) -> Result<(), QueryError> {
    if let RawBsonRef::String(name) = value {
        if name == "number" {
            set.numbers = true;
            return Ok(());
        }
        let kind = kind::by_name(name);
        set.insert(kind.ok_or_else(|| bad(format!("Unknown type name alias: {name}")))?);
        return Ok(());
    }
    let Some(number) = Number::from_raw(value) else {
        let message = "type must be represented as a number or a string";
        return Err(QueryError::new(ErrorKind::TypeMismatch, message));
    };
    let kind = number.to_i32_exact().and_then(kind::by_number);
    let unknown = || {
        bad(format!(
            "Invalid numerical type code: {}",
            describe(Some(value))
        ))
    };
    set.insert(kind.ok_or_else(unknown)?);
    Ok(())
}

fn size(element: &Element<'_>) -> Result<i64, QueryError> {
    let shown = show(element);
    let fail = |what: String| bad(format!("Failed to parse $size. {what}"));
    let number = Number::from_raw(element.value())
        .ok_or_else(|| fail(format!("Expected a number in: {shown}")))?;
    let size = number
        .to_i64_exact()
        .ok_or_else(|| fail(format!("Expected an integer: {shown}")))?;
    if i32::try_from(size).is_err() {
        return Err(fail(format!("Cannot represent {shown} in an int")));
    }
    if size < 0 {
        return Err(fail(format!("Expected a non-negative number in: {shown}")));
    }
    Ok(size)
}

fn modulo(value: RawBsonRef<'_>) -> Result<Predicate, QueryError> {
    let RawBsonRef::Array(array) = value else {
        return Err(bad("malformed mod, needs to be an array"));
    };
    let operands: Vec<_> = items(array).map(|item| item.value()).collect();
    let (divisor, remainder) = match operands[..] {
        [divisor, remainder] => (divisor, remainder),
        [] | [_] => return Err(bad("malformed mod, not enough elements")),
        _ => return Err(bad("malformed mod, too many elements")),
    };
    let divisor = whole("divisor", divisor)?;
    if divisor == 0 {
        return Err(bad("divisor cannot be 0"));
    }
    Ok(Predicate::Mod {
        divisor,
        remainder: whole("remainder", remainder)?,
    })
}

/// An operand of `$mod`, its fraction cut off.
fn whole(name: &str, value: RawBsonRef<'_>) -> Result<i64, QueryError> {
    let number = Number::from_raw(value)
        .ok_or_else(|| bad(format!("malformed mod, {name} not a number")))?;
    let invalid = |why: &str| {
        bad(format!(
            "malformed mod, {name} value is invalid :: caused by :: {why}"
        ))
    };
    if number.is_nan() || number.is_infinite() {
        return Err(invalid("Unable to coerce NaN/Inf to integral type"));
    }
    let whole = match number {
        Number::Decimal(v) => Number::Decimal(v.round_to(0, Rounding::Truncate)),
        Number::Double(v) => Number::Double(v.trunc()),
        integer => integer,
    };
    if whole.to_i64_exact().is_none() {
        return Err(invalid("Out of bounds coercing to integral value"));
    }
    Ok(number.to_i64_saturating())
}

fn regex(
    value: RawBsonRef<'_>,
    siblings: &Siblings<'_>,
    compiler: &Compiler,
) -> Result<Pattern, QueryError> {
    let options = siblings.options()?;
    match value {
        RawBsonRef::String(pattern) => compiler.compile(pattern, options.unwrap_or("")),
        RawBsonRef::RegularExpression(regex) => {
            let own = regex.options.as_str();
            if !own.is_empty() && options.is_some() {
                let message = "options set in both $regex and $options";
                return Err(QueryError::new(ErrorKind::Location(51075), message));
            }
            compiler.compile(regex.pattern.as_str(), options.unwrap_or(own))
        }
        _ => Err(bad("$regex has to be a string")),
    }
}

fn bits(at: &At<'_, '_>, test: BitTest, element: &Element<'_>) -> Result<Predicate, QueryError> {
    let positions = match element.value() {
        RawBsonRef::Array(array) => bit_positions(array, at.parser)?,
        RawBsonRef::Binary(binary) => set_bits(&crate::binary::bytes(binary), at.parser)?,
        value => match Number::from_raw(value) {
            Some(number) => set_bits(&mask(number, element)?.to_le_bytes(), at.parser)?,
            None => {
                return Err(bad(format!(
                    "{} takes an Array, a number, or a BinData but received: {}",
                    at.path,
                    show(element)
                )));
            }
        },
    };
    Ok(Predicate::Bits(Bits { test, positions }))
}

fn mask(number: Number, element: &Element<'_>) -> Result<i64, QueryError> {
    let fail = |what: String| QueryError::new(ErrorKind::FailedToParse, what);
    let mask = number
        .to_i64_exact()
        .ok_or_else(|| fail(format!("Expected an integer: {}", show(element))))?;
    if mask < 0 {
        return Err(fail(format!(
            "Expected a non-negative number in: {}",
            show(element)
        )));
    }
    Ok(mask)
}

fn set_bits(bytes: &[u8], parser: &Parser<'_>) -> Result<Vec<u32>, QueryError> {
    let mut positions = Vec::new();
    for (byte, first) in bytes.iter().zip((0..).step_by(8)) {
        parser.spend()?;
        positions.extend((first..first + 8).filter(|at| byte >> (at % 8) & 1 == 1));
    }
    Ok(positions)
}

fn bit_positions(array: &RawArray, parser: &Parser<'_>) -> Result<Vec<u32>, QueryError> {
    let mut positions = Vec::new();
    for item in items(array) {
        parser.spend()?;
        let fail = |what: &str| {
            bad(format!(
                "Failed to parse bit position. {what}: {}",
                show(&item)
            ))
        };
        let number = Number::from_raw(item.value()).ok_or_else(|| fail("Expected a number in"))?;
        let position = number
            .to_i64_exact()
            .ok_or_else(|| fail("Expected an integer"))?;
        if position < 0 {
            return Err(fail("Expected a non-negative number in"));
        }
        let position = i32::try_from(position).map_err(|_| fail("Cannot represent"))?;
        positions.push(position.unsigned_abs());
    }
    Ok(positions)
}

/// A field as messages show it: `$size: "a"`.
fn show(element: &Element<'_>) -> String {
    format!("{}: {}", element.name(), describe(Some(element.value())))
}
