//! What is said of values that do not follow a schema.

use banyan_document::element::{elements, items};
use banyan_document::path::{Leaf, Path};
use bson::{RawArray, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::considered::Considered;
use super::schema::{Dependency, Needs, Rest, Rule, SchemaNode};
use super::source::never;
use crate::budget::Budget;
use crate::error::QueryError;
use crate::filter::{self, Schema};

/// Schemas, each with its place.
type NumberedNodes<'s> = Vec<(usize, &'s SchemaNode)>;

impl SchemaNode {
    /// What is said of a document that does not match; `inverted`: of one that does, and should not.
    pub fn explain_document(
        &self,
        document: &RawDocument,
        inverted: bool,
    ) -> Result<RawDocumentBuf, QueryError> {
        let mut details = rawdoc! { "operatorName": "$jsonSchema" };
        if inverted {
            details.append(cstr!("reason"), "schema matched");
            return Ok(details);
        }
        if self.is_never {
            return Ok(self.never());
        }
        self.append_names(&mut details);
        let failures = self.failures(&[RawBsonRef::Document(document)])?;
        details.append(cstr!("schemaRulesNotSatisfied"), failures);
        Ok(details)
    }

    fn never(&self) -> RawDocumentBuf {
        let specified_as = rawdoc! { "$jsonSchema": self.source.clone() };
        never("$jsonSchema", &specified_as)
    }

    /// The rules that none of the values follows.
    fn failures(&self, values: &[RawBsonRef<'_>]) -> Result<RawArrayBuf, QueryError> {
        let mut failures = RawArrayBuf::new();
        for rule in &self.rules {
            self.budget.spend(1)?;
            if let Some(details) = rule.explain(values, &self.budget)? {
                failures.push(details);
            }
        }
        Ok(failures)
    }

    fn append_details(
        &self,
        values: &[RawBsonRef<'_>],
        out: &mut RawDocumentBuf,
    ) -> Result<(), QueryError> {
        match self.is_never {
            true => out.append(cstr!("details"), self.never()),
            false => out.append(cstr!("details"), self.failures(values)?),
        }
        Ok(())
    }
}

fn number(index: usize) -> i32 {
    i32::try_from(index).unwrap_or(i32::MAX)
}

fn any_accepted(
    schema: &Schema,
    values: &[RawBsonRef<'_>],
    budget: &Budget,
) -> Result<bool, QueryError> {
    for value in values {
        if schema.accepts(*value, budget)? {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Rule {
    /// What is said of values of which none follows the rule; `None` where one does.
    fn explain(
        &self,
        values: &[RawBsonRef<'_>],
        budget: &Budget,
    ) -> Result<Option<RawDocumentBuf>, QueryError> {
        match self {
            Rule::Keyword {
                keyword,
                specified_as,
                schema,
            } => match any_accepted(schema, values, budget)? {
                true => Ok(None),
                false => keyword.explain(specified_as, values).map(Some),
            },
            Rule::Never(details) => Ok(Some(details.clone())),
            Rule::Schemas(name, schemas) => explain_schemas(name, schemas, values),
            Rule::OneOf(schemas) => explain_one_of(schemas, values),
            Rule::Not(schema) => Ok(any_accepted(schema, values, budget)?.then(|| {
                rawdoc! { "operatorName": "not", "reason": "child expression matched" }
            })),
            _ => {
                for value in values {
                    let details = match value {
                        RawBsonRef::Array(array) => self.explain_array(array, budget)?,
                        RawBsonRef::Document(document) => self.explain_object(document, budget)?,
                        _ => None,
                    };
                    if details.is_some() {
                        return Ok(details);
                    }
                }
                Ok(None)
            }
        }
    }

    fn explain_array(
        &self,
        array: &RawArray,
        budget: &Budget,
    ) -> Result<Option<RawDocumentBuf>, QueryError> {
        match self {
            Rule::UniqueItems { specified_as } => {
                let duplicate = filter::first_duplicate(array, budget)?;
                Ok(duplicate.map(|duplicate| {
                    rawdoc! {
                        "operatorName": "uniqueItems",
                        "specifiedAs": specified_as.clone(),
                        "reason": "found a duplicate item",
                        "consideredValue": array.to_owned(),
                        "duplicatedValue": duplicate,
                    }
                }))
            }
            Rule::Items(schema) => first_failing(
                "items",
                "At least one item did not match the sub-schema",
                schema,
                array,
                0,
            ),
            Rule::ItemsByPlace(schemas) => {
                let mut failing = RawArrayBuf::new();
                for (index, (schema, item)) in schemas.iter().zip(items(array)).enumerate() {
                    if !schema.accepts(item.value())? {
                        let mut line = rawdoc! { "itemIndex": i64::from(number(index)) };
                        schema.append_details(&[item.value()], &mut line)?;
                        failing.push(line);
                    }
                }
                let details = rawdoc! { "operatorName": "items", "details": failing.clone() };
                Ok((!failing.is_empty()).then_some(details))
            }
            Rule::OtherItems(known, Rest::None) => {
                let others: RawArrayBuf = items(array)
                    .skip(*known)
                    .map(|item| bson::RawBson::from(item.value()))
                    .collect();
                let details = rawdoc! {
                    "operatorName": "additionalItems",
                    "specifiedAs": { "additionalItems": false },
                    "reason": "found additional items",
                    "additionalItems": others.clone(),
                };
                Ok((!others.is_empty()).then_some(details))
            }
            Rule::OtherItems(known, Rest::Like(schema)) => first_failing(
                "additionalItems",
                "At least one additional item did not match the sub-schema",
                schema,
                array,
                *known,
            ),
            _ => Ok(None),
        }
    }

    fn explain_object(
        &self,
        document: &RawDocument,
        budget: &Budget,
    ) -> Result<Option<RawDocumentBuf>, QueryError> {
        match self {
            Rule::Properties(properties) => explain_properties(properties, document),
            Rule::OtherProperties {
                named,
                patterns,
                rest,
            } => explain_others(named, patterns, rest, document, budget),
            Rule::PatternProperties(patterns) => explain_patterns(patterns, document, budget),
            Rule::Required {
                specified_as,
                names,
            } => {
                let missing = missing(names, document, budget)?;
                let details = rawdoc! {
                    "operatorName": "required",
                    "specifiedAs": specified_as.clone(),
                    "missingProperties": missing.clone(),
                };
                Ok((!missing.is_empty()).then_some(details))
            }
            Rule::Dependencies(dependencies) => {
                explain_dependencies(dependencies, document, budget)
            }
            _ => Ok(None),
        }
    }
}

/// The first item from a place on that a schema does not accept.
fn first_failing(
    name: &str,
    reason: &str,
    schema: &SchemaNode,
    array: &RawArray,
    from: usize,
) -> Result<Option<RawDocumentBuf>, QueryError> {
    for (index, item) in items(array).enumerate().skip(from) {
        if schema.accepts(item.value())? {
            continue;
        }
        let mut details = rawdoc! { "operatorName": name };
        schema.append_names(&mut details);
        details.append(cstr!("reason"), reason);
        details.append(cstr!("itemIndex"), number(index));
        schema.append_details(&[item.value()], &mut details)?;
        return Ok(Some(details));
    }
    Ok(None)
}

fn explain_properties(
    properties: &[(String, Path, SchemaNode)],
    document: &RawDocument,
) -> Result<Option<RawDocumentBuf>, QueryError> {
    let mut failing = RawArrayBuf::new();
    for (name, path, schema) in properties {
        let values = Considered::at(document, path, Leaf::Whole).values;
        let mut is_met = values.is_empty();
        for value in &values {
            is_met = is_met || schema.accepts(*value)?;
        }
        if is_met {
            continue;
        }
        let mut line = rawdoc! { "propertyName": name.as_str() };
        schema.append_names(&mut line);
        schema.append_details(&values, &mut line)?;
        failing.push(line);
    }
    let details = rawdoc! {
        "operatorName": "properties", "propertiesNotSatisfied": failing.clone(),
    };
    Ok((!failing.is_empty()).then_some(details))
}

fn explain_others(
    named: &[String],
    patterns: &[Schema],
    rest: &Rest,
    document: &RawDocument,
    budget: &Budget,
) -> Result<Option<RawDocumentBuf>, QueryError> {
    let mut others = RawArrayBuf::new();
    for element in elements(document) {
        budget.spend(1 + named.len() / 8)?;
        let name = RawBsonRef::String(element.name());
        let mut is_known = named.iter().any(|known| known == element.name());
        for pattern in patterns {
            is_known = is_known || pattern.accepts(name, budget)?;
        }
        match rest {
            _ if is_known => {}
            Rest::None => others.push(element.name()),
            Rest::Like(schema) => {
                if !schema.accepts(element.value())? {
                    let mut details = rawdoc! { "operatorName": "additionalProperties" };
                    schema.append_names(&mut details);
                    let reason = "at least one additional property did not match the subschema";
                    details.append(cstr!("reason"), reason);
                    details.append(cstr!("failingProperty"), element.name());
                    schema.append_details(&[element.value()], &mut details)?;
                    return Ok(Some(details));
                }
            }
        }
    }
    let details = rawdoc! {
        "operatorName": "additionalProperties",
        "specifiedAs": { "additionalProperties": false },
        "additionalProperties": others.clone(),
    };
    Ok((!others.is_empty()).then_some(details))
}

/// Of each pattern the first field that it matches and its schema does not accept.
fn explain_patterns(
    patterns: &[(String, Schema, SchemaNode)],
    document: &RawDocument,
    budget: &Budget,
) -> Result<Option<RawDocumentBuf>, QueryError> {
    let mut failing = RawArrayBuf::new();
    for (source, names, schema) in patterns {
        for element in elements(document) {
            budget.spend(1)?;
            if !names.accepts(RawBsonRef::String(element.name()), budget)?
                || schema.accepts(element.value())?
            {
                continue;
            }
            let mut line = rawdoc! { "propertyName": element.name() };
            schema.append_names(&mut line);
            line.append(cstr!("regexMatched"), source.as_str());
            schema.append_details(&[element.value()], &mut line)?;
            failing.push(line);
            break;
        }
    }
    let details = rawdoc! { "operatorName": "patternProperties", "details": failing.clone() };
    Ok((!failing.is_empty()).then_some(details))
}

fn missing(
    names: &[(String, Schema)],
    document: &RawDocument,
    budget: &Budget,
) -> Result<RawArrayBuf, QueryError> {
    let mut missing = RawArrayBuf::new();
    for (name, presence) in names {
        if !presence.accepts(RawBsonRef::Document(document), budget)? {
            missing.push(name.as_str());
        }
    }
    Ok(missing)
}

fn explain_dependencies(
    dependencies: &[Dependency],
    document: &RawDocument,
    budget: &Budget,
) -> Result<Option<RawDocumentBuf>, QueryError> {
    let mut failing = RawArrayBuf::new();
    let whole = RawBsonRef::Document(document);
    for dependency in dependencies {
        if !dependency.is_there.accepts(whole, budget)? {
            continue;
        }
        let mut line = rawdoc! { "conditionalProperty": dependency.property.as_str() };
        match &dependency.needs {
            Needs::Properties(names) => {
                let missing = missing(names, document, budget)?;
                if missing.is_empty() {
                    continue;
                }
                line.append(cstr!("missingProperties"), missing);
            }
            Needs::Schema(schema) => {
                if schema.accepts(whole)? {
                    continue;
                }
                schema.append_details(&[whole], &mut line)?;
            }
        }
        failing.push(line);
    }
    let details = rawdoc! {
        "operatorName": "dependencies", "failingDependencies": failing.clone(),
    };
    Ok((!failing.is_empty()).then_some(details))
}

/// The schemas that accept none of the values, and the places of those that accept one.
fn refusing<'s>(
    schemas: &'s [SchemaNode],
    values: &[RawBsonRef<'_>],
) -> Result<(NumberedNodes<'s>, Vec<usize>), QueryError> {
    let (mut refusing, mut accepting) = (Vec::new(), Vec::new());
    for (index, schema) in schemas.iter().enumerate() {
        match any_accepted(&schema.schema, values, &schema.budget)? {
            true => accepting.push(index),
            false => refusing.push((index, schema)),
        }
    }
    Ok((refusing, accepting))
}

fn list_refusing(
    name: &str,
    refusing: &[(usize, &SchemaNode)],
    values: &[RawBsonRef<'_>],
) -> Result<RawDocumentBuf, QueryError> {
    let mut listed = RawArrayBuf::new();
    for (index, schema) in refusing {
        let mut line = rawdoc! { "index": number(*index) };
        schema.append_names(&mut line);
        schema.append_details(values, &mut line)?;
        listed.push(line);
    }
    Ok(rawdoc! { "operatorName": name, "schemasNotSatisfied": listed })
}

fn explain_schemas(
    name: &str,
    schemas: &[SchemaNode],
    values: &[RawBsonRef<'_>],
) -> Result<Option<RawDocumentBuf>, QueryError> {
    let (refusing, accepting) = refusing(schemas, values)?;
    let is_met = match name {
        "allOf" => refusing.is_empty(),
        _ => !accepting.is_empty(),
    };
    match is_met {
        true => Ok(None),
        false => list_refusing(name, &refusing, values).map(Some),
    }
}

fn explain_one_of(
    schemas: &[SchemaNode],
    values: &[RawBsonRef<'_>],
) -> Result<Option<RawDocumentBuf>, QueryError> {
    let (refusing, accepting) = refusing(schemas, values)?;
    match accepting.len() {
        0 => list_refusing("oneOf", &refusing, values).map(Some),
        1 => Ok(None),
        _ => {
            let indexes = accepting.into_iter().map(number);
            Ok(Some(rawdoc! {
                "operatorName": "oneOf",
                "reason": "more than one subschema matched",
                "matchingSchemaIndexes": RawArrayBuf::from_iter(indexes),
            }))
        }
    }
}
