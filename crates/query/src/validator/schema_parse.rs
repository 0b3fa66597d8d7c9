//! From a schema's document to its rules.

use banyan_document::element::{elements, items};
use bson::{RawArray, RawBsonRef, RawDocument, rawdoc};

use super::keyword::{About, Keyword};
use super::schema::{Dependency, Needs, Rest, Rule, SchemaNode};
use super::source::{never, written};
use crate::context::Context;
use crate::error::QueryError;
use crate::filter::{self, Schema};

/// The keywords that are rules, in the order in which failures are told.
const ORDER: [&str; 24] = [
    "multipleOf",
    "maximum",
    "minimum",
    "pattern",
    "maxLength",
    "minLength",
    "minItems",
    "maxItems",
    "uniqueItems",
    "items",
    "properties",
    "additionalProperties",
    "patternProperties",
    "required",
    "minProperties",
    "maxProperties",
    "dependencies",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "enum",
    "type",
    "bsonType",
];

impl SchemaNode {
    /// `at_top`: of whole documents.
    pub fn parse(
        source: &RawDocument,
        at_top: bool,
        context: &Context,
    ) -> Result<SchemaNode, QueryError> {
        let text = |name| source.get_str(name).ok().map(str::to_owned);
        let stated = ["type", "bsonType"]
            .into_iter()
            .find_map(|name| Some((name, source.get(name).ok()??)));
        // One type alone says which keywords are about nothing.
        let is_single = match stated {
            Some((_, RawBsonRef::Array(types))) => types.into_iter().count() == 1,
            _ => true,
        };
        let stated = stated
            .map(|(name, value)| Schema::of(&written(name, value)?, at_top, context))
            .transpose()?;
        let mut parser = Parser {
            source,
            at_top,
            stated: stated.as_ref().filter(|_| is_single),
            context,
            rules: Vec::new(),
        };
        for name in ORDER {
            if let Ok(Some(value)) = source.get(name) {
                parser.rule(name, value)?;
            }
        }
        if let Ok(Some(value)) = source.get("encrypt") {
            parser.rule("encrypt", value)?;
        }
        let rules = parser.rules;
        let object = match &stated {
            Some(stated) => About::Objects.meets(stated)?,
            None => true,
        };
        let encrypts = source.get("encrypt").is_ok_and(|value| value.is_some());
        Ok(SchemaNode {
            title: text("title"),
            description: text("description"),
            source: source.to_owned(),
            schema: Schema::of(source, at_top, context)?,
            is_never: at_top && (!object || encrypts),
            rules,
            budget: context.budget.clone(),
        })
    }
}

/// What a schema is read in.
struct Parser<'a> {
    source: &'a RawDocument,
    at_top: bool,
    stated: Option<&'a Schema>,
    context: &'a Context,
    rules: Vec<Rule>,
}

impl Parser<'_> {
    /// Whether what a keyword is about can be of the types that the schema states.
    fn may_be(&self, about: About) -> Result<bool, QueryError> {
        self.stated.map_or(Ok(true), |stated| about.meets(stated))
    }

    fn rule(&mut self, name: &'static str, value: RawBsonRef<'_>) -> Result<(), QueryError> {
        if let Some(keyword) = Keyword::of(name) {
            return self.keyword(keyword, value);
        }
        let about = match name {
            "uniqueItems" | "items" => About::Arrays,
            "properties" | "additionalProperties" | "patternProperties" | "required" => {
                About::Objects
            }
            _ => About::All,
        };
        if !self.may_be(about)? {
            return Ok(());
        }
        match (name, value) {
            ("uniqueItems", RawBsonRef::Boolean(true)) => self.rules.push(Rule::UniqueItems {
                specified_as: written(name, value)?,
            }),
            ("items", RawBsonRef::Document(schema)) => {
                let schema = Box::new(self.inner(schema)?);
                self.rules.push(Rule::Items(schema));
            }
            ("items", RawBsonRef::Array(schemas)) => self.items_by_place(schemas)?,
            ("properties", RawBsonRef::Document(named)) => {
                let mut properties = Vec::new();
                for element in elements(named) {
                    if let RawBsonRef::Document(schema) = element.value() {
                        let path = filter::path_of(element.name())?;
                        properties.push((element.name().to_owned(), path, self.inner(schema)?));
                    }
                }
                self.rules.push(Rule::Properties(properties));
            }
            ("additionalProperties", value) => self.other_properties(value)?,
            ("patternProperties", RawBsonRef::Document(named)) => {
                let mut patterns = Vec::new();
                for element in elements(named) {
                    if let RawBsonRef::Document(schema) = element.value() {
                        let names = self.pattern(element.name())?;
                        patterns.push((element.name().to_owned(), names, self.inner(schema)?));
                    }
                }
                self.rules.push(Rule::PatternProperties(patterns));
            }
            ("required", RawBsonRef::Array(names)) => {
                let mut names = self.names(names)?;
                names.sort_by(|a, b| a.0.cmp(&b.0));
                let specified_as = written(name, value)?;
                self.rules.push(Rule::Required {
                    specified_as,
                    names,
                });
            }
            ("dependencies", RawBsonRef::Document(named)) => self.dependencies(named)?,
            ("allOf" | "anyOf", RawBsonRef::Array(schemas)) => {
                let schemas = self.schemas(schemas)?;
                self.rules.push(Rule::Schemas(name, schemas));
            }
            ("oneOf", RawBsonRef::Array(schemas)) => {
                let schemas = self.schemas(schemas)?;
                self.rules.push(Rule::OneOf(schemas));
            }
            ("not", RawBsonRef::Document(schema)) => {
                let schema = Schema::of(schema, self.at_top, self.context)?;
                self.rules.push(Rule::Not(schema));
            }
            _ => {}
        }
        Ok(())
    }

    fn keyword(
        &mut self,
        keyword: &'static Keyword,
        value: RawBsonRef<'_>,
    ) -> Result<(), QueryError> {
        if !self.may_be(keyword.about)? {
            return Ok(());
        }
        let mut specified_as = written(keyword.name, value)?;
        if let Some(name) = keyword.with
            && let Ok(Some(with @ RawBsonRef::Boolean(true))) = self.source.get(name)
        {
            for (name, value) in written(name, with)?.iter().flatten() {
                specified_as.append(name, value);
            }
        }
        // No document is any of these.
        let is_never = |values: &RawArray| {
            !items(values).any(|item| matches!(item.value(), RawBsonRef::Document(_)))
        };
        if self.at_top && keyword.name == "enum" && value.as_array().is_some_and(is_never) {
            self.rules
                .push(Rule::Never(never(keyword.name, &specified_as)));
            return Ok(());
        }
        self.rules.push(Rule::Keyword {
            keyword,
            schema: Schema::of(&specified_as, self.at_top, self.context)?,
            specified_as,
        });
        Ok(())
    }

    /// The schema of a value inside.
    fn inner(&self, schema: &RawDocument) -> Result<SchemaNode, QueryError> {
        SchemaNode::parse(schema, false, self.context)
    }

    /// Schemas of the same value.
    fn schemas(&self, schemas: &RawArray) -> Result<Vec<SchemaNode>, QueryError> {
        let schemas = items(schemas).filter_map(|item| match item.value() {
            RawBsonRef::Document(schema) => Some(schema),
            _ => None,
        });
        schemas
            .map(|schema| SchemaNode::parse(schema, self.at_top, self.context))
            .collect()
    }

    fn items_by_place(&mut self, schemas: &RawArray) -> Result<(), QueryError> {
        let mut first = Vec::new();
        for item in items(schemas) {
            if let RawBsonRef::Document(schema) = item.value() {
                first.push(self.inner(schema)?);
            }
        }
        let known = first.len();
        self.rules.push(Rule::ItemsByPlace(first));
        if let Ok(Some(others)) = self.source.get("additionalItems")
            && let Some(rest) = self.rest(others)?
        {
            self.rules.push(Rule::OtherItems(known, rest));
        }
        Ok(())
    }

    fn rest(&self, value: RawBsonRef<'_>) -> Result<Option<Rest>, QueryError> {
        Ok(match value {
            RawBsonRef::Boolean(false) => Some(Rest::None),
            RawBsonRef::Document(schema) => Some(Rest::Like(Box::new(self.inner(schema)?))),
            _ => None,
        })
    }

    fn other_properties(&mut self, value: RawBsonRef<'_>) -> Result<(), QueryError> {
        let Some(rest) = self.rest(value)? else {
            return Ok(());
        };
        let names = |keyword: &str| {
            let named = self.source.get_document(keyword).ok();
            named.into_iter().flat_map(elements)
        };
        let patterns = names("patternProperties").map(|element| self.pattern(element.name()));
        let rule = Rule::OtherProperties {
            patterns: patterns.collect::<Result<_, _>>()?,
            named: names("properties")
                .map(|element| element.name().to_owned())
                .collect(),
            rest,
        };
        self.rules.push(rule);
        Ok(())
    }

    fn pattern(&self, pattern: &str) -> Result<Schema, QueryError> {
        Schema::of(&rawdoc! { "pattern": pattern }, false, self.context)
    }

    fn names(&self, names: &RawArray) -> Result<Vec<(String, Schema)>, QueryError> {
        let names = items(names).filter_map(|item| match item.value() {
            RawBsonRef::String(name) => Some(name),
            _ => None,
        });
        names
            .map(|name| Ok((name.to_owned(), self.presence(name)?)))
            .collect()
    }

    /// The schema of documents that have a field.
    fn presence(&self, name: &str) -> Result<Schema, QueryError> {
        Schema::of(&rawdoc! { "required": [name] }, self.at_top, self.context)
    }

    fn dependencies(&mut self, named: &RawDocument) -> Result<(), QueryError> {
        let mut dependencies = Vec::new();
        for element in elements(named) {
            let needs = match element.value() {
                RawBsonRef::Array(names) => Needs::Properties(self.names(names)?),
                RawBsonRef::Document(schema) => {
                    let schema = SchemaNode::parse(schema, self.at_top, self.context)?;
                    Needs::Schema(Box::new(schema))
                }
                _ => continue,
            };
            dependencies.push(Dependency {
                property: element.name().to_owned(),
                is_there: self.presence(element.name())?,
                needs,
            });
        }
        self.rules.push(Rule::Dependencies(dependencies));
        Ok(())
    }
}
